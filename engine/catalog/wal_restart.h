/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restarts the catalog's write-ahead log from its beginning without a sync inside a commit
 * (wal_restart.c). Used only inside the catalog.
 */
#ifndef KVC_WAL_RESTART_H
#define KVC_WAL_RESTART_H

#include "util.h"

struct kvc_wal_restart;

/*
 * Creates the state for the catalog at `path`. ask(arg) is called, from within a commit, when the
 * log has restarted and needs a sync (kvc_wal_restart_sync). Returns NULL if
 * memory is short.
 */
struct kvc_wal_restart *kvc_wal_restart_new(const char *path, void (*ask)(void *arg), void *arg);
/* call it after all connections are closed; NULL does nothing */
void kvc_wal_restart_free(struct kvc_wal_restart *a);
/*
 * Returns the name of the VFS for the committing connection (`commits`), or for the connection that
 * copies the log into the database.
 */
const char *kvc_wal_restart_vfs(const struct kvc_wal_restart *a, bool commits);
/*
 * Empties a log whose beginning a power failure has left inconsistent. All of its contents are in
 * the database. Call it before any process opens the database. Returns 0, also if there is no log,
 * or -errno.
 */
int kvc_wal_restart_repair(const char *path);
/* Must the log be emptied? Returns 1, 0 or -errno. Changes nothing. */
int kvc_wal_restart_stale(const char *path);
/*
 * Opens the existing log and the mark file. Returns 0 or -errno. If the mark file cannot be
 * created, that is no error: SQLite then syncs in commits as usual. The caller must sync the folder
 * to make the names durable.
 */
int kvc_wal_restart_open(struct kvc_wal_restart *a);
/*
 * From now on restarts the log, with a mark of at least `frames` frames. 0: stop doing so; commits
 * sync.
 */
void kvc_wal_restart_use(struct kvc_wal_restart *a, uint64_t frames);
/* Returns the log's size in bytes. Any thread may call it. */
uint64_t kvc_wal_restart_bytes(const struct kvc_wal_restart *a);
/*
 * Syncs the log. Returns 0; or -errno, and later calls fail, too, until the log has been written
 * again (wal_sync.h). Any thread may call it.
 */
int kvc_wal_restart_sync(struct kvc_wal_restart *a);
/* Has the log restarted since its last sync? */
bool kvc_wal_restart_unsynced(const struct kvc_wal_restart *a);

/*
 * Around a checkpoint, by one thread: kvc_wal_restart_salts before it, kvc_wal_restart_copied after
 * it. `before`: the result of the former. `frames`: the number of frames that the checkpoint has
 * copied and that the log on stable storage has. Writes the mark when it is due.
 */
struct kvc_salts {
	uint8_t b[8];
};
struct kvc_salts kvc_wal_restart_salts(const struct kvc_wal_restart *a);
void kvc_wal_restart_copied(struct kvc_wal_restart *a, const struct kvc_salts *before,
			    uint64_t frames);

#endif
