/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One mapping of an object. That of a file which is there is read-only; that of a new one is
 * writable, and has a read-only one beside it where it is registered, which stays when the file was
 * published. maps.c finds mappings and keeps them; whoever is named by none of its tables has one
 * alone.
 */
#ifndef KVCACHEFS_MAP_H
#define KVCACHEFS_MAP_H

#include "layout.h"

#include <pthread.h>

struct kvcachefs_map {
	struct kvcachefs_map *next;          /* in its bucket, or of what is ready */
	struct kvcachefs_map *newer, *older; /* among the unused */
	struct kvcachefs_map *going;         /* of what is to go */
	uint64_t dev, ino, used_ms;
	size_t len;
	void *data; /* read-only; NULL: there is none, or no bytes */
	unsigned users;
	/* of a new file: its writable mapping, and where that is registered */
	void *rw;
	bool rw_pinned, listed; /* listed: published and in a bucket; aside.c is one of its users */
	int rw_device;
	int fd; /* while it is ready (ready.c); else -1 */
	uint64_t made_ms;
	/* guards what follows while there are users; held while it is registered */
	pthread_mutex_t lock;
	bool pinned; /* data is registered, on this device */
	int device;
	unsigned refusals; /* of registering, in a row, up to 6 */
	unsigned wait;     /* so many uses more without trying again */
	bool layout_known;
	char layout[KVCACHEFS_LAYOUT_MAX]; /* "": the file says none */
};

#pragma GCC visibility push(hidden)
/*
 * The object of that path, number and length, read-only; its layout too where `layout`. -ESTALE:
 * another has the path now; errors of opening and mapping. Blocks.
 */
int kvcachefs_map_open(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		       struct kvcachefs_map **out);
/*
 * The new file of that descriptor (which stays the caller's), writable, of len > 0 bytes that have
 * their room. Made `ahead` of its use, all its pages are there, and it is registered for the device
 * where that is >= 0 and the mount and driver take it; else it is not: that takes longer than to
 * stage the bytes. A child of a fork has none of it. -errno of mapping. Blocks.
 */
int kvcachefs_map_new(int fd, size_t len, int device, bool ahead, struct kvcachefs_map **out);
/*
 * The writable mapping of a new one goes, so that the mount sees a file that nobody writes; where
 * it is registered its addresses stay taken, and its pages pinned, until it is settled. Waits for
 * no device, but for whoever maps or fills memory of this process.
 */
void kvcachefs_map_shut(struct kvcachefs_map *m);
/* The writable part of a new one goes, unregistered. Waits for the device. */
void kvcachefs_map_settle(struct kvcachefs_map *m);
/* Unregisters, unmaps, frees all of it; not its fd. */
void kvcachefs_map_free(struct kvcachefs_map *m);

void *kvcachefs_map_data(const struct kvcachefs_map *m, size_t *len);
/* The layout that the file says it has, "" where it says none; read once. */
int kvcachefs_map_layout(struct kvcachefs_map *m, const char *path,
			 char layout[KVCACHEFS_LAYOUT_MAX]);
/* Would that register it now? It may be that another thread does. */
bool kvcachefs_map_registers(struct kvcachefs_map *m);
/* Registers it for devices, once. false: it cannot be. */
bool kvcachefs_map_pin(struct kvcachefs_map *m, int device);
#pragma GCC visibility pop

#endif
