/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a trace against a policy. See replay.h.
 *
 * If the parents of chunks are those of the trace, or unknown, the chunks of a request are accessed
 * one after another. With several clients, each of the concurrent requests first accesses its
 * cached chunks; then they take turns to store a few of their other chunks. If the parents are
 * inferred, the trace becomes the calls of a process: it opens the cached chunks of a prompt in
 * order, computes, and then creates the other chunks in order. chain_infer.h decides where a
 * request begins and which chunk is the parent of which.
 *
 * As in the daemon, models with their own policies are in classes. Each class has its own replacer
 * in each cache, and the classes give victims in turns (replacer.h).
 */
#include "chain_infer.h"
#include "policy.h"
#include "replay.h"
#include "replacer.h"

#include <math.h>
#include <string.h>

#define OPEN_NS 1000000ull     /* time between two opens */
#define CREATE_NS 5000000ull   /* time between two creates */
#define COMPUTE_NS 30000000ull /* time to compute a chunk */
#define STEP 16                /* chunks of a prompt that are computed at once */
#define LONGEST 512u           /* chunks of a request, as in the daemon (access/access.c) */
#define PROCESS 1

/* A simulated cache. */
struct cache {
	struct kvc_replacer *replacer; /* of the current request's class; NULL: no such cache */
	struct kvc_replacer *replacers[KVC_CLASSES];
	bool has_classes; /* several classes exist */
	struct kvc_replacer_turns turns;
	const struct cache *pool;                     /* its chunks decide the turns */
	struct kvc_request *request;                  /* the current one of requests[] */
	struct kvc_request requests[1 + KVM_THREADS]; /* the process's and its threads' */
	unsigned class[1 + KVM_THREADS];              /* the class for each current request */
	uint64_t capacity, used;
	const uint64_t *bytes;       /* sizes of chunks; NULL: each counts as 1 */
	bool whole[1 + KVM_THREADS]; /* the chunks of each request so far are all in this cache */
	uint64_t refused;            /* chunks that the policy did not keep */
};

struct run {
	const struct kvm_trace *trace;
	const struct kvm_setup *setup;
	struct cache cache[2];
	unsigned class;                /* of the current request */
	struct kvm_part *part, *parts; /* results of its model, and of all models */
	/* The rest is for learned chains. */
	struct kvc_chain_infer *order;
	unsigned learns; /* a bit for each class whose policy learns chains, as in a mount */
	uint64_t now_ns, chance;
	uint32_t *parent; /* learned parent of each chunk, as its id (number plus 1); 0: none */
	struct kvm_learned learned;
};

/* Returns the policy of a class. Class 0 has the policy of the cache. */
static unsigned policy_of(const struct kvc_replacer_conf *conf, unsigned class)
{
	return class ? class - 1 : conf->policy;
}

/* Opens a cache. classes: a bit for each class in use. */
static int open_cache(struct cache *c, const struct kvc_replacer_conf *conf, unsigned classes,
		      uint64_t capacity, const uint64_t *bytes, const struct cache *pool)
{
	int err = 0;

	*c = (struct cache){ .capacity = capacity, .bytes = bytes, .pool = pool };
	c->request = &c->requests[0];
	c->has_classes = classes & (classes - 1);
	for (unsigned i = 0; i < KVC_CLASSES && capacity && !err; i++)
		if (classes & 1u << i) {
			struct kvc_replacer_conf own = *conf;

			own.policy = policy_of(conf, i);
			err = kvc_replacer_open(&c->replacers[i], &own);
		}
	return err;
}

/* Returns the flag of the current request. */
static bool *whole_of(struct cache *c)
{
	return &c->whole[c->request - c->requests];
}

static uint64_t chunk_size(const struct cache *c, uint64_t id)
{
	return c->bytes ? c->bytes[id - 1] : 1;
}

static void close_cache(struct cache *c)
{
	for (int i = 0; i < KVC_CLASSES; i++)
		kvc_replacer_close(c->replacers[i]);
	for (int i = 0; i <= KVM_THREADS; i++)
		kvc_replacer_request_free(&c->requests[i]);
}

/* Sets the model of the following calls to that of request r. */
static void set_model(struct run *u, uint32_t r)
{
	uint32_t model = u->trace->model[r];

	u->part = &u->parts[model];
	u->class = u->setup->class ? u->setup->class[model] : 0;
	for (int i = 0; i < 2; i++)
		u->cache[i].replacer = u->cache[i].replacers[u->class];
}

