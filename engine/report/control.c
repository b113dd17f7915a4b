/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of .kvcachefs/control, one row each in `commands`. Any other word starts a sweep
 * (sweep.c).
 */
#include "ops.h"
#include "keyring.h"
#include "log.h"
#include "sweep.h"
#include "tier_queue.h"

#include <string.h>

/* log [LEVEL] */
static int control_log(struct kvc *k, char *words, FILE *answer)
{
	(void)k;
	if (*words && kvc_log_level_set(words)) {
		fprintf(answer, "unknown level %s; give one of", words);
		for (int i = 0; kvc_log_level_names[i]; i++)
			fprintf(answer, "%s %s", i ? "," : "", kvc_log_level_names[i]);
		return -EINVAL;
	}
	fprintf(answer, "%s\n", kvc_log_level_names[kvc_log_level()]);
	return 0;
}

/*
 * reload without options: opens the log file again, and reads keys that were added to the key file.
 * Keys that it lacks stay in use.
 */
static int control_reload_files(struct kvc *k, FILE *answer)
{
	char error[512] = "the mount has no key file or log file to read again; -o OPTIONS changes "
			  "options";
	int err = *k->opt.logfile ? kvc_log_file_reopen() : 0;

	if (err)
		snprintf(error, sizeof error,
			 "cannot open the log file %.256s again: %s; the log is still written to "
			 "the open file",
			 k->opt.logfile, kvc_why(-err));
	else if (k->keys)
		err = kvc_keyring_read(k, NULL, error);
	else if (!*k->opt.logfile)
		err = -EINVAL;
	if (err)
		fprintf(answer, "%s\n", error);
	else
		fprintf(answer, "%s%s%s\n", k->keys ? "keyfile" : "",
			k->keys && *k->opt.logfile ? "," : "", *k->opt.logfile ? "logfile" : "");
	return err;
}

/* reload OPTIONS: applies all or none. Wakes the threads that act on an option. */
static int control_reload(struct kvc *k, char *words, FILE *answer)
{
	char error[256];
	int err;

	if (!*words)
		return control_reload_files(k, answer);
	kvc_lock(k);
	err = kvc_options_reload(&k->opt, words, error);
	if (!err) {
		pthread_cond_signal(&k->reservations.pressed);
		pthread_cond_signal(&k->quotas.pressed);
		kvc_tier_each(k, t)
			kvc_tier_trim_wake_locked(k, t);
		kvc_tiers_wake_locked(k);
	}
	kvc_unlock(k);
	if (err)
		fprintf(answer, "%s\n", error);
	else
		kvc_info("options changed: %s", words);
	return err;
}

static int control_stop(struct kvc *k, char *words, FILE *answer)
{
	(void)answer;
	return kvc_sweep_end(k, words);
}

static const struct {
	const char *name;
	int (*run)(struct kvc *k, char *words, FILE *answer);
} commands[] = {
	{ "log", control_log },
	{ "reload", control_reload },
	{ "stop", control_stop },
};

int kvc_control(struct kvc *k, char *text, FILE *answer)
{
	char *words = text + strcspn(text, " ");

	if (*words)
		*words++ = 0;
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		if (!strcmp(text, commands[i].name))
			return commands[i].run(k, words, answer);
	return kvc_sweep_begin(k, text, words, answer);
}
