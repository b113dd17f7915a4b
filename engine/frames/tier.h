/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of a tier: a store for frames below the pool, as a table of functions. Drivers
 * (tiers/disk.c) and shims in front of a driver (tiers/shim.c) fill in the same table. main passes
 * the opened tiers to the engine, which does not know the drivers.
 *
 * Calls are synchronous and come from the engine's tier threads, several at the same time, but
 * never two for the same object. A call that can fail returns 0 or a negative errno. The circuit
 * breaker (breaker.h) distinguishes four classes of calls: reads (get), writes (put,
 * rehead), lists (list) and removals (remove). Drivers return:
 *
 * Errors of one object. They never count against the breaker:
 *   -ENOENT        the object does not exist
 *   -EBADMSG       its stored bytes are damaged or replaced by something else
 *   -EFBIG         it is larger than the service accepts
 *   -ENAMETOOLONG, -EINVAL   the service cannot store its name
 * Refusals of a class. Only that class is suspended and probed:
 *   -EACCES        no permission. It counts for the class after several objects in a row
 *   -EROFS         read-only: a share, a replica
 *   -ENOSPC        full. A tier with KVC_TIER_BOUNDED is then trimmed
 *   -EDQUOT        a quota is reached
 *   -EBUSY         the service asks to slow down, or is not ready yet
 * The service is unreachable. All classes are suspended after several such errors in a row:
 *   -ECONNREFUSED, -EHOSTUNREACH, -ENETUNREACH, -ENETDOWN, -EHOSTDOWN, -ENOTCONN (not mounted)
 * Any other error (-EIO, -ETIMEDOUT, -ECONNRESET, ...) is a failure of the class, which is
 * suspended after several in a row. With KVC_TIER_MEDIA, -EIO is an error of one object until calls
 * for other objects fail with it, too. -ESTALE, -EPROTO and -ENOKEY have a meaning above the
 * drivers, so a driver converts them.
 *
 * A tier of several devices (tiers/devices.c) returns -ENODEV if the call's device fails and others
 * do not. This says nothing about the tier. A put can be repeated at once: it uses another device.
 *
 * The driver logs the service's error text, without secrets, once for each change of it.
 */
#ifndef KVC_TIER_H
#define KVC_TIER_H

#include "frame.h"
#include "peer_sign.h"
#include "store.h"

#include <sys/uio.h>

struct kvc_tier;

/*
 * Where a tier stores an object; the catalog records it. In a tier of the store's own, only the
 * driver knows the meaning of `at`. In a shared tier (at, hi) is the name: the XXH3-128 of the
 * object's path, so that every node can find it.
 */
struct kvc_where {
	uint64_t at;
	uint64_t len; /* occupied bytes, including the header */
	uint64_t hi;
	/*
	 * for synced(): the driver's number of the put, which the catalog does not record; 0: not
	 * known, since the row was read from the catalog
	 */
	uint64_t write;
};
static inline bool kvc_tier_same_name(const struct kvc_where *a, const struct kvc_where *b)
{
	return a->at == b->at && a->hi == b->hi;
}
/* Returns the name of a path in a shared tier; len is 0. */
struct kvc_where kvc_frame_where_of(const char *path);
/* Writes the name as 32 hex digits to buf[33], for drivers that need text, and returns buf. */
const char *kvc_frame_where_text(const struct kvc_where *w, char *buf);

/*
 * A frame to store. `read` copies the next `len` bytes of the payload to buf, which is aligned to a
 * page; it always returns the whole length. The driver reads stored_len bytes in order. Then it
 * calls `head` once for the header.
 */
struct kvc_put {
	uint64_t ino, gen;
	uint64_t stored_len;
	struct kvc_where name; /* in a shared tier: the name */
	/* the tier may delete the frame after this time; 0: never. For tiers with expiry */
	uint64_t ttl_ms;
	void *arg;
	int (*read)(void *arg, void *buf, size_t len, uint64_t off);
	/*
	 * Like `read`, but sets *p to the bytes themselves, aligned to a page, instead of copying
	 * them. They stay valid until put returns, and can only change if the caller then rejects
	 * the frame. If a client truncates the file, a write from them fails with EFAULT, and put
	 * returns -ECANCELED. NULL: the driver uses `read`, also for parts of the payload.
	 */
	int (*bytes)(void *arg, const void **p, size_t len, uint64_t off);
	int (*head)(void *arg, uint8_t page[KVC_FRAME_HEADER]);
	/*
	 * The disk tier: the frame is put on stable storage before put returns. If that fails, it
	 * is removed, and put returns an error.
	 */
	bool sync;
};

/*
 * Bytes of memory that one call may use for buffers of a fixed size in addition to the budget
 * (base/budget.h). memory= includes it for each thread that calls a tier. A driver takes all other
 * memory from the budget.
 */
