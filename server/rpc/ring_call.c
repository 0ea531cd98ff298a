// SPDX-License-Identifier: Apache-2.0
// One request of a ring: its record is copied out of the ring to where the engine reads it, checked
// there, and submitted; the engine writes the outputs into the reply's record, which `done` copies
// into the channel. A reply that is larger than its channel, or for which the channel has no room
// because replies to calls that were given up lie there, becomes a message of the socket's, kept
// until it is fetched, its call is canceled, or the connection goes.
#include "server/rpc/rings_impl.h"
#include "runtime/tenants/tenant_rules.h"

#include "base/alloc.h"
#include "client/wire.h"

#include <string.h>

#define CALL_BURST       16   // messages taken in one go: who serves has other rings to look at
#define CALL_COST        4096 // of each, in bytes that are copied
#define CALL_PER_CHANNEL 2    // one that waits and one that was given up

struct hth_ring_call {
    hth_request r;
    hth_ring_client *c;
    hth_channel_head head;
    char tenant[HTH_TENANT];
    hth_rpc_tensors_inputs in;
    hth_ipc_record *request; // memory of the engine's
    uint8_t *reply;          // a channel's message, or
    size_t reply_bytes;
    nng_msg *large;   // the socket's
    uint64_t charged; // bytes of request and outputs that the connection is charged for
    bool given_up;    // nobody waits for the reply; under the ring's lock
    hth_ring_call *next;
};

hth_err hth_ring_message(const hth_ring_layout *layout, const hth_channel_head *head, size_t bytes)
{
    if (bytes < sizeof *head || head->channel >= layout->channels) {
        return hth_fail(HTH_ECORRUPT, "a message in a ring names no channel of it");
    }
    return head->token_bytes <= HTH_CHANNEL_TOKEN && hth_channel_record(head) <= bytes
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "a message in a ring has no room for its token");
}

int hth_ring_calls_most(const hth_ring_client *client)
{
    return (int)(client->layout.channels * CALL_PER_CHANNEL);
}

// ---- replies

// call_channel makes a channel's message with room for a record, which goes to *record.
static hth_err call_channel(hth_ring_call *call, size_t bytes, uint8_t **record)
{
    const hth_channel_head head = {.call = call->head.call};
    hth_free(call->reply);
    call->reply_bytes = sizeof head + bytes;
    call->reply = hth_alloc_aligned(call->reply_bytes, HTH_IPC_RECORD_ALIGN);
    if (call->reply == NULL) {
        call->reply_bytes = 0;
        return hth_no_memory("a reply");
    }
    memset(call->reply, 0, sizeof head);
    memcpy(call->reply, &head, sizeof head);
    *record = call->reply + sizeof head;
    return HTH_OK;
}

// call_large makes a message of the socket's with room for a record.
static hth_err call_large(hth_ring_call *call, size_t bytes, uint8_t **record)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Kept body = HEARTH__KEPT__INIT;
    r.call = call->head.call;
    r.body_case = HEARTH__REPLY__BODY_KEPT;
    r.kept = &body;
    if (call->large != NULL) { // of an inference that failed
        nng_msg_free(call->large);
        call->large = NULL;
    }
    return hth_wire_message(&r.base, NULL, 0, bytes, &call->c->t->limits, &call->large, record);
}

// call_charge charges the connection for memory before there is any, until the call is freed.
static hth_err call_charge(hth_ring_call *call, uint64_t bytes)
{
    HTH_TRY(hth_conn_charge(call->c->conn, bytes));
    call->charged += bytes;
    return HTH_OK;
}

