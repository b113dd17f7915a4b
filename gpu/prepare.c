/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares one file: it has no name (O_TMPFILE), and is in the folder of its model, which is
 * charged for it. If the process dies, the kernel closes the file and the mount destroys it.
 *
 * The mount does not know the usual file size of a new model, and serves its first file by plain
 * requests, whose pages cannot be registered. If a device needs such a file, a small file is
 * created in the folder and removed again; then the next file can be registered.
 */
#include "maps.h"
#include "ready.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool kvcachefs_prepare_look(const char *mount, uint64_t *waits, uint64_t *spare)
{
	char text[32768], *save = NULL;
	uint64_t bytes = 0, used = 0;

	if (!kvcachefs_mount_says(mount, "stats", text, sizeof text))
		return false;
	*waits = 0;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *at = strchr(line, ' ');
		uint64_t value = at ? strtoull(at, NULL, 10) : 0;

		if (at)
			*at = 0;
		if (!strcmp(line, "room_waits") || !strcmp(line, "room_refusals") ||
		    !strcmp(line, "quota_waits") || !strcmp(line, "quota_refusals"))
			*waits += value;
		else if (!strcmp(line, "pool_bytes"))
			bytes = value;
		else if (!strcmp(line, "pool_used_bytes"))
			used = value;
	}
	*spare = bytes > used ? bytes - used : 0;
	return true;
}

/* Creates and removes a small file, so that the folder knows a file size. */
static void teach_size(const char *folder)
{
	char path[4200], other[4220];
	int fd;

	snprintf(path, sizeof path, "%s/.kvcachefs.tmp.%d", folder, (int)getpid());
	snprintf(other, sizeof other, "%s.1", path);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	if (fallocate(fd, 0, 0, 4096))
		other[0] = 0;
	close(fd);
	/* rename() returns after the file is published; before, its size does not count */
	if (!other[0] || rename(path, other))
		unlink(path);
	else
		unlink(other);
}

static int make_file(const char *folder, const struct kvcachefs_want *w, struct kvcachefs_map **out)
{
	struct stat st;
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666), err = 0;

	if (fd < 0)
		return errno == ENOENT
			       ? -EAGAIN
			       : kvcachefs_fail(-errno,
						"%s: cannot create an unnamed temporary file: %s",
						folder, strerror(errno));
	if (fstat(fd, &st) || st.st_dev != w->dev)
		err = kvcachefs_fail(-ESTALE, "%s is in another mount", folder);
	else if (fallocate(fd, 0, 0, (off_t)w->len))
		err = kvcachefs_fail(-errno, "%s: cannot preallocate %zu bytes: %s", folder, w->len,
				     strerror(errno));
	err = err ?: kvcachefs_map_new(fd, w->len, w->device, true, out);
	if (err) {
		close(fd);
		return err;
	}
	(*out)->fd = fd;
	(*out)->made_ms = kvcachefs_now_ms();
	return 0;
}

int kvcachefs_prepare(const char *folder, const struct kvcachefs_want *w, bool makes, bool *teaches,
		      struct kvcachefs_map **out)
{
	uint64_t waits, spare;
	int err;

	kvcachefs_maps_bound(w->mount, w->dev);
	if (kvcachefs_prepare_look(w->mount, &waits, &spare) && spare < w->len)
		return kvcachefs_fail(-ENOSPC, "%s: the pool has no free space for prepared files",
				      w->mount);
	err = make_file(folder, w, out);
	if (err == -EAGAIN && makes) {
		if (mkdir(folder, 0777) && errno != EEXIST)
			return kvcachefs_fail(-errno, "%s: %s", folder, strerror(errno));
		err = make_file(folder, w, out);
	}
	if (!err && *teaches && w->device >= 0 && !(*out)->rw_pinned) {
		*teaches = false; /* once only: some mounts never allow registration */
		close((*out)->fd);
		kvcachefs_map_free(*out);
		teach_size(folder);
		err = make_file(folder, w, out);
	}
	return err;
}
