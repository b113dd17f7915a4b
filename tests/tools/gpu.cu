/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu test MOUNT [pinned]: transfers between files of a mount and a paged cache on a device,
 * compared with the same in host memory; `pinned`: the mount must allow registrations. Prints a
 * line and exits with 1 if something is wrong, with 77 if there is no device. gpu measure MOUNT:
 * measures the numbers of kvcachefs-gpu(7). gpu measure-parts: measures parts and byte pages,
 * without a mount. gpu trial, gpu leave: see gpu_trial.cuh.
 *
 * It is built twice: with CUDA for a machine with a device, and with tests/fakecuda for any
 * machine. It contains gpu/cuda.cu, to reach the kernels.
 */
#include "gpu_cache.cuh"
#include "gpu_device.cuh"
#include "gpu_measure.cuh"
#include "gpu_parts.cuh"
#include "gpu_queue.cuh"
#include "gpu_registered.cuh"
#include "gpu_staged.cuh"
#include "gpu_stores.cuh"
#include "gpu_trial.cuh"
#include "gpu_warm.cuh"

namespace {

/*
 * Every format, element and way of addressing: stored by the device, compared with the host's
 * gather, and loaded again.
 */
void formats()
{
	int64_t slots[9] = { 3, 10, 17, 0, 23, -1, 21, 4, 11 }, blocks[3] = { 4, -1, 1 };

	for (int f = 0; f < KVCACHEFS_FORMATS; f++)
		for (uint32_t elem = 1; elem <= 4; elem *= 2)
			for (int by_block = 0; by_block < 2; by_block++)
				for (uint32_t size :
				     { 8u,
				       5u }) { /* 5: nothing is aligned, and blocks are padded */
					bool fused = can_fuse(f) && (elem == 2 || size == 5) &&
						     by_block;
					Cache c(f, 3, 2, size, 4, 6, elem, (unsigned)f + elem,
						fused, size == 5 ? 3 : 0);
					kvcachefs_item it = {};
					std::string path = "gpu/f" + std::to_string(f) + "/l" +
							   std::to_string(elem) +
							   std::to_string(by_block);

					it.path = path.c_str();
					it.layer = 1;
					it.nlayers = 2;
					if (by_block)
						it.tokens = { nullptr, blocks, 3, 1 };
					else
						it.tokens = { slots, nullptr, 9, 2 };
					std::vector<kvcachefs_item> items{ it };
					kvcachefs_paged host = c.on(-1);
					std::vector<uint8_t> want(kvcachefs_file_size(&host, 2,
										      &it.tokens));

					check(!kvcachefs_gather(&host, 1, 2, &it.tokens,
								want.data()));
					check(!move_all(c, 0, true, items));
					check(contents(path) == want);
					/* unnamed blocks are unchanged */
					Cache d(f, 3, 2, size, 4, 6, elem, 99, fused,
						size == 5 ? 3 : 0);
					kvcachefs_paged dhost = d.on(-1);

					check(!move_all(d, 0, false, items));
					check(!kvcachefs_scatter(&dhost, 1, 2, &it.tokens,
								 want.data()));
					check(d.down() == d.host);
				}
}

float value(const uint8_t *p, int type)
{
	uint16_t h;
	uint32_t u;
	float f;

	if (type == KVCACHEFS_F32) {
		memcpy(&f, p, 4);
		return f;
	}
	memcpy(&h, p, 2);
	if (type == KVCACHEFS_BF16) {
		u = (uint32_t)h << 16;
		memcpy(&f, &u, 4);
		return f;
	}
	int e = h >> 10 & 31, m = h & 1023;

	f = e ? ldexpf((float)(m + 1024), e - 25) : ldexpf((float)m, -24);
	return h >> 15 ? -f : f;
}

/* Checks that the numbers are at most one rounding apart: floats there, doubles here. */
void check_close(const uint8_t *got, const uint8_t *want, uint32_t n, int type)
{
	const uint32_t elem = type == KVCACHEFS_F32 ? 4 : 2;
	const float most = type == KVCACHEFS_F32   ? 1e-6f
			   : type == KVCACHEFS_F16 ? 1.f / 1024
						   : 1.f / 128;

	for (uint32_t i = 0; i < n; i++) {
		float a = value(got + (size_t)i * elem, type),
		      b = value(want + (size_t)i * elem, type);

		check(fabsf(a - b) <= fabsf(b) * most + 1e-5f);
	}
}

/*
 * Many files in one call, one of them larger than both buffers, with rotated keys; the host does
 * the same with doubles.
 */
void many(int type)
{
	const uint32_t elem = type == KVCACHEFS_F32 ? 4 : 2, H = 4, D = 64, BS = 16, NB = 320,
		       N = 20, row = D * elem;
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 4, H, D, BS, NB, elem, 7);
	kvcachefs_rope rope = {};

