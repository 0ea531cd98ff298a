// SPDX-License-Identifier: Apache-2.0
// The slots' state machine (dispatch.h) and the requests that are answered without engine or job
// thread. What goes to the engine is prepared in request.c.
#include "server/dispatch.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/catalog.h"
#include "server/slot.h"

#include <string.h>
#include <time.h>

#define DISPATCH_SLOTS       256
#define DISPATCH_LARGE_BYTES (64u << 10)

static void slot_receive(hth_slot *s)
{
    s->sending = false;
    nng_ctx_recv(s->ctx, s->aio);
}

// ---- replies

void hth_slot_send(hth_slot *s, nng_msg *msg)
{
    hth_dispatch *d = s->d;
    pthread_mutex_lock(&d->lock);
    s->active = false;
    if (nng_msg_len(msg) > DISPATCH_LARGE_BYTES) {
        d->large_reply_ns = hth_now_ns();
    }
    pthread_mutex_unlock(&d->lock);
    hth_slot_clear(s);
    s->sending = true;
    nng_aio_set_msg(s->aio, msg);
    nng_ctx_send(s->ctx, s->aio);
}

// slot_retire drops the request without an answer: there is nobody to get it, or no memory to write
// it.
static void slot_retire(hth_slot *s)
{
    hth_dispatch *d = s->d;
    pthread_mutex_lock(&d->lock);
    s->active = false; // before it is cleared: requests about others look into those that are
    pthread_mutex_unlock(&d->lock);
    hth_slot_clear(s);
    pthread_mutex_lock(&d->lock);
    if (--d->n_working == 0) {
        pthread_cond_broadcast(&d->idle);
    }
    pthread_mutex_unlock(&d->lock);
    slot_receive(s);
}

void hth_slot_reply(hth_slot *s, Hearth__Reply *r)
{
    nng_msg *msg;
    uint8_t *data;
    r->call = s->q != NULL ? s->q->call : 0;
    if (hth_msg_frame(&r->base, NULL, 0, 0, &s->d->limits, &msg, &data) != HTH_OK) {
        slot_retire(s);
        return;
    }
    hth_slot_send(s, msg);
}

void hth_slot_fail(hth_slot *s, hth_err err, const char *sentence)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Error body = HEARTH__ERROR__INIT;
    char cleared[1024];
    sentence = sentence[0] != 0 ? sentence : hth_strerror(err);
    if (s->conn != NULL && !hth_conn_same_machine(s->conn)) {
        hth_auth_public(sentence, cleared, sizeof cleared);
        sentence = cleared;
    }
    body.code = (uint32_t)err;
    body.sentence = (char *)sentence;
    r.body_case = HEARTH__REPLY__BODY_ERROR;
    r.error = &body;
    hth_slot_reply(s, &r);
}

void hth_slot_document(hth_slot *s, const char *json)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Document body = HEARTH__DOCUMENT__INIT;
    nng_msg *msg;
    uint8_t *data;
    body.bytes = strlen(json);
    r.call = s->q->call;
    r.body_case = HEARTH__REPLY__BODY_DOCUMENT;
    r.document = &body;
    hth_err err = hth_msg_frame(&r.base, NULL, 0, body.bytes, &s->d->limits, &msg, &data);
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
        return;
    }
    memcpy(data, json, body.bytes);
    hth_slot_send(s, msg);
}

static void slot_finished(hth_slot *s, hth_err err)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Done body = HEARTH__DONE__INIT;
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
        return;
    }
    r.body_case = HEARTH__REPLY__BODY_FINISHED;
    r.finished = &body;
    hth_slot_reply(s, &r);
}

// ---- requests about other requests: found by connection and call id

static hth_slot *dispatch_find(hth_dispatch *d, const hth_conn *c, uint64_t call)
{
    for (int i = 0; i < d->n_slots; i++) {
        hth_slot *s = &d->slots[i];
        if (s->active && s->conn == c && s->q->call == call) {
            return s;
        }
    }
    return NULL;
}

static void slot_cancel(hth_slot *s, uint64_t call)
{
    pthread_mutex_lock(&s->d->lock);
    hth_slot *other = dispatch_find(s->d, s->conn, call);
    if (other != NULL) {
        other->r.canceled = 1;
    }
    pthread_mutex_unlock(&s->d->lock);
    hth_rings_cancel(s->d->rings, s->conn, call);
    slot_finished(s, HTH_OK);
}

static void slot_progress(hth_slot *s, uint64_t call)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Progressed body = HEARTH__PROGRESSED__INIT;
    hth_progress p = {.what = ""};
    pthread_mutex_lock(&s->d->lock);
    hth_slot *other = dispatch_find(s->d, s->conn, call);
    if (other != NULL && other != s) {
        p = other->progress;
        body.active = p.what[0] != 0;
    }
    pthread_mutex_unlock(&s->d->lock);
    body.what = p.what;
    body.done = p.done;
    body.total = p.total;
    r.body_case = HEARTH__REPLY__BODY_PROGRESSED;
    r.progressed = &body;
    hth_slot_reply(s, &r);
}

