// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/ipc/memfd.h"
#include "base/ipc/ring.h"
#include "base/thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPACITY   ((size_t)16384)
#define N_MESSAGES 1000000
#define MAX_WORDS  80
#define N_FUZZ     200000

// Both halves of a ring on memory that other processes share.
typedef struct pair {
    void *memory;
    int fd;
    hth_ring *in, *out; // producer, consumer
} pair;

static void pair_open(pair *p, uint64_t spin_ns)
{
    assert_ok(hth_memfd_make("ring-test", hth_ring_bytes(CAPACITY), &p->fd, &p->memory));
    assert_ok(hth_ring_open(p->memory, CAPACITY, HTH_RING_PRODUCER, spin_ns, &p->in));
    assert_ok(hth_ring_open(p->memory, CAPACITY, HTH_RING_CONSUMER, spin_ns, &p->out));
}

static void pair_close(pair *p)
{
    hth_ring_close(p->in);
    hth_ring_close(p->out);
    hth_memfd_drop(p->fd, p->memory, hth_ring_bytes(CAPACITY));
}

static uint64_t step(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static hth_err send_text(hth_ring *ring, const char *a, const char *b)
{
    hth_ring_part part[] = {{a, strlen(a)}, {NULL, 0}, {b, strlen(b)}};
    return hth_ring_send(ring, part, 3, 0);
}

static void test_open(void **state)
{
    _Alignas(64) static uint8_t memory[8192];
    hth_ring *r;
    assert_int_equal(hth_ring_bytes(5000), 0);
    assert_int_equal(hth_ring_bytes(2048), 0);
    assert_int_equal(hth_ring_bytes((size_t)1 << 31), 0);
    assert_true(hth_ring_bytes(4096) >= 4096 && hth_ring_bytes(4096) <= sizeof memory);
    assert_int_equal(hth_ring_bytes(4096) % 64, 0);
    assert_err(hth_ring_open(memory, 5000, HTH_RING_PRODUCER, 0, &r), HTH_EINVAL, "power of two");
    assert_null(r);
    assert_err(hth_ring_open(memory + 8, 4096, HTH_RING_PRODUCER, 0, &r), HTH_EINVAL, "ring");
    FAULT_LOOP(hth_ring_open(memory, 4096, HTH_RING_PRODUCER, 0, &r));
    hth_ring_close(r);
    hth_ring_close(NULL);
}

static void test_order_and_bound(void **state)
{
    pair p;
    size_t n;
    char text[64], *large = hth_calloc(1, CAPACITY);
    hth_ring_part part = {large, hth_ring_max(CAPACITY)};
    pair_open(&p, 0);
    assert_int_equal(hth_ring_next(p.out, &n), HTH_ETIMEDOUT);
    assert_int_equal(hth_ring_wait(p.out, 0), HTH_ETIMEDOUT);
    assert_int_equal(hth_ring_wait(p.out, 1000000), HTH_ETIMEDOUT);
    for (int round = 0; round < 700; round++) { // round the end, at many places
        assert_ok(send_text(p.in, "hello, ", "ring"));
        assert_ok(send_text(p.in, "", ""));
        assert_ok(hth_ring_wait(p.out, HTH_FOREVER));
        assert_ok(hth_ring_next(p.out, &n));
        assert_int_equal(n, 11);
        hth_ring_take(p.out, text);
        assert_memory_equal(text, "hello, ring", 11);
        assert_ok(hth_ring_next(p.out, &n));
        assert_int_equal(n, 0);
        hth_ring_take(p.out, NULL);
    }
    assert_ok(hth_ring_send(p.in, &part, 1, 0)); // all of it
    assert_err(send_text(p.in, "", ""), HTH_EBUSY, "full");
    part.bytes++;
    assert_err(hth_ring_send(p.in, &part, 1, 0), HTH_ETOOBIG, "larger");
    hth_ring_part many[] = {{large, CAPACITY / 2}, {large, SIZE_MAX}, {large, CAPACITY / 2}};
    assert_err(hth_ring_send(p.in, many, 3, 0), HTH_ETOOBIG, "larger");
    assert_ok(hth_ring_next(p.out, &n));
    assert_int_equal(n, hth_ring_max(CAPACITY));
    hth_ring_take(p.out, large);
    assert_ok(send_text(p.in, "a", "b"));
    hth_free(large);
    pair_close(&p);
}

// A ring that empties again and again stays in its first pages; what is in it when it is not empty
// is not lost.
static void test_restart(void **state)
{
    const size_t capacity = 1u << 20, bytes = hth_ring_bytes(capacity);
    uint8_t *memory, *got = hth_alloc(200000);
    void *p;
    int fd;
    uint64_t x = 7;
    hth_ring *in, *out;
    assert_ok(hth_memfd_make("ring-test", bytes, &fd, &p));
    memory = p;
    assert_ok(hth_ring_open(memory, capacity, HTH_RING_PRODUCER, 0, &in));
    assert_ok(hth_ring_open(memory, capacity, HTH_RING_CONSUMER, 0, &out));
    for (int i = 0; i < 3000; i++) {
        size_t n = 1000 + step(&x) % 1000, got_bytes;
        memset(got, i, n);
        assert_ok(hth_ring_send(in, &(hth_ring_part){got, n}, 1, 0));
        assert_ok(hth_ring_next(out, &got_bytes));
        assert_int_equal(got_bytes, n);
        memset(got, 0, n);
        assert_true(hth_ring_taken(out) < hth_ring_sent(out));
        hth_ring_take(out, got);
        assert_int_equal(hth_ring_taken(out), hth_ring_sent(out));
        assert_int_equal(got[0], (uint8_t)i);
        assert_int_equal(got[n - 1], (uint8_t)i);
    }
    for (size_t i = bytes - capacity + 70000; i < bytes; i++) {
        assert_int_equal(memory[i], 0); // never written
    }
    int sent = 0, taken = 0;
    size_t n = 1, got_bytes;
    while (sent < 3000) { // some inside
        memset(got, sent, n);
        hth_err err = hth_ring_send(in, &(hth_ring_part){got, n}, 1, 0);
        assert_true(err == HTH_OK || (err == HTH_EBUSY && sent > taken));
        sent += err == HTH_OK;
        size_t most = sent % 10 == 0 ? 150000 : 3000;
        n = err == HTH_OK ? 1 + step(&x) % most : n;
        int leave = err == HTH_OK ? (int)(step(&x) % 4) : sent - taken - 1;
        while (sent - taken > leave) {
            assert_ok(hth_ring_next(out, &got_bytes));
            hth_ring_take(out, got);
            assert_int_equal(got[0], (uint8_t)taken);
            assert_int_equal(got[got_bytes - 1], (uint8_t)taken);
            taken++;
        }
    }
    hth_ring_close(in);
    hth_ring_close(out);
    hth_memfd_drop(fd, memory, bytes);
    hth_free(got);
}

static void wait_for_one(void *ctx)
{
    assert_ok(hth_ring_wait(ctx, HTH_FOREVER));
}

static void test_stop(void **state)
{
    pair p;
    size_t n;
    pair_open(&p, 1000);
    assert_ok(send_text(p.in, "last", ""));
    assert_false(hth_ring_stopped(p.out));
    hth_ring_stop(p.in);
    hth_ring_stop(p.in);
    assert_true(hth_ring_stopped(p.out));
    assert_err(send_text(p.in, "x", ""), HTH_ECANCELED, "gone");
    assert_ok(hth_ring_wait(p.out, HTH_FOREVER)); // what was sent before is still delivered
    assert_ok(hth_ring_next(p.out, &n));
    assert_int_equal(n, 4);
    hth_ring_take(p.out, &(char[8]){0});
    assert_ok(hth_ring_wait(p.out, HTH_FOREVER)); // says at once ..
    assert_int_equal(hth_ring_next(p.out, &n), HTH_ECANCELED);
    hth_ring_stop(p.out);
    assert_int_equal(hth_ring_wait(p.out, HTH_FOREVER), HTH_ECANCELED);
    pair_close(&p);
}

// A peer that has ended has sent what it has sent: who is slow to read it still gets it.
static void test_gone(void **state)
{
    pair p;
    size_t n;
    pthread_t t;
    pair_open(&p, 1000);
    assert_ok(send_text(p.in, "last", ""));
    hth_ring_gone(p.out);
    assert_true(hth_ring_stopped(p.out));
    assert_ok(hth_ring_wait(p.out, HTH_FOREVER));
    assert_ok(hth_ring_next(p.out, &n));
    assert_int_equal(n, 4);
    hth_ring_take(p.out, &(char[8]){0});
    assert_int_equal(hth_ring_next(p.out, &n), HTH_ECANCELED);
    assert_err(send_text(p.in, "x", ""), HTH_ECANCELED, "gone");
    pair_close(&p);
    pair_open(&p, 0);
    assert_ok(hth_thread_start("sleeper", wait_for_one, p.out, &t));
    hth_ring_gone(p.out);
    hth_thread_join(t);
    assert_int_equal(hth_ring_next(p.out, &n), HTH_ECANCELED);
    pair_close(&p);
}

// ---- two processes

static void fill(uint64_t *x, uint64_t *words, size_t n)
{
    uint64_t sum = n;
    for (size_t i = 1; i < n; i++) {
        words[i] = step(x);
        sum = sum * 31 + words[i];
    }
    words[0] = sum;
}

static void produce(hth_ring *ring, int count)
{
    uint64_t x = 88172645463325252u, words[MAX_WORDS];
    for (int i = 0; i < count; i++) {
        size_t n = 1 + step(&x) % (MAX_WORDS - 1), extra = step(&x) % 8;
        fill(&x, words, n);
        hth_ring_part part[] = {{words, n * 8}, {"abcdefgh", extra}};
        assert_ok(hth_ring_send(ring, part, 2, HTH_FOREVER));
    }
}

static void consume(hth_ring *ring, int count)
{
    uint64_t x = 88172645463325252u, want[MAX_WORDS];
    uint8_t got[MAX_WORDS * 8 + 8];
    size_t bytes;
    for (int i = 0; i < count; i++) {
        size_t n = 1 + step(&x) % (MAX_WORDS - 1), extra = step(&x) % 8;
        fill(&x, want, n);
        assert_ok(hth_ring_wait(ring, HTH_FOREVER));
        assert_ok(hth_ring_next(ring, &bytes));
        assert_int_equal(bytes, n * 8 + extra);
        hth_ring_take(ring, got);
        if (memcmp(got, want, n * 8) != 0 || memcmp(got + n * 8, "abcdefgh", extra) != 0) {
            fail_msg("message %d is not what was sent", i);
        }
    }
}

// in_child runs fn in a process of its own and ends it with the result.
static pid_t in_child(void (*fn)(hth_ring *ring, int count), hth_ring *ring, int count)
{
    pid_t pid = fork();
    if (pid == 0) {
        fn(ring, count);
        _exit(0);
    }
    return pid;
}

static void test_processes(void **state)
{
    for (uint64_t spin_ns = 0; spin_ns <= 20000; spin_ns += 20000) {
        pair p;
        int status;
        pair_open(&p, spin_ns);
        pid_t pid = in_child(produce, p.in, N_MESSAGES / 2);
        consume(p.out, N_MESSAGES / 2);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        pair_close(&p);
    }
}

static void produce_some(void *ctx)
{
    produce(ctx, N_MESSAGES / 20);
}

static void test_threads(void **state)
{
    for (uint64_t spin_ns = 0; spin_ns <= 20000; spin_ns += 20000) {
        pair p;
        pthread_t t;
        pair_open(&p, spin_ns);
        assert_ok(hth_thread_start("producer", produce_some, p.in, &t));
        consume(p.out, N_MESSAGES / 20);
        hth_thread_join(t);
        pair_close(&p);
    }
}

// ---- the peer is killed

static void produce_and_die(hth_ring *ring, int count)
{
    produce(ring, count);
    kill(getpid(), SIGKILL);
}

static void consume_and_die(hth_ring *ring, int count)
{
    consume(ring, count);
    kill(getpid(), SIGKILL);
}

typedef struct mourner {
    pid_t pid;
    hth_ring *r;
} mourner;

static void mourn(void *ctx)
{
    mourner *m = ctx;
    waitpid(m->pid, NULL, 0);
    hth_ring_stop(m->r);
}

static void test_killed_producer(void **state)
{
    pair p;
    pthread_t t;
    size_t n;
    pair_open(&p, 1000);
    mourner m = {in_child(produce_and_die, p.in, 1), p.out};
    consume(p.out, 1);
    assert_ok(hth_thread_start("mourner", mourn, &m, &t));
    hth_err err = hth_ring_wait(p.out, HTH_FOREVER);
    assert_true(err == HTH_OK || err == HTH_ECANCELED);
    hth_thread_join(t);
    assert_int_equal(hth_ring_next(p.out, &n), HTH_ECANCELED);
    pair_close(&p);
}

static void test_killed_consumer(void **state)
{
    pair p;
    pthread_t t;
    pair_open(&p, 1000);
    mourner m = {in_child(consume_and_die, p.out, 100), p.in};
    assert_ok(hth_thread_start("mourner", mourn, &m, &t));
    produce(p.in, 100);
    hth_err err = HTH_OK;
    while (err == HTH_OK) { // full, and nobody takes any more
        err = hth_ring_send(p.in, &(hth_ring_part){"abcd", 4}, 1, HTH_FOREVER);
    }
    assert_int_equal(err, HTH_ECANCELED);
    hth_thread_join(t);
    pair_close(&p);
}

// ---- polling

static void test_poll(void **state)
{
    pair p;
    pthread_t t;
    pair_open(&p, 0);
    assert_ok(hth_thread_start("sleeper", wait_for_one, p.out, &t));
    for (int i = 0; i < 100; i++) {
        hth_ring_poll_begin(p.out);
        assert_false(hth_ring_poll_end(p.out));
    }
    hth_ring_poll_begin(p.out);
    assert_ok(send_text(p.in, "x", "y"));
    assert_true(hth_ring_poll_end(p.out));
    assert_ok(send_text(p.in, "wakes", ""));
    hth_thread_join(t);
    pair_close(&p);
}

// ---- another place that is looked into

typedef struct place {
    hth_ring *in;
    int looks, leaves, send_at; // on which look; 0: when it is left
    bool comes;                 // what a look says
} place;

static bool place_look(void *ctx)
{
    place *p = ctx;
    if (++p->looks == p->send_at) {
        assert_ok(send_text(p->in, "found", ""));
    }
    return p->comes;
}

static void place_leave(void *ctx)
{
    place *p = ctx;
    p->leaves++;
    assert_ok(send_text(p->in, "last", ""));
}

static void test_watch(void **state)
{
    pair p;
    pair_open(&p, 10000000000u); // found long before that
    place at = {.in = p.in, .send_at = 5};
    hth_poll_hook w = {place_look, place_leave, &at};
    hth_ring_set_poll(p.out, &w);
    assert_ok(hth_ring_wait(p.out, HTH_FOREVER));
    assert_int_equal(at.looks, 5);
    assert_int_equal(at.leaves, 0);
    size_t n;
    assert_ok(hth_ring_next(p.out, &n));
    hth_ring_take(p.out, &(char[8]){0});
    hth_ring_spin(p.out, 0);
    assert_ok(hth_ring_wait(p.out, HTH_FOREVER)); // sent in the last moment
    assert_int_equal(at.leaves, 1);
    assert_ok(hth_ring_next(p.out, &n));
    hth_ring_take(p.out, &(char[8]){0});
    at = (place){.in = p.in, .send_at = 9, .comes = true};
    assert_ok(hth_ring_wait(p.out, HTH_FOREVER)); // looks on without time, because things came
    assert_int_equal(at.looks, 9);
    assert_int_equal(at.leaves, 0);
    pair_close(&p);
}

// ---- hostile peers

// The words of the shared part, by their places: a hostile peer knows them.
enum { TAIL = 0, HEAD = 8, HUNGRY = 16, BLOCKED = 24, DATA = 40 };

typedef struct hostile {
    _Atomic uint64_t *words;
    atomic_bool done;
} hostile;

static void keep_asleep(void *ctx)
{
    hostile *h = ctx;
    while (!atomic_load(&h->done)) {
        atomic_store(&h->words[HUNGRY], 1);
    }
}

static void stop_it(void *ctx)
{
    hth_ring_stop(ctx);
}

static void test_hostile_sleep(void **state)
{
    pair p;
    pthread_t peer, stopper;
    pair_open(&p, 0);
    hostile h = {.words = p.memory};
    assert_ok(hth_thread_start("peer", keep_asleep, &h, &peer));
    assert_ok(hth_thread_start("stopper", stop_it, p.out, &stopper));
    assert_int_equal(hth_ring_wait(p.out, HTH_FOREVER), HTH_ECANCELED);
    atomic_store(&h.done, true);
    hth_thread_join(peer);
    hth_thread_join(stopper);
    pair_close(&p);
}

// Memory between two pages that cannot be touched, at their end or at their start.
typedef struct fenced {
    uint8_t *all, *memory;
    size_t bytes;
} fenced;

static void fenced_open(fenced *f, bool at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), need = hth_ring_bytes(HTH_RING_MIN);
    size_t inner = (need + page - 1) / page * page;
    f->bytes = inner + 2 * page;
    f->all = mmap(NULL, f->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->all != MAP_FAILED);
    assert_int_equal(mprotect(f->all + page, inner, PROT_READ | PROT_WRITE), 0);
    f->memory = f->all + page + (at_end ? inner - need : 0);
}