static bool has_chunk(const struct cache *c, uint64_t id)
{
	bool is = c->replacer && kvc_replacer_has(c->replacer, id);

	for (int i = 0; i < KVC_CLASSES && c->has_classes && !is; i++)
		is = c->replacers[i] && kvc_replacer_has(c->replacers[i], id);
	return is;
}

/* The chunks of this access and of those that follow before `to` are accessed next. */
static void expect_chunks(const struct run *u, uint64_t a, uint64_t to)
{
	uint64_t id[KVC_REPLACER_EXPECT];
	uint32_t n = 0;

	for (; a < to && n < KVC_REPLACER_EXPECT; a++)
		id[n++] = u->trace->id[a] + 1ull;
	for (int i = 0; i < 2; i++)
		if (u->cache[i].replacer)
			kvc_replacer_expect(u->cache[i].replacer, id, n);
}

/* Evicts one chunk. Returns false if there is no victim. */
static bool evict_chunk(struct cache *c)
{
	struct kvc_replacer *replacer = c->replacer;
	uint64_t victim;
	unsigned class;

	if (c->has_classes) {
		victim = kvc_replacer_turns_victim(&c->turns, c->replacers, &class);
		if (!victim)
			return false;
		replacer = c->replacers[class];
		kvc_replacer_turns_advance(&c->turns, class,
					   kvc_replacer_chunks(c->pool->replacers[class]));
	} else {
		victim = kvc_replacer_victim(replacer);
	}
	if (!victim)
		return false;
	kvc_replacer_del(replacer, victim, true);
	c->used -= chunk_size(c, victim);
	return true;
}

/*
 * Accesses a chunk, and adds it if it is not in the cache. Returns 1 for a hit, 0 for a miss, or
 * -ENOMEM.
 */
static int access_chunk(struct cache *c, uint64_t id, uint64_t parent)
{
	uint64_t bytes;
	int err;

	if (!c->replacer)
		return 0;
	bytes = chunk_size(c, id);
	if (kvc_replacer_access(c->replacer, c->request, id))
		return 1;
	if (parent && !*whole_of(c))
		return 0; /* useless in this cache, because its parent is not in it */
	if (c->used + bytes > c->capacity && kvc_replacer_refuses(c->replacer, c->request, bytes)) {
		c->refused++;
		*whole_of(c) = false;
		return 0;
	}
	while (c->used + bytes > c->capacity)
		if (!evict_chunk(c)) {
			*whole_of(c) = false;
			return 0;
		}
	err = kvc_replacer_add(c->replacer, c->request, id, parent, bytes);
	c->used += err ? 0 : bytes;
	return err;
}

static void end_request(struct run *u)
{
	for (int i = 0; i < 2; i++) {
		struct cache *c = &u->cache[i];

		if (c->request->nr)
			kvc_replacer_end(c->replacers[c->class[c->request - c->requests]],
					 c->request);
	}
}

static void begin_request(struct run *u, uint64_t now_ms)
{
	end_request(u);
	for (int i = 0; i < 2; i++) {
		struct cache *c = &u->cache[i];

		if (c->replacer)
			kvc_replacer_begin(c->replacer, c->request, now_ms);
		c->class[c->request - c->requests] = u->class;
		*whole_of(c) = true;
	}
}

/* The prompt goes on in a new request, as in the daemon. */
static void continue_request(struct run *u, uint64_t now_ms)
{
	bool whole[2] = { *whole_of(&u->cache[0]), *whole_of(&u->cache[1]) };

	begin_request(u, now_ms);
	for (int i = 0; i < 2; i++)
		*whole_of(&u->cache[i]) = whole[i];
}

/* Accesses a chunk in both tiers. *all: all chunks of the prompt so far were hits; updated. */
static int access_tiers(struct run *u, uint32_t r, uint64_t id, uint64_t parent, bool *all)
{
	int got[2];

	for (int i = 0; i < 2; i++)
		if ((got[i] = access_chunk(&u->cache[i], id, parent)) < 0)
			return got[i];
	*all = *all && (got[0] > 0 || got[1] > 0);
	if (r >= u->trace->requests / 2) {
		u->part->asked++;
		u->part->hits[0] += *all && got[0] > 0;
		u->part->hits[1] += *all && got[0] <= 0;
	}
	return 0;
}

/* Tells the policies what was known at the end of the request. */
static void tell_outlook(struct run *u, uint32_t r)
{
	const struct kvm_trace *t = u->trace;

	if (t->outlook[r] == KVC_OUTLOOK_NONE)
		return;
	for (uint64_t a = t->at[r]; a < t->at[r + 1]; a++)
		for (int i = 0; i < 2; i++)
			if (u->cache[i].replacer)
				kvc_replacer_tell(u->cache[i].replacer, t->id[a] + 1ull,
						  t->outlook[r]);
}

