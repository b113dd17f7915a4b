/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers the lines of a stream; see stream.h. */
#include "stream.h"

#include "util.h"

#include <stdlib.h>
#include <string.h>

static int fill(struct kvc *k, struct kvc_stream *s, size_t capacity)
{
	FILE *out;
	bool bad;

	free(s->text);
	s->text = NULL;
	s->len = s->from = 0;
	out = open_memstream(&s->text, &s->len);
	if (!out)
		return -ENOMEM;
	while (ftello(out) < (off_t)capacity && s->ops->print(k, s, out))
		;
	bad = ferror(out);
	return fclose(out) || bad ? -ENOMEM : 0;
}

int kvc_stream_read(struct kvc *k, struct kvc_stream *s, char *to, size_t capacity, size_t *n)
{
	int err = s->from == s->len ? fill(k, s, capacity) : 0;

	if (err)
		return err;
	*n = kvc_min(capacity, s->len - s->from);
	memcpy(to, s->text + s->from, *n);
	s->from += *n;
	return 0;
}

void kvc_stream_close(struct kvc *k, struct kvc_stream *s)
{
	free(s->text);
	s->ops->close(k, s);
}
