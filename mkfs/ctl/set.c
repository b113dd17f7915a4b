/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl pin, unpin, evict and push: set the attributes user.kvcachefs.* of all chunks in a
 * folder, a model or a mount. Errors say how to fix them (table `troubles`, also for model_attr.c).
 * Without --json the commands print nothing on success. If one path fails, they continue with the
 * others.
 */
#include "set.h"

#include "peer_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#define PREFIX "user.kvcachefs."

static const struct {
	const char *attr;
	int err;
	const char *text;
} troubles[] = {
	{ "pin", EINVAL,
	  "not a chunk or a file of a chunk; kvcachectl ls --recursive lists chunks" },
	{ "pin", EDQUOT,
	  "its owner has reached the limit of pins=: unpin another chunk, or set a larger pins= "
	  "with kvcachectl reload" },
	{ "pin", ENOSPC,
	  "the limit of pins=, a percentage of the pool and of the disk tier, is reached: unpin "
	  "another chunk, or set a larger pins= with kvcachectl reload" },
	{ "ttl", EINVAL,
	  "it is not a chunk, a file of a chunk, or a model's folder; --chunks sets the ttl of the "
	  "chunks in a folder" },
	{ "quota", EINVAL,
	  "it is not a model; give a folder in the root of the mount, or the mount" },
	{ "policy", EINVAL,
	  "it is not a model; give a folder in the root of the mount, or the mount" },
	{ "push", ENXIO, "the node is not in nodes= of a peers:// remote of this mount" },
	{ "push", ETXTBSY, "a file in it is still being written: close it first" },
	{ "push", ENODATA,
	  "refused: the node does not find its files on this node, lacks a key or a quota for "
	  "them, or has deleted them; see the nodes' logs" },
	{ "push", ENOSPC, "refused: the node is full" },
	{ "push", EOPNOTSUPP,
	  "refused: the node has no remote to read from; give it remote=peers://" },
	{ "push", EKEYREJECTED,
	  "refused: the node does not accept requests of this node; see the logs of both" },
	{ "push", EBUSY, "refused: the node is busy with other offers, or this one is; try again" },
	{ "push", E2BIG, "the names of its files have more than 128 KiB; push the files singly" },
	{ "push", ETIMEDOUT, "unreachable: the node does not answer in time" },
	{ "push", EIO, "unreachable: the node does not answer; see the log" },
	{ "demote", EBUSY,
	  "a file in it is open, leased, pinned, mapped, in recent use, or has no other copy: try "
	  "again later, or unpin it" },
	{ "demote", ENODEV,
	  "it stays in memory, because no tier can take a copy; --from all drops it" },
	{ "demote", ETIMEDOUT, "it takes longer than deadline=; try again to continue" },
};

int kvm_set_trouble(const char *path, const char *attr, int err)
{
	for (size_t i = 0; i < sizeof troubles / sizeof troubles[0]; i++)
		if (troubles[i].err == err && !strcmp(troubles[i].attr, attr))
			return kvm_fail("%s: %s", path, troubles[i].text);
	return kvm_fail("%s: %s", path, kvc_why(err));
}

/* ---- each path, and all chunks at and below it ---- */

#define SHOWN 10u /* errors that are shown one by one */

static void print_setting_row(struct kvm_set *s, const char *path)
{
	kvm_json_begin(&s->j, NULL, '{');
	kvm_json_text(&s->j, "path", path);
	kvm_json_number(&s->j, "chunks", s->chunks);
	kvm_json_number(&s->j, "bytes", s->bytes);
	kvm_json_number(&s->j, "models", s->models);
	kvm_json_number(&s->j, "failed", s->failed);
	kvm_json_end(&s->j, '}');
}

