/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep "import": lists the shared tiers, and records in the catalog every file whose path this
 * node does not know. Files that were deleted on this node are skipped while the catalog
 * remembers the deletion (kvc_gone_get).
 */
#include "ops.h"
#include "commit_batch.h"
#include "committer.h"
#include "keyring.h"
#include "log.h"
#include "proof.h"
#include "remote_lookup.h"
#include "sweep.h"
#include "tier_queue.h"

#include <string.h>

struct import {
	struct kvc_sweep *s;
	unsigned tier;
	/* buffers for the headers of folders */
	uint8_t *page;
	struct kvc_frame *folder;
};

static bool valid_name(const char *name)
{
	return *name && strlen(name) < 256 && strcmp(name, ".") && strcmp(name, "..");
}

/*
 * Finds the folder of a path. Returns 0 and sets *parent to the folder, and *rest to the name in
 * it. If a folder of the path does not exist, returns -ENOENT, cuts the path after the name of that
 * folder, and sets *rest to that name and *parent to the folder above it.
 */
static int find_folder_both(struct kvc *k, char *path, uint64_t *parent, char **rest)
{
	char *slash;

	*parent = KVC_ROOT;
	for (*rest = path; (slash = strchr(*rest, '/')); *rest = slash + 1) {
		uint64_t ino;
		uint32_t kind;
		int err;

		*slash = 0;
		err = valid_name(*rest) ? kvc_name_get(k->cat, *parent, *rest, &ino, &kind)
					: -EBADMSG;
		if (err || !S_ISDIR(kind))
			return err ?: -ENOTDIR;
		*slash = '/';
		*parent = ino;
	}
	return valid_name(*rest) ? 0 : -EBADMSG;
}

/*
 * Makes a missing folder with the attributes that the tier has for it. If the tier has none that
 * can be trusted, only the user of the daemon may use the folder.
 */
static int import_folder(struct import *im, const char *path, uint64_t parent, const char *name)
{
	struct kvc *k = im->s->k;
	struct kvc_frame *f = im->folder;
	struct kvc_where where = kvc_frame_where_of(path);
	int err;

	if (kvc_remote_lookup_head(k, im->tier, path, im->page, f) ||
	    !(f->flags & KVC_FRAME_FOLDER)) {
		memset(f, 0, sizeof *f);
		f->flags = KVC_FRAME_FOLDER;
		f->mode = 0700;
		f->uid = geteuid();
		f->gid = getegid();
		f->mtime_ns = f->btime_ns = kvc_now_ns();
		where = (struct kvc_where){ 0 };
	}
	kvc_lock_both(k);
	err = kvc_remote_lookup_adopt_both(k, im->tier, parent, name, &where, f);
	kvc_unlock_both(k);
	return err == -EEXIST ? 0 : err;
}

/* Makes the missing folders of the frame's path, then records the file. */
static int import_file(struct import *im, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct kvc *k = im->s->k;
	char path[KVC_FRAME_PATH_MAX + 1], *name;
	uint64_t parent;
	int missing, err;

	for (size_t depth = 0; depth < KVC_FRAME_PATH_MAX / 2; depth++) {
		kvc_commit_gate(k);
		memcpy(path, f->path, sizeof path);
		kvc_lock_both(k);
		missing = kvc_gone_get(k->cat, w, kvc_clock_ns(k));
		if (missing != -ENOENT) { /* deleted here, or the catalog cannot be read */
			kvc_unlock_both(k);
			return missing ?: -EEXIST;
		}
		missing = find_folder_both(k, path, &parent, &name);
		err = missing ?: kvc_remote_lookup_adopt_both(k, im->tier, parent, name, w, f);
		kvc_committer_wake_locked(k, false);
		kvc_unlock_both(k);
		if (missing != -ENOENT || (err = import_folder(im, path, parent, name)))
			return err;
	}
	return -ENAMETOOLONG;
}

static int import_one(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct import *im = arg;
	struct kvc_where named;
	int err;

	if (!w)
		return im->s->stop;
	named = kvc_frame_where_of(f->path);
	im->s->seen++;
	if (!(f->flags & KVC_FRAME_SHARED) || (f->flags & KVC_FRAME_FOLDER) || named.at != w->at ||
	    named.hi != w->hi)
		return im->s->stop;
	named.len = KVC_FRAME_HEADER + kvc_round_up(f->stored_len, KVC_PAGE);
	err = kvc_proof_found(im->s->k, f);
	if (err == -ENOKEY && kvc_keyring_learn(im->s->k, f->key_id))
		err = kvc_proof_found(im->s->k, f);
	err = err ?: import_file(im, &named, f);
	if (!err) {
		im->s->changed++;
		kvc_count(&im->s->k->stats, imports);
	} else if (err != -EEXIST) {
		im->s->failed++;
	}
	return im->s->stop;
}

int kvc_import_run(struct kvc_sweep *s)
{
	struct kvc *k = s->k;
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *folder = kvc_frame_new();
	int first = !k->shared ? -ENODEV : page && folder ? 0 : -ENOMEM; /* the first error */
	bool ready = !first;

	for (unsigned i = 0; i < k->ntiers && ready && !s->stop; i++) {
		struct kvc_tier *t = k->tier[k->order[i]].t;
		struct import im = { s, k->order[i], page, folder };
		int err;

		if (!(t->ops->caps & KVC_TIER_SHARED))
			continue;
		/* an operator has requested the import: ignore the breaker */
		err = t->ops->list ? t->ops->list(t, import_one, &im) : -EOPNOTSUPP;
		if (err == -EOPNOTSUPP)
			kvc_warn("import: the tier %s cannot list its files, and is left out",
				 t->id);
		if (err < 0)
			first = first ?: err; /* the other tiers are listed, too */
		if (err > 0 || err == -EOPNOTSUPP)
			continue;
		kvc_lock(k);
		kvc_tier_result_locked(k, k->order[i], KVC_CALL_LIST, 0, err);
		kvc_unlock(k);
	}
	return first;
}
