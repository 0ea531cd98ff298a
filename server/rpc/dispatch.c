// SPDX-License-Identifier: Apache-2.0
// The slots' state machine (dispatch.h) and the requests that are answered without engine or job
// thread. What goes to the engine is prepared in rpc_slot.c, what a thread answers from the store
// in rpc_slot_store.c.
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Places beyond the limits, for local administrators.
#define DISPATCH_RESERVE 16
// How often who waits for the end of all requests looks at the time.
#define DISPATCH_LOOK_NS 2000000

// ---- lists

static void slot_list(hth_rpc_slot *slot)
{
    hth_dispatch *d = slot->d;
    hth_rpc_slot **mine = hth_conn_slots(slot->conn);
    slot->newer = *mine;
    slot->older = mine;
    if (*mine != NULL) {
        (*mine)->older = &slot->newer;
    }
    *mine = slot;
    slot->after = d->slots;
    slot->before = &d->slots;
    if (d->slots != NULL) {
        d->slots->before = &slot->after;
    }
    d->slots = slot;
}

// slot_unlist_mine takes the slot out of its connection's list.
static void slot_unlist_mine(hth_rpc_slot *slot)
{
    *slot->older = slot->newer;
    if (slot->newer != NULL) {
        slot->newer->older = slot->older;
    }
}

static void slot_unlist(hth_rpc_slot *slot)
{
    if (!slot->detached) {
        slot_unlist_mine(slot);
    }
    *slot->before = slot->after;
    if (slot->after != NULL) {
        slot->after->before = slot->before;
    }
}

// ---- places

// slot_give gives the slot's place back; under the lock. True: it had one.
static bool slot_give(hth_rpc_slot *slot)
{
    bool placed = slot->placed;
    slot->d->n_placed[slot->kind] -= placed && !slot->reserved;
    slot->d->n_reserved -= slot->reserved;
    slot->placed = slot->reserved = false;
    return placed;
}

bool hth_rpc_slot_place(hth_rpc_slot *slot)
{
    hth_dispatch *d = slot->d;
    int most = (int)hth_setting_int(slot->kind == HTH_RPC_SLOT_LONG ? HTH_SET_LIMIT_LONG_REQUESTS
                                                                    : HTH_SET_LIMIT_REQUESTS);
    bool admin = hth_rpc_slot_is_admin(slot);
    assert(slot->state == HTH_RPC_SLOT_TAKEN && !slot->placed);
    pthread_mutex_lock(&d->lock);
    slot->placed = d->n_placed[slot->kind] < most;
    slot->reserved = !slot->placed && admin && d->n_reserved < DISPATCH_RESERVE;
    d->n_placed[slot->kind] += slot->placed;
    d->n_reserved += slot->reserved;
    pthread_mutex_unlock(&d->lock);
    slot->placed = slot->placed || slot->reserved;
    return slot->placed;
}

static void dispatch_freed(hth_dispatch *dispatch)
{
    pthread_rwlock_rdlock(&dispatch->watching);
    for (int i = 0; i < HTH_DISPATCH_WATCHES; i++) {
        if (dispatch->watch[i].freed != NULL) {
            dispatch->watch[i].freed(dispatch->watch[i].ctx);
        }
    }
    pthread_rwlock_unlock(&dispatch->watching);
}

void hth_dispatch_watch(hth_dispatch *dispatch, void (*freed)(void *ctx), void *ctx)
{
    int i = 0;
    pthread_rwlock_wrlock(&dispatch->watching);
    while (i < HTH_DISPATCH_WATCHES && dispatch->watch[i].freed != NULL) {
        i++;
    }
    assert(i < HTH_DISPATCH_WATCHES);
    dispatch->watch[i] = (hth_dispatch_watcher){freed, ctx};
    pthread_rwlock_unlock(&dispatch->watching);
}

void hth_dispatch_unwatch(hth_dispatch *dispatch, void *ctx)
{
    pthread_rwlock_wrlock(&dispatch->watching);
    for (int i = 0; i < HTH_DISPATCH_WATCHES; i++) {
        if (dispatch->watch[i].ctx == ctx) {
            dispatch->watch[i] = (hth_dispatch_watcher){NULL, NULL};
        }
    }
    pthread_rwlock_unlock(&dispatch->watching);
}

// ---- ends

