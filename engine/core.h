/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the engine: its structures, locks and the life of an object.
 *
 * Threads: any number of callers; one committer (commit.c), one evictor (evict.c), one answerer that runs the wakes
 * (wait.c), one notifier (notify.c), tier workers (tierq.c), one that touches the pool
 * (prefault.c).
 *
 * Locks, in this order:
 *   1. the catalog's lock ("the tree"): names, rows, the open transaction. Taken by what changes or reads names.
 *   2. k->lock: nodes in memory, chunks, room, queues. Held for short: memory, and single system calls on the
 *      pool's tmpfs (rename, fstat, ftruncate), never tier I/O, a commit, a reply or a wake.
 *   3. leaf locks inside tiers and the notifier.
 * A function that needs k->lock ends in _locked; one that needs both ends in _both.
 *
 * An object's life (n->state), and which segment the pool has:
 *
 *   state      segment                         goes to
 *   NONE       (not a regular file)            -
 *   OPEN       w-ino-gen (never published)     RESIDENT, BOTH: last writer's close; GONE
 *              or o-ino-gen (published as gen
 *              and open for writing again)
 *   RESIDENT   p-ino-gen                       OPEN; BOTH: a tier has it; GONE
 *   BOTH       p-ino-gen                       OPEN; RESIDENT: the tier lost it; LOWER: evicted; GONE
 *   LOWER      none                            LOADING; OPEN: truncated to nothing; GONE
 *   LOADING    l-ino-gen                       BOTH; LOWER: the load failed; GONE: unlinked or every copy was bad
 *   GONE       none                            -
 *
 * After a kill the name of a segment tells all: p is taken over when its generation is the catalog's or newer; o is
 * taken over when nothing was written (its mtime is still KVC_MARK_NS, set when it was opened), else it is removed and
 * a lower copy serves; w and l are removed.
 *
 * Order on disk: frame, placement row, commit; only then may the segment go. Row deleted, commit; only then are its
 * segment and its extents freed (k->trash).
 */
#ifndef KVC_CORE_H
#define KVC_CORE_H

#include "cache.h"
#include "keys.h"
#include "log.h"
#include "policy.h"

#include <pthread.h>

#define KVC_WORKERS 8        /* threads of a tier at most */
#define KVC_COMMON KVC_TIERS /* the queue of work that is no tier's */
#define KVC_HASH_SIZE (1u << 16)
#define KVC_MARK_NS 1000000001ull /* mtime of a segment that nobody wrote to since it was opened for writing */
#define KVC_HINTS 256
#define KVC_FOLDERS 4096
#define KVC_GHOSTS 256
#define KVC_YOUNG_NS 300000000ull /* see kvc_chunk_young */

enum kvc_state { KVC_NONE, KVC_OPEN, KVC_RESIDENT, KVC_BOTH, KVC_LOWER, KVC_LOADING, KVC_GONE, KVC_STATES };
extern const char *const kvc_state_names[];

struct kvc_pool {
	char path[512];
	int dir;         /* O_PATH descriptor of the folder with the segments */
	uint64_t size;   /* of the tmpfs: the bound, cpu= */
	uint64_t bytes;  /* what the account gives out; the rest is for growth */
	bool mounted;    /* a tmpfs of our own, not a folder of another one */
	bool found;      /* it was mounted already */
	bool huge, noswap, warm; /* what the kernel gave; found segments of an earlier daemon */
};

struct kvc_chunk {
	uint64_t id;
	struct kvc_use use;
	uint64_t pin_until_ns, ttl_s, expires_ns;
	int64_t rank;
	unsigned policy;             /* its class (policy.h) */
	uint64_t quota;              /* the model whose quota it counts to; 0: none */
	size_t heap_at;              /* index in its class's heap + 1; 0: not in it */
	struct kvc_list nodes;       /* its nodes that have a segment */
	unsigned nnodes;
	unsigned inflight;           /* nodes that hold a pointer */
	bool dirty, known;           /* to be written; has a row */
	bool gone;                   /* its row was deleted and is not to come back */
	struct kvc_list dirty_link;
	struct kvc_chunk *hash_next;
};

struct kvc_node {
	struct kvc *cache;
	struct kvc_row row;
	struct kvc_node *hash_next;
	uint64_t nlookup;            /* references of the kernel */
	unsigned holds;              /* references of the engine's own: workers, leases, operations under way */
	bool dirty, touched;         /* to be written; its atime is, when it leaves memory */
	bool lost;                   /* it has no row any more: unlinked or dropped */
	bool dropped;                /* a file whose names went without the kernel's asking */
	bool unnamed;                /* it has no name yet (unnamed.c) */
	struct kvc_list dirty_link;

