/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and sets the values of virtual attributes; see virtuals.h. Each get and set runs under both
 * locks.
 */
#include "virtuals.h"

#include "clock.h"
#include "demote.h"
#include "file.h"
#include "folder.h"
#include "hint.h"
#include "model_quota.h"
#include "incomplete.h"
#include "membership.h"
#include "path.h"
#include "pin.h"
#include "push.h"
#include "pin_set.h"
#include "model_rescan.h"
#include "model_use.h"
#include "tenant_set.h"
#include "tier_queue.h"
#include "chunking.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define QUOTA_MIN (1u << 20)
/* seconds; an expiry time this far away still fits in the catalog */
#define TTL_MAX 7000000000ull
#define AT_ONCE 16 /* files that are examined under one hold of the locks */

struct summary { /* summary of the files of a chunk */
	struct kvc *k;
	uint64_t chunk;
	unsigned tiers; /* bit 0: the pool; then one bit per tier */
	int state;      /* enum kvc_state, or -1 if files differ */
	bool any;
};

static void summarize_node(struct kvc *k, struct summary *s, const struct kvc_node *n)
{
	if (kvc_node_has_segment(n))
		s->tiers |= 1;
	kvc_tier_each(k, t)
		if (kvc_file_placed_in(n, t) && !n->segment.verify)
			s->tiers |= 2u << t;
	s->state = !s->any || s->state == (int)n->state ? (int)n->state : -1;
	s->any = true;
}

static int summarize_one_both(struct kvc *k, struct summary *sum, uint64_t ino)
{
	struct kvc_node *n;
	int err = kvc_node_get_both(k, ino, &n);

	if (err)
		return err == -ENOENT ? 0 : err; /* it was dropped just now */
	if (n->row.chunk == sum->chunk)
		summarize_node(k, sum, n);
	kvc_node_settle_locked(k, n);
	return 0;
}

static int summarize_both(struct kvc *k, struct kvc_subject *s, struct summary *sum)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	size_t done = 0;
	int err = 0;

	*sum = (struct summary){ .k = k, .chunk = s->chunk };
	if (s->kind & ON_FILE) {
		summarize_node(k, sum, s->n);
		return 0;
	}
	kvc_node_ref_locked(s->n); /* keeps the folder while the locks are released */
	for (int more = 1; more == 1 && !err;) {
		more = kvc_folder_entries_some_both(k, s->n->row.ino, &after, &e);
		err = more < 0 ? more : 0;
		for (size_t i = 0; i < e.n && !err; i++)
			if (S_ISREG(e.v[i].kind)) {
				err = summarize_one_both(k, sum, e.v[i].ino);
				if (++done % AT_ONCE == 0)
					kvc_pause_both(k);
			}
	}
	kvc_node_unref_locked(s->n);
	free(e.v);
	return err;
}

static int get_tiers(struct kvc *k, struct kvc_subject *s, char *value)
{
	struct summary sum;
	int err = summarize_both(k, s, &sum);

	value[0] = 0;
	for (unsigned t = 0; t <= KVC_TIERS && !err; t++)
		if ((sum.tiers & (1u << t)) && (!t || k->tier[t - 1].t))
			snprintf(value + strlen(value), 128 - strlen(value), "%s%s",
				 *value ? "," : "", t ? k->tier[t - 1].t->ops->name : "cpu");
	return err;
}

static int get_state(struct kvc *k, struct kvc_subject *s, char *value)
{
	bool partial = kvc_incomplete_both(k, s->n);
	struct summary sum;
	int err = summarize_both(k, s, &sum);

	if (!err)
		snprintf(value, 128, "%s",
			 partial         ? "partial"
			 : !sum.any      ? "empty"
			 : sum.state < 0 ? "mixed"
					 : kvc_file_state_names[sum.state]);
	return err;
}

static int get_checksum(struct kvc *k, struct kvc_subject *s, char *value)
{
	(void)k;
	if (!s->n->object.has_sum || s->n->state == KVC_OPEN || s->n->segment.verify)
		return -ENODATA;
	kvc_sum_text(&s->n->object.sum, value);
	return 0;
}

/* The codec of the file's copy in each tier. */
static int get_file_codec(struct kvc *k, struct kvc_subject *s, char *value)
{
	int len = 0;

	kvc_tier_each(k, t) {
		uint32_t codec = s->n->in[t].place.codec & (KVC_PLACE_CODED - 1);

		if (kvc_file_placed_in(s->n, t))
			len += snprintf(value + len, KVC_VIRTUAL_MAX - (size_t)len, "%s%s=%s",
					len ? "," : "", k->tier[t].t->ops->name,
					kvc_codec_name(codec));
	}
	return len ? 0 : -ENODATA;
}

