/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes requests of the accesses to chunks in .kvcachefs/trace. See trace.h.
 *
 * A request is the prompt that one client (a thread or a lease) accesses chunk by chunk from its
 * beginning: it opens the cached chunks, and creates the others after it has computed them.
 * chain_infer.h decides where a request ends, as in the daemon, but independently of the mount's
 * policy: with a policy that needs no chains, the daemon learns none.
 *
 * Chunks are numbered in order of first access, by their paths: a chunk that is dropped and created
 * again keeps its number. A chunk's parent is declared by the client, or observed when the chunk is
 * created. For an older chunk, the parent is guessed at its first access. If a later access
 * contradicts the guess, the chunk begins a prompt.
 *
 * Most clients that lease files then open them. Then only the opens are recorded as a request.
 *
 * A chunk belongs to the model at the start of its path, and a request to the model of its first
 * chunk. Unless a client declares it, a chunk has no parent in another model.
 */
#include "trace.h"

#include "chain.h"
#include "chain_infer.h"

#include <inttypes.h>
#include <string.h>

#define LONGEST 65536u /* maximum chunks of a request */
#define BETWEEN 32u    /* chunks of a prompt that another client may have created first */
#define NONE UINT32_MAX

struct chunk {
	uint32_t parent; /* NONE: no known parent */
	uint32_t leased; /* client that leased it, until the chunk is opened; 0: none */
	bool known;      /* parent is final; otherwise it is still inferred */
	bool told;
	uint32_t model; /* NONE: unknown, or no model */
	uint64_t bytes;
	char *path;
};

struct model {
	char *name; /* as in paths */
	uint64_t requests;
};

/* A chunk of a request, and its first opened file; 0: the chunk was created. */
struct part {
	uint32_t chunk;
	uint64_t file;
};

struct client {
	struct kvc_list link;
	uint32_t id;
	uint64_t begun_ns, last_ns;
	uint32_t last;  /* last accessed chunk; NONE: unknown */
	uint32_t model; /* of its request */
	bool made, leased;
	struct part *part; /* of its request */
	size_t n, capacity;
	size_t opened; /* chunks of a lease that other clients opened later */
};

struct kvm_join {
	FILE *to;
	bool paths;
	struct kvc_chain ids, names; /* keys: ids of the daemon; hashes of paths */
	uint32_t *by_id, *by_name;   /* the chunks of their slots */
	struct chunk *chunk;
	size_t chunks, chunk_capacity;
	struct kvc_chain by_model; /* keys: hashes of names; the slot is the model's number */
	struct model *model;
	size_t models, model_capacity;
	struct kvc_chain_infer *order;
	struct kvc_list clients; /* the longest silent client is first */
	uint64_t began_ns;
	struct kvm_joined joined;
};

int kvm_join_open(struct kvm_join **out, FILE *to, bool paths)
{
	struct kvm_join *j = calloc(1, sizeof *j);

	if (!j)
		return -ENOMEM;
	j->to = to;
	j->paths = paths;
	kvc_list_init(&j->clients);
	if (kvc_chain_init(&j->ids, false, false) || kvc_chain_init(&j->names, false, false) ||
	    kvc_chain_init(&j->by_model, false, false) || kvc_chain_infer_open(&j->order)) {
		kvm_join_close(j);
		return -ENOMEM;
	}
	kvc_chain_column(&j->ids, &j->by_id, sizeof *j->by_id);
	kvc_chain_column(&j->names, &j->by_name, sizeof *j->by_name);
	*out = j;
	return 0;
}

static void client_free(struct client *c)
{
	kvc_list_del(&c->link);
	free(c->part);
	free(c);
}

void kvm_join_close(struct kvm_join *j)
{
	kvc_list_each_safe(e, &j->clients)
		client_free(kvc_of(e, struct client, link));
	for (size_t i = 0; i < j->chunks; i++)
		free(j->chunk[i].path);
	free(j->chunk);
	for (size_t i = 0; i < j->models; i++)
		free(j->model[i].name);
	free(j->model);
	kvc_chain_fini(&j->by_model);
	kvc_chain_fini(&j->ids);
	kvc_chain_fini(&j->names);
	kvc_chain_infer_close(j->order);
	free(j);
}

/* ---- chunks ---- */

