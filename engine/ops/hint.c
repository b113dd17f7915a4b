/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints about the chunks of a prompt, in one command of .kvcachefs/lease. The paths are in the
 * order of the prompt, as in a lease. Except for a prefetch, the user must own the chunk or be
 * root, because a hint can cause its eviction.
 */
#include "hint.h"

#include "hinted.h"
#include "load.h"
#include "membership.h"
#include "replacers.h"
#include "spill.h"
#include "tenant_set.h"
#include "user.h"

#include <string.h>

#define PAUSE_MOST 3600u /* seconds */
#define HIGH_NS 3600000000000ull
#define AT_ONCE 64u /* chunks whose parents are read under one hold of the locks */

static int parse_seconds(const char *text, uint64_t *s)
{
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	*s = strtoull(text, &end, 10);
	return *end || !*s || *s > PAUSE_MOST ? -EINVAL : 0;
}

/* A command has at most one outlook. */
static int take_outlook(struct kvc_hint_words *h, uint8_t outlook)
{
	if (h->outlook)
		return -EINVAL;
	h->outlook = outlook;
	return 0;
}

static int parse_word(char *w, struct kvc_hint_words *h)
{
	static const struct {
		const char *word;
		uint8_t outlook;
	} outlooks[] = {
		{ "ended=tool", KVC_OUTLOOK_TOOL },
		{ "ended=turn", KVC_OUTLOOK_TURN },
		{ "closed", KVC_OUTLOOK_CLOSED },
	};
	uint64_t seconds;
	const struct {
		const char *word;
		bool *flag;
	} flags[] = {
		{ "finished", &h->finished },  { "priority=low", &h->low },
		{ "priority=high", &h->high }, { "priority=normal", &h->normal },
		{ "prefetch", &h->prefetch },  { "demote", &h->demote },
	};

	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
		if (!strcmp(w, flags[i].word)) {
			*flags[i].flag = true;
			return 0;
		}
	for (size_t i = 0; i < sizeof outlooks / sizeof outlooks[0]; i++)
		if (!strcmp(w, outlooks[i].word))
			return take_outlook(h, outlooks[i].outlook);
	if (!strncmp(w, "returns=", 8)) {
		int err = parse_seconds(w + 8, &seconds);

		return err ?: take_outlook(h, kvc_replacer_returns(seconds));
	}
	if (!strncmp(w, "pause=", 6))
		return parse_seconds(w + 6, &h->pause_s);
	if (!strncmp(w, "tenant=", 7) && strlen(w + 7) < sizeof h->tenant) {
		h->has_tenant = true;
		strcpy(h->tenant, strcmp(w + 7, "none") != 0 ? w + 7 : "");
		return 0;
	}
	return -EINVAL;
}

int kvc_hint_parse(char *words, struct kvc_hint_words *h)
{
	char *save = NULL, *path = strstr(words, "superseded=");
	unsigned keeps, leaves;
	int err = 0;

	/* it is the last word, since a path may contain spaces */
	if (path && (path == words || path[-1] == ' ')) {
		h->superseded = path + strlen("superseded=");
		*path = 0;
		if (!*h->superseded)
			return -EINVAL;
	}
	for (char *w = strtok_r(words, " ", &save); w && !err; w = strtok_r(NULL, " ", &save))
		err = parse_word(w, h);
	leaves = h->finished + h->low + h->demote + (h->superseded != NULL);
	keeps = h->high + (h->pause_s > 0) + h->prefetch;
	if (err || (leaves && (keeps || h->normal)) || h->high + h->normal + (h->pause_s > 0) > 1)
		return -EINVAL;
	return leaves + keeps + h->normal + h->has_tenant || h->outlook ? 0 : -EINVAL;
}

