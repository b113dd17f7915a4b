/* SPDX-License-Identifier: Apache-2.0 */
/* Failing allocations (alloc.h). */
#include "alloc.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

#define PIECES (1u << 16) /* allocations that are tracked at a time */

_Atomic long alloc_met, alloc_failed;
static _Atomic bool armed;
static long fail_at;
static bool for_ever;

/* Allocations made while armed and not freed yet: by address, in a hash table. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *piece[PIECES];
static long npieces;

static bool fails(void)
{
	long n;

	if (!armed)
		return false;
	n = ++alloc_met;
	if (!fail_at || (for_ever ? n < fail_at : n != fail_at))
		return false;
	alloc_failed++;
	errno = ENOMEM;
	return true;
}

static unsigned place(const void *p)
{
	return (unsigned)((uintptr_t)p >> 4) * 2654435761u % PIECES;
}

static void *came(void *p)
{
	if (!p || !armed)
		return p;
	pthread_mutex_lock(&lock);
	for (unsigned i = place(p), n = 0; n < PIECES; i = (i + 1) % PIECES, n++)
		if (!piece[i] || piece[i] == &piece) {
			piece[i] = p;
			npieces++;
			break;
		}
	pthread_mutex_unlock(&lock);
	return p;
}

static void went(const void *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&lock);
	for (unsigned i = place(p), n = 0; npieces && n < PIECES && piece[i];
	     i = (i + 1) % PIECES, n++)
		if (piece[i] == p) {
			piece[i] = &piece; /* a deleted entry: searches continue past it */
			npieces--;
			break;
		}
	pthread_mutex_unlock(&lock);
}

void alloc_arm(long at, bool ever)
{
	pthread_mutex_lock(&lock);
	memset(piece, 0, sizeof piece);
	npieces = 0;
	pthread_mutex_unlock(&lock);
	alloc_met = alloc_failed = 0;
	fail_at = at;
	for_ever = ever;
	armed = true;
}

void alloc_disarm(void)
{
	armed = false;
}

long alloc_left(void)
{
	return npieces;
}

bool alloc_none(int err)
{
	if (!err)
		return false;
	assert_int_equal(err, -ENOMEM);
	assert_true(alloc_failed > 0);
	return true;
}

void alloc_sweep(const char *what, void (*work)(void), long most, bool leaks)
{
	long calls, step, runs = 0, hit = 0;

	alloc_arm(0, false);
	work();
	alloc_disarm();
	calls = alloc_met;
	assert_true(calls > 0);
	step = most && calls > most ? calls / most : 1;
	for (long at = 1; at <= calls; at += step)
		for (int ever = 0; ever < 2; ever++) {
			alloc_arm(at, ever);
			work();
			alloc_disarm();
			runs++;
			hit += alloc_failed > 0;
			if (leaks && alloc_left())
				fail_msg("%s: allocation %ld failed (%s): %ld were not freed", what,
					 at, ever ? "and all later ones" : "once", alloc_left());
		}
	print_message("%s: %ld allocations, %ld runs, %ld without memory\n", what, calls, runs,
		      hit);
	assert_true(hit > runs / 2);
}

/* ---- replacements of the library's functions ---- */

/* The linker reserves these names for programs that use them (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
#define WRAP(type, name, parameters, arguments)                        \
	type *__real_##name parameters;                                \
	type *__wrap_##name parameters;                                \
	type *__wrap_##name parameters                                 \
	{                                                              \
		return fails() ? NULL : came(__real_##name arguments); \
	}
WRAP(void, malloc, (size_t n), (n))
WRAP(void, calloc, (size_t n, size_t each), (n, each))
WRAP(void, aligned_alloc, (size_t to, size_t n), (to, n))
WRAP(char, strdup, (const char *s), (s))
WRAP(char, strndup, (const char *s, size_t n), (s, n))

#define WRAP_OF(type, name, parameters, arguments)               \
	type *__real_##name parameters;                          \
	type *__wrap_##name parameters;                          \
	type *__wrap_##name parameters                           \
	{                                                        \
		return fails() ? NULL : __real_##name arguments; \
	}
WRAP_OF(ZSTD_CCtx, ZSTD_createCCtx, (void), ())
WRAP_OF(ZSTD_DCtx, ZSTD_createDCtx, (void), ())
WRAP_OF(EVP_CIPHER_CTX, EVP_CIPHER_CTX_new, (void), ())
WRAP_OF(EVP_MAC_CTX, EVP_MAC_CTX_new, (EVP_MAC * m), (m))
WRAP_OF(EVP_KDF, EVP_KDF_fetch, (OSSL_LIB_CTX * c, const char *a, const char *p), (c, a, p))
WRAP_OF(EVP_KDF_CTX, EVP_KDF_CTX_new, (EVP_KDF * k), (k))

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
	void *q;

	if (fails())
		return NULL;
	went(p);
	q = __real_realloc(p, n);
	return came(q);
}

void *__real_reallocarray(void *p, size_t n, size_t each);
void *__wrap_reallocarray(void *p, size_t n, size_t each);
void *__wrap_reallocarray(void *p, size_t n, size_t each)
{
	void *q;

	if (fails())
		return NULL;
	went(p);
	q = __real_reallocarray(p, n, each);
	return came(q);
}

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p)
{
	went(p);
	__real_free(p);
}
/* NOLINTEND(bugprone-reserved-identifier) */
