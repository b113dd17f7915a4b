/* SPDX-License-Identifier: Apache-2.0 */
/* See parts.h. Also kvcachefs_pages_parts(), which makes the parts of pages. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define LENGTH_MOST (1ull << 62)
#define AT_ONCE 64 /* ranges of memory in one call */

static uint64_t key_of(const struct kvcachefs_part *p, bool store)
{
	return store ? p->offset : (uint64_t)(uintptr_t)p->at;
}

static int by_offset(const void *a, const void *b)
{
	uint64_t x = key_of(a, true), y = key_of(b, true);

	return x < y ? -1 : x > y;
}

static int by_memory(const void *a, const void *b)
{
	uint64_t x = key_of(a, false), y = key_of(b, false);

	return x < y ? -1 : x > y;
}

/* Returns the first part that overlaps the next, or n; sets *sorted. */
static size_t overlap_of(const struct kvcachefs_part *v, size_t n, bool store, bool *sorted)
{
	*sorted = true;
	for (size_t i = 0; i + 1 < n; i++) {
		if (key_of(&v[i], store) > key_of(&v[i + 1], store))
			*sorted = false;
		else if (key_of(&v[i + 1], store) - key_of(&v[i], store) < v[i].len)
			return i;
	}
	return n;
}

static int check_overlap(const struct kvcachefs_item *it, bool store)
{
	struct kvcachefs_part *copy = NULL;
	bool sorted;
	size_t n = it->nparts, i = overlap_of(it->parts, n, store, &sorted);

	if (i == n && !sorted) {
		copy = malloc(n * sizeof *copy);
		if (!copy)
			return kvcachefs_fail(-ENOMEM, "out of memory");
		memcpy(copy, it->parts, n * sizeof *copy);
		qsort(copy, n, sizeof *copy, store ? by_offset : by_memory);
		i = overlap_of(copy, n, store, &sorted);
	}
	free(copy);
	return i == n ? 0
		      : kvcachefs_fail(-EINVAL, "two of the %zu parts overlap in %s", n,
				       store ? "the file" : "memory");
}

int kvcachefs_parts_check(const struct kvcachefs_item *it, bool store, uint64_t *size)
{
	uint64_t end = 0;

	if (it->tokens.slots || it->tokens.block_ids || it->cache || it->rope)
		return kvcachefs_fail(-EINVAL, "an item has either parts or tokens");
	for (size_t i = 0; i < it->nparts; i++) {
		const struct kvcachefs_part *p = &it->parts[i];
		uint64_t last;

		if (!p->len || !p->at)
			return kvcachefs_fail(-EINVAL, "part %zu has no %s", i,
					      p->len ? "memory" : "bytes");
		if (__builtin_add_overflow(p->offset, p->len, &last) || last > LENGTH_MOST ||
		    (uintptr_t)p->at + p->len < (uintptr_t)p->at || (it->size && last > it->size))
			return kvcachefs_fail(-ERANGE,
					      "part %zu of %zu bytes at %llu ends beyond the "
					      "end of the file",
					      i, p->len, (unsigned long long)p->offset);
		end = last > end ? last : end;
	}
	if (it->size > LENGTH_MOST)
		return kvcachefs_fail(-ERANGE, "a file cannot have %llu bytes",
				      (unsigned long long)it->size);
	*size = it->size ? it->size : end;
	return check_overlap(it, store);
}

int kvcachefs_parts_bound(const struct kvcachefs_item *items, size_t n)
{
	size_t left = KVCACHEFS_PARTS_MOST;

	for (size_t i = 0; i < n; i++) {
		size_t parts = items[i].parts ? items[i].nparts : 0;

		if (parts > left)
			return kvcachefs_fail(-E2BIG, "a transfer has at most %u parts",
					      KVCACHEFS_PARTS_MOST);
		left -= parts;
	}
	return 0;
}

