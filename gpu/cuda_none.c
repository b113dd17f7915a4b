/* SPDX-License-Identifier: Apache-2.0 */
/* Where the library was built without CUDA: a device is refused, in one place. */
#include "layout.h"

int kvcachefs_cuda_new(struct kvcachefs_cuda **out, const struct kvcachefs_paged *p, const struct kvcachefs_strides *s, void *stream)
{
	(void)s;
	(void)stream;
	*out = NULL;
	return kvcachefs_fail(-ENODEV, "device %d: this library was built without CUDA", p->device);
}

int kvcachefs_cuda_move(struct kvcachefs_cuda *c, bool store, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, uint64_t ntokens,
			void *host, uint64_t len, const struct kvcachefs_rope *rope)
{
	(void)c;
	(void)store;
	(void)layer;
	(void)nlayers;
	(void)t;
	(void)ntokens;
	(void)host;
	(void)len;
	(void)rope;
	return -ENODEV;
}

int kvcachefs_cuda_queued(struct kvcachefs_cuda *c)
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
