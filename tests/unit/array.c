/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing arrays: the content stays, from malloc to a mapping and beyond, and when memory runs out.
 */
#include "array.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#define MOST (16u << 20)
#define TABLE (2u << 20) /* mappings grow in these steps from here on, with some space to spare */

static bool none; /* no memory is left */

/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
	return none ? NULL : __real_realloc(p, n);
}

void *__real_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	return none ? MAP_FAILED : __real_mmap64(at, n, prot, flags, fd, off);
}

void *__real_mremap(void *p, size_t had, size_t n, int flags);
void *__wrap_mremap(void *p, size_t had, size_t n, int flags, ...);
void *__wrap_mremap(void *p, size_t had, size_t n, int flags, ...)
{
	assert_true(n < TABLE || n % TABLE == 0);
	return none ? MAP_FAILED : __real_mremap(p, had, n, flags);
}

/* NOLINTEND(bugprone-reserved-identifier) */

static void holds(const uint32_t *v, size_t n)
{
	assert_int_equal((uintptr_t)v % _Alignof(max_align_t), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(v[i], (uint32_t)(i * 2654435761u));
}

static void grows(void **state)
{
	uint32_t *v = NULL, *to;
	size_t n = 0;

	(void)state;
	for (size_t bytes = 4; bytes <= MOST; bytes = bytes * 5 / 4 + 4) {
		none = true;
		to = kvc_array_grow(v, bytes);
		assert_true(!to || (to == v && bytes > TABLE));
		none = false;
		holds(v, n);
		to = kvc_array_grow(v, bytes);
		assert_non_null(to);
		v = to;
		holds(v, n);
		for (; n < bytes / sizeof *v; n++)
			v[n] = (uint32_t)(n * 2654435761u);
		none = true;
		assert_ptr_equal(kvc_array_grow(v, bytes / 2), v); /* it has that size already */
		none = false;
	}
	kvc_array_free(v);
	kvc_array_free(NULL);
}

static void begins_with_zeros(void **state)
{
	uint8_t *v;

	(void)state;
	v = malloc(KVC_ARRAY_BIG); /* freed bytes that a new array must not contain */
	for (size_t i = 0; v && i < KVC_ARRAY_BIG; i++)
		((volatile uint8_t *)v)[i] = 1;
	free(v);
	v = kvc_array_grow(NULL, KVC_ARRAY_BIG);
	assert_non_null(v);
	for (size_t i = 0; i < KVC_ARRAY_BIG; i++)
		assert_int_equal(v[i], 0);
	kvc_array_free(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grows),
		cmocka_unit_test(begins_with_zeros),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
