/* SPDX-License-Identifier: Apache-2.0 */
/* The key file, the derivation of keys and the sealing of blocks; see keys.h. */
#include "keys.h"

#include "library.h"
#include "secret.h"

#include <ctype.h>
#include <endian.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#define KEYS_MAX 64 /* with the file they fit into 64 KiB, which every user may lock */
#define FILE_MAX 24576

struct key {
	uint32_t id;
	uint8_t bytes[32];
	char model[KVC_MODEL_NAME + 1];
};

/*
 * Keys are only ever added, so readers take no lock. A key below n never changes. A key from n to
 * `staged` is being read from the file under `reading`, and no reader uses it.
 */
struct kvc_keys {
	_Atomic size_t n;
	/* the key is no longer in the file: it opens frames and seals none */
	_Atomic bool retired[KEYS_MAX];
	pthread_mutex_t reading;
	size_t staged;
	bool seen[KEYS_MAX]; /* the key was in the file at the last reading */
	struct key v[KEYS_MAX];
};

void kvc_keys_wipe(void *p, size_t len)
{
	OPENSSL_cleanse(p, len);
}

int kvc_keys_random(void *out, size_t len)
{
	return getrandom(out, len, 0) == (ssize_t)len ? 0 : -EIO;
}

/* Returns memory that is neither swapped nor dumped, or NULL. */
static void *secret_new(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	if (mlock(p, len) || madvise(p, len, MADV_DONTDUMP)) {
		munmap(p, len);
		return NULL;
	}
	madvise(p, len, MADV_WIPEONFORK);
	return p;
}

static void secret_free(void *p, size_t len)
{
	kvc_keys_wipe(p, len);
	munmap(p, len);
}

void kvc_keys_close(struct kvc_keys *k)
{
	if (k)
		secret_free(k, sizeof *k);
}

static int digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

/*
 * Stages the key in v[k->staged], or only marks it as seen if the mount has it already. Returns 0,
 * or -EINVAL with the reason in *why.
 */
static int stage(struct kvc_keys *k, const char **why)
{
	struct key *key = &k->v[k->staged];
	bool same;

	for (size_t i = 0; i < k->staged; i++) {
		struct key *x = &k->v[i];

		if (x->id != key->id)
			continue;
		*why = "each ID may appear only once";
		if (k->seen[i])
			return -EINVAL;
		same = !CRYPTO_memcmp(x->bytes, key->bytes, sizeof x->bytes) &&
		       !strcmp(x->model, key->model);
		kvc_keys_wipe(key, sizeof *key);
		k->seen[i] = true;
		*why = "this mount uses another key with this number; restore that key, or give "
		       "the new "
		       "key a number that no node uses";
		return same ? 0 : -EINVAL;
	}
	*why = "there are too many keys";
	if (k->staged + 1 == KEYS_MAX)
		return -EINVAL;
	k->seen[k->staged++] = true;
	return 0;
}

/*
 * Parses one line, which ends with NUL. Returns 0, or -EINVAL with the reason in *why. Never copies
 * the line itself to a message.
 */
static int parse_line(struct kvc_keys *k, char *line, const char **why)
{
	struct key *key = &k->v[k->staged];
	char *save = NULL, *id = strtok_r(line, " \t\r", &save),
	     *hex = strtok_r(NULL, " \t\r", &save), *model = strtok_r(NULL, " \t\r", &save), *end;
	unsigned long long n;

	if (!id || *id == '#')
		return 0;
	*why = "a line must be \"ID HEX [MODEL]\"";
	if (!isdigit((unsigned char)*id) || !hex || strtok_r(NULL, " \t\r", &save))
		return -EINVAL;
	n = strtoull(id, &end, 10);
	*why = "ID must be from 1 to 4294967295";
	if (*end || !n || n > UINT32_MAX)
		return -EINVAL;
	*why = "HEX must be 64 hexadecimal digits";
	if (strlen(hex) != 64)
		return -EINVAL;
	for (int i = 0; i < 32; i++) {
		int a = digit(hex[2 * i]), b = digit(hex[2 * i + 1]);

		if (a < 0 || b < 0)
			return -EINVAL;
		key->bytes[i] = (uint8_t)(a << 4 | b);
	}
	*why = "MODEL must be the name of a folder";
	if (model && (strlen(model) > KVC_MODEL_NAME || strchr(model, '/')))
		return -EINVAL;
	key->id = (uint32_t)n;
	memset(key->model, 0, sizeof key->model);
	if (model)
		memcpy(key->model, model, strlen(model));
	return stage(k, why);
}

