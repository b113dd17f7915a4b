/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file .kvcachefs/lease: taking, reading and releasing a lease. A handler takes a short list,
 * and a worker a longer one.
 *
 * A lease descriptor has one position for writing the list and for reading the answer. For a client
 * that reads on after its writes, the answer starts where the list ended; for a client that seeks
 * to 0 or passes the position itself, it starts at 0. The position of the first read tells these
 * apart.
 */
#include "virtual_priv.h"

#include "text.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const size_t list_most[] = { KVC_LEASE_QUICK, KVC_LEASE_MIDDLE, SIZE_MAX };

static size_t count_lines(const char *list, size_t len)
{
	const char *end = list + len;
	size_t n = 1;

	while ((list = memchr(list, '\n', (size_t)(end - list)))) {
		list++;
		n++;
	}
	return n;
}

/*
 * Parses the command in the first line of a list, and moves *list and *len behind it. Returns 0, or
 * -EINVAL if its argument is wrong.
 */
static int lease_command(const char **list, size_t *len, struct kvc_lease_kind *kind)
{
	static const struct {
		const char *word;
		enum kvc_lease_mode mode;
		bool here;
	} words[] = {
		{ "prefetch\n", KVC_LEASE_PREFETCH, false },
		{ "look\n", KVC_LEASE_LOOK, false },
		{ "look here\n", KVC_LEASE_LOOK, true },
		{ "hint ", KVC_LEASE_HINT, false },
	};
	static const char wait[] = "wait ";
	const char *at, *end;
	uint64_t ms = 0;

	for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
		size_t n = strlen(words[i].word);

		if (*len < n || memcmp(*list, words[i].word, n) != 0)
			continue;
		kind->mode = words[i].mode;
		kind->here = words[i].here;
		*list += n;
		*len -= n;
		return 0;
	}
	if (*len <= strlen(wait) || memcmp(*list, wait, strlen(wait)) != 0)
		return 0;
	end = *list + *len;
	for (at = *list + strlen(wait);
	     at < end && *at >= '0' && *at <= '9' && ms <= KVC_LEASE_WAIT_MS; at++)
		ms = 10 * ms + (uint64_t)(*at - '0');
	if (ms > KVC_LEASE_WAIT_MS)
		return -EINVAL;
	if (at == end || *at != '\n') /* it is a path that begins with these characters */
		return 0;
	kind->wait_ms = (unsigned)ms;
	*len = (size_t)(end - ++at);
	*list = at;
	return 0;
}

int kvfs_lease_take(struct kvfs *f, struct handle *h, off_t off)
{
	enum list_size size = atomic_load(&h->list), least = size;
	struct kvc_lease_kind kind = { .objects = list_most[size] };
	const char *list = h->text;
	size_t len = h->len;
	int err;

	if (h->tried)
		return h->lease ? 0 : -EINVAL;
	err = lease_command(&list, &len, &kind);
	h->base = (size_t)off == h->len ? h->len : 0;
	while (least != LIST_LONG && len && count_lines(list, len) > list_most[least])
		least++;
	kind.most = kvfs_text_left(h->user.uid);
	if (err || !len)
		err = -EINVAL;
	else if (least == size)
		err = kvc_lease_new(f->k, list, len, &kind, &h->user, &h->lease);
	else
		err = -EAGAIN;
	if (err == -EAGAIN && size != LIST_LONG) {
		/* a line may name a folder, so there can be more objects than lines */
		atomic_store(&h->list, least == size ? size + 1 : least);
		return err;
	}
	h->tried = true;
	free(h->text); /* only the lease's answer remains */
	h->text = NULL;
	h->capacity = 0;
	if (!err && (err = kvfs_handle_charge(h, kvc_lease_bytes(h->lease)))) {
		kvc_lease_free(f->k, h->lease);
		h->lease = NULL;
	}
	if (err)
		kvfs_handle_charge(h, 0);
	return err;
}

/*
 * Looks up names of the lease in the shared tiers and waits for them, if necessary. Returns 0,
 * KVC_WAIT, -EINTR (the client may read again), or an error, after which the handle has no lease.
 * The caller holds h->lock.
 */
static int start_lease(struct call *c, struct handle *h)
{
	int err;

	if (!h->lease || kvc_lease_started(h->lease))
		return 0;
	err = kvc_lease_start(c->f->k, h->lease, &h->user, &c->w);
	if (err == KVC_WAIT || err == -EINTR)
		return err;
	if (err) {
		kvc_lease_free(c->f->k, h->lease);
		h->lease = NULL;
	}
	kvfs_handle_charge(h, err ? 0 : kvc_lease_bytes(h->lease)); /* less than before */
	return err;
}