	rope.theta = 500000;
	rope.interleaved = type == KVCACHEFS_F16;
	rope.delta = 1234567;
	rope.type = (kvcachefs_float)type;
	std::vector<std::string> paths;
	std::vector<std::vector<int64_t>> ids;
	std::vector<kvcachefs_item> items;

	for (auto &h : c.host) /* numbers that rotate well: no NaN, no infinity */
		for (size_t i = 0; i < h.size() / elem; i++) {
			float f = (float)((int)(h[i * elem] % 201) - 100) / 32;
			uint32_t u;

			memcpy(&u, &f, 4);
			if (type == KVCACHEFS_F32)
				memcpy(&h[i * 4], &u, 4);
			else if (type == KVCACHEFS_BF16)
				memcpy(&h[i * 2], (uint8_t *)&u + 2, 2);
			else
				h[i * 2] &= 0x7f, h[i * 2 + 1] = 0x38 | (h[i * 2 + 1] & 0x83);
		}
	c.up();
	for (uint32_t i = 0; i <= N; i++) {
		paths.push_back(std::string(i == N ? "large/" : "many/") + std::to_string(type) +
				"/" + std::to_string(i));
		ids.emplace_back();
		for (uint32_t b = 0; b < (i == N ? NB : 1 + i % 9); b++)
			ids.back().push_back((b * 37 + i * 11) % NB);
	}
	for (uint32_t i = 0; i <= N; i++) {
		kvcachefs_item it = {};

		it.path = paths[i].c_str();
		it.layer = i == N ? 0 : i % 4;
		it.nlayers = i == N ? 4 : 1;
		it.tokens = { nullptr, ids[i].data(), ids[i].size(), 0 };
		items.push_back(it);
	}
	check(!move_all(c, 0, true, items));
	for (uint32_t i = 0; i <= N; i++) {
		kvcachefs_paged host = c.on(-1);
		std::vector<uint8_t> want(kvcachefs_file_size(&host, items[i].nlayers,
							      &items[i].tokens));

		check(!kvcachefs_gather(&host, items[i].layer, items[i].nlayers, &items[i].tokens,
					want.data()));
		check(contents(paths[i]) == want);
	}
	/* one file after the other: they overlap in the cache */
	for (uint32_t i = 0; i <= N; i++) {
		std::vector<kvcachefs_item> one{ items[i] };

		if (i % 2 == 0)
			one[0].rope = &rope;
		auto before = c.host;

		check(!move_all(c, 0, false, one));
		check(!move_all(c, -1, false, one));
		auto got = c.down();

		for (size_t k = 0; k < got.size(); k++)
			for (size_t at = 0; at < c.len; at += row)
				if (memcmp(&got[k][at], &before[k][at], row) ||
				    memcmp(&c.host[k][at], &before[k][at], row))
					check_close(&got[k][at], &c.host[k][at], row / elem, type);
		c.up();
	}
}

