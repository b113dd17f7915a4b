/* SPDX-License-Identifier: Apache-2.0 */
/* The process that has a store locked. See holder.h. */
#include "holder.h"

#include "util.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/*
 * Compares dir with a field of mountinfo, in which spaces and similar characters are written as
 * octal escapes.
 */
static bool same_source(const char *field, const char *dir)
{
	for (; *field && *field != ' ' && *dir; dir++) {
		unsigned c = (unsigned char)*field++;

		if (c == '\\' && sscanf(field, "%3o", &c) == 1)
			field += 3;
		/* a mount's source cannot contain a comma */
		if (c != (unsigned char)(*dir == ',' ? '_' : *dir))
			return false;
	}
	return !*dir && (!*field || *field == ' ');
}

/* Copies the fifth field of a line of mountinfo, the mount point. */
static void copy_point(const char *line, char at[1024])
{
	size_t n = 0;

	for (int field = 1; field < 5 && *line; field++)
		line += strcspn(line, " ") + 1;
	while (*line && *line != ' ' && n < 1023) {
		unsigned c = (unsigned char)*line++;

		if (c == '\\' && sscanf(line, "%3o", &c) == 1)
			line += 3;
		at[n++] = (char)c;
	}
	at[n] = 0;
}

bool kvc_holder_mount(const char *pid, const char *dir, char at[1024])
{
	KVC_MEM char *line = NULL, *real = realpath(dir, NULL);
	size_t capacity = 0;
	char path[64];
	bool seen = false;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%.32s/mountinfo", pid);
	f = fopen(path, "re");
	while (f && !seen && getline(&line, &capacity, f) > 0) {
		const char *type = strstr(line, " - fuse.kvcachefs ");

		line[strcspn(line, "\n")] = 0;
		seen = type && same_source(type + strlen(" - fuse.kvcachefs "), real ?: dir);
		if (seen && at)
			copy_point(line, at);
	}
	if (f)
		fclose(f);
	return seen;
}

/* True if the open file `number` of a process has a lock of an open file description. */
static bool has_lock(int fdinfo, const char *number)
{
	KVC_MEM char *line = NULL;
	size_t capacity = 0;
	bool locks = false;
	int fd = openat(fdinfo, number, O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");

	if (!f && fd >= 0)
		close(fd);
	while (f && !locks && getline(&line, &capacity, f) > 0)
		locks = !strncmp(line, "lock:", 5) && strstr(line, " OFDLCK ");
	if (f)
		fclose(f);
	return locks;
}

/* True if a process has this file open and locked. */
static bool holds(const char *pid, const struct stat *file)
{
	char path[64];
	KVC_FD int fdinfo = -1;
	bool found = false;
	struct dirent *e;
	struct stat st;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%.32s/fd", pid);
	d = opendir(path);
	if (!d)
		return false;
	while (!found && (e = readdir(d))) {
		if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) ||
		    st.st_dev != file->st_dev || st.st_ino != file->st_ino)
			continue;
		snprintf(path, sizeof path, "/proc/%.32s/fdinfo", pid);
		if (fdinfo < 0)
			fdinfo = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		found = fdinfo >= 0 && has_lock(fdinfo, e->d_name);
	}
	closedir(d);
	return found;
}

static void read_name(const char *pid, char *name, size_t capacity)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof path, "/proc/%.32s/comm", pid);
	f = fopen(path, "re");
	if (!f || !fgets(name, (int)capacity, f))
		*name = 0;
	name[strcspn(name, "\n")] = 0;
	if (f)
		fclose(f);
}

static bool is_elsewhere(const char *pid)
{
	char path[64];
	struct stat own, other;

	snprintf(path, sizeof path, "/proc/%.32s/ns/mnt", pid);
	return !stat("/proc/self/ns/mnt", &own) && !stat(path, &other) &&
	       own.st_ino != other.st_ino;
}

void kvc_holder_find(int fd, const char *dir, struct kvc_holder *h)
{
	DIR *all = opendir("/proc");
	struct dirent *e;
	struct stat file;

	memset(h, 0, sizeof *h);
	while (all && !h->pid && !fstat(fd, &file) && (e = readdir(all))) {
		long pid = strtol(e->d_name, NULL, 10);

		if (pid <= 0 || pid == getpid() || !holds(e->d_name, &file))
			continue;
		h->pid = (pid_t)pid;
		read_name(e->d_name, h->name, sizeof h->name);
		h->elsewhere = is_elsewhere(e->d_name);
		kvc_holder_mount(e->d_name, dir, h->at);
	}
	if (all)
		closedir(all);
	if (!h->pid)
		kvc_holder_mount("self", dir, h->at);
}

void kvc_holder_why(const struct kvc_holder *h, const char *dir, char error[512])
{
	const char *name = *h->name ? h->name : "a process";

	if (!h->pid && *h->at)
		snprintf(error, 512,
			 "the store %.180s is in use: it is mounted on %.180s; unmount it first",
			 dir, h->at);
	else if (!h->pid)
		snprintf(error, 512,
			 "the store %.180s is in use by a process that is not visible here, of "
			 "another user or in another container; unmount the store there, or wait "
			 "for fsck",
			 dir);
	else if (!*h->at)
		snprintf(error, 512,
			 "the store %.180s is in use by %s (pid %d); wait until it ends, or stop "
			 "it",
			 dir, name, (int)h->pid);
	else
		snprintf(error, 512,
			 "the store %.180s is in use by %s (pid %d), which has it mounted on "
			 "%.180s%s; unmount it first",
			 dir, name, (int)h->pid, h->at,
			 h->elsewhere ? " in another mount namespace (a container or service)"
				      : "");
}
