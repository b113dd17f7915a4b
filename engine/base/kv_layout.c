/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts of KV caches (kv_layout.h): the parser, the checks, and the comparison with a file's
 * length. The checks are separate from the parser, because decoders apply them to layouts in coded
 * blocks, which are not text. With the limits of the checks no product of sizes overflows 64 bits.
 */
#include "kv_layout.h"

#include <endian.h>

#include <stdarg.h>
#include <string.h>

#define AXES "klpthd"
#define SIZE_MAX_AXIS (1u << 20)
#define AT_MAX (1u << 20)
/* maximum number of vectors in one step of a free axis, or in a layout of fixed axes */
#define VECTORS_MAX (1ull << 36)

static const char *const elements[] = { "bf16", "fp16", NULL };

__attribute__((format(printf, 2, 3))) static int wrong(char *error, const char *format, ...)
{
	va_list ap;

	if (error) {
		va_start(ap, format);
		vsnprintf(error, KVC_KV_LAYOUT_ERROR, format, ap);
		va_end(ap);
	}
	return -EINVAL;
}

uint32_t kvc_kv_layout_axis(const struct kvc_kv_layout *l, char name)
{
	for (int i = 0; i < l->naxes; i++)
		if (l->axis[i].name == name)
			return l->axis[i].size;
	return 1;
}

/* Checks axis i alone, and against the axes before it. */
static int check_axis(const struct kvc_kv_layout *l, int i, char *error)
{
	char name = l->axis[i].name;
	uint32_t size = l->axis[i].size;

	if (!name || !strchr(AXES, name))
		return wrong(error, "an axis is one of k, l, p, t, h and d");
	for (int j = 0; j < i; j++)
		if (l->axis[j].name == name)
			return wrong(error, "the axis %c occurs twice", name);
	if ((name == 'd') != (i == l->naxes - 1))
		return wrong(error, "the last axis must be d, the elements of a vector");
	if (!size && (i || (name != 'p' && name != 't')))
		return wrong(error, "'%c*': only the first axis can be free, if it is p or t",
			     name);
	if (size > SIZE_MAX_AXIS)
		return wrong(error, "the size of the axis %c is above %u", name, SIZE_MAX_AXIS);
	if (name == 'k' && size != 2)
		return wrong(error, "'k%u': the axis k is keys and values, so its size is 2", size);
	if (name == 'd' && (size < KVC_KV_VECTOR_MIN || size > KVC_KV_VECTOR_MAX))
		return wrong(error, "'d%u': a vector has %d to %d elements", size,
			     KVC_KV_VECTOR_MIN, KVC_KV_VECTOR_MAX);
	return 0;
}

int kvc_kv_layout_check(const struct kvc_kv_layout *l, char *error)
{
	uint64_t keys = 1, vectors = 1;
	bool tokens = false;
	int err;

	if (l->element >= KVC_KV_ELEMENTS)
		return wrong(error, "the type of the elements is bf16 or fp16");
	if (!l->naxes || l->naxes > KVC_KV_AXES)
		return wrong(error,
			     "give the axes after the type, as in 'bf16 k2 l32 t256 h8 d128'");
	if (l->at > AT_MAX)
		return wrong(error, "the offset after @ is above %u", AT_MAX);
	for (int i = 0; i < l->naxes; i++) {
		char name = l->axis[i].name;

		if ((err = check_axis(l, i, error)))
			return err;
		tokens |= name == 'p' || name == 't';
		if (name == 'k' || name == 'l' || name == 'h')
			keys *= l->axis[i].size;
		if (name != 'd' && l->axis[i].size)
			vectors *= l->axis[i].size;
		if (keys > KVC_KV_KEYS_MAX)
			return wrong(error, "the product of k, l and h is above %u",
				     KVC_KV_KEYS_MAX);
		if (vectors > VECTORS_MAX)
			return wrong(error, "the product of the sizes is too large");
	}
	return tokens ? 0 : wrong(error, "add an axis of tokens, t or p");
}

/* Reads a number of at most nine digits. Returns 0 if the whole text is one, or -EINVAL. */
static int layout_number(const char *p, uint32_t *out)
{
	uint32_t n = 0;
	size_t len = strlen(p);

	if (!len || len > 9 || strspn(p, "0123456789") != len)
		return -EINVAL;
	for (; *p; p++)
		n = n * 10 + (uint32_t)(*p - '0');
	*out = n;
	return 0;
}

