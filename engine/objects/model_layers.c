/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number of files in a complete chunk of a model. It is stored in the catalog under meta
 * layers:MODEL, and in a list of the few models that have it set, so that other models only pay for
 * the check of an empty list.
 */
#include "model_layers.h"

#include "node.h"

#include <inttypes.h>
#include <string.h>

#define KEY "layers:"

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
	snprintf(key, sizeof key, KEY "%" PRIx64, model);
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
	char key[64] = KEY, value[64];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		uint64_t model = 0;
		unsigned layers = 0;
		struct kvc_row row;

		if (sscanf(key, KEY "%" SCNx64, &model) != 1 || sscanf(value, "%u", &layers) != 1 ||
		    !layers || layers > KVC_LAYERS_MAX)
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
