/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's part: contexts, by cudaGetDriverEntryPointByVersion(). See cuda_runtime.h. */
#pragma once
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
#ifdef __cplusplus
}
#endif
