// SPDX-License-Identifier: Apache-2.0
// One request of a ring: the message is copied into the call, decoded there, submitted; the engine
// writes the outputs into the reply's message, which `done` copies into the lane. A reply that is
// larger than its lane, or for which the lane has no room because replies to calls that were given
// up lie there, becomes a message of the socket's, kept until it is fetched, its call is canceled,
// or the connection goes.
#include "server/rpc/rings_impl.h"
#include "runtime/tenants/tenant_rules.h"

#include "base/alloc.h"
#include "client/msg.h"

#include <string.h>

#define CALL_BURST    16 // messages taken in one go: who serves has other rings to look at
#define CALL_PER_LANE 2  // one that waits and one that was given up

struct hth_ring_call {
    hth_request r;
    hth_ring_client *c;
    uint32_t lane;
    uint64_t call;
    char tenant[HTH_TENANT];
    Hearth__Request *q;
    hth_rpc_tensors_inputs in;
    uint8_t *message; // the request
    uint8_t *reply;   // a lane's message, or
    size_t reply_bytes;
    nng_msg *large; // the socket's
    bool given_up;  // nobody waits for the reply; under the ring's lock
    hth_ring_call *next;
};

hth_err hth_ring_message(const hth_ring_layout *l, const uint8_t *message, size_t bytes,
                         uint32_t *lane, const uint8_t **frame, size_t *frame_bytes)
{
    *lane = UINT32_MAX;
    if (bytes >= HTH_LANE_ID_BYTES) {
        memcpy(lane, message, HTH_LANE_ID_BYTES);
    }
    if (*lane >= l->lanes) {
        return hth_fail(HTH_ECORRUPT, "a message in a ring names no lane of it");
    }
    *frame = message + HTH_LANE_ID_BYTES;
    *frame_bytes = bytes - HTH_LANE_ID_BYTES;
    return HTH_OK;
}

// ---- replies

// call_frame makes a lane's message with a frame of `header`, which has so many bytes with its
// data.
static hth_err call_frame(hth_ring_call *k, const ProtobufCMessage *header, size_t bytes,
                          uint8_t **data)
{
    k->reply_bytes = HTH_LANE_ID_BYTES + bytes;
    k->reply = hth_alloc_aligned(k->reply_bytes, 64);
    if (k->reply == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a reply");
    }
    memset(k->reply, 0, HTH_LANE_ID_BYTES);
    *data = hth_wire_write(header, k->reply + HTH_LANE_ID_BYTES);
    return HTH_OK;
}

static hth_err call_make(void *ctx, const ProtobufCMessage *header, Hearth__Tensor *const *list,
                         size_t n, uint8_t **data)
{
    hth_ring_call *k = ctx;
    uint64_t data_bytes;
    size_t bytes;
    HTH_TRY(hth_wire_place(list, n, &data_bytes));
    HTH_TRY(hth_wire_frame_bytes(header, data_bytes, &k->c->t->limits, &bytes));
    if (bytes + HTH_LANE_ID_BYTES > hth_ring_most(k->c->layout.lane_bytes)) {
        return hth_msg_frame(header, list, n, 0, &k->c->t->limits, &k->large, data);
    }
    HTH_TRY(call_frame(k, header, bytes, data));
    hth_wire_pad(list, n, *data);
    return HTH_OK;
}

static hth_err call_place(hth_request *r, hth_request_tensor *out, int n_out)
{
    hth_ring_call *k = r->ctx;
    return hth_rpc_tensors_outputs(k->call, r->version, out, n_out, call_make, k);
}

// call_free frees a call that is in no list. Its ring goes with the last one.
static void call_free(hth_ring_call *k)
{
    hth_ring_client *c = k->c;
    hth_rpc_tensors_inputs_fini(&k->in);
    hth_wire_free_request(k->q);
    hth_free(k->message);
    hth_free(k->reply);
    if (k->large != NULL) {
        nng_msg_free(k->large);
    }
    hth_free(k);
    hth_ring_client_rele(c);
}

static void call_unlink(hth_ring_call **at, const hth_ring_call *k)
{
    while (*at != k) {
        at = &(*at)->next;
    }
    *at = k->next;
}

