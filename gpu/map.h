/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One mapping of an object. The mapping of an existing file is read-only. A new file has a writable
 * mapping; if that is registered it also has a read-only one, which stays when the file is
 * published. maps.c finds and caches mappings; a mapping outside its tables has one owner.
 */
#ifndef KVCACHEFS_MAP_H
#define KVCACHEFS_MAP_H

#include "layout.h"

#include <pthread.h>

struct kvcachefs_map {
	struct kvcachefs_map *next;          /* in its bucket, or in a list of prepared mappings */
	struct kvcachefs_map *newer, *older; /* in the list of unused mappings */
	struct kvcachefs_map *going;         /* in a list of mappings to remove */
	uint64_t dev, ino, used_ms;
	size_t len;
	uint64_t loaded; /* bytes that loads on a device copied without a registration */
	void *data;      /* read-only; NULL: not mapped, or the file is empty */
	unsigned users;
	/* a new file's writable mapping, and the device that it is registered on */
	void *rw;
	/* queued: unmap.c has one of its references, and registers it for rw_device */
	bool rw_pinned, queued;
	int rw_device;
	int fd; /* while it is prepared (ready.c); otherwise -1 */
	uint64_t made_ms;
	/* guards the members below while there are users; held during registration */
	pthread_mutex_t lock;
	bool pinned; /* data is registered, on this device */
	int device;
	unsigned refusals; /* consecutive refusals to register, up to 6 */
	unsigned wait;     /* uses to skip before the next attempt */
	bool layout_known;
	char layout[KVCACHEFS_LAYOUT_MAX]; /* "": the file records none */
};

#pragma GCC visibility push(hidden)
/*
 * Maps the object with that path, inode number and length read-only. `layout`: also reads its
 * layout. Returns 0 and sets *out; -ESTALE if the path has another object now; or an error of open
 * or mmap. Blocks.
 */
int kvcachefs_map_open(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		       struct kvcachefs_map **out);
/*
 * Maps the new file fd (which stays the caller's) for writing; it has len > 0 allocated bytes. If
 * the file is prepared `ahead` of its use, all pages are faulted in, and it is registered for
 * `device` if that is >= 0 and both the mount and the driver allow it. Otherwise it is not
 * registered, since that takes longer than staging the bytes. Children of a fork do not inherit the
 * mapping. Returns 0 or a negative errno. Blocks.
 */
int kvcachefs_map_new(int fd, size_t len, int device, bool ahead, struct kvcachefs_map **out);
/*
 * Removes the writable mapping of a new file, so that the mount sees no writer. If it is
 * registered, its addresses stay reserved and its pages pinned until kvcachefs_map_settle. Waits
 * for no device, but may wait for other threads of this process that map memory or fault pages.
 */
void kvcachefs_map_shut(struct kvcachefs_map *m);
/* Removes the writable part of a new file's mapping and unregisters it. Waits for the device. */
void kvcachefs_map_settle(struct kvcachefs_map *m);
/* Unregisters, unmaps and frees everything except the descriptor. */
void kvcachefs_map_free(struct kvcachefs_map *m);

/*
 * Opens the object with that path, inode number and length for reading. layout: NULL, or space for
 * KVCACHEFS_LAYOUT_MAX bytes, for the layout that it records. Returns a descriptor, -ESTALE, or
 * another negative errno.
 */
int kvcachefs_open_leased(const char *path, uint64_t ino, size_t len, char *layout);
/* Copies the layout that an open file records, or "". Returns 0 or a negative errno. */
int kvcachefs_layout_read(int fd, const char *path, char layout[KVCACHEFS_LAYOUT_MAX]);
/* Maps the open file, which has len > 0 bytes, read-only. Returns NULL if that fails. */
struct kvcachefs_map *kvcachefs_map_of(int fd, uint64_t dev, uint64_t ino, size_t len);

void *kvcachefs_map_data(const struct kvcachefs_map *m, size_t *len);
/*
 * Copies the layout that the file records, or "" if it has none. The file is read once only.
 * Returns 0 or a negative errno.
 */
int kvcachefs_map_layout(struct kvcachefs_map *m, const char *path,
			 char layout[KVCACHEFS_LAYOUT_MAX]);
/* Is the mapping registered? Does not wait for a thread that registers it. */
bool kvcachefs_map_pinned(struct kvcachefs_map *m);
/* A load has used the mapping without a registration: should it be registered now? */
bool kvcachefs_map_worth(struct kvcachefs_map *m);
/* Registers the mapping for devices, once. Returns false if that is not possible. */
bool kvcachefs_map_pin(struct kvcachefs_map *m, int device);
#pragma GCC visibility pop

#endif
