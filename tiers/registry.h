/* SPDX-License-Identifier: Apache-2.0 */
/* The table of tiers. The daemon and the tools open tiers here and pass them to the engine. */
#ifndef KVCT_REGISTRY_H
#define KVCT_REGISTRY_H

#include "library.h"
#include "options.h"
#include "store.h"
#include "tier.h"

#define KVCT_MAX KVCT_TIERS
enum { KVCT_TIERS = 4 }; /* the disk and three remotes, as in catalog.h */

/*
 * Opens the tiers of the options, in order. Returns 0 and sets *n, or a negative errno with one
 * line in error[512].
 */
int kvct_open_all(const struct kvc_store *s, const struct kvc_options *o,
		  struct kvc_tier *tiers[KVCT_MAX], unsigned *n, char *error);
void kvct_close_all(struct kvc_tier **tiers, unsigned n);

/*
 * Opens the disk tier (devices.c): all devices of the store. Returns like kvct_open_all. The store
 * must stay valid until the tier is closed.
 */
int kvct_devices_open(const struct kvc_store *s, struct kvc_tier **out, char *error);
/* For the tools: tries once more to clear headers that could not be cleared. */
void kvct_devices_clear(struct kvc_tier *t);
/*
 * For the tools: list() then calls fn for places that cannot be read and continues. Without it,
 * list() ends with the error.
 */
void kvct_devices_unread(struct kvc_tier *t,
			 void (*fn)(void *arg, uint64_t at, uint64_t len, int err), void *arg);
/*
 * Opens a tier that stands in front of another and breaks its calls as `spec` says (shim.c). Takes
 * ownership of `below`. Returns 0, or a negative errno with one line in error[512].
 */
int kvct_shim_open(struct kvc_tier *below, const char *spec, struct kvc_tier **out, char *error);

/* The URL of a remote: scheme://[user@]host[:port]/path?name=value&... Missing parts are "". */
struct kvct_url {
	char scheme[32], user[128], host[256], path[1024]; /* path without its first slash */
	unsigned port;
	char query[2048];
	const char *store;                 /* the folder of the local store, or NULL */
	const char *store_id;              /* the store's uuid, or NULL */
	bool sealed;                       /* the mount has keyfile= */
	const struct kvc_options *options; /* of the mount, or NULL */
};
int kvct_url_parse(const char *text, struct kvct_url *u, char *error);
/* Copies the value of a query parameter to buf, or "" if it is not given. */
const char *kvct_url_get(const struct kvct_url *u, const char *name, char *buf, size_t capacity);
/* Is the query parameter given, possibly as an empty text? */
bool kvct_url_has(const struct kvct_url *u, const char *name);
/*
 * Checks that every parameter is one of `names`, a list that ends with NULL. Returns 0, or -EINVAL
 * with one line in error[512].
 */
int kvct_url_check(const struct kvct_url *u, const char *const *names, char *error);
/*
 * Reads the first line of a file with a secret (mode 0600) into buf. Returns 0, or a negative errno
 * with one line in error[512].
 */
int kvct_secret(const char *path, char *buf, size_t capacity, char *error);

/*
 * Sets the id of a tier, which catalogs store. A long id is cut, and a hash of the whole id is
 * appended.
 */
void kvct_set_id(struct kvc_tier *t, const char *id);

/*
 * Implements --version: prints the program's name and version, and one line for each library: the
 * `n` libraries in `own`, the libraries of all programs, and the other shared libraries of this
 * program.
 */
void kvct_put_version(FILE *out, const char *program, const struct kvc_library *own, unsigned n);
struct kvc_library kvct_library_hiredis(void); /* redis_open.c */
struct kvc_library kvct_library_curl(void);    /* s3_http.c */

/* Open shared tiers; one row each in registry.c. */
int kvct_dir_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		  char *error);
int kvct_redis_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		    char *error);
int kvct_s3_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		 char *error);
int kvct_ext_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		  char *error);
int kvct_peers_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		    char *error);
/* Can the program of this tier, which is an ext tier, list its values? */
bool kvct_ext_lists(struct kvc_tier *t);

/*
 * Is the error of a read about one frame only? A list continues after any error. If an error was
 * not about one frame, the list may be incomplete, and returns that error at its end.
 */
static inline bool kvct_is_frame_error(int err)
{
	return err == -ENOENT || err == -EBADMSG || err == -EPROTO;
}

#endif