#define KVC_TIER_CALL_BYTES ((1u << 20) + (128u << 10))
/*
 * Helper threads of a driver, with which other threads share the work on large frames. Only drivers
 * of tiers that no other node uses have them. memory= includes KVC_TIER_CALL_BYTES for each.
 */
#define KVC_TIER_HELPERS 4u
#define KVC_TIER_PIECE (1u << 20) /* bytes that a helper moves at once */

/* A part of a frame that is read by one of several threads. */
struct kvc_part {
	uint64_t nr;  /* its number, from 0 */
	uint64_t off; /* in the frame; a whole number of pages */
	size_t len;   /* likewise; at most KVC_TIER_PART */
	/* the memory for its bytes; NULL: memory of the thread, valid until `ended` returns */
	uint8_t *p;
	size_t skip, want; /* for the functions below; the driver does not use them */
};
#define KVC_TIER_PART (KVC_TIER_PIECE + KVC_PAGE)

/*
 * The parts that the `load` of a tier reads, and functions that it calls for each, from any thread.
 * They return 0 or a negative errno, which ends the load and is returned: parts that are being read
 * are finished, and no others begin.
 */
struct kvc_load {
	uint64_t n; /* number of parts */
	void *arg;
	/* Sets all members of the part but its number. In order, one call at a time. */
	int (*part)(void *arg, struct kvc_part *part);
	/* The bytes are at part->p. Any order, several calls at the same time. May be NULL. */
	int (*arrived)(void *arg, const struct kvc_part *part);
	/* After `arrived` has succeeded. In order, one call at a time. */
	int (*ended)(void *arg, const struct kvc_part *part);
};

/* Changes of the objects of this node, of which other nodes are told. */
struct kvc_announcement {
	const char *const *path;
	const bool *has; /* of each path: this node has the object, or no longer has it */
	size_t n;        /* at most KVC_ANNOUNCE_MOST */
	/* before this announcement, all objects of this node have been announced */
	bool complete;
};
#define KVC_ANNOUNCE_MOST 1024u

struct kvc_tier_usage {
	uint64_t total, used; /* in bytes */
	/* used bytes of all devices, including those that take no more frames */
	uint64_t stored;
	/* part of `stored`: removed frames whose headers could not be cleared yet */
	uint64_t uncleared;
};

/* The state of a device of the disk tier. */
struct kvc_tier_device {
	char path[1280];
	bool file;            /* or a block device */
	uint64_t total, used; /* in bytes */
	uint64_t uncleared;   /* as in struct kvc_tier_usage */
	bool leaving;         /* it is being removed and gets no more frames */
	/* calls fail: reads, and writes. `why` is the errno, negative, of the last failure. */
	bool read_fails, write_fails;
	bool unsynced; /* the last sync() left out writes of this device, or failed there */
	int why;
	uint64_t silent_ns; /* how long calls have been under way without an answer; 0: none are */
	uint64_t errors;    /* calls that failed since the mount */
	/* likewise syncs that failed, or left out writes of this device */
	uint64_t failed_syncs;
};

/* A change of a device of a live tier to its state in the store. */
enum kvc_tier_change {
	KVC_TIER_ADD,    /* a new device */
	KVC_TIER_GROW,   /* a larger size */
	KVC_TIER_LEAVE,  /* dev[nr].leaving has changed */
	KVC_TIER_REMOVE, /* the device is closed; it has no frames that the catalog knows */
};

/*
 * Is a frame on stable storage? After a failed sync the kernel and the device may have lost any
 * byte that was written since the last good sync, and a later sync succeeds without these bytes. So
 * a frame from that time no longer counts as a copy, and the object must be stored again.
 */
enum kvc_tier_synced {
	KVC_TIER_SYNCED,
	KVC_TIER_PENDING, /* the next good sync puts it there */
	/* a sync has failed in this mount, and it is not known whether before or after the put */
	KVC_TIER_UNKNOWN,
	KVC_TIER_FAILING, /* its device fails now, and may have it or not */
	KVC_TIER_LOST,    /* a sync failed or left it out, or its device is gone */
};

enum {
	KVC_TIER_DURABLE = 1, /* frames survive a power loss after sync() has returned */
	KVC_TIER_BOUNDED = 2, /* the tier has a size; usage() returns it */
	/*
	 * other nodes use the tier, too: frames are identified by path; claim and rehead are not
	 * called
	 */
	KVC_TIER_SHARED = 4,
	KVC_TIER_MEDIA = 8,    /* a read or write error concerns one location, not the whole tier */
	KVC_TIER_PATIENT = 16, /* calls may wait for a server without a time limit */
	/*
	 * with KVC_TIER_SHARED: the frames belong to other nodes, which may drop them at any time.
	 * A frame here does not count as a copy of an object; put and remove are not called
	 */
	KVC_TIER_LENT = 32,
};

