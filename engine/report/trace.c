/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/trace: the uses of chunks from its opening on, as lines for kvcachectl trace. What is
 * recorded under the lock is numbers (telemetry/access_ring.h); the names of the chunks are looked
 * for when it is read, once for each, and that is told again where it may have changed.
 *
 *   name ID PATH                            before the first use of this chunk, and after a rename;
 *                                           bytes that are no plain ones are %XX
 *   use NS CLIENT ID FILE BYTES PARENT WHAT   WHAT: letters of the table below, or -
 *   end NS CLIENT                           a lease has told all it has
 *   lost N                                  uses, since this was not read in time
 */
#include "path.h"
#include "access_ring.h"
#include "stream.h"
#include "access.h"

#include <inttypes.h>
#include <string.h>

#define BATCH 128   /* uses that are taken at a time */
#define NAMED 32768 /* chunks whose name was told, about */

struct trace {
	struct kvc_stream stream; /* first */
	uint64_t at;              /* in the ring */
	uint64_t named[NAMED];    /* by hash: the chunk whose name was told last */
};

static uint64_t *named(struct trace *t, uint64_t id)
{
	return &t->named[(id * 0x9e3779b97f4a7c15u >> 32) % NAMED];
}

static void forget_name(struct trace *t, uint64_t id)
{
	if (id)
		*named(t, id) = 0;
	else
		memset(t->named, 0, sizeof t->named);
}

/* A chunk that has no name any more is known by its number alone. */
static void tell_name(struct kvc *k, struct trace *t, uint64_t id, FILE *out)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	int err;

	if (*named(t, id) == id)
		return;
	kvc_lock_both(k);
	err = kvc_path_both(k, id, path);
	kvc_unlock_both(k);
	if (err || !*path)
		return;
	*named(t, id) = id;
	fprintf(out, "name %" PRIu64 " ", id);
	kvc_put_plain(out, path, strlen(path));
	fputc('\n', out);
}

static void tell_use(const struct kvc_access_seen *u, FILE *out)
{
	static const struct {
		uint32_t what;
		char letter;
	} letters[] = {
		{ KVC_USE_MADE, 'm' },
		{ KVC_USE_LEASED, 'l' },
		{ KVC_USE_LEARNED, 'k' },
	};
	char what[8];
	size_t n = 0;

	for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
		if (u->what & letters[i].what)
			what[n++] = letters[i].letter;
	if (u->parent & KVC_TOLD)
		what[n++] = 't';
	if (!n)
		what[n++] = '-';
	what[n] = 0;
	fprintf(out,
		"use %" PRIu64 " %" PRIu32 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n",
		u->ns, u->client, u->id, u->file, u->bytes, u->parent & ~(uint64_t)KVC_TOLD, what);
}

/* One batch of lines. False: there is none. */
static bool tell(struct kvc *k, struct kvc_stream *s, FILE *out)
{
	struct trace *t = kvc_of(s, struct trace, stream);
	struct kvc_access_seen v[BATCH];
	uint64_t lost;
	size_t n;

	kvc_lock(k);
	n = kvc_access_ring_take_locked(k, &t->at, v, BATCH, &lost);
	kvc_unlock(k);
	if (lost)
		fprintf(out, "lost %" PRIu64 "\n", lost);
	for (size_t i = 0; i < n; i++)
		if (v[i].what & KVC_USE_RENAMED) {
			forget_name(t, v[i].id);
		} else if (v[i].what & KVC_USE_END) {
			fprintf(out, "end %" PRIu64 " %" PRIu32 "\n", v[i].ns, v[i].client);
		} else {
			tell_name(k, t, v[i].id, out);
			tell_use(&v[i], out);
		}
	return n;
}

static void trace_close(struct kvc *k, struct kvc_stream *s)
{
	kvc_lock(k);
	kvc_access_ring_close_locked(k);
	kvc_unlock(k);
	free(kvc_of(s, struct trace, stream));
}

int kvc_trace_open(struct kvc *k, struct kvc_stream **out)
{
	static const struct kvc_stream_ops ops = { tell, trace_close };
	struct trace *t = calloc(1, sizeof *t);
	int err;

	if (!t)
		return -ENOMEM;
	t->stream.ops = &ops;
	kvc_lock(k);
	err = kvc_access_ring_open_locked(k, &t->at);
	kvc_unlock(k);
	if (err)
		free(t);
	else
		*out = &t->stream;
	return err;
}
