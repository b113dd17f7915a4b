/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/events: changes of files since it was opened (telemetry/rings.h), one JSON object
 * per line (kvcachefs-files(5) describes the members). An event is recorded as numbers under the
 * lock; its path is looked up when it is read. Sequence numbers have no gaps, except that lost
 * events are skipped; a line says how many.
 */
#include "rings.h"
#include "path.h"
#include "stream.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 64 /* events that are taken from the ring at a time */

struct events {
	struct kvc_stream stream; /* first */
	uint64_t at;              /* position in the ring */
};

/* An event to print. Paths of the ring are copied. */
struct event {
	struct kvc_event_ring_item v;
	uint64_t number;
	char *path, *before;
};

static const char *const event_names[] = {
#define X(name, what) #name,
	KVC_EVENT_RING(X)
#undef X
};

/*
 * Takes some events from the ring and returns their number; *lost is the number of events that were
 * overwritten unread. If memory is short, paths are missing.
 */
static size_t take_events(struct kvc *k, struct events *s, struct event *all, uint64_t *lost)
{
	size_t n = 0;

	kvc_lock(k);
	for (uint64_t skipped = 0; n < BATCH; n++) {
		struct event *e = &all[n];
		const char *path;

		if (!kvc_event_ring_take_locked(k, &s->at, &e->v, &e->number, &skipped))
			break;
		*lost += skipped;
		path = e->v.what == KVC_EVENT_RING_dropped
			       ? e->v.gone
			       : kvc_event_ring_path_locked(k, e->v.ino, e->number);
		e->path = path ? strdup(path) : NULL;
		e->before = e->v.what == KVC_EVENT_RING_renamed && e->v.gone ? strdup(e->v.gone)
									     : NULL;
	}
	kvc_unlock(k);
	return n;
}

/* Finds the current path of the file, or the path that it has just lost. */
static void find_event_path(struct kvc *k, struct event *e)
{
	char now[KVC_FRAME_PATH_MAX + 1];
	const char *gone;
	int err;

	kvc_lock_both(k);
	gone = kvc_event_ring_path_locked(k, e->v.ino, e->number);
	err = gone ? 0 : kvc_path_both(k, e->v.ino, now);
	e->path = err ? NULL : strdup(gone ?: now);
	kvc_unlock_both(k);
}

static void put_text(FILE *out, const char *name, const char *text, size_t len)
{
	fprintf(out, ", \"%s\": \"", name);
	kvc_put_plain(out, text, len);
	fputc('"', out);
}

/* The copies that a renamed file has, or a dropped file had. */
static void put_tiers(FILE *out, const struct kvc *k, unsigned where)
{
	const char *sep = "";

	fputs(", \"tiers\": \"", out);
	if (where & KVC_EVENT_RING_IN_POOL) {
		fputs("cpu", out);
		sep = ",";
	}
	kvc_tier_each(k, t)
		if (where & (1u << t)) {
			fprintf(out, "%s%s", sep, k->tier[t].t->ops->name);
			sep = ",";
		}
	fputc('"', out);
}

static void print_event(const struct kvc *k, const struct event *e, FILE *out)
{
	const char *path = e->path ?: "", *slash = strrchr(path, '/');
	size_t len = strlen(path);

	fprintf(out,
		"{\"seq\": %" PRIu64 ", \"time\": %" PRIu64 ".%09" PRIu64 ", \"event\": \"%s\"",
		e->number, e->v.at_ns / 1000000000, e->v.at_ns % 1000000000,
		event_names[e->v.what]);
	if (e->v.tier != KVC_EVENT_RING_NONE)
		fprintf(out, ", \"tier\": \"%s\"",
			e->v.tier == KVC_EVENT_RING_POOL ? "cpu" : k->tier[e->v.tier].t->ops->name);
	else if (!e->v.folder)
		put_tiers(out, k, e->v.where);
	put_text(out, "path", path, len);
	if (e->before)
		put_text(out, "before", e->before, strlen(e->before));
	put_text(out, "chunk", path,
		 e->v.folder || e->v.alone || !slash ? len : (size_t)(slash - path));
	put_text(out, "model", path, e->v.folder || slash ? strcspn(path, "/") : 0);
	if (e->v.folder)
		fputs(", \"folder\": true}\n", out);
	else
		fprintf(out, ", \"bytes\": %" PRIu64 "}\n", e->v.bytes);
}

static bool events_print(struct kvc *k, struct kvc_stream *stream, FILE *out)
{
	struct events *s = kvc_of(stream, struct events, stream);
	struct event all[BATCH];
	uint64_t lost = 0;
	size_t n = take_events(k, s, all, &lost);

	if (lost)
		fprintf(out, "{\"event\": \"lost\", \"count\": %" PRIu64 "}\n", lost);
	for (size_t i = 0; i < n; i++) {
		if (!all[i].path)
			find_event_path(k, &all[i]);
		print_event(k, &all[i], out);
		free(all[i].path);
		free(all[i].before);
	}
	return n;
}

static void events_close(struct kvc *k, struct kvc_stream *stream)
{
	kvc_lock(k);
	kvc_event_ring_close_locked(k);
	kvc_unlock(k);
	free(kvc_of(stream, struct events, stream));
}

int kvc_events_open(struct kvc *k, struct kvc_stream **out)
{
	static const struct kvc_stream_ops ops = { events_print, events_close };
	struct events *s = calloc(1, sizeof *s);
	int err;

	if (!s)
		return -ENOMEM;
	s->stream.ops = &ops;
	kvc_lock(k);
	err = kvc_event_ring_open_locked(k, &s->at);
	kvc_unlock(k);
	if (err)
		free(s);
	else
		*out = &s->stream;
	return err;
}
