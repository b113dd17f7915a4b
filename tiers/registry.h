/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers that exist. main and the tools open them here; the engine gets them opened.
 */
#ifndef KVCT_REGISTRY_H
#define KVCT_REGISTRY_H

#include "library.h"
#include "options.h"
#include "store.h"
#include "tier.h"

#define KVCT_MAX KVCT_TIERS
enum { KVCT_TIERS = 4 }; /* the disk and three remotes, as catalog.h has it */

/*
 * Opens the tiers that the options ask for, in order. 0 with *n, or one line in error[512] and a
 * negative errno.
 */
int kvct_open_all(const struct kvc_store *s, const struct kvc_options *o,
		  struct kvc_tier *tiers[KVCT_MAX], unsigned *n, char *error);
void kvct_close_all(struct kvc_tier **tiers, unsigned n);

/* The disk tier (disk.c): the store's data file or device. */
int kvct_disk_open(const struct kvc_store *s, struct kvc_tier **out, char *error);
/* For the tools: what could not be cleared is tried once more, now. */
void kvct_disk_clear(struct kvc_tier *t);
/*
 * For the tools: list() then goes on over what cannot be read, after telling fn; without, it ends
 * with the error.
 */
void kvct_disk_unread(struct kvc_tier *t, void (*fn)(void *arg, uint64_t at, uint64_t len, int err),
		      void *arg);
/*
 * A tier that stands in front of another and breaks it as `spec` says (shim.c). Takes over `below`.
 * -EINVAL with a line.
 */
int kvct_shim_open(struct kvc_tier *below, const char *spec, struct kvc_tier **out, char *error);

/* A remote's URL: scheme://[user@]host[:port]/path?name=value&... ; what is not there is "". */
struct kvct_url {
	char scheme[32], user[128], host[256], path[1024]; /* path without its first / */
	unsigned port;
	char query[2048];
	const char *store;    /* the folder of the store that it is a remote of, or NULL */
	const char *store_id; /* its uuid, or NULL */
};
int kvct_url_parse(const char *text, struct kvct_url *u, char *error);
/* The value of a query parameter in buf, or "" . */
const char *kvct_url_get(const struct kvct_url *u, const char *name, char *buf, size_t capacity);
/* Is a query parameter given, be it as an empty text? */
bool kvct_url_has(const struct kvct_url *u, const char *name);
/* Every parameter must be one of `names` (ended by NULL): -EINVAL with a line. */
int kvct_url_check(const struct kvct_url *u, const char *const *names, char *error);
/* Reads the first line of a file that holds a secret (mode 0600) into buf. */
int kvct_secret(const char *path, char *buf, size_t capacity, char *error);

/*
 * --version: the program's name and version, and a line for each of the `n` libraries of its own,
 * of those that all programs are linked with, and of each other shared library of the program.
 */
void kvct_put_version(FILE *out, const char *program, const struct kvc_library *own, unsigned n);
struct kvc_library kvct_library_hiredis(void); /* redis_open.c */
struct kvc_library kvct_library_curl(void);    /* s3_http.c */

/* Shared tiers, one row each in registry.c. */
int kvct_dir_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		  char *error);
int kvct_redis_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		    char *error);
int kvct_s3_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		 char *error);

/*
 * Is the error of a read about that one frame? A list goes on after any, but after others it has
 * not told of all there is: it ends with them.
 */
static inline bool kvct_of_one(int err)
{
	return err == -ENOENT || err == -EBADMSG || err == -EPROTO;
}

#endif
