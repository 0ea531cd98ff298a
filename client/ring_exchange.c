// SPDX-License-Identifier: Apache-2.0
// A connection's channels are counted: one reference of the connection, one of each call, all under
// h->lock, so that a lost connection lets go of them while calls still wait in them. The first free
// channel is taken, so that few callers use few pages.
//
// Spinning before sleeping (CHANNEL_SPIN_NS) saves the wake-up, and costs a processor
// that the engine may need: on a single one calls sleep at once, and elsewhere a channel whose
// answers take longer does, trying again ever more rarely.
#include "client/ring_exchange.h"

#include "base/alloc.h"
#include "base/ipc/memfd.h"
#include "base/ipc/ring.h"
#include "client/descriptor.h"
#include "client/wire.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#define CHANNEL_COUNT         16         // calls at once; further ones go over the socket
#define CHANNEL_REQUEST_BYTES (4u << 20) // only what is used of it is ever there
#define CHANNEL_BYTES         (2u << 20)
#define CHANNEL_FRAME_BYTES   (2u << 20) // larger requests go over the socket
#define CHANNEL_SPIN_NS       60000u
#define CHANNEL_CORES         2
#define CHANNEL_FULL_NS       1000000u // how long to wait for a full ring; then the socket is taken
#define CHANNEL_FETCH_NS      10000000u // until an answer that may have had no room is asked for
#define CHANNEL_BACKOFF       1024      // slow answers between two attempts at spinning, at most

typedef struct channel {
    uint32_t id;
    hth_ring *replies;
    uint8_t *head; // of the request that is being made: everything in front of the tensors' bytes
    size_t head_bytes;
    hth_ring_part *part; // the whole of it
    size_t parts;
    // answers since it last spun for one, and how many it sleeps for between two spins: none
    // while spinning is enough, twice as many whenever it was not
    unsigned slept, backoff;
    uint64_t spin_ns; // 0: it never spins
    struct channel *next;
} channel;

struct hth_channels {
    void *memory;
    size_t bytes;
    uint64_t generation;
    int refs;
    hth_ring *requests;
    pthread_mutex_t sending; // guards `requests`
    channel *free;
    channel channel[CHANNEL_COUNT];
};

static void channels_stop(hth_channels *channels)
{
    hth_ring_stop(channels->requests);
    for (int i = 0; i < CHANNEL_COUNT; i++) {
        hth_ring_stop(channels->channel[i].replies);
    }
}

// The server has ended. Answers that it sent before are perhaps not read yet.
static void channels_gone(hth_channels *channels)
{
    hth_ring_stop(channels->requests);
    for (int i = 0; i < CHANNEL_COUNT; i++) {
        hth_ring_gone(channels->channel[i].replies);
    }
}

static void channels_free(hth_channels *channels)
{
    for (int i = 0; i < CHANNEL_COUNT; i++) {
        hth_ring_close(channels->channel[i].replies);
        hth_free(channels->channel[i].head);
        hth_free(channels->channel[i].part);
    }
    hth_ring_close(channels->requests);
    hth_memfd_drop(-1, channels->memory, channels->bytes);
    pthread_mutex_destroy(&channels->sending);
    hth_free(channels);
}

static hth_err channels_open(hth_channels *channels, const hth_ring_layout *layout)
{
    uint8_t *base = channels->memory;
    HTH_TRY(hth_ring_open(base, layout->request_bytes, HTH_RING_PRODUCER, 0, &channels->requests));
    for (uint32_t i = CHANNEL_COUNT; i-- > 0;) {
        channel *one = &channels->channel[i];
        one->id = i;
        one->next = channels->free;
        channels->free = one;
        HTH_TRY(hth_ring_open(base + hth_ring_layout_channel(layout, i), layout->channel_bytes,
                              HTH_RING_CONSUMER, 0, &one->replies));
        one->spin_ns = sysconf(_SC_NPROCESSORS_ONLN) >= CHANNEL_CORES ? CHANNEL_SPIN_NS : 0;
    }
    return HTH_OK;
}

static hth_err channels_attach(hearth *h, const hth_ring_layout *layout, int fd)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Attach body = HEARTH__ATTACH__INIT;
    hth_reply r;
    HTH_TRY(hth_descriptor_pass(h, fd, &body.handle));
    body.bytes = hth_ring_layout_bytes(layout);
    body.request_bytes = layout->request_bytes;
    body.channel_bytes = layout->channel_bytes;
    body.channels = layout->channels;
    q.body_case = HEARTH__REQUEST__BODY_ATTACH;
    q.attach = &body;
    HTH_TRY(hth_exchange(h, &q, NULL, NULL, &r));
    hth_reply_fini(&r);
    return HTH_OK;
}

