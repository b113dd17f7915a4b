/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the replacers that is not in the chunks' rows: a file in the store with a section
 * for each replacer. The last section has the accesses that the rows lack (access_state.h).
 *
 * The file is rewritten at unmount. A thread also rewrites it when the time save= has passed and
 * the state has changed, by requests, evictions or hints, so that a kill loses no more than that
 * time; with a short save= it waits longer, so that it writes at most RATE. The thread takes the
 * lock for one piece at a time, and not while it writes.
 */
#include "replacers.h"

#include "access_state.h"
#include "log.h"
#include "store.h"
#include "access.h"
#include "wear.h"

#include <fcntl.h>
#include <string.h>

#define LOOK_NS 1000000000ull
#define RATE (1 << 20)      /* bytes a second */
#define ACCESSES KVC_CACHES /* in part.cache: a section of access_state.h; class is 0 */

struct part {
	uint32_t cache, class;
	uint64_t len; /* bytes of the data that follows, from kvc_replacer_save */
};

static char *read_file(const char *path, size_t *len)
{
	KVC_FD int fd = kvc_open_own(path, O_RDONLY);
	struct stat st;
	char *all;

	if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > 1L << 30)
		return NULL;
	*len = (size_t)st.st_size;
	all = malloc(*len + 1);
	if (all && read(fd, all, *len) == (ssize_t)*len)
		return all;
	free(all);
	return NULL;
}

void kvc_replacers_load(struct kvc *k)
{
	char path[1280];
	size_t len = 0;
	KVC_MEM char *all = read_file(kvc_super_path(k->store, KVC_STORE_POLICIES, path), &len);
	struct kvc_replacer *replacer;
	struct part part;

	for (size_t at = 0; all && len - at >= sizeof part; at += part.len) {
		memcpy(&part, all + at, sizeof part);
		at += sizeof part;
		if (part.cache > ACCESSES || part.class >= KVC_CLASSES || part.len > len - at) {
			kvc_warn("%s is damaged: policies start without their learned state", path);
			return;
		}
		if (part.cache == ACCESSES) {
			if (kvc_access_state_load(k, all + at, part.len))
				kvc_info("cannot load the latest accesses; the eviction order is "
					 "from the catalog");
			continue;
		}
		if (!kvc_replacers_has_order(k, (enum kvc_cache)part.cache, part.class))
			continue;
		replacer = kvc_replacers_of_locked(k, (enum kvc_cache)part.cache, part.class);
		/* the section is damaged, or was saved by another policy, which was in use then */
		if (replacer && kvc_replacer_load(replacer, all + at, part.len))
			kvc_info(
				"the policy %s starts without its learned state",
				kvc_policy_table[kvc_replacers_policy_of(
							 k, (enum kvc_cache)part.cache, part.class)]
					.name);
	}
}

/* Serializes one replacer. The lock is released between the pieces. */
static int save_one(struct kvc *k, const struct kvc_replacer *replacer, void **blob, size_t *len)
{
	struct kvc_saving *s = NULL;
	int more;

	do {
		kvc_lock(k);
		more = kvc_replacer_save_piece(replacer, &s);
		kvc_unlock(k);
		kvc_replacer_save_between(s);
		kvc_lock_pause(&k->lock);
	} while (more > 0);
	return kvc_replacer_save_end(s, blob, len);
}

static int write_accesses(struct kvc *k, int fd, off_t *at)
{
	struct part part = { ACCESSES, 0, 0 };
	struct kvc_out o = { 0 };
	int err = kvc_access_state_save(k, &o);

	part.len = o.n;
	err = err ?: kvc_pwrite_all(fd, &part, sizeof part, *at);
	*at += (off_t)sizeof part;
	err = err ?: kvc_pwrite_all(fd, o.v, o.n, *at);
	*at += (off_t)o.n;
	free(o.v);
	if (!err) {
		kvc_lock(k);
		kvc_count_by(&k->stats, access_bytes, sizeof part + o.n);
		kvc_wear_access_add_locked(k, sizeof part + o.n);
		kvc_unlock(k);
	}
	return err;
}

static int write_parts(struct kvc *k, int fd)
{
	off_t at = 0;
	int err = 0;

	for (uint32_t i = 0; i < KVC_CACHES; i++)
		for (uint32_t j = 0; j < KVC_CLASSES; j++) {
			KVC_MEM void *blob = NULL;
			struct part part = { i, j, 0 };
			struct kvc_replacer *replacer;

			kvc_lock(k);
			replacer = k->replacers->replacer[i][j];
			kvc_unlock(k);
			if (!replacer)
				continue;
			err = save_one(k, replacer, &blob, &part.len);
			err = err ?: kvc_pwrite_all(fd, &part, sizeof part, at);
			at += (off_t)sizeof part;
			err = err ?: kvc_pwrite_all(fd, blob, part.len, at);
			at += (off_t)part.len;
			if (err)
				return err;
		}
	if (!k->draining) /* at unmount the rows have all accesses */
		err = write_accesses(k, fd, &at);
	k->replacers->bytes = (uint64_t)at;
	return err;
}

void kvc_replacers_save(struct kvc *k)
{
	char path[1280], beside[1280];
	KVC_FD int fd = -1;
	int err;

	kvc_super_path(k->store, KVC_STORE_POLICIES, path);
	kvc_super_path(k->store, KVC_STORE_POLICIES ".new", beside);
	fd = kvc_open_own(beside, O_WRONLY | O_CREAT | O_TRUNC);
	err = fd < 0 ? -errno : write_parts(k, fd);
	if (!err && (fsync(fd) || rename(beside, path)))
		err = -errno;
	if (err && !k->replacers->unsaved)
		kvc_warn("%s cannot be written: %s; the learned state of policies is lost at "
			 "unmount",
			 path, strerror(-err));
	if (err)
		unlink(beside);
	k->replacers->unsaved = err;
	/*
	 * The new file has replaced the one whose accesses were loaded at the start. Those
	 * accesses are freed, although some were not applied yet: chunks that have not been in
	 * memory since then keep the older accesses of their rows.
	 */
	if (!err) {
		kvc_lock(k);
		kvc_access_state_free(k);
		kvc_unlock(k);
	}
}

/* Returns the time from the start of one save to the start of the next. */
static uint64_t save_pause_ns(const struct kvc *k)
{
	return kvc_max(k->opt.save_s * 1000000000, k->replacers->bytes * (1000000000 / RATE));
}

void *kvc_replacers_saver(void *arg)
{
	struct kvc *k = arg;
	uint64_t began = kvc_mono_ns(), saved = 0;

	kvc_lock(k);
	while (!k->stopping) {
		struct timespec until = kvc_timespec(kvc_mono_ns() + LOOK_NS);

		kvc_lock_wait(&k->lock, &k->replacers->cond, &until);
		if (k->stopping || !k->opt.save_s || kvc_replacers_changes_locked(k) == saved ||
		    kvc_mono_ns() - began < save_pause_ns(k))
			continue;
		if (kvc_catalog_accepts(k->cat, false))
			continue; /* the remaining space is for the catalog */
		saved = kvc_replacers_changes_locked(k);
		kvc_unlock(k);
		kvc_replacers_save(k);
		began = kvc_mono_ns();
		kvc_lock(k);
	}
	kvc_unlock(k);
	return NULL;
}
