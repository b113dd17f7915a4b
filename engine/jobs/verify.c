/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep "verify": reads every copy in the tiers and checks it. rate= limits the bytes per
 * second. A verification is not an access: nothing enters the pool, and the order of eviction does
 * not change. Copies are read one at a time, into memory outside the pool.
 *
 * A copy that is damaged is read a second time, because its header may just have been rewritten. If
 * it is still damaged, it is treated as in a load: it is discarded, and made again if the pool has
 * the file. A file without another copy is dropped. A copy that another node has replaced is
 * counted and kept: that node verifies it, and if this node made the copy again, the other node
 * would find its own copy replaced.
 */
#include "ops.h"
#include "fetch.h"
#include "load.h"
#include "log.h"
#include "sweep.h"
#include "tier_queue.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define SLICE_US 20000

int kvc_verify_words(struct kvc_sweep *s, char *words, FILE *answer)
{
	char *save = NULL;

	s->tiers = (1u << KVC_TIERS) - 1;
	for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		if (!strncmp(w, "tier=", 5)) {
			s->tiers = 0;
			kvc_tier_each(s->k, t)
				if (!strcmp(s->k->tier[t].t->ops->name, w + 5))
					s->tiers |= 1u << t;
			if (!s->tiers) {
				fprintf(answer,
					"this mount has no tier %s below the pool; kvcachectl "
					"config lists the tiers\n",
					w + 5);
				return -EINVAL;
			}
		} else if (strncmp(w, "rate=", 5) != 0 || kvc_size_parse(w + 5, &s->rate) ||
			   !s->rate) {
			fprintf(answer, "%s is not a size\n", w);
			return -EINVAL;
		}
	}
	kvc_tier_each(s->k, t)
		if (!kvc_tier_takes(s->k->tier[t].t))
			s->tiers &= ~(1u << t); /* other nodes verify what they store */
	if (s->tiers)
		return 0;
	fprintf(answer, "frames of other nodes are not verified here\n");
	return -EINVAL;
}

/* Describes the copy to read. Returns -ENOENT if the copy no longer exists or is out of date. */
static int describe_copy_both(struct kvc *k, uint64_t ino, unsigned tier,
			      struct kvc_fetch_want *want)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);
	struct kvc_object_row object;
	struct kvc_place place[KVC_TIERS];
	int err = 0;

	if (n && (n->commit.lost || kvc_node_detached(n)))
		return -ENOENT;
	if (!n)
		err = kvc_object_get(k->cat, ino, &object) ?: kvc_place_get(k->cat, ino, place);
	if (err)
		return err;
	if (n) {
		object = n->object;
		place[tier] = n->in[tier].place;
	}
	if (!place[tier].gen || place[tier].gen != object.gen)
		return -ENOENT;
	*want = (struct kvc_fetch_want){
		.ino = ino,
		.size = object.size,
		.place = place[tier],
		.shared = k->tier[tier].t->ops->caps & KVC_TIER_SHARED,
	};
	want->has_sum = kvc_place_raw(&object, &want->place, &want->sum);
	return 0;
}

static bool same_copy(const struct kvc_fetch_want *a, const struct kvc_fetch_want *b)
{
	return a->place.gen == b->place.gen && a->place.where.at == b->place.where.at &&
	       a->place.where.hi == b->place.where.hi && a->size == b->size &&
	       !memcmp(a->place.sum.b, b->place.sum.b, sizeof a->place.sum.b);
}

static bool is_damage(int err)
{
	return err == -EBADMSG || err == -ENOENT || err == -EPROTO;
}

/*
 * Reads a copy once. Returns -EAGAIN if the copy was replaced or removed during the read, because
 * the result is then useless.
 */
static int read_once(struct kvc *k, unsigned tier, struct kvc_fetch_want *want, int fd)
{
	struct kvc_fetch_want now;
	bool allowed;
	int err, still;

	kvc_lock(k);
	allowed = kvc_tier_allowed_locked(k, tier, KVC_CALL_READ);
	kvc_unlock(k);
	if (!allowed)
		return -EIO;
	err = kvc_fetch(k, k->tier[tier].t, want, fd);
	kvc_lock_both(k);
	kvc_tier_result_locked(k, tier, KVC_CALL_READ, want->ino, err == -ENOSPC ? 0 : err);
	still = describe_copy_both(k, want->ino, tier, &now);
	kvc_unlock_both(k);
	return still || !same_copy(want, &now) ? -EAGAIN : err;
}

