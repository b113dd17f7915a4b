/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses, see access.h. Each client has a struct kvc_client; a new client reuses that of the
 * least recently active client. A client's current request is reported to the replacers of the pool
 * and of the disk tier.
 */
#include "access.h"

#include "admission.h"
#include "clock.h"
#include "committer.h"
#include "disk_retention.h"
#include "gone.h"
#include "leaving.h"
#include "node.h"
#include "retention.h"
#include "chain_infer.h"

#include <string.h>

#define PAUSE_NS 1000000000ull /* a pause after which the request has ended */
/* maximum number of chunks of a request, since its end is work under the lock */
#define LONGEST 512u
/* maximum length of a chain, which also ends a cycle that a client may have reported */
#define CHAIN_MAX 8192u
#define AT_ONCE 32u      /* chunks under one hold of the locks */
#define BETWEEN 32u      /* chunks of a prompt that another client may have created first */
#define STAMPS 8192u     /* chunks in one call, since the calling thread has other work */
#define LEASE (1u << 31) /* bit in the id of a lease; no thread has it in its id */

_Static_assert(KVC_CHAIN_INFER_THREAD == KVC_CLIENTS_END && KVC_CHAIN_INFER_THREAD < LEASE,
	       "client ids");

/* Adds the access to the access ring, if a reader is open. */
static void ring_record(struct kvc *k, struct kvc_client *u, const struct kvc_chunk *c,
			uint64_t file, bool made, uint64_t ns)
{
	if (!k->access_ring || (made ? u->recorded : u->ahead))
		return;
	u->recorded |= made;
	kvc_access_ring_put_locked(k, &(struct kvc_access_item){
					      .ns = ns,
					      .id = c->id,
					      .file = file,
					      .bytes = c->bytes,
					      .parent = c->parent,
					      .client = u->id,
					      .what = (made ? KVC_ACCESS_CREATED : 0u) |
						      (u->id & LEASE ? KVC_ACCESS_LEASED : 0u) |
						      (kvc_replacers_infer_parents(k, c->policy)
							       ? KVC_ACCESS_INFERRED
							       : 0u),
				      });
}

/* Returns the time of the access that is being recorded. */
static uint64_t happened_ns(const struct kvc *k)
{
	return k->chunks->happened_mono_ns ?: kvc_mono_ns();
}

/* ---- reports to the policies ---- */

static void request_begin(struct kvc *k, struct kvc_client *u, unsigned class)
{
	for (int i = 0; i < KVC_CACHES; i++) {
		struct kvc_replacer *replacer = kvc_replacers_of_locked(k, (enum kvc_cache)i,
									class);

		if (!replacer)
			continue;
		kvc_replacer_begin(replacer, &u->request[i], happened_ns(k) / 1000000);
		u->request[i].loose = u->loose;
	}
	u->class = class;
	u->serial = ++k->access->serial;
	u->n = 0;
}

/*
 * Ends the client's request. The policies update the state of its chunks; for chunks in memory, the
 * new state must be written to their rows. The chunks of a request are stamped in reverse order:
 * the first chunk of the prompt gets the latest stamp, so that by rank no chunk is evicted before
 * its children.
 */
static void request_end(struct kvc *k, struct kvc_client *u)
{
	struct kvc_request *one = &u->request[KVC_CACHE_POOL];
	bool several = one->nr && one->n > 1;

	for (int i = 0; i < KVC_CACHES; i++) {
		struct kvc_request *r = &u->request[i];

		if (!r->nr)
			continue;
		kvc_replacer_end(k->replacers->replacer[i][u->class], r);
		for (uint32_t j = r->n; j-- > 0;) {
			struct kvc_chunk *c = kvc_chunk_find_locked(k, r->touched[j].id);

			if (c && several && r == one)
				kvc_chunk_stamp_locked(k, c);
			if (c) /* write the row again if it was written during the request */
				c->due |= c->stored_in == u->serial;
			if (c)
				kvc_chunk_dirty_locked(k, c);
			if (c && !j && r == one)
				kvc_access_ancestors_add_locked(k, c);
		}
	}
	u->serial = 0;
}

/*
 * Reports a use to the replacers. made: the request created the chunk, and it is still in the pool.
 */
static void request_use(struct kvc *k, struct kvc_client *u, struct kvc_chunk *c, bool made)
{
	c->last_request = u->serial;
	u->noted = c->id;
	u->n++;
	for (int i = 0; i < KVC_CACHES; i++) {
		struct kvc_request *r = &u->request[i];

		if (!r->nr)
			continue;
		if (i == KVC_CACHE_POOL)
			kvc_retention_used_locked(k, r, c, made, u->id);
		else
			kvc_disk_retention_used_locked(k, r, c, made, u->id);
	}
}

