/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names on disk: each naming is a row with a builder and a parser. A parser splits a path leniently
 * and then builds it again; the path has that naming only if the result is identical. So the two
 * cannot disagree.
 */
#include "priv.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART_MAX 255 /* NAME_MAX */

static const char *const dtypes[] = {
	"half",  "bfloat16", "float", "double",     "int8",         "uint8",    "int16",
	"int32", "int64",    "bool",  "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz",
};
/* SGLang's PoolName, except kv, whose files have no pool in their names. */
static const char *const pools[] = {
	"mamba",
	"swa",
	"auxiliary_swa",
	"indexer",
	"deepseek_v4_c1",
	"deepseek_v4_c1_indexer",
	"deepseek_v4_c1_indexer_scale",
	"deepseek_v4_c2",
	"deepseek_v4_c2_indexer",
	"deepseek_v4_c2_indexer_scale",
	"deepseek_v4_c4",
	"deepseek_v4_c4_indexer",
	"deepseek_v4_c4_indexer_scale",
	"deepseek_v4_c128",
	"deepseek_v4_c4_rope",
	"deepseek_v4_c128_rope",
	"deepseek_v4_c4_state",
	"deepseek_v4_c4_indexer_state",
	"deepseek_v4_c128_state",
	"draft",
	"draft_indexer",
	"draft_swa",
};

struct text { /* the text being built */
	char *p;
	size_t len, capacity;
	bool full;
};

static void text_add(struct text *t, const char *s, size_t n)
{
	if (n >= t->capacity - t->len) {
		t->full = true;
		return;
	}
	memcpy(t->p + t->len, s, n);
	t->len += n;
	t->p[t->len] = 0;
}

static void __attribute__((format(printf, 2, 3))) addf(struct text *t, const char *format, ...)
{
	char s[PART_MAX * 2];
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(s, sizeof s, format, ap);

	va_end(ap);
	text_add(t, s, (size_t)n < sizeof s ? (size_t)n : t->capacity);
}

/* Adds s with every "/" replaced by `slash`. */
static void add_flat(struct text *t, const char *s, const char *slash)
{
	for (; *s; s++)
		if (*s == '/')
			text_add(t, slash, strlen(slash));
		else
			text_add(t, s, 1);
}

static uint32_t at_least_1(uint32_t n)
{
	return n ? n : 1;
}

static bool among(const char *s, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(list[i], s))
			return true;
	return false;
}
#define AMONG(s, list) among(s, list, sizeof(list) / sizeof *(list))

/* Does s consist of `least` to `most` lower-case hex digits? */
static bool is_hex(const char *s, size_t least, size_t most)
{
	size_t n = strspn(s, "0123456789abcdef");

	return !s[n] && n >= least && n <= most;
}

static bool is_printable(const char *s, const char *refused)
{
	for (; *s; s++)
		if ((unsigned char)*s < 32 || *s == 127 || strchr(refused, *s))
			return false;
	return true;
}

static int check_rank(const char *what, uint32_t rank, uint32_t size)
{
	if (rank >= at_least_1(size))
		return kvcachefs_fail(-EINVAL, "%s %u must be less than its size %u", what, rank,
				      at_least_1(size));
	return 0;
}

static int check_model(const struct kvcachefs_name *n, bool may_lack)
{
	if ((!*n->model && !may_lack) || !is_printable(n->model, ""))
		return kvcachefs_fail(-EINVAL, "'%s' is not a model name", n->model);
	return 0;
}

/* ---- LMCache ---- */