/* Sleeps so that the sweep stays below its rate. */
static void limit_rate(struct kvc_sweep *s, uint64_t began_ns)
{
	while (s->rate && !s->stop &&
	       (double)s->bytes / (double)s->rate > (double)(kvc_mono_ns() - began_ns) / 1e9)
		usleep(SLICE_US);
}

static void discard_copy(struct kvc_sweep *s, const struct kvc_fetch_want *want, unsigned tier,
			 int err)
{
	struct kvc *k = s->k;
	struct kvc_fetch_want now;
	bool lost = false;

	kvc_lock_both(k);
	if (!describe_copy_both(k, want->ino, tier, &now) && same_copy(want, &now) &&
	    !kvc_load_bad_copy_both(k, want->ino, tier, &lost)) {
		s->changed++;
		s->tier_failed[tier]++;
		s->lost += lost;
		kvc_count(&k->stats, corrupt);
		kvc_warn("tier %s: verify: the copy of inode %llx is %s and is discarded%s",
			 k->tier[tier].t->ops->name, (unsigned long long)want->ino,
			 err == -ENOENT ? "missing" : "damaged",
			 lost ? "; it was the last copy, so the file is dropped" : "");
	}
	kvc_unlock_both(k);
}

static void verify_one(struct kvc_sweep *s, uint64_t ino, unsigned tier)
{
	struct kvc *k = s->k;
	struct kvc_fetch_want want;
	KVC_FD int fd = -1;
	int err = -EAGAIN;

	if (!k->tier[tier].t || !(s->tiers & (1u << tier)))
		return;
	kvc_lock_both(k);
	err = describe_copy_both(k, ino, tier, &want);
	kvc_unlock_both(k);
	if (err == -ENOENT)
		return;
	fd = memfd_create("kvcachefs-verify", MFD_CLOEXEC);
	if (!err && fd < 0)
		err = -errno;
	err = err ?: read_once(k, tier, &want, fd);
	if (is_damage(err))
		err = read_once(k, tier, &want, fd);
	if (err == -EAGAIN)
		return;
	s->seen++;
	s->bytes += want.place.where.len;
	if (is_damage(err)) {
		discard_copy(s, &want, tier, err);
	} else if (err == -ESTALE) {
		s->replaced++;
	} else if (err) {
		if (err == -ENOKEY) {
			kvc_count(&k->stats, unsealable);
			if (!s->failed)
				kvc_warn("tier %s: verify: the copy of inode %llx is sealed with a "
					 "key that this mount does not have, and is kept",
					 k->tier[tier].t->ops->name, (unsigned long long)ino);
		}
		s->failed++;
		s->tier_failed[tier]++;
	}
}

/* Bytes to read; 0 if unknown, because other nodes store in the tier too. */
static uint64_t bytes_to_read(const struct kvc_sweep *s)
{
	uint64_t all = 0;

	kvc_tier_each(s->k, t) {
		struct kvc_tier *tier = s->k->tier[t].t;
		struct kvc_tier_usage u;

		if (!(s->tiers & (1u << t)))
			continue;
		if (tier->ops->caps & KVC_TIER_SHARED)
			return 0;
		tier->ops->usage(tier, &u);
		all += u.used;
	}
	return all;
}

static int verify_placed(struct kvc_sweep *s, const struct kvc_placed *p, void *began_ns)
{
	verify_one(s, p->ino, p->tier);
	limit_rate(s, *(const uint64_t *)began_ns);
	return 0;
}

int kvc_verify_run(struct kvc_sweep *s)
{
	uint64_t began_ns = kvc_mono_ns();
	int err = kvc_sweeper_commit(s);

	s->all_bytes = bytes_to_read(s);
	return err ?: kvc_sweeper_each_placed(s, verify_placed, &began_ns);
}
