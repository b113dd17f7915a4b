/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ext tier with a program that answers as the input says: every call ends, stores no more of an
 * answer than it requested, and no request uses a part of the arena that an unanswered request may
 * still write to. The program is a function in place of send(), and waiting takes no time.
 *
 * Input: a byte with the program's abilities, and a byte for two calls; if bit 7 of the first byte
 * is set, the program's first message follows. Then answers: a byte of kind, numbers and bytes.
 * Longest input: 16384
 * Covers: tiers/ext.c, tiers/ext_requests.c, tiers/pieces.c
 */
#include "ext_program.h"
#include "ext_requests.h"
#include "fuzz.h"
#include "pieces.h"
#include "registry.h"

#include <endian.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define SLOTS 3u
#define DEADLINE_MS 100u

int __wrap_kvct_program_check(const char *path, char *error);
int __wrap_kvct_link_open(struct kvct_link **out, const struct kvct_link_setup *setup, char *error);
void __wrap_kvct_link_close(struct kvct_link *l);
int __wrap_kvct_link_ask(struct kvct_link *l, struct kvct_link_call *c);
unsigned __wrap_kvct_link_abilities(struct kvct_link *l);
void __wrap_kvct_link_used(struct kvct_link *l, uint64_t *used, uint64_t *size);
ssize_t __wrap_send(int fd, const void *buf, size_t n, int flags);
uint64_t __wrap_kvc_mono_ns(void);
int __wrap_usleep(unsigned us);

static struct fuzz_in answers;
static struct kvct_requests requests;
static uint8_t *arena, header[KVC_FRAME_HEADER];
static struct kvc_where header_name;
static uint64_t now_ns;
static unsigned answered;
static struct kvctier_request late[SLOTS]; /* unanswered ones, by their place; op 0: none */

uint64_t __wrap_kvc_mono_ns(void)
{
	return now_ns += 1000000;
}

int __wrap_usleep(unsigned us)
{
	now_ns += us * 1000ull;
	return 0;
}

/* ---- the program ---- */

/* The program has ended, and is started again. */
static void restart(void)
{
	memset(late, 0, sizeof late);
	kvct_requests_stop(&requests);
	kvct_requests_start(&requests, -1);
}

/* Sends an answer. The link ends a program that breaks the contract. */
static void send_answer(const struct kvctier_answer *a)
{
	if (kvct_requests_answer(&requests, a)) {
		restart();
		return;
	}
	answered++;
	for (unsigned i = 0; i < SLOTS; i++)
		if (late[i].tag == a->tag)
			late[i].op = 0;
	fuzz_must(kvct_requests_answer(&requests, a)); /* a second one has no request */
}

static void set_late(const struct kvctier_request *q)
{
	late[q->arena / KVCTIER_VALUE_MAX] = *q;
}

/* Fills the request's part of the arena: zeroes, a header, or keys; then bytes of the input. */
static void fill(const struct kvctier_request *q, unsigned kind)
{
	uint8_t *at = arena + q->arena;
	size_t at_byte = fuzz_number(&answers, 2), n = fuzz_number(&answers, 1);
	uint64_t name[2] = { htobe64(header_name.at), htobe64(header_name.hi) };
	uint8_t *bytes;

	memset(at, 0, kvc_min(q->length, KVCT_HEAD_MAX));
	if (q->op == KVCTIER_GET && !q->offset && (kind & 8) && q->length >= sizeof header)
		memcpy(at, header, sizeof header);
	if (q->op == KVCTIER_LIST && (kind & 8))
		memcpy(at, name, sizeof name);
	n = kvc_min(n, kvc_min(answers.n, q->length - kvc_min(at_byte, q->length)));
	bytes = fuzz_bytes(&answers, n);
	if (n)
		memcpy(at + at_byte, bytes, n);
	free(bytes);
}