// call_outputs makes the reply's record and sets where the outputs' bytes go.
static hth_err call_outputs(hth_ring_call *call, int version, hth_request_tensor *out, int n)
{
    const char *const texts[HTH_IPC_RECORD_TEXTS] = {
        [HTH_IPC_RECORD_SERVED] = call->r.target[0] != 0 ? call->r.target : NULL};
    size_t names = 0;
    uint64_t data = 0;
    uint8_t *at;
    for (int i = 0; i < n; i++) {
        names += out[i].name != NULL ? strlen(out[i].name) + 1 : 0;
        data += out[i].t.bytes + hth_ipc_record_pad(out[i].t.bytes); // of memory that there is
    }
    size_t head = hth_ipc_record_room(texts, (size_t)n, names);
    bool fits =
        sizeof(hth_channel_head) + head + data <= hth_ring_max(call->c->layout.channel_bytes);
    HTH_TRY(call_charge(call, head + data));
    HTH_TRY(fits ? call_channel(call, head + data, &at) : call_large(call, head + data, &at));
    hth_ipc_record *r = (hth_ipc_record *)(void *)at;
    hth_ipc_record_begin(r, texts, (size_t)n);
    r->version = version;
    for (int i = 0; i < n; i++) {
        const hth_tensor *t = &out[i].t;
        hth_ipc_record_add(r, out[i].name, t->dtype, (size_t)t->shape.rank, t->shape.dim, t->bytes);
    }
    HTH_TRY(hth_ipc_record_end(r));
    for (int i = 0; i < n; i++) {
        uint64_t end = r->tensor[i].at + out[i].t.bytes;
        out[i].t.data = at + r->tensor[i].at;
        memset(at + end, 0, hth_ipc_record_pad(end)); // no old memory leaves the process
    }
    return HTH_OK;
}

static hth_err call_place(hth_request *request, hth_request_tensor *out, int n_out)
{
    return call_outputs(request->ctx, request->version, out, n_out);
}

// call_free frees a call that is in no list. Its ring goes with the last one.
static void call_free(hth_ring_call *call)
{
    hth_ring_client *c = call->c;
    hth_rpc_tensors_inputs_fini(&call->in);
    hth_engine_free(c->t->engine, call->request);
    hth_free(call->reply);
    if (call->large != NULL) {
        nng_msg_free(call->large);
    }
    hth_conn_uncharge(c->conn, call->charged);
    hth_free(call);
    hth_ring_client_rele(c);
}

static void call_unlink(hth_ring_call **at, const hth_ring_call *call)
{
    while (*at != call) {
        at = &(*at)->next;
    }
    *at = call->next;
}

// call_error makes the reply an error; where there is no memory for that the client gives up some
// time.
static void call_error(hth_ring_call *call, hth_err err, const char *sentence)
{
    const char *const text[HTH_IPC_RECORD_TEXTS] = {
        [HTH_IPC_RECORD_DETAIL] = sentence[0] != 0 ? sentence : hth_strerror(err)};
    uint8_t *at;
    if (call_channel(call, hth_ipc_record_room(text, 0, 0), &at) == HTH_OK) {
        hth_ipc_record *r = (hth_ipc_record *)(void *)at;
        hth_ipc_record_begin(r, text, 0);
        r->err = (uint32_t)err;
        (void)hth_ipc_record_end(r); // of no tensors
    }
}

// call_in_channel puts the reply into its channel; false: the channel has no room.
static bool call_in_channel(hth_ring_call *call)
{
    hth_ring_part part = {call->reply, call->reply_bytes};
    hth_err err = HTH_OK;
    if (call->reply != NULL && call->reply_bytes > 0) {
        err = hth_ring_send(call->c->replies[call->head.channel], &part, 1, 0);
        call->c->t->n_answered += err == HTH_OK;
    }
    return err != HTH_EBUSY;
}

// call_enlarge makes the channel's message one of the socket's, in its place: the connection stays
// charged for one. False: no memory, or too many wait.
static bool call_enlarge(hth_ring_call *call)
{
    size_t bytes = call->reply_bytes - sizeof call->head;
    uint8_t *record;
    if (call->c->n_calls > hth_ring_calls_most(call->c) ||
        call_large(call, bytes, &record) != HTH_OK) {
        return false;
    }
    memcpy(record, call->reply + sizeof call->head, bytes);
    hth_free(call->reply);
    call->reply = NULL;
    return true;
}

// call_send ends the call: its reply goes into the channel, and the call into the list of those
// that are fetched, or nowhere.
static void call_send(hth_ring_call *call, bool keep, bool refused)
{
    hth_ring_client *c = call->c;
    hth_rings *t = c->t;
    pthread_mutex_lock(&c->lock);
    call_unlink(&c->calls, call);
    bool in_channel = call_in_channel(call);
    if (!c->ended && !call->given_up && (keep || (!in_channel && call_enlarge(call)))) {
        keep = true;
        t->n_answered += !in_channel;
        call->next = c->retained;
        c->retained = call;
        atomic_fetch_add(&t->n_retained, 1);
    } else {
        keep = false;
        c->n_calls--;
    }
    pthread_mutex_unlock(&c->lock);
    t->n_refused += refused;
    if (!keep) {
        call_free(call);
    }
    atomic_fetch_sub(&t->n_working, 1);
}