static bool is_cached(const struct run *u, uint64_t a)
{
	uint64_t id = u->trace->id[a] + 1ull;

	return has_chunk(&u->cache[0], id) || has_chunk(&u->cache[1], id);
}

/* Requests that run concurrently; at[i] is the next access of the i-th. */
struct batch {
	uint32_t first, n;
	uint64_t at[KVM_CLIENTS];
	uint64_t late[KVM_THREADS]; /* accesses that a thread has taken and not yet made */
	bool all[KVM_CLIENTS];      /* all accesses so far were hits */
};

/* Makes the i-th request of a batch the current one. */
static void set_request(struct run *u, const struct batch *b, uint32_t i)
{
	for (int j = 0; j < 2; j++)
		u->cache[j].request = &u->cache[j].requests[i];
	set_model(u, b->first + i);
}

/* Accesses the next chunks of the i-th request: up to `to`, or all that are cached. */
static int access_told(struct run *u, struct batch *b, uint32_t i, uint64_t to, bool cached)
{
	const struct kvm_trace *t = u->trace;
	bool chains = u->setup->chain == KVM_TOLD;
	uint64_t from = t->at[b->first + i];
	int err = 0;

	for (uint64_t a; !err && (a = b->at[i]) < to; b->at[i]++) {
		if ((a - from) % KVC_REPLACER_EXPECT == 0)
			expect_chunks(u, a, to);
		if (cached && !is_cached(u, a))
			break;
		if (chains && a > from && (a - from) % LONGEST == 0)
			continue_request(u, (uint64_t)t->ms[b->first + i]);
		err = access_tiers(u, b->first + i, t->id[a] + 1ull,
				   chains && a > from ? t->id[a - 1] + 1ull : 0, &b->all[i]);
	}
	return err;
}

/*
 * Replays n concurrent requests. Each loads its cached chunks, and then they compute and store the
 * others in turn, one step at a time.
 */
static int replay_told(struct run *u, uint32_t first, uint32_t n)
{
	const struct kvm_trace *t = u->trace;
	struct batch b = { .first = first, .n = n };
	bool more = true;
	int err = 0;

	for (uint32_t i = 0; i < n && !err; i++) {
		set_request(u, &b, i);
		begin_request(u, (uint64_t)t->ms[first + i]);
		b.at[i] = t->at[first + i];
		b.all[i] = true;
		err = access_told(u, &b, i, t->at[first + i + 1], true);
	}
	while (more && !err) {
		more = false;
		for (uint32_t i = 0; i < n && !err; i++) {
			uint64_t end = t->at[first + i + 1];

			set_request(u, &b, i);
			b.all[i] = false;
			err = access_told(u, &b, i, n == 1 ? end : kvc_min(b.at[i] + STEP, end),
					  false);
			more |= b.at[i] < end;
		}
	}
	for (uint32_t i = 0; i < n && !err; i++) {
		set_request(u, &b, i);
		tell_outlook(u, first + i);
		end_request(u);
	}
	return err;
}

/* Returns a random number below n. */
static uint32_t random_below(struct run *u, uint32_t n)
{
	if (n == 1)
		return 0;
	u->chance = u->chance * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((u->chance >> 32) * n >> 32);
}

/* Returns the number of threads that work on one prompt. */
static uint32_t threads_per_prompt(const struct run *u)
{
	return (uint32_t)kvc_max(u->setup->threads / u->setup->clients, 1);
}

/* Returns the client of a call for request r: a thread of the one process PROCESS. */
static uint32_t pick_client(struct run *u, uint32_t r)
{
	uint32_t which = u->setup->threads > 1 ? r % u->setup->clients % u->setup->threads : 0;

	which += random_below(u, threads_per_prompt(u)) * u->setup->clients;
	return kvc_chain_infer_client(u->order, PROCESS, PROCESS + which);
}

/* Returns true if no request is under way, or if it belongs to another class. */
static bool needs_new_request(const struct run *u)
{
	const struct cache *c = &u->cache[0];

	return !c->request->nr || c->class[c->request - c->requests] != u->class;
}

