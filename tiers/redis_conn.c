/* SPDX-License-Identifier: Apache-2.0 */
/* See redis_conn.h. The tier's workers and the threads that list enter. */
#include "redis_conn.h"

#include "log.h"
#include "redis_dial.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define IDLE_MAX_NS (120 * 1000000000ull) /* an idle connection unused for longer is closed */
#define IDLE_RECENT_NS (500000000ull)     /* a connection used more recently is probably alive */
#define LOG_AGAIN_NS (300 * 1000000000ull)

/*
 * Copies `text` with a bounded length and without unprintable bytes. A text that contains the
 * password is replaced as a whole.
 */
static void printable(struct kvct_redis *r, const char *text, char *out, size_t capacity)
{
	size_t i;

	for (i = 0; text[i] && i < capacity - 1; i++)
		out[i] = (char)(isprint((unsigned char)text[i]) ? text[i] : '?');
	out[i] = 0;
	pthread_mutex_lock(&r->lock);
	if (*r->password && strstr(text, r->password))
		snprintf(out, capacity, "(the answer contains the password)");
	pthread_mutex_unlock(&r->lock);
}

void kvct_redis_log(struct kvct_redis *r, const char *what, const char *why, const char *hint)
{
	char logged[200];
	uint64_t hash = 14695981039346656037u, now = kvc_mono_ns();
	unsigned oldest = 0;

	printable(r, why, logged, sizeof logged);
	for (const char *p = what; *p; p++)
		hash = (hash ^ (unsigned char)*p) * 1099511628211u;
	/* answers that differ only in numbers (slots, addresses) count as the same line */
	for (const char *p = logged; *p; p++)
		if (!isdigit((unsigned char)*p))
			hash = (hash ^ (unsigned char)*p) * 1099511628211u;
	pthread_mutex_lock(&r->lock);
	for (unsigned i = 0; i < KVCT_REDIS_LOGGED; i++) {
		if (r->logged[i].hash == hash && r->logged[i].when_ns &&
		    now - r->logged[i].when_ns < LOG_AGAIN_NS) {
			pthread_mutex_unlock(&r->lock);
			return;
		}
		if (r->logged[i].when_ns < r->logged[oldest].when_ns)
			oldest = i;
	}
	/* a server whose answers all differ must not fill the log */
	bool full = r->logged[oldest].when_ns &&
		    now - r->logged[oldest].when_ns < LOG_AGAIN_NS / 10;

	if (!full) {
		r->logged[oldest].hash = hash;
		r->logged[oldest].when_ns = now;
	}
	pthread_mutex_unlock(&r->lock);
	if (!full)
		kvc_warn("%s: %s: %s%s%s%s", r->label, what, logged, hint ? " (" : "", hint ?: "",
			 hint ? ")" : "");
}

void kvct_redis_conn_free(struct kvct_redis_conn *c)
{
	if (c && c->c)
		redisFree(c->c);
	free(c);
}

uint64_t kvct_redis_silence_ns(const struct kvct_redis *r, const struct kvct_redis_conn *c)
{
	uint64_t ms = r->deadline_ms;

	/*
	 * A connection that was idle may be dead, so the wait is short. Any other connection is
	 * probably alive, and its server may be slow.
	 */
	if (!c->fresh && kvc_mono_ns() - c->used_ns >= IDLE_RECENT_NS)
		ms = kvc_min(ms / 4, 1000);
	return kvc_max(ms, 20) * 1000000;
}

/*
 * Sends a command of the login. Returns 0 or a negative errno, which was logged. secret: only the
 * first word of an error is logged, since a server may repeat the command.
 */
