/* SPDX-License-Identifier: Apache-2.0 */
/* See replay.h. The table has BUCKETS buckets of WAYS requests. */
#include "replay.h"

#include "keys.h"
#include "util.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 8192u
#define WAYS 8u
/*
 * The clock was set back if it is behind an earlier reading by more than this. Threads that read it
 * at about the same time may call in any order.
 */
#define BACK_MS 1000u

struct replay_row {
	uint64_t nonce[2], time_ms; /* time_ms 0: the row is free */
};

struct replay_bucket {
	uint64_t floor_ms; /* requests of this time, and older ones, are refused */
	struct replay_row rows[WAYS];
};

struct kvfs_replay {
	pthread_mutex_t lock;
	uint8_t key[32];     /* chooses the bucket of a nonce */
	kvc_peer_text epoch; /* of the table */
	uint64_t now_ms;     /* the latest reading of the clock in this epoch */
	struct replay_bucket buckets[BUCKETS];
};

/* Begins a new epoch. Returns 0, or a negative errno, and the old epoch stays. */
static int new_epoch(struct kvfs_replay *r, uint64_t now_ms)
{
	uint64_t n[2];
	int err = kvc_keys_random(n, sizeof n);

	if (err)
		return err;
	snprintf(r->epoch, sizeof r->epoch, "%016llx%016llx", (unsigned long long)n[0],
		 (unsigned long long)n[1]);
	memset(r->buckets, 0, sizeof r->buckets);
	r->now_ms = now_ms;
	return 0;
}

struct kvfs_replay *kvfs_replay_new(void)
{
	struct kvfs_replay *r = calloc(1, sizeof *r);

	if (r && (kvc_keys_random(r->key, sizeof r->key) || new_epoch(r, 0))) {
		free(r);
		r = NULL;
	}
	if (r)
		pthread_mutex_init(&r->lock, NULL);
	return r;
}

void kvfs_replay_free(struct kvfs_replay *r)
{
	if (r)
		pthread_mutex_destroy(&r->lock);
	free(r);
}

/* Returns false if the text does not have 32 hexadecimal digits. */
static bool parse_nonce(const char *text, uint64_t nonce[2])
{
	char half[17] = "", *end;

	if (!kvc_peer_hex(text))
		return false;
	for (int i = 0; i < 2; i++) {
		memcpy(half, text + 16 * i, 16);
		nonce[i] = strtoull(half, &end, 16);
	}
	return true;
}

/* Returns the bucket of a nonce, or NULL if it cannot be computed. */
static struct replay_bucket *bucket_of(struct kvfs_replay *r, const uint64_t nonce[2])
{
	uint8_t mac[16];
	uint64_t hash;

	if (kvc_keys_mac(r->key, nonce, 16, "", 0, mac))
		return NULL;
	memcpy(&hash, mac, sizeof hash);
	return &r->buckets[hash % BUCKETS];
}

/* Records the request. Returns NULL, or the reason to refuse it. */
static const char *replay_add(struct replay_bucket *b, const uint64_t nonce[2], uint64_t time_ms)
{
	struct replay_row *oldest = b->rows;

	if (time_ms <= b->floor_ms)
		return "the request is old";
	for (unsigned i = 0; i < WAYS; i++) {
		struct replay_row *row = &b->rows[i];

		if (row->time_ms && row->nonce[0] == nonce[0] && row->nonce[1] == nonce[1])
			return "the request was sent before";
		if (row->time_ms < oldest->time_ms)
			oldest = row;
	}
	b->floor_ms = kvc_max(b->floor_ms, oldest->time_ms);
	*oldest = (struct replay_row){ { nonce[0], nonce[1] }, time_ms };
	return NULL;
}

/* The caller holds r->lock. See kvfs_replay_refuses. */
static const char *check_locked(struct kvfs_replay *r, struct replay_bucket *b, uint64_t now_ms,
				const struct kvc_peer_request *q, const uint64_t nonce[2],
				kvc_peer_text epoch)
{
	if (now_ms + BACK_MS < r->now_ms && new_epoch(r, now_ms))
		return "the node is out of memory";
	r->now_ms = kvc_max(r->now_ms, now_ms);
	if (!kvc_peer_same(r->epoch, q->epoch)) {
		memcpy(epoch, r->epoch, sizeof r->epoch);
		return "the request is of another epoch";
	}
	return replay_add(b, nonce, q->time_ms);
}

const char *kvfs_replay_refuses(struct kvfs_replay *r, uint64_t now_ms,
				const struct kvc_peer_request *q, kvc_peer_text epoch)
{
	struct replay_bucket *b;
	const char *why;
	uint64_t n[2];

	*epoch = 0;
	if (!parse_nonce(q->nonce, n))
		return "the nonce is not 32 hexadecimal digits";
	if (q->time_ms + KVC_PEER_WINDOW_MS < now_ms || q->time_ms > now_ms + KVC_PEER_WINDOW_MS)
		return "the clocks of the two nodes differ, or the request is old";
	if (!(b = bucket_of(r, n)))
		return "the node is out of memory";
	pthread_mutex_lock(&r->lock);
	why = check_locked(r, b, now_ms, q, n, epoch);
	pthread_mutex_unlock(&r->lock);
	return why;
}
