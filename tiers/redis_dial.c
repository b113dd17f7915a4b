/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See redis_dial.h. `names` is a table of host names, guarded by `lock`. The resolver thread and
 * the callers that wait for it share an entry, and an entry in use is never reused for another
 * name. If getaddrinfo() never returns, its entry stays in use.
 */
#include "redis_dial.h"

#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/un.h>

#define NAMES 96

struct name {
	char host[256];  /* "": free */
	unsigned users;  /* waiting callers and the thread */
	bool busy;       /* a thread is resolving it */
	unsigned rounds; /* completed lookups */
	int err;         /* result of the last lookup: EAI_... */
	uint64_t used_ns;
	struct kvct_addresses known; /* result of the last successful lookup */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended; /* uses CLOCK_MONOTONIC; set up by resolver_init */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct name names[NAMES];

static void resolver_init(void)
{
	pthread_condattr_t a;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&ended, &a);
	pthread_condattr_destroy(&a);
}

static void set_port(struct kvct_address *a, int port)
{
	if (a->at.ss_family == AF_INET)
		((struct sockaddr_in *)&a->at)->sin_port = htons((uint16_t)port);
	else
		((struct sockaddr_in6 *)&a->at)->sin6_port = htons((uint16_t)port);
}

static int look_up(const char *host, int flags, struct kvct_addresses *out)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags }, *all = NULL;
	int err = getaddrinfo(host, NULL, &hints, &all);

	out->n = 0;
	for (struct addrinfo *i = err ? NULL : all; i && out->n < KVCT_ADDRESSES; i = i->ai_next) {
		if ((i->ai_family != AF_INET && i->ai_family != AF_INET6) ||
		    i->ai_addrlen > sizeof out->v[0].at)
			continue;
		memcpy(&out->v[out->n].at, i->ai_addr, i->ai_addrlen);
		out->v[out->n++].len = i->ai_addrlen;
	}
	if (!err)
		freeaddrinfo(all);
	return err ?: out->n ? 0 : EAI_NONAME;
}

static void *resolver(void *arg)
{
	struct name *n = arg;
	struct kvct_addresses found;
	char host[sizeof n->host];

	pthread_mutex_lock(&lock);
	memcpy(host, n->host, sizeof host);
	pthread_mutex_unlock(&lock);

	int err = look_up(host, AI_ADDRCONFIG, &found);

	pthread_mutex_lock(&lock);
	n->err = err;
	if (!err)
		n->known = found;
	n->busy = false;
	n->rounds++;
	n->users--;
	pthread_cond_broadcast(&ended);
	pthread_mutex_unlock(&lock);
	return NULL;
}

/*
 * Returns the entry of a name: its own, a free one, or the one unused for longest. NULL: all are in
 * use.
 */
static struct name *name_entry_locked(const char *host)
{
	struct name *oldest = NULL;

	for (unsigned i = 0; i < NAMES; i++) {
		struct name *n = &names[i];

		if (!strcmp(n->host, host))
			return n;
		if (!n->users && (!oldest || n->used_ns < oldest->used_ns))
			oldest = n;
	}
	if (oldest) {
		memset(oldest, 0, sizeof *oldest);
		memcpy(oldest->host, host, strlen(host) + 1);
	}
	return oldest;
}

static bool resolver_start_locked(struct name *n)
{
	pthread_attr_t a;
	pthread_t thread;
	bool good;

	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	n->busy = true;
	n->users++;
	good = !pthread_create(&thread, &a, resolver, n);
	pthread_attr_destroy(&a);
	if (!good) {
		n->busy = false;
		n->users--;
	}
	return good;
}

