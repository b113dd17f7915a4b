/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended attributes. Attributes of clients are rows in the catalog and belong to the file; those
 * below user.kvcachefs. are rows of kvc_virtuals (virtuals.h).
 */
#include "virtuals.h"

#include "admission.h"
#include "committer.h"
#include "incomplete.h"
#include "model_rescan.h"
#include "chunking.h"
#include "access.h"

#include <string.h>

/*
 * Limits for all attributes of an inode: bytes of the names as listxattr returns them, including at
 * most OURS bytes of virtual attributes, and bytes of names and values together, which bounds the
 * catalog.
 */
#define NAMES_MAX 65536
#define OURS 1024
#define ATTRS_MAX (128u << 10)
#define ROW 48 /* bytes that a row is charged in addition to its name and value */

static bool is_virtual(const char *name)
{
	return !strncmp(name, KVC_VIRTUAL, strlen(KVC_VIRTUAL));
}

/* Finds the node and its kind. The caller settles s->n. */
static int subject_both(struct kvc *k, uint64_t ino, struct kvc_subject *s)
{
	int err = kvc_node_get_both(k, ino, &s->n), whole;

	if (err)
		return err;
	s->kind = 0;
	if (S_ISREG(s->n->row.mode)) {
		s->kind = ON_FILE;
		s->chunk = s->n->row.chunk;
	} else if (S_ISDIR(s->n->row.mode)) {
		s->kind = ON_FOLDER;
		if (ino == KVC_ROOT)
			s->kind |= ON_ROOT;
		else if (s->n->row.parent == KVC_ROOT)
			s->kind |= ON_MODEL;
		/*
		 * An empty folder in the root is taken for a future model, any other empty folder
		 * for a chunk.
		 */
		whole = kvc_chunking_whole_both(k, s->n);
		if (whole < 0) {
			kvc_node_settle_locked(k, s->n);
			return whole;
		}
		if (whole && (!(s->kind & ON_MODEL) || kvc_chunking_filled_both(k, s->n))) {
			s->kind |= ON_CHUNK_FOLDER;
			s->chunk = ino;
		}
	}
	if (s->kind & (ON_FILE | ON_CHUNK_FOLDER)) {
		struct kvc_chunk *c = kvc_chunk_find_locked(k, s->chunk);

		if (c)
			kvc_chunk_row(k, c, &s->row);
		else if ((err = kvc_chunk_get(k->cat, s->chunk, &s->row)) == -ENOENT)
			s->row = (struct kvc_chunk_row){ .id = s->chunk };
		if (err && err != -ENOENT) {
			kvc_node_settle_locked(k, s->n);
			return err;
		}
	}
	return 0;
}

static int copy_value(const char *from, size_t n, void *value, size_t *len)
{
	if (*len && n > *len)
		return -ERANGE;
	if (*len)
		memcpy(value, from, n);
	*len = n;
	return 0;
}

int kvc_getxattr(struct kvc *k, uint64_t ino, const char *name, void *value, size_t *len)
{
	const struct kvc_virtual *v;
	struct kvc_subject s;
	char text[KVC_VIRTUAL_MAX];
	int err;

	if (!is_virtual(name)) {
		kvc_catalog_lock(k->cat);
		err = kvc_xattr_get(k->cat, ino, name, value, len);
		kvc_catalog_unlock(k->cat);
		return err == -ENOENT ? -ENODATA : err;
	}
	v = kvc_virtual_of(name, 0);
	if (!v || !v->get)
		return -ENODATA;
	kvc_lock_both(k);
	err = subject_both(k, ino, &s);
	if (!err) {
		v = kvc_virtual_of(name, s.kind);
		err = v->on & s.kind ? v->get(k, &s, text) : -ENODATA;
		kvc_node_settle_locked(k, s.n);
	}
	kvc_unlock_both(k);
	return err ?: copy_value(text, strlen(text), value, len);
}

static void chunk_changed_both(struct kvc *k, struct kvc_subject *s)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, s->chunk);

	if (c) {
		c->pin_until_ns = s->row.pin_until_ns;
		c->ttl_s = s->row.ttl_s;
		c->expires_ns = s->row.expires_ns;
		if (c->parent != s->row.parent)
			kvc_access_set_parent_locked(k, c, s->row.parent & ~KVC_TOLD);
		c->known = false; /* written with the next commit */
		kvc_chunk_dirty_locked(k, c);
		if (c->pin)
			kvc_admission_retry_locked(k, c);
	} else {
		kvc_chunk_put(k->cat, &s->row);
		kvc_replacers_join_locked(k, KVC_CACHE_DISK, &s->row);
	}
}

