/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl cluster: the state of all nodes on one screen, which nodes have a chunk, and changes
 * of chunks on all nodes (cluster_change.c). The daemon of the mount asks the nodes of its peers://
 * remote; this command reads their answers (cluster_ask.c), of which it trusts nothing: it prints
 * numbers, and words of few characters.
 */
#include "cluster.h"

#include "json.h"
#include "quote.h"
#include "set.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the screen ---- */

struct state {
	char version[32];
	uint64_t uptime, pool_used, pool, pool_files, disk_used, disk, files, bytes;
	bool has_disk, counted; /* counted: files and bytes are known */
	uint64_t asked, found, opens, opens_cpu, opens_disk, opens_remote;
};

/* Adds up the values of the lines with this name. Returns false if there is none. */
static bool number_of(const char *text, const char *name, uint64_t *v)
{
	size_t n = strlen(name);
	bool any = false;

	*v = 0;
	for (const char *at = text; at && *at; at = (at = strchr(at, '\n')) ? at + 1 : NULL) {
		const char *digit;

		if (strncmp(at, name, n) != 0 || at[n] != ' ')
			continue;
		digit = at + n + strspn(at + n, " ");
		if (*digit < '0' || *digit > '9')
			continue;
		*v += strtoull(digit, NULL, 10);
		any = true;
	}
	return any;
}

/* Reads the state. Returns false if the text is not one. */
static bool parse_state(const char *text, struct state *s)
{
	static const char characters[] = "0123456789abcdefghijklmnopqrstuvwxyz.+~-";
	uint64_t absent;

	*s = (struct state){ 0 };
	if (sscanf(text, "version %31s", s->version) != 1 ||
	    s->version[strspn(s->version, characters)] ||
	    !number_of(text, "uptime_seconds", &s->uptime) ||
	    !number_of(text, "pool_bytes", &s->pool) ||
	    !number_of(text, "pool_used_bytes", &s->pool_used))
		return false;
	number_of(text, "objects_resident", &s->pool_files);
	s->has_disk = number_of(text, "tier_disk_bytes", &s->disk);
	number_of(text, "tier_disk_used_bytes", &s->disk_used);
	s->counted = number_of(text, "files", &s->files) && number_of(text, "bytes", &s->bytes);
	number_of(text, "found", &s->found);
	number_of(text, "absent", &absent);
	s->asked = s->found + absent;
	number_of(text, "opens_cpu", &s->opens_cpu);
	number_of(text, "opens_disk", &s->opens_disk);
	number_of(text, "opens_remote", &s->opens_remote);
	s->opens = s->opens_cpu + s->opens_disk + s->opens_remote;
	return true;
}

static void json_known(struct kvm_json *j, const char *name, uint64_t v, bool known)
{
	if (known)
		kvm_json_number(j, name, v);
	else
		kvm_json_text(j, name, NULL);
}

static void json_part(struct kvm_json *j, const char *name, uint64_t part, uint64_t all)
{
	if (all)
		kvm_json_share(j, name, (double)part / (double)all);
	else
		kvm_json_text(j, name, NULL);
}

static void json_state(struct kvm_json *j, const struct kvm_node *node, const struct state *s)
{
	kvm_nodes_json(j, node);
	if (!node->why) {
		kvm_json_text(j, "version", s->version);
		kvm_json_number(j, "uptime_seconds", s->uptime);
		kvm_json_number(j, "pool_used_bytes", s->pool_used);
		kvm_json_number(j, "pool_bytes", s->pool);
		kvm_json_number(j, "pool_files", s->pool_files);
		json_known(j, "disk_used_bytes", s->disk_used, s->has_disk);
		json_known(j, "disk_bytes", s->disk, s->has_disk);
		json_known(j, "files", s->files, s->counted);
		json_known(j, "bytes", s->bytes, s->counted);
		kvm_json_number(j, "asked", s->asked);
		kvm_json_number(j, "found", s->found);
		json_part(j, "found_share", s->found, s->asked);
		kvm_json_number(j, "opens", s->opens);
		json_part(j, "pool_share", s->opens_cpu, s->opens);
		json_part(j, "disk_share", s->opens_disk, s->opens);
		json_part(j, "remote_share", s->opens_remote, s->opens);
	}
	kvm_json_end(j, '}');
}

static void print_part(uint64_t part, uint64_t all)
{
	if (all)
		printf(" %6.1f%%", 100 * (double)part / (double)all);
	else
		printf(" %7s", "-");
}

static void print_state(const struct kvm_node *node, const struct state *s)
{
	char used[32], size[32], disk_used[32], disk[32], time[32], files[32] = "-";

	printf("%-21s ", kvm_nodes_name(node));
	if (node->why) {
		kvc_quote_line(stdout, node->why);
		putchar('\n');
		return;
	}
	if (s->counted)
		snprintf(files, sizeof files, "%" PRIu64, s->files);
	printf("%-7s %4s %9s %9s %9s %9s %8s", s->version, kvm_time_text(s->uptime, time),
	       kvc_size_text(s->pool_used, used), kvc_size_text(s->pool, size),
	       s->has_disk ? kvc_size_text(s->disk_used, disk_used) : "-",
	       s->has_disk ? kvc_size_text(s->disk, disk) : "-", files);
	print_part(s->found, s->asked);
	print_part(s->opens_cpu, s->opens);
	print_part(s->opens_disk, s->opens);
	print_part(s->opens_remote, s->opens);
	putchar('\n');
}