/* Sets *parent to the parent of a chunk; 0: none. Returns 0 or a negative errno. */
static int parent_both(struct kvc *k, uint64_t chunk, uint64_t *parent)
{
	const struct kvc_chunk *c = kvc_chunk_find_locked(k, chunk);
	struct kvc_chunk_row r = { .parent = c ? c->parent : 0 };
	int err = c ? 0 : kvc_chunk_get(k->cat, chunk, &r);

	*parent = err ? 0 : r.parent & ~KVC_TOLD;
	return err;
}

int kvc_hint_newer_both(struct kvc *k, struct kvc_hint_words *h, uint64_t chunk)
{
	h->newer = calloc(KVC_HINT_ANCESTORS, sizeof *h->newer);
	if (!h->newer)
		return -ENOMEM;
	while (chunk && h->nnewer < KVC_HINT_ANCESTORS) {
		h->newer[h->nnewer++] = chunk;
		if (parent_both(k, chunk, &chunk))
			break;
		if (h->nnewer % AT_ONCE == 0)
			kvc_pause_both(k);
	}
	return 0;
}

static bool is_newer(const struct kvc_hint_words *h, uint64_t chunk)
{
	for (size_t i = 0; i < h->nnewer; i++)
		if (h->newer[i] == chunk)
			return true;
	return false;
}

/* Does another prompt continue from this chunk? */
static bool is_shared_locked(struct kvc *k, const struct kvc_chunk *c, uint64_t next)
{
	const struct kvc_chunk *n = next ? kvc_chunk_find_locked(k, next) : NULL;
	struct kvc_chunk_row r = { .id = c->id, .policy = c->policy };
	uint32_t own = n && (n->parent & ~KVC_TOLD) == c->id &&
		       kvc_replacers_has_locked(k, KVC_CACHE_POOL, n);

	return kvc_replacers_children_locked(k, KVC_CACHE_POOL, &r) > own;
}

static int may_hint_both(struct kvc *k, const struct kvc_node *n, uint32_t uid)
{
	struct kvc_row r;
	int err;

	if (!uid)
		return 0;
	err = n->row.chunk == n->row.ino ? 0 : kvc_node_row_both(k, n->row.chunk, &r);
	if (err)
		return err;
	return (n->row.chunk == n->row.ino ? n->row.uid : r.uid) == uid ? 0 : -EPERM;
}

static bool leaves_pool(const struct kvc_hint_words *h)
{
	return h->finished || h->low || h->demote || h->superseded;
}

/* Changes the hints of a chunk. needed: it is not evicted before others. */
static void apply_words_locked(struct kvc *k, const struct kvc_hint_words *h, struct kvc_chunk *c,
			       bool needed)
{
	uint64_t now = kvc_mono_ns();

	if (h->outlook && kvc_replacers_tell_locked(k, c, h->outlook))
		kvc_chunk_dirty_locked(k, c);
	if (leaves_pool(h) && !needed)
		kvc_hinted_finished_locked(k, c);
	else if (h->high)
		kvc_hinted_until_locked(k, c, now + HIGH_NS, false);
	else if (h->pause_s)
		kvc_hinted_until_locked(k, c, now + h->pause_s * 1000000000, true);
	else if (h->normal)
		kvc_hinted_clear_locked(c);
}

/*
 * Finds the chunks of the prompt that other prompts need: each chunk from which another prompt
 * continues, and its ancestors. Walks from the end of the prompt to its beginning.
 */
static void find_needed_both(struct kvc *k, const struct kvc_hint_words *h,
			     struct kvc_hint_chunk *v, size_t n)
{
	uint64_t next = 0, needed = 0; /* the chunk after this one; the parent of a needed chunk */

	for (size_t i = n; i-- > 0;) {
		const struct kvc_chunk *c;

		if (i + 1 < n && v[i + 1].id == v[i].id) {
			v[i].needed = v[i + 1].needed;
		} else {
			c = kvc_chunk_find_locked(k, v[i].id);
			next = i + 1 < n ? v[i + 1].id : 0;
			v[i].needed = v[i].id == needed || is_newer(h, v[i].id) ||
				      (c && is_shared_locked(k, c, next));
			if (v[i].needed)
				parent_both(k, v[i].id, &needed);
		}
		if (i % AT_ONCE == 0)
			kvc_pause_both(k);
	}
}