/*
 * The error of the bytes that the file has, or will have when it is loaded from a tier, and the
 * error of the worst block. Both are those of the first lossy copy in the order of the tiers. If no
 * tier has such a copy, the bytes may come from another node that decoded them.
 */
static int get_error(struct kvc *k, struct kvc_subject *s, char *value)
{
	uint32_t error = 0, worst = 0;

	for (unsigned i = 0; i < k->ntiers && s->n->state != KVC_OPEN; i++) {
		unsigned t = k->order[i];
		const struct kvc_place *p = &s->n->in[t].place;

		if (!kvc_file_placed_in(s->n, t) || kvc_file_differs_in(s->n, t) || !p->error_ppm)
			continue;
		error = p->error_ppm;
		worst = p->worst_ppm;
		break;
	}
	if (!error && s->n->object.decoded && s->n->state != KVC_OPEN)
		kvc_file_error_locked(k, s->n, &error, &worst);
	snprintf(value, 128, "%.6f %.6f", error / 1e6, worst / 1e6);
	return error ? 0 : -ENODATA;
}

static int get_hits(struct kvc *k, struct kvc_subject *s, char *value)
{
	(void)k;
	snprintf(value, 128, "%" PRIu64, s->row.hits);
	return 0;
}

static int get_pin(struct kvc *k, struct kvc_subject *s, char *value)
{
	uint64_t now = kvc_clock_ns(k), until = s->row.pin_until_ns;

	snprintf(value, 128, "%" PRIu64,
		 until == INT64_MAX ? 1
		 : until > now      ? kvc_max(2, (until - now) / 1000000000)
				    : 0);
	return 0;
}

static int get_ttl(struct kvc *k, struct kvc_subject *s, char *value)
{
	(void)k;
	snprintf(value, 128, "%" PRIu64, s->row.ttl_s);
	return 0;
}

static int parse_number(const char *value, uint64_t *v)
{
	char *end;

	if (*value < '0' || *value > '9')
		return -EINVAL;
	errno = 0;
	*v = strtoull(value, &end, 10);
	return *end || errno || *v > TTL_MAX ? -EINVAL : 0;
}

/* Reads the row of the chunk again after the locks were released. */
static int reread_row_both(struct kvc *k, struct kvc_subject *s)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, s->chunk);
	int err;

	if (c) {
		kvc_chunk_row(k, c, &s->row);
		return 0;
	}
	err = kvc_chunk_get(k->cat, s->chunk, &s->row);
	if (err == -ENOENT && S_ISDIR(s->n->row.mode)) { /* it has no file yet */
		s->row = (struct kvc_chunk_row){ .id = s->chunk };
		return 0;
	}
	return err;
}

static int set_pin(struct kvc *k, struct kvc_subject *s, const char *value)
{
	uint64_t v, until;
	int err;

	if (parse_number(value, &v))
		return -EINVAL;
	until = v == 0 ? 0 : v == 1 ? INT64_MAX : kvc_clock_ns(k) + v * 1000000000;
	/* keeps the node while the files are counted without the locks */
	kvc_node_ref_locked(s->n);
	err = kvc_pin_set_both(k, s->chunk, s->uid, until);
	kvc_node_unref_locked(s->n);
	if (err)
		return err;
	err = s->n->commit.lost ? -ENOENT : reread_row_both(k, s);
	if (err)
		kvc_pin_forget_both(k, s->chunk);
	else
		s->row.pin_until_ns = until;
	return err;
}

static int set_ttl(struct kvc *k, struct kvc_subject *s, const char *value)
{
	uint64_t v;

	if (parse_number(value, &v))
		return -EINVAL;
	s->row.ttl_s = v;
	s->row.expires_ns = v ? kvc_clock_ns(k) + v * 1000000000 : 0;
	return 0;
}

/* The path of the parent chunk in the mount; -ENODATA if the chunk has no known parent. */
static int get_parent(struct kvc *k, struct kvc_subject *s, char *value)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	uint64_t parent = s->row.parent & ~KVC_TOLD;
	int err;

	if (!parent)
		return -ENODATA;
	err = kvc_path_both(k, parent, path);
	if (err)
		return err;
	if (!*path) /* the parent was dropped, or its path is too long */
		return -ENODATA;
	return (size_t)snprintf(value, KVC_VIRTUAL_MAX, "/%s", path) < KVC_VIRTUAL_MAX ? 0
										       : -ENODATA;
}

