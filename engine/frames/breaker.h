/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The circuit breaker of a tier, or of a device of the disk tier: which calls may be made to the
 * tier now. Reads, writes, lists and removals fail separately, so each class of calls has its own
 * state (breaker.c). Nothing here takes a lock or logs: the caller guards the struct (for a tier
 * under k->lock) and passes the time, in nanoseconds of the monotonic clock.
 */
#ifndef KVC_BREAKER_H
#define KVC_BREAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVC_FAILURES 5 /* failures in a row that suspend a class */

/* clang-format off: a table */
/* Classes of calls:    name      word in messages */
#define KVC_CALLS_TABLE(X)                                \
	X(READ, "read", "reads")        /* get */         \
	X(WRITE, "write", "writes")     /* put, rehead */ \
	X(LIST, "list", "lists")        /* list */        \
	X(REMOVE, "remove", "removals") /* remove */
/* clang-format on */

enum kvc_call {
#define X(id, name, words) KVC_CALL_##id,
	KVC_CALLS_TABLE(X)
#undef X
		KVC_CALLS
};
extern const char *const kvc_breaker_call_names[KVC_CALLS],
	*const kvc_breaker_call_words[KVC_CALLS];

enum kvc_breaker_is {
	KVC_BREAKER_CLOSED,  /* calls are made */
	KVC_BREAKER_REFUSED, /* the tier answers, but refuses this class */
	KVC_BREAKER_OUT,     /* calls fail */
};

struct kvc_breaker_class {
	enum kvc_breaker_is is;
	int why;           /* the errno, negative, of the last refusal or failure; 0: none yet */
	unsigned failures; /* in a row */
	/* the objects of these failures; 0 if the error does not concern one object */
	uint64_t failed[KVC_FAILURES];
	bool probing;        /* the probe is in progress */
	uint64_t until_ns;   /* not closed: no call before this time */
	uint64_t backoff_ns; /* the last wait; each failed probe doubles it */
};

struct kvc_breaker {
	struct kvc_breaker_class of[KVC_CALLS];
	unsigned unreachable; /* consecutive calls, of any class, that could not reach the tier */
};

/* The change that a result caused, for the caller to log and count. */
enum kvc_breaker_event {
	KVC_BREAKER_SAME,
	KVC_BREAKER_TRIPPED,     /* the class was closed and is suspended now */
	KVC_BREAKER_TRIPPED_ALL, /* all closed classes were suspended: the tier cannot be reached */
	KVC_BREAKER_AGAIN,       /* a probe failed, and the reason differs from the last one */
	/*
	 * the class is closed again, and so are those that were suspended because the tier could
	 * not be reached
	 */
	KVC_BREAKER_RESTORED,
};

/* The meaning of an error for the tier. */
enum kvc_breaker_says {
	KVC_SAYS_ANSWER,  /* the tier answers; the answer may be about one object */
	KVC_SAYS_NOTHING, /* the tier was not asked, or its answer does not count */
	KVC_SAYS_MEDIA,   /* these bytes cannot be read or written; others may be */
	KVC_SAYS_OBJECT,  /* this object is refused; KVC_FAILURES such objects suspend the class */
	KVC_SAYS_REFUSED, /* the class is refused */
	KVC_SAYS_FAILURE, /* a failure of the class */
	KVC_SAYS_UNREACHABLE, /* a failure of all classes */
};
/* caps: KVC_TIER_* of the tier. err: 0 or a negative errno, by the contract in tier.h. */
enum kvc_breaker_says kvc_breaker_says(unsigned caps, enum kvc_call call, int err);

/* Returns true if a call would be refused now. */
bool kvc_breaker_refuses(const struct kvc_breaker *b, enum kvc_call call, uint64_t now_ns);
/*
 * Returns true if a call may be made now. If the class is suspended and its time has come, the
 * caller becomes the probe: it must report kvc_breaker_result or kvc_breaker_uncalled.
 */
bool kvc_breaker_allows(struct kvc_breaker *b, enum kvc_call call, uint64_t now_ns);
/* Reports that the allowed call was not made. */
void kvc_breaker_uncalled(struct kvc_breaker *b, enum kvc_call call);
/* Reports the result of a call about an object (0: no particular object). */
enum kvc_breaker_event kvc_breaker_result(struct kvc_breaker *b, unsigned caps, enum kvc_call call,
					  uint64_t object, int err, uint64_t now_ns);
/* Returns "closed", "refused", "out", or "probing" while a probe may be made or is in progress. */
const char *kvc_breaker_word(const struct kvc_breaker *b, enum kvc_call call, uint64_t now_ns);
/*
 * Returns a tier's errno, negative or positive, in words: "read-only", "quota reached" and so on.
 */
const char *kvc_breaker_reason(int err);

#endif
