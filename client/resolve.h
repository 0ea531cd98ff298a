// SPDX-License-Identifier: Apache-2.0
// client/resolve.h - addresses of a host by its name.
#ifndef HTH_CLIENT_RESOLVE_H
#define HTH_CLIENT_RESOLVE_H

#include <netdb.h>

// hth_resolve is getaddrinfo, and knows "localhost" where the system does not: a machine without
// /etc/hosts (a minimal container) has no other place that it stands in (RFC 6761, 6.3). Returns
// what getaddrinfo does; the caller frees *out with freeaddrinfo. Blocks as long as name servers
// do. Any thread.
int hth_resolve(const char *host, const char *port, const struct addrinfo *hint,
                struct addrinfo **out);

#endif
