/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For builds without CUDA: kvcachefs_cuda_check refuses every device, so no other function here is
 * called.
 */
#include "layout.h"

int kvcachefs_cuda_check(int device)
{
	return kvcachefs_fail(-ENODEV, "device %d: this library was built without CUDA", device);
}

void kvcachefs_gpu_stats(struct kvcachefs_gpu_counts *out)
{
	*out = (struct kvcachefs_gpu_counts){ 0 };
}

int kvcachefs_cuda_new(struct kvcachefs_cuda **out, int device, bool store, void *stream)
{
	(void)store;
	(void)stream;
	*out = NULL;
	return kvcachefs_cuda_check(device);
}

int kvcachefs_cuda_check_parts(int device, const struct kvcachefs_part *v, size_t n)
{
	(void)v;
	(void)n;
	return kvcachefs_cuda_check(device);
}

int kvcachefs_cuda_add(struct kvcachefs_cuda *c, const struct kvcachefs_work *w)
{
	(void)c;
	(void)w;
	return -ENODEV;
}

int kvcachefs_cuda_run(struct kvcachefs_cuda *c)
{
	(void)c;
	return -ENODEV;
}

int kvcachefs_cuda_poll(struct kvcachefs_cuda *c)
{
	(void)c;
	return -ENODEV;
}

int kvcachefs_cuda_wait(struct kvcachefs_cuda *c)
{
	(void)c;
	return -ENODEV;
}

void kvcachefs_cuda_free(struct kvcachefs_cuda *c)
{
	(void)c;
}

int kvcachefs_cuda_register(int device, void *p, size_t len, bool readonly)
{
	(void)device;
	(void)p;
	(void)len;
	(void)readonly;
	return -ENODEV;
}

void kvcachefs_cuda_unregister(int device, void *p)
{
	(void)device;
	(void)p;
}

void kvcachefs_cuda_reap(void) {}

int kvcachefs_cuda_stream_new(int device, void **out)
{
	(void)out;
	return kvcachefs_cuda_check(device);
}

void kvcachefs_cuda_stream_free(int device, void *stream)
{
	(void)device;
	(void)stream;
}

int kvcachefs_cuda_mark(int device, void *stream, void **mark)
{
	(void)stream;
	(void)mark;
	return kvcachefs_cuda_check(device);
}

int kvcachefs_cuda_after(int device, void *stream, void *mark)
{
	(void)stream;
	(void)mark;
	return kvcachefs_cuda_check(device);
}

void kvcachefs_cuda_unmark(int device, void *mark)
{
	(void)device;
	(void)mark;
}
