/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing accesses to the catalog, see access_save.h.
 *
 * Every open changes the row of its chunk: the time of the last use, the number of hits, the rank,
 * and the state of the policies. These changes are hints, and there can be 100,000 of them a
 * second. Therefore they are not part of the transactions that write names. The committer writes
 * them in transactions of their own, bypassing the overlay, while no name waits for a commit:
 *
 *   - at most ROWS chunks in a transaction, which takes a millisecond or two;
 *   - at most RATE bytes a second, counting both the log and its copy into the database (up to
 *     BURST can be saved up). The bytes are counted (access_bytes) and are part of daily=;
 *   - first the chunks that leave memory. At most RELEASED of them wait; beyond that the accesses
 *     of the oldest are lost;
 *   - then chunks that stay in memory, but only if the row's time is behind by more than an eighth
 *     of the chunk's age (kvc_committer_access_due), so that a hot chunk is written ever more
 *     rarely.
 *
 * A tier that is trimmed by rank reads the ranks from the catalog. If the trimmer finds a chunk
 * whose rank in memory is later, it skips the chunk and requests its row (the list `wanted`). These
 * rows are written regardless of the rate, as part of the cost of trimming. Until then the trimmer
 * takes no chunk that follows the skipped one in the order of ranks.
 *
 * If names are committed without a pause, one transaction a second is still written, and more if a
 * trimmer needs rows.
 */
#include "access_save.h"

#include "committer.h"
#include "log.h"

#include <string.h>

#define ROWS 64u
#define ROWS_WANTED 256u
#define LOOKS 512u /* chunks checked under one hold of k->lock */
#define RATE (384 << 10)
#define BURST (4 << 20)
#define TURN_NS 20000000ull /* between two transactions */
#define OVERDUE_NS 1000000000ull
#define RELEASED 65536u
#define ROWS_LAST 16384u

struct batch {
	struct kvc_chunk *c[ROWS_WANTED];
	struct kvc_chunk_row row[ROWS_WANTED];
	size_t n;
};

/* ---- a transaction ---- */

static void add_credit_locked(struct kvc_accesses *a, uint64_t now)
{
	uint64_t ms = (now - a->credit_ns) / 1000000;
	int64_t credit; /* signed: kvc_min would treat a debt as a large credit */

	if (!a->credit_ns || ms > 3600000) {
		a->credit = BURST;
		a->credit_ns = now;
		return;
	}
	credit = a->credit + (int64_t)(ms * RATE / 1000);
	a->credit = credit < BURST ? credit : BURST;
	a->credit_ns += ms * 1000000;
}

/* Adds the chunk's row to the batch. The chunk stays in memory until the batch is written. */
static void batch_add(struct kvc *k, struct batch *b, struct kvc_chunk *c)
{
	kvc_committer_access_unlink_locked(k, c);
	c->due = false;
	c->stored_in = c->last_request;
	c->refs++;
	kvc_chunk_row(k, c, &b->row[b->n]);
	b->c[b->n++] = c;
}

/*
 * Gives up the accesses of the oldest chunks that left memory, if more than RELEASED wait. Handles
 * at most LOOKS chunks.
 */
static void forget_oldest_locked(struct kvc *k)
{
	struct kvc_accesses *a = &k->committer->accesses;

	for (unsigned i = 0; i < LOOKS && a->nreleased > RELEASED; i++) {
		struct kvc_chunk *c = kvc_of(a->released.next, struct kvc_chunk, dirty_link);

		kvc_committer_access_unlink_locked(k, c);
		kvc_count(&k->stats, accesses_forgotten);
		if (c->refs)
			kvc_committer_access_held_locked(k, c);
		else
			kvc_chunk_settle_locked(k, c);
	}
}

/* Collects the rows of the next transaction. */
static void collect_locked(struct kvc *k, struct batch *b)
{
	struct kvc_accesses *a = &k->committer->accesses;
	struct kvc_list *last = a->held.prev;
	bool more = !kvc_list_empty(&a->held);

	while (b->n < ROWS_WANTED && !kvc_list_empty(&a->wanted))
		batch_add(k, b, kvc_of(a->wanted.next, struct kvc_chunk, dirty_link));
	if (a->credit <= 0)
		return;
	while (b->n < ROWS && !kvc_list_empty(&a->released))
		batch_add(k, b, kvc_of(a->released.next, struct kvc_chunk, dirty_link));
	for (unsigned i = 0; more && i < LOOKS && b->n < ROWS; i++) {
		struct kvc_chunk *c = kvc_of(a->held.next, struct kvc_chunk, dirty_link);

		more = a->held.next != last;
		if (kvc_committer_access_due(c)) {
			batch_add(k, b, c);
		} else { /* checked again after all others */
			kvc_list_del(&c->dirty_link);
			kvc_list_add_tail(&a->held, &c->dirty_link);
		}
	}
}