// call_header sends a reply without tensors.
static void call_header(hth_ring_call *k, Hearth__Reply *r)
{
    uint8_t *data;
    size_t bytes;
    hth_free(k->reply);
    k->reply = NULL;
    r->call = k->call;
    if (hth_wire_frame_bytes(&r->base, 0, &k->c->t->limits, &bytes) != HTH_OK ||
        call_frame(k, &r->base, bytes, &data) != HTH_OK) {
        k->reply_bytes = 0; // no memory: the client gives up some time
    }
}

static void call_error(hth_ring_call *k, hth_err err, const char *sentence)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Error body = HEARTH__ERROR__INIT;
    body.code = (uint32_t)err;
    body.sentence = (char *)(sentence[0] != 0 ? sentence : hth_strerror(err));
    r.body_case = HEARTH__REPLY__BODY_ERROR;
    r.error = &body;
    call_header(k, &r);
}

static void call_kept(hth_ring_call *k)
{
    Hearth__Reply r = HEARTH__REPLY__INIT;
    Hearth__Kept body = HEARTH__KEPT__INIT;
    r.body_case = HEARTH__REPLY__BODY_KEPT;
    r.kept = &body;
    call_header(k, &r);
}

// call_in_lane puts the reply into its lane; false: the lane has no room.
static bool call_in_lane(hth_ring_call *k)
{
    hth_ring_part part = {k->reply, k->reply_bytes};
    hth_err err = HTH_OK;
    if (k->reply != NULL && k->reply_bytes > 0) {
        err = hth_ring_send(k->c->replies[k->lane], &part, 1, 0);
        k->c->t->n_answered += err == HTH_OK;
    }
    return err != HTH_EBUSY;
}

// call_enlarge makes the lane's message one of the socket's. False: no memory, or too many wait.
static bool call_enlarge(hth_ring_call *k)
{
    size_t bytes = k->reply_bytes - HTH_LANE_ID_BYTES;
    if (k->c->n_calls > (int)(k->c->layout.lanes * CALL_PER_LANE)) {
        return false;
    }
    if (k->large != NULL) { // of an inference that failed
        nng_msg_free(k->large);
        k->large = NULL;
    }
    if (nng_msg_alloc(&k->large, bytes + HTH_WIRE_ID_BYTES) != 0) {
        return false;
    }
    nng_msg_trim(k->large, HTH_WIRE_ID_BYTES);
    memcpy(nng_msg_body(k->large), k->reply + HTH_LANE_ID_BYTES, bytes);
    return true;
}

// call_send ends the call: its reply goes into the lane, and the call into the list of those that
// are fetched, or nowhere.
static void call_send(hth_ring_call *k, bool keep, bool refused)
{
    hth_ring_client *c = k->c;
    hth_rings *t = c->t;
    pthread_mutex_lock(&c->lock);
    call_unlink(&c->calls, k);
    bool in_lane = call_in_lane(k);
    if (!c->ended && !k->given_up && (keep || (!in_lane && call_enlarge(k)))) {
        keep = true;
        t->n_answered += !in_lane;
        k->next = c->kept;
        c->kept = k;
        atomic_fetch_add(&t->n_kept, 1);
    } else {
        keep = false;
        c->n_calls--;
    }
    pthread_mutex_unlock(&c->lock);
    t->n_refused += refused;
    if (!keep) {
        call_free(k);
    }
    atomic_fetch_sub(&t->n_working, 1);
}

static void call_done(hth_request *r)
{
    hth_ring_call *k = r->ctx;
    bool keep = false;
    if (r->err != HTH_OK) {
        call_error(k, r->err, r->detail);
    } else if (k->large != NULL) {
        keep = true;
        call_kept(k);
    } else if (k->reply == NULL) {
        call_error(k, HTH_ENOTSUP, "the engine gave no outputs");
    }
    call_send(k, keep, false);
}

// ---- requests

// call_list lists a call as one in progress. HTH_EBUSY: there are too many.
static hth_err call_list(hth_ring_call *k)
{
    hth_ring_client *c = k->c;
    pthread_mutex_lock(&c->lock);
    bool busy = c->n_calls >= (int)(c->layout.lanes * CALL_PER_LANE);
    k->next = c->calls;
    c->calls = k;
    c->n_calls++;
    pthread_mutex_unlock(&c->lock);
    return busy ? hth_fail(HTH_EBUSY, "a ring of %u lanes has that many requests in progress",
                           (unsigned)c->layout.lanes)
                : HTH_OK;
}

