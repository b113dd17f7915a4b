/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a model (model.c): the sizes of its objects, and the attributes on its folder.
 * k->lock.
 */
#ifndef KVC_MODEL_H
#define KVC_MODEL_H

#include "node.h"

#define KVC_HINTS 256

/* Attributes of a model's folder with a fixed set of values (model.c). */
enum kvc_model_attr { KVC_MODEL_CODEC, KVC_MODEL_POLICY, KVC_MODEL_SHARED, KVC_MODEL_ATTRS };
enum kvc_shared { KVC_SHARED_KEEP, KVC_SHARED_DELETE };

struct kvc_hint {
	uint64_t model, sizes[8];
	unsigned at;
	int8_t attr[KVC_MODEL_ATTRS]; /* 0: not looked up; 1: none is set; 2 + value */
	uint64_t ttl;                 /* 0: not looked up; 1 + seconds */
};

struct kvc_models {
	struct kvc_hint hints[KVC_HINTS];
	struct kvc_list layered; /* layers.c; and how many there are */
	_Atomic unsigned nlayered;
};

/*
 * What the catalog cannot tell now is not taken for what is not set: 0, or why not, here and below;
 * what is told goes to the last argument. What was told is told again under the same hold.
 *
 * Is something set on this folder as on a model: a quota, a ttl or one of the attributes? 1, 0, or
 * an error.
 */
int kvc_model_set_both(struct kvc *k, struct kvc_node *folder);
/* The value of an attribute of the model; -1: none is set. */
int kvc_model_attr_both(struct kvc *k, uint64_t model, enum kvc_model_attr a, int *value);
const char *kvc_model_attr_text(enum kvc_model_attr a, int value);
/* Sets it by its text, or takes it away (NULL). -EINVAL: no such value. */
int kvc_model_attr_set_both(struct kvc *k, uint64_t model, enum kvc_model_attr a, const char *text);
/* What chunks that are made in the model begin with, in seconds. 0: none; and to take it away. */
int kvc_model_ttl_both(struct kvc *k, uint64_t model, uint64_t *seconds);
int kvc_model_ttl_set_both(struct kvc *k, uint64_t model, uint64_t seconds);
/*
 * Has the model a quota or a policy of its own, so that its files do not go in or out with a whole
 * folder or by a hard link? 1, 0, or an error.
 */
int kvc_model_apart_both(struct kvc *k, uint64_t model);
uint64_t kvc_model_hint_locked(struct kvc *k, uint64_t model);
void kvc_model_hint_add_locked(struct kvc *k, uint64_t model, uint64_t size);

#endif
