// SPDX-License-Identifier: Apache-2.0
#include "server/net/address.h"

#include "client/resolve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

hth_err hth_address_split(const char *address, char host[HTH_ADDRESS_HOST], int *port)
{
    const char *scheme = strstr(address, "://");
    address = scheme != NULL ? scheme + 3 : address;
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    long p = colon != NULL ? strtol(colon + 1, &end, 10) : -1;
    if (end == NULL || end == colon + 1 || *end != 0 || p < 0 || p > 65535) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not an address such as 127.0.0.1:8000", address);
    }
    bool bracketed = address[0] == '[' && colon > address && colon[-1] == ']';
    const char *from = bracketed ? address + 1 : address;
    size_t n = (size_t)(colon - from) - (bracketed ? 1 : 0);
    if (n == 0 || n >= HTH_ADDRESS_HOST) {
        return hth_fail(HTH_EINVAL, "'%.80s' names no host", address);
    }
    memcpy(host, from, n);
    host[n] = 0;
    *port = (int)p;
    return HTH_OK;
}

hth_err hth_address_resolve(char host[HTH_ADDRESS_HOST])
{
    const struct addrinfo hint = {.ai_flags = AI_PASSIVE | AI_ADDRCONFIG,
                                  .ai_socktype = SOCK_STREAM};
    char text[HTH_ADDRESS_HOST];
    struct addrinfo *found = NULL;
    int rv = hth_resolve(host, NULL, &hint, &found);
    if (rv == 0) {
        rv = getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, NULL, 0,
                         NI_NUMERICHOST);
        freeaddrinfo(found);
    }
    if (rv != 0) {
        return hth_fail(HTH_EINVAL, "'%s' is not a host's name or address: %s", host,
                        gai_strerror(rv));
    }
    memcpy(host, text, sizeof text);
    return HTH_OK;
}

// is_any tells whether an address is all of this machine's.
static bool is_any(const struct addrinfo *a)
{
    static const struct in6_addr any; // zero
    return a->ai_family == AF_INET6
               ? memcmp(&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr, &any, sizeof any) == 0
               : ((struct sockaddr_in *)a->ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
}

// all_of tells whether `a` has all of the addresses among which `b` is: that of IPv6 has both.
static bool all_of(const struct addrinfo *a, const struct addrinfo *b)
{
    return is_any(a) && (a->ai_family == AF_INET6 || b->ai_family == AF_INET);
}

static bool found_meet(const struct addrinfo *a, const struct addrinfo *b)
{
    return all_of(a, b) || all_of(b, a) ||
           (a->ai_family == b->ai_family && memcmp(a->ai_addr, b->ai_addr, a->ai_addrlen) == 0);
}

bool hth_address_meet(const char *host, const char *other)
{
    const struct addrinfo hint = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *one = NULL, *two = NULL;
    bool meet = strcmp(host, other) == 0;
    if (!meet && hth_resolve(host, NULL, &hint, &one) == 0 &&
        hth_resolve(other, NULL, &hint, &two) == 0) {
        for (const struct addrinfo *a = one; a != NULL; a = a->ai_next) {
            for (const struct addrinfo *b = two; b != NULL; b = b->ai_next) {
                meet = meet || found_meet(a, b);
            }
        }
    }
    if (one != NULL) {
        freeaddrinfo(one);
    }
    if (two != NULL) {
        freeaddrinfo(two);
    }
    return meet;
}