/* Reads the text of a key file into locked memory. */
static int read_text(const char *path, char **text, size_t *len, char *error)
{
	char reason[KVC_SECRET_WHY];
	struct stat st;
	KVC_FD int fd = kvc_secret_open(path, &st, reason);
	int err = 0;

	if (fd < 0) {
		snprintf(error, 512, "option keyfile: %s %s%s", path, reason,
			 fd == -ENOENT ? "; create one with kvcachectl newkey" : "");
		return fd;
	}
	*len = (size_t)st.st_size;
	if (st.st_size <= 0 || st.st_size > FILE_MAX) {
		snprintf(error, 512, "option keyfile: %s contains no keys", path);
		return -EINVAL;
	}
	*text = secret_new(FILE_MAX + 1);
	if (!*text) {
		snprintf(
			error, 512,
			"option keyfile: cannot lock memory for keys; raise the limit (ulimit -l)");
		return -ENOMEM;
	}
	if ((err = kvc_pread_all(fd, *text, *len, 0)))
		snprintf(error, 512, "option keyfile: cannot read %s: %s", path, strerror(-err));
	if (!err && memchr(*text, 0, *len)) { /* a NUL would hide the keys after it */
		err = -EINVAL;
		snprintf(error, 512, "option keyfile: %s contains a zero byte", path);
	}
	if (err)
		secret_free(*text, FILE_MAX + 1);
	return err;
}

int kvc_keys_read(struct kvc_keys *k, const char *path, char *error)
{
	char *text = NULL, *save = NULL;
	const char *why = "";
	size_t len;
	int err = read_text(path, &text, &len, error), line = 0;

	if (err)
		return err;
	pthread_mutex_lock(&k->reading);
	memset(k->seen, 0, sizeof k->seen);
	for (char *at = text; !err && (at = line++ ? NULL : text, at = strtok_r(at, "\n", &save));)
		if ((err = parse_line(k, at, &why)))
			snprintf(error, 512,
				 "option keyfile: %s: line %d is not valid (empty lines are not "
				 "counted): %s",
				 path, line, why);
	secret_free(text, FILE_MAX + 1);
	if (!err && !memchr(k->seen, true, sizeof k->seen)) {
		err = -EINVAL;
		snprintf(error, 512, "option keyfile: %s contains no keys", path);
	}
	if (err)
		kvc_keys_read_end(k, false, false);
	return err;
}

bool kvc_keys_reading(struct kvc_keys *k)
{
	if (pthread_mutex_trylock(&k->reading))
		return true;
	pthread_mutex_unlock(&k->reading);
	return false;
}

void kvc_keys_read_end(struct kvc_keys *k, bool take, bool retire)
{
	size_t n = k->n;

	if (!take) {
		kvc_keys_wipe(&k->v[n], sizeof k->v[n] * (k->staged + 1 - n));
		k->staged = n;
	}
	for (size_t i = 0; take && i < k->staged; i++)
		if (k->seen[i] || retire)
			k->retired[i] = !k->seen[i];
	k->n = k->staged;
	pthread_mutex_unlock(&k->reading);
}

int kvc_keys_each_read(const struct kvc_keys *k, bool added, int (*fn)(void *arg, uint32_t id),
		       void *arg)
{
	int err = 0;

	for (size_t i = added ? k->n : 0; i < (added ? k->staged : k->n) && !err; i++)
		if (k->seen[i] == added)
			err = fn(arg, k->v[i].id);
	return err;
}

