/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of the redis tier: password, CA, certificate and key. They may be replaced while the
 * tier is in use (rotation), so they are checked regularly, by one thread at a time.
 */
#include "log.h"
#include "redis_conn.h"
#include "registry.h"

#include <stdio.h>
#include <stdatomic.h>
#include <sys/stat.h>

#define EVERY_NS 1000000000ull

static struct kvct_stamp stamp_of(const char *path)
{
	struct kvct_stamp s;
	struct stat st;

	memset(&s, 0, sizeof s); /* compared as bytes */
	if (!*path || stat(path, &st))
		return s;
	s.dev = st.st_dev;
	s.ino = st.st_ino;
	s.size = st.st_size;
	s.mtime = st.st_mtim;
	s.ctime = st.st_ctim;
	return s;
}

static int password_read(struct kvct_redis *r, char *error)
{
	char password[sizeof r->password];
	int err = kvct_secret(r->files.path[KVCT_REDIS_PASSWORD], password, sizeof password, error);

	if (!err) {
		pthread_mutex_lock(&r->lock);
		memcpy(r->password, password, sizeof password);
		pthread_mutex_unlock(&r->lock);
	}
	kvc_keys_wipe(password, sizeof password);
	return err;
}

static int tls_read(struct kvct_redis *r, char *error)
{
	struct kvct_redis_tls *tls, *old;
	int err = kvct_redis_tls_open(&tls, r->files.path[KVCT_REDIS_CA],
				      r->files.path[KVCT_REDIS_CERT], r->files.path[KVCT_REDIS_KEY],
				      error);

	if (err)
		return err;
	pthread_mutex_lock(&r->lock);
	old = r->tls;
	r->tls = tls;
	pthread_mutex_unlock(&r->lock);
	kvct_redis_tls_close(old);
	return 0;
}

int kvct_redis_files_load(struct kvct_redis *r, bool tls, char *error)
{
	int err = 0;

	for (int i = 0; i < KVCT_REDIS_FILES; i++)
		r->files.stamp[i] = stamp_of(r->files.path[i]);
	r->files.checked_ns = kvc_mono_ns();
	if (*r->files.path[KVCT_REDIS_PASSWORD])
		err = password_read(r, error);
	return err ?: tls ? tls_read(r, error) : 0;
}

bool kvct_redis_files_changed(struct kvct_redis *r, bool now)
{
	struct kvct_stamp stamp[KVCT_REDIS_FILES];
	uint64_t ns = kvc_mono_ns();
	bool password, certificates = false, idle = false, changed = false;
	char error[512];

	if ((!now && ns - r->files.checked_ns < EVERY_NS) ||
	    !atomic_compare_exchange_strong(&r->files.busy, &idle, true))
		return false;
	r->files.checked_ns = ns;
	for (int i = 0; i < KVCT_REDIS_FILES; i++) {
		stamp[i] = stamp_of(r->files.path[i]);
		if (i != KVCT_REDIS_PASSWORD)
			certificates |= memcmp(&stamp[i], &r->files.stamp[i], sizeof stamp[i]) != 0;
	}
	password = memcmp(&stamp[KVCT_REDIS_PASSWORD], &r->files.stamp[KVCT_REDIS_PASSWORD],
			  sizeof stamp[0]) != 0;
	if (password && password_read(r, error)) {
		kvct_redis_log(r, "the previous password stays in use", error, NULL);
	} else if (password) {
		r->files.stamp[KVCT_REDIS_PASSWORD] = stamp[KVCT_REDIS_PASSWORD];
		changed = true;
	}
	if (certificates && tls_read(r, error)) {
		kvct_redis_log(r, "the previous certificates stay in use", error, NULL);
	} else if (certificates) {
		for (int i = KVCT_REDIS_CA; i < KVCT_REDIS_FILES; i++)
			r->files.stamp[i] = stamp[i];
		changed = true;
	}
	if (changed) {
		kvc_info("tier redis: the password or the certificates were read again");
		r->epoch++;
	}
	r->files.busy = false;
	return changed;
}
