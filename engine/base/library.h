/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libraries that a program is linked with, for --version. The file that uses a library reports
 * its version, so that no other file needs the library's header.
 */
#ifndef KVC_LIBRARY_H
#define KVC_LIBRARY_H

#include <stddef.h>
#include <stdio.h>

struct kvc_library {
	const char *name;
	const char *version; /* the version at run time, if the library reports it */
	/*
	 * an address in the library, which shows whether the library is part of the program; NULL:
	 * it always is, because it consists of headers
	 */
	const void *symbol;
};

struct kvc_library kvc_util_library(void);    /* util.c */
struct kvc_library kvc_codec_library(void);   /* codec.c */
struct kvc_library kvc_keys_library(void);    /* keys.c */
struct kvc_library kvc_catalog_library(void); /* catalog_check.c */

/*
 * Prints one line for each of the n libraries, for libc, and for each other shared library that the
 * program links directly, by its file name. A static library is marked. Takes no locks; has no
 * errors.
 */
void kvc_library_put_all(FILE *out, const struct kvc_library *libraries, size_t n);

#endif
