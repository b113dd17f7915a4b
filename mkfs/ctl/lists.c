/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl pins and quotas: lists of the pins and quotas that are set. */
#include "item.h"

#include "json.h"
#include "quote.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list {
	bool json;
	struct kvm_json j;
	uint64_t n, bytes;
};

static void list_begin(struct list *l, const char *mnt, const char *name)
{
	l->j = (struct kvm_json){ stdout, false };
	if (!l->json)
		return;
	kvm_json_begin(&l->j, NULL, '{');
	kvm_json_text(&l->j, "mount", mnt);
	kvm_json_begin(&l->j, name, '[');
}

static void list_end(struct list *l)
{
	kvm_json_end(&l->j, ']');
	kvm_json_end(&l->j, '}');
	putchar('\n');
}

static int show_pin(void *arg, const char *path, const struct kvm_item *it)
{
	struct list *l = arg;
	char value[KVM_VALUE], size[32], time[32];
	uint64_t s;

	if (kvm_item_attr(path, "pin", value, NULL) <= 0 || !(s = strtoull(value, NULL, 10)))
		return 0;
	l->n++;
	l->bytes += it->bytes;
	if (l->json) {
		kvm_json_begin(&l->j, NULL, '{');
		kvm_json_text(&l->j, "path", path);
		kvm_json_number(&l->j, "bytes", it->bytes);
		kvm_json_number(&l->j, "files", it->files);
		kvm_json_number(&l->j, "pin", s);
		kvm_json_end(&l->j, '}');
		return 0;
	}
	if (l->n == 1)
		printf("%10s %6s %-8s %s\n", "SIZE", "FILES", "PIN", "NAME");
	printf("%10s %6" PRIu64 " %-8s ", kvc_size_text(it->bytes, size), it->files,
	       s == 1 ? "for ever" : kvm_time_text(s, time));
	kvc_quote_line(stdout, path);
	putchar('\n');
	return 0;
}

int kvm_run_pins(int argc, char **argv)
{
	struct list l = { .json = false };
	const struct kvm_option options[] = { { "json", &l.json, NULL }, { 0 } };
	char mnt[KVM_PATH], size[32];
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (kvm_mount_of(argc ? argv[0] : NULL, mnt))
		return 1;
	list_begin(&l, mnt, "pins");
	err = kvm_item_each_chunk(argc ? argv[0] : mnt, show_pin, &l);
	if (l.json)
		list_end(&l);
	else if (!err)
		printf("%" PRIu64 " pinned chunk%s, %s\n", l.n, l.n == 1 ? "" : "s",
		       kvc_size_text(l.bytes, size));
	return err;
}

/* Returns 0, or the negative errno of an attribute that could not be read. */
static int show_quota(struct list *l, const char *path, const char *name)
{
	char quota[KVM_VALUE], used[KVM_VALUE], a[32], b[32];
	int has = kvm_item_attr(path, "quota", quota, NULL);
	uint64_t q, u;

	if (has <= 0)
		return has;
	if ((has = kvm_item_attr(path, "used", used, NULL)) < 0)
		return has;
	q = strtoull(quota, NULL, 10);
	u = has ? strtoull(used, NULL, 10) : 0;
	if (l->json) {
		kvm_json_begin(&l->j, NULL, '{');
		kvm_json_text(&l->j, "model", name);
		kvm_json_number(&l->j, "quota", q);
		kvm_json_number(&l->j, "used", u);
		kvm_json_end(&l->j, '}');
	} else {
		if (!l->n)
			printf("%10s %10s %6s %s\n", "USED", "QUOTA", "FULL", "MODEL");
		printf("%10s %10s %5.1f%% ", kvc_size_text(u, a), kvc_size_text(q, b),
		       100 * (double)u / (double)kvc_max(q, 1));
		kvc_quote_line(stdout, name);
		putchar('\n');
	}
	l->n++;
	return 0;
}

int kvm_run_quotas(int argc, char **argv)
{
	struct list l = { .json = false };
	const struct kvm_option options[] = { { "json", &l.json, NULL }, { 0 } };
	char mnt[KVM_PATH], path[KVM_PATH + 258];
	struct dirent **e = NULL;
	int n, err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (kvm_mount_of(argc ? argv[0] : NULL, mnt))
		return 1;
	if ((n = scandir(mnt, &e, NULL, alphasort)) < 0)
		return kvm_fail("%s: %s", mnt, kvc_why(errno));
	list_begin(&l, mnt, "quotas");
	for (int i = 0; i < n; i++) {
		int failed = 0;

		snprintf(path, sizeof path, "%s/%s", mnt, e[i]->d_name);
		if (strcmp(e[i]->d_name, ".") != 0 && strcmp(e[i]->d_name, "..") != 0)
			failed = show_quota(&l, path, e[i]->d_name);
		if (failed)
			err = kvm_fail("%s: %s", path, kvc_why(-failed));
		free(e[i]);
	}
	free(e);
	if (l.json)
		list_end(&l);
	else if (!l.n && !err)
		puts("no model has a quota");
	return err;
}