int kvct_resolve(const char *host, int port, uint64_t until_ns, struct kvct_addresses *out,
		 const char **why)
{
	struct name *n;
	unsigned round;

	*why = "the name is too long";
	if (strlen(host) >= sizeof n->host || !*host)
		return -EHOSTUNREACH;
	if (look_up(host, AI_NUMERICHOST, out)) {
		uint64_t now = kvc_mono_ns();
		/*
		 * If addresses are known, wait for half the time only, so that there is time to use
		 * them.
		 */
		struct timespec half = kvc_timespec(now +
						    (until_ns > now ? until_ns - now : 0) / 2),
				end = kvc_timespec(until_ns);

		pthread_once(&once, resolver_init);
		pthread_mutex_lock(&lock);
		n = name_entry_locked(host);
		if (!n || (!n->busy && !resolver_start_locked(n))) {
			pthread_mutex_unlock(&lock);
			return -ENOMEM;
		}
		n->used_ns = now;
		n->users++;
		for (round = n->rounds; n->rounds == round;)
			if (pthread_cond_timedwait(&ended, &lock, n->known.n ? &half : &end))
				break;
		n->users--;
		*out = n->known;
		if (n->rounds == round)
			*why = "the name server does not answer";
		else
			*why = n->err ? gai_strerror(n->err) : "no address";
		if (n->rounds != round && (n->err == EAI_NONAME || n->err == EAI_NODATA))
			out->n = 0; /* the answer is that the name no longer exists */
		pthread_mutex_unlock(&lock);
	}
	for (unsigned i = 0; i < out->n; i++)
		set_port(&out->v[i], port);
	return out->n ? 0 : -EHOSTUNREACH;
}

/* Optional settings: sockets of other kinds do not support them. */
static void set_options(int fd, unsigned give_up_ms)
{
	const int on = 1, idle = 30, interval = 10, count = 3;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &give_up_ms, sizeof give_up_ms);
}

static int connect_one(const struct kvct_address *a, uint64_t until_ns, int *out)
{
	KVC_FD int fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	int err = 0;
	socklen_t len = sizeof err;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&a->at, a->len)) {
		if (errno != EINPROGRESS)
			return errno == EAGAIN ? -EBUSY : -errno;
		for (int n = 0; n <= 0;) {
			uint64_t now = kvc_mono_ns();

			if (now >= until_ns)
				return -EHOSTDOWN;
			n = poll(&p, 1, (int)kvc_min((until_ns - now) / 1000000 + 1, INT_MAX));
			if (n < 0 && errno != EINTR)
				return -errno;
		}
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
			err = errno;
		if (err)
			return err == ETIMEDOUT ? -EHOSTDOWN : -err;
	}
	*out = fd;
	fd = -1;
	return 0;
}

static int unix_address(const char *path, struct kvct_addresses *out)
{
	struct sockaddr_un *un = (struct sockaddr_un *)&out->v[0].at;

	_Static_assert(sizeof *un <= sizeof out->v[0].at, "a Unix address fits");
	if (strlen(path) >= sizeof un->sun_path)
		return -ENAMETOOLONG;
	memset(un, 0, sizeof *un);
	un->sun_family = AF_UNIX;
	memcpy(un->sun_path, path, strlen(path) + 1);
	out->v[0].len = sizeof *un;
	out->n = 1;
	return 0;
}

/* Maps the error of a failed connect to an error of tier.h. */
static int connect_error(int err)
{
	switch (err) {
	case -EMFILE:
	case -ENFILE:
	case -ENOBUFS:
	case -ENOMEM: return -ENOMEM; /* a local problem, not the server's */
	case -EACCES:
	case -EPERM: return -EACCES;
	case -EBUSY:
	case -EHOSTDOWN:
	case -ENETUNREACH: return err;
	case -ENOENT: /* the Unix socket does not exist */
	case -ECONNREFUSED: return -ECONNREFUSED;
	default: return -EHOSTUNREACH;
	}
}

int kvct_redis_dial(const char *host, int port, uint64_t until_ns, unsigned give_up_ms, int *fd,
		    const char **why)
{
	struct kvct_addresses all;
	int err;

	*why = "the socket's path is too long";
	err = *host == '/' ? unix_address(host, &all)
			   : kvct_resolve(host, port, until_ns, &all, why);
	if (err)
		return err;
	err = -EHOSTDOWN;
	for (unsigned i = 0; i < all.n; i++) {
		uint64_t now = kvc_mono_ns(), left = until_ns > now ? until_ns - now : 0;

		err = connect_one(&all.v[i], now + left / (all.n - i), fd);
		if (!err) {
			if (*host != '/')
				set_options(*fd, give_up_ms);
			return 0;
		}
	}
	*why = err == -EHOSTDOWN ? "no answer in time" : strerrordesc_np(-err);
	*why = *why ?: "the server cannot be reached";
	return connect_error(err);
}