static void answer(const struct kvctier_request *q)
{
	unsigned kind = (unsigned)fuzz_number(&answers, 1);
	bool has_data = q->op == KVCTIER_GET || q->op == KVCTIER_LIST;
	struct kvctier_answer a = { .tag = q->tag, .length = has_data ? q->length : 0 };
	uint8_t *raw;

	switch (kind % 8) {
	case 0: break; /* the whole value */
	case 1: a.length = fuzz_number(&answers, 3); break;
	case 2: a.result = (int64_t)fuzz_number(&answers, 8); break;
	case 3: a.result = -(int64_t)fuzz_number(&answers, 1); break;
	case 4: set_late(q); return;
	case 5: restart(); return;
	case 6: /* to another request */
		a.tag = late[fuzz_number(&answers, 1) % SLOTS].tag;
		set_late(q);
		break;
	case 7:
		raw = fuzz_bytes(&answers, sizeof a);
		memcpy(&a, raw, sizeof a);
		free(raw);
		break;
	}
	if (has_data)
		fill(q, kind);
	if (q->op == KVCTIER_LIST && kind % 8 < 2)
		a.next = fuzz_number(&answers, 1);
	send_answer(&a);
}

/* No unanswered request has this part of the arena, or may change the same value. */
static void check(const struct kvctier_request *q)
{
	fuzz_must(q->arena % KVCTIER_VALUE_MAX == 0 && q->arena / KVCTIER_VALUE_MAX < SLOTS);
	fuzz_must(q->room == KVCTIER_VALUE_MAX && q->length <= q->room);
	for (unsigned i = 0; i < SLOTS; i++) {
		const struct kvctier_request *l = &late[i];

		fuzz_must(!l->op || l->arena != q->arena);
		if (q->op != KVCTIER_LIST && (l->op == KVCTIER_PUT || l->op == KVCTIER_DELETE))
			fuzz_must(memcmp(l->key, q->key, sizeof q->key) != 0);
	}
}

ssize_t __wrap_send(int fd, const void *buf, size_t n, int flags)
{
	struct kvctier_request q;

	fuzz_must(fd == -1 && n == sizeof q && (flags & MSG_DONTWAIT));
	memcpy(&q, buf, sizeof q);
	check(&q);
	if (answers.n)
		answer(&q);
	else
		set_late(&q); /* it sends no more answers */
	return (ssize_t)n;
}

/* ---- the link ---- */

int __wrap_kvct_program_check(const char *path, char *error)
{
	(void)path;
	(void)error;
	return 0;
}

int __wrap_kvct_link_open(struct kvct_link **out, const struct kvct_link_setup *setup, char *error)
{
	(void)error;
	fuzz_must(setup->arena_bytes == (uint64_t)SLOTS * KVCTIER_VALUE_MAX &&
		  setup->deadline_ms == DEADLINE_MS && !setup->sealed);
	memset(&requests, 0, sizeof requests);
	kvct_requests_init(&requests, SLOTS, setup->deadline_ms);
	requests.arena = arena;
	kvct_requests_start(&requests, -1);
	*out = (struct kvct_link *)&requests;
	return 0;
}

void __wrap_kvct_link_close(struct kvct_link *l)
{
	(void)l;
	kvct_requests_fini(&requests);
}

int __wrap_kvct_link_ask(struct kvct_link *l, struct kvct_link_call *c)
{
	struct kvctier_request used;
	struct kvctier_answer a = { 0 };
	int err;

	(void)l;
	fuzz_must(c->request.length <= KVCTIER_VALUE_MAX);
	if (kvct_requests_ask_used(&requests, &used)) {
		fuzz_must(used.op == KVCTIER_USED);
		a.tag = used.tag;
		a.length = fuzz_number(&answers, 8);
		a.next = fuzz_number(&answers, 8);
		fuzz_must(!kvct_requests_answer(&requests, &a));
	}
	if (kvct_requests_hang(&requests))
		restart();
	err = kvct_requests_ask(&requests, c);
	err = err == -ECONNRESET ? kvct_requests_ask(&requests, c) : err;
	fuzz_must(err <= 0 && !requests.users);
	fuzz_must(err || c->answer.length <= c->request.length);
	for (unsigned i = 0; i < SLOTS; i++)
		fuzz_must(requests.slot[i].is == KVCT_SLOT_FREE ||
			  requests.slot[i].is == KVCT_SLOT_LATE);
	return err;
}

unsigned __wrap_kvct_link_abilities(struct kvct_link *l)
{
	(void)l;
	return requests.abilities;
}