static int lmcache_build(const struct kvcachefs_name *n, struct text *t, const char *slash,
			 const char *suffix)
{
	const char *digits = n->key + (*n->key == '-');
	const char *dtype = *n->dtype ? n->dtype : "bfloat16";
	int err = check_model(n, false);

	if (err)
		return err;
	if (strchr(n->model, '@'))
		return kvcachefs_fail(-EINVAL, "LMCache does not allow '@' in the model name '%s'",
				      n->model);
	if (!is_hex(digits, 1, 2 * KVCACHEFS_KEY_MAX))
		return kvcachefs_fail(-EINVAL, "'%s' is not a hexadecimal key", n->key);
	if (!AMONG(dtype, dtypes))
		return kvcachefs_fail(-EINVAL,
				      "'%s' is not an LMCache type, such as bfloat16 or half",
				      dtype);
	if (check_rank("worker", n->worker, n->world_size))
		return -EINVAL;
	if (!is_printable(n->tags, ""))
		return kvcachefs_fail(-EINVAL, "the tags '%s' contain control characters", n->tags);
	for (const char *s = n->tags; *s;) {
		size_t len = strcspn(s, "@");

		if (!memchr(s, '%', len) || (s[len] && !s[len + 1]))
			return kvcachefs_fail(-EINVAL,
					      "tags must be TAG%%VALUE joined by '@', not '%s'",
					      n->tags);
		s += len + (s[len] == '@');
	}
	add_flat(t, n->model, slash);
	addf(t, "@%u@%u@%s@%s", at_least_1(n->world_size), n->worker, n->key, dtype);
	if (n->has_layer)
		addf(t, "@%u", n->layer);
	if (*n->tags) {
		text_add(t, "@", 1);
		add_flat(t, n->tags, slash);
	}
	text_add(t, suffix, strlen(suffix));
	return 0;
}

static int lmcache_fs_build(const struct kvcachefs_name *n, struct text *t)
{
	return lmcache_build(n, t, "-SEP-", ".data");
}

static int lmcache_disk_build(const struct kvcachefs_name *n, struct text *t)
{
	return lmcache_build(n, t, "-", ".pt");
}

static int l2_build(const struct kvcachefs_name *n, struct text *t)
{
	size_t chars = 0;
	int err = check_model(n, false);

	if (err)
		return err;
	if (strchr(n->model, '@'))
		return kvcachefs_fail(-EINVAL, "LMCache does not allow '@' in the model name '%s'",
				      n->model);
	if (!is_hex(n->key, 2, 2 * KVCACHEFS_KEY_MAX) || strlen(n->key) % 2)
		return kvcachefs_fail(-EINVAL, "'%s' is not a hexadecimal key of whole bytes",
				      n->key);
	for (const char *s = n->salt; *s; s++)
		chars += (*s & 0xc0) != 0x80;
	if (!is_printable(n->salt, "@/\\") || chars > 128)
		return kvcachefs_fail(-EINVAL,
				      "a salt may have 128 characters and none of @ / \\: '%s'",
				      n->salt);
	add_flat(t, n->model, "-SEP-");
	addf(t, "@0x%08x@%x@%s", n->kv_rank, n->group, n->key);
	if (*n->salt) {
		text_add(t, "@", 1);
		text_add(t, n->salt, strlen(n->salt));
	}
	text_add(t, ".data", 5);
	return 0;
}

/* ---- SGLang ---- */

