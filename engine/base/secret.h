/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that hold a key, password or token. One rule applies to all of them, kvcachefs-security(7):
 * a regular file of root or of the daemon's user, which no other user can write or read. There is
 * one exception: root may let a group read its file, as Kubernetes does with the secrets of a pod
 * that has an fsGroup. PostgreSQL has the same rule for its keys.
 */
#ifndef KVC_SECRET_H
#define KVC_SECRET_H

#include <stdbool.h>
#include <sys/stat.h>

#define KVC_SECRET_WHY 256 /* bytes of an error text */

/*
 * Opens the file at path for reading; symbolic links are followed. Returns a descriptor that the
 * caller closes, with the file's attributes in *st; or a negative errno, with the reason and the
 * remedy in why[KVC_SECRET_WHY], which starts with a verb ("cannot be opened: ..."). Never blocks
 * on a pipe or a terminal.
 */
int kvc_secret_open(const char *path, struct stat *st, char *why);
/*
 * True if a file with these attributes follows the rule. The user is the caller's effective user.
 */
bool kvc_secret_is_private(const struct stat *st);
/* Returns the reason and the remedy for attributes that break the rule, as in why above. */
const char *kvc_secret_why(const struct stat *st);

#endif
