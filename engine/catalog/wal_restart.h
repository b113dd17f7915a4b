/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the catalog's log begins anew without a sync in a commit (wal_restart.c). Inside the catalog
 * only.
 */
#ifndef KVC_WAL_RESTART_H
#define KVC_WAL_RESTART_H

#include "util.h"

struct kvc_wal_restart;

/*
 * For a catalog at `path`; `ask` (with `arg`) is called, from within a commit, when the log has
 * begun anew and is to be synced (kvc_wal_restart_sync). NULL: no memory.
 */
struct kvc_wal_restart *kvc_wal_restart_new(const char *path, void (*ask)(void *arg), void *arg);
void kvc_wal_restart_free(struct kvc_wal_restart *a); /* after all connections; NULL does nothing */
/* The VFS that the connection that commits is opened with. */
const char *kvc_wal_restart_vfs(const struct kvc_wal_restart *a);
/*
 * Before the database is opened by anybody: a log whose beginning a power failure has mixed up is
 * emptied; all that was in it is in the database. 0 (also where there is none) or -errno.
 */
int kvc_wal_restart_mend(const char *path);
/* Is it to be emptied? 1, 0, or -errno; nothing is changed. */
int kvc_wal_restart_stale(const char *path);
/*
 * Opens the log, which is there, and the mark. 0 or -errno. That the mark cannot be made is no
 * error: then commits sync as SQLite has it. Names are on stable storage when the caller has synced
 * the folder.
 */
int kvc_wal_restart_open(struct kvc_wal_restart *a);
/* From now on, with a mark of at least so many frames; 0: not any more, commits sync. */
void kvc_wal_restart_use(struct kvc_wal_restart *a, uint64_t frames);
/* The log's size in bytes, and its sync: 0 or -errno. For any thread. */
uint64_t kvc_wal_restart_bytes(const struct kvc_wal_restart *a);
int kvc_wal_restart_sync(struct kvc_wal_restart *a);
/* It has begun anew since its last sync. */
bool kvc_wal_restart_unsynced(const struct kvc_wal_restart *a);

/*
 * Round a checkpoint, by one thread: before it, and after, with what it has copied by now, which is
 * on stable storage in the log. Writes the mark if it is time to.
 */
struct kvc_salts {
	uint8_t b[8];
};
struct kvc_salts kvc_wal_restart_salts(const struct kvc_wal_restart *a);
void kvc_wal_restart_copied(struct kvc_wal_restart *a, const struct kvc_salts *before,
			    uint64_t frames);

#endif