/* Parses one word after the type. */
static int parse_word(struct kvc_kv_layout *l, const char *word, char *error)
{
	uint32_t size = 0;

	if (!strcmp(word, "@safetensors")) {
		l->safetensors = true;
		return 0;
	}
	if (*word == '@') {
		if (layout_number(word + 1, &l->at))
			return wrong(error,
				     "'%s': give the number of bytes before the first "
				     "element after @, or @safetensors",
				     word);
		return 0;
	}
	if (!strchr(AXES, *word))
		return wrong(error, "'%s': an axis is one of k, l, p, t, h and d", word);
	if (l->naxes == KVC_KV_AXES)
		return wrong(error, "'%s': there are at most %d axes", word, KVC_KV_AXES);
	if (strcmp(word + 1, "*") && (layout_number(word + 1, &size) || !size))
		return wrong(error, "'%s': give the axis %c a size from 1 to %u", word, *word,
			     SIZE_MAX_AXIS);
	l->axis[l->naxes].name = *word;
	l->axis[l->naxes++].size = size;
	return 0;
}

int kvc_kv_layout_parse(const char *text, struct kvc_kv_layout *out, char *error)
{
	char copy[KVC_KV_LAYOUT_TEXT], *rest = copy, *word;
	struct kvc_kv_layout l = { .element = KVC_KV_ELEMENTS };
	bool at = false;
	int err = 0;

	if (strlen(text) >= sizeof copy)
		return wrong(error, "a layout has at most %zu characters", sizeof copy - 1);
	for (const char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			return wrong(error, "a layout has letters, digits, spaces, * and @ only");
	memcpy(copy, text, strlen(text) + 1);
	while (!err && (word = strsep(&rest, " "))) {
		if (!*word)
			continue;
		if (l.element != KVC_KV_ELEMENTS) {
			if (at)
				return wrong(error, "'%s': @ is the last word", word);
			at = *word == '@';
			err = parse_word(&l, word, error);
			continue;
		}
		for (l.element = 0; elements[l.element]; l.element++)
			if (!strcmp(elements[l.element], word))
				break;
		if (!elements[l.element])
			return wrong(error, "'%s': the type of the elements is bf16 or fp16", word);
	}
	err = err ?: kvc_kv_layout_check(&l, error);
	if (!err)
		*out = l;
	return err;
}

int kvc_kv_layout_locate(struct kvc_kv_layout *l, const uint8_t *first, size_t len)
{
	uint64_t header;

	if (!l->safetensors)
		return 0;
	if (len < KVC_KV_LAYOUT_FIRST)
		return -EINVAL;
	memcpy(&header, first, sizeof header);
	header = le64toh(header);
	if (header < 2 || header > AT_MAX - KVC_KV_LAYOUT_FIRST) /* the shortest is {} */
		return -EINVAL;
	l->at = (uint32_t)header + KVC_KV_LAYOUT_FIRST;
	l->safetensors = false;
	return 0;
}

void kvc_kv_layout_print(const struct kvc_kv_layout *l, char text[KVC_KV_LAYOUT_TEXT])
{
	size_t n = (size_t)snprintf(text, KVC_KV_LAYOUT_TEXT, "%s", elements[l->element]);

	for (int i = 0; i < l->naxes && n < KVC_KV_LAYOUT_TEXT; i++)
		n += (size_t)(l->axis[i].size ? snprintf(text + n, KVC_KV_LAYOUT_TEXT - n, " %c%u",
							 l->axis[i].name, l->axis[i].size)
					      : snprintf(text + n, KVC_KV_LAYOUT_TEXT - n, " %c*",
							 l->axis[i].name));
	if (l->safetensors && n < KVC_KV_LAYOUT_TEXT)
		snprintf(text + n, KVC_KV_LAYOUT_TEXT - n, " @safetensors");
	else if (l->at && n < KVC_KV_LAYOUT_TEXT)
		snprintf(text + n, KVC_KV_LAYOUT_TEXT - n, " @%u", l->at);
}

int kvc_kv_layout_fit(const struct kvc_kv_layout *l, uint64_t size, uint64_t *vectors)
{
	uint64_t inner = 1, vector = kvc_kv_layout_vector(l), n;
	bool free_axis = !l->axis[0].size;

	if (l->safetensors || size <= l->at)
		return -EINVAL;
	size -= l->at;
	for (int i = 0; i < l->naxes - 1; i++)
		inner *= l->axis[i].size ? l->axis[i].size : 1;
	n = free_axis ? size / vector / inner * inner : inner;
	if (!n || size / vector < n || (!free_axis && size - n * vector > KVC_PAGE))
		return -EINVAL;
	*vectors = n;
	return 0;
}
