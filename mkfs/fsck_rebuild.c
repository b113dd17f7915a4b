/* SPDX-License-Identifier: Apache-2.0 */
/* A new catalog from the frames alone. See fsck.h. */
#include "fsck.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct frame {
	uint64_t ino, gen, size, mtime_ns, btime_ns, blocks;
	uint32_t mode, uid, gid;
	struct kvc_sum sum;
	bool dense, sealed, dropped;
	struct kvc_place place;
	char *path;
};

struct frames {
	const struct kvc_store *s;
	struct frame *v;
	size_t n, room;
	size_t foreign, older; /* frames that prove nothing; of those, without any proof */
	bool newer;            /* one has proofs */
};

/*
 * Is this frame one of the store's, and its name part too? A store that has no secret is either of
 * before there were proofs, or has lost its superblock, and nothing can be told.
 */
static enum kvc_proven proven(struct frames *all, const struct kvc_frame *f)
{
	enum kvc_proven p;

	all->newer |= f->version > 1;
	if (!all->s->has_secret)
		return KVC_PROVEN_ALL;
	p = kvc_frame_proven(f, all->s->secret);
	all->foreign += !p;
	all->older += f->version < 2;
	return p;
}

static int take(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct frames *all = arg;
	struct frame *x;

	enum kvc_proven proof;

	if (memcmp(f->store, all->s->uuid, 16) || !(proof = proven(all, f)))
		return 0;
	if (kvc_grow(&all->v, all->n, &all->room, sizeof *all->v))
		return -ENOMEM;
	x = &all->v[all->n];
	*x = (struct frame){
		f->ino,
		f->gen,
		f->size,
		f->mtime_ns,
		f->btime_ns,
		(f->raw_len + 511) / 512,
		f->mode,
		f->uid,
		f->gid,
		f->raw_sum,
		!(f->flags & KVC_FRAME_SPARSE),
		f->flags & KVC_FRAME_SEALED,
		false,
		kvc_place_of(f->gen, w, f),
		NULL,
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
	all->n++;
	return 1;
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

static int find_uuid(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	(void)w;
	memcpy(arg, f->store, 16);
	return 2; /* ends the walk */
}

int kvm_find_uuid(struct kvc_tier *disk, uint8_t uuid[16])
{
	int err = disk->ops->list(disk, find_uuid, uuid);

	return err == 2 ? 0 : err ?: -ENOENT;
}

/* The folder of a path, made where it is missing; *rest is the name in it. */
static int folders(struct kvc_catalog *c, char *path, uint64_t *next, uint64_t *parent, char **rest)
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
			err = kvc_row_put(c, &row) ?: kvc_name_put(c, *parent, path, ino, S_IFDIR);
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
	struct kvc_object_row o = { f->gen, f->size, f->sum, f->dense && !f->sealed, true };
	struct kvc_chunk_row chunk = {
		.created_ns = kvc_later(f->mtime_ns, 0),
		.last_ns = kvc_later(f->mtime_ns, 0),
		.rank = (int64_t)f->mtime_ns,
	};
	char *name = f->path;
	int err = folders(c, f->path, next, &row.parent, &name);

	if (err == -ENOTDIR) {
		printf("inode %" PRIu64 ": a file stands where its folder was\n", f->ino);
		f->dropped = true;
		return 0;
	}
	row.chunk = chunk.id = row.ino;
	err = err ?: kvc_row_put(c, &row) ?: kvc_name_put(c, row.parent, name, f->ino, S_IFREG);
	err = err ?: kvc_object_put(c, f->ino, &o) ?: kvc_place_put(c, f->ino, 0, &f->place);
	return err ?: kvc_chunk_put(c, &chunk);
}

static void keep_old(const char *path)
{
	static const char *const tails[] = { "", "-wal", "-shm", "-mark" };
	char from[1300], to[1300];

	for (size_t i = 0; i < 4; i++) {
		snprintf(from, sizeof from, "%s%s", path, tails[i]);
		snprintf(to, sizeof to, "%s.old%s", path, tails[i]);
		if (rename(from, to))
			unlink(to);
	}
}

static void found(void *arg, bool mended, const char *what)
{
	(void)arg;
	(void)mended;
	(void)what;
}

/*
 * The superblock was lost, and with it what the frames prove themselves by: anybody may have made
 * them. They become root's alone, and get proofs by a new secret, which the superblock gets last: a
 * run that is cut off is begun again.
 */
static int prove_anew(struct kvc_store *s, struct kvc_tier *disk, struct frames *all)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct iovec iov = { page, KVC_FRAME_HEADER };
	int err = page && f ? kvc_random(s->secret, sizeof s->secret) : -ENOMEM;

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
	err = err ?: disk->ops->sync(disk) ?: kvc_store_keyed(s);
	if (!err)
		printf("the superblock was lost: all files are root's, mode 0600\n");
	return err;
}

