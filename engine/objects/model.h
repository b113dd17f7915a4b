/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: the sizes of their recent objects, the attributes on their folders, and the number of
 * files in their complete chunks, user.kvcachefs.layers (model.c). Under k->lock.
 */
#ifndef KVC_MODEL_H
#define KVC_MODEL_H

#include "kv_layout.h"
#include "node.h"

#define KVC_MODEL_ENTRIES 256 /* entries of the cache below */

/* Attributes of a model's folder whose values are a fixed set. */
enum kvc_model_attr { KVC_MODEL_CODEC, KVC_MODEL_POLICY, KVC_MODEL_SHARED, KVC_MODEL_ATTRS };
enum kvc_shared { KVC_SHARED_KEEP, KVC_SHARED_DELETE };

/* A cache entry: a model's settings as last read, and the sizes of its latest objects. */
struct kvc_model_entry {
	uint64_t model, sizes[8]; /* each the largest of eight objects in a row */
	unsigned at;
	int8_t attr[KVC_MODEL_ATTRS]; /* 0: not read yet; 1: not set; 2 + value */
	uint64_t ttl;                 /* 0: not read yet; 1 + seconds */
	bool lossless_said;           /* kvc_model_lossless_locked has returned true */
};

struct kvc_models {
	struct kvc_model_entry entries[KVC_MODEL_ENTRIES];
	/* models with user.kvcachefs.layers, and their number */
	struct kvc_list layered;
	_Atomic unsigned nlayered;
};

/*
 * These functions return 0 or a negative errno, unless a comment says otherwise; results go to the
 * last argument. If the catalog cannot be read, they fail and do not report the attribute as unset.
 * While the caller keeps the locks, asking for the same value again does not read the catalog,
 * except for the layout.
 *
 * Returns 1 if this folder has the settings of a model (a quota, a ttl, layers, a layout or one
 * of the attributes), 0 if not, or an error.
 */
int kvc_model_set_both(struct kvc *k, struct kvc_node *folder);
/* *value: the value of the model's attribute, or -1 if it is not set. */
int kvc_model_attr_both(struct kvc *k, uint64_t model, enum kvc_model_attr a, int *value);
/* Returns the name of a value of the attribute. */
const char *kvc_model_attr_text(enum kvc_model_attr a, int value);
/*
 * Sets the attribute to the value with this name, or removes it (text is NULL). -EINVAL: no such
 * value.
 */
int kvc_model_attr_set_both(struct kvc *k, uint64_t model, enum kvc_model_attr a, const char *text);
/* The ttl, in seconds, that new chunks of the model get; 0: none. Setting 0 removes it. */
int kvc_model_ttl_both(struct kvc *k, uint64_t model, uint64_t *seconds);
int kvc_model_ttl_set_both(struct kvc *k, uint64_t model, uint64_t seconds);
/*
 * The layout of the keys and values in the files below a folder (kv_layout.h), as text; -ENOENT:
 * not set. kvc_model_layout_of_both finds the one in effect: of this folder, or of the nearest
 * folder above it. Setting NULL removes it. -EINVAL: the text is not a layout.
 */
int kvc_model_layout_both(struct kvc *k, uint64_t folder, char text[KVC_KV_LAYOUT_TEXT]);
int kvc_model_layout_of_both(struct kvc *k, uint64_t folder, char text[KVC_KV_LAYOUT_TEXT]);
int kvc_model_layout_set_both(struct kvc *k, uint64_t folder, const char *text);
/*
 * A copy of the model's files is coded without loss although a codec with loss was chosen. Returns
 * true if the reason has not been logged since the codec or the layout last changed.
 */
bool kvc_model_lossless_locked(struct kvc *k, uint64_t model);
/*
 * Returns 1 if the model has a quota or a policy of its own, so that its files cannot enter or
 * leave it by a rename of their folder or by a hard link; 0 if not; or an error.
 */
int kvc_model_apart_both(struct kvc *k, uint64_t model);
/*
 * Return the size to preallocate for a new file of the model, in bytes, and record the size of a
 * published file.
 */
uint64_t kvc_model_hint_locked(struct kvc *k, uint64_t model);
void kvc_model_hint_add_locked(struct kvc *k, uint64_t model, uint64_t size);

#define KVC_LAYERS_MAX 1024u

/* Returns true if any model has a number of layers. Needs no lock. */
static inline bool kvc_model_layers_any(struct kvc *k)
{
	return atomic_load_explicit(&k->models->nlayered, memory_order_relaxed) > 0;
}
/* Returns the number of files in a complete chunk; 0 if the model has no such number. */
unsigned kvc_model_layers_of_locked(struct kvc *k, uint64_t model);
/* layers 0 removes the setting. Returns 0 or a negative errno. */
int kvc_model_layers_set_both(struct kvc *k, uint64_t model, unsigned layers);
/* At mount: reads the numbers of layers. At unmount: frees them. */
int kvc_model_layers_load_both(struct kvc *k);
void kvc_model_layers_free(struct kvc *k);

#endif
