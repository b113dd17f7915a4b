/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl gpus: NVIDIA devices and their NUMA nodes, from sysfs. */
#include "ctl.h"

#include "json.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/*
 * Reads a number from a file in sysfs. Returns 0, -ENOENT (no such file) or another negative errno.
 */
static int read_number(const char *folder, const char *device, const char *name, long *v)
{
	char path[4200], text[32] = "", *end;
	FILE *f;
	int err;

	snprintf(path, sizeof path, "%s/%s/%s", folder, device, name);
	f = fopen(path, "re");
	if (!f)
		/* ENODEV: the device was just removed. ENOTDIR: not a device's folder. */
		return errno == ENODEV || errno == ENOTDIR ? -ENOENT : -errno;
	err = !fgets(text, sizeof text, f) && ferror(f) ? -errno : 0;
	fclose(f);
	if (err)
		return err == -ENODEV ? -ENOENT : err;
	*v = strtol(text, &end, 0);
	return end == text ? -ENOENT : 0;
}

/*
 * Returns 1 with *node (-1: no particular node) if the device is a GPU, 0 if not, or a negative
 * errno.
 */
static int is_gpu(const char *folder, const char *device, long *node)
{
	long vendor, class;
	int err = read_number(folder, device, "vendor", &vendor)
			  ?: read_number(folder, device, "class", &class);

	*node = -1;
	if (err)
		return err == -ENOENT ? 0 : err;
	if (vendor != 0x10de || class >> 16 != 3) /* NVIDIA; a display or 3D controller */
		return 0;
	err = read_number(folder, device, "numa_node", node);
	return err && err != -ENOENT ? err : 1;
}

static void print_gpus_json(struct kvm_json *j, const char *device, long node)
{
	kvm_json_begin(j, NULL, '{');
	kvm_json_text(j, "device", device);
	if (node < 0)
		kvm_json_text(j, "node", NULL);
	else
		kvm_json_number(j, "node", (uint64_t)node);
	kvm_json_end(j, '}');
}

/*
 * Prints the NUMA node of each device. On machines with two sockets, a pool on another node halves
 * the rate of copies.
 */
int kvm_run_gpus(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	struct kvm_json j = { stdout, false };
	int err = kvm_options(&argc, argv, options);
	const char *folder = argc ? argv[0] : "/sys/bus/pci/devices";
	DIR *d = err ? NULL : opendir(folder);
	struct dirent *e;
	unsigned n = 0;

	if (err)
		return err;
	if (!d)
		return kvm_fail("%s: %s", folder, kvc_why(errno));
	if (json) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_begin(&j, "gpus", '[');
	}
	while ((errno = 0, e = readdir(d))) {
		long node;
		int is = e->d_name[0] == '.' ? 0 : is_gpu(folder, e->d_name, &node);

		if (is < 0)
			err = kvm_fail("%s/%s: %s", folder, e->d_name, kvc_why(-is));
		if (is <= 0)
			continue;
		if (json)
			print_gpus_json(&j, e->d_name, node);
		else if (node < 0)
			printf("%s has no NUMA node\n", e->d_name);
		else
			printf("%s node %ld: mount with numa=bind:%ld\n", e->d_name, node, node);
		n++;
	}
	if (errno)
		err = kvm_fail("%s: %s", folder, kvc_why(errno));
	closedir(d);
	if (json) {
		kvm_json_end(&j, ']');
		kvm_json_end(&j, '}');
		putchar('\n');
	} else if (!n && !err) {
		printf("no NVIDIA devices found\n");
	}
	return err;
}
