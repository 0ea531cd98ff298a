// SPDX-License-Identifier: Apache-2.0
// The table of rings, their threads, and who looks when (rings.h). A ring ends on its own thread,
// whoever found the reason: that stops the ring, which wakes the thread. Threads are detached;
// closing the table waits until all have given their memory back.
#include "server/rpc/rings_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/thread.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <time.h>

#define RINGS_FETCH_NS 1000000000u         // how long a stop waits for answers to be fetched
#define RINGS_LOOK     ((uint64_t)4 << 20) // bytes taken in one look into all rings

static void rings_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

void hth_ring_client_rele(hth_ring_client *client)
{
    if (atomic_fetch_sub(&client->refs, 1) > 1) {
        return;
    }
    hth_rings *t = client->t;
    for (uint32_t i = 0; client->replies != NULL && i < client->layout.channels; i++) {
        hth_ring_close(client->replies[i]);
    }
    hth_free(client->replies);
    hth_free(client->cancels);
    hth_ring_close(client->requests);
    if (client->memory != NULL) {
        hth_engine_unshare(client->t->engine, client->memory);
        munmap(client->memory, client->bytes);
    }
    pthread_mutex_destroy(&client->taking);
    pthread_mutex_destroy(&client->lock);
    hth_conn_rele(client->conn);
    hth_free(client);
    atomic_fetch_sub(&t->n_clients, 1); // nothing of the table is touched after this
}

// ---- looking

// rings_take serves a ring unless another thread does. What is more than *left bytes is for its own
// thread: this one has others to look at, and the table. A ring that is to end is stopped, for its
// thread, too.
static void rings_take(hth_ring_client *client, uint64_t *left)
{
    if (pthread_mutex_trylock(&client->taking) != 0) {
        return;
    }
    hth_err err = hth_ring_serve(client, left);
    pthread_mutex_unlock(&client->taking);
    if (err == HTH_EBUSY) {
        hth_ring_poll_wake(client->requests);
    } else if (err != HTH_OK && err != HTH_ETIMEDOUT && err != HTH_ECANCELED) {
        hth_ring_stop(client->requests);
    }
}