void hth_slot_set_progress(hth_slot *s, const char *what, uint64_t done, uint64_t total)
{
    pthread_mutex_lock(&s->d->lock);
    strncpy(s->progress.what, what, sizeof s->progress.what - 1);
    s->progress.done = done;
    s->progress.total = total;
    pthread_mutex_unlock(&s->d->lock);
}

void hth_dispatch_gone(hth_dispatch *d, const hth_conn *c)
{
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n_slots; i++) {
        if (d->slots[i].active && d->slots[i].conn == c) {
            d->slots[i].r.canceled = 1;
        }
    }
    pthread_mutex_unlock(&d->lock);
}

// ---- taking requests

static void slot_map(hth_slot *s)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Mapped body = HEARTH__MAPPED__INIT;
    hth_err err = hth_conn_map(s->conn, s->q->map->fd, s->q->map->bytes, &body.region);
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
        return;
    }
    r.body_case = HEARTH__REPLY__BODY_MAPPED;
    r.mapped = &body;
    hth_slot_reply(s, &r);
}

static void slot_fetch(hth_slot *s)
{
    nng_msg *reply;
    hth_err err = hth_rings_fetch(s->d->rings, s->conn, s->q->fetch->call, &reply);
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_slot_send(s, reply);
}

static void slot_models(hth_slot *s)
{
    char *json;
    hth_err err = hth_catalog_list(s->d->store, &json);
    if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_slot_document(s, json);
    hth_free(json);
}

static void slot_route(hth_slot *s)
{
    switch (s->q->body_case) {
    case HEARTH__REQUEST__BODY_INFER:
        hth_slot_infer(s);
        break;
    case HEARTH__REQUEST__BODY_QUERY:
        if (strcmp(s->q->query->what, "models") == 0) {
            slot_models(s);
        } else {
            hth_slot_query(s);
        }
        break;
    case HEARTH__REQUEST__BODY_CANCEL:
        slot_cancel(s, s->q->cancel->call);
        break;
    case HEARTH__REQUEST__BODY_PROGRESS:
        slot_progress(s, s->q->progress->call);
        break;
    case HEARTH__REQUEST__BODY_MAP:
        slot_map(s);
        break;
    case HEARTH__REQUEST__BODY_UNMAP:
        slot_finished(s, hth_conn_unmap(s->conn, s->q->unmap->region));
        break;
    case HEARTH__REQUEST__BODY_ATTACH:
        slot_finished(s, hth_rings_attach(s->d->rings, s->conn, s->q->attach));
        break;
    case HEARTH__REQUEST__BODY_FETCH:
        slot_fetch(s);
        break;
    default:
        hth_slot_job(s);
        break;
    }
}

static bool slot_is_about_others(const hth_slot *s)
{
    return s->q->body_case == HEARTH__REQUEST__BODY_PROGRESS ||
           s->q->body_case == HEARTH__REQUEST__BODY_CANCEL ||
           s->q->body_case == HEARTH__REQUEST__BODY_FETCH ||
           s->q->body_case == HEARTH__REQUEST__BODY_UNMAP;
}

// slot_start takes a message over. From here on the slot is counted, until its reply is sent or it
// is retired.
static void slot_start(hth_slot *s, nng_msg *msg)
{
    hth_dispatch *d = s->d;
    hth_slot_reset(s, msg);
    s->conn = hth_conn_find(d->conns, nng_msg_get_pipe(msg));
    hth_err err = hth_wire_read_request(nng_msg_body(msg), nng_msg_len(msg), &d->limits, NULL,
                                        &s->q, &s->data, &s->data_bytes);
    pthread_mutex_lock(&d->lock);
    d->n_working++;
    s->active = err == HTH_OK && s->conn != NULL;
    bool refused = s->active && d->stopping && !slot_is_about_others(s);
    d->n_refused += refused;
    pthread_mutex_unlock(&d->lock);
    if (s->conn == NULL) {
        slot_retire(s);
    } else if (err != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
    } else if (refused) {
        hth_slot_fail(s, HTH_ECANCELED, "the server is stopping: it takes no new requests");
    } else if ((err = hth_auth_check(d->auth, hth_conn_peer(s->conn), s->q->token,
                                     hth_auth_need(s->q), NULL)) != HTH_OK) {
        hth_slot_fail(s, err, hth_err_detail());
    } else {
        slot_route(s);
    }
}