void kvc_hint_chunks_both(struct kvc *k, const struct kvc_hint_words *h, struct kvc_hint_chunk *v,
			  size_t n)
{
	if (leaves_pool(h))
		find_needed_both(k, h, v, n);
	for (size_t i = 0; i < n; i++) {
		struct kvc_chunk *c = v[i].may ? kvc_chunk_find_locked(k, v[i].id) : NULL;
		struct kvc_node *file = v[i].n;

		if (c && !(i && v[i - 1].id == v[i].id && v[i - 1].may))
			apply_words_locked(k, h, c, v[i].needed);
		if (c && h->demote && !v[i].needed && file && kvc_node_has_segment(file) &&
		    file->state != KVC_OPEN)
			kvc_spill_queue_locked(k, file, true);
		if (i % AT_ONCE == AT_ONCE - 1)
			kvc_pause_both(k);
	}
}

int kvc_hint_prefetch_locked(struct kvc *k, struct kvc_hint_words *h, struct kvc_node *n,
			     uint32_t uid)
{
	uint64_t loads = h->loads + n->row.blocks * 512;
	int err;

	if (!kvc_user_share_fits_locked(k, uid, NULL, loads)) {
		kvc_count(&k->stats, share_refusals);
		return -EDQUOT;
	}
	err = kvc_load_start_locked(k, n, true);
	h->loads = err ? h->loads : loads;
	return err;
}

int kvc_hint_file_both(struct kvc *k, struct kvc_hint_words *h, struct kvc_node *n, uint32_t uid)
{
	bool only_loads = h->prefetch && !h->has_tenant && !h->high && !h->pause_s && !h->outlook;
	int err = only_loads ? 0 : may_hint_both(k, n, uid);

	if (!err && h->has_tenant)
		err = kvc_tenant_told_both(k, n->row.chunk, h->tenant, uid);
	return err ?: kvc_membership_join_both(k, n);
}

/* May this user give hints about a chunk? False if the chunk was dropped in the meantime. */
static bool owns_chunk_both(struct kvc *k, uint64_t chunk, uint32_t uid)
{
	struct kvc_row r;

	return !uid || (!kvc_node_row_both(k, chunk, &r) && r.uid == uid);
}

int kvc_hint_prompt_both(struct kvc *k, const char *words, uint64_t chunk, uint32_t uid)
{
	struct kvc_hint_words h = { 0 };
	struct kvc_hint_chunk *v;
	char copy[256];
	size_t n;
	int err;

	if (strlen(words) >= sizeof copy)
		return -EINVAL;
	strcpy(copy, words);
	err = kvc_hint_parse(copy, &h);
	if (err || h.superseded || h.prefetch || h.demote || h.has_tenant)
		return -EINVAL;
	err = kvc_hint_newer_both(k, &h, chunk);
	if (err)
		return err;
	/* h.newer has the prompt that ends with `chunk`; this hint is for that prompt itself */
	n = h.nnewer;
	h.nnewer = 0;
	v = calloc(n, sizeof *v);
	for (size_t i = 0; v && i < n; i++) {
		v[i].id = h.newer[n - 1 - i];
		v[i].may = owns_chunk_both(k, v[i].id, uid);
		if (i % AT_ONCE == AT_ONCE - 1)
			kvc_pause_both(k);
	}
	free(h.newer);
	h.newer = NULL;
	if (!v)
		return -ENOMEM;
	/* the named chunk is the last one; ancestors of other users are left unchanged */
	err = n && v[n - 1].may ? 0 : -EPERM;
	if (!err) {
		kvc_hint_chunks_both(k, &h, v, n);
		kvc_count(&k->stats, hints);
	}
	free(v);
	return err;
}
