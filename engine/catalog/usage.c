/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The space that each user takes in the catalog. The tiers limit the bytes of files, but only this
 * file limits names and attributes. Each user has an account of two sums: inodes (INODE bytes for
 * each inode and for each name beyond the first, plus the targets of symbolic links) and
 * attributes. catalog= limits the sum of all users. A user other than root may have half of it.
 * Attributes may take 1/ATTRS of either limit. A caller that creates something asks
 * kvc_usage_allows first. Changes by the engine itself are counted without a check.
 *
 * The accounts are stored in the catalog under meta uses:UID, as "INODES ATTRIBUTES" in bytes. An
 * account changes under the same hold of the lock as the row, and so in the same batch; after a
 * kill it is as correct as the rows. Meta usage says that the accounts are correct. If it is
 * missing, all rows are counted once at the start. It is deleted when fsck has changed rows, and
 * when the old cost of a row could not be read.
 *
 * A row is written many times but must be counted once: the caller keeps what was counted (struct
 * kvc_paid, in the node). The owner of an attribute is looked up, so the inode's row is written
 * before its first attribute.
 */
#include "catalog_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY "uses:"
/* rows in names, nodes, objects, placements and chunks, with their indexes */
#define INODE KVC_USAGE_INODE
#define EACH 48u /* bytes of an attribute's row */
#define ATTRS 8

struct uses {
	uint32_t uid;
	uint64_t inodes, attrs;
};

/* Returns the index of the user's account, or where to insert it. */
static size_t account_index(const struct kvc_usage *all, uint32_t uid)
{
	size_t low = 0, high = all->n;

	while (low < high) {
		size_t at = low + (high - low) / 2;

		if (all->v[at].uid < uid)
			low = at + 1;
		else
			high = at;
	}
	return low;
}

static struct uses *account_find(const struct kvc_catalog *c, uint32_t uid)
{
	const struct kvc_usage *all = c->usage;
	size_t at = account_index(all, uid);

	return at < all->n && all->v[at].uid == uid ? &all->v[at] : NULL;
}

static struct uses *account_get(struct kvc_catalog *c, uint32_t uid)
{
	struct kvc_usage *all = c->usage;
	size_t at = account_index(all, uid);

	if (account_find(c, uid))
		return &all->v[at];
	if (kvc_grow(&all->v, all->n, &all->capacity, sizeof *all->v))
		return NULL;
	memmove(&all->v[at + 1], &all->v[at], (all->n++ - at) * sizeof *all->v);
	all->v[at] = (struct uses){ .uid = uid };
	return &all->v[at];
}

static uint64_t sum(uint64_t a, int64_t by)
{
	return by < 0 && (uint64_t)-by > a ? 0 : a + (uint64_t)by;
}

/* Marks the accounts as incorrect, because a tool changed rows or a cost is unknown. */
static void mark_stale(struct kvc_catalog *c)
{
	if (!c->stale)
		c->stale = !kvc_meta_del(c, "usage") && !kvc_meta_del(c, "models");
}

/*
 * Adds to a user's account and returns it. Returns NULL if there is nothing to add, or if memory is
 * short; in the latter case the accounts become incorrect and are counted at the next start.
 */
static struct uses *account_add(struct kvc_catalog *c, uint32_t uid, int64_t inodes, int64_t attrs)
{
	struct uses *u = inodes || attrs ? account_get(c, uid) : NULL;

	if (!u) {
		if (inodes || attrs)
			mark_stale(c);
		return NULL;
	}
	c->usage->inodes = sum(c->usage->inodes, inodes);
	c->usage->attrs = sum(c->usage->attrs, attrs);
	u->inodes = sum(u->inodes, inodes);
	u->attrs = sum(u->attrs, attrs);
	return u;
}

/* Stores a user's account in the catalog, or deletes it if it is zero. */
static void account_store(struct kvc_catalog *c, struct uses *u)
{
	char key[32] = KEY, value[48], *end;

	*kvc_put_dec(key + strlen(KEY), u->uid) = 0;
	end = kvc_put_dec(value, u->inodes);
	*end++ = ' ';
	*kvc_put_dec(end, u->attrs) = 0;
	if (u->inodes || u->attrs) {
		if (kvc_meta_set(c, key, value))
			mark_stale(c);
		return;
	}
	if (kvc_meta_del(c, key))
		mark_stale(c);
	memmove(u, u + 1, (size_t)(c->usage->v + c->usage->n - u - 1) * sizeof *u);
	c->usage->n--;
}

