/* SPDX-License-Identifier: Apache-2.0 */
#include "device_sync.h"

/* after the second failure in a row; doubled after each further one */
#define PAUSE_NS 10000000ull
#define PAUSE_MAX_NS 1000000000ull

uint64_t kvct_device_sync_number_locked(const struct kvct_device_sync *s, uint64_t failed)
{
	return s->failed == failed ? s->writes + 1 : s->lost[s->nlost - 1].to;
}

/* The writes since the last good sync count as lost. */
static void lose_writes_locked(struct kvct_device_sync *s)
{
	struct kvct_device_sync_lost *last = s->nlost ? &s->lost[s->nlost - 1] : NULL;

	s->unsynced = true;
	s->failed++;
	s->writes++; /* this lost number is given to puts that were in progress */
	if (last && (s->nlost == KVCT_DEVICE_SYNC_LOST || last->to >= s->synced))
		last->to = s->writes;
	else
		s->lost[s->nlost++] = (struct kvct_device_sync_lost){ s->synced, s->writes };
}

void kvct_device_sync_distrust_locked(struct kvct_device_sync *s)
{
	s->lost[s->nlost++] = (struct kvct_device_sync_lost){ 0, s->writes };
}

void kvct_device_sync_left_out_locked(struct kvct_device_sync *s)
{
	if (s->writes != s->synced)
		lose_writes_locked(s);
}

/* Returns the pause after this number of failures in a row. */
static uint64_t pause_after(uint64_t failures)
{
	return failures < 2 ? 0 : kvc_min(PAUSE_NS << kvc_min(failures - 2, 16), PAUSE_MAX_NS);
}

int kvct_device_sync_run(struct kvct_device_sync *s, struct kvc_tier *t, pthread_mutex_t *lock,
			 pthread_cond_t *ended, bool pause)
{
	struct kvc_tier_usage u = { 0 };
	uint64_t writes, begun;
	int err;

	t->ops->usage(t, &u);
	pthread_mutex_lock(lock);
	writes = s->writes;
	begun = s->begun;
	/* a sync that began after these writes covers them; one that runs now may not */
	while (s->running)
		pthread_cond_wait(ended, lock);
	/*
	 * Failing syncs can take long. So a caller that has waited takes the error of a sync that
	 * began after its call, instead of starting another sync.
	 */
	if (s->begun > begun && s->result) {
		err = s->result;
		pthread_mutex_unlock(lock);
		return err;
	}
	if (s->synced >= writes && (!u.uncleared || s->begun > begun)) {
		pthread_mutex_unlock(lock);
		return 0;
	}
	if (pause && s->in_row > 1 && kvc_mono_ns() < s->again_ns) {
		err = s->result;
		pthread_mutex_unlock(lock);
		return err;
	}
	s->running = true;
	s->begun++;
	writes = s->writes;
	pthread_mutex_unlock(lock);
	err = t->ops->sync(t);
	pthread_mutex_lock(lock);
	if (err) {
		lose_writes_locked(s);
		s->in_row++;
		s->again_ns = kvc_mono_ns() + pause_after(s->in_row);
	} else {
		s->synced = writes;
		s->unsynced = false;
		s->in_row = 0;
	}
	s->running = false;
	s->result = err;
	pthread_cond_broadcast(ended);
	pthread_mutex_unlock(lock);
	return err;
}

enum kvc_tier_synced kvct_device_sync_state_locked(const struct kvct_device_sync *s,
						   uint64_t number)
{
	if (!number && s->nlost)
		return KVC_TIER_UNKNOWN;
	for (unsigned i = 0; i < s->nlost; i++)
		if (number > s->lost[i].from && number <= s->lost[i].to)
			return KVC_TIER_LOST;
	return kvc_max(number, 1) <= s->synced ? KVC_TIER_SYNCED : KVC_TIER_PENDING;
}
