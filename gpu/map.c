/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See map.h. While any process has a file mapped for writing, the mount does not copy it to a tier.
 * So the writable mapping of a new file is removed soon after publishing, together with its
 * registration, which belongs to that mapping. The read-only mapping beside it uses a separate
 * descriptor, and is registered instead.
 */
#include "map.h"
#include "unmap.h"
#include "file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static struct kvcachefs_map *map_new(size_t len)
{
	struct kvcachefs_map *m = calloc(1, sizeof *m);

	if (!m) {
		kvcachefs_fail(-ENOMEM, "out of memory");
		return NULL;
	}
	m->len = len;
	m->fd = -1;
	pthread_mutex_init(&m->lock, NULL);
	return m;
}

void kvcachefs_map_shut(struct kvcachefs_map *m)
{
	const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	void *p = m->rw_pinned ? mmap(m->rw, m->len, PROT_NONE, how, -1, 0) : MAP_FAILED;

	if (p != MAP_FAILED) /* otherwise the mapping stays until it is unregistered */
		m->rw = p;
}

void kvcachefs_map_settle(struct kvcachefs_map *m)
{
	if (m->rw_pinned)
		kvcachefs_cuda_unregister(m->rw_device, m->rw);
	if (m->rw)
		munmap(m->rw, m->len);
	m->rw_pinned = false;
	m->rw = NULL;
}

void kvcachefs_map_free(struct kvcachefs_map *m)
{
	kvcachefs_map_settle(m);
	if (m->pinned)
		kvcachefs_cuda_unregister(m->device, m->data);
	if (m->data)
		munmap(m->data, m->len);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

/* Does the kernel know that the open file is that object? Does not call the mount. */
static bool known_as(int fd, uint64_t ino, size_t len)
{
	struct statx st;

	return !statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO | STATX_SIZE, &st) &&
	       st.stx_ino == ino && st.stx_size == len;
}

/* Opens the path and checks that it still is the same object. */
static int open_checked(const char *path, uint64_t ino, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd >= 0 && known_as(fd, ino, len))
		return fd;
	if (fd < 0 || fstat(fd, &st)) {
		int err = -errno;

		if (fd >= 0)
			close(fd);
		return kvcachefs_fail(err, "%s: %s", path, strerror(-err));
	}
	if (st.st_ino != ino || (size_t)st.st_size != len) {
		close(fd);
		return kvcachefs_fail(-ESTALE, "%s was replaced after it was leased", path);
	}
	return fd;
}

int kvcachefs_layout_read(int fd, const char *path, char layout[KVCACHEFS_LAYOUT_MAX])
{
	ssize_t n = fgetxattr(fd, KVCACHEFS_LAYOUT_XATTR, layout, KVCACHEFS_LAYOUT_MAX - 1);

	if (n < 0 && errno == ERANGE) { /* longer than any known layout */
		strcpy(layout, "a layout that this library does not know");
		return 0;
	}
	if (n < 0 && errno != ENODATA && errno != EOPNOTSUPP)
		return kvcachefs_fail(-errno, "%s: cannot read its layout: %s", path,
				      strerror(errno));
	layout[n > 0 ? n : 0] = 0;
	return 0;
}

int kvcachefs_open_leased(const char *path, uint64_t ino, size_t len, char *layout)
{
	int fd = open_checked(path, ino, len),
	    err = fd >= 0 && layout ? kvcachefs_layout_read(fd, path, layout) : 0;

	if (err)
		close(fd);
	return err ?: fd;
}

int kvcachefs_map_open(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		       struct kvcachefs_map **out)
{
	struct kvcachefs_map *m = map_new(len);
	int fd = m ? open_checked(path, ino, len) : -ENOMEM, err = fd < 0 ? fd : 0;

	if (!err && layout) {
		err = kvcachefs_layout_read(fd, path, m->layout);
		m->layout_known = true;
	}
	if (!err) {
		m->dev = dev;
		m->ino = ino;
		m->data = len ? mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0) : NULL;
		if (m->data == MAP_FAILED)
			err = kvcachefs_fail(-errno, "cannot map %s: %s", path, strerror(errno));
	}
	if (fd >= 0)
		close(fd);
	if (err)
		free(m);
	else
		*out = m;
	return err;
}

