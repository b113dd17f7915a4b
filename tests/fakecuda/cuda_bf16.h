/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stdint.h>
#include <string.h>
struct __nv_bfloat16 {
	uint16_t bits;
};
static inline float __bfloat162float(__nv_bfloat16 b)
{
	uint32_t u = (uint32_t)b.bits << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}
static inline __nv_bfloat16 __float2bfloat16_rn(float v)
{
	uint32_t u;

	memcpy(&u, &v, 4);
	if ((u & 0x7fffffff) <= 0x7f800000)
		u += 0x7fff + (u >> 16 & 1);
	return __nv_bfloat16{ (uint16_t)(u >> 16) };
}
