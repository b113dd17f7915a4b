/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl hash computes the keys of chunks; kvcachectl newkey adds an encryption key to a key
 * file.
 */
#include "atomic_file.h"
#include "ctl.h"
#include "json.h"
#include "kvcachefs_names.h"
#include "secret.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#define TRIES 100 /* attempts if other processes create the file at the same time */

#define MODEL_MAX 255

struct secret { /* wiped before the command ends */
	char line[512], in[4096], out[4096];
};

/* Copies the existing lines of the key file, and finds the highest key id. */
static int copy_keys(FILE *from, FILE *to, struct secret *s, unsigned long *max)
{
	bool begins = true;
	unsigned long n;

	while (fgets(s->line, sizeof s->line, from)) {
		if (begins && sscanf(s->line, "%lu ", &n) == 1 && n > *max)
			*max = n;
		begins = strchr(s->line, '\n');
		if (fputs(s->line, to) == EOF)
			return -errno;
	}
	if (ferror(from))
		return -errno;
	return begins || fputc('\n', to) != EOF ? 0 : -errno;
}

static int put_key(FILE *to, const char *model, unsigned long id, struct secret *s)
{
	uint8_t key[32];
	int err = 0;

	if (getrandom(key, sizeof key, 0) != sizeof key)
		return -EIO;
	for (size_t i = 0; i < sizeof key; i++)
		snprintf(s->line + 2 * i, sizeof s->line - 2 * i, "%02x", key[i]);
	if (fprintf(to, "%lu %s%s%s\n", id, s->line, model ? " " : "", model ? model : "") < 0)
		err = -errno;
	explicit_bzero(key, sizeof key);
	return err;
}

/*
 * Opens and locks the existing file, so that of two concurrent commands the second one adds to the
 * result of the first.
 */
static int open_keys(const char *path, struct stat *st)
{
	struct stat now;

	for (;;) {
		int fd = open(path, O_RDWR | O_CLOEXEC), err;

		if (fd < 0)
			return -errno;
		err = flock(fd, LOCK_EX) || fstat(fd, st) || stat(path, &now) ? errno : 0;
		if (!err && now.st_ino == st->st_ino && now.st_dev == st->st_dev)
			return fd;
		close(fd);
		if (err && err != ENOENT)
			return -err;
	}
}

/*
 * Writes a new file: the lines of fd (negative: none), and a key whose id is one above the highest.
 */
static int add_key(const char *path, int fd, const char *model, unsigned long *id)
{
	struct secret s;
	struct kvm_atomic_file b;
	unsigned long max = 0;
	FILE *old = NULL;
	int err = kvm_atomic_file_open(&b, path, 0600, fd < 0);

	if (err)
		return err;
	if (fd >= 0 && (!(old = fdopen(fd, "r")) || setvbuf(old, s.in, _IOFBF, sizeof s.in)))
		err = -ENOMEM;
	if (!err && setvbuf(b.f, s.out, _IOFBF, sizeof s.out))
		err = -ENOMEM;
	if (!err && old)
		err = copy_keys(old, b.f, &s, &max);
	if (!err && max >= UINT32_MAX)
		err = -ERANGE;
	*id = max + 1;
	err = err ?: put_key(b.f, model, *id, &s);
	err = kvm_atomic_file_close(&b, err);
	if (old)
		fclose(old);
	else if (fd >= 0)
		close(fd);
	explicit_bzero(&s, sizeof s);
	return err;
}

/*
 * Refuses a name that a mount would not accept in the key file, or that a folder cannot have.
 * Without this check, an empty name would add a key for all models.
 */
static int check_model(const char *model)
{
	if (*model && strlen(model) <= MODEL_MAX && !strpbrk(model, "/ \t\r\n") &&
	    strcmp(model, ".") != 0 && strcmp(model, "..") != 0)
		return 0;
	return kvm_misused("MODEL %s: give the name of a folder in the root of the mount, without "
			   "slashes and spaces",
			   kvm_shown(model));
}

/* Adds a random key to a key file. A new file gets mode 0600. */
int kvm_run_newkey(int argc, char **argv)
{
	unsigned long id = 0;
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	struct kvm_json j = { stdout, false };
	int fd, err = kvm_options(&argc, argv, options);
	struct stat st;

	err = err ?: argc > 1 ? check_model(argv[1]) : 0;
	if (err)
		return err;
	for (int i = 0; i < TRIES; i++) {
		fd = open_keys(argv[0], &st);
		if (fd < 0 && fd != -ENOENT)
			return kvm_fail("%s: %s", kvm_shown(argv[0]), kvc_why(-fd));
		if (fd >= 0 && !kvc_secret_is_private(&st)) {
			close(fd);
			return kvm_fail("%s %s", kvm_shown(argv[0]), kvc_secret_why(&st));
		}
		err = add_key(argv[0], fd, argc > 1 ? argv[1] : NULL, &id);
		if (err != -EEXIST) /* another process has just created the file */
			break;
	}
	if (err)
		return kvm_fail("cannot add a key to %s: %s", kvm_shown(argv[0]),
				kvm_atomic_file_why(-err));
	if ((err = kvm_sync_name(argv[0])))
		return kvm_fail("%s has key %lu, but a power failure may undo this: %s", argv[0],
				id, kvc_why(-err));
	if (!json) {
		printf("key %lu added to %s; copy this file to all nodes that share a tier, then "
		       "run kvcachectl rekey on each\n",
		       id, argv[0]);
		return 0;
	}
	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "file", argv[0]);
	kvm_json_number(&j, "key", id);
	kvm_json_end(&j, '}');
	putchar('\n');
	return 0;
}

