/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of peers: a Redis or Valkey that knows which nodes have an object, so that a lookup
 * asks only these nodes. A missing, wrong or old entry costs a request or a hit. It cannot change a
 * byte, because each answer of a node is checked as without a directory.
 *
 *   PREFIX:epoch    a random number; it tells when the directory was emptied
 *   PREFIX:n:HEX    a node, by a MAC of its name: its id, whether it is complete, the epoch, and a
 *                   number that changes. Expires after LIVE_S seconds, is written every BEAT_NS
 *   PREFIX:ID       an object, by a MAC of its path: the set of the ids of nodes that have it.
 *                   Expires after ENTRY_S seconds
 *
 * A node announces its objects when they are stored and evicted, and all of them again a few times
 * a day (jobs/announce.c). A node is complete once it has announced all its objects to the
 * directory of this epoch. Only then does a missing entry mean that the node does not have the
 * object:
 *
 *   no entry of the node since this epoch began   it is asked, as without a directory
 *   it is not complete, or of another epoch       likewise
 *   it is complete                                it is asked for objects of its entries only
 *   it had an entry, which has expired            it is dead, and not asked
 *
 * The last rule holds only while another node has an entry and this node can write its own: a
 * directory that is full or read-only has no entries of nodes either.
 *
 * So a directory that was restarted empty costs requests, not hits, until all objects have been
 * announced again. A directory that goes back in time (a snapshot) has another entry of the node
 * than the node has written last, and the node announces everything again.
 *
 * A directory that fails is left alone for a time that doubles, and all nodes are asked. d->lock
 * guards the members after it; nothing is sent while it is held.
 */
#include "peers_directory.h"

#include "keys.h"
#include "log.h"
#include "options.h"
#include "redis_conn.h"
#include "registry.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NODES_MAX 64u
#define NAMES_MAX 16u    /* names of this node */
#define HOLDERS_MAX 512u /* ids of nodes in one set that are read */
#define AT_ONCE 512u     /* objects in one round trip */
#define ENTRY_S "86400"
#define LIVE_S "15"
#define BEAT_NS 3000000000ull
#define VIEW_NS 1000000000ull /* how long the entries of nodes are used */
#define ASK_NS 500000000ull   /* the longest wait for an answer about objects */
#define TELL_NS 2000000000ull /* likewise for announcements */
#define BACKOFF_MIN_NS 1000000000ull
#define BACKOFF_MAX_NS 8000000000ull

#define KEY (KVCT_REDIS_NAME + 8)

/* One of the other nodes. */
struct other {
	struct kvct_directory_node entry;
	bool seen; /* it has had an entry since the epoch began */
	bool live; /* it has one now */
};

struct kvct_directory {
	struct kvc_tier *redis;
	const struct kvc_peer_secret *secret;
	unsigned n;                   /* of other nodes */
	char node_key[NODES_MAX][40]; /* their keys, without the prefix */
	char own_key[NAMES_MAX][40];  /* likewise of this node's names */
	unsigned nown;                /* 0: this node serves nothing */
	uint32_t own_id;
	/* of the thread that announces */
	struct {
		char epoch[33]; /* "": not known */
		/* the value that was written last, and the one that may have been written since */
		char last[KVCT_DIRECTORY_VALUE], tried[KVCT_DIRECTORY_VALUE];
		uint64_t beat, beat_ns;
		bool complete;
	} own;
	pthread_mutex_t lock;
	bool refused;                  /* the last announcement of this node failed */
	uint64_t until_ns, backoff_ns; /* left alone until then */
	char epoch[33];                /* of `other` */
	uint64_t view_ns;              /* when `other` was read; 0: never */
	struct other other[NODES_MAX];
};

static struct kvct_redis *directory_redis(const struct kvct_directory *d)
{
	return kvc_of(d->redis, struct kvct_redis, tier);
}

/* ---- encoding ---- */

static int directory_mac(const struct kvc_peer_secret *s, const char *kind, const char *text,
			 uint8_t mac[16])
{
	return kvc_keys_mac(s->key, kind, strlen(kind), text, strlen(text), mac);
}

