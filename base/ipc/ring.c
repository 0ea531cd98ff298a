// SPDX-License-Identifier: Apache-2.0
// The shared head has a cache line for each word that is written at a rate of its own: the two
// positions with every message, the two words that are slept on only when somebody sleeps. The data
// follow: each message has its length in front (a 64-bit word, never torn by the ring's end,
// because everything is a multiple of 8) and may itself go round the end. Positions count bytes
// since the ring was made and never wrap (2^64 bytes at 10 GB/s: 58 years).
//
// Invariants: 0 <= tail - head <= capacity, of the private positions as far as each side knows the
// other's; a half that found this broken by the peer is `broken` and stays so.
//
// A ring that is empty goes on at its start, once it has come as far as RING_RESTART: what is sent
// and taken one by one stays in a few pages that are in cache, however large the ring is.
//
// The obvious other design, mapping the data twice so that no message goes round the end, saves one
// copy's branch and costs page table entries and a second mapping in each process; messages are
// copied out anyway.
#include "base/ipc/ring.h"

#include "base/alloc.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RING_WORD    8u         // the length in front of a message, and what messages are padded to
#define RING_SKIP    UINT64_MAX // in the place of a length: the next message is at the ring's start
#define RING_RESTART (64u << 10) // where an empty ring goes back to its start

// What a side does, in the word that it sleeps on: only who sleeps is woken. That another thread
// polls the ring has a value of its own, because RING_AWAKE is also what a wake-up leaves: who
// slept on that would sleep through it.
enum { RING_AWAKE, RING_SLEEPS, RING_POLLED };

typedef struct ring_shared {
    _Alignas(64) _Atomic uint64_t tail;    // the producer's position
    _Alignas(64) _Atomic uint64_t head;    // the consumer's position
    _Alignas(64) _Atomic uint32_t hungry;  // RING_AWAKE, ..: what the consumer does
    _Alignas(64) _Atomic uint32_t blocked; // and the producer
    _Alignas(64) _Atomic uint32_t closed;
    _Alignas(64) uint8_t data[];
} ring_shared;

struct hth_ring {
    ring_shared *m;
    uint64_t capacity, spin_ns;
    _Atomic uint64_t mine; // this side's position: its owner writes it, whoever waits reads it
    uint64_t theirs;       // the consumer's position as the producer last read it
    uint64_t next;         // bytes of the message that next found; consumer
    uint64_t base;         // the position that lies at the start of the data
    uint64_t
        base_room; // how many bytes after it are free while the peer has not come to it; producer
    const hth_poll_hook *watch;
    bool came; // since the spinning began, where it looks besides; consumer
    atomic_bool stopped, gone, broken, polled; // gone: the peer
};

size_t hth_ring_bytes(size_t capacity)
{
    bool good = capacity >= HTH_RING_MIN && capacity <= HTH_RING_LARGEST &&
                (capacity & (capacity - 1)) == 0;
    return good ? sizeof(ring_shared) + capacity : 0;
}

size_t hth_ring_max(size_t capacity)
{
    return capacity - RING_WORD;
}

hth_err hth_ring_open(void *memory, size_t capacity, hth_ring_side side, uint64_t spin_ns,
                      hth_ring **out)
{
    *out = NULL;
    if (hth_ring_bytes(capacity) == 0 || (uintptr_t)memory % _Alignof(ring_shared) != 0) {
        return hth_fail(HTH_EINVAL, "a ring of %zu bytes: not a power of two from %u to %u",
                        capacity, HTH_RING_MIN, HTH_RING_LARGEST);
    }
    hth_ring *r = hth_calloc(1, sizeof *r);
    if (r == NULL) {
        return hth_no_memory("a ring");
    }
    r->m = memory;
    r->capacity = capacity;
    r->spin_ns = spin_ns;
    *out = r;
    return HTH_OK;
}

void hth_ring_close(hth_ring *ring)
{
    hth_free(ring);
}

void hth_ring_spin(hth_ring *ring, uint64_t spin_ns)
{
    ring->spin_ns = spin_ns;
}

void hth_ring_set_poll(hth_ring *ring, const hth_poll_hook *hook)
{
    ring->watch = hook;
}

// ---- sleeping and waking

static void ring_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

static void ring_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

