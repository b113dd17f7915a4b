/* SPDX-License-Identifier: Apache-2.0 */
/* The command "hint" of .kvcachefs/lease: its words, and their effect on an object (hint.c). */
#ifndef KVC_OPS_HINT_H
#define KVC_OPS_HINT_H

#include "cache.h"
#include "node.h"
#include "tenant.h"

/* A file or a chunk of the prompt that a command is about. */
struct kvc_hint_chunk {
	uint64_t id;
	struct kvc_node *n; /* a file of the chunk, which the caller keeps in memory; or NULL */
	bool may;           /* the user may give hints about the chunk */
	bool needed;        /* another prompt needs it (set by kvc_hint_chunks_both) */
};

#define KVC_HINT_ANCESTORS 4096 /* most chunks of a prompt that are found, counted from its end */

struct kvc_hint_words {
	bool finished, low, normal, high, prefetch, demote;
	uint64_t pause_s;             /* 0: none */
	uint8_t outlook;              /* KVC_OUTLOOK_NONE: none (policy/replacer.h) */
	char tenant[KVC_TENANT_NAME]; /* "": none was named */
	bool has_tenant;
	/* path of the newer prompt's last chunk, in the parsed text; or NULL */
	const char *superseded;
	uint64_t *newer; /* the chunk of that path and those before it */
	size_t nnewer;
	uint64_t loads; /* bytes that the command has begun to load */
};

/* Parses the words of a command. Modifies `words`, and *h points into it. Returns 0 or -EINVAL. */
int kvc_hint_parse(char *words, struct kvc_hint_words *h);
/*
 * Finds the chunks of the newer prompt, which a hint about the older prompt does not affect. The
 * caller frees h->newer. Releases and takes the locks.
 */
int kvc_hint_newer_both(struct kvc *k, struct kvc_hint_words *h, uint64_t chunk);
/*
 * Checks that the user may give the hints about the chunk of a file. If the command says so,
 * assigns the chunk to the tenant. Returns 0 or a negative errno, such as -EPERM: the chunk belongs
 * to another user.
 */
int kvc_hint_file_both(struct kvc *k, struct kvc_hint_words *h, struct kvc_node *n, uint32_t uid);
/*
 * Starts to load a file that is not in the pool, if the command says prefetch. Returns 0 or a
 * negative errno, such as -EDQUOT: all loads of the command would exceed the user's share of the
 * pool.
 */
int kvc_hint_prefetch_locked(struct kvc *k, struct kvc_hint_words *h, struct kvc_node *n,
			     uint32_t uid);
/*
 * Applies the other words to the chunks of a prompt, in its order. The words do not make a chunk
 * leave early if the newer prompt contains it, if another prompt continues from it, or if it is an
 * ancestor of such a chunk. A chunk may occur several times in a row, with different files.
 * Releases and takes the locks.
 */
void kvc_hint_chunks_both(struct kvc *k, const struct kvc_hint_words *h, struct kvc_hint_chunk *v,
			  size_t n);
/*
 * Applies the words to the prompt that ends with this chunk: to the chunk, and to its ancestors if
 * they belong to the user. Words that name a path or a tenant, or that move files, are -EINVAL.
 * Releases and takes the locks. Returns 0 or a negative errno.
 */
int kvc_hint_prompt_both(struct kvc *k, const char *words, uint64_t chunk, uint32_t uid);

#endif
