/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctier.h: the contract between kvcachefs and a program that implements a tier, and a small
 * library for such programs in C. kvcachefs-ext(7) describes both. The header needs no other file
 * of kvcachefs. A program defines KVCTIER_IMPLEMENTATION before it includes the header in one of
 * its files, and links with -pthread.
 *
 * The daemon starts the program with a socket (SOCK_SEQPACKET) on descriptor 3. Each message is one
 * packet. Integers have the byte order of the machine.
 *
 *   daemon    struct kvctier_hello, the options, and the arena's descriptor (SCM_RIGHTS)
 *   program   struct kvctier_ready
 *   daemon    struct kvctier_request, up to hello.slots of them at the same time
 *   program   struct kvctier_answer, one for each request, in any order
 *
 * When the daemon closes the socket, the program ends.
 */
#ifndef KVCTIER_H
#define KVCTIER_H

#include <stddef.h>
#include <stdint.h>

#define KVCTIER_MAGIC "KVCTIER"      /* 8 bytes, with the terminating 0 */
#define KVCTIER_VERSION 1u           /* of the contract */
#define KVCTIER_VALUE_MAX (4u << 20) /* bytes of the largest value */
#define KVCTIER_OPTIONS_MAX 4096u    /* bytes of all options */
#define KVCTIER_SOCKET 3

/* Bits of kvctier_ready.abilities. Every program implements GET and PUT. */
#define KVCTIER_CAN_DELETE 1u
#define KVCTIER_CAN_LIST 2u
#define KVCTIER_CAN_EXPIRE 4u /* values are deleted after the time in kvctier_request.expiry_ms */
#define KVCTIER_CAN_USED 8u

/*
 * A bit of kvctier_hello.flags: the mount has keyfile=, so all values are encrypted and
 * authenticated. Daemons before this flag send 0.
 */
#define KVCTIER_SEALED 1u

struct kvctier_hello {
	char magic[8];
	uint32_t version;
	uint32_t options_len; /* bytes of "name=value" texts after this struct, each with its 0 */
	uint64_t arena_bytes;
	uint64_t value_max;   /* bytes */
	uint64_t deadline_ms; /* for kvctier_ready; also the usual deadline of a request */
	uint32_t slots;       /* requests at the same time, at most */
	uint32_t flags;       /* KVCTIER_SEALED; ignore unknown bits */
	uint32_t reserved[4];
};

struct kvctier_ready {
	char magic[8];
	uint32_t version;   /* KVCTIER_VERSION of the program; the daemon refuses other versions */
	uint32_t abilities; /* KVCTIER_CAN_* */
	int32_t result;     /* 0, or a negative errno: the program cannot serve, as `text` says */
	uint32_t reserved;
	char name[40];  /* of the driver, for messages; ends with 0 */
	char text[192]; /* one line; ends with 0 */
};

enum kvctier_op {
	/*
	 * Copy bytes [offset, offset + length) of the value of `key` to the arena. The answer's
	 * length is smaller if the value ends before. -ENOENT: there is no such value.
	 */
	KVCTIER_GET = 1,
	/*
	 * Set the value of `key` to `length` bytes of the arena. A get sees the whole old value or
	 * the whole new one, also after a crash of the program. length may be 0.
	 */
	KVCTIER_PUT = 2,
	/* Delete the value of `key`. Result 0 or -ENOENT. */
	KVCTIER_DELETE = 3,
	/*
	 * Copy the next keys of the store, 16 bytes each and at most `length` bytes, to the arena.
	 * offset: 0, or `next` of the previous answer. The answer's `next` is 0 after the last key.
	 * Keys that are set or deleted during a listing may be missing or be listed; others are
	 * listed at least once.
	 */
	KVCTIER_LIST = 4,
	/* The answer has the used bytes in `length`, and the size in `next` (0: not known). */
	KVCTIER_USED = 5,
};

struct kvctier_request {
	uint32_t op;    /* enum kvctier_op; answer an unknown one with -ENOSYS */
	uint32_t flags; /* 0 in version 1 */
	uint64_t tag;   /* for the answer */
	uint8_t key[16];
	uint64_t offset, length;
	uint64_t arena;       /* the request's place in the arena, a multiple of 4096 */
	uint64_t room;        /* bytes of this place; the program uses no others */
	uint64_t expiry_ms;   /* PUT: the value is not needed after this time; 0: no limit */
	uint64_t deadline_ms; /* the daemon waits this long from now */
	uint8_t reserved[48];
};

