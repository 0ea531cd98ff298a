// SPDX-License-Identifier: Apache-2.0
// A connection's lanes are counted: one reference of the connection, one of each call, all under
// h->lock, so that a lost connection lets go of them while calls still wait in them. The first free
// lane is taken, so that few callers use few pages.
//
// Looking for the answer before sleeping (LANE_LOOK_NS) saves the wake-up, and costs a processor
// that the engine may need: on a single one calls sleep at once, and elsewhere a lane whose answers
// take longer does, trying again ever more rarely.
#include "client/lane.h"

#include "base/alloc.h"
#include "base/ipc/memfd.h"
#include "base/ipc/ring.h"
#include "client/descriptor.h"
#include "client/layout.h"

#include <string.h>
#include <unistd.h>

#define LANE_COUNT         16         // calls at once; further ones go over the socket
#define LANE_REQUEST_BYTES (4u << 20) // only what is used of it is ever there
#define LANE_BYTES         (2u << 20)
#define LANE_FRAME_BYTES   (2u << 20) // larger requests go over the socket
#define LANE_LOOK_NS       60000u
#define LANE_CORES         2
#define LANE_ROOM_NS       1000000u // how long a full ring is waited for, before the socket is taken
#define LANE_ASK_NS        10000000u // until an answer that may have had no room is asked for
#define LANE_REST          1024      // slow answers between two attempts at looking, at most

typedef struct lane {
    uint32_t id;
    hth_ring *replies;
    uint8_t *head; // of the request that is being made: the lane's number and the frame's header
    size_t head_bytes;
    hth_ring_part *part; // the whole of it
    size_t parts;
    hth_wire_seen seen; // of the answers
    // answers since it last looked for one, and how many it sleeps for between two looks: none
    // while looking is enough, twice as many whenever it was not
    unsigned slept, rest;
    uint64_t look_ns; // 0: it never looks
    struct lane *next;
} lane;

struct hth_lanes {
    void *memory;
    size_t bytes;
    uint64_t generation;
    int refs;
    hth_ring *requests;
    pthread_mutex_t sending; // guards `requests`
    lane *free;
    lane lane[LANE_COUNT];
};

static void lanes_stop(hth_lanes *a)
{
    hth_ring_stop(a->requests);
    for (int i = 0; i < LANE_COUNT; i++) {
        hth_ring_stop(a->lane[i].replies);
    }
}

static void lanes_free(hth_lanes *a)
{
    for (int i = 0; i < LANE_COUNT; i++) {
        hth_ring_close(a->lane[i].replies);
        hth_free(a->lane[i].head);
        hth_free(a->lane[i].part);
        hth_wire_seen_fini(&a->lane[i].seen);
    }
    hth_ring_close(a->requests);
    hth_memfd_drop(-1, a->memory, a->bytes);
    pthread_mutex_destroy(&a->sending);
    hth_free(a);
}

static hth_err lanes_open(hth_lanes *a, const hth_ring_layout *l)
{
    uint8_t *base = a->memory;
    HTH_TRY(hth_ring_open(base, l->request_bytes, HTH_RING_PRODUCER, 0, &a->requests));
    for (uint32_t i = LANE_COUNT; i-- > 0;) {
        lane *one = &a->lane[i];
        one->id = i;
        one->next = a->free;
        a->free = one;
        HTH_TRY(hth_ring_open(base + hth_ring_layout_lane(l, i), l->lane_bytes, HTH_RING_CONSUMER,
                              0, &one->replies));
        one->look_ns = sysconf(_SC_NPROCESSORS_ONLN) >= LANE_CORES ? LANE_LOOK_NS : 0;
    }
    return HTH_OK;
}