static void charge(struct kvc_catalog *c, uint32_t uid, int64_t inodes, int64_t attrs)
{
	struct uses *u = account_add(c, uid, inodes, attrs);

	if (u)
		account_store(c, u);
}

static int64_t cost(const struct kvc_row *r)
{
	if (S_ISDIR(r->mode))
		return INODE;
	return (int64_t)(INODE * (r->nlink ? r->nlink : 1) + (S_ISLNK(r->mode) ? r->size : 0));
}

/* Returns the cost of an inode's attributes if its owner has any. */
static int64_t attrs_of(struct kvc_catalog *c, uint32_t uid, uint64_t ino)
{
	const struct uses *u = account_find(c, uid);
	struct kvc_xattr_sum s;

	if (!u || !u->attrs)
		return 0;
	if (kvc_xattr_sum(c, ino, "", &s)) {
		mark_stale(c);
		return 0;
	}
	return (int64_t)(s.names + s.values + s.n * EACH);
}

bool kvc_usage_attrs(const struct kvc_catalog *c)
{
	return c->usage && c->usage->attrs;
}

struct kvc_paid kvc_usage_paid_for(const struct kvc_row *r)
{
	return (struct kvc_paid){ true, r->uid, (uint64_t)cost(r) };
}

/* Counts the new row instead of the old one, which is in the account if paid->is. */
static void count_row(struct kvc_catalog *c, const struct kvc_row *r, struct kvc_paid *paid)
{
	int64_t now = cost(r), attrs;

	if (!c->usage || !paid) {
		mark_stale(c);
		return;
	}
	if (paid->is && paid->uid == r->uid) {
		charge(c, r->uid, now - (int64_t)paid->bytes, 0);
	} else {
		attrs = paid->is ? attrs_of(c, paid->uid, r->ino) : 0;
		if (paid->is)
			charge(c, paid->uid, -(int64_t)paid->bytes, -attrs);
		charge(c, r->uid, now, attrs);
	}
	*paid = kvc_usage_paid_for(r);
}

int kvc_row_put(struct kvc_catalog *c, const struct kvc_row *r, struct kvc_paid *paid)
{
	int err = kvc_bare_row_put(c, r);

	if (!err)
		count_row(c, r, paid);
	return err;
}

int kvc_row_del(struct kvc_catalog *c, uint64_t ino, struct kvc_paid *paid)
{
	struct kvc_paid was = { 0 };
	struct kvc_row r;
	int64_t attrs = 0;
	int err = !paid && c->usage ? kvc_row_get(c, ino, &r) : -ENOENT;

	if (paid)
		was = *paid;
	else if (!err)
		was = kvc_usage_paid_for(&r);
	else if (err != -ENOENT)
		mark_stale(c);
	if (c->usage && was.is)
		attrs = attrs_of(c, was.uid, ino);
	err = kvc_bare_row_del(c, ino);
	if (!err && c->usage && was.is)
		charge(c, was.uid, -(int64_t)was.bytes, -attrs);
	if (!err && paid)
		paid->is = false;
	if (!c->usage)
		mark_stale(c);
	return err;
}

/*
 * Computes the owner of an attribute (*uid) and what a change of it adds to the owner's account
 * (*by). len: length of the new value, or -1 for a removal. Runs before the change, which fails if
 * the cost is unknown.
 */
static int attr_change(struct kvc_catalog *c, uint64_t ino, const char *name, ssize_t len,
		       uint32_t *uid, int64_t *by)
{
	int64_t each = (int64_t)(strlen(name) + 1 + EACH);
	struct kvc_row r;
	size_t was = 0;
	int err, is;

	*by = *uid = 0;
	if (!c->usage) {
		mark_stale(c);
		return 0;
	}
	if ((err = kvc_row_get(c, ino, &r)))
		return err == -ENOENT ? 0 : err;
	is = kvc_xattr_get(c, ino, name, NULL, &was);
	if (is && is != -ENOENT)
		return is;
	*uid = r.uid;
	*by = (len < 0 ? 0 : each + len) - (is ? 0 : each + (int64_t)was);
	return 0;
}

int kvc_xattr_set(struct kvc_catalog *c, uint64_t ino, const char *name, const void *value,
		  size_t len)
{
	uint32_t uid;
	int64_t by;
	int err = attr_change(c, ino, name, (ssize_t)len, &uid, &by)
			  ?: kvc_bare_xattr_set(c, ino, name, value, len);

	if (!err)
		charge(c, uid, 0, by);
	return err;
}

