/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a line of a trace. For the lines that it accepts, the result is that of a JSON parser. See
 * line.h.
 */
#include "line.h"

#include <string.h>

#define KEYS 8    /* maximum number of keys of an object */
#define NAME 32   /* bytes for the name of a key */
#define DIGITS 18 /* of a number */

void kvm_line_fini(struct kvm_line *l)
{
	free(l->id.v);
	free(l->bytes.v);
	*l = (struct kvm_line){ 0 };
}

int kvm_numbers_add(struct kvm_numbers *l, uint64_t number)
{
	if (l->n == l->capacity) {
		uint64_t capacity = l->capacity ? l->capacity * 2 : 256, *v;

		v = realloc(l->v, capacity * sizeof *v);
		if (!v)
			return -ENOMEM;
		l->v = v;
		l->capacity = capacity;
	}
	l->v[l->n++] = number;
	return 0;
}

static const char *after_blanks(const char *at)
{
	while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')
		at++;
	return at;
}

/* Returns a pointer past the character c, or NULL if another character is next. */
static const char *skip_char(const char *at, char c)
{
	at = after_blanks(at);
	return *at == c ? after_blanks(at + 1) : NULL;
}

/* Returns a pointer past an unsigned integer, or NULL if there is none. */
static const char *parse_number(const char *at, uint64_t *out)
{
	const char *from = at;
	uint64_t n = 0;

	while (*at >= '0' && *at <= '9' && at - from <= DIGITS)
		n = n * 10 + (uint64_t)(*at++ - '0');
	if (at == from || at - from > DIGITS || (*from == '0' && at - from > 1))
		return NULL;
	*out = n;
	return at;
}

/* Returns a pointer past an unsigned number with an optional fraction, or NULL. */
static const char *parse_decimal(const char *at, double *out)
{
	double place = 1;
	uint64_t n;

	at = parse_number(at, &n);
	if (!at)
		return NULL;
	*out = (double)n;
	if (*at != '.')
		return at;
	if (*++at < '0' || *at > '9')
		return NULL;
	for (; *at >= '0' && *at <= '9'; at++)
		*out += (place /= 10) * (*at - '0');
	return at;
}

static const char *take_list(const char *at, struct kvm_numbers *l, int *err)
{
	uint64_t n;

	at = skip_char(at, '[');
	if (!at || *at == ']')
		return at ? at + 1 : NULL;
	do {
		at = parse_number(at, &n);
		if (!at || (*err = kvm_numbers_add(l, n)))
			return NULL;
		at = after_blanks(at);
	} while (*at == ',' && (at = after_blanks(at + 1)));
	return *at == ']' ? at + 1 : NULL;
}

/* Copies a name, and returns a pointer past its colon, or NULL. */
static const char *parse_name(const char *at, char *name)
{
	size_t n;

	if (*at++ != '"')
		return NULL;
	n = strcspn(at, "\"\\");
	if (n >= NAME || at[n] != '"')
		return NULL;
	memcpy(name, at, n);
	name[n] = 0;
	return skip_char(at + n + 1, ':');
}

/*
 * Copies a model: a name or an unsigned integer, as text. Other values return NULL, for the parser.
 */
static const char *parse_model(const char *at, char *to, size_t capacity)
{
	bool quoted = *at == '"';
	const char *from = at + quoted, *end = from;
	uint64_t n;

	if (quoted)
		while ((unsigned char)*end >= ' ' && *end != '"' && *end != '\\')
			end++;
	else
		end = parse_number(at, &n);
	if (!end || (quoted ? *end != '"' : *end == '.') || (size_t)(end - from) >= capacity)
		return NULL;
	memcpy(to, from, (size_t)(end - from));
	to[end - from] = 0;
	return end + quoted;
}

static bool is_new(char name[][NAME], unsigned i)
{
	for (unsigned j = 0; j < i; j++)
		if (!strcmp(name[j], name[i]))
			return false;
	return true;
}

int kvm_line_read(struct kvm_line *l, const char *text)
{
	char name[KEYS][NAME];
	bool found = false;
	const char *at = skip_char(text, '{');
	unsigned i = 0;
	int err = 0;

	l->ms = l->returns = 0;
	*l->model = *l->ended = 0;
	l->id.n = l->bytes.n = 0;
	do {
		double other;

		at = at && i < KEYS ? parse_name(at, name[i]) : NULL;
		if (!at || !is_new(name, i))
			return -EINVAL;
		if (!strcmp(name[i], "hash_ids")) {
			found = true;
			at = take_list(at, &l->id, &err);
		} else if (!strcmp(name[i], "bytes") && *at == '[') {
			at = take_list(at, &l->bytes, &err);
		} else if (!strcmp(name[i], "model")) {
			at = parse_model(at, l->model, sizeof l->model);
		} else if (!strcmp(name[i], "ended")) {
			at = parse_model(at, l->ended, sizeof l->ended);
		} else {
			at = parse_decimal(at, !strcmp(name[i], "timestamp") ? &l->ms
					       : !strcmp(name[i], "returns") ? &l->returns
									     : &other);
		}
		if (!at)
			return err ?: -EINVAL;
		at = after_blanks(at);
		i++;
	} while (*at == ',' && (at = after_blanks(at + 1)));
	return found && *at == '}' && !*after_blanks(at + 1) ? 0 : -EINVAL;
}
