/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests as the policies see them: several clients that make one prompt at the same time. No
 * thread runs.
 */
#include "access.h"
#include "engine.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define CHUNKS 400u
#define CLIENTS 8u
#define FIRST 100u /* id of the first client */

static uint64_t model;

/* Returns a number below n; the sequence is the same in each run. */
static unsigned draw(unsigned n)
{
	static uint64_t chance = 1;

	chance = chance * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(chance >> 33) % n;
}

/* The client creates a chunk, and reports its parent if that is not NULL. Returns its number. */
static uint64_t make(unsigned client, const char *name, const char *parent)
{
	struct kvc_wait w = { .client = FIRST + client };
	struct kvc_opened o = { 0 };
	struct kvc_row r;

	assert_int_equal(kvc_open_create(engine, model, name, S_IFREG | 0644, 0, 0, O_RDWR | O_EXCL,
					 &r, &o, &w),
			 0);
	kvc_open_release(engine, r.ino, O_RDWR, 0);
	if (parent)
		assert_int_equal(kvc_setxattr(engine, r.ino, "user.kvcachefs.parent", parent,
					      strlen(parent), 0, NULL, NULL),
				 0);
	return r.ino;
}

/* The client opens the chunk. */
static void use(unsigned client, uint64_t ino)
{
	kvc_lock(engine);
	kvc_access_record_locked(engine, kvc_chunk_find_locked(engine, ino), ino, FIRST + client,
				 true);
	kvc_unlock(engine);
}

static uint64_t requests_begun(void)
{
	uint64_t n;

	kvc_lock(engine);
	n = engine->access->serial;
	kvc_unlock(engine);
	return n;
}

static void end_requests(void)
{
	kvc_lock(engine);
	kvc_access_end_all_locked(engine);
	kvc_unlock(engine);
}

/*
 * Eight clients make one prompt at the same time: each chunk is created by one of them, and some of
 * the others open it, before or after its parent was reported. Each client has one request.
 */
static void clients_make_one_prompt(void **state)
{
	char name[16], parent[16] = "";
	uint64_t ino, began = requests_begun();

	(void)state;
	for (unsigned i = 0; i < CHUNKS; i++) {
		snprintf(name, sizeof name, "one%u", i);
		ino = make(draw(CLIENTS), name, parent);
		for (unsigned j = 0; j < CLIENTS; j++)
			if (draw(2))
				use(j, ino);
		snprintf(parent, sizeof parent, "%s", name);
	}
	assert_in_range(requests_begun() - began, 2, CLIENTS);
	end_requests();
}

/* Each prompt of a client is a request, also if the prompts have the same beginning. */
static void prompts_are_requests(void **state)
{
	uint64_t ino[4], began = requests_begun();
	char name[16], parent[16] = "";

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		snprintf(name, sizeof name, "base%u", i);
		ino[i] = make(0, name, parent);
		snprintf(parent, sizeof parent, "%s", name);
	}
	for (unsigned i = 0; i < 5; i++) {
		for (unsigned j = 0; j < 4; j++)
			use(0, ino[j]);
		snprintf(name, sizeof name, "end%u", i);
		make(0, name, parent);
	}
	make(0, "other", "");
	use(0, ino[0]);
	end_requests();
	/* the first of the five opens what the client has just created: that is one request */
	assert_int_equal(requests_begun() - began, 1 + 4 + 1 + 1);
}

static int begin(void **state)
{
	(void)state;
	engine_new("policy=prefix");
	model = engine_folder(KVC_ROOT, "m");
	return kvc_setxattr(engine, model, "user.kvcachefs.unit", "file", 4, 0, NULL, NULL);
}

static int end(void **state)
{
	(void)state;
	engine_end();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clients_make_one_prompt),
		cmocka_unit_test(prompts_are_requests),
	};

	return cmocka_run_group_tests_name("requests", tests, begin, end);
}
