/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tier is: a place for frames below the pool, as a table of functions. Drivers
 * (tiers/disk.c) and shims that stand in front of a driver (tiers/shim.c) fill in the same table;
 * main hands the opened tiers to the engine, which never knows which driver it talks to.
 *
 * Calls are synchronous and come from the engine's tier threads, several at once. Two calls for the
 * same object never run at the same time. All fallible calls return 0 or a negative errno. The
 * circuit breaker (limits/breaker.h) tells four classes of calls apart: reads (get), writes (put,
 * rehead), lists (list) and removals (remove). Drivers return:
 *
 * About one object; never counts against the breaker:
 *   -ENOENT        it is not there
 *   -EBADMSG       its stored bytes are damaged, or something else is in its place
 *   -EFBIG         it is larger than the service takes
 *   -ENAMETOOLONG, -EINVAL   the service cannot keep its name
 * A refusal of a class: that class alone is suspended and probed; other calls go on:
 *   -EACCES        no permission. It may be about one object: until several have it in a row
 *   -EROFS         read-only: a share, a replica
 *   -ENOSPC        full. A tier with KVC_TIER_BOUNDED is then trimmed
 *   -EDQUOT        a quota is reached
 *   -EBUSY         the service asks to slow down, or is not ready yet
 * Nobody is there; all classes are out after several in a row:
 *   -ECONNREFUSED, -EHOSTUNREACH, -ENETUNREACH, -EHOSTDOWN, -ENOTCONN (not mounted)
 * All else (-EIO, -ETIMEDOUT, -ECONNRESET, ...) is a failure of the class, which is out after
 * several in a row. -EIO of a tier with KVC_TIER_MEDIA is about the object until other objects have
 * it, too. -ESTALE, -EPROTO and -ENOKEY have a meaning above the drivers: a driver maps them.
 *
 * The driver logs what the service said, without secrets, once per change of the answer.
 */
#ifndef KVC_TIER_H
#define KVC_TIER_H

#include "frame.h"

#include <sys/uio.h>

struct kvc_tier;

/*
 * Where a tier keeps an object; written to the catalog as it is. For a tier of its own places `at`
 * means something to the driver only. In a shared tier (at, hi) is the name: the XXH3-128 of the
 * object's path, so every node finds it there.
 */
struct kvc_where {
	uint64_t at;
	uint64_t len; /* what it occupies, header included, in bytes */
	uint64_t hi;
};
static inline bool kvc_same_name(const struct kvc_where *a, const struct kvc_where *b)
{
	return a->at == b->at && a->hi == b->hi;
}
/* The name of a path in a shared tier; len is 0. */
struct kvc_where kvc_frame_where_of(const char *path);
/* The same as 32 hex digits in buf[33], for drivers that need a text. */
const char *kvc_frame_where_text(const struct kvc_where *w, char *buf);

/*
 * What to store. `read` gives the next `len` bytes of the payload (always the whole length) into
 * buf, which is aligned to a page; it is asked for stored_len bytes in order. `head` is called
 * once, after them, and gives the header.
 */
struct kvc_put {
	uint64_t ino, gen;
	uint64_t stored_len;
	struct kvc_where name; /* shared tiers: where to */
	uint64_t ttl_ms;       /* it may go after so long; 0: never. For tiers that can expire */
	void *arg;
	int (*read)(void *arg, void *buf, size_t len, uint64_t off);
	int (*head)(void *arg, uint8_t page[KVC_FRAME_HEADER]);
};

/*
 * Memory that one call may use beside the budget (base/budget.h) for buffers of a fixed size, in
 * bytes. memory= includes it for each thread that calls a tier. All else a driver takes from the
 * budget.
 */
#define KVC_TIER_CALL_BYTES ((1u << 20) + (128u << 10))

struct kvc_tier_usage {
	uint64_t total, used; /* bytes */
	uint64_t uncleared;   /* of used: removed, but the header could not be cleared yet */
};

enum {
	KVC_TIER_DURABLE = 1, /* survives power loss once sync() returned */
	KVC_TIER_BOUNDED = 2, /* has a size of its own; usage() tells */
	/* other nodes use it too: frames are known by path; claim and rehead are not called */
	KVC_TIER_SHARED = 4,
	KVC_TIER_MEDIA = 8,    /* a read or write error is of one place, not of all */
	KVC_TIER_PATIENT = 16, /* its calls may never come back: they end when a server does */
};

struct kvc_tier_ops {
	const char *name;
	unsigned caps;
	/* Threads, after daemonising, and their end. May be NULL. */
	int (*start)(struct kvc_tier *t);
	void (*stop)(struct kvc_tier *t);
	/* Frees t. */
	void (*close)(struct kvc_tier *t);
	/*
	 * Tells the driver what the catalog knows to be stored, before the first other call.
	 * -EEXIST: overlap; -ERANGE: outside.
	 */
	int (*claim)(struct kvc_tier *t, const struct kvc_where *w);
	/* Stores a frame. The header is written last, so a torn frame is never a good one. */
	int (*put)(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out);
	/*
	 * Reads part of a frame from byte `off` of it (0: the header), all of iov; both aligned to
	 * pages where possible. In a shared tier w->len may be 0 (not known).
	 */
	int (*get)(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n);
	/* Rewrites the header of a stored frame (its name part changed). */
	int (*rehead)(struct kvc_tier *t, const struct kvc_where *w,
		      const uint8_t page[KVC_FRAME_HEADER]);
	/* Gives the space back. Nothing may read it any more. */
	int (*remove)(struct kvc_tier *t, const struct kvc_where *w);
	/*
	 * Calls fn for every frame found by looking at the tier itself; a non-zero answer ends it.
	 * A driver that looks at much beside frames, or depends on a server for the end, also calls
	 * fn(arg, NULL, NULL) between them, so that the caller can end it. For fsck and imports.
	 */
	int (*list)(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg);
	/* Everything stored so far is on stable storage when it returns. */
	int (*sync)(struct kvc_tier *t);
	void (*usage)(struct kvc_tier *t, struct kvc_tier_usage *u);
};

struct kvc_tier {
	const struct kvc_tier_ops *ops;
	char id[256];   /* which one it is, without secrets: the same at every mount */
	uint64_t codec; /* enum kvc_codec asked for in its URL; KVC_CODECS: as compress= says */
};

#endif
