/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl doctor. facts.c reads what the mount reports; causes.c and settings.c judge the
 * counters and the options; traffic.c records requests and replays them with the mount's policies;
 * doctor.c prints the findings.
 */
#ifndef KVM_DOCTOR_H
#define KVM_DOCTOR_H

#include "ctl.h"

#define KVM_FINDINGS 64u
#define KVM_LINES 16u

/* ---- facts.c ---- */

/* The files of .kvcachefs as text. */
struct kvm_facts {
	char mnt[KVM_PATH];
	char *stats, *config, *metrics;
	struct kvm_calls calls;
	char live[1024]; /* the options that can change on a live mount, separated by spaces */
};

/* Reads all. Returns 0, or 1 after a message; kvm_facts_free in both cases. */
int kvm_facts_read(struct kvm_facts *f);
void kvm_facts_free(struct kvm_facts *f);
/* Returns a figure of .kvcachefs/stats; 0 if the daemon does not have it. */
uint64_t kvm_fact(const struct kvm_facts *f, const char *name);
/* Copies the value of an option or mode of .kvcachefs/config; "" if it is absent. Returns buf. */
const char *kvm_facts_setting(const struct kvm_facts *f, const char *name, char buf[KVM_PATH]);
uint64_t kvm_facts_option(const struct kvm_facts *f, const char *name);

/* A histogram of the metrics: n[i] values are at most le[i], and above le[i - 1]. */
struct kvm_spans {
	double le[40];
	uint64_t n[40], total;
	size_t count;
};
/* Reads the family NAME; labels, such as tier="disk", must all occur. */
void kvm_facts_spans(const struct kvm_facts *f, const char *name, const char *labels,
		     struct kvm_spans *s);
/* Returns the quantile `part`, from 0 to 1: the limit le[i] of its bucket. */
double kvm_spans_quantile(const struct kvm_spans *s, double part);

/* ---- doctor.c ---- */

struct kvm_finding {
	const char *id;
	double weight; /* the most important finding has the largest */
	char text[640];
	/* the option or the command to use, and the value; the remedy is a sentence */
	char option[32], value[64], remedy[256];
};

struct kvm_diagnosis {
	const struct kvm_facts *f;
	struct kvm_finding v[KVM_FINDINGS];
	size_t n;
	/* said: facts about the mount; notes: why something could not be judged */
	char said[KVM_LINES][512], notes[KVM_LINES][384];
	size_t nsaid, nnotes;
};

/*
 * Adds a finding and returns it. The remedy says how to set the mount option `option` to `value`;
 * if option is NULL, the caller calls kvm_doctor_remedy.
 */
struct kvm_finding *kvm_doctor_find(struct kvm_diagnosis *d, const char *id, double weight,
				    const char *option, const char *value, const char *format, ...)
	__attribute__((format(printf, 6, 7)));
/*
 * Replaces the remedy of a finding. option: the option or command to use, may be ""; value: its
 * value, or "".
 */
void kvm_doctor_remedy(struct kvm_finding *v, const char *option, const char *value,
		       const char *format, ...) __attribute__((format(printf, 4, 5)));
void kvm_doctor_say(struct kvm_diagnosis *d, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void kvm_doctor_note(struct kvm_diagnosis *d, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Writes a size as an option's value, rounded up to whole MiB. Returns buf. */
const char *kvm_doctor_size(uint64_t bytes, char buf[32]);
/* Writes a time in words, such as "2 minutes". Returns buf. */
const char *kvm_doctor_time(double seconds, char buf[48]);

/* ---- causes.c, settings.c ---- */

#define KVM_ENOUGH 100u /* a share of fewer requests, opens or stores is not judged */

/* From the counters: why names are missing and why opens wait. */
void kvm_causes(struct kvm_diagnosis *d);
/* From the options and the machine. */
void kvm_settings(struct kvm_diagnosis *d);

/* ---- traffic.c ---- */

/* A recorded trace and the names of its models. */
struct kvm_traffic;
/*
 * Records the requests to the mount for this time, or takes those of `file` (may be NULL). Returns
 * 0, or 1 after a message.
 */
int kvm_traffic_open(struct kvm_traffic **out, const struct kvm_facts *f, const char *file,
		     uint64_t seconds);
/* Replays it. Returns 0, or 1 after a message. */
int kvm_traffic_judge(struct kvm_traffic *t, struct kvm_diagnosis *d);
void kvm_traffic_close(struct kvm_traffic *t); /* may be NULL */

#endif
