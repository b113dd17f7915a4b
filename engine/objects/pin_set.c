/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Setting pins, and loading them at mount. A chunk's row stores the end of its pin; meta pin:CHUNK
 * stores the uid that set it. A row without that key was written by an earlier daemon, and its pin
 * is charged to the owner of the chunk's file or folder. The bytes of a pin's files are counted
 * here at each mount, a few files under each hold of the locks. limits/pin.c has the accounting.
 */
#include "pin_set.h"

#include "folder.h"
#include "ino.h"
#include "pin.h"

#include <inttypes.h>
#include <string.h>

#define BATCH 256
#define SOME 32 /* files counted under one hold of the locks */
#define TRIES 4
#define ENDS 64 /* pins expired under one hold of the locks */

/*
 * Counts one file if it belongs to the pin's chunk. row: its row, if it was read; NULL: it is read
 * here.
 */
static int count_one_both(struct kvc *k, struct kvc_pin *p, uint64_t ino, const struct kvc_row *row)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);
	struct kvc_row r;
	int err = 0;

	if (n && S_ISREG(n->row.mode) && n->row.chunk == p->slot.key) {
		kvc_pin_count_locked(k, n);
		return 0;
	}
	if (n)
		return 0;
	if (row)
		r = *row;
	else
		err = kvc_row_get(k->cat, ino, &r);
	if (!err && S_ISREG(r.mode) && r.chunk == p->slot.key)
		kvc_pin_disk_locked(k, p, (int64_t)kvc_pin_weight(r.blocks));
	return err == -ENOENT ? 0 : err;
}

struct inos {
	uint64_t *v;
	size_t n, capacity;
};

/*
 * Returns the pin that is being counted, or NULL if it was removed while the locks were released.
 */
static struct kvc_pin *same_pin(struct kvc *k, uint64_t chunk, uint64_t serial)
{
	struct kvc_pin *p = kvc_pin_find_locked(k, chunk);

	return p && p->serial == serial ? p : NULL;
}

/* Lists the inode numbers of all regular files in the folder. Releases the locks in between. */
static int list_inos_both(struct kvc *k, uint64_t folder, struct inos *a)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int more = 1, err = 0;

	while (more == 1 && !err) {
		more = kvc_folder_entries_some_both(k, folder, &after, &e);
		err = more < 0 ? more : 0;
		for (size_t i = 0; i < e.n && !err; i++) {
			if (!S_ISREG(e.v[i].kind))
				continue;
			err = kvc_grow(&a->v, a->n, &a->capacity, sizeof *a->v);
			if (!err)
				a->v[a->n++] = e.v[i].ino;
		}
		kvc_pause_both(k);
	}
	free(e.v);
	return err;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Sorts the numbers and removes duplicates, since a file can have several names in the folder. */
static void sort_inos_both(struct kvc *k, struct inos *a)
{
	size_t n = 0;

	kvc_unlock_both(k);
	if (a->n)
		qsort(a->v, a->n, sizeof *a->v, by_number);
	for (size_t i = 0; i < a->n; i++)
		if (!i || a->v[i] != a->v[i - 1])
			a->v[n++] = a->v[i];
	a->n = n;
	kvc_lock_both(k);
}

/* Reads the rows of files that are not in memory. Releases the locks while it reads. */
static void read_some_both(struct kvc *k, const uint64_t *ino, size_t n, struct kvc_peek *peek)
{
	bool absent[SOME];

	for (size_t i = 0; i < n; i++)
		absent[i] = !kvc_node_find_locked(k, ino[i]);
	kvc_unlock_both(k);
	for (size_t i = 0; i < n; i++) {
		peek[i].node = false;
		if (absent[i])
			kvc_peek_inode(k->cat, ino[i], &peek[i]);
	}
	kvc_lock_pause(&k->lock);
	kvc_catalog_pause(k->cat);
	kvc_lock_both(k);
}

/*
 * Counts the files of a chunk that is a folder, a few under each hold of the locks. Returns -EBUSY
 * if the pin was removed in the meantime.
 */
