/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each class of calls to a tier is closed, refused or out:
 *
 *            KVC_FAILURES failures in a row, or one refusal of a class
 *   CLOSED ------------------------------------------------------------> REFUSED or OUT
 *      ^                                                                  |          ^
 *      | an answer                            until_ns has passed: a call |          | no answer:
 *      +------------------------------------------------------- probing <-+          | the wait
 *                                                                  |                 | doubles
 *                                                                  +-----------------+
 *
 * The next real call of a suspended class after until_ns is its probe: a waiting copy, a load, a
 * list or a waiting removal. While no such call is made, no work waits for the class either: it
 * stays suspended, and the next call, whenever it is made, is the probe.
 *
 * An answer about one object is not a failure. A refusal (no permission, read-only, full, slow
 * down) suspends only its class. If it cannot concern one object only (full, read-only, quota,
 * slow down), a single refusal suspends the class of writes, lists or removals. It does not suspend
 * reads, since a service of several servers may refuse only the reads of one server. A refused
 * permission may concern one object, so it suspends the class only after KVC_FAILURES different
 * objects in a row. The same holds for a read or write error of a medium (KVC_TIER_MEDIA). If the
 * tier cannot be reached, all classes are out.
 */
#include "breaker.h"

#include "tier.h"

#include <errno.h>
#include <string.h>

#define BACKOFF_MIN_NS 500000000ull
#define BACKOFF_MAX_NS 30000000000ull

#define X(id, name, words) [KVC_CALL_##id] = name,
const char *const kvc_breaker_call_names[KVC_CALLS] = { KVC_CALLS_TABLE(X) };
#undef X
#define X(id, name, words) [KVC_CALL_##id] = words,
const char *const kvc_breaker_call_words[KVC_CALLS] = { KVC_CALLS_TABLE(X) };
#undef X

static enum kvc_breaker_says refusal_means(enum kvc_call call)
{
	return call == KVC_CALL_READ ? KVC_SAYS_OBJECT : KVC_SAYS_REFUSED;
}

enum kvc_breaker_says kvc_breaker_says(unsigned caps, enum kvc_call call, int err)
{
	switch (err) {
	case 0:
	case -EBADMSG:
	case -ENOENT:
	case -ESTALE:
	case -EPROTO: return KVC_SAYS_ANSWER;
	case -ENOSPC: /* a bounded tier evicts to make space; in a read, the pool is full */
		return call == KVC_CALL_READ || (caps & KVC_TIER_BOUNDED) ? KVC_SAYS_ANSWER
									  : KVC_SAYS_REFUSED;
	case -EINVAL:
	case -ENOKEY:
	case -ENAMETOOLONG:
	case -E2BIG:
	case -EFBIG:
	case -ENOMEM:
	case -EALREADY:
	case -ENODEV: /* one device of several */
	case -ECANCELED: return KVC_SAYS_NOTHING;
	case -EACCES:
	case -EPERM: return KVC_SAYS_OBJECT;
	case -EROFS:
	case -EDQUOT:
	case -EBUSY: return refusal_means(call);
	case -EIO:
	case -ENODATA: /* a block device's medium error */
	case -EILSEQ:  /* and its protection error */
		return caps & KVC_TIER_MEDIA ? KVC_SAYS_MEDIA : KVC_SAYS_FAILURE;
	case -ECONNREFUSED:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ENETDOWN:
	case -EHOSTDOWN:
	case -ENOTCONN: return KVC_SAYS_UNREACHABLE;
	default: return KVC_SAYS_FAILURE;
	}
}

const char *kvc_breaker_reason(int err)
{
	switch (err < 0 ? -err : err) {
	case 0: return "";
	case EACCES:
	case EPERM: return "no permission";
	case EROFS: return "read-only";
	case ENOSPC: return "full";
	case EDQUOT: return "quota reached";
	case EBUSY: return "asks to slow down, or is not ready";
	case ETIMEDOUT: return "timed out";
	case ECONNREFUSED: return "connection refused";
	case ENOTCONN: return "not mounted or not connected";
	case EIO: return "input/output error";
	default: return strerror(err < 0 ? -err : err);
	}
}

bool kvc_breaker_refuses(const struct kvc_breaker *b, enum kvc_call call, uint64_t now_ns)
{
	const struct kvc_breaker_class *c = &b->of[call];

	return c->is != KVC_BREAKER_CLOSED && (c->probing || now_ns < c->until_ns);
}

bool kvc_breaker_allows(struct kvc_breaker *b, enum kvc_call call, uint64_t now_ns)
{
	if (kvc_breaker_refuses(b, call, now_ns))
		return false;
	b->of[call].probing = b->of[call].is != KVC_BREAKER_CLOSED;
	return true;
}

void kvc_breaker_uncalled(struct kvc_breaker *b, enum kvc_call call)
{
	b->of[call].probing = false; /* the next call is the probe */
}