/* A use by an unknown client: a request by itself. */
static void use_alone(struct kvc *k, struct kvc_chunk *c, uint64_t file)
{
	struct kvc_client u = { 0 };

	ring_record(k, &u, c, file, false, happened_ns(k));
	request_begin(k, &u, c->policy);
	request_use(k, &u, c, false);
	request_end(k, &u);
	for (int i = 0; i < KVC_CACHES; i++)
		kvc_replacer_request_free(&u.request[i]);
}

/*
 * The parent of the chunk was reported. Returns true if the chunk continues the prompt of the
 * client's request: it is a descendant of the chunk that the client used last. There may be a few
 * chunks between them, which another client is creating at the same time.
 */
static bool continues_told(struct kvc *k, const struct kvc_client *u, const struct kvc_chunk *c)
{
	uint64_t id = c->parent & ~KVC_TOLD;

	for (unsigned i = 0; i < BETWEEN && id && id != u->noted; i++) {
		c = kvc_chunk_find_locked(k, id);
		id = c ? c->parent & ~KVC_TOLD : 0;
	}
	return id && id == u->noted;
}

/*
 * Determines the chunk's parent, as a client reported it or as inferred from the order of calls.
 * Returns true if a request begins with this chunk.
 */
static bool find_parent(struct kvc *k, struct kvc_client *u, struct kvc_chunk *c, bool made,
			uint64_t ns)
{
	struct kvc_inferred seen = { .parent = c->parent & ~KVC_TOLD };

	u->loose = false;
	if (!kvc_replacers_infer_parents(k, c->policy) ||
	    (!k->access->infer && kvc_chain_infer_open(&k->access->infer)))
		return !seen.parent || seen.parent != u->noted;
	kvc_chain_infer_access(k->access->infer, u->id, c->id, ns, !made || c->parent, seen.parent,
			       &seen);
	u->loose = seen.unsure && !(u->id & LEASE) && !(c->parent & KVC_TOLD);
	if (seen.parent != c->parent && !(c->parent & KVC_TOLD)) {
		c->parent = seen.parent;
		/* inferred, so only a hint: it is written with the accesses */
		c->due = true;
		kvc_chunk_dirty_locked(k, c);
		kvc_replacers_set_parent_locked(k, c, seen.parent);
	}
	if (c->parent & KVC_TOLD)
		return !continues_told(k, u, c);
	return seen.begins;
}

/*
 * A chunk was created. If a chunk with its name was dropped earlier, the policies go on with what
 * they know about that one.
 */
static void recall(struct kvc *k, const struct kvc_chunk *c)
{
	uint64_t earlier = kvc_gone_earlier_take_locked(k, c->id);

	if (earlier)
		kvc_replacers_rename_locked(k, earlier, c);
}

static void report_use(struct kvc *k, struct kvc_client *u, struct kvc_chunk *c, bool made,
		       uint64_t ns)
{
	bool again = u->serial && c->last_request == u->serial, begins;
	bool refused[KVC_CACHES] = { false };

	ring_record(k, u, c, made ? 0 : c->first_file, made, ns);
	begins = find_parent(k, u, c, made, ns) || again;

	if (u->serial && (begins || u->class != c->policy || u->n >= LONGEST)) {
		/* a request cut at LONGEST continues in the next one, which inherits the refusal */
		for (int i = 0; i < KVC_CACHES; i++)
			refused[i] = !begins && u->class == c->policy && u->request[i].refused;
		request_end(k, u);
	}
	if (!u->serial) {
		request_begin(k, u, c->policy);
		for (int i = 0; i < KVC_CACHES; i++)
			u->request[i].refused = refused[i];
	}
	if (made)
		recall(k, c);
	request_use(k, u, c, made && c->nnodes && !c->detached);
}

/* ---- clients ---- */

static uint32_t client_id(struct kvc *k, uint64_t caller)
{
	uint32_t process = (uint32_t)caller, thread = (uint32_t)(caller >> 32);

	return thread && k->access->infer
		       ? kvc_chain_infer_client(k->access->infer, process, thread)
		       : process;
}