struct kvcachefs_map *kvcachefs_map_of(int fd, uint64_t dev, uint64_t ino, size_t len)
{
	struct kvcachefs_map *m = map_new(len);

	if (!m)
		return NULL;
	m->dev = dev;
	m->ino = ino;
	m->data = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	if (m->data == MAP_FAILED) {
		m->data = NULL;
		kvcachefs_map_free(m);
		return NULL;
	}
	return m;
}

/*
 * Makes the read-only mapping that stays after publishing. If that fails, the next load maps the
 * file.
 */
static void map_beside(struct kvcachefs_map *m, int fd)
{
	char path[40];
	struct stat st;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (!fstat(fd, &st)) {
		m->data = mmap(NULL, m->len, PROT_READ, MAP_SHARED, fd, 0);
		m->data = m->data == MAP_FAILED ? NULL : m->data;
		m->dev = st.st_dev;
		m->ino = st.st_ino;
	}
	close(fd);
}

int kvcachefs_map_new(int fd, size_t len, int device, bool ahead, struct kvcachefs_map **out)
{
	struct kvcachefs_map *m = map_new(len);
	void *p;

	if (!m)
		return -ENOMEM;
	m->rw_device = device;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	m->rw = p == MAP_FAILED ? NULL : p;
	/*
	 * a child's copy of a writable mapping would keep the file from the tiers while the child
	 * lives
	 */
	if (m->rw)
		madvise(m->rw, len, MADV_DONTFORK);
	/* kernels before 5.14 do not support it; then the pages are faulted by the writes */
	if (!m->rw || (ahead && madvise(m->rw, len, MADV_POPULATE_WRITE) && errno != EINVAL)) {
		int err = kvcachefs_fail(-errno, "cannot map a new file: %s", strerror(errno));

		kvcachefs_map_free(m);
		return err;
	}
	m->rw_pinned = device >= 0 && ahead && !kvcachefs_unmap_behind() &&
		       !kvcachefs_cuda_register(device, m->rw, len, false);
	if (m->rw_pinned)
		map_beside(m, fd);
	*out = m;
	return 0;
}

int kvcachefs_map_layout(struct kvcachefs_map *m, const char *path,
			 char layout[KVCACHEFS_LAYOUT_MAX])
{
	int fd, err = 0;

	pthread_mutex_lock(&m->lock);
	if (!m->layout_known) { /* it was mapped without reading the layout */
		fd = open_checked(path, m->ino, m->len);
		err = fd < 0 ? fd : kvcachefs_layout_read(fd, path, m->layout);
		m->layout_known = !err;
		if (fd >= 0)
			close(fd);
	}
	if (!err)
		memcpy(layout, m->layout, KVCACHEFS_LAYOUT_MAX);
	pthread_mutex_unlock(&m->lock);
	return err;
}

void *kvcachefs_map_data(const struct kvcachefs_map *m, size_t *len)
{
	*len = m->len;
	return m->data;
}

bool kvcachefs_map_pinned(struct kvcachefs_map *m)
{
	bool pinned = false;

	if (!pthread_mutex_trylock(&m->lock)) { /* the lock is held during registration */
		pinned = m->pinned;
		pthread_mutex_unlock(&m->lock);
	}
	return pinned;
}

bool kvcachefs_map_worth(struct kvcachefs_map *m)
{
	bool worth = false;

	if (!pthread_mutex_trylock(&m->lock)) {
		worth = !m->pinned && !m->wait && !kvcachefs_unmap_behind();
		m->wait -= m->wait && !m->pinned;
		pthread_mutex_unlock(&m->lock);
	}
	return worth;
}

/*
 * A refusal may be temporary (memory, limits): another attempt follows after 1, 3, 7, ... 63 more
 * uses.
 */
bool kvcachefs_map_pin(struct kvcachefs_map *m, int device)
{
	bool pinned, tries;

	pthread_mutex_lock(&m->lock);
	tries = !m->pinned && !kvcachefs_unmap_behind();
	if (tries && m->wait) {
		m->wait--;
	} else if (tries && !kvcachefs_cuda_register(device, m->data, m->len, true)) {
		m->pinned = true;
		m->device = device;
	} else if (tries) {
		m->refusals += m->refusals < 6;
		m->wait = (1u << m->refusals) - 1;
	}
	pinned = m->pinned;
	pthread_mutex_unlock(&m->lock);
	return pinned;
}