static void call_done(hth_request *request)
{
    hth_ring_call *k = request->ctx;
    bool keep = false;
    if (request->err != HTH_OK) {
        call_error(k, request->err, request->detail);
    } else if (k->large != NULL) {
        uint8_t *none;
        keep = true;
        (void)call_channel(k, 0, &none); // no memory: the client gives up some time
    } else if (k->reply == NULL) {
        call_error(k, HTH_ENOTSUP, "the engine gave no outputs");
    }
    call_send(k, keep, false);
}

// ---- requests

// call_was_canceled tells whether a call was canceled before it came, and forgets cancellations of
// what was sent before it. Under the ring's lock.
static bool call_was_canceled(const hth_ring_call *call)
{
    hth_ring_client *c = call->c;
    bool canceled = false;
    int left = 0;
    for (int i = 0; i < c->n_cancels; i++) {
        canceled = canceled || c->cancels[i].call == call->head.call;
        if (c->cancels[i].before > c->listed) {
            c->cancels[left++] = c->cancels[i];
        }
    }
    c->n_cancels = left;
    return canceled;
}

// call_list lists a call as one in progress; false: there are too many.
static bool call_list(hth_ring_call *call)
{
    hth_ring_client *c = call->c;
    pthread_mutex_lock(&c->lock);
    bool busy = c->n_calls >= hth_ring_calls_most(c);
    c->listed = hth_ring_taken(c->requests);
    call->given_up = call_was_canceled(call);
    call->r.canceled = call->given_up;
    call->next = c->calls;
    c->calls = call;
    c->n_calls++;
    pthread_mutex_unlock(&c->lock);
    return !busy;
}

static hth_err call_submit(hth_ring_call *call, const char *token)
{
    const hth_ipc_record *q = call->request;
    hth_auth *auth = call->c->t->auth;
    HTH_TRY(hth_auth_check(auth, hth_conn_peer(call->c->conn), token, HTH_NEED_INFER, NULL));
    HTH_TRY(hth_rpc_tensors_inputs_record(&call->in, call->c->conn, q));
    hth_auth_tenant(auth, token, hth_conn_tenant(call->c->conn), call->tenant, sizeof call->tenant);
    call->r.model = hth_ipc_record_text(q, HTH_IPC_RECORD_MODEL);
    call->r.inputs = call->in.list;
    call->r.n_inputs = call->in.n;
    call->r.record = call->request;
    call->r.priority = q->priority;
    call->r.timeout_us = q->timeout_us;
    call->r.tenant = call->tenant;
    call->r.place = call_place;
    call->r.done = call_done;
    call->r.ctx = call;
    return hth_engine_submit(call->c->t->engine, &call->r);
}

static hth_err call_check(const hth_ring_call *call, size_t bytes)
{
    const hth_ipc_record *q = call->request;
    HTH_TRY(hth_wire_check_record(q, bytes, &call->c->t->limits));
    bool infers = q->text[HTH_IPC_RECORD_MODEL] != 0 && q->text[HTH_IPC_RECORD_QUERY] == 0 &&
                  q->text[HTH_IPC_RECORD_ARGUMENTS] == 0 && q->n_known == 0;
    return infers ? HTH_OK : hth_fail(HTH_ENOTSUP, "a ring carries inferences only");
}

// call_go submits a request that is well-formed, unless there was no room for it.
static hth_err call_go(hth_ring_call *call, bool refused, bool room, const char *token)
{
    if (refused) {
        return hth_fail(HTH_ECANCELED, "the server is stopping: it takes no new requests");
    }
    if (!room) {
        return hth_fail(HTH_EBUSY, "a ring of %u channels has that many requests in progress",
                        (unsigned)call->c->layout.channels);
    }
    return call_submit(call, token);
}