static int login_command(struct kvct_redis *r, struct kvct_redis_conn *c, uint64_t until_ns,
			 const struct kvct_redis_command *cmd, bool secret)
{
	enum kvct_redis_next next;
	const char *hint;
	redisReply *reply;
	int err = kvct_redis_command(c->c, cmd, until_ns, kvct_redis_silence_ns(r, c), &reply);

	if (err)
		return err;
	if (reply->type == REDIS_REPLY_ERROR) {
		bool none = secret && (strstr(reply->str, "no password is set") ||
				       strstr(reply->str, "without any password configured"));

		err = none ? 0 : kvct_redis_meaning(cmd->argv[0], reply->str, &next, &hint);
		if (err == -EIO)
			err = -EACCES; /* a login can hardly fail for another reason */
		if (none)
			kvct_redis_log(r, cmd->argv[0], "the server does not use a password", NULL);
		else if (secret && !has_prefix(reply->str, "WRONGPASS"))
			reply->str[strcspn(reply->str, " ")] = 0;
		if (err)
			kvct_redis_log(r, cmd->argv[0], reply->str, hint);
	}
	freeReplyObject(reply);
	return err;
}

/* Logs in and selects the database. */
static int login(struct kvct_redis *r, struct kvct_redis_conn *c, uint64_t until_ns)
{
	struct kvct_redis_command auth = { 0 }, select = { 0 };
	char db[16], password[sizeof r->password];
	int err = 0;

	pthread_mutex_lock(&r->lock);
	memcpy(password, r->password, sizeof password);
	pthread_mutex_unlock(&r->lock);
	command_word(&auth, "AUTH");
	if (*r->user)
		command_word(&auth, r->user);
	command_word(&auth, password);
	if (*password)
		err = login_command(r, c, until_ns, &auth, true);
	kvc_keys_wipe(password, sizeof password);
	snprintf(db, sizeof db, "%d", r->db);
	command_word(&select, "SELECT");
	command_word(&select, db);
	if (!err && r->db)
		err = login_command(r, c, until_ns, &select, false);
	return err;
}

static int connect_once(struct kvct_redis *r, struct kvct_redis_conn *c, uint64_t until_ns)
{
	struct kvct_redis_tls *tls = NULL;
	const char *why;
	int fd, err;
	char to[300];

	snprintf(to, sizeof to, "cannot connect to %s", c->host);
	err = kvct_redis_dial(c->host, c->port, until_ns,
			      (unsigned)kvc_max(kvc_min(r->deadline_ms, 60000), 1000), &fd, &why);
	if (err) {
		kvct_redis_log(r, to, why, NULL);
		return err;
	}
	if (!(c->c = kvct_redis_context(fd)))
		return -ENOMEM;
	pthread_mutex_lock(&r->lock);
	if (r->tls)
		tls = kvct_redis_tls_get(r->tls);
	pthread_mutex_unlock(&r->lock);
	if (tls && (err = kvct_redis_tls_start(tls, c->c, c->host, until_ns, &why)))
		kvct_redis_log(r, "TLS", why, NULL);
	kvct_redis_tls_close(tls);
	return err ?: login(r, c, until_ns);
}

/*
 * Connects. Tries again once if the server refused us and the password or the certificates have
 * changed.
 */
static int connect_to(struct kvct_redis *r, struct kvct_redis_conn *c, uint64_t until_ns)
{
	int err;

	c->fresh = true;
	c->epoch = r->epoch;
	err = connect_once(r, c, until_ns);
	if (err == -EACCES && (kvct_redis_files_changed(r, true) || c->epoch != r->epoch)) {
		if (c->c)
			redisFree(c->c);
		c->c = NULL;
		c->epoch = r->epoch;
		err = connect_once(r, c, until_ns);
	}
	c->used_ns = kvc_mono_ns();
	return err;
}

/*
 * Can this idle connection be used? No bytes arrive on it unless the server closes it or sends an
 * unexpected answer; with TLS they may be a session ticket.
 */
static bool is_usable(const struct kvct_redis *r, const struct kvct_redis_node *n,
		      const struct kvct_redis_conn *c, uint64_t now)
{
	struct pollfd p = { .fd = c->c->fd, .events = POLLIN };

	return c->epoch == r->epoch && c->used_ns > n->dead_ns && now - c->used_ns < IDLE_MAX_NS &&
	       (r->tls || poll(&p, 1, 0) <= 0);
}

int kvct_redis_conn_get(struct kvct_redis *r, unsigned node, uint64_t until_ns, bool reuse,
			struct kvct_redis_conn **out)
{
	struct kvct_redis_conn *c = NULL, *unusable[KVCT_REDIS_IDLE], *made;
	uint64_t now = kvc_mono_ns();
	unsigned nunusable = 0;
	int err;

