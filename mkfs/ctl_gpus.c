/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl gpus: devices, and the memory near them, from sysfs. */
#include "ctl.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* One number from a file of sysfs. */
static bool read_number(const char *folder, const char *device, const char *name, long *v)
{
	char path[4200], text[32] = "", *end;
	FILE *f;

	snprintf(path, sizeof path, "%s/%s/%s", folder, device, name);
	f = fopen(path, "re");
	if (!f)
		return false;
	bool ok = fgets(text, sizeof text, f);

	fclose(f);
	*v = strtol(text, &end, 0);
	return ok && end != text;
}

/*
 * Memory is nearest to a device on the device's own NUMA node: a pool elsewhere halves the rate of
 * copies on machines with two sockets.
 */
int kvm_run_gpus(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);
	const char *folder = argc ? argv[0] : "/sys/bus/pci/devices";
	DIR *d = err ? NULL : opendir(folder);
	struct dirent *e;
	unsigned n = 0;

	if (err)
		return err;
	if (!d)
		return kvm_fail("%s: %s", folder, strerror(errno));
	while ((e = readdir(d))) {
		long vendor, class, node = -1;

		if (e->d_name[0] == '.' || !read_number(folder, e->d_name, "vendor", &vendor) ||
		    !read_number(folder, e->d_name, "class", &class) || vendor != 0x10de ||
		    class >> 16 != 3) /* NVIDIA; a display or 3D controller */
			continue;
		read_number(folder, e->d_name, "numa_node", &node);
		if (node < 0)
			printf("%s on no particular node\n", e->d_name);
		else
			printf("%s node %ld: mount with numa=bind:%ld\n", e->d_name, node, node);
		n++;
	}
	closedir(d);
	if (!n)
		printf("there is no NVIDIA device\n");
	return 0;
}
