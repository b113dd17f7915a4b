/* SPDX-License-Identifier: Apache-2.0 */
/* Ring buffer of counter samples, and the thread that takes them. See history.h. */
#include "history.h"

#include "cache.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

struct job {
	struct kvfs_history *h;
	struct kvc *k;
};

struct kvfs_sample kvfs_sample_now(struct kvc *k)
{
	const struct kvc_stats *st = kvc_cache_stats(k);

	return (struct kvfs_sample){
		.ns = kvc_mono_ns(),
#define X(name, counter) .name = kvc_counted(st, counter),
		KVFS_SAMPLED(X)
#undef X
			.pool_used_bytes = kvc_status_pool_used(k),
	};
}

void kvfs_history_add(struct kvfs_history *h, const struct kvfs_sample *s)
{
	pthread_mutex_lock(&h->lock);
	h->v[h->n++ % KVFS_SAMPLES_N] = *s;
	pthread_mutex_unlock(&h->lock);
}

static void *sampler(void *arg)
{
	struct kvfs_history *h = ((struct job *)arg)->h;
	struct kvc *k = ((struct job *)arg)->k;
	uint64_t next = kvc_mono_ns();

	free(arg);
	pthread_mutex_lock(&h->lock);
	while (!h->ends) {
		struct timespec t = kvc_timespec(next += KVFS_EVERY_S * 1000000000ull);
		struct kvfs_sample s;

		while (!h->ends && pthread_cond_timedwait(&h->cond, &h->lock, &t) != ETIMEDOUT)
			;
		pthread_mutex_unlock(&h->lock);
		s = kvfs_sample_now(k);
		kvfs_history_add(h, &s);
		pthread_mutex_lock(&h->lock);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

void kvfs_history_init(struct kvfs_history *h)
{
	pthread_condattr_t attr;

	memset(h, 0, sizeof *h);
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&h->cond, &attr);
	pthread_condattr_destroy(&attr);
}

int kvfs_history_start(struct kvfs_history *h, struct kvc *k)
{
	struct job *j = malloc(sizeof *j);
	struct kvfs_sample s = kvfs_sample_now(k);
	int err;

	if (!j)
		return -ENOMEM;
	*j = (struct job){ h, k };
	kvfs_history_add(h, &s);
	err = -pthread_create(&h->thread, NULL, sampler, j);
	h->runs = !err;
	if (err)
		free(j);
	return err;
}

void kvfs_history_stop(struct kvfs_history *h)
{
	if (!h->runs)
		return;
	pthread_mutex_lock(&h->lock);
	h->ends = true;
	pthread_cond_signal(&h->cond);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->thread, NULL);
	h->runs = false;
}

/* Returns the i-th of the stored samples; the oldest is the first. */
static const struct kvfs_sample *nth_sample(const struct kvfs_history *h, size_t i)
{
	return &h->v[(h->n > KVFS_SAMPLES_N ? h->n + i : i) % KVFS_SAMPLES_N];
}

static size_t samples_kept(const struct kvfs_history *h)
{
	return kvc_min(h->n, (size_t)KVFS_SAMPLES_N);
}

struct kvfs_sample kvfs_history_before(struct kvfs_history *h, const struct kvfs_sample *now,
				       unsigned seconds)
{
	struct kvfs_sample s = *now;

	pthread_mutex_lock(&h->lock);
	for (size_t i = samples_kept(h); i-- > 0;) {
		s = *nth_sample(h, i);
		if (s.ns + seconds * 1000000000ull <= now->ns)
			break;
	}
	pthread_mutex_unlock(&h->lock);
	return s;
}

static void print_field(const struct kvfs_history *h, const struct kvfs_sample *now,
			const char *name, size_t at, FILE *out)
{
	fprintf(out, ",\n\"%s\":[", name);
	for (size_t i = 0; i < samples_kept(h); i++)
		fprintf(out, "%" PRIu64 ",",
			*(const uint64_t *)((const char *)nth_sample(h, i) + at));
	fprintf(out, "%" PRIu64 "]", *(const uint64_t *)((const char *)now + at));
}

void kvfs_history_print(struct kvfs_history *h, const struct kvfs_sample *now, FILE *out)
{
	pthread_mutex_lock(&h->lock);
	fprintf(out, "{\"every_seconds\":%u,\n\"ago_seconds\":[", KVFS_EVERY_S);
	for (size_t i = 0; i < samples_kept(h); i++)
		fprintf(out, "%.1f,",
			(double)(now->ns - kvc_min(now->ns, nth_sample(h, i)->ns)) / 1e9);
	fputs("0]", out);
#define X(name, counter) print_field(h, now, #name, offsetof(struct kvfs_sample, name), out);
	KVFS_SAMPLED(X)
	X(pool_used_bytes, )
#undef X
	putc('}', out);
	pthread_mutex_unlock(&h->lock);
}
