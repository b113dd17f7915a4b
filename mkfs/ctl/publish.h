/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is stored and goes, for routers that send a prompt to where its KV cache is: vLLM's KV cache
 * events (vllm/distributed/kv_events.py), msgpack over ZeroMQ. A message has three frames: the
 * topic, a number that counts on by one (8 bytes, the highest first), and [TIME, [EVENT...]].
 *
 * A file is a block where its name is one that an engine gives (kvcachefs.h, Names on disk), at the
 * top of the mount or in a folder, and its key is a hash in hex.
 */
#ifndef KVM_PUBLISH_H
#define KVM_PUBLISH_H

#include "library.h"

#include <stdbool.h>

struct kvm_publish;

struct kvc_library kvm_library_zmq(void);
struct kvc_library kvm_library_msgpack(void);

struct kvm_publish_options {
	const char *address; /* of ZeroMQ; with "*", "[::]" or ipc:// it is bound, else connected */
	const char *topic;
	bool arrays; /* events as lists, as vLLM had them up to 0.23, and not as maps */
	bool bytes;  /* hashes whole, and not their last 8 bytes as a number */
};

/* 0, or 1 or 2 (wrong words) after a message. */
int kvm_publish_open(struct kvm_publish **out, const struct kvm_publish_options *o);
/*
 * A line of .kvcachefs/events. True where it says that others were lost, so that all has to be
 * told again.
 */
bool kvm_publish_line(struct kvm_publish *p, const char *line);
/* A file that is there, and the tiers that it is in, such as "cpu,disk". */
void kvm_publish_file(struct kvm_publish *p, const char *path, const char *tiers);
/* What was said since goes out. 0, or 1 after a message. */
int kvm_publish_send(struct kvm_publish *p);
/* Has somebody subscribed since the last call? He knows nothing of what was there before. */
bool kvm_publish_joined(struct kvm_publish *p);
void kvm_publish_close(struct kvm_publish *p);

#endif