/*
 * Is there space for this attribute in the limits of the inode, and for `more` bytes in its
 * owner's?
 */
static int xattr_fits(struct kvc *k, const struct kvc_node *n, const char *name, size_t len,
		      size_t more)
{
	struct kvc_xattr_sum sum;
	int err = kvc_xattr_sum(k->cat, n->row.ino, name, &sum);

	sum.names += strlen(name) + 1;
	if (err)
		return err;
	if (sum.names > NAMES_MAX - OURS ||
	    sum.names + sum.values + len + (sum.n + 1) * ROW > ATTRS_MAX)
		return -ENOSPC;
	return kvc_usage_allows(k->cat, n->row.uid, false, more);
}

/* Sets an attribute of a client. */
static int set_client_xattr(struct kvc *k, struct kvc_node *n, const char *name, const void *value,
			    size_t len, int flags)
{
	size_t there = 0, more;
	int err = kvc_xattr_get(k->cat, n->row.ino, name, NULL, &there);

	more = err ? strlen(name) + 1 + len + ROW : len > there ? len - there : 0;
	if (!err && (flags & 1)) /* XATTR_CREATE */
		err = -EEXIST;
	else if (err == -ENOENT)
		err = flags & 2 ? -ENODATA : 0; /* XATTR_REPLACE */
	err = err ?: xattr_fits(k, n, name, len, more);
	return err ?: kvc_xattr_set(k->cat, n->row.ino, name, value, len);
}

/*
 * The kernel has checked that the caller may write the file. An attribute of a file is stored for
 * its chunk: if the file is not a chunk by itself, only the owner of the chunk may set it. Others
 * set it on the folder, which requires write permission there.
 */
static int may_set_both(struct kvc *k, const struct kvc_subject *s)
{
	struct kvc_row r;
	int err;

	if (!s->uid || !(s->kind & ON_FILE) || s->chunk == s->n->row.ino)
		return 0;
	err = kvc_node_row_both(k, s->chunk, &r);
	return err ?: r.uid == s->uid ? 0 : -EPERM;
}

int kvc_setxattr(struct kvc *k, uint64_t ino, const char *name, const void *value, size_t len,
		 int flags, const struct kvc_asker *user, struct kvc_wait *w)
{
	const struct kvc_virtual *v = is_virtual(name) ? kvc_virtual_of(name, 0) : NULL;
	struct kvc_subject s = { .uid = w ? w->uid : 0, .user = user, .w = w };
	KVC_MEM char *text = NULL;
	bool whole;
	int err;

	if (is_virtual(name) && !v)
		return -EINVAL;
	/* same error as for unsupported attributes, so that copying tools continue */
	if (v && !v->set)
		return -EOPNOTSUPP;
	if (v && len >= (v->on & TAKES_LIST ? KVC_VIRTUAL_LIST_MAX : KVC_VIRTUAL_MAX))
		return v->on & TAKES_LIST ? -E2BIG : -EINVAL;
	if (v && !(text = strndup(value, len)))
		return -ENOMEM;
	kvc_lock_both(k);
	err = kvc_accepts(k, false) ?: subject_both(k, ino, &s);
	if (err)
		goto out;
	if (s.n->commit.lost) { /* no row would hold the value, and nothing would ever delete it */
		kvc_node_settle_locked(k, s.n);
		err = -ENOENT;
		goto out;
	}
	if (!s.n->paid.is) /* the catalog finds the owner to charge in this row */
		kvc_row_put(k->cat, &s.n->row, &s.n->paid);
	if (v) {
		v = kvc_virtual_of(name, s.kind);
		whole = (v->on & s.kind & ON_MODEL) && kvc_chunking_whole_both(k, s.n) == 1;
		err = !v->set                                    ? -EOPNOTSUPP
		      : !(v->on & s.kind) || strlen(text) != len ? -EINVAL
		      : may_set_both(k, &s)                        ?: v->set(k, &s, text);
		if (!err && (s.kind & v->on & (ON_FILE | ON_CHUNK_FOLDER)))
			chunk_changed_both(k, &s);
		else if (!err && whole && s.n->chunking.files &&
			 kvc_chunking_whole_both(k, s.n) != 1)
			kvc_chunking_regroup_locked(k, s.n); /* a model's folder is not a chunk */
	} else {
		err = set_client_xattr(k, s.n, name, value, len, flags);
	}
	if (!err) {
		s.n->row.ctime_ns = kvc_now_ns();
		kvc_node_dirty_locked(k, s.n);
	}
	kvc_node_settle_locked(k, s.n);
out:
	kvc_unlock_both(k);
	if (s.relist)
		kvc_incomplete_listings(k);
	if (v && !err && w)
		err = kvc_model_rescan_park(k, w);
	return err;
}

