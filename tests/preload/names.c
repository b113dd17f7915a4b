/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulates a name server that does not answer: getaddrinfo() resolves numeric addresses only, and
 * otherwise blocks until the process ends.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <stddef.h>
#include <unistd.h>

__attribute__((visibility("default"))) int getaddrinfo(const char *host, const char *service,
						       const struct addrinfo *hints,
						       struct addrinfo **out)
{
	static int (*real)(const char *host, const char *service, const struct addrinfo *hints,
			   struct addrinfo **out);
	struct addrinfo numeric = hints ? *hints : (struct addrinfo){ 0 };
	int err;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	numeric.ai_flags |= AI_NUMERICHOST;
	err = real(host, service, &numeric, out);
	while (err && !(hints && hints->ai_flags & AI_NUMERICHOST))
		pause();
	return err;
}
