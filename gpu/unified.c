/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGLang's unified key scheme. The digest of a namespace is that of msgspec's encoding of a struct:
 * a map of its members in their order, with the shortest form of each text and number.
 */
#include "priv.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define SCHEMA 1
#define MEMBERS 9
#define TEXT_MOST 1024 /* bytes of each text */

struct pack {
	uint8_t bytes[3 * TEXT_MOST + 512];
	size_t len;
};

static void pack_bytes(struct pack *p, const void *from, size_t n)
{
	memcpy(p->bytes + p->len, from, n);
	p->len += n;
}

/* A head of `n` bytes: the type, and the value in big endian. */
static void pack_head(struct pack *p, uint8_t type, uint32_t value, int n)
{
	p->bytes[p->len++] = type;
	while (n-- > 0)
		p->bytes[p->len++] = (uint8_t)(value >> 8 * n);
}

static void pack_text(struct pack *p, const char *text)
{
	uint32_t n = (uint32_t)strlen(text);

	if (n < 32)
		pack_head(p, (uint8_t)(0xa0 | n), 0, 0);
	else if (n < 256)
		pack_head(p, 0xd9, n, 1);
	else
		pack_head(p, 0xda, n, 2);
	pack_bytes(p, text, n);
}

static void pack_number(struct pack *p, const char *name, uint32_t v)
{
	pack_text(p, name);
	if (v < 128)
		pack_head(p, (uint8_t)v, 0, 0);
	else if (v < 256)
		pack_head(p, 0xcc, v, 1);
	else if (v < 65536)
		pack_head(p, 0xcd, v, 2);
	else
		pack_head(p, 0xce, v, 4);
}

static int unified_check(const struct kvcachefs_unified *u, const char *layout)
{
	if (!u->model || !*u->model || !u->dtype || !u->page_size)
		return kvcachefs_fail(-EINVAL, "the model, the dtype or the page size is missing");
	if (strlen(u->model) > TEXT_MOST || strlen(u->dtype) > TEXT_MOST ||
	    strlen(layout) > TEXT_MOST)
		return kvcachefs_fail(-EINVAL, "a text has more than %d bytes", TEXT_MOST);
	if (u->replicated && (u->total_kv_heads || u->head_group))
		return kvcachefs_fail(-EINVAL, "replicated KV has no heads");
	if (!u->replicated &&
	    (!u->total_kv_heads || !u->head_group || u->total_kv_heads % u->head_group))
		return kvcachefs_fail(-EINVAL, "head_group %u does not divide the %u KV heads",
				      u->head_group, u->total_kv_heads);
	return 0;
}

int kvcachefs_unified_digest(const struct kvcachefs_unified *u, char out[KVCACHEFS_UNIFIED_DIGEST])
{
	const char *layout = u->object_layout ?: "page-unified-v1";
	struct pack p = { .len = 0 };
	uint8_t sha[EVP_MAX_MD_SIZE];
	int err = unified_check(u, layout);

	if (err)
		return err;
	pack_head(&p, 0x80 | MEMBERS, 0, 0);
	pack_number(&p, "schema_version", SCHEMA);
	pack_text(&p, "model_id");
	pack_text(&p, u->model);
	pack_text(&p, "dtype");
	pack_text(&p, u->dtype);
	pack_number(&p, "page_size", u->page_size);
	pack_text(&p, "rank_replicated");
	pack_head(&p, u->replicated ? 0xc3 : 0xc2, 0, 0);
	pack_number(&p, "total_kv_heads", u->total_kv_heads);
	pack_number(&p, "layer_partition", u->layer_partition);
	pack_number(&p, "head_group", u->head_group);
	pack_text(&p, "object_layout");
	pack_text(&p, layout);
	if (!EVP_Digest(p.bytes, p.len, sha, NULL, EVP_sha256(), NULL))
		return kvcachefs_fail(-EIO, "OpenSSL has no SHA-256");
	out += snprintf(out, KVCACHEFS_UNIFIED_DIGEST, "ukv%d-", SCHEMA);
	kvcachefs_hex(sha, 8, out);
	return 0;
}

int kvcachefs_unified_key(const char *page, const char *digest, uint32_t first, uint32_t end,
			  int64_t head, char out[KVCACHEFS_UNIFIED_KEY_MAX])
{
	char text[KVCACHEFS_UNIFIED_KEY_MAX], heads[24] = "";
	int n;

	if (first >= end)
		return kvcachefs_fail(-EINVAL, "the range of layers from %u to %u is empty", first,
				      end);
	if (head >= 0)
		snprintf(heads, sizeof heads, "_H%lld", (long long)head);
	n = snprintf(text, sizeof text, "%s_%s_L%u-%u%s", page, digest, first, end, heads);
	if (n < 0 || (size_t)n >= sizeof text)
		return kvcachefs_fail(-EINVAL, "a key has at most %zu characters", sizeof text - 1);
	memcpy(out, text, (size_t)n + 1);
	return 0;
}