int kvc_xattr_del(struct kvc_catalog *c, uint64_t ino, const char *name)
{
	uint32_t uid;
	int64_t by;
	int err = attr_change(c, ino, name, -1, &uid, &by) ?: kvc_bare_xattr_del(c, ino, name);

	if (!err)
		charge(c, uid, 0, by);
	return err;
}

int kvc_usage_allows(struct kvc_catalog *c, uint32_t uid, bool inode, size_t attrs)
{
	const struct kvc_usage *all = c->usage;
	uint64_t most = all ? all->limit : 0;
	const struct uses *u;

	if (!most)
		return 0;
	if ((inode && all->inodes + all->attrs + INODE > most) ||
	    (attrs && all->attrs + attrs > most / ATTRS))
		return -ENOSPC;
	u = uid ? account_find(c, uid) : NULL;
	if (u && ((inode && u->inodes + u->attrs + INODE > most / 2) ||
		  (attrs && u->attrs + attrs > most / 2 / ATTRS)))
		return -EDQUOT;
	return 0;
}

void kvc_usage_show(struct kvc_catalog *c, uint64_t *inodes, uint64_t *attrs, uint64_t *limit)
{
	kvc_catalog_lock(c);
	*inodes = c->usage ? c->usage->inodes : 0;
	*attrs = c->usage ? c->usage->attrs : 0;
	*limit = c->usage ? c->usage->limit : 0;
	kvc_catalog_unlock(c);
}

/*
 * Counts all rows once: uid, inodes, attributes. It reads row by row because a sum by user would
 * make SQLite sort all rows in memory.
 */
static int count_all(struct kvc_catalog *c)
{
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = kvc_catalog_flush(c, 0);

	for (int q = 0; q < 2 && got >= 0; q++) {
		n = kvc_scan_get(c);
		st = kvc_sql(n, q ? ST_USES_ATTRS : ST_USES_INODES, "ii", (sqlite3_int64)INODE,
			     (sqlite3_int64)EACH);
		while ((got = kvc_sql_step(n, st)) == 1)
			account_add(c, (uint32_t)kvc_sql_u64(st, 0), (int64_t)kvc_sql_u64(st, 1),
				    (int64_t)kvc_sql_u64(st, 2));
		kvc_sql_done(st);
		kvc_reader_put(n);
	}
	for (size_t i = c->usage->n; i--;)
		account_store(c, &c->usage->v[i]);
	return got < 0 ? got : c->stale ? 0 : kvc_meta_set(c, "usage", "1");
}

static int load(struct kvc_catalog *c)
{
	char key[64] = KEY, value[64];
	int err;

	while (!(err = kvc_meta_next(c, KEY, key, value, sizeof value))) {
		uint64_t inodes, attrs;
		struct uses *u;
		uint32_t uid;

		if (sscanf(key, KEY "%" SCNu32, &uid) != 1 ||
		    sscanf(value, "%" SCNu64 " %" SCNu64, &inodes, &attrs) != 2)
			continue;
		if (!(u = account_get(c, uid)))
			return -ENOMEM;
		u->inodes = inodes;
		u->attrs = attrs;
		c->usage->inodes += inodes;
		c->usage->attrs += attrs;
	}
	return err == -ENOENT ? 0 : err;
}

/* Discards the stored accounts. */
static int discard_accounts(struct kvc_catalog *c)
{
	char key[64] = KEY, value[64];
	int err;

	while (!(err = kvc_meta_next(c, KEY, key, value, sizeof value)))
		if ((err = kvc_meta_del(c, key)))
			return err;
	return err == -ENOENT ? 0 : err;
}

int kvc_usage_start(struct kvc_catalog *c, uint64_t limit)
{
	char value[8];
	int is = kvc_meta_read(c, "usage", value, sizeof value);

	if (is < 0)
		return is;
	c->usage = calloc(1, sizeof *c->usage);
	if (!c->usage)
		return -ENOMEM;
	c->usage->limit = limit;
	return is ? load(c) : discard_accounts(c) ?: count_all(c);
}

void kvc_usage_free(struct kvc_catalog *c)
{
	if (c->usage)
		free(c->usage->v);
	free(c->usage);
	c->usage = NULL;
}