#define KVC_NODES 64u /* of a tier with KVC_TIER_LENT */

/* The answer of a node to a call of `ask`. */
struct kvc_node_answer {
	char node[KVC_PEER_NAME];
	/* 0, or an error of get; -EPERM: no changes are allowed; -EACCES: also for new requests */
	int err;
	char why[200]; /* the reason for an error, one line; or "" */
	char *text;    /* with a zero at its end; NULL after an error */
	size_t len;    /* at most KVC_PEER_TEXT */
};

struct kvc_tier_ops {
	const char *name;
	unsigned caps;
	/* Start and stop the driver's threads, after the daemon has forked. May be NULL. */
	int (*start)(struct kvc_tier *t);
	void (*stop)(struct kvc_tier *t);
	/* Frees t. */
	void (*close)(struct kvc_tier *t);
	/*
	 * Reports a stored frame that the catalog knows, before any other call. -EEXIST: it
	 * overlaps another frame; -ERANGE: it is outside the tier.
	 */
	int (*claim)(struct kvc_tier *t, const struct kvc_where *w);
	/*
	 * Stores a frame. The header is written last, so that an incomplete frame is never valid.
	 */
	int (*put)(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out);
	/*
	 * Reads part of a frame from byte `off` (0: the header), filling all of iov; both are
	 * aligned to pages where possible. The payload is padded with zeros to a whole page.
	 * In a shared tier w->len may be 0 (unknown), and the driver returns -EBADMSG for a
	 * read beyond the padding.
	 */
	int (*get)(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n);
	/*
	 * Only in a tier with KVC_TIER_LENT, whose get finds nothing; otherwise NULL. get_path:
	 * like get, for the frame of this path; `w` is the name of the path. distrust: the bytes of
	 * the last get_path of this name were damaged. Returns true if another node may be asked.
	 */
	int (*get_path)(struct kvc_tier *t, const struct kvc_where *w, const char *path,
			uint64_t off, const struct iovec *iov, int n);
	bool (*distrust)(struct kvc_tier *t, const struct kvc_where *w);
	/*
	 * Optional, in a shared tier: asks for n frames in few round trips. w[i] and path[i] are
	 * the names of frame i. Sets has[i] to false if it does not exist, and to true if it may
	 * exist: only get can tell. Returns 0; or an error, and then nothing is known. NULL: asking
	 * for many frames is not faster than one get for each.
	 */
	int (*have)(struct kvc_tier *t, const struct kvc_where *w, const char *const *path,
		    size_t n, bool *has);
	/*
	 * Only in a tier with KVC_TIER_LENT, otherwise NULL: tells a node, HOST:PORT, that this one
	 * has n objects. Their paths follow each other in names[len], each with a zero byte at its
	 * end. Sets taken[i] if the node has object i now, or loads it. Returns 0; -ENXIO: the tier
	 * does not have this node; -EOPNOTSUPP: the node reads from no remote; -ENOSPC: it is full;
	 * -EBUSY: other offers keep it busy; or an error of get.
	 */
	int (*offer)(struct kvc_tier *t, const char *node, const char *names, size_t len, size_t n,
		     bool *taken);
	/*
	 * Only in a tier with KVC_TIER_LENT, otherwise NULL: asks all nodes at the same time, each
	 * with a request about these names (as for offer). kind: its answer is a text. Sets *n to
	 * the number of nodes, at most KVC_NODES, and fills a, whose texts the caller frees. A node
	 * that has not answered after `ns` has the error -ETIMEDOUT. Blocks. a NULL: only sets *n.
	 */
	int (*ask)(struct kvc_tier *t, enum kvc_peer_kind kind, const char *names, size_t len,
		   uint64_t ns, struct kvc_node_answer *a, size_t *n);
	/*
	 * Only in a tier with KVC_TIER_LENT, otherwise NULL. If the tier `announces`, tells other
	 * nodes which objects this node has. Called by one thread, a few times a second, also
	 * without changes. Returns 0; -ESTALE: earlier announcements are lost, so that all objects
	 * must be announced again, with `complete` not set until then; or another error, after
	 * which the same changes must be announced again.
	 */
	int (*announce)(struct kvc_tier *t, const struct kvc_announcement *a);
	/* Optional: reads parts of a frame as get does, by several threads. */
	int (*load)(struct kvc_tier *t, const struct kvc_where *w, const struct kvc_load *l);
	/* Rewrites the header of a stored frame, whose name part has changed. */
	int (*rehead)(struct kvc_tier *t, const struct kvc_where *w,
		      const uint8_t page[KVC_FRAME_HEADER]);
	/* Frees the space. The frame may not be read afterwards. */
	int (*remove)(struct kvc_tier *t, const struct kvc_where *w);
	/*
	 * Calls fn for every frame that is found in the tier itself. A non-zero result ends the
	 * walk. A driver that examines much other data, or waits for a server, also calls fn(arg,
	 * NULL, NULL) in between, so that the caller can end the walk. For fsck and imports.
	 * -EOPNOTSUPP: this tier cannot list.
	 */
	int (*list)(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg);
	/*
	 * Returns 0 if all frames stored before are on stable storage, except for those that
	 * synced() names. A tier of several devices leaves out those that it suspends; if that
	 * leaves none, it returns an error.
	 */
	int (*sync)(struct kvc_tier *t);
	/*
	 * Does the same for the device of this place only. Returns 0 also if the device is
	 * suspended or gone; -ENODEV if its sync has failed and other devices work. NULL: `sync`
	 * does it.
	 */
	int (*sync_place)(struct kvc_tier *t, const struct kvc_where *w);
	/*
	 * The disk tier only; otherwise NULL. They bound the threads that are in calls to one
	 * device, so that a device that hangs does not hold all of them. bound: at most `most`
	 * threads, called before any other call; 0: no bound. enter: a thread is about to make
	 * calls about a frame at this place (removes: to remove it, which one thread at a time
	 * does). Returns false if its device has enough threads; otherwise the thread calls leave
	 * afterwards. put needs no enter. enter does not block, and is called under k->lock.
	 */
	void (*bound)(struct kvc_tier *t, unsigned most);
	bool (*enter)(struct kvc_tier *t, const struct kvc_where *w, bool removes);
	void (*leave)(struct kvc_tier *t, const struct kvc_where *w, bool removes);
	/* The disk tier only; otherwise NULL. Does not block. */
	enum kvc_tier_synced (*synced)(struct kvc_tier *t, const struct kvc_where *w);
	/*
	 * The disk tier only; otherwise NULL. Called once, before any other call but claim.
	 * unsynced: a sync has failed, or left out writes, in an earlier mount since these frames
	 * were stored, so each frame that the catalog names is KVC_TIER_UNKNOWN in this mount. From
	 * then on the tier calls failed(arg) as soon as a sync of one device has failed or left out
	 * writes, and before sync() returns: from any thread, more than once, and without a lock of
	 * the tier.
	 */
	void (*watch_syncs)(struct kvc_tier *t, bool unsynced, void (*failed)(void *arg),
			    void *arg);
	void (*usage)(struct kvc_tier *t, struct kvc_tier_usage *u);
	/*
	 * The disk tier only; otherwise NULL. device: the state of device `nr`; returns 0, or
	 * -ENOENT if the number is not used. change: applies a change; returns 0, or a negative
	 * errno with one line in error[512]. REMOVE waits for calls to the device.
	 */
	int (*device)(struct kvc_tier *t, unsigned nr, struct kvc_tier_device *d);
	int (*change)(struct kvc_tier *t, enum kvc_tier_change change, const struct kvc_store *s,
		      unsigned nr, char *error);
};

