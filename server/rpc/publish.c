// SPDX-License-Identifier: Apache-2.0
// Listeners that the network or other users reach are rpc.h's; inside the process it is nng's PUB.
#include "server/rpc/publish.h"

#include "base/alloc.h"
#include "base/log.h"
#include "client/events.h"
#include "client/wire.h"
#include "server/rpc/rpc.h"
#include "server/net/sockfile.h"

#include <nng/protocol/pubsub0/pub.h>

#include <stdio.h>
#include <string.h>

#define PUBLISH_MAX_LISTEN 16
#define PUBLISH_URL        400

typedef struct publish_listener {
    char url[PUBLISH_URL];
    int claim; // the socket file's, or -1
} publish_listener;

struct hth_publisher {
    nng_socket socket; // inproc://
    hth_rpc *rpc;      // all others
    int n;
    publish_listener listener[PUBLISH_MAX_LISTEN];
};

hth_err hth_publisher_open(hth_allowances *allowances, hth_publisher **out)
{
    const hth_rpc_config config = {.name = "hth-events", .allowances = allowances};
    *out = NULL;
    hth_publisher *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a publisher");
    }
    hth_err err = hth_rpc_open(&config, &p->rpc);
    if (err != HTH_OK) {
        hth_free(p);
        return err;
    }
    int rv = nng_pub0_open(&p->socket);
    if (rv != 0) {
        hth_rpc_close(p->rpc);
        hth_free(p);
        return hth_wire_fail(rv, "cannot open a socket for events");
    }
    *out = p;
    return HTH_OK;
}

static hth_err publisher_listen(hth_publisher *p, publish_listener *l)
{
    if (strncmp(l->url, "inproc://", 9) == 0) {
        int rv = nng_listen(p->socket, l->url, NULL, 0);
        return rv == 0 ? HTH_OK : hth_wire_fail(rv, "cannot listen on %s", l->url);
    }
    HTH_TRY(hth_sockfile_claim(l->url, &l->claim));
    return hth_rpc_listen(p->rpc, l->url, HTH_RPC_EVENTS);
}

void hth_publisher_listen(hth_publisher *publisher, const char *url)
{
    publish_listener *l = &publisher->listener[publisher->n];
    if (publisher->n == PUBLISH_MAX_LISTEN ||
        hth_events_url(url, l->url, sizeof l->url) != HTH_OK) {
        return;
    }
    l->claim = -1;
    if (publisher_listen(publisher, l) != HTH_OK) {
        hth_log(WARN, SERVER, "events", "url=%s: %s", l->url, hth_err_detail());
        hth_sockfile_release(l->url, l->claim);
        return;
    }
    publisher->n++;
}

hth_err hth_publisher_start(hth_publisher *publisher)
{
    return hth_rpc_listening(publisher->rpc) ? hth_rpc_start(publisher->rpc) : HTH_OK;
}

void hth_publisher_close(hth_publisher *publisher)
{
    if (publisher == NULL) {
        return;
    }
    nng_close(publisher->socket);
    hth_rpc_close(publisher->rpc);
    for (int i = 0; i < publisher->n; i++) {
        hth_sockfile_release(publisher->listener[i].url, publisher->listener[i].claim);
    }
    hth_free(publisher);
}

void hth_publisher_job(void *publisher, const char *job, const char *what, uint64_t done,
                       uint64_t total)
{
    const hth_publisher *to = publisher;
    hth_event e = {.done = done, .total = total};
    nng_msg *msg;
    snprintf(e.what, sizeof e.what, "%s", what);
    if (hth_events_write(job, &e, &msg) != HTH_OK) {
        return;
    }
    hth_rpc_publish(to->rpc, nng_msg_body(msg), nng_msg_len(msg));
    if (nng_sendmsg(to->socket, msg, NNG_FLAG_NONBLOCK) != 0) {
        nng_msg_free(msg);
    }
}
