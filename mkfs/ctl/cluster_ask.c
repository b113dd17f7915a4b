/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to all nodes, which the daemon of a mount sends (.kvcachefs/cluster), and the paths in
 * them. See cluster.h.
 */
#include "cluster.h"

#include "json.h"
#include "mounts.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

static int read_all(int fd, char **text, size_t *len)
{
	size_t capacity = 0;
	ssize_t got;

	*text = NULL;
	*len = 0;
	do {
		if (capacity - *len < (64u << 10)) {
			char *more = realloc(*text, capacity += 256u << 10);

			if (!more)
				return -ENOMEM;
			*text = more;
		}
		got = pread(fd, *text + *len, capacity - *len, (off_t)*len);
		*len += got > 0 ? (size_t)got : 0;
	} while (got > 0 || (got < 0 && errno == EINTR));
	return got < 0 ? -errno : 0;
}

/* Parses one answer at *at, and moves *at behind it. Returns false if it is not one. */
static bool next_node(const char **at, const char *end, struct kvm_node *node)
{
	const char *line_end = memchr(*at, '\n', (size_t)(end - *at));
	char line[1024], what[8];
	size_t len = line_end ? (size_t)(line_end - *at) : sizeof line, n;
	int why = 0;

	if (len >= sizeof line)
		return false;
	memcpy(line, *at, len);
	line[len] = 0;
	if (sscanf(line, "node %299s %7s %zu %n", node->name, what, &n, &why) != 3 || !why ||
	    n > (size_t)(end - line_end) - 1)
		return false;
	node->here = !strcmp(what, "here");
	if (!strcmp(what, "failed"))
		node->why = strdup(line + why);
	else
		node->text = strndup(line_end + 1, n);
	*at = line_end + 1 + n;
	return node->why || node->text;
}

int kvm_nodes_ask(const char *mnt, const char *request, size_t len, struct kvm_nodes *all)
{
	KVC_FD int fd = kvm_mount_open(mnt, "cluster", O_RDWR);
	KVC_MEM char *text = NULL;
	const char *at, *end;
	size_t got;
	int err = 0;

	*all = (struct kvm_nodes){ 0 };
	if (fd < 0)
		return 1;
	if (pwrite(fd, request, len, 0) != (ssize_t)len)
		err = -errno;
	err = err ?: read_all(fd, &text, &got);
	if (err)
		return kvm_fail("%s: %s", mnt,
				err == -EDQUOT ? "the limit memory= is reached; try again"
					       : kvc_why(-err));
	at = text;
	for (end = text + got; at < end; all->n++)
		if (all->n == KVM_NODES || !next_node(&at, end, &all->v[all->n])) {
			all->n += all->n < KVM_NODES;
			return kvm_fail("%s: cannot read the answers of the nodes", mnt);
		}
	return 0;
}

void kvm_nodes_free(struct kvm_nodes *all)
{
	for (size_t i = 0; i < all->n; i++) {
		free(all->v[i].why);
		free(all->v[i].text);
	}
	all->n = 0;
}

void kvm_nodes_failed(struct kvm_node *node, const char *why)
{
	free(node->text);
	node->text = NULL;
	if (!node->why)
		node->why = strdup(why);
}

const char *kvm_nodes_name(const struct kvm_node *node)
{
	return node->here ? "this node" : node->name;
}

void kvm_nodes_json(struct kvm_json *j, const struct kvm_node *node)
{
	kvm_json_begin(j, NULL, '{');
	kvm_json_text(j, "node", strcmp(node->name, "-") != 0 ? node->name : NULL);
	kvm_json_bool(j, "here", node->here);
	kvm_json_text(j, "failed", node->why);
}

bool kvm_nodes_line(char **at, char tiers[64], char state[64])
{
	static const char tiers_have[] = "abcdefghijklmnopqrstuvwxyz0123456789,-";
	static const char state_has[] = "abcdefghijklmnopqrstuvwxyz+-";
	char *end = strchr(*at, '\n');
	int n = 0;

	if (!end)
		return false;
	*end = 0;
	if (sscanf(*at, "%63s %63s%n", tiers, state, &n) != 2 || (*at)[n] ||
	    tiers[strspn(tiers, tiers_have)] || state[strspn(state, state_has)])
		return false;
	*at = end + 1;
	return true;
}

/* ---- paths ---- */

