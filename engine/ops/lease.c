/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: many objects are loaded and kept in the pool together. A lease belongs to an open of
 * .kvcachefs/lease and ends with the descriptor. It is counted in each node (n->refs.leases), which
 * the evictor respects. Loads run in parallel, and the text is given when all of them have ended.
 * If an object cannot be loaded, its line of the text has the error.
 */
#include "lease_priv.h"
#include "ops.h"
#include "file.h"
#include "folder.h"
#include "user.h"
#include "load.h"
#include "model_stats.h"
#include "membership.h"
#include "incomplete.h"
#include "access.h"

#include <inttypes.h>
#include <string.h>

#define LEASE_MAX 1000000
#define LINE 64 /* approximate bytes of a line of the answer, without the path */

static void unlease_node_locked(struct kvc *k, struct kvc_lease *l, struct kvc_node *n)
{
	if (l->mode >= KVC_LEASE_LOOK) {
		kvc_node_unref_locked(n);
	} else {
		kvc_node_unleased_locked(n);
		kvc_user_share_remove_locked(k, n, l->uid, false);
	}
}

/*
 * Records the access. The paths of a lease are a prompt: each chunk is the parent of the next. An
 * empty line ends a prompt. Two cases say nothing about the order: a path that is a folder of
 * several chunks, and a prompt that returns to its first chunk, with the next layer of each chunk.
 */
static void lease_access_locked(struct kvc *k, struct kvc_lease *l, size_t i)
{
	struct kvc_chunk *c = l->v[i].n->chunk;
	bool inside = i && l->v[i - 1].line == l->v[i].line;

	if (!i || l->v[i - 1].line + 1 < l->v[i].line)
		l->first = l->before = 0;
	l->first = l->first ?: c->id;
	if (l->before && l->before != c->id && !inside && !c->parent && c->id != l->first)
		kvc_access_set_parent_locked(k, c, l->before);
	if (!l->before || l->before != c->id)
		l->before = inside ? 0 : c->id;
	kvc_access_record_locked(k, c, l->v[i].n->row.ino, l->client, l->mode == KVC_LEASE_HOLD);
}

/* Does the lease load its objects? */
static bool loads(const struct kvc_lease *l)
{
	return l->mode == KVC_LEASE_HINT ? l->hint.prefetch : l->mode < KVC_LEASE_LOOK;
}

/*
 * Requesting an object is an access, because otherwise it would be the next victim. An access ends
 * earlier hints, so it precedes new ones.
 */
static void request_item_both(struct kvc *k, struct kvc_lease *l, size_t i)
{
	struct kvc_lease_item *it = &l->v[i];

	if (loads(l) && !kvc_membership_join_both(k, it->n))
		lease_access_locked(k, l, i);
	if (l->mode == KVC_LEASE_HINT)
		it->err = kvc_hint_file_both(k, &l->hint, it->n, l->uid);
}

static int append_item(struct kvc_lease *l, const char *path, const char *name, struct kvc_node *n,
		       int err)
{
	struct kvc_lease_item *i;

	if (l->n >= l->objects)
		return -EAGAIN;
	if (l->n >= LEASE_MAX)
		return -E2BIG;
	l->bytes += l->mode == KVC_LEASE_HINT ? sizeof(struct kvc_hint_chunk) : 0;
	l->bytes += loads(l) ? sizeof(struct kvc_lease_load) : 0;
	l->bytes += sizeof *i + 2 * (strlen(path) + (name ? strlen(name) + 1 : 0)) + LINE;
	if (l->bytes > l->most)
		return -EDQUOT;
	if (kvc_grow(&l->v, l->n, &l->capacity, sizeof *l->v))
		return -ENOMEM;
	i = &l->v[l->n];
	i->path = NULL;
	i->line = l->line;
	i->model = l->model;
	i->dropped = l->dropped;
	if (asprintf(&i->path, "%s%s%s", path, name ? "/" : "", name ? name : "") < 0)
		return -ENOMEM;
	i->n = n;
	i->err = err;
	i->asked = 0;
	l->n++;
	return 0;
}