struct naming {            /* how to print a key */
	const char *model; /* NULL: print the key alone */
	bool as;           /* use the naming scheme of `how`; otherwise MODEL/KEY */
	enum kvcachefs_naming how;
	struct kvcachefs_name name;
	struct kvm_json *json; /* an array of keys; NULL: print lines */
};

static int print_key(const struct kvcachefs_hasher *h, const void *key, struct naming *n)
{
	char text[KVCACHEFS_TEXT_MAX], path[KVCACHEFS_PATH_MAX];

	kvcachefs_hasher_text(h, key, text);
	if (n->as && (kvcachefs_name_set(&n->name, "key", text) ||
		      kvcachefs_name_build(n->how, &n->name, path)))
		return kvm_fail("%s", kvcachefs_error());
	if (!n->as)
		snprintf(path, sizeof path, "%s%s%s", n->model ?: "", n->model ? "/" : "", text);
	if (n->json)
		kvm_json_text(n->json, NULL, path);
	else
		puts(path);
	return 0;
}

/* Parses MODEL and MEMBER=VALUE... after the scheme and the file. */
static int read_naming(struct naming *n, const char *as, int left, char **v)
{
	n->as = as;
	if (as && kvcachefs_naming_find(as, &n->how))
		return kvm_fail("%s", kvcachefs_error());
	if (as && left < 3)
		return kvm_fail("--as needs MODEL after SCHEME and FILE");
	n->model = left > 2 ? v[2] : NULL;
	if (n->model && n->as && kvcachefs_name_set(&n->name, "model", n->model))
		return kvm_fail("%s", kvcachefs_error());
	for (int i = 3; i < left; i++) {
		char *value = strchr(v[i], '=');

		if (!n->as)
			return kvm_fail("%s: MEMBER=VALUE needs --as NAMING", v[i]);
		if (!value)
			return kvm_fail("%s: give MEMBER=VALUE, such as rank=0", v[i]);
		*value++ = 0;
		if (kvcachefs_name_set(&n->name, v[i], value))
			return kvm_fail("%s", kvcachefs_error());
	}
	return 0;
}

/* Prints the keys of the token ids in a file: decimal numbers with any separators. */
static int hash_file(struct kvcachefs_hasher *h, FILE *f, const char *name, struct naming *naming)
{
	size_t made;
	int c, err = 0;

	do {
		uint64_t token = 0;
		bool any = false;
		uint8_t key[KVCACHEFS_KEY_MAX];

		while ((c = getc(f)) >= '0' && c <= '9') {
			token = token * 10 + (uint64_t)(c - '0');
			any = true;
			if (token > UINT32_MAX) {
				err = kvm_fail(
					"%s: a token id is larger than the maximum 4294967295",
					name);
				break;
			}
		}
		if (!any || err)
			continue;
		if (kvcachefs_hasher_feed(h, &(uint32_t){ (uint32_t)token }, 1, key, 1, &made))
			err = kvm_fail("%s", kvcachefs_error());
		else if (made)
			err = print_key(h, key, naming);
	} while (c != EOF && !err);
	return err ?: ferror(f) ? kvm_fail("%s: %s", name, kvc_why(errno)) : 0;
}

/* Parses SCHEME[:TOKENS]. */
static int read_scheme(char *text, struct kvcachefs_keys *keys)
{
	char *colon = strchr(text, ':'), *end;

	if (!colon)
		return kvcachefs_scheme_find(text, &keys->scheme)
			       ? kvm_fail("%s", kvcachefs_error())
			       : 0;
	*colon = 0;
	keys->block_tokens = (unsigned)strtoul(colon + 1, &end, 10);
	if (!keys->block_tokens || *end || colon[1] < '0' || colon[1] > '9' ||
	    keys->block_tokens > 1 << 20)
		return kvm_fail("%s:%s: a chunk has 1 to 1048576 tokens", text, colon + 1);
	return kvcachefs_scheme_find(text, &keys->scheme) ? kvm_fail("%s", kvcachefs_error()) : 0;
}

int kvm_run_hash(int argc, char **argv)
{
	struct kvcachefs_keys keys = { .seed = getenv("PYTHONHASHSEED") };
	struct kvm_json j = { stdout, false };
	struct naming naming = { .model = NULL };
	struct kvcachefs_hasher *h;
	FILE *f;
	bool json = false;
	const char *as = NULL;
	const struct kvm_option options[] = { { "as", NULL, &as }, { "json", &json, NULL }, { 0 } };
	int err = kvm_options(&argc, argv, options)
			  ?: read_naming(&naming, as, argc, argv) ?: read_scheme(argv[0], &keys);

	if (err)
		return err;
	if (kvcachefs_hasher_new(&h, &keys))
		return kvm_fail("%s", kvcachefs_error());
	f = strcmp(argv[1], "-") ? fopen(argv[1], "re") : stdin;
	if (!f) {
		kvcachefs_hasher_free(h);
		return kvm_fail("%s: %s", kvm_shown(argv[1]), kvc_why(errno));
	}
	if (json) {
		naming.json = &j;
		kvm_json_begin(&j, NULL, '{');
		kvm_json_begin(&j, "keys", '[');
	}
	err = hash_file(h, f, argv[1], &naming);
	if (json && !err) {
		kvm_json_end(&j, ']');
		kvm_json_end(&j, '}');
		putchar('\n');
	}
	kvcachefs_hasher_free(h);
	if (f != stdin)
		fclose(f);
	return err;
}
