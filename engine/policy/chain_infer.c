/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Infers parents (chain_infer.h). A table by hash has up to CLIENTS clients; a new client replaces
 * the one that has been silent longest.
 *
 * An engine creates chunks in bursts and computes between them. A burst is a prompt or one step of
 * it, because engines compute a limited number of tokens at a time. So if a burst was as long as
 * the longest bursts of this client, the next burst continues the prompt. After a shorter burst,
 * the next one begins another prompt, of which no chunk was in the cache. Chunks that arrive within
 * FAR times the usual time between two creates belong to one burst.
 *
 * The parent of the first chunk of a burst is in doubt until the chunk is opened: a client that
 * opens a prompt from its beginning has just opened the parent. Chunks that are created without end
 * may not be a prompt at all; so after LONGEST chunks another burst begins, whose first chunk is in
 * doubt, too.
 *
 * Files that are created one after another may have nothing to do with each other. So the guesses
 * about a client's new chunks are withheld until PROOF of its chunks were accessed again directly
 * after their predecessor in the order of creation, or until the client has opened as many chunks
 * just after their known parents. An access is an open, or another creation after an eviction: in a
 * cache that evicts every chunk before its next use, no chunk is ever opened. A withheld guess is
 * reported when its chunk is opened.
 *
 * All this holds only if a client works on one prompt at a time. A client that serves several
 * prompts in turn creates chunks of one prompt after those of another, and nothing shows the
 * boundary. So each guess is judged when its chunk is opened again. It was right if the client has
 * just opened the guessed parent. It was wrong if the client has instead just opened another chunk
 * that it had also accessed shortly before it created this one. A client with too many wrong
 * guesses, or that opens several prompts in turn, is not trusted: no parents are reported for
 * chunks that it creates, and chunks that it opens keep their parent only if the client opened the
 * parent just before. It is trusted again when its guesses would have been right for a long time. A
 * chunk that was evicted and is created again also shows, without being opened, whether the client
 * works on several prompts in turn. It does if it last accessed the guessed parent a while ago, and
 * other chunks since. It does not if it creates the chunk directly after the guessed parent again.
 * The latter does not count for a thread that is a client: most chunks of a step follow their
 * parent even if the thread works on several prompts.
 *
 * A client creates only the chunks of a prompt that are not in the cache. If some chunks in the
 * middle of a prompt are in the cache, and those before and after them are not, the first new chunk
 * after them seems to follow the last new chunk before them. So a client does not change prompts if
 * its last chunk is a descendant of the known parent, as its recent accesses show. If that parent
 * was guessed when the chunk was created, the last chunk is the new parent.
 *
 * Threads that are clients of their own share the trust of their process, because they do the same
 * work: `whole` is the client whose trust counts: the process, or the client itself.
 *
 * Notes about chunks are in a table by hash, in which a new note replaces an old one.
 */
#include "chain_infer.h"

#define CLIENTS 256
#define BUCKETS 512
#define NOTES 32768
#define RECENT 64 /* accesses of a client that count as "just before" */
/* accesses, at most, between opening chunks of several prompts and creating chunks for them */
#define BATCH 1024u
#define JUDGED 256.f /* the share of wrong guesses is a mean over about this many chunks */
/* above this share of wrong guesses a client is not trusted, until the share is below WRONG_FEW */
#define WRONG_MOST (1 / 128.f)
#define WRONG_FEW (1 / 512.f)
/* limits for `turns`, the share of chunks that continue a prompt other than the last chunk's */
#define TURNS_MOST (1 / 16.f)
#define TURNS_FEW (1 / 64.f)
/* limits for `left`, which is a mean over about LEFT bursts */
#define LEFT_MOST .25f
#define LEFT_FEW .0625f
#define LEFT 32.f
#define ALONE_MOST .75f /* above this share, each thread of a process has its own prompts */
#define ALONE 64.f      /* the share is a mean over about this many chunks */
#define PROOF 16        /* chunks that prove the guesses about a client */
#define NONE UINT16_MAX
#define FAR 4
#define USUAL_FIRST_NS 25000000ull
#define USUAL_LEAST_NS 100000ull
#define USUAL_STEP 8   /* the usual time changes by one part in 8, so it stays near the median */
#define FORGETS 128.f  /* bursts after which the longest burst counts for a third */
#define STEP_LEAST 4.f /* chunks that an engine computes at a time, at least */
#define LONGEST 512u   /* chunks that are created in a row */