/* Reports the chunk that the client was creating. */
static void report_made(struct kvc *k, struct kvc_client *u)
{
	struct kvc_chunk *c = u->fresh;

	if (!c)
		return;
	u->fresh = NULL;
	c->fresh = false;
	if (!c->row_deleted)
		report_use(k, u, c, true, u->made_ns);
	if (c->standing == KVC_ENTERS) /* out of memory for the request: no policy decided */
		kvc_leaving_kept_locked(k, c);
	c->refs--;
	kvc_chunk_settle_locked(k, c);
}

static bool is_settled_early(const struct kvc_chunk *c)
{
	return c && c->fresh && (c->parent & KVC_TOLD);
}

/*
 * The same, after the chunks before it in the prompt: other clients may create chunks of this
 * prompt at the same time. So no policy gets a chunk before its parent.
 */
static void report_fresh(struct kvc *k, struct kvc_client *u)
{
	struct kvc_chunk *above[KVC_CLIENTS], *c = u->fresh;
	unsigned n = 0;

	while (c && n < KVC_CLIENTS) {
		c = kvc_chunk_find_locked(k, c->parent & ~KVC_TOLD);
		if (!is_settled_early(c) || c == u->fresh)
			break;
		above[n++] = c;
	}
	while (n--)
		for (int i = 0; i < KVC_CLIENTS && above[n]->fresh; i++)
			if (k->access->client[i].fresh == above[n])
				report_made(k, &k->access->client[i]);
	report_made(k, u);
}

static void client_idle(struct kvc *k, struct kvc_client *u)
{
	report_fresh(k, u);
	if (u->serial)
		request_end(k, u);
	u->last = u->noted = 0;
}

static struct kvc_client *client_find(struct kvc *k, uint32_t id)
{
	struct kvc_access_tracker *tracker = k->access;

	/* consecutive calls often come from one thread */
	if (tracker->ids[tracker->latest] == id)
		return &tracker->client[tracker->latest];
	for (unsigned i = 0; i < KVC_CLIENTS; i++)
		if (tracker->ids[i] == id) {
			tracker->latest = i;
			return &tracker->client[i];
		}
	return NULL;
}

/* Returns the client's record; a new client takes over the record that was idle for longest. */
static struct kvc_client *client_of(struct kvc *k, uint32_t id)
{
	struct kvc_client *u = client_find(k, id), *old = &k->access->client[0];

	if (u)
		return u;
	for (int i = 1; i < KVC_CLIENTS; i++)
		if (k->access->client[i].last_ns < old->last_ns)
			old = &k->access->client[i];
	client_idle(k, old);
	old->id = k->access->ids[old - k->access->client] = id;
	old->ahead = false;
	return old;
}

/*
 * The client created the chunk and may be using it for the first time now. Returns true if this
 * counts as another use: the order of the chunks in the request is not known, the client has used
 * another chunk since, and the chunk's last use was not a moment ago.
 */
static bool is_another_use(const struct kvc_client *u, const struct kvc_chunk *c, bool soon)
{
	return u->loose && !soon && !c->first_file && u->last != c->id;
}

/*
 * Returns the client if it goes on to another chunk, or uses a chunk of its request again; NULL if
 * the call belongs to the chunk's current use. soon: the chunk's last use was a moment ago.
 */
static struct kvc_client *client_uses(struct kvc *k, struct kvc_chunk *c, uint64_t file,
				      uint32_t id, bool soon)
{
	struct kvc_client *u = client_of(k, id);
	uint64_t now = happened_ns(k);
	bool made;

	if (now > u->last_ns && now - u->last_ns > PAUSE_NS)
		client_idle(k, u);
	u->last_ns = now;
	/* whatever first_file is by now: another client may have used the chunk since */
	made = u->last == c->id && u->made == c->id;
	if ((u->last == c->id || (u->serial && c->last_request == u->serial)) &&
	    (!file || ((made || c->first_file != file) && !is_another_use(u, c, soon)))) {
		/*
		 * to the policies this is the same request; a reader of the access ring may take it
		 * for a new one
		 */
		if (k->access_ring && u->last != c->id && file && !c->first_file) {
			if (u->fresh)
				ring_record(k, u, u->fresh, 0, true, u->made_ns);
			ring_record(k, u, c, file, false, now);
		}
		return NULL;
	}
	report_fresh(k, u);
	u->last = c->id;
	u->made = 0;
	c->first_file = file;
	return u;
}

void kvc_access_settle_locked(struct kvc *k, struct kvc_chunk *c)
{
	for (int i = 0; i < KVC_CLIENTS && c->fresh; i++)
		if (k->access->client[i].fresh == c)
			report_fresh(k, &k->access->client[i]);
}