// ring_wake wakes who said that it sleeps on `word`.
static void ring_wake(_Atomic uint32_t *word)
{
    uint32_t sleeps = RING_SLEEPS;
    if (atomic_load(word) == RING_SLEEPS &&
        atomic_compare_exchange_strong(word, &sleeps, RING_AWAKE)) {
        ring_futex_wake(word);
    }
}

static void ring_end(hth_ring *ring, atomic_bool *why)
{
    atomic_store(why, true);
    atomic_store(&ring->m->closed, 1);
    _Atomic uint32_t *word[] = {&ring->m->hungry, &ring->m->blocked};
    for (int i = 0; i < 2; i++) { // whatever the words say
        atomic_store(word[i], RING_AWAKE);
        ring_futex_wake(word[i]);
    }
}

void hth_ring_stop(hth_ring *ring)
{
    ring_end(ring, &ring->stopped);
}

void hth_ring_gone(hth_ring *ring)
{
    ring_end(ring, &ring->gone);
}

bool hth_ring_stopped(const hth_ring *ring)
{
    return atomic_load(&ring->stopped) || atomic_load(&ring->gone) ||
           atomic_load(&ring->m->closed) != 0;
}

// ring_sleep waits until `idle` says false, or `until`, sleeping on `word`, which is set before the
// last look. While another thread polls the ring the word says so, and the sleeper is there
// for when that leaves.
static hth_err ring_sleep(hth_ring *ring, bool (*idle)(void *ctx), void *ctx,
                          _Atomic uint32_t *word, uint64_t until)
{
    uint64_t now;
    while (idle(ctx)) {
        if ((now = hth_real_ns()) >= until) {
            return HTH_ETIMEDOUT;
        }
        uint32_t value = RING_AWAKE;
        if (!atomic_load(&ring->polled)) {
            atomic_store(word, value = RING_SLEEPS);
        } else if (atomic_compare_exchange_strong(word, &value, RING_POLLED)) {
            value = RING_POLLED; // else what it is: RING_SLEEPS where that has just ended
        }
        if (idle(ctx) && (value != RING_POLLED || atomic_load(&ring->polled))) {
            uint64_t left = until - now;
            ring_futex_wait(word, value, left < HTH_RING_SLICE_NS ? left : HTH_RING_SLICE_NS);
        }
    }
    uint32_t sleeps = RING_SLEEPS;
    (void)atomic_compare_exchange_strong(word, &sleeps, RING_AWAKE);
    return HTH_OK;
}

// ring_place is where a position lies in the data.
static size_t ring_place(const hth_ring *ring, uint64_t at)
{
    return (at - ring->base) & (ring->capacity - 1);
}

static hth_err ring_broken(hth_ring *ring)
{
    atomic_store(&ring->broken, true);
    return hth_fail(HTH_ECORRUPT, "the peer wrote an invalid position to the ring");
}

// ---- producer

typedef struct ring_room {
    hth_ring *r;
    uint64_t need;
} ring_room;

// ring_has_room knows that the word which sends the peer to `base` must stay until it was read.
static bool ring_has_room(const hth_ring *ring, uint64_t mine, uint64_t theirs, uint64_t need)
{
    return mine - theirs + need <= ring->capacity &&
           (theirs >= ring->base || mine - ring->base + need <= ring->base_room);
}

// ring_is_full says whether there is no room for `need` more bytes. An impossible position is not
// full: the sender finds out.
static bool ring_is_full(void *ctx)
{
    const ring_room *w = ctx;
    hth_ring *r = w->r;
    uint64_t mine = atomic_load_explicit(&r->mine, memory_order_relaxed);
    uint64_t theirs = atomic_load(&r->m->head), used = mine - theirs;
    return used <= r->capacity && !ring_has_room(r, mine, theirs, w->need) && !hth_ring_stopped(r);
}

// ring_write copies into the ring at position `at`, round its end.
static void ring_write(hth_ring *ring, uint64_t at, const void *from, size_t bytes)
{
    size_t start = ring_place(ring, at), first = ring->capacity - start;
    first = bytes < first ? bytes : first;
    if (bytes > 0) {
        memcpy(ring->m->data + start, from, first);
        memcpy(ring->m->data, (const uint8_t *)from + first, bytes - first);
    }
}