// What a slot has of its client, and who that is.
typedef struct slot_front {
    hth_conn *conn;
    const hth_front *front; // NULL: it has left it before
    void *back;
} slot_front;

// slot_leave frees the message, and takes connection and front end from the slot.
static slot_front slot_leave(hth_rpc_slot *slot)
{
    slot_front at = {slot->conn, slot->front, slot->back};
    if (at.front != NULL) {
        slot->message.free(slot->message.owner);
    }
    slot->conn = NULL;
    slot->front = NULL;
    slot->back = NULL;
    return at;
}

static void slot_hand(const slot_front *at, nng_msg *reply)
{
    if (at->front != NULL) {
        at->front->answer(at->back, reply);
        hth_conn_rele(at->conn);
    }
}

void hth_rpc_slot_detach(hth_rpc_slot *slot, const char *state)
{
    hth_dispatch *d = slot->d;
    nng_msg *reply = hth_rpc_slot_taken(slot, state);
    pthread_mutex_lock(&d->lock);
    bool leaves = reply != NULL && slot->leaves && !slot->detached && !slot->r.canceled;
    bool placed = leaves && slot_give(slot);
    if (leaves) {
        slot_unlist_mine(slot);
        slot->detached = true;
        d->n_detached++;
        d->n_answered++;
    }
    pthread_mutex_unlock(&d->lock);
    if (!leaves) {
        nng_msg_free(reply);
        return;
    }
    hth_rpc_slot_unclaim_data(slot);
    slot->uid = hth_conn_uid(slot->conn, &slot->uid) ? slot->uid : geteuid();
    slot_front at = slot_leave(slot);
    slot_hand(&at, reply);
    if (placed) {
        dispatch_freed(d);
    }
}

// slot_end takes the slot out of everything, gives its memory back, then hands the reply over: what
// was charged for it is the front end's to give back.
static void slot_end(hth_rpc_slot *slot, nng_msg *reply)
{
    hth_dispatch *d = slot->d;
    assert(slot->state != HTH_RPC_SLOT_ENDED);
    pthread_mutex_lock(&d->lock);
    slot_unlist(
        slot); // before it is cleared: requests about others look into those that are listed
    slot->state = HTH_RPC_SLOT_ENDED;
    bool placed = slot_give(slot);
    d->n_detached -= slot->detached;
    hth_tenant_part_give(slot->part);
    pthread_mutex_unlock(&d->lock);
    hth_rpc_tensors_inputs_fini(&slot->in);
    hth_rpc_slot_close_files(slot);
    hth_rpc_slot_unclaim_data(slot);
    hth_wire_free_request(slot->q);
    free(slot->changed);
    slot_front at = slot_leave(slot);
    bool answered = reply != NULL;
    hth_free(slot);
    slot_hand(&at, reply);
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

void hth_rpc_slot_send(hth_rpc_slot *slot, nng_msg *msg)
{
    slot_end(slot, msg);
}

void hth_rpc_slot_drop(hth_rpc_slot *slot)
{
    slot_end(slot, NULL);
}

static void slot_finished(hth_rpc_slot *slot, hth_err err)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Done body = HEARTH__DONE__INIT;
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    r.body_case = HEARTH__REPLY__BODY_FINISHED;
    r.finished = &body;
    hth_rpc_slot_reply(slot, &r);
}

// ---- requests about other requests: found by connection and call id

// dispatch_find is under the lock.
static hth_rpc_slot *dispatch_find(hth_conn *conn, uint64_t call, const hth_rpc_slot *other)
{
    for (hth_rpc_slot *s = *hth_conn_slots(conn); s != NULL; s = s->newer) {
        if (s != other && s->q != NULL && s->q->call == call) {
            return s;
        }
    }
    return NULL;
}

static void slot_cancel(hth_rpc_slot *slot, uint64_t call)
{
    pthread_mutex_lock(&slot->d->lock);
    hth_rpc_slot *other = dispatch_find(slot->conn, call, slot);
    if (other != NULL) {
        other->r.canceled = 1;
    }
    pthread_mutex_unlock(&slot->d->lock);
    hth_job_watches_look(slot->d->watches);
    hth_rings_cancel(slot->d->rings, slot->conn, call);
    slot_finished(slot, HTH_OK);
}

