/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See chain_infer.h: a table of CLIENTS clients, found by hash; where there are more the one that
 * was silent longest goes.
 *
 * What an engine creates comes in bursts, with what it computes between them: each is a prompt, or
 * a step of one, for engines compute so many tokens at a time and no more. So after a burst that
 * was as long as the bursts of this client get, the next goes on with the prompt; after a shorter
 * one it begins another, of which nothing was there. What comes within FAR times the usual time
 * between two creates is of one burst.
 *
 * The first of a burst, whatever was said of it, is in doubt until it is opened: who opens it from
 * the beginning of the prompt has just opened what it follows. What is made in a row without an end
 * may be no prompt at all; so after LONGEST chunks another begins, which is in doubt, too.
 *
 * Files that are made in a row may have nothing to do with each other. So what a client makes is
 * said to follow nothing, until PROOF chunks were opened just after what they were made after, or
 * it has opened so many after what they are known to follow. What was withheld is said when such a
 * chunk is opened.
 *
 * All that is only so where a client works on one prompt at a time. One that serves several in
 * turns makes chunks of one after those of another, and nothing shows where; so what was said of a
 * chunk when it was made is judged when it is opened again. It was right if its client has just
 * opened that. It was wrong if it has not, and has just opened what it used shortly before it made
 * the chunk. A client of which too much was wrong, or that opens several prompts in turns, is not
 * trusted: of what it makes nothing is said, and what it opens keeps its parent only where that was
 * opened just before, until what would have been said was right for long. The threads of a process
 * that are clients by themselves are trusted or not as one, for they do the same work: `whole` is
 * what has that of a client, the process or itself.
 *
 * Notes of chunks are in a table by hash, where a newer one takes the place of another.
 */
#include "chain_infer.h"

#define CLIENTS 256
#define BUCKETS 512
#define NOTES 32768
#define RECENT 64    /* uses of a client that count as just before */
#define BATCH 1024u  /* uses from what is opened of several prompts to what is made of them */
#define JUDGED 256.f /* chunks that the share of wrong ones is of, about */
#define WRONG_MOST (1 / 128.f) /* then it is not trusted, until */
#define WRONG_FEW (1 / 512.f)
#define TURNS_MOST (1 / 16.f) /* the same, of turns */
#define TURNS_FEW (1 / 64.f)
#define ALONE_MOST .75f /* of a process with several threads: then each has its own prompts */
#define ALONE 64.f      /* chunks that this share is of, about */
#define PROOF 16        /* chunks */
#define NONE UINT16_MAX
#define FAR 4
#define USUAL_FIRST_NS 25000000ull
#define USUAL_LEAST_NS 100000ull
#define USUAL_STEP 8   /* by such a part it goes up or down: it stays about the median */
#define FORGETS 128.f  /* bursts, after which the longest counts for a third of itself */
#define STEP_LEAST 4.f /* chunks that are computed at a time, at least */
#define LONGEST 512u   /* chunks that are made in a row */

struct recent {
	uint64_t id;
	uint32_t before; /* the client's count of uses at the use of it before; 0: not known */
	uint32_t thread; /* of a process */
	bool opened;
};

struct client {
	struct kvc_list silent;
	uint32_t client;
	uint16_t next;  /* in its bucket */
	bool made;      /* the last chunk was new */
	uint32_t burst; /* chunks of it so far */
	uint32_t row;   /* chunks that were made each after the other */
	float longest;  /* burst, lately */
	float wrong;    /* share of what was said of chunks that it made, lately; */
	float turns;    /* of what it opened, of what went on with another than the last; */
	bool unsure;    /* so that no more is said */
	uint32_t proof; /* chunks that were used in order, up to PROOF */
	/* a process: the thread that called last, share of what went on with the thread's own, */
	uint32_t thread;
	float alone;
	bool threads, apart; /* has it several; and is each a client of its own by now? */
	uint32_t process;    /* such a client: whose thread it is; else 0 */
	uint64_t last, parent, ns, usual_ns;
	uint32_t uses;
	struct recent recent[RECENT]; /* use n is at n % RECENT */
};

struct note {
	uint64_t id, guess;   /* what it was used after when it was made; 0: that was judged */
	uint32_t client, use; /* who used it last, and the client's count of uses then */
	bool doubt;           /* the first of a burst, and not used since */
	bool said;            /* to follow that, */
	bool withheld;        /* or would have been, had its client shown that it is right */
};

