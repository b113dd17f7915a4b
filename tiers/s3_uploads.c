/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multipart uploads. All parts except the last have the same size, as some services require. The
 * first part has the frame's header and is sent last.
 *
 * An unfinished upload costs money until it is aborted. It is aborted after an error. Since a
 * killed daemon cannot do that, each upload is noted in a file of STORE/s3-uploads while it runs,
 * and the next daemon aborts noted uploads. At the start and every twelve hours, the uploads of
 * all nodes below the prefix are listed, and those older than a day are aborted. One thread, the
 * sweeper, does both.
 */
#include "budget.h"
#include "log.h"
#include "s3_http.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PARTS_MAX 10000u
#define NOTE_MAX 8192
#define NOTES_MAX 10000
#define DAY_NS (86400 * 1000000000ull)
#define SWEEP_S 43200 /* between two listings */
#define RETRY_S 30    /* before an abort is tried again */
#define PAGES_MAX 1000

struct note {
	char file[40];
	char key[1100];
	char upload[4096];
	bool done;
};

struct kvct_s3_uploads {
	int dir; /* the folder of the notes; -1: none */
	_Atomic unsigned number;
	char (*found)[40]; /* notes of earlier daemons */
	unsigned nfound;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool running, ends;
};

/* --- notes --- */

static void note_name(struct kvct_s3 *s, char file[40])
{
	struct kvc_sum sum = kvc_sum_of(s->tier.id, strlen(s->tier.id));
	uint64_t id;

	memcpy(&id, sum.b, sizeof id);
	snprintf(file, 40, "%016llx.%x.%u", (unsigned long long)id, (unsigned)getpid(),
		 s->uploads->number++);
}

/* Notes an upload. Sets file to "" if that fails. */
static void upload_note_write(struct kvct_s3 *s, const char *key, const char *upload, char file[40])
{
	char text[NOTE_MAX];
	int len = snprintf(text, sizeof text, "%s\n%s\n", key, upload);

	*file = 0;
	if (!s->uploads || s->uploads->dir < 0 || len >= NOTE_MAX)
		return;
	for (int i = 0; i < 100 && !*file; i++) {
		char name[40];

		note_name(s, name);
		KVC_FD int fd = openat(s->uploads->dir, name,
				       O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);

		if (fd < 0 && errno == EEXIST)
			continue;
		if (fd < 0)
			return;
		if (write(fd, text, (size_t)len) != len) {
			unlinkat(s->uploads->dir, name, 0);
			return;
		}
		memcpy(file, name, sizeof name);
	}
}

static void note_remove(struct kvct_s3 *s, const char *file)
{
	if (*file)
		unlinkat(s->uploads->dir, file, 0);
}