	/* regular files */
	enum kvc_state state;
	struct kvc_object_row object;
	struct kvc_place place[KVC_TIERS];
	uint64_t place_txn;          /* the transaction that records the newest placement */
	uint64_t room;               /* bytes accounted for the segment */
	uint64_t charged;            /* bytes counted to its model's quota */
	uint64_t uncopied;           /* bytes counted to k->uncopied */
	struct kvc_list behind;      /* with write=back: in k->pace.behind while no copy was asked for */
	bool asked;                  /* and was taken from there: its bytes are in k->pace.asked */
	uint64_t prepared;           /* bytes from the start that are prepared for plain writes */
	uint64_t ahead;              /* what was prepared when it was opened to be written anew; part of k->ahead */
	uint64_t copied;             /* its part of k->copied */
	unsigned waiting;            /* opens, and of a folder creates in it, that wait for room: its chunk is not dropped */
	struct kvc_ghost *ghost;     /* a folder that was dropped with its chunk (drop.c) */
	/* of a folder: when it was made (0: not known) and last filled, with how many files and bytes (unit.c) */
	uint64_t made_ns, filled_ns, fill_bytes;
	unsigned files;
	int8_t unit_set;             /* its own user.kvcachefs.unit: 0 not looked up; 1 none; 2 + enum kvc_unit */
	bool splitting;              /* its files are being given to other chunks */
	unsigned nopen, nwriters, leases;
	int fd, backing;             /* -1 and 0 while not there */
	bool plain;                  /* how it is open now */
	bool fresh;                  /* the segment is a w-, not an o- */
	bool verify;                 /* was open for writing and seems untouched: compare before trusting the lower copy */
	bool failing;                /* the last spill failed */
	int load_error;              /* of the last load */
	unsigned spilling;           /* bit per tier: a job is queued or runs */
	struct kvc_job *queued[KVC_TIERS]; /* the job while it is queued */
	unsigned resealing;          /* bit per tier: its copy is to be made anew, and stays until that is done */
	bool snapshot;               /* fsync waits for a copy of the file as it is now */
	uint64_t epoch;              /* counts openings for writing, so a copy knows that it is old */
	uint64_t model;
	struct kvc_chunk *chunk;
	struct kvc_list chunk_link;
	struct kvc_list waiters;     /* opens and leases that wait for the load, renames that wait for the publish */
	struct kvc_list sync_waiters;
	struct kvc_wait load_wait;   /* the load's own wait for room */
};

enum kvc_priority { KVC_P_LOAD, KVC_P_PREFETCH, KVC_P_REMOVE, KVC_P_URGENT, KVC_P_SPILL, KVC_PRIORITIES };

struct kvc_job {
	struct kvc_list link;
	void (*run)(struct kvc *k, struct kvc_job *j);
	struct kvc_node *node;       /* held while the job lives, or NULL */
	unsigned tier;
	enum kvc_priority priority;  /* the queue it is on */
	uint64_t due_ns;             /* KVC_P_SPILL and KVC_P_URGENT: not before */
	unsigned tried, bad;         /* a load: bit per tier that failed, that had a bad copy */
	int err;                     /* a load: of the last try */
	bool prefetch;               /* a load that nobody waited for when it was asked for */
	struct kvc_where where;
	struct kvc_sum sum;          /* a removal from a shared tier: of this version only */
};

/* A tier with its queues, threads and circuit breaker (tierq.c). */
struct kvc_tier_state {
	struct kvc *k;
	struct kvc_tier *t;          /* NULL: no such tier now, or the common queue */
	struct kvc_list jobs[KVC_PRIORITIES];
	pthread_cond_t cond, load_cond; /* for the threads that take all, and for the one that takes no copies */
	bool load_idle;              /* that one sleeps */
	unsigned ncopies;            /* queued in KVC_P_SPILL */
	unsigned nthreads, started;  /* threads: wanted and running */
	pthread_t workers[KVC_WORKERS];
	unsigned failures;           /* in a row */
	uint64_t open_until_ns;      /* breaker: no calls before; 0: closed */
	uint64_t backoff_ns;
	bool probing, full;          /* full: it refused a frame for want of room */
	uint64_t full_until_ns;      /* where nobody trims: not tried again before */
	/* trim.c */
	pthread_t trimmer;
	pthread_cond_t trim_cond;
	bool has_trimmer, trimming;
	bool jammed;                 /* a whole walk found nothing to drop */
	uint64_t leaving;            /* bytes of frames that are trash and not removed yet */
};

/* What a transaction made dispensable. */
struct kvc_trash {
	struct kvc_list link;
	char kind;                   /* of the segment: p, o, w; 0: none */
	uint64_t ino, gen, room;
	int tier;                    /* of the extent; -1: none */
	struct kvc_where where;
	struct kvc_sum sum;
};

/* Attributes of a model's folder with a fixed set of values (model.c). */
enum kvc_model_attr { KVC_MODEL_CODEC, KVC_MODEL_POLICY, KVC_MODEL_SHARED, KVC_MODEL_ATTRS };
enum kvc_shared { KVC_SHARED_KEEP, KVC_SHARED_DELETE };
enum kvc_unit { KVC_UNIT_DIR, KVC_UNIT_FILE };