	kvct_redis_files_changed(r, false);
	if (!(made = calloc(1, sizeof *made)))
		return -ENOMEM;
	pthread_mutex_lock(&r->lock);
	struct kvct_redis_node *n = &r->nodes[node];

	while (reuse && !c && n->nidle) {
		c = n->idle[--n->nidle];
		if (is_usable(r, n, c, now))
			break;
		unusable[nunusable++] = c;
		c = NULL;
	}
	memcpy(made->host, n->host, sizeof made->host);
	made->port = n->port;
	pthread_mutex_unlock(&r->lock);
	while (nunusable)
		kvct_redis_conn_free(unusable[--nunusable]);
	if (!c) {
		/* an empty name: the node was removed since */
		err = *made->host ? connect_to(r, made, until_ns) : -ECONNRESET;
		if (!err) {
			*out = made;
			return 0;
		}
	} else {
		*out = c;
		err = 0;
	}
	kvct_redis_conn_free(made);
	return err;
}

void kvct_redis_conn_put(struct kvct_redis *r, unsigned node, struct kvct_redis_conn *c)
{
	bool keep = !c->c->err && kvct_redis_in_step(c->c);

	c->used_ns = kvc_mono_ns();
	c->fresh = false;
	pthread_mutex_lock(&r->lock);
	struct kvct_redis_node *n = &r->nodes[node];

	/* the entry may belong to another node now */
	keep = keep && n->nidle < KVCT_REDIS_IDLE && n->port == c->port && c->epoch == r->epoch &&
	       !strcmp(n->host, c->host);
	if (keep)
		n->idle[n->nidle++] = c;
	pthread_mutex_unlock(&r->lock);
	if (!keep)
		kvct_redis_conn_free(c);
}

bool kvct_redis_conn_failed(struct kvct_redis *r, unsigned node, struct kvct_redis_conn *c, int err)
{
	bool fresh = c->fresh;

	if (!fresh) {
		pthread_mutex_lock(&r->lock);
		struct kvct_redis_node *n = &r->nodes[node];

		if (n->port == c->port && !strcmp(n->host, c->host))
			n->dead_ns = kvc_max(n->dead_ns, c->used_ns);
		pthread_mutex_unlock(&r->lock);
	} else if (err == -EACCES) {
		kvct_redis_log(r, "TLS", "the server does not accept this node's certificate",
			       "check cert= and key=");
	} else if (err == -EIO) {
		kvct_redis_log(r, "the server",
			       "its answer is longer than requested, or is not a Redis answer",
			       NULL);
	}
	kvct_redis_conn_free(c);
	return !fresh && err != -ENOMEM && err != -EIO;
}

int kvct_redis_error(struct kvct_redis *r, const char *command, const char *text, bool fresh,
		     enum kvct_redis_next *next)
{
	const char *hint;
	int err = kvct_redis_meaning(command, text, next, &hint);

	if (*next == KVCT_REDIS_WAIT && !r->cluster)
		*next = KVCT_REDIS_RECONNECT;
	/*
	 * If a new connection gets the error too, it is final, and the connections stay in use: a
	 * replica, for example, refuses writes but still serves reads.
	 */
	if (*next == KVCT_REDIS_RECONNECT && fresh)
		*next = KVCT_REDIS_FINAL;
	if (*next == KVCT_REDIS_RECONNECT)
		r->epoch++;
	if (*next == KVCT_REDIS_FINAL)
		kvct_redis_log(r, command, text, hint);
	return err;
}

/* The result of one attempt at a node. */
enum outcome { ANSWERED, FAILED, AGAIN, REDIRECTED, WAITING, GONE };