int kvc_keys_open(struct kvc_keys **out, const char *path, char *error)
{
	struct kvc_keys *k = secret_new(sizeof *k);
	int err;

	if (!k) {
		snprintf(
			error, 512,
			"option keyfile: cannot lock memory for keys; raise the limit (ulimit -l)");
		return -ENOMEM;
	}
	pthread_mutex_init(&k->reading, NULL);
	if ((err = kvc_keys_read(k, path, error))) {
		kvc_keys_close(k);
		return err;
	}
	kvc_keys_read_end(k, true, false);
	*out = k;
	return 0;
}

static const struct key *find_below(const struct kvc_keys *k, size_t n, uint32_t id)
{
	for (size_t i = 0; i < n; i++)
		if (k->v[i].id == id)
			return &k->v[i];
	return NULL;
}

static const struct key *find(const struct kvc_keys *k, uint32_t id)
{
	return k ? find_below(k, k->n, id) : NULL;
}

bool kvc_keys_has(const struct kvc_keys *k, uint32_t id)
{
	return find(k, id) != NULL;
}

uint32_t kvc_keys_for(const struct kvc_keys *k, const char *model)
{
	uint32_t own = 0, master = 0;

	for (size_t i = 0; k && i < k->n; i++) {
		const struct key *x = &k->v[i];

		if (k->retired[i])
			continue;
		if (!*x->model && x->id > master)
			master = x->id;
		else if (*x->model && !strcmp(x->model, model) && x->id > own)
			own = x->id;
	}
	return own ? own : master;
}

int kvc_keys_each(const struct kvc_keys *k, int (*fn)(void *arg, uint32_t id), void *arg)
{
	int err = 0;

	for (size_t i = 0; k && i < k->n && !err; i++)
		err = fn(arg, k->v[i].id);
	return err;
}

int kvc_keys_hkdf(const void *key, size_t key_len, const void *salt, size_t salt_len,
		  const void *info, size_t info_len, uint8_t *out, size_t len)
{
	EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
	EVP_KDF_CTX *c = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
	OSSL_PARAM p[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char[]){ "SHA256" }, 0),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)key,
						  key_len),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)(uintptr_t)salt,
						  salt_len),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)info,
						  info_len),
		OSSL_PARAM_construct_end(),
	};
	int ok = c && EVP_KDF_derive(c, out, len, p) > 0;

	EVP_KDF_CTX_free(c);
	EVP_KDF_free(kdf);
	return ok ? 0 : -EIO;
}

int kvc_keys_proof(const struct kvc_keys *k, uint32_t id, char text[33])
{
	static const char salt[] = "kvcachefs proof 1";
	const struct key *x = find_below(k, k->staged, id);
	uint8_t sum[16];
	int err = x ? kvc_keys_hkdf(x->bytes, 32, salt, sizeof salt - 1, &x->id, sizeof x->id, sum,
				    sizeof sum)
		    : -ENOENT;

	for (int i = 0; i < 16 && !err; i++)
		snprintf(text + 2 * i, 3, "%02x", sum[i]);
	return err;
}

static int model_key(const struct kvc_keys *k, uint32_t id, const char *model, uint8_t own[32])
{
	static const char salt[] = "kvcachefs model 1";
	const struct key *x = find(k, id);

	if (!x || (*x->model && strcmp(x->model, model)))
		return -ENOKEY;
	return kvc_keys_hkdf(x->bytes, 32, salt, sizeof salt - 1, model, strlen(model), own, 32);
}

int kvc_keys_frame_key(const struct kvc_keys *k, uint32_t id, const char *model,
		       const uint8_t nonce[12], uint64_t ino, uint64_t gen, uint8_t out[32])
{
	struct {
		char text[17];
		uint64_t ino, gen;
	} __attribute__((packed)) info = { .ino = htole64(ino), .gen = htole64(gen) };
	uint8_t own[32];
	int err = model_key(k, id, model, own);

	memcpy(info.text, "kvcachefs frame 1", 17);
	if (!err)
		err = kvc_keys_hkdf(own, 32, nonce, 12, &info, sizeof info, out, 32);
	kvc_keys_wipe(own, sizeof own);
	return err;
}