/* The client opens or creates the chunk of access a. */
static int make_call(struct run *u, uint32_t r, uint64_t a, bool known, bool *all)
{
	const struct kvm_trace *t = u->trace;
	uint64_t id = t->id[a] + 1ull, truth = a > t->at[r] ? t->id[a - 1] + 1ull : 0;
	struct kvc_inferred seen;

	uint32_t client = pick_client(u, r);

	for (int i = 0; i < 2; i++)
		u->cache[i].request =
			&u->cache[i].requests[client == PROCESS ? 0
								: 1 + client - PROCESS -
									  KVC_CHAIN_INFER_THREAD];
	kvc_chain_infer_access(u->order, client, id, u->now_ns, known, u->parent[id - 1], &seen);
	if (!(u->learns & 1u << u->class))
		seen = (struct kvc_inferred){ .begins = true };
	if (seen.begins || needs_new_request(u))
		begin_request(u, (uint64_t)t->ms[r]);
	for (int i = 0; i < 2; i++)
		u->cache[i].request->loose = seen.unsure;
	u->learned.begun += seen.begins;
	if (known && seen.parent != u->parent[id - 1]) {
		u->learned.mended++;
		for (int i = 0; i < 2; i++)
			if (u->cache[i].replacer)
				kvc_replacer_set_parent(u->cache[i].replacer, id, seen.parent);
	}
	u->parent[id - 1] = (uint32_t)seen.parent;
	if (!known) {
		u->learned.made++;
		u->learned.loose += truth && !seen.parent;
		u->learned.wrong += seen.parent && seen.parent != truth;
	}
	for (int i = 0; i < 2; i++)
		*whole_of(&u->cache[i]) = !seen.parent || !u->cache[i].replacer ||
					  has_chunk(&u->cache[i], seen.parent);
	return access_tiers(u, r, id, seen.parent, all);
}

/* Returns a random time between half and twice ns. */
static uint64_t jitter(struct run *u, uint64_t ns)
{
	return (uint64_t)((double)ns * exp2((double)random_below(u, 1 << 24) / (1 << 23) - 1));
}

static int open_one(struct run *u, struct batch *b, uint32_t i, uint64_t a)
{
	int err = make_call(u, b->first + i, a, true, &b->all[i]);

	u->now_ns += jitter(u, OPEN_NS);
	return err;
}

static int create_one(struct run *u, struct batch *b, uint32_t i, uint64_t a)
{
	int err;

	if (is_cached(u, a)) {
		/* A client checks before it creates a chunk, and skips an existing chunk. */
		u->part->asked += b->first + i >= u->trace->requests / 2;
		return 0;
	}
	err = make_call(u, b->first + i, a, false, &b->all[i]);
	u->now_ns += jitter(u, CREATE_NS);
	return err;
}

/*
 * Makes the accesses of a request up to `to`. The threads that share the request take accesses in
 * turn, and their calls happen in random order.
 */
static int make_accesses(struct run *u, struct batch *b, uint32_t i, uint64_t to, bool opens)
{
	uint32_t most = threads_per_prompt(u), n = 0, which;
	int err = 0;

	set_model(u, b->first + i);
	while ((b->at[i] < to || n) && !err) {
		for (; n < most && b->at[i] < to; b->at[i]++)
			b->late[n++] = b->at[i];
		which = random_below(u, n);
		err = (opens ? open_one : create_one)(u, b, i, b->late[which]);
		memmove(&b->late[which], &b->late[which + 1], (--n - which) * sizeof *b->late);
	}
	return err;
}

static int open_hits(struct run *u, struct batch *b)
{
	const struct kvm_trace *t = u->trace;
	int err = 0;

	for (uint32_t i = 0; i < b->n && !err; i++) {
		uint64_t to = b->at[i] = t->at[b->first + i];

		b->all[i] = true;
		for (; to < t->at[b->first + i + 1]; to++) {
			if ((to - b->at[i]) % KVC_REPLACER_EXPECT == 0)
				expect_chunks(u, to, t->at[b->first + i + 1]);
			if (!is_cached(u, to))
				break;
		}
		err = make_accesses(u, b, i, to, true);
	}
	return err;
}

/* Computes and creates the next step of each request. Returns -EAGAIN if more is left. */
static int create_step(struct run *u, struct batch *b)
{
	const struct kvm_trace *t = u->trace;
	uint64_t to[KVM_CLIENTS];
	bool more = false;
	int err = 0;

	for (uint32_t i = 0; i < b->n; i++) {
		uint64_t end_request = t->at[b->first + i + 1];

		to[i] = kvc_min(b->at[i] + STEP, end_request);
		u->now_ns += (to[i] - b->at[i]) * COMPUTE_NS;
		more |= to[i] < end_request;
	}
	for (uint32_t i = 0; i < b->n && !err; i++)
		err = make_accesses(u, b, i, to[i], false);
	return err ?: more ? -EAGAIN : 0;
}