struct kvc_hint {
	uint64_t model, sizes[8];
	unsigned at;
	int8_t attr[KVC_MODEL_ATTRS]; /* 0: not looked up; 1: none is set; 2 + value */
};

/* The bound on a model's files (quota.c). */
struct kvc_quota {
	struct kvc_list link, waiters;
	uint64_t model, limit, used; /* bytes */
	uint64_t serial;
	unsigned stuck;
	bool trimming;
};

/* How fast the pool gets room back, and who waits for his turn (pace.c). */
struct kvc_pace {
	struct kvc_list waiters;
	uint64_t rate;               /* bytes a second; 0: not known yet */
	uint64_t next_ns;            /* the next turn */
	uint64_t copied, since_ns;   /* what the rate is measured by */
	bool busy;                   /* the window began with work to do */
	struct kvc_list behind;      /* with write=back: published without a copy, oldest first */
	uint64_t asked;              /* bytes of those whose copy was asked for */
};

/* Chunks with segments in the pool, lowest rank first. */
struct kvc_heap {
	struct kvc_chunk **v;
	size_t n, room;
};

struct kvc {
	struct kvc_options opt;
	struct kvc_store *store;
	struct kvc_catalog *cat;
	struct kvc_pool pool;
	struct kvc_stats stats;
	struct kvc_events ev;
	struct kvc_tier_state tier[KVC_TIERS + 1];
	unsigned order[KVC_TIERS], ntiers; /* the tiers there are, in the order in which they are asked */
	bool shared;                 /* one of them is a shared one */
	struct kvc_keys *keys;       /* NULL: frames are not sealed */

	pthread_mutex_t lock;
	bool stopping, draining, started;
	struct kvc_node *nodes[KVC_HASH_SIZE];
	struct kvc_chunk *chunks[KVC_HASH_SIZE];
	uint64_t nnodes, next_ino;
	uint64_t clock_ns;           /* the last use stamp given out */
	uint64_t open_files, resident, nbacking;
	_Atomic uint64_t fd_uses;    /* see kvc_file_fd_done */
	struct kvc_hint hints[KVC_HINTS];

	/* room.c */
	uint64_t used;               /* bytes of the pool accounted for */
	uint64_t ahead;              /* of these, prepared for files being written, used by now or not */
	uint64_t uncopied;           /* of these, of published objects that no tier has */
	uint64_t copied;             /* of these, files that a tier has too (BOTH) */
	struct kvc_list room_waiters;
	/* wait.c */
	struct kvc_list timed, woken;
	pthread_cond_t woken_cond;
	/* chunk.c */
	struct kvc_heap heap[KVC_CLASSES];
	double turn[KVC_CLASSES];    /* whose is the lowest gives next; each victim moves it on by its part of the class */
	/* quota.c */
	struct kvc_list quotas;
	uint64_t quota_serial;
	/* unit.c */
	struct kvc_run *runs;
	struct kvc_tree *trees;
	/* drop.c */
	struct kvc_list ghosts[KVC_GHOSTS];
	struct kvc_list knocks[KVC_GHOSTS];
	/* commit.c */
	struct kvc_list dirty_nodes, dirty_chunks, trash, sync_waiters;
	uint64_t committed;          /* the last committed transaction */
	pthread_cond_t commit_cond, committed_cond;
	bool commit_soon, commit_now;
	uint64_t chunks_written_ns;  /* when the use of known chunks was last written */
	/* spill.c: rewriting a header and freeing an extent exclude each other; taken before k->lock */
	pthread_mutex_t rehead_lock;
	/* tierq.c */
	unsigned jobs_running, jobs_queued;
	/* share.c */
	struct kvc_list asks;        /* under way */
	struct kvc_miss *misses;     /* names that no shared tier had a moment ago */
	uint64_t folders_put[KVC_TIERS][KVC_FOLDERS]; /* folders whose frames a tier has from us, by number */
	/* sweep.c: import and rekey */
	struct kvc_sweep *sweep;
	/* prefault.c */
	struct kvc_prefault *prefault; /* NULL before the start and after the end */
	/* evict.c */
	pthread_cond_t evict_cond;
	unsigned stuck;
	bool trimming;
	uint64_t leaving;            /* bytes of segments that are trash and not removed yet */
	/* pace.c */
	struct kvc_pace pace;
	/* trim.c */
	pthread_t keeper;
	pthread_cond_t keep_cond;
	bool has_keeper;
	bool trimmed;                /* no copy is made any more */
	/* notify.c */
	pthread_mutex_t notify_lock;
	pthread_cond_t notify_cond;
	struct kvc_tell *notices;
	size_t nnotices, notices_room;
	uint64_t noticed;            /* notices so far; notified: of these, told */
	_Atomic uint64_t notified;
	bool notify_stop;

