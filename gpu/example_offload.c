/* SPDX-License-Identifier: Apache-2.0 */
/*
 * example_offload MOUNT [DEVICE]: stores a paged KV cache in a mount, one file per layer in a
 * folder named by the chunk's key, wipes the cache, loads it again, and compares. Without DEVICE
 * (or with -1) the cache is in host memory. With a DEVICE it would be the engine's memory on that
 * GPU. This example is plain C and uses managed memory instead, if it is built with -DEXAMPLE_CUDA
 * and CUDA's runtime.
 *
 * cc example_offload.c $(pkg-config --cflags --libs kvcachefs)
 */
#define EXAMPLE "example_offload"
#include "example.h"

#include "kvcachefs_keys.h"
#include "kvcachefs_layout.h"

#include <string.h>

#define LAYERS 4
#define BLOCKS 64
#define BLOCK_SIZE 16
#define TOKENS 256
#define LAYER_BYTES (2ull * BLOCKS * BLOCK_SIZE * 8 * 128 * 2)

/* Computes the chunk's key from its tokens, in hex. Returns true on failure. */
static bool chunk_key(char hex[KVCACHEFS_TEXT_MAX])
{
	struct kvcachefs_keys how = { .scheme = KVCACHEFS_LMCACHE_MP_BLAKE3 };
	struct kvcachefs_hasher *hasher;
	uint32_t tokens[TOKENS];
	uint8_t key[2][KVCACHEFS_KEY_MAX];
	size_t made;
	int err = kvcachefs_hasher_new(&hasher, &how);

	if (err)
		return true;
	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = i * 31 + 5;
	err = kvcachefs_hasher_feed(hasher, tokens, TOKENS, key, 2, &made);
	if (!err)
		kvcachefs_hasher_text(hasher, key[0], hex);
	kvcachefs_hasher_free(hasher);
	return err || made != 1;
}

/* Fills a layer as the engine would. */
static void fill(uint8_t *layer, size_t l)
{
	for (size_t i = 0; i < LAYER_BYTES; i++)
		layer[i] = (uint8_t)((i * 2654435761u + l) >> 9);
}

/* Overwrites a chunk's blocks, as an engine that reuses them does. */
static void overwrite_chunk(uint8_t *layer, const int64_t *blocks)
{
	const size_t block_bytes = LAYER_BYTES / 2 / BLOCKS;

	for (size_t b = 0; b < TOKENS / BLOCK_SIZE; b++)
		for (size_t kv = 0; kv < 2; kv++)
			memset(layer + (kv * BLOCKS + (size_t)blocks[b]) * block_bytes, 0,
			       block_bytes);
}

static struct kvcachefs_paged cache_of(void **layers, int device)
{
	return (struct kvcachefs_paged){
		.format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,
		.layers = LAYERS,
		.heads = 8,
		.head_size = 128,
		.block_size = BLOCK_SIZE,
		.blocks = BLOCKS,
		.elem = 2,
		.pointers = layers,
		.device = device,
	};
}

static int offload(const char *mount, int device)
{
	int err = 1;
	void *layers[LAYERS] = { NULL };
	uint8_t *before = malloc(LAYERS * LAYER_BYTES);
	struct kvcachefs_paged cache = cache_of(layers, device);
	struct kvcachefs_item items[LAYERS];
	struct kvcachefs_transfer *transfer;
	int64_t blocks[TOKENS / BLOCK_SIZE];
	char hex[KVCACHEFS_TEXT_MAX], paths[LAYERS][128];

	if (!before)
		goto no_memory;
	/* 1. Compute the chunk's key from its tokens. */
	if (chunk_key(hex))
		goto fail;
	/* 2. Make a cache as an engine has it: the chunk's blocks are anywhere in it. */
	for (int l = 0; l < LAYERS; l++) {
		layers[l] = memory(device, LAYER_BYTES);
		if (!layers[l])
			goto no_memory;
		fill(layers[l], (size_t)l);
		memcpy(before + (size_t)l * LAYER_BYTES, layers[l], LAYER_BYTES);
	}
	for (int b = 0; b < TOKENS / BLOCK_SIZE; b++)
		blocks[b] = (b * 23 + 7) % BLOCKS;
	for (int l = 0; l < LAYERS; l++) {
		snprintf(paths[l], sizeof paths[l], "example/%s/layer_%d", hex, l);
		items[l] = (struct kvcachefs_item){ .path = paths[l],
						    .layer = (uint32_t)l,
						    .nlayers = 1,
						    .tokens = { .block_ids = blocks,
								.n = TOKENS / BLOCK_SIZE } };
	}
	/* 3. Store all layers in one call. */
	if (kvcachefs_store(&transfer, mount, &cache, items, LAYERS, NULL) ||
	    kvcachefs_transfer_free(transfer))
		goto fail;
	/* 4. The engine reuses the memory. */
	for (int l = 0; l < LAYERS; l++)
		overwrite_chunk(layers[l], blocks);
	/* 5. Load it back. */
	if (kvcachefs_load(&transfer, mount, &cache, items, LAYERS, NULL) ||
	    kvcachefs_transfer_free(transfer))
		goto fail;
	err = 0;
	for (int l = 0; l < LAYERS; l++)
		err |= memcmp(before + (size_t)l * LAYER_BYTES, layers[l], LAYER_BYTES) != 0;
	printf("%s: %d layers of %d tokens stored under example/%s and loaded again: %s\n",
	       kvcachefs_version(), LAYERS, TOKENS, hex, err ? "DIFFERENT" : "the same");
	goto done;
no_memory:
	fprintf(stderr, "example_offload: out of memory; it needs %llu MiB%s\n",
		2 * LAYERS * LAYER_BYTES >> 20,
		device >= 0 ? " of memory that the device can use" : "");
	goto done;
fail:
	fprintf(stderr, "example_offload: %s\n", kvcachefs_error());
done:
	free(before);
#ifndef EXAMPLE_CUDA
	for (int l = 0; l < LAYERS; l++)
		free(layers[l]);
#endif
	return err != 0;
}

int main(int argc, char **argv)
{
	int device;

	if (wrong_words(argc, argv, &device))
		return 2;
	return no_mount(argv[1]) || no_device(device) ? 1 : offload(argv[1], device);
}