// channels_make has the server map a ring over the present connection; NULL: it does not.
static hth_channels *channels_make(hearth *h, uint64_t generation)
{
    const hth_ring_layout layout = {CHANNEL_REQUEST_BYTES, CHANNEL_BYTES, CHANNEL_COUNT};
    int fd;
    hth_channels *a = hth_calloc(1, sizeof *a);
    if (a == NULL) {
        return NULL;
    }
    a->bytes = hth_ring_layout_bytes(&layout);
    a->generation = generation;
    a->refs = 1;
    pthread_mutex_init(&a->sending, NULL);
    hth_err err = hth_memfd_make("hearth-ring", a->bytes, &fd, &a->memory);
    if (err == HTH_OK) {
        err = channels_open(a, &layout);
        if (err == HTH_OK) {
            err = channels_attach(h, &layout, fd);
        }
        hth_memfd_drop(fd, NULL, 0);
    }
    if (err != HTH_OK) {
        channels_free(a);
        return NULL;
    }
    return a;
}

// channels_drop takes one reference; called under h->lock. Returns what is to be freed outside of
// it.
static hth_channels *channels_drop(hth_channels *channels)
{
    assert(channels == NULL || channels->refs > 0);
    return channels != NULL && --channels->refs == 0 ? channels : NULL;
}