static struct kvfs_worker *worker_of(struct kvfs *f, struct handle *h)
{
	return atomic_load(&h->list) == LIST_LONG ? &f->long_lease_worker : &f->lease_worker;
}

static void read_in_worker(struct call *c);
static void read_in_long_worker(struct call *c);

/* Queues the call for the worker of its lease. */
static void defer_read(struct call *c)
{
	struct handle *h = kvfs_handle_of(&c->fi);

	kvfs_defer_read(worker_of(c->f, h), c,
			atomic_load(&h->list) == LIST_LONG ? read_in_long_worker : read_in_worker);
}

/*
 * Answers the read, or parks the call until the objects are loaded. The caller holds h->lock, which
 * is released.
 */
static void read_lease(struct call *c, struct handle *h)
{
	const char *text = NULL;
	char *part = NULL;
	size_t len = 0;
	enum list_size before = atomic_load(&h->list);
	int err = kvfs_lease_take(c->f, h, c->off);

	if (err != -EAGAIN && (size_t)c->off < h->base)
		h->base = 0; /* the client went back to read it all again */
	err = err ?: start_lease(c, h);
	err = err ?: kvc_lease_text(c->f->k, h->lease, &text, &len, &c->w);
	if (!err)
		len = kvfs_copy_part(text, len, (size_t)c->len, c->off - (off_t)h->base, &part);
	pthread_mutex_unlock(&h->lock);
	if (kvfs_call_waits(c, &err))
		return;
	if (err == -EAGAIN && before != LIST_LONG) { /* kvfs_lease_take has changed the size */
		defer_read(c);
		return;
	}
	if (err)
		fuse_reply_err(c->req, kvfs_errno(err));
	else
		kvfs_reply_part(c->req, part, len);
	kvfs_call_free(c);
}

void kvfs_lease_read(struct call *c)
{
	struct handle *h = kvfs_handle_of(&c->fi);

	if (kvfs_handle_lock(h))
		read_lease(c, h);
	else
		defer_read(c);
}

/* If the call waits, the answerer later defers it to the worker again. */
static void read_in_long_worker(struct call *c)
{
	struct handle *h = kvfs_handle_of(&c->fi);

	if (atomic_load(&c->f->lease_worker.ends)) {
		fuse_reply_err(c->req, ENOTCONN);
		kvfs_call_free(c);
		return;
	}
	pthread_mutex_lock(&h->lock);
	read_lease(c, h);
}

static void read_in_worker(struct call *c)
{
	if (atomic_load(&kvfs_handle_of(&c->fi)->list) == LIST_LONG)
		kvfs_defer(&c->f->long_lease_worker, c, read_in_long_worker);
	else
		read_in_long_worker(c);
}

bool kvfs_lease_is_prefetch(const struct handle *h)
{
	return !h->tried && ((h->len > 9 && !memcmp(h->text, "prefetch\n", 9)) ||
			     (h->len > 5 && !memcmp(h->text, "hint ", 5)));
}

/*
 * Ends a handle whose list was handled, but for names that are being looked up in the shared tiers.
 * Any thread that may be given such a call.
 */
static void end_release(struct call *c)
{
	struct handle *h = kvfs_handle_of(&c->fi);
	int err;

	pthread_mutex_lock(&h->lock);
	/* nobody reads the answer of a lease that waits */
	err = h->lease && kvc_lease_waits(h->lease) ? 0 : start_lease(c, h);
	pthread_mutex_unlock(&h->lock);
	if (err == KVC_WAIT)
		return;
	kvfs_handle_close(c->f, h);
	fuse_reply_err(c->req, 0);
	kvfs_call_free(c);
}

static void release_in_worker(struct call *c)
{
	struct handle *h = kvfs_handle_of(&c->fi);

	if (kvfs_lease_is_prefetch(h) && kvfs_lease_take(c->f, h, 0) == -EAGAIN && !h->tried)
		kvfs_defer(worker_of(c->f, h), c, release_in_worker);
	else
		end_release(c);
}

void kvfs_lease_release(struct call *c)
{
	struct handle *h = kvfs_handle_of(&c->fi);

	if (atomic_load(&h->list) == LIST_QUICK)
		end_release(c);
	else
		kvfs_defer(worker_of(c->f, h), c, release_in_worker);
}