// rings_poll is the engine's thread's look into all rings. The table is locked meanwhile, for which
// others wait: it takes a bounded time.
static bool rings_poll(void *ctx)
{
    hth_rings *t = ctx;
    uint64_t left = RINGS_LOOK;
    bool came = false;
    if (t->n_listed == 0 || pthread_mutex_trylock(&t->lock) != 0) {
        return false;
    }
    for (hth_ring_client *c = t->clients; c != NULL; c = c->next) {
        hth_ring_poll_begin(c->requests);
        if (hth_ring_wait(c->requests, 0) == HTH_OK) {
            came = true;
            rings_take(c, &left);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return came;
}

static void rings_leave(void *ctx)
{
    hth_rings *t = ctx;
    if (t->n_listed == 0) {
        return;
    }
    pthread_mutex_lock(&t->lock);
    for (hth_ring_client *c = t->clients; c != NULL; c = c->next) {
        if (hth_ring_poll_end(c->requests)) {
            hth_ring_poll_wake(c->requests);
        }
    }
    pthread_mutex_unlock(&t->lock);
}

// rings_unlist takes a ring out of the list; false: it was not there.
static bool rings_unlist(hth_ring_client *client)
{
    hth_rings *t = client->t;
    pthread_mutex_lock(&t->lock);
    hth_ring_client **at = &t->clients;
    while (*at != NULL && *at != client) {
        at = &(*at)->next;
    }
    bool listed = *at == client;
    if (listed) {
        *at = client->next;
        atomic_fetch_sub(&t->n_listed, 1);
    }
    pthread_mutex_unlock(&t->lock);
    return listed;
}

static void rings_main(void *ctx)
{
    hth_ring_client *c = ctx;
    hth_err err = HTH_OK;
    while (err == HTH_OK || err == HTH_ETIMEDOUT) {
        err = hth_ring_wait(c->requests, HTH_FOREVER);
        if (err == HTH_OK) {
            uint64_t all = UINT64_MAX;
            pthread_mutex_lock(&c->taking);
            err = hth_ring_serve(c, &all);
            pthread_mutex_unlock(&c->taking);
        }
    }
    if (err != HTH_ECANCELED) {
        hth_log(WARN, SERVER, "ring-ended", "reason=%s", hth_err_detail());
    }
    bool listed = rings_unlist(c);
    hth_ring_stop(c->requests);
    for (uint32_t i = 0; i < c->layout.channels; i++) {
        hth_ring_stop(c->replies[i]);
    }
    (void)hth_ring_calls_cancel(c, 0);
    hth_ring_calls_end(c);
    if (listed) {
        hth_ring_client_rele(c);
    }
    hth_ring_client_rele(c);
}

// ---- attaching

static hth_err rings_layout(const Hearth__Attach *attach, hth_ring_layout *layout)
{
    *layout = (hth_ring_layout){attach->request_bytes, attach->channel_bytes, attach->channels};
    uint64_t bytes = hth_ring_layout_bytes(layout),
             most = (uint64_t)hth_setting_int(HTH_SET_RING_BYTES);
    if (bytes == 0 || bytes != attach->bytes) {
        return hth_fail(HTH_EINVAL, "%" PRIu64 " bytes are no ring with %" PRIu32 " channels",
                        attach->bytes, attach->channels);
    }
    return bytes <= most
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG, "a ring of %" PRIu64 " bytes; ring.bytes is %" PRIu64, bytes,
                          most);
}

static hth_err rings_map(hth_ring_client *client, const Hearth__Attach *attach)
{
    HTH_TRY(hth_conn_map_ring(client->conn, attach->handle, client->bytes, &client->memory));
    HTH_TRY(hth_ring_open(client->memory, client->layout.request_bytes, HTH_RING_CONSUMER, 0,
                          &client->requests));
    client->replies = hth_calloc(client->layout.channels, sizeof *client->replies);
    client->cancels = hth_calloc((size_t)hth_ring_calls_most(client), sizeof *client->cancels);
    if (client->replies == NULL || client->cancels == NULL) {
        return hth_no_memory("a ring");
    }
    for (uint32_t i = 0; i < client->layout.channels; i++) {
        uint8_t *at = (uint8_t *)client->memory + hth_ring_layout_channel(&client->layout, i);
        HTH_TRY(hth_ring_open(at, client->layout.channel_bytes, HTH_RING_PRODUCER, 0,
                              &client->replies[i]));
    }
    return HTH_OK;
}

// rings_may tells whether a connection may have a ring now. Under the lock.
static hth_err rings_may(const hth_rings *t, const hth_ring_client *client)
{
    for (const hth_ring_client *o = t->clients; o != NULL; o = o->next) {
        if (o->conn == client->conn) {
            return hth_fail(HTH_EEXIST, "this connection has a ring");
        }
    }
    if (t->n_listed >= hth_setting_int(HTH_SET_RING_CLIENTS)) {
        return hth_fail(HTH_ETOOBIG, "%d clients have a ring, and ring.clients is no more",
                        (int)t->n_listed);
    }
    return t->stopping ? hth_fail(HTH_ECANCELED, "the server is stopping: it takes no new requests")
                       : HTH_OK;
}

// rings_list lists a ring, which is served from then on.
static hth_err rings_list(hth_ring_client *client)
{
    hth_rings *t = client->t;
    pthread_t thread;
    hth_err err;
    pthread_mutex_lock(&t->lock);
    HTH_GOTO(rings_may(t, client), done);
    HTH_GOTO(hth_thread_start("ring", rings_main, client, &thread), done);
    pthread_detach(thread);
    client->refs += 2; // of the list and the thread
    client->next = t->clients;
    t->clients = client;
    atomic_fetch_add(&t->n_listed, 1);
done:
    pthread_mutex_unlock(&t->lock);
    return err;
}

hth_err hth_rings_attach(hth_rings *rings, hth_conn *conn, const Hearth__Attach *attach)
{
    hth_ring_layout layout;
    HTH_TRY(rings_layout(attach, &layout));
    hth_ring_client *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_no_memory("a ring");
    }
    hth_conn_hold(conn);
    c->t = rings;
    c->conn = conn;
    c->layout = layout;
    c->bytes = attach->bytes;
    c->refs = 1; // of this function
    pthread_mutex_init(&c->taking, NULL);
    pthread_mutex_init(&c->lock, NULL);
    atomic_fetch_add(&rings->n_clients, 1);
    hth_err err = rings_map(c, attach);
    if (err == HTH_OK) {
        err = rings_list(c);
    }
    if (err == HTH_OK && hth_conn_is_gone(conn)) { // and hth_rings_gone came too early
        hth_ring_stop(c->requests);
    }
    hth_ring_client_rele(c);
    return err;
}

