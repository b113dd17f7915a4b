/* SPDX-License-Identifier: Apache-2.0 */
/* See device.h. */
#include "device.h"

#include "tool.h"

#include <blkid/blkid.h>
#include <stdio.h>
#include <string.h>

int kvm_device_path(const char *path, char out[1024])
{
	KVC_MEM char *cwd = *path == '/' ? NULL : getcwd(NULL, 0);

	if (!*path)
		return kvm_fail("the path of --device is empty; check that the shell variable is "
				"set");
	if (strchr(path, '\n'))
		return kvm_fail("the path of a device must not have a line break");
	if (*path != '/' && !cwd)
		return kvm_fail("cannot find the working directory: %s", kvc_why(errno));
	if (snprintf(out, 1024, "%s%s%s", cwd ?: "", cwd ? "/" : "", path) >= 1024)
		return kvm_fail("the path of the device is too long");
	return 0;
}

int kvm_device_empty(int fd, const char *path)
{
	const char *type = NULL;
	blkid_probe pr = blkid_new_probe();
	int err, found;

	if (!pr || blkid_probe_set_device(pr, fd, 0, 0) || blkid_probe_enable_superblocks(pr, 1) ||
	    blkid_probe_enable_partitions(pr, 1)) {
		blkid_free_probe(pr);
		return kvm_fail("cannot examine the contents of %s", path);
	}
	found = blkid_do_safeprobe(pr);
	if (!found && blkid_probe_lookup_value(pr, "TYPE", &type, NULL) &&
	    blkid_probe_lookup_value(pr, "PTTYPE", &type, NULL))
		type = "something";
	err = found == 1 ? 0
	      : found == -1
		      ? kvm_fail("cannot examine the contents of %s; --force overwrites them", path)
		      : kvm_fail("%s contains %s; --force overwrites it", path,
				 type ?: "more than one filesystem");
	blkid_free_probe(pr);
	return err;
}