struct kvc_order {
	struct client client[CLIENTS];
	uint16_t bucket[BUCKETS];
	unsigned used;
	struct kvc_list silent; /* the one that was silent longest first */
	struct note note[NOTES];
};

int kvc_chain_infer_open(struct kvc_order **out)
{
	struct kvc_order *o = calloc(1, sizeof *o);

	if (!o)
		return -ENOMEM;
	kvc_list_init(&o->silent);
	for (unsigned i = 0; i < BUCKETS; i++)
		o->bucket[i] = NONE;
	*out = o;
	return 0;
}

void kvc_chain_infer_close(struct kvc_order *o)
{
	free(o);
}

static uint16_t *bucket_of(struct kvc_order *o, uint32_t client)
{
	return &o->bucket[(client * 0x9e3779b1u >> 16) % BUCKETS];
}

/* NULL: it is not known, or not any more. */
static struct client *look(struct kvc_order *o, uint32_t client)
{
	uint16_t i = *bucket_of(o, client);

	while (i != NONE && o->client[i].client != client)
		i = o->client[i].next;
	return i == NONE ? NULL : &o->client[i];
}

static struct client *find(struct kvc_order *o, uint32_t client)
{
	struct client *c = look(o, client);
	uint16_t *at, i;

	if (c) {
		kvc_list_del(&c->silent);
		kvc_list_add_tail(&o->silent, &c->silent);
		return c;
	}
	at = bucket_of(o, client);
	if (o->used < CLIENTS) {
		i = (uint16_t)o->used++;
		c = &o->client[i];
	} else {
		uint16_t *from;

		c = kvc_of(o->silent.next, struct client, silent);
		i = (uint16_t)(c - o->client);
		for (from = bucket_of(o, c->client); *from != i;)
			from = &o->client[*from].next;
		*from = c->next;
		kvc_list_del(&c->silent);
	}
	*c = (struct client){ .client = client, .next = *at, .usual_ns = USUAL_FIRST_NS };
	*at = i;
	kvc_list_add_tail(&o->silent, &c->silent);
	return c;
}

static struct note *note_of(struct kvc_order *o, uint64_t id)
{
	return &o->note[(id * 0x9e3779b97f4a7c15u >> 40) % NOTES];
}

static void burst_over(struct client *c)
{
	c->longest -= c->longest / FORGETS;
	if ((float)c->burst > c->longest)
		c->longest = (float)c->burst;
	c->burst = 0;
}

/* A new chunk after another new one: is it of the same prompt? */
static bool is_of_prompt(struct client *c, uint64_t gap)
{
	bool far = gap > FAR * c->usual_ns, full = (float)c->burst >= c->longest;

	c->usual_ns += gap > c->usual_ns ? c->usual_ns / USUAL_STEP : -(c->usual_ns / USUAL_STEP);
	c->usual_ns = kvc_min(kvc_max(c->usual_ns, USUAL_LEAST_NS), KVC_CHAIN_INFER_PAUSE_NS);
	if (!far)
		return true;
	burst_over(c);
	return full && c->longest >= STEP_LEAST && gap <= KVC_CHAIN_INFER_COMPUTE_NS;
}

