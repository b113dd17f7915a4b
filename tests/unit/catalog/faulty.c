/* SPDX-License-Identifier: Apache-2.0 */
/* See faulty.h. */
#include "faulty.h"

#include <sqlite3.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Atomic enum fault armed; /* the catalog's threads read it, too */
_Atomic long calls, failures;
_Atomic long fail_at;
_Atomic bool for_ever;
static _Atomic int fail_with;

static bool fails(enum fault of)
{
	if (armed != of)
		return false;
	calls++;
	if (!fail_at || (for_ever ? calls < fail_at : calls != fail_at))
		return false;
	failures++;
	return true;
}

void arm(enum fault of, long at, bool ever, int with)
{
	armed = of;
	calls = failures = 0;
	fail_at = at;
	for_ever = ever;
	fail_with = with;
}

struct shim {
	sqlite3_file base;
	sqlite3_file *real;
};
static sqlite3_vfs *real_vfs, shim_vfs;
static sqlite3_io_methods shim_io;
#define REAL(f) (((struct shim *)(f))->real)

static int x_close(sqlite3_file *f)
{
	return REAL(f)->pMethods ? REAL(f)->pMethods->xClose(REAL(f)) : SQLITE_OK;
}
static int x_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
	return REAL(f)->pMethods->xRead(REAL(f), p, n, at);
}
static int x_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
	return fails(DISK) ? fail_with : REAL(f)->pMethods->xWrite(REAL(f), p, n, at);
}
static int x_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	return fails(DISK) ? fail_with : REAL(f)->pMethods->xTruncate(REAL(f), size);
}
static int x_sync(sqlite3_file *f, int flags)
{
	return fails(DISK) ? fail_with : REAL(f)->pMethods->xSync(REAL(f), flags);
}
static int x_size(sqlite3_file *f, sqlite3_int64 *size)
{
	return REAL(f)->pMethods->xFileSize(REAL(f), size);
}
static int x_lock(sqlite3_file *f, int how)
{
	return REAL(f)->pMethods->xLock(REAL(f), how);
}
static int x_unlock(sqlite3_file *f, int how)
{
	return REAL(f)->pMethods->xUnlock(REAL(f), how);
}
static int x_reserved(sqlite3_file *f, int *out)
{
	return REAL(f)->pMethods->xCheckReservedLock(REAL(f), out);
}
static int x_control(sqlite3_file *f, int op, void *arg)
{
	return REAL(f)->pMethods->xFileControl(REAL(f), op, arg);
}
static int x_sector(sqlite3_file *f)
{
	return REAL(f)->pMethods->xSectorSize(REAL(f));
}
static int x_caps(sqlite3_file *f)
{
	return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f));
}
static int x_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **out)
{
	return fails(DISK) ? fail_with
			   : REAL(f)->pMethods->xShmMap(REAL(f), page, size, extend, out);
}
static int x_shm_lock(sqlite3_file *f, int at, int n, int flags)
{
	return REAL(f)->pMethods->xShmLock(REAL(f), at, n, flags);
}
static void x_shm_barrier(sqlite3_file *f)
{
	REAL(f)->pMethods->xShmBarrier(REAL(f));
}
static int x_shm_unmap(sqlite3_file *f, int del)
{
	return REAL(f)->pMethods->xShmUnmap(REAL(f), del);
}

static int x_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
	struct shim *s = (struct shim *)f;
	int rc;

	(void)v;
	memset(s, 0, sizeof *s);
	s->real = (sqlite3_file *)(s + 1);
	if (fails(DISK))
		return SQLITE_CANTOPEN;
	rc = real_vfs->xOpen(real_vfs, name, s->real, flags, out);
	if (!rc)
		s->base.pMethods = &shim_io;
	return rc;
}

void shim_register(void)
{
	real_vfs = sqlite3_vfs_find(NULL);
	shim_vfs = *real_vfs;
	shim_vfs.zName = "shim";
	shim_vfs.szOsFile = (int)sizeof(struct shim) + real_vfs->szOsFile;
	shim_vfs.xOpen = x_open;
	shim_io = (sqlite3_io_methods){
		.iVersion = 2,
		.xClose = x_close,
		.xRead = x_read,
		.xWrite = x_write,
		.xTruncate = x_truncate,
		.xSync = x_sync,
		.xFileSize = x_size,
		.xLock = x_lock,
		.xUnlock = x_unlock,
		.xCheckReservedLock = x_reserved,
		.xFileControl = x_control,
		.xSectorSize = x_sector,
		.xDeviceCharacteristics = x_caps,
		.xShmMap = x_shm_map,
		.xShmLock = x_shm_lock,
		.xShmBarrier = x_shm_barrier,
		.xShmUnmap = x_shm_unmap,
	};
	sqlite3_vfs_register(&shim_vfs, 1);
}

static sqlite3_mem_methods real_mem;
static void *mem_malloc(int n)
{
	return fails(MEMORY) ? NULL : real_mem.xMalloc(n);
}
static void *mem_realloc(void *p, int n)
{
	return fails(MEMORY) ? NULL : real_mem.xRealloc(p, n);
}

void mem_register(void)
{
	sqlite3_mem_methods m;

	sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_mem);
	m = real_mem;
	m.xMalloc = mem_malloc;
	m.xRealloc = mem_realloc;
	sqlite3_config(SQLITE_CONFIG_MALLOC, &m);
	/* so that more allocations use this malloc */
	sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
}
