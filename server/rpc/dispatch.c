// SPDX-License-Identifier: Apache-2.0
// The slots' state machine (dispatch.h) and the requests that are answered without engine or job
// thread. What goes to the engine is prepared in request.c.
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "runtime/redact.h"

#include <assert.h>
#include <string.h>
#include <time.h>

// Places beyond the limits, for local administrators.
#define DISPATCH_RESERVE 16

// ---- lists

static void slot_list(hth_rpc_slot *s)
{
    hth_dispatch *d = s->d;
    hth_rpc_slot **mine = hth_conn_slots(s->conn);
    s->newer = *mine;
    s->older = mine;
    if (*mine != NULL) {
        (*mine)->older = &s->newer;
    }
    *mine = s;
    s->after = d->slots;
    s->before = &d->slots;
    if (d->slots != NULL) {
        d->slots->before = &s->after;
    }
    d->slots = s;
}

static void slot_unlist(hth_rpc_slot *s)
{
    *s->older = s->newer;
    if (s->newer != NULL) {
        s->newer->older = s->older;
    }
    *s->before = s->after;
    if (s->after != NULL) {
        s->after->before = s->before;
    }
}

// ---- places

bool hth_rpc_slot_place(hth_rpc_slot *s)
{
    hth_dispatch *d = s->d;
    int most = (int)hth_setting_int(s->kind == HTH_RPC_SLOT_LONG ? HTH_SET_LIMIT_LONG_REQUESTS
                                                                 : HTH_SET_LIMIT_REQUESTS);
    bool admin = hth_rpc_slot_is_admin(s);
    assert(s->state == HTH_RPC_SLOT_TAKEN && !s->placed);
    pthread_mutex_lock(&d->lock);
    s->placed = d->n_placed[s->kind] < most;
    s->reserved = !s->placed && admin && d->n_reserved < DISPATCH_RESERVE;
    d->n_placed[s->kind] += s->placed;
    d->n_reserved += s->reserved;
    pthread_mutex_unlock(&d->lock);
    s->placed = s->placed || s->reserved;
    return s->placed;
}

static void dispatch_freed(hth_dispatch *d)
{
    pthread_rwlock_rdlock(&d->watching);
    for (int i = 0; i < HTH_DISPATCH_WATCHES; i++) {
        if (d->watch[i].freed != NULL) {
            d->watch[i].freed(d->watch[i].ctx);
        }
    }
    pthread_rwlock_unlock(&d->watching);
}

void hth_dispatch_watch(hth_dispatch *d, void (*freed)(void *ctx), void *ctx)
{
    int i = 0;
    pthread_rwlock_wrlock(&d->watching);
    while (i < HTH_DISPATCH_WATCHES && d->watch[i].freed != NULL) {
        i++;
    }
    assert(i < HTH_DISPATCH_WATCHES);
    d->watch[i] = (hth_dispatch_watcher){freed, ctx};
    pthread_rwlock_unlock(&d->watching);
}

void hth_dispatch_unwatch(hth_dispatch *d, void *ctx)
{
    pthread_rwlock_wrlock(&d->watching);
    for (int i = 0; i < HTH_DISPATCH_WATCHES; i++) {
        if (d->watch[i].ctx == ctx) {
            d->watch[i] = (hth_dispatch_watcher){NULL, NULL};
        }
    }
    pthread_rwlock_unlock(&d->watching);
}

// ---- ends