/* Adds an object, or the error that its line shows. */
static int add_object(struct kvc *k, struct kvc_lease *l, const char *path, const char *name,
		      struct kvc_node *n, int err)
{
	if (n && kvc_node_has_segment(n) && (err = kvc_lease_share_locked(k, l, n, 0))) {
		kvc_node_settle_locked(k, n);
		n = NULL;
	}
	err = append_item(l, path, name, n, err);
	if (n && err)
		kvc_node_settle_locked(k, n);
	else if (n)
		kvc_lease_add_node_locked(k, l, n);
	return err;
}

static int add_entry_both(struct kvc *k, struct kvc_lease *l, const char *path,
			  const struct kvc_entry *e)
{
	struct kvc_node *n = NULL;
	int missing = kvc_node_get_both(k, e->ino, &n);

	if (!missing && !kvc_lease_asker_may(l->user, &n->row, 4)) {
		kvc_node_settle_locked(k, n);
		missing = -EACCES;
	}
	return add_object(k, l, path, e->name, missing ? NULL : n, missing);
}

/* Adds one path of the request. Releases and retakes the locks while it lists a large folder. */
static int add_path_both(struct kvc *k, struct kvc_lease *l, const char *path)
{
	struct kvc_entries e = { 0 };
	struct kvc_node *n;
	uint64_t after = 0;
	int err = kvc_lease_walk_both(k, l, path, &n);

	if (err)
		return err == -ENOMEM ? err : add_object(k, l, path, NULL, NULL, err);
	if (S_ISREG(n->row.mode))
		return add_object(k, l, path, NULL, n, 0);
	if (!S_ISDIR(n->row.mode)) {
		kvc_node_settle_locked(k, n);
		return add_object(k, l, path, NULL, NULL, -EINVAL);
	}
	kvc_node_ref_locked(n);
	for (int more = 1; more == 1 && !err;) {
		more = kvc_folder_entries_some_both(k, n->row.ino, &after, &e);
		err = more < 0 ? more : 0;
		for (size_t i = 0; i < e.n && !err; i++)
			if (S_ISREG(e.v[i].kind) && !kvc_incomplete_hides_both(k, n, e.v[i].name))
				err = add_entry_both(k, l, path, &e.v[i]);
		if (more == 1)
			kvc_pause_both(k);
		err = err ?: kvc_lease_cancelled(l);
	}
	kvc_node_unref_locked(n);
	kvc_node_settle_locked(k, n);
	free(e.v);
	return err;
}

/* Releases the locks now and then. The lease's references keep the nodes that it already has. */
static void pause_often_locked(struct kvc *k, size_t done)
{
	if (done % KVC_LEASE_HOLD_ITEMS == 0)
		kvc_pause_locked(k);
}

/* Finds the chunk that the hint's path names, and the chunks before it. */
static int hint_begin_both(struct kvc *k, struct kvc_lease *l)
{
	struct kvc_node *n;
	uint64_t chunk;
	int err;

	if (!l->hint.superseded)
		return 0;
	if ((err = kvc_lease_walk_both(k, l, l->hint.superseded, &n)))
		return err;
	chunk = S_ISREG(n->row.mode) ? n->row.chunk : n->row.ino;
	kvc_node_settle_locked(k, n);
	return kvc_hint_newer_both(k, &l->hint, chunk);
}

/*
 * Applies the hints to all chunks together, because the later chunks of a prompt decide how the
 * hints apply to the earlier ones.
 */
static int hint_chunks_both(struct kvc *k, struct kvc_lease *l)
{
	struct kvc_hint_chunk *v = calloc(l->n + 1, sizeof *v);
	size_t n = 0;

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < l->n; i++) {
		const struct kvc_lease_item *it = &l->v[i];

		if (it->n)
			v[n++] = (struct kvc_hint_chunk){
				it->n->row.chunk,
				it->n,
				!it->err,
				false,
			};
		kvc_lease_pause_both(k, i + 1);
	}
	kvc_hint_chunks_both(k, &l->hint, v, n);
	free(v);
	return 0;
}

