/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a new catalog from the frames. It is written as catalog.sqlite.new, checked, synced, and
 * renamed to catalog.sqlite.next. Then engine/base/store_next.c replaces the old catalog, and at
 * the end, frames that the new catalog does not use are cleared. If fsck is killed at any point,
 * either the old or the new catalog is complete. See fsck.h.
 */
#include "fsck.h"

#include "quote.h"
#include "registry.h"
#include "tool.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define READS 3 /* reads before data counts as damaged */

struct frame {
	uint64_t ino, gen, size, mtime_ns, btime_ns, blocks;
	uint32_t mode, uid, gid;
	struct kvc_sum sum;
	bool dense, sealed, decoded, dropped;
	bool read, damaged; /* the payload was read; it is damaged */
	uint64_t stored_len;
	struct kvc_place place;
	char *path;
};

/*
 * Facts that only the old catalog has: whether the store is sealed and with which keys, the numbers
 * of the remotes, and the first free inode number.
 */
struct facts {
	struct fact {
		char *key, *value;
	} *v;
	size_t n, capacity;
	uint64_t next_ino;
};

struct frames {
	const struct kvc_store *s;
	struct kvc_tier *disk;
	struct frame *v;
	size_t n, capacity;
	size_t foreign; /* frames with a wrong proof */
	struct facts old;
};

/*
 * Sets *p to the parts of the frame's header that are proven to be this store's. If the secret is
 * missing, the superblock was lost: then all frames are accepted, because they cannot be
 * authenticated.
 */
static int check_proof(struct frames *all, const struct kvc_frame *f, enum kvc_proven *p)
{
	int err = 0;

	*p = KVC_PROVEN_ALL;
	if (!all->s->has_secret || (err = kvc_frame_proven(f, all->s->secret, p)))
		return err;
	all->foreign += !*p;
	return 0;
}

/*
 * Returns 1 if the payload of the frame is damaged, 0 if it is intact or cannot be read, or a
 * negative errno.
 */
static int is_damaged(const struct frames *all, struct frame *x)
{
	int err;

	if (x->read)
		return x->damaged;
	err = kvm_check_payload(all->disk, &x->place.where, x->stored_len, &x->place.sum);
	if (err == -ENOMEM)
		return err;
	x->read = true;
	x->damaged = err == -EBADMSG;
	return x->damaged;
}

/*
 * Adds a frame. The list is in the order of the places, and continues inside of each frame. A frame
 * inside of an intact one is bytes of a user. But if the outer one is damaged, it is an old frame
 * whose end others have overwritten, and is dropped.
 */
static int add_frame(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct frames *all = arg;
	enum kvc_proven proof;
	struct frame *x;
	size_t outer = SIZE_MAX;
	int err;

	if (memcmp(f->store, all->s->uuid, 16))
		return 0; /* belongs to another store */
	x = all->n ? &all->v[all->n - 1] : NULL;
	if (x && w->at < x->place.where.at + x->place.where.len) {
		if ((err = is_damaged(all, x)) <= 0)
			return err;
		outer = all->n - 1;
	}
	if ((err = check_proof(all, f, &proof)))
		return err;
	if (!proof || all->disk->ops->claim(all->disk, w) == -ERANGE)
		return 0; /* data of a user, or truncated */
	if (kvc_grow(&all->v, all->n, &all->capacity, sizeof *all->v))
		return -ENOMEM;
	x = &all->v[all->n];
	*x = (struct frame){
		.ino = f->ino,
		.gen = f->gen,
		.size = f->size,
		.mtime_ns = f->mtime_ns,
		.btime_ns = f->btime_ns,
		.blocks = (f->raw_len + 511) / 512,
		.mode = f->mode,
		.uid = f->uid,
		.gid = f->gid,
		.sum = f->raw_sum,
		.dense = !(f->flags & KVC_FRAME_SPARSE),
		.sealed = f->flags & KVC_FRAME_SEALED,
		.decoded = f->flags & KVC_FRAME_DECODED,
		.stored_len = f->stored_len,
		.place = kvc_place_of(f->gen, w, f),
	};
	if (proof < KVC_PROVEN_ALL)
		x->mode = x->uid = x->gid = 0;
	if (f->path[0] && proof == KVC_PROVEN_ALL) {
		x->path = strdup(f->path);
	} else if (asprintf(&x->path, "lost+found/%" PRIu64, f->ino) < 0) {
		x->path = NULL;
	}
	if (!x->path)
		return -ENOMEM;
	if (!x->mode)
		x->mode = S_IFREG | 0600;
	if (outer != SIZE_MAX)
		all->v[outer].dropped = true;
	all->n++;
	return 0;
}

