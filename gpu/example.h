/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code shared by the examples: their arguments, and memory for a cache. EXAMPLE is the program's
 * name.
 */
#ifndef KVCACHEFS_EXAMPLE_H
#define KVCACHEFS_EXAMPLE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef EXAMPLE_CUDA
#include <cuda_runtime_api.h>
#endif

static void *memory(int device, size_t len)
{
#ifdef EXAMPLE_CUDA
	void *p = NULL;

	if (device >= 0)
		return cudaMallocManaged(&p, len, cudaMemAttachGlobal) ? NULL : p;
#endif
	(void)device;
	return malloc(len);
}

/* Parses the arguments MOUNT [DEVICE]. Returns true if they are wrong. */
static bool wrong_words(int argc, char **argv, int *device)
{
	char none[] = "", *end = none;

	*device = argc > 2 ? (int)strtol(argv[2], &end, 10) : -1;
	if (argc == 2 || (argc == 3 && *argv[2] && !*end && *device >= -1))
		return false;
	if (argc == 3)
		fprintf(stderr,
			"%s: DEVICE '%s' is not valid; give the number of a GPU, or -1 for host "
			"memory\n",
			EXAMPLE, argv[2]);
	else
		fprintf(stderr, "%s: usage: %s MOUNT [DEVICE]\n", EXAMPLE, EXAMPLE);
	return true;
}

/*
 * Returns true if the path is not a mount; otherwise the files would be created in an ordinary
 * folder.
 */
static bool no_mount(const char *path)
{
	char lease[4096];

	snprintf(lease, sizeof lease, "%s/.kvcachefs/lease", path);
	if (!access(lease, F_OK))
		return false;
	fprintf(stderr, "%s: %s is not a kvcachefs mount: %s\n", EXAMPLE,
		*path ? path : "an empty path", strerror(errno));
	return true;
}

/* Returns true if the device does not exist; otherwise the first transfer would report it. */
static bool no_device(int device)
{
#ifdef EXAMPLE_CUDA
	int n = 0;
	cudaError_t e = device < 0 ? cudaSuccess : cudaGetDeviceCount(&n);

	if (e == cudaSuccess && (device < n || device < 0))
		return false;
	fprintf(stderr, "%s: device %d does not exist: %s\n", EXAMPLE, device,
		e == cudaSuccess ? "kvcachectl gpus lists the devices" : cudaGetErrorString(e));
	return true;
#else
	(void)device;
	return false;
#endif
}

#endif