// ring_make_room returns when `need` bytes are free.
static hth_err ring_make_room(hth_ring *ring, uint64_t mine, uint64_t need, uint64_t timeout_ns)
{
    if (!ring_has_room(ring, mine, ring->theirs, need)) { // as far as is known: look
        ring_room w = {ring, need};
        uint64_t until = hth_real_after(timeout_ns), looking = hth_real_after(ring->spin_ns);
        hth_spin(ring_is_full, &w, looking < until ? looking : until);
        if (ring_sleep(ring, ring_is_full, &w, &ring->m->blocked, until) != HTH_OK) {
            return hth_fail(HTH_EBUSY, "the queue is full");
        }
        ring->theirs = atomic_load(&ring->m->head);
        if (mine - ring->theirs > ring->capacity) {
            return ring_broken(ring);
        }
    }
    return ring_has_room(ring, mine, ring->theirs, need) && !hth_ring_stopped(ring)
               ? HTH_OK
               : hth_fail(HTH_ECANCELED, "the receiver is gone");
}

// ring_restart has the peer go on at the start of the data, if the ring is empty and has come far
// enough; returns where the message goes.
static uint64_t ring_restart(hth_ring *ring, uint64_t mine, uint64_t need)
{
    uint64_t at = ring_place(ring, mine);
    if (at >= RING_RESTART && need <= at / 4 && atomic_load(&ring->m->head) == mine) {
        ring_write(ring, mine, &(uint64_t){RING_SKIP}, RING_WORD);
        ring->theirs = mine;
        mine += RING_WORD;
        ring->base = mine;
        ring->base_room = at;
    }
    return mine;
}

// ring_need is how much of the ring a message takes.
static uint64_t ring_need(uint64_t bytes)
{
    return RING_WORD + (bytes + RING_WORD - 1) / RING_WORD * RING_WORD;
}

hth_err hth_ring_reserve(hth_ring *ring, size_t bytes, uint64_t timeout_ns)
{
    uint64_t most = hth_ring_max(ring->capacity);
    if (bytes > most) {
        return hth_fail(HTH_ETOOBIG, "a message is larger than a ring's %llu bytes",
                        (unsigned long long)most);
    }
    if (ring->broken) {
        return ring_broken(ring);
    }
    uint64_t mine = atomic_load_explicit(&ring->mine, memory_order_relaxed);
    return ring_make_room(ring, mine, ring_need(bytes), timeout_ns);
}

hth_err hth_ring_send(hth_ring *ring, const hth_ring_part *part, int n, uint64_t timeout_ns)
{
    uint64_t bytes = 0, most = hth_ring_max(ring->capacity);
    for (int i = 0; i < n; i++) {
        bytes = part[i].bytes <= most ? bytes + part[i].bytes : UINT64_MAX / 2;
    }
    HTH_TRY(hth_ring_reserve(ring, bytes, timeout_ns));
    uint64_t mine = atomic_load_explicit(&ring->mine, memory_order_relaxed);
    uint64_t need = ring_need(bytes);
    mine = ring_restart(ring, mine, need);
    ring_write(ring, mine, &bytes, sizeof bytes);
    uint64_t at = mine + RING_WORD;
    for (int i = 0; i < n; i++) {
        ring_write(ring, at, part[i].data, part[i].bytes);
        at += part[i].bytes;
    }
    atomic_store_explicit(&ring->mine, mine + need, memory_order_relaxed);
    atomic_store(&ring->m->tail, mine + need);
    ring_wake(&ring->m->hungry);
    return HTH_OK;
}

// ---- consumer

static bool ring_is_empty(void *ctx)
{
    const hth_ring *r = ctx;
    return atomic_load(&r->m->tail) == atomic_load_explicit(&r->mine, memory_order_relaxed) &&
           !r->broken && !hth_ring_stopped(r);
}

// ring_length reads the word in front of a message, once: the peer may write there.
static uint64_t ring_length(const hth_ring *ring, uint64_t at)
{
    return *(const volatile uint64_t *)(ring->m->data + ring_place(ring, at));
}

// ring_is_idle looks everywhere.
static bool ring_is_idle(void *ctx)
{
    hth_ring *r = ctx;
    if (r->watch != NULL && ring_is_empty(r)) {
        r->came = r->watch->poll(r->watch->ctx) || r->came;
    }
    return ring_is_empty(r);
}