static bool failed_before(const struct kvc_breaker_class *c, uint64_t object)
{
	for (unsigned i = 0; object && i < kvc_min(c->failures, KVC_FAILURES); i++)
		if (c->failed[i] == object)
			return true;
	return false;
}

static void close_class(struct kvc_breaker_class *c)
{
	*c = (struct kvc_breaker_class){ .why = 0 };
}

/* The tier answered a call of this class. */
static enum kvc_breaker_event answered(struct kvc_breaker *b, enum kvc_call call, bool good)
{
	bool was = false;

	b->unreachable = 0;
	for (unsigned i = 0; i < KVC_CALLS; i++) {
		struct kvc_breaker_class *c = &b->of[i];

		if (!(good && i == call) &&
		    (c->is != KVC_BREAKER_OUT ||
		     kvc_breaker_says(0, (enum kvc_call)i, c->why) != KVC_SAYS_UNREACHABLE))
			continue;
		was |= c->is != KVC_BREAKER_CLOSED;
		close_class(c);
	}
	return was ? KVC_BREAKER_RESTORED : KVC_BREAKER_SAME;
}

/* Suspends the class. Each failed probe doubles the wait. */
static void suspend(struct kvc_breaker_class *c, enum kvc_breaker_is is, int err, uint64_t now_ns)
{
	c->backoff_ns = c->backoff_ns ? kvc_min(c->backoff_ns * 2, BACKOFF_MAX_NS) : BACKOFF_MIN_NS;
	/* some jitter, so that several nodes do not probe together */
	c->until_ns = now_ns + c->backoff_ns + now_ns / 1000 % (c->backoff_ns / 4);
	c->is = is;
	c->why = err;
	c->probing = false;
}

static enum kvc_breaker_event suspend_closed(struct kvc_breaker *b, int err, uint64_t now_ns)
{
	bool was = false;

	for (unsigned i = 0; i < KVC_CALLS; i++)
		if (b->of[i].is == KVC_BREAKER_CLOSED) {
			suspend(&b->of[i], KVC_BREAKER_OUT, err, now_ns);
			was = true;
		}
	return was ? KVC_BREAKER_TRIPPED_ALL : KVC_BREAKER_SAME;
}

enum kvc_breaker_event kvc_breaker_result(struct kvc_breaker *b, unsigned caps, enum kvc_call call,
					  uint64_t object, int err, uint64_t now_ns)
{
	enum kvc_breaker_says says = kvc_breaker_says(caps, call, err);
	struct kvc_breaker_class *c = &b->of[call];
	enum kvc_breaker_is was = c->is, is;
	bool was_probe = c->probing, of_one = says == KVC_SAYS_MEDIA || says == KVC_SAYS_OBJECT;
	int why = c->why;

	c->probing = false;
	if (says == KVC_SAYS_NOTHING)
		return KVC_BREAKER_SAME; /* the next call is the probe */
	if (says == KVC_SAYS_ANSWER)
		return answered(b, call, true);
	is = says == KVC_SAYS_REFUSED || says == KVC_SAYS_OBJECT ? KVC_BREAKER_REFUSED
								 : KVC_BREAKER_OUT;
	if (is == KVC_BREAKER_REFUSED)
		answered(b, call, false);
	b->unreachable = says == KVC_SAYS_UNREACHABLE ? b->unreachable + 1 : 0;
	if (of_one && failed_before(c, object) && !was_probe)
		return KVC_BREAKER_SAME; /* this tells nothing new about other objects */
	c->failed[c->failures % KVC_FAILURES] = of_one ? object : 0;
	c->failures++;
	c->why = err;
	if (was != KVC_BREAKER_CLOSED && !was_probe)
		return KVC_BREAKER_SAME; /* the call began before the class was suspended */
	if (!was_probe && says != KVC_SAYS_REFUSED && c->failures < KVC_FAILURES &&
	    b->unreachable < KVC_FAILURES)
		return KVC_BREAKER_SAME;
	suspend(c, is, err, now_ns);
	if (says == KVC_SAYS_UNREACHABLE && suspend_closed(b, err, now_ns) != KVC_BREAKER_SAME)
		return KVC_BREAKER_TRIPPED_ALL;
	if (was == KVC_BREAKER_CLOSED)
		return KVC_BREAKER_TRIPPED;
	return was != is || why != err ? KVC_BREAKER_AGAIN : KVC_BREAKER_SAME;
}

const char *kvc_breaker_word(const struct kvc_breaker *b, enum kvc_call call, uint64_t now_ns)
{
	const struct kvc_breaker_class *c = &b->of[call];

	return c->is == KVC_BREAKER_CLOSED           ? "closed"
	       : c->probing || now_ns >= c->until_ns ? "probing"
	       : c->is == KVC_BREAKER_REFUSED        ? "refused"
						     : "out";
}