static int sglang_build(const struct kvcachefs_name *n, struct text *t)
{
	int err = check_model(n, true);

	if (!err)
		err = check_rank("tp_rank", n->tp_rank, n->tp_size);
	if (!err)
		err = check_rank("pp_rank", n->pp_rank, n->pp_size);
	if (!err)
		err = check_rank("cp_rank", n->cp_rank, n->cp_size);
	if (!err)
		err = check_rank("dcp_rank", n->dcp_rank, n->dcp_size);
	if (err)
		return err;
	if (!is_hex(n->key, 64, 64))
		return kvcachefs_fail(-EINVAL, "'%s' is not a hexadecimal SHA-256", n->key);
	if (*n->pool && !AMONG(n->pool, pools))
		return kvcachefs_fail(-EINVAL, "'%s' is not a pool of SGLang", n->pool);
	if (n->dcp_size > 1 && (!n->mla || !n->page))
		return kvcachefs_fail(-EINVAL,
				      "dcp_size above 1 requires MLA and a page of several tokens");
	text_add(t, n->key, 64);
	if (*n->pool)
		addf(t, ".%s", n->pool);
	text_add(t, "_", 1);
	add_flat(t, n->model, "-");
	if (!n->mla ||
	    !strcmp(n->pool, "mamba")) /* MLA's KV is the same on all ranks, mamba's state is not */
		addf(t, "_%u_%u", n->tp_rank, at_least_1(n->tp_size));
	if (n->pp_size > 1)
		addf(t, "_%u_%u", n->pp_size, n->pp_rank);
	if (n->cp_size > 1)
		addf(t, "_cp%u_%u", n->cp_rank, n->cp_size);
	if (n->dcp_size > 1)
		addf(t, "_tp%u_dcp%u_%u_page%u", at_least_1(n->tp_size), n->dcp_rank, n->dcp_size,
		     n->page);
	text_add(t, ".bin", 4);
	return 0;
}

/* ---- vLLM ---- */

static int vllm_build(const struct kvcachefs_name *n, struct text *t)
{
	int err = check_model(n, false);

	if (err)
		return err;
	if (!is_hex(n->key, 6, 2 * KVCACHEFS_KEY_MAX) || strlen(n->key) % 2)
		return kvcachefs_fail(-EINVAL, "'%s' is not a hexadecimal key of whole bytes",
				      n->key);
	if (!is_hex(n->config, 12, 12))
		return kvcachefs_fail(-EINVAL, "the member config must be the 12 hex digits at the "
					       "end of the name of the folder with config.json");
	add_flat(t, n->model, "_");
	addf(t, "_%s_r%u/%.3s/%.2s_g%u/%s.bin", n->config, n->rank, n->key, n->key + 3, n->group,
	     n->key);
	return 0;
}

/* ---- Parsers: split a path; the build that follows checks the result ---- */

static bool number(const char *s, size_t len, int base, uint32_t *out)
{
	uint64_t v = 0;

	if (!len || len > 10)
		return false;
	for (size_t i = 0; i < len; i++) {
		int d = s[i] >= '0' && s[i] <= '9'                 ? s[i] - '0'
			: base == 16 && s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10
								   : -1;

		if (d < 0)
			return false;
		v = v * (unsigned)base + (unsigned)d;
	}
	if (v > UINT32_MAX)
		return false;
	*out = (uint32_t)v;
	return true;
}

/*
 * Copies [s, end) to a member, with every `from` (if not NULL) replaced by "/". Returns false if it
 * is too long.
 */
static bool copy_text(char *to, size_t capacity, const char *s, const char *end, const char *from)
{
	size_t n = 0, len = from ? strlen(from) : 0;

	while (s < end) {
		bool slash = len && (size_t)(end - s) >= len && !memcmp(s, from, len);

		if (n + 1 >= capacity)
			return false;
		to[n++] = slash ? '/' : *s;
		s += slash ? len : 1;
	}
	to[n] = 0;
	return true;
}
#define TAKE(member, s, end, from) copy_text(member, sizeof(member), s, end, from)

/* Returns the end of s without the suffix; NULL: s does not end with it. */
static const char *strip_suffix(const char *s, const char *suffix)
{
	size_t n = strlen(s), len = strlen(suffix);

	return n >= len && !strcmp(s + n - len, suffix) ? s + n - len : NULL;
}

/* Splits [s, end) at "@" into at most n parts. Returns the number of parts. */
static size_t split(const char *s, const char *end, const char *part[], const char *part_end[],
		    size_t n)
{
	size_t count = 0;

	for (;;) {
		const char *at = memchr(s, '@', (size_t)(end - s));

		if (count < n) {
			part[count] = s;
			part_end[count] = at ? at : end;
		}
		count++;
		if (!at)
			return count;
		s = at + 1;
	}
}

