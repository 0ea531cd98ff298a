// SPDX-License-Identifier: Apache-2.0
#include "server/publish.h"

#include "base/alloc.h"
#include "base/log.h"
#include "client/events.h"
#include "client/msg.h"
#include "server/sockfile.h"

#include <nng/protocol/pubsub0/pub.h>

#include <stdio.h>

#define PUBLISH_MAX_LISTEN 16
#define PUBLISH_URL        400

typedef struct publish_listener {
    char url[PUBLISH_URL];
    int claim; // the socket file's, or -1
} publish_listener;

struct hth_publisher {
    nng_socket socket;
    int n;
    publish_listener listener[PUBLISH_MAX_LISTEN];
};

hth_err hth_publisher_open(hth_publisher **out)
{
    *out = NULL;
    hth_publisher *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a publisher");
    }
    int rv = nng_pub0_open(&p->socket);
    if (rv != 0) {
        hth_free(p);
        return hth_msg_fail(rv, "cannot open a socket for events");
    }
    *out = p;
    return HTH_OK;
}

static hth_err publisher_listen(hth_publisher *p, publish_listener *l)
{
    HTH_TRY(hth_sockfile_claim(l->url, &l->claim));
    int rv = nng_listen(p->socket, l->url, NULL, 0);
    return rv == 0 ? HTH_OK : hth_msg_fail(rv, "cannot listen on %s", l->url);
}

void hth_publisher_listen(hth_publisher *p, const char *url)
{
    publish_listener *l = &p->listener[p->n];
    l->claim = -1;
    if (p->n == PUBLISH_MAX_LISTEN || hth_events_url(url, l->url, sizeof l->url) != HTH_OK) {
        return;
    }
    if (publisher_listen(p, l) != HTH_OK) {
        hth_log(WARN, SERVER, "events", "url=%s: %s", l->url, hth_err_detail());
        hth_sockfile_release(l->url, l->claim);
        return;
    }
    p->n++;
}

void hth_publisher_close(hth_publisher *p)
{
    if (p == NULL) {
        return;
    }
    nng_close(p->socket);
    for (int i = 0; i < p->n; i++) {
        hth_sockfile_release(p->listener[i].url, p->listener[i].claim);
    }
    hth_free(p);
}

void hth_publisher_job(void *p, const char *job, const char *what, uint64_t done, uint64_t total)
{
    const hth_publisher *to = p;
    hth_event e = {.done = done, .total = total};
    nng_msg *msg;
    snprintf(e.what, sizeof e.what, "%s", what);
    if (hth_events_write(job, &e, &msg) == HTH_OK &&
        nng_sendmsg(to->socket, msg, NNG_FLAG_NONBLOCK) != 0) {
        nng_msg_free(msg);
    }
}
