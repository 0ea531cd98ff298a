// SPDX-License-Identifier: Apache-2.0
#include "client/events.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "client/exchange.h"
#include "client/wire.h"
#include "client/socket.h"

#include <nng/protocol/pubsub0/sub.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_URL        400
#define EVENTS_TOPIC      256
#define EVENTS_BYTES      4096 // of a message, at most
#define EVENTS_CONNECT_NS 1000000000u

static bool events_is(const char *url, const char *scheme)
{
    return strncmp(url, scheme, strlen(scheme)) == 0;
}

hth_err hth_events_url(const char *url, char *out, size_t cap)
{
    char *end = NULL;
    const char *port = strrchr(url, ':');
    if (events_is(url, "ipc://") || events_is(url, "inproc://")) {
        snprintf(out, cap, "%s.events", url);
        return HTH_OK;
    }
    unsigned long n = events_is(url, "tcp://") && port != NULL ? strtoul(port + 1, &end, 10) : 0;
    if (n < 1 || n >= 65535 || *end != 0) {
        return hth_fail(HTH_ENOTSUP, "%s publishes no events", url);
    }
    snprintf(out, cap, "%.*s:%lu", (int)(port - url), url, n + 1);
    return HTH_OK;
}

// The topic with its zero byte: of "a" and "ab", only one is meant.
static size_t events_topic(const char *job, char out[EVENTS_TOPIC])
{
    return (size_t)snprintf(out, EVENTS_TOPIC, "job/%.200s", job) + 1;
}

hth_err hth_events_write(const char *job, const hth_event *event, nng_msg **out)
{
    Hearth__Progressed body = HEARTH__PROGRESSED__INIT;
    char topic[EVENTS_TOPIC];
    size_t n = events_topic(job, topic);
    body.active = true;
    body.what = (char *)event->what;
    body.done = event->done;
    body.total = event->total;
    int rv = nng_msg_alloc(out, n + hearth__progressed__get_packed_size(&body));
    if (rv != 0) {
        return hth_wire_fail(rv, "no memory for an event");
    }
    memcpy(nng_msg_body(*out), topic, n);
    hearth__progressed__pack(&body, (uint8_t *)nng_msg_body(*out) + n);
    return HTH_OK;
}

static hth_err events_read(nng_msg *msg, hth_event *out)
{
    size_t bytes = nng_msg_len(msg);
    const uint8_t *body = nng_msg_body(msg), *zero = memchr(body, 0, bytes);
    size_t n = zero != NULL ? (size_t)(zero - body) + 1 : bytes;
    Hearth__Progressed *p = hearth__progressed__unpack(NULL, bytes - n, body + n);
    if (p == NULL) {
        return hth_fail(HTH_ECORRUPT, "an event cannot be read");
    }
    snprintf(out->what, sizeof out->what, "%s", p->what);
    out->done = p->done;
    out->total = p->total;
    hearth__progressed__free_unpacked(p, NULL);
    return HTH_OK;
}

struct hth_events {
    nng_socket socket;
    bool open;
};

// events_there tells whether somebody listens at once: a firewall may leave a caller waiting for
// minutes.
static hth_err events_there(const char *url)
{
    hth_socket *s;
    if (!events_is(url, "tcp://")) {
        return HTH_OK;
    }
    hth_err err = hth_socket_open(url, NULL, hth_now_ns() + EVENTS_CONNECT_NS, &s);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "no events from %s", url);
    }
    hth_socket_close(s);
    return HTH_OK;
}

hth_err hth_events_open(const hearth *handle, const char *job, hth_events **out)
{
    char url[EVENTS_URL], topic[EVENTS_TOPIC];
    size_t n = events_topic(job, topic);
    int rv;
    *out = NULL;
    HTH_TRY(hth_events_url(handle->url, url, sizeof url));
    HTH_TRY(events_there(url));
    hth_events *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for events");
    }
    if ((rv = nng_sub0_open(&e->socket)) == 0) {
        e->open = true;
        rv = nng_socket_set_size(e->socket, NNG_OPT_RECVMAXSZ, EVENTS_BYTES);
        rv = rv == 0 ? nng_socket_set(e->socket, NNG_OPT_SUB_SUBSCRIBE, topic, n) : rv;
        rv = rv == 0 ? nng_dial(e->socket, url, NULL, 0) : rv;
    }
    if (rv != 0) {
        hth_events_close(e);
        return hth_wire_fail(rv, "no events from %s", url);
    }
    *out = e;
    return HTH_OK;
}

void hth_events_close(hth_events *events)
{
    if (events != NULL) {
        if (events->open) {
            nng_close(events->socket);
        }
        hth_free(events);
    }
}

hth_err hth_events_next(hth_events *events, uint64_t timeout_ms, hth_event *out)
{
    nng_msg *msg;
    int rv = nng_socket_set_ms(events->socket, NNG_OPT_RECVTIMEO, (nng_duration)timeout_ms);
    rv = rv == 0 ? nng_recvmsg(events->socket, &msg, 0) : rv;
    if (rv != 0) {
        return hth_wire_fail(rv, "no event");
    }
    hth_err err = events_read(msg, out);
    nng_msg_free(msg);
    return err;
}