struct recent {
	uint64_t id, parent;
	/* the client's access count at the previous access to this chunk; 0: not known */
	uint32_t before;
	uint32_t thread; /* the thread, of a process */
	bool opened;
};

struct client {
	struct kvc_list silent;
	uint32_t client;
	uint16_t next;  /* in the hash bucket */
	bool made;      /* the last chunk was new */
	uint32_t burst; /* chunks of the current burst */
	uint32_t row;   /* chunks that were created one after another */
	float longest;  /* the longest recent burst */
	float wrong;    /* recent share of wrong guesses about its new chunks */
	/* recent share of opened chunks that continue a prompt other than the last chunk's */
	float turns;
	/* recent share of bursts that continue a prompt other than the last chunk's */
	float left;
	bool unsure;    /* not trusted: parents are not reported */
	uint32_t proof; /* chunks that were accessed in order, up to PROOF */
	/*
	 * if it is a process: the thread that called last, and the share of chunks that continued a
	 * chunk of the same thread
	 */
	uint32_t thread;
	float alone;
	bool threads, apart; /* it has several threads; each of them is a client of its own */
	uint32_t process;    /* if it is a thread: its process, else 0 */
	uint64_t last, parent, ns, usual_ns;
	uint32_t uses;
	struct recent recent[RECENT]; /* access n is at n % RECENT */
};

struct note {
	/* the guessed parent: the chunk accessed before this one was created; 0: judged already */
	uint64_t id, guess;
	uint32_t client, use; /* the last client to access it, and its access count then */
	bool doubt;           /* first of a burst, and not accessed since */
	bool inner;           /* it was created within a burst */
	bool said;            /* the guess was reported, */
	bool withheld;        /* or was withheld because the client was not proven */
};

struct kvc_chain_infer {
	struct client client[CLIENTS];
	uint16_t bucket[BUCKETS];
	unsigned used;
	struct kvc_list silent; /* the client that has been silent longest is first */
	struct note note[NOTES];
};

int kvc_chain_infer_open(struct kvc_chain_infer **out)
{
	struct kvc_chain_infer *o = calloc(1, sizeof *o);

	if (!o)
		return -ENOMEM;
	kvc_list_init(&o->silent);
	for (unsigned i = 0; i < BUCKETS; i++)
		o->bucket[i] = NONE;
	*out = o;
	return 0;
}

void kvc_chain_infer_close(struct kvc_chain_infer *o)
{
	free(o);
}

static uint16_t *client_bucket(struct kvc_chain_infer *o, uint32_t client)
{
	return &o->bucket[(client * 0x9e3779b1u >> 16) % BUCKETS];
}

/* Returns NULL if the client is not known, or not any more. */
static struct client *find_client(struct kvc_chain_infer *o, uint32_t client)
{
	uint16_t i = *client_bucket(o, client);

	while (i != NONE && o->client[i].client != client)
		i = o->client[i].next;
	return i == NONE ? NULL : &o->client[i];
}

static struct client *get_client(struct kvc_chain_infer *o, uint32_t client)
{
	struct client *c = find_client(o, client);
	uint16_t *at, i;

	if (c) {
		kvc_list_del(&c->silent);
		kvc_list_add_tail(&o->silent, &c->silent);
		return c;
	}
	at = client_bucket(o, client);
	if (o->used < CLIENTS) {
		i = (uint16_t)o->used++;
		c = &o->client[i];
	} else {
		uint16_t *from;

		c = kvc_of(o->silent.next, struct client, silent);
		i = (uint16_t)(c - o->client);
		for (from = client_bucket(o, c->client); *from != i;)
			from = &o->client[*from].next;
		*from = c->next;
		kvc_list_del(&c->silent);
	}
	*c = (struct client){ .client = client, .next = *at, .usual_ns = USUAL_FIRST_NS };
	*at = i;
	kvc_list_add_tail(&o->silent, &c->silent);
	return c;
}

static struct note *note_of(struct kvc_chain_infer *o, uint64_t id)
{
	return &o->note[(id * 0x9e3779b97f4a7c15u >> 40) % NOTES];
}

static void end_burst(struct client *c)
{
	c->longest -= c->longest / FORGETS;
	if ((float)c->burst > c->longest)
		c->longest = (float)c->burst;
	c->burst = 0;
}

