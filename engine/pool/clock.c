/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's clock in ns. It stays near the wall clock as long as nobody sets the wall clock. It
 * advances with CLOCK_BOOTTIME, so that setting the wall clock changes neither victims nor expiry.
 * Its state is stored in the catalog (meta clock: TIME BOOTTIME WALL BOOT_ID). After a restart of
 * the daemon without a reboot it continues exactly. After a reboot it advances by the time that the
 * wall clock says has passed, and by at least LAG_NS. So it never runs backwards.
 */
#include "clock.h"

#include "catalog.h"
#include "log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define KEY "clock"
#define LAG_NS 120000000000ull /* it is saved more often than this (evict/quota_keeper.c) */

static uint64_t boot_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void boot_id(char *id, size_t capacity)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (!f || !fgets(id, (int)capacity, f))
		snprintf(id, capacity, "unknown");
	id[strcspn(id, "\n")] = 0;
	if (f)
		fclose(f);
}

uint64_t kvc_clock_ns(const struct kvc *k)
{
	return k->clock->base_ns + boot_ns() - k->clock->boot_ns;
}

int kvc_clock_start_both(struct kvc *k)
{
	struct kvc_clock *c = k->clock;
	uint64_t then = 0, then_boot = 0, then_wall = 0, wall = kvc_now_ns();
	char text[128], id[40] = "";
	int err = kvc_meta_get(k->cat, KEY, text, sizeof text);

	if (err && err != -ENOENT)
		return err;
	c->boot_ns = boot_ns();
	boot_id(c->boot, sizeof c->boot);
	if (err || sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %39s", &then, &then_boot,
			  &then_wall, id) != 4)
		c->base_ns = wall;
	else if (!strcmp(id, c->boot) && strcmp(id, "unknown") && c->boot_ns >= then_boot)
		c->base_ns = then + (c->boot_ns - then_boot);
	else
		c->base_ns = then + kvc_max(wall > then_wall ? wall - then_wall : 0, LAG_NS);
	return kvc_clock_save_both(k);
}

int kvc_clock_save_both(struct kvc *k)
{
	char text[128];
	uint64_t now = boot_ns();

	snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %s",
		 k->clock->base_ns + now - k->clock->boot_ns, now, kvc_now_ns(), k->clock->boot);
	return kvc_meta_set(k->cat, KEY, text);
}