int kvm_set_paths(struct kvm_set *s, int n, char **paths,
		  int (*fn)(struct kvm_set *s, const char *path))
{
	int failed = 0;

	s->j = (struct kvm_json){ stdout, false };
	if (s->json) {
		kvm_json_begin(&s->j, NULL, '{');
		kvm_json_text(&s->j, "command", kvm_command->name);
		kvm_json_begin(&s->j, "paths", '[');
	}
	for (int i = 0; i < n; i++) {
		s->chunks = s->bytes = s->models = s->failed = 0;
		if (fn(s, paths[i])) {
			failed = 1;
			s->failed += !s->failed;
		}
		if (s->json)
			print_setting_row(s, paths[i]);
	}
	if (s->json) {
		kvm_json_end(&s->j, ']');
		kvm_json_end(&s->j, '}');
		putchar('\n');
	}
	return failed;
}

/* Refuses paths outside of kvcachefs, where the attribute would be an ordinary one. */
int kvm_set_folder(struct kvm_set *s, const char *path)
{
	char name[64], mnt[KVM_PATH];

	if (kvm_mount_of(path, mnt)) {
		s->failed++;
		return 1;
	}
	snprintf(name, sizeof name, PREFIX "%s", s->attr);
	if (s->value ? !setxattr(path, name, s->value, strlen(s->value), 0)
		     : !removexattr(path, name) || errno == ENODATA) {
		s->models++;
		return 0;
	}
	s->failed++;
	return kvm_set_trouble(path, s->attr, errno);
}

static int set_chunk(void *arg, const char *path, const struct kvm_item *it)
{
	char name[64];
	struct kvm_set *s = arg;
	int err;

	snprintf(name, sizeof name, PREFIX "%s", s->attr);
	if (!setxattr(path, name, s->value, strlen(s->value), 0)) {
		s->chunks++;
		s->bytes += it->bytes;
		return 0;
	}
	if (errno == ENOENT || errno == ESTALE) /* dropped in between */
		return 0;
	err = errno;
	if (s->failed++ < SHOWN)
		kvm_set_trouble(path, s->attr, err);
	return s->stops && (err == ENOSPC || err == EDQUOT);
}

int kvm_set_chunks(struct kvm_set *s, const char *path)
{
	int err = kvm_item_each_chunk(path, set_chunk, s);

	if (s->failed > SHOWN)
		kvm_fail("%s: %" PRIu64 " more chunks failed", path, s->failed - SHOWN);
	if (s->failed && s->chunks)
		kvm_fail("%s: %" PRIu64 " of its chunks were %s", path, s->chunks, s->done);
	if (!err && !s->failed && !s->chunks)
		err = kvm_fail("%s: it has no chunks; kvcachectl ls --recursive lists chunks",
			       path);
	return err || s->failed;
}

struct count {
	uint64_t chunks, bytes;
};

static int count_chunk(void *arg, const char *path, const struct kvm_item *it)
{
	struct count *c = arg;

	(void)path;
	c->chunks++;
	c->bytes += it->bytes;
	return 0;
}

int kvm_set_count(const char *path, uint64_t *chunks, uint64_t *bytes)
{
	struct count c = { 0 };

	if (kvm_item_each_chunk(path, count_chunk, &c))
		return 1;
	*chunks = c.chunks;
	*bytes = c.bytes;
	return 0;
}

void kvm_set_ask(const char *path, uint64_t chunks, uint64_t bytes)
{
	char size[32];

	fprintf(stderr, "%s: %" PRIu64 " chunk%s, %s: ", path, chunks, chunks == 1 ? "" : "s",
		kvc_size_text(bytes, size));
}

int kvm_set_pin_time(const char *time, uint64_t *s)
{
	static const char give[] = "a time from 2s to 11574w, such as 90s, 10m or 7d";
	int err = kvm_time_arg("--for", time, KVM_TIME_MAX, give, s);

	return err ?: *s < 2 ? kvm_misused("--for %s: give %s", time, give) : 0;
}