/* After a new chunk the client created another one: does that belong to the same prompt? */
static bool is_of_prompt(struct client *c, uint64_t gap)
{
	bool far = gap > FAR * c->usual_ns, full = (float)c->burst >= c->longest;

	c->usual_ns += gap > c->usual_ns ? c->usual_ns / USUAL_STEP : -(c->usual_ns / USUAL_STEP);
	c->usual_ns = kvc_min(kvc_max(c->usual_ns, USUAL_LEAST_NS), KVC_CHAIN_INFER_PAUSE_NS);
	if (!far)
		return true;
	end_burst(c);
	return full && c->longest >= STEP_LEAST && gap <= KVC_CHAIN_INFER_COMPUTE_NS;
}

/* Returns the parent of a new chunk. */
static uint64_t infer_new(struct client *c, const struct client *whole, struct note *n,
			  uint64_t gap)
{
	bool near = c->last && gap <= KVC_CHAIN_INFER_COMPUTE_NS;
	bool goes_on = c->made ? is_of_prompt(c, gap) : near;

	c->row = goes_on ? c->row + 1 : 1;
	if (c->row > LONGEST) {
		end_burst(c);
		goes_on = false;
		c->row = 1;
	}
	n->doubt = ++c->burst == 1 && near;
	n->said = goes_on;
	n->inner = goes_on && c->burst > 1;
	n->withheld = goes_on && whole->proof < PROOF;
	n->guess = n->doubt || goes_on ? c->last : 0;
	return goes_on && !whole->unsure && !n->withheld ? c->last : 0;
}

static const struct recent *recent_of(const struct client *c, uint64_t id)
{
	for (uint32_t i = 0; i < RECENT; i++)
		if (c->recent[i].id == id)
			return &c->recent[i];
	return NULL;
}

/*
 * True if the client also accessed the chunk of r earlier, at most `most` accesses before its
 * access number `use`.
 */
static bool came_before(const struct recent *r, uint32_t use, uint32_t most)
{
	return use && r->before && use > r->before && use - r->before <= most;
}

/*
 * True if the client's last chunk is a descendant of this chunk, as its recent accesses show. No
 * access precedes that of its parent, so one pass from the last access back finds all ancestors.
 */
static bool descends_from(const struct client *c, uint64_t id)
{
	uint64_t at = c->last;

	for (uint32_t i = 0; i < RECENT && at && at != id; i++) {
		const struct recent *r = &c->recent[(c->uses - i) % RECENT];

		if (r->id == at)
			at = r->parent;
	}
	return at == id;
}

static void judge_client(struct client *c)
{
	c->unsure = c->unsure
			    ? c->wrong > WRONG_FEW || c->turns > TURNS_FEW || c->left > LEFT_FEW
			    : c->wrong > WRONG_MOST || c->turns > TURNS_MOST || c->left > LEFT_MOST;
}

static void update_share(struct client *c, float *share, bool one)
{
	*share += ((float)one - *share) / JUDGED;
	judge_client(c);
}

/* Judges a reported guess, if the client's accesses show whether it was right. */
static void judge_guess(const struct client *c, struct client *whole, uint64_t guess, uint32_t use)
{
	bool right = guess == c->last || recent_of(c, guess);
	bool wrong = came_before(&c->recent[c->uses % RECENT], use, BATCH);

	for (uint32_t i = 0; i < RECENT && !right && !wrong; i++)
		wrong = came_before(&c->recent[i], use, RECENT);
	if (right || wrong)
		update_share(whole, &whole->wrong, !right);
}

/*
 * A burst begins with a chunk that was created before, within a burst after the chunk `guess`, and
 * was evicted before any client opened it. Its parent is still `guess`. So if the client has just
 * accessed another chunk, and accessed `guess` not long ago, it works on several prompts in turn,
 * unless the other chunk is a descendant of `guess`.
 */
static void judge_again(struct kvc_chain_infer *o, const struct client *c, struct client *whole,
			uint64_t guess)
{
	const struct note *n = note_of(o, guess);
	bool left = n->id == guess && n->client == c->client && c->uses - n->use < BATCH;

	if (guess != c->last && (!left || descends_from(c, guess)))
		return;
	whole->left += ((float)(guess != c->last) - whole->left) / LEFT;
	judge_client(whole);
}