/* Counts the names that were found or missing. A prefetch or a hint does not count as a request. */
static void count_found_locked(struct kvc *k, const struct kvc_lease *l)
{
	uint64_t found = 0, absent = 0, chunk = 0;

	if (l->mode != KVC_LEASE_HOLD && l->mode != KVC_LEASE_LOOK)
		return;
	for (size_t i = 0; i < l->n; i++) {
		const struct kvc_lease_item *it = &l->v[i];

		pause_often_locked(k, i + 1);
		if (it->n) {
			found++;
			/* files that a look finds are counted when they are opened or leased */
			if (l->mode == KVC_LEASE_HOLD && it->n->row.chunk != chunk)
				kvc_model_stats_found_locked(k, it->n->model, 1);
			chunk = it->n->row.chunk;
		} else if (it->err == -ENOENT) {
			absent++;
			kvc_model_stats_absent_locked(k, it->model, 1);
			kvc_gone_name_count(k, &it->dropped);
		}
	}
	if (l->mode == KVC_LEASE_HOLD) {
		kvc_count_by(&k->stats, lease_found, found);
		kvc_count_by(&k->stats, lease_absent, absent);
	} else {
		kvc_count_by(&k->stats, look_found, found);
		kvc_count_by(&k->stats, look_absent, absent);
	}
}

/* Starts the loads, or applies the hint, and counts. */
static int start_items(struct kvc *k, struct kvc_lease *l)
{
	int err;

	kvc_lock_both(k);
	err = hint_begin_both(k, l);
	l->client = kvc_access_lease_client_locked(k);
	for (size_t i = 0; i < l->n && !err; i++) {
		kvc_lease_pause_both(k, i);
		err = kvc_lease_cancelled(l);
		if (l->v[i].n)
			request_item_both(k, l, i);
	}
	if (!err && loads(l))
		err = kvc_lease_load_both(k, l);
	if (!err && l->mode == KVC_LEASE_HINT)
		err = hint_chunks_both(k, l);
	kvc_access_request_end_locked(k, l->client);
	kvc_catalog_unlock(k->cat);
	if (!err)
		count_found_locked(k, l);
	kvc_unlock(k);
	free(l->hint.newer);
	l->hint.newer = NULL;
	l->started = true;
	if (err)
		return err;
	if (l->mode == KVC_LEASE_HINT)
		kvc_count(&k->stats, hints);
	kvc_count(&k->stats, leases);
	return 0;
}

bool kvc_lease_started(const struct kvc_lease *l)
{
	return l->started;
}

bool kvc_lease_waits(const struct kvc_lease *l)
{
	return l->until_ns && !l->started;
}

int kvc_lease_start(struct kvc *k, struct kvc_lease *l, const struct kvc_asker *user,
		    struct kvc_wait *w)
{
	int err;

	if (l->started)
		return 0;
	l->user = user;
	err = kvc_lease_seek(k, l, w);
	return err ?: start_items(k, l);
}

int kvc_lease_new(struct kvc *k, const char *paths, size_t len, const struct kvc_lease_kind *kind,
		  const struct kvc_asker *user, struct kvc_lease **out)
{
	struct kvc_lease *l = calloc(1, sizeof *l);
	char *rest = NULL;
	size_t done = 0;
	int err = l ? 0 : -ENOMEM;

	if (!l)
		return err;
	l->mode = kind->mode;
	l->uid = user->uid;
	l->user = user;
	l->most = kind->most;
	l->objects = kind->objects;
	l->here = kind->here;
	l->again = kind->again;
	l->until_ns = kind->wait_ms ? kvc_mono_ns() + kind->wait_ms * 1000000ull : 0;
	l->request = rest = strndup(paths, len);
	if (!rest)
		err = -ENOMEM;
	else if (l->mode == KVC_LEASE_HINT)
		err = kvc_hint_parse(strsep(&rest, "\n"), &l->hint);
	if (!err) {
		kvc_share_retry_free_idle(k, l->uid);
		kvc_lock_both(k);
		for (char *p; !err && (p = strsep(&rest, "\n")); l->line++)
			if (*p) {
				err = add_path_both(k, l, p) ?: kvc_lease_cancelled(l);
				kvc_lease_pause_both(k, ++done);
			}
		kvc_unlock_both(k);
	}
	if (!err && !kvc_lease_has_missing(k, l))
		err = start_items(k, l);
	if (err) {
		kvc_lease_free(k, l);
		return err;
	}
	*out = l;
	return 0;
}