/* Work that the caller queues before and after on the same stream is ordered. */
void order()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 64, 16, 512, 2, 3);
	std::vector<int64_t> ids;
	cudaStream_t stream;
	kvcachefs_transfer *t;
	kvcachefs_item it = {};
	std::vector<uint8_t> want, row(c.len);

	for (int64_t i = 0; i < 512; i++)
		ids.push_back((i * 5) % 512);
	it.path = "order/all";
	it.nlayers = 2;
	it.tokens = { nullptr, ids.data(), ids.size(), 0 };
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	kvcachefs_paged p = c.on(0), host = c.on(-1);

	want.resize(kvcachefs_file_size(&host, 2, &it.tokens));
	/* the store reads what was queued before it, and not what was queued after */
	cuda(cudaMemsetAsync(c.device[0], 1, c.len, stream));
	std::fill(c.host[0].begin(), c.host[0].end(), (uint8_t)1);
	check(!kvcachefs_store(&t, mnt.c_str(), &p, &it, 1, stream));
	for (void *d : c.device)
		cuda(cudaMemsetAsync(d, 2, c.len, stream));
	check(!kvcachefs_transfer_free(t));
	check(!kvcachefs_gather(&host, 0, 2, &it.tokens, want.data()));
	check(contents("order/all") == want);
	/* work queued after a load sees it */
	void *pinned;

	cuda(cudaMallocHost(&pinned, c.len));
	check(!kvcachefs_load(&t, mnt.c_str(), &p, &it, 1, stream));
	cuda(cudaMemcpyAsync(pinned, c.device[1], c.len, cudaMemcpyDeviceToHost, stream));
	cuda(cudaStreamSynchronize(stream));
	check(!memcmp(pinned, c.host[1].data(), c.len));
	check(!kvcachefs_transfer_wait(t) && !kvcachefs_transfer_poll(t));
	check(!kvcachefs_transfer_free(t));
	cuda(cudaFreeHost(pinned));
	cuda(cudaStreamDestroy(stream));
}

void threads()
{
	std::vector<std::thread> all;

	for (int w = 0; w < 4; w++)
		all.emplace_back([w] {
			Cache c(w, 2, 2, 64, 16, 64, 2, (unsigned)w);
			int64_t ids[8] = { 1, 60, 3, 7, 22, 9, 50, 2 };
			cudaStream_t stream;

			cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
			for (int r = 0; r < 10; r++) {
				std::string path = "threads/" + std::to_string(w) + "-" +
						   std::to_string(r);
				kvcachefs_item it = {};
				auto before = c.host;

				it.path = path.c_str();
				it.nlayers = 2;
				it.tokens = { nullptr, ids, 8, 0 };
				std::vector<kvcachefs_item> items{ it };
				check(!move_all(c, 0, true, items, stream) &&
				      !move_all(c, 0, false, items, stream));
				check(c.down() == before);
			}
			cuda(cudaStreamDestroy(stream));
		});
	for (auto &t : all)
		t.join();
}

void refused()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 8, 4, 4, 2, 1);
	int64_t slot = 3, outside = 16;
	kvcachefs_item it = {};
	kvcachefs_transfer *t;
	kvcachefs_rope rope = {};

	it.path = "refused/x";
	it.nlayers = 1;
	it.tokens = { &slot, nullptr, 1, 0 };
	std::vector<kvcachefs_item> items{ it };

	check(!move_all(c, 0, true, items));
	kvcachefs_paged p = c.on(0);

	p.device = 7;
	check(kvcachefs_load(&t, mnt.c_str(), &p, items.data(), 1, nullptr) == -ENODEV &&
	      strstr(kvcachefs_error(), "device 7"));
	auto bad = items;

	bad[0].tokens.slots = &outside;
	check(move_all(c, 0, false, bad) == -ERANGE && bad[0].err == -ERANGE &&
	      strstr(kvcachefs_error(), "refused/x: slot 16"));
	bad = items;
	bad[0].nlayers = 2; /* not the layout of the file */
	check(move_all(c, 0, false, bad) == -EPROTOTYPE);
	bad = items;
	bad[0].path = "refused/none";
	check(move_all(c, 0, false, bad) == -ENOENT);
	bad = items;
	rope.theta = 10000;
	rope.delta = 5;
	rope.type = KVCACHEFS_BF16;
	rope.dims = 7;
	bad[0].rope = &rope;
	check(move_all(c, 0, false, bad) == -EINVAL);
	/* the good items of a call are done, the bad one is named */
	bad = { items[0], items[0] };
	bad[0].tokens.slots = &outside;
	check(move_all(c, 0, false, bad) == -ERANGE && bad[0].err == -ERANGE && !bad[1].err);
	check(c.down() == c.host);
	/* a store that fails leaves nothing */
	bad = items;
	bad[0].path = "refused/bad";
	bad[0].tokens.slots = &outside;
	check(move_all(c, 0, true, bad) == -ERANGE && access((mnt + "/refused/bad").c_str(), F_OK));
}

