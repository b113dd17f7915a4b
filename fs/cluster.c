/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of all nodes, for kvcachectl cluster. A client writes a request to .kvcachefs/cluster
 * and reads the answers, one after another. Each begins with a line
 *
 *   node NAME here|ok|failed LENGTH REASON
 *
 * and LENGTH bytes of text follow. NAME is that of nodes=, or for this node ("here") the first of
 * its own names, or "-". REASON is a word and a sentence that say why a node has failed.
 *
 * A worker (defer.h) runs the requests, because it has to wait for the nodes.
 */
#include "cluster.h"

#include "cluster_ask.h"
#include "cluster_change.h"
#include "fs.h"
#include "nodes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *word;
	enum kvc_peer_kind kind;
} requests[] = {
	{ "status\n", KVC_PEER_STATUS },
	{ "where\n", KVC_PEER_WHERE },
	{ "change\n", KVC_PEER_CHANGE },
};

static const struct {
	int err;
	const char *text;
} reasons[] = {
	{ -ETIMEDOUT, "unreachable: it does not answer in time" },
	{ -ECONNREFUSED, "unreachable: the connection is refused; is the store mounted there, with "
			 "this address as peer_listen=?" },
	{ -EHOSTUNREACH, "unreachable: its name has no address" },
	{ -EBUSY, "busy: try again" },
	{ -EPERM, "refused: it allows no changes by other nodes; they need its option "
		  "peer_control" },
	{ -ENOMEM, "unknown: out of memory here" },
};

static void print_status_text(struct kvfs *f, FILE *out)
{
	fprintf(out, "version %s\nuptime_seconds %" PRIu64 "\nready %d\n", KVC_VERSION,
		(kvc_mono_ns() - f->begun_ns) / 1000000000, kvfs_unready(f) ? 0 : 1);
	kvc_text_node(f->k, out);
}

char *kvfs_cluster_text(struct kvfs *f, enum kvc_peer_kind kind, const char *names, size_t n,
			size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	if (kind == KVC_PEER_STATUS)
		print_status_text(f, out);
	else
		kvc_cluster_where(f->k, names, n, out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	if (text && *len > KVC_PEER_TEXT) { /* whole lines */
		*len = KVC_PEER_TEXT;
		while (*len && text[*len - 1] != '\n')
			--*len;
	}
	return text;
}

/* A change that waits in the worker. */
struct here {
	struct kvc_wait w;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool woken;
};

static void here_woken(struct kvc_wait *w)
{
	struct here *h = kvc_of(w, struct here, w);

	pthread_mutex_lock(&h->lock);
	h->woken = true;
	pthread_cond_signal(&h->cond);
	pthread_mutex_unlock(&h->lock);
}

/* Makes a change on this node. Returns 0 and *text, or a negative errno. Blocks. */
static int change_here(struct kvfs *f, const char *names, size_t n, char **text, size_t *len)
{
	struct here h = { .w.wake = here_woken };
	struct kvc_change *c = NULL;
	int err = kvc_change_begin(f->k, names, n, &c);

	if (err)
		return err;
	pthread_mutex_init(&h.lock, NULL);
	pthread_cond_init(&h.cond, NULL);
	while (kvc_change_run(c, &h.w) == KVC_WAIT) {
		pthread_mutex_lock(&h.lock);
		while (!h.woken)
			pthread_cond_wait(&h.cond, &h.lock);
		h.woken = false;
		pthread_mutex_unlock(&h.lock);
	}
	pthread_cond_destroy(&h.cond);
	pthread_mutex_destroy(&h.lock);
	*text = kvfs_cluster_changed(c, len);
	kvc_change_end(c);
	return *text ? 0 : -ENOMEM;
}

/* Prints the answer of a node, or why there is none. */
static void print_answer(FILE *out, const struct kvc_node_answer *a)
{
	const char *why = NULL;

	if (!a->err) {
		fprintf(out, "node %s ok %zu -\n", a->node, a->len);
		fwrite(a->text, 1, a->len, out);
		return;
	}
	for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
		if (reasons[i].err == a->err)
			why = reasons[i].text;
	fprintf(out, "node %s failed 0 ", a->node);
	if (why)
		fprintf(out, "%s\n", why);
	else
		fprintf(out, "%s: %s\n", a->err == -EACCES ? "refused" : "failed",
			*a->why ? a->why : strerror(-a->err));
}

char *kvfs_cluster_changed(const struct kvc_change *c, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	kvc_change_print(c, out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

/* Finds the request, and counts its names. Returns false if it is wrong. */
static bool parse_request(const char **request, size_t *len, enum kvc_peer_kind *kind, size_t *n)
{
	for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
		size_t word = strlen(requests[i].word);

		if (*len < word || memcmp(*request, requests[i].word, word) != 0)
			continue;
		*kind = requests[i].kind;
		*request += word;
		*len -= word;
		if (*kind == KVC_PEER_STATUS && !*len) {
			*request = "";
			*len = 1;
		}
		return *len && *len <= KVC_PEER_NAMES_BYTES &&
		       kvc_peer_names_count(*request, *len, n);
	}
	return false;
}

int kvfs_cluster_run(struct kvfs *f, const char *request, size_t len, char **text, size_t *text_len)
{
	struct kvc_node_answer *a;
	enum kvc_peer_kind kind;
	char *own = NULL, name[KVC_PEER_NAME];
	size_t n, nodes = 0, own_len;
	FILE *out;
	int err;

	if (!parse_request(&request, &len, &kind, &n))
		return -EINVAL;
	a = calloc(KVC_NODES, sizeof *a);
	out = open_memstream(text, text_len);
	err = a && out ? 0 : -ENOMEM;
	if (!err && kind == KVC_PEER_CHANGE)
		err = change_here(f, request, n, &own, &own_len);
	else if (!err && !(own = kvfs_cluster_text(f, kind, request, n, &own_len)))
		err = -ENOMEM;
	err = err ?: kvc_cluster_ask(f->k, kind, request, len, a, &nodes);
	if (!err) {
		kvfs_nodes_name(f, name);
		fprintf(out, "node %s here %zu -\n", name, own_len);
		fwrite(own, 1, own_len, out);
	}
	for (size_t i = 0; i < nodes; i++) {
		if (!err)
			print_answer(out, &a[i]);
		free(a[i].text);
	}
	if (out && fclose(out))
		err = -ENOMEM;
	free(own);
	free(a);
	if (err) {
		free(*text);
		*text = NULL;
	}
	return err;
}

size_t kvfs_cluster_bytes(struct kvfs *f)
{
	/* the answers, and the text, which may have twice its length while it grows */
	return 3 * (kvc_cluster_nodes(f->k) + 1) * (size_t)(KVC_PEER_TEXT + 1024);
}