void __wrap_kvct_link_used(struct kvct_link *l, uint64_t *used, uint64_t *size)
{
	(void)l;
	*used = requests.used;
	*size = requests.size;
}

/* ---- calls ---- */

static int body(void *arg, void *buf, size_t len, uint64_t off)
{
	(void)arg;
	memset(buf, (int)off, len);
	return 0;
}

static int head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	(void)arg;
	memset(page, 'h', KVC_FRAME_HEADER);
	return 0;
}

static int listed(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	fuzz_must(!w || memchr(f->path, 0, sizeof f->path));
	return ++*(unsigned *)arg > 100 ? -EINTR : 0;
}

/* Reads bytes into memory of exactly that length. */
static void get(struct kvc_tier *t, uint64_t off, size_t len)
{
	uint8_t *page = malloc(KVC_PAGE), *bytes = malloc(len ? len : 1);
	struct iovec iov[2] = { { page, KVC_PAGE }, { bytes, len } };

	fuzz_must(page && bytes);
	t->ops->get(t, &header_name, off, off ? iov + 1 : iov, off ? 1 : len ? 2 : 1);
	free(page);
	free(bytes);
}

static void call(struct kvc_tier *t, unsigned which)
{
	struct kvc_put p = { .stored_len = which & 8 ? 70000 : 100, .read = body, .head = head };
	struct kvc_tier_usage u;
	struct kvc_where out;
	unsigned n = 0;

	p.name = header_name;
	answered = 0;
	switch (which & 7) {
	case 0: get(t, 0, 0); break;
	case 1: get(t, 0, which & 8 ? 69632 : KVC_PAGE); break;
	case 2: get(t, KVC_PAGE, KVC_PAGE); break;
	case 3: t->ops->put(t, &p, &out); break;
	case 4: t->ops->remove(t, &header_name); break;
	case 5: /* without answers it fails; the listing is not empty */
		fuzz_must(t->ops->list(t, listed, &n) || answered);
		break;
	default: break;
	}
	t->ops->usage(t, &u);
	fuzz_must(u.used <= INT64_MAX / 8 && u.total <= INT64_MAX / 8);
}

/* The program's first message: its texts are then one printable line each. */
static void ready(void)
{
	struct kvctier_ready *m;
	char refusal[KVCT_REFUSAL];
	long n = (long)fuzz_number(&answers, 2) - 1;
	const char *why;

	m = (struct kvctier_ready *)fuzz_bytes(&answers, sizeof *m);
	why = kvct_requests_ready(m, n, refusal);
	fuzz_must(memchr(refusal, 0, sizeof refusal) && (!*refusal || why));
	for (const char *p = refusal; *p; p++)
		fuzz_must((unsigned char)*p >= ' ');
	if (!why)
		fuzz_must(n == sizeof *m && m->version == KVCTIER_VERSION && !m->result &&
			  memchr(m->name, 0, sizeof m->name));
	free(m);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct kvc_frame *f = kvc_frame_new();

	(void)argc;
	(void)argv;
	fuzz_must(f);
	f->size = f->raw_len = f->stored_len = 100;
	snprintf(f->path, sizeof f->path, "m/a");
	kvc_frame_encode(f, header);
	header_name = kvc_frame_where_of(f->path);
	free(f);
	arena = mmap(NULL, (size_t)SLOTS * KVCTIER_VALUE_MAX, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fuzz_must(arena != MAP_FAILED);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned abilities, which;
	struct kvct_url u;
	struct kvc_tier *t;
	char error[512];

	answers = (struct fuzz_in){ data, size };
	abilities = (unsigned)fuzz_number(&answers, 1);
	which = (unsigned)fuzz_number(&answers, 1);
	now_ns = 10000000000; /* so that the figures of the store are due */
	memset(late, 0, sizeof late);
	if (abilities & 128)
		ready();
	fuzz_must(!kvct_url_parse("ext:///p?arena=12M&a=b", &u, error) &&
		  !kvct_ext_open(&u, DEADLINE_MS, &t, error));
	requests.abilities = abilities & 15;
	call(t, which & 15);
	call(t, which >> 4);
	t->ops->close(t);
	return 0;
}
