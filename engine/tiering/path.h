/* SPDX-License-Identifier: Apache-2.0 */
/* Paths in the mount; frames carry them. The caller of a ..._both function holds both locks. */
#ifndef KVC_PATH_H
#define KVC_PATH_H

#include "frame.h"
#include "node.h"

/*
 * Writes the path of inode ino into buf, which has KVC_FRAME_PATH_MAX + 1 bytes. The path is "" if
 * it is too long for a frame or the inode has no name. Returns 0, or a negative errno if the
 * catalog could not be read.
 */
int kvc_path_both(struct kvc *k, uint64_t ino, char *buf);
/*
 * Writes the path of `name` in folder `parent`. Returns 0, -ENAMETOOLONG if it is too long, or a
 * negative errno of the catalog.
 */
int kvc_path_in_both(struct kvc *k, uint64_t parent, const char *name, char *path);
/* Sets name[256] to the model in `path`, which is its first component, or to "". Needs no lock. */
void kvc_path_model_name(const char *path, char *name);
/*
 * Fills in the name part of the node's frame. Returns 0, or a negative errno if the catalog could
 * not be read.
 */
int kvc_path_frame_name_both(struct kvc *k, struct kvc_node *n, struct kvc_frame *f);

#endif
