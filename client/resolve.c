// SPDX-License-Identifier: Apache-2.0
#include "client/resolve.h"

#include <stddef.h>
#include <strings.h>

// The system's own resolver; a test sets another one.
static int (*resolve_by)(const char *host, const char *port, const struct addrinfo *hint,
                         struct addrinfo **out) = getaddrinfo;

int hth_resolve(const char *host, const char *port, const struct addrinfo *hint,
                struct addrinfo **out)
{
    int rv = resolve_by(host, port, hint, out);
    if (rv != 0 && host != NULL && strcasecmp(host, "localhost") == 0) {
        rv = resolve_by("127.0.0.1", port, hint, out);
    }
    return rv;
}