// slot_end takes the slot out of everything, gives its memory back, then hands the reply over: what
// was charged for it is the front end's to give back.
static void slot_end(hth_rpc_slot *s, nng_msg *reply)
{
    hth_dispatch *d = s->d;
    assert(s->state != HTH_RPC_SLOT_ENDED);
    pthread_mutex_lock(&d->lock);
    slot_unlist(s); // before it is cleared: requests about others look into those that are listed
    s->state = HTH_RPC_SLOT_ENDED;
    bool placed = s->placed;
    d->n_placed[s->kind] -= placed && !s->reserved;
    d->n_reserved -= s->reserved;
    pthread_mutex_unlock(&d->lock);
    hth_rpc_tensors_inputs_fini(&s->in);
    hth_rpc_slot_close_files(s);
    hth_wire_free_request(s->q);
    s->message.free(s->message.owner);
    hth_conn *conn = s->conn;
    const hth_front *front = s->front;
    void *back = s->back;
    bool answered = reply != NULL;
    hth_free(s);
    front->answer(back, reply);
    hth_conn_rele(conn);
    if (placed) {
        dispatch_freed(d);
    }
    pthread_mutex_lock(&d->lock); // last: whoever waits for it may free the dispatcher then
    d->n_answered += answered;
    if (--d->n_working == 0) {
        pthread_cond_broadcast(&d->idle);
    }
    pthread_mutex_unlock(&d->lock);
}

void hth_rpc_slot_send(hth_rpc_slot *s, nng_msg *msg)
{
    slot_end(s, msg);
}

void hth_rpc_slot_drop(hth_rpc_slot *s)
{
    slot_end(s, NULL);
}

void hth_rpc_slot_reply(hth_rpc_slot *s, Hearth__Reply *r)
{
    nng_msg *msg = NULL;
    uint8_t *data;
    r->call = s->q != NULL ? s->q->call : 0;
    if (hth_msg_frame(&r->base, NULL, 0, 0, &s->d->limits, &msg, &data) != HTH_OK) {
        msg = NULL; // no memory: nothing is sent
    }
    slot_end(s, msg);
}

void hth_rpc_slot_fail(hth_rpc_slot *s, hth_err err, const char *sentence)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Error body = HEARTH__ERROR__INIT;
    char cleared[1024];
    sentence = sentence[0] != 0 ? sentence : hth_strerror(err);
    if (!hth_conn_same_machine(s->conn)) {
        hth_redact(sentence, cleared, sizeof cleared);
        sentence = cleared;
    }
    body.code = (uint32_t)err;
    body.sentence = (char *)sentence;
    r.body_case = HEARTH__REPLY__BODY_ERROR;
    r.error = &body;
    hth_rpc_slot_reply(s, &r);
}

void hth_rpc_slot_document(hth_rpc_slot *s, const char *json)
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
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    memcpy(data, json, body.bytes);
    hth_rpc_slot_send(s, msg);
}

static void slot_finished(hth_rpc_slot *s, hth_err err)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Done body = HEARTH__DONE__INIT;
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    r.body_case = HEARTH__REPLY__BODY_FINISHED;
    r.finished = &body;
    hth_rpc_slot_reply(s, &r);
}

// ---- requests about other requests: found by connection and call id

// dispatch_find is under the lock.
static hth_rpc_slot *dispatch_find(hth_conn *c, uint64_t call, const hth_rpc_slot *other)
{
    for (hth_rpc_slot *s = *hth_conn_slots(c); s != NULL; s = s->newer) {
        if (s != other && s->q != NULL && s->q->call == call) {
            return s;
        }
    }
    return NULL;
}

static void slot_cancel(hth_rpc_slot *s, uint64_t call)
{
    pthread_mutex_lock(&s->d->lock);
    hth_rpc_slot *other = dispatch_find(s->conn, call, s);
    if (other != NULL) {
        other->r.canceled = 1;
    }
    pthread_mutex_unlock(&s->d->lock);
    hth_rings_cancel(s->d->rings, s->conn, call);
    slot_finished(s, HTH_OK);
}

static void slot_progress(hth_rpc_slot *s, uint64_t call)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Progressed body = HEARTH__PROGRESSED__INIT;
    hth_progress p = {.what = ""};
    pthread_mutex_lock(&s->d->lock);
    const hth_rpc_slot *other = dispatch_find(s->conn, call, s);
    if (other != NULL) {
        p = other->progress;
        body.active = p.what[0] != 0;
    }
    pthread_mutex_unlock(&s->d->lock);
    body.what = p.what;
    body.done = p.done;
    body.total = p.total;
    r.body_case = HEARTH__REPLY__BODY_PROGRESSED;
    r.progressed = &body;
    hth_rpc_slot_reply(s, &r);
}

