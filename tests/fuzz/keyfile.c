/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Key files: every accepted key can be used, no key is accepted twice, every error is one line, and
 * no line shows a key.
 *
 * Input: the file.
 * Longest input: 4096
 * Covers: engine/frames/keys.c
 */
#include "fuzz.h"
#include "keys.h"

struct seen {
	const struct kvc_keys *k;
	uint32_t ids[64];
	size_t n;
};

static int each(void *arg, uint32_t id)
{
	struct seen *s = arg;
	char proof[33] = "";

	for (size_t i = 0; i < s->n; i++)
		fuzz_must(s->ids[i] != id);
	fuzz_must(id && s->n < 64 && kvc_keys_has(s->k, id));
	s->ids[s->n++] = id;
	if (s->n == 1) /* key derivation is slow, so only one key is tested */
		fuzz_must(!kvc_keys_proof(s->k, id, proof) && strlen(proof) == 32);
	return 0;
}

/* Checks that no 64 consecutive characters of the file appear in a line for people. */
static void no_key(const char *line, const uint8_t *data, size_t size)
{
	for (size_t at = 0; at + 64 <= size; at++) {
		char hex[65] = "";

		memcpy(hex, data + at, 64);
		if (strspn(hex, "0123456789abcdefABCDEF") == 64)
			fuzz_must(!strstr(line, hex));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen s = { 0 };
	struct kvc_keys *k = NULL;
	uint8_t nonce[12] = { 1 }, key[32];
	char error[512] = "";
	int err = kvc_keys_open(&k, fuzz_file("keys", data, size), error);

	if (err) {
		fuzz_must(err == -EINVAL && *error && !strchr(error, '\n'));
		no_key(error, data, size);
		return 0;
	}
	s.k = k;
	fuzz_must(!kvc_keys_each(k, each, &s) && s.n);
	/* bytes after a zero byte would be ignored without an error */
	fuzz_must(!memchr(data, 0, size));

	uint32_t id = kvc_keys_for(k, "model");

	fuzz_must(!id || kvc_keys_has(k, id));
	if (id)
		fuzz_must(!kvc_keys_frame_key(k, id, "model", nonce, 1, 2, key));
	kvc_keys_close(k);
	return 0;
}
