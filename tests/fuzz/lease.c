/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data that clients write: lists of leases, control commands, values of extended attributes. The
 * engine runs with a few files. The kernel and libfuse are replaced by functions that record the
 * answers.
 *
 * Input: calls, each a byte that chooses the call, two bytes of length and that many bytes.
 * Longest input: 4096
 * Covers: fs/virtual.c, fs/virtual_lease.c, engine/ops/lease.c, engine/ops/xattr.c,
 * engine/ops/virtuals.c, engine/base/util.c
 */
#include "fuzz.h"
#include "../unit/support/apart.h"
#include "fs.h"
#include "registry.h"

/* in the order of fs/virtual.c */
#define LEASE (KVFS_VIRTUAL + 4)
#define CONTROL (KVFS_VIRTUAL + 5)

static struct kvfs fs = { .mountpoint = "/mnt", .passthrough_why = "it is a test" };
static struct kvc_store store;
static struct fuse_ctx who;
static int replies, reply_err;
static char reply[1 << 16];
static size_t reply_len;
static uint64_t subjects[4]; /* the root, a model, a chunk, a file */

/* ---- functions that fs/virtual*.c call ---- */

void *fuse_req_userdata(fuse_req_t req)
{
	(void)req;
	return &fs;
}

const struct fuse_ctx *fuse_req_ctx(fuse_req_t req)
{
	(void)req;
	return &who;
}

/* One group beside that of the process. */
int fuse_req_getgroups(fuse_req_t req, int size, gid_t list[])
{
	(void)req;
	if (size > 0)
		list[0] = 100;
	return 1;
}

int fuse_reply_err(fuse_req_t req, int err)
{
	(void)req;
	replies++;
	reply_err = err;
	return 0;
}

int fuse_reply_buf(fuse_req_t req, const char *buf, size_t size)
{
	fuzz_must(size < sizeof reply);
	memcpy(reply, buf, size);
	reply_len = size;
	return fuse_reply_err(req, 0);
}

int fuse_reply_write(fuse_req_t req, size_t count)
{
	reply_len = count;
	return fuse_reply_err(req, 0);
}

int fuse_reply_open(fuse_req_t req, const struct fuse_file_info *fi)
{
	(void)fi;
	return fuse_reply_err(req, 0);
}

int fuse_reply_entry(fuse_req_t req, const struct fuse_entry_param *e)
{
	(void)e;
	return fuse_reply_err(req, 0);
}

int fuse_reply_attr(fuse_req_t req, const struct stat *st, double timeout)
{
	(void)st;
	(void)timeout;
	return fuse_reply_err(req, 0);
}

size_t fuse_add_direntry(fuse_req_t req, char *buf, size_t size, const char *name,
			 const struct stat *st, off_t off)
{
	(void)req;
	(void)buf;
	(void)size;
	(void)st;
	(void)off;
	return 24 + strlen(name);
}

const char *fuse_pkgversion(void)
{
	return "none";
}

int kvfs_cluster_run(struct kvfs *f, const char *request, size_t len, char **text, size_t *text_len)
{
	(void)f;
	(void)request;
	(void)len;
	(void)text;
	(void)text_len;
	return -EINVAL;
}

size_t kvfs_cluster_bytes(struct kvfs *f)
{
	(void)f;
	return 0;
}

void kvfs_print_metrics(struct kvfs *f, FILE *out)
{
	kvc_print_metrics(f->k, out);
}

/* Behaves like fs/ops.c, except that no call waits, because everything is resident. */
int kvfs_errno(int err)
{
	return -err;
}

bool kvfs_call_waits(struct call *c, int *err)
{
	(void)c;
	fuzz_must(*err != KVC_WAIT);
	return false;
}

/* A lease that would wait for names does not. */
static bool never_parks(struct kvc_wait *w)
{
	(void)w;
	return false;
}