uint64_t kvc_access_lease_client_locked(struct kvc *k)
{
	return LEASE | k->access->leases++;
}

/*
 * Is this access a use of its own? Returns false if the client's last counted access was to another
 * file of the same chunk: both files are parts of one use.
 */
static bool is_own_use(const struct kvc_client *u, const struct kvc_chunk *c, uint64_t file)
{
	return u->counted != c->id || u->counted_file == file;
}

bool kvc_access_record_locked(struct kvc *k, struct kvc_chunk *c, uint64_t file, uint64_t caller,
			      bool hit)
{
	uint32_t client = client_id(k, caller);
	/* a use soon after another one is the same use */
	bool soon = kvc_chunk_young(k, c->use.last_ns), asks = hit && !soon;
	struct kvc_client *u = NULL;
	bool uses = true;

	if (hit && !soon)
		kvc_clock_since(k, &k->stats.use_gap, c->use.last_ns);
	kvc_chunk_accessed_locked(k, c, hit);
	u = client ? client_find(k, client) : NULL;
	if (client && is_settled_early(c) && !(u && u->fresh == c))
		kvc_access_settle_locked(k, c);
	/* its place in a prompt is not known yet, but another client may have requested it */
	if (c->fresh) {
		asks = asks && client && !(u && u->fresh == c);
		uses = !u || is_own_use(u, c, file);
	} else if (!client) {
		use_alone(k, c, file);
	} else if ((u = client_uses(k, c, file, client, soon))) {
		u->ahead = !hit;
		report_use(k, u, c, false, u->last_ns);
		asks = hit;
	} else {
		u = client_find(k, client);
		/* the request created the chunk: the policies see one use, the counters two */
		uses = u && file && !c->first_file && is_own_use(u, c, file);
		asks = false;
	}
	if (uses && u) {
		u->counted = c->id;
		u->counted_file = file;
	}
	if (asks)
		kvc_admission_requested_locked(k, c);
	return uses;
}

static void chunk_made(struct kvc *k, struct kvc_chunk *c, uint32_t client)
{
	struct kvc_client *u;

	recall(k, c);
	if (c->fresh || !client || !(u = client_uses(k, c, 0, client, true)))
		return;
	if (c->use.created_ns || kvc_replacers_has_locked(k, KVC_CACHE_POOL, c)) {
		report_use(k, u, c, false, u->last_ns);
		return;
	}
	u->fresh = c;
	u->made = c->id;
	u->recorded = false;
	u->made_ns = u->last_ns;
	c->fresh = true;
	kvc_leaving_enters_locked(k, c);
	c->refs++;
}

void kvc_access_made_locked(struct kvc *k, struct kvc_chunk *c, uint64_t caller)
{
	chunk_made(k, c, client_id(k, caller));
}

void kvc_access_moved_locked(struct kvc *k, uint64_t from, struct kvc_chunk *c, uint64_t caller)
{
	uint32_t client = client_id(k, caller);
	struct kvc_client *u = client ? client_find(k, client) : NULL;
	struct kvc_chunk *was = u ? u->fresh : NULL;

	if (!was || was->id != from || c->fresh || c->use.created_ns) {
		chunk_made(k, c, client);
		return;
	}
	u->fresh = c;
	u->made = c->id;
	u->recorded = false;
	u->last = c->id;
	c->fresh = true;
	kvc_leaving_enters_locked(k, c);
	c->refs++;
	c->parent = c->parent ?: was->parent;
	was->fresh = false;
	if (was->standing == KVC_ENTERS)
		kvc_leaving_kept_locked(k, was);
	was->refs--;
	kvc_chunk_settle_locked(k, was);
}

void kvc_access_set_parent_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent)
{
	c->parent = parent | KVC_TOLD;
	c->known = false; /* the next commit writes the row */
	kvc_chunk_dirty_locked(k, c);
	kvc_replacers_set_parent_locked(k, c, parent);
	if (!c->fresh) /* its request may have ended, for example if stores wait for memory */
		kvc_access_ancestors_add_locked(k, c);
}

void kvc_access_renamed_locked(struct kvc *k, uint64_t ino)
{
	struct kvc_access_item u = { .what = KVC_ACCESS_RENAMED };

	if (!k->access_ring)
		return;
	u.id = kvc_chunk_find_locked(k, ino) ? ino : 0;
	kvc_access_ring_put_locked(k, &u);
}