/* What it follows. */
static uint64_t create(struct client *c, const struct client *whole, struct note *n, uint64_t gap)
{
	bool near = c->last && gap <= KVC_CHAIN_INFER_COMPUTE_NS;
	bool goes_on = c->made ? is_of_prompt(c, gap) : near;

	c->row = goes_on ? c->row + 1 : 1;
	if (c->row > LONGEST) {
		burst_over(c);
		goes_on = false;
		c->row = 1;
	}
	n->doubt = ++c->burst == 1 && near;
	n->said = goes_on;
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

/* Was this one also used shortly before the last use of the other? */
static bool came_before(const struct recent *r, uint32_t use, uint32_t most)
{
	return use && r->before && use > r->before && use - r->before <= most;
}

static void count(struct client *c, float *share, bool one)
{
	*share += ((float)one - *share) / JUDGED;
	c->unsure = c->unsure ? c->wrong > WRONG_FEW || c->turns > TURNS_FEW
			      : c->wrong > WRONG_MOST || c->turns > TURNS_MOST;
}

/* Was what was said right? Where the client's uses show it. */
static void judge(const struct client *c, struct client *whole, uint64_t guess, uint32_t use)
{
	bool right = guess == c->last || recent_of(c, guess);
	bool wrong = came_before(&c->recent[c->uses % RECENT], use, BATCH);

	for (uint32_t i = 0; i < RECENT && !right && !wrong; i++)
		wrong = came_before(&c->recent[i], use, RECENT);
	if (right || wrong)
		count(whole, &whole->wrong, !right);
}

static uint64_t open_(struct client *c, struct client *whole, struct note *n, uint64_t known,
		      uint32_t use)
{
	const struct recent *r = &c->recent[c->uses % RECENT];
	const struct recent *before;
	uint64_t guess = n->guess;
	bool doubt = n->doubt || (guess && n->withheld);

	if (c->made)
		burst_over(c);
	c->row = 0;
	n->doubt = n->withheld = false;
	if (guess && n->said && use)
		judge(c, whole, guess, use);
	n->guess = 0;
	if (doubt)
		return guess == c->last ? c->last : 0;
	before = known ? recent_of(c, known) : NULL;
	/* does it go on with what it left for another? */
	if (before && before->opened)
		count(whole, &whole->turns, known != c->last);
	if (before)
		c->alone += ((float)(before->thread == c->thread) - c->alone) / ALONE;
	if (before)
		return known;
	if (!known || whole->unsure)
		return 0;
	return came_before(r, use, BATCH) ? r->id : known;
}

uint32_t kvc_chain_infer_client(struct kvc_order *o, uint32_t process, uint32_t thread)
{
	struct client *c = find(o, process);

	if (c->thread && c->thread != thread && !c->threads) {
		c->threads = true;
		c->alone = .5f; /* so far it was that of one */
	}
	c->thread = thread;
	if (!c->apart && c->threads && (c->unsure || c->alone > ALONE_MOST)) {
		c->apart = true;
		c->wrong = c->turns = 0; /* that was of all of them as one */
		c->unsure = false;
	}
	if (!c->apart)
		return process;
	find(o, thread | KVC_CHAIN_INFER_THREAD)->process = process;
	return thread | KVC_CHAIN_INFER_THREAD;
}

/* The client whose trust this one's is. */
static struct client *whole_of(struct kvc_order *o, struct client *c)
{
	struct client *process = c->process ? look(o, c->process) : NULL;

	return process ?: c;
}

/*
 * A chunk is opened after `last`: is that what its client, or whoever made it, would have said?
 * Who makes prompts and who opens them may be two.
 */
static void prove(struct kvc_order *o, struct client *whole, uint64_t last, const struct note *n,
		  uint64_t known)
{
	struct client *maker = n->guess && n->said && n->guess == last ? look(o, n->client) : NULL;

	if (maker) {
		maker = whole_of(o, maker);
		maker->proof += maker->proof < PROOF;
	}
	if (known && known == last && maker != whole)
		whole->proof += whole->proof < PROOF;
}

void kvc_chain_infer_see(struct kvc_order *o, uint32_t client, uint64_t id, uint64_t now_ns,
			 bool known, uint64_t known_parent, struct kvc_seen *out)
{
	struct client *c = find(o, client);
	struct client *whole = whole_of(o, c);
	uint64_t gap = now_ns > c->ns ? now_ns - c->ns : 0;
	bool paused = !c->last || gap > KVC_CHAIN_INFER_PAUSE_NS;
	struct note *n = note_of(o, id);
	uint32_t use = n->id == id && n->client == client ? n->use : 0;

	c->ns = now_ns;
	if (id == c->last) {
		*out = (struct kvc_seen){
			c->parent,
			paused,
			whole->unsure || whole->proof < PROOF,
		};
		return;
	}
	if (n->id != id)
		*n = (struct note){ .id = id };
	if (known) {
		prove(o, whole, c->last, n, known_parent);
		out->parent = open_(c, whole, n, known_parent, use);
		out->begins = paused || out->parent != c->last;
	} else {
		out->parent = create(c, whole, n, gap);
		out->begins = !n->said || whole->unsure;
	}
	out->unsure = whole->unsure || whole->proof < PROOF;
	n->client = client;
	n->use = ++c->uses;
	c->recent[n->use % RECENT] = (struct recent){ id, use, c->thread, known };
	c->made = !known;
	c->last = id;
	c->parent = out->parent;
}
