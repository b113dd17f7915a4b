/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogs of earlier formats, from the first on: each step brings one to the next, in a
 * transaction of its own, so that a kill leaves the one or the other. A step writes what its format
 * was when it was made, and stays as it is. tests/lib/stores has a store of each.
 */
#include "catalog_priv.h"

#include "log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* To format 2, which has copies in shared tiers: theirs have more to say than the disk's. */
static const char from_1[] =
	"ALTER TABLE placements RENAME TO before;"
	"CREATE TABLE placements(ino INTEGER NOT NULL, tier INTEGER NOT NULL, gen INTEGER NOT "
	"NULL, at INTEGER NOT NULL,"
	" len INTEGER NOT NULL, hi INTEGER NOT NULL, codec INTEGER NOT NULL, key INTEGER NOT NULL, "
	"sum BLOB, PRIMARY KEY(ino, tier)) WITHOUT ROWID;"
	"INSERT INTO placements SELECT ino, tier, gen, at, len, 0, codec, 0, NULL FROM before;"
	"DROP TABLE before;"
	"CREATE TABLE gone(at INTEGER NOT NULL, hi INTEGER NOT NULL, until_ns INTEGER NOT NULL, "
	"PRIMARY KEY(at, hi)) WITHOUT ROWID;";

/* To format 3, whose chunks are in classes: those of the mount's policy, without a quota. */
static const char from_2[] =
	"DROP INDEX chunks_rank;"
	"ALTER TABLE chunks ADD COLUMN policy INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE chunks ADD COLUMN quota INTEGER NOT NULL DEFAULT 0;"
	"CREATE INDEX chunks_rank ON chunks(policy, rank, id);"
	"CREATE INDEX chunks_quota ON chunks(quota, rank, id) WHERE quota > 0;";

/*
 * To format 4. Format 3 had chunks by depth: folders with folders in them, and those with too many
 * files for a chunk, are containers, and the latter's files chunks of their own.
 */
static const char from_3[] =
	"ALTER TABLE nodes ADD COLUMN container INTEGER NOT NULL DEFAULT 0;"
	"UPDATE nodes SET container = 1 WHERE ino = 1 OR ino IN (SELECT parent FROM names WHERE "
	"kind = 16384);"
	"CREATE TEMP TABLE large AS SELECT parent AS ino FROM names WHERE kind = 32768 GROUP BY "
	"parent HAVING count(*) > 1024;"
	"UPDATE nodes SET container = 1 WHERE ino IN (SELECT ino FROM large);"
	"INSERT OR IGNORE INTO chunks SELECT n.ino, c.created_ns, c.last_ns, c.hits, c.rank, "
	"c.pin_until_ns, c.ttl_s, c.expires_ns, c.policy,"
	" c.quota FROM large JOIN names d ON d.parent = large.ino JOIN nodes n ON n.ino = d.ino "
	"AND n.chunk = large.ino"
	" JOIN chunks c ON c.id = large.ino;"
	"UPDATE nodes SET chunk = ino WHERE chunk IN (SELECT ino FROM large);"
	"DELETE FROM chunks WHERE id IN (SELECT ino FROM large);"
	"DROP TABLE large;";

static const char *const steps[] = { from_1, from_2, from_3 };
#define FIRST 1ul
#define LOOKED_AT 3ul /* what fsck -n and the like can read as it is, from here on */

static int step(struct kvc_catalog *c, unsigned long from)
{
	char end[96];
	int rc;

	kvc_info("the catalog has format %lu and is upgraded to %lu", from, from + 1);
	snprintf(end, sizeof end, "UPDATE meta SET value = '%lu' WHERE key = 'format'; COMMIT",
		 from + 1);
	rc = sqlite3_exec(c->w.db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	rc = rc ?: sqlite3_exec(c->w.db, steps[from - FIRST], NULL, NULL, NULL);
	rc = rc ?: sqlite3_exec(c->w.db, end, NULL, NULL, NULL);
	if (rc) {
		kvc_error("the catalog cannot be brought to format %lu: %s", from + 1,
			  sqlite3_errmsg(c->w.db));
		sqlite3_exec(c->w.db, "ROLLBACK", NULL, NULL, NULL);
	}
	return rc ? kvc_sql_errno(c->w.db, rc) : 0;
}

int kvc_formats_bring(struct kvc_catalog *c, const char *format, char *error)
{
	unsigned long have = strtoul(format, NULL, 10),
		      known = FIRST + sizeof steps / sizeof steps[0];
	int err = 0;

	if (have < FIRST || have > known) {
		snprintf(error, 512,
			 "the catalog %s has format %s and this kvcachefs knows %lu; %s", c->path,
			 format, known,
			 have > known ? "use a newer one" : "run fsck.kvcachefs on the store");
		return -EPROTO;
	}
	if (c->look && have < LOOKED_AT) {
		snprintf(error, 512,
			 "the catalog %s has format %s, which a mount or fsck.kvcachefs -y brings "
			 "to %lu; until then it cannot be looked at",
			 c->path, format, known);
		return -EPROTO;
	}
	for (; !err && !c->look && have < known; have++)
		err = step(c, have);
	return err;
}

/*
 * What catalogs of the last format had not at first. An older daemon leaves these columns out, and
 * then they are 0.
 */
int kvc_formats_columns(sqlite3 *db)
{
	static const char *const names[] = { "parent", "facts", "pool_facts", "bytes" };
	char sql[160];
	sqlite3_stmt *st;
	int rc = 0, got;

	for (size_t i = 0; i < sizeof names / sizeof names[0] && !rc; i++) {
		snprintf(sql, sizeof sql,
			 "SELECT 1 FROM pragma_table_info('chunks') WHERE name = '%s'", names[i]);
		rc = sqlite3_prepare_v2(db, sql, -1, &st, NULL);
		if (rc)
			return rc;
		got = sqlite3_step(st);
		rc = sqlite3_finalize(st);
		if (rc || got == SQLITE_ROW)
			continue;
		snprintf(sql, sizeof sql,
			 "ALTER TABLE chunks ADD COLUMN %s INTEGER NOT NULL DEFAULT 0", names[i]);
		rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
	}
	return rc;
}
