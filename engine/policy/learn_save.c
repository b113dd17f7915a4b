/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The learner's weights as text, and its saved state: the weights, the index and the newest
 * records.
 */
#include "learn_priv.h"
#include "replacer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SAVED 65536u     /* records that are saved, at most */
#define RECORD_BYTES 30  /* bytes of a saved record */
#define WEIGHT_MOST 1e6f /* larger values are invalid */
#define INDEX_MOST 16.f

/* Text */

/* Appends text at offset `at`; returns the new end, as snprintf counts it. */
static size_t put_text(char *to, size_t capacity, size_t at, const char *format, ...)
{
	va_list args;
	int n;

	if (at >= capacity)
		return at;
	va_start(args, format);
	n = vsnprintf(to + at, capacity - at, format, args);
	va_end(args);
	return at + (n > 0 ? (size_t)n : 0);
}

/* by: names of the weights; NULL: their numbers. */
static size_t put_weights(char *to, size_t capacity, size_t at, const char *name,
			  const struct weights *w, int n, const char *const *by)
{
	at = put_text(to, capacity, at, "%s", name);
	for (int i = 0; i < n; i++) {
		char nr[16];

		snprintf(nr, sizeof nr, "%d", i);
		if (w->seen[i] > 0)
			at = put_text(to, capacity, at, " %s:%.2f", by ? by[i] : nr,
				      (double)w->w[i]);
	}
	return put_text(to, capacity, at, "\n");
}

void kvc_learn_text(const struct kvc_learn *l, char *to, size_t capacity)
{
	static const char *const facts[FACTS] = {
		"weights_uses",   "weights_fresh", "weights_tail",     "weights_deepest",
		"weights_length", "weights_kids",  "weights_distance", "weights_outlook",
	};
	static const char *const numbers[NUMBERS] = {
		"new",     "uses",  "deepest", "new_fresh", "used_fresh", "length",    "new_tail",
		"goes_on", "forks", "kids",    "used_gap",  "new_gap",    "all_known", "second",
	};
	size_t at = 0;

	*to = 0;
	at = put_weights(to, capacity, at, "weights_age", &l->set[AGE], KVC_AGES, NULL);
	at = put_weights(to, capacity, at, "weights_rhythm", &l->set[RHYTHM], RHYTHMS, NULL);
	at = put_weights(to, capacity, at, "weights", &l->number, NUMBERS, numbers);
	for (int i = 0; i < FACTS; i++)
		at = put_weights(to, capacity, at, facts[i], &l->set[i], CLASSES, NULL);
}

/* Saved state */

static void save_weights(struct kvc_out *o, const float *w, const float *seen, int n)
{
	for (int i = 0; i < n; i++) {
		kvc_state_out_float(o, w[i]);
		kvc_state_out_float(o, seen[i]);
	}
}

static void load_weights(struct kvc_in *in, float *w, float *seen, int n, float most)
{
	for (int i = 0; i < n; i++) {
		w[i] = kvc_state_in_float(in);
		seen[i] = kvc_state_in_float(in);
		in->bad |= fabsf(w[i]) > WEIGHT_MOST || seen[i] < 0 || seen[i] > most;
	}
}

static void save_record(struct kvc_out *o, const struct record *r)
{
	const struct kvc_facts *f = &r->facts;
	const uint8_t small[] = {
		f->count,    f->deepest,   f->kids, f->gap,     f->tail,
		f->distance, f->continues, r->age,  f->outlook,
	};

	kvc_state_out_64(o, r->id);
	kvc_state_out_32(o, r->since);
	kvc_state_out_float(o, r->weight);
	kvc_state_out_32(o, (uint32_t)f->fresh << 16 | f->length);
	kvc_state_out_bytes(o, small, sizeof small);
}

static void load_record(struct kvc_learn *l, struct kvc_in *in)
{
	uint64_t id = kvc_state_in_64(in);
	struct record r = { .id = id, .since = kvc_state_in_32(in) };
	struct kvc_facts *f = &r.facts;
	uint32_t i, both;
	uint8_t age;

	r.weight = kvc_state_in_float(in);
	both = kvc_state_in_32(in);
	f->fresh = (uint16_t)(both >> 16);
	f->length = (uint16_t)both;
	f->count = kvc_state_in_8(in);
	f->deepest = kvc_state_in_8(in);
	f->kids = kvc_state_in_8(in);
	f->gap = kvc_state_in_8(in);
	f->tail = kvc_state_in_8(in);
	f->distance = kvc_state_in_8(in);
	f->continues = kvc_state_in_8(in);
	age = kvc_state_in_8(in);
	f->outlook = kvc_state_in_8(in);
	if (!id || !(r.weight >= 0 && r.weight <= WEIGHT_MOST) || f->gap >= KVC_GAPS ||
	    f->tail > 1 || f->distance > 2 || f->continues > 1 || age >= KVC_AGES ||
	    f->outlook >= KVC_OUTLOOKS)
		in->bad = true;
	if (in->bad)
		return;
	kvc_learn_drop_record(l, id); /* it may be saved twice if it was accessed during saving */
	if ((i = kvc_learn_take_record(l)) != NONE)
		kvc_learn_put_record(l, i, &r, age);
}