int kvct_directory_object_id(const struct kvc_peer_secret *s, const char *path,
			     char id[KVCT_DIRECTORY_ID])
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	uint8_t mac[16];
	int err = directory_mac(s, "directory object\n", path, mac);

	for (int i = 0; i < 4 && !err; i++) {
		uint32_t bits = (uint32_t)mac[3 * i] << 16 | (uint32_t)mac[3 * i + 1] << 8 |
				mac[3 * i + 2];

		for (int j = 0; j < 4; j++)
			*id++ = digits[bits >> (18 - 6 * j) & 63];
	}
	*id = 0;
	return err;
}

void kvct_directory_write_node(const struct kvct_directory_node *n,
			       char value[KVCT_DIRECTORY_VALUE])
{
	snprintf(value, KVCT_DIRECTORY_VALUE, "%u %d %s %llu", n->id, n->complete, n->epoch,
		 (unsigned long long)n->beat);
}

/* Parses a number with at most `most` digits, which is the whole text. */
static bool read_number(const char *text, size_t most, uint64_t *n)
{
	size_t digits = strspn(text, "0123456789");

	*n = strtoull(text, NULL, 10);
	return digits && digits <= most && !text[digits];
}

bool kvct_directory_read_node(const char *value, size_t len, struct kvct_directory_node *n)
{
	char text[KVCT_DIRECTORY_VALUE], *part[4] = { text };
	uint64_t id, complete, beat;

	if (len >= sizeof text || memchr(value, 0, len))
		return false;
	memcpy(text, value, len);
	text[len] = 0;
	for (int i = 1; i < 4; i++) {
		if (!(part[i] = strchr(part[i - 1], ' ')))
			return false;
		*part[i]++ = 0;
	}
	if (!read_number(part[0], 9, &id) || !id || !read_number(part[1], 1, &complete) ||
	    complete > 1 || strlen(part[2]) >= sizeof n->epoch || !*part[2] ||
	    !read_number(part[3], 19, &beat))
		return false;
	*n = (struct kvct_directory_node){
		.id = (uint32_t)id,
		.complete = complete,
		.beat = beat,
	};
	memcpy(n->epoch, part[2], strlen(part[2]));
	return true;
}

/* The key of a node's entry. Names are the same in upper and lower case. */
static int node_key(const struct kvc_peer_secret *s, const char *name, char key[40])
{
	char lower[KVC_PEER_NAME];
	uint8_t mac[16];
	size_t i;
	int err;

	for (i = 0; name[i] && i < sizeof lower - 1; i++)
		lower[i] = (char)tolower((unsigned char)name[i]);
	lower[i] = 0;
	err = directory_mac(s, "directory node\n", lower, mac);
	key += sprintf(key, "n:");
	for (int j = 0; j < 16; j++)
		key += snprintf(key, 3, "%02x", mac[j]);
	return err;
}

static const char *full_key(const struct kvct_directory *d, const char *key, char out[KEY])
{
	snprintf(out, KEY, "%s:%s", directory_redis(d)->prefix, key);
	return out;
}

/* ---- failures ---- */

/* May the directory be asked now? While it fails, one caller at a time tries it. */
static bool may_ask(struct kvct_directory *d)
{
	uint64_t now = kvc_mono_ns();
	bool may;

	pthread_mutex_lock(&d->lock);
	may = now >= d->until_ns;
	if (may && d->backoff_ns)
		d->until_ns = now + d->backoff_ns;
	pthread_mutex_unlock(&d->lock);
	return may;
}

static void directory_answered(struct kvct_directory *d, int err)
{
	bool failed;

	if (err == -ENOMEM)
		return;
	pthread_mutex_lock(&d->lock);
	failed = d->backoff_ns;
	if (err) {
		d->backoff_ns = failed ? kvc_min(d->backoff_ns * 2, BACKOFF_MAX_NS)
				       : BACKOFF_MIN_NS;
		d->until_ns = kvc_mono_ns() + d->backoff_ns;
	} else {
		d->until_ns = d->backoff_ns = 0;
	}
	pthread_mutex_unlock(&d->lock);
	if (err && !failed)
		kvc_warn("tier peers: the directory does not answer and is left alone for a "
			 "while: %s",
			 strerror(-err));
	else if (!err && failed)
		kvc_info("tier peers: the directory answers again");
}

