/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of nodes: HOST:PORT, with an IPv6 address in brackets, as nodes= of a peers:// remote and
 * peer_name= contain them. Any thread may call these functions.
 */
#ifndef KVC_PEER_NAME_H
#define KVC_PEER_NAME_H

#include <stdbool.h>
#include <stddef.h>

#define KVC_PEER_NAME 300u /* bytes of a name, with the zero at its end */

/* Is the text a name? It then has only printable characters, and none of + , / and space. */
bool kvc_peer_name_valid(const char *text);
/*
 * Are all texts of a list names? The names of a list have + between them. Returns NULL, or the
 * first text that is not a name, and its length in *len.
 */
const char *kvc_peer_name_wrong(const char *list, size_t *len);
/* Is the name in the list, in upper or lower case? */
bool kvc_peer_name_listed(const char *list, const char *name);

#endif
