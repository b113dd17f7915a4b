/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an object: its state (node.h has the table), its segment, publishing, destroying. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "node.h"

/*
 * Changes n->state. This is the only place that does: it checks the table, and updates counters and
 * the chunk's list.
 */
void kvc_file_become_locked(struct kvc *k, struct kvc_node *n, enum kvc_state to);
/* Returns the name of the segment that the file has in its current state. */
struct kvc_segment kvc_file_segment_of(const struct kvc_node *n);
/* Returns true if the tier has the current generation, under the file's current name. */
static inline bool kvc_file_placed_in(const struct kvc_node *n, unsigned tier)
{
	return n->in[tier].place.gen && n->in[tier].place.gen == n->object.gen &&
	       !(n->in[tier].place.codec & KVC_PLACE_LEFT);
}
/*
 * Marks the copy in a shared tier as one under an earlier name: another file's copy may be stored
 * under that name. The copy does not count until it is made again.
 */
void kvc_file_mark_old_name_both(struct kvc *k, struct kvc_node *n, unsigned tier);
/*
 * Returns true if a tier has the current generation. kvc_file_placed counts the mounted tiers, and
 * copies under the current name only; kvc_file_placed_anywhere counts all tiers and names.
 */
bool kvc_file_placed(const struct kvc *k, const struct kvc_node *n);
bool kvc_file_placed_anywhere(const struct kvc *k, const struct kvc_node *n);
/*
 * Returns true if a tier that survives power loss has the current generation, and no failed sync
 * may have lost it.
 */
bool kvc_file_placed_durably(const struct kvc *k, const struct kvc_node *n);
/* Creates an empty segment for a file that has none. Returns 0 or -errno. */
int kvc_file_segment_new_locked(struct kvc *k, struct kvc_node *n);
/*
 * Returns a descriptor of the segment, which n->segment.fd keeps, or -errno. It is writable only in
 * state OPEN.
 */
int kvc_file_node_fd_locked(struct kvc *k, struct kvc_node *n);
/* The file is about to be written: RESIDENT or BOTH -> OPEN. Returns 0 or -errno. */
int kvc_file_begin_write_locked(struct kvc *k, struct kvc_node *n);
/*
 * The last writer closed the file: OPEN -> RESIDENT or BOTH. If the pool cannot rename the segment,
 * the file stays OPEN and the committer tries again.
 */
void kvc_file_publish_locked(struct kvc *k, struct kvc_node *n);
/*
 * The file was compared with its lower copies, or the copies were made again: they can be trusted.
 * Sets the mtime of its segment, open as fd, back to the file's own.
 */
void kvc_file_compared_locked(struct kvc_node *n, int fd);
/* Publishes the file if it is OPEN, has a name and has no writer. */
void kvc_file_publish_if_closed_locked(struct kvc *k, struct kvc_node *n);
/* Removes all placements of the file. Extents are freed after the commit. */
void kvc_file_unplace_locked(struct kvc *k, struct kvc_node *n);
/*
 * Destroys a file that is dropped, or that has neither names nor opens. Its segment and copies are
 * freed after the commit.
 */
void kvc_file_destroy_locked(struct kvc *k, struct kvc_node *n);
/*
 * Lingering. A file in the pool lost its last name and nobody has it open. A client that looked the
 * name up before may be about to open it, so the file stays usable until the kernel forgets the
 * inode, a call waits for memory, or the second commit from now. Its bytes count as leaving.
 */
/* should it linger? */
bool kvc_file_should_linger_locked(const struct kvc *k, const struct kvc_node *n);
void kvc_file_linger_locked(struct kvc *k, struct kvc_node *n);
/* it was opened, or is destroyed */
void kvc_file_linger_over_locked(struct kvc *k, struct kvc_node *n);
/*
 * Called when a commit begins: destroys the files that have lingered since the commit before, or
 * all.
 */
