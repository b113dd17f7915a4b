/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs of headers. In the store's own tier the key is the store's secret. In shared tiers other
 * stores write too, so the key is from the key file, which all cooperating stores have.
 */
#include "proof.h"

#include "path.h"
#include "store.h"

#include <string.h>

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

static int proven(const struct kvc *k, bool shared, const struct kvc_frame *f,
		  enum kvc_proven least)
{
	enum kvc_proven p;
	uint8_t key[32];
	int err = proof_key(k, shared, f, key) ?: kvc_frame_proven(f, key, &p);

	kvc_keys_wipe(key, sizeof key);
	if (!err && (p < least || (shared && !seals_own_model(f))))
		err = -EBADMSG;
	return err;
}

int kvc_proof_placed(const struct kvc *k, bool shared, const struct kvc_frame *f)
{
	/*
	 * Frames from before the store had keys have placements that say so. They are read for a
	 * rekey.
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
