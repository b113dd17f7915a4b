/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The embedded page.html, and its Content-Security-Policy. The policy allows the page's own script
 * and style, identified by their hashes, and requests to the page's origin.
 */
#include "fs.h"

#include <openssl/evp.h>
#include <string.h>

__asm__(".section .rodata\n"
	".global kvfs_page, kvfs_page_end\n"
	"kvfs_page: .incbin \"fs/page.html\"\n"
	"kvfs_page_end: .byte 0\n"
	".previous\n");

/*
 * Computes the hash of the text between two tags. On failure text is empty, and the browser then
 * refuses to run the script or style.
 */
static void hash_of(const char *open, const char *close, char text[64])
{
	const char *from = strstr(kvfs_page, open), *to = from ? strstr(from, close) : NULL;
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned n;

	*text = 0;
	if (!to)
		return;
	from += strlen(open);
	if (EVP_Digest(from, (size_t)(to - from), sum, &n, EVP_sha256(), NULL))
		EVP_EncodeBlock((unsigned char *)text, sum, (int)n);
}

void kvfs_page_policy(char *policy, size_t capacity)
{
	char script[64], style[64];

	hash_of("<script>", "</script>", script);
	hash_of("<style>", "</style>", style);
	snprintf(policy, capacity,
		 "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; "
		 "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
		 "frame-ancestors 'none'",
		 script, style);
}
