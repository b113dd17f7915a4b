/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: the sizes of their recent objects, and the attributes on their folders
 * (user.kvcachefs.codec, policy, shared, ttl, layout). The attributes are rows in the catalog. All
 * but the layout are cached in k->models->entries by the model's number; any entry may be replaced
 * at any time.
 *
 * The number of files in a complete chunk (layers) is stored under meta layers:MODEL, and in a list
 * of the few models that have it set. A mount without such models only checks for an empty list.
 */
#include "model.h"

#include "node.h"

#include <inttypes.h>
#include <string.h>

#define PREFIX "user.kvcachefs."
#define TTL PREFIX "ttl"
#define LAYOUT PREFIX "layout"
#define LAYERS "layers:"

static const char *const shared_names[] = { "keep", "delete", NULL }; /* enum kvc_shared */

/* A row for each attribute: its name, and its values, ended by NULL. */
static const struct {
	const char *name;
	const char *const *values;
} attrs[KVC_MODEL_ATTRS] = {
	[KVC_MODEL_CODEC] = { PREFIX "codec", kvc_codec_names },
	[KVC_MODEL_POLICY] = { PREFIX "policy", kvc_policy_names },
	[KVC_MODEL_SHARED] = { PREFIX "shared", shared_names },
};

static struct kvc_model_entry *entry_of(struct kvc *k, uint64_t model)
{
	struct kvc_model_entry *e = &k->models->entries[model % KVC_MODEL_ENTRIES];

	if (e->model != model)
		*e = (struct kvc_model_entry){ .model = model };
	return e;
}

static int value_of(enum kvc_model_attr a, const char *text)
{
	for (int i = 0; attrs[a].values[i]; i++)
		if (!strcmp(text, attrs[a].values[i]))
			return i;
	return -1;
}

int kvc_model_set_both(struct kvc *k, struct kvc_node *folder)
{
	uint64_t model = folder->row.ino, ttl;
	char layout[KVC_KV_LAYOUT_TEXT];
	int value, err;

	if (folder->row.parent != KVC_ROOT || model == KVC_ROOT)
		return 0;
	if (kvc_quota_of_locked(k, model) || kvc_model_layers_of_locked(k, model))
		return 1;
	for (int a = 0; a < KVC_MODEL_ATTRS; a++) {
		err = kvc_model_attr_both(k, model, (enum kvc_model_attr)a, &value);
		if (err || value >= 0)
			return err ?: 1;
	}
	err = kvc_model_ttl_both(k, model, &ttl);
	if (err || ttl)
		return err ?: 1;
	err = kvc_model_layout_both(k, model, layout);
	return err == -ENOENT ? 0 : err ?: 1;
}

int kvc_model_attr_both(struct kvc *k, uint64_t model, enum kvc_model_attr a, int *value)
{
	struct kvc_model_entry *e = entry_of(k, model);
	char text[32] = "";
	size_t len = sizeof text - 1;
	int err;

	if (model && !e->attr[a]) {
		err = kvc_xattr_get(k->cat, model, attrs[a].name, text, &len);
		if (err && err != -ENOENT)
			return err;
		e->attr[a] = (int8_t)((err ? -1 : value_of(a, text)) + 2);
	}
	*value = model ? e->attr[a] - 2 : -1;
	return 0;
}

const char *kvc_model_attr_text(enum kvc_model_attr a, int value)
{
	return attrs[a].values[value];
}

int kvc_model_attr_set_both(struct kvc *k, uint64_t model, enum kvc_model_attr a, const char *text)
{
	int v = text ? value_of(a, text) : -1, err;

	if (text && v < 0)
		return -EINVAL;
	err = text ? kvc_xattr_set(k->cat, model, attrs[a].name, text, strlen(text))
		   : kvc_xattr_del(k->cat, model, attrs[a].name);
	entry_of(k, model)->attr[a] = err ? 0 : (int8_t)(v + 2);
	entry_of(k, model)->lossless_said = false;
	return err;
}

int kvc_model_ttl_both(struct kvc *k, uint64_t model, uint64_t *seconds)
{
	struct kvc_model_entry *e = entry_of(k, model);

	if (model && !e->ttl) {
		char text[32] = "";
		size_t len = sizeof text - 1;
		int err = kvc_xattr_get(k->cat, model, TTL, text, &len);

		if (err && err != -ENOENT)
			return err;
		e->ttl = 1 + (err ? 0 : strtoull(text, NULL, 10));
	}
	*seconds = model ? e->ttl - 1 : 0;
	return 0;
}

int kvc_model_ttl_set_both(struct kvc *k, uint64_t model, uint64_t seconds)
{
	char text[32];
	int err;

	snprintf(text, sizeof text, "%" PRIu64, seconds);
	err = seconds ? kvc_xattr_set(k->cat, model, TTL, text, strlen(text))
		      : kvc_xattr_del(k->cat, model, TTL);
	entry_of(k, model)->ttl = err ? 0 : 1 + seconds;
	return err;
}

int kvc_model_layout_both(struct kvc *k, uint64_t folder, char text[KVC_KV_LAYOUT_TEXT])
{
	size_t len = KVC_KV_LAYOUT_TEXT - 1;
	int err = folder ? kvc_xattr_get(k->cat, folder, LAYOUT, text, &len) : -ENOENT;

	if (!err)
		text[len] = 0;
	return err;
}

int kvc_model_layout_of_both(struct kvc *k, uint64_t folder, char text[KVC_KV_LAYOUT_TEXT])
{
	struct kvc_row row;
	int err = -ENOENT;

	for (unsigned depth = 0; folder && folder != KVC_ROOT; depth++) {
		if (depth > KVC_DEPTH_MAX)
			return -ELOOP;
		err = kvc_model_layout_both(k, folder, text);
		if (err != -ENOENT || (err = kvc_node_row_both(k, folder, &row)))
			return err;
		folder = row.parent;
		err = -ENOENT;
	}
	return err;
}

