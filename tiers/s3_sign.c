/* SPDX-License-Identifier: Apache-2.0 */
/* See s3_sign.h. The digests are OpenSSL's. */
#include "s3_sign.h"

#include "keys.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

static void put_hex_digest(const uint8_t sum[32], char hex[65])
{
	for (int i = 0; i < 32; i++)
		snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}

int kvct_s3_sha256(const void *data, size_t len, char hex[65])
{
	uint8_t sum[EVP_MAX_MD_SIZE];

	if (!EVP_Digest(data, len, sum, NULL, EVP_sha256(), NULL))
		return -EIO;
	put_hex_digest(sum, hex);
	return 0;
}

int kvct_s3_md5(const void *data, size_t len, char base64[25])
{
	uint8_t sum[EVP_MAX_MD_SIZE];

	if (!EVP_Digest(data, len, sum, NULL, EVP_md5(), NULL))
		return -EIO;
	EVP_EncodeBlock((uint8_t *)base64, sum, 16);
	return 0;
}

char *kvct_s3_escape(const char *text)
{
	char *to = malloc(3 * strlen(text) + 1), *p = to;

	for (; to && *text; text++)
		if (isalnum((unsigned char)*text) || strchr("-_.~", *text))
			*p++ = *text;
		else
			p += snprintf(p, 4, "%%%02X", (unsigned char)*text);
	if (to)
		*p = 0;
	return to;
}

static bool digest_text(EVP_MD_CTX *m, const char *text)
{
	return EVP_DigestUpdate(m, text, strlen(text));
}

/*
 * Writes the names of the signed headers, separated by semicolons, to `names`, and the digest of
 * the canonical request to `hex`. The request is never assembled in memory, since it contains the
 * session token.
 */
static int digest_request(const struct kvct_s3_canonical *c, char *names, size_t capacity,
			  char hex[65])
{
	uint8_t sum[EVP_MAX_MD_SIZE];
	size_t len = 0;
	EVP_MD_CTX *m = EVP_MD_CTX_new();
	bool good = m && EVP_DigestInit_ex(m, EVP_sha256(), NULL) && digest_text(m, c->method) &&
		    digest_text(m, "\n") && digest_text(m, c->path) && digest_text(m, "\n") &&
		    digest_text(m, c->query) && digest_text(m, "\n");

	*names = 0;
	for (unsigned i = 0; i < c->headers && good && len < capacity; i++) {
		good = digest_text(m, c->header[i].name) && digest_text(m, ":") &&
		       digest_text(m, c->header[i].value) && digest_text(m, "\n");
		len += (size_t)snprintf(names + len, capacity - len, "%s%s", i ? ";" : "",
					c->header[i].name);
	}
	good = good && len < capacity && digest_text(m, "\n") && digest_text(m, names) &&
	       digest_text(m, "\n") && digest_text(m, c->payload) &&
	       EVP_DigestFinal_ex(m, sum, NULL);
	EVP_MD_CTX_free(m);
	if (good)
		put_hex_digest(sum, hex);
	return good ? 0 : -EIO;
}

static bool mac(uint8_t *key, size_t len, const char *text)
{
	uint8_t out[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	bool good = HMAC(EVP_sha256(), key, (int)len, (const uint8_t *)text, strlen(text), out, &n);

	memcpy(key, out, 32);
	kvc_keys_wipe(out, sizeof out);
	return good && n == 32;
}

int kvct_s3_sign(const struct kvct_s3_canonical *c, const struct kvct_s3_login *login, char *text,
		 size_t capacity)
{
	uint8_t key[KVCT_S3_SECRET + 5];
	char day[9], scope[128], hex[65], names[512], to_sign[256];
	int len;
	int err = digest_request(c, names, sizeof names, hex);

	if (err)
		return err;
	snprintf(day, sizeof day, "%.8s", c->date);
	snprintf(scope, sizeof scope, "%s/%.64s/s3/aws4_request", day, c->region);
	snprintf(to_sign, sizeof to_sign, "AWS4-HMAC-SHA256\n%.16s\n%s\n%s", c->date, scope, hex);
	len = snprintf((char *)key, sizeof key, "AWS4%s", login->secret);
	if (!mac(key, (size_t)len, day) || !mac(key, 32, c->region) || !mac(key, 32, "s3") ||
	    !mac(key, 32, "aws4_request") || !mac(key, 32, to_sign))
		err = -EIO;
	if (!err)
		put_hex_digest(key, hex);
	kvc_keys_wipe(key, sizeof key);
	if (!err && (size_t)snprintf(text, capacity,
				     "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, "
				     "Signature=%s",
				     login->id, scope, names, hex) >= capacity)
		err = -ENAMETOOLONG;
	return err;
}
