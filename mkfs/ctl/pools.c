/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl pools: lists the pools in memory and frees them. Pools whose stores exist are never
 * freed: files that a killed daemon had acknowledged may be only in its pool until its store is
 * mounted again. A pool without a mark, whose store is not known, is freed only if it is named.
 */
#include "ctl.h"

#include "json.h"
#include "pools.h"
#include "quote.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>

struct found {
	struct kvm_pool *v;
	size_t n, capacity;
};

static int collect(void *arg, const struct kvm_pool *p)
{
	struct found *all = arg;

	for (size_t i = 0; i < all->n; i++)
		if (!strcmp(all->v[i].path, p->path))
			return 0;
	if (kvc_grow(&all->v, all->n, &all->capacity, sizeof *all->v))
		return -ENOMEM;
	all->v[all->n++] = *p;
	return 0;
}

static uint64_t age(const struct kvm_pool *p)
{
	time_t now = (time_t)(kvc_now_ns() / 1000000000);

	return now > p->changed ? (uint64_t)(now - p->changed) : 0;
}

static const char *what_is(const struct kvm_pool *p)
{
	return !p->marked ? "unknown" : p->lives ? "used" : p->wanted ? "kept" : "free";
}

static void print_store(const struct kvm_pool *p)
{
	printf("%s", p->lives    ? "in use by the store "
		     : p->wanted ? "kept for the store "
				 : "free; its store no longer exists: ");
	kvc_quote_line(stdout, p->owner.dir);
	putchar('\n');
}

static void print_pools(const struct kvm_pool *p)
{
	char size[32], old[32];

	kvc_quote_line(stdout, p->path);
	printf(" %s, %llu object%s, ", kvc_size_text(p->bytes, size), (unsigned long long)p->files,
	       p->files == 1 ? "" : "s");
	if (!p->lives)
		printf("last changed %s ago, ", kvm_time_text(age(p), old));
	if (!p->marked)
		printf("created by an older daemon, or not a pool\n");
	else
		print_store(p);
}

static void print_pools_json(struct kvm_json *j, const struct kvm_pool *p)
{
	kvm_json_begin(j, NULL, '{');
	kvm_json_text(j, "path", p->path);
	kvm_json_text(j, "is", what_is(p));
	kvm_json_text(j, "store", p->marked ? p->owner.dir : NULL);
	kvm_json_text(j, "uuid", p->marked ? p->owner.uuid : NULL);
	kvm_json_number(j, "bytes", p->bytes);
	kvm_json_number(j, "objects", p->files);
	kvm_json_number(j, "age_s", age(p));
	kvm_json_bool(j, "mounted", p->mounted);
	kvm_json_end(j, '}');
}

static int list(const struct found *all, bool json)
{
	struct kvm_json j = { stdout, false };

	if (json) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_begin(&j, "pools", '[');
	}
	for (size_t i = 0; i < all->n; i++)
		if (json)
			print_pools_json(&j, &all->v[i]);
		else
			print_pools(&all->v[i]);
	if (json) {
		kvm_json_end(&j, ']');
		kvm_json_end(&j, '}');
		putchar('\n');
	} else if (!all->n) {
		printf("no pools found\n");
	}
	return 0;
}

/* Checks whether a pool that the user named may be freed. Returns 0, or 1 after a message. */
static int check_free(const struct kvm_pool *p)
{
	if (p->lives)
		return kvm_fail("%s is in use by the daemon of %s; unmount that store to free it",
				p->path, p->owner.dir);
	if (p->wanted)
		return kvm_fail("%s has data of the store %s that may have no other copy: mount "
				"and unmount that store, which copies the data and frees the pool",
				p->path, p->owner.dir);
	return 0;
}

/* Reduces the list of pools to those to free: the named pools, or all pools without a store. */
static int select_pools(struct found *all, int n, char **names)
{
	size_t left = 0;
	int failed = 0;

	for (int i = 0; i < n; i++) {
		size_t at = 0;

		while (at < all->n && strcmp(all->v[at].path, names[i]) != 0)
			at++;
		failed |= at == all->n
				  ? kvm_fail("%s is not a pool; kvcachectl pools lists the pools",
					     names[i])
				  : check_free(&all->v[at]);
	}
	for (size_t at = 0; at < all->n && !failed; at++) {
		const struct kvm_pool *p = &all->v[at];
		bool named = false;

		for (int i = 0; i < n; i++)
			named |= !strcmp(p->path, names[i]);
		if (n ? named : p->marked && !p->lives && !p->wanted)
			all->v[left++] = *p;
	}
	all->n = left;
	return failed;
}

static int free_them(const struct found *all, bool yes)
{
	char size[32];
	int failed = 0;

	for (size_t i = 0; i < all->n; i++)
		print_pools(&all->v[i]);
	if (!all->n) {
		printf("no pool can be freed\n");
		return 0;
	}
	fprintf(stderr, "Freeing these pools deletes their data. Do not free the pool of a store "
			"whose disk is temporarily not mounted.\n");
	if (kvm_confirm(yes))
		return 1;
	for (size_t i = 0; i < all->n; i++) {
		const struct kvm_pool *p = &all->v[i];
		int err = kvm_pool_free(p);

		if (err)
			failed = kvm_fail("%s is not freed: %s", p->path,
					  err == -EBUSY    ? "it is in use"
					  : err == -ESTALE ? "its store exists again"
							   : kvc_why(-err));
		else {
			kvc_quote_line(stdout, p->path);
			printf(" freed, %s\n", kvc_size_text(p->bytes, size));
		}
	}
	return failed;
}

/* Collects the pools that are mounts, and the others in the folder; NULL: the usual folder. */
static int search(const char *folder, struct found *all)
{
	int err = kvm_pools_each(folder, collect, all);

	return err ? kvm_fail("cannot search for pools in %s: %s", folder ?: "/proc/self/mountinfo",
			      kvc_why(-err))
		   : 0;
}

/* Searches the usual folder, and the folder of each pool that the user named. */
static int search_beside(int n, char **names, struct found *all)
{
	int err = search(NULL, all);

	for (int i = 0; i < n && !err; i++) {
		KVC_MEM char *name = strdup(names[i]);

		err = name ? search(dirname(name), all) : kvm_fail("out of memory");
	}
	return err;
}

int kvm_run_pools(int argc, char **argv)
{
	bool give = false, yes = false, json = false;
	const struct kvm_option options[] = {
		{ "free", &give, NULL }, { "yes", &yes, NULL }, { "json", &json, NULL }, { 0 }
	};
	struct found all = { 0 };
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (!give && argc > 1)
		return kvm_misused("pools: give at most one folder");
	if (yes && !give)
		return kvm_misused("pools: --yes needs --free");
	if (json && give)
		return kvm_misused("pools: --json and --free cannot be combined");
	err = give ? search_beside(argc, argv, &all) : search(argc ? argv[0] : NULL, &all);
	if (!err)
		err = give ? select_pools(&all, argc, argv) ?: free_them(&all, yes)
			   : list(&all, json);
	free(all.v);
	return err;
}
