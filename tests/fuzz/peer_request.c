/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of other nodes, as the server of peers parses them before it knows who sent them: every
 * number and the range are in bounds, and the parsed values written out are the request again.
 *
 * Input: the URL, the headers for the range, the time and the nonce, each with a line end. A line
 * that is a hyphen stands for a missing header.
 * Longest input: 4096
 * Covers: engine/frames/peer_sign.c
 */
#include "fuzz.h"
#include "peer_sign.h"

#include <inttypes.h>

/* Are the texts the same but for leading zeros of numbers? */
static bool same_number(const char *text, uint64_t number)
{
	char own[24];
	int len = snprintf(own, sizeof own, "%" PRIu64, number);

	text += strspn(text, "0");
	return !strncmp(text, number ? own : "", number ? (size_t)len : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvc_peer_secret secret = { .key = { 1 } };
	struct fuzz_in in = { data, size };
	char *line[4];
	const char *header[4];
	struct kvc_peer_request q = { 0 };
	kvc_peer_text sign;

	for (int i = 0; i < 4; i++) {
		line[i] = fuzz_text(&in, '\n');
		header[i] = strcmp(line[i], "-") != 0 ? line[i] : NULL;
	}
	if (kvc_peer_parse(line[0], header[1], header[2], header[3], &q)) {
		fuzz_must(q.from <= q.to && q.to < 1ull << 60 && q.time_ms &&
			  q.time_ms < 1ull << 60);
		fuzz_must(q.path == line[0] + strlen(KVC_PEER_PREFIX));
		fuzz_must(!strcmp(q.nonce, line[3]));
		fuzz_must(same_number(line[1] + strlen("bytes="), q.from) &&
			  same_number(strchr(line[1], '-') + 1, q.to) &&
			  same_number(line[2], q.time_ms));
		fuzz_must(strspn(line[1] + 6, "0123456789-") == strlen(line[1] + 6));
		fuzz_must(!kvc_peer_sign(&secret, &q, sign) && kvc_peer_same(sign, sign));
	}
	for (int i = 0; i < 4; i++)
		free(line[i]);
	return 0;
}
