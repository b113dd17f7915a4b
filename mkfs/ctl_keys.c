/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl hash, the keys of chunks; and newkey, those that seal them. */
#include "ctl.h"

#include "json.h"
#include "kvcachefs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

/* A key one above the highest id that is there; *id gets its id. What is secret stays in `text`. */
static int add_key(FILE *f, const char *model, unsigned long *id, char *text, size_t room)
{
	uint8_t key[32];
	unsigned long max = 0, n;
	int err = 0;

	while (fgets(text, (int)room, f))
		if (sscanf(text, "%lu ", &n) == 1 && n > max)
			max = n;
	if (ferror(f) || fseek(f, 0, SEEK_END))
		return -EIO;
	if (max >= UINT32_MAX)
		return -ERANGE;
	if (getrandom(key, sizeof key, 0) != sizeof key)
		return -EIO;
	*id = max + 1;
	for (size_t i = 0; i < sizeof key; i++)
		snprintf(text + 2 * i, room - 2 * i, "%02x", key[i]);
	if (fprintf(f, "%lu %s%s%s\n", *id, text, model ? " " : "", model ? model : "") < 0 ||
	    fflush(f) || fsync(fileno(f)))
		err = -errno;
	explicit_bzero(key, sizeof key);
	return err;
}

/* Adds a random key to a key file, made with mode 0600 where it is missing. */
int kvm_run_newkey(int argc, char **argv)
{
	struct {
		char line[512], stream[4096];
	} secret;
	unsigned long id = 0;
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	struct kvm_json j = { stdout, false };
	int fd, err = kvm_options(&argc, argv, options);
	struct stat st;
	FILE *f;

	if (err)
		return err;
	fd = open(argv[0], O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	f = fd < 0 ? NULL : fdopen(fd, "a+");
	if (!f)
		return kvm_fail("%s: %s", kvm_shown(argv[0]), kvc_why(errno));
	if (fstat(fd, &st) || (st.st_mode & 077)) {
		fclose(f);
		return kvm_fail("%s can be used by others; make it yours alone: chmod 600",
				argv[0]);
	}
	err = setvbuf(f, secret.stream, _IOFBF, sizeof secret.stream) ? -ENOMEM : 0;
	if (!err)
		err = add_key(f, argc > 1 ? argv[1] : NULL, &id, secret.line, sizeof secret.line);
	if (err) { /* half a line would make the others useless too */
		__fpurge(f);
		(void)!ftruncate(fd, st.st_size);
	}
	fclose(f);
	explicit_bzero(&secret, sizeof secret);
	if (err)
		return kvm_fail("no key could be added to %s: %s", argv[0], kvc_why(-err));
	if (!json) {
		printf("key %lu added to %s\n", id, argv[0]);
		return 0;
	}
	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "file", argv[0]);
	kvm_json_number(&j, "key", id);
	kvm_json_end(&j, '}');
	putchar('\n');
	return 0;
}

struct naming {            /* how a key is printed */
	const char *model; /* NULL: the key alone */
	bool as;           /* as the path of `how`; otherwise MODEL/KEY */
	enum kvcachefs_naming how;
	struct kvcachefs_name name;
	struct kvm_json *json; /* an array of them; NULL: lines */
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

/* MODEL and MEMBER=VALUE... behind the scheme and the file. */
static int read_naming(struct naming *n, const char *as, int left, char **v)
{
	n->as = as;
	if (as && kvcachefs_naming_find(as, &n->how))
		return kvm_fail("%s", kvcachefs_error());
	if (as && left < 3)
		return kvm_fail("--as wants SCHEME FILE MODEL");
	n->model = left > 2 ? v[2] : NULL;
	if (n->model && n->as && kvcachefs_name_set(&n->name, "model", n->model))
		return kvm_fail("%s", kvcachefs_error());
	for (int i = 3; i < left; i++) {
		char *value = strchr(v[i], '=');

		if (!n->as || !value)
			return kvm_fail("%s: it is MEMBER=VALUE, with --as", v[i]);
		*value++ = 0;
		if (kvcachefs_name_set(&n->name, v[i], value))
			return kvm_fail("%s", kvcachefs_error());
	}
	return 0;
}

/* The keys of the token ids in a file: decimal, anything between. */
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
					"%s: a token id is larger than 4294967295, the largest",
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

/* SCHEME[:TOKENS] */
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
		return kvm_fail("%s:%s: a block has 1 to 1048576 tokens", text, colon + 1);
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
