/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See keyring.h. New keys come into use under both locks, after their proofs were put into the
 * catalog's overlay and the table of known folder frames was emptied. Hence the frame of a
 * placement that is recorded later is sealed with the newest key (spill.c), and no placement is
 * committed before the proof of its key.
 */
#include "keyring.h"

#include "folders.h"
#include "log.h"

#include <string.h>

#define LEARN_NS 1000000000ull

struct reading {
	struct kvc *k;
	int (*may_lose)(struct kvc *k, uint32_t id, char *error);
	unsigned added, lost;
	uint32_t id;
	char *error;
};

int kvc_keyring_prove_both(struct kvc *k, uint32_t id)
{
	char key[32], text[33], known[64];
	int err = kvc_keys_proof(k->keys, id, text), is;

	snprintf(key, sizeof key, "key_%u", id);
	if (err || (is = kvc_meta_read(k->cat, key, known, sizeof known)) < 0)
		return err ?: is;
	if (is && strcmp(known, text))
		return -EINVAL;
	return kvc_meta_set(k->cat, key, text) ?: is;
}

static int key_prove_both(void *arg, uint32_t id)
{
	struct reading *r = arg;
	int err = kvc_keyring_prove_both(r->k, id);

	r->added++;
	if (err == -EINVAL)
		snprintf(r->error, 512,
			 "option keyfile: key %u is not the key of this number that encrypts the "
			 "store",
			 id);
	else if (err < 0)
		snprintf(r->error, 512, "the catalog cannot be used: %s", strerror(-err));
	return err < 0 ? err : 0;
}

static int key_lost(void *arg, uint32_t id)
{
	struct reading *r = arg;

	r->lost++;
	return r->may_lose ? r->may_lose(r->k, id, r->error) : 0;
}

int kvc_keyring_read(struct kvc *k, int (*may_lose)(struct kvc *k, uint32_t id, char *error),
		     char *error)
{
	struct reading r = { .k = k, .may_lose = may_lose, .error = error };
	int err = kvc_keys_read(k->keys, k->opt.keyfile, error);

	if (err)
		return err;
	err = kvc_keys_each_read(k->keys, false, key_lost, &r);
	kvc_lock_both(k);
	err = err ?: kvc_keys_each_read(k->keys, true, key_prove_both, &r);
	/* Folder frames are proven by keys too: the next copies store them again. */
	if (!err && (r.added || r.lost))
		memset(k->folders->put, 0, sizeof k->folders->put);
	kvc_keys_read_end(k->keys, !err, may_lose != NULL);
	kvc_unlock_both(k);
	if (!err && r.added)
		kvc_info("the key file has %u new keys", r.added);
	return err;
}

bool kvc_keyring_learn(struct kvc *k, uint32_t id)
{
	uint64_t now = kvc_mono_ns(), last = k->learned_ns;
	char error[512] = "";

	if (!k->keys || kvc_keys_has(k->keys, id))
		return k->keys;
	/* A load does not wait for a rekey, which will bring the new keys itself. */
	if ((!last || now - last >= LEARN_NS) && !kvc_keys_reading(k->keys) &&
	    atomic_compare_exchange_strong(&k->learned_ns, &last, now) &&
	    kvc_keyring_read(k, NULL, error))
		kvc_warn("a frame needs key %u, and the key file cannot be read again: %s", id,
			 error);
	if (kvc_keys_has(k->keys, id))
		return true;
	kvc_count(&k->stats, unknown_keys);
	return false;
}
