/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of a client can set the size of a file, or allocate any number of bytes, and the kernel
 * clears or frees page after page: seconds for several GiB. Callers that need k->lock or the
 * catalog's lock must not wait for that. So the locks are released, and an allocation runs in steps
 * and checks between them whether its result is still wanted. A request handler must not be
 * occupied that long either: such calls return KVC_LONG until the caller runs them on a separate
 * thread (base/caller.h).
 *
 * While the locks are released, a reference keeps the node in memory (n->refs.engine) and
 * n->refs.writers keeps it from being published. Its bytes are already accounted for, and the
 * kernel lets no other call change the size of the file. The file may be unlinked or dropped, which
 * closes n->segment.fd, so these calls use a duplicate of the descriptor.
 */
#include "ops.h"

#include "file.h"

#include <fcntl.h>

#define STEP (64ull << 20)
#define SPARE (2ull << 20) /* size of a huge page */

/* Nonzero if the result is no longer wanted. */
static int unwanted(struct kvc *k, const struct kvc_node *n)
{
	int err;

	kvc_lock(k);
	err = n->state == KVC_GONE ? -ESTALE : k->stopping ? -ESHUTDOWN : 0;
	kvc_unlock(k);
	return err;
}

int kvc_pages_size(int fd, uint64_t least)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	return (uint64_t)st.st_size < least && ftruncate(fd, (off_t)least) ? -errno : 0;
}

/* Sets the size last, so that a failed step leaves no visible change. */
static int in_steps(struct kvc *k, const struct kvc_node *n, int fd, int mode, uint64_t off,
		    uint64_t len, uint64_t *done)
{
	int err = 0;

	for (uint64_t at = off, part; at < off + len && !err; at += part) {
		part = kvc_min(STEP - at % STEP, off + len - at);
		if (fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)part))
			return -errno;
		*done = at + part - off;
		err = unwanted(k, n);
	}
	return err || mode & FALLOC_FL_KEEP_SIZE ? err : kvc_pages_size(fd, off + len);
}

static int pages_begin_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (own < 0)
		return -errno;
	kvc_node_write_begin_locked(n);
	if (held == KVC_HELD_BOTH)
		kvc_unlock_both(k);
	else
		kvc_unlock(k);
	return own;
}

static int pages_end_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int own, int err)
{
	close(own);
	if (held == KVC_HELD_BOTH)
		kvc_lock_both(k);
	else
		kvc_lock(k);
	kvc_node_write_end_locked(n);
	kvc_file_changed_locked(n);
	return err ?: n->state == KVC_OPEN ? 0 : -ESTALE;
}

int kvc_pages_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd, int mode,
		     uint64_t off, uint64_t len, uint64_t *done)
{
	uint64_t none;
	int own, err;

	done = done ?: &none;
	*done = 0;
	if (len <= KVC_PAGES_HELD) {
		if (fallocate(fd, mode, (off_t)off, (off_t)len))
			return -errno;
		*done = len;
		return 0;
	}
	if ((own = pages_begin_locked(k, n, held, fd)) < 0)
		return own;
	err = in_steps(k, n, own, mode, off, len, done);
	return pages_end_locked(k, n, held, own, err);
}

/* Would truncating this node to `size` free more than `some` bytes? */
static bool would_free_more(const struct kvc_node *n, uint64_t size, uint64_t some)
{
	uint64_t has = n->object.size, reserved = n->acct.reserved;
	struct stat st;

	if (!kvc_node_has_segment(n))
		return false;
	if (n->state == KVC_OPEN && n->segment.fd >= 0 && !fstat(n->segment.fd, &st)) {
		has = (uint64_t)st.st_size;
		reserved = (uint64_t)st.st_blocks * 512;
	}
	/* includes pages allocated beyond its end */
	return reserved > some && kvc_max(has, n->segment.prepared) > size + some;
}

int kvc_pages_truncate_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd,
			      uint64_t size)
{
	int own, err = 0;

	if (!would_free_more(n, size, KVC_PAGES_HELD))
		return ftruncate(fd, (off_t)size) ? -errno : 0;
	if ((own = pages_begin_locked(k, n, held, fd)) < 0)
		return own;
	if (ftruncate(own, (off_t)size))
		err = -errno;
	return pages_end_locked(k, n, held, own, err);
}

/*
 * Under the lock no writer can open the file, and its only writer is about to close it. Frees whole
 * huge pages: if only a part were freed, the kernel would split the page and clear that part.
 */
void kvc_pages_trim_locked(struct kvc *k, struct kvc_node *n)
{
	struct stat st;
	int fd;

	while (n->state == KVC_OPEN && n->refs.writers == 1 &&
	       (fd = kvc_file_node_fd_locked(k, n)) >= 0 && !fstat(fd, &st) &&
	       n->segment.prepared > (uint64_t)st.st_size + 2 * SPARE) {
		const struct timespec t[2] = { { .tv_nsec = UTIME_OMIT }, st.st_mtim };
		uint64_t end = n->segment.prepared;

		kvc_file_set_prepared_locked(n, (end - 1) / SPARE * SPARE);
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			      (off_t)n->segment.prepared, (off_t)(end - n->segment.prepared)))
			return;
		futimens(fd, t);
		kvc_pause_locked(k);
	}
}

bool kvc_pages_truncate_is_long_locked(const struct kvc_node *n, uint64_t size)
{
	return would_free_more(n, size, KVC_PAGES_QUICK);
}