void kvc_lease_bits(const struct kvc_lease *l, uint8_t *bits, size_t lines)
{
	memset(bits, 0, (lines + 7) / 8);
	for (size_t i = 0; i < l->n; i++)
		if (l->v[i].n && !l->v[i].err && l->v[i].line < lines)
			bits[l->v[i].line / 8] |= (uint8_t)(1u << l->v[i].line % 8);
}

size_t kvc_lease_bytes(const struct kvc_lease *l)
{
	return l->bytes + (l->started ? 0 : KVC_LEASE_SEEK_BYTES);
}

int kvc_lease_text(struct kvc *k, struct kvc_lease *l, const char **text, size_t *len,
		   struct kvc_wait *w)
{
	FILE *f;

	if (w->err == -ESHUTDOWN)
		return w->err;
	if (!l->text && l->mode == KVC_LEASE_HOLD) {
		kvc_lock(k);
		for (size_t i = l->at; i < l->n; i++) {
			struct kvc_node *n = l->v[i].n;

			l->at = i;
			pause_often_locked(k, i);
			/* A failed wait for one object is shown in its line. */
			if (n && w->err && w->ino == n->row.ino)
				l->v[i].err = w->err;
			if (n && !l->v[i].err && n->state == KVC_LOADING) {
				w->ino = n->row.ino;
				int err = kvc_node_park_locked(k, n, w);

				kvc_unlock(k);
				return err;
			}
		}
		kvc_unlock(k);
	}
	if (!l->text) {
		f = open_memstream(&l->text, &l->len);
		if (!f)
			return -ENOMEM;
		kvc_lock(k);
		for (size_t i = 0; i < l->n; i++) {
			struct kvc_lease_item *it = &l->v[i];
			struct kvc_row a;

			pause_often_locked(k, i);
			if (!it->n || it->n->state == KVC_GONE) {
				fprintf(f, "%s 0 0 %s\n", it->path,
					strerrorname_np(it->err ? -it->err : ENOENT));
				continue;
			}
			kvc_node_attr_locked(k, it->n, &a);
			if (!it->err && it->n->state == KVC_LOWER)
				it->err = it->n->load.error;
			if (it->err && it->n->state != KVC_GONE && kvc_load_unserved(it->err)) {
				if (l->mode == KVC_LEASE_HOLD)
					kvc_count(&k->stats, unserved_loads);
				it->err = 0; /* a miss: the state says that it is not in the pool */
			}
			fprintf(f, "%s %" PRIu64 " %" PRIu64 " %s\n", it->path, a.ino, a.size,
				it->err ? strerrorname_np(-it->err)
					: kvc_file_state_names[it->n->state]);
		}
		kvc_unlock(k);
		if (fclose(f)) { /* a truncated text would hide objects */
			free(l->text);
			l->text = NULL;
			return -ENOMEM;
		}
	}
	*text = l->text;
	*len = l->len;
	return 0;
}

void kvc_lease_free(struct kvc *k, struct kvc_lease *l)
{
	kvc_lease_seek_end(k, l);
	kvc_lock(k);
	for (size_t i = 0; i < l->n; i++) {
		struct kvc_node *n = l->v[i].n;

		pause_often_locked(k, i);
		free(l->v[i].path);
		if (!n)
			continue;
		unlease_node_locked(k, l, n);
		if (n->commit.lost && !n->refs.opens && !n->refs.leases)
			kvc_file_destroy_locked(k, n);
		kvc_node_settle_locked(k, n);
	}
	pthread_cond_signal(&k->reservations.pressed);
	kvc_unlock(k);
	free(l->v);
	free(l->request);
	free(l->hint.newer);
	free(l->text);
	free(l);
}
