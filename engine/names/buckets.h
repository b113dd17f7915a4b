/* SPDX-License-Identifier: Apache-2.0 */
/* Recognizes folders that engines make as buckets (buckets.c). */
#ifndef KVC_BUCKETS_H
#define KVC_BUCKETS_H

#include <stdint.h>

struct kvc;
struct kvc_node;

/* The thread with this pid has made the folder in parent, under this name. */
void kvc_buckets_folder_made_both(struct kvc *k, struct kvc_node *parent, struct kvc_node *folder,
				  const char *name, uint32_t pid);
/* A file arrives in the folder. */
void kvc_buckets_filled_both(struct kvc *k, const struct kvc_node *folder);

#endif
