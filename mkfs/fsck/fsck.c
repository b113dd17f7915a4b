/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck.kvcachefs [-n|-y] [--data] [--rebuild] [--device PATH]... [--forget DEVICE]... STORE: checks
 * a store that is not mounted. It checks, in this order: the superblock, the labels and sizes of
 * the devices, the pages of the database, the rules of the catalog, each placement against its
 * frame, overlapping extents, the usage total, and frames without a placement. Exit status: 0 no
 * problems, 1 all repaired, 4 problems remain; plus 8 if something could not be read or done.
 */
#include "fsck.h"

#include "device.h"
#include "quote.h"
#include "registry.h"
#include "tool.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void usage(FILE *out)
{
	fprintf(out,
		"usage: fsck.kvcachefs [-n | -y] [--data] [--rebuild] [--device PATH]...\n"
		"                      [--forget DEVICE]... STORE\n"
		"Checks a kvcachefs store that is not mounted.\n\n"
		"  -n, --no-change    only check, and change nothing (the default without "
		"--rebuild)\n"
		"  -y, --yes          repair all errors that can be repaired\n"
		"      --data         also read all data in the disk tier and verify its "
		"checksums\n"
		"      --rebuild      build a new catalog (the list of files) from the disk tier;\n"
		"                     links, extended attributes and empty folders are lost\n"
		"      --device PATH  current path of a device or data file that has moved; fsck\n"
		"                     identifies the device by its label\n"
		"      --forget DEVICE  with -y or --rebuild: remove a lost device, given by its\n"
		"                     path or number, from the store\n"
		"  -h, --help         show this help\n"
		"  -V, --version      show the version\n"
		"\nExamples:\n"
		"  fsck.kvcachefs /var/lib/kvcache\n"
		"  fsck.kvcachefs -y --data /var/lib/kvcache\n");
}

void kvm_found(void *report, bool mended, const char *what)
{
	struct kvm_report *r = report;

	r->found++;
	r->mended += mended;
	kvc_quote_line(stdout, what);
	printf("%s\n", mended ? " (repaired)" : "");
}

void kvm_foundf(struct kvm_report *r, bool mended, const char *format, ...)
{
	char text[4600];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	kvm_found(r, mended, text);
}

void kvm_unread(struct kvm_report *r, int err, const char *format, ...)
{
	char text[4600]; /* a path and a message */
	va_list ap;

	r->unread++;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	kvc_quote_line(stdout, text);
	printf(": %s (not changed)\n", strerror(-err));
}

void kvm_hole(void *holes, uint64_t at, uint64_t len, int err)
{
	struct kvm_holes *h = holes;
	struct kvm_hole *last = h->n ? &h->v[h->n - 1] : NULL;

	if (last && last->at + last->len == at && last->err == err)
		last->len += len;
	else if (kvc_grow(&h->v, h->n, &h->capacity, sizeof *h->v))
		h->err = -ENOMEM;
	else
		h->v[h->n++] = (struct kvm_hole){ at, len, err };
}

static int status(const struct kvm_report *r)
{
	int rc = !r->found ? 0 : r->mended >= r->found ? 1 : 4;

	return rc | (r->unread ? 8 : 0);
}

/* Prints the last line of a check, and returns the exit status. */
static int conclude(const struct kvm_report *r, const char *path, bool rebuild)
{
	int rc = status(r);

	if (r->unread)
		printf("%s: %u items could not be read or written and are unchanged\n", path,
		       r->unread);
	if (rebuild)
		return rc & 8;
	if (r->found || !r->unread)
		printf("%s: %s\n", path,
		       !r->found ? "no errors found"
		       : rc & 1  ? "all errors are repaired"
		       : r->mend ? "errors were found that could not be repaired"
				 : "errors were found; -y repairs them");
	return rc;
}

static void put_version(void)
{
	struct kvc_library sqlite = kvc_catalog_library();

	kvct_put_version(stdout, kvm_name, &sqlite, 1);
}

/* Adds the argument of an option. Returns 0, or 1 after a message. */
static int add_device(struct kvm_devices *d, const char *path)
{
	if (d->n == KVC_DEVICES)
		return kvm_fail("a store has at most %d devices", KVC_DEVICES);
	/* a number may be given, too */
	if (*path >= '0' && *path <= '9' && strspn(path, "0123456789") == strlen(path)) {
		snprintf(d->path[d->n++], sizeof d->path[0], "%s", path);
		return 0;
	}
	return kvm_device_path(path, d->path[d->n++]);
}

/* Returns 1 after a message if the options do not fit together. */
static int check_arguments(int stores, bool look, bool rebuild, bool forget,
			   const struct kvm_report *r)
{
	if (stores != 1)
		return kvm_fail("give one store, not %d arguments; see fsck.kvcachefs --help",
				stores);
	if (look && (r->mend || rebuild))
		return kvm_fail("-n and %s cannot be combined: give one of them",
				rebuild ? "--rebuild" : "-y");
	if (forget && !r->mend && !rebuild)
		return kvm_fail("--forget changes the store: give -y with it");
	return 0;
}

int main(int argc, char **argv)
{
	enum { DATA = 256, REBUILD, DEVICE, FORGET };
	static const struct option longs[] = {
		{ "no-change", 0, 0, 'n' },
		{ "yes", 0, 0, 'y' },
		{ "data", 0, 0, DATA },
		{ "rebuild", 0, 0, REBUILD },
		{ "device", 1, 0, DEVICE },
		{ "forget", 1, 0, FORGET },
		{ "help", 0, 0, 'h' },
		{ "version", 0, 0, 'V' },
		{ 0 },
	};
	struct kvm_report r = { 0 };
	struct kvc_store s;
	char error[512] = "", catalog[1280];
	struct kvm_devices given = { .n = 0 }, lost = { .n = 0 };
	bool data = false, rebuild = false, look = false;
	int c, err;

	kvm_name = "fsck.kvcachefs";
	while ((c = getopt_long(argc, argv, ":nyahVTM", longs, NULL)) != -1)
		switch (c) {
		case 'n': look = true; break;
		case 'y':
		case 'a': r.mend = true; break;
		case DATA: data = true; break;
		case REBUILD: rebuild = true; break;
		case DEVICE:
		case FORGET:
			if (add_device(c == DEVICE ? &given : &lost, optarg))
				return 8;
			break;
		case 'T':
		case 'M': break; /* fsck(8) passes these */
		case 'h': usage(stdout); return 0;
		case 'V': put_version(); return 0;
		default:
			kvc_getopt_error(c, argv, longs, kvm_name, error);
			kvm_fail("%s", error);
			return 8;
		}
	if (check_arguments(argc - optind, look, rebuild, lost.n, &r))
		return 8;
	r.mend |= rebuild;
	if ((err = kvm_open(&s, argv[optind], &given, &lost, &r, error))) {
		kvm_fail("%s", *error ? error : kvc_why(-err));
		return err == -EBADMSG ? 4 : 8;
	}
	if (!rebuild && kvc_check_format(kvm_catalog(&s, catalog), error)) {
		kvm_fail("%s", error);
		kvc_store_close(&s);
		return 8;
	}
	err = rebuild ? kvm_rebuild(&s, &r) : kvm_check(&s, data, &r);
	kvc_store_close(&s);
	if (err) {
		if (kvc_store_bound(&s, error))
			kvm_fail("%s", error);
		else
			kvm_fail("%s: %s; only the repairs reported above were made", argv[optind],
				 kvc_why(-err));
		return 8 | (r.mended ? 1 : 0);
	}
	return conclude(&r, argv[optind], rebuild);
}