static int run(struct kvct_redis_pipe *p)
{
	kvct_redis_pipe_send(p, true);
	return kvct_redis_pipe_finish(p);
}

/* ---- lookups ---- */

/* Answers about the epoch, the other nodes (if they are read) and some objects. */
struct question {
	struct kvct_directory *d;
	bool reads; /* the nodes are read, too */
	const char *const *path;
	size_t n;
	char epoch[33];
	bool refused; /* as in struct kvct_directory */
	struct other other[NODES_MAX];
	uint64_t *holders; /* of each object: a bit for each other node */
	char key[KEY];
};

static size_t nodes_read(const struct question *q)
{
	return q->reads ? q->d->n : 0;
}

static void ask_command(void *arg, size_t i, struct kvct_redis_command *cmd)
{
	struct question *q = arg;
	size_t objects = 1 + nodes_read(q);
	char id[KVCT_DIRECTORY_ID] = "";

	command_word(cmd, i < objects ? "GET" : "SMEMBERS");
	if (!i)
		full_key(q->d, "epoch", q->key);
	else if (i < objects)
		full_key(q->d, q->d->node_key[i - 1], q->key);
	else if (!kvct_directory_object_id(q->d->secret, q->path[i - objects], id))
		full_key(q->d, id, q->key);
	command_word(cmd, q->key);
}

/* The other nodes with this id. */
static uint64_t nodes_of_id(const struct question *q, const redisReply *member)
{
	unsigned long long id = member->type == REDIS_REPLY_INTEGER
					? (unsigned long long)member->integer
				: member->type == REDIS_REPLY_STRING
					? strtoull(member->str, NULL, 10)
					: 0;
	uint64_t nodes = 0;

	for (unsigned j = 0; j < q->d->n; j++)
		if (q->other[j].live && q->other[j].entry.id == id)
			nodes |= 1ull << j;
	return nodes;
}

static int ask_answer(void *arg, size_t i, const redisReply *reply)
{
	struct question *q = arg;
	size_t objects = 1 + nodes_read(q);
	struct other *o;

	if (reply->type == REDIS_REPLY_ERROR)
		return KVCT_REDIS_UNKNOWN;
	if (!i) {
		*q->epoch = 0;
		if (reply->type == REDIS_REPLY_STRING && reply->len < sizeof q->epoch)
			memcpy(q->epoch, reply->str, reply->len + 1);
	} else if (i < objects) {
		o = &q->other[i - 1];
		o->live = reply->type == REDIS_REPLY_STRING &&
			  kvct_directory_read_node(reply->str, reply->len, &o->entry);
		o->seen |= o->live;
	} else {
		q->holders[i - objects] = 0;
		for (size_t m = 0; reply->type == REDIS_REPLY_ARRAY && m < reply->elements; m++)
			q->holders[i - objects] |= nodes_of_id(q, reply->element[m]);
	}
	return 0;
}

/* The nodes that may have every object, since the directory does not know all of theirs. */
static uint64_t nodes_unknown(const struct question *q)
{
	uint64_t nodes = 0, dead = 0;
	bool any = false;

	for (unsigned j = 0; j < q->d->n; j++) {
		const struct other *o = &q->other[j];

		any |= o->live;
		if (!o->live && o->seen)
			dead |= 1ull << j;
		else if (!o->live || !o->entry.complete || strcmp(o->entry.epoch, q->epoch))
			nodes |= 1ull << j;
	}
	return any && !q->refused ? nodes : nodes | dead;
}

/*
 * Keeps the entries of nodes if they were read. Returns false if the epoch is not theirs, so that
 * they must be read again.
 */