struct mount_point {
	const char *path;
	bool is; /* kvcachefs is mounted there */
};

static int match_point(void *arg, const struct kvm_mounted *m)
{
	struct mount_point *p = arg;

	if (!strcmp(m->path, p->path)) /* the last one hides the others */
		p->is = !strcmp(m->type, "fuse.kvcachefs") && !strcmp(m->root, "/");
	return 0;
}

static bool is_mount_point(const char *path)
{
	struct mount_point p = { .path = path };

	return kvm_mounts_each(match_point, &p) >= 0 && p.is;
}

/* Adds a word to rel. Returns 0, or 1 after a message about the whole path. */
static int add_word(const char *path, char rel[KVM_PATH], const char *word)
{
	size_t len = strlen(rel);

	if (!strcmp(word, ".."))
		return kvm_fail("%s: give a path without .. in the mount", kvm_shown(path));
	if (len + strlen(word) + 2 > KVM_PATH)
		return kvm_fail("%s: %s", kvm_shown(path), kvc_why(ENAMETOOLONG));
	if (strcmp(word, ".") != 0)
		snprintf(rel + len, KVM_PATH - len, "%s%s", *rel ? "/" : "", word);
	return 0;
}

/* Follows a word outside of the mount. Returns 0, or an errno. */
static int follow_word(char at[PATH_MAX], const char *word)
{
	KVC_MEM char *next = NULL;

	if (!strcmp(word, "..")) {
		at[strrchr(at, '/') > at ? strrchr(at, '/') - at : 1] = 0;
		return 0;
	}
	if (asprintf(&next, "%s/%s", at, word) < 0) {
		next = NULL;
		return ENOMEM;
	}
	return realpath(next, at) ? 0 : errno;
}

int kvm_nodes_path(const char *path, char mnt[KVM_PATH], char rel[KVM_PATH])
{
	char at[PATH_MAX] = "/", cwd[PATH_MAX] = "", *save = NULL;
	KVC_MEM char *whole = NULL;
	bool found = false;
	int err = *path ? 0 : ENOENT;

	if (*path != '/' && !getcwd(cwd, sizeof cwd))
		err = err ?: errno;
	if (asprintf(&whole, "%s/%s", cwd, path) < 0) {
		whole = NULL;
		err = ENOMEM;
	}
	*rel = 0;
	for (char *w = err ? NULL : strtok_r(whole, "/", &save); w && !err;
	     w = strtok_r(NULL, "/", &save)) {
		if (found && add_word(path, rel, w))
			return 1;
		if (!found && strcmp(w, ".") != 0)
			err = follow_word(at, w);
		found = found || (!err && is_mount_point(at));
	}
	if (err)
		return kvm_fail("%s: %s", kvm_shown(path), kvc_why(err));
	if (!found)
		return kvm_fail(
			"%s is not in a kvcachefs mount; findmnt -t fuse.kvcachefs lists the "
			"mounts",
			kvm_shown(path));
	if (!*rel)
		strcpy(rel, ".");
	snprintf(mnt, KVM_PATH, "%s", at);
	return 0;
}

int kvm_nodes_paths(int n, char **paths)
{
	char first[KVM_PATH], mnt[KVM_PATH], rel[KVM_PATH];

	for (int i = 0; i < n; i++) {
		if (kvm_nodes_path(paths[i], i ? mnt : first, rel))
			return 1;
		/* another mount has other nodes */
		if (i && strcmp(mnt, first) != 0)
			return kvm_fail("%s is in another mount than %s; give paths of one mount",
					kvm_shown(paths[i]), first);
	}
	return 0;
}

int kvm_nodes_request(const char *head, size_t head_len, int n, char **paths, char mnt[KVM_PATH],
		      char **request, size_t *len)
{
	char rel[KVM_PATH];
	int some = 0;

	*request = malloc(head_len + KVM_NODES_BYTES + KVM_PATH);
	if (!*request) {
		kvm_fail("out of memory");
		return 0;
	}
	memcpy(*request, head, head_len);
	*len = head_len;
	for (; some < n && some < (int)KVM_NODES_NAMES && *len < KVM_NODES_BYTES; some++) {
		if (kvm_nodes_path(paths[some], mnt, rel))
			return 0;
		*len += (size_t)snprintf(*request + *len, KVM_PATH, "%s", rel) + 1;
	}
	return some;
}
