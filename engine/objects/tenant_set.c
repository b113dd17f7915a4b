/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making tenants, and assigning chunks to them; limits/tenant.h has the registry. The catalog
 * stores:
 *
 *   meta tenant:NUMBER         "QUOTA SHARE UID USED NAME"; USED is correct after a clean unmount
 *   meta tenant_folder:INODE   number of the tenant of the folder's new chunks
 *   chunks.tenant              number of the chunk's tenant
 *
 * A number is never used again, so rows of a removed tenant count for no tenant and need no change.
 * A user cannot make a tenant, and can assign chunks only to a tenant with its uid: otherwise it
 * could cause the chunks of others to be dropped.
 */
#include "tenant_set.h"

#include "committer.h"
#include "replacers.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define KEY "tenant:"
#define FOLDER_KEY "tenant_folder:"
#define LEAST (1u << 20) /* smallest quota and share */
#define DEEP 256         /* maximum number of folders above a file that are checked */
#define LOOKS 256        /* chunks that one search for a victim looks at */
#define AT_ONCE 64       /* buckets of folders that are checked under one hold of the locks */

struct tenant_folder {
	struct kvc_slot slot; /* in k->tenants->folders, by the folder's inode number */
	uint64_t tenant;
};

/* ---- the registry ---- */

static int save_both(struct kvc *k, const struct kvc_tenant *t)
{
	char key[64], value[256];

	snprintf(key, sizeof key, KEY "%" PRIx64, t->slot.key);
	snprintf(value, sizeof value, "%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRIu64 " %s",
		 t->quota, t->share, t->uid, t->used, t->name);
	return kvc_meta_set(k->cat, key, value);
}

/* A name fits in a line of text and in a file name; "none" means no tenant. */
static bool is_name(const char *s)
{
	for (const char *c = s; *c; c++)
		if ((unsigned char)*c <= ' ' || *c == 127 || *c == '/' || *c == '=' || *c == '"')
			return false;
	return *s && strlen(s) < KVC_TENANT_NAME && strcmp(s, "none") != 0;
}

static int parse_bytes(const char *text, uint64_t *bytes)
{
	if (!strcmp(text, "none") || !strcmp(text, "0")) {
		*bytes = 0;
		return 0;
	}
	return kvc_size_parse(text, bytes) || *bytes < LEAST ? -EINVAL : 0;
}

static int parse_uid(const char *text, int64_t *uid)
{
	uint64_t v;
	char *end;

	*uid = KVC_TENANT_NOBODY;
	if (!strcmp(text, "none"))
		return 0;
	if (*text < '0' || *text > '9')
		return -EINVAL;
	v = strtoull(text, &end, 10); /* UINT64_MAX if it is too large */
	if (*end || v >= UINT32_MAX)
		return -EINVAL;
	*uid = (int64_t)v;
	return 0;
}

/* Sets the member of *to that the word names. */
static int parse_word(const char *word, struct kvc_tenant *to)
{
	if (!strncmp(word, "quota=", 6))
		return parse_bytes(word + 6, &to->quota);
	if (!strncmp(word, "share=", 6))
		return parse_bytes(word + 6, &to->share);
	if (!strncmp(word, "uid=", 4))
		return parse_uid(word + 4, &to->uid);
	return -EINVAL;
}

static int remove_both(struct kvc *k, struct kvc_tenant *t)
{
	uint64_t number = t->slot.key;
	char key[64];
	int err;

	snprintf(key, sizeof key, KEY "%" PRIx64, number);
	if ((err = kvc_meta_del(k->cat, key)))
		return err;
	kvc_tenant_remove_locked(k, t);
	kvc_table_each(&k->tenants->folders, s) {
		struct tenant_folder *f = kvc_of(s, struct tenant_folder, slot);

		if (f->tenant != number)
			continue;
		snprintf(key, sizeof key, FOLDER_KEY "%" PRIx64, s->key);
		/* otherwise the next mount finds a key without a tenant */
		kvc_meta_del(k->cat, key);
		kvc_table_del(&k->tenants->folders, s);
		free(f);
	}
	return 0;
}