static bool keep_view(struct kvct_directory *d, struct question *q, const char *before)
{
	bool same = *q->epoch && !strcmp(q->epoch, before);

	/* `seen` is about one epoch */
	for (unsigned j = 0; j < d->n && !same; j++)
		q->other[j].seen = q->other[j].live;
	pthread_mutex_lock(&d->lock);
	if (q->reads) {
		memcpy(d->other, q->other, sizeof d->other);
		memcpy(d->epoch, q->epoch, sizeof d->epoch);
		d->view_ns = kvc_mono_ns();
	} else if (!same) {
		d->view_ns = 0;
	}
	pthread_mutex_unlock(&d->lock);
	return *q->epoch && (same || q->reads);
}

static int ask_some(struct kvct_directory *d, const char *const *path, size_t n, uint64_t *may,
		    bool *known)
{
	struct question q = { .d = d, .path = path, .n = n, .holders = may };
	struct kvct_redis_pipe p = {
		.r = directory_redis(d),
		.until_ns = kvc_mono_ns() +
			    kvc_min(directory_redis(d)->deadline_ms * 1000000, ASK_NS),
		.command = ask_command,
		.answer = ask_answer,
		.arg = &q,
		.elements = HOLDERS_MAX,
	};
	char before[33];
	int err;

	pthread_mutex_lock(&d->lock);
	q.reads = !d->view_ns || kvc_mono_ns() - d->view_ns > VIEW_NS;
	q.refused = d->refused;
	memcpy(q.other, d->other, sizeof q.other);
	memcpy(before, d->epoch, sizeof before);
	pthread_mutex_unlock(&d->lock);
	p.n = 1 + nodes_read(&q) + n;
	err = run(&p);
	if (err)
		return err;
	*known = keep_view(d, &q, before);
	for (size_t i = 0; i < n; i++)
		may[i] |= nodes_unknown(&q);
	return 0;
}

bool kvct_directory_find(struct kvct_directory *d, const char *const *path, size_t n, uint64_t *may)
{
	bool known = true;
	int err = 0;

	if (!may_ask(d))
		return false;
	for (size_t at = 0; at < n && !err && known; at += AT_ONCE)
		err = ask_some(d, path + at, kvc_min(n - at, AT_ONCE), may + at, &known);
	directory_answered(d, err);
	return !err && known;
}

/* ---- announcements ---- */

struct announcement {
	struct kvct_directory *d;
	const struct kvc_announcement *a;
	bool beats; /* the entries of this node are written */
	bool stale; /* earlier announcements are lost */
	char value[KVCT_DIRECTORY_VALUE], id[16], key[KEY];
};

/*
 * Commands: the epoch; SET with GET for each name of this node, if due; and for each object SADD or
 * SREM, and EXPIRE.
 */
static void tell_command(void *arg, size_t i, struct kvct_redis_command *cmd)
{
	struct announcement *t = arg;
	size_t objects = 1 + (t->beats ? t->d->nown : 0), at = (i - objects) / 2;
	char id[KVCT_DIRECTORY_ID] = "";
	bool second = (i - objects) % 2;

	if (!i) {
		command_word(cmd, "GET");
		command_word(cmd, full_key(t->d, "epoch", t->key));
	} else if (i < objects) {
		command_word(cmd, "SET");
		command_word(cmd, full_key(t->d, t->d->own_key[i - 1], t->key));
		command_word(cmd, t->value);
		command_word(cmd, "EX");
		command_word(cmd, LIVE_S);
		command_word(cmd, "GET");
	} else {
		kvct_directory_object_id(t->d->secret, t->a->path[at], id);
		command_word(cmd, second ? "EXPIRE" : t->a->has[at] ? "SADD" : "SREM");
		command_word(cmd, full_key(t->d, id, t->key));
		command_word(cmd, second ? ENTRY_S : t->id);
	}
}

