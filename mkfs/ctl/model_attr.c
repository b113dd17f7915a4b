/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl ttl, quota and policy: set attributes of a model, or of each model of a mount; ttl
 * also those of chunks. Before a command drops chunks or changes all models, it prints the numbers
 * and asks.
 */
#include "set.h"

#include "policy.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define QUOTA_MIN (1u << 20)
#define TTL_TIME "a time from 1s to 11574w, such as 90s, 10m or 7d, or never"

/*
 * A model is a folder in the root of the mount. If the folder contains files itself, its item is a
 * chunk, so the item does not tell whether the path is a model.
 */
enum place { MOUNT, MODEL, ELSEWHERE };

/* Gets the item and the place of a path. Returns 0, or 1 after a message. */
static int get_item(const char *path, struct kvm_item *it, enum place *place)
{
	char mnt[KVM_PATH], real[PATH_MAX], up[PATH_MAX + 4];
	struct stat root, st, parent;
	int err;

	if (kvm_mount_of(path, mnt))
		return 1;
	if (!realpath(path, real) || stat(mnt, &root) || stat(real, &st))
		return kvm_fail("%s: %s", path, kvc_why(errno));
	snprintf(up, sizeof up, "%s/..", real);
	*place = st.st_ino == root.st_ino ? MOUNT : ELSEWHERE;
	if (*place != MOUNT && S_ISDIR(st.st_mode)) {
		if (stat(up, &parent))
			return kvm_fail("%s: %s", path, kvc_why(errno));
		*place = parent.st_ino == root.st_ino ? MODEL : ELSEWHERE;
	}
	err = kvm_item_get(real, &root, it);
	return err ? kvm_fail("%s: %s", path, kvc_why(-err)) : 0;
}

struct models {
	int (*fn)(void *arg, const char *path);
	void *arg;
};

static int visit_model(void *arg, const char *path)
{
	struct models *m = arg;
	struct stat st;

	return !lstat(path, &st) && S_ISDIR(st.st_mode) ? m->fn(m->arg, path) : 0;
}

/* Calls fn for each model of the mount, or for the path itself if it is a model. */
static int each_model(const char *path, int (*fn)(void *arg, const char *path), void *arg)
{
	struct models m = { fn, arg };
	struct kvm_item it;
	enum place place;
	int err = get_item(path, &it, &place);

	if (err || place == ELSEWHERE)
		return err;
	return place == MOUNT ? kvm_item_each_entry(path, visit_model, &m) : fn(arg, path);
}

static int set_model(void *arg, const char *path)
{
	(void)kvm_set_folder(arg, path); /* goes on after a failure, which is counted */
	return 0;
}

static int set_models(struct kvm_set *s, const char *path)
{
	struct kvm_item it;
	enum place place;

	if (get_item(path, &it, &place))
		return 1;
	/* checked here, because removing an attribute from any other path succeeds */
	if (place == ELSEWHERE)
		return kvm_set_trouble(path, s->attr, EINVAL);
	if (each_model(path, set_model, s))
		return 1;
	if (!s->failed && !s->models)
		return kvm_fail("%s: it has no models", path);
	return s->failed > 0;
}

static int count_model(void *arg, const char *path)
{
	(void)path;
	++*(uint64_t *)arg;
	return 0;
}

/*
 * If the path is the mount, prints the number of its models, and then the text. Returns 1 if it
 * printed something, 0, or -1 after a message.
 */
static int ask_of_mount(const char *path, const char *text)
{
	struct kvm_item it;
	uint64_t n = 0;
	enum place place;

	if (get_item(path, &it, &place) || (place == MOUNT && each_model(path, count_model, &n)))
		return -1;
	if (place != MOUNT || !n)
		return 0;
	fprintf(stderr, "%s: %" PRIu64 " model%s: %s.\n", path, n, n == 1 ? "" : "s", text);
	return 1;
}

/* Asks before a change of all models. Returns 0 to go on, or 1 after a message. */
static int confirm_mounts(int n, char **paths, const char *text, bool yes)
{
	bool ask = false;

	for (int i = 0; i < n; i++) {
		int asks = ask_of_mount(paths[i], text);

		if (asks < 0)
			return 1;
		ask |= asks;
	}
	return ask ? kvm_confirm(yes) : 0;
}

/* Asks before the chunks get a ttl. Returns 0 to go on, or 1 after a message. */
static int confirm_chunks(int n, char **paths, const char *text, bool yes)
{
	for (int i = 0; i < n; i++) {
		uint64_t chunks, bytes;

		if (kvm_set_count(paths[i], &chunks, &bytes))
			return 1;
		kvm_set_ask(paths[i], chunks, bytes);
		fprintf(stderr, "%s.\n", text);
	}
	return kvm_confirm(yes);
}

/* The ttl of a chunk, or of a model or all models. */
static int set_ttl(struct kvm_set *s, const char *path)
{
	struct kvm_item it;
	enum place place;

	if (get_item(path, &it, &place))
		return 1;
	return kvm_item_has_files(&it) ? kvm_set_chunks(s, path) : set_models(s, path);
}