// channels_renew lets go of channels whose connection is gone, and makes some for the present one,
// once.
static void channels_renew(hearth *h)
{
    hth_channels *old = NULL, *fresh = NULL;
    pthread_mutex_lock(&h->lock);
    uint64_t generation = atomic_load(&h->generation);
    hth_channels *a = h->channels;
    if (a != NULL && (a->generation != generation || hth_ring_stopped(a->requests))) {
        h->channels = NULL;
        old = channels_drop(a);
        a = NULL;
    }
    bool make = a == NULL && h->channels_tried != generation && atomic_load(&h->pipes) > 0;
    h->channels_tried = make ? generation : h->channels_tried;
    pthread_mutex_unlock(&h->lock);
    if (old != NULL) {
        channels_free(old);
    }
    if (!make || (fresh = channels_make(h, generation)) == NULL) {
        return;
    }
    pthread_mutex_lock(&h->lock);
    if (atomic_load(&h->generation) == generation && atomic_load(&h->pipes) > 0) {
        h->channels = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    if (fresh != NULL) {
        channels_free(fresh);
    }
}

// channel_get takes a free channel; false: there is none.
static bool channel_get(hearth *h, hth_channels **all, channel **out)
{
    channel *l = NULL;
    pthread_mutex_lock(&h->lock);
    hth_channels *a = h->channels;
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

static void channel_put(hearth *h, hth_channels *channels, channel *l)
{
    pthread_mutex_lock(&h->lock);
    l->next = channels->free;
    channels->free = l;
    channels = channels_drop(channels);
    if (--h->in_flight == 0) {
        pthread_cond_broadcast(&h->idle);
    }
    pthread_mutex_unlock(&h->lock);
    if (channels != NULL) {
        channels_free(channels);
    }
}

// channel_reserve makes *p hold at least `bytes`, at a multiple of 64; what it held is lost.
static bool channel_reserve(void *p, size_t *have, size_t bytes)
{
    void **at = p;
    if (*have < bytes) {
        hth_free(*at);
        *at = hth_alloc_aligned(bytes, HTH_IPC_RECORD_ALIGN);
        *have = *at != NULL ? bytes : 0;
    }
    return *at != NULL;
}

// channel_record describes the inference in the room of hth_ipc_record_room.
static hth_err channel_record(const Hearth__Infer *infer, const char *const text[],
                              hth_ipc_record *record)
{
    hth_ipc_record_begin(record, text, infer->n_inputs);
    record->priority = infer->priority;
    record->timeout_us = infer->timeout_us;
    for (size_t i = 0; i < infer->n_inputs; i++) {
        const Hearth__Tensor *t = infer->inputs[i];
        const char *name = t->name[0] != 0 ? t->name : NULL;
        hth_ipc_record_tensor *w =
            hth_ipc_record_add(record, name, t->dtype, t->n_shape, t->shape, t->bytes);
        w->region = t->region; // 0 is HTH_IPC_RECORD_HERE
        w->at = t->offset;
    }
    return hth_ipc_record_end(record);
}

// channel_gather lists the parts of a message: its head, and the tensors that travel in it, padded.
static int channel_gather(channel *l, size_t head, const hth_ipc_record *record,
                          const hearth_tensor *inputs)
{
    static const uint8_t zeros[HTH_IPC_RECORD_ALIGN];
    int n = 0;
    l->part[n++] = (hth_ring_part){l->head, head};
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        uint64_t bytes = record->tensor[i].bytes;
        if (record->tensor[i].region == HTH_IPC_RECORD_HERE) {
            l->part[n++] = (hth_ring_part){inputs[i].data, bytes};
            l->part[n++] = (hth_ring_part){zeros, hth_ipc_record_pad(bytes)};
        }
    }
    return n;
}

// channel_message makes the request's message and returns of how many parts; 0: it is too large for
// the ring, or cannot be made, which the socket's way says better.
static int channel_message(hearth *h, channel *l, const Hearth__Request *request,
                           const hearth_tensor *inputs)
{
    const Hearth__Infer *infer = request->infer;
    const char *text[HTH_IPC_RECORD_TEXTS] = {[HTH_IPC_RECORD_MODEL] = infer->model};
    hth_channel_head head = {.call = request->call, .channel = l->id};
    size_t names = 0, parts = l->parts * sizeof *l->part, token = strlen(request->token);
    head.token_bytes = token <= HTH_CHANNEL_TOKEN ? (uint32_t)token : HTH_CHANNEL_TOKEN + 1;
    for (size_t i = 0; i < infer->n_inputs; i++) {
        names += strlen(infer->inputs[i]->name) + 1;
    }
    size_t at = hth_channel_record(&head),
           bytes = hth_ipc_record_room(text, infer->n_inputs, names);
    bool good = head.token_bytes <= HTH_CHANNEL_TOKEN && bytes > 0 &&
                bytes <= h->limits.header_bytes &&
                channel_reserve(&l->head, &l->head_bytes, at + bytes) &&
                channel_reserve(&l->part, &parts, (2 * infer->n_inputs + 1) * sizeof *l->part);
    l->parts = parts / sizeof *l->part;
    if (!good) {
        return 0;
    }
    hth_ipc_record *r = (hth_ipc_record *)(void *)(l->head + at);
    memset(l->head, 0, at);
    memcpy(l->head, &head, sizeof head);
    memcpy(l->head + sizeof head, request->token, token);
    return channel_record(infer, text, r) == HTH_OK && r->bytes <= CHANNEL_FRAME_BYTES
               ? channel_gather(l, at + r->head_bytes, r, inputs)
               : 0;
}

static bool channel_send(hth_channels *channels, const channel *l, int parts)
{
    pthread_mutex_lock(&channels->sending);
    hth_err err = parts > 0 ? hth_ring_send(channels->requests, l->part, parts, CHANNEL_FULL_NS)
                            : HTH_ETOOBIG;
    pthread_mutex_unlock(&channels->sending);
    if (err == HTH_ECORRUPT) {
        channels_stop(channels);
    }
    return err == HTH_OK;
}

// channel_wait waits for the next reply in the channel, as long as `until_ns`.
static hth_err channel_wait(channel *l, uint64_t until_ns, size_t *bytes)
{
    hth_err err;
    uint64_t start = hth_real_ns(), now = start;
    bool spin = l->slept >= l->backoff;
    hth_ring_spin(l->replies, spin ? l->spin_ns : 0);
    do {
        err = hth_ring_wait(l->replies, until_ns > now ? until_ns - now : 0);
        if (err == HTH_OK) {
            err = hth_ring_next(l->replies, bytes);
        }
        now = hth_real_ns();
    } while (err == HTH_ETIMEDOUT && now < until_ns);
    if (now - start <= CHANNEL_SPIN_NS) {
        l->backoff = 0;
    } else if (spin) {
        unsigned next = l->backoff == 0 ? 1 : l->backoff * 2;
        l->backoff = next < CHANNEL_BACKOFF ? next : CHANNEL_BACKOFF;
    }
    l->slept = spin ? 0 : l->slept + 1;
    return err;
}

// channel_take stores the next reply in the channel, whosever it is. One without a record is to be
// fetched.
static hth_err channel_take(hearth *h, channel *l, uint64_t until_ns, hth_reply *out)
{
    hth_channel_head head;
    size_t bytes = 0;
    HTH_TRY(channel_wait(l, until_ns, &bytes));
    uint8_t *copy = hth_alloc_aligned(bytes, HTH_IPC_RECORD_ALIGN);
    if (copy == NULL) {
        return hth_no_memory("an answer of %zu bytes", bytes);
    }
    hth_ring_take(l->replies, copy);
    out->copy = copy;
    if (bytes < sizeof head) {
        return hth_fail(HTH_ECORRUPT, "an answer of %zu bytes", bytes);
    }
    memcpy(&head, copy, sizeof head);
    out->call = head.call;
    return bytes > sizeof head ? hth_reply_read(h, copy + sizeof head, bytes - sizeof head, out)
                               : HTH_OK;
}

static hth_err channel_fetch(hearth *h, uint64_t call, hth_reply *out)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Fetch body = HEARTH__FETCH__INIT;
    hth_reply_fini(out);
    body.call = call;
    q.body_case = HEARTH__REQUEST__BODY_FETCH;
    q.fetch = &body;
    HTH_TRY(hth_exchange(h, &q, NULL, NULL, out));
    const uint8_t *record = hth_wire_aligned(out->data, out->data_bytes, &out->copy);
    hth_err err;
    if (record == NULL) {
        err = hth_no_memory("an answer");
    } else if (out->head->body_case != HEARTH__REPLY__BODY_KEPT) {
        err = hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", h->url);
    } else {
        err = hth_reply_read(h, record, out->data_bytes, out);
    }
    if (err != HTH_OK) {
        hth_reply_fini(out);
        return err;
    }
    return hth_reply_check(h, call, out);
}

