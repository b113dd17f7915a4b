/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ext tier: frames in a store that a program of the user's reaches (kvcachefs-ext(7)):
 *
 *   ext:///PATH/OF/PROGRAM?NAME=VALUE&...
 *
 * The program gets all options except arena=SIZE and compress=CODEC.
 *
 * The program knows values by 128-bit keys. A frame is stored as a head and pieces (pieces.h). The
 * key of the head is the frame's name; the key of a piece is a hash of it, the version's tag and
 * the number of the piece. ext_link.c makes the requests, ext_program.c runs the process.
 *
 * If the program cannot delete, a head is replaced by an empty value, which means a missing frame,
 * and pieces stay until the store evicts them.
 */
#include "ext_link.h"
#include "ext_program.h"
#include "log.h"
#include "pieces.h"
#include "registry.h"

#include <endian.h>
#include <string.h>

#define ARENA_DEFAULT (32ull << 20)
#define LIST_BYTES (64u << 10) /* keys in one answer */

struct kvct_ext {
	struct kvc_tier tier;
	struct kvct_link *link;
	char path[1040];
	uint64_t deadline_ms;
};

static struct kvct_ext *ext_of(struct kvc_tier *t)
{
	return kvc_of(t, struct kvct_ext, tier);
}

/* One call of the engine for one frame. */
struct call {
	struct kvct_ext *x;
	struct kvc_where name;
	uint64_t until_ns;
};

static void ext_begin(void *arg, uint64_t bytes)
{
	struct call *c = arg;

	c->until_ns = kvc_mono_ns() + c->x->deadline_ms * 1000000 +
		      bytes * 1000 / KVCT_SLOWEST * 1000000;
}

static void put_name(uint8_t key[16], const struct kvc_where *w)
{
	uint64_t part[2] = { htobe64(w->at), htobe64(w->hi) };

	memcpy(key, part, 16);
}

static void put_key(const struct call *c, const struct kvct_value *v, uint8_t key[16])
{
	struct {
		uint8_t name[16];
		uint64_t tag, nr;
	} piece = { .tag = htole64(v->tag), .nr = htole64(v->nr) };
	struct kvc_sum sum;

	put_name(piece.name, &c->name);
	sum = kvc_sum_of(&piece, sizeof piece);
	memcpy(key, v->head ? piece.name : sum.b, 16);
}

static long get_value(void *arg, const struct kvct_value *v, uint64_t from, uint64_t len, void *buf)
{
	struct call *c = arg;
	struct kvct_link_call k = {
		.request = { .op = KVCTIER_GET, .offset = from, .length = len },
		.into = buf,
		.until_ns = c->until_ns,
	};
	int err;

	put_key(c, v, k.request.key);
	err = kvct_link_ask(c->x->link, &k);
	return err == -ENOENT ? 0 : err ? err : (long)k.answer.length;
}

static int put_value(struct call *c, const struct kvct_value *v, const void *data, size_t len,
		     uint64_t ttl_ms)
{
	struct kvct_link_call k = {
		.request = { .op = KVCTIER_PUT, .length = len, .expiry_ms = ttl_ms },
		.data = data,
		.until_ns = c->until_ns,
	};

	put_key(c, v, k.request.key);
	return kvct_link_ask(c->x->link, &k);
}

/*
 * Sets a value. The previous head is read by a separate request, so if two nodes replace a head at
 * the same moment, pieces of one version may stay in the store.
 */
static int set_value(void *arg, const struct kvct_value *v, const void *data, size_t len,
		     uint64_t ttl_ms, struct kvct_trailer *before)
{
	uint8_t old[sizeof *before];
	struct call *c = arg;
	long n;

	if (before && (kvct_link_abilities(c->x->link) & KVCTIER_CAN_DELETE)) {
		n = get_value(c, v, KVC_FRAME_HEADER, sizeof old, old);
		if (n < 0)
			return (int)n;
		if (n != sizeof old || kvct_trailer_read(old, before))
			before->piece = 0;
	}
	return put_value(c, v, data, len, ttl_ms);
}