/* The source of the parent: "client" reported it, or it was inferred from the "order" of calls. */
static int get_parent_by(struct kvc *k, struct kvc_subject *s, char *value)
{
	char path[KVC_VIRTUAL_MAX];
	int err = get_parent(k, s, path);

	if (!err)
		snprintf(value, 128, s->row.parent & KVC_TOLD ? "client" : "order");
	return err;
}

/* One step of a path that a user names. The user learns nothing that an open would not tell. */
static int walk_step_both(struct kvc *k, const struct kvc_subject *s, uint64_t *at,
			  const char *name)
{
	struct kvc_node *n;
	uint32_t kind;
	int err = !strcmp(name, "..") ? -EINVAL : kvc_node_get_both(k, *at, &n);

	if (err)
		return err;
	err = s->user && !kvc_lease_asker_may(s->user, &n->row, 1) ? -EACCES : 0;
	kvc_node_settle_locked(k, n);
	return err ?: kvc_name_get(k->cat, *at, name, at, &kind);
}

/*
 * The value is a path in the mount that begins with "/", or a path relative to the folder that
 * contains the chunk. "": the chunk begins a prompt.
 */
static int set_parent(struct kvc *k, struct kvc_subject *s, const char *value)
{
	uint64_t at = *value == '/' ? KVC_ROOT : s->n->row.parent;
	char copy[KVC_VIRTUAL_MAX], *save = NULL;
	struct kvc_node *n;
	uint64_t chunk;
	int err = 0, whole;

	if (!*value) {
		s->row.parent = KVC_TOLD;
		return 0;
	}
	snprintf(copy, sizeof copy, "%s", value);
	for (char *w = strtok_r(copy, "/", &save); w && !err; w = strtok_r(NULL, "/", &save))
		err = walk_step_both(k, s, &at, w);
	err = err ?: kvc_node_get_both(k, at, &n);
	if (err)
		return err;
	if (s->user && !kvc_lease_asker_may(s->user, &n->row, S_ISDIR(n->row.mode) ? 5 : 4)) {
		kvc_node_settle_locked(k, n);
		return -EACCES;
	}
	whole = S_ISREG(n->row.mode) ? 0 : kvc_chunking_whole_both(k, n);
	chunk = S_ISREG(n->row.mode) ? n->row.chunk : whole == 1 ? at : 0;
	kvc_node_settle_locked(k, n);
	if (whole < 0)
		return whole;
	if (!chunk || chunk == s->chunk)
		return -EINVAL;
	s->row.parent = chunk | KVC_TOLD;
	return 0;
}

/* The initial ttl of the model's chunks. */
static int get_default_ttl(struct kvc *k, struct kvc_subject *s, char *value)
{
	uint64_t v;
	int err = kvc_model_ttl_both(k, s->n->row.ino, &v);

	if (err)
		return err;
	snprintf(value, 128, "%" PRIu64, v);
	return v ? 0 : -ENODATA;
}

static int set_default_ttl(struct kvc *k, struct kvc_subject *s, const char *value)
{
	uint64_t v = 0;

	if (value && parse_number(value, &v))
		return -EINVAL;
	return kvc_model_ttl_set_both(k, s->n->row.ino, v);
}

static int get_layers(struct kvc *k, struct kvc_subject *s, char *value)
{
	unsigned v = kvc_model_layers_of_locked(k, s->n->row.ino);

	snprintf(value, 128, "%u", v);
	return v ? 0 : -ENODATA;
}

/*
 * With a number of layers, each folder of the model is a chunk. Without one, chunks are inferred
 * from how files arrive.
 */
static int set_layers(struct kvc *k, struct kvc_subject *s, const char *value)
{
	bool had = kvc_model_layers_of_locked(k, s->n->row.ino);
	uint64_t v = 0;
	int err;

	if (value && (parse_number(value, &v) || v > KVC_LAYERS_MAX))
		return -EINVAL;
	err = kvc_model_layers_set_both(k, s->n->row.ino, (unsigned)v);
	if (!err) {
		s->relist = true;
		kvc_incomplete_set_both(k, s->n);
	}
	if (!err && had != (v > 0))
		kvc_chunking_regroup_locked(k, s->n);
	return err;
}

