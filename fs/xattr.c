/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for extended attributes. See fs.h. */
#include "fs.h"

#include <stdlib.h>
#include <string.h>

/* Only user. and trusted. attributes are stored; the kernel needs no others here. */
static bool xattr_supported(const char *name)
{
	return !strncmp(name, "user.", 5) || !strncmp(name, "trusted.", 8);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	char value[65536];
	size_t len = size;
	int err;

	kvc_count(kvc_cache_stats(kvfs_of(req)->k), requests);
	if (kvfs_is_virtual(ino) || !xattr_supported(name)) {
		fuse_reply_err(req, kvfs_is_virtual(ino) ? ENODATA : EOPNOTSUPP);
		return;
	}
	err = size > sizeof value
		      ? (len = sizeof value, kvc_getxattr(kvfs_of(req)->k, ino, name, value, &len))
		      : kvc_getxattr(kvfs_of(req)->k, ino, name, value, &len);
	if (err)
		fuse_reply_err(req, kvfs_errno(err));
	else if (!size)
		fuse_reply_xattr(req, len);
	else
		fuse_reply_buf(req, value, len);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	char names[65536];
	size_t len = size > sizeof names ? sizeof names : size;
	int err = 0;

	kvc_count(kvc_cache_stats(kvfs_of(req)->k), requests);
	if (kvfs_is_virtual(ino))
		len = 0;
	else
		err = kvc_listxattr(kvfs_of(req)->k, ino, names, &len);
	if (err)
		fuse_reply_err(req, kvfs_errno(err));
	else if (!size)
		fuse_reply_xattr(req, len);
	else
		fuse_reply_buf(req, names, len);
}

/*
 * The call was woken. If the attribute was a request to the engine (w.stage), w.err is its result;
 * otherwise the attribute is set, and the call only waited for its effects.
 */
static void run_attribute(struct call *c)
{
	fuse_reply_err(c->req, c->w.stage ? kvfs_errno(c->w.err) : 0);
	kvfs_call_free(c);
}

static void reply_attribute(struct call *c, int err)
{
	if (kvfs_call_waits(c, &err))
		return;
	fuse_reply_err(c->req, kvfs_errno(err));
	kvfs_call_free(c);
}

/* Makes a call that sets or removes an attribute. Returns NULL if the request was answered. */
static struct call *attribute_call(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	if (kvfs_refuse_virtual(req, ino))
		return NULL;
	if (xattr_supported(name))
		return kvfs_call_new(req, ino, run_attribute, NULL, NULL);
	fuse_reply_err(req, EOPNOTSUPP);
	return NULL;
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
			size_t size, int flags)
{
	struct call *c = attribute_call(req, ino, name);
	struct kvc_asker user = { 0 };
	bool paths = !strcmp(name, "user.kvcachefs.parent") || !strcmp(name, "user.kvcachefs.push");
	int err;

	if (!c)
		return;
	err = paths ? -kvfs_asker(req, &user) : 0;
	err = err
		      ?: kvc_setxattr(c->f->k, ino, name, value, size, flags, paths ? &user : NULL,
				      &c->w);
	free(user.groups);
	reply_attribute(c, err);
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct call *c = attribute_call(req, ino, name);

	if (c)
		reply_attribute(c, kvc_removexattr(c->f->k, ino, name, &c->w));
}

void kvfs_ops_xattrs(struct fuse_lowlevel_ops *ops)
{
	ops->getxattr = op_getxattr;
	ops->listxattr = op_listxattr;
	ops->setxattr = op_setxattr;
	ops->removexattr = op_removexattr;
}