static int unlink_value(void *arg, const struct kvct_value *v, bool *existed)
{
	struct call *c = arg;
	struct kvct_link_call k = {
		.request = { .op = KVCTIER_DELETE },
		.until_ns = c->until_ns,
	};
	int err;

	*existed = true;
	if (!(kvct_link_abilities(c->x->link) & KVCTIER_CAN_DELETE))
		return v->head ? put_value(c, v, "", 0, 0) : -EROFS;
	put_key(c, v, k.request.key);
	err = kvct_link_ask(c->x->link, &k);
	*existed = err != -ENOENT;
	return err == -ENOENT ? 0 : err;
}

/* The link copies between the caller's memory and the arena, and has no buffers of its own. */
static const struct kvct_pieces_ops ext_pieces = {
	.begin = ext_begin,
	.get = get_value,
	.set = set_value,
	.unlink = unlink_value,
};

static int ext_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct call c = { .x = ext_of(t), .name = p->name };

	return kvct_pieces_put(&ext_pieces, &c, p, out);
}

static int ext_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n)
{
	struct call c = { .x = ext_of(t), .name = *w };

	return kvct_pieces_get(&ext_pieces, &c, off, iov, n);
}

static int ext_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct call c = { .x = ext_of(t), .name = *w };

	return kvct_pieces_remove(&ext_pieces, &c);
}

struct listing {
	struct kvc_tier *t;
	uint8_t *keys, *page;
	struct kvc_frame *f;
	int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f);
	void *arg;
	uint64_t frames;
	int unread; /* the last error of a frame that could not be read */
};

/* Handles one listed key: calls fn if it is a head. */
static int list_key(struct listing *l, const uint8_t key[16])
{
	struct iovec iov = { l->page, KVC_FRAME_HEADER };
	struct kvc_where w = { 0 }, named;
	uint64_t part[2];
	int err;

	memcpy(part, key, 16);
	w.at = be64toh(part[0]);
	w.hi = be64toh(part[1]);
	err = ext_get(l->t, &w, 0, &iov, 1);
	if (err && !kvct_is_frame_error(err))
		l->unread = err;
	if (err || kvc_frame_decode(l->page, l->f))
		return l->fn(l->arg, NULL, NULL);
	/* a piece may contain the bytes of another frame */
	named = kvc_frame_where_of(l->f->path);
	if (!kvc_tier_same_name(&w, &named))
		return l->fn(l->arg, NULL, NULL);
	l->frames++;
	return l->fn(l->arg, &w, l->f);
}

static int list_all(struct listing *l)
{
	struct kvct_ext *x = ext_of(l->t);
	struct kvct_progress p = { .next = 1 };
	struct kvct_link_call k = { .request = { .op = KVCTIER_LIST }, .into = l->keys };
	char cursor[32];
	int err;

	do {
		uint64_t before = l->frames;

		k.request.length = LIST_BYTES;
		k.until_ns = kvc_mono_ns() + x->deadline_ms * 1000000;
		err = kvct_link_ask(x->link, &k) ?: l->fn(l->arg, NULL, NULL);
		for (uint64_t i = 0; !err && i < k.answer.length / 16; i++)
			err = list_key(l, l->keys + 16 * i);
		k.request.offset = k.answer.next;
		snprintf(cursor, sizeof cursor, "%llu", (unsigned long long)k.answer.next);
		if (!err && k.answer.next && !kvct_progress_step(&p, cursor, l->frames > before)) {
			kvc_warn("tier ext: the program's listing does not end: the list is "
				 "incomplete");
			err = -EIO;
		}
	} while (!err && k.answer.next);
	return err;
}

static int ext_list(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	KVC_MEM uint8_t *keys = malloc(LIST_BYTES), *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	struct listing l = { t, keys, page, f, fn, arg, 0, 0 };

	if (!keys || !page || !f)
		return -ENOMEM;
	if (!(kvct_link_abilities(ext_of(t)->link) & KVCTIER_CAN_LIST))
		return -EOPNOTSUPP;
	return list_all(&l) ?: l.unread;
}

static void ext_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	*u = (struct kvc_tier_usage){ 0 };
	kvct_link_used(ext_of(t)->link, &u->used, &u->total);
}

