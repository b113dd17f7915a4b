/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: resources that transfers need, allocated in advance, and counters of the bytes that
 * went to and from devices. See kvcachefs-gpu(7).
 */
#ifndef KVCACHEFS_GPU_H
#define KVCACHEFS_GPU_H

#include "kvcachefs.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The file of a store is new memory of the pool. Allocating it, its pages and, for a device, their
 * registration costs more than the copy. So a thread of the library prepares files in advance, from
 * the second store on: for each length of a file in each model folder (the first component of the
 * path), as many as stores have used at the same time. Prepared files have no name, so none is left
 * when the process dies. They use at most half of the limit of kvcachefs_map_cache() or of its
 * default, and at most 128 descriptors and an eighth of the limit on descriptors. They are removed
 * after 5 seconds without a store, when the pool is short of space, and by kvcachefs_map_cache(0).
 * A file that was stored through a registration is registered for its next load after it is
 * published, within the limit of the cache of mappings.
 */
struct kvcachefs_warm {
	unsigned transfers; /* how many run at the same time: at most 8; 0 means 1 */
	bool files;         /* prepare their files too */
	unsigned keep_s;    /* seconds to keep them without a store; at least 5 */
};
/*
 * Allocates in advance the resources of transfers like this one, so that the transfers allocate
 * nothing: their memory, and on a device streams, events, buffers, pinned memory for data that
 * cannot be registered, and the kernels; and prepared files as described above. The items are those
 * of a store, with the shape, number and lengths of the later transfers. Of their paths only the
 * first folder matters; it is created. The cache is not changed. Blocks until everything is
 * allocated. -ENOSPC: the files exceed the limit on prepared files or the space in the pool;
 * -EINVAL, -ENODEV, -ENOMEM; errors of the mount. After an error, resources that were already
 * allocated stay.
 */
int kvcachefs_gpu_warm(const char *mount, const struct kvcachefs_paged *p,
		       const struct kvcachefs_item *items, size_t n,
		       const struct kvcachefs_warm *how);
/*
 * The bytes that transfers of this process have moved between files and devices so far, in both
 * directions; zero if the library was built without CUDA. Bytes count when their copy is queued.
 */
struct kvcachefs_gpu_counts {
	uint64_t pinned_bytes; /* copied by the copy engine from and to the files' own pages */
	uint64_t direct_bytes; /* copied from and to these pages by a kernel: small pinned files */
	/*
	 * Copied through other pinned memory, with an additional copy in host memory: the first
	 * loads of a file and the files of a store that were not prepared, because registering them
	 * does not pay, and pages that could not be registered.
	 */
	uint64_t staged_bytes;
	uint64_t refused; /* failed attempts to register a mapping */
	/*
	 * Host functions that streams ran for staged bytes: 0 unless the driver lacks
	 * cuStreamWaitValue32().
	 */
	uint64_t host_functions;
};
void kvcachefs_gpu_stats(struct kvcachefs_gpu_counts *out);

#ifdef __cplusplus
}
#endif
#endif
