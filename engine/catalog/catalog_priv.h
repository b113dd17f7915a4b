/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal header of the catalog: its connections and their prepared statements, one row for each
 * statement. A statement is prepared at its first use and kept.
 *
 * The life of a change (catalog_write.c, overlay.c):
 *
 *   change -> overlay, active -> sealed as a batch -> one transaction of the writer -> dropped
 *                   ^                                      | failed: ROLLBACK
 *                   +------------- merged back ------------+
 *
 * A read (catalog_rows.c, catalog_range.c) asks the overlay. If the overlay has no change of the
 * row, the read asks SQLite through a reader's connection. Both happen under the catalog's lock, so
 * no change is missed: a change leaves the overlay under that lock after its COMMIT has returned,
 * and a snapshot that begins later contains it. An earlier snapshot contains it, too, if the
 * overlay has dropped nothing since (c->age). Therefore a connection keeps its snapshot from one
 * short read to the next. Between COMMIT and drop a change is both in the overlay and in SQLite;
 * the overlay then has the same value or a newer one.
 *
 * A held snapshot would prevent the log from being copied and restarted. Therefore all snapshots
 * are released before a checkpoint, and none begins before its end. Tools change rows without the
 * overlay, so they hold no snapshots.
 *
 * Locks: c->lock, then c->writer, then the lock of a connection. c->writer is held from the seal to
 * the end of the transaction. The committer takes it under c->lock, releases c->lock, writes,
 * releases c->writer, and then takes c->lock again to apply the result. A thread that holds c->lock
 * may therefore wait for c->writer (kvc_catalog_flush).
 */
#ifndef KVC_CATALOG_PRIV_H
#define KVC_CATALOG_PRIV_H

#include "wal_restart.h"
#include "catalog.h"
#include "catalog_check.h"
#include "overlay.h"
#include "util.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#define ROW_COLUMNS                                                                          \
	"ino, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, " \
	"parent, chunk, container"