struct kvctier_answer {
	uint64_t tag;
	int64_t result;  /* 0, or a negative errno as in kvcachefs-ext(7) */
	uint64_t length; /* bytes; 0 after PUT and DELETE */
	uint64_t next;   /* for LIST and USED, otherwise 0 */
};

#ifdef __cplusplus
#define KVCTIER_ASSERT static_assert
extern "C" {
#else
#define KVCTIER_ASSERT _Static_assert
#endif
KVCTIER_ASSERT(sizeof(struct kvctier_hello) == 64, "hello");
KVCTIER_ASSERT(sizeof(struct kvctier_ready) == 256, "ready");
KVCTIER_ASSERT(sizeof(struct kvctier_request) == 128, "request");
KVCTIER_ASSERT(sizeof(struct kvctier_answer) == 32, "answer");

/*
 * A driver for kvctier_serve. The functions are called by several threads at the same time, but
 * never for the same key, except for gets. They return 0 (get: the number of bytes; list: the
 * number of keys) or a negative errno. Functions that are NULL are abilities that the driver lacks.
 */
struct kvctier_driver {
	const char *name;
	unsigned threads; /* calls at the same time; 0: 4 */
	int expires;      /* not 0: put honours expiry_ms */
	void *state;      /* passed to the functions */
	int64_t (*get)(void *state, const uint8_t key[16], uint64_t offset, void *to, size_t len);
	int (*put)(void *state, const uint8_t key[16], const void *data, size_t len,
		   uint64_t expiry_ms);
	int (*del)(void *state, const uint8_t key[16]);
	/*
	 * Writes up to `most` keys, from *cursor: 0, or its value after the previous call. Sets it
	 * to 0 after the last key.
	 */
	int64_t (*list)(void *state, uint64_t *cursor, uint8_t (*keys)[16], size_t most);
	int (*used)(void *state, uint64_t *used, uint64_t *size);
};

/*
 * Receives the daemon's first message. Returns 0, or exits after a message: with 2 if the program
 * was not started by kvcachefs, with 1 if it speaks another version or cannot map the arena.
 */
int kvctier_open(void);
/* Returns the value of an option of the remote's URL, or NULL if it is not given. */
const char *kvctier_option(const char *name);
/* Returns whether all values are encrypted and authenticated (KVCTIER_SEALED). */
int kvctier_sealed(void);
/* Tells the daemon that the program cannot serve, with one line of text; exits with 1. */
void kvctier_refuse(int err, const char *text);
/* Serves requests until the daemon closes the socket. Returns 0, or 1 after an error. */
int kvctier_serve(const struct kvctier_driver *d);
/* Writes a key as 32 hexadecimal digits and a 0 to text, and returns text. */
char *kvctier_text(const uint8_t key[16], char text[33]);

#ifdef __cplusplus
}
#endif
#endif

#if defined(KVCTIER_IMPLEMENTATION) && !defined(KVCTIER_IMPLEMENTED)
#define KVCTIER_IMPLEMENTED

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
	struct kvctier_hello hello;
	char options[KVCTIER_OPTIONS_MAX + 1];
	unsigned char *arena;
	const struct kvctier_driver *driver;
} kvctier_state;

static void kvctier_fail(const char *why)
{
	fprintf(stderr, "%s\n", why);
	exit(2);
}

int kvctier_open(void)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov[2] = {
		{ &kvctier_state.hello, sizeof kvctier_state.hello },
		{ kvctier_state.options, KVCTIER_OPTIONS_MAX },
	};
	struct msghdr m = { 0 };
	struct cmsghdr *c;
	int arena = -1;

	m.msg_iov = iov;
	m.msg_iovlen = 2;
	m.msg_control = control.bytes;
	m.msg_controllen = sizeof control.bytes;
	if (recvmsg(KVCTIER_SOCKET, &m, MSG_CMSG_CLOEXEC) < (ssize_t)sizeof kvctier_state.hello ||
	    memcmp(kvctier_state.hello.magic, KVCTIER_MAGIC, 8) != 0)
		kvctier_fail("this program implements a tier and is not run by hand: mount with "
			     "remote=ext:///PATH/OF/PROGRAM or, with options of the program, "
			     "remote=ext:///PATH/OF/PROGRAM?NAME=VALUE. To test it, run kvcachectl "
			     "tier-test");
	c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&arena, CMSG_DATA(c), sizeof arena);
	if (kvctier_state.hello.version != KVCTIER_VERSION)
		kvctier_refuse(-EPROTO, "the program was built for another version of kvctier.h");
	kvctier_state.arena = (unsigned char *)mmap(NULL, kvctier_state.hello.arena_bytes,
						    PROT_READ | PROT_WRITE, MAP_SHARED, arena, 0);
	if (kvctier_state.arena == (unsigned char *)MAP_FAILED)
		kvctier_refuse(-ENOMEM, "the arena cannot be mapped");
	close(arena);
	return 0;
}