	pthread_t committer, evictor, answerer, notifier;
};

/* pool.c: the tmpfs and its segments. No lock needed. */
int kvc_pool_open(struct kvc_pool *p, const struct kvc_options *o, const struct kvc_store *s, char *error);
/* Bytes that the tmpfs holds, growth included; 0 where it is not our own. */
uint64_t kvc_pool_real_used(const struct kvc_pool *p);
void kvc_pool_close(struct kvc_pool *p, bool keep);
struct kvc_segment {
	char kind;
	uint64_t ino, gen;
};
bool kvc_segment_parse(const char *name, struct kvc_segment *s);
int kvc_segment_open(struct kvc_pool *p, const struct kvc_segment *s, int flags); /* a descriptor or -errno */
int kvc_segment_rename(struct kvc_pool *p, const struct kvc_segment *from, const struct kvc_segment *to);
int kvc_segment_remove(struct kvc_pool *p, const struct kvc_segment *s);
/* Whether anybody but the caller has it open or mapped: for writing, or at all. */
bool kvc_segment_in_use(struct kvc_pool *p, const struct kvc_segment *s, bool for_writing);

/* memory.c: what the machine has. No lock needed. */
uint64_t kvc_memory_available(void); /* bytes, as the kernel estimates it */
/* Bytes that could be taken without pressing the machine or a memory cgroup of ours. */
uint64_t kvc_memory_spare(void);
/* What the guest frees goes back to its host (free page reporting), and is slow to get again. */
bool kvc_memory_reported(void);

/* prefault.c */
struct kvc_prefaulted {
	uint64_t bytes, total; /* touched so far, and what there is to touch */
	uint64_t held;         /* of k->used: touched, kept to the end or until somebody needs it */
	char what[200];        /* what was decided, and why: one line */
};
/* A failure to begin is only told: all works without. */
void kvc_prefault_start(struct kvc *k);
/* After k->stopping is set. Gives back what it holds. */
void kvc_prefault_stop(struct kvc *k);
void kvc_prefault_show_locked(struct kvc *k, struct kvc_prefaulted *p);

/* room.c */
/*
 * Accounts `bytes` of the pool for the caller: 0, KVC_WAIT (w is woken when the room is w->granted, or with
 * -ENOSPC), or -ENOSPC. A wait that has a grant uses it up first. w may be NULL: then no waiting, -EAGAIN.
 */
int kvc_room_get_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
void kvc_room_put_locked(struct kvc *k, uint64_t bytes);
/* Gives back what a wait was granted, of the pool and of a quota, and did not use. */
void kvc_room_cancel_locked(struct kvc *k, struct kvc_wait *w);
/* Sets what a node's segment is accounted with. */
void kvc_room_set_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);

/* pace.c */
/*
 * A store's turn: 0 at once, or KVC_WAIT; once for each wait. Notes in w->since_ns when its call first came.
 */
int kvc_pace_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
/* The wait's turn has come. */
void kvc_pace_over_locked(struct kvc *k, struct kvc_wait *w);
/* A node's state or room changed. */
void kvc_pace_uncopied_locked(struct kvc *k, struct kvc_node *n);
/* So much is without a copy that copies do not wait for settle=. */
bool kvc_pace_hurry_locked(const struct kvc *k);
/* Now and then, by the evictor: how fast copies are made. */
void kvc_pace_measure_locked(struct kvc *k);
/* With write=back: asks for copies of the oldest while too much has none. */
void kvc_pace_behind_locked(struct kvc *k);

/* wait.c */
void *kvc_answerer(void *arg);
/* Parks a wait on a list; it is woken by kvc_wake_locked or at its deadline. Always KVC_WAIT. */
int kvc_park_locked(struct kvc *k, struct kvc_list *on, struct kvc_wait *w);
void kvc_wake_locked(struct kvc *k, struct kvc_wait *w, int err);
void kvc_wake_all_locked(struct kvc *k, struct kvc_list *on, int err);

/* node.c */
struct kvc_node *kvc_node_find_locked(struct kvc *k, uint64_t ino);
/* From memory or the catalog. 0 with *n, -ENOENT, -ENOMEM, -EIO. */
int kvc_node_get_both(struct kvc *k, uint64_t ino, struct kvc_node **n);
struct kvc_node *kvc_node_new_locked(struct kvc *k, const struct kvc_row *row);
/* Frees it if nothing needs it in memory. Call after dropping any reference. */
void kvc_node_settle_locked(struct kvc *k, struct kvc_node *n);
void kvc_node_dirty_locked(struct kvc *k, struct kvc_node *n);
/* The node's attributes as of now (an open file's come from its segment). */
void kvc_node_attr_locked(struct kvc *k, struct kvc_node *n, struct kvc_row *attr);
/* The row of a node, in memory or not. */
int kvc_row_of_both(struct kvc *k, uint64_t ino, struct kvc_row *row);
void kvc_node_free_all(struct kvc *k);

