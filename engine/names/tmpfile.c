/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files made without a name (O_TMPFILE). Such a file is an ordinary node with nlink 0, open for
 * writing, and a chunk of its own. It counts in its model's quota, and fsync copies it to the disk
 * tier, but it is neither published nor shared while it has no name. linkat(2) gives it a name, and
 * makes it an ordinary file. If the kernel forgets it before that, it is destroyed.
 *
 * The catalog records it under meta unnamed:INO, in the transaction that writes its row, so that
 * the next start finds the files of a killed daemon.
 */
#include "tmpfile.h"

#include "account.h"
#include "file.h"

#include <inttypes.h>
#include <string.h>

#define KEY "unnamed:"

static const char *tmpfile_key(uint64_t ino, char key[40])
{
	snprintf(key, 40, KEY "%" PRIx64, ino);
	return key;
}

int kvc_tmpfile_note_both(struct kvc *k, struct kvc_node *n)
{
	char key[40];
	int err = kvc_meta_set(k->cat, tmpfile_key(n->row.ino, key), "1");

	if (!err) {
		n->unnamed = true;
		n->row.nlink = 0;
	}
	return err;
}

void kvc_tmpfile_named_both(struct kvc *k, struct kvc_node *n)
{
	char key[40];

	n->unnamed = false;
	kvc_account_quota_count_locked(k, n);
	kvc_meta_del(k->cat, tmpfile_key(n->row.ino, key));
	kvc_file_publish_if_closed_locked(k, n); /* if it was closed before */
}

struct kvc_node *kvc_tmpfile_find_locked(struct kvc *k, uint64_t ino, bool *both)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);

	*both = false;
	if (!n || !n->unnamed)
		return n;
	*both = true;
	kvc_unlock(k);
	kvc_lock_both(k);
	return kvc_node_find_locked(k, ino);
}

static void tmpfile_end_both(struct kvc *k, struct kvc_node *n)
{
	char key[40];

	n->unnamed = false;
	kvc_meta_del(k->cat, tmpfile_key(n->row.ino, key));
	kvc_row_del(k->cat, n->row.ino, &n->paid);
	kvc_chunk_forget_both(k, n->row.ino);
	kvc_file_destroy_locked(k, n);
}

void kvc_tmpfile_settle_both(struct kvc *k, struct kvc_node *n)
{
	if (n->unnamed && !n->refs.opens && !n->refs.kernel)
		tmpfile_end_both(k, n);
}

void kvc_tmpfile_end_all(struct kvc *k)
{
	kvc_lock_both(k);
	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		if (n->unnamed)
			tmpfile_end_both(k, n);
	}
	kvc_unlock_both(k);
}

int kvc_tmpfile_recover_both(struct kvc *k)
{
	char key[64] = KEY, value[8];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		uint64_t ino;
		struct kvc_row row;

		if (sscanf(key, KEY "%" SCNx64, &ino) == 1) {
			err = kvc_row_get(k->cat, ino, &row);
			if (!err && !row.nlink) {
				err = kvc_row_del(k->cat, ino, NULL) ?: kvc_chunk_del(k->cat, ino);
				kvc_count(&k->stats, recovery_drops);
			}
			if (err && err != -ENOENT)
				return err;
		}
		if ((err = kvc_meta_del(k->cat, key)))
			return err;
	}
	return err == -ENOENT ? 0 : err;
}