void kvc_file_linger_end_locked(struct kvc *k, bool all);
/* Closes n->segment.fd and the backing file that is registered for passthrough. */
void kvc_file_close_segment_locked(struct kvc *k, struct kvc_node *n);

/* Closes n->segment.fd. */
void kvc_file_close_fd_locked(struct kvc_node *n);
/* The segment of a new file, open as fd, was made with this mtime. */
void kvc_file_created_locked(struct kvc_node *n, int fd, uint64_t mtime_ns);
/*
 * At the start: the pool has the file's segment, complete. Updates the sizes, and whether it must
 * be compared.
 */
void kvc_file_recovered_locked(struct kvc *k, struct kvc_node *n, const struct stat *st);
/* The segment is registered for passthrough under this number, above 0. */
void kvc_file_registered_locked(struct kvc *k, struct kvc_node *n, int backing);

/*
 * The object has a new generation, whose sum is not known. decoded: its segment is marked, because
 * it had decoded bytes when the file was opened for writing. Some of them may be left.
 */
static inline void kvc_file_set_generation_locked(struct kvc_node *n, uint64_t gen, bool decoded)
{
	n->object.gen = gen;
	n->object.has_sum = false;
	n->object.decoded = decoded;
	n->copies.lent_error_ppm = n->copies.lent_worst_ppm = 0;
}
/*
 * Does at least a part of an open file's segment have decoded bytes? No, if it was created again.
 */
static inline bool kvc_file_open_decoded(const struct kvc_node *n)
{
	return n->object.decoded && !n->segment.fresh;
}
/*
 * The segment is marked, and has bytes that returned from a copy coded with loss; *sum is their
 * sum. If the object's sum was another one or not known, records that in the catalog and returns
 * true. The caller has reserved memory for KVC_FILE_DECODED_CHANGES changes (kvc_catalog_spare).
 */
#define KVC_FILE_DECODED_CHANGES (1 + KVC_TIERS)
bool kvc_file_decoded_both(struct kvc *k, struct kvc_node *n, const struct kvc_sum *sum);
/*
 * Does the copy in this tier decode to bytes that differ from those in the pool? Then it is kept
 * only until a copy of the bytes in the pool replaces it.
 */
static inline bool kvc_file_differs_in(const struct kvc_node *n, unsigned tier)
{
	return n->object.decoded && n->in[tier].place.gen == n->object.gen &&
	       kvc_place_differs(&n->object, &n->in[tier].place);
}

/*
 * The object was loaded from another node's frame, which this tier has no copy of. Keeps the error
 * of its bytes until a copy records it.
 */
static inline void kvc_file_keep_error_locked(struct kvc_node *n, unsigned tier)
{
	n->copies.lent_error_ppm = n->in[tier].place.error_ppm;
	n->copies.lent_worst_ppm = n->in[tier].place.worst_ppm;
}
/*
 * Sets the error of the bytes of an object that is `decoded`, and of their worst block, as in
 * struct kvc_place. 0: not known.
 */
void kvc_file_error_locked(const struct kvc *k, const struct kvc_node *n, uint32_t *error_ppm,
			   uint32_t *worst_ppm);

/* Sets the sum of the object's bytes; NULL: not known. */
static inline void kvc_file_set_sum_locked(struct kvc_node *n, const struct kvc_sum *sum)
{
	n->object.has_sum = sum;
	if (sum)
		n->object.sum = *sum;
}

/* A copy of the open file's current contents was made, as this generation. */
static inline void kvc_file_snapshot_copied_locked(struct kvc_node *n, uint64_t gen, uint64_t size)
{
	kvc_file_set_generation_locked(n, gen, kvc_file_open_decoded(n));
	n->object.size = n->row.size = size;
	n->segment.fresh = n->segment.snapshot = false;
}

/* Sets the placement in this tier; NULL: none. */
void kvc_file_set_place_locked(struct kvc *k, struct kvc_node *n, unsigned tier,
			       const struct kvc_place *p);