void hth_rpc_slot_set_progress(hth_rpc_slot *s, const char *what, uint64_t done, uint64_t total)
{
    pthread_mutex_lock(&s->d->lock);
    strncpy(s->progress.what, what, sizeof s->progress.what - 1);
    s->progress.done = done;
    s->progress.total = total;
    pthread_mutex_unlock(&s->d->lock);
}

void hth_dispatch_gone(hth_dispatch *d, hth_conn *c)
{
    pthread_mutex_lock(&d->lock);
    for (hth_rpc_slot *s = *hth_conn_slots(c); s != NULL; s = s->newer) {
        s->r.canceled = 1;
    }
    pthread_mutex_unlock(&d->lock);
}

// ---- taking requests

static void slot_map(hth_rpc_slot *s)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Mapped body = HEARTH__MAPPED__INIT;
    hth_err err = hth_conn_map(s->conn, s->q->map->handle, s->q->map->bytes, &body.region);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    r.body_case = HEARTH__REPLY__BODY_MAPPED;
    r.mapped = &body;
    hth_rpc_slot_reply(s, &r);
}

static void slot_fetch(hth_rpc_slot *s)
{
    nng_msg *reply;
    hth_err err = hth_rings_fetch(s->d->rings, s->conn, s->q->fetch->call, &reply);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_send(s, reply);
}

// slot_answer_now answers what needs no engine; false: it does.
static bool slot_answer_now(hth_rpc_slot *s)
{
    switch (s->q->body_case) {
    case HEARTH__REQUEST__BODY_CANCEL:
        slot_cancel(s, s->q->cancel->call);
        return true;
    case HEARTH__REQUEST__BODY_PROGRESS:
        slot_progress(s, s->q->progress->call);
        return true;
    case HEARTH__REQUEST__BODY_MAP:
        slot_map(s);
        return true;
    case HEARTH__REQUEST__BODY_UNMAP:
        slot_finished(s, hth_conn_unmap(s->conn, s->q->unmap->region));
        return true;
    case HEARTH__REQUEST__BODY_ATTACH:
        slot_finished(s, hth_rings_attach(s->d->rings, s->conn, s->q->attach));
        return true;
    case HEARTH__REQUEST__BODY_FETCH:
        slot_fetch(s);
        return true;
    default:
        return false;
    }
}

void hth_rpc_slot_run(hth_rpc_slot *s)
{
    assert(s->state == HTH_RPC_SLOT_TAKEN);
    s->state = HTH_RPC_SLOT_WORKING;
    switch (s->q->body_case) {
    case HEARTH__REQUEST__BODY_INFER:
        hth_rpc_slot_infer(s);
        break;
    case HEARTH__REQUEST__BODY_QUERY:
        if (strcmp(s->q->query->what, "models") == 0) {
            hth_rpc_slot_models(s);
        } else if (strcmp(s->q->query->what, "verify") == 0) {
            hth_rpc_slot_verify(s);
        } else {
            hth_rpc_slot_query(s);
        }
        break;
    default:
        hth_rpc_slot_job(s);
        break;
    }
}

static bool slot_is_about_others(const hth_rpc_slot *s)
{
    return s->q->body_case == HEARTH__REQUEST__BODY_PROGRESS ||
           s->q->body_case == HEARTH__REQUEST__BODY_CANCEL ||
           s->q->body_case == HEARTH__REQUEST__BODY_FETCH ||
           s->q->body_case == HEARTH__REQUEST__BODY_UNMAP;
}

