/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the catalog: its connections and their prepared statements, one row each. Statements are
 * prepared when first used and kept. Each function binds, steps and resets; kvc_sql_* do that in
 * one line.
 *
 * How changes go (catalog_write.c, overlay.c), and how reads see them (catalog_rows.c,
 * catalog_range.c):
 *
 *   a change -> overlay, active -> sealed as a batch -> one transaction of the writer -> dropped
 *                    ^                                      | failed: ROLLBACK
 *                    +------------- merged back ------------+
 *
 * A read asks the overlay and, where that knows nothing of the row, SQLite by a reader's
 * connection. Both under the catalog's lock, so there is no gap: what is not in the overlay any
 * more was dropped under that lock after its COMMIT had returned, and a snapshot that begins now
 * has it; so has one that began earlier, if nothing was dropped since (c->age), and so a connection
 * keeps its snapshot from one short read to the next. What is in the overlay and in SQLite already
 * (between COMMIT and drop) is the same in both, or newer in the overlay.
 *
 * A snapshot that is held would keep the log from being copied and from beginning anew: so all are
 * let go before a checkpoint, and none is begun before its end. And they are for a catalog that
 * only the committer writes: tools, which change rows past the overlay, hold none.
 *
 * Locks: c->lock, then c->writer, then a connection's own. c->writer is held from the seal to the
 * end of the transaction; the committer takes it under c->lock, gives c->lock back, writes, gives
 * c->writer back, and only then takes c->lock again to work in how it went. Who holds c->lock may
 * therefore wait for c->writer (kvc_catalog_flush).
 */
#ifndef KVC_CATALOG_PRIV_H
#define KVC_CATALOG_PRIV_H

#include "wal_restart.h"
#include "catalog.h"
#include "catalog_check.h"
#include "filter.h"
#include "overlay.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#define ROW_COLUMNS                                                                          \
	"ino, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, " \
	"parent, chunk, container"
#define CHUNK_COLUMNS                                                                           \
	"id, created_ns, last_ns, hits, rank, pin_until_ns, ttl_s, expires_ns, policy, quota, " \
	"parent, facts, pool_facts, bytes"