static void slot_progress(hth_rpc_slot *slot, uint64_t call)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Progressed body = HEARTH__PROGRESSED__INIT;
    hth_progress p = {.what = ""};
    pthread_mutex_lock(&slot->d->lock);
    const hth_rpc_slot *other = dispatch_find(slot->conn, call, slot);
    if (other != NULL) {
        p = other->progress;
        body.active = p.what[0] != 0;
    }
    pthread_mutex_unlock(&slot->d->lock);
    body.what = p.what;
    body.done = p.done;
    body.total = p.total;
    r.body_case = HEARTH__REPLY__BODY_PROGRESSED;
    r.progressed = &body;
    hth_rpc_slot_reply(slot, &r);
}

void hth_rpc_slot_set_progress(hth_rpc_slot *slot, const char *what, uint64_t done, uint64_t total)
{
    pthread_mutex_lock(&slot->d->lock);
    strncpy(slot->progress.what, what, sizeof slot->progress.what - 1);
    slot->progress.done = done;
    slot->progress.total = total;
    pthread_mutex_unlock(&slot->d->lock);
}

void hth_dispatch_gone(hth_dispatch *dispatch, hth_conn *conn)
{
    pthread_mutex_lock(&dispatch->lock);
    for (hth_rpc_slot *s = *hth_conn_slots(conn); s != NULL; s = s->newer) {
        s->r.canceled = 1;
    }
    pthread_mutex_unlock(&dispatch->lock);
    hth_job_watches_look(dispatch->watches);
}

// ---- taking requests

static void slot_map(hth_rpc_slot *slot)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Mapped body = HEARTH__MAPPED__INIT;
    hth_err err = hth_conn_map(slot->conn, slot->q->map->handle, slot->q->map->bytes, &body.region);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    r.body_case = HEARTH__REPLY__BODY_MAPPED;
    r.mapped = &body;
    hth_rpc_slot_reply(slot, &r);
}

static void slot_fetch(hth_rpc_slot *slot)
{
    nng_msg *reply;
    hth_err err = hth_rings_fetch(slot->d->rings, slot->conn, slot->q->fetch->call, &reply);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_send(slot, reply);
}

// slot_answer_now answers what needs no engine; false: it does.
static bool slot_answer_now(hth_rpc_slot *slot)
{
    switch (slot->q->body_case) {
    case HEARTH__REQUEST__BODY_CANCEL:
        slot_cancel(slot, slot->q->cancel->call);
        return true;
    case HEARTH__REQUEST__BODY_PROGRESS:
        slot_progress(slot, slot->q->progress->call);
        return true;
    case HEARTH__REQUEST__BODY_MAP:
        slot_map(slot);
        return true;
    case HEARTH__REQUEST__BODY_UNMAP:
        slot_finished(slot, hth_conn_unmap(slot->conn, slot->q->unmap->region));
        return true;
    case HEARTH__REQUEST__BODY_ATTACH:
        slot_finished(slot, hth_rings_attach(slot->d->rings, slot->conn, slot->q->attach));
        return true;
    case HEARTH__REQUEST__BODY_FETCH:
        slot_fetch(slot);
        return true;
    default:
        return false;
    }
}

void hth_rpc_slot_run(hth_rpc_slot *slot)
{
    assert(slot->state == HTH_RPC_SLOT_TAKEN);
    slot->state = HTH_RPC_SLOT_WORKING;
    switch (slot->q->body_case) {
    case HEARTH__REQUEST__BODY_INFER:
        hth_rpc_slot_infer(slot);
        break;
    case HEARTH__REQUEST__BODY_QUERY:
        if (slot->command == HTH_COMMAND_MODELS) {
            hth_rpc_slot_models(slot);
        } else if (slot->command == HTH_COMMAND_ALIAS) {
            hth_rpc_slot_alias(slot);
        } else if (slot->command == HTH_COMMAND_VERIFY) {
            hth_rpc_slot_verify(slot);
        } else if (hth_rpc_slot_is_dataset(slot)) {
            hth_rpc_slot_dataset(slot);
        } else if (slot->command == HTH_COMMAND_WATCH) {
            hth_rpc_slot_watch(slot);
        } else if (slot->command == HTH_COMMAND_TRAIN) {
            hth_rpc_slot_train(slot);
        } else {
            hth_rpc_slot_query(slot);
        }
        break;
    case HEARTH__REQUEST__BODY_HAVE:
    case HEARTH__REQUEST__BODY_PUT:
    case HEARTH__REQUEST__BODY_DISCARD:
    case HEARTH__REQUEST__BODY_COMMIT:
    case HEARTH__REQUEST__BODY_MANIFEST:
    case HEARTH__REQUEST__BODY_GET:
        hth_rpc_slot_content(slot);
        break;
    default:
        hth_rpc_slot_job(slot);
        break;
    }
}