/* With cached mappings, a file stays registered. */
void kept_mappings()
{
	kvcachefs_gpu_counts a;
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 8, 64, 16, 64, 2, 1);
	int64_t ids[16];
	kvcachefs_item it = {};

	for (int i = 0; i < 16; i++)
		ids[i] = i * 3;
	it.path = "kept/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 16, 0 };
	std::vector<kvcachefs_item> items{ it };

	kvcachefs_map_cache(64 * MiB);
	check(!move_all(c, 0, true, items));
	load_twice(c, items);
	a = stats();
	for (int i = 0; i < 5; i++)
		check(!move_all(c, 0, false, items));
	check(stats().staged_bytes == a.staged_bytes || !can_pin());
	check(c.down() == c.host);
	kvcachefs_map_cache(0);
}

/*
 * Rotations of every kind, on the device and on the host: a table, frequencies, parts of a head,
 * fp8, fused files.
 */
void rotations()
{
	std::vector<float> table(300 * 8);
	std::vector<double> freq(4);
	int64_t slots[9] = { 3, 10, 17, 0, 23, -1, 21, 4, 11 };

	check(!kvcachefs_rope_yarn(10000, 8, 40, 32, 1, 4096, freq.data()));
	for (int i = 0; i < 300; i++)
		for (int k = 0; k < 4; k++) {
			table[i * 8 + k] = (float)cos(i * freq[k]);
			table[i * 8 + 4 + k] = (float)sin(i * freq[k]);
		}
	for (int format : { KVCACHEFS_NL_X_NB_BS_HS, KVCACHEFS_NL_X_NB_NH_BS_CS,
			    KVCACHEFS_NL_X_TWO_NB_NH_BS_HS, KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS })
		for (int type = KVCACHEFS_F32; type <= KVCACHEFS_E5M2; type++)
			for (int way = 0; way < 3; way++) {
				uint32_t elem = kvcachefs_float_size((kvcachefs_float)type);
				Cache c(format, 2, 2, 24, 4, 6, elem, 5,
					format == KVCACHEFS_NL_X_NB_NH_BS_CS);
				kvcachefs_rope rope = {};
				kvcachefs_item it = {};
				std::string path = "rotations/" +
						   std::to_string(format * 100 + type * 10 + way);

				/*
				 * the high bytes of small numbers of any type: no NaN, no infinity
				 */
				for (auto &h : c.host)
					for (size_t i = 0; i < h.size(); i++)
						if (i % elem == elem - 1)
							h[i] = (uint8_t)((h[i] & 0x83) | 0x38);
				c.up();
				rope.theta = way == 0 ? 10000 : 0;
				rope.inv_freq = way == 1 ? freq.data() : nullptr;
				rope.cos_sin = way == 2 ? table.data() : nullptr;
				rope.rows = 300;
				rope.first = 16;
				rope.dims = 8;
				rope.delta = way == 2 ? -123 : 77777;
				rope.interleaved = type % 2;
				rope.type = (kvcachefs_float)type;
				it.path = path.c_str();
				it.nlayers = 2;
				it.tokens = { slots, nullptr, 9, 0 };
				std::vector<kvcachefs_item> items{ it };

				check(!move_all(c, 0, true, items));
				items[0].rope = &rope;
				auto before = c.host;

				check(!move_all(c, 0, false, items) &&
				      !move_all(c, -1, false, items));
				auto got = c.down();
				size_t moved = 0;

				for (size_t k = 0; k < got.size(); k++)
					for (size_t e = 0; e < c.len; e += elem) {
						bool fp8 = elem == 1, e5m2 = type == KVCACHEFS_E5M2;
						float a = fp8 ? kvcachefs_from_fp8(got[k][e], e5m2)
							      : value(&got[k][e], type);
						float b = fp8 ? kvcachefs_from_fp8(c.host[k][e],
										   e5m2)
							      : value(&c.host[k][e], type);
						float step = fp8 ? (e5m2 ? .25f : .125f)
							     : type == KVCACHEFS_F32 ? 1e-5f
							     : type == KVCACHEFS_F16 ? 1.f / 512
										     : 1.f / 128;

						/*
						 * at most one rounding apart: floats there, doubles
						 * here
						 */
						check(fabsf(a - b) <=
						      fabsf(b) * step + (fp8 ? .02f : 1e-4f) *
										(1 + fabsf(b)));
						moved += memcmp(&before[k][e], &c.host[k][e],
								elem) != 0;
					}
				check(moved > 0);
			}
}

/*
 * Caches of several shapes in one call, each with its own pointers, on the device and in host
 * memory.
 */