#define KVC_STATEMENTS(X)                                                                          \
	X(BEGIN, "BEGIN IMMEDIATE")                                                                \
	X(COMMIT, "COMMIT")                                                                        \
	X(HOLD, "BEGIN")                                                                           \
	X(ROLLBACK, "ROLLBACK")                                                                    \
	X(META_GET, "SELECT value FROM meta WHERE key = ?")                                        \
	X(META_DEL, "DELETE FROM meta WHERE key = ?")                                              \
	X(META_EACH, "SELECT key, value FROM meta WHERE key > ? AND key < ? ORDER BY key")         \
	X(META_SET, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)")                        \
	X(NAME_GET, "SELECT ino, kind FROM names WHERE parent = ? AND hash = ? AND name = ?")      \
	X(NAME_PUT,                                                                                \
	  "INSERT OR REPLACE INTO names(parent, hash, name, ino, kind) VALUES(?, ?, ?, ?, ?)")     \
	X(NAME_DEL, "DELETE FROM names WHERE parent = ? AND hash = ? AND name = ?")                \
	X(NAME_EACH, "SELECT parent, hash, name, ino, kind FROM names WHERE parent = ? AND hash "  \
		     "> ? ORDER BY hash, name")                                                    \
	X(NAME_SCAN, "SELECT parent, hash FROM names WHERE (parent, hash) > (?, ?) ORDER BY "      \
		     "parent, hash LIMIT ?")                                                       \
	X(NAME_OF, "SELECT parent, hash, name, ino, kind FROM names WHERE ino = ?")                \
	X(NAME_OF_SOME, "SELECT parent, hash, name, ino, kind FROM names WHERE ino = ? AND "       \
			"(parent, hash) > (?, ?) ORDER BY parent, hash, name")                     \
	X(ROW_GET, "SELECT " ROW_COLUMNS " FROM nodes WHERE ino = ?")                              \
	X(ROW_PUT, "INSERT OR REPLACE INTO nodes(" ROW_COLUMNS                                     \
		   ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")                           \
	X(ROW_DEL, "DELETE FROM nodes WHERE ino = ?")                                              \
	X(ROW_SOME,                                                                                \
	  "SELECT " ROW_COLUMNS " FROM nodes WHERE ino > ? AND ino < ? ORDER BY ino LIMIT ?")      \
	X(PEEK_ROWS,                                                                               \
	  "SELECT n.ino, n.mode, n.uid, n.gid, n.nlink, n.size, n.blocks, n.atime_ns, "            \
	  "n.mtime_ns, n.ctime_ns, n.btime_ns, n.parent, n.chunk, n.container, o.gen, o.size, "    \
	  "o.sum, o.lower, d.parent FROM nodes n LEFT JOIN objects o ON o.ino = n.ino LEFT JOIN "  \
	  "nodes d ON d.ino = n.parent WHERE n.ino BETWEEN ? AND ? ORDER BY n.ino")                \
	X(PEEK_PLACES, "SELECT tier, gen, at, len, hi, codec, key, sum, ino FROM placements "      \
		       "WHERE ino BETWEEN ? AND ? ORDER BY ino, tier")                             \
	X(PEEK_CHUNKS,                                                                             \
	  "SELECT " CHUNK_COLUMNS " FROM chunks WHERE id BETWEEN ? AND ? ORDER BY id")             \
	X(ROW_MAX, "SELECT max(ino) FROM nodes")                                                   \
	X(TARGET_GET, "SELECT target FROM targets WHERE ino = ?")                                  \
	X(TARGET_PUT, "INSERT OR REPLACE INTO targets(ino, target) VALUES(?, ?)")                  \
	X(TARGET_DEL, "DELETE FROM targets WHERE ino = ?")                                         \
	X(OBJECT_GET, "SELECT gen, size, sum, lower FROM objects WHERE ino = ?")                   \
	X(OBJECT_PUT,                                                                              \
	  "INSERT OR REPLACE INTO objects(ino, gen, size, sum, lower) VALUES(?, ?, ?, ?, ?)")      \
	X(OBJECT_DEL, "DELETE FROM objects WHERE ino = ?")                                         \
	X(OBJECT_UNPLACED, "SELECT ino, gen, size, sum, lower FROM objects WHERE lower = 0 AND "   \
			   "ino > ? ORDER BY ino LIMIT 256")                                       \
	X(PLACE_GET,                                                                               \
	  "SELECT tier, gen, at, len, hi, codec, key, sum FROM placements WHERE ino = ?")          \
	X(PLACE_PUT, "INSERT OR REPLACE INTO placements(ino, tier, gen, at, len, hi, codec, key, " \
		     "sum) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)")                                     \
	X(PLACE_DEL, "DELETE FROM placements WHERE ino = ? AND tier = ?")                          \
	X(PLACE_DEL_ALL, "DELETE FROM placements WHERE ino = ?")                                   \
	X(PLACE_EACH,                                                                              \
	  "SELECT tier, gen, at, len, hi, codec, key, sum, ino FROM placements WHERE tier = ?")    \
	X(PLACE_NEXT, "SELECT tier, gen, at, len, hi, codec, key, sum, ino FROM placements WHERE " \
		      "(ino, tier) > (?, ?) ORDER BY ino, tier LIMIT 256")                         \
	X(GONE_GET, "SELECT 1 FROM gone WHERE at = ? AND hi = ? AND until_ns > ?")                 \
	X(GONE_PUT, "INSERT OR REPLACE INTO gone(at, hi, until_ns) VALUES(?, ?, ?)")               \
	X(GONE_DEL, "DELETE FROM gone WHERE at = ? AND hi = ?")                                    \
	X(GONE_FIRST, "SELECT min(until_ns) FROM gone")                                            \
	X(GONE_PURGE, "DELETE FROM gone WHERE until_ns <= ?")                                      \
	X(XATTR_GET, "SELECT value FROM xattrs WHERE ino = ? AND name = ?")                        \
	X(XATTR_SET, "INSERT OR REPLACE INTO xattrs(ino, name, value) VALUES(?, ?, ?)")            \
	X(XATTR_DEL, "DELETE FROM xattrs WHERE ino = ? AND name = ?")                              \
	X(XATTR_DEL_ALL, "DELETE FROM xattrs WHERE ino = ?")                                       \
	X(XATTR_LIST, "SELECT name FROM xattrs WHERE ino = ? ORDER BY name")                       \
	X(XATTR_SIZES, "SELECT name, length(value) FROM xattrs WHERE ino = ?")                     \
	X(CHUNK_GET, "SELECT " CHUNK_COLUMNS " FROM chunks WHERE id = ?")                          \
	X(CHUNK_PUT, "INSERT OR REPLACE INTO chunks(" CHUNK_COLUMNS                                \
		     ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")                         \
	X(CHUNK_DEL, "DELETE FROM chunks WHERE id = ?")                                            \
	X(CHUNK_ACCESS,                                                                            \
	  "UPDATE chunks SET created_ns = ?, last_ns = ?, hits = ?, rank = ?, parent = ?, "        \
	  "facts = ?, pool_facts = ?, bytes = ? WHERE id = ?")                                     \
	X(CHUNK_RANKED, "SELECT " CHUNK_COLUMNS                                                    \
			" FROM chunks WHERE policy = ? AND (rank, id) > (?, ?) ORDER BY rank, id") \
	X(CHUNK_QUOTA,                                                                             \
	  "SELECT " CHUNK_COLUMNS                                                                  \
	  " FROM chunks WHERE quota = ? AND quota > 0 AND (rank, id) > (?, ?) ORDER BY rank, id")  \
	X(CHUNK_EXPIRED, "SELECT " CHUNK_COLUMNS                                                   \
			 " FROM chunks WHERE expires_ns > 0 AND (expires_ns, id) > (?, ?) "        \
			 "AND expires_ns <= ? ORDER BY expires_ns, id")                            \
	X(USES_INODES,                                                                             \
	  "SELECT uid, CASE WHEN mode & 61440 = 16384 THEN ?1 ELSE ?1 * max(nlink, 1) + "          \
	  "CASE WHEN mode & 61440 = 40960 THEN size ELSE 0 END END, 0 * ?2 FROM nodes")            \
	X(USES_ATTRS, "SELECT n.uid, 0 * ?1, length(CAST(x.name AS BLOB)) + 1 + "                  \
		      "length(x.value) + ?2 FROM xattrs x JOIN nodes n ON n.ino = x.ino")          \
	X(CHUNK_PINNED, "SELECT " CHUNK_COLUMNS                                                    \
			" FROM chunks WHERE pin_until_ns > 0 AND id > ? ORDER BY id LIMIT ?")      \
	X(CHUNK_ALL, "SELECT " CHUNK_COLUMNS " FROM chunks WHERE id > ? ORDER BY id LIMIT 1024")

enum kvc_statement {
#define X(name, sql) ST_##name,
	KVC_STATEMENTS(X)
#undef X
		ST_COUNT
};

/* A connection: of one thread at a time. */
struct kvc_conn {
	pthread_mutex_t lock;
	sqlite3 *db;
	sqlite3_stmt *st[ST_COUNT];
	struct kvc_catalog *c;
	uint64_t age; /* c->age before the snapshot that is held began (kvc_reader_get_held) */
};

/* Bounds of the number of readers, which is otherwise one for each CPU of the process. */
#define KVC_READERS_MIN 2
#define KVC_READERS_MAX 16
/*
 * What the overlay may take while commits fail: enough for the changes of a second at full speed,
 * little beside a pool. While they only are slow, as on a busy disk, SLOW times that. Deletes have
 * REMOVALS more, so that a full filesystem can be emptied. Once no user's change is taken any more,
 * the engine's own are few: what is in memory.
 */
#define KVC_PENDING_MAX (64u << 20)
#define KVC_PENDING_SLOW 4
#define KVC_PENDING_REMOVALS (16u << 20)

#define KVC_BARE 64u

struct kvc_bare { /* an inode without attributes in SQLite, as of that drop of the overlay */
	uint64_t ino, age;
};

/* The account of users; usage.c writes it. */
struct kvc_usage {
	struct uses *v; /* by uid */
	size_t n, capacity;
	uint64_t limit;         /* 0: none */
	uint64_t inodes, attrs; /* bytes, of all users */
};

/*
 * As of that drop of the overlay SQLite has no name of this inode, up to this one, that the overlay
 * has not deleted.
 */
struct kvc_hint {
	uint64_t ino, age;
	struct kvc_name_at at;
};

struct kvc_catalog {
	char path[1280];
	bool look;                 /* opened by kvc_catalog_look */
	bool started;              /* between kvc_catalog_start and _stop */
	struct kvc_lock lock;      /* "the tree" */
	struct kvc_overlay over;   /* under lock */
	struct kvc_filter *filter; /* of names; its own lock */
	_Atomic uint64_t age;      /* how often the overlay dropped what is committed */

	pthread_mutex_t writer; /* the connection w, and: */
	struct kvc_conn w;
	int result;    /* of the batch that is out, once it has ended */
	char why[160]; /* what SQLite says of the last failure */

	/* Fixed once opened. Behind the readers is the scanner, kvc_scan_get()'s. */
	struct kvc_conn *reader;
	unsigned readers;
	_Atomic unsigned next_reader;
	/*
	 * > 0: no reader holds a snapshot: the log is being copied, or rows may change by
	 * themselves
	 */
	_Atomic int unheld;
	_Atomic uint64_t txn; /* over.txn, for any thread */

	/* how writing goes (catalog_write.c); changed under lock */
	_Atomic size_t pending; /* over.bytes */
	_Atomic size_t changes; /* over.nactive */
	_Atomic int failing;    /* the errno of the last commit, or 0 */
	/* for want of space; until there is some, and the reserve is whole again */
	_Atomic bool full;
	bool told;        /* of trouble, in the log */
	uint64_t reserve; /* bytes of the file set aside, when whole; 0: there is none */
	bool reserve_given;
	uint64_t reserve_ns; /* when it was last looked whether it can be had back */

	/* checkpoint.c */
	struct kvc_checkpoint *checkpoint;
	_Atomic uint64_t log_pages; /* frames in the log after the last commit */
	_Atomic uint64_t commits;
	struct kvc_wal_restart *anew;   /* the log, and how it begins anew */
	struct kvc_usage *usage;        /* usage.c, under lock; NULL: not counted */
	bool stale;                     /* what is counted there is not true any more */
	struct kvc_bare bare[KVC_BARE]; /* by inode number; under lock */
	struct kvc_hint hint[KVC_BARE]; /* the same */
	_Atomic bool logged;
};

#define KVC_CATALOG_FORMAT "4"       /* the value of format in meta */
extern const char *const kvc_schema; /* schema.c */

/*
 * schema.c: denies a connection all that a planted schema could make SQLite run. Right after
 * opening it; a code of SQLite.
 */
int kvc_schema_restrict(sqlite3 *db);
/*
 * Compares the file's tables and indexes with kvc_schema; with `whole`, a missing one is an error,
 * too. Returns 0, SQLITE_CORRUPT with the reason in why, or another SQLite code with why unchanged.
 */
int kvc_schema_compare(sqlite3 *db, bool whole, char why[400]);
/*
 * Refuses a catalog of another format: returns -EPROTO with one line in error[512]. Returns 0 if
 * the format is ours, and if it cannot be read, because kvc_schema_compare and fsck report that.
 * Call it before kvc_schema_compare and after kvc_schema_restrict.
 */
int kvc_schema_format(sqlite3 *db, const char *path, char *error);
/*
 * For fsck, before anything else is read: reports each foreign object to fn, and with `mend` drops
 * it unless it is one of our tables. Returns 0 if no foreign object is left, else -EBADMSG. Ignores
 * a schema that cannot be read: the check of the pages reports it.
 */
int kvc_schema_check(sqlite3 *db, bool mend, kvc_found_fn *fn, void *arg);

/* conn.c */
int kvc_conn_settings(sqlite3 *db); /* of one that writes */
int kvc_conn_open(struct kvc_catalog *c, struct kvc_conn *n, bool writes);
void kvc_conn_close(struct kvc_conn *n);
/* A connection that reads and leaves every file as it is; an SQLite code. Close it in any case. */
int kvc_conn_look(const char *path, sqlite3 **db);
/* A reader's connection, locked. Give it back with kvc_reader_put. */
struct kvc_conn *kvc_reader_get(struct kvc_catalog *c);
/*
 * The same, for what reads a row or two: its snapshot may be an earlier call's, which nothing was
 * dropped from the overlay after, and stays with the connection for the next call. So the locks of
 * the log, two system calls a snapshot, are not taken by each.
 */
struct kvc_conn *kvc_reader_get_held(struct kvc_catalog *c);
/*
 * The scanner's connection, locked: for walks over whole tables, so that no walk takes a reader
 * from lookups. It holds no snapshot between calls. Give it back with kvc_reader_put.
 */
struct kvc_conn *kvc_scan_get(struct kvc_catalog *c);
/* Readers let go of their snapshots, and hold none until the same is said with false. */
void kvc_readers_unheld(struct kvc_catalog *c, bool unheld);
void kvc_reader_put(struct kvc_conn *n);
int kvc_sql_errno(sqlite3 *db, int rc);

/*
 * The statement with its arguments bound: 'i' int64, 's' text, 'b' (const void *, size_t) blob or
 * NULL. NULL after an error, which is logged. Give it back with kvc_sql_done.
 */
sqlite3_stmt *kvc_sql(struct kvc_conn *n, enum kvc_statement s, const char *types, ...);
/* Steps: 1 a row, 0 the end, or a negative errno. */
int kvc_sql_step(struct kvc_conn *n, sqlite3_stmt *st);
void kvc_sql_done(sqlite3_stmt *st);
/* Binds and runs a statement that gives no rows. */
#define kvc_sql_run(n, s, ...) kvc_sql_finish(n, kvc_sql(n, s, __VA_ARGS__))
int kvc_sql_finish(struct kvc_conn *n, sqlite3_stmt *st);

/* Changes of rows that nobody counts; usage.c has those that all others call. */
int kvc_bare_row_put(struct kvc_catalog *c, const struct kvc_row *r);
int kvc_bare_row_del(struct kvc_catalog *c, uint64_t ino);
int kvc_bare_xattr_set(struct kvc_catalog *c, uint64_t ino, const char *name, const void *value,
		       size_t len);
int kvc_bare_xattr_del(struct kvc_catalog *c, uint64_t ino, const char *name);
/* The overlay has changed: what other threads see of its size. Under the lock. */
static inline void kvc_catalog_count(struct kvc_catalog *c)
{
	atomic_store_explicit(&c->pending, c->over.bytes, memory_order_relaxed);
	atomic_store_explicit(&c->changes, c->over.nactive, memory_order_relaxed);
}
/* usage.c */
void kvc_usage_free(struct kvc_catalog *c);
/* Has any user attributes? Under the lock. */
bool kvc_usage_attrs(const struct kvc_catalog *c);

/* The columns of a row, as the statements above have them (catalog_rows.c). */
void kvc_row_columns(sqlite3_stmt *st, struct kvc_row *r);
void kvc_object_columns(sqlite3_stmt *st, int at, struct kvc_object_row *o);
struct kvc_place kvc_place_columns(sqlite3_stmt *st);
void kvc_chunk_columns(sqlite3_stmt *st, struct kvc_chunk_row *r);

/*
 * Under the catalog's lock: writes and commits what is pending, if any of it is in one of the
 * tables (a mask of 1 << enum kvc_relation; 0: any). For questions that only SQLite answers. 0, or
 * the changes stay and what went wrong. Not while a cache lives, whose rows come with the
 * committer.
 */
int kvc_catalog_flush(struct kvc_catalog *c, unsigned tables);
/* The inode's row is gone and SQLite's rows of other tables do not count. */
bool kvc_wiped(struct kvc_catalog *c, uint64_t ino);

/*
 * checkpoint.c. kvc_checkpoint_gate: where the log is to be restarted, the committer waits here a
 * moment; without locks.
 */
int kvc_checkpoint_start(struct kvc_catalog *c, uint64_t log_bytes);
void kvc_checkpoint_stop(struct kvc_catalog *c);
void kvc_checkpoint_gate(struct kvc_catalog *c);
/* The log has begun anew and is to be synced: the thread does. A catalog's, from its committer. */
void kvc_checkpoint_ask(void *catalog);
/* The writer's connection is new: it tells how long the log is. */
void kvc_checkpoint_watch(struct kvc_catalog *c);

/* filter.c: fills the filter, now and when it is to be made anew, in a thread. */
int kvc_filter_start(struct kvc_catalog *c);
void kvc_filter_stop(struct kvc_catalog *c);

/* About how many names there are, by the account. 0: there is no account. With c->lock. */
static inline uint64_t kvc_usage_names(const struct kvc_catalog *c)
{
	return c->usage ? c->usage->inodes / KVC_USAGE_INODE : 0;
}

static inline uint64_t kvc_sql_u64(sqlite3_stmt *st, int column)
{
	return (uint64_t)sqlite3_column_int64(st, column);
}

#endif
