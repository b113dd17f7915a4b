/* SPDX-License-Identifier: Apache-2.0 */
/* The program of an ext tier, as a process: its file, its start, its texts and its end. */
#ifndef KVCT_EXT_PROGRAM_H
#define KVCT_EXT_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Checks that only root and this process's user can change the file: it is a regular executable
 * file of root or of this user, neither it nor its folder is writable by others, and no other user
 * can replace a folder of its path. The path must be absolute, without symbolic links. Returns 0,
 * or -EINVAL with one line in error[512].
 */
int kvct_program_check(const char *path, char *error);

struct kvct_program {
	pid_t pid; /* also the number of its process group; 0: not started */
	int pidfd; /* readable when the process has ended */
	int sock;  /* SOCK_SEQPACKET, does not block */
	int text;  /* its stdout and stderr; does not block */
	/* the line that is being read, and the lines of the current second */
	char line[400];
	size_t len;
	uint64_t window_ns;
	unsigned lines, skipped;
	size_t bytes;
};

/*
 * Starts the program, without arguments: descriptor 0 is /dev/null, 1 and 2 are a pipe, 3 is a
 * socket; all others are closed. The environment has only PATH and LANG. It leads a process group
 * of its own, cannot gain privileges, and is killed when the calling thread ends. Returns 0, or a
 * negative errno with *p zeroed. Blocks until execve has succeeded or failed.
 */
int kvct_program_start(struct kvct_program *p, const char *path);
/*
 * Reads what the program has written, at most 64 KiB, and logs it in lines that start with the
 * tier's name. Lines are cut, unprintable bytes are replaced, and lines beyond LINES a second are
 * counted instead. Returns false at the end of the pipe.
 */
bool kvct_program_log(struct kvct_program *p);
/*
 * True if the program has written so much in the current second that the rest should wait in the
 * pipe until *until_ns.
 */
bool kvct_program_floods(const struct kvct_program *p, uint64_t *until_ns);
/*
 * Closes the socket, waits at most wait_ms for the program to end, kills its process group, and
 * describes the end in why[128] ("exited with status 1", "was killed by signal 11"; without a
 * number if this function has killed it).
 */
void kvct_program_end(struct kvct_program *p, uint64_t wait_ms, char *why);

#endif