/* Reads a note. Returns 0, or -EBADMSG if it is not a complete note. */
static int note_read(struct kvct_s3 *s, struct note *n)
{
	char text[NOTE_MAX], *line, *end;
	KVC_FD int fd = openat(s->uploads->dir, n->file,
			       O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	struct kvc_where w;

	if (len <= 0)
		return -EBADMSG;
	text[len] = 0;
	line = strchr(text, '\n');
	end = line ? strchr(line + 1, '\n') : NULL;
	if (!end || (size_t)(line - text) >= sizeof n->key ||
	    (size_t)(end - line) > sizeof n->upload)
		return -EBADMSG;
	*line++ = *end = 0;
	snprintf(n->key, sizeof n->key, "%s", text);
	snprintf(n->upload, sizeof n->upload, "%s", line);
	return kvct_s3_is_key(s, (struct kvct_s3_text){ n->key, strlen(n->key) }, &w) && *n->upload
		       ? 0
		       : -EBADMSG;
}

/* --- one upload --- */

struct upload {
	struct kvct_s3 *s;
	const struct kvc_put *p;
	char *id; /* escaped */
	size_t part;
	unsigned parts;
	uint64_t len; /* of the whole frame */
	char (*etags)[256];
	char file[40];
};

static int abort_upload(struct kvct_s3 *s, const char *key, const char *id, bool quiet)
{
	struct kvct_s3_request q = { .kind = KVCT_S3_REMOVE, .method = "DELETE", .quiet = quiet };
	char *query = NULL;
	int err = asprintf(&query, "uploadId=%s", id) < 0 ? -ENOMEM : 0;

	snprintf(q.key, sizeof q.key, "%s", key);
	q.query = query;
	err = err ?: kvct_s3_ask(s, &q);
	if (err && !strcmp(q.code, "NoSuchUpload"))
		err = 0;
	free(q.text);
	free(query);
	return err;
}

static int begin_upload(struct upload *u, const char *key)
{
	struct kvct_s3_request q = {
		.kind = KVCT_S3_WRITE, .method = "POST", .query = "uploads=", .creates = true
	};
	char *id = NULL;
	int err;

	snprintf(q.key, sizeof q.key, "%s", key);
	err = kvct_s3_ask(u->s, &q);
	if (!err && q.text)
		id = kvct_s3_element_text((struct kvct_s3_text){ q.text, q.text_len }, "UploadId");
	if (!err && (!id || !*id || strchr(id, '\n')))
		err = -EIO;
	if (!err && !(u->id = kvct_s3_escape(id)))
		err = -ENOMEM;
	if (!err)
		upload_note_write(u->s, key, id, u->file);
	free(id);
	free(q.text);
	return err;
}

static int send_part(struct upload *u, const char *key, unsigned number, const uint8_t *data,
		     size_t len)
{
	struct kvct_s3_request q = {
		.kind = KVCT_S3_WRITE,
		.method = "PUT",
		.body = data,
		.body_len = len,
	};
	char *query = NULL;
	int err = asprintf(&query, "partNumber=%u&uploadId=%s", number, u->id) < 0 ? -ENOMEM : 0;

	snprintf(q.key, sizeof q.key, "%s", key);
	q.query = query;
	err = err ?: kvct_s3_ask(u->s, &q);
	free(q.text);
	free(query);
	if (!err && (!*q.etag || strlen(q.etag) + 1 == sizeof q.etag))
		err = -EIO;
	if (!err)
		memcpy(u->etags[number - 1], q.etag, sizeof q.etag);
	return err;
}

static void put_xml(FILE *f, const char *text)
{
	for (; *text; text++)
		if (strchr("<>&", *text))
			fprintf(f, "&#%d;", *text);
		else
			fputc(*text, f);
}

static int complete(struct upload *u, const char *key)
{
	struct kvct_s3_request q = { .kind = KVCT_S3_WRITE, .method = "POST", .slow = true };
	char *xml = NULL, *query = NULL;
	size_t len;
	FILE *f = open_memstream(&xml, &len);
	int err = f ? 0 : -ENOMEM;

	if (err)
		return err;
	fprintf(f, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	for (unsigned i = 0; i < u->parts; i++) {
		fprintf(f, "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
		put_xml(f, u->etags[i]);
		fprintf(f, "</ETag></Part>");
	}
	fprintf(f, "</CompleteMultipartUpload>");
	if (fclose(f) || asprintf(&query, "uploadId=%s", u->id) < 0)
		err = -ENOMEM;
	snprintf(q.key, sizeof q.key, "%s", key);
	q.query = query;
	q.body = (const uint8_t *)xml;
	q.body_len = len;
	err = err ?: kvct_s3_ask(u->s, &q);
	/* a status of 200 may still be a failure */
	if (!err && q.text && memmem(q.text, q.text_len, "<Error>", 7)) {
		q.status = 500;
		q.failing = true;
		kvct_s3_judge(&q, CURLE_OK);
		err = -EIO;
		kvct_s3_log(u->s, &q, err);
	}
	free(q.text);
	free(query);
	free(xml);
	return err;
}

/* Reads part `i` (from 0) into buf. In part 0 the place of the header stays free. */
static int fill_part(const struct upload *u, unsigned i, uint8_t *buf, size_t *len)
{
	uint64_t off = (uint64_t)i * u->part;
	size_t at = i ? 0 : KVC_FRAME_HEADER;

	*len = (size_t)kvc_min(u->len - off, u->part);
	return u->p->read(u->p->arg, buf + at, *len - at, i ? off - KVC_FRAME_HEADER : 0);
}

static int send_all(struct upload *u, const char *key, uint8_t *first, uint8_t *buf)
{
	size_t len, first_len = 0;
	int err = 0;

	for (unsigned i = 0; i < u->parts && !err; i++) {
		err = fill_part(u, i, i ? buf : first, i ? &len : &first_len);
		if (!err && i)
			err = send_part(u, key, i + 1, buf, len);
	}
	err = err ?: u->p->head(u->p->arg, first);
	err = err ?: send_part(u, key, 1, first, first_len);
	return err ?: complete(u, key);
}

int kvct_s3_put_parts(struct kvct_s3 *s, const struct kvc_put *p)
{
	struct upload u = { .s = s, .p = p, .part = KVCT_S3_PART };
	KVC_BUFFER b = { 0 };
	char key[1100];
	int err;

	u.len = p->stored_len + KVC_FRAME_HEADER;
	if (u.len / PARTS_MAX >= u.part)
		u.part = (size_t)kvc_round_up(u.len / PARTS_MAX + 1, KVCT_S3_PART);
	u.parts = (unsigned)((u.len + u.part - 1) / u.part);
	if (2 * u.part > kvc_budget_most(KVC_BUDGET_COPY))
		return -EFBIG; /* only above 80 GB with a small memory= */
	kvct_s3_key(s, &p->name, key);
	u.etags = calloc(u.parts, sizeof *u.etags);
	err = u.etags ? kvc_budget_buffer_wait(&b, KVC_BUDGET_COPY, 2 * u.part) : -ENOMEM;
	err = err ?: begin_upload(&u, key);
	err = err ?: send_all(&u, key, b.p, b.p + u.part);
	/* an upload that cannot be aborted now stays noted for the next daemon */
	if (u.id && (!err || !abort_upload(s, key, u.id, false)))
		note_remove(s, u.file);
	free(u.id);
	free(u.etags);
	return err;
}

/* --- the sweeper --- */

static bool wait_s(struct kvct_s3_uploads *u, unsigned seconds)
{
	struct timespec t = kvc_timespec(kvc_mono_ns() + seconds * 1000000000ull);
	bool ends;

	pthread_mutex_lock(&u->lock);
	while (!u->ends && pthread_cond_timedwait(&u->cond, &u->lock, &t) != ETIMEDOUT)
		;
	ends = u->ends;
	pthread_mutex_unlock(&u->lock);
	return !ends;
}

/* Aborts the noted uploads. Returns how many remain. */
static unsigned abort_noted(struct kvct_s3 *s)
{
	struct kvct_s3_uploads *u = s->uploads;
	KVC_MEM struct note *n = malloc(sizeof *n);
	unsigned left = 0;

	for (unsigned i = 0; i < u->nfound && n && !s->stopping; i++) {
		char *id;
		int err = 0;

		if (!*u->found[i])
			continue;
		memcpy(n->file, u->found[i], sizeof n->file);
		if (!note_read(s, n)) {
			id = kvct_s3_escape(n->upload);
			err = id ? abort_upload(s, n->key, id, true) : -ENOMEM;
			free(id);
		}
		if (err) {
			left++;
			continue;
		}
		note_remove(s, n->file);
		*u->found[i] = 0;
	}
	return n ? left : 1;
}

/* Aborts the uploads of a page that are older than a day by the service's clock. */
static void abort_old(struct kvct_s3 *s, struct kvct_s3_text page, uint64_t now_ns)
{
	struct kvct_s3_text one;

	while (kvct_s3_element(&page, "Upload", &one) && !s->stopping) {
		char *key = kvct_s3_element_text(one, "Key"),
		     *id = kvct_s3_element_text(one, "UploadId"),
		     *at = kvct_s3_element_text(one, "Initiated"),
		     *escaped = id ? kvct_s3_escape(id) : NULL;
		uint64_t ns = at ? kvct_s3_time(at) : 0;
		struct kvc_where w;

		if (key && escaped && ns && ns + DAY_NS < now_ns &&
		    kvct_s3_is_key(s, (struct kvct_s3_text){ key, strlen(key) }, &w) &&
		    !abort_upload(s, key, escaped, true))
			kvc_info("tier s3: aborted an unfinished upload of %s", at);
		free(key);
		free(id);
		free(at);
		free(escaped);
	}
}

static void abort_all_old(struct kvct_s3 *s)
{
	char *prefix = kvct_s3_escape(s->prefix), *key = NULL, *id = NULL;
	bool more = prefix != NULL;

	for (int i = 0; i < PAGES_MAX && more && !s->stopping; i++) {
		struct kvct_s3_request q = {
			.kind = KVCT_S3_LIST,
			.method = "GET",
			.quiet = true,
			.text_max = KVCT_S3_LIST_MAX,
		};
		struct kvct_s3_text page;
		char *query = NULL, *going, *k = key ? kvct_s3_escape(key) : NULL,
		     *d = id ? kvct_s3_escape(id) : NULL;

		more = asprintf(&query, "%s%s%sprefix=%s%s%s&uploads=", k ? "key-marker=" : "",
				k ? k : "", k ? "&" : "", prefix, d ? "&upload-id-marker=" : "",
				d ? d : "") >= 0;
		q.query = query;
		more = more && !kvct_s3_ask(s, &q) && q.text;
		page = (struct kvct_s3_text){ q.text ? q.text : "", q.text_len };
		if (more)
			abort_old(s, page, q.date_ns ? q.date_ns : kvc_now_ns());
		free(key);
		free(id);
		going = more ? kvct_s3_element_text(page, "IsTruncated") : NULL;
		key = more ? kvct_s3_element_text(page, "NextKeyMarker") : NULL;
		id = more ? kvct_s3_element_text(page, "NextUploadIdMarker") : NULL;
		more = going && !strcmp(going, "true") && key && *key;
		free(going);
		free(query);
		free(q.text);
		free(k);
		free(d);
	}
	free(key);
	free(id);
	free(prefix);
}

static void *sweeper(void *arg)
{
	struct kvct_s3 *s = arg;
	unsigned left = abort_noted(s);

	for (unsigned again_s = 0;; again_s = left ? RETRY_S : SWEEP_S) {
		if (again_s && !wait_s(s->uploads, again_s))
			break;
		if (left)
			left = abort_noted(s);
		if (again_s != RETRY_S && !kvc_budget_reserve(KVC_BUDGET_COPY, KVCT_S3_LIST_MAX)) {
			abort_all_old(s);
			kvc_budget_release(KVC_BUDGET_COPY, KVCT_S3_LIST_MAX);
		}
		if (s->stopping)
			break;
	}
	return NULL;
}

/* Finds the notes of this tier. */
static void find_notes(struct kvct_s3 *s)
{
	struct kvct_s3_uploads *u = s->uploads;
	int fd = u->dir < 0 ? -1 : openat(u->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	char mine[40];
	struct dirent *e;
	size_t capacity = 0;

	note_name(s, mine);
	while (d && u->nfound < NOTES_MAX && (e = readdir(d)))
		if (!strncmp(e->d_name, mine, 17) && strlen(e->d_name) < sizeof *u->found &&
		    !kvc_grow(&u->found, u->nfound, &capacity, sizeof *u->found))
			snprintf(u->found[u->nfound++], sizeof *u->found, "%.39s", e->d_name);
	if (d)
		closedir(d);
	else if (fd >= 0)
		close(fd);
}

int kvct_s3_uploads_open(struct kvct_s3 *s, const char *dir)
{
	struct kvct_s3_uploads *u = calloc(1, sizeof *u);
	KVC_FD int top = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	pthread_condattr_t attr;

	if (!u)
		return -ENOMEM;
	pthread_mutex_init(&u->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&u->cond, &attr);
	pthread_condattr_destroy(&attr);
	u->dir = -1;
	if (top >= 0 && (!mkdirat(top, "s3-uploads", 0700) || errno == EEXIST))
		u->dir = openat(top, "s3-uploads", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	s->uploads = u;
	find_notes(s);
	return 0;
}

int kvct_s3_uploads_start(struct kvct_s3 *s)
{
	int err = -pthread_create(&s->uploads->thread, NULL, sweeper, s);

	s->uploads->running = !err;
	return err;
}

void kvct_s3_uploads_stop(struct kvct_s3 *s)
{
	struct kvct_s3_uploads *u = s->uploads;

	if (!u || !u->running)
		return;
	s->stopping = true;
	pthread_mutex_lock(&u->lock);
	u->ends = true;
	pthread_cond_signal(&u->cond);
	pthread_mutex_unlock(&u->lock);
	pthread_join(u->thread, NULL);
	u->running = false;
}

void kvct_s3_uploads_close(struct kvct_s3 *s)
{
	struct kvct_s3_uploads *u = s->uploads;

	if (!u)
		return;
	kvct_s3_uploads_stop(s);
	if (u->dir >= 0)
		close(u->dir);
	pthread_mutex_destroy(&u->lock);
	pthread_cond_destroy(&u->cond);
	free(u->found);
	free(u);
	s->uploads = NULL;
}