static int count_folder_both(struct kvc *k, struct kvc_pin *p)
{
	const uint64_t chunk = p->slot.key, serial = p->serial;
	KVC_MEM struct kvc_peek *peek = calloc(SOME, sizeof *peek);
	struct inos a = { 0 };
	int err = peek ? list_inos_both(k, chunk, &a) : -ENOMEM;

	if (!err)
		sort_inos_both(k, &a);
	for (size_t i = 0; i < a.n && !err; i += SOME) {
		size_t n = kvc_min(a.n - i, SOME);

		read_some_both(k, a.v + i, n, peek);
		if (!(p = same_pin(k, chunk, serial))) {
			err = -EBUSY;
			break;
		}
		for (size_t j = 0; j < n && !err; j++) {
			bool holds = kvc_peek_inode_holds(k->cat, &peek[j]);

			err = count_one_both(k, p, a.v[i + j], holds ? &peek[j].row : NULL);
			p->at = a.v[i + j];
		}
	}
	free(a.v);
	return err ?: same_pin(k, chunk, serial) ? 0 : -EBUSY;
}

/*
 * Counts the files of a pin. Releases the locks in between if the chunk is a folder; after an error
 * the pin may be gone.
 */
static int count_pin_both(struct kvc *k, struct kvc_pin *p, const struct kvc_row *self)
{
	int err;

	if (!S_ISDIR(self->mode)) {
		err = count_one_both(k, p, self->ino, NULL);
		if (!err && self->container)
			err = count_one_both(k, p, self->container, NULL);
		return err;
	}
	p->counting = true;
	p->again = false;
	p->at = 0;
	p->below = k->inos->next;
	err = count_folder_both(k, p);
	if (!err)
		p->counting = false;
	return err;
}

static const char *pin_key(uint64_t chunk, char key[40])
{
	snprintf(key, 40, KVC_PIN_KEY "%" PRIx64, chunk);
	return key;
}

static int pin_key_write_both(struct kvc *k, uint64_t chunk, uint32_t uid)
{
	char key[40], value[16];

	snprintf(value, sizeof value, "%u", uid);
	return kvc_meta_set(k->cat, pin_key(chunk, key), value);
}

/* Changes the end and the user of an existing pin. */
static int pin_change_both(struct kvc *k, struct kvc_pin *p, uint32_t uid, uint64_t until_ns)
{
	uint32_t was = (uint32_t)p->user->slot.key;
	uint64_t before = p->until_ns;
	int err = kvc_pin_end_locked(k, p, until_ns);

	if (err || was == uid)
		return err;
	if (!(err = kvc_pin_give_locked(k, p, uid)))
		err = kvc_pin_excess_locked(k, p) ?: pin_key_write_both(k, p->slot.key, uid);
	if (err) {
		kvc_pin_give_locked(k, p, was);
		kvc_pin_end_locked(k, p, before);
	}
	return err;
}

/* Creates a pin and counts its files. *out is NULL if it was removed in the meantime. */
static int pin_try_both(struct kvc *k, uint64_t chunk, uint32_t uid, uint64_t until_ns,
			struct kvc_pin **out)
{
	struct kvc_pin *p = kvc_pin_new_locked(k, chunk, uid, until_ns,
					       kvc_chunk_find_locked(k, chunk));
	struct kvc_row self;
	uint64_t serial = p ? p->serial : 0;
	int err = p ? kvc_node_row_both(k, chunk, &self) : -ENOMEM;

	err = err ?: count_pin_both(k, p, &self);
	*out = p ? same_pin(k, chunk, serial) : NULL;
	if (err && *out) {
		kvc_pin_free_locked(k, *out);
		*out = NULL;
	}
	return err;
}

/*
 * Files that join the chunk from another chunk during the count may be missed; then all files are
 * counted again. If files keep being moved into the chunk, the call fails.
 */
