/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain buffers: the bytes of one file, mapped, and registered for a device if one is given. A
 * buffer for reading is a lease with its mapping (cached by maps.c). A buffer for writing is a new
 * file (file.h). One thread at a time may use a buffer.
 */
#include "file.h"
#include "layout.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct kvcachefs_buffer {
	struct kvcachefs_lease *lease; /* for reading; NULL: the buffer is for writing */
	struct kvcachefs_file f;
	void *data;
	size_t len;
	int device;
	bool pinned, over; /* over: it was published, or publishing failed */
	char *renamed;     /* the names of a file that was published under another path */
	char names[];
};

static int buffer_begin(struct kvcachefs_buffer **out, int device, size_t capacity)
{
	int err = device >= 0 ? kvcachefs_cuda_check(device) : 0;

	if (err)
		return err;
	*out = calloc(1, sizeof **out + capacity);
	if (!*out)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	(*out)->device = device;
	(*out)->f.fd = -1;
	return 0;
}

int kvcachefs_buffer_open(struct kvcachefs_buffer **out, const char *mount, const char *path,
			  int device)
{
	struct kvcachefs_buffer *b;
	const void *data;
	int err = buffer_begin(&b, device, 0);

	if (err)
		return err;
	err = kvcachefs_lease_new(&b->lease, mount, &path, 1);
	err = err ?: kvcachefs_lease_files(b->lease, &path, 1);
	err = err ?: kvcachefs_lease_map(b->lease, 0, &data, &b->len);
	if (err) {
		kvcachefs_lease_free(b->lease);
		free(b);
		return err;
	}
	b->data = (void *)(uintptr_t)data;
	b->pinned = device >= 0 && b->len && kvcachefs_lease_pin(b->lease, 0, device);
	*out = b;
	return 0;
}

int kvcachefs_buffer_new(struct kvcachefs_buffer **out, const char *mount, const char *path,
			 size_t len, int device)
{
	struct kvcachefs_buffer *b;
	uint64_t dev = 0;
	int err = buffer_begin(&b, device, kvcachefs_file_names_size(mount, path));

	if (err)
		return err;
	kvcachefs_file_init(&b->f, b->names, mount, path, len);
	err = kvcachefs_file_mount(mount, &dev) ?: kvcachefs_file_make(&b->f, dev, device);
	if (err) {
		kvcachefs_buffer_free(b);
		return err;
	}
	if (device >= 0)
		kvcachefs_file_pin(&b->f, device);
	b->data = b->f.map;
	b->len = len;
	b->pinned = b->f.pinned;
	if (len) /* child processes may fill the buffer too */
		madvise(b->data, len, MADV_DOFORK);
	*out = b;
	return 0;
}

void *kvcachefs_buffer_data(const struct kvcachefs_buffer *b, size_t *len)
{
	*len = b->len;
	return b->data;
}

bool kvcachefs_buffer_pinned(const struct kvcachefs_buffer *b)
{
	return b->pinned;
}

/* The mapping of a new file no longer belongs to the caller. */
static void buffer_detach(struct kvcachefs_buffer *b)
{
	b->pinned = false;
	b->data = NULL;
	b->len = 0;
}

int kvcachefs_buffer_publish(struct kvcachefs_buffer *b)
{
	if (b->lease || b->over)
		return kvcachefs_fail(-EINVAL, b->lease ? "the buffer is read-only"
							: "the buffer is already published");
	b->over = true;
	buffer_detach(b);
	return kvcachefs_file_seal(&b->f, NULL) ?: kvcachefs_file_publish(&b->f, NULL);
}

int kvcachefs_buffer_publish_as(struct kvcachefs_buffer *b, const char *path)
{
	char *names;

	if (b->lease || b->over)
		return kvcachefs_buffer_publish(b); /* its error */
	names = malloc(kvcachefs_file_renamed_size(&b->f, path));
	if (!names)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	b->over = true;
	buffer_detach(b);
	b->renamed = names;
	return kvcachefs_file_seal_as(&b->f, names, path) ?: kvcachefs_file_publish(&b->f, NULL);
}

void kvcachefs_buffer_free(struct kvcachefs_buffer *b)
{
	if (!b)
		return;
	if (b->lease) {
		kvcachefs_lease_free(b->lease);
	} else {
		buffer_detach(b);
		kvcachefs_file_fini(&b->f);
		free(b->renamed);
	}
	free(b);
}