int kvc_tenant_set_both(struct kvc *k, const char *text)
{
	struct kvc_tenant to = { .uid = KVC_TENANT_NOBODY }, *t;
	char copy[512], last[24], *save = NULL, *name, *word;
	bool made;
	int err = 0;

	if (strlen(text) >= sizeof copy)
		return -EINVAL;
	strcpy(copy, text);
	name = strtok_r(copy, " ", &save);
	if (!name || !is_name(name))
		return -EINVAL;
	t = kvc_tenant_find_locked(k, name);
	if (t)
		to.quota = t->quota, to.share = t->share, to.uid = t->uid;
	while ((word = strtok_r(NULL, " ", &save)) && !err) {
		if (!strcmp(word, "remove") && !strtok_r(NULL, " ", &save))
			return t ? remove_both(k, t) : -ENOENT;
		err = parse_word(word, &to);
	}
	if (err)
		return err;
	made = !t;
	if (made && k->tenants->table.n >= KVC_TENANTS)
		return -ENOSPC;
	if (made && !(t = kvc_tenant_add_locked(k, k->tenants->last + 1, name)))
		return -ENOMEM;
	to.used = t->used;
	memcpy(to.name, t->name, sizeof to.name);
	to.slot.key = t->slot.key;
	/* stored before the tenant, since a number without a tenant does no harm */
	snprintf(last, sizeof last, "%" PRIu64, k->tenants->last);
	err = made ? kvc_meta_set(k->cat, "tenant_last", last) : 0;
	if ((err = err ?: save_both(k, &to))) {
		if (made)
			kvc_tenant_remove_locked(k, t);
		return err;
	}
	t->quota = to.quota;
	kvc_tenant_share_locked(k, t, to.share);
	t->uid = to.uid;
	return 0;
}

static void add_sum(void *arg, uint64_t number, uint64_t chunks, uint64_t bytes)
{
	(void)chunks;
	kvc_tenant_row_locked(arg, number, bytes, true);
}

static int load_folders_both(struct kvc *k)
{
	char key[64] = FOLDER_KEY, value[32];
	int err;

	while (!(err = kvc_meta_next(k->cat, FOLDER_KEY, key, value, sizeof value))) {
		uint64_t ino = 0, number = 0;
		struct tenant_folder *f;
		struct kvc_row row;

		if (sscanf(key, FOLDER_KEY "%" SCNx64, &ino) != 1 ||
		    sscanf(value, "%" SCNu64, &number) != 1 || !kvc_tenant_of_locked(k, number) ||
		    kvc_row_get(k->cat, ino, &row) == -ENOENT) {
			if ((err = kvc_meta_del(k->cat, key)))
				return err;
			continue;
		}
		if (!(f = calloc(1, sizeof *f)))
			return -ENOMEM;
		f->tenant = number;
		f->slot.key = ino;
		kvc_table_add(&k->tenants->folders, &f->slot);
	}
	return err == -ENOENT ? 0 : err;
}

int kvc_tenants_load_both(struct kvc *k, bool clean)
{
	char key[64] = KEY, value[256];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		uint64_t number = 0, quota = 0, share = 0, used = 0;
		int64_t uid = KVC_TENANT_NOBODY;
		struct kvc_tenant *t;
		int name = 0;

		if (sscanf(key, KEY "%" SCNx64, &number) != 1 || !number ||
		    sscanf(value, "%" SCNu64 " %" SCNu64 " %" SCNd64 " %" SCNu64 " %n", &quota,
			   &share, &uid, &used, &name) != 4 ||
		    !name || !is_name(value + name) || k->tenants->table.n >= KVC_TENANTS ||
		    kvc_tenant_of_locked(k, number)) {
			if ((err = kvc_meta_del(k->cat, key)))
				return err;
			continue;
		}
		if (!(t = kvc_tenant_add_locked(k, number, value + name)))
			return -ENOMEM;
		t->quota = quota;
		kvc_tenant_share_locked(k, t, share);
		t->uid = uid;
		t->used = clean ? used : 0;
	}
	if (err != -ENOENT)
		return err;
	err = kvc_meta_read(k->cat, "tenant_last", value, sizeof value);
	if (err < 0)
		return err;
	if (err)
		k->tenants->last = kvc_max(k->tenants->last, strtoull(value, NULL, 10));
	err = !clean && k->tenants->table.n ? kvc_chunk_tenants(k->cat, add_sum, k) : 0;
	return err ?: load_folders_both(k);
}

void kvc_tenants_save_both(struct kvc *k)
{
	kvc_table_each(&k->tenants->table, s)
		save_both(k, kvc_of(s, struct kvc_tenant, slot));
}

/* ---- folders ---- */

