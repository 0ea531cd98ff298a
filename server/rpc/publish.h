// SPDX-License-Identifier: Apache-2.0
// server/rpc/publish.h - publishes events to whoever listens (client/events.h). Any thread; nothing
// blocks: without listeners, and for those that read too slowly, events are dropped.
#ifndef HTH_SERVER_RPC_PUBLISH_H
#define HTH_SERVER_RPC_PUBLISH_H

#include "base/err.h"
#include "server/net/allowance.h"

#include <stdint.h>

typedef struct hth_publisher hth_publisher;

// hth_publisher_open: `allowances`, which count who listens, must outlive it.
hth_err hth_publisher_open(hth_allowances *allowances, hth_publisher **out);
// hth_publisher_listen publishes next to a server's url. Where that cannot be done it is logged:
// clients can ask, too. Before hth_publisher_start.
void hth_publisher_listen(hth_publisher *publisher, const char *url);
hth_err hth_publisher_start(hth_publisher *publisher);
void hth_publisher_close(
    hth_publisher *publisher); // nobody may be sending any more; NULL is allowed

// hth_publisher_job tells about a training job; `publisher` is a hth_publisher.
void hth_publisher_job(void *publisher, const char *job, const char *what, uint64_t done,
                       uint64_t total);

#endif
