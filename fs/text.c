/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts the memory of texts in .kvcachefs/ by user. See text.h. */
#include "text.h"

#include "budget.h"
#include "util.h"

#include <errno.h>
#include <pthread.h>

#define USER_MAX (256u << 20) /* bytes of a user other than root */

struct share {
	uint32_t uid;
	size_t bytes;
};
static struct {
	pthread_mutex_t lock; /* a leaf */
	struct share *v;
	size_t n, capacity;
} shares = { .lock = PTHREAD_MUTEX_INITIALIZER };

static size_t user_max(void)
{
	return kvc_min(USER_MAX, kvc_budget_most(KVC_BUDGET_TEXT) / 2);
}

/*
 * Raises the user's charge by `more` bytes or reduces it by `less` bytes. Returns 0, -EDQUOT or
 * -ENOMEM.
 */
static int change_share(uint32_t uid, size_t more, size_t less)
{
	size_t i = 0;
	int err = 0;

	pthread_mutex_lock(&shares.lock);
	while (i < shares.n && shares.v[i].uid != uid)
		i++;
	if (i == shares.n && !(err = kvc_grow(&shares.v, i, &shares.capacity, sizeof *shares.v)))
		shares.v[shares.n++] = (struct share){ .uid = uid };
	if (!err && more && shares.v[i].bytes + more > user_max())
		err = -EDQUOT;
	if (!err)
		shares.v[i].bytes += more - less;
	if (i < shares.n && !shares.v[i].bytes)
		shares.v[i] = shares.v[--shares.n];
	pthread_mutex_unlock(&shares.lock);
	return err;
}

int kvfs_text_charge(uint32_t uid, size_t *charged, size_t bytes)
{
	size_t more = bytes > *charged ? bytes - *charged : 0,
	       less = bytes < *charged ? *charged - bytes : 0;
	int err = 0;

	if (more && kvc_budget_reserve(KVC_BUDGET_TEXT, more))
		return -EDQUOT;
	if (uid && (more || less))
		err = change_share(uid, more, less);
	if (err && more)
		kvc_budget_release(KVC_BUDGET_TEXT, more);
	if (err)
		return err;
	if (less)
		kvc_budget_release(KVC_BUDGET_TEXT, less);
	*charged = bytes;
	return 0;
}

size_t kvfs_text_left(uint32_t uid)
{
	size_t used = 0;

	pthread_mutex_lock(&shares.lock);
	for (size_t i = 0; i < shares.n; i++)
		if (shares.v[i].uid == uid)
			used = shares.v[i].bytes;
	pthread_mutex_unlock(&shares.lock);
	return uid ? user_max() - kvc_min(used, user_max()) : kvc_budget_most(KVC_BUDGET_TEXT);
}