static struct tenant_folder *folder_of(const struct kvc *k, uint64_t ino)
{
	struct kvc_slot *s = k->tenants->folders.n ? kvc_table_find(&k->tenants->folders, ino)
						   : NULL;

	return s ? kvc_of(s, struct tenant_folder, slot) : NULL;
}

uint64_t kvc_tenant_folder_locked(const struct kvc *k, uint64_t folder)
{
	const struct tenant_folder *f = folder_of(k, folder);

	return f ? f->tenant : 0;
}

static int named_locked(const struct kvc *k, const char *name, uint32_t uid, uint64_t *number)
{
	const struct kvc_tenant *t = *name ? kvc_tenant_find_locked(k, name) : NULL;

	if (*name && !t)
		return -EINVAL;
	*number = t ? t->slot.key : 0;
	return t && !kvc_tenant_allows(t, uid) ? -EPERM : 0;
}

/* Removes the entries of folders that do not exist any more. Releases and takes the locks. */
static void purge_folders_both(struct kvc *k)
{
	struct kvc_table *t = &k->tenants->folders;
	struct kvc_slot *next;
	struct kvc_row row;

	for (size_t b = 0; b < t->buckets; b++) {
		for (struct kvc_slot *s = kvc_table_bucket(t, b); s; s = next) {
			next = s->next;
			if (kvc_node_row_both(k, s->key, &row) != -ENOENT)
				continue;
			kvc_table_del(t, s);
			free(kvc_of(s, struct tenant_folder, slot));
		}
		if (b % AT_ONCE == AT_ONCE - 1)
			kvc_pause_both(k);
	}
}

int kvc_tenant_folder_set_both(struct kvc *k, uint64_t folder, const char *name, uint32_t uid)
{
	struct tenant_folder *f, *made = NULL;
	char key[64], value[24];
	uint64_t number;
	int err = named_locked(k, name ?: "", uid, &number);

	if (!err && number && k->tenants->folders.n >= KVC_TENANT_FOLDERS &&
	    !folder_of(k, folder)) {
		purge_folders_both(k);
		err = named_locked(k, name, uid, &number);
	}
	if (err)
		return err;
	f = folder_of(k, folder);
	snprintf(key, sizeof key, FOLDER_KEY "%" PRIx64, folder);
	if (!number) {
		err = f ? kvc_meta_del(k->cat, key) : 0;
		if (f && !err) {
			kvc_table_del(&k->tenants->folders, &f->slot);
			free(f);
		}
		return err;
	}
	if (!f && k->tenants->folders.n >= KVC_TENANT_FOLDERS)
		return -ENOSPC;
	if (!f && !(f = made = calloc(1, sizeof *f)))
		return -ENOMEM;
	snprintf(value, sizeof value, "%" PRIu64, number);
	if ((err = kvc_meta_set(k->cat, key, value))) {
		free(made);
		return err;
	}
	if (made) {
		made->slot.key = folder;
		kvc_table_add(&k->tenants->folders, &made->slot);
	}
	f->tenant = number;
	return 0;
}

/* ---- chunks ---- */

static int move_both(struct kvc *k, uint64_t chunk, uint64_t number)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, chunk);
	struct kvc_chunk_row r;
	int err;

	if (c) {
		if (c->tenant.number == number)
			return 0;
		kvc_tenant_move_locked(k, c, number);
		c->known = false; /* the next commit writes the row */
		kvc_chunk_dirty_locked(k, c);
		return 0;
	}
	err = kvc_chunk_get(k->cat, chunk, &r);
	if (err || r.tenant == number)
		return err;
	kvc_tenant_row_locked(k, r.tenant, r.bytes, false);
	kvc_tenant_row_locked(k, number, r.bytes, true);
	r.tenant = number;
	return kvc_chunk_put(k->cat, &r);
}

int kvc_tenant_told_both(struct kvc *k, uint64_t chunk, const char *name, uint32_t uid)
{
	uint64_t number;
	int err = named_locked(k, name, uid, &number);

	return err ?: move_both(k, chunk, number);
}

bool kvc_tenant_salt(const char *name, char salt[KVC_TENANT_NAME])
{
	const char *at = strstr(name, "@0x"), *end = strrchr(name, '.');

	if (!at || at != strchr(name, '@') || !end || end <= at || strcmp(end, ".data") != 0)
		return false;
	for (int i = 0; i < 3 && at; i++)
		at = strchr(at + 1, '@');
	if (!at || end - ++at >= KVC_TENANT_NAME || end == at)
		return false;
	memcpy(salt, at, (size_t)(end - at));
	salt[end - at] = 0;
	return true;
}