void kvc_access_request_end_locked(struct kvc *k, uint64_t caller)
{
	uint32_t client = client_id(k, caller);
	struct kvc_client *u = client_find(k, client);

	if (!u)
		return;
	client_idle(k, u);
	if (k->access_ring)
		kvc_access_ring_put_locked(k, &(struct kvc_access_item){ .ns = kvc_mono_ns(),
									 .client = client,
									 .what = KVC_ACCESS_END });
}

void kvc_access_tick_locked(struct kvc *k)
{
	uint64_t now = kvc_mono_ns();

	for (int i = 0; i < KVC_CLIENTS; i++) {
		struct kvc_client *u = &k->access->client[i];

		if ((u->fresh || u->serial) && now - u->last_ns > PAUSE_NS)
			client_idle(k, u);
	}
}

bool kvc_access_is_last_locked(const struct kvc *k, const struct kvc_chunk *c)
{
	for (int i = 0; i < KVC_CLIENTS; i++)
		if (k->access->client[i].serial && k->access->client[i].noted == c->id)
			return true;
	return false;
}

bool kvc_access_end_all_locked(struct kvc *k)
{
	bool any = false;

	for (int i = 0; i < KVC_CLIENTS; i++) {
		struct kvc_client *u = &k->access->client[i];

		any |= u->fresh || u->serial;
		if (u->fresh || u->serial)
			client_idle(k, u);
	}
	return any;
}

void kvc_access_free(struct kvc *k)
{
	for (int i = 0; i < KVC_CLIENTS; i++) {
		struct kvc_client *u = &k->access->client[i];

		client_idle(k, u);
		for (int j = 0; j < KVC_CACHES; j++)
			kvc_replacer_request_free(&u->request[j]);
	}
	if (k->access->infer)
		kvc_chain_infer_close(k->access->infer);
	free(k->access_ring);
}

/* ---- ancestors ---- */

void kvc_access_ancestors_add_locked(struct kvc *k, const struct kvc_chunk *c)
{
	struct kvc_ancestors *a = &k->access->ancestors;
	uint64_t parent = c->parent & ~KVC_TOLD;
	const struct kvc_chunk *p = parent ? kvc_chunk_find_locked(k, parent) : NULL;

	if (!parent || (p && p->use.last_ns > c->use.last_ns) || a->n == KVC_ACCESS_ANCESTORS)
		return;
	a->of[a->n].id = c->id;
	a->of[a->n++].parent = parent;
}

/*
 * Stamps the chunk if it was not used after `than`. If than is 0, stamps nothing. Gets the chunk's
 * last use and its parent.
 */
static int stamp_both(struct kvc *k, uint64_t id, uint64_t than, uint64_t *last, uint64_t *parent)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	struct kvc_chunk_row r;
	int err = 0;

	if (c)
		kvc_chunk_row(k, c, &r);
	else
		err = kvc_chunk_get(k->cat, id, &r);
	if (err)
		return err;
	if (than && r.last_ns > than)
		return -EEXIST;
	*parent = r.parent & ~KVC_TOLD;
	*last = r.last_ns;
	if (!than)
		return 0;
	if (!c && !(c = kvc_chunk_new_locked(k, id, &r)))
		return -ENOMEM;
	kvc_chunk_stamp_locked(k, c);
	kvc_chunk_dirty_locked(k, c);
	*last = c->use.last_ns;
	kvc_chunk_settle_locked(k, c); /* the row is written with the accesses, not at once */
	return 0;
}

/* Walks up from the chunk. Returns the number of chunks visited. */
static unsigned walk_up(struct kvc *k, uint64_t id)
{
	uint64_t last = 0, first = id;
	unsigned n = 0;

	kvc_lock_both(k);
	while (id && (id != first || !n) && n++ < CHAIN_MAX) {
		if (kvc_accepts(k, false) || stamp_both(k, id, last, &last, &id))
			break;
		k->access->ancestors.next = id;
		if (n % AT_ONCE == 0)
			kvc_pause_both(k);
	}
	k->access->ancestors.next = 0;
	kvc_unlock_both(k);
	return n;
}

void kvc_access_ancestors_stamp(struct kvc *k)
{
	struct kvc_ancestors *a = &k->access->ancestors;
	uint64_t id;

	for (unsigned n = 0; n < STAMPS; n += walk_up(k, id)) {
		kvc_lock(k);
		/* any order will do: each walk ends at an ancestor with a later use */
		id = a->n ? a->of[--a->n].id : 0;
		a->next = id ? a->of[a->n].parent : 0;
		kvc_unlock(k);
		if (!id)
			return;
	}
}