static void ext_close(struct kvc_tier *t)
{
	struct kvct_ext *x = ext_of(t);

	if (x->link)
		kvct_link_close(x->link);
	free(x);
}

static const struct kvc_tier_ops ext_ops = {
	.name = "ext",
	.caps = KVC_TIER_SHARED | KVC_TIER_MEDIA,
	.close = ext_close,
	.put = ext_put,
	.get = ext_get,
	.remove = ext_remove,
	.list = ext_list,
	.usage = ext_usage,
};

/*
 * Copies the program's options from the URL to `out`, as texts that end with 0, and appends them to
 * `id`.
 */
static int ext_options(const struct kvct_url *u, char *out, size_t *len, FILE *id, char *error)
{
	char query[sizeof u->query], *save = NULL;

	snprintf(query, sizeof query, "%s", u->query);
	*len = 0;
	for (char *o = strtok_r(query, "&", &save); o; o = strtok_r(NULL, "&", &save)) {
		if (!strncmp(o, "arena=", 6) || !strncmp(o, "compress=", 9))
			continue;
		if (!strchr(o, '=') || *o == '=') {
			snprintf(error, 512, "option remote: '%.100s' is not NAME=VALUE", o);
			return -EINVAL;
		}
		fprintf(id, "%c%s", *len ? '&' : '?', o);
		memcpy(out + *len, o, strlen(o) + 1);
		*len += strlen(o) + 1;
	}
	return 0;
}

static int ext_arena(const struct kvct_url *u, uint64_t *bytes, char *error)
{
	char text[512];

	*bytes = ARENA_DEFAULT;
	if (!kvct_url_has(u, "arena"))
		return 0;
	kvct_url_get(u, "arena", text, sizeof text);
	if (!kvc_size_parse(text, bytes) && *bytes && !(*bytes % KVCTIER_VALUE_MAX) &&
	    *bytes / KVCTIER_VALUE_MAX <= KVCT_LINK_SLOTS)
		return 0;
	snprintf(error, 512,
		 "option remote: arena=%.60s is not a multiple of 4M from 4M to 256M; a request "
		 "uses 4M",
		 text);
	return -EINVAL;
}

/* Sets the path and the id, starts the program, and waits until it is ready. */
static int ext_start(struct kvct_ext *x, const struct kvct_url *u, char *error)
{
	struct kvct_link_setup setup = {
		.path = x->path,
		.deadline_ms = x->deadline_ms,
		.sealed = u->sealed,
	};
	char options[sizeof u->query + 2];
	KVC_MEM char *id = NULL;
	size_t id_len;
	FILE *f;
	int err;

	snprintf(x->path, sizeof x->path, "/%s", u->path);
	f = open_memstream(&id, &id_len);
	if (!f)
		return -ENOMEM;
	fprintf(f, "ext:%s", x->path);
	err = kvct_program_check(x->path, error)
		      ?: ext_options(u, options, &setup.options_len, f, error);
	err = err ?: ext_arena(u, &x->tier.bytes, error);
	if ((ferror(f) | fclose(f)) && !err)
		err = -ENOMEM;
	if (err)
		return err;
	kvct_set_id(&x->tier, id);
	setup.options = options;
	setup.arena_bytes = x->tier.bytes;
	return kvct_link_open(&x->link, &setup, error);
}

bool kvct_ext_lists(struct kvc_tier *t)
{
	return kvct_link_abilities(ext_of(t)->link) & KVCTIER_CAN_LIST;
}

int kvct_ext_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		  char *error)
{
	struct kvct_ext *x;
	int err;

	if (*u->host || *u->user || !*u->path) {
		snprintf(error, 512, "option remote: give ext:///PATH/OF/PROGRAM");
		return -EINVAL;
	}
	x = calloc(1, sizeof *x);
	if (!x)
		return -ENOMEM;
	x->deadline_ms = deadline_ms;
	x->tier.ops = &ext_ops;
	if ((err = ext_start(x, u, error))) {
		ext_close(&x->tier);
		return err;
	}
	*out = &x->tier;
	return 0;
}