/* Attributes of a model that have a fixed set of values (model.c). */
#define MODEL_ATTR(name, which)                                                        \
	static int get_##name(struct kvc *k, struct kvc_subject *s, char *value)       \
	{                                                                              \
		int v, err = kvc_model_attr_both(k, s->n->row.ino, which, &v);         \
                                                                                       \
		if (!err && v >= 0)                                                    \
			snprintf(value, 128, "%s", kvc_model_attr_text(which, v));     \
		return err ?: v < 0 ? -ENODATA : 0;                                    \
	}                                                                              \
	static int put_##name(struct kvc *k, struct kvc_subject *s, const char *value) \
	{                                                                              \
		return kvc_model_attr_set_both(k, s->n->row.ino, which, value);        \
	}
MODEL_ATTR(codec, KVC_MODEL_CODEC)
MODEL_ATTR(shared, KVC_MODEL_SHARED)
MODEL_ATTR(policy, KVC_MODEL_POLICY)

static int get_layout(struct kvc *k, struct kvc_subject *s, char *value)
{
	int err = kvc_model_layout_both(k, s->n->row.ino, value);

	return err == -ENOENT ? -ENODATA : err;
}

static int set_layout(struct kvc *k, struct kvc_subject *s, const char *value)
{
	return s->kind & ON_ROOT ? -EINVAL : kvc_model_layout_set_both(k, s->n->row.ino, value);
}

/* Existing chunks change their policy class (base/policy.h), too. */
static int set_policy(struct kvc *k, struct kvc_subject *s, const char *value)
{
	return put_policy(k, s, value) ?: kvc_model_rescan_ask_both(k, s->n->row.ino);
}

static int get_unit(struct kvc *k, struct kvc_subject *s, char *value)
{
	int v = kvc_chunking_get_both(k, s->n);

	if (v >= 0)
		snprintf(value, 128, "%s", kvc_chunking_text(v));
	return v >= 0 ? 0 : v == KVC_UNIT_NONE ? -ENODATA : v;
}

static int set_unit(struct kvc *k, struct kvc_subject *s, const char *value)
{
	return kvc_chunking_set_both(k, s->n, value);
}

/* The unit in effect for the folder's files, set or inferred. */
static int get_unit_now(struct kvc *k, struct kvc_subject *s, char *value)
{
	int whole = kvc_chunking_whole_both(k, s->n);

	if (whole < 0)
		return whole;
	snprintf(value, 128, "%s", kvc_chunking_text(whole ? KVC_UNIT_DIR : KVC_UNIT_FILE));
	return 0;
}

static int get_quota(struct kvc *k, struct kvc_subject *s, char *value)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, s->n->row.ino);

	if (q)
		snprintf(value, 128, "%" PRIu64, q->limit);
	return q ? 0 : -ENODATA;
}

static int get_used(struct kvc *k, struct kvc_subject *s, char *value)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, s->n->row.ino);

	if (q)
		snprintf(value, 128, "%" PRIu64, q->used);
	return q ? 0 : -ENODATA;
}

/* The number and bytes of the model's files. -ENODATA while they are not known. */
static int get_use(struct kvc *k, struct kvc_subject *s, struct kvc_model_use *u)
{
	return kvc_model_use_get_locked(k, s->n->row.ino, u) ? 0 : -ENODATA;
}

static int get_files(struct kvc *k, struct kvc_subject *s, char *value)
{
	struct kvc_model_use u;
	int err = get_use(k, s, &u);

	if (!err)
		snprintf(value, 128, "%" PRIu64, u.files);
	return err;
}

static int get_bytes(struct kvc *k, struct kvc_subject *s, char *value)
{
	struct kvc_model_use u;
	int err = get_use(k, s, &u);

	if (!err)
		snprintf(value, 128, "%" PRIu64, u.bytes);
	return err;
}

/* The bytes in the pool and in each tier: "cpu=N,disk=N,..." */
static int get_tier_bytes(struct kvc *k, struct kvc_subject *s, char *value)
{
	struct kvc_model_use u;
	int err = get_use(k, s, &u), len;

	if (err)
		return err;
	len = snprintf(value, 128, "cpu=%" PRIu64, kvc_model_use_pool_locked(k, s->n->row.ino));
	kvc_tier_each(k, t)
		len += snprintf(value + len, 128 - (size_t)len, ",%s=%" PRIu64,
				k->tier[t].t->ops->name, u.tier[t]);
	return 0;
}