static int new_chunk(struct kvm_join *j, uint32_t *nr)
{
	if (j->chunks == NONE ||
	    kvc_grow(&j->chunk, j->chunks, &j->chunk_capacity, sizeof *j->chunk))
		return -ENOMEM;
	*nr = (uint32_t)j->chunks++;
	j->chunk[*nr] = (struct chunk){ .parent = NONE, .model = NONE };
	return 0;
}

/*
 * Finds or adds the slot of a key. *there: the key existed before. Returns KVC_NO_SLOT if memory is
 * short.
 */
static uint32_t slot_of(struct kvc_chain *c, uint64_t key, bool *there)
{
	uint32_t slot = kvc_chain_find(c, key ?: 1);

	*there = slot != KVC_NO_SLOT;
	return *there ? slot : kvc_chain_add(c, key ?: 1, KVC_NO_SLOT, 0);
}

static int chunk_by_id(struct kvm_join *j, uint64_t id, uint32_t *nr)
{
	bool there;
	uint32_t slot = slot_of(&j->ids, id, &there);
	int err = slot == KVC_NO_SLOT ? -ENOMEM : there ? 0 : new_chunk(j, &j->by_id[slot]);

	if (!err)
		*nr = j->by_id[slot];
	else if (slot != KVC_NO_SLOT)
		kvc_chain_del(&j->ids, slot);
	return err;
}

static uint32_t known_by_id(const struct kvm_join *j, uint64_t id)
{
	uint32_t slot = id ? kvc_chain_find(&j->ids, id) : KVC_NO_SLOT;

	return slot == KVC_NO_SLOT ? NONE : j->by_id[slot];
}

static uint64_t text_key(const char *text, size_t len)
{
	struct kvc_sum sum = kvc_sum_of(text, len);
	uint64_t key;

	memcpy(&key, sum.b, sizeof key);
	return key;
}

/*
 * Finds the model that a path begins with; *model is NONE if there is none. Returns 0 or -ENOMEM.
 */
static int model_of(struct kvm_join *j, const char *path, uint32_t *model)
{
	const char *end = strchr(path, '/');
	size_t len = end ? (size_t)(end - path) : 0;
	uint32_t slot;
	bool there;

	*model = NONE;
	if (!end)
		return 0;
	if (kvc_grow(&j->model, j->models, &j->model_capacity, sizeof *j->model))
		return -ENOMEM;
	slot = slot_of(&j->by_model, text_key(path, len), &there);
	if (slot == KVC_NO_SLOT)
		return -ENOMEM;
	if (!there) {
		j->model[slot] = (struct model){ .name = strndup(path, len) };
		j->models++;
	}
	*model = slot;
	return j->model[slot].name ? 0 : -ENOMEM;
}

/* Returns true if the chunks are known to belong to different models. */
static bool models_differ(const struct kvm_join *j, uint32_t a, uint32_t b)
{
	uint32_t x = j->chunk[a].model, y = j->chunk[b].model;

	return x != y && x != NONE && y != NONE;
}

/* If the path already belongs to another chunk, the daemon's id then refers to that chunk. */
int kvm_join_name(struct kvm_join *j, uint64_t id, const char *path)
{
	uint32_t slot, nr;
	bool there;
	int err;

	slot = slot_of(&j->names, text_key(path, strlen(path)), &there);
	if (slot == KVC_NO_SLOT)
		return -ENOMEM;
	if (!there)
		j->by_name[slot] = NONE;
	err = chunk_by_id(j, id, &nr);
	if (err)
		return err;
	if (j->by_name[slot] == NONE)
		j->by_name[slot] = nr;
	nr = j->by_name[slot];
	j->by_id[kvc_chain_find(&j->ids, id)] = nr;
	err = model_of(j, path, &j->chunk[nr].model);
	if (!err && j->paths) {
		free(j->chunk[nr].path);
		j->chunk[nr].path = strdup(path);
		err = j->chunk[nr].path ? 0 : -ENOMEM;
	}
	return err;
}

/* ---- requests ---- */

static void write_list(FILE *to, const char *name, const struct kvm_join *j, const struct client *c,
		       int what)
{
	fprintf(to, ", \"%s\": [", name);
	for (size_t i = 0; i < c->n; i++) {
		const struct chunk *k = &j->chunk[c->part[i].chunk];

		fputs(i ? ", " : "", to);
		if (what == 'n')
			fprintf(to, "%" PRIu32, c->part[i].chunk);
		else if (what == 'b')
			fprintf(to, "%" PRIu64, k->bytes);
		else
			fprintf(to, k->path ? "\"%s\"" : "null%s", k->path ?: "");
	}
	fputs("]", to);
}