void kvc_learn_save(const struct kvc_learn *l, struct kvc_saving *s)
{
	struct kvc_out *o = &s->out;

	kvc_state_out_32(o, l->slice);
	kvc_state_out_32(o, l->row_at);
	kvc_state_out_32(o, l->learned);
	kvc_state_out_double(o, l->length);
	kvc_state_out_32(o, l->lengths);
	save_weights(o, l->set[AGE].w, l->set[AGE].seen, KVC_AGES);
	save_weights(o, l->set[RHYTHM].w, l->set[RHYTHM].seen, RHYTHMS);
	for (int i = 0; i < FACTS; i++)
		save_weights(o, l->set[i].w, l->set[i].seen, CLASSES);
	save_weights(o, l->number.w, l->number.seen, NUMBERS);
	save_weights(o, l->cells.w, l->cells.seen, CELLS);
	for (int gap = 0; gap < KVC_GAPS; gap++)
		for (int score = 0; score < KVC_SCORES; score++)
			for (int b = 0; b <= KVC_AGES; b++)
				kvc_state_out_float(o, l->index.of[gap][score][b]);
	s->rows_at = o->n;
}

bool kvc_learn_save_records(const struct kvc_learn *l, struct kvc_saving *s)
{
	uint64_t end = kvc_min(s->row + KVC_PIECE, l->used);

	for (; s->row < end; s->row++)
		if (l->record[s->row].id)
			kvc_state_out_bytes(&s->rows, &l->record[s->row], sizeof *l->record);
	if (end < l->used)
		return true;
	s->row = 0;
	s->from = l->turns + 1; /* the next number is the oldest in use: the numbers wrap around */
	return false;
}

static int by_turn(const void *a, const void *b)
{
	const struct record *x = a, *y = b;

	return (x->turn > y->turn) - (x->turn < y->turn);
}

/* Sorts the gathered records, and writes the newest, oldest first. */
void kvc_learn_saved(struct kvc_saving *s)
{
	struct record *r = (void *)s->rows.v;
	size_t n = s->rows.n / sizeof *r, skip = n > SAVED ? n - SAVED : 0;
	struct kvc_out all = { 0 };

	for (size_t i = 0; i < n; i++)
		r[i].turn = (r[i].turn - s->from) & TURNS;
	if (n)
		qsort(r, n, sizeof *r, by_turn);
	kvc_state_out_32(&all, (uint32_t)(n - skip));
	for (size_t i = skip; i < n; i++)
		save_record(&all, &r[i]);
	kvc_state_saving_insert(s, &all);
}

void kvc_learn_load(struct kvc_learn *l, struct kvc_in *in)
{
	l->slice = kvc_state_in_32(in);
	l->row_at = kvc_state_in_32(in);
	l->learned = kvc_state_in_32(in);
	l->length = kvc_state_in_double(in);
	l->lengths = kvc_state_in_32(in);
	in->bad |= l->slice >= KVC_GAPS || !(l->length >= 1 && l->length <= LENGTH_MOST) ||
		   l->lengths > LENGTH_OF;
	load_weights(in, l->set[AGE].w, l->set[AGE].seen, KVC_AGES, SEEN_MAX);
	load_weights(in, l->set[RHYTHM].w, l->set[RHYTHM].seen, RHYTHMS, SEEN_MAX);
	for (int i = 0; i < FACTS; i++)
		load_weights(in, l->set[i].w, l->set[i].seen, CLASSES, SEEN_MAX);
	load_weights(in, l->number.w, l->number.seen, NUMBERS, SEEN_MAX_NUMBER);
	load_weights(in, l->cells.w, l->cells.seen, CELLS, SEEN_MAX);
	for (int i = 0; i < KVC_GAPS * KVC_SCORES * (KVC_AGES + 1); i++) {
		float x = kvc_state_in_float(in);

		in->bad |= !(x >= 0 && x <= INDEX_MOST);
		l->index.of[i / (KVC_AGES + 1) / KVC_SCORES][i / (KVC_AGES + 1) % KVC_SCORES]
			   [i % (KVC_AGES + 1)] = x;
	}
	for (uint32_t n = kvc_state_in_count(in, SAVED, RECORD_BYTES); n && !in->bad; n--)
		load_record(l, in);
}
