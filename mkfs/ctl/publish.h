/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishes stored and removed chunks to routers, which send a prompt to the node that has its KV
 * cache. The format is that of vLLM's KV cache events (vllm/distributed/kv_events.py): msgpack over
 * ZeroMQ. A message has three frames: the topic, a sequence number (8 bytes, big endian), and
 * [TIME, [EVENT...]]. The pool is medium CPU; every tier is medium STORAGE with the locality LOCAL
 * (disk) or REMOTE, and the member "ownership" is kvcachefs/TIER.
 *
 * A file is a block if its name has a form that an engine uses (kvcachefs_names.h), at the
 * top of the mount or in a folder, and its key is a hash in hex.
 *
 * A block's parent is the block of the chunk's parent, if a client reported it
 * (user.kvcachefs.parent) and the parent is a file that is a block, or a folder with one block.
 */
#ifndef KVM_PUBLISH_H
#define KVM_PUBLISH_H

#include "library.h"

#include <stdbool.h>
#include <stdint.h>

struct kvm_publish;

struct kvc_library kvm_library_zmq(void);
struct kvc_library kvm_library_msgpack(void);

struct kvm_publish_options {
	/* ZeroMQ address; "*", "[::]" and ipc:// are bound, others connected */
	const char *address;
	const char *topic;
	bool arrays;         /* events as arrays and not maps, as vLLM up to 0.23 sends them */
	bool bytes;          /* whole hashes, instead of their last 8 bytes as a number */
	uint32_t block_size; /* tokens of a block; 0: not known */
	const char *mnt;     /* the mount, in which parents are looked up */
};

/*
 * Opens the socket; the caller closes *out with kvm_publish_close. Returns 0, or 1 after a message.
 */
int kvm_publish_open(struct kvm_publish **out, const struct kvm_publish_options *o);
/*
 * Adds the event in a line of .kvcachefs/events. Returns true if all files must be published again:
 * events were lost, or a folder was renamed.
 */
bool kvm_publish_line(struct kvm_publish *p, const char *line);
/* Adds a stored file and the tiers that have it, such as "cpu,disk". */
void kvm_publish_file(struct kvm_publish *p, const char *path, const char *tiers);
/* Sends the events that were added. Returns 0, or 1 after a message. */
int kvm_publish_send(struct kvm_publish *p);
/*
 * Returns true if a router has subscribed since the last call. It has not received earlier events.
 */
bool kvm_publish_joined(struct kvm_publish *p);
void kvm_publish_close(struct kvm_publish *p);

#endif
