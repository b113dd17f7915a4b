/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/trace: the accesses to chunks since it was opened, as lines for kvcachectl trace. An
 * access is recorded as numbers under the lock (telemetry/rings.h). The name of a chunk is looked
 * up when its first access is read, and again when it may have changed.
 *
 *   name ID PATH    before the first access to this chunk, and after a rename; special characters
 *                   are %XX
 *   use NS CLIENT ID FILE BYTES PARENT WHAT
 *                   WHAT: letters of the table below, t (a client reported the parent), or -
 *   end NS CLIENT   the end of a lease's accesses
 *   lost N          accesses that were overwritten before they were read
 */
#include "path.h"
#include "rings.h"
#include "stream.h"
#include "access.h"

#include <inttypes.h>
#include <string.h>

#define BATCH 128   /* accesses that are taken from the ring at a time */
#define NAMED 32768 /* approximate number of chunks whose name was printed */

struct trace {
	struct kvc_stream stream; /* first */
	uint64_t at;              /* position in the ring */
	uint64_t named[NAMED];    /* by hash: the chunk whose name was printed last */
};

static uint64_t *named_slot(struct trace *t, uint64_t id)
{
	return &t->named[(id * 0x9e3779b97f4a7c15u >> 32) % NAMED];
}

static void forget_printed_name(struct trace *t, uint64_t id)
{
	if (id)
		*named_slot(t, id) = 0;
	else
		memset(t->named, 0, sizeof t->named);
}

/* Prints the name of a chunk. A chunk without a name is known by its number only. */
static void print_name(struct kvc *k, struct trace *t, uint64_t id, FILE *out)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	int err;

	if (*named_slot(t, id) == id)
		return;
	kvc_lock_both(k);
	err = kvc_path_both(k, id, path);
	kvc_unlock_both(k);
	if (err || !*path)
		return;
	*named_slot(t, id) = id;
	fprintf(out, "name %" PRIu64 " ", id);
	kvc_put_plain(out, path, strlen(path));
	fputc('\n', out);
}

static void print_access(const struct kvc_access_item *u, FILE *out)
{
	static const struct {
		uint32_t what;
		char letter;
	} letters[] = {
		{ KVC_ACCESS_CREATED, 'm' },
		{ KVC_ACCESS_LEASED, 'l' },
		{ KVC_ACCESS_INFERRED, 'k' },
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

/* Prints one batch of lines; false if there are none. */
static bool trace_print(struct kvc *k, struct kvc_stream *s, FILE *out)
{
	struct trace *t = kvc_of(s, struct trace, stream);
	struct kvc_access_item v[BATCH];
	uint64_t lost;
	size_t n;

	kvc_lock(k);
	n = kvc_access_ring_take_locked(k, &t->at, v, BATCH, &lost);
	kvc_unlock(k);
	if (lost)
		fprintf(out, "lost %" PRIu64 "\n", lost);
	for (size_t i = 0; i < n; i++)
		if (v[i].what & KVC_ACCESS_RENAMED) {
			forget_printed_name(t, v[i].id);
		} else if (v[i].what & KVC_ACCESS_END) {
			fprintf(out, "end %" PRIu64 " %" PRIu32 "\n", v[i].ns, v[i].client);
		} else {
			print_name(k, t, v[i].id, out);
			print_access(&v[i], out);
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
	static const struct kvc_stream_ops ops = { trace_print, trace_close };
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