static bool lmcache_take(const char *path, struct kvcachefs_name *n, const char *slash,
			 const char *suffix)
{
	const char *end = strip_suffix(path, suffix), *part[7], *stop[7];
	size_t parts = end ? split(path, end, part, stop, 7) : 0, tags = 5;

	if (parts < 5 || !TAKE(n->model, part[0], stop[0], slash) ||
	    !number(part[1], (size_t)(stop[1] - part[1]), 10, &n->world_size) ||
	    !number(part[2], (size_t)(stop[2] - part[2]), 10, &n->worker) ||
	    !TAKE(n->key, part[3], stop[3], NULL) || !TAKE(n->dtype, part[4], stop[4], NULL))
		return false;
	if (parts > 5 && number(part[5], (size_t)(stop[5] - part[5]), 10, &n->layer)) {
		n->has_layer = true;
		tags++;
	}
	return parts <= tags || TAKE(n->tags, part[tags], end, slash);
}

static bool lmcache_fs_parse(const char *path, struct kvcachefs_name *n)
{
	return lmcache_take(path, n, "-SEP-", ".data");
}

static bool lmcache_disk_parse(const char *path, struct kvcachefs_name *n)
{
	return lmcache_take(path, n, NULL, ".pt");
}

static bool l2_parse(const char *path, struct kvcachefs_name *n)
{
	const char *end = strip_suffix(path, ".data"), *part[5], *stop[5];
	size_t parts = end ? split(path, end, part, stop, 5) : 0;

	return (parts == 4 || parts == 5) && TAKE(n->model, part[0], stop[0], "-SEP-") &&
	       stop[1] - part[1] == 10 && number(part[1] + 2, 8, 16, &n->kv_rank) &&
	       number(part[2], (size_t)(stop[2] - part[2]), 16, &n->group) &&
	       TAKE(n->key, part[3], stop[3], NULL) &&
	       (parts == 4 || TAKE(n->salt, part[4], stop[4], NULL));
}

/* Removes a suffix PREFIX a "_" b from [s, *end); the prefix is "_", "_cp" and so on. */
static bool strip_pair(const char *s, const char **end, const char *prefix, uint32_t *a,
		       uint32_t *b)
{
	const char *second = *end, *first;
	size_t len = strlen(prefix);

	while (second > s && second[-1] != '_')
		second--;
	if (second - s < 2 || !number(second, (size_t)(*end - second), 10, b))
		return false;
	for (first = second - 1; first > s && first[-1] >= '0' && first[-1] <= '9';)
		first--;
	if ((size_t)(first - s) < len || memcmp(first - len, prefix, len) ||
	    !number(first, (size_t)(second - 1 - first), 10, a))
		return false;
	*end = first - len;
	return true;
}