void several()
{
	Cache full(KVCACHEFS_NL_X_NB_BS_NH_CS, 3, 4, 64, 16, 32, 2, 1, true),
		window(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 128, 32, 8, 2, 2),
		indexer(KVCACHEFS_NL_X_NB_BSV_BSS, 3, 1, 132, 64, 6, 1, 3);
	Cache *caches[] = { &full, &window, &indexer };
	int64_t ids[3][4] = { { 31, 2, 9, 17 }, { 7, 0, 3, 5 }, { 4, 1, 5, 0 } };
	std::string paths[] = { "several/full", "several/window", "several/indexer" };
	kvcachefs_paged device[3], host[3];
	std::vector<kvcachefs_item> items(6);
	kvcachefs_paged call = full.on(0), none = full.on(-1);
	kvcachefs_transfer *t;

	for (int i = 0; i < 3; i++) {
		device[i] = caches[i]->on(0);
		host[i] = caches[i]->on(-1);
		items[i].path = paths[i].c_str();
		items[i].nlayers = caches[i]->p.layers;
		items[i].tokens = { nullptr, ids[i], 4, 0 };
		items[i].cache = i ? &device[i] : nullptr; /* the first uses the call's own */
	}
	items.resize(3);
	check(!kvcachefs_store(&t, mnt.c_str(), &call, items.data(), 3, nullptr) &&
	      !kvcachefs_transfer_free(t));
	for (int i = 0; i < 3; i++) {
		std::vector<uint8_t> want(kvcachefs_file_size(&host[i], items[i].nlayers,
							      &items[i].tokens));

		check(!kvcachefs_gather(&host[i], 0, items[i].nlayers, &items[i].tokens,
					want.data()));
		check(contents(paths[i]) == want);
	}
	/*
	 * other bytes on the device, then back; in host memory the same with all pointers at once
	 */
	for (int where = 0; where >= -1; where--) {
		for (int i = 0; i < 3; i++) {
			auto keep = caches[i]->host;

			if (where < 0) {
				for (auto &h : caches[i]->host)
					std::fill(h.begin(), h.end(), (uint8_t)0);
			} else {
				for (auto &h : caches[i]->host)
					std::fill(h.begin(), h.end(), (uint8_t)0);
				caches[i]->up();
				caches[i]->host = keep;
			}
			items[i].cache = where < 0 ? &host[i] : &device[i];
		}
		check(!kvcachefs_load(&t, mnt.c_str(), where < 0 ? &none : &call, items.data(), 3,
				      nullptr) &&
		      !kvcachefs_transfer_free(t));
	}
	for (int i = 0; i < 3; i++) /* both began with zeros and got the same blocks */
		check(caches[i]->down() == caches[i]->host);
	items[2].cache = &host[2];
	check(kvcachefs_load(&t, mnt.c_str(), &call, items.data(), 3, nullptr) == -EINVAL);
	items[2].cache = &device[2];
	device[2].head_size = 3;
	check(kvcachefs_load(&t, mnt.c_str(), &call, items.data(), 3, nullptr) == -EINVAL);
}

/*
 * While a graph is captured its stream is refused, other streams work, and the graph is not broken.
 */