static void write_model(struct kvm_join *j, uint32_t model)
{
	if (model == NONE)
		return;
	if (j->paths)
		fprintf(j->to, ", \"model\": \"%s\"", j->model[model].name);
	else
		fprintf(j->to, ", \"model\": %" PRIu32, model);
	j->model[model].requests++;
}

/*
 * Ends the client's request and writes it. A lease is left out if at least half of its chunks were
 * opened, because those opens are a request of their own.
 */
static void finish_request(struct kvm_join *j, struct client *c)
{
	if (c->n && (!c->leased || c->opened * 2 < c->n)) {
		fprintf(j->to, "{\"timestamp\": %" PRIu64, (c->begun_ns - j->began_ns) / 1000000);
		write_model(j, c->model);
		write_list(j->to, "hash_ids", j, c, 'n');
		write_list(j->to, "bytes", j, c, 'b');
		if (j->paths)
			write_list(j->to, "paths", j, c, 'p');
		fputs("}\n", j->to);
		j->joined.requests++;
		j->joined.uses += c->n;
	}
	c->n = c->opened = 0;
}

static struct client *find_client(struct kvm_join *j, uint32_t id)
{
	for (struct kvc_list *e = j->clients.prev; e != &j->clients; e = e->prev)
		if (kvc_of(e, struct client, link)->id == id)
			return kvc_of(e, struct client, link);
	return NULL;
}

static struct client *get_client(struct kvm_join *j, uint32_t id)
{
	struct client *c = find_client(j, id);

	if (!c && (c = calloc(1, sizeof *c))) {
		c->id = id;
		c->last = NONE;
		kvc_list_init(&c->link);
	}
	if (c) {
		kvc_list_del(&c->link);
		kvc_list_add_tail(&j->clients, &c->link);
	}
	return c;
}

static const struct part *in_request(const struct client *c, uint32_t nr)
{
	for (size_t i = 0; i < c->n; i++)
		if (c->part[i].chunk == nr)
			return &c->part[i];
	return NULL;
}

static int add_part(struct client *c, uint32_t nr, uint64_t file)
{
	if (kvc_grow(&c->part, c->n, &c->capacity, sizeof *c->part))
		return -ENOMEM;
	c->part[c->n++] = (struct part){ nr, file };
	return 0;
}

/* Starts a request. If it starts inside of a declared chain, all ancestors belong to the prompt. */
static int start_request(struct kvm_join *j, struct client *c, uint32_t nr, uint64_t ns)
{
	uint32_t n = 0;
	int err = 0;

	finish_request(j, c);
	c->begun_ns = ns;
	c->model = j->chunk[nr].model;
	for (uint32_t at = nr; j->chunk[at].told && j->chunk[at].parent != NONE && n < LONGEST;
	     n++) {
		at = j->chunk[at].parent;
		err = err ?: add_part(c, at, 0);
	}
	if (n == LONGEST) /* a cycle */
		c->n = 0;
	for (size_t i = 0; i < c->n / 2; i++) {
		struct part p = c->part[i];

		c->part[i] = c->part[c->n - 1 - i];
		c->part[c->n - 1 - i] = p;
	}
	return err;
}

static bool is_near(const struct client *c, const struct kvm_use *u)
{
	return u->ns - c->last_ns <= KVC_CHAIN_INFER_COMPUTE_NS;
}

/* Returns the chunk's parent as far as it is known before this access, or NONE. */
static uint32_t known_parent(const struct kvm_join *j, const struct client *c,
			     const struct chunk *k, const struct kvm_use *u)
{
	if (u->told)
		return known_by_id(j, u->parent);
	if (k->known)
		return k->parent;
	if (u->parent)
		return known_by_id(j, u->parent);
	return !u->made && !u->learned && !c->made && u->ns - c->last_ns <= KVC_CHAIN_INFER_PAUSE_NS
		       ? c->last
		       : NONE;
}

/*
 * Does the declared chain lead from the client's last chunk to this one? There may be a few chunks
 * between them, which another client has created at the same time. They belong to the request too.
 */
