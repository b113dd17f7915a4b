/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders have frames of their own in shared tiers (KVC_FRAME_FOLDER), so that another node can
 * look up a path from the root. Such a frame has a header and no payload. The workers of shared
 * tiers run this code.
 */
#include "folders.h"

#include "node.h"
#include "path.h"
#include "proof.h"
#include "tier_queue.h"

#include <string.h>

/* A folder's frame has no payload, so the driver never calls this. */
static int put_read(void *arg, void *buf, size_t len, uint64_t off)
{
	(void)arg;
	(void)buf;
	(void)len;
	(void)off;
	return -EIO;
}

static int put_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	kvc_frame_encode(arg, page);
	return 0;
}

int kvc_folders_frame(const struct kvc *k, struct kvc_frame *f)
{
	size_t len = strcspn(f->path, "/");

	memcpy(f->store, k->shared ? k->shared_id : k->store->uuid, 16);
	f->gen = 1;
	f->flags = KVC_FRAME_SHARED | KVC_FRAME_FOLDER;
	f->raw_sum = f->stored_sum = kvc_sum_of("", 0);
	if (k->keys) { /* the model's folder is also proven by the model's key */
		memcpy(f->key_model, f->path, kvc_min(len, KVC_MODEL_NAME));
		f->key_id = kvc_keys_for(k->keys, f->key_model);
	}
	if (k->keys && !f->key_id)
		return -ENOKEY;
	return kvc_proof_add(k, true, f);
}

static int put_folder(struct kvc *k, unsigned tier, struct kvc_frame *f)
{
	struct kvc_tier *t = k->tier[tier].t;
	struct kvc_put put = {
		.ino = f->ino,
		.gen = 1,
		.name = kvc_frame_where_of(f->path),
		.arg = f,
		.read = put_read,
		.head = put_head,
	};
	struct kvc_where where;

	return kvc_folders_frame(k, f) ?: t->ops->put(t, &put, &where);
}

/*
 * Records that the folder's frame was stored. If the folder was renamed since the put, it is not
 * recorded, and the next copy stores it again.
 */
static void put_record_both(struct kvc *k, unsigned tier, const struct kvc_frame *f, char *now)
{
	if (!kvc_path_both(k, f->ino, now) && !strcmp(now, f->path))
		k->folders->put[tier][f->ino % KVC_FOLDERS] = f->ino;
}

/*
 * Forgets that the folders from `ino` up were stored, except for `end` and the folders above it: a
 * folder may be recorded only if all folders above it are.
 */
static void forget_folders(struct kvc *k, unsigned tier, uint64_t ino, uint64_t end)
{
	struct kvc_node *folder;

	kvc_lock_both(k);
	while (ino != end && ino != KVC_ROOT) {
		uint64_t *put = &k->folders->put[tier][ino % KVC_FOLDERS];

		if (*put == ino)
			*put = 0;
		if (kvc_node_get_both(k, ino, &folder))
			break;
		ino = folder->row.parent;
		kvc_node_settle_locked(k, folder);
	}
	kvc_unlock_both(k);
}

int kvc_folders_share(struct kvc *k, struct kvc_node *n, unsigned tier)
{
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	KVC_MEM char *now = malloc(KVC_FRAME_PATH_MAX + 1);
	uint64_t first, ino, up;
	int err = f && now ? 0 : -ENOMEM;

	kvc_lock(k); /* another thread may rename the file */
	ino = first = n->row.parent;
	kvc_unlock(k);

	/*
	 * Goes up from the file to the first folder that is recorded. The folders above that one
	 * are recorded too.
	 */
	while (!err && ino != KVC_ROOT) {
		struct kvc_node *folder;

		kvc_lock_both(k);
		if (k->folders->put[tier][ino % KVC_FOLDERS] == ino ||
		    kvc_node_get_both(k, ino, &folder)) {
			kvc_unlock_both(k);
			return 0;
		}
		memset(f, 0, sizeof *f);
		f->ino = ino;
		up = folder->row.parent;
		err = kvc_path_frame_name_both(k, folder, f);
		kvc_node_settle_locked(k, folder);
		kvc_unlock_both(k);
		err = err ?: *f->path ? put_folder(k, tier, f) : -ENAMETOOLONG;
		if (!err) {
			kvc_lock_both(k);
			put_record_both(k, tier, f, now);
			kvc_unlock_both(k);
		} else {
			forget_folders(k, tier, first, ino);
		}
		ino = up;
	}
	return err;
}
