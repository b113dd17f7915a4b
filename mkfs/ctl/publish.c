/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishes events in vLLM's format. The socket is an XPUB, which reports new subscriptions. A
 * router that reads too slowly loses messages and detects that by the sequence numbers. See
 * publish.h.
 *
 * Members whose values are unknown here are empty, as in the events of vLLM's own offloading: the
 * block's tokens, and its parent and size unless somebody reports them. The members are in vLLM's
 * order, so that an event is byte for byte the event that vLLM's publisher makes.
 */
#include "publish.h"

#include "ctl.h"
#include "kvcachefs_names.h"

#include <dirent.h>
#include <endian.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <zmq.h>

#define BATCH 256      /* maximum events per message */
#define QUEUED 100000  /* queued messages per slow router; vLLM's number */
#define KEY_BYTES 64u  /* maximum length of a hash; longer keys are not published */
#define LINGER_MS 1000 /* time to send the last events */

struct kvm_publish {
	struct kvm_publish_options o;
	void *context, *socket;
	msgpack_sbuffer events; /* encoded events, concatenated */
	msgpack_packer pack;
	unsigned n; /* number of events */
	uint64_t sent;
	int err; /* error of sending */
};

struct block {
	uint8_t hash[KEY_BYTES];
	size_t len;
	bool grouped;
	uint32_t group;
};

/* A tier in vLLM's words. Two remote tiers differ in their owner only. */
struct place {
	const char *medium, *locality; /* locality: NULL for memory */
	char owner[32];
};

/* ---- the block of a path ---- */

static bool hash_of(const char *hex, struct block *b)
{
	size_t n = strlen(hex);

	if (!n || n % 2 || n / 2 > KEY_BYTES || strspn(hex, "0123456789abcdef") != n)
		return false;
	b->len = n / 2;
	for (size_t i = 0; i < b->len; i++) {
		char two[3] = { hex[2 * i], hex[2 * i + 1], 0 };

		b->hash[i] = (uint8_t)strtoul(two, NULL, 16);
	}
	return true;
}

/* Finds the block that a path names. The engine may have been given the mount or a folder in it. */
static bool block_of(const char *path, struct block *b)
{
	struct kvcachefs_name name;

	for (; path; path = strchr(path, '/') ? strchr(path, '/') + 1 : NULL)
		for (int as = 0; as < KVCACHEFS_NAMINGS; as++)
			if (!kvcachefs_name_parse((enum kvcachefs_naming)as, path, &name)) {
				b->grouped = as == KVCACHEFS_NAME_VLLM_FS;
				b->group = name.group;
				return hash_of(name.key, b);
			}
	return false;
}

/* ---- events ---- */

static void pack_text(struct kvm_publish *p, const char *text)
{
	msgpack_pack_str_with_body(&p->pack, text, strlen(text));
}

/* Starts the next member; in a map, packs its name. */
static void pack_name(struct kvm_publish *p, const char *name)
{
	if (!p->o.arrays)
		pack_text(p, name);
}

/* Packs the hash of a block, or its last 8 bytes as a number. */
static void pack_hash(struct kvm_publish *p, const struct block *b)
{
	uint64_t last = 0;

	if (p->o.bytes) {
		msgpack_pack_bin_with_body(&p->pack, b->hash, b->len);
		return;
	}
	for (size_t i = b->len - kvc_min(b->len, 8); i < b->len; i++)
		last = last << 8 | b->hash[i];
	msgpack_pack_uint64(&p->pack, last);
}

static void put_hashes(struct kvm_publish *p, const struct block *b)
{
	pack_name(p, "block_hashes");
	msgpack_pack_array(&p->pack, 1);
	pack_hash(p, b);
}