/* A copy was made, and this transaction records it. */
static inline void kvc_file_copied_locked(struct kvc_node *n, uint64_t txn)
{
	n->object.lower = true;
	n->copies.txn = txn;
	n->copies.recorded = true;
}

/* Placements were removed: updates whether any is left. */
static inline void kvc_file_update_lower_locked(const struct kvc *k, struct kvc_node *n)
{
	n->object.lower = kvc_file_placed_anywhere(k, n);
}

/* The catalog has no placement rows of the file any more. */
static inline void kvc_file_unrecorded_locked(struct kvc_node *n)
{
	n->copies.recorded = false;
}

/*
 * Makes a file that another machine stored LOWER, with a copy in this tier. The caller counts the
 * copy (kvc_model_use_place_locked) once the file has a name.
 */
static inline void kvc_file_adopted_locked(struct kvc_node *n, unsigned tier,
					   const struct kvc_object_row *object,
					   const struct kvc_place *place)
{
	n->object = *object;
	n->in[tier].place = *place;
	n->copies.recorded = true;
}

/* Sets whether the copy in this tier must be made again. */
static inline void kvc_file_set_resealing_locked(struct kvc_node *n, unsigned tier, bool on)
{
	n->copies.resealing = (uint8_t)((n->copies.resealing & ~(1u << tier)) | (unsigned)on
											<< tier);
}

/* Sets whether the copy in this tier has an earlier name and is removed by the next copy. */
static inline void kvc_file_set_old_name_locked(struct kvc_node *n, unsigned tier, bool on)
{
	n->copies.old_name = (uint8_t)((n->copies.old_name & ~(1u << tier)) | (unsigned)on << tier);
}

/* No copy can be made in this tier until the file changes. */
static inline void kvc_file_uncopyable_locked(struct kvc_node *n, unsigned tier)
{
	n->copies.uncopyable |= (uint8_t)(1u << tier);
}

/* Copies may be tried again in all tiers. */
static inline void kvc_file_retry_copies_locked(struct kvc_node *n)
{
	n->copies.uncopyable = 0;
}

/* Sets whether no shared tier can have a copy. */
static inline void kvc_file_set_unshared_locked(struct kvc_node *n, bool unshared)
{
	n->copies.unshared = unshared;
}

/* Sets whether the segment must be compared with its lower copies. */
static inline void kvc_file_set_verify_locked(struct kvc_node *n, bool verify)
{
	n->segment.verify = verify;
}

/* Sets whether an fsync waits for a copy of the open file. */
static inline void kvc_file_set_snapshot_locked(struct kvc_node *n, bool snapshot)
{
	n->segment.snapshot = snapshot;
}

/*
 * The file's contents may have changed: copies that are being made are out of date. The file gets
 * an epoch that no other file of this process, and no earlier node of this file, ever had.
 */
void kvc_file_changed_locked(struct kvc_node *n);

/* Sets how many bytes, from the start of the file, are preallocated for plain writes. */
static inline void kvc_file_set_prepared_locked(struct kvc_node *n, uint64_t bytes)
{
	n->segment.prepared = bytes;
}

/* The file was cut, or a hole was made, from this byte on. */
static inline void kvc_file_cut_prepared_locked(struct kvc_node *n, uint64_t from)
{
	n->segment.prepared = kvc_min(n->segment.prepared, from / KVC_PAGE * KVC_PAGE);
}

/* The mode was set while the segment had this mtime. */
static inline void kvc_file_set_mode_time_locked(struct kvc_node *n, uint64_t mtime_ns)
{
	n->segment.mode_ns = mtime_ns;
}

/* The file got a temporary name at this time; 0: its name is not temporary. */
static inline void kvc_file_set_temporary_locked(struct kvc_node *n, uint64_t ns)
{
	n->segment.temporary_ns = ns;
}

#endif