static int by_ino(const void *a, const void *b)
{
	const struct frame *x = a, *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return x->gen > y->gen ? -1 : x->gen < y->gen;
}

static int by_path(const void *a, const void *b)
{
	const struct frame *x = a, *y = b;
	int c = strcmp(x->path, y->path);

	return c ? c : x->ino > y->ino ? -1 : x->ino < y->ino;
}

struct votes {
	struct vote {
		uint8_t uuid[16];
		uint64_t n;
	} *v;
	size_t n, capacity;
};

static int vote(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct votes *all = arg;
	size_t i = 0;

	(void)w;
	while (i < all->n && memcmp(all->v[i].uuid, f->store, 16))
		i++;
	if (i == all->n) {
		if (kvc_grow(&all->v, all->n, &all->capacity, sizeof *all->v))
			return -ENOMEM;
		memcpy(all->v[i].uuid, f->store, 16);
		all->v[all->n++].n = 0;
	}
	all->v[i].n++;
	return 1;
}

/* A device may contain frames of an earlier store, so the id of the majority is chosen. */
int kvm_find_uuid(struct kvc_tier *disk, uint8_t uuid[16])
{
	struct votes all = { 0 };
	struct kvm_holes holes = { 0 };
	uint64_t most = 0;
	int err;

	kvct_devices_unread(disk, kvm_hole, &holes);
	err = disk->ops->list(disk, vote, &all);
	for (size_t i = 0; i < all.n && !err; i++)
		if (all.v[i].n > most) {
			most = all.v[i].n;
			memcpy(uuid, all.v[i].uuid, 16);
		}
	if (!err && !most)
		err = holes.n ? holes.v[0].err : -ENOENT;
	free(all.v);
	free(holes.v);
	return err;
}

/*
 * Finds the folder of a path, and creates missing folders. *rest is set to the last name of the
 * path.
 */
static int make_folders(struct kvc_catalog *c, char *path, uint64_t *next, uint64_t *parent,
			char **rest)
{
	uint64_t now = kvc_now_ns();
	char *slash;
	int err;

	*parent = 1;
	for (; (slash = strchr(path, '/')); path = slash + 1) {
		uint64_t ino;
		uint32_t kind;

		*slash = 0;
		err = kvc_name_get(c, *parent, path, &ino, &kind);
		if (err == -ENOENT) {
			struct kvc_row row = {
				.ino = (*next)++,
				.mode = S_IFDIR | 0755,
				.nlink = 2,
				.atime_ns = now,
				.mtime_ns = now,
				.ctime_ns = now,
				.btime_ns = now,
				.parent = *parent,
			};

			ino = row.ino;
			err = kvc_row_put(c, &row, NULL)
				      ?: kvc_name_put(c, *parent, path, ino, S_IFDIR);
		} else if (!err && kind != S_IFDIR) {
			err = -ENOTDIR;
		}
		if (err)
			return err;
		*parent = ino;
	}
	*rest = path;
	return 0;
}

static int enter(struct kvc_catalog *c, struct frame *f, uint64_t *next)
{
	struct kvc_row row = {
		.ino = f->ino,
		.mode = f->mode,
		.uid = f->uid,
		.gid = f->gid,
		.nlink = 1,
		.size = f->size,
		.blocks = f->dense ? kvc_round_up(f->size, KVC_PAGE) / 512 : f->blocks,
		.atime_ns = f->mtime_ns,
		.mtime_ns = f->mtime_ns,
		.ctime_ns = f->mtime_ns,
		.btime_ns = f->btime_ns,
	};
	struct kvc_object_row o = {
		.gen = f->gen,
		.size = f->size,
		.sum = f->sum,
		.has_sum = f->dense && !f->sealed,
		.lower = true,
		.decoded = f->decoded,
	};
	struct kvc_chunk_row chunk = {
		.created_ns = f->mtime_ns,
		.last_ns = f->mtime_ns,
		.rank = (int64_t)f->mtime_ns,
	};
	char *name = f->path;
	int err = make_folders(c, f->path, next, &row.parent, &name);

	if (err == -ENOTDIR) {
		printf("inode %" PRIu64 ": another file has the path of its folder\n", f->ino);
		f->dropped = true;
		return 0;
	}
	row.chunk = chunk.id = row.ino;
	err = err ?: kvc_row_put(c, &row, NULL);
	err = err ?: kvc_name_put(c, row.parent, name, f->ino, S_IFREG);
	err = err ?: kvc_object_put(c, f->ino, &o) ?: kvc_place_put(c, f->ino, 0, &f->place);
	return err ?: kvc_chunk_put(c, &chunk);
}

