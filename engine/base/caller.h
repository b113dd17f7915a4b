/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine and its caller (fs/) have between them: a call that waits, and what the engine
 * asks of the caller.
 *
 * Calls that take a `struct kvc_wait` may return KVC_WAIT: the call could not finish now (a load is
 * under way, the pool has no room yet). Then w->wake(w) is called once, later, from a thread of the
 * engine that holds no lock; the caller makes the same call again with the same w, unless w->err
 * tells that it is over. So no request ever blocks a thread of the caller's. A wait ends at the
 * deadline at the latest. pool/wait.h is the engine's side of it.
 */
#ifndef KVC_CALLER_H
#define KVC_CALLER_H

#include "util.h"

struct kvc;

/* A thread of a process, both by any numbers below that. */
#define KVC_CLIENTS_END (1u << 30)
static inline uint64_t kvc_client(uint32_t process, uint32_t thread)
{
	return (uint64_t)thread << 32 | process;
}

#define KVC_WAIT 1
/*
 * Nor could it for a handler: it takes long by itself. It is made again, with w->aside, by a thread
 * that nobody else needs (fs/defer.h). Only calls on a file's size or room.
 */
#define KVC_LONG 2

struct kvc_wait {
	void (*wake)(struct kvc_wait *w);
	int err;         /* set before wake: 0 try again, or why it is over */
	uint32_t uid;    /* who calls; 0, root and the engine itself, has no bounds */
	uint64_t client; /* who calls (kvc_client); 0: it is not known */
	bool aside;      /* it may take long */
	/*
	 * May this call wait? Asked before the wait is parked, each time; it is called with the
	 * engine's locks held and must not block. False: no place is free, and the call gets at
	 * once what it would get at its deadline. NULL: always.
	 */
	bool (*place)(struct kvc_wait *w);
	/* the engine's own: zero before the first call */
	struct kvc_list link;
	struct kvc_wait *earlier, *later; /* the tree of deadlines (pool/wait.c) */
	uint64_t deadline_ns;
	uint64_t want, granted; /* bytes of room asked for, and given (kept for the next try) */
	/* the quota (its serial and its model), and the bytes of it granted */
	uint64_t quota, quota_model, quota_granted;
	bool for_quota;    /* `want` is of the quota, not of the pool */
	uint64_t since_ns; /* a store: when it first came */
	/* an open, create, rename or unlink: when it came (latency.h) */
	uint64_t begun_ns;
	bool loads;         /* an open: the pool did not have it */
	bool paced, pacing; /* it had its turn; waits for it */
	uint64_t ino;       /* the node whose chunk is not to be dropped meanwhile */
	bool looked;        /* what the caller holds and does not need was looked for */
	int stage;
};

/* See place above. */
static inline bool kvc_wait_has_place(struct kvc_wait *w)
{
	return !w->place || w->place(w);
}

/*
 * What the kernel is to be told, because it changed without the kernel's asking. parent: the folder
 * whose names changed; ino: what it is about. Each is 0 where the kernel does not know it.
 */
enum kvc_telling {
	KVC_TELL_PRUNE,     /* not needed any more, unless somebody uses it */
	KVC_TELL_KNOCK,     /* a folder that may go: who uses it next shall ask us */
	KVC_TELL_KNOCK_ALL, /* the same, and its name is still there: by all names */
	KVC_TELL_FILE,      /* a file has gone: by its number it is answered with -ESTALE */
	KVC_TELL_FOLDER,    /* a folder has gone, and may come back: its number still works */
	KVC_TELL_NAME,      /* a name is there that the kernel may remember as missing */
};
struct kvc_tell {
	enum kvc_telling what;
	uint64_t parent, ino;
};

/* What the engine asks of the FUSE side. All are called without locks. */
struct kvc_events {
	void *arg;
	/* All that there is to tell now, in this order. From a thread that serves no request. */
	void (*tell)(void *arg, const struct kvc_tell *v, size_t n);
	uint64_t kept_ns; /* how long the kernel goes on using a name that it was told of */
	/* a knock forgets names but those in use: a node that is still known may have one */
	bool holds_names;
	/*
	 * Registers a descriptor for passthrough: an id above 0, or a negative errno. NULL: no
	 * passthrough.
	 */
	int (*backing_open)(void *arg, int fd);
	void (*backing_close)(void *arg, int id);
};

#endif
