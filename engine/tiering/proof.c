/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs of headers. In the store's own tier they are by the store's secret; in shared tiers, where
 * other stores write too, by a key from the key file, which says who belongs together. What is of a
 * version without proofs is believed only where a placement of ours names it: a sealed one's blocks
 * then prove its name and owner as well (payload.h).
 */
#include "proof.h"

#include "path.h"
#include "store.h"

#include <string.h>

/*
 * A frame in a shared tier must be sealed for the model that its path names. Otherwise whoever has
 * the key of one model could make frames of all others.
 */
static bool of_its_model(const struct kvc_frame *f)
{
	char model[KVC_MODEL_NAME + 1] = "";
	size_t len = strcspn(f->path, "/");

	if (!(f->flags & KVC_FRAME_FOLDER))
		kvc_path_model_name(f->path, model);
	else
		memcpy(model, f->path, kvc_min(len, KVC_MODEL_NAME));
	return !strcmp(model, f->key_model);
}

static int key_of(const struct kvc *k, bool shared, const struct kvc_frame *f, uint8_t key[32])
{
	if (shared)
		return kvc_keys_header_key(k->keys, f->key_id, f->key_model, key);
	memcpy(key, k->store->secret, 32);
	return 0;
}

int kvc_proof_check(const struct kvc *k, bool shared, struct kvc_frame *f)
{
	uint8_t key[32];
	int err;

	if (shared && !k->keys)
		return 0;
	err = key_of(k, shared, f, key) ?: kvc_frame_prove(f, key);
	kvc_keys_wipe(key, sizeof key);
	return err;
}

static int proven(const struct kvc *k, bool shared, const struct kvc_frame *f,
		  enum kvc_proven least)
{
	enum kvc_proven p;
	uint8_t key[32];
	int err = key_of(k, shared, f, key) ?: kvc_frame_proven(f, key, &p);

	kvc_keys_wipe(key, sizeof key);
	if (!err && (p < least || (shared && !of_its_model(f))))
		err = -EBADMSG;
	return err;
}

int kvc_proof_placed(const struct kvc *k, bool shared, const struct kvc_frame *f)
{
	/* What was put there before there were keys is named as such, and read for a rekey. */
	if (f->version < 2 || (shared && (!k->keys || !(f->flags & KVC_FRAME_SEALED))))
		return 0;
	return proven(k, shared, f, shared ? KVC_PROVEN_ALL : KVC_PROVEN_IDENTITY);
}

int kvc_proof_found(const struct kvc *k, const struct kvc_frame *f)
{
	if (!k->keys)
		return 0;
	if (f->version < 2)
		return -ENOENT;
	return proven(k, true, f, KVC_PROVEN_ALL);
}