hth_err hth_ring_wait(hth_ring *ring, uint64_t timeout_ns)
{
    bool idle = ring_is_idle(ring);
    if (idle && timeout_ns == 0) {
        return HTH_ETIMEDOUT;
    }
    if (idle) {
        uint64_t until = hth_real_after(timeout_ns);
        do { // again, when something has come elsewhere: its answer may be the next message
            uint64_t spin_ns = atomic_load(&ring->polled) ? 0 : ring->spin_ns;
            ring->came = false;
            if (spin_ns > 0 || ring->watch != NULL) {
                uint64_t looking = hth_real_after(spin_ns);
                hth_spin(ring_is_idle, ring, looking < until ? looking : until);
            }
        } while (ring->came && ring_is_empty(ring) && hth_real_ns() < until);
        if (ring->watch != NULL && ring_is_empty(ring)) {
            ring->watch->leave(ring->watch->ctx);
        }
        HTH_TRY(ring_sleep(ring, ring_is_empty, ring, &ring->m->hungry, until));
    }
    return ring->stopped ? HTH_ECANCELED : HTH_OK;
}

hth_err hth_ring_next(hth_ring *ring, size_t *bytes)
{
    *bytes = 0;
    if (ring->stopped) {
        return HTH_ECANCELED;
    }
    bool closed = hth_ring_stopped(ring); // before the tail: what was sent is delivered
    uint64_t mine = atomic_load_explicit(&ring->mine, memory_order_relaxed);
    uint64_t there = atomic_load(&ring->m->tail) - mine;
    if (ring->broken) {
        return ring_broken(ring);
    }
    if (there == 0) {
        return closed ? HTH_ECANCELED : HTH_ETIMEDOUT;
    }
    if (there > ring->capacity || there % RING_WORD != 0) {
        return ring_broken(ring);
    }
    uint64_t n = ring_length(ring, mine);
    if (n == RING_SKIP && there > RING_WORD) {
        mine += RING_WORD;
        there -= RING_WORD;
        ring->base = mine;
        atomic_store_explicit(&ring->mine, mine, memory_order_relaxed);
        n = ring_length(ring, mine);
    }
    if (n > there - RING_WORD) {
        return ring_broken(ring);
    }
    *bytes = ring->next = n;
    return HTH_OK;
}

void hth_ring_read(const hth_ring *ring, size_t offset, void *to, size_t bytes)
{
    uint64_t mine = atomic_load_explicit(&ring->mine, memory_order_relaxed);
    size_t start = ring_place(ring, mine + RING_WORD + offset), first = ring->capacity - start;
    first = bytes < first ? bytes : first;
    if (bytes > 0) {
        memcpy(to, ring->m->data + start, first);
        memcpy((uint8_t *)to + first, ring->m->data, bytes - first);
    }
}

void hth_ring_drop(hth_ring *ring)
{
    uint64_t mine = atomic_load_explicit(&ring->mine, memory_order_relaxed);
    mine += RING_WORD + (ring->next + RING_WORD - 1) / RING_WORD * RING_WORD;
    ring->next = 0;
    atomic_store_explicit(&ring->mine, mine, memory_order_relaxed);
    atomic_store(&ring->m->head, mine);
    ring_wake(&ring->m->blocked);
}

void hth_ring_take(hth_ring *ring, void *to)
{
    hth_ring_read(ring, 0, to, ring->next);
    hth_ring_drop(ring);
}

uint64_t hth_ring_sent(const hth_ring *ring)
{
    return atomic_load(&ring->m->tail);
}

uint64_t hth_ring_taken(const hth_ring *ring)
{
    return atomic_load(&ring->mine);
}

void hth_ring_poll_begin(hth_ring *ring)
{
    bool said = atomic_load(&ring->polled) && atomic_load(&ring->m->hungry) == RING_POLLED;
    if (!said && !hth_ring_stopped(ring)) { // a stop's last word stays
        atomic_store(&ring->polled, true);
        atomic_store(&ring->m->hungry, RING_POLLED);
    }
}

bool hth_ring_poll_end(hth_ring *ring)
{
    atomic_store(&ring->polled, false);
    atomic_store(&ring->m->hungry, RING_SLEEPS);
    return !ring_is_empty(ring);
}

void hth_ring_poll_wake(hth_ring *ring)
{
    atomic_store(&ring->polled, false);
    atomic_store(&ring->m->hungry, RING_AWAKE);
    ring_futex_wake(&ring->m->hungry);
}
