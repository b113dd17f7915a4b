/* SPDX-License-Identifier: Apache-2.0 */
/* Paths in the mount, which frames carry. Both locks. */
#ifndef KVC_PATH_H
#define KVC_PATH_H

#include "frame.h"
#include "node.h"

/*
 * A path in the mount, "" where it is too long for a frame or there is no name; buf has
 * KVC_FRAME_PATH_MAX + 1 bytes. 0, or why the catalog could not be read.
 */
int kvc_path_both(struct kvc *k, uint64_t ino, char *buf);
/* The same of a name in a folder; -ENAMETOOLONG where it is too long. */
int kvc_path_in_both(struct kvc *k, uint64_t parent, const char *name, char *path);
/* The node's model: its folder's name, in name[256], or "". Needs no lock. */
void kvc_path_model_name(const char *path, char *name);
/* The name part of a node's frame. 0, or as kvc_path_both. */
int kvc_path_frame_name_both(struct kvc *k, struct kvc_node *n, struct kvc_frame *f);

#endif
