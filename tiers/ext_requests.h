/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the program of an ext tier: the slots of the arena, and the checks of the
 * program's messages. ext_link.c starts and ends the program, and its thread receives the messages.
 *
 * Nothing that the program sends is trusted: each check returns the breach of the contract, and the
 * link then ends the program.
 */
#ifndef KVCT_EXT_REQUESTS_H
#define KVCT_EXT_REQUESTS_H

#include "ext_link.h"

#include <pthread.h>
#include <sys/types.h>

#define KVCT_REFUSAL 320 /* bytes of the text of a program that cannot serve */

enum kvct_slot_is {
	KVCT_SLOT_FREE,
	KVCT_SLOT_FILL,
	KVCT_SLOT_SENT,
	KVCT_SLOT_LATE,
	KVCT_SLOT_DONE
};

struct kvct_slot {
	enum kvct_slot_is is;
	struct kvctier_request request;
	uint64_t late_ns;             /* LATE: since when */
	int err;                      /* DONE: 0, or -ECONNRESET: the program has ended */
	struct kvctier_answer answer; /* DONE, with err 0 */
	pthread_cond_t done;
};

/* `lock` guards all members that are not marked, and some of struct kvct_link. */
struct kvct_requests {
	/* constant */
	unsigned nslots;
	uint64_t deadline_ms;

	pthread_mutex_t lock;
	pthread_cond_t change; /* a slot is free, or `up`, `users`, `wanted` or the link changed */
	bool up;               /* the program is ready */
	bool wanted;           /* a call waits for the program */
	bool stopping;
	uint64_t retry_ns; /* the next start of the program */
	int sock;          /* while up */
	uint8_t *arena;    /* while up, and until `users` is 0 */
	unsigned users;
	uint64_t tag; /* of the last request */
	struct kvct_slot slot[KVCT_LINK_SLOTS];
	uint64_t used_tag, used_ns; /* of the last USED: 0 if it is answered; when it was sent */
	unsigned abilities;
	uint64_t used, size;
};

/* r is zeroed. The slots are the first nslots, at most KVCT_LINK_SLOTS. */
void kvct_requests_init(struct kvct_requests *r, unsigned nslots, uint64_t deadline_ms);
void kvct_requests_fini(struct kvct_requests *r);

/* Waits for a change until the time. The caller holds r->lock. */
void kvct_requests_wait_locked(struct kvct_requests *r, uint64_t until_ns);

/*
 * Makes a call once. Errors as kvct_link_ask; -ECONNRESET if the program has ended during the call.
 * Blocks until c->until_ns at most.
 */
int kvct_requests_ask(struct kvct_requests *r, struct kvct_link_call *c);

/* The program is ready on this socket: calls may be made. */
void kvct_requests_start(struct kvct_requests *r, int sock);
/* The program has ended or is to be ended, or did not start: fails the calls under way. */
void kvct_requests_stop(struct kvct_requests *r);
/* After kvct_requests_stop: waits until no thread uses the arena or the socket. */
void kvct_requests_drain(struct kvct_requests *r);

/* Handles an answer. Returns NULL, or the way in which it breaks the contract. */
const char *kvct_requests_answer(struct kvct_requests *r, const struct kvctier_answer *a);
/* Returns whether a request is unanswered for so long that the program must be hanging. */
bool kvct_requests_hang(struct kvct_requests *r);
/* Returns whether it is time to ask for the figures of the store, and sets *q to the request. */
bool kvct_requests_ask_used(struct kvct_requests *r, struct kvctier_request *q);

/*
 * Checks the program's first message, of n bytes (n <= 0: none). Makes its texts printable. Returns
 * NULL, or why the program is to end; if the program cannot serve, the reason is also in `refusal`,
 * which is "" otherwise.
 */
const char *kvct_requests_ready(struct kvctier_ready *m, ssize_t n, char refusal[KVCT_REFUSAL]);

#endif
