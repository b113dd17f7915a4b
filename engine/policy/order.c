/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See order.h: a table of CLIENTS clients, found by hash; where there are more the one that was
 * silent longest goes.
 *
 * What an engine creates comes in bursts, with what it computes between them: each is a prompt, or
 * a step of one, for engines compute so many tokens at a time and no more. So after a burst that
 * was as long as the bursts of this client get, the next goes on with the prompt; after a shorter
 * one it begins another, of which nothing was there. What comes within FAR times the usual time
 * between two creates is of one burst.
 *
 * The first of a burst, whatever was said of it, is in doubt until it is opened: who opens it from
 * the beginning of the prompt has just opened what it follows. Doubts are in a table by hash, where
 * a newer one takes the place of another.
 */
#include "order.h"

#define CLIENTS 256
#define BUCKETS 512
#define DOUBTS 8192
#define NONE UINT16_MAX
#define FAR 4
#define USUAL_FIRST_NS 25000000ull
#define USUAL_LEAST_NS 100000ull
#define USUAL_STEP 8   /* by such a part it goes up or down: it stays about the median */
#define FORGETS 128.f  /* bursts, after which the longest counts for a third of itself */
#define STEP_LEAST 4.f /* chunks that are computed at a time, at least */

struct client {
	struct kvc_list silent;
	uint32_t client;
	uint16_t next;  /* in its bucket */
	bool made;      /* the last chunk was new */
	uint32_t burst; /* chunks of it so far */
	float longest;  /* burst, lately */
	uint64_t last, parent, ns, usual_ns;
};

struct doubt {
	uint64_t id, before; /* what was used before it when it was made */
};

struct kvc_order {
	struct client client[CLIENTS];
	uint16_t bucket[BUCKETS];
	unsigned used;
	struct kvc_list silent; /* the one that was silent longest first */
	struct doubt doubt[DOUBTS];
};

int kvc_order_open(struct kvc_order **out)
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

void kvc_order_close(struct kvc_order *o)
{
	free(o);
}

static uint16_t *bucket_of(struct kvc_order *o, uint32_t client)
{
	return &o->bucket[(client * 0x9e3779b1u >> 16) % BUCKETS];
}

static struct client *find(struct kvc_order *o, uint32_t client)
{
	uint16_t *at = bucket_of(o, client), i = *at;
	struct client *c;

	while (i != NONE && o->client[i].client != client)
		i = o->client[i].next;
	if (i != NONE) {
		c = &o->client[i];
		kvc_list_del(&c->silent);
		kvc_list_add_tail(&o->silent, &c->silent);
		return c;
	}
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

static struct doubt *doubt_of(struct kvc_order *o, uint64_t id)
{
	return &o->doubt[(id * 0x9e3779b97f4a7c15u >> 40) % DOUBTS];
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
	c->usual_ns = kvc_min(kvc_max(c->usual_ns, USUAL_LEAST_NS), KVC_ORDER_PAUSE_NS);
	if (!far)
		return true;
	burst_over(c);
	return full && c->longest >= STEP_LEAST && gap <= KVC_ORDER_COMPUTE_NS;
}

/* What it follows. */
static uint64_t create(struct kvc_order *o, struct client *c, uint64_t id, uint64_t gap)
{
	struct doubt *d = doubt_of(o, id);
	bool near = c->last && gap <= KVC_ORDER_COMPUTE_NS;
	bool goes_on = c->made ? is_of_prompt(c, gap) : near;

	if (++c->burst == 1 && near)
		*d = (struct doubt){ id, c->last };
	else if (d->id == id)
		d->id = 0;
	return goes_on ? c->last : 0;
}

static uint64_t open_(struct kvc_order *o, struct client *c, uint64_t id, uint64_t known_parent)
{
	struct doubt *d = doubt_of(o, id);

	if (c->made)
		burst_over(c);
	if (d->id != id)
		return known_parent;
	d->id = 0;
	return d->before == c->last ? c->last : 0;
}

void kvc_order_see(struct kvc_order *o, uint32_t client, uint64_t id, uint64_t now_ns, bool known,
		   uint64_t known_parent, struct kvc_seen *out)
{
	struct client *c = find(o, client);
	uint64_t gap = now_ns > c->ns ? now_ns - c->ns : 0;
	bool paused = !c->last || gap > KVC_ORDER_PAUSE_NS;

	c->ns = now_ns;
	if (id == c->last) {
		*out = (struct kvc_seen){ c->parent, paused };
		return;
	}
	if (known) {
		out->parent = open_(o, c, id, known_parent);
		out->begins = paused || out->parent != c->last;
	} else {
		out->parent = create(o, c, id, gap);
		out->begins = !out->parent;
	}
	c->made = !known;
	c->last = id;
	c->parent = out->parent;
}