/* The chunks that left the pool or a tier since the mount, by reason: "pool=N,tier=N,..." */
static int get_evicted(struct kvc *k, struct kvc_subject *s, char *value)
{
	static const char *const names[] = {
#define X(name, what) #name,
		KVC_REASONS(X)
#undef X
	};
	uint64_t evicted[KVC_REASONS_N];
	int len = 0;

	kvc_model_stats_evicted_get_locked(k, s->n->row.ino, evicted);
	for (unsigned r = 0; r < KVC_REASONS_N; r++)
		len += snprintf(value + len, KVC_VIRTUAL_MAX - (size_t)len, "%s%s=%" PRIu64,
				r ? "," : "", names[r], evicted[r]);
	return 0;
}

/* The bytes of a file in the pool, and of its copies in the tiers. */
static int get_file_tier_bytes(struct kvc *k, struct kvc_subject *s, char *value)
{
	const struct kvc_model_use u = kvc_model_use_of(k, s->n);
	int len = snprintf(value, 128, "cpu=%" PRIu64,
			   kvc_node_has_segment(s->n) ? s->n->acct.reserved : 0);

	kvc_tier_each(k, t)
		len += snprintf(value + len, 128 - (size_t)len, ",%s=%" PRIu64,
				k->tier[t].t->ops->name, u.tier[t]);
	return 0;
}

static int set_quota(struct kvc *k, struct kvc_subject *s, const char *value)
{
	uint64_t limit = 0;

	if (value && strcmp(value, "0") && (kvc_size_parse(value, &limit) || limit < QUOTA_MIN))
		return -EINVAL;
	return kvc_model_quota_set_both(k, s->n->row.ino, limit);
}

static int tenant_name_locked(const struct kvc *k, uint64_t number, char *value)
{
	const struct kvc_tenant *t = kvc_tenant_of_locked(k, number);

	if (t)
		snprintf(value, KVC_VIRTUAL_MAX, "%s", t->name);
	return t ? 0 : -ENODATA;
}

static int get_tenant(struct kvc *k, struct kvc_subject *s, char *value)
{
	return tenant_name_locked(k, s->row.tenant, value);
}

static int set_tenant(struct kvc *k, struct kvc_subject *s, const char *value)
{
	return kvc_tenant_told_both(k, s->chunk, value, s->uid) ?: reread_row_both(k, s);
}

/* The tenant of the folder's new chunks. */
static int get_folder_tenant(struct kvc *k, struct kvc_subject *s, char *value)
{
	return tenant_name_locked(k, kvc_tenant_folder_locked(k, s->n->row.ino), value);
}

/*
 * If the folder is a chunk itself, the chunk is assigned too. Permission to write is not
 * sufficient: the tenant decides which chunks of other users in the folder are dropped.
 */
static int set_folder_tenant(struct kvc *k, struct kvc_subject *s, const char *value)
{
	bool may = !s->uid || s->uid == geteuid() || s->uid == s->n->row.uid;
	int err = -EPERM;

	if (may) {
		kvc_node_ref_locked(s->n); /* keeps the node while the locks are released */
		err = kvc_tenant_folder_set_both(k, s->n->row.ino, value, s->uid);
		kvc_node_unref_locked(s->n);
		err = err ?: s->n->commit.lost ? -ESTALE : 0;
	}
	if (!err && (s->kind & ON_CHUNK_FOLDER))
		err = kvc_tenant_told_both(k, s->chunk, value ?: "", s->uid);
	return err == -ENOENT ? 0 : err; /* the folder has no file yet */
}

/* A request that makes, changes or removes a tenant. */
static int set_tenants(struct kvc *k, struct kvc_subject *s, const char *value)
{
	return s->uid && s->uid != geteuid() ? -EPERM : kvc_tenant_set_both(k, value);
}

/* A request, not a stored value; its result is the result of the call. */
static int set_demote(struct kvc *k, struct kvc_subject *s, const char *value)
{
	if (s->w)
		s->w->stage = 1;
	return kvc_demote_locked(k, s->n, s->chunk, value, s->w);
}

/* A request, not a stored value; its result is the result of the call. */
static int set_push(struct kvc *k, struct kvc_subject *s, const char *value)
{
	int err;

	if (s->w)
		s->w->stage = 1;
	kvc_node_ref_locked(s->n); /* keeps the node while the locks are released */
	if (strchr(value, '\n'))
		err = kvc_push_list_both(k, s->n, value, s->user, s->w);
	else if (s->kind & (ON_FILE | ON_CHUNK_FOLDER))
		err = kvc_push_both(k, s->n, value, s->w);
	else
		err = -EINVAL;
	kvc_node_unref_locked(s->n);
	return err;
}