static enum outcome try_node(struct kvct_redis *r, unsigned node, bool reuse, bool asking,
			     const struct kvct_redis_command *cmd, uint64_t until_ns,
			     redisReply **out, int *err)
{
	struct kvct_redis_command first = { 0 };
	struct kvct_redis_conn *c;
	enum kvct_redis_next next;
	redisReply *reply = NULL;
	bool fresh;

	if ((*err = kvct_redis_conn_get(r, node, until_ns, reuse, &c)))
		return *err == -EACCES || *err == -ENOMEM ? FAILED : GONE;
	fresh = c->fresh;
	command_word(&first, "ASKING");
	*err = asking ? kvct_redis_command(c->c, &first, until_ns, kvct_redis_silence_ns(r, c),
					   &reply)
		      : 0;
	if (reply)
		freeReplyObject(reply);
	*err = *err ?: kvct_redis_command(c->c, cmd, until_ns, kvct_redis_silence_ns(r, c), &reply);
	if (*err) {
		if (kvct_redis_conn_failed(r, node, c, *err))
			return AGAIN;
		return *err == -ECONNRESET ? GONE : FAILED;
	}
	if (reply->type != REDIS_REPLY_ERROR) {
		kvct_redis_conn_put(r, node, c);
		*out = reply;
		return ANSWERED;
	}
	if (r->cluster && (has_prefix(reply->str, "MOVED ") || has_prefix(reply->str, "ASK "))) {
		kvct_redis_conn_put(r, node, c);
		*out = reply;
		return REDIRECTED;
	}
	*err = kvct_redis_error(r, cmd->argv[0], reply->str, fresh, &next);
	freeReplyObject(reply);
	kvct_redis_conn_put(r, node, c);
	return next == KVCT_REDIS_RECONNECT ? AGAIN : next == KVCT_REDIS_WAIT ? WAITING : FAILED;
}

int kvct_redis_ask_node(struct kvct_redis *r, unsigned node, const struct kvct_redis_command *cmd,
			uint64_t until_ns, redisReply **out)
{
	bool reuse = true;
	enum outcome o;
	int err;

	do {
		o = try_node(r, node, reuse, false, cmd, until_ns, out, &err);
		if (o == ANSWERED)
			return 0;
		if (o == REDIRECTED)
			freeReplyObject(*out);
		reuse = false;
	} while (o == AGAIN && kvc_mono_ns() < until_ns);
	return err ?: -EIO;
}

/* Waits a moment, then asks for the slot map. */
static void wait_and_learn(struct kvct_redis *r, unsigned *ms, uint64_t until_ns)
{
	uint64_t now = kvc_mono_ns(), left_ms = until_ns > now ? (until_ns - now) / 1000000 : 0;

	usleep((unsigned)kvc_min(*ms, left_ms) * 1000);
	*ms = *ms < 400 ? *ms * 2 : 400;
	kvct_redis_learn(r, until_ns);
}

int kvct_redis_ask(struct kvct_redis *r, unsigned slot, const struct kvct_redis_command *cmd,
		   uint64_t until_ns, redisReply **out)
{
	int forced = -1, err = -ETIMEDOUT; /* forced: the node of an ASK, for one attempt */
	unsigned nap_ms = 20;
	bool reuse = true;

	do {
		bool asking = forced >= 0, moved;
		unsigned node;

		pthread_mutex_lock(&r->lock);
		node = asking ? (unsigned)forced : r->cluster ? r->slot[slot] : 0;
		pthread_mutex_unlock(&r->lock);
		forced = -1;
		switch (try_node(r, node, reuse, asking, cmd, until_ns, out, &err)) {
		case ANSWERED: return 0;
		case FAILED: return err;
		case AGAIN: reuse = false; break;
		case REDIRECTED:
			moved = has_prefix((*out)->str, "MOVED ");
			forced = kvct_redis_redirected(r, (*out)->str, node, moved);
			freeReplyObject(*out);
			if (forced < 0) /* no free entry: learn which nodes are gone */
				kvct_redis_learn(r, until_ns);
			if (moved)
				forced = -1;
			reuse = true;
			err = -ETIMEDOUT;
			break;
		case GONE: /* a cluster moves the slots to another node */
			if (!r->cluster)
				return err;
			/* fallthrough */
		case WAITING:
			wait_and_learn(r, &nap_ms, until_ns);
			reuse = true;
			break;
		}
	} while (kvc_mono_ns() < until_ns);
	return err;
}
