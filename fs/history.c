/* SPDX-License-Identifier: Apache-2.0 */
/* Ring buffer of counter samples, and the thread that takes them. See history.h. */
#include "history.h"

#include "cache.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#define MINUTE_NS (KVFS_DURATIONS_S * 1000000000ull)

static const char *const reason_names[] = {
#define X(name, what) #name,
	KVC_REASONS(X)
#undef X
};

struct job {
	struct kvfs_history *h;
	struct kvc *k;
};

struct kvfs_sample kvfs_sample_now(struct kvc *k)
{
	const struct kvc_stats *st = kvc_cache_stats(k);
	struct kvfs_sample s = {
		.ns = kvc_mono_ns(),
#define X(name, counter) .name = kvc_counted(st, counter),
		KVFS_SAMPLED(X)
#undef X
			.pool_used_bytes = kvc_status_pool_used(k),
	};
	struct kvc_histogram h;

	for (unsigned i = 0; i < KVC_REASONS_N; i++)
		s.reasons[i] = st->evicted_for[i];
	for (unsigned place = 0; place < KVC_PLACES; place++) {
		kvc_stats_took(st, KVC_OP_open, place, &h);
		for (unsigned i = 0; i < KVC_SPANS; i++)
			s.opens[i] += h.n[i];
	}
	return s;
}

void kvfs_history_add(struct kvfs_history *h, const struct kvfs_sample *s)
{
	pthread_mutex_lock(&h->lock);
	h->v[h->n++ % KVFS_SAMPLES_N] = *s;
	pthread_mutex_unlock(&h->lock);
}

void kvfs_history_add_durations(struct kvfs_history *h, const struct kvc_stats_durations *d)
{
	uint64_t last;

	pthread_mutex_lock(&h->lock);
	last = h->durations[(h->durations_n + KVFS_DURATIONS_N - 1) % KVFS_DURATIONS_N].ns;
	/* the thread is never exactly on time: a sample that is nearly due is taken */
	if (!h->durations_n || d->ns + KVFS_EVERY_S * 500000000ull >= last + MINUTE_NS)
		h->durations[h->durations_n++ % KVFS_DURATIONS_N] = *d;
	pthread_mutex_unlock(&h->lock);
}

static void take_samples(struct kvfs_history *h, struct kvc *k)
{
	struct kvfs_sample s = kvfs_sample_now(k);
	struct kvc_stats_durations d = { .ns = s.ns };

	kvfs_history_add(h, &s);
	kvc_stats_durations(kvc_cache_stats(k), &d);
	kvfs_history_add_durations(h, &d);
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

		while (!h->ends && pthread_cond_timedwait(&h->cond, &h->lock, &t) != ETIMEDOUT)
			;
		pthread_mutex_unlock(&h->lock);
		take_samples(h, k);
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
	int err;

	if (!j)
		return -ENOMEM;
	*j = (struct job){ h, k };
	take_samples(h, k);
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

void kvfs_history_durations(struct kvfs_history *h, const struct kvfs_sample *now,
			    struct kvc_stats_durations *d)
{
	*d = (struct kvc_stats_durations){ .ns = now->ns };
	pthread_mutex_lock(&h->lock);
	if (h->durations_n)
		*d = h->durations[h->durations_n > KVFS_DURATIONS_N
					  ? h->durations_n % KVFS_DURATIONS_N
					  : 0];
	pthread_mutex_unlock(&h->lock);
}

static void print_field(const struct kvfs_history *h, const struct kvfs_sample *now,
			const char *comma, const char *name, size_t at, FILE *out)
{
	fprintf(out, "%s\n\"%s\":[", comma, name);
	for (size_t i = 0; i < samples_kept(h); i++)
		fprintf(out, "%" PRIu64 ",",
			*(const uint64_t *)((const char *)nth_sample(h, i) + at));
	fprintf(out, "%" PRIu64 "]", *(const uint64_t *)((const char *)now + at));
}

/* Prints a quantile of the opens in the minute before each sample. */
static void print_opens(const struct kvfs_history *h, const struct kvfs_sample *now,
			const char *name, double part, FILE *out)
{
	size_t all = samples_kept(h), from = 0;

	fprintf(out, ",\n\"%s\":[", name);
	for (size_t i = 0; i <= all; i++) {
		const struct kvfs_sample *to = i < all ? nth_sample(h, i) : now, *then;
		uint64_t n[KVC_SPANS];
		double us;

		while (from < i && nth_sample(h, from)->ns + MINUTE_NS <= to->ns)
			from++;
		then = from ? nth_sample(h, from - 1) : i ? nth_sample(h, 0) : to;
		for (unsigned j = 0; j < KVC_SPANS; j++)
			n[j] = to->opens[j] - then->opens[j];
		us = kvc_histogram_quantile(n, part);
		if (i)
			putc(',', out);
		if (us > 0)
			fprintf(out, "%.9f", us / 1e6);
		else
			fputs("null", out);
	}
	putc(']', out);
}

void kvfs_history_print(struct kvfs_history *h, const struct kvfs_sample *now, FILE *out)
{
	pthread_mutex_lock(&h->lock);
	fprintf(out, "{\"every_seconds\":%u,\n\"ago_seconds\":[", KVFS_EVERY_S);
	for (size_t i = 0; i < samples_kept(h); i++)
		fprintf(out, "%.1f,",
			(double)(now->ns - kvc_min(now->ns, nth_sample(h, i)->ns)) / 1e9);
	fputs("0]", out);
#define X(name, counter) print_field(h, now, ",", #name, offsetof(struct kvfs_sample, name), out);
	KVFS_SAMPLED(X)
	X(pool_used_bytes, )
#undef X
	print_opens(h, now, "open_p50_seconds", .5, out);
	print_opens(h, now, "open_p99_seconds", .99, out);
	fputs(",\n\"reasons\":{", out);
	for (unsigned i = 0; i < KVC_REASONS_N; i++)
		print_field(h, now, i ? "," : "", reason_names[i],
			    offsetof(struct kvfs_sample, reasons) + i * sizeof(uint64_t), out);
	fputs("}}", out);
	pthread_mutex_unlock(&h->lock);
}