/* An attribute of a chunk cannot be removed, only set to 0 or to an empty text. */
static int remove_virtual(struct kvc *k, uint64_t ino, const char *name, struct kvc_wait *w)
{
	const struct kvc_virtual *v = kvc_virtual_of(name, 0);
	struct kvc_subject s = { .uid = w ? w->uid : 0 };
	char text[KVC_VIRTUAL_MAX];
	int err;

	if (!v)
		return -EINVAL;
	kvc_lock_both(k);
	err = kvc_accepts(k, false) ?: subject_both(k, ino, &s);
	if (!err) {
		v = kvc_virtual_of(name, s.kind);
		err = s.n->commit.lost    ? -ENOENT
		      : !v->set                              ? -EOPNOTSUPP
		      : !v->get || !(v->on & (ON_MODEL | ON_FOLDER)) ? -EPERM
		      : !(s.kind & v->on)                          ? -ENODATA
		      : v->get(k, &s, text) ?: v->set(k, &s, NULL);
		kvc_node_settle_locked(k, s.n);
		kvc_committer_wake_locked(k, false);
	}
	kvc_unlock_both(k);
	if (s.relist)
		kvc_incomplete_listings(k);
	if (!err && w)
		err = kvc_model_rescan_park(k, w);
	return err;
}

int kvc_removexattr(struct kvc *k, uint64_t ino, const char *name, struct kvc_wait *w)
{
	struct kvc_node *n;
	size_t there = 0;
	int err;

	if (is_virtual(name))
		return remove_virtual(k, ino, name, w);
	if ((err = kvc_accepts(k, true)))
		return err;
	kvc_lock_both(k);
	err = kvc_node_get_both(k, ino, &n);
	if (!err) {
		err = kvc_xattr_get(k->cat, ino, name, NULL, &there)
			      ?: kvc_xattr_del(k->cat, ino, name);
		if (!err) {
			n->row.ctime_ns = kvc_now_ns();
			kvc_node_dirty_locked(k, n);
		}
		err = err == -ENOENT ? -ENODATA : err;
		kvc_node_settle_locked(k, n);
	}
	kvc_unlock_both(k);
	return err;
}

/*
 * Lists only virtual attributes that can be set: tools that copy files with their attributes (cp
 * -a, mv, tar, rsync) would try to set the others too, and print errors.
 */
int kvc_listxattr(struct kvc *k, uint64_t ino, char *names, size_t *len)
{
	char own[OURS], all[NAMES_MAX];
	size_t n = 0, theirs = sizeof all;
	struct kvc_subject s;
	int err;

	kvc_lock_both(k);
	err = subject_both(k, ino, &s);
	if (!err) {
		for (size_t i = 0; i < kvc_nvirtuals; i++) {
			char text[KVC_VIRTUAL_MAX];

			if (!(kvc_virtuals[i].on & s.kind) || !kvc_virtuals[i].get ||
			    !kvc_virtuals[i].set || kvc_virtuals[i].get(k, &s, text))
				continue; /* not an attribute of this inode, or no value */
			n += (size_t)snprintf(own + n, sizeof own - n, KVC_VIRTUAL "%s",
					      kvc_virtuals[i].name) +
			     1;
		}
		err = kvc_xattr_list(k->cat, ino, all, &theirs);
		kvc_node_settle_locked(k, s.n);
	}
	kvc_unlock_both(k);
	if (err)
		return err;
	/* Virtual attributes that are stored in the catalog are in the list already. */
	for (size_t at = 0; at < theirs;) {
		size_t l = strlen(all + at) + 1;

		if (is_virtual(all + at)) {
			memmove(all + at, all + at + l, theirs - at - l);
			theirs -= l;
		} else {
			at += l;
		}
	}
	if (*len && n + theirs > *len)
		return -ERANGE;
	if (*len) {
		memcpy(names, own, n);
		memcpy(names + n, all, theirs);
	}
	*len = n + theirs;
	return 0;
}