/* Finds the only block in a folder. Returns false if there is none, or more than one. */
static bool block_in(const struct kvm_publish *p, const char *folder, struct block *b)
{
	char path[KVM_PATH + KVCACHEFS_PATH_MAX];
	struct block other;
	struct dirent *e;
	size_t n = 0;
	DIR *d;

	if ((size_t)snprintf(path, sizeof path, "%s/%s", p->o.mnt, folder) >= sizeof path ||
	    !(d = opendir(path)))
		return false;
	while (n < 2 && (e = readdir(d)))
		if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < sizeof path)
			n += block_of(path, n ? &other : b);
	closedir(d);
	return n == 1;
}

/*
 * Finds the parent of a block's file. A chunk may be a folder: then its only file is the block.
 * Returns false if the parent is not known.
 */
static bool parent_of(const struct kvm_publish *p, const char *path, struct block *parent)
{
	char whole[KVM_PATH + KVCACHEFS_PATH_MAX], value[KVCACHEFS_PATH_MAX];
	ssize_t n;

	if ((size_t)snprintf(whole, sizeof whole, "%s/%s", p->o.mnt, path) >= sizeof whole)
		return false;
	n = lgetxattr(whole, "user.kvcachefs.parent_by", value, sizeof value - 1);
	if (n != 6 || memcmp(value, "client", 6) != 0)
		return false;
	n = lgetxattr(whole, "user.kvcachefs.parent", value, sizeof value - 1);
	if (n <= 0)
		return false;
	value[n] = 0;
	return block_of(value + 1, parent) || block_in(p, value + 1, parent);
}

static void put_none(struct kvm_publish *p, const char *name)
{
	pack_name(p, name);
	msgpack_pack_nil(&p->pack);
}

static void put_event(struct kvm_publish *p, const char *type, size_t members)
{
	if (p->o.arrays)
		msgpack_pack_array(&p->pack, members);
	else
		msgpack_pack_map(&p->pack, members);
	pack_name(p, "type");
	pack_text(p, type);
}

static void put_text(struct kvm_publish *p, const char *name, const char *text)
{
	pack_name(p, name);
	pack_text(p, text);
}

static void put_group(struct kvm_publish *p, const struct block *b)
{
	if (b->grouped) {
		pack_name(p, "group_idx");
		msgpack_pack_uint32(&p->pack, b->group);
	} else if (p->o.arrays) {
		msgpack_pack_nil(&p->pack);
	}
}

/* Packs members that are not known, which only an array needs. */
static void put_gap(struct kvm_publish *p, unsigned members)
{
	for (unsigned i = 0; p->o.arrays && i < members; i++)
		msgpack_pack_nil(&p->pack);
}

static void put_place(struct kvm_publish *p, const struct place *place)
{
	if (!place->locality)
		return;
	put_text(p, "locality", place->locality);
	put_text(p, "ownership", place->owner);
}

/* Returns the number of an event's members. An array has all up to the last one that is known. */
static size_t members_of(const struct kvm_publish *p, const struct block *b,
			 const struct place *place, size_t always, size_t before_group,
			 size_t before_place)
{
	if (p->o.arrays)
		return always + (place->locality ? before_group + 1 + before_place + 2
				 : b->grouped    ? before_group + 1
						 : 0);
	return always + b->grouped + (place->locality ? 2 : 0);
}

/* vLLM has extra_keys before the group, and two members about the attention after it. */
static void stored(struct kvm_publish *p, const struct block *b, const struct block *parent,
		   const struct place *place)
{
	put_event(p, "BlockStored", members_of(p, b, place, 8, 1, 2));
	put_hashes(p, b);
	pack_name(p, "parent_block_hash");
	if (parent)
		pack_hash(p, parent);
	else
		msgpack_pack_nil(&p->pack);
	pack_name(p, "token_ids");
	msgpack_pack_array(&p->pack, 0);
	pack_name(p, "block_size");
	msgpack_pack_uint32(&p->pack, p->o.block_size);
	put_none(p, "lora_id");
	put_text(p, "medium", place->medium);
	put_none(p, "lora_name");
	if (b->grouped || place->locality) {
		put_gap(p, 1);
		put_group(p, b);
	}
	if (place->locality)
		put_gap(p, 2);
	put_place(p, place);
}

