/* SPDX-License-Identifier: Apache-2.0 */
/* See replay.h. The table has BUCKETS buckets of WAYS requests. */
#include "replay.h"

#include "util.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 8192u
#define WAYS 8u

struct replay_row {
	uint64_t nonce[2], time_ms; /* time_ms 0: the row is free */
};

struct kvfs_replay {
	pthread_mutex_t lock;
	uint64_t floor_ms; /* requests of this time, and older ones, are refused */
	struct replay_row rows[BUCKETS][WAYS];
};

struct kvfs_replay *kvfs_replay_new(void)
{
	struct kvfs_replay *r = calloc(1, sizeof *r);

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

/* Records the request, or returns false if it is recorded already. */
static bool replay_add(struct kvfs_replay *r, const uint64_t nonce[2], uint64_t time_ms)
{
	struct replay_row *rows = r->rows[nonce[0] % BUCKETS], *oldest = rows;

	for (unsigned i = 0; i < WAYS; i++) {
		if (rows[i].time_ms && rows[i].nonce[0] == nonce[0] && rows[i].nonce[1] == nonce[1])
			return false;
		if (rows[i].time_ms < oldest->time_ms)
			oldest = &rows[i];
	}
	r->floor_ms = kvc_max(r->floor_ms, oldest->time_ms);
	*oldest = (struct replay_row){ { nonce[0], nonce[1] }, time_ms };
	return true;
}

const char *kvfs_replay_refuses(struct kvfs_replay *r, uint64_t now_ms, uint64_t time_ms,
				const kvc_peer_text nonce)
{
	const char *why = NULL;
	uint64_t n[2];

	if (!parse_nonce(nonce, n))
		return "the nonce is not 32 hexadecimal digits";
	if (time_ms + KVC_PEER_WINDOW_MS < now_ms || time_ms > now_ms + KVC_PEER_WINDOW_MS)
		return "the clocks of the two nodes differ, or the request is old";
	pthread_mutex_lock(&r->lock);
	if (time_ms <= r->floor_ms)
		why = "the request is old";
	else if (!replay_add(r, n, time_ms))
		why = "the request was sent before";
	pthread_mutex_unlock(&r->lock);
	return why;
}
