/* SPDX-License-Identifier: Apache-2.0 */
/* What a mount reports about itself, for kvcachectl doctor. See doctor.h. */
#include "doctor.h"

#include "options.h"

#include <inttypes.h>
#include <string.h>

int kvm_facts_read(struct kvm_facts *f)
{
	FILE *live = fmemopen(f->live, sizeof f->live, "w");

	if (live) {
		kvc_options_live(live);
		fclose(live);
	}
	return kvm_mount_text(f->mnt, "stats", &f->stats)
		       ?: kvm_mount_text(f->mnt, "config", &f->config)
				  ?: kvm_mount_text(f->mnt, "metrics", &f->metrics)
					     ?: kvm_calls(f->mnt, &f->calls);
}

void kvm_facts_free(struct kvm_facts *f)
{
	free(f->stats);
	free(f->config);
	free(f->metrics);
	f->stats = f->config = f->metrics = NULL;
}

/* Finds the line that begins with a name and one of the characters; returns what follows. */
static const char *line_of(const char *text, const char *name, const char *after)
{
	size_t n = strlen(name);

	while (text && (strncmp(text, name, n) != 0 || !text[n] || !strchr(after, text[n])))
		text = (text = strchr(text, '\n')) ? text + 1 : NULL;
	return text ? text + n + 1 : NULL;
}

uint64_t kvm_fact(const struct kvm_facts *f, const char *name)
{
	const char *at = line_of(f->stats, name, " ");

	return at ? strtoull(at, NULL, 10) : 0;
}

const char *kvm_facts_setting(const struct kvm_facts *f, const char *name, char buf[KVM_PATH])
{
	const char *at = line_of(f->config, name, "=");

	snprintf(buf, KVM_PATH, "%.*s", at ? (int)strcspn(at, "\n") : 0, at ?: "");
	return buf;
}

uint64_t kvm_facts_option(const struct kvm_facts *f, const char *name)
{
	char buf[KVM_PATH];

	return strtoull(kvm_facts_setting(f, name, buf), NULL, 10);
}

void kvm_facts_spans(const struct kvm_facts *f, const char *name, const char *labels,
		     struct kvm_spans *s)
{
	char head[96];
	size_t n = (size_t)snprintf(head, sizeof head, "kvcachefs_%s_bucket{", name);
	uint64_t before = 0;

	*s = (struct kvm_spans){ 0 };
	for (const char *at = f->metrics; at && s->count < 40;) {
		const char *end = at + strcspn(at, "\n"), *le, *found;
		uint64_t v;

		if (!strncmp(at, head, n) && (found = strstr(at, labels)) && found < end &&
		    (le = strstr(at, "le=\"")) && le < end) {
			const char *value = strchr(le, '}');

			v = value ? strtoull(value + 1, NULL, 10) : before;
			s->le[s->count] = strncmp(le + 4, "+Inf", 4) != 0 ? strtod(le + 4, NULL)
					  : s->count                      ? 2 * s->le[s->count - 1]
									  : 0;
			s->n[s->count++] = v - kvc_min(before, v);
			before = v;
		}
		at = *end ? end + 1 : NULL;
	}
	s->total = before;
}

double kvm_spans_quantile(const struct kvm_spans *s, double part)
{
	double need = part * (double)s->total;
	uint64_t sum = 0;

	for (size_t i = 0; i < s->count; i++) {
		sum += s->n[i];
		if (sum && (double)sum >= need)
			return s->le[i];
	}
	return 0;
}