int kvm_run_pin(int argc, char **argv)
{
	struct kvm_set set = { .attr = "pin", .done = "pinned", .stops = true };
	const char *time = NULL;
	const struct kvm_option options[] = { { "for", NULL, &time },
					      { "json", &set.json, NULL },
					      { 0 } };
	uint64_t s = 1; /* permanently */
	char value[32];
	int err = kvm_options(&argc, argv, options);

	if (!err && time)
		err = kvm_set_pin_time(time, &s);
	if (err)
		return err;
	snprintf(value, sizeof value, "%" PRIu64, s);
	set.value = value;
	return kvm_set_paths(&set, argc, argv, kvm_set_chunks);
}

int kvm_run_push(int argc, char **argv)
{
	struct kvm_set set = { .attr = "push", .done = "taken" };
	bool removes = false;
	const struct kvm_option options[] = { { "remove", &removes, NULL },
					      { "json", &set.json, NULL },
					      { 0 } };
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	set.value = argv[0];
	if (!kvc_peer_name_valid(argv[0]))
		return kvm_misused("NODE %s: give HOST:PORT, as in nodes= of the peers:// remote",
				   kvm_shown(argv[0]));
	return kvm_set_paths(&set, argc - 1, argv + 1, removes ? kvm_move_chunks : kvm_set_chunks);
}

int kvm_run_unpin(int argc, char **argv)
{
	struct kvm_set set = { .attr = "pin", .value = "0", .done = "unpinned" };
	const struct kvm_option options[] = { { "json", &set.json, NULL }, { 0 } };
	int err = kvm_options(&argc, argv, options);

	return err ?: kvm_set_paths(&set, argc, argv, kvm_set_chunks);
}

/* Checks that the mount has a tier of this name, or that the name is cpu or all. */
static int check_tier(const char *mnt, const char *name)
{
	KVC_MEM char *text = NULL;
	char figure[80];

	if (!strcmp(name, "cpu") || !strcmp(name, "all"))
		return 0;
	if (kvm_mount_text(mnt, "stats", &text))
		return 1;
	snprintf(figure, sizeof figure, "tier_%.60s_up ", name);
	if (strstr(text, figure))
		return 0;
	return kvm_fail("--from %s: the mount %s has no tier %s; give cpu, all, or a tier that "
			"kvcachectl config lists",
			name, mnt, name);
}

/*
 * Prints what will be evicted, and asks. Evicting from the pool loses nothing, because a copy is
 * made first.
 */
static int confirm_evict(int n, char **paths, const char *from, bool yes)
{
	if (!strcmp(from, "cpu"))
		return 0;
	for (int i = 0; i < n; i++) {
		uint64_t chunks, bytes;

		if (kvm_set_count(paths[i], &chunks, &bytes))
			return 1;
		kvm_set_ask(paths[i], chunks, bytes);
		if (!strcmp(from, "all"))
			fputs("dropped from memory and all tiers.\n", stderr);
		else
			fprintf(stderr,
				"removed from %s. %sA reboot loses data that is then only in "
				"memory.\n",
				from,
				strcmp(from, "disk") != 0
					? "Other nodes no longer find the data there. "
					: "");
	}
	return kvm_confirm(yes);
}

int kvm_run_evict(int argc, char **argv)
{
	struct kvm_set set = { .attr = "demote", .value = "cpu", .done = "evicted" };
	bool yes = false;
	const struct kvm_option options[] = { { "from", NULL, &set.value },
					      { "yes", &yes, NULL },
					      { "json", &set.json, NULL },
					      { 0 } };
	char mnt[KVM_PATH];
	int failed = kvm_options(&argc, argv, options);

	if (failed)
		return failed;
	if (!*set.value)
		return kvm_misused("--from: give a tier such as disk, or cpu, or all");
	for (int i = 0; i < argc; i++) /* checks all paths before it changes anything */
		if (kvm_mount_of(argv[i], mnt) || check_tier(mnt, set.value))
			return 1;
	if (confirm_evict(argc, argv, set.value, yes))
		return 1;
	return kvm_set_paths(&set, argc, argv, kvm_set_chunks);
}