static int tell_proofs(struct kvc_store *s, struct kvc_tier *disk, struct frames *all)
{
	if (all->foreign)
		printf("%zu frames are not of this store and are left out%s\n", all->foreign,
		       all->older ? ", some of the older format, which only a catalog names" : "");
	return all->newer && !s->has_secret ? prove_anew(s, disk, all) : 0;
}

int kvm_rebuild(struct kvc_store *s, struct kvc_tier *disk)
{
	struct frames all = { .s = s };
	char path[1280], error[512];
	struct kvc_catalog *c = NULL;
	uint64_t next = 0;
	size_t kept = 0, files = 0;
	int err = disk->ops->list(disk, take, &all);

	if (err)
		goto out;
	if (all.n)
		qsort(all.v, all.n, sizeof *all.v, by_ino);
	for (size_t i = 0; i < all.n; i++) {
		if (i && all.v[i].ino == all.v[i - 1].ino)
			all.v[i].dropped = true; /* an older generation */
		next = kvc_max(next, all.v[i].ino);
	}
	for (size_t i = 0; i < all.n; i++) {
		if (all.v[i].dropped) {
			disk->ops->remove(disk, &all.v[i].place.where);
			free(all.v[i].path);
		} else {
			all.v[kept++] = all.v[i];
		}
	}
	all.n = kept;
	if ((err = tell_proofs(s, disk, &all)))
		goto out;
	if (all.n)
		qsort(all.v, all.n, sizeof *all.v, by_path);
	next += 1 << 20;
	kvc_store_path(s, KVC_STORE_CATALOG, path);
	keep_old(path);
	err = kvc_catalog_create(path) ?: kvc_catalog_open(&c, path, error);
	if (err)
		goto out;
	kvc_catalog_lock(c);
	for (size_t i = 0; i < all.n && !err; i++) {
		if (i && !all.v[i - 1].dropped && !strcmp(all.v[i].path, all.v[i - 1].path))
			all.v[i].dropped = true; /* an older file of that name */
	}
	for (size_t i = 0; i < all.n && !err; i++) {
		if (!all.v[i].dropped)
			err = enter(c, &all.v[i], &next);
		if (all.v[i].dropped)
			disk->ops->remove(disk, &all.v[i].place.where);
		else
			files++;
		if (!err && i % 4096 == 4095)
			err = kvc_catalog_commit(c); /* what is pending is in memory */
	}
	if (!err) { /* no number of before is used again */
		char text[32];

		snprintf(text, sizeof text, "%" PRIu64, next);
		err = kvc_meta_set(c, "next_ino", text);
	}
	err = err ?: kvc_catalog_group(c);
	if (!err)
		err = kvc_check_rules(c, true, found, NULL); /* link counts of folders */
	kvc_catalog_unlock(c);
	err = kvc_catalog_close(c) ?: err;
	if (!err)
		printf("%s: a new catalog with %zu files from %zu frames; the old one is %s.old\n",
		       s->dir, files, all.n, KVC_STORE_CATALOG);
out:
	for (size_t i = 0; i < all.n; i++)
		free(all.v[i].path);
	free(all.v);
	return err;
}