int kvc_keys_header_key(const struct kvc_keys *k, uint32_t id, const char *model, uint8_t out[32])
{
	static const char info[] = "kvcachefs header 1";
	uint8_t own[32];
	int err = model_key(k, id, model, own);

	if (!err)
		err = kvc_keys_hkdf(own, 32, "", 0, info, sizeof info - 1, out, 32);
	kvc_keys_wipe(own, sizeof own);
	return err;
}

static EVP_MAC *hmac; /* fetched once, for the life of the process */

static void find_hmac(void)
{
	hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
}

int kvc_keys_mac(const uint8_t key[32], const void *a, size_t a_len, const void *b, size_t b_len,
		 uint8_t out[16])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	OSSL_PARAM p[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char[]){ "SHA256" }, 0),
		OSSL_PARAM_construct_end(),
	};
	uint8_t all[32];
	size_t len = 0;

	pthread_once(&once, find_hmac);
	EVP_MAC_CTX *c = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
	int ok = c && EVP_MAC_init(c, key, 32, p) && EVP_MAC_update(c, a, a_len) &&
		 EVP_MAC_update(c, b, b_len) && EVP_MAC_final(c, all, &len, sizeof all);

	if (ok)
		memcpy(out, all, 16);
	kvc_keys_wipe(all, sizeof all);
	bool none = hmac && !c;

	EVP_MAC_CTX_free(c);
	return ok ? 0 : none ? -ENOMEM : -EIO;
}

static void block_nonce(uint64_t block, uint8_t iv[12])
{
	uint64_t be = htobe64(block);

	memset(iv, 0, 4);
	memcpy(iv + 4, &be, 8);
}

/* Returns -EBADMSG if the tag does not match. -ENOMEM and -EIO say nothing about the tag. */
static int gcm(bool seal, const uint8_t key[32], uint64_t block, const void *aad, size_t aad_len,
	       const uint8_t *in, size_t len, uint8_t *out, uint8_t tag[16])
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	uint8_t iv[12], none[16];
	int n = 0, ok, good;

	if (!c)
		return -ENOMEM;
	block_nonce(block, iv);
	ok = EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, iv, seal) == 1;
	ok = ok && EVP_CipherUpdate(c, NULL, &n, aad, (int)aad_len) == 1;
	if (len)
		ok = ok && EVP_CipherUpdate(c, out, &n, in, (int)len) == 1;
	if (!seal)
		ok = ok && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, 16, tag) == 1;
	good = ok && EVP_CipherFinal_ex(c, none, &n) == 1;
	if (seal)
		good = good && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, 16, tag) == 1;
	EVP_CIPHER_CTX_free(c);
	return good ? 0 : ok && !seal ? -EBADMSG : -EIO;
}

int kvc_keys_seal(const uint8_t key[32], uint64_t block, const void *aad, size_t aad_len,
		  const uint8_t *in, size_t len, uint8_t *out, uint8_t tag[16])
{
	return gcm(true, key, block, aad, aad_len, in, len, out, tag);
}

int kvc_keys_unseal(const uint8_t key[32], uint64_t block, const void *aad, size_t aad_len,
		    const uint8_t *in, size_t len, uint8_t *out, const uint8_t tag[16])
{
	uint8_t copy[16];
	int err;

	memcpy(copy, tag, 16);
	err = gcm(false, key, block, aad, aad_len, in, len, out, copy);
	if (err)
		memset(out, 0, len);
	return err;
}

struct kvc_library kvc_keys_library(void)
{
	return (struct kvc_library){ "OpenSSL", OpenSSL_version(OPENSSL_VERSION_STRING),
				     (const void *)OpenSSL_version };
}
