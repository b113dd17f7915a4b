/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and times as users write them, in options and arguments of all programs. */
#ifndef KVC_UNITS_H
#define KVC_UNITS_H

#include <stdint.h>

/*
 * Parses a size such as 512M, 1.5G, 16GiB or 4096 into *bytes. The suffixes are K, M, G and T, in
 * either case, also followed by i or iB; all are powers of 1024. GB is refused, because it often
 * means 10^9 bytes. Returns 0, -EINVAL (not a size) or -ERANGE (too large).
 */
int kvc_size_parse(const char *text, uint64_t *bytes);
/* Writes a size in readable form into buf (at least 32 bytes) and returns buf. */
const char *kvc_size_text(uint64_t bytes, char *buf);
/*
 * Writes to buf why text, which kvc_size_parse refused, is not a size, and what to write instead.
 * Returns buf.
 */
const char *kvc_size_why(const char *text, char buf[192]);

/*
 * Parses a time, a whole number with a unit: ms, s, m (or min), h, d, w, or their English names in
 * singular or plural. *n is the time in units of unit_ms milliseconds, which is also the unit of a
 * bare number: 1 or 1000. Returns 0, -EINVAL (not such a time) or -ERANGE (too large).
 */
int kvc_time_parse(const char *text, unsigned unit_ms, uint64_t *n);
/* The same as kvc_size_why, for kvc_time_parse. */
const char *kvc_time_why(const char *text, unsigned unit_ms, char buf[192]);

#endif