uint64_t kvcachefs_parts_bytes(const struct kvcachefs_item *it)
{
	uint64_t n = 0;

	for (size_t i = 0; i < it->nparts; i++)
		n += it->parts[i].len;
	return n;
}

struct kvcachefs_part kvcachefs_parts_merged(const struct kvcachefs_item *it, size_t i,
					     size_t *next)
{
	struct kvcachefs_part p = it->parts[i++];

	while (i < it->nparts && it->parts[i].at == (char *)p.at + p.len &&
	       it->parts[i].offset == p.offset + p.len)
		p.len += it->parts[i++].len;
	*next = i;
	return p;
}

/* ---- Host memory ---- */

/* Moves whole ranges that follow each other in the file, and continues after short calls. */
static int move_ranges(int fd, struct iovec *v, int n, uint64_t offset, bool store)
{
	while (n) {
		ssize_t got = store ? pwritev(fd, v, n, (off_t)offset)
				    : preadv(fd, v, n, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return kvcachefs_fail(-errno, "%s", strerror(errno));
		if (!got)
			return kvcachefs_fail(-EIO, "the file is shorter than it was");
		offset += (uint64_t)got;
		while (n && (size_t)got >= v->iov_len) {
			got -= (ssize_t)v->iov_len;
			v++;
			n--;
		}
		if (n) {
			v->iov_base = (char *)v->iov_base + got;
			v->iov_len -= (size_t)got;
		}
	}
	return 0;
}

static int move_parts(const struct kvcachefs_item *it, int fd, bool store)
{
	struct iovec v[AT_ONCE];
	uint64_t from = 0, end = 0;
	int n = 0, err = 0;

	for (size_t i = 0, next; i < it->nparts && !err; i = next) {
		struct kvcachefs_part p = kvcachefs_parts_merged(it, i, &next);

		if (n == AT_ONCE || (n && p.offset != end)) {
			err = move_ranges(fd, v, n, from, store);
			n = 0;
		}
		if (!n)
			from = p.offset;
		end = p.offset + p.len;
		v[n++] = (struct iovec){ p.at, p.len };
	}
	return err || !n ? err : move_ranges(fd, v, n, from, store);
}

int kvcachefs_parts_write(const struct kvcachefs_item *it, int fd, uint64_t size)
{
	uint64_t end = 0;
	int err = move_parts(it, fd, true);

	for (size_t i = 0; i < it->nparts; i++)
		if (it->parts[i].offset + it->parts[i].len > end)
			end = it->parts[i].offset + it->parts[i].len;
	if (!err && end < size && ftruncate(fd, (off_t)size))
		err = kvcachefs_fail(-errno, "%s", strerror(errno));
	return err;
}

int kvcachefs_parts_read(const struct kvcachefs_item *it, int fd)
{
	return move_parts(it, fd, false);
}

/* ---- Pages ---- */

size_t kvcachefs_pages_parts(const struct kvcachefs_pages *tensors, size_t ntensors,
			     const int64_t *ids, size_t n, bool by_block,
			     struct kvcachefs_part *out, uint64_t *size)
{
	size_t outer = by_block ? n : ntensors, inner = by_block ? ntensors : n, made = 0;
	uint64_t offset = 0;

	for (size_t i = 0; i < outer; i++)
		for (size_t k = 0; k < inner; k++) {
			const struct kvcachefs_pages *t = &tensors[by_block ? k : i];
			int64_t id = ids[by_block ? i : k];
			struct kvcachefs_part *last = made ? &out[made - 1] : NULL;
			char *at = (char *)t->at + (uint64_t)id * t->stride;

			if (id >= 0 && last && (char *)last->at + last->len == at &&
			    last->offset + last->len == offset)
				last->len += t->len;
			else if (id >= 0)
				out[made++] = (struct kvcachefs_part){ at, t->len, offset };
			offset += t->len;
		}
	if (size)
		*size = offset;
	return made;
}