static void removed(struct kvm_publish *p, const struct block *b, const struct block *parent,
		    const struct place *place)
{
	(void)parent;
	put_event(p, "BlockRemoved", members_of(p, b, place, 3, 0, 0));
	put_hashes(p, b);
	put_text(p, "medium", place->medium);
	if (b->grouped || place->locality)
		put_group(p, b);
	put_place(p, place);
}

/* ---- the place of a tier ---- */

static void place_of(const char *tier, size_t len, struct place *place)
{
	*place = (struct place){ .medium = "CPU" };
	if (len == 3 && !memcmp(tier, "cpu", 3))
		return;
	place->medium = "STORAGE";
	place->locality = len == 4 && !memcmp(tier, "disk", 4) ? "LOCAL" : "REMOTE";
	snprintf(place->owner, sizeof place->owner, "kvcachefs/%.*s", (int)kvc_min(len, 20), tier);
}

/* Adds the event for each tier of a list such as "cpu,disk". */
static void pack_each_tier(struct kvm_publish *p, const char *path, const char *tiers,
			   void (*put)(struct kvm_publish *, const struct block *,
				       const struct block *, const struct place *))
{
	struct block b, parent;
	struct place place;
	bool has_parent;
	size_t len;

	if (!*tiers || !block_of(path, &b))
		return;
	has_parent = put == stored && parent_of(p, path, &parent);
	for (; *tiers; tiers += len + (tiers[len] == ',')) {
		len = strcspn(tiers, ",");
		place_of(tiers, len, &place);
		put(p, &b, has_parent ? &parent : NULL, &place);
		if (++p->n >= BATCH)
			kvm_publish_send(p);
	}
}

/* ---- lines ---- */

/*
 * Copies a member of a JSON line, with %XX decoded, to `to`. Copies "" if the member is missing or
 * too long.
 */
static const char *member(const char *line, const char *name, char *to, size_t capacity)
{
	char key[32];
	const char *at;
	size_t n = 0;
	int more;
	unsigned byte;

	snprintf(key, sizeof key, "\"%s\": \"", name);
	at = strstr(line, key);
	for (at = at ? at + strlen(key) : ""; *at && *at != '"' && n + 1 < capacity; at += more) {
		more = *at == '%' && sscanf(at, "%%%2x", &byte) == 1 ? 3 : 1;
		to[n++] = more == 3 ? (char)byte : *at;
	}
	to[n + 1 < capacity ? n : 0] = 0;
	return to;
}

bool kvm_publish_line(struct kvm_publish *p, const char *line)
{
	char event[16], path[KVCACHEFS_PATH_MAX], before[KVCACHEFS_PATH_MAX], tiers[128];

	member(line, "event", event, sizeof event);
	member(line, "path", path, sizeof path);
	member(line, "before", before, sizeof before);
	if (!*member(line, "tiers", tiers, sizeof tiers))
		member(line, "tier", tiers, sizeof tiers);
	if (!strcmp(event, "lost"))
		return true;
	/*
	 * A renamed folder may enter or leave a folder that an engine uses: publish all files
	 * again.
	 */
	if (!strcmp(event, "renamed") && strstr(line, "\"folder\": true"))
		return true;
	if (!strcmp(event, "stored")) {
		pack_each_tier(p, path, tiers, stored);
	} else if (!strcmp(event, "loaded")) {
		pack_each_tier(p, path, "cpu", stored);
	} else if (!strcmp(event, "evicted") || !strcmp(event, "dropped")) {
		pack_each_tier(p, path, tiers, removed);
	} else if (!strcmp(event, "renamed")) {
		pack_each_tier(p, before, tiers, removed);
		pack_each_tier(p, path, tiers, stored);
	}
	return false;
}

void kvm_publish_file(struct kvm_publish *p, const char *path, const char *tiers)
{
	pack_each_tier(p, path, tiers, stored);
}

/* ---- the socket ---- */