static int pin_new_both(struct kvc *k, uint64_t chunk, uint32_t uid, uint64_t until_ns)
{
	struct kvc_pin *p;
	int err;

	for (unsigned i = 0; i < TRIES; i++) {
		err = pin_try_both(k, chunk, uid, until_ns, &p);
		if (err)
			return err;
		if (!p->again) {
			/* the pin's user may have changed in the meantime */
			uint32_t owner = (uint32_t)p->user->slot.key;

			err = kvc_pin_excess_locked(k, p) ?: pin_key_write_both(k, chunk, owner);
			if (err)
				kvc_pin_free_locked(k, p);
			return err;
		}
		kvc_pin_free_locked(k, p);
	}
	return -EBUSY;
}

int kvc_pin_set_both(struct kvc *k, uint64_t chunk, uint32_t uid, uint64_t until_ns)
{
	struct kvc_pin *p;
	int err;

	kvc_pins_end_both(k);
	if (!until_ns) {
		kvc_pin_forget_both(k, chunk);
		return 0;
	}
	p = kvc_pin_find_locked(k, chunk);
	err = p ? pin_change_both(k, p, uid, until_ns) : pin_new_both(k, chunk, uid, until_ns);
	if (err == -EDQUOT || err == -ENOSPC)
		kvc_count(&k->stats, pin_refusals);
	return err;
}

bool kvc_pins_end_both(struct kvc *k)
{
	struct kvc_pin *p;

	for (unsigned i = 0; i < ENDS; i++) {
		if (!(p = kvc_pin_ended_locked(k)))
			return false;
		kvc_pin_forget_both(k, p->slot.key);
	}
	return true;
}

/* Gets the user that set the pin. */
static int pin_user_both(struct kvc *k, const struct kvc_row *self, uint32_t *uid)
{
	char key[40], value[64];
	int is = kvc_meta_read(k->cat, pin_key(self->ino, key), value, sizeof value);

	if (is < 0 || (is && sscanf(value, "%" SCNu32, uid) == 1))
		return is < 0 ? is : 0;
	*uid = self->uid;
	return pin_key_write_both(k, self->ino, *uid);
}

/* Pins over the limit are loaded and counted too: they protect nothing now, but may do so later. */
static int pin_load_both(struct kvc *k, const struct kvc_chunk_row *r)
{
	struct kvc_pin *p;
	struct kvc_row self;
	uint32_t uid;
	int err = kvc_row_get(k->cat, r->id, &self);

	if (err) /* its last file was deleted */
		return err == -ENOENT ? 0 : err;
	if ((err = pin_user_both(k, &self, &uid)))
		return err;
	p = kvc_pin_new_locked(k, r->id, uid, r->pin_until_ns, NULL);
	return p ? count_pin_both(k, p, &self) : -ENOMEM;
}

/* Deletes the keys of pins that no longer exist: a daemon was killed, or the pins have expired. */
static int pin_keys_sweep_both(struct kvc *k)
{
	char key[64] = KVC_PIN_KEY, value[16];
	uint64_t id;
	int err;

	while (!(err = kvc_meta_next(k->cat, KVC_PIN_KEY, key, value, sizeof value)))
		if ((sscanf(key, KVC_PIN_KEY "%" SCNx64, &id) != 1 ||
		     !kvc_pin_find_locked(k, id)) &&
		    (err = kvc_meta_del(k->cat, key)))
			return err;
	return err == -ENOENT ? 0 : err;
}

int kvc_pins_load_both(struct kvc *k)
{
	struct kvc_chunk_row v[BATCH];
	uint64_t after = 0;
	size_t n;
	int err;

	do {
		err = kvc_chunk_some_pinned(k->cat, after, BATCH, v, &n);
		for (size_t i = 0; i < n && !err; i++) {
			after = v[i].id;
			err = pin_load_both(k, &v[i]);
		}
	} while (!err && n == BATCH);
	while (!err && kvc_pins_end_both(k))
		;
	return err ?: pin_keys_sweep_both(k);
}
