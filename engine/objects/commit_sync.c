/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syncs that follow a commit. An fsync of a file needs a sync of the device of the disk tier
 * that has the file's copy, and then one of the catalog's log. An fsync of a folder, or of a file
 * without a copy in the disk tier, needs only the log.
 *
 * A sync of the log also makes rows durable whose frames are in devices that were not synced. This
 * breaks no promise: an fsync of those files did not return. A row that replaces that of a synced
 * copy is written only after the new copy was synced (tiering/spill.c, tiering/move.c).
 *
 * Each device has at most one job that syncs it. Fsyncs that arrive in between wait for the next
 * one. So a device whose sync hangs holds one thread of the common queue, and delays only the
 * fsyncs of files in it. (The queue has two threads and, if there are several devices, one more for
 * each.) A thread that has synced a device goes on with the log, unless another thread syncs the
 * log: then that thread syncs it once more, for all fsyncs that wait.
 *
 * The threads of the common queue run this code.
 */
#include "commit_sync.h"

#include "committer.h"
#include "file.h"
#include "tier_queue.h"

#include <stdlib.h>

/* A sync of a device, or of the log only. */
struct sync_job {
	struct kvc_job job;
	unsigned of;
};

void kvc_commit_sync_init(struct kvc_commit_sync *s)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		kvc_list_init(&s->of[i].waits);
	kvc_list_init(&s->log);
}

unsigned kvc_commit_sync_of_place(unsigned tier, const struct kvc_where *w)
{
	return tier == KVC_DISK ? (unsigned)(w->at >> KVC_DEVICE_BITS) % KVC_DEVICES
				: KVC_COMMIT_SYNC_LOG;
}

unsigned kvc_commit_sync_of_locked(const struct kvc *k, const struct kvc_node *n)
{
	if (!n || !S_ISREG(n->row.mode) || !k->tier[KVC_DISK].t || !kvc_file_placed_in(n, KVC_DISK))
		return KVC_COMMIT_SYNC_LOG;
	return kvc_commit_sync_of_place(KVC_DISK, &n->in[KVC_DISK].place.where);
}

/* Syncs the log for the fsyncs that wait for it, unless another thread does. Releases k->lock. */
static void sync_log_locked(struct kvc *k)
{
	struct kvc_commit_sync *s = &k->committer->syncs;
	struct kvc_list waits;
	int err;

	if (s->log_running)
		return;
	s->log_running = true;
	kvc_list_init(&waits);
	while (!kvc_list_empty(&s->log)) {
		kvc_list_splice(&waits, &s->log);
		kvc_unlock(k);
		err = kvc_catalog_sync(k->cat);
		kvc_lock(k);
		kvc_wait_wake_all_locked(k, &waits, err);
	}
	s->log_running = false;
}

static void start_sync_locked(struct kvc *k, unsigned of);

static void sync_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_commit_sync *s = &k->committer->syncs;
	unsigned of = kvc_of(j, struct sync_job, job)->of;
	struct kvc_where at = { .at = (uint64_t)of << KVC_DEVICE_BITS };
	struct kvc_list waits;
	int err;

	kvc_list_init(&waits);
	kvc_lock(k);
	if (of < KVC_DEVICES) {
		kvc_list_splice(&waits, &s->of[of].waits);
		kvc_unlock(k);
		err = kvc_tier_sync_place(k->tier[KVC_DISK].t, &at);
		kvc_lock(k);
		s->of[of].running = false;
		if (!kvc_list_empty(&s->of[of].waits))
			start_sync_locked(k, of);
		if (err)
			kvc_wait_wake_all_locked(k, &waits, err == -ENODEV ? -EIO : err);
		kvc_list_splice(&s->log, &waits);
	}
	sync_log_locked(k);
	kvc_unlock(k);
}

/* Queues a job that syncs the device, or only the log. Does nothing if the device has a job. */
static void start_sync_locked(struct kvc *k, unsigned of)
{
	struct kvc_commit_sync *s = &k->committer->syncs;
	struct sync_job *x;

	if (of < KVC_DEVICES && s->of[of].running)
		return;
	x = calloc(1, sizeof *x);
	if (!x) {
		kvc_wait_wake_all_locked(k, of < KVC_DEVICES ? &s->of[of].waits : &s->log, -ENOMEM);
		return;
	}
	if (of < KVC_DEVICES)
		s->of[of].running = true;
	x->of = of;
	x->job.run = sync_run;
	x->job.tier = KVC_COMMON;
	kvc_tier_job_put_locked(k, &x->job);
}

void kvc_commit_sync_queue_locked(struct kvc *k, struct kvc_list *waits)
{
	struct kvc_commit_sync *s = &k->committer->syncs;
	bool wanted[KVC_DEVICES + 1] = { false };

	kvc_list_each_safe(e, waits) {
		unsigned of = kvc_of(e, struct kvc_wait, link)->sync_of;

		wanted[of] = true;
		kvc_list_del(e);
		kvc_list_add_tail(of < KVC_DEVICES ? &s->of[of].waits : &s->log, e);
	}
	for (unsigned i = 0; i <= KVC_DEVICES; i++)
		if (wanted[i])
			start_sync_locked(k, i);
}

void kvc_commit_sync_device_locked(struct kvc *k, unsigned nr)
{
	/*
	 * when draining, no thread may be left for the job; the last sync of the unmount syncs all
	 */
	if (!k->draining)
		start_sync_locked(k, nr);
}
