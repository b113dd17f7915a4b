/* SPDX-License-Identifier: Apache-2.0 */
/* Serialized state of policies (state.h). */
#include "state.h"

#include <endian.h>
#include <math.h>
#include <string.h>

void kvc_state_out_reserve(struct kvc_out *o, size_t n)
{
	uint8_t *p = o->failed || o->capacity >= n ? NULL : realloc(o->v, n);

	if (!p)
		return;
	/* touched here, so that the kernel allocates the pages now */
	memset(p + o->n, 0, n - o->n);
	o->v = p;
	o->capacity = n;
}

void kvc_state_out_bytes(struct kvc_out *o, const void *v, size_t n)
{
	while (!o->failed && o->capacity - o->n < n) {
		size_t capacity = o->capacity ? o->capacity * 2 : 4096;
		uint8_t *p = realloc(o->v, capacity);

		o->failed = !p;
		if (p) {
			o->v = p;
			o->capacity = capacity;
		}
	}
	if (o->failed)
		return;
	memcpy(o->v + o->n, v, n);
	o->n += n;
}

void kvc_state_out_8(struct kvc_out *o, uint8_t v)
{
	kvc_state_out_bytes(o, &v, sizeof v);
}

void kvc_state_out_32(struct kvc_out *o, uint32_t v)
{
	v = htole32(v);
	kvc_state_out_bytes(o, &v, sizeof v);
}

void kvc_state_out_64(struct kvc_out *o, uint64_t v)
{
	v = htole64(v);
	kvc_state_out_bytes(o, &v, sizeof v);
}

void kvc_state_out_32_at(struct kvc_out *o, size_t at, uint32_t v)
{
	v = htole32(v);
	if (!o->failed)
		memcpy(o->v + at, &v, sizeof v);
}

void kvc_state_out_64_at(struct kvc_out *o, size_t at, uint64_t v)
{
	v = htole64(v);
	if (!o->failed)
		memcpy(o->v + at, &v, sizeof v);
}

void kvc_state_saving_fini(struct kvc_saving *s)
{
	free(s->out.v);
	free(s->rows.v);
	for (int i = 0; i < 2; i++)
		free(s->more[i].v);
	free(s->ages);
	*s = (struct kvc_saving){ 0 };
}

void kvc_state_saving_insert(struct kvc_saving *s, struct kvc_out *from)
{
	size_t rest = s->out.n - s->rows_at;

	s->out.failed |= from->failed;
	if (from->n) /* grows the buffer; the bytes written here are overwritten below */
		kvc_state_out_bytes(&s->out, from->v, from->n);
	if (!s->out.failed && from->n) {
		memmove(s->out.v + s->rows_at + from->n, s->out.v + s->rows_at, rest);
		memcpy(s->out.v + s->rows_at, from->v, from->n);
	}
	free(from->v);
	*from = (struct kvc_out){ 0 };
}

void kvc_state_out_float(struct kvc_out *o, float v)
{
	uint32_t bits;

	memcpy(&bits, &v, sizeof bits);
	kvc_state_out_32(o, bits);
}

void kvc_state_out_double(struct kvc_out *o, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof bits);
	kvc_state_out_64(o, bits);
}

static void read_bytes(struct kvc_in *in, void *to, size_t n)
{
	if (in->bad || in->n < n) {
		in->bad = true;
		memset(to, 0, n);
		return;
	}
	memcpy(to, in->v, n);
	in->v += n;
	in->n -= n;
}

uint8_t kvc_state_in_8(struct kvc_in *in)
{
	uint8_t v;

	read_bytes(in, &v, sizeof v);
	return v;
}

uint32_t kvc_state_in_32(struct kvc_in *in)
{
	uint32_t v;

	read_bytes(in, &v, sizeof v);
	return le32toh(v);
}

uint64_t kvc_state_in_64(struct kvc_in *in)
{
	uint64_t v;

	read_bytes(in, &v, sizeof v);
	return le64toh(v);
}

float kvc_state_in_float(struct kvc_in *in)
{
	uint32_t bits = kvc_state_in_32(in);
	float v;

	memcpy(&v, &bits, sizeof v);
	if (isfinite(v))
		return v;
	in->bad = true;
	return 0;
}

double kvc_state_in_double(struct kvc_in *in)
{
	uint64_t bits = kvc_state_in_64(in);
	double v;

	memcpy(&v, &bits, sizeof v);
	if (isfinite(v))
		return v;
	in->bad = true;
	return 0;
}

uint32_t kvc_state_in_count(struct kvc_in *in, uint64_t most, size_t bytes)
{
	uint32_t n = kvc_state_in_32(in);

	if (n <= most && n <= in->n / bytes)
		return n;
	in->bad = true;
	return 0;
}

void kvc_state_in_skip(struct kvc_in *in, uint64_t n)
{
	in->bad |= n > in->n;
	if (in->bad)
		return;
	in->v += n;
	in->n -= n;
}
