/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl doctor: says in sentences why the hit share of a mount is what it is, and which option
 * to change. See doctor.h.
 */
#include "doctor.h"

#include "json.h"

#include <inttypes.h>
#include <string.h>

#define LISTEN "10s"

struct kvm_finding *kvm_doctor_find(struct kvm_diagnosis *d, const char *id, double weight,
				    const char *option, const char *value, const char *format, ...)
{
	struct kvm_finding *v = &d->v[kvc_min(d->n, KVM_FINDINGS - 1)];
	char live[64];
	va_list ap;

	d->n = kvc_min(d->n + 1, KVM_FINDINGS);
	*v = (struct kvm_finding){ .id = id, .weight = weight };
	va_start(ap, format);
	vsnprintf(v->text, sizeof v->text, format, ap);
	va_end(ap);
	if (!option)
		return v;
	snprintf(live, sizeof live, " %s ", option);
	if (strstr(d->f->live, live) || !strncmp(d->f->live, live + 1, strlen(live) - 1))
		kvm_doctor_remedy(v, option, value, "Run kvcachectl reload -o %s=%s %s.", option,
				  value, d->f->mnt);
	else
		kvm_doctor_remedy(v, option, value, "Mount with the option %s=%s.", option, value);
	return v;
}

void kvm_doctor_remedy(struct kvm_finding *v, const char *option, const char *value,
		       const char *format, ...)
{
	va_list ap;

	snprintf(v->option, sizeof v->option, "%s", option);
	snprintf(v->value, sizeof v->value, "%s", value);
	va_start(ap, format);
	vsnprintf(v->remedy, sizeof v->remedy, format, ap);
	va_end(ap);
}

void kvm_doctor_say(struct kvm_diagnosis *d, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	if (d->nsaid < KVM_LINES)
		vsnprintf(d->said[d->nsaid++], sizeof d->said[0], format, ap);
	va_end(ap);
}

void kvm_doctor_note(struct kvm_diagnosis *d, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	if (d->nnotes < KVM_LINES)
		vsnprintf(d->notes[d->nnotes++], sizeof d->notes[0], format, ap);
	va_end(ap);
}

const char *kvm_doctor_size(uint64_t bytes, char buf[32])
{
	uint64_t mib = (bytes + (1 << 20) - 1) >> 20;

	if (mib >= 1024)
		snprintf(buf, 32, "%" PRIu64 "G", (mib + 1023) / 1024);
	else
		snprintf(buf, 32, "%" PRIu64 "M", mib);
	return buf;
}

const char *kvm_doctor_time(double seconds, char buf[48])
{
	static const struct {
		double seconds;
		const char *name;
	} units[] = {
		{ 86400, "day" }, { 3600, "hour" }, { 60, "minute" }, { 1, "second" }, { 0, NULL },
	};
	size_t i = 0;

	if (seconds < 1) {
		snprintf(buf, 48, "%.3g ms", seconds * 1000);
		return buf;
	}
	while (units[i + 1].name && seconds < 2 * units[i].seconds && units[i].seconds > 1)
		i++;
	snprintf(buf, 48, "%.0f %s%s", seconds / units[i].seconds, units[i].name,
		 seconds / units[i].seconds >= 1.5 ? "s" : "");
	return buf;
}

static int by_weight(const void *a, const void *b)
{
	const struct kvm_finding *x = a, *y = b;

	return (x->weight < y->weight) - (x->weight > y->weight);
}

