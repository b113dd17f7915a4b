/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts of KV caches. Any text is accepted or refused with a message. An accepted layout passes
 * the check, prints as text that results in the same layout, and covers no more than its file.
 * Layouts with any members pass the check or not; those that pass print and parse as well.
 *
 * Input: a byte (bit 0: text), eight bytes of a file's length, then the text, or the members.
 * Longest input: 256
 * Covers: engine/base/kv_layout.c
 */
#include "fuzz.h"
#include "kv_layout.h"

static bool same(const struct kvc_kv_layout *a, const struct kvc_kv_layout *b)
{
	bool same = a->element == b->element && a->naxes == b->naxes && a->at == b->at &&
		    a->safetensors == b->safetensors;

	for (int i = 0; same && i < a->naxes; i++)
		same = a->axis[i].name == b->axis[i].name && a->axis[i].size == b->axis[i].size;
	return same;
}

static void valid(const struct kvc_kv_layout *l, uint64_t size)
{
	char text[KVC_KV_LAYOUT_TEXT], error[KVC_KV_LAYOUT_ERROR];
	struct kvc_kv_layout again;
	uint64_t vectors;

	kvc_kv_layout_print(l, text);
	fuzz_must(strlen(text) < sizeof text - 1);
	fuzz_must(!kvc_kv_layout_parse(text, &again, error) && same(l, &again));
	if (kvc_kv_layout_locate(&again, (const uint8_t *)&size, sizeof size) ||
	    kvc_kv_layout_fit(&again, size, &vectors))
		return;
	l = &again;
	fuzz_must(vectors && vectors <= (size - l->at) / kvc_kv_layout_vector(l));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	bool text = fuzz_number(&in, 1) & 1;
	uint64_t length = fuzz_number(&in, 8);
	char error[KVC_KV_LAYOUT_ERROR] = "", *word;
	struct kvc_kv_layout l = { 0 };
	int err;

	if (text) {
		word = fuzz_text(&in, 0);
		err = kvc_kv_layout_parse(word, &l, error);
		free(word);
	} else {
		l.element = (uint8_t)fuzz_number(&in, 1);
		l.naxes = (uint8_t)fuzz_number(&in, 1);
		l.at = (uint32_t)fuzz_number(&in, 4);
		for (int i = 0; i < KVC_KV_AXES; i++) {
			l.axis[i].name = (char)fuzz_number(&in, 1);
			l.axis[i].size = (uint32_t)fuzz_number(&in, 4);
		}
		err = kvc_kv_layout_check(&l, error);
	}
	fuzz_must(!err || (err == -EINVAL && *error && !strchr(error, '\n')));
	if (!err)
		valid(&l, length);
	return 0;
}
