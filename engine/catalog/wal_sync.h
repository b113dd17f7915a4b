/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncs of the catalog's write-ahead log, which can be relied on even after a failed sync
 * (wal_sync.c). Used only inside the catalog.
 */
#ifndef KVC_WAL_SYNC_H
#define KVC_WAL_SYNC_H

#include "util.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVC_WAL_HEADER 32
#define KVC_WAL_FRAME 24    /* bytes of a frame's header, before its page */
#define KVC_WAL_SYNC_FDS 4u /* syncs at the same time; others wait */

struct kvc_wal_sync {
	int fd[KVC_WAL_SYNC_FDS]; /* descriptors of the log; -1: not open */
	bool busy[KVC_WAL_SYNC_FDS];
	pthread_mutex_t lock; /* guards busy[] */
	pthread_cond_t idle;
	/* held while the log is written again, and while bytes of it are overwritten or cut off */
	pthread_mutex_t steady;
	/* number of failed syncs, and how many of them are made good */
	_Atomic uint64_t failed, mended;
	/* after a failed repair: its error, and the time of the next one (kvc_mono_ns) */
	_Atomic int why;
	_Atomic uint64_t again_ns;
	uint64_t pause_ns; /* the pause until then, or 0; under `steady` */
	/*
	 * end of the committer's last write in bytes; 0: this process has not written to the log
	 * since its open or its truncation
	 */
	_Atomic uint64_t written;
	_Atomic bool logged; /* a failure was logged, and its end was not */
};

void kvc_wal_sync_init(struct kvc_wal_sync *s);
void kvc_wal_sync_fini(struct kvc_wal_sync *s);
/*
 * Opens the existing log. Returns 0 or -errno. An earlier daemon may have got an error from a sync
 * of the log that the kernel does not report again, so the first sync writes all frames again.
 */
int kvc_wal_sync_open(struct kvc_wal_sync *s, const char *log);
/*
 * Puts all frames that are in the log at this moment on stable storage. Returns 0; or -errno, and
 * later calls fail, too, until the frames are written again. They fail without a sync while the
 * next attempt to write them waits. Any thread may call it.
 */
int kvc_wal_sync_run(struct kvc_wal_sync *s);
/*
 * The same for a caller that has synced the log through its own descriptor. err: the result, 0 or
 * -errno.
 */
int kvc_wal_sync_ended(struct kvc_wal_sync *s, int err);
/*
 * Around each write to the log, by the committing thread. kvc_wal_sync_begin returns whether the
 * write must not run during a repair; kvc_wal_sync_end takes that result. end: offset of the byte
 * after the written ones; 0: the write failed.
 */
bool kvc_wal_sync_begin(struct kvc_wal_sync *s, uint64_t at);
void kvc_wal_sync_end(struct kvc_wal_sync *s, bool begun, uint64_t end);
/* Around a truncation of the log to zero bytes, by any thread. */
void kvc_wal_sync_truncates(struct kvc_wal_sync *s);
void kvc_wal_sync_truncated(struct kvc_wal_sync *s);

/*
 * Reads the frames of the log, at most `most`, up to the first one that is not intact. Calls
 * each(arg, frame, len, at) for the header (at 0) and for each frame; an error of it, negative,
 * ends the walk. Returns 0 and the number of frames in *n; -ENODATA: the log has no valid header;
 * or another negative errno.
 */
int kvc_wal_sync_frames(int fd, uint64_t most,
			int (*each)(void *arg, const uint8_t *p, size_t len, uint64_t at),
			void *arg, uint64_t *n);

#endif