static void quiet(void *arg, bool mended, const char *what)
{
	unsigned *unmended = arg;

	*unmended += !mended;
	if (mended)
		return;
	printf("in the new catalog: ");
	kvc_quote_line(stdout, what);
	putchar('\n');
}

/*
 * Drops all but the first intact one of the frames from..to - 1; the first one if none is intact.
 */
static int drop_others(struct frames *all, size_t from, size_t to)
{
	size_t first = SIZE_MAX, wins = SIZE_MAX, n = 0;

	for (size_t i = from; i < to; i++)
		if (!all->v[i].dropped && !n++)
			first = i;
	for (size_t i = from; n > 1 && i < to && wins == SIZE_MAX; i++) {
		int damaged = all->v[i].dropped ? 1 : is_damaged(all, &all->v[i]);

		if (damaged < 0)
			return damaged;
		if (!damaged)
			wins = i;
	}
	wins = wins == SIZE_MAX ? first : wins;
	for (size_t i = from; i < to; i++)
		all->v[i].dropped |= i != wins;
	return 0;
}

static bool same_ino(const struct frame *a, const struct frame *b)
{
	return a->ino == b->ino;
}

static bool same_path(const struct frame *a, const struct frame *b)
{
	return !strcmp(a->path, b->path);
}

/* Sorts the frames, and drops all but one of those that are the same. */
static int drop_same(struct frames *all, int (*order)(const void *, const void *),
		     bool (*same)(const struct frame *, const struct frame *))
{
	int err = 0;

	if (all->n)
		qsort(all->v, all->n, sizeof *all->v, order);
	for (size_t from = 0, to; from < all->n && !err; from = to) {
		for (to = from + 1; to < all->n && same(&all->v[from], &all->v[to]); to++)
			;
		err = drop_others(all, from, to);
	}
	return err;
}

/*
 * Drops all but one of the frames that share an inode or a path. Sorts the rest by path, and finds
 * the next free inode number.
 */
static int drop_duplicates(struct frames *all, uint64_t *next)
{
	*next = 0;
	for (size_t i = 0; i < all->n; i++)
		*next = kvc_max(*next, all->v[i].ino);
	*next += 1 << 20;
	return drop_same(all, by_ino, same_ino) ?: drop_same(all, by_path, same_path);
}

static void free_facts(struct facts *old)
{
	for (size_t i = 0; i < old->n; i++) {
		free(old->v[i].key);
		free(old->v[i].value);
	}
	free(old->v);
	*old = (struct facts){ 0 };
}

static int add_fact(void *facts, const char *key, const char *value)
{
	static const char *const prefixes[] = { "key_", "tier_", "sealed", "store", "pool" };
	struct facts *old = facts;
	size_t i = 0;

	if (!strcmp(key, "next_ino"))
		old->next_ino = strtoull(value, NULL, 10);
	while (i < sizeof prefixes / sizeof prefixes[0] &&
	       strncmp(key, prefixes[i], strlen(prefixes[i])))
		i++;
	if (i == sizeof prefixes / sizeof prefixes[0])
		return 0;
	if (kvc_grow(&old->v, old->n, &old->capacity, sizeof *old->v))
		return -ENOMEM;
	old->v[old->n] = (struct fact){ strdup(key), strdup(value) };
	i = old->n++;
	return old->v[i].key && old->v[i].value ? 0 : -ENOMEM;
}

/*
 * Reads the facts that only the old catalog has. If that is damaged, its readable part is used; if
 * it cannot be read, the rebuild ends.
 */
