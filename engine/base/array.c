/* SPDX-License-Identifier: Apache-2.0 */
/* Large arrays as mappings (array.h). */
#include "array.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * From this size on, mappings are whole multiples of it, which Linux 6.7 and later aligns to it. If
 * such a mapping has to move, the kernel moves page tables instead of pages: 64 MiB in 30 us
 * instead of 210, under whatever lock the owner holds.
 */
#define TABLE (2u << 20)

/* The header before an array; its size keeps malloc's alignment. */
struct head {
	size_t bytes; /* including this header */
	size_t zero;
};
_Static_assert(sizeof(struct head) % _Alignof(max_align_t) == 0, "what follows is aligned");

static bool huge;

void kvc_array_use_huge_pages(void)
{
	huge = true;
}

static struct head *map(struct head *h, size_t had, size_t bytes)
{
	void *to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (to == MAP_FAILED)
		return NULL;
	if (had)
		memcpy(to, h, had);
	free(h);
	return to;
}

static struct head *remap(struct head *h, size_t had, size_t bytes)
{
	void *to = mremap(h, had, bytes, MREMAP_MAYMOVE);

	return to == MAP_FAILED ? NULL : to;
}

void *kvc_array_grow(void *p, size_t bytes)
{
	struct head *h = p ? (struct head *)p - 1 : NULL;
	size_t had = h ? h->bytes : 0;

	bytes += sizeof *h;
	if (bytes <= had)
		return p;
	if (bytes >= TABLE)
		bytes = (bytes + TABLE - 1) / TABLE * TABLE;
	h = bytes < KVC_ARRAY_BIG  ? realloc(h, bytes)
	    : had >= KVC_ARRAY_BIG ? remap(h, had, bytes)
				   : map(h, had, bytes);
	if (!h)
		return NULL;
	if (huge && bytes >= TABLE)
		madvise(h, bytes, MADV_HUGEPAGE);
	h->bytes = bytes;
	return h + 1;
}

void kvc_array_free(void *p)
{
	struct head *h = p ? (struct head *)p - 1 : NULL;

	if (h && h->bytes >= KVC_ARRAY_BIG)
		munmap(h, h->bytes);
	else
		free(h);
}