static uint64_t hostile_word(uint64_t *x, uint64_t near)
{
    uint64_t v = step(x);
    switch (v % 5) {
    case 0:
        return v;
    case 1:
        return near + (v >> 32) % 64 - 32;
    case 2:
        return near + (v >> 32) % (HTH_RING_MIN + 16);
    case 3:
        return UINT64_MAX - (v >> 32) % 4; // the word that skips among them
    default:
        return (v >> 32) % 256 * 8;
    }
}

// hostile_consume runs a consumer over a ring whose positions and lengths change at will.
static void hostile_consume(fenced *f, uint64_t *x, int count)
{
    uint64_t *w = (uint64_t *)f->memory, taken = 0;
    hth_ring *r = NULL;
    uint8_t *to = hth_alloc(HTH_RING_MIN);
    for (int i = 0; i < count; i++) {
        size_t n;
        if (r == NULL) {
            assert_ok(hth_ring_open(f->memory, HTH_RING_MIN, HTH_RING_CONSUMER, 0, &r));
            taken = 0;
        }
        w[TAIL] = hostile_word(x, taken);
        for (int k = 0; k < 8; k++) { // wherever it looks next
            w[DATA + step(x) % (HTH_RING_MIN / 8)] = hostile_word(x, 0);
        }
        w[DATA] = hostile_word(x, 0);
        w[DATA + taken % HTH_RING_MIN / 8] = hostile_word(x, 0);
        hth_err err = hth_ring_next(r, &n);
        if (err == HTH_OK) {
            assert_true(n <= hth_ring_max(HTH_RING_MIN));
            uint8_t *exact = n < 64 ? malloc(n) : to; // the smallest are watched by sanitizers
            hth_ring_take(r, exact);
            if (exact != to) {
                free(exact);
            }
            taken = w[HEAD];
        } else if (err == HTH_ECORRUPT) { // for good
            w[TAIL] = taken + 8;
            assert_int_equal(hth_ring_next(r, &n), HTH_ECORRUPT);
            hth_ring_close(r);
            r = NULL;
        } else {
            assert_int_equal(err, HTH_ETIMEDOUT);
        }
    }
    hth_ring_close(r);
    hth_free(to);
}