static int read_old_facts(const struct kvc_store *s, struct facts *old, struct kvm_report *r)
{
	char path[1280];
	int err = -EBADMSG;

	/*
	 * SQLite also reports a page as damaged if it could not be read, so the read is repeated.
	 */
	for (int i = 0; i < READS && err == -EBADMSG; i++) {
		free_facts(old);
		err = kvc_check_meta(kvc_super_path(s, KVC_STORE_CATALOG, path), add_fact, old);
	}
	if (!err || err == -ENOENT || err == -EBADMSG)
		return 0;
	kvm_unread(r, err,
		   "the old catalog (only it has the store's keys and remotes; to continue without "
		   "it, move %s away)",
		   path);
	return err;
}

/* Writes the rows of the table meta. */
static int write_meta(struct kvc_catalog *c, const struct facts *old, uint64_t next, bool sealed)
{
	char text[64];
	int err = 0;

	next = kvc_max(next, old->next_ino);
	for (size_t i = 0; i < old->n && !err; i++)
		err = kvc_meta_set(c, old->v[i].key, old->v[i].value);
	if (!err && sealed && kvc_meta_get(c, "sealed", text, sizeof text))
		err = kvc_meta_set(c, "sealed", "unproven"); /* the proof of the key is lost */
	snprintf(text, sizeof text, "%" PRIu64, next);       /* never reuse an inode number */
	return err ?: kvc_meta_set(c, "next_ino", text);
}

static int fill(struct kvc_catalog *c, struct frames *all, size_t *files)
{
	uint64_t next;
	bool sealed = false;
	int err = drop_duplicates(all, &next);

	for (size_t i = 0; i < all->n && !err; i++) {
		if (!all->v[i].dropped)
			err = enter(c, &all->v[i], &next);
		if (!err && !all->v[i].dropped)
			++*files;
		sealed |= all->v[i].sealed;
		if (!err && i % 4096 == 4095)
			err = kvc_catalog_commit(c); /* uncommitted changes are in memory */
	}
	return err ?: write_meta(c, &all->old, next, sealed) ?: kvc_catalog_group(c);
}

static int sync_file(const char *path)
{
	KVC_FD int fd = kvc_open_own(path, O_RDONLY);

	return fd < 0 || fsync(fd) ? -errno : 0;
}

/* Makes catalog.sqlite.new: complete, checked and on stable storage. */
static int make_new_catalog(const struct kvc_store *s, struct frames *all, size_t *files)
{
	char path[1280], log[1300], error[512] = "";
	struct kvc_catalog *c;
	unsigned wrong = 0;
	int err;

	kvc_super_path(s, KVC_STORE_CATALOG_NEW, path);
	snprintf(log, sizeof log, "%s-wal", path);
	err = kvc_catalog_create(path) ?: kvc_catalog_open(&c, path, error);
	if (err) {
		if (*error)
			kvm_fail("%s", error);
		return err;
	}
	kvc_catalog_lock(c);
	err = fill(c, all, files);
	if (!err)
		/* repairs the link counts of folders */
		err = kvc_check_rules(c, true, quiet, &wrong);
	if (!err)
		err = kvc_check_rules(c, false, quiet, &wrong);
	kvc_catalog_unlock(c);
	err = kvc_catalog_close(c) ?: err;
	snprintf(error, sizeof error, "%s-mark", path); /* belongs to a log that no longer exists */
	unlink(error);
	if (!err && (!access(log, F_OK) || errno != ENOENT))
		err = -EIO; /* its log was not merged into it */
	err = err ?: kvc_check_pages(path, false, quiet, &wrong) ?: wrong ? -EBADMSG : 0;
	return err ?: sync_file(path);
}

/* Removes a new catalog that did not replace the old one. */
static void remove_new_catalog(const struct kvc_store *s)
{
	static const char *const names[] = {
		KVC_STORE_CATALOG_NEW,
		KVC_STORE_BESIDE(KVC_STORE_CATALOG_NEW),
	};
	char path[1280];

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		unlink(kvc_super_path(s, names[i], path));
}