// channel_receive takes the reply to `call`. What answers an earlier call, one that was given up,
// is dropped; it may have taken the room of this call's answer, which the server then keeps: it is
// asked now and then. An answer to no call at all is about the ring.
static hth_err channel_receive(hearth *h, channel *l, uint64_t call, hth_reply *out)
{
    uint64_t until_ns = hth_real_after(h->timeout_ms * 1000000u), ask_ns = 0;
    hth_err err;
    for (;;) {
        uint64_t next_ns = ask_ns > 0 ? hth_real_after(ask_ns) : until_ns;
        err = channel_take(h, l, next_ns < until_ns ? next_ns : until_ns, out);
        if (err == HTH_ETIMEDOUT && next_ns < until_ns) {
            err = channel_fetch(h, call, out);
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
        ask_ns = CHANNEL_FETCH_NS;
    }
    if (err == HTH_OK && out->record == NULL) {
        return channel_fetch(h, call, out);
    }
    if (err == HTH_OK) {
        return hth_reply_check(h, call, out);
    }
    hth_reply_fini(out);
    if (err == HTH_ETIMEDOUT) {
        return hth_exchange_timed_out(h, call);
    }
    return err == HTH_ECANCELED ? hth_exchange_lost(h) : err;
}

hth_err hth_ring_exchange(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                          hth_reply *out, bool *used)
{
    hth_channels *a;
    channel *l;
    hth_err err = HTH_OK;
    memset(out, 0, sizeof *out);
    *used = false;
    channels_renew(handle);
    if (!channel_get(handle, &a, &l)) {
        return HTH_OK;
    }
    request->call = request->call != 0 ? request->call : hth_exchange_number(handle);
    request->token = handle->token != NULL ? handle->token : request->token;
    if (channel_send(a, l, channel_message(handle, l, request, inputs))) {
        *used = true;
        err = channel_receive(handle, l, request->call, out);
        if (err == HTH_ECORRUPT) {
            channels_stop(a);
        }
    }
    channel_put(handle, a, l); // hearth_close waits until here
    return err;
}

void hth_ring_exchange_lost(hearth *handle)
{
    pthread_mutex_lock(&handle->lock);
    if (handle->channels != NULL) {
        channels_gone(handle->channels);
    }
    pthread_mutex_unlock(&handle->lock);
}

void hth_ring_exchange_fini(hearth *handle)
{
    pthread_mutex_lock(&handle->lock); // the connection may be lost at this moment
    hth_channels *a = handle->channels;
    handle->channels = NULL;
    pthread_mutex_unlock(&handle->lock);
    if (a != NULL) {
        channels_stop(a);
        channels_free(a);
    }
}