static void slot_sent(hth_slot *s, int rv)
{
    hth_dispatch *d = s->d;
    if (rv != 0) {
        nng_msg_free(nng_aio_get_msg(s->aio));
    }
    pthread_mutex_lock(&d->lock);
    d->n_answered += rv == 0;
    if (--d->n_working == 0) {
        pthread_cond_broadcast(&d->idle);
    }
    pthread_mutex_unlock(&d->lock);
}

static void slot_ready(void *arg)
{
    hth_slot *s = arg;
    int rv = nng_aio_result(s->aio);
    if (s->sending) {
        slot_sent(s, rv);
        if (rv != NNG_ECLOSED && rv != NNG_ECANCELED) {
            slot_receive(s);
        }
    } else if (rv == 0) {
        slot_start(s, nng_aio_get_msg(s->aio));
    } else if (rv != NNG_ECLOSED && rv != NNG_ECANCELED) {
        slot_receive(s);
    }
}

// ---- lifetime

hth_err hth_dispatch_open(const hth_dispatch_config *config, hth_dispatch **out)
{
    hth_dispatch *d = hth_calloc(1, sizeof *d);
    int n = config->slots > 0 ? config->slots : DISPATCH_SLOTS;
    *out = NULL;
    if (d == NULL || (d->slots = hth_calloc((size_t)n, sizeof *d->slots)) == NULL) {
        hth_free(d);
        return hth_fail(HTH_ENOMEM, "out of memory for %d request slots", n);
    }
    d->store = config->store;
    d->engine = config->engine;
    d->jobs = config->jobs;
    d->conns = config->conns;
    d->auth = config->auth;
    d->rings = config->rings;
    d->limits = config->limits;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rv = 0;
    for (int i = 0; i < n && rv == 0; i++) {
        hth_slot *s = &d->slots[i];
        s->d = d;
        rv = nng_aio_alloc(&s->aio, slot_ready, s);
        if (rv == 0 && (rv = nng_ctx_open(&s->ctx, config->socket)) != 0) {
            nng_aio_free(s->aio);
        }
        d->n_slots += rv == 0;
    }
    if (rv != 0) {
        hth_dispatch_halt(d);
        hth_dispatch_close(d);
        return hth_msg_fail(rv, "cannot make %d request slots", n);
    }
    for (int i = 0; i < n; i++) {
        slot_receive(&d->slots[i]);
    }
    *out = d;
    return HTH_OK;
}

void hth_dispatch_refuse(hth_dispatch *d)
{
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    pthread_mutex_unlock(&d->lock);
}

void hth_dispatch_count(hth_dispatch *d, uint64_t *answered, uint64_t *refused)
{
    pthread_mutex_lock(&d->lock);
    *answered = d->n_answered;
    *refused = d->n_refused;
    pthread_mutex_unlock(&d->lock);
}

hth_err hth_dispatch_stop(hth_dispatch *d, uint64_t limit_ns)
{
    struct timespec until;
    int rv = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(limit_ns / 1000000000u);
    until.tv_nsec += (long)(limit_ns % 1000000000u);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    while (d->n_working > 0 && rv == 0) {
        rv = limit_ns > 0 ? pthread_cond_timedwait(&d->idle, &d->lock, &until)
                          : pthread_cond_wait(&d->idle, &d->lock);
    }
    int left = d->n_working;
    pthread_mutex_unlock(&d->lock);
    return left == 0 ? HTH_OK : hth_fail(HTH_ETIMEDOUT, "%d requests are not answered", left);
}

int hth_dispatch_cancel(hth_dispatch *d)
{
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n_slots; i++) {
        hth_slot *s = &d->slots[i];
        if (s->active && (s->r.query == NULL || strcmp(s->r.query, "train") != 0)) {
            s->r.canceled = 1;
        }
    }
    int n = d->n_working;
    pthread_mutex_unlock(&d->lock);
    return n;
}

uint64_t hth_dispatch_large_reply_ns(hth_dispatch *d)
{
    pthread_mutex_lock(&d->lock);
    uint64_t t = d->large_reply_ns;
    pthread_mutex_unlock(&d->lock);
    return t;
}

void hth_dispatch_halt(hth_dispatch *d)
{
    for (int i = 0; i < d->n_slots; i++) {
        nng_aio_stop(d->slots[i].aio); // waits for the callback, which does not receive again
    }
    for (int i = 0; i < d->n_slots; i++) {
        nng_ctx_close(d->slots[i].ctx);
    }
}

void hth_dispatch_close(hth_dispatch *d)
{
    if (d == NULL) {
        return;
    }
    for (int i = 0; i < d->n_slots; i++) {
        nng_aio_free(d->slots[i].aio);
    }
    pthread_cond_destroy(&d->idle);
    pthread_mutex_destroy(&d->lock);
    hth_free(d->slots);
    hth_free(d);
}
