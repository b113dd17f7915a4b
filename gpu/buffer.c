/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain buffers: the bytes of one file, mapped, and registered for a device where one is named. One
 * for reading is a lease with its mapping (and what maps.c keeps); one for writing is a new file
 * (file.h), whose mapping is registered for this buffer alone. One thread at a time has a buffer.
 */
#include "file.h"

#include <stdlib.h>

struct kvcachefs_buffer {
	struct kvcachefs_lease *lease; /* for reading; NULL: for writing */
	struct kvcachefs_file f;
	void *data;
	size_t len;
	int device;
	bool pinned, over; /* over: it was published, or that failed */
};

static int begin(struct kvcachefs_buffer **out, int device)
{
	int err = device >= 0 ? kvcachefs_cuda_check(device) : 0;

	if (err)
		return err;
	*out = calloc(1, sizeof **out);
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
	int err = begin(&b, device);

	if (err)
		return err;
	err = kvcachefs_lease_new(&b->lease, mount, &path, 1);
	if (!err && kvcachefs_lease_count(b->lease) != 1)
		err = kvcachefs_fail(-EINVAL, "%s is not one file", path);
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
	int err = begin(&b, device);

	if (err)
		return err;
	err = kvcachefs_file_init(&b->f, mount, path, len) ?: kvcachefs_file_make(&b->f, mount);
	if (err) {
		kvcachefs_buffer_free(b);
		return err;
	}
	b->data = b->f.map;
	b->len = len;
	b->pinned = device >= 0 && len && !kvcachefs_cuda_register(device, b->data, len, false);
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

/* A new file's mapping goes. */
static void let_go(struct kvcachefs_buffer *b)
{
	if (b->pinned)
		kvcachefs_cuda_unregister(b->device, b->data);
	b->pinned = false;
	b->data = NULL;
	b->len = 0;
}

int kvcachefs_buffer_publish(struct kvcachefs_buffer *b)
{
	if (b->lease || b->over)
		return kvcachefs_fail(-EINVAL, b->lease ? "the buffer is for reading"
							: "the buffer was published already");
	b->over = true;
	let_go(b);
	return kvcachefs_file_seal(&b->f, NULL) ?: kvcachefs_file_publish(&b->f);
}

void kvcachefs_buffer_free(struct kvcachefs_buffer *b)
{
	if (!b)
		return;
	if (b->lease) {
		kvcachefs_lease_free(b->lease);
	} else {
		let_go(b);
		kvcachefs_file_fini(&b->f);
	}
	free(b);
}