static int replay_learned(struct run *u, uint32_t first, uint32_t n)
{
	struct batch b = { .first = first, .n = n };
	int err;

	for (uint32_t r = first; r < first + n; r++)
		u->now_ns = kvc_max(u->now_ns, (uint64_t)(u->trace->ms[r] * 1e6));
	err = open_hits(u, &b);
	while (!err && (err = create_step(u, &b)) == -EAGAIN)
		err = 0;
	for (uint32_t r = first; r < first + n && !err; r++) {
		set_model(u, r);
		tell_outlook(u, r);
	}
	return err;
}

static int replay_batches(struct run *u, const struct kvm_setup *setup)
{
	uint32_t n;
	int err = 0;

	for (uint32_t r = 0; r < u->trace->requests && !err; r += n) {
		n = (uint32_t)kvc_min(setup->clients, u->trace->requests - r);
		err = setup->chain == KVM_LEARNED ? replay_learned(u, r, n) : replay_told(u, r, n);
	}
	for (int j = 0; j <= KVM_THREADS; j++) {
		for (int i = 0; i < 2; i++)
			u->cache[i].request = &u->cache[i].requests[j];
		end_request(u);
	}
	return err;
}

/* Returns a bit for each class in use. */
static unsigned classes_of(const struct kvm_trace *t, const struct kvm_setup *setup)
{
	unsigned mask = 0;

	for (uint32_t i = 0; i < t->models; i++)
		mask |= 1u << (setup->class ? setup->class[i] : 0);
	return mask;
}

static int learn(struct run *u, const struct kvm_cell *cell, unsigned classes)
{
	int err;

	for (unsigned i = 0; i < KVC_CLASSES; i++) {
		bool pool = kvc_policy_table[policy_of(&cell->pool, i)].by_chain;
		bool disk = cell->disk_capacity &&
			    kvc_policy_table[policy_of(&cell->disk, i)].by_chain;

		if ((classes & 1u << i) && (pool || disk))
			u->learns |= 1u << i;
	}
	err = kvc_chain_infer_open(&u->order);
	u->parent = calloc(u->trace->chunks, sizeof *u->parent);
	return err ?: u->parent ? 0 : -ENOMEM;
}

/* Collects the memory use and the descriptions of the pool's replacers. */
static void describe(const struct cache *c, struct kvm_share *out)
{
	for (unsigned i = 0; i < KVC_CLASSES; i++) {
		size_t n = strlen(out->text);

		if (!c->replacers[i])
			continue;
		out->bytes += kvc_replacer_bytes(c->replacers[i]);
		if (c->has_classes) {
			snprintf(out->text + n, sizeof out->text - n, "%s\n",
				 i ? kvc_policy_table[i - 1].name : "the other models");
			n = strlen(out->text);
		}
		kvc_replacer_text(c->replacers[i], out->text + n, sizeof out->text - n);
	}
}

static void add_up(const struct kvm_cell *cell, const struct kvm_trace *t, struct kvm_share *out)
{
	uint64_t asked = 0, hits[2] = { 0 };

	for (uint32_t i = 0; i < t->models; i++) {
		asked += cell->part[i].asked;
		for (int j = 0; j < 2; j++)
			hits[j] += cell->part[i].hits[j];
	}
	out->pool = asked ? (double)hits[0] / (double)asked : 0;
	out->disk = asked ? (double)hits[1] / (double)asked : 0;
}

int kvm_replay(const struct kvm_trace *t, const struct kvm_setup *setup, struct kvm_cell *cell)
{
	const uint64_t *bytes = cell->in_bytes ? t->bytes : NULL;
	struct kvm_share *out = &cell->share;
	struct run u = { .trace = t, .setup = setup, .parts = cell->part };
	unsigned classes = classes_of(t, setup);
	uint64_t began = kvc_mono_ns();
	int err = open_cache(&u.cache[0], &cell->pool, classes, cell->pool_capacity, bytes,
			     &u.cache[0])
			  ?: open_cache(&u.cache[1], &cell->disk, classes, cell->disk_capacity,
					bytes, &u.cache[0]);

	if (!err && setup->chain == KVM_LEARNED)
		err = learn(&u, cell, classes);
	err = err ?: replay_batches(&u, setup);
	*out = (struct kvm_share){
		.accesses_per_s = (double)t->accesses * 1e9 / (double)(kvc_mono_ns() - began + 1),
		.learned = u.learned,
	};
	add_up(cell, t, out);
	describe(&u.cache[0], out);
	kvc_chain_infer_close(u.order);
	free(u.parent);
	close_cache(&u.cache[0]);
	close_cache(&u.cache[1]);
	return err;
}