static void print_json(const struct kvm_diagnosis *d)
{
	struct kvm_json j = { stdout, false };

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", d->f->mnt);
	kvm_json_begin(&j, "findings", '[');
	for (size_t i = 0; i < d->n; i++) {
		const struct kvm_finding *v = &d->v[i];

		kvm_json_begin(&j, NULL, '{');
		kvm_json_text(&j, "id", v->id);
		kvm_json_text(&j, "text", v->text);
		kvm_json_text(&j, "option", *v->option ? v->option : NULL);
		kvm_json_text(&j, "value", *v->value ? v->value : NULL);
		kvm_json_text(&j, "remedy", v->remedy);
		kvm_json_share(&j, "weight", v->weight);
		kvm_json_end(&j, '}');
	}
	kvm_json_end(&j, ']');
	kvm_json_begin(&j, "summary", '[');
	for (size_t i = 0; i < d->nsaid; i++)
		kvm_json_text(&j, NULL, d->said[i]);
	kvm_json_end(&j, ']');
	kvm_json_begin(&j, "notes", '[');
	for (size_t i = 0; i < d->nnotes; i++)
		kvm_json_text(&j, NULL, d->notes[i]);
	kvm_json_end(&j, ']');
	kvm_json_end(&j, '}');
	putchar('\n');
}

/* Prints a paragraph in lines of at most 80 columns; the first follows `mark`. */
static void print_wrapped(const char *mark, const char *text)
{
	size_t indent = strlen(mark), column = indent;

	fputs(mark, stdout);
	while (*text) {
		size_t n = strcspn(text, " ");

		if (column > indent && column + 1 + n > 80) {
			printf("\n%*s", (int)indent, "");
			column = indent;
		} else if (column > indent) {
			putchar(' ');
			column++;
		}
		fwrite(text, 1, n, stdout);
		column += n;
		text += n + strspn(text + n, " ");
	}
	putchar('\n');
}

static void print_text(const struct kvm_diagnosis *d)
{
	char mark[16];

	for (size_t i = 0; i < d->nsaid; i++)
		print_wrapped("", d->said[i]);
	printf("%s%s\n", d->nsaid ? "\n" : "",
	       d->n ? "Findings, the most important first:" : "No findings.");
	for (size_t i = 0; i < d->n; i++) {
		snprintf(mark, sizeof mark, "%2zu. ", i + 1);
		print_wrapped(mark, d->v[i].text);
		print_wrapped("    ", d->v[i].remedy);
	}
	if (d->nnotes)
		puts("\nNot judged:");
	for (size_t i = 0; i < d->nnotes; i++)
		print_wrapped("  - ", d->notes[i]);
}

static int diagnose(struct kvm_facts *f, const char *file, uint64_t seconds, bool json)
{
	struct kvm_diagnosis *d = calloc(1, sizeof *d);
	struct kvm_traffic *t = NULL;
	int err = d ? 0 : kvm_fail("out of memory");

	/* the counters are read after the recording, and so include it */
	err = err ?: kvm_facts_read(f);
	if (!err)
		err = kvm_traffic_open(&t, f, file, seconds);
	kvm_facts_free(f);
	err = err ?: kvm_facts_read(f);
	if (!err) {
		d->f = f;
		kvm_causes(d);
		kvm_settings(d);
		err = kvm_traffic_judge(t, d);
	}
	if (!err) {
		qsort(d->v, d->n, sizeof d->v[0], by_weight);
		(json ? print_json : print_text)(d);
	}
	kvm_traffic_close(t);
	free(d);
	return err;
}

int kvm_run_doctor(int argc, char **argv)
{
	bool json = false;
	const char *time = NULL, *file = NULL;
	const struct kvm_option options[] = {
		{ "json", &json, NULL }, { "for", NULL, &time }, { "trace", NULL, &file }, { 0 }
	};
	struct kvm_facts f = { .mnt = "" };
	uint64_t seconds = 0;
	int err = kvm_options(&argc, argv, options);

	if (!err && time && file)
		err = kvm_misused("--for and --trace cannot be combined: give one of them");
	err = err ?: kvm_time_arg("--for", time ?: LISTEN, 86400, "a time from 1s to 1d", &seconds);
	if (err)
		return err;
	err = kvm_mount_of(argc ? argv[0] : NULL, f.mnt);
	err = err ?: diagnose(&f, file, seconds, json);
	kvm_facts_free(&f);
	return err;
}
