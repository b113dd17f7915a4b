/* SPDX-License-Identifier: Apache-2.0 */
/*
 * example_layers MOUNT [DEVICE]: stores and loads a paged KV cache asynchronously, layer by layer,
 * as the connector of an engine does. A thread of the library carries the transfers out. The
 * program's own loop computes a layer, waits until the layer may be changed, and learns from an
 * eventfd when transfers end. DEVICE is as in example_offload.
 *
 * cc example_layers.c $(pkg-config --cflags --libs kvcachefs)
 */
#define EXAMPLE "example_layers"
#include "example.h"

#include "kvcachefs_layout.h"

#include <poll.h>
#include <string.h>

#define LAYERS 8
#define BLOCKS 64
#define BLOCK_SIZE 16
#define CHUNKS 2
#define CHUNK_BLOCKS 16
#define BLOCK_BYTES (2ull * BLOCK_SIZE * 8 * 128 * 2)
#define LAYER_BYTES (BLOCKS * BLOCK_BYTES)

/* Waits until the work queued on the device is done. */
static void wait_device(int device)
{
#ifdef EXAMPLE_CUDA
	if (device >= 0)
		cudaDeviceSynchronize();
#endif
	(void)device;
}

/* Fills a layer as the model would compute it. */
static void compute_layer(uint8_t *layer, size_t l)
{
	for (size_t i = 0; i < LAYER_BYTES; i++)
		layer[i] = (uint8_t)((i * 2654435761u + l) >> 9);
}

/* Overwrites a chunk's blocks of a layer, as an engine that reuses them does. */
static void overwrite_blocks(uint8_t *layer, const int64_t *blocks)
{
	for (size_t b = 0; b < CHUNK_BLOCKS; b++)
		memset(layer + (size_t)blocks[b] * BLOCK_BYTES, 0, BLOCK_BYTES);
}

/* The loop's part: sleeps until a transfer has ended, and takes it. Returns its error. */
static int wait_transfer(struct kvcachefs_queue *queue, const char *what)
{
	struct pollfd p = { .fd = kvcachefs_queue_fd(queue), .events = POLLIN };
	struct kvcachefs_completion end;

	while (!kvcachefs_take(queue, &end, 1))
		poll(&p, 1, -1);
	if (end.err)
		fprintf(stderr, "example_layers: %s: %s\n", what, end.error);
	return end.err;
}

/* Fills in the items: one file for each layer of each chunk. */
static size_t name_all(struct kvcachefs_item *items, char (*paths)[64], int64_t (*blocks)[16])
{
	size_t n = 0;

	for (size_t c = 0; c < CHUNKS; c++) {
		for (size_t b = 0; b < CHUNK_BLOCKS; b++)
			blocks[c][b] = (int64_t)((c * CHUNK_BLOCKS + b) * 23 + 7) % BLOCKS;
		for (uint32_t l = 0; l < LAYERS; l++, n++) {
			snprintf(paths[n], sizeof paths[n], "layers/chunk%zu/layer_%u", c, l);
			items[n] = (struct kvcachefs_item){ .path = paths[n],
							    .layer = l,
							    .nlayers = 1,
							    .tokens = { .block_ids = blocks[c],
									.n = CHUNK_BLOCKS } };
		}
	}
	return n;
}

/* Returns true on failure. Then transfers may still be running and write each item's err. */
static bool there_and_back(struct kvcachefs_queue *queue, const struct kvcachefs_paged *cache,
			   struct kvcachefs_item *items, uint8_t *before)
{
	char paths[CHUNKS * LAYERS][64];
	int64_t blocks[CHUNKS][CHUNK_BLOCKS];
	size_t n = name_all(items, paths, blocks);
	uint64_t store, load;
	bool bad = false;

	/* 1. Store all layers. The call returns at once. */
	if (kvcachefs_submit_store(queue, cache, items, n, NULL, 1, &store))
		return true;
	/* 2. Change each layer as soon as it was read from the cache, and not earlier. */
	for (uint32_t l = 0; l < LAYERS; l++) {
		if (kvcachefs_layer_wait(queue, store, l, NULL))
			return true;
		wait_device(cache->device);
		for (size_t c = 0; c < CHUNKS; c++)
			overwrite_blocks(cache->pointers[l], blocks[c]);
	}
	if (wait_transfer(queue, "store"))
		return true;
	/* 3. Load all layers, and use each as soon as it is loaded. */
	if (kvcachefs_submit_load(queue, cache, items, n, NULL, 2, &load))
		return true;
	for (uint32_t l = 0; l < LAYERS; l++) {
		if (kvcachefs_layer_wait(queue, load, l, NULL))
			return true;
		wait_device(cache->device); /* an engine would queue its kernels instead */
		bad |= memcmp(cache->pointers[l], before + l * LAYER_BYTES, LAYER_BYTES) != 0;
	}
	if (wait_transfer(queue, "load"))
		return true;
	printf("%s: %d layers of %d tokens stored and loaded layer by layer: %s\n",
	       kvcachefs_version(), LAYERS, CHUNKS * CHUNK_BLOCKS * BLOCK_SIZE,
	       bad ? "DIFFERENT" : "the same");
	return bad;
}

int main(int argc, char **argv)
{
	int device;
	bool wrong = wrong_words(argc, argv, &device);
	void *layers[LAYERS] = { NULL };
	uint8_t *before = malloc(LAYERS * LAYER_BYTES);
	struct kvcachefs_paged cache = {
		.format = KVCACHEFS_NL_X_NB_TWO_BS_NH_HS,
		.layers = LAYERS,
		.heads = 8,
		.head_size = 128,
		.block_size = BLOCK_SIZE,
		.blocks = BLOCKS,
		.elem = 2,
		.pointers = layers,
		.device = device,
	};
	struct kvcachefs_item items[CHUNKS * LAYERS]; /* must live as long as the queue */
	struct kvcachefs_queue *queue = NULL;
	bool bad = true, have = before;

	if (wrong || no_mount(argv[1]) || no_device(device)) {
		free(before);
		return wrong ? 2 : 1;
	}
	for (size_t l = 0; l < LAYERS && have; l++) {
		layers[l] = memory(device, LAYER_BYTES);
		have = layers[l];
		if (have) {
			compute_layer(layers[l], l);
			memcpy(before + l * LAYER_BYTES, layers[l], LAYER_BYTES);
		}
	}
	if (have && !kvcachefs_queue_new(&queue, argv[1], 0))
		bad = there_and_back(queue, &cache, items, before);
	if (bad)
		fprintf(stderr, "example_layers: %s\n", kvcachefs_error());
	kvcachefs_queue_free(queue);
	free(before);
#ifndef EXAMPLE_CUDA
	for (size_t l = 0; l < LAYERS; l++)
		free(layers[l]);
#endif
	return bad;
}