int kvc_model_layout_set_both(struct kvc *k, uint64_t folder, const char *text)
{
	char printed[KVC_KV_LAYOUT_TEXT];
	struct kvc_kv_layout l;
	uint64_t model;
	int err = kvc_node_model_both(k, folder, &model);

	if (err)
		return err;
	if (text && kvc_kv_layout_parse(text, &l, NULL))
		return -EINVAL;
	entry_of(k, model)->lossless_said = false;
	if (!text)
		return kvc_xattr_del(k->cat, folder, LAYOUT);
	kvc_kv_layout_print(&l, printed);
	return kvc_xattr_set(k->cat, folder, LAYOUT, printed, strlen(printed));
}

bool kvc_model_lossless_locked(struct kvc *k, uint64_t model)
{
	struct kvc_model_entry *e = entry_of(k, model);
	bool first = !e->lossless_said;

	e->lossless_said = true;
	return first;
}

int kvc_model_apart_both(struct kvc *k, uint64_t model)
{
	int policy, err;

	if (!model || kvc_quota_of_locked(k, model))
		return model != 0;
	err = kvc_model_attr_both(k, model, KVC_MODEL_POLICY, &policy);
	return err ?: policy >= 0;
}

/*
 * Returns the size to preallocate: the largest of the model's last 57 to 64 objects; 0 if none is
 * known.
 */
uint64_t kvc_model_hint_locked(struct kvc *k, uint64_t model)
{
	struct kvc_model_entry *e = entry_of(k, model);
	uint64_t max = 0;

	for (int i = 0; i < 8; i++)
		max = kvc_max(max, e->sizes[i]);
	return kvc_round_up(max, KVC_PAGE);
}

void kvc_model_hint_add_locked(struct kvc *k, uint64_t model, uint64_t size)
{
	struct kvc_model_entry *e = entry_of(k, model);

	/*
	 * A file larger than an eighth of the pool is probably an arena, in which a client places
	 * many objects; preallocating that much for each file would use up the pool.
	 */
	if (size && size <= k->pool.bytes / 8) {
		uint64_t *max = &e->sizes[e->at / 8 % 8];

		*max = e->at++ % 8 ? kvc_max(*max, size) : size;
	}
}

/* ---- layers ---- */

struct kvc_layers {
	struct kvc_list link;
	uint64_t model;
	unsigned n;
};

static struct kvc_layers *layers_find_locked(struct kvc *k, uint64_t model)
{
	kvc_list_each(e, &k->models->layered) {
		struct kvc_layers *l = kvc_of(e, struct kvc_layers, link);

		if (l->model == model)
			return l;
	}
	return NULL;
}

unsigned kvc_model_layers_of_locked(struct kvc *k, uint64_t model)
{
	const struct kvc_layers *l = kvc_model_layers_any(k) ? layers_find_locked(k, model) : NULL;

	return l ? l->n : 0;
}

static int layers_add_locked(struct kvc *k, uint64_t model, unsigned layers)
{
	struct kvc_layers *l = layers_find_locked(k, model);

	if (!l) {
		if (!(l = calloc(1, sizeof *l)))
			return -ENOMEM;
		l->model = model;
		kvc_list_add_tail(&k->models->layered, &l->link);
		atomic_fetch_add_explicit(&k->models->nlayered, 1, memory_order_relaxed);
	}
	l->n = layers;
	return 0;
}

static void layers_remove_locked(struct kvc *k, uint64_t model)
{
	struct kvc_layers *l = layers_find_locked(k, model);

	if (!l)
		return;
	kvc_list_del(&l->link);
	atomic_fetch_sub_explicit(&k->models->nlayered, 1, memory_order_relaxed);
	free(l);
}

int kvc_model_layers_set_both(struct kvc *k, uint64_t model, unsigned layers)
{
	unsigned before = kvc_model_layers_of_locked(k, model);
	char key[40], value[16];
	int err;

	if (before == layers)
		return 0;
	snprintf(key, sizeof key, LAYERS "%" PRIx64, model);
	snprintf(value, sizeof value, "%u", layers);
	if (layers && (err = layers_add_locked(k, model, layers)))
		return err;
	err = layers ? kvc_meta_set(k->cat, key, value) : kvc_meta_del(k->cat, key);
	if (!err && !layers)
		layers_remove_locked(k, model);
	if (err && layers && before)
		layers_add_locked(k, model, before);
	else if (err && layers)
		layers_remove_locked(k, model);
	return err;
}

int kvc_model_layers_load_both(struct kvc *k)
{
	char key[64] = LAYERS, value[64];
	int err;

	while (!(err = kvc_meta_next(k->cat, LAYERS, key, value, sizeof value))) {
		uint64_t model = 0;
		unsigned layers = 0;
		struct kvc_row row;

		if (sscanf(key, LAYERS "%" SCNx64, &model) != 1 ||
		    sscanf(value, "%u", &layers) != 1 || !layers || layers > KVC_LAYERS_MAX)
			err = -ENOENT;
		else
			err = kvc_row_get(k->cat, model, &row);
		if (err == -ENOENT) {
			kvc_meta_del(k->cat, key);
			continue;
		}
		if (err || (err = layers_add_locked(k, model, layers)))
			return err;
	}
	return err == -ENOENT ? 0 : err;
}

void kvc_model_layers_free(struct kvc *k)
{
	kvc_list_each_safe(e, &k->models->layered)
		free(kvc_of(e, struct kvc_layers, link));
	kvc_list_init(&k->models->layered);
}