static int continues_told(const struct kvm_join *j, struct client *c, uint32_t nr, bool *on)
{
	uint32_t between[BETWEEN], n = 0, at = j->chunk[nr].parent;
	int err = 0;

	while (at != NONE && at != c->last && n < BETWEEN) {
		between[n++] = at;
		at = j->chunk[at].told ? j->chunk[at].parent : NONE;
	}
	*on = at != NONE && at == c->last;
	while (*on && !err && n)
		err = add_part(c, between[--n], 0);
	return err;
}

/* Returns true if the client's request continues with this chunk. Updates the chunk's parent. */
static bool continues_request(struct kvm_join *j, const struct client *c, uint32_t nr,
			      const struct kvm_use *u)
{
	struct chunk *k = &j->chunk[nr];
	uint32_t parent = known_parent(j, c, k, u);
	bool known = !u->made || u->told || k->known;
	struct kvc_inferred seen;

	kvc_chain_infer_access(j->order, u->client, nr + 1ull, u->ns, known,
			       parent == NONE ? 0 : parent + 1ull, &seen);
	if (!u->told)
		parent = seen.parent ? (uint32_t)seen.parent - 1 : NONE;
	if (!u->told && c->last != NONE && (parent != c->last || models_differ(j, parent, nr)))
		parent = NONE;
	k->parent = parent;
	k->told = u->told;
	k->known |= u->told || c->last != NONE;
	return parent != NONE && parent == c->last && is_near(c, u);
}

/* Notes that another client opens a leased chunk. */
static void open_leased(struct kvm_join *j, struct chunk *k)
{
	struct client *l = k->leased ? find_client(j, k->leased) : NULL;

	if (l && l->leased)
		l->opened++;
	k->leased = 0;
}

int kvm_join_use(struct kvm_join *j, struct kvm_use *u)
{
	struct client *c = get_client(j, u->client);
	const struct part *before;
	uint32_t nr;
	bool on;
	int err = c ? chunk_by_id(j, u->id, &nr) : -ENOMEM;

	if (err)
		return err;
	/* overlapping calls of a process may not be reported in the order in which they began */
	u->ns = kvc_max(u->ns, c->last_ns);
	j->began_ns = j->began_ns ?: u->ns;
	if (u->bytes)
		j->chunk[nr].bytes = u->bytes;
	if (u->leased)
		j->chunk[nr].leased = u->client;
	else
		open_leased(j, &j->chunk[nr]);
	/*
	 * Opening another file of a chunk is not another access. Opening the same file again is
	 * one, and so is opening a chunk that this request created.
	 */
	before = in_request(c, nr);
	if (before && (!u->file || (before->file && before->file != u->file)))
		return 0;
	on = continues_request(j, c, nr, u) && !before && c->n && c->n < LONGEST;
	if (!on && u->told && !before && c->n && c->n < LONGEST && is_near(c, u))
		err = continues_told(j, c, nr, &on);
	if (!on && !err)
		err = start_request(j, c, nr, kvc_max(u->ns, j->began_ns));
	c->last = nr;
	c->last_ns = u->ns;
	c->made = u->made;
	c->leased = u->leased;
	return err ?: add_part(c, nr, u->file);
}

void kvm_join_end(struct kvm_join *j, uint32_t client)
{
	struct client *c = find_client(j, client);

	if (c)
		/* it is written later, when it is known whether the files were opened */
		c->last = NONE;
}

/* Every request that is under way may lack accesses, so it is left out. */
void kvm_join_lost(struct kvm_join *j, uint64_t n)
{
	j->joined.lost += n;
	kvc_list_each_safe(e, &j->clients) {
		struct client *c = kvc_of(e, struct client, link);

		j->joined.left_out += c->n != 0;
		client_free(c);
	}
	fprintf(j->to, "{\"lost\": %" PRIu64 "}\n", n);
}

void kvm_join_write(struct kvm_join *j, uint64_t now_ns)
{
	kvc_list_each_safe(e, &j->clients) {
		struct client *c = kvc_of(e, struct client, link);

		if (now_ns < c->last_ns || now_ns - c->last_ns <= KVC_CHAIN_INFER_COMPUTE_NS)
			break;
		finish_request(j, c);
		client_free(c);
	}
}

const char *kvm_join_model(const struct kvm_join *j, size_t nr, uint64_t *requests)
{
	if (nr >= j->models)
		return NULL;
	*requests = j->model[nr].requests;
	return j->model[nr].name;
}

void kvm_join_show(const struct kvm_join *j, struct kvm_joined *to)
{
	*to = j->joined;
}
