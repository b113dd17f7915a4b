/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pin FILE: maps the file shared and registers the mapping as an io_uring buffer, which takes the
 * same long-term pin (FOLL_LONGTERM) as cudaHostRegister. Prints "pinned" or the error's name;
 * exits with 0, or with 1 if it was refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct io_uring ring;
	struct stat st;
	struct iovec iov;
	int fd = argc > 1 ? open(argv[1], O_RDWR) : -1, err;

	if (fd < 0 || fstat(fd, &st) || io_uring_queue_init(4, &ring, 0)) {
		perror("pin");
		return 2;
	}
	iov.iov_len = (size_t)st.st_size;
	iov.iov_base = mmap(NULL, iov.iov_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (iov.iov_base == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	err = io_uring_register_buffers(&ring, &iov, 1);
	printf("%s\n", err ? strerrorname_np(-err) : "pinned");
	return err != 0;
}