// slot_judge answers a request that may not be, or that need not wait; false: it is to be run.
static bool slot_judge(hth_rpc_slot *s, hth_err decoded)
{
    hth_dispatch *d = s->d;
    pthread_mutex_lock(&d->lock);
    bool refused = decoded == HTH_OK && d->stopping && !slot_is_about_others(s);
    d->n_refused += refused;
    pthread_mutex_unlock(&d->lock);
    hth_err err = decoded;
    if (refused) {
        err = hth_fail(HTH_ECANCELED, "the server is stopping: it takes no new requests");
    } else if (err == HTH_OK) {
        err =
            hth_auth_check(d->auth, hth_conn_peer(s->conn), s->q->token, hth_auth_need(s->q), NULL);
    }
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return true;
    }
    return slot_answer_now(s);
}

hth_err hth_dispatch_take(hth_dispatch *d, hth_conn *conn, const hth_message *m,
                          const hth_front *front, void *back, hth_rpc_slot **out)
{
    hth_rpc_slot *s = hth_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) {
        m->free(m->owner);
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    hth_conn_hold(conn);
    s->d = d;
    s->conn = conn;
    s->front = front;
    s->back = back;
    s->message = *m;
    s->r.ctx = s;
    s->file = -1;
    hth_err err = hth_wire_read_request(m->frame, m->bytes, &d->limits, NULL, &s->q, &s->data,
                                        &s->data_bytes);
    s->kind = err == HTH_OK ? hth_rpc_slot_kind_of(s->q) : HTH_RPC_SLOT_SHORT;
    pthread_mutex_lock(&d->lock);
    d->n_working++;
    slot_list(s);
    pthread_mutex_unlock(&d->lock);
    *out = slot_judge(s, err) ? NULL : s;
    return HTH_OK;
}

hth_rpc_slot_kind hth_rpc_slot_get_kind(const hth_rpc_slot *s)
{
    return s->kind;
}

bool hth_rpc_slot_is_admin(const hth_rpc_slot *s)
{
    return hth_conn_peer(s->conn) == HTH_PEER_TRUSTED &&
           s->q->body_case != HEARTH__REQUEST__BODY_INFER;
}

// ---- lifetime

hth_err hth_dispatch_open(const hth_dispatch_config *config, hth_dispatch **out)
{
    hth_dispatch *d = hth_calloc(1, sizeof *d);
    *out = NULL;
    if (d == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for requests");
    }
    hth_err err = hth_store_worker_open(&d->lists);
    err = err == HTH_OK ? hth_store_worker_open(&d->checks) : err;
    if (err != HTH_OK) {
        hth_store_worker_close(d->lists);
        hth_free(d);
        return err;
    }
    d->store = config->store;
    d->engine = config->engine;
    d->jobs = config->jobs;
    d->auth = config->auth;
    d->rings = config->rings;
    d->limits = config->limits;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_rwlock_init(&d->watching, NULL);
    pthread_cond_init(&d->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = d;
    return HTH_OK;
}

// A store takes as long to read as it is large, and loses nothing by being read another time.
void hth_dispatch_refuse(hth_dispatch *d)
{
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    for (hth_rpc_slot *s = d->slots; s != NULL; s = s->after) {
        bool verify = s->q != NULL && s->q->body_case == HEARTH__REQUEST__BODY_QUERY &&
                      strcmp(s->q->query->what, "verify") == 0;
        if (verify) {
            s->r.canceled = 1;
        }
    }
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
    for (hth_rpc_slot *s = d->slots; s != NULL; s = s->after) {
        bool train = s->q != NULL && s->q->body_case == HEARTH__REQUEST__BODY_QUERY &&
                     strcmp(s->q->query->what, "train") == 0;
        if (!train) {
            s->r.canceled = 1;
        }
    }
    int n = d->n_working;
    pthread_mutex_unlock(&d->lock);
    return n;
}

void hth_dispatch_close(hth_dispatch *d)
{
    if (d == NULL) {
        return;
    }
    hth_store_worker_close(d->lists);
    hth_store_worker_close(d->checks);
    pthread_cond_destroy(&d->idle);
    pthread_rwlock_destroy(&d->watching);
    pthread_mutex_destroy(&d->lock);
    hth_free(d);
}
