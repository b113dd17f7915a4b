/* SPDX-License-Identifier: Apache-2.0 */
/* See replay.h. The table has BUCKETS buckets of WAYS requests. */
#include "replay.h"

#include "keys.h"
#include "util.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 8192u
#define WAYS 8u

struct replay_row {
	uint64_t nonce[2], time_ms; /* time_ms 0: the row is free */
};

struct replay_bucket {
	uint64_t floor_ms; /* requests of this time, and older ones, are refused */
	struct replay_row rows[WAYS];
};

struct kvfs_replay {
	pthread_mutex_t lock;
	uint8_t key[32]; /* chooses the bucket of a nonce */
	struct replay_bucket buckets[BUCKETS];
};

struct kvfs_replay *kvfs_replay_new(void)
{
	struct kvfs_replay *r = calloc(1, sizeof *r);

	if (r && kvc_keys_random(r->key, sizeof r->key)) {
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

	if (strspn(text, "0123456789abcdef") != 32 || text[32])
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

const char *kvfs_replay_refuses(struct kvfs_replay *r, uint64_t now_ms, uint64_t time_ms,
				const kvc_peer_text nonce)
{
	struct replay_bucket *b;
	const char *why;
	uint64_t n[2];

	if (!parse_nonce(nonce, n))
		return "the nonce is not 32 hexadecimal digits";
	if (time_ms + KVC_PEER_WINDOW_MS < now_ms || time_ms > now_ms + KVC_PEER_WINDOW_MS)
		return "the clocks of the two nodes differ, or the request is old";
	if (!(b = bucket_of(r, n)))
		return "the node is out of memory";
	pthread_mutex_lock(&r->lock);
	why = replay_add(b, n, time_ms);
	pthread_mutex_unlock(&r->lock);
	return why;
}