static bool sglang_parse(const char *path, struct kvcachefs_name *n)
{
	const char *end = strip_suffix(path, ".bin"), *s, *at, *page;
	size_t longest = 0;
	uint32_t a, b;

	if (!end || end - path < 65 || !TAKE(n->key, path, path + 64, NULL))
		return false;
	s = path + 64;
	if (*s == '.') {
		for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
			size_t len = strlen(pools[i]);

			if (len > longest && !strncmp(s + 1, pools[i], len) && s[1 + len] == '_') {
				longest = len;
				TAKE(n->pool, s + 1, s + 1 + len, NULL);
			}
		}
		if (!longest)
			return false;
		s += 1 + longest;
	}
	if (s >= end || *s != '_')
		return false;
	n->mla = true;
	for (page = end; page > s && page[-1] != '_';)
		page--;
	at = page - 1;
	if (page > s && !strncmp(page, "page", 4) &&
	    number(page + 4, (size_t)(end - page - 4), 10, &n->page) &&
	    strip_pair(s, &at, "_dcp", &n->dcp_rank, &n->dcp_size)) {
		const char *tp = at;

		while (tp > s && tp[-1] != '_')
			tp--;
		if (tp <= s || strncmp(tp, "tp", 2) ||
		    !number(tp + 2, (size_t)(at - tp - 2), 10, &n->tp_size))
			return false;
		end = tp - 1;
	} else {
		n->page = n->dcp_rank = n->dcp_size = 0;
	}
	at = end;
	if (strip_pair(s, &at, "_cp", &n->cp_rank, &n->cp_size))
		end = at;
	else
		n->cp_rank = n->cp_size = 0;
	at = end;
	if (strip_pair(s, &at, "_", &a, &b) && a > b && a > 1) { /* size, rank */
		n->pp_size = a;
		n->pp_rank = b;
		end = at;
	}
	at = end;
	/* rank, size; in names with dcp (MLA models), only files of mamba state have this pair */
	if (strip_pair(s, &at, "_", &a, &b) && a < b &&
	    (!n->dcp_size || (b == n->tp_size && !strcmp(n->pool, "mamba")))) {
		n->tp_rank = a;
		n->tp_size = b;
		n->mla = n->dcp_size > 1;
		end = at;
	}
	return end > s ? TAKE(n->model, s + 1, end, NULL) : end == s;
}

static bool vllm_parse(const char *path, struct kvcachefs_name *n)
{
	const char *end = strip_suffix(path, ".bin"), *slash = strchr(path, '/'),
		   *key = strrchr(path, '/'), *r, *g;

	if (!end || !slash || key - slash < 4)
		return false;
	for (r = slash; r > path && r[-1] != 'r';)
		r--;
	for (g = key; g > slash && g[-1] != 'g';)
		g--;
	return r - path > 15 && number(r, (size_t)(slash - r), 10, &n->rank) &&
	       TAKE(n->config, r - 14, r - 2, NULL) && TAKE(n->model, path, r - 15, NULL) &&
	       number(g, (size_t)(key - g), 10, &n->group) && TAKE(n->key, key + 1, end, NULL);
}

static const struct {
	const char *name;
	int (*build)(const struct kvcachefs_name *n, struct text *t);
	bool (*parse)(const char *path, struct kvcachefs_name *n);
} namings[KVCACHEFS_NAMINGS] = {
	[KVCACHEFS_NAME_LMCACHE_FS] = { "lmcache-fs", lmcache_fs_build, lmcache_fs_parse },
	[KVCACHEFS_NAME_LMCACHE_DISK] = { "lmcache-disk", lmcache_disk_build, lmcache_disk_parse },
	[KVCACHEFS_NAME_LMCACHE_L2] = { "lmcache-l2", l2_build, l2_parse },
	[KVCACHEFS_NAME_SGLANG_FILE] = { "sglang-file", sglang_build, sglang_parse },
	[KVCACHEFS_NAME_VLLM_FS] = { "vllm-fs", vllm_build, vllm_parse },
};

const char *kvcachefs_naming_name(enum kvcachefs_naming as)
{
	return (unsigned)as < KVCACHEFS_NAMINGS ? namings[as].name : NULL;
}

int kvcachefs_naming_find(const char *name, enum kvcachefs_naming *out)
{
	for (int i = 0; i < KVCACHEFS_NAMINGS; i++)
		if (!strcmp(namings[i].name, name)) {
			*out = (enum kvcachefs_naming)i;
			return 0;
		}
	return kvcachefs_fail(-EINVAL,
			      "unknown naming '%.60s'; the namings are lmcache-fs, lmcache-disk, "
			      "lmcache-l2, sglang-file, vllm-fs",
			      name);
}

