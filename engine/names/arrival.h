/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that wait for a name that does not exist yet (arrival.c). Everything is under k->lock.
 */
#ifndef KVC_ARRIVAL_H
#define KVC_ARRIVAL_H

#include "kvc.h"

#define KVC_ARRIVALS 1024u /* waiting leases of all users */
#define KVC_ARRIVAL_BUCKETS 1024u
#define KVC_ARRIVAL_USERS 256u /* users with the same hash share their part */

struct kvc_arrivals {
	/* parked calls, by the folder and the name that they wait for */
	struct kvc_list buckets[KVC_ARRIVAL_BUCKETS];
	struct kvc_list telling; /* calls that wait until the kernel has got a notice */
	unsigned n;              /* places taken */
	unsigned users[KVC_ARRIVAL_USERS];
};

void kvc_arrival_init(struct kvc_arrivals *a);
/*
 * Takes a place for a lease of this user, who may have at most three times as many places as are
 * free. Returns false if none is left. Return the place with kvc_arrival_end_locked.
 */
bool kvc_arrival_begin_locked(struct kvc *k, uint32_t uid);
void kvc_arrival_end_locked(struct kvc *k, uint32_t uid);
/*
 * Parks a call until the name is made in the folder, or until w->deadline_ns, which the caller
 * sets. The call may be woken too early, so it looks for the name again. Returns KVC_WAIT.
 */
int kvc_arrival_park_locked(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w);
/* The name was made in the folder, or now belongs to another file: wakes the calls for it. */
void kvc_arrival_named_locked(struct kvc *k, uint64_t parent, const char *name);
/* Names in the folder may have become visible: wakes all calls that wait for a name in it. */
void kvc_arrival_shown_locked(struct kvc *k, uint64_t parent);

#endif