static void send_frame(struct kvm_publish *p, const void *bytes, size_t len, int more)
{
	if (!p->err && zmq_send(p->socket, bytes, len, more) < 0)
		p->err = zmq_errno();
}

int kvm_publish_send(struct kvm_publish *p)
{
	uint64_t number = htobe64(p->sent);
	msgpack_sbuffer batch;
	msgpack_packer pack;

	if (p->n && !p->err) {
		msgpack_sbuffer_init(&batch);
		msgpack_packer_init(&pack, &batch, msgpack_sbuffer_write);
		msgpack_pack_array(&pack, 3);
		msgpack_pack_double(&pack, (double)kvc_now_ns() / 1e9);
		msgpack_pack_array(&pack, p->n);
		if (msgpack_sbuffer_write(&batch, p->events.data, p->events.size))
			p->err = ENOMEM;
		msgpack_pack_uint32(&pack, 0); /* the data parallel rank; Dynamo needs it */
		send_frame(p, p->o.topic, strlen(p->o.topic), ZMQ_SNDMORE);
		send_frame(p, &number, sizeof number, ZMQ_SNDMORE);
		send_frame(p, batch.data, batch.size, 0);
		msgpack_sbuffer_destroy(&batch);
		p->sent++;
	}
	p->n = 0;
	msgpack_sbuffer_clear(&p->events);
	return p->err ? kvm_fail("--zmq: %s", zmq_strerror(p->err)) : 0;
}

bool kvm_publish_joined(struct kvm_publish *p)
{
	bool any = false;
	char message[256];

	/* The first byte of a message is 1 for a new subscription and 0 for an ended one. */
	while (zmq_recv(p->socket, message, sizeof message, ZMQ_DONTWAIT) > 0)
		any |= message[0] == 1;
	return any;
}

static int set_option(struct kvm_publish *p, int option, int value)
{
	return zmq_setsockopt(p->socket, option, &value, sizeof value);
}

int kvm_publish_open(struct kvm_publish **out, const struct kvm_publish_options *o)
{
	bool bind = strstr(o->address, "*") || strstr(o->address, "::") ||
		    !strncmp(o->address, "ipc://", 6);
	struct kvm_publish *p = calloc(1, sizeof *p);
	int bad;

	if (!p)
		return kvm_fail("%s", kvc_why(ENOMEM));
	p->o = *o;
	msgpack_sbuffer_init(&p->events);
	msgpack_packer_init(&p->pack, &p->events, msgpack_sbuffer_write);
	p->context = zmq_ctx_new();
	p->socket = p->context ? zmq_socket(p->context, ZMQ_XPUB) : NULL;
	bad = !p->socket || set_option(p, ZMQ_XPUB_VERBOSE, 1) ||
	      set_option(p, ZMQ_SNDHWM, QUEUED) || set_option(p, ZMQ_IPV6, 1) ||
	      set_option(p, ZMQ_LINGER, LINGER_MS) ||
	      (bind ? zmq_bind : zmq_connect)(p->socket, o->address);
	if (bad) {
		bad = kvm_fail("--zmq %s: %s; give an address such as tcp://*:5557",
			       kvm_shown(o->address), zmq_strerror(zmq_errno()));
		kvm_publish_close(p);
		return bad;
	}
	*out = p;
	return 0;
}

void kvm_publish_close(struct kvm_publish *p)
{
	if (p->socket)
		zmq_close(p->socket);
	if (p->context)
		zmq_ctx_term(p->context);
	msgpack_sbuffer_destroy(&p->events);
	free(p);
}

struct kvc_library kvm_library_zmq(void)
{
	static char text[48];
	int major, minor, patch;

	zmq_version(&major, &minor, &patch);
	snprintf(text, sizeof text, "%d.%d.%d", major, minor, patch);
	return (struct kvc_library){ "ZeroMQ", text, (const void *)zmq_version };
}

/* Its functions are inline, so there is no address to report. */
struct kvc_library kvm_library_msgpack(void)
{
	return (struct kvc_library){ "msgpack-c", MSGPACK_VERSION, NULL };
}