/* file.c: the life of an object */
/* Written or given away: the set-id bits go, as they do on any filesystem. */
void kvc_drop_setid(struct kvc_row *row);
/* The one place where n->state changes: checks the table above, keeps counts and the chunk's list. */
void kvc_become_locked(struct kvc *k, struct kvc_node *n, enum kvc_state to);
struct kvc_segment kvc_segment_of(const struct kvc_node *n);
static inline bool kvc_has_segment(const struct kvc_node *n)
{
	return n->state == KVC_OPEN || n->state == KVC_RESIDENT || n->state == KVC_BOTH;
}
/* Some tier has this generation: one that is here now, or any. */
bool kvc_placed(const struct kvc *k, const struct kvc_node *n);
bool kvc_placed_anywhere(const struct kvc_node *n);
/* A tier that survives power loss has it. */
bool kvc_placed_durably(const struct kvc *k, const struct kvc_node *n);
/* Sets what was prepared ahead for a node; 0 once it is published or gone. */
void kvc_ahead_set_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);
/* A new, empty segment for a file that has none: room must be accounted. 0 or -errno (then the room is the caller's again). */
int kvc_segment_new_locked(struct kvc *k, struct kvc_node *n, uint64_t room);
/* A descriptor for the segment, kept in n->fd. */
int kvc_node_fd_locked(struct kvc *k, struct kvc_node *n);
/* The file is about to be written: RESIDENT or BOTH -> OPEN. */
int kvc_begin_write_locked(struct kvc *k, struct kvc_node *n);
/* The last writer has gone: OPEN -> RESIDENT or BOTH. */
void kvc_publish_locked(struct kvc *k, struct kvc_node *n);
/* Forgets the lower copies; their space is freed after the commit. */
void kvc_unplace_locked(struct kvc *k, struct kvc_node *n);
/* The file has no name and no open left, or is dropped: everything of it goes after the commit. */
void kvc_destroy_locked(struct kvc *k, struct kvc_node *n);
void kvc_close_segment_locked(struct kvc *k, struct kvc_node *n);

/* model.c */
/* The model of what lies in this folder; 0 at the root. */
int kvc_model_of_both(struct kvc *k, uint64_t folder, uint64_t *model);
/* The same from the folder's row, with the folder's depth below the root. */
int kvc_model_of_row_both(struct kvc *k, const struct kvc_row *folder, uint64_t *model, unsigned *depth);
/* Something is set on this folder as on a model: a quota or one of the attributes. */
bool kvc_model_set_both(struct kvc *k, struct kvc_node *folder);
/* The value of an attribute of the model; -1: none is set. */
int kvc_model_attr_both(struct kvc *k, uint64_t model, enum kvc_model_attr a);
const char *kvc_model_attr_text(enum kvc_model_attr a, int value);
/* Sets it by its text, or takes it away (NULL). -EINVAL: no such value. */
int kvc_model_attr_set_both(struct kvc *k, uint64_t model, enum kvc_model_attr a, const char *text);
/* The model has a quota or a policy of its own, so its files do not go in or out with a whole folder or by a hard link. */
bool kvc_model_apart_both(struct kvc *k, uint64_t model);
uint64_t kvc_hint_locked(struct kvc *k, uint64_t model);
void kvc_hint_add_locked(struct kvc *k, uint64_t model, uint64_t size);

/* unit.c */
#define KVC_UNIT_ATTR "user.kvcachefs.unit"
#define KVC_UNIT_FILES 1024u /* what has more is no chunk */
/* Is this folder one chunk, that is dropped with its name? */
bool kvc_unit_whole_both(struct kvc *k, struct kvc_node *folder);
/* Has it files, as far as its unit is concerned? */
bool kvc_unit_filled_both(struct kvc *k, struct kvc_node *folder);
/*
 * File n comes into the folder under this name, by a caller's doing (here) or from a shared tier (n may be NULL): the chunk
 * that it joins, the folder's number, that of a file whose companion it is, or 0 for one of its own.
 */
