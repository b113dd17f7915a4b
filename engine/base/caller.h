/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between the engine and its caller (fs/): calls that wait, and the functions of the
 * caller that the engine calls.
 *
 * A call that takes a `struct kvc_wait` may return KVC_WAIT: it cannot finish now, because a load
 * is in progress or the pool has no space yet. Then w->wake(w) is called once, later, from a thread
 * of the engine that holds no lock. The caller repeats the call with the same w, unless w->err says
 * that the call has failed. So a request never blocks a thread of the caller. A wait ends at its
 * deadline at the latest. pool/wait.h is the engine's side of it.
 */
#ifndef KVC_CALLER_H
#define KVC_CALLER_H

#include "util.h"

struct kvc;

/* A client: a thread of a process. The ids of both are below KVC_CLIENTS_END. */
#define KVC_CLIENTS_END (1u << 30)
static inline uint64_t kvc_client(uint32_t process, uint32_t thread)
{
	return (uint64_t)thread << 32 | process;
}

#define KVC_WAIT 1
/*
 * The call takes too long for a request handler. The caller repeats it with w->deferred set, in a
 * thread that no other request needs (fs/defer.h). Only calls that change a file's size or
 * allocation return it.
 */
#define KVC_LONG 2

struct kvc_wait {
	void (*wake)(struct kvc_wait *w);
	/* set before wake: 0 to repeat the call, or the error with which it ends */
	int err;
	uint32_t uid;    /* the caller's uid; 0 (root, or the engine itself) has no limits */
	uint64_t client; /* the calling client (kvc_client); 0: not known */
	bool deferred;   /* the call may take long (KVC_LONG) */
	/* it waits for an event that may never occur: the end of its time is no error of a tier */
	bool patient;
	/*
	 * May this call wait? Called each time before the wait is parked, with the engine's locks
	 * held; it must not block. False: no slot is free, and the call returns at once the result
	 * it would return at its deadline. A patient call leaves half of the slots to others. NULL:
	 * always true.
	 */
	bool (*may_park)(struct kvc_wait *w);
	/* the engine's own fields: zero before the first call */
	struct kvc_list link;
	struct kvc_wait *earlier, *later; /* links in the tree of deadlines (pool/wait.c) */
	uint64_t deadline_ns;
	/* bytes of the reservation that were requested, and granted (kept for the next try) */
	uint64_t want, granted;
	/* the quota (its serial and its model), and the bytes of it that were granted */
	uint64_t quota, quota_model, quota_granted;
	bool for_quota;    /* `want` is for the quota, not for the pool */
	uint64_t since_ns; /* a store: time of its first try */
	/* an open, create, rename or unlink: its start (latency.h) */
	uint64_t begun_ns;
	bool loads;         /* an open: the object was not in the pool */
	bool paced, pacing; /* throttled stores: has had its turn; waits for its turn */
	uint64_t ino;       /* the node whose chunk must not be dropped during the call */
	bool idle_freed;    /* the user's idle objects were released once (share_retry.c) */
	int stage;
	unsigned sync_of; /* an fsync: the sync that it needs (objects/commit_sync.h) */
	/* a lease waits for a name: its hash with the folder's, and the folder (names/arrival.c) */
	uint64_t arrival, arrival_in;
};

/* Calls w->may_park. */
static inline bool kvc_wait_may_park(struct kvc_wait *w)
{
	return !w->may_park || w->may_park(w);
}

/*
 * Notices to the kernel about changes that the kernel did not request. parent: the folder whose
 * names changed; ino: the object. Each is 0 if the kernel does not know it.
 */
enum kvc_notice_kind {
	KVC_NOTICE_PRUNE, /* the kernel may forget the object, unless it is in use */
	/* a folder that may be dropped is probed: the next access to it must look it up again */
	KVC_NOTICE_PROBE,
	KVC_NOTICE_PROBE_ALL, /* by all names, because the folder's name still exists */
	KVC_NOTICE_FILE,      /* a file was dropped: its number now answers -ESTALE */
	KVC_NOTICE_FOLDER,    /* a folder was dropped and may be revived: its number stays valid */
	KVC_NOTICE_NAME,      /* a name exists that the kernel may remember as missing */
};
struct kvc_notice {
	enum kvc_notice_kind what;
	uint64_t parent, ino;
};

/* Functions and properties of the FUSE side. All functions are called without locks. */
struct kvc_events {
	void *arg;
	/*
	 * Sends notices to the kernel, in this order. Called from a thread that serves no request.
	 */
	void (*notify)(void *arg, const struct kvc_notice *v, size_t n);
	uint64_t name_timeout_ns; /* how long the kernel may use a name after it was notified */
	/*
	 * true: a notice does not make the kernel forget names that are in use. So as long as the
	 * kernel knows a node, it may also still use its name
	 */
	bool keeps_used_names;
	/*
	 * Registers a descriptor for passthrough. Returns an id above 0, or a negative errno. NULL:
	 * passthrough is not available.
	 */
	int (*backing_open)(void *arg, int fd);
	void (*backing_close)(void *arg, int id);
};

#endif
