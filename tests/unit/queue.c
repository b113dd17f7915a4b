/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of libkvcachefs without a mount. It stores into a plain folder. fallocate() on its
 * files waits at a gate, so that a job can be stopped in each of its states. The read of the answer
 * to a lease, which the test makes up, waits there, too.
 */
#include "kvcachefs_layout.h"
#include "kvcachefs_rope.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 4, BLOCKS = 8, BS = 4, NH = 2, HS = 8, LAYER = 2 * BLOCKS * BS * NH * HS };

static char dir[64];
static uint16_t mem[LAYERS][LAYER];
static void *pointers[LAYERS] = { mem[0], mem[1], mem[2], mem[3] };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool gated;
static unsigned let, came; /* calls that passed the gate; calls that reached it */

static void pass(void)
{
	pthread_mutex_lock(&lock);
	came++;
	pthread_cond_broadcast(&changed);
	while (gated && came > let)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

/* The linker reserves these names (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len)
{
	pass();
	return __real_fallocate64(fd, mode, at, len);
}

/* The answer to a lease on the paths "here" and "none", each with the library's separator. */
ssize_t __wrap_pread64(int fd, void *buf, size_t capacity, off_t at);
ssize_t __wrap_pread64(int fd, void *buf, size_t capacity, off_t at)
{
	static const char answer[] = "here 7 10 resident\n.. 0 0 EINVAL\n"
				     "none 0 0 ENOENT\n.. 0 0 EINVAL\n";

	(void)fd;
	if (at)
		return 0;
	pass();
	assert_true(capacity >= sizeof answer);
	memcpy(buf, answer, sizeof answer - 1);
	return sizeof answer - 1;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void gate(bool on, unsigned n)
{
	pthread_mutex_lock(&lock);
	if (on && !gated)
		came = 0;
	gated = on;
	let = n;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void until_came(unsigned n)
{
	pthread_mutex_lock(&lock);
	while (came < n)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static struct kvcachefs_paged cache(void)
{
	return (struct kvcachefs_paged){
		.format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,
		.layers = LAYERS,
		.heads = NH,
		.head_size = HS,
		.block_size = BS,
		.blocks = BLOCKS,
		.elem = 2,
		.pointers = pointers,
		.device = -1,
	};
}

static const int64_t ids[2] = { 5, 2 };

struct job {
	struct kvcachefs_item items[LAYERS];
	char paths[LAYERS][64];
	uint64_t id;
};

/* A file for each layer, the last layer first. */
static void fill(struct job *job, const char *name)
{
	for (uint32_t l = 0; l < LAYERS; l++) {
		snprintf(job->paths[l], sizeof job->paths[l], "%s/l%u", name, LAYERS - 1 - l);
		job->items[l] = (struct kvcachefs_item){
			.path = job->paths[l],
			.layer = LAYERS - 1 - l,
			.nlayers = 1,
			.tokens = { .block_ids = ids, .n = 2 },
		};
	}
}

/* Counts the files below the folder, those with the job's names or all. */
static unsigned count(const char *name, bool all)
{
	char path[512];
	unsigned n = 0;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	DIR *d = opendir(path);

	for (struct dirent *e; d && (e = readdir(d));)
		n += *e->d_name != '.' && (all || !strstr(e->d_name, ".tmp."));
	if (d)
		closedir(d);
	return n;
}

static bool is_right(const char *name, uint32_t layer)
{
	struct kvcachefs_paged p = cache();
	struct kvcachefs_tokens t = { .block_ids = ids, .n = 2 };
	uint8_t want[4096], have[4096];
	uint64_t len = kvcachefs_file_size(&p, 1, &t);
	char path[512];
	ssize_t n;

	snprintf(path, sizeof path, "%s/%s/l%u", dir, name, layer);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(len <= sizeof want);
	if (fd < 0)
		return false;
	assert_int_equal(kvcachefs_gather(&p, layer, 1, &t, want), 0);
	n = read(fd, have, sizeof have);
	close(fd);
	return n == (ssize_t)len && !memcmp(have, want, len);
}

static bool readable(const struct kvcachefs_queue *q, int wait_ms)
{
	struct pollfd p = { .fd = kvcachefs_queue_fd(q), .events = POLLIN };

	return poll(&p, 1, wait_ms) == 1;
}

static struct kvcachefs_completion take_one(struct kvcachefs_queue *q)
{
	struct kvcachefs_completion c;

	assert_true(readable(q, 60000));
	assert_int_equal(kvcachefs_take(q, &c, 1), 1);
	return c;
}

static struct kvcachefs_queue *queue(unsigned threads)
{
	struct kvcachefs_queue *q;

	assert_int_equal(kvcachefs_queue_new(&q, dir, threads), 0);
	return q;
}

/* The caller may change its arguments right after submitting them. */
static void submit(struct kvcachefs_queue *q, struct job *job, const char *name, uint64_t tag)
{
	struct kvcachefs_paged p = cache();
	int64_t mine[2] = { ids[0], ids[1] };

	fill(job, name);
	for (int i = 0; i < LAYERS; i++)
		job->items[i].tokens.block_ids = mine;
	assert_int_equal(kvcachefs_submit_store(q, &p, job->items, LAYERS, NULL, tag, &job->id), 0);
	memset(mine, 0xff, sizeof mine);
	memset(&p, 0xff, sizeof p);
	memset(job->paths, 0, sizeof job->paths);
}

struct submitter {
	struct kvcachefs_queue *q;
	unsigned who;
	struct job jobs[20];
};

static void *submit_many(void *arg)
{
	struct submitter *s = arg;
	char name[32];

	for (unsigned i = 0; i < 20; i++) {
		snprintf(name, sizeof name, "many%u", s->who * 20 + i);
		submit(s->q, &s->jobs[i], name, s->who * 20 + i);
	}
	return NULL;
}

/* Jobs are submitted by several threads and complete in any order. */
static void many(void **state)
{
	struct kvcachefs_queue *q = queue(3);
	static struct submitter s[4];
	pthread_t threads[4];
	bool seen[80] = { false };
	char name[32];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		s[i] = (struct submitter){ .q = q, .who = i };
		assert_int_equal(pthread_create(&threads[i], NULL, submit_many, &s[i]), 0);
	}
	for (unsigned n = 0; n < 80;) {
		struct kvcachefs_completion v[7];

		assert_true(readable(q, 60000));
		size_t got = kvcachefs_take(q, v, 7);

		assert_true(got > 0);
		n += (unsigned)got;
		for (size_t i = 0; i < got; i++) {
			assert_int_equal(v[i].err, 0);
			assert_true(v[i].tag < 80 && !seen[v[i].tag] && !v[i].failed && v[i].id);
			seen[v[i].tag] = true;
			snprintf(name, sizeof name, "many%u", (unsigned)v[i].tag);
			for (uint32_t l = 0; l < LAYERS; l++)
				assert_true(is_right(name, l));
			assert_int_equal(count(name, true), LAYERS);
		}
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_false(readable(q, 0));
	struct kvcachefs_completion none;

	assert_int_equal(kvcachefs_take(q, &none, 1), 0);
	kvcachefs_queue_free(q);
}

/*
 * Layers are stored in their order, however they were given, and nothing is published before the
 * end.
 */
static void layers(void **state)
{
	struct kvcachefs_queue *q = queue(1);
	struct job a;

	(void)state;
	gate(true, 0);
	submit(q, &a, "layers", 1);
	for (unsigned l = 0; l < LAYERS; l++) {
		until_came(l + 1); /* the job is at this layer */
		for (unsigned i = 0; i < LAYERS; i++)
			assert_int_equal(kvcachefs_layer_poll(q, a.id, i, NULL),
					 i < l ? 0 : -EAGAIN);
		assert_int_equal(count("layers", false), 0);
		assert_false(readable(q, 0));
		gate(true, l + 1);
		assert_int_equal(kvcachefs_layer_wait(q, a.id, l, NULL), 0);
	}
	gate(false, 0);
	struct kvcachefs_completion c = take_one(q);

	assert_true(c.id == a.id && c.tag == 1 && !c.err && !*c.error);
	for (uint32_t l = 0; l < LAYERS; l++)
		assert_true(is_right("layers", l));
	/* a completed job is remembered after it was collected; an unknown number stays unknown */
	assert_int_equal(kvcachefs_layer_wait(q, a.id, 1, NULL), 0);
	assert_int_equal(kvcachefs_layer_wait(q, a.id + 1, 1, NULL), -ENOENT);
	assert_int_equal(kvcachefs_layer_wait(q, 0, 1, NULL), -ENOENT);
	assert_int_equal(kvcachefs_cancel(q, a.id), -ENOENT);
	kvcachefs_queue_free(q);
}

static void cancelled(void **state)
{
	struct kvcachefs_queue *q = queue(1);
	struct kvcachefs_completion c;
	struct job a, b;

	(void)state;
	gate(true, 1);
	submit(q, &a, "a", 1);
	submit(q, &b, "b", 2);
	until_came(2); /* job a: layer 0 is done, and layer 1 is in progress */
	/* a job that has not begun: at once */
	assert_int_equal(kvcachefs_cancel(q, b.id), 0);
	c = take_one(q);
	assert_true(c.tag == 2 && c.err == -ECANCELED && c.failed == LAYERS && *c.error);
	for (int i = 0; i < LAYERS; i++)
		assert_int_equal(b.items[i].err, -ECANCELED);
	assert_int_equal(kvcachefs_layer_wait(q, b.id, 0, NULL), -ECANCELED);
	assert_int_equal(access(dir, F_OK) || count("b", true), 0);
	/* a job that has begun: its files are removed */
	assert_int_equal(kvcachefs_cancel(q, a.id), 0);
	assert_int_equal(kvcachefs_cancel(q, a.id), 0);
	assert_false(readable(q, 0));
	assert_int_equal(count("a", true), 2);
	gate(true, 100);
	assert_int_equal(kvcachefs_layer_wait(q, a.id, 0, NULL), 0);
	assert_int_equal(kvcachefs_layer_wait(q, a.id, 2, NULL), -ECANCELED);
	c = take_one(q);
	assert_true(c.tag == 1 && c.err == -ECANCELED && c.failed == LAYERS);
	assert_int_equal(count("a", true), 0);
	assert_int_equal(came, 2);
	gate(false, 0);
	/* a job that is complete */
	submit(q, &a, "a", 3);
	assert_int_equal(kvcachefs_layer_wait(q, a.id, LAYERS, NULL), 0);
	assert_true(readable(q, 60000));
	assert_int_equal(kvcachefs_cancel(q, a.id), -EALREADY);
	assert_int_equal(take_one(q).err, 0);
	assert_int_equal(count("a", true), LAYERS);
	kvcachefs_queue_free(q);
}

/* The limit counts jobs that were not collected; submitting does not wait for it. */
static void full(void **state)
{
	struct kvcachefs_queue *q = queue(2);
	struct kvcachefs_paged p = cache();
	static struct job v[KVCACHEFS_QUEUE_MOST];
	struct kvcachefs_item item = { .path = "full/more",
				       .nlayers = 1,
				       .tokens = { .block_ids = ids, .n = 2 } };
	uint64_t id;

	(void)state;
	gate(true, 0);
	for (unsigned i = 0; i < KVCACHEFS_QUEUE_MOST; i++)
		submit(q, &v[i], "full", i);
	assert_int_equal(kvcachefs_submit_store(q, &p, &item, 1, NULL, 0, &id), -EAGAIN);
	for (unsigned i = 5; i < KVCACHEFS_QUEUE_MOST; i++)
		assert_int_equal(kvcachefs_cancel(q, v[i].id), 0);
	assert_int_equal(kvcachefs_submit_store(q, &p, &item, 1, NULL, 0, &id), -EAGAIN);
	assert_int_equal(take_one(q).err, -ECANCELED);
	assert_int_equal(kvcachefs_submit_store(q, &p, &item, 1, NULL, 0, &id), 0);
	gate(false, 0);
	assert_int_equal(kvcachefs_layer_wait(q, id, 0, NULL), 0);
	kvcachefs_queue_free(q);
}

static void *open_gate(void *arg)
{
	(void)arg;
	usleep(20000);
	gate(false, 0);
	return NULL;
}

/*
 * The queue is freed while jobs wait, run and are complete: no partial file is left, and no thread
 * waits.
 */
static void freed(void **state)
{
	struct kvcachefs_queue *q = queue(2);
	struct job v[10];
	char name[32];
	pthread_t t;

	(void)state;
	submit(q, &v[0], "freed0", 0);
	assert_int_equal(kvcachefs_layer_wait(q, v[0].id, LAYERS, NULL), 0);
	assert_true(readable(q, 60000));
	gate(true, 1);
	for (unsigned i = 1; i < 10; i++) {
		snprintf(name, sizeof name, "freed%u", i);
		submit(q, &v[i], name, i);
	}
	until_came(3);
	assert_int_equal(pthread_create(&t, NULL, open_gate, NULL), 0);
	kvcachefs_queue_free(q);
	pthread_join(t, NULL);
	for (unsigned i = 0; i < 10; i++) {
		snprintf(name, sizeof name, "freed%u", i);
		assert_int_equal(count(name, true), i ? 0 : LAYERS);
	}
	kvcachefs_queue_free(NULL);
	assert_int_equal(kvcachefs_queue_fd(NULL), -1);
}

static void refused(void **state)
{
	struct kvcachefs_queue *q = queue(0);
	struct kvcachefs_paged p = cache();
	struct kvcachefs_completion c;
	int64_t outside[2] = { 5, BLOCKS };
	struct job a;

	(void)state;
	fill(&a, "refused");
	p.elem = 3;
	assert_int_equal(kvcachefs_submit_store(q, &p, a.items, LAYERS, NULL, 0, &a.id), -EINVAL);
	p = cache();
	a.items[0].tokens.slots = ids;
	assert_int_equal(kvcachefs_submit_store(q, &p, a.items, LAYERS, NULL, 0, &a.id), -EINVAL);
	a.items[0].tokens.slots = NULL;
	p.device = 99;
	assert_int_equal(kvcachefs_submit_load(q, &p, a.items, LAYERS, NULL, 0, &a.id), -ENODEV);
	p = cache();
	assert_int_equal(kvcachefs_submit_store(q, &p, NULL, 0, NULL, 8, &a.id), 0);
	assert_int_equal(kvcachefs_layer_wait(q, a.id, 0, NULL), 0);
	assert_int_equal(take_one(q).tag, 8);
	/* one bad item: the others are stored */
	a.items[1].tokens.block_ids = outside;
	assert_int_equal(kvcachefs_submit_store(q, &p, a.items, LAYERS, NULL, 9, &a.id), 0);
	assert_int_equal(kvcachefs_layer_wait(q, a.id, LAYERS, NULL), -ERANGE);
	assert_int_equal(kvcachefs_layer_wait(q, a.id, 1, NULL), 0); /* the item is of layer 2 */
	c = take_one(q);
	assert_true(c.tag == 9 && c.err == -ERANGE && c.failed == 1 &&
		    strstr(c.error, "refused/l2: block 8"));
	assert_true(a.items[1].err == -ERANGE && !a.items[0].err);
	assert_int_equal(count("refused", true), LAYERS - 1);
	/* no mount: reported by the completion */
	a.items[1].tokens.block_ids = ids;
	assert_int_equal(kvcachefs_submit_load(q, &p, a.items, LAYERS, NULL, 10, &a.id), 0);
	c = take_one(q);
	assert_true(c.err == -ENOENT && c.failed == LAYERS && strstr(c.error, "not a kvcachefs"));
	assert_int_equal(kvcachefs_layer_wait(q, a.id, 0, NULL), -ENOENT);
	kvcachefs_queue_free(q);
	assert_int_equal(kvcachefs_queue_new(&q, "/nonexistent/x", 1), 0);
	assert_int_equal(kvcachefs_submit_store(q, &p, a.items, LAYERS, NULL, 0, &a.id), 0);
	c = take_one(q);
	assert_true(c.err == -ENOENT && c.failed == LAYERS);
	kvcachefs_queue_free(q);
	assert_int_equal(kvcachefs_queue_new(&q, dir, 65), -EINVAL);
}

/* ---- Leases ---- */

static unsigned descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* A queue for a folder that takes leases. */
static struct kvcachefs_queue *leasing(void)
{
	struct kvcachefs_queue *q;
	char path[512];
	int fd;

	snprintf(path, sizeof path, "%s/leases", dir);
	assert_int_equal(kvcachefs_queue_new(&q, path, 1), 0);
	assert_true(!mkdir(path, 0777) || errno == EEXIST);
	snprintf(path, sizeof path, "%s/leases/.kvcachefs", dir);
	assert_true(!mkdir(path, 0777) || errno == EEXIST);
	snprintf(path, sizeof path, "%s/leases/.kvcachefs/lease", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	assert_true(fd >= 0 && !close(fd));
	return q;
}

static const char *const wanted[2] = { "here", "none" };

static void leases(void **state)
{
	struct kvcachefs_queue *q = queue(1);
	struct kvcachefs_completion c;
	static const char *const bad[2] = { "here", "a\nb" }, *const empty[2] = { "", "here" };
	unsigned before;
	uint64_t id;

	(void)state;
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 0, true, 1, &id), -EINVAL);
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 1, 2, true, 1, &id), -EINVAL);
	assert_int_equal(kvcachefs_submit_lease(q, bad, 2, 1, true, 1, &id), -EINVAL);
	assert_int_equal(kvcachefs_submit_lease(q, empty, 2, 1, true, 1, &id), -EINVAL);
	assert_int_equal(kvcachefs_take(q, &c, 1), 0);
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 1, true, 2, &id), 0);
	c = take_one(q); /* no mount */
	assert_true(c.tag == 2 && c.id == id && c.err == -ENOENT && *c.error && !c.lease &&
		    !c.count && !c.bytes);
	assert_int_equal(kvcachefs_cancel(q, id), -ENOENT);
	kvcachefs_queue_free(q);
	q = leasing();
	before = descriptors();
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 1, false, 3, &id), 0);
	c = take_one(q);
	assert_true(!c.err && c.count == 1 && c.bytes == 10 && c.lease);
	assert_int_equal(kvcachefs_layer_wait(q, id, 0, NULL), 0); /* as for any completed number */
	assert_int_equal(descriptors(), before + 1);
	kvcachefs_lease_free(c.lease);
	assert_int_equal(descriptors(), before);
	/* both of a group, or none */
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 2, true, 4, &id), 0);
	c = take_one(q);
	assert_true(!c.err && !c.count && !c.bytes && !c.lease);
	assert_int_equal(descriptors(), before);
	/* cancelled while it is being taken: it is released, and the completion has no lease */
	gate(true, 0);
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 1, false, 5, &id), 0);
	until_came(1);
	assert_int_equal(kvcachefs_layer_wait(q, id, 0, NULL), -ENOENT);
	assert_int_equal(kvcachefs_cancel(q, id), 0);
	assert_int_equal(kvcachefs_cancel(q, id), 0);
	assert_false(readable(q, 0));
	gate(false, 0);
	c = take_one(q);
	assert_true(c.err == -ECANCELED && !c.lease && !c.count && !c.bytes && *c.error);
	assert_int_equal(descriptors(), before);
	/* it is held, and its completion was not taken */
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 1, false, 6, &id), 0);
	assert_true(readable(q, 60000));
	assert_int_equal(kvcachefs_cancel(q, id), -EALREADY);
	kvcachefs_queue_free(q);
	assert_int_equal(descriptors(), before - 1);
}

