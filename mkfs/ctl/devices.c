/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl devices, add, grow and remove: show and change the devices of a mounted store. The
 * daemon makes the changes (engine/jobs/devices.c). Here a device is examined before it is added:
 * the daemon does not know filesystems.
 */
#include "set.h"

#include "device.h"
#include "json.h"
#include "quote.h"
#include "store.h"
#include "units.h"

#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

/* A line of .kvcachefs/devices. */
struct device_line {
	unsigned nr;
	char state[16];
	uint64_t bytes, used, errors;
	const char *path;
};

static bool parse_line(const char *line, struct device_line *d)
{
	int at = 0;

	if (sscanf(line, "%u %15s %" SCNu64 " %" SCNu64 " %" SCNu64 " %n", &d->nr, d->state,
		   &d->bytes, &d->used, &d->errors, &at) != 5 ||
	    !at)
		return false;
	d->path = line + at;
	return true;
}

void kvm_devices_json(struct kvm_json *j, char *text)
{
	char *save, *line = strtok_r(text, "\n", &save); /* column names */
	struct device_line d;

	kvm_json_begin(j, "devices", '[');
	while (line && (line = strtok_r(NULL, "\n", &save)))
		if (parse_line(line, &d)) {
			kvm_json_begin(j, NULL, '{');
			kvm_json_number(j, "device", d.nr);
			kvm_json_text(j, "path", d.path);
			kvm_json_text(j, "state", d.state);
			kvm_json_number(j, "bytes", d.bytes);
			kvm_json_number(j, "used_bytes", d.used);
			kvm_json_number(j, "errors", d.errors);
			kvm_json_end(j, '}');
		}
	kvm_json_end(j, ']');
}

void kvm_devices_print(char *text)
{
	static const struct {
		const char *state, *words;
	} states[] = {
		{ "fails", "reads and writes fail" },
		{ "reads-fail", "reads fail" },
		{ "writes-fail", "writes fail" },
		{ "leaving", "is being removed, and gets no new files" },
	};
	char *save, *line = strtok_r(text, "\n", &save);
	struct device_line d;

	while (line && (line = strtok_r(NULL, "\n", &save)))
		for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
			if (parse_line(line, &d) && !strcmp(d.state, states[i].state)) {
				printf("device %u, ", d.nr);
				kvc_quote_line(stdout, d.path);
				printf(": %s\n", states[i].words);
			}
}

static void put_json(const char *mnt, char *text)
{
	struct kvm_json j = { stdout, false };

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", mnt);
	kvm_devices_json(&j, text);
	kvm_json_end(&j, '}');
	putchar('\n');
}

static void put_table(char *text)
{
	char *save, *line = strtok_r(text, "\n", &save);
	struct device_line d;
	char a[32], b[32];

	printf("%-6s %-11s %11s %11s %4s %8s  %s\n", "DEVICE", "STATE", "SIZE", "USED", "%",
	       "ERRORS", "PATH");
	while (line && (line = strtok_r(NULL, "\n", &save)))
		if (parse_line(line, &d)) {
			printf("%-6u %-11s %11s %11s %4" PRIu64 " %8" PRIu64 "  ", d.nr, d.state,
			       kvc_size_text(d.bytes, a), kvc_size_text(d.used, b),
			       d.bytes ? d.used * 100 / d.bytes : 0, d.errors);
			kvc_quote_line(stdout, d.path);
			putchar('\n');
		}
}

int kvm_run_devices(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	char mnt[KVM_PATH], *text = NULL;
	int err = kvm_options(&argc, argv, options);

	if (err || (err = kvm_mount_of(argc ? argv[0] : NULL, mnt)) ||
	    (err = kvm_mount_text(mnt, "devices", &text)))
		return err;
	if (json)
		put_json(mnt, text);
	else
		put_table(text);
	free(text);
	return 0;
}

