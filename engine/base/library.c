/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libraries that --version prints. The program's own dynamic section names the shared libraries
 * that it is linked with, so none is missing. Libraries of libraries are not printed.
 */
#include "library.h"

#include "util.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_MAX = 64 };

/* A loaded shared library and its path, which is "" for the program itself. */
struct loaded {
	const char *path, *name;
	bool printed;
};

struct all {
	struct loaded of[SHARED_MAX];
	unsigned n;
	uintptr_t program; /* load address of the program itself */
};

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int add_loaded(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct all *all = arg;

	(void)size;
	if (!all->n)
		all->program = info->dlpi_addr; /* the first is the program */
	if (all->n < SHARED_MAX)
		all->of[all->n++] = (struct loaded){
			info->dlpi_name,
			last_part(info->dlpi_name),
			false,
		};
	return 0;
}

static struct loaded *find_loaded(struct all *all, const char *name)
{
	for (unsigned i = 1; i < all->n; i++)
		if (!strcmp(all->of[i].name, name))
			return &all->of[i];
	return NULL;
}

/* Returns the shared library that contains the symbol; NULL: the program contains it. */
static struct loaded *holder(struct all *all, const void *symbol)
{
	Dl_info at;

	if (!symbol || !dladdr(symbol, &at) || (uintptr_t)at.dli_fbase == all->program)
		return NULL;
	return find_loaded(all, last_part(at.dli_fname));
}

/*
 * Prints the libraries that the program names and that were not printed yet, except parts of libc.
 */
static void put_others(FILE *out, struct all *all)
{
	static const char *const of_libc[] = {
		"libm.", "libdl.", "libpthread.", "librt.", "libresolv.", "ld-linux",
	};
	const char *strings = NULL;

	for (const ElfW(Dyn) *d = _DYNAMIC; d->d_tag != DT_NULL; d++)
		/* the loader has relocated this address, on most machines */
		if (d->d_tag == DT_STRTAB)
			strings = (const char *)(d->d_un.d_ptr < all->program
							 ? d->d_un.d_ptr + all->program
							 : d->d_un.d_ptr);
	for (const ElfW(Dyn) *d = _DYNAMIC; strings && d->d_tag != DT_NULL; d++) {
		struct loaded *l = d->d_tag == DT_NEEDED ? find_loaded(all, strings + d->d_un.d_val)
							 : NULL;
		KVC_MEM char *real = l && !l->printed ? realpath(l->path, NULL) : NULL;
		bool part = false;

		for (size_t i = 0; real && i < sizeof of_libc / sizeof of_libc[0]; i++)
			part |= !strncmp(l->name, of_libc[i], strlen(of_libc[i]));
		if (real && !part)
			fprintf(out, "%s\n", last_part(real));
	}
}

void kvc_library_put_all(FILE *out, const struct kvc_library *libraries, size_t n)
{
	struct all all = { .n = 0 };
	struct loaded *l;

	dl_iterate_phdr(add_loaded, &all);
	for (size_t i = 0; i < n; i++) {
		l = holder(&all, libraries[i].symbol);
		if (l)
			l->printed = true;
		fprintf(out, "%s %s%s\n", libraries[i].name, libraries[i].version,
			l ? "" : ", linked statically");
	}
	l = holder(&all, (const void *)gnu_get_libc_version);
	if (l)
		l->printed = true;
	fprintf(out, "glibc %s\n", gnu_get_libc_version());
	put_others(out, &all);
}