int kvm_run_ttl(int argc, char **argv)
{
	struct kvm_set set = { .attr = "ttl", .done = "changed" };
	bool chunks = false, yes = false, never;
	const struct kvm_option options[] = { { "chunks", &chunks, NULL },
					      { "yes", &yes, NULL },
					      { "json", &set.json, NULL },
					      { 0 } };
	uint64_t s = 0;
	char value[32], text[96], time[32];
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	never = !strcmp(argv[0], "never");
	if (!never && (err = kvm_time_arg("ttl", argv[0], KVM_TIME_MAX, TTL_TIME, &s)))
		return err;
	snprintf(value, sizeof value, "%" PRIu64, s);
	set.value = value;
	kvm_time_exact(s, time);
	if (chunks) {
		snprintf(text, sizeof text, "dropped %s from now", time);
		return (!never && confirm_chunks(argc - 1, argv + 1, text, yes)) ||
		       kvm_set_paths(&set, argc - 1, argv + 1, kvm_set_chunks);
	}
	snprintf(text, sizeof text, "chunks that are created from now on %s%s",
		 never ? "have no ttl" : "are dropped after ", never ? "" : time);
	return confirm_mounts(argc - 1, argv + 1, text, yes) ||
	       kvm_set_paths(&set, argc - 1, argv + 1, set_ttl);
}

struct warning {
	uint64_t bytes; /* the new quota */
	bool drops;
};

/*
 * Prints how much the new quota drops. A quota that is not below the present one drops nothing.
 * Without a quota the files are counted here, as the daemon counts them afterwards.
 */
static int warn_of_quota(void *arg, const char *path)
{
	struct warning *w = arg;
	char old[KVM_VALUE], used[KVM_VALUE], size[32];
	int has = kvm_item_attr(path, "quota", old, NULL);
	int known = has > 0 ? kvm_item_attr(path, "used", used, NULL) : 0;
	uint64_t chunks, bytes;

	if (has < 0 || known < 0)
		return kvm_fail("%s: %s", path, kvc_why(has < 0 ? -has : -known));
	if (has && w->bytes >= strtoull(old, NULL, 10))
		return 0;
	if (kvm_set_count(path, &chunks, &bytes))
		return 1;
	if (known)
		bytes = strtoull(used, NULL, 10);
	if (bytes <= w->bytes)
		return 0;
	w->drops = true;
	kvm_set_ask(path, chunks, bytes);
	fprintf(stderr, "at least %s are dropped, the coldest chunks first.\n",
		kvc_size_text(bytes - w->bytes, size));
	return 0;
}

int kvm_run_quota(int argc, char **argv)
{
	struct kvm_set set = { .attr = "quota" };
	struct warning w = { .drops = false };
	bool yes = false, none, ask = false;
	const struct kvm_option options[] = { { "yes", &yes, NULL },
					      { "json", &set.json, NULL },
					      { 0 } };
	char value[32], text[96], size[32];
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	none = !strcmp(argv[0], "none");
	if (!none && kvm_size_arg("quota", argv[0], QUOTA_MIN,
				  "a size of 1M or more, such as 500G, or none", &w.bytes))
		return 2;
	snprintf(value, sizeof value, "%" PRIu64, w.bytes);
	set.value = none ? NULL : value;
	snprintf(text, sizeof text, none ? "their quotas are removed" : "each gets a quota of %s",
		 kvc_size_text(w.bytes, size));
	for (int i = 1; i < argc; i++) { /* checks all paths before it changes anything */
		int asks = ask_of_mount(argv[i], text);

		if (asks < 0 || (!none && each_model(argv[i], warn_of_quota, &w)))
			return 1;
		ask |= asks;
	}
	if ((ask || w.drops) && kvm_confirm(yes))
		return 1;
	return kvm_set_paths(&set, argc - 1, argv + 1, set_models);
}

int kvm_run_policy(int argc, char **argv)
{
	struct kvm_set set = { .attr = "policy" };
	bool yes = false, none;
	const struct kvm_option options[] = { { "yes", &yes, NULL },
					      { "json", &set.json, NULL },
					      { 0 } };
	int err = kvm_options(&argc, argv, options), i = 0;
	char all[256] = "", text[96];

	if (err)
		return err;
	none = !strcmp(argv[0], "none");
	while (kvc_policy_names[i] && strcmp(kvc_policy_names[i], argv[0]) != 0)
		i++;
	if (!none && !kvc_policy_names[i]) {
		for (i = 0; kvc_policy_names[i]; i++)
			snprintf(all + strlen(all), sizeof all - strlen(all), "%s, ",
				 kvc_policy_names[i]);
		return kvm_misused("unknown policy %s; give one of %snone", argv[0], all);
	}
	set.value = none ? NULL : argv[0];
	snprintf(text, sizeof text, "each gets the policy %s", none ? "of the mount" : argv[0]);
	return confirm_mounts(argc - 1, argv + 1, text, yes) ||
	       kvm_set_paths(&set, argc - 1, argv + 1, set_models);
}