/* Is the path of a new file in the mount whose store is to use it? */
static bool in_mount(const char *path, const char *mnt)
{
	KVC_MEM char *copy = strdup(path);
	struct stat folder, root;

	return copy && !stat(dirname(copy), &folder) && !stat(mnt, &root) &&
	       folder.st_dev == root.st_dev;
}

/* Sets *kind of a device to be added, and checks that it may be overwritten. */
static int examine(const char *path, const char *mnt, uint64_t size, bool force,
		   enum kvc_device_kind *kind)
{
	struct stat st;
	KVC_FD int fd = -1;

	*kind = KVC_DEVICE_FILE;
	if (stat(path, &st)) {
		if (errno != ENOENT)
			return kvm_fail("cannot examine %s: %s", path, kvc_why(errno));
		if (!strncmp(path, "/dev/", 5) && strncmp(path, "/dev/shm/", 9) != 0)
			return kvm_fail("there is no device %s", path);
		if (in_mount(path, mnt))
			return kvm_fail("%s is in the mount whose data it would hold; give a path "
					"outside of %s",
					path, mnt);
		return size ? 0
			    : kvm_fail("%s does not exist: to make a data file of that name, give "
				       "--size",
				       path);
	}
	if (!S_ISBLK(st.st_mode))
		return kvm_fail("%s exists and is not a block device: give a device, or the name "
				"of a new file",
				path);
	*kind = KVC_DEVICE_BLOCK;
	if (force)
		return 0;
	fd = open(path, O_RDONLY | O_EXCL | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return kvm_fail("cannot open the device %s: %s", path,
				errno == EBUSY ? "it is in use" : kvc_why(errno));
	return kvm_device_empty(fd, path);
}

/* Starts the job in the daemon and waits for its end. A device may be a number. */
static int change(const char *name, const char *inside, enum kvc_device_kind kind, uint64_t size,
		  bool force, const char *device, bool json)
{
	char words[1024 + 64];

	snprintf(words, sizeof words, "%s %d %" PRIu64 " %d %s", name, (int)kind, size, force,
		 device);
	return kvm_sweep(name, inside, words, json);
}

bool kvm_devices_result(const char *name, const char *text)
{
	uint64_t changed = kvm_sweep_value(text, "changed"), lost = kvm_sweep_value(text, "lost");
	uint64_t evicted = kvm_sweep_value(text, "evicted");
	char size[32];

	kvc_size_text(kvm_sweep_value(text, "bytes"), size);
	if (!strcmp(name, "add"))
		printf("added %s\n", size);
	else if (!strcmp(name, "grow") && changed)
		printf("%" PRIu64 " %s grown, to %s\n", changed,
		       changed == 1 ? "device has" : "devices have", size);
	else if (!strcmp(name, "grow"))
		puts("no device has more space than before");
	else if (!strcmp(name, "remove"))
		printf("removed; %" PRIu64 " files, %s, were moved\n", changed, size);
	else if (!strcmp(name, "stay"))
		puts(changed ? "the device stays" : "the device was not being removed");
	else
		return false;
	if (evicted)
		printf("%" PRIu64 " chunks were evicted from the tiers during the removal, for "
		       "lack of space\n",
		       evicted);
	if (lost)
		printf("%" PRIu64 " files could not be read and were dropped\n", lost);
	return true;
}

static int device_arg(const char *text, char path[1024])
{
	if (*text >= '0' && *text <= '9' && strspn(text, "0123456789") == strlen(text)) {
		snprintf(path, 1024, "%s", text);
		return 0;
	}
	return kvm_device_path(text, path);
}

int kvm_run_add(int argc, char **argv)
{
	const char *size = NULL;
	bool json = false, force = false;
	const struct kvm_option options[] = {
		{ "json", &json, NULL },
		{ "force", &force, NULL },
		{ "size", NULL, &size },
		{ 0 },
	};
	char path[1024], mnt[KVM_PATH];
	enum kvc_device_kind kind;
	uint64_t bytes = 0;
	int err = kvm_options(&argc, argv, options);

	if (err || (size && (err = kvm_size_arg("--size", size, KVC_STORE_MIN_SIZE,
						"a size of at least 16M, such as 500G", &bytes))))
		return err;
	if ((err = kvm_mount_of(argc > 1 ? argv[1] : NULL, mnt)))
		return err;
	return kvm_device_path(argv[0], path) ?: examine(path, mnt, bytes, force, &kind)
	       ?: change("add", mnt, kind, bytes, force, path, json);
}

int kvm_run_grow(int argc, char **argv)
{
	const char *size = NULL, *device = NULL;
	bool json = false;
	const struct kvm_option options[] = {
		{ "json", &json, NULL },
		{ "device", NULL, &device },
		{ "size", NULL, &size },
		{ 0 },
	};
	char path[1024] = "";
	uint64_t bytes = 0;
	int err = kvm_options(&argc, argv, options);

	if (err || (size && (err = kvm_size_arg("--size", size, KVC_STORE_MIN_SIZE,
						"a size of at least 16M, such as 500G", &bytes))))
		return err;
	if (device && device_arg(device, path))
		return 1;
	return change("grow", argc ? argv[0] : NULL, KVC_DEVICE_NONE, bytes, false, path, json);
}

/*
 * Asks before a removal that evicts chunks, because the other devices have too little space for
 * the files of this one. Returns 0 to go on, or 1 after a message.
 */
static int confirm_evictions(const char *mnt, const char *device, bool yes)
{
	uint64_t used = 0, space = 0, chunks, bytes;
	char *save, *line, size[32];
	const char *path = device;
	KVC_MEM char *text = NULL;
	struct device_line d;
	bool found = false;

	if (kvm_mount_text(mnt, "devices", &text))
		return 1;
	line = strtok_r(text, "\n", &save); /* column names */
	while (line && (line = strtok_r(NULL, "\n", &save))) {
		char nr[16];

		if (!parse_line(line, &d))
			continue;
		snprintf(nr, sizeof nr, "%u", d.nr);
		if (!strcmp(device, nr) || !strcmp(device, d.path)) {
			found = true;
			path = d.path;
			used = d.used;
		} else if (!strcmp(d.state, "up")) {
			space += d.bytes - kvc_min(d.used, d.bytes);
		}
	}
	if (!found || used <= space || !space) /* the daemon refuses a last or unknown device */
		return 0;
	if (yes)
		return 0;
	if (kvm_set_count(mnt, &chunks, &bytes))
		return 1;
	used -= space;
	if (used < bytes)
		chunks = (uint64_t)((double)chunks * ((double)used / (double)bytes));
	fprintf(stderr,
		"%s: evicts about %" PRIu64 " chunks, %s, that do not fit elsewhere: ", path,
		kvc_max(chunks, 1), kvc_size_text(used, size));
	return kvm_confirm(false);
}

int kvm_run_remove(int argc, char **argv)
{
	bool json = false, force = false, cancel = false, stop = false, yes = false;
	const struct kvm_option options[] = {
		{ "yes", &yes, NULL },       { "json", &json, NULL }, { "force", &force, NULL },
		{ "cancel", &cancel, NULL }, { "stop", &stop, NULL }, { 0 },
	};
	char path[1024], mnt[KVM_PATH], answer[512];
	const char *inside;
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (force + cancel + stop > 1)
		return kvm_misused("remove: give one of --force, --cancel and --stop");
	inside = argc > 1 ? argv[1] : NULL;
	if (stop)
		return kvm_mount_of(inside, mnt)
			       ?: kvm_control(mnt, "stop remove", answer, sizeof answer);
	if ((err = kvm_mount_of(inside, mnt)) || device_arg(argv[0], path))
		return err ?: 1;
	if (!cancel && confirm_evictions(mnt, path, yes))
		return 1;
	return change(cancel ? "stay" : "remove", inside, KVC_DEVICE_NONE, 0, force, path, json);
}