static bool slot_is_about_others(const hth_rpc_slot *slot)
{
    return slot->q->body_case == HEARTH__REQUEST__BODY_PROGRESS ||
           slot->q->body_case == HEARTH__REQUEST__BODY_CANCEL ||
           slot->q->body_case == HEARTH__REQUEST__BODY_FETCH ||
           slot->q->body_case == HEARTH__REQUEST__BODY_UNMAP;
}

// slot_judge answers a request that may not be, or that need not wait; false: it is to be run.
static bool slot_judge(hth_rpc_slot *slot, hth_err decoded)
{
    hth_dispatch *d = slot->d;
    pthread_mutex_lock(&d->lock);
    bool refused = decoded == HTH_OK && d->stopping && !slot_is_about_others(slot);
    d->n_refused += refused;
    pthread_mutex_unlock(&d->lock);
    hth_err err = decoded;
    if (refused) {
        err = hth_fail(HTH_ECANCELED, "the server is stopping: it takes no new requests");
    } else if (err == HTH_OK) {
        err = hth_auth_check(d->auth, hth_conn_peer(slot->conn), slot->q->token,
                             hth_auth_need(slot->q, slot->command), NULL);
    }
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
        return true;
    }
    return slot_answer_now(slot);
}

hth_err hth_dispatch_take(hth_dispatch *dispatch, hth_conn *conn, const hth_message *message,
                          const hth_front *front, void *back, hth_rpc_slot **out)
{
    hth_rpc_slot *s = hth_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) {
        message->free(message->owner);
        return hth_no_memory("a request");
    }
    hth_conn_hold(conn);
    s->d = dispatch;
    s->conn = conn;
    s->front = front;
    s->back = back;
    s->message = *message;
    s->r.ctx = s;
    s->file = -1;
    for (int i = 0; i < HTH_RPC_SLOT_DATA; i++) {
        s->claim[i] = -1;
    }
    hth_err err = hth_wire_read_request(message->frame, message->bytes, &dispatch->limits, &s->q,
                                        &s->data, &s->data_bytes);
    if (err == HTH_OK && s->q->body_case == HEARTH__REQUEST__BODY_QUERY) {
        s->command = hth_command_find(s->q->query->what);
    }
    s->kind = err == HTH_OK ? hth_rpc_slot_kind_of(s->q, s->command) : HTH_RPC_SLOT_SHORT;
    pthread_mutex_lock(&dispatch->lock);
    dispatch->n_working++;
    slot_list(s);
    pthread_mutex_unlock(&dispatch->lock);
    *out = slot_judge(s, err) ? NULL : s;
    return HTH_OK;
}

hth_rpc_slot_kind hth_rpc_slot_get_kind(const hth_rpc_slot *slot)
{
    return slot->kind;
}

bool hth_rpc_slot_is_admin(const hth_rpc_slot *slot)
{
    return hth_conn_peer(slot->conn) == HTH_PEER_TRUSTED &&
           slot->q->body_case != HEARTH__REQUEST__BODY_INFER;
}

// ---- lifetime

static hth_err dispatch_threads(hth_dispatch *dispatch)
{
    HTH_TRY(hth_store_worker_open(&dispatch->lists));
    HTH_TRY(hth_store_worker_open(&dispatch->checks));
    for (int i = 0; i < HTH_DISPATCH_CONTENT; i++) {
        HTH_TRY(hth_store_worker_open(&dispatch->content[i]));
    }
    return HTH_OK;
}

static void dispatch_end_threads(hth_dispatch *dispatch)
{
    hth_store_worker_close(dispatch->lists);
    hth_store_worker_close(dispatch->checks);
    for (int i = 0; i < HTH_DISPATCH_CONTENT; i++) {
        hth_store_worker_close(dispatch->content[i]);
    }
}