static void hostile_produce(fenced *f, uint64_t *x, int count)
{
    uint64_t *w = (uint64_t *)f->memory, sent = 0;
    hth_ring *r = NULL;
    static const uint8_t bytes[HTH_RING_MIN];
    for (int i = 0; i < count; i++) {
        if (r == NULL) {
            assert_ok(hth_ring_open(f->memory, HTH_RING_MIN, HTH_RING_PRODUCER, 0, &r));
            sent = 0;
        }
        w[HEAD] = hostile_word(x, sent);
        size_t n = step(x) % hth_ring_max(HTH_RING_MIN);
        hth_err err = hth_ring_send(r, &(hth_ring_part){bytes, n}, 1, 0);
        if (err == HTH_ECORRUPT) {
            hth_ring_close(r);
            r = NULL;
        } else if (err == HTH_OK) {
            sent += 8 + (n + 7) / 8 * 8;
            assert_int_equal(w[TAIL], sent);
        } else {
            assert_int_equal(err, HTH_EBUSY);
        }
    }
    hth_ring_close(r);
}

static void test_hostile_words(void **state)
{
    uint64_t x = 42;
    for (int at_end = 0; at_end < 2; at_end++) {
        fenced f;
        fenced_open(&f, at_end != 0);
        hostile_consume(&f, &x, N_FUZZ);
        hostile_produce(&f, &x, N_FUZZ);
        munmap(f.all, f.bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_order_and_bound),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_killed_producer),
        cmocka_unit_test(test_killed_consumer),
        cmocka_unit_test(test_poll),
        cmocka_unit_test(test_watch),
        cmocka_unit_test(test_hostile_sleep),
        cmocka_unit_test(test_hostile_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