int kvc_unit_join_both(struct kvc *k, struct kvc_node *folder, struct kvc_node *n, const char *name, bool here, uint64_t *chunk);
/* The file's own chunk ends: what was its companion becomes a chunk of its own. */
void kvc_unit_part_both(struct kvc *k, struct kvc_node *n);
/* A file of the folder was published with so many bytes. */
void kvc_unit_grew_locked(struct kvc *k, const struct kvc_node *n, uint64_t bytes);
/* A folder is new. */
void kvc_unit_made_locked(struct kvc_node *folder);
/* A folder was moved into parent; thread pid made one there. */
void kvc_unit_folder_came_both(struct kvc *k, struct kvc_node *parent);
void kvc_unit_folder_made_both(struct kvc *k, struct kvc_node *parent, struct kvc_node *folder, const char *name, uint32_t pid);
/* Gives the files in and below the folder the chunks that they should have now, in the background. */
void kvc_unit_regroup_locked(struct kvc *k, struct kvc_node *folder);
/* What is set on the folder itself: enum kvc_unit, or -1; its text; and to set it, or take it away (NULL). */
int kvc_unit_get_both(struct kvc *k, struct kvc_node *folder);
const char *kvc_unit_text(int unit);
int kvc_unit_set_both(struct kvc *k, struct kvc_node *folder, const char *text);

/* quota.c */
struct kvc_quota *kvc_quota_of_locked(struct kvc *k, uint64_t model);
/* What a file counts, or would in a model with a quota. */
uint64_t kvc_quota_bytes(const struct kvc_node *n);
/* Sets the model's bound and counts what it holds; 0 takes it away. */
int kvc_quota_set_both(struct kvc *k, uint64_t model, uint64_t limit);
/*
 * May the model grow by so many bytes? 0, KVC_WAIT (parked; w keeps what is granted) or -EDQUOT. The growth itself is counted
 * by kvc_quota_count_locked; kvc_room_cancel_locked then gives back what was granted.
 */
int kvc_quota_get_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w);
/* The same without waiting. */
int kvc_quota_allows_locked(struct kvc *k, uint64_t model, uint64_t bytes);
void kvc_quota_cancel_locked(struct kvc *k, struct kvc_wait *w);
/* Brings what a file counts up to date. Cheap where its model has no quota. */
void kvc_quota_count_locked(struct kvc *k, struct kvc_node *n);
/* The file belongs to another model now. */
void kvc_quota_move_locked(struct kvc *k, struct kvc_node *n, uint64_t model);
/* At start, and at the end of a clean run. */
int kvc_quotas_load_both(struct kvc *k, bool clean);
void kvc_quotas_save_both(struct kvc *k);
/* One pass of the evictor over the models that are near or over their bound. Returns whether anything was or will soon be freed. */
bool kvc_quota_pass(struct kvc *k);
bool kvc_quota_pressed_locked(struct kvc *k);
void kvc_quotas_free(struct kvc *k);

/* chunk.c */
struct kvc_chunk *kvc_chunk_find_locked(struct kvc *k, uint64_t id);
/* The chunk of a node, from memory or its row, or a new one; sets n->chunk. */
int kvc_chunk_join_both(struct kvc *k, struct kvc_node *n);
void kvc_chunk_leave_locked(struct kvc *k, struct kvc_node *n);
void kvc_chunk_add_locked(struct kvc *k, struct kvc_node *n);    /* it has a segment now */
void kvc_chunk_remove_locked(struct kvc *k, struct kvc_node *n); /* it has none any more */
void kvc_chunk_used_locked(struct kvc *k, struct kvc_chunk *c, bool hit);
void kvc_chunk_dirty_locked(struct kvc *k, struct kvc_chunk *c);
/* It has no files any more: its row goes. */
void kvc_chunk_forget_both(struct kvc *k, uint64_t id);
/* A chunk whose files were in another one: was used when that was, if later. */
void kvc_chunk_take_use_locked(struct kvc *k, struct kvc_chunk *c, const struct kvc_chunk_row *r);
struct kvc_chunk *kvc_chunk_pop_locked(struct kvc *k); /* lowest rank with segments, out of the heap */
void kvc_chunk_push_locked(struct kvc *k, struct kvc_chunk *c);
void kvc_chunk_row(const struct kvc_chunk *c, struct kvc_chunk_row *r);
/* The node's own chunk is in another model now. */
int kvc_chunk_moved_both(struct kvc *k, struct kvc_node *n);
/* Gives the chunks of a model the class and the quota that it has now. */
int kvc_chunk_reclass_both(struct kvc *k, uint64_t model);
/* Was it used so lately that somebody may be between two of its files? */
bool kvc_chunk_young(uint64_t last_ns);
bool kvc_chunk_pinned(const struct kvc_chunk *c);
bool kvc_pin_holds(uint64_t pin_until_ns);
int64_t kvc_chunk_rank_row(struct kvc *k, const struct kvc_chunk_row *r);
/* Of the classes in the mask the one that gives next (-1: none); and its turn moves on. */
int kvc_class_next(const double turn[KVC_CLASSES], unsigned mask);
void kvc_class_gave_locked(struct kvc *k, double turn[KVC_CLASSES], unsigned class);
void kvc_chunk_settle_locked(struct kvc *k, struct kvc_chunk *c);