struct call *kvfs_call_new(fuse_req_t req, uint64_t ino, void (*run)(struct call *),
			   const char *name, const char *to_name)
{
	struct call *c = calloc(1, sizeof *c);

	fuzz_must(c && !name && !to_name);
	c->f = &fs;
	c->req = req;
	c->ino = ino;
	c->run = run;
	c->w.may_park = never_parks;
	return c;
}

void kvfs_call_free(struct call *c)
{
	free(c);
}

/* Runs at once: an input ends when it has its answers. */
void kvfs_defer(struct kvfs_worker *a, struct call *c, void (*run)(struct call *))
{
	(void)a;
	run(c);
}

void kvfs_note_transport(struct kvfs *f, fuse_req_t req)
{
	(void)f;
	(void)req;
}

bool kvfs_uses_uring(struct kvfs *f)
{
	(void)f;
	return false;
}

const char *kvfs_uring_why(const struct kvfs *f)
{
	(void)f;
	return "";
}

bool kvfs_call_slot(struct call *c)
{
	(void)c;
	return true;
}

unsigned kvfs_wait_slots_used(struct kvfs_wait_slots *p)
{
	(void)p;
	return 0;
}

uint64_t kvfs_ring_bytes(const struct kvfs_ring *r)
{
	(void)r;
	return 0;
}

/* The original waits a tenth of a second for a thread. */
void __wrap_kvc_model_rescan_wait(struct kvc *k);
void __wrap_kvc_model_rescan_wait(struct kvc *k)
{
	(void)k;
}

/* ---- the engine ---- */

static uint64_t make(uint64_t parent, const char *name, uint32_t mode)
{
	const struct kvc_caller root = { 0 };
	struct kvc_row r;

	fuzz_must(!kvc_entry_make(fs.k, parent, name, mode, &root, NULL, 0, &r));
	return r.ino;
}

static uint64_t file(uint64_t parent, const char *name, uint32_t mode, uint32_t uid)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	struct kvc_row r;
	size_t n;

	fuzz_must(!kvc_open_create(fs.k, parent, name, S_IFREG | mode, uid, uid, O_RDWR, &r, &o,
				   &w));
	fuzz_must(!kvc_io_write(fs.k, r.ino, "bytes", 5, 0, O_RDWR, &n, &w));
	kvc_open_release(fs.k, r.ino, O_RDWR, 0);
	return r.ino;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct kvc_options o;
	struct kvc_tier *tiers[KVCT_MAX];
	char error[512] = "", text[700], path[1280];
	unsigned n;

	(void)argc;
	(void)argv;
	kvc_apart(); /* the pool's mount; without root it is a folder */
	kvc_options_init(&o);
	snprintf(text, sizeof text, "cpu=16M,disk=off,prefault=off,run=%s", fuzz_folder());
	fuzz_must(!kvc_options_parse(&o, text, error));
	snprintf(store.dir, sizeof store.dir, "%s", fuzz_folder());
	kvc_super_own(&store, KVC_STORE_MIN_SIZE);
	fuzz_must(!kvc_super_create(&store));
	fuzz_must(!kvc_catalog_create(kvc_super_path(&store, KVC_STORE_CATALOG, path)));
	fuzz_must(!kvc_store_open(&store, fuzz_folder(), error));
	fuzz_must(!kvct_open_all(&store, &o, tiers, &n, error));
	if (kvc_cache_open(&fs.k, &o, &store, tiers, n, 0, error)) {
		fprintf(stderr, "%s\n", error);
		exit(77);
	}
	fuzz_must(!kvc_cache_start(fs.k));
	subjects[0] = KVC_ROOT;
	subjects[1] = make(KVC_ROOT, "m", S_IFDIR | 0755);
	subjects[2] = make(subjects[1], "chunk", S_IFDIR | 0755);
	subjects[3] = file(subjects[2], "0", 0644, 1);
	file(subjects[2], "1", 0600, 2);
	file(subjects[1], "with space", 0644, 1);
	make(subjects[1], "closed", S_IFDIR | 0700);
	return 0;
}

/* ---- one input ---- */

static void answered(void)
{
	fuzz_must(replies == 1 && reply_err >= 0 && reply_err < 134);
	replies = 0;
}