// call_start submits the request, whose record has so many bytes if it could be read, or answers at
// once. An error is the ring's: its client does not speak this language.
static hth_err call_start(hth_ring_call *call, hth_err read, size_t bytes, const char *token)
{
    hth_rings *t = call->c->t;
    hth_err err = read;
    if (err == HTH_OK) {
        err = call_check(call, bytes);
    }
    bool well = err == HTH_ENOTSUP || err == HTH_ENOMEM || err == HTH_EBUSY;
    hth_err bad = well ? HTH_OK : err;
    call->head.call = bad == HTH_OK ? call->head.call : 0;
    atomic_fetch_add(&t->n_working, 1);
    bool room = call_list(call); // sets no sentence: what is wrong so far has one
    bool refused = err == HTH_OK && t->stopping;
    if (err == HTH_OK) {
        err = call_go(call, refused, room, token);
    }
    if (err != HTH_OK) {
        call_error(call, err, hth_err_detail());
        call_send(call, false, refused);
    }
    return bad;
}

// call_request makes room for a request's record, which the connection is charged for.
static hth_err call_request(hth_ring_call *call, size_t bytes)
{
    HTH_TRY(call_charge(call, bytes));
    call->request = hth_engine_alloc(call->c->t->engine, bytes);
    return call->request != NULL ? HTH_OK : hth_no_memory("a request");
}

// call_take takes the message of `bytes` out of the ring, each byte once: the head and the token to
// this process, the record to where the engine's may read it.
static hth_err call_take(hth_ring_client *client, size_t bytes)
{
    char token[HTH_CHANNEL_TOKEN + 1];
    hth_ring_call *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("a request");
    }
    k->c = client;
    atomic_fetch_add(&client->refs, 1);
    hth_ring_read(client->requests, 0, &k->head, bytes < sizeof k->head ? bytes : sizeof k->head);
    hth_err err = hth_ring_message(&client->layout, &k->head, bytes);
    if (err == HTH_ECORRUPT) { // nobody can be answered
        call_free(k);
        return err;
    }
    size_t at = hth_channel_record(&k->head), rest = err == HTH_OK ? bytes - at : 0;
    if (err == HTH_OK) {
        hth_ring_read(client->requests, sizeof k->head, token, k->head.token_bytes);
        token[k->head.token_bytes] = 0;
        err = call_request(k, rest);
    }
    if (err == HTH_OK) {
        hth_ring_read(client->requests, at, k->request, rest);
    }
    hth_ring_drop(client->requests);
    return call_start(k, err, rest, token);
}

hth_err hth_ring_serve(hth_ring_client *client, uint64_t *left)
{
    size_t bytes;
    for (int i = 0; i < CALL_BURST; i++) {
        HTH_TRY(hth_ring_next(client->requests, &bytes));
        if (bytes + CALL_COST > *left) {
            return HTH_EBUSY;
        }
        *left -= bytes + CALL_COST;
        HTH_TRY(call_take(client, bytes));
    }
    return HTH_OK;
}

// ---- about calls

void hth_ring_calls_end(hth_ring_client *client)
{
    pthread_mutex_lock(&client->lock);
    hth_ring_call *k = client->retained;
    client->retained = NULL;
    client->ended = true;
    pthread_mutex_unlock(&client->lock);
    while (k != NULL) {
        hth_ring_call *next = k->next;
        atomic_fetch_sub(&client->t->n_retained, 1);
        call_free(k);
        k = next;
    }
}

int hth_ring_calls_cancel(hth_ring_client *client, uint64_t call)
{
    int n = 0;
    pthread_mutex_lock(&client->lock);
    for (hth_ring_call *k = client->calls; k != NULL; k = k->next) {
        if (call == 0 || k->head.call == call) {
            k->r.canceled = 1;
            k->given_up |= call != 0;
            n++;
        }
    }
    uint64_t sent = hth_ring_sent(client->requests);
    if (call != 0 && n == 0 && sent > client->listed &&
        client->n_cancels < hth_ring_calls_most(client)) { // else it cancels calls it has not made
        client->cancels[client->n_cancels++] = (hth_ring_cancel){call, sent};
    }
    pthread_mutex_unlock(&client->lock);
    return n;
}

nng_msg *hth_ring_calls_fetch(hth_ring_client *client, uint64_t call)
{
    nng_msg *m = NULL;
    pthread_mutex_lock(&client->lock);
    hth_ring_call *k = client->retained;
    while (k != NULL && k->head.call != call) {
        k = k->next;
    }
    if (k != NULL) {
        call_unlink(&client->retained, k);
        client->n_calls--;
        m = k->large;
        k->large = NULL;
    }
    pthread_mutex_unlock(&client->lock);
    if (k != NULL) {
        atomic_fetch_sub(&client->t->n_retained, 1);
        call_free(k);
    }
    return m;
}
