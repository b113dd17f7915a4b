/* SPDX-License-Identifier: Apache-2.0 */
/* A plain model of the catalog's contents, which is changed with it and compared with it. */
#ifndef SHADOW_H
#define SHADOW_H

#include "catalog.h"

#define INOS 12
#define PARENTS 3
#define NAMES 10
#define ATTRS 4
#define CHUNKS 10
#define GONES 4
#define METAS 5

struct model {
	struct {
		bool there;
		uint64_t ino;
		uint32_t kind;
	} name[PARENTS][NAMES];
	struct {
		bool there;
		struct kvc_row r;
	} row[INOS];
	struct {
		bool there;
		char text[24];
	} target[INOS];
	struct {
		bool there;
		struct kvc_object_row o;
	} object[INOS];
	struct kvc_place place[INOS][KVC_TIERS];
	struct {
		bool there;
		size_t len;
		uint8_t value[24];
	} attr[INOS][ATTRS];
	struct {
		bool there;
		struct kvc_chunk_row r;
	} chunk[CHUNKS];
	uint64_t gone[GONES];
	char meta[METAS][24];
};

extern struct model model;
extern uint64_t clock_ns; /* the clock of expiry */
extern uint64_t seed;
extern char wrong[512]; /* the first difference */

/* A random number below n, from seed. */
uint64_t draw(uint64_t n);
/* The possible names, attributes, keys and so on, by number. */
const char *name_text(int i);
const char *attr_text(int i);
const char *meta_text(int i);
uint64_t ino_of(int i);
struct kvc_where gone_of(int i);
uint64_t parent_of(int i);
/*
 * Makes one random change to the catalog and the model. Returns 0; or the catalog's error, and the
 * model is unchanged.
 */
int change(struct kvc_catalog *c);
/* Returns 0; above 0, with the difference in `wrong`; or an error of the catalog. */
int compare(struct kvc_catalog *c, const struct model *m);

#endif