/* Clears dropped frames, so that a later rebuild does not bring them back. */
static int clear_dropped(struct kvc_tier *disk, const struct frames *all, struct kvm_report *r)
{
	struct kvc_tier_usage u;
	int err;

	for (size_t i = 0; i < all->n; i++)
		if (all->v[i].dropped)
			disk->ops->remove(disk, &all->v[i].place.where);
	kvct_devices_clear(disk);
	err = disk->ops->sync(disk);
	disk->ops->usage(disk, &u);
	if (u.uncleared)
		kvm_unread(r, -EIO, "%" PRIu64 " bytes of frames that belong to no file",
			   u.uncleared);
	return err;
}

static int take_place(struct kvc_store *s)
{
	char a[1280], b[1280];

	if (rename(kvc_super_path(s, KVC_STORE_CATALOG_NEW, a),
		   kvc_super_path(s, KVC_STORE_CATALOG_NEXT, b)))
		return -errno;
	return kvc_super_sync_dir(s) ?: kvc_store_finish(s);
}

/*
 * The superblock was lost, and with it the secret of the frames' proofs, so anybody may have
 * written the frames. Makes all files private to root and writes new proofs with a new secret. The
 * superblock gets the secret last, so an interrupted run starts again.
 */
static int write_proofs(struct kvc_store *s, struct kvc_tier *disk, struct frames *all)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct iovec iov = { page, KVC_FRAME_HEADER };
	int err = page && f ? kvc_keys_random(s->secret, sizeof s->secret) : -ENOMEM;

	for (size_t i = 0; i < all->n && !err; i++) {
		struct frame *x = &all->v[i];

		if ((err = disk->ops->get(disk, &x->place.where, 0, &iov, 1)
				   ?: kvc_frame_decode(page, f)))
			break;
		x->mode = f->mode = S_IFREG | 0600;
		x->uid = x->gid = f->uid = f->gid = 0;
		err = kvc_frame_prove(f, s->secret);
		kvc_frame_encode(f, page);
		err = err ?: disk->ops->rehead(disk, &x->place.where, page);
	}
	err = err ?: disk->ops->sync(disk) ?: kvc_super_add_secret(s);
	if (!err)
		printf("the superblock was lost: all files now belong to root, with mode 0600\n");
	return err;
}

static int tell_proofs(struct kvc_store *s, struct kvc_tier *disk, struct frames *all,
		       struct kvm_report *r)
{
	bool unproven = kvc_store_unproven(s);
	int err = 0;

	if (all->foreign)
		printf("%zu frames do not belong to this store and are skipped\n", all->foreign);
	if (all->n && !s->has_secret)
		err = write_proofs(s, disk, all);
	else if (unproven)
		err = kvc_super_add_secret(s);
	r->mended += unproven && !err; /* the superblock */
	return err;
}

int kvm_rebuild(struct kvc_store *s, struct kvm_report *r)
{
	struct frames all = { .s = s };
	struct kvm_holes holes = { 0 };
	struct kvc_tier *disk;
	char error[512];
	size_t files = 0;
	int err = kvc_store_bound(s, error);

	if (err)
		return err; /* reported at the end */
	if ((err = kvct_devices_open(s, &disk, error))) {
		kvm_fail("%s", error);
		return err;
	}
	all.disk = disk;
	kvct_devices_unread(disk, kvm_hole, &holes);
	err = read_old_facts(s, &all.old, r) ?: disk->ops->list(disk, add_frame, &all) ?: holes.err;
	err = err ?: tell_proofs(s, disk, &all, r) ?: make_new_catalog(s, &all, &files);
	err = err ?: take_place(s);
	if (err)
		remove_new_catalog(s);
	if (!err) {
		printf("%s: a new catalog with %zu files from %zu frames; the old one is kept as "
		       "%s.old or .old.N\n",
		       s->dir, files, all.n, KVC_STORE_CATALOG);
		for (size_t i = 0; i < holes.n; i++)
			kvm_unread(r, holes.v[i].err,
				   "%" PRIu64 " bytes of the data at %" PRIu64
				   " (the new catalog has no frames that begin there)",
				   holes.v[i].len, holes.v[i].at);
		err = clear_dropped(disk, &all, r);
	}
	disk->ops->close(disk);
	for (size_t i = 0; i < all.n; i++)
		free(all.v[i].path);
	free_facts(&all.old);
	free(all.v);
	free(holes.v);
	return err;
}
