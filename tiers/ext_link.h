/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the program of an ext tier (kvctier.h is the contract). A link has one thread, which
 * starts the program, receives its answers and starts it again after its end; it exists from open
 * to close, since the program dies with the thread that started it. Other threads make calls.
 *
 * A link trusts nothing that the program sends: a message of another size, an answer without a
 * request and a length beyond the request end the program. The data of an answer is copied out of
 * the shared memory before anything looks at it, and the frame's checksum is verified later.
 */
#ifndef KVCT_EXT_LINK_H
#define KVCT_EXT_LINK_H

#include "kvctier.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVCT_LINK_SLOTS 64 /* requests at the same time, at most */

struct kvct_link;

struct kvct_link_setup {
	const char *path;     /* of the program; valid until the link is closed */
	const char *options;  /* "name=value" texts, each with its 0; copied */
	size_t options_len;   /* bytes */
	uint64_t arena_bytes; /* a multiple of KVCTIER_VALUE_MAX, at most KVCT_LINK_SLOTS of them */
	uint64_t deadline_ms;
	bool sealed; /* all values are encrypted: the program is told so */
};
/*
 * Starts the thread and the program. Waits a moment for the program to be ready. Returns 0 and sets
 * *out, also if the program does not answer or has failed, since it is started again; -EINVAL if
 * the program says that it cannot serve with these options; or another negative errno. error[512]
 * has one line after a failure.
 */
int kvct_link_open(struct kvct_link **out, const struct kvct_link_setup *setup, char *error);
/* Ends the program and the thread, and frees the link. No call may be under way. */
void kvct_link_close(struct kvct_link *l);

/* A call. The link fills in the request's tag, arena, room and deadline_ms. */
struct kvct_link_call {
	struct kvctier_request request;
	const void *data; /* request.length bytes for the program; NULL: none */
	void *into;       /* gets the answer's data, at most request.length bytes; NULL: none */
	uint64_t until_ns;
	struct kvctier_answer answer; /* of a call that returned 0 */
};
/*
 * Makes a call. If the program ends during the call, it is made once more, since every request may
 * be repeated. Returns 0; an error of the program that tier.h knows; -ETIMEDOUT; -ECONNREFUSED if
 * the program does not run; or -ECONNRESET if it has ended twice. Blocks until c->until_ns at most.
 */
int kvct_link_ask(struct kvct_link *l, struct kvct_link_call *c);

/* Returns the abilities (KVCTIER_CAN_*) that the program had when it was last ready; 0 before. */
unsigned kvct_link_abilities(struct kvct_link *l);
/* Returns the last known figures of the program, or 0. Does not block. */
void kvct_link_used(struct kvct_link *l, uint64_t *used, uint64_t *size);

#endif