static int tell_answer(void *arg, size_t i, const redisReply *reply)
{
	struct announcement *t = arg;
	const struct kvct_directory *d = t->d;

	if (reply->type == REDIS_REPLY_ERROR)
		return KVCT_REDIS_UNKNOWN;
	if (!i)
		t->stale |= reply->type != REDIS_REPLY_STRING || strcmp(reply->str, d->own.epoch);
	else if (i <= d->nown && t->beats && *d->own.last)
		t->stale |= reply->type != REDIS_REPLY_STRING ||
			    (strcmp(reply->str, d->own.last) && strcmp(reply->str, d->own.tried));
	return 0;
}

struct beginning {
	struct kvct_directory *d;
	char epoch[33], key[KEY];
};

static void begin_command(void *arg, size_t i, struct kvct_redis_command *cmd)
{
	struct beginning *b = arg;

	command_word(cmd, i ? "GET" : "SET");
	command_word(cmd, full_key(b->d, "epoch", b->key));
	if (i)
		return;
	command_word(cmd, b->epoch);
	command_word(cmd, "NX");
}

static int begin_answer(void *arg, size_t i, const redisReply *reply)
{
	struct beginning *b = arg;

	if (reply->type == REDIS_REPLY_ERROR)
		return KVCT_REDIS_UNKNOWN;
	if (!i)
		return 0;
	if (reply->type != REDIS_REPLY_STRING || !reply->len ||
	    reply->len >= sizeof b->d->own.epoch || strchr(reply->str, ' '))
		return -EIO;
	memcpy(b->d->own.epoch, reply->str, reply->len + 1);
	return 0;
}

/* Finds the epoch of the directory, or begins one. */
static int begin_epoch(struct kvct_directory *d)
{
	struct beginning b = { .d = d };
	struct kvct_redis_pipe p = {
		.r = directory_redis(d),
		.until_ns = kvc_mono_ns() + TELL_NS,
		.n = 2,
		.command = begin_command,
		.answer = begin_answer,
		.arg = &b,
	};
	uint64_t bits[2];
	int err = kvc_keys_random(bits, sizeof bits);

	snprintf(b.epoch, sizeof b.epoch, "%016llx%016llx", (unsigned long long)bits[0],
		 (unsigned long long)bits[1]);
	*d->own.last = 0;
	d->own.beat_ns = 0;
	d->own.beat = bits[0] % 1000000000;
	return err ?: run(&p);
}

int kvct_directory_announce(struct kvct_directory *d, const struct kvc_announcement *a)
{
	struct announcement t = { .d = d, .a = a };
	struct kvct_directory_node n = { .id = d->own_id, .complete = a->complete };
	struct kvct_redis_pipe p = {
		.r = directory_redis(d),
		.until_ns = kvc_mono_ns() + TELL_NS,
		.command = tell_command,
		.answer = tell_answer,
		.arg = &t,
	};
	uint64_t now = kvc_mono_ns();
	bool begins = !*d->own.epoch;
	int err = 0;

	t.beats = begins || !d->own.beat_ns || now - d->own.beat_ns >= BEAT_NS ||
		  d->own.complete != a->complete;
	if (!t.beats && !a->n)
		return 0;
	if (!may_ask(d))
		return -EAGAIN;
	if (begins)
		err = begin_epoch(d);
	n.beat = ++d->own.beat;
	memcpy(n.epoch, d->own.epoch, sizeof n.epoch);
	n.complete = a->complete && !begins;
	kvct_directory_write_node(&n, t.value);
	if (t.beats)
		memcpy(d->own.tried, t.value, sizeof t.value);
	snprintf(t.id, sizeof t.id, "%u", d->own_id);
	p.n = 1 + (t.beats ? d->nown : 0) + 2 * a->n;
	err = err ?: run(&p);
	directory_answered(d, err);
	pthread_mutex_lock(&d->lock);
	d->refused = err;
	pthread_mutex_unlock(&d->lock);
	if (err)
		return err;
	if (t.stale) {
		*d->own.epoch = 0;
		return -ESTALE;
	}
	if (t.beats) {
		memcpy(d->own.last, t.value, sizeof d->own.last);
		d->own.beat_ns = now;
		d->own.complete = n.complete;
	}
	return begins ? -ESTALE : 0;
}