static uint64_t infer_opened(struct client *c, struct client *whole, struct note *n, uint64_t known,
			     uint32_t use)
{
	const struct recent *r = &c->recent[c->uses % RECENT];
	const struct recent *before;
	uint64_t guess = n->guess;
	bool doubt = n->doubt || (guess && n->withheld);
	bool skips; /* chunks between the known parent and this chunk were in the cache */

	if (c->made)
		end_burst(c);
	c->row = 0;
	n->doubt = n->withheld = false;
	if (guess && n->said && use)
		judge_guess(c, whole, guess, use);
	n->guess = 0;
	if (doubt)
		return guess == c->last ? c->last : 0;
	before = known ? recent_of(c, known) : NULL;
	skips = before && known != c->last && descends_from(c, known);
	/* does the client continue a prompt that it had left for another? */
	if (before && before->opened && !skips)
		update_share(whole, &whole->turns, known != c->last);
	/*
	 * Only at the first open, and only after a creation directly after the known parent: an
	 * engine that opens only the end of a prompt, after another prompt, seems to skip, too.
	 */
	if (skips && guess == known && n->inner)
		return c->last;
	if (before)
		c->alone += ((float)(before->thread == c->thread) - c->alone) / ALONE;
	if (before)
		return known;
	if (!known || whole->unsure)
		return 0;
	return came_before(r, use, BATCH) ? r->id : known;
}

uint32_t kvc_chain_infer_client(struct kvc_chain_infer *o, uint32_t process, uint32_t thread)
{
	struct client *c = get_client(o, process);

	if (c->thread && c->thread != thread && !c->threads) {
		c->threads = true;
		c->alone = .5f; /* so far it was the share of one thread */
	}
	c->thread = thread;
	if (!c->apart && c->threads && (c->unsure || c->alone > ALONE_MOST)) {
		c->apart = true;
		c->wrong = c->turns = c->left = 0; /* those were shares of all threads together */
		c->unsure = false;
	}
	if (!c->apart)
		return process;
	get_client(o, thread | KVC_CHAIN_INFER_THREAD)->process = process;
	return thread | KVC_CHAIN_INFER_THREAD;
}

/* Returns the client whose trust applies to this client. */
static struct client *whole_of(struct kvc_chain_infer *o, struct client *c)
{
	struct client *process = c->process ? find_client(o, c->process) : NULL;

	return process ?: c;
}

/*
 * A chunk is accessed after `last`. If this was the guess about its parent, it proves the guesses
 * about the client that created the chunk; if it was the known parent, it proves those about this
 * client. The client that creates prompts and the client that opens them may differ. known: 0 if
 * the chunk is created.
 */
static void prove_client(struct kvc_chain_infer *o, struct client *whole, uint64_t last,
			 const struct note *n, uint64_t known)
{
	struct client *maker = n->guess && n->said && n->guess == last ? find_client(o, n->client)
								       : NULL;

	if (maker) {
		maker = whole_of(o, maker);
		maker->proof += maker->proof < PROOF;
	}
	if (known && known == last && maker != whole)
		whole->proof += whole->proof < PROOF;
}

void kvc_chain_infer_access(struct kvc_chain_infer *o, uint32_t client, uint64_t id,
			    uint64_t now_ns, bool known, uint64_t known_parent,
			    struct kvc_inferred *out)
{
	struct client *c = get_client(o, client);
	struct client *whole = whole_of(o, c);
	uint64_t gap = now_ns > c->ns ? now_ns - c->ns : 0;
	bool paused = !c->last || gap > KVC_CHAIN_INFER_PAUSE_NS;
	struct note *n = note_of(o, id);
	uint32_t use = n->id == id && n->client == client ? n->use : 0;

	c->ns = now_ns;
	if (id == c->last) {
		*out = (struct kvc_inferred){
			c->parent,
			paused,
			whole->unsure || whole->proof < PROOF,
		};
		return;
	}
	if (n->id != id)
		*n = (struct note){ .id = id };
	if (known) {
		prove_client(o, whole, c->last, n, known_parent);
		out->parent = infer_opened(c, whole, n, known_parent, use);
		out->begins = paused || out->parent != c->last;
	} else {
		uint64_t guess = n->inner ? n->guess : 0;

		prove_client(o, whole, c->last, n, 0);
		if (guess && guess == c->last && !c->process)
			update_share(whole, &whole->wrong, false);
		out->parent = infer_new(c, whole, n, gap);
		if (guess && c->burst == 1)
			judge_again(o, c, whole, guess);
		out->begins = !n->said || whole->unsure;
	}
	out->unsure = whole->unsure || whole->proof < PROOF;
	n->client = client;
	n->use = ++c->uses;
	c->recent[n->use % RECENT] = (struct recent){ id, out->parent, use, c->thread, known };
	c->made = !known;
	c->last = id;
	c->parent = out->parent;
}