static hth_err call_submit(hth_ring_call *k, const uint8_t *data, uint64_t data_bytes)
{
    const Hearth__Infer *q = k->q->infer;
    HTH_TRY(hth_auth_check(k->c->t->auth, hth_conn_peer(k->c->conn), k->q->token,
                           hth_auth_need(k->q), NULL));
    HTH_TRY(hth_rpc_tensors_inputs_init(&k->in, k->c->conn, q, data, data_bytes));
    hth_rpc_tensors_request(q, &k->in, &k->r);
    hth_auth_tenant(k->c->t->auth, k->q->token, hth_conn_tenant(k->c->conn), k->tenant,
                    sizeof k->tenant);
    k->r.tenant = k->tenant;
    k->r.place = call_place;
    k->r.done = call_done;
    k->r.ctx = k;
    return hth_engine_submit(k->c->t->engine, &k->r);
}

// call_start decodes the message and submits the request, or answers at once. An error is the
// ring's: its client does not speak this language.
static hth_err call_start(hth_ring_call *k, size_t bytes)
{
    const uint8_t *frame = NULL, *data = NULL;
    size_t frame_bytes = 0;
    uint64_t data_bytes = 0;
    hth_rings *t = k->c->t;
    hth_err bad =
        hth_ring_message(&k->c->layout, k->message, bytes, &k->lane, &frame, &frame_bytes);
    if (bad != HTH_OK) {
        call_free(k);
        return bad;
    }
    bad = hth_wire_read_request(frame, frame_bytes, &t->limits, &k->c->seen[k->lane], &k->q, &data,
                                &data_bytes);
    k->call = bad == HTH_OK ? k->c->seen[k->lane].call : 0;
    hth_err err = bad;
    if (bad == HTH_OK && k->q->body_case != HEARTH__REQUEST__BODY_INFER) {
        err = hth_fail(HTH_ENOTSUP, "a ring carries inferences only");
    }
    atomic_fetch_add(&t->n_working, 1);
    hth_err listed = call_list(k);
    bool refused = err == HTH_OK && t->stopping;
    err = err != HTH_OK ? err : listed;
    if (refused) {
        err = hth_fail(HTH_ECANCELED, "the server is stopping: it takes no new requests");
    }
    err = err == HTH_OK ? call_submit(k, data, data_bytes) : err;
    if (err != HTH_OK) {
        call_error(k, err, hth_err_detail());
        call_send(k, false, refused);
    }
    return bad;
}

hth_err hth_ring_serve(hth_ring_client *c)
{
    size_t bytes;
    for (int i = 0; i < CALL_BURST; i++) {
        HTH_TRY(hth_ring_next(c->requests, &bytes));
        hth_ring_call *k = hth_calloc(1, sizeof *k);
        uint8_t *message = hth_alloc_aligned(bytes > 0 ? bytes : 1, 64);
        if (k == NULL || message == NULL) {
            hth_free(k);
            hth_free(message);
            return hth_fail(HTH_ENOMEM, "out of memory for a request");
        }
        hth_ring_take(c->requests, message);
        k->c = c;
        k->message = message;
        atomic_fetch_add(&c->refs, 1);
        HTH_TRY(call_start(k, bytes));
    }
    return HTH_OK;
}

// ---- about calls

void hth_ring_calls_end(hth_ring_client *c)
{
    pthread_mutex_lock(&c->lock);
    hth_ring_call *k = c->kept;
    c->kept = NULL;
    c->ended = true;
    pthread_mutex_unlock(&c->lock);
    while (k != NULL) {
        hth_ring_call *next = k->next;
        atomic_fetch_sub(&c->t->n_kept, 1);
        call_free(k);
        k = next;
    }
}

int hth_ring_calls_cancel(hth_ring_client *c, uint64_t call)
{
    int n = 0;
    pthread_mutex_lock(&c->lock);
    for (hth_ring_call *k = c->calls; k != NULL; k = k->next) {
        if (call == 0 || k->call == call) {
            k->r.canceled = 1;
            k->given_up |= call != 0;
            n++;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

nng_msg *hth_ring_calls_fetch(hth_ring_client *c, uint64_t call)
{
    nng_msg *m = NULL;
    pthread_mutex_lock(&c->lock);
    hth_ring_call *k = c->kept;
    while (k != NULL && k->call != call) {
        k = k->next;
    }
    if (k != NULL) {
        call_unlink(&c->kept, k);
        c->n_calls--;
        m = k->large;
        k->large = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    if (k != NULL) {
        atomic_fetch_sub(&c->t->n_kept, 1);
        call_free(k);
    }
    return m;
}