static hth_err lanes_attach(hearth *h, const hth_ring_layout *l, int fd)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Attach body = HEARTH__ATTACH__INIT;
    hth_reply r;
    HTH_TRY(hth_descriptor_pass(h, fd, &body.handle));
    body.bytes = hth_ring_layout_bytes(l);
    body.request_bytes = l->request_bytes;
    body.lane_bytes = l->lane_bytes;
    body.lanes = l->lanes;
    q.body_case = HEARTH__REQUEST__BODY_ATTACH;
    q.attach = &body;
    HTH_TRY(hth_exchange(h, &q, NULL, NULL, &r));
    hth_reply_fini(&r);
    return HTH_OK;
}

// lanes_make has the server map a ring over the present connection; NULL: it does not.
static hth_lanes *lanes_make(hearth *h, uint64_t generation)
{
    const hth_ring_layout layout = {LANE_REQUEST_BYTES, LANE_BYTES, LANE_COUNT};
    int fd;
    hth_lanes *a = hth_calloc(1, sizeof *a);
    if (a == NULL) {
        return NULL;
    }
    a->bytes = hth_ring_layout_bytes(&layout);
    a->generation = generation;
    a->refs = 1;
    pthread_mutex_init(&a->sending, NULL);
    hth_err err = hth_memfd_make("hearth-ring", a->bytes, &fd, &a->memory);
    if (err == HTH_OK) {
        err = lanes_open(a, &layout);
        err = err == HTH_OK ? lanes_attach(h, &layout, fd) : err;
        hth_memfd_drop(fd, NULL, 0);
    }
    if (err != HTH_OK) {
        lanes_free(a);
        return NULL;
    }
    return a;
}

// lanes_drop takes one reference; called under h->lock. Returns what is to be freed outside of it.
static hth_lanes *lanes_drop(hth_lanes *a)
{
    return a != NULL && --a->refs == 0 ? a : NULL;
}

