// SPDX-License-Identifier: Apache-2.0
// server/net/address.h - "HOST:PORT" or "[HOST]:PORT", with or without "SCHEME://" in front. Any
// thread.
#ifndef HTH_SERVER_NET_ADDRESS_H
#define HTH_SERVER_NET_ADDRESS_H

#include "base/err.h"

#include <stdbool.h>

#define HTH_ADDRESS_HOST 64

// hth_address_split takes an address apart. HTH_EINVAL says why it is none.
hth_err hth_address_split(const char *address, char host[HTH_ADDRESS_HOST], int *port);
// hth_address_resolve replaces a host by the first of its addresses to listen on, as text.
// HTH_EINVAL: it has none.
hth_err hth_address_resolve(char host[HTH_ADDRESS_HOST]);
// hth_address_meet tells whether two hosts are, or have among them, an address on which only one
// can listen at a port. Hosts are looked up; one that is not known meets none.
bool hth_address_meet(const char *host, const char *other);

#endif
