/* SPDX-License-Identifier: Apache-2.0 */
/* Making tenants, and assigning chunks to them (tenant_set.c). Under both locks. */
#ifndef KVC_TENANT_SET_H
#define KVC_TENANT_SET_H

#include "node.h"
#include "tenant.h"

/* folders whose new chunks belong to a tenant: at most this many */
#define KVC_TENANT_FOLDERS 4096u

/*
 * Makes, changes or removes a tenant. text: "NAME quota=BYTES share=BYTES uid=UID|none" with any of
 * these words, or "NAME remove". Only root and the daemon's user may call it. Returns 0, -EINVAL (a
 * wrong word), -ENOENT (no tenant to remove), -ENOSPC (KVC_TENANTS exist) or -ENOMEM.
 */
int kvc_tenant_set_both(struct kvc *k, const char *text);
/*
 * Gives the folder's future chunks to the tenant with this name (NULL: to none). Returns 0, -EINVAL
 * (the tenant does not exist), -EPERM (this user may not assign chunks to it), -ENOSPC or -ENOMEM.
 * May release and take the locks; the caller keeps the folder's node.
 */
int kvc_tenant_folder_set_both(struct kvc *k, uint64_t folder, const char *name, uint32_t uid);
/* Returns the number of the folder's own tenant; 0: none. */
uint64_t kvc_tenant_folder_locked(const struct kvc *k, uint64_t folder);
/*
 * Moves a chunk, in memory or not, to the tenant with this name ("": to none), as requested by this
 * user. Returns as above, or the error of reading the chunk's row.
 */
int kvc_tenant_told_both(struct kvc *k, uint64_t chunk, const char *name, uint32_t uid);
/*
 * The file got this name in its folder (name NULL: unknown). If its place has a tenant, its chunk
 * moves to that tenant; otherwise the chunk keeps its tenant. The place has a tenant if the name
 * contains the tenant's name as cache salt, or if a folder above it was given to the tenant. Cheap
 * if no tenant exists.
 */
void kvc_tenant_placed_both(struct kvc *k, struct kvc_node *n, const char *name);
/*
 * Returns the next chunk that the pool should lose because its tenant has more than its share, and
 * excludes it from the pool's order like kvc_chunk_pop_locked; NULL: none. Under k->lock only.
 */
struct kvc_chunk *kvc_tenant_victim_locked(struct kvc *k);
/*
 * Copies the cache salt in the name of a file of LMCache's L2 adapters,
 * MODEL@0xKV_RANK@GROUP@KEY@SALT.data. Returns false if the name has none. Needs no lock.
 */
bool kvc_tenant_salt(const char *name, char salt[KVC_TENANT_NAME]);
/*
 * At mount, before the pool is scanned, and at a clean unmount. clean: the previous daemon
 * unmounted cleanly.
 */
int kvc_tenants_load_both(struct kvc *k, bool clean);
void kvc_tenants_save_both(struct kvc *k);
/* At unmount: frees the folders of tenants. */
void kvc_tenant_set_free(struct kvc *k);

#endif