static hth_err dispatch_rules(hth_tenant_rules *out)
{
    char path[HTH_SETTING_TEXT];
    return hth_tenant_rules_read(hth_setting_text(HTH_SET_TENANT_FILE, path), out);
}

hth_err hth_dispatch_reload(hth_dispatch *dispatch)
{
    hth_tenant_rules fresh, old;
    HTH_TRY(dispatch_rules(&fresh));
    pthread_mutex_lock(&dispatch->lock);
    old = dispatch->tenants;
    dispatch->tenants = fresh;
    pthread_mutex_unlock(&dispatch->lock);
    hth_tenant_rules_fini(&old);
    return HTH_OK;
}

hth_err hth_dispatch_open(const hth_dispatch_config *config, hth_dispatch **out)
{
    hth_dispatch *d = hth_calloc(1, sizeof *d);
    *out = NULL;
    if (d == NULL) {
        return hth_no_memory("requests");
    }
    hth_err err = dispatch_threads(d);
    if (err == HTH_OK) {
        err = dispatch_rules(&d->tenants);
    }
    if (err != HTH_OK) {
        dispatch_end_threads(d);
        hth_free(d);
        return err;
    }
    d->store = config->store;
    d->engine = config->engine;
    d->jobs = config->jobs;
    d->auth = config->auth;
    d->rings = config->rings;
    d->watches = config->watches;
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
void hth_dispatch_refuse(hth_dispatch *dispatch)
{
    pthread_mutex_lock(&dispatch->lock);
    dispatch->stopping = true;
    for (hth_rpc_slot *s = dispatch->slots; s != NULL; s = s->after) {
        bool verify = s->command == HTH_COMMAND_VERIFY;
        if (verify) {
            s->r.canceled = 1;
        }
    }
    pthread_mutex_unlock(&dispatch->lock);
    hth_job_watches_stop(dispatch->watches);
}

void hth_dispatch_count(hth_dispatch *dispatch, uint64_t *answered, uint64_t *refused)
{
    pthread_mutex_lock(&dispatch->lock);
    *answered = dispatch->n_answered;
    *refused = dispatch->n_refused;
    pthread_mutex_unlock(&dispatch->lock);
}

// dispatch_wait waits, under the lock, for the end of the last request, or until it is time to look
// at the time: that is hth_now_ns's, not the system's.
static void dispatch_wait(hth_dispatch *dispatch)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += DISPATCH_LOOK_NS;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&dispatch->idle, &dispatch->lock, &t);
}

hth_err hth_dispatch_stop(hth_dispatch *dispatch, uint64_t limit_ns)
{
    uint64_t until_ns = hth_now_ns() + limit_ns;
    hth_job_watches_stop(dispatch->watches);
    pthread_mutex_lock(&dispatch->lock);
    dispatch->stopping = true;
    while (dispatch->n_working > 0 && (limit_ns == 0 || hth_now_ns() < until_ns)) {
        dispatch_wait(dispatch);
    }
    int left = dispatch->n_working;
    pthread_mutex_unlock(&dispatch->lock);
    return left == 0 ? HTH_OK : hth_fail(HTH_ETIMEDOUT, "%d requests are not answered", left);
}

int hth_dispatch_detached(hth_dispatch *dispatch)
{
    pthread_mutex_lock(&dispatch->lock);
    int n = dispatch->n_detached;
    pthread_mutex_unlock(&dispatch->lock);
    return n;
}

int hth_dispatch_cancel(hth_dispatch *dispatch)
{
    pthread_mutex_lock(&dispatch->lock);
    for (hth_rpc_slot *s = dispatch->slots; s != NULL; s = s->after) {
        bool train = s->command == HTH_COMMAND_TRAIN;
        if (!train) {
            s->r.canceled = 1;
        }
    }
    int n = dispatch->n_working;
    pthread_mutex_unlock(&dispatch->lock);
    return n;
}

void hth_dispatch_close(hth_dispatch *dispatch)
{
    if (dispatch == NULL) {
        return;
    }
    dispatch_end_threads(dispatch);
    hth_tenant_rules_fini(&dispatch->tenants);
    pthread_cond_destroy(&dispatch->idle);
    pthread_rwlock_destroy(&dispatch->watching);
    pthread_mutex_destroy(&dispatch->lock);
    hth_free(dispatch);
}