#define PLACE_COLUMNS "tier, gen, at, len, hi, codec, key, sum, raw, error, worst"
#define CHUNK_COLUMNS                                                                           \
	"id, created_ns, last_ns, hits, rank, pin_until_ns, ttl_s, expires_ns, policy, quota, " \
	"parent, facts, pool_facts, bytes, tenant"

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
	  "o.sum, o.lower, o.decoded, d.parent FROM nodes n LEFT JOIN objects o ON o.ino = "       \
	  "n.ino LEFT JOIN nodes d ON d.ino = n.parent WHERE n.ino BETWEEN ? AND ? ORDER BY "      \
	  "n.ino")                                                                                 \
	X(PEEK_PLACES, "SELECT " PLACE_COLUMNS ", ino FROM placements "                            \
		       "WHERE ino BETWEEN ? AND ? ORDER BY ino, tier")                             \
	X(PEEK_CHUNKS,                                                                             \
	  "SELECT " CHUNK_COLUMNS " FROM chunks WHERE id BETWEEN ? AND ? ORDER BY id")             \
	X(ROW_MAX, "SELECT max(ino) FROM nodes")                                                   \
	X(TARGET_GET, "SELECT target FROM targets WHERE ino = ?")                                  \
	X(TARGET_PUT, "INSERT OR REPLACE INTO targets(ino, target) VALUES(?, ?)")                  \
	X(TARGET_DEL, "DELETE FROM targets WHERE ino = ?")                                         \
	X(OBJECT_GET, "SELECT gen, size, sum, lower, decoded FROM objects WHERE ino = ?")          \
	X(OBJECT_PUT, "INSERT OR REPLACE INTO objects(ino, gen, size, sum, lower, decoded) "       \
		      "VALUES(?, ?, ?, ?, ?, ?)")                                                  \
	X(OBJECT_DEL, "DELETE FROM objects WHERE ino = ?")                                         \
	X(OBJECT_UNPLACED, "SELECT ino, gen, size, sum, lower, decoded FROM objects "              \
			   "WHERE lower = 0 AND ino > ? ORDER BY ino LIMIT 256")                   \
	X(PLACE_GET, "SELECT " PLACE_COLUMNS " FROM placements WHERE ino = ?")                     \
	X(PLACE_PUT, "INSERT OR REPLACE INTO placements(ino, " PLACE_COLUMNS                       \
		     ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")                               \
	X(PLACE_DEL, "DELETE FROM placements WHERE ino = ? AND tier = ?")                          \
	X(PLACE_DEL_ALL, "DELETE FROM placements WHERE ino = ?")                                   \
	X(PLACE_EACH, "SELECT " PLACE_COLUMNS ", ino FROM placements WHERE tier = ?")              \
	X(PLACE_NEXT, "SELECT " PLACE_COLUMNS ", ino FROM placements WHERE "                       \
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
		     ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")                      \
	X(CHUNK_DEL, "DELETE FROM chunks WHERE id = ?")                                            \
	X(CHUNK_ACCESS,                                                                            \
	  "UPDATE chunks SET created_ns = ?, last_ns = ?, hits = ?, rank = ?, parent = ?, "        \
	  "facts = ?, pool_facts = ?, bytes = ? WHERE id = ?")                                     \
	X(CHUNK_RANKED, "SELECT " CHUNK_COLUMNS                                                    \
			" FROM chunks WHERE policy = ? AND (rank, id) > (?, ?) ORDER BY rank, id") \
	X(CHUNK_QUOTA,                                                                             \
	  "SELECT " CHUNK_COLUMNS                                                                  \
	  " FROM chunks WHERE quota = ? AND quota > 0 AND (rank, id) > (?, ?) ORDER BY rank, id")  \
	X(CHUNK_TENANT,                                                                            \
	  "SELECT " CHUNK_COLUMNS                                                                  \
	  " FROM chunks WHERE tenant = ? AND tenant > 0 AND (rank, id) > (?, ?) ORDER BY rank, "   \
	  "id")                                                                                    \
	X(CHUNK_TENANTS,                                                                           \
	  "SELECT tenant, count(*), sum(bytes) FROM chunks WHERE tenant > 0 GROUP BY tenant")      \
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

/* A connection. One thread uses it at a time. */
struct kvc_conn {
	pthread_mutex_t lock;
	sqlite3 *db;
	sqlite3_stmt *st[ST_COUNT];
	struct kvc_catalog *c;
	uint64_t age; /* value of c->age before the held snapshot began (kvc_reader_get_held) */
};

/* Limits of the number of readers. Within them each CPU of the process has a reader. */
#define KVC_READERS_MIN 2
#define KVC_READERS_MAX 16
/*
 * Memory that the overlay may use while commits fail: enough for a second of changes at full speed,
 * and small compared with a pool. The limit is KVC_PENDING_SLOW times as high while commits are
 * only slow, as on a busy disk. Removals may use KVC_PENDING_REMOVALS more, so that a full
 * filesystem can be emptied. When no more user changes are accepted, the engine itself makes few
 * changes: at most those of the objects in memory.
 */
#define KVC_PENDING_MAX (64u << 20)
#define KVC_PENDING_SLOW 4
#define KVC_PENDING_REMOVALS (16u << 20)

#define KVC_BARE 64u

/* an inode that had no attributes in SQLite after drop number `age` of the overlay */
struct kvc_bare {
	uint64_t ino, age;
};

/* The accounts of the users. usage.c writes it. */
struct kvc_usage {
	struct uses *v; /* accounts by uid */
	size_t n, capacity;
	uint64_t limit;         /* 0: none */
	uint64_t inodes, attrs; /* bytes of all users */
};

/*
 * After drop number `age` of the overlay, every name of this inode up to position `at` in SQLite
 * has a pending deletion in the overlay.
 */
struct kvc_hint {
	uint64_t ino, age;
	struct kvc_name_at at;
};

struct kvc_catalog {
	char path[1280];
	bool read_only;            /* opened by kvc_catalog_open_read */
	bool started;              /* between kvc_catalog_start and _stop */
	struct kvc_lock lock;      /* "tree" in the lock profile */
	struct kvc_overlay over;   /* under lock */
	struct kvc_filter *filter; /* filter of names; has its own lock */
	/*
	 * grows when the overlay drops or merges changes, and when accesses are written beside it
	 */
	_Atomic uint64_t age;

	pthread_mutex_t writer; /* guards the connection w, result and why */
	struct kvc_conn w;
	int result;    /* result of the sealed batch, after its write has ended */
	char why[160]; /* SQLite's message for the last failure */

	/*
	 * Constant after the open. The connection after the last reader is the scanner
	 * (kvc_scan_get).
	 */
	struct kvc_conn *reader;
	unsigned readers;
	/* threads that wait for a free reader (conn.c) */
	pthread_mutex_t free_lock;
	pthread_cond_t free_cond;
	_Atomic unsigned free_waiting;
	/*
	 * > 0: no reader may hold a snapshot, because the log is being copied or rows may change in
	 * SQLite without the overlay
	 */
	_Atomic int no_snapshots;
	_Atomic uint64_t txn; /* copy of over.txn, for all threads */

	/* state of writing (catalog_write.c); changed under lock */
	_Atomic size_t pending; /* copy of over.bytes */
	_Atomic size_t changes; /* copy of over.nactive */
	_Atomic int failing;    /* errno of the last commit, or 0 */
	/*
	 * set when a commit fails because the filesystem is full, and cleared when there is space
	 * and the reserve is complete
	 */
	_Atomic bool full;
	bool trouble_logged; /* trouble was logged */
	uint64_t reserve;    /* size of the complete reserve file in bytes; 0: the store has none */
	bool reserve_given;
	uint64_t reserve_ns; /* when the last attempt was made to restore the reserve */

	/* checkpoint.c */
	struct kvc_checkpoint *checkpoint;
	_Atomic uint64_t log_pages; /* number of frames in the log after the last commit */
	_Atomic uint64_t commits;
	struct kvc_wal_restart *restart; /* the log, and how it restarts */
	struct kvc_usage *usage;         /* usage.c, under lock; NULL: users are not counted */
	bool stale;                      /* the stored accounts are no longer correct */
	struct kvc_bare bare[KVC_BARE];  /* hashed by inode number; under lock */
	struct kvc_hint hint[KVC_BARE];  /* hashed by inode number; under lock */
	_Atomic bool error_logged;
};

#define KVC_CATALOG_FORMAT "6"       /* the value of format in meta */
extern const char *const kvc_schema; /* schema.c */

/*
 * schema.c: denies a connection everything that a planted schema could make SQLite run. Call it
 * right after opening the connection. Returns an SQLite code.
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

/*
 * catalog.c: inserts the row of an empty root folder that the caller's user owns. Returns an SQLite
 * code.
 */
int kvc_catalog_insert_root(sqlite3 *db);

/* conn.c */
int kvc_conn_settings(sqlite3 *db); /* for a connection that writes */
/* COPIES: makes checkpoints. Only the connections that write or copy may sync a file. */
enum kvc_conn_use { KVC_CONN_READS, KVC_CONN_WRITES, KVC_CONN_COPIES };
int kvc_conn_open(struct kvc_catalog *c, struct kvc_conn *n, enum kvc_conn_use use);
void kvc_conn_close(struct kvc_conn *n);
/*
 * Opens a connection that only reads and changes no file. Returns an SQLite code. Close the
 * connection also after an error.
 */
int kvc_conn_open_read(const char *path, sqlite3 **db);
/* Returns a reader's connection, locked. Return it with kvc_reader_put. */
struct kvc_conn *kvc_reader_get(struct kvc_catalog *c);
/*
 * The same, for reads of one or two rows. The connection may keep the snapshot of an earlier call
 * if the overlay has dropped nothing since, and keeps its snapshot for the next call. This saves
 * the locks of the log, which are two system calls for each snapshot.
 */
struct kvc_conn *kvc_reader_get_held(struct kvc_catalog *c);
/*
 * Returns the scanner's connection, locked. It serves walks over whole tables, so that no walk
 * takes a reader from lookups. It holds no snapshot between calls. Return it with kvc_reader_put.
 */
struct kvc_conn *kvc_scan_get(struct kvc_catalog *c);
/* With true, all readers release their snapshots, and hold none until the call with false. */
void kvc_readers_release(struct kvc_catalog *c, bool released);
void kvc_reader_put(struct kvc_conn *n);
int kvc_sql_errno(sqlite3 *db, int rc);

/*
 * Returns the statement with its arguments bound: 'i' int64, 's' text, 'b' (const void *, size_t)
 * blob or NULL. Returns NULL after an error, which is logged. Release it with kvc_sql_done.
 */
sqlite3_stmt *kvc_sql(struct kvc_conn *n, enum kvc_statement s, const char *types, ...);
/* Returns 1 for a row, 0 at the end, or a negative errno. */
int kvc_sql_step(struct kvc_conn *n, sqlite3_stmt *st);
void kvc_sql_done(sqlite3_stmt *st);
/* Binds and runs a statement that returns no rows. */
#define kvc_sql_run(n, s, ...) kvc_sql_finish(n, kvc_sql(n, s, __VA_ARGS__))
int kvc_sql_finish(struct kvc_conn *n, sqlite3_stmt *st);

/* Changes of rows without accounting. All other files call the functions of usage.c instead. */
int kvc_bare_row_put(struct kvc_catalog *c, const struct kvc_row *r);
int kvc_bare_row_del(struct kvc_catalog *c, uint64_t ino);
int kvc_bare_xattr_set(struct kvc_catalog *c, uint64_t ino, const char *name, const void *value,
		       size_t len);
int kvc_bare_xattr_del(struct kvc_catalog *c, uint64_t ino, const char *name);
/* Publishes the size of the overlay to other threads after a change. Under the lock. */
static inline void kvc_catalog_count(struct kvc_catalog *c)
{
	atomic_store_explicit(&c->pending, c->over.bytes, memory_order_relaxed);
	atomic_store_explicit(&c->changes, c->over.nactive, memory_order_relaxed);
}
/* usage.c */
void kvc_usage_free(struct kvc_catalog *c);
/* Does any user have extended attributes? Under the lock. */
bool kvc_usage_attrs(const struct kvc_catalog *c);

/* Read the columns of a row in the order of the statements above (catalog_rows.c). */
void kvc_row_columns(sqlite3_stmt *st, struct kvc_row *r);
void kvc_object_columns(sqlite3_stmt *st, int at, struct kvc_object_row *o);
struct kvc_place kvc_place_columns(sqlite3_stmt *st);
void kvc_chunk_columns(sqlite3_stmt *st, struct kvc_chunk_row *r);

/*
 * Writes and commits the pending changes if any of them is in one of the tables (a mask of 1 <<
 * enum kvc_relation; 0: all tables). For queries that only SQLite can answer. Returns 0, or a
 * negative errno and the changes stay pending. Under the catalog's lock, and not while a cache is
 * open: then only the committer writes rows.
 */
int kvc_catalog_flush(struct kvc_catalog *c, unsigned tables);
/* Is the inode's row deleted, so that its rows in other tables of SQLite no longer count? */
bool kvc_wiped(struct kvc_catalog *c, uint64_t ino);

/*
 * checkpoint.c. kvc_checkpoint_gate: the committer waits here if the log is about to restart. The
 * caller holds no locks. kvc_checkpoint_gate_leave: the commit before which it waited has ended.
 */
int kvc_checkpoint_start(struct kvc_catalog *c, uint64_t log_bytes);
void kvc_checkpoint_stop(struct kvc_catalog *c);
void kvc_checkpoint_gate(struct kvc_catalog *c);
void kvc_checkpoint_gate_leave(struct kvc_catalog *c);
/*
 * Asks the thread to sync the log after its restart. `catalog` is a struct kvc_catalog. The
 * committer calls it.
 */
void kvc_checkpoint_ask(void *catalog);
/* Makes the writer's new connection report the length of the log. */
void kvc_checkpoint_watch(struct kvc_catalog *c);

/*
 * filter.c: a filter of names tells that a name certainly does not exist, or that it may exist. The
 * functions need no lock. kvc_filter_new returns NULL if memory is short. A new filter is not
 * filled: every name may exist.
 */
struct kvc_filter *kvc_filter_new(void);
void kvc_filter_free(struct kvc_filter *f);
/* Records that a name, given by its folder and hash, now exists; or that it no longer exists. */
void kvc_filter_add(struct kvc_filter *f, uint64_t parent, uint64_t hash);
void kvc_filter_removed(struct kvc_filter *f);
bool kvc_filter_may_have(struct kvc_filter *f, uint64_t parent, uint64_t hash);
/*
 * Refills the filter. After begin, added names also go into the new filter; kvc_filter_add_old adds
 * the existing names; end replaces the old filter by the new one, or discards the new one. `names`:
 * approximate number of names. One thread does all of this. Returns 0 or -ENOMEM.
 */
int kvc_filter_begin(struct kvc_filter *f, uint64_t names);
void kvc_filter_add_old(struct kvc_filter *f, uint64_t parent, uint64_t hash);
void kvc_filter_end(struct kvc_filter *f, bool good);
/*
 * Is a refill worthwhile, because many names were removed, more names exist than it was sized for,
 * or it was never filled?
 */
bool kvc_filter_stale(struct kvc_filter *f);
/* Starts and stops the thread that fills the filter, and refills it when it is stale. */
int kvc_filter_start(struct kvc_catalog *c);
void kvc_filter_stop(struct kvc_catalog *c);

/*
 * Returns the approximate number of names according to the accounts; 0: users are not counted.
 * Under c->lock.
 */
static inline uint64_t kvc_usage_names(const struct kvc_catalog *c)
{
	return c->usage ? c->usage->inodes / KVC_USAGE_INODE : 0;
}

static inline uint64_t kvc_sql_u64(sqlite3_stmt *st, int column)
{
	return (uint64_t)sqlite3_column_int64(st, column);
}

#endif