/* ---- opening ---- */

/* The URL of the directory, with those parameters of the tier's URL that are for it. */
static int directory_url(const struct kvct_url *u, struct kvct_url *out, char *error)
{
	static const char *const names[] = { "password_file", "db", "ca", "cert", "key", NULL };
	char text[sizeof u->query], value[512];
	size_t at = 0;
	int err;

	kvct_url_get(u, "directory", text, sizeof text);
	if (strncmp(text, "redis://", 8) && strncmp(text, "rediss://", 9)) {
		snprintf(error, 512,
			 "option remote: directory= must be redis://HOST:PORT/PREFIX or rediss://");
		return -EINVAL;
	}
	if ((err = kvct_url_parse(text, out, error)))
		return err;
	if (*out->query) {
		snprintf(error, 512,
			 "option remote: give the parameters of directory= to peers://, with & "
			 "between them");
		return -EINVAL;
	}
	for (const char *const *n = names; *n; n++)
		if (kvct_url_has(u, *n)) {
			kvct_url_get(u, *n, value, sizeof value);
			at += (size_t)snprintf(out->query + at, sizeof out->query - at, "%s%s=%s",
					       at ? "&" : "", *n, value);
		}
	return 0;
}

/* Sets the keys of this node's entries: all names under which others may know it. */
static int own_keys(struct kvct_directory *d, const struct kvct_url *u)
{
	const char *lists[] = { u->options->peer_listen, u->options->peer_name };
	char name[sizeof u->options->peer_name], *save = NULL;
	char id[sizeof name + sizeof u->options->peer_listen + 64];
	uint8_t mac[16];
	int err;

	/* with the names, in case the store is a copy of another one */
	snprintf(id, sizeof id, "%s\n%s\n%s", u->store_id ?: "", lists[0], lists[1]);
	err = directory_mac(d->secret, "directory id\n", id, mac);
	d->own_id = 1 + ((uint32_t)mac[0] << 24 | (uint32_t)mac[1] << 16 | (uint32_t)mac[2] << 8 |
			 mac[3]) %
				999999998;
	for (int i = 0; i < 2 && !err; i++) {
		snprintf(name, sizeof name, "%s", lists[i]);
		for (char *n = strtok_r(name, "+", &save); n && d->nown < NAMES_MAX && !err;
		     n = strtok_r(NULL, "+", &save))
			err = node_key(d->secret, n, d->own_key[d->nown++]);
	}
	return err;
}

int kvct_directory_open(const struct kvct_url *u, uint64_t deadline_ms,
			const struct kvc_peer_secret *secret, const char *const *node, unsigned n,
			struct kvct_directory **out, char *error)
{
	struct kvct_directory *d;
	struct kvct_url url;
	int err;

	*out = NULL;
	if (!kvct_url_has(u, "directory"))
		return 0;
	if ((err = directory_url(u, &url, error)))
		return err;
	if (!(d = calloc(1, sizeof *d)))
		return -ENOMEM;
	pthread_mutex_init(&d->lock, NULL);
	d->secret = secret;
	d->n = n;
	for (unsigned i = 0; i < n && !err; i++)
		err = node_key(secret, node[i], d->node_key[i]);
	if (!err && u->options && *u->options->peer_listen)
		err = own_keys(d, u);
	if (err)
		snprintf(error, 512, "cannot compute the keys of the directory: %s",
			 strerror(-err));
	err = err ?: kvct_redis_open(&url, kvc_max(deadline_ms / 4, 100), &d->redis, error);
	if (err) {
		kvct_directory_close(d);
		return err;
	}
	directory_redis(d)->label = "directory of peers";
	*out = d;
	return 0;
}

void kvct_directory_close(struct kvct_directory *d)
{
	if (!d)
		return;
	if (d->redis)
		d->redis->ops->close(d->redis);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

bool kvct_directory_announces(const struct kvct_directory *d)
{
	return d->nown;
}

uint64_t kvct_directory_bytes(void)
{
	return sizeof(struct kvct_directory) + sizeof(struct kvct_redis);
}
