/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps under the locks of an engine (engine.h), in a program that is linked with the functions of
 * steps.c in place of the engine's (Makefile, unitwrap_holds).
 */
#ifndef STEPS_H
#define STEPS_H

#include <stddef.h>

extern struct steps {
	/*
	 * the most steps under one hold of the catalog's lock: names listed, rows requested, names
	 * deleted, queries of SQLite, and rows that these returned
	 */
	_Atomic unsigned most_names, most_rows, most_deleted, most_reads, most_steps;
	_Atomic unsigned most_judged; /* nodes that the evictor judged under one hold of k->lock */
	_Atomic unsigned all_deleted, all_judged; /* all of them */
	_Atomic size_t largest;                   /* bytes of the largest calloc */
	_Atomic size_t most_changes;              /* changes in one batch */
	_Atomic unsigned slow_us;                 /* how long the disk delays each batch */
	/* called once, between two holds of the catalog's lock, by any thread */
	void (*_Atomic meanwhile)(void);
} steps;
/* locks that this thread has taken */
extern _Thread_local unsigned steps_locked;

#endif