static int show_states(const char *path, bool json)
{
	static const char request[] = "status\n";
	struct kvm_json j = { stdout, false };
	char mnt[KVM_PATH];
	struct kvm_nodes all = { 0 };
	int err = kvm_mount_of(path, mnt) ?: kvm_nodes_ask(mnt, request, sizeof request - 1, &all);

	if (!err && json) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_text(&j, "mount", mnt);
		kvm_json_begin(&j, "nodes", '[');
	} else if (!err) {
		printf("%-21s %-7s %4s %9s %9s %9s %9s %8s %7s %7s %7s %7s\n", "node", "version",
		       "up", "pool", "of", "disk", "of", "files", "found", "memory", "disk",
		       "remote");
	}
	for (size_t i = 0; i < all.n && !err; i++) {
		struct kvm_node *node = &all.v[i];
		struct state s;

		if (node->text && !parse_state(node->text, &s))
			kvm_nodes_failed(node, KVM_NODES_NONSENSE);
		if (json)
			json_state(&j, node, &s);
		else
			print_state(node, &s);
	}
	if (!err && json) {
		kvm_json_end(&j, ']');
		kvm_json_end(&j, '}');
		putchar('\n');
	}
	for (size_t i = 0; i < all.n; i++)
		err |= all.v[i].why != NULL;
	kvm_nodes_free(&all);
	return err;
}

/* ---- where ---- */

struct where {
	bool json;
	struct kvm_json j;
	struct kvm_nodes failed; /* nodes that have failed, each once */
};

/* Notes that the node has failed, once. */
static void node_failed(struct where *w, const struct kvm_node *node)
{
	struct kvm_nodes *f = &w->failed;

	for (size_t i = 0; i < f->n; i++)
		if (!strcmp(f->v[i].name, node->name))
			return;
	f->v[f->n] = (struct kvm_node){ .here = node->here, .why = strdup(node->why) };
	memcpy(f->v[f->n++].name, node->name, sizeof node->name);
}

static void print_place(struct where *w, const struct kvm_node *node, const char *path,
			const char *tiers, const char *state)
{
	if (w->json) {
		kvm_json_begin(&w->j, NULL, '{');
		kvm_json_text(&w->j, "node", strcmp(node->name, "-") != 0 ? node->name : NULL);
		kvm_json_bool(&w->j, "here", node->here);
		kvm_json_text(&w->j, "tiers", tiers);
		kvm_json_text(&w->j, "state", state);
		kvm_json_end(&w->j, '}');
		return;
	}
	kvc_quote_line(stdout, path);
	printf(": %s: %s, %s\n", kvm_nodes_name(node), tiers, state);
}

/* Prints which nodes have this path; at: where its line is in the text of each node. */
static void print_places(struct where *w, struct kvm_nodes *all, char *at[KVM_NODES],
			 const char *path)
{
	char tiers[64], state[64];
	bool any = false;

	if (w->json) {
		kvm_json_begin(&w->j, NULL, '{');
		kvm_json_text(&w->j, "path", path);
		kvm_json_begin(&w->j, "nodes", '[');
	}
	for (size_t i = 0; i < all->n; i++) {
		struct kvm_node *node = &all->v[i];

		if (node->text && !kvm_nodes_line(&at[i], tiers, state))
			kvm_nodes_failed(node, KVM_NODES_NONSENSE);
		if (!node->text || !strcmp(state, "absent"))
			continue;
		print_place(w, node, path, tiers, state);
		any = true;
	}
	if (w->json) {
		kvm_json_end(&w->j, ']');
		kvm_json_end(&w->j, '}');
	} else if (!any) {
		kvc_quote_line(stdout, path);
		puts(": no node that has answered has it");
	}
}

/* Asks for as many paths as a request may have. Returns their number, or 0 after a message. */
static int ask_where(struct where *w, int n, char **paths)
{
	static const char head[] = "where\n";
	char mnt[KVM_PATH], *at[KVM_NODES];
	KVC_MEM char *request = NULL;
	struct kvm_nodes all = { 0 };
	size_t len;
	int some = kvm_nodes_request(head, sizeof head - 1, n, paths, mnt, &request, &len);

	if (some && kvm_nodes_ask(mnt, request, len, &all))
		some = 0;
	for (size_t i = 0; i < all.n; i++)
		at[i] = all.v[i].text;
	for (int i = 0; i < some; i++)
		print_places(w, &all, at, paths[i]);
	for (size_t i = 0; i < all.n && some; i++)
		if (all.v[i].why)
			node_failed(w, &all.v[i]);
	kvm_nodes_free(&all);
	return some;
}

