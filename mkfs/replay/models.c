/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl replay --model NAME=POLICY,...: models of a trace with their own policies. */
#include "ctl.h"
#include "replay_priv.h"

#include <string.h>

static int no_policy(const char *name)
{
	char all[256] = "";

	for (int i = 0; kvc_policy_names[i]; i++)
		snprintf(all + strlen(all), sizeof all - strlen(all), " %s", kvc_policy_names[i]);
	kvm_misused("unknown policy %s; the policies are:%s", kvm_shown(name), all);
	return -1;
}

int kvm_replay_policy(const char *name)
{
	for (int i = 0; kvc_policy_names[i]; i++)
		if (!strcmp(kvc_policy_names[i], name))
			return i;
	return no_policy(name);
}

/* Parses NAME=POLICY; the name may contain '='. */
static int parse_model_policy(struct replay *o, char *word)
{
	char *equals = strrchr(word, '=');
	int policy;

	if (!equals || equals == word)
		return kvm_misused("--model: %s is not NAME=POLICY", kvm_shown(word));
	if (o->nown == MODELS)
		return kvm_misused("--model: too many models, give at most %d", MODELS);
	policy = kvm_replay_policy(equals + 1);
	if (policy < 0)
		return 2;
	*equals = 0;
	for (unsigned i = 0; i < o->nown; i++)
		if (!strcmp(o->own[i].model, word))
			return kvm_misused("--model: %s is given twice", word);
	o->own[o->nown++] = (struct own){ word, (unsigned)policy };
	return 0;
}

int kvm_replay_models(struct replay *o, const char *words)
{
	int err = 0;

	o->own_text = strdup(words);
	if (!o->own_text)
		return kvm_fail("out of memory");
	for (char *at, *word = strtok_r(o->own_text, ",", &at); word && !err;
	     word = strtok_r(NULL, ",", &at))
		err = parse_model_policy(o, word);
	if (!err && !o->nown)
		err = kvm_misused("--model %s: give NAME=POLICY", kvm_shown(words));
	return err;
}

static void no_model(const struct kvm_trace *t, const char *name)
{
	char all[256] = "";

	for (uint32_t i = 0; i < t->models && strlen(all) < sizeof all / 2; i++)
		if (*t->model_name[i])
			snprintf(all + strlen(all), sizeof all - strlen(all), " %s",
				 t->model_name[i]);
	kvm_fail("%s has no model %s; %s%s", t->name, name,
		 *all ? "the models are:" : "it names no models", all);
}

uint8_t *kvm_replay_classes(const struct replay *o, const struct kvm_trace *t)
{
	uint8_t *class = calloc(t->models, sizeof *class);

	if (!class)
		kvm_fail("out of memory");
	for (unsigned i = 0; i < o->nown && class; i++) {
		uint32_t m = 0;

		while (m < t->models && strcmp(t->model_name[m], o->own[i].model) != 0)
			m++;
		if (m == t->models) {
			no_model(t, o->own[i].model);
			free(class);
			return NULL;
		}
		class[m] = (uint8_t)(1 + o->own[i].policy);
	}
	return class;
}