// ---- by connection

// rings_find returns the ring of a connection, held; NULL: it has none.
static hth_ring_client *rings_find(hth_rings *rings, const hth_conn *conn)
{
    pthread_mutex_lock(&rings->lock);
    hth_ring_client *c = rings->clients;
    while (c != NULL && c->conn != conn) {
        c = c->next;
    }
    if (c != NULL) {
        atomic_fetch_add(&c->refs, 1);
    }
    pthread_mutex_unlock(&rings->lock);
    return c;
}

void hth_rings_gone(hth_rings *rings, const hth_conn *conn)
{
    hth_ring_client *c = rings_find(rings, conn);
    if (c != NULL) {
        hth_ring_stop(c->requests);
        (void)hth_ring_calls_cancel(c, 0);
        hth_ring_client_rele(c);
    }
}

void hth_rings_cancel(hth_rings *rings, const hth_conn *conn, uint64_t call)
{
    hth_ring_client *c = call != 0 ? rings_find(rings, conn) : NULL;
    if (c != NULL) {
        (void)hth_ring_calls_cancel(c, call);
        nng_msg *kept = hth_ring_calls_fetch(c, call);
        if (kept != NULL) { // nobody will fetch it
            nng_msg_free(kept);
        }
        hth_ring_client_rele(c);
    }
}

hth_err hth_rings_fetch(hth_rings *rings, const hth_conn *conn, uint64_t call, nng_msg **out)
{
    hth_ring_client *c = rings_find(rings, conn);
    *out = c != NULL ? hth_ring_calls_fetch(c, call) : NULL;
    if (c != NULL) {
        hth_ring_client_rele(c);
    }
    return *out != NULL ? HTH_OK
                        : hth_fail(HTH_ENOENT, "no answer to call %" PRIu64 " waits", call);
}

// ---- lifetime

hth_err hth_rings_open(hth_engine *engine, hth_auth *auth, const hth_wire_limits *limits,
                       hth_rings **out)
{
    hth_rings *t = hth_calloc(1, sizeof *t);
    *out = t;
    if (t == NULL) {
        return hth_no_memory("the table of rings");
    }
    t->engine = engine;
    t->auth = auth;
    t->limits = *limits;
    pthread_mutex_init(&t->lock, NULL);
    t->hook = (hth_poll_hook){rings_poll, rings_leave, t};
    hth_engine_set_poll_hook(engine, &t->hook);
    return HTH_OK;
}

void hth_rings_refuse(hth_rings *rings)
{
    rings->stopping = true;
}

// rings_wait waits until `*n` is 0 or `until_ns`, 0: for ever.
static bool rings_wait(_Atomic int *n, uint64_t until_ns)
{
    while (*n > 0 && (until_ns == 0 || hth_now_ns() < until_ns)) {
        rings_nap();
    }
    return *n == 0;
}

hth_err hth_rings_stop(hth_rings *rings, uint64_t limit_ns)
{
    uint64_t now_ns = hth_now_ns();
    hth_rings_refuse(rings);
    if (!rings_wait(&rings->n_working, limit_ns > 0 ? now_ns + limit_ns : 0)) {
        return hth_fail(HTH_ETIMEDOUT, "%d requests are not answered", (int)rings->n_working);
    }
    (void)rings_wait(&rings->n_retained, hth_now_ns() + RINGS_FETCH_NS);
    return HTH_OK;
}

int hth_rings_cancel_all(hth_rings *rings)
{
    pthread_mutex_lock(&rings->lock);
    for (hth_ring_client *c = rings->clients; c != NULL; c = c->next) {
        (void)hth_ring_calls_cancel(c, 0);
    }
    pthread_mutex_unlock(&rings->lock);
    return rings->n_working;
}

void hth_rings_count(hth_rings *rings, uint64_t *answered, uint64_t *refused)
{
    *answered = rings->n_answered;
    *refused = rings->n_refused;
}

void hth_rings_close(hth_rings *rings)
{
    if (rings == NULL) {
        return;
    }
    rings->stopping = true;
    pthread_mutex_lock(&rings->lock);
    for (hth_ring_client *c = rings->clients; c != NULL; c = c->next) {
        hth_ring_stop(c->requests);
    }
    pthread_mutex_unlock(&rings->lock);
    (void)rings_wait(&rings->n_clients, 0);
    pthread_mutex_destroy(&rings->lock);
    hth_free(rings);
}