struct kvc_tier {
	const struct kvc_tier_ops *ops;
	char id[256]; /* identifies the tier, without secrets; the same at every mount */
	/* codec requested in its URL (kvc_codec_names); KVC_CODEC_CHOICES: that of compress= */
	uint64_t codec;
	bool announces; /* other nodes are told of the objects of this node */
	/*
	 * memory of a fixed size that the driver holds in addition to KVC_TIER_CALL_BYTES for each
	 * thread
	 */
	uint64_t bytes;
};

/*
 * Puts all frames on the device of this place on stable storage, except for those that synced()
 * names. Returns 0 or a negative errno. A device that hangs delays no caller that needs another.
 */
static inline int kvc_tier_sync_place(struct kvc_tier *t, const struct kvc_where *w)
{
	return t->ops->sync_place ? t->ops->sync_place(t, w) : t->ops->sync ? t->ops->sync(t) : 0;
}

/* Does the tier store frames of this node? */
static inline bool kvc_tier_takes(const struct kvc_tier *t)
{
	return !(t->ops->caps & KVC_TIER_LENT);
}

/* Reads by path, if the tier needs the path; otherwise by name. path: NULL if it is not known. */
static inline int kvc_tier_get(struct kvc_tier *t, const struct kvc_where *w, const char *path,
			       uint64_t off, const struct iovec *iov, int n)
{
	return path && t->ops->get_path ? t->ops->get_path(t, w, path, off, iov, n)
					: t->ops->get(t, w, off, iov, n);
}

static inline enum kvc_tier_synced kvc_tier_synced(struct kvc_tier *t, const struct kvc_where *w)
{
	return t->ops->synced ? t->ops->synced(t, w) : KVC_TIER_SYNCED;
}

#endif
