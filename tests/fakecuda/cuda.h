/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's part: contexts, and the calls that make a stream wait for a number in memory or
 * write one. They are found by cudaGetDriverEntryPointByVersion(). See cuda_runtime.h.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_INVALID_CONTEXT = 201
} CUresult;
typedef int CUdevice;
typedef struct fake_context *CUcontext;
typedef struct fake_stream *CUstream;
typedef unsigned long long CUdeviceptr;
typedef uint32_t cuuint32_t;
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
#ifdef __cplusplus
}
#endif
