/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late FOLDER SECONDS PROCESSES: processes open files of a folder, read a little and close them.
 * The pool holds only a part of the folder, and therefore most opens wait for a load. Every half
 * second one process is killed during its work and replaced. Prints the counts; exits with 1 if a
 * process makes no progress for 240 s (a hang).
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

struct shared {
	_Atomic unsigned long done[MOST], failed[MOST];
};

static char *names[4096];
static int nnames;

static _Noreturn void client(const char *folder, struct shared *s, int me)
{
	unsigned seed = (unsigned)getpid();
	char path[4096], buf[4096];

	for (;;) {
		snprintf(path, sizeof path, "%s/%s", folder, names[rand_r(&seed) % nnames]);
		int fd = open(path, O_RDONLY);

		if (fd < 0 || read(fd, buf, sizeof buf) != sizeof buf)
			s->failed[me]++;
		if (fd >= 0)
			close(fd);
		s->done[me]++;
	}
}

int main(int argc, char **argv)
{
	struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				-1, 0);
	unsigned long last[MOST] = { 0 }, total = 0, failed = 0, killed = 0;
	time_t moved[MOST], end;
	pid_t kid[MOST];
	int n, hung = 0;
	struct dirent *e;
	DIR *d;

	if (argc != 4 || (n = atoi(argv[3])) < 1 || n > MOST || !(d = opendir(argv[1])))
		return 2;
	while ((e = readdir(d)) && nnames < 4096)
		if (e->d_name[0] != '.')
			names[nnames++] = strdup(e->d_name);
	closedir(d);
	end = time(NULL) + atol(argv[2]);
	for (int i = 0; i < n; i++) {
		moved[i] = time(NULL);
		if (!(kid[i] = fork()))
			client(argv[1], s, i);
	}
	for (unsigned turn = 0; time(NULL) < end && !hung; turn++) {
		int v = (int)(turn % (unsigned)n);

		usleep(500000);
		kill(kid[v], SIGKILL);
		/*
		 * a killed client still waits for its answer: a hang shows here too, by the
		 * runner's time limit
		 */
		waitpid(kid[v], NULL, 0);
		killed++;
		if (!(kid[v] = fork()))
			client(argv[1], s, v);
		for (int i = 0; i < n; i++) {
			if (s->done[i] != last[i])
				moved[i] = time(NULL);
			last[i] = s->done[i];
			hung += time(NULL) - moved[i] > 240;
		}
	}
	for (int i = 0; i < n; i++) {
		kill(kid[i], SIGKILL);
		waitpid(kid[i], NULL, 0);
		total += s->done[i];
		failed += s->failed[i];
	}
	printf("%lu opens, %lu failed, %lu clients killed, %d hung\n", total, failed, killed, hung);
	return hung != 0;
}
