/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep "rekey": finds every copy that is not encrypted with the current key of its model, and
 * encrypts it with that key. Each object is loaded into the pool and copied again; the old copy is
 * removed when the new one is recorded.
 */
#include "ops.h"
#include "file.h"
#include "keyring.h"
#include "load.h"
#include "path.h"
#include "spill.h"
#include "sweep.h"
#include "tier_queue.h"

#include <string.h>

/*
 * Loads an object into the pool and keeps it there with a lease (n->refs.leases). If the object has
 * no node, sets *n to NULL. Otherwise *n has the lease, even after an error, and the caller must
 * end the lease.
 */
static int load_and_lease(struct kvc *k, uint64_t ino, struct kvc_node **n)
{
	struct kvc_sweeper x;
	int err;

	kvc_lock_both(k);
	err = kvc_node_get_both(k, ino, n);
	if (err)
		*n = NULL;
	if (!err) {
		kvc_chunk_mark_busy((*n)->chunk);
		kvc_node_leased_locked(*n);
	}
	if (!err && (*n)->state == KVC_LOWER)
		err = kvc_load_start_locked(k, *n, true);
	while (!err && (*n)->state == KVC_LOADING) {
		kvc_sweeper_init(&x);
		kvc_node_park_locked(k, *n, &x.w);
		kvc_unlock_both(k);
		err = kvc_sweeper_wait(&x);
		kvc_lock_both(k);
	}
	if (!err && (*n)->state != KVC_BOTH && (*n)->state != KVC_RESIDENT)
		err = -EBUSY; /* open for writing: its next publish uses the new key anyway */
	kvc_unlock_both(k);
	return err;
}

static void end_lease(struct kvc *k, struct kvc_node *n)
{
	kvc_lock(k);
	kvc_node_unleased_locked(n);
	if (n->commit.lost && !n->refs.opens && !n->refs.leases)
		kvc_file_destroy_locked(k, n);
	kvc_node_settle_locked(k, n);
	kvc_unlock(k);
}

static void rekey_one(struct kvc_sweep *s, const struct kvc_placed *p)
{
	struct kvc *k = s->k;
	struct kvc_node *n = NULL;
	char path[KVC_FRAME_PATH_MAX + 1], model[KVC_MODEL_NAME + 1];
	uint32_t want;
	bool again;
	int err;

	kvc_lock_both(k);
	err = kvc_path_both(k, p->ino, path);
	kvc_unlock_both(k);
	if (err) {
		s->failed += err != -ENOENT && err != -ESTALE;
		return;
	}
	kvc_path_model_name(path, model);
	want = kvc_keys_for(k->keys, model);
	if (p->place.key == want)
		return;
	if (!k->tier[p->tier].t) { /* a tier that is not in this mount */
		s->failed++;
		return;
	}
	err = load_and_lease(k, p->ino, &n);
	if (!err) {
		kvc_lock_both(k);
		again = !n->commit.lost && n->in[p->tier].place.gen &&
			n->in[p->tier].place.key != want &&
			(n->state == KVC_BOTH || n->in[p->tier].place.codec & KVC_PLACE_LEFT);
		if (again) {
			kvc_file_set_resealing_locked(n, p->tier, true);
			kvc_spill_queue_locked(k, n, true);
		}
		kvc_unlock_both(k);
		/* Load one object at a time, so that clients lose little of the pool. */
		for (int i = 0; again && i < 10000 && !s->stop; i++) {
			kvc_lock(k);
			again = !n->commit.lost && (n->copies.resealing & (1u << p->tier));
			kvc_unlock(k);
			if (again)
				usleep(1000);
		}
		kvc_lock(k);
		kvc_file_set_resealing_locked(n, p->tier, false);
		kvc_unlock(k);
		err = again ? -EIO : 0;
		s->changed += !err;
		kvc_count_by(&k->stats, rekeyed, !err);
	}
	if (n)
		end_lease(k, n);
	if (err && err != -ENOENT && err != -ESTALE)
		s->failed++;
}

static int is_of_key(struct kvc_sweep *s, const struct kvc_placed *p, void *arg)
{
	(void)s;
	return p->place.key == *(const uint32_t *)arg ? -EBUSY : 0;
}

/*
 * Returns 0 if the key, which is no longer in the key file, may be discarded, or -EBUSY if a copy
 * needs it.
 */
static int check_unused_key(struct kvc *k, uint32_t id, char *error)
{
	struct kvc_sweep all = { .k = k };
	int err = kvc_sweeper_commit(&all) ?: kvc_sweeper_each_placed(&all, is_of_key, &id);

	if (err == -EBUSY)
		snprintf(error, 512,
			 "option keyfile: %s no longer has key %u, which copies need: restore its "
			 "line",
			 k->opt.keyfile, id);
	else if (err)
		snprintf(error, 512, "the catalog cannot be read: %s", strerror(-err));
	return err;
}

static int rekey_placed(struct kvc_sweep *s, const struct kvc_placed *p, void *arg)
{
	bool *first = arg;

	s->seen += *first;
	rekey_one(s, p);
	return 0;
}

int kvc_rekey_run(struct kvc_sweep *s)
{
	struct kvc *k = s->k;
	bool first = true;
	uint64_t before;
	int err = k->keys ? kvc_keyring_read(k, check_unused_key, s->why) : -ENOKEY;

	if (err)
		return err;
	/* Other nodes may have stored files with an old key in the meantime. */
	do {
		before = s->changed;
		err = kvc_sweeper_commit(s) ?: kvc_sweeper_each_placed(s, rekey_placed, &first);
		first = false;
	} while (!err && !s->stop && !s->failed && s->changed != before);
	return err;
}