/* commit.c */
void *kvc_committer(void *arg);
void kvc_commit_soon_locked(struct kvc *k, bool now);
void kvc_trash_segment_locked(struct kvc *k, const struct kvc_segment *s, uint64_t room);
/* A frame in a shared tier that nobody else shall have either: it is removed if it still is this version. */
void kvc_trash_shared_locked(struct kvc *k, unsigned tier, const struct kvc_place *p);
void kvc_trash_extent_locked(struct kvc *k, unsigned tier, const struct kvc_place *p);
/* One turn of the committer: writes what is dirty, commits, frees the trash. Used by stop too. */
int kvc_commit_once(struct kvc *k);

/* What there is of tiers: for (...) { k->tier[t].t is one }. */
#define kvc_tier_each(k, nr) for (unsigned nr = 0; nr < KVC_TIERS; nr++) if (!(k)->tier[nr].t) {} else

/* tierq.c */
int kvc_tiers_start(struct kvc *k);
void kvc_tiers_join(struct kvc *k);
void kvc_tiers_wake_locked(struct kvc *k);
int kvc_job_add_locked(struct kvc *k, enum kvc_priority p, void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
		       unsigned tier, uint64_t due_ns, struct kvc_job **out);
/* After a job was put on a queue: wakes a thread that takes such. */
void kvc_tier_tell_locked(struct kvc_tier_state *ts, enum kvc_priority p);
/* May a call be made to this tier now? And how it went: -EBADMSG, -ENOENT and -ENOSPC are answers, not failures. */
bool kvc_tier_allowed_locked(struct kvc *k, unsigned tier);
void kvc_tier_result_locked(struct kvc *k, unsigned tier, int err);
/* The call that was allowed was not made. */
void kvc_tier_uncalled_locked(struct kvc *k, unsigned tier);

/* load.c, spill.c */
/* Starts loading a LOWER object; who waits parks on n->waiters. */
int kvc_load_start_locked(struct kvc *k, struct kvc_node *n, bool prefetch);
/* Queues copies of a published object for every tier that lacks one. */
void kvc_spill_queue_locked(struct kvc *k, struct kvc_node *n, bool urgent);
bool kvc_spill_needed(const struct kvc *k, const struct kvc_node *n, unsigned tier);
/* Does an fsync bring this file (NULL: any) to this tier? In a shared one it would need its name. */
static inline bool kvc_snapshot_takes(const struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	unsigned caps = k->tier[tier].t->ops->caps;

	return (caps & KVC_TIER_DURABLE) && !(n && n->unnamed && (caps & KVC_TIER_SHARED));
}
void kvc_frame_name_both(struct kvc *k, struct kvc_node *n, struct kvc_frame *f);
void kvc_rehead_locked(struct kvc *k, struct kvc_node *n);
struct kvc_frame *kvc_frame_new(void);
/* A path in the mount, "" where it is too long for a frame; buf has KVC_FRAME_PATH_MAX + 1 bytes. */
void kvc_path_both(struct kvc *k, uint64_t ino, char *buf);
/* The same of a name in a folder; -ENAMETOOLONG. */
int kvc_path_in_both(struct kvc *k, uint64_t parent, const char *name, char *path);
/* The node's model: its folder's name, in name[256], or "". */
void kvc_model_name(const char *path, char *name);

/* fetch.c: reads a frame into a segment (fd), straight into its pages where it is not coded. Without locks. */
struct kvc_want {
	uint64_t ino, size, room;
	struct kvc_place place;
	bool shared;
};
/* 0; -EBADMSG damaged, -ENOENT not there, -ESTALE another version; -ENOKEY; or another. */
int kvc_fetch(struct kvc *k, struct kvc_tier *t, const struct kvc_want *w, int fd);

/* share.c */
/*
 * Asks the shared tiers for a name that is not in the catalog. KVC_WAIT: parked, look again after; -ENOENT: nobody has it.
 */
int kvc_ask_both(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w);
/* Makes a node for a frame that a shared tier has; 0, -EEXIST, -EBADMSG (not one of ours to take), or another. */
int kvc_adopt_both(struct kvc *k, unsigned tier, uint64_t parent, const char *name, const struct kvc_where *w, const struct kvc_frame *f);
/* Puts frames for the folders above a file, so that other nodes find their way. Without locks. */
int kvc_share_folders(struct kvc *k, struct kvc_node *n, unsigned tier);
/* The file lost this path by a caller's doing (unlink, rename): see user.kvcachefs.shared. */
void kvc_unshare_both(struct kvc *k, struct kvc_node *n, const char *path, bool moved);

/* sweep.c */
void kvc_sweep_stop(struct kvc *k);

/* evict.c */
void *kvc_evictor(void *arg);
/* How much of `used` is to go: above high= it begins, and goes on down to low=. */
uint64_t kvc_trim(uint64_t used, uint64_t size, const struct kvc_options *o, bool *trimming);