static int row_by_id(const void *x, const void *y)
{
	const struct kvc_chunk_row *a = x, *b = y;

	return a->id < b->id ? -1 : a->id > b->id;
}

/* Releases the references of the batch. written: the batch was written. */
static void settle_batch_locked(struct kvc *k, struct batch *b, bool written)
{
	for (size_t i = 0; i < b->n; i++) {
		struct kvc_chunk *c = b->c[i];

		c->refs--;
		if (written)
			c->stored_ns = kvc_max(c->stored_ns, b->row[i].last_ns);
		else if (!c->row_deleted && !c->dirty)
			kvc_committer_access_held_locked(k, c);
		kvc_chunk_settle_locked(k, c);
	}
}

/* Called without locks. */
static int write_access_rows(struct kvc *k, const struct kvc_chunk_row *row, size_t n)
{
	uint64_t bytes = 0;
	int err;

	kvc_catalog_gate(k->cat);
	err = kvc_catalog_put_accesses(k->cat, row, n, &bytes);
	kvc_lock(k);
	kvc_count_by(&k->stats, access_bytes, bytes);
	kvc_count_by(&k->stats, access_rows, err ? 0 : n);
	kvc_wear_access_add_locked(k, bytes);
	k->committer->accesses.credit -= (int64_t)bytes;
	kvc_unlock(k);
	return err;
}

void kvc_access_save_some(struct kvc *k)
{
	struct kvc_chunk_row sorted[ROWS_WANTED];
	struct batch b = { .n = 0 };
	int err = 0;

	kvc_lock(k);
	k->committer->accesses.turn_ns = kvc_mono_ns();
	add_credit_locked(&k->committer->accesses, kvc_mono_ns());
	forget_oldest_locked(k);
	if (!kvc_catalog_accepts(k->cat, false))
		collect_locked(k, &b);
	kvc_unlock(k);
	if (!b.n)
		return;
	memcpy(sorted, b.row, b.n * sizeof *sorted);
	qsort(sorted, b.n, sizeof *sorted, row_by_id);
	err = write_access_rows(k, sorted, b.n);
	kvc_lock(k);
	settle_batch_locked(k, &b, !err);
	kvc_unlock(k);
}

uint64_t kvc_access_save_pause_locked(struct kvc *k, uint64_t idle)
{
	const struct kvc_accesses *a = &k->committer->accesses;

	if (kvc_list_empty(&a->wanted) &&
	    ((kvc_list_empty(&a->released) && kvc_list_empty(&a->held)) || a->credit <= 0))
		return idle;
	return TURN_NS;
}

bool kvc_access_save_overdue(struct kvc *k)
{
	const struct kvc_accesses *a = &k->committer->accesses;
	bool is;

	kvc_lock(k);
	is = kvc_list_empty(&k->committer->sync_waiters) && !k->committer->now &&
	     (kvc_mono_ns() - a->turn_ns > OVERDUE_NS ||
	      (!kvc_list_empty(&a->wanted) && kvc_mono_ns() - a->turn_ns > TURN_NS));
	kvc_unlock(k);
	return is;
}

/* ---- the end ---- */

static size_t count_queued(struct kvc *k)
{
	size_t n = 0;

	kvc_table_each(&k->chunks->table, s)
		n += kvc_of(s, struct kvc_chunk, slot)->accesses_only;
	return n;
}

/*
 * Writes in the order of ids, so that a page of the database is written once for all of its rows.
 */
void kvc_access_save_all(struct kvc *k)
{
	struct kvc_chunk_row *row;
	size_t n = 0, capacity;
	int err = 0;

	kvc_lock(k);
	capacity = count_queued(k);
	row = capacity ? malloc(capacity * sizeof *row) : NULL;
	kvc_table_each(&k->chunks->table, s) {
		struct kvc_chunk *c = kvc_of(s, struct kvc_chunk, slot);

		if (row && c->accesses_only && c->use.last_ns != c->stored_ns && n < capacity)
			kvc_chunk_row(k, c, &row[n++]);
	}
	kvc_unlock(k);
	if (capacity && !row)
		err = -ENOMEM;
	if (n)
		qsort(row, n, sizeof *row, row_by_id);
	for (size_t i = 0; i < n && !err; i += ROWS_LAST)
		err = write_access_rows(k, row + i, kvc_min(n - i, (size_t)ROWS_LAST));
	if (err)
		kvc_warn("cannot save the latest accesses of %zu chunks: %s; the next mount may "
			 "evict chunks in another order",
			 capacity, strerror(-err));
	free(row);
}