int kvcachefs_name_build(enum kvcachefs_naming as, const struct kvcachefs_name *n,
			 char out[KVCACHEFS_PATH_MAX])
{
	char path[KVCACHEFS_PATH_MAX] = "";
	struct text t = { path, 0, sizeof path, false };
	int err;

	if ((unsigned)as >= KVCACHEFS_NAMINGS)
		return kvcachefs_fail(-EINVAL, "unknown naming %d", (int)as);
	err = namings[as].build(n, &t);
	for (const char *s = path; !err && !t.full && *s;) {
		size_t len = strcspn(s, "/");

		t.full = len > PART_MAX;
		s += len + (s[len] == '/');
	}
	if (!err && t.full)
		err = kvcachefs_fail(-ENAMETOOLONG, "a file name has at most %d bytes: %.60s...",
				     PART_MAX, path);
	if (!err)
		memcpy(out, path, t.len + 1);
	return err;
}

int kvcachefs_name_parse(enum kvcachefs_naming as, const char *path, struct kvcachefs_name *out)
{
	struct kvcachefs_name n = { .model = "" };
	char again[KVCACHEFS_PATH_MAX];

	if ((unsigned)as >= KVCACHEFS_NAMINGS)
		return kvcachefs_fail(-EINVAL, "unknown naming %d", (int)as);
	if (!namings[as].parse(path, &n) || kvcachefs_name_build(as, &n, again) ||
	    strcmp(again, path))
		return kvcachefs_fail(-EINVAL, "'%.300s' is not a file name of %s", path,
				      namings[as].name);
	*out = n;
	return 0;
}

/* ---- Members by name ---- */

enum kind { TEXT, NUMBER, YES };
#define M(kind, member)                                           \
	{ #member, kind, offsetof(struct kvcachefs_name, member), \
	  sizeof(((struct kvcachefs_name *)0)->member) }
static const struct {
	const char *name;
	enum kind kind;
	size_t at, capacity;
} members[] = {
	M(TEXT, model),     M(TEXT, key),       M(NUMBER, world_size), M(NUMBER, worker),
	M(TEXT, dtype),     M(NUMBER, layer),   M(TEXT, tags),         M(NUMBER, kv_rank),
	M(NUMBER, group),   M(TEXT, salt),      M(TEXT, pool),         M(YES, mla),
	M(NUMBER, tp_rank), M(NUMBER, tp_size), M(NUMBER, pp_rank),    M(NUMBER, pp_size),
	M(NUMBER, cp_rank), M(NUMBER, cp_size), M(NUMBER, dcp_rank),   M(NUMBER, dcp_size),
	M(NUMBER, page),    M(TEXT, config),    M(NUMBER, rank),
};

int kvcachefs_name_set(struct kvcachefs_name *n, const char *member, const char *value)
{
	for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
		char *to = (char *)n + members[i].at;
		bool hex = !strncmp(value, "0x", 2),
		     yes = !strcmp(value, "1") || !strcmp(value, "true");
		uint32_t v;

		if (strcmp(members[i].name, member))
			continue;
		switch (members[i].kind) {
		case TEXT:
			if (strlen(value) >= members[i].capacity)
				return kvcachefs_fail(-EINVAL, "%s: '%.40s...' is too long", member,
						      value);
			memcpy(to, value, strlen(value) + 1);
			return 0;
		case NUMBER:
			if (!number(value + 2 * hex, strlen(value + 2 * hex), hex ? 16 : 10, &v))
				return kvcachefs_fail(-EINVAL, "%s: '%s' is not a number", member,
						      value);
			memcpy(to, &v, sizeof v);
			n->has_layer |= members[i].at == offsetof(struct kvcachefs_name, layer);
			return 0;
		case YES:
			if (!yes && strcmp(value, "0") && strcmp(value, "false"))
				return kvcachefs_fail(-EINVAL, "%s: '%s' is neither true nor false",
						      member, value);
			*(bool *)to = yes;
			return 0;
		}
	}
	return kvcachefs_fail(-EINVAL,
			      "unknown member '%s'; kvcachectl(8) lists the members of each naming",
			      member);
}