/* trim.c */
int kvc_trim_start(struct kvc *k);
void kvc_trim_detach(struct kvc *k); /* after k->stopping was set: ends the keeper */
void kvc_trim_stop(struct kvc *k);   /* after the last copy: ends the trimmers */
/* The tier may be above its mark, or refused a frame. */
void kvc_trim_tell_locked(struct kvc *k, unsigned tier);
/* Would a copy be taken now, or soon? Not where the tier is out, or is full and nothing can be dropped. */
bool kvc_tier_takes_locked(const struct kvc *k, unsigned tier);

/* drop.c */
/*
 * Drops a chunk whole: all its files, wherever they are; copies in shared tiers are left to the
 * others. With a tier (not -1) only that tier's copies go, where all is elsewhere too. `seen`: the row
 * by which it was chosen, or NULL. 0, -EAGAIN (its folder was knocked or looked at: come back in a moment),
 * -EBUSY (in use, pinned, or used a moment ago), -ESTALE (used since `seen`), -ENOENT (empty), or
 * another. With 0 and -EAGAIN *bytes is what goes: of the tier, or what the files take. May be NULL.
 */
int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, const struct kvc_chunk_row *seen, uint64_t *bytes);
/* Takes every name off a file and destroys it; the kernel is told. */
int kvc_drop_file_both(struct kvc *k, struct kvc_node *n);
/* A folder that is one chunk and empty goes, with its names. */
void kvc_drop_folder_both(struct kvc *k, struct kvc_node *folder);
/* Somebody looks at a folder: it is not dropped in the next moment. */
void kvc_looked_locked(struct kvc *k, uint64_t folder);
/* Forgets folders that were about to go so long ago. */
void kvc_knocks_free_locked(struct kvc *k, uint64_t older_ns);
/* The folder that was dropped under this name and can come back, or NULL. */
struct kvc_node *kvc_ghost_find_locked(struct kvc *k, uint64_t parent, const char *name);
/* Somebody makes a file in a folder that was dropped: it comes back, or *folder becomes the one that took its place. */
int kvc_ghost_revive_both(struct kvc *k, struct kvc_node **folder);
void kvc_ghost_free_locked(struct kvc_node *folder);

/* name.c */
struct kvc_entry {
	uint64_t parent, ino;
	uint32_t kind;
	char name[256];
};
struct kvc_entries { /* zero before the first use; the caller frees v, also after an error */
	struct kvc_entry *v;
	size_t n, room;
};
/* Copies out the names in a folder, or the names of a node, so that the catalog can be changed while walking them. */
int kvc_entries_in_both(struct kvc *k, uint64_t folder, struct kvc_entries *e);
int kvc_entries_of_both(struct kvc *k, uint64_t ino, struct kvc_entries *e);
/* A folder by its number: -ENOENT where it is gone, -ENOTDIR. With anew, where something is to be made in it, a dropped one comes back. */
int kvc_folder_both(struct kvc *k, uint64_t ino, bool anew, struct kvc_node **folder);
/* 1: no name is in the folder; 0: some are; or a negative errno. */
int kvc_folder_empty_both(struct kvc *k, uint64_t folder);
void kvc_touch_folder_locked(struct kvc *k, struct kvc_node *folder, int nlink);

/* notify.c */
void *kvc_notifier(void *arg);
/* The number of the notice (0: not kept), and whether the kernel has been told up to it. */
uint64_t kvc_notify(struct kvc *k, enum kvc_telling what, uint64_t parent, uint64_t ino);
/* Does the kernel know this node? What it does not know it need not be told of. */
static inline bool kvc_kernel_knows(const struct kvc_node *n)
{
	return n->nlookup || n->row.ino == KVC_ROOT;
}
bool kvc_notified(struct kvc *k, uint64_t nr);

/* unnamed.c: O_TMPFILE */
/* Marks a new node as one without a name. */
int kvc_unnamed_note_both(struct kvc *k, struct kvc_node *n);
/* It has got a name. */
void kvc_unnamed_named_both(struct kvc *k, struct kvc_node *n);
/* To be called after an open or the kernel's reference has gone: destroys it when that was the last. */
void kvc_unnamed_settle_both(struct kvc *k, struct kvc_node *n);
/* All of them, at the end; and what an earlier daemon had, before anything else is taken over. */
void kvc_unnamed_end_all(struct kvc *k);
int kvc_unnamed_recover_both(struct kvc *k);

/* recover.c */
int kvc_recover(struct kvc *k, char *error);

static inline void kvc_lock(struct kvc *k)
{
	pthread_mutex_lock(&k->lock);
}
static inline void kvc_unlock(struct kvc *k)
{
	pthread_mutex_unlock(&k->lock);
}
static inline void kvc_lock_both(struct kvc *k)
{
	kvc_catalog_lock(k->cat);
	kvc_lock(k);
}
static inline void kvc_unlock_both(struct kvc *k)
{
	kvc_unlock(k);
	kvc_catalog_unlock(k->cat);
}

#endif