static void print_failed(struct where *w)
{
	if (w->json)
		kvm_json_begin(&w->j, "failed", '[');
	for (size_t i = 0; i < w->failed.n; i++)
		if (w->json) {
			kvm_nodes_json(&w->j, &w->failed.v[i]);
			kvm_json_end(&w->j, '}');
		} else {
			kvm_fail("%s: %s", kvm_nodes_name(&w->failed.v[i]), w->failed.v[i].why);
		}
	if (w->json)
		kvm_json_end(&w->j, ']');
}

static int show_where(int n, char **paths, bool json)
{
	struct where w = { .json = json, .j = { stdout, false } };
	int some = 1, failed;

	if (kvm_nodes_paths(n, paths)) /* before anything is printed */
		return 1;
	if (json) {
		kvm_json_begin(&w.j, NULL, '{');
		kvm_json_begin(&w.j, "paths", '[');
	}
	for (int i = 0; i < n && some; i += some)
		some = ask_where(&w, n - i, paths + i);
	if (json)
		kvm_json_end(&w.j, ']');
	print_failed(&w);
	if (json) {
		kvm_json_end(&w.j, '}');
		putchar('\n');
	}
	failed = !some || w.failed.n;
	kvm_nodes_free(&w.failed);
	return failed;
}

/* ---- changes ---- */

/* The options of the command. */
struct words {
	bool json, yes;
	const char *time, *from;
};

static int run_pin(const struct words *w, int n, char **paths)
{
	struct kvm_cluster_change what = { .name = "pin", .attr = "pin", .done = "pinned" };
	uint64_t s = 1; /* permanently */
	char value[32];
	int err = w->time ? kvm_set_pin_time(w->time, &s) : 0;

	snprintf(value, sizeof value, "%" PRIu64, s);
	what.value = value;
	return err ?: kvm_cluster_change(&what, n, paths, w->json);
}

static int run_unpin(const struct words *w, int n, char **paths)
{
	static const struct kvm_cluster_change what = { "unpin", "pin", "0", "unpinned" };

	return kvm_cluster_change(&what, n, paths, w->json);
}

/* Prints what will be evicted, and asks, as kvcachectl evict does. */
static int confirm_evict_all(const char *from, int n, char **paths, bool yes)
{
	if (!strcmp(from, "cpu"))
		return 0;
	for (int i = 0; i < n; i++)
		if (!strcmp(from, "all"))
			fprintf(stderr, "%s: dropped from memory and all tiers of all nodes.\n",
				paths[i]);
		else
			fprintf(stderr,
				"%s: removed from %s on all nodes. A reboot loses data that is "
				"then only in memory.\n",
				paths[i], from);
	return kvm_confirm(yes);
}

static int run_evict(const struct words *w, int n, char **paths)
{
	struct kvm_cluster_change what = { "evict", "demote", w->from ?: "cpu", "evicted" };

	if (!*what.value || strlen(what.value) > 32)
		return kvm_misused("--from %s: give a tier such as disk, or cpu, or all",
				   kvm_shown(what.value));
	if (kvm_nodes_paths(n, paths))
		return 1;
	return confirm_evict_all(what.value, n, paths, w->yes)
		       ?: kvm_cluster_change(&what, n, paths, w->json);
}

static int run_where(const struct words *w, int n, char **paths)
{
	return show_where(n, paths, w->json);
}

static const struct {
	const char *word;
	int (*run)(const struct words *w, int n, char **paths);
} verbs[] = {
	{ "where", run_where },
	{ "pin", run_pin },
	{ "unpin", run_unpin },
	{ "evict", run_evict },
};

/* Refuses options of other words. verb: NULL if there is none. */
static int check_options(const struct words *w, const char *verb)
{
	uint64_t s;
	int err = w->time ? kvm_set_pin_time(w->time, &s) : 0;

	if (err)
		return err;
	if (w->time && (!verb || strcmp(verb, "pin") != 0))
		return kvm_misused("--for %s: give it with cluster pin", w->time);
	if ((w->from || w->yes) && (!verb || strcmp(verb, "evict") != 0))
		return kvm_misused("%s%s%s: give it with cluster evict", w->from ? "--from" : "",
				   w->from ? " " : "--yes", w->from ? kvm_shown(w->from) : "");
	return 0;
}

int kvm_run_cluster(int argc, char **argv)
{
	struct words w = { 0 };
	const struct kvm_option options[] = { { "json", &w.json, NULL },
					      { "yes", &w.yes, NULL },
					      { "for", NULL, &w.time },
					      { "from", NULL, &w.from },
					      { 0 } };
	size_t n = sizeof verbs / sizeof verbs[0], i = 0;
	int err = kvm_options(&argc, argv, options);

	while (!err && i < n && (!argc || strcmp(argv[0], verbs[i].word) != 0))
		i++;
	err = err ?: check_options(&w, i < n ? argv[0] : NULL);
	if (err)
		return err;
	if (i < n)
		return argc > 1 ? verbs[i].run(&w, argc - 1, argv + 1)
				: kvm_misused("%s: give the path of a chunk or a file", argv[0]);
	if (argc > 1)
		return kvm_misused("%s is not one of the words where, pin, unpin and evict",
				   kvm_shown(argv[0]));
	return show_states(argc ? argv[0] : NULL, w.json);
}