/* A request about the prompt that ends with this chunk. It is not stored. */
static int set_hint(struct kvc *k, struct kvc_subject *s, const char *value)
{
	int err;

	kvc_node_ref_locked(s->n); /* keeps the node while the locks are released */
	err = s->kind & ON_FILE ? kvc_membership_join_both(k, s->n) : 0;
	err = err ?: kvc_hint_prompt_both(k, value, s->chunk, s->uid);
	kvc_node_unref_locked(s->n);
	return err ?: s->n->commit.lost ? -ENOENT : reread_row_both(k, s);
}

/* Progress of a rescan of the model's files: the last inode number visited, and the end of them. */
static int get_survey(struct kvc *k, struct kvc_subject *s, char *value)
{
	uint64_t at, of;

	if (!kvc_model_rescan_show_locked(k, s->n->row.ino, &at, &of))
		return -ENODATA;
	snprintf(value, 128, "%" PRIu64 " of %" PRIu64, at, of);
	return 0;
}

/* If two rows have the same name, the first that fits the kind of the inode is used. */
const struct kvc_virtual kvc_virtuals[] = {
	{ "bytes", ON_MODEL, get_bytes, NULL },
	{ "checksum", ON_FILE, get_checksum, NULL },
	{ "codec", ON_MODEL, get_codec, put_codec },
	{ "codec", ON_FILE, get_file_codec, NULL },
	{ "demote", ON_FILE | ON_CHUNK_FOLDER, NULL, set_demote },
	{ "error", ON_FILE, get_error, NULL },
	{ "evicted", ON_MODEL, get_evicted, NULL },
	{ "files", ON_MODEL, get_files, NULL },
	{ "hint", ON_FILE | ON_CHUNK_FOLDER, NULL, set_hint },
	{ "hits", ON_FILE | ON_CHUNK_FOLDER, get_hits, NULL },
	{ "layers", ON_MODEL, get_layers, set_layers },
	{ "layout", ON_MODEL | ON_FOLDER, get_layout, set_layout },
	{ "parent", ON_FILE | ON_CHUNK_FOLDER, get_parent, set_parent },
	{ "parent_by", ON_FILE | ON_CHUNK_FOLDER, get_parent_by, NULL },
	{ "pin", ON_FILE | ON_CHUNK_FOLDER, get_pin, set_pin },
	{ "policy", ON_MODEL, get_policy, set_policy },
	{ "push", ON_FILE | ON_CHUNK_FOLDER | ON_FOLDER | TAKES_LIST, NULL, set_push },
	{ "quota", ON_MODEL, get_quota, set_quota },
	{ "shared", ON_MODEL, get_shared, put_shared },
	{ "state", ON_FILE | ON_CHUNK_FOLDER, get_state, NULL },
	{ "survey", ON_MODEL, get_survey, NULL },
	{ "tenant", ON_FILE, get_tenant, set_tenant },
	{ "tenant", ON_FOLDER, get_folder_tenant, set_folder_tenant },
	{ "tenants", ON_ROOT, NULL, set_tenants },
	{ "tier_bytes", ON_FILE, get_file_tier_bytes, NULL },
	{ "tier_bytes", ON_MODEL, get_tier_bytes, NULL },
	{ "tiers", ON_FILE | ON_CHUNK_FOLDER, get_tiers, NULL },
	{ "ttl", ON_FILE | ON_CHUNK_FOLDER, get_ttl, set_ttl },
	{ "ttl", ON_MODEL, get_default_ttl, set_default_ttl },
	{ "unit", ON_FOLDER, get_unit, set_unit },
	{ "unit_now", ON_FOLDER, get_unit_now, NULL },
	{ "used", ON_MODEL, get_used, NULL },
};
const size_t kvc_nvirtuals = sizeof kvc_virtuals / sizeof kvc_virtuals[0];

const struct kvc_virtual *kvc_virtual_of(const char *name, unsigned kind)
{
	const struct kvc_virtual *any = NULL;

	for (size_t i = 0; i < kvc_nvirtuals; i++)
		if (!strcmp(kvc_virtuals[i].name, name + strlen(KVC_VIRTUAL)) &&
		    (!any || ((kvc_virtuals[i].on & kind) && !(any->on & kind))))
			any = &kvc_virtuals[i];
	return any;
}