const char *kvctier_option(const char *name)
{
	const char *p = kvctier_state.options, *end = p + kvctier_state.hello.options_len;
	size_t len = strlen(name);

	for (; p < end; p += strlen(p) + 1)
		if (!strncmp(p, name, len) && p[len] == '=')
			return p + len + 1;
	return NULL;
}

int kvctier_sealed(void)
{
	return (kvctier_state.hello.flags & KVCTIER_SEALED) != 0;
}

static void kvctier_send_ready(int err, const char *text)
{
	const struct kvctier_driver *d = kvctier_state.driver;
	struct kvctier_ready r = { KVCTIER_MAGIC, KVCTIER_VERSION, 0, err, 0, "", "" };

	if (d) {
		r.abilities = (d->del ? KVCTIER_CAN_DELETE : 0) | (d->list ? KVCTIER_CAN_LIST : 0) |
			      (d->used ? KVCTIER_CAN_USED : 0) |
			      (d->expires ? KVCTIER_CAN_EXPIRE : 0);
		snprintf(r.name, sizeof r.name, "%s", d->name);
	}
	snprintf(r.text, sizeof r.text, "%s", text);
	if (send(KVCTIER_SOCKET, &r, sizeof r, MSG_NOSIGNAL) < 0)
		exit(1);
}

void kvctier_refuse(int err, const char *text)
{
	kvctier_send_ready(err < 0 ? err : -EIO, text);
	exit(1);
}

char *kvctier_text(const uint8_t key[16], char text[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", key[i]);
	return text;
}

static void kvctier_call(const struct kvctier_request *q, struct kvctier_answer *a)
{
	const struct kvctier_driver *d = kvctier_state.driver;
	unsigned char *at = kvctier_state.arena + q->arena;
	int64_t n = -ENOSYS;

	a->next = q->offset;
	if (q->op == KVCTIER_GET)
		n = d->get(d->state, q->key, q->offset, at, q->length);
	else if (q->op == KVCTIER_PUT)
		n = d->put(d->state, q->key, at, q->length, q->expiry_ms);
	else if (q->op == KVCTIER_DELETE && d->del)
		n = d->del(d->state, q->key);
	else if (q->op == KVCTIER_LIST && d->list)
		n = d->list(d->state, &a->next, (uint8_t(*)[16])at, q->length / 16);
	else if (q->op == KVCTIER_USED && d->used)
		n = d->used(d->state, &a->length, &a->next);
	a->result = n < 0 ? n : 0;
	if (q->op != KVCTIER_USED)
		a->length = n < 0 ? 0 : (uint64_t)n * (q->op == KVCTIER_LIST ? 16 : 1);
	if (n < 0 || (q->op != KVCTIER_LIST && q->op != KVCTIER_USED))
		a->next = 0;
}

static void *kvctier_thread(void *arg)
{
	struct kvctier_request q;
	ssize_t n;

	while ((n = recv(KVCTIER_SOCKET, &q, sizeof q, 0)) == (ssize_t)sizeof q) {
		struct kvctier_answer a = { q.tag, 0, 0, 0 };

		kvctier_call(&q, &a);
		if (send(KVCTIER_SOCKET, &a, sizeof a, MSG_NOSIGNAL) < 0)
			return arg;
	}
	return n ? arg : NULL;
}

int kvctier_serve(const struct kvctier_driver *d)
{
	unsigned n = d->threads ? d->threads : 4;
	pthread_t other;
	int failed;

	kvctier_state.driver = d;
	kvctier_send_ready(0, "");
	while (--n)
		if (!pthread_create(&other, NULL, kvctier_thread, kvctier_state.arena))
			pthread_detach(other);
	failed = kvctier_thread(kvctier_state.arena) != NULL;
	/* each thread sees the end of the socket; those that still work end with the process */
	return failed;
}

#endif