// lanes_renew lets go of lanes whose connection is gone, and makes some for the present one, once.
static void lanes_renew(hearth *h)
{
    hth_lanes *old = NULL, *fresh = NULL;
    pthread_mutex_lock(&h->lock);
    uint64_t generation = atomic_load(&h->generation);
    hth_lanes *a = h->lanes;
    if (a != NULL && (a->generation != generation || hth_ring_stopped(a->requests))) {
        h->lanes = NULL;
        old = lanes_drop(a);
        a = NULL;
    }
    bool first = h->inferences++ == 0;
    bool make = a == NULL && !first && h->lanes_tried != generation && atomic_load(&h->pipes) > 0;
    h->lanes_tried = make ? generation : h->lanes_tried;
    pthread_mutex_unlock(&h->lock);
    if (old != NULL) {
        lanes_free(old);
    }
    if (!make || (fresh = lanes_make(h, generation)) == NULL) {
        return;
    }
    pthread_mutex_lock(&h->lock);
    if (atomic_load(&h->generation) == generation && atomic_load(&h->pipes) > 0) {
        h->lanes = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    if (fresh != NULL) {
        lanes_free(fresh);
    }
}

// lane_get takes a free lane; false: there is none.
static bool lane_get(hearth *h, hth_lanes **all, lane **out)
{
    lane *l = NULL;
    pthread_mutex_lock(&h->lock);
    hth_lanes *a = h->lanes;
    if (a != NULL && a->generation == atomic_load(&h->generation) && a->free != NULL) {
        l = a->free;
        a->free = l->next;
        a->refs++;
        h->in_flight++;
    }
    pthread_mutex_unlock(&h->lock);
    *all = a;
    *out = l;
    return l != NULL;
}

static void lane_put(hearth *h, hth_lanes *a, lane *l)
{
    pthread_mutex_lock(&h->lock);
    l->next = a->free;
    a->free = l;
    a = lanes_drop(a);
    if (--h->in_flight == 0) {
        pthread_cond_broadcast(&h->idle);
    }
    pthread_mutex_unlock(&h->lock);
    if (a != NULL) {
        lanes_free(a);
    }
}

// lane_room makes *p hold at least `bytes`; what it held is lost.
static bool lane_room(void *p, size_t *have, size_t bytes)
{
    void **at = p;
    if (*have < bytes) {
        hth_free(*at);
        *at = hth_alloc(bytes);
        *have = *at != NULL ? bytes : 0;
    }
    return *at != NULL;
}

// lane_gather lists the parts of a message behind its head: the tensors that travel in it, padded.
static int lane_gather(lane *l, const Hearth__Infer *q, const hearth_tensor *inputs)
{
    static const uint8_t zeros[64];
    int n = 1;
    for (size_t i = 0; i < q->n_inputs; i++) {
        if (q->inputs[i]->region == 0) {
            size_t bytes = q->inputs[i]->bytes;
            l->part[n++] = (hth_ring_part){inputs[i].data, bytes};
            l->part[n++] = (hth_ring_part){zeros, (64 - bytes % 64) % 64};
        }
    }
    return n;
}

// lane_message makes the request's message and returns of how many parts; 0: it is too large for
// the ring, or cannot be made, which the socket's way says better.
static int lane_message(hearth *h, lane *l, Hearth__Request *q, const hearth_tensor *inputs)
{
    uint64_t data_bytes = 0;
    size_t bytes = 0, parts = l->parts * sizeof *l->part;
    if (hth_wire_place(q->infer->inputs, q->infer->n_inputs, &data_bytes) != HTH_OK ||
        data_bytes > LANE_FRAME_BYTES ||
        hth_wire_frame_bytes(&q->base, data_bytes, &h->limits, &bytes) != HTH_OK ||
        bytes > LANE_FRAME_BYTES) {
        return 0;
    }
    size_t head = HTH_LANE_ID_BYTES + bytes - data_bytes;
    bool room = lane_room(&l->head, &l->head_bytes, head) &&
                lane_room(&l->part, &parts, (2 * q->infer->n_inputs + 1) * sizeof *l->part);
    l->parts = parts / sizeof *l->part;
    if (!room) {
        return 0;
    }
    memcpy(l->head, &l->id, HTH_LANE_ID_BYTES); // little-endian, as everything here
    hth_wire_write(&q->base, l->head + HTH_LANE_ID_BYTES);
    l->part[0] = (hth_ring_part){l->head, head};
    return lane_gather(l, q->infer, inputs);
}

static bool lane_send(hth_lanes *a, const lane *l, int parts)
{
    pthread_mutex_lock(&a->sending);
    hth_err err =
        parts > 0 ? hth_ring_send(a->requests, l->part, parts, LANE_ROOM_NS) : HTH_ETOOBIG;
    pthread_mutex_unlock(&a->sending);
    if (err == HTH_ECORRUPT) {
        lanes_stop(a);
    }
    return err == HTH_OK;
}

// lane_wait waits for the next reply in the lane, as long as `until_ns`.
static hth_err lane_wait(lane *l, uint64_t until_ns, size_t *bytes)
{
    hth_err err;
    uint64_t start = hth_real_ns(), now = start;
    bool look = l->slept >= l->rest;
    hth_ring_spin(l->replies, look ? l->look_ns : 0);
    do {
        err = hth_ring_wait(l->replies, until_ns > now ? until_ns - now : 0);
        err = err == HTH_OK ? hth_ring_next(l->replies, bytes) : err;
        now = hth_real_ns();
    } while (err == HTH_ETIMEDOUT && now < until_ns);
    if (now - start <= LANE_LOOK_NS) {
        l->rest = 0;
    } else if (look) {
        l->rest = l->rest == 0 ? 1 : l->rest < LANE_REST ? l->rest * 2 : LANE_REST;
    }
    l->slept = look ? 0 : l->slept + 1;
    return err;
}

// lane_take stores the next reply in the lane, whosever it is.
static hth_err lane_take(hearth *h, lane *l, uint64_t until_ns, hth_reply *out)
{
    size_t bytes = 0;
    HTH_TRY(lane_wait(l, until_ns, &bytes));
    uint8_t *copy = hth_alloc_aligned(bytes, 64);
    if (copy == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an answer of %zu bytes", bytes);
    }
    hth_ring_take(l->replies, copy);
    out->copy = copy;
    if (bytes < HTH_LANE_ID_BYTES) {
        return hth_fail(HTH_ECORRUPT, "an answer of %zu bytes", bytes);
    }
    HTH_TRY(hth_wire_read_reply(copy + HTH_LANE_ID_BYTES, bytes - HTH_LANE_ID_BYTES, &h->limits,
                                &l->seen, &out->head, &out->data, &out->data_bytes));
    out->call = l->seen.call;
    return HTH_OK;
}

static hth_err lane_fetch(hearth *h, uint64_t call, hth_reply *out)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Fetch body = HEARTH__FETCH__INIT;
    hth_reply_fini(out);
    body.call = call;
    q.body_case = HEARTH__REQUEST__BODY_FETCH;
    q.fetch = &body;
    return hth_exchange(h, &q, NULL, NULL, out);
}

