/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the catalog: the connection and its prepared statements, one row each. Statements are prepared when first
 * used and kept. Each function binds, steps and resets; kvc_sql_* do that in one line.
 */
#ifndef KVC_CATALOG_PRIV_H
#define KVC_CATALOG_PRIV_H

#include "catalog.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#define ROW_COLUMNS "ino, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, parent, chunk, container"
#define CHUNK_COLUMNS "id, created_ns, last_ns, hits, rank, pin_until_ns, ttl_s, expires_ns, policy, quota"

/* The folder ? and all folders below it. */
#define FOLDERS_BELOW "below(ino) AS (VALUES(?) UNION ALL SELECT n.ino FROM names n JOIN below ON n.parent = below.ino WHERE n.kind = 16384) "

#define KVC_STATEMENTS(X)                                                                                              \
	X(BEGIN, "BEGIN IMMEDIATE")                                                                                     \
	X(COMMIT, "COMMIT")                                                                                            \
	X(META_GET, "SELECT value FROM meta WHERE key = ?")                                                            \
	X(META_DEL, "DELETE FROM meta WHERE key = ?")                                                                  \
	X(META_EACH, "SELECT key, value FROM meta WHERE key > ? AND substr(key, 1, ?) = ? ORDER BY key LIMIT 1")       \
	X(META_SET, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)")                                            \
	X(NAME_GET, "SELECT ino, kind FROM names WHERE parent = ? AND hash = ? AND name = ?")                          \
	X(NAME_PUT, "INSERT OR REPLACE INTO names(parent, hash, name, ino, kind) VALUES(?, ?, ?, ?, ?)")               \
	X(NAME_DEL, "DELETE FROM names WHERE parent = ? AND hash = ? AND name = ?")                                    \
	X(NAME_EACH, "SELECT parent, hash, name, ino, kind FROM names WHERE parent = ? AND hash > ? ORDER BY hash, name") \
	X(NAME_OF, "SELECT parent, hash, name, ino, kind FROM names WHERE ino = ?")                                    \
	X(ROW_GET, "SELECT " ROW_COLUMNS " FROM nodes WHERE ino = ?")                                                  \
	X(ROW_PUT, "INSERT OR REPLACE INTO nodes(" ROW_COLUMNS ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")   \
	X(ROW_DEL, "DELETE FROM nodes WHERE ino = ?")                                                                  \
	X(ROW_MAX, "SELECT max(ino) FROM nodes")                                                                       \
	X(TARGET_GET, "SELECT target FROM targets WHERE ino = ?")                                                      \
	X(TARGET_PUT, "INSERT OR REPLACE INTO targets(ino, target) VALUES(?, ?)")                                      \
	X(TARGET_DEL, "DELETE FROM targets WHERE ino = ?")                                                             \
	X(OBJECT_GET, "SELECT gen, size, sum, lower FROM objects WHERE ino = ?")                                       \
	X(OBJECT_PUT, "INSERT OR REPLACE INTO objects(ino, gen, size, sum, lower) VALUES(?, ?, ?, ?, ?)")              \
	X(OBJECT_DEL, "DELETE FROM objects WHERE ino = ?")                                                             \
	X(OBJECT_UNPLACED, "SELECT ino, gen, size, sum, lower FROM objects WHERE lower = 0 AND ino > ? ORDER BY ino LIMIT 256") \
	X(PLACE_GET, "SELECT tier, gen, at, len, hi, codec, key, sum FROM placements WHERE ino = ?")                   \
	X(PLACE_PUT, "INSERT OR REPLACE INTO placements(ino, tier, gen, at, len, hi, codec, key, sum) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)") \
	X(PLACE_DEL, "DELETE FROM placements WHERE ino = ? AND tier = ?")                                              \
	X(PLACE_DEL_ALL, "DELETE FROM placements WHERE ino = ?")                                                       \
	X(PLACE_EACH, "SELECT tier, gen, at, len, hi, codec, key, sum, ino FROM placements WHERE tier = ?")            \
	X(PLACE_NEXT, "SELECT tier, gen, at, len, hi, codec, key, sum, ino FROM placements WHERE (ino, tier) > (?, ?) ORDER BY ino, tier LIMIT 256") \
	X(GONE_GET, "SELECT 1 FROM gone WHERE at = ? AND hi = ? AND until_ns > ?")                                     \
	X(GONE_PUT, "INSERT OR REPLACE INTO gone(at, hi, until_ns) VALUES(?, ?, ?)")                                   \
	X(GONE_DEL, "DELETE FROM gone WHERE at = ? AND hi = ?")                                                        \
	X(GONE_PURGE, "DELETE FROM gone WHERE until_ns <= ?")                                                          \
	X(XATTR_GET, "SELECT value FROM xattrs WHERE ino = ? AND name = ?")                                            \
	X(XATTR_SET, "INSERT OR REPLACE INTO xattrs(ino, name, value) VALUES(?, ?, ?)")                                \
	X(XATTR_DEL, "DELETE FROM xattrs WHERE ino = ? AND name = ?")                                                  \
	X(XATTR_DEL_ALL, "DELETE FROM xattrs WHERE ino = ?")                                                           \
	X(XATTR_LIST, "SELECT name FROM xattrs WHERE ino = ? ORDER BY name")                                           \
	X(CHUNK_GET, "SELECT " CHUNK_COLUMNS " FROM chunks WHERE id = ?")                                              \
	X(CHUNK_PUT, "INSERT OR REPLACE INTO chunks(" CHUNK_COLUMNS ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")          \
	X(CHUNK_DEL, "DELETE FROM chunks WHERE id = ?")                                                                \
	X(CHUNK_RANKED, "SELECT " CHUNK_COLUMNS " FROM chunks WHERE policy = ? AND (rank, id) > (?, ?) ORDER BY rank, id LIMIT 1") \
	X(CHUNK_QUOTA, "SELECT " CHUNK_COLUMNS " FROM chunks WHERE quota = ? AND quota > 0 AND (rank, id) > (?, ?) ORDER BY rank, id LIMIT 1") \
	X(CHUNK_BELOW, "WITH RECURSIVE " FOLDERS_BELOW "SELECT " CHUNK_COLUMNS " FROM chunks WHERE id IN (SELECT ino FROM below"  \
	  " UNION SELECT n.ino FROM below JOIN names n ON n.parent = below.ino WHERE n.kind <> 16384)")                \
	X(BLOCKS_BELOW, "WITH RECURSIVE " FOLDERS_BELOW "SELECT ifnull(sum(blocks), 0) FROM (SELECT DISTINCT m.ino, m.blocks FROM below"  \
	  " JOIN names n ON n.parent = below.ino JOIN nodes m ON m.ino = n.ino AND m.parent = n.parent WHERE n.kind = 32768)") \
	X(CHUNK_EXPIRED, "SELECT " CHUNK_COLUMNS " FROM chunks WHERE expires_ns > 0 AND expires_ns <= ?")              \
	X(CHUNK_ALL, "SELECT " CHUNK_COLUMNS " FROM chunks WHERE id > ? ORDER BY id LIMIT 1024")

enum kvc_statement {
#define X(name, sql) ST_##name,
	KVC_STATEMENTS(X)
#undef X
	ST_COUNT
};

struct kvc_catalog {
	pthread_mutex_t lock;
	sqlite3 *db;
	sqlite3 *checkpointer; /* a connection of its own, so that a checkpoint does not keep the writer */
	sqlite3_stmt *st[ST_COUNT];
	sqlite3_file *wal;     /* the log, for kvc_catalog_sync */
	_Atomic uint64_t txn;
	bool logged;
};

extern const char *const kvc_schema;

/*
 * The statement with its arguments bound: 'i' int64, 's' text, 'b' (const void *, size_t) blob or NULL. NULL after
 * an error, which is logged. Give it back with kvc_sql_done.
 */
sqlite3_stmt *kvc_sql(struct kvc_catalog *c, enum kvc_statement s, const char *types, ...);
/* Steps: 1 a row, 0 the end, or a negative errno. */
int kvc_sql_step(struct kvc_catalog *c, sqlite3_stmt *st);
void kvc_sql_done(sqlite3_stmt *st);
/* Binds and runs a statement that gives no rows. */
#define kvc_sql_run(c, s, ...) kvc_sql_finish(c, kvc_sql(c, s, __VA_ARGS__))
int kvc_sql_finish(struct kvc_catalog *c, sqlite3_stmt *st);

static inline uint64_t kvc_sql_u64(sqlite3_stmt *st, int column)
{
	return (uint64_t)sqlite3_column_int64(st, column);
}

#endif
