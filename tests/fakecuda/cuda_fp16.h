/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <string.h>
struct __half {
	uint16_t bits;
};
static inline float __half2float(__half h)
{
	_Float16 f;

	memcpy(&f, &h.bits, 2);
	return (float)f;
}
static inline __half __float2half_rn(float v)
{
	_Float16 f = (_Float16)v;
	__half h;

	memcpy(&h.bits, &f, 2);
	return h;
}