/* Each line of a lease's answer ends with the path's inode, size and state. */
static void lines(void)
{
	char *save = NULL;

	reply[reply_len] = 0;
	fuzz_must(!reply_len || reply[reply_len - 1] == '\n' || reply_len == sizeof reply - 1);
	for (char *line = strtok_r(reply, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *state = strrchr(line, ' ');

		fuzz_must(state && state[1] && state > line);
	}
}

static void lease(const char *text, size_t len, unsigned how)
{
	struct fuse_file_info fi = { .flags = O_RDWR };
	size_t first = how & 1 ? len / 2 : len;

	who.uid = who.gid = how >> 1 & 1;
	kvfs_virtual_open(NULL, LEASE, &fi);
	answered();
	kvfs_virtual_write(NULL, LEASE, text, first, 0, &fi);
	answered();
	kvfs_virtual_write(NULL, LEASE, text + first, len - first, (off_t)first, &fi);
	answered();
	if (!(how & 4)) {
		reply_len = 0;
		kvfs_virtual_read(NULL, LEASE, sizeof reply - 1, 0, &fi);
		answered();
		if (!reply_err)
			lines();
		kvfs_virtual_read(NULL, LEASE, 7, 3, &fi);
		answered();
		kvfs_virtual_write(NULL, LEASE, "x", 1, 0, &fi);
		answered();
		fuzz_must(reply_err == EBUSY);
	}
	kvfs_virtual_release(NULL, LEASE, &fi);
	answered();
}

static void control(const char *text, size_t len)
{
	struct fuse_file_info fi = { .flags = O_RDWR };

	kvfs_virtual_open(NULL, CONTROL, &fi);
	answered();
	kvfs_virtual_write(NULL, CONTROL, text, len, 0, &fi);
	answered();
	kvfs_virtual_read(NULL, CONTROL, 4096, 0, &fi);
	answered();
	kvfs_virtual_release(NULL, CONTROL, &fi);
	answered();
}

/* NAME=VALUE, an attribute of ours or of a client: it is set, read and removed. */
static void xattr(const char *text, size_t len, unsigned how)
{
	const char *equals = memchr(text, '=', len);
	char name[256] = "user.", back[4096];
	uint64_t ino = subjects[how & 3];
	size_t capacity = sizeof back, n;
	int err;

	if (!equals || equals - text > 200 || memchr(text, 0, (size_t)(equals - text)))
		return;
	snprintf(name, sizeof name, "user.%s%.*s", how & 4 ? "" : "kvcachefs.",
		 (int)(equals - text), text);
	n = len - (size_t)(equals + 1 - text);
	err = kvc_setxattr(fs.k, ino, name, equals + 1, n, 0, NULL, NULL);
	fuzz_must(err <= 0);
	err = err ?: kvc_getxattr(fs.k, ino, name, back, &capacity);
	if (!err && strncmp(name, "user.kvcachefs.", 15))
		fuzz_must(capacity == n && !memcmp(back, equals + 1, n));
	capacity = sizeof back;
	fuzz_must(!kvc_listxattr(fs.k, ino, back, &capacity));
	/* attributes that cannot be removed get their first value */
	if (kvc_removexattr(fs.k, ino, name, NULL)) {
		kvc_setxattr(fs.k, ino, "user.kvcachefs.ttl", "0", 1, 0, NULL, NULL);
		kvc_setxattr(fs.k, ino, "user.kvcachefs.pin", "0", 1, 0, NULL, NULL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };

	while (in.n) {
		unsigned which = (unsigned)fuzz_number(&in, 1);
		size_t len = fuzz_number(&in, 2);
		char *text;

		len = len < in.n ? len : in.n;
		text = (char *)fuzz_bytes(&in, len);
		switch (which & 3) {
		case 0:
		case 1: lease(text, len, which >> 2); break;
		case 2: xattr(text, len, which >> 2); break;
		case 3: control(text, len); break;
		}
		free(text);
	}
	return 0;
}