/* The queue is freed while leases are held, are taken and wait. More wait than there are threads.
 */
static void freed_leases(void **state)
{
	unsigned before = descriptors();
	struct kvcachefs_queue *q = leasing();
	uint64_t id;
	pthread_t t;

	(void)state;
	assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 1, false, 0, &id), 0);
	assert_true(readable(q, 60000));
	gate(true, 0);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(kvcachefs_submit_lease(q, wanted, 2, 1, i % 2, i, &id), 0);
	until_came(16);
	assert_int_equal(kvcachefs_cancel(q, id), 0); /* waits for a thread */
	assert_int_equal(pthread_create(&t, NULL, open_gate, NULL), 0);
	kvcachefs_queue_free(q);
	pthread_join(t, NULL);
	assert_int_equal(descriptors(), before);
}

static int clear(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many),      cmocka_unit_test(layers),
		cmocka_unit_test(cancelled), cmocka_unit_test(full),
		cmocka_unit_test(freed),     cmocka_unit_test(refused),
		cmocka_unit_test(leases),    cmocka_unit_test(freed_leases),
	};
	char virtual[sizeof dir + 16];
	int failed;

	snprintf(dir, sizeof dir, "/tmp/kvc-queue-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	snprintf(virtual, sizeof virtual, "%s/.kvcachefs", dir);
	if (mkdir(virtual, 0777)) /* as in a mount, but without the file for leases */
		return 1;
	for (int l = 0; l < LAYERS; l++)
		for (int i = 0; i < LAYER; i++)
			mem[l][i] = (uint16_t)(i * 7 + l * 1000);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return failed || nftw(dir, clear, 8, FTW_DEPTH | FTW_PHYS);
}