/* The file's owner must be allowed to assign chunks to the tenant. */
static uint64_t tenant_of_salt(const struct kvc *k, const char *name, uint32_t uid)
{
	char salt[KVC_TENANT_NAME];
	const struct kvc_tenant *t = kvc_tenant_salt(name, salt) ? kvc_tenant_find_locked(k, salt)
								 : NULL;

	return t && kvc_tenant_allows(t, uid) ? t->slot.key : 0;
}

/*
 * The tenant of the nearest folder above the file that has one. A folder of an ordinary user has no
 * effect on files of users that may not assign chunks to the tenant.
 */
static uint64_t tenant_of_folder_both(struct kvc *k, const struct kvc_node *n)
{
	const struct kvc_tenant *t;
	uint64_t ino = n->row.chunk == n->row.ino ? n->row.parent : n->row.chunk, number = 0;
	struct kvc_row row;

	for (unsigned i = 0; i < DEEP && k->tenants->folders.n && ino; i++) {
		number = kvc_tenant_folder_locked(k, ino);
		if (number || ino == KVC_ROOT || kvc_node_row_both(k, ino, &row))
			break;
		ino = row.parent;
	}
	if (!(t = kvc_tenant_of_locked(k, number)))
		return 0;
	if (!kvc_tenant_allows(t, n->row.uid) &&
	    (kvc_node_row_both(k, ino, &row) || (row.uid && row.uid != geteuid())))
		return 0;
	return number;
}

void kvc_tenant_placed_both(struct kvc *k, struct kvc_node *n, const char *name)
{
	uint64_t number = 0;

	if (!k->tenants->table.n)
		return;
	if (name)
		number = tenant_of_salt(k, name, n->row.uid);
	number = number ?: tenant_of_folder_both(k, n);
	/* if out of memory for the row, the chunk keeps its tenant */
	if (number)
		move_both(k, n->row.chunk, number);
}

/* ---- victims ---- */

static bool has_children_locked(const struct kvc *k, const struct kvc_chunk *c)
{
	struct kvc_chunk_row r = { .id = c->id, .policy = c->policy };

	return kvc_replacers_children_locked(k, KVC_CACHE_POOL, &r) > 0;
}

/* The first of the tenant's parents returns to its order if its children have left the pool. */
static void check_parent_locked(struct kvc *k, struct kvc_tenant *t)
{
	struct kvc_chunk *c;

	if (kvc_list_empty(&t->parents))
		return;
	c = kvc_of(t->parents.next, struct kvc_chunk, tenant.link);
	kvc_tenant_put_last_locked(t, c, has_children_locked(k, c));
}

/* The chunk leaves the pool: its parent may be a victim after the others. */
static void return_parent_locked(struct kvc *k, struct kvc_tenant *t, const struct kvc_chunk *c)
{
	struct kvc_chunk *parent = kvc_chunk_find_locked(k, c->parent & ~KVC_TOLD);

	if (parent && parent->tenant.number == c->tenant.number && parent->tenant.as_parent)
		kvc_tenant_put_last_locked(t, parent, false);
}

struct kvc_chunk *kvc_tenant_victim_locked(struct kvc *k)
{
	struct kvc_tenant *t = k->tenants->table.n ? kvc_tenant_over_locked(k) : NULL;

	for (unsigned i = 0; t && i < LOOKS; i++) {
		struct kvc_chunk *c;
		bool is_parent;

		check_parent_locked(k, t);
		if (kvc_list_empty(&t->order))
			continue;
		c = kvc_of(t->order.next, struct kvc_chunk, tenant.link);
		is_parent = has_children_locked(k, c);
		if (!is_parent && kvc_replacers_has_locked(k, KVC_CACHE_POOL, c) && !c->fresh) {
			return_parent_locked(k, t, c);
			kvc_tenant_take_locked(c);
			kvc_replacers_exclude_locked(k, KVC_CACHE_POOL, c->id, c->policy, true);
			return c;
		}
		/* it may be being created: its turn is after the others */
		kvc_tenant_put_last_locked(t, c, is_parent);
	}
	return NULL;
}

void kvc_tenant_set_free(struct kvc *k)
{
	kvc_table_each(&k->tenants->folders, s)
		free(kvc_of(s, struct tenant_folder, slot));
	kvc_table_fini(&k->tenants->folders);
}