void capture()
{
	Cache c(KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, 2, 2, 64, 16, 64, 2, 1);
	int64_t ids[8] = { 1, 60, 3, 7, 22, 9, 50, 2 };
	cudaStream_t captured, other;
	cudaGraph_t graph;
	kvcachefs_item it = {};
	auto before = c.host;

	unlink((mnt + "/capture/x").c_str()); /* of an earlier run on this mount */
	it.path = "capture/x";
	it.nlayers = 2;
	it.tokens = { nullptr, ids, 8, 0 };
	std::vector<kvcachefs_item> items{ it };

	cuda(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
	cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	cuda(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
	check(move_all(c, 0, true, items, captured) == -EBUSY &&
	      strstr(kvcachefs_error(), "captured"));
	check(access((mnt + "/capture/x").c_str(), F_OK));
	check(!move_all(c, 0, true, items, other));
	check(move_all(c, 0, false, items, captured) == -EBUSY);
	check(!move_all(c, 0, false, items, other));
	cuda(cudaStreamEndCapture(captured, &graph));
	/* the thread has its own mode again */
	cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

	cuda(cudaThreadExchangeStreamCaptureMode(&mode));
	check(mode == cudaStreamCaptureModeGlobal);
	check(!move_all(c, 0, false, items, captured) && c.down() == before);
	cuda(cudaStreamDestroy(captured));
	cuda(cudaStreamDestroy(other));
}

/* Prints the step, if STEPS= is set: a device may hang, or be lost for all later steps. */
void begins(const char *what)
{
	if (getenv("STEPS"))
		fprintf(stderr, "%s\n", what);
}
#define STEP(call) (begins(#call), call)

void test(bool pins)
{
#ifdef FAKE_CUDA_RUNTIME_H
	contexts(); /* first, before anything has a context */
#endif
	check(!pins || STEP(can_pin()));
	STEP(ways(can_pin()));
	STEP(formats());
	STEP(lengths());
	STEP(parts(can_pin()));
	STEP(parts_beside_tokens());
	STEP(parts_order());
	STEP(parts_refused());
	STEP(long_rows());
	for (int type = 0; type < 3; type++)
		STEP(many(type));
	STEP(order());
	STEP(threads());
	STEP(refused());
	STEP(kept_mappings());
	STEP(rotations());
	STEP(several());
	STEP(capture());
	STEP(queues());
	STEP(buffers());
#ifdef FAKE_CUDA_RUNTIME_H
	staged();
	held();
	overlaps();
	registers_behind();
	unreadable();
	many_files();
	pinned_bound();
	direct();
	readonly();
	lost();
	queue_lost();
	aside();
	refused_pin();
#endif
#ifdef FAKE_CUDA_RUNTIME_H
	fake_counts before = fake_counted();

	check(before.registers && before.batches && before.kernels);
	/* a device without stream-ordered memory */
	fake_pools = 0;
	forget_lanes();
	many(KVCACHEFS_BF16);
	forget_lanes();
	fake_pools = 1;
	before = fake_counted();
	/*
	 * an older driver: copies one by one; a mount without registration: everything through
	 * pinned memory
	 */
	fake_driver = 12060;
	many(KVCACHEFS_BF16);
	parts(true);
	check(fake_counted().batches == before.batches);
	fake_no_register = 1;
	ways(false);
	parts(false);
	parts_order();
	long_rows();
	many(KVCACHEFS_F16);
	order();
	queues();
	buffers();
	fake_devices = 0;
	Cache *none = nullptr;
	kvcachefs_paged p = {};
	kvcachefs_transfer *t;
	void *pointer = &p;
	int64_t slot = 0;
	kvcachefs_item it = {};

	(void)none;
	p.format = KVCACHEFS_NL_X_NB_BS_HS;
	p.layers = p.heads = p.head_size = p.block_size = 1;
	p.blocks = 1;
	p.elem = 1;
	p.pointers = &pointer;
	it.path = "x";
	it.nlayers = 1;
	it.tokens = { &slot, nullptr, 1, 0 };
	check(kvcachefs_store(&t, mnt.c_str(), &p, &it, 1, nullptr) == -ENODEV &&
	      strstr(kvcachefs_error(), "no CUDA device"));
#endif
	printf("ok\n");
}

} // namespace

int main(int argc, char **argv)
{
	int n = 0;

	setvbuf(stdout, nullptr, _IOLBF, 0); /* to be visible if the program hangs */
#ifdef FAKE_CUDA_RUNTIME_H
	if (argc == 3 && !strcmp(argv[1], "stores")) {
		mnt = argv[2];
		stores();
		unallocated();
		printf("ok\n");
		return 0;
	}
#endif
	if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
		printf("there is no CUDA device\n");
		return 77;
	}
	mnt = argc > 2 ? argv[2] : "";
	if ((argc == 3 || argc == 4) && !strcmp(argv[1], "test")) {
		test(argc == 4);
#ifdef FAKE_CUDA_RUNTIME_H
	} else if (argc == 7 && !strcmp(argv[1], "trial")) {
		trial(argv + 3);
	} else if ((argc == 3 || argc == 4) && !strcmp(argv[1], "leave")) {
		if (argc == 4)
			without_numbers();
		leave();
#endif
	} else if (argc == 2 && !strcmp(argv[1], "measure-parts")) {
		measure_parts();
	} else if (argc == 3 && !strcmp(argv[1], "measure")) {
		rates();
		transfers();
		smalls();
		kernels();
	} else {
		fprintf(stderr, "usage: gpu test MOUNT [pinned] | gpu measure MOUNT | gpu "
				"measure-parts\n");
		return 2;
	}
	return 0;
}
