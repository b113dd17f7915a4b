/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A proof in a header shows that a store with our key made the frame. In the store's own tier the
 * key is the store's secret. In shared tiers other stores write too, so the key is from the key
 * file, which all cooperating stores have.
 *
 * The identity shows which store put a frame into a shared tier. It is checked before a frame is
 * removed there (remove.c). The store's uuid does not suffice: a copied store (cp -a, a snapshot)
 * has the same uuid, the same next inode number and the same generations. So the identity is a
 * random number in the catalog (meta "identity"). It is stored with the data that identify the
 * superblock's file (struct kvc_owner), as in the mark of a pool. If they are not those of this
 * store's superblock, a new identity is made. This also happens when a store moves to another
 * device, which does no harm: frames of the old identity can still be read.
 */
#include "proof.h"

#include "path.h"
#include "store.h"
#include "keys.h"
#include "log.h"
#include "owner.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define WARN_NS 60000000000ull /* between two warnings about keys that differ */

/*
 * Is the frame sealed for the model that its path names? In a shared tier it must be. Otherwise,
 * anyone with the key of one model could make frames of all models.
 */
static bool seals_own_model(const struct kvc_frame *f)
{
	char model[KVC_MODEL_NAME + 1] = "";
	size_t len = strcspn(f->path, "/");

	if (!(f->flags & KVC_FRAME_FOLDER))
		kvc_path_model_name(f->path, model);
	else
		memcpy(model, f->path, kvc_min(len, KVC_MODEL_NAME));
	return !strcmp(model, f->key_model);
}

static int proof_key(const struct kvc *k, bool shared, const struct kvc_frame *f, uint8_t key[32])
{
	if (shared)
		return kvc_keys_header_key(k->keys, f->key_id, f->key_model, key);
	memcpy(key, k->store->secret, 32);
	return 0;
}

int kvc_proof_add(const struct kvc *k, bool shared, struct kvc_frame *f)
{
	uint8_t key[32];
	int err;

	if (shared && !k->keys)
		return 0;
	err = proof_key(k, shared, f, key) ?: kvc_frame_prove(f, key);
	kvc_keys_wipe(key, sizeof key);
	return err;
}

/*
 * The header is intact, but its proof was not made with our key of that number. Usually somebody
 * added a key on each node, instead of on one node whose file is then copied.
 */
static void warn_key_differs(const struct kvc_frame *f)
{
	static _Atomic uint64_t warned_ns; /* 0: never */
	uint64_t now = kvc_mono_ns(), last = warned_ns;

	if ((!last || now - last >= WARN_NS) &&
	    atomic_compare_exchange_strong(&warned_ns, &last, now))
		kvc_warn("a frame in a shared tier is encrypted with a key %u that differs from "
			 "key %u of the key file, so it is a miss: give all nodes the same key "
			 "file (Key rotation in kvcachefs-security(7))",
			 f->key_id, f->key_id);
}

/*
 * Is the frame proven? The checksums of its header are right. So if our key made none of its
 * proofs, the frame is not damaged: another node sealed it with another key of the same number. The
 * result is then -ENOKEY, and the frame is neither used nor discarded.
 */
static int proven(const struct kvc *k, bool shared, const struct kvc_frame *f,
		  enum kvc_proven least)
{
	enum kvc_proven p;
	uint8_t key[32];
	int err = proof_key(k, shared, f, key) ?: kvc_frame_proven(f, key, &p);

	kvc_keys_wipe(key, sizeof key);
	if (!err && shared && p == KVC_PROVEN_NOTHING) {
		warn_key_differs(f);
		return -ENOKEY;
	}
	if (!err && (p < least || (shared && !seals_own_model(f))))
		err = -EBADMSG;
	return err;
}

int kvc_proof_placed(const struct kvc *k, bool shared, const struct kvc_frame *f)
{
	/*
	 * Frames that were stored before the store had keys are read for a rekey. Their placements
	 * tell that they are not sealed.
	 */
	if (shared && (!k->keys || !(f->flags & KVC_FRAME_SEALED)))
		return 0;
	return proven(k, shared, f, shared ? KVC_PROVEN_ALL : KVC_PROVEN_IDENTITY);
}

int kvc_proof_found(const struct kvc *k, const struct kvc_frame *f)
{
	if (!k->keys)
		return 0;
	return proven(k, true, f, KVC_PROVEN_ALL);
}

#define KEY "identity"

static void identity_text(const struct kvc *k, const struct kvc_owner *o, char text[512])
{
	char *p = text;

	for (int i = 0; i < 16; i++)
		p += snprintf(p, 3, "%02x", k->shared_id[i]);
	snprintf(p, 512 - 32, " %" PRIx64 " %" PRIx64 " %s %s", o->dev, o->ino, o->uuid, o->handle);
}

static bool identity_parse(const char *text, uint8_t id[16], struct kvc_owner *o)
{
	*o = (struct kvc_owner){ .dir = "" };
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		if (strnlen(text, 33) < 33 || sscanf(text + 2 * i, "%2x", &byte) != 1)
			return false;
		id[i] = (uint8_t)byte;
	}
	return sscanf(text + 32, " %" SCNx64 " %" SCNx64 " %36s %299s", &o->dev, &o->ino, o->uuid,
		      o->handle) == 4;
}

int kvc_proof_identity_start_both(struct kvc *k)
{
	struct kvc_owner us, its;
	char text[512];
	int got, err;

	if (!k->shared)
		return 0;
	got = kvc_meta_read(k->cat, KEY, text, sizeof text);
	err = got < 0 ? got : kvc_owner_of(k->store, k->store->lock_fd, &us);
	if (err)
		return err;
	if (got && identity_parse(text, k->shared_id, &its) && kvc_owner_same(&us, &its))
		return 0;
	if ((err = kvc_keys_random(k->shared_id, sizeof k->shared_id)))
		return err;
	if (got)
		kvc_info("the store %s was copied, or is on another device now: in shared tiers it "
			 "has a new identity",
			 k->store->dir);
	identity_text(k, &us, text);
	return kvc_meta_set(k->cat, KEY, text);
}
