/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of other nodes, as the server of peers parses them before it knows who sent them: every
 * number and the range are in bounds, and the parsed values written out are the request again.
 *
 * Input: the URL, the headers for the range, the time, the nonce, the node, the epoch, and, for a
 * POST, the length and the body's signature, each with a line end; then the body. A line that
 * is a hyphen stands for a missing header. Longest input: 4096 Covers: engine/frames/peer_sign.c,
 * engine/base/peer_name.c
 */
#include "fuzz.h"
#include "peer_sign.h"

#include <inttypes.h>

#define LINES 8

/* Are the texts the same but for leading zeros of numbers? */
static bool same_number(const char *text, uint64_t number)
{
	char own[24];
	int len = snprintf(own, sizeof own, "%" PRIu64, number);

	text += strspn(text, "0");
	return !strncmp(text, number ? own : "", number ? (size_t)len : 0);
}

/* Is the parsed node the whole line, and one name of a list? */
static void check_node(const char *node, const char *line)
{
	fuzz_must(node == line && *node && strlen(node) < KVC_PEER_NAME);
	fuzz_must(node[strcspn(node, "+,/@ \r\n")] == 0 && strchr(node, ':'));
	fuzz_must(kvc_peer_name_listed(node, node));
	fuzz_must(!kvc_peer_name_listed("", node));
}

/* The same for a POST. */
static void check_have(char *const *line, const struct kvc_peer_headers *h)
{
	struct kvc_peer_secret secret = { .key = { 1 } };
	struct kvc_peer_request q = { 0 };
	kvc_peer_text sign[KVC_PEER_KINDS];

	if (!kvc_peer_parse_have(line[0], h, &q))
		return;
	fuzz_must(q.kind > KVC_PEER_GET && q.kind < KVC_PEER_KINDS && !q.from &&
		  q.to < KVC_PEER_NAMES_BYTES && q.path == line[7]);
	fuzz_must(kvc_peer_hex(q.path) && q.time_ms && q.time_ms < 1ull << 60);
	fuzz_must(same_number(line[6], q.to + 1) && same_number(line[2], q.time_ms));
	fuzz_must(!strcmp(q.nonce, line[3]) && !strcmp(q.epoch, line[5]));
	check_node(q.node, line[4]);
	fuzz_must(!strcmp(line[0], kvc_peer_url(q.kind)));
	/* the same values in another kind of request have another signature */
	for (unsigned i = 0; i < KVC_PEER_KINDS; i++) {
		q.kind = (enum kvc_peer_kind)i;
		fuzz_must(!kvc_peer_sign(&secret, &q, sign[i]));
		for (unsigned j = 0; j < i; j++)
			fuzz_must(!kvc_peer_same(sign[i], sign[j]));
	}
}

/* The names of a body are inside it. */
static void check_names(const uint8_t *data, size_t len)
{
	struct kvc_peer_secret secret = { .key = { 1 } };
	struct fuzz_in in = { data, len };
	char *body = (char *)fuzz_bytes(&in, len);
	const char *p = body;
	kvc_peer_text sign;
	size_t n;

	if (kvc_peer_names_count(body, len, &n)) {
		fuzz_must(n && n <= KVC_PEER_NAMES);
		while (n--)
			p += strlen(p) + 1;
		fuzz_must(p == body + len);
	}
	fuzz_must(!kvc_peer_sign_body(&secret, "nonce", body, len, sign));
	free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvc_peer_secret secret = { .key = { 1 } };
	struct fuzz_in in = { data, size };
	char *line[LINES];
	const char *header[LINES];
	struct kvc_peer_headers h;
	struct kvc_peer_request q = { 0 };
	kvc_peer_text sign;

	for (int i = 0; i < LINES; i++) {
		line[i] = fuzz_text(&in, '\n');
		header[i] = strcmp(line[i], "-") != 0 ? line[i] : NULL;
	}
	h = (struct kvc_peer_headers){
		header[1], header[2], header[3], header[4], header[5], header[6], header[7],
	};
	check_have(line, &h);
	check_names(in.p, in.n);
	if (kvc_peer_parse(line[0], &h, &q)) {
		fuzz_must(q.from <= q.to && q.to < 1ull << 60 && q.time_ms &&
			  q.time_ms < 1ull << 60);
		fuzz_must(q.path == line[0] + strlen(KVC_PEER_PREFIX));
		fuzz_must(!strcmp(q.nonce, line[3]));
		check_node(q.node, line[4]);
		fuzz_must(!strcmp(q.epoch, line[5]));
		fuzz_must(same_number(line[1] + strlen("bytes="), q.from) &&
			  same_number(strchr(line[1], '-') + 1, q.to) &&
			  same_number(line[2], q.time_ms));
		fuzz_must(strspn(line[1] + 6, "0123456789-") == strlen(line[1] + 6));
		fuzz_must(!kvc_peer_sign(&secret, &q, sign) && kvc_peer_same(sign, sign));
	}
	for (int i = 0; i < LINES; i++)
		free(line[i]);
	return 0;
}
