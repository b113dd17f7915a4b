/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the index of learn.h from the weights of learn.c, for all scores and ages of one gap
 * class.
 *
 * A chunk that is held from one bucket of age on gains, in each bucket, chance that it has been
 * accessed and time that it was held, weighted with the chance that it was not accessed before. The
 * best ratio of the two sums over all end points is found from the last bucket backwards. A stretch
 * of buckets is held to its end or not at all, so a stretch absorbs the next one as long as that
 * raises its own ratio.
 */
#include "learn_priv.h"

#include <math.h>

/*
 * Buckets that are held all or none: the chance of an access and the time held, both from the
 * beginning of the stretch, and the chance that the chunk is not accessed by the end
 */
struct stretch {
	float used, held, unused;
};

static void make_row_of_score(float *row, float (*h)[KVC_SCORES], const float *length, int score)
{
	struct stretch after[KVC_AGES], s;
	int n = 0;

	for (int b = KVC_AGES - 1; b >= 0; b--) {
		float chance = h[b][score];

		s = (struct stretch){ chance, length[b] * (1 - chance / 2), 1 - chance };
		for (; n && after[n - 1].used * s.held >= s.used * after[n - 1].held; n--) {
			s.used += s.unused * after[n - 1].used;
			s.held += s.unused * after[n - 1].held;
			s.unused *= after[n - 1].unused;
		}
		row[b] = s.used / s.held;
		after[n++] = s;
	}
	row[KVC_AGES] = row[KVC_AGES - 1];
}

uint8_t kvc_learn_rhythm(uint8_t gap, int age)
{
	int r;

	if (!gap)
		return 0;
	r = (int)floorf((float)age - (float)(gap - 1) / .75f + .5f) + 20;
	return (uint8_t)(r < 1 ? 1 : r > RHYTHMS - 1 ? RHYTHMS - 1 : r);
}

void kvc_learn_make_row(struct kvc_learn *l, uint8_t gap)
{
	float h[KVC_AGES][KVC_SCORES], length[KVC_AGES];

	for (int b = 0; b < KVC_AGES; b++) {
		float odds = expf(-l->set[AGE].w[b] - l->set[RHYTHM].w[l->rhythm[gap][b]]);

		length[b] = (float)(l->edge[b + 1] - l->edge[b]);
		for (int s = 0; s < KVC_SCORES; s++)
			h[b][s] = 1 / (1 + odds * l->odds[s]);
	}
	for (int s = 0; s < KVC_SCORES; s++)
		make_row_of_score(l->index.of[gap][s], h, length, s);
}
