/* SPDX-License-Identifier: Apache-2.0 */
/* See news.h. */
#include "news.h"

#include "file.h"
#include "node.h"

#include <string.h>

#define CHAINS 8192u

struct kvc_news {
	unsigned readers;
	uint64_t n; /* put so far: the last KVC_NEWS_MAX of them are there */
	uint64_t newest[CHAINS];
	struct kvc_news_item v[KVC_NEWS_MAX];
};

int kvc_news_open_locked(struct kvc *k, uint64_t *at)
{
	if (!k->news && !(k->news = calloc(1, sizeof *k->news)))
		return -ENOMEM;
	k->news->readers++;
	*at = k->news->n;
	return 0;
}

void kvc_news_close_locked(struct kvc *k)
{
	struct kvc_news *r = k->news;

	if (--r->readers)
		return;
	for (size_t i = 0; i < KVC_NEWS_MAX; i++)
		free(r->v[i].gone);
	free(r);
	k->news = NULL;
}

static uint64_t *chain(struct kvc_news *r, uint64_t ino)
{
	return &r->newest[(ino * 0x9e3779b97f4a7c15u >> 32) % CHAINS];
}

static void put(struct kvc_news *r, struct kvc_news_item v)
{
	struct kvc_news_item *to = &r->v[r->n % KVC_NEWS_MAX];

	free(to->gone);
	*to = v;
	r->n++;
	if (v.gone) {
		to->before = *chain(r, v.ino);
		*chain(r, v.ino) = r->n;
	}
}

static uint8_t where(const struct kvc *k, const struct kvc_node *n)
{
	unsigned bits = kvc_has_segment(n) && n->object.gen ? KVC_NEWS_IN_POOL : 0;

	for (unsigned t = 0; t < k->seats; t++)
		bits |= kvc_placed_in(n, t) ? 1u << t : 0;
	return (uint8_t)bits;
}

static struct kvc_news_item item(const struct kvc *k, enum kvc_news_what what, int tier,
				 const struct kvc_node *n)
{
	bool folder = S_ISDIR(n->row.mode);

	return (struct kvc_news_item){
		.at_ns = kvc_now_ns(),
		.ino = n->row.ino,
		.bytes = folder ? 0 : n->object.size,
		.tier = (int8_t)tier,
		.what = (uint8_t)what,
		.where = S_ISREG(n->row.mode) ? where(k, n) : 0,
		.folder = folder,
		.alone = n->row.chunk == n->row.ino,
	};
}

void kvc_news_put_locked(struct kvc *k, enum kvc_news_what what, int tier, const struct kvc_node *n)
{
	if (k->news && !n->unnamed && !n->lost)
		put(k->news, item(k, what, tier, n));
}

void kvc_news_gone_locked(struct kvc *k, enum kvc_news_what what, const struct kvc_node *n,
			  char *gone)
{
	struct kvc_news_item v;

	if (!k->news) {
		free(gone);
		return;
	}
	v = item(k, what, KVC_NEWS_NONE, n);
	v.gone = gone;
	put(k->news, v);
}

bool kvc_news_take_locked(struct kvc *k, uint64_t *at, struct kvc_news_item *v, uint64_t *number,
			  uint64_t *lost)
{
	const struct kvc_news *r = k->news;
	uint64_t first = r->n > KVC_NEWS_MAX ? r->n - KVC_NEWS_MAX : 0;

	*lost = *at < first ? first - *at : 0;
	*at += *lost;
	if (*at == r->n)
		return false;
	*number = (*at)++;
	*v = r->v[*number % KVC_NEWS_MAX];
	return true;
}

const char *kvc_news_path_locked(struct kvc *k, uint64_t ino, uint64_t number)
{
	struct kvc_news *r = k->news;
	uint64_t first = r->n > KVC_NEWS_MAX ? r->n - KVC_NEWS_MAX : 0, at = *chain(r, ino);
	const char *found = NULL;

	while (at > first && at - 1 > number) {
		const struct kvc_news_item *v = &r->v[(at - 1) % KVC_NEWS_MAX];

		if (v->ino == ino)
			found = v->gone;
		at = v->before;
	}
	return found;
}