// lane_receive takes the reply to `call`. What answers an earlier call, one that was given up, is
// dropped; it may have taken the room of this call's answer, which the server then keeps: it is
// asked now and then. An answer to no call at all is about the ring.
static hth_err lane_receive(hearth *h, lane *l, uint64_t call, hth_reply *out)
{
    uint64_t until_ns = hth_real_after(h->timeout_ms * 1000000u), ask_ns = 0;
    hth_err err;
    for (;;) {
        uint64_t next_ns = ask_ns > 0 ? hth_real_after(ask_ns) : until_ns;
        err = lane_take(h, l, next_ns < until_ns ? next_ns : until_ns, out);
        if (err == HTH_ETIMEDOUT && next_ns < until_ns) {
            err = lane_fetch(h, call, out);
            if (err != HTH_ENOENT) {
                return err;
            }
            ask_ns *= 2;
            continue;
        }
        if (err != HTH_OK || out->call == call || out->call == 0) {
            break;
        }
        hth_reply_fini(out);
        ask_ns = LANE_ASK_NS;
    }
    if (err == HTH_OK) {
        return hth_reply_check(h, call, out);
    }
    hth_reply_fini(out);
    return err == HTH_ETIMEDOUT   ? hth_exchange_timed_out(h, call)
           : err == HTH_ECANCELED ? hth_exchange_lost(h)
                                  : err;
}

hth_err hth_lane_exchange(hearth *h, Hearth__Request *q, const hearth_tensor *inputs,
                          hth_reply *out, bool *used)
{
    hth_lanes *a;
    lane *l;
    hth_err err = HTH_OK;
    memset(out, 0, sizeof *out);
    *used = false;
    lanes_renew(h);
    if (!lane_get(h, &a, &l)) {
        return HTH_OK;
    }
    q->call = atomic_fetch_add(&h->next_call, 1) + 1;
    q->token = h->token != NULL ? h->token : q->token;
    if (lane_send(a, l, lane_message(h, l, q, inputs))) {
        *used = true;
        err = lane_receive(h, l, q->call, out);
        if (err == HTH_ECORRUPT) {
            lanes_stop(a);
        }
    }
    if (*used && err == HTH_OK && out->head->body_case == HEARTH__REPLY__BODY_KEPT) {
        err = lane_fetch(h, q->call, out);
    }
    lane_put(h, a, l); // hearth_close waits until here
    return err;
}

void hth_lanes_lost(hearth *h)
{
    pthread_mutex_lock(&h->lock);
    if (h->lanes != NULL) {
        lanes_stop(h->lanes);
    }
    pthread_mutex_unlock(&h->lock);
}

void hth_lanes_fini(hearth *h)
{
    pthread_mutex_lock(&h->lock); // the connection may be lost at this moment
    hth_lanes *a = h->lanes;
    h->lanes = NULL;
    pthread_mutex_unlock(&h->lock);
    if (a != NULL) {
        lanes_stop(a);
        lanes_free(a);
    }
}
