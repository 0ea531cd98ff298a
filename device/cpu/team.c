// SPDX-License-Identifier: Apache-2.0
// A team runs one *region* at a time: n shares of one function, of which its owner runs share 0 and
// workers claim the others. Invariants:
// - `ticket` holds the region's number, its n, and the next unclaimed share. A claim is one
//   compare-and-swap, so a worker that wakes late can never claim a share of a finished region.
// - fn and data change only between regions, and a region is finished only when all n shares are
//   done: a claimed share therefore reads them safely.
// - The owner, done with share 0, claims the remaining shares. It cannot take over a share that
//   others wait for in a barrier: to finish share 0 it must itself have passed every barrier, and
//   so must all others.
// - Each worker is bound to a processor of its own, never the owner's: a woken thread is otherwise
//   put next to the one that woke it whenever the other processors are not idle, and both shares
//   take turns. The owner is not bound, unless it asks for it; when it has moved to a worker's
//   processor, that worker moves to the one the owner left.
// Waiting (for work, for the end, in a barrier) spins for some microseconds, yielding the processor
// to other threads, and then sleeps on a futex. Workers start with the first region that
// needs them and end with the owner thread.
#include "device/cpu/team.h"

#include "base/compare.h"

#include "device/cpu/quantum.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TEAM_MAX 256 // threads of one team

// How long to spin. For work: longer than what lies between two operators of a model, so that a
// worker does not sleep within a request. For others' shares: a small part of a scheduling quantum;
// who waits longer waits for a thread that is not running, and should make room for it.
#define TEAM_SPIN_WORK_NS 60000
#define TEAM_SPIN_DONE_NS 30000

struct hth_team {
    _Atomic uint64_t ticket; // region << 32 | n << 16 | next share
    _Atomic uint32_t region; // workers sleep on it
    _Atomic uint32_t sleeping;
    void (*fn)(void *);
    void *data;
    _Alignas(64) _Atomic uint32_t done; // shares; the owner sleeps on it
    _Atomic uint32_t owner_sleeps;
    _Alignas(64) _Atomic uint32_t arrived; // in the barrier
    _Atomic uint32_t generation;           // of the barrier; late ones sleep on it
    _Atomic uint32_t barrier_sleeps;
    _Atomic bool quit;
    _Atomic bool keeps; // processors while it spins
    int n_workers;
    pthread_t worker[TEAM_MAX];
    int cpu[TEAM_MAX]; // of each worker; -1: not bound
    int owner_cpu;     // where it was seen last
    _Atomic bool low;  // the owner is to be bound
    bool bound;        // and is
};
typedef struct hth_team team;

// Who the calling thread is.
static _Thread_local struct {
    team *team;   // owned, or served; NULL: none yet
    int size;     // threads to use; 0: hth_team_set was never called here
    bool keeps;   // as hth_team_keep: the owner's team from its next region on
    int share, n; // in a region: which of how many
    bool inside;
} me = {.n = 1};

static pthread_key_t team_key; // runs team_end when an owner thread ends
static pthread_once_t team_once = PTHREAD_ONCE_INIT;

static void futex_wait(_Atomic uint32_t *at, uint32_t expected)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *at)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint64_t team_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void team_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

// spin_until_not waits until *at differs from `value`, at most `ns`; false when the time is over.
static bool spin_until_not(const team *t, _Atomic uint32_t *at, uint32_t value, uint64_t ns)
{
    uint64_t end = 0;
    for (unsigned i = 1;; i++) {
        if (atomic_load_explicit(at, memory_order_acquire) != value) {
            return true;
        }
        team_pause();
        if (i % 64 == 0) {
            if (!atomic_load_explicit(&t->keeps, memory_order_relaxed)) {
                sched_yield(); // who the region, or its owner's answer, waits for may be here
            }
            uint64_t now = team_now_ns();
            end = end == 0 ? now + ns : end;
            if (now >= end) {
                return false;
            }
        }
    }
}

static void wait_until_not(const team *t, _Atomic uint32_t *at, uint32_t value, uint64_t ns,
                           _Atomic uint32_t *sleepers)
{
    if (spin_until_not(t, at, value, ns)) {
        return;
    }
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(at) == value) {
        futex_wait(at, value);
    }
    atomic_fetch_sub(sleepers, 1);
}

static void publish(_Atomic uint32_t *at, _Atomic uint32_t *sleepers)
{
    atomic_fetch_add(at, 1);
    if (atomic_load(sleepers) > 0) {
        futex_wake(at);
    }
}

// claim takes the next share of the current region; false when none is left.
static bool claim(team *t, int *share, int *n)
{
    uint64_t k = atomic_load_explicit(&t->ticket, memory_order_acquire);
    while ((k & 0xFFFF) < (k >> 16 & 0xFFFF)) {
        if (atomic_compare_exchange_weak_explicit(&t->ticket, &k, k + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *share = (int)(k & 0xFFFF);
            *n = (int)(k >> 16 & 0xFFFF);
            return true;
        }
    }
    return false;
}

static void keep(bool on)
{
    if (me.keeps != on) {
        me.keeps = on;
        hth_quantum_keep(on);
    }
}

static void run_share(team *t, int share, int n)
{
    me.share = share;
    me.n = n;
    me.inside = true;
    t->fn(t->data);
    me.inside = false;
    me.share = 0;
    me.n = 1;
    // The last one may find the owner asleep; a spurious wake is harmless.
    publish(&t->done, &t->owner_sleeps);
}

static void *worker_main(void *arg)
{
    team *t = arg;
    me.team = t;
    me.size = 1;
    uint32_t seen = 0;
    while (!atomic_load(&t->quit)) {
        int share, n;
        while (claim(t, &share, &n)) {
            keep(atomic_load_explicit(&t->keeps, memory_order_relaxed));
            run_share(t, share, n);
        }
        uint32_t now = atomic_load(&t->region);
        if (now != seen) { // published while looking: look again
            seen = now;
            continue;
        }
        wait_until_not(t, &t->region, seen, TEAM_SPIN_WORK_NS, &t->sleeping);
    }
    return NULL;
}

static void team_end(void *arg)
{
    team *t = arg;
    atomic_store(&t->quit, true);
    publish(&t->region, &t->sleeping);
    for (int i = 0; i < t->n_workers; i++) {
        pthread_join(t->worker[i], NULL);
    }
    free(t);
}

static void worker_bind(team *t, int i, int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    t->cpu[i] = pthread_setaffinity_np(t->worker[i], sizeof set, &set) == 0 ? cpu : -1;
}

// worker_place gives new worker i a processor that nobody of the team has, if there is one.
static void worker_place(team *t, int i)
{
    cpu_set_t allowed;
    t->cpu[i] = -1;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return;
    }
    CPU_CLR(t->owner_cpu, &allowed);
    for (int k = 0; k < i; k++) {
        if (t->cpu[k] >= 0) {
            CPU_CLR(t->cpu[k], &allowed);
        }
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) {
            worker_bind(t, i, cpu);
            return;
        }
    }
}

// team_bind keeps the owner away from the workers' processors.
static void team_bind(team *t)
{
    cpu_set_t rest;
    if (sched_getaffinity(0, sizeof rest, &rest) != 0) {
        return;
    }
    for (int i = 0; i < t->n_workers; i++) {
        if (t->cpu[i] >= 0) {
            CPU_CLR(t->cpu[i], &rest);
        }
    }
    t->bound = CPU_COUNT(&rest) > 0 && sched_setaffinity(0, sizeof rest, &rest) == 0;
}

// team_spread keeps the workers away from the owner's processor.
static void team_spread(team *t)
{
    if (!t->bound && atomic_load_explicit(&t->low, memory_order_relaxed)) {
        team_bind(t);
    }
    int now = sched_getcpu();
    for (int i = 0; now >= 0 && now != t->owner_cpu && i < t->n_workers; i++) {
        if (t->cpu[i] == now) {
            worker_bind(t, i, t->owner_cpu);
        }
    }
    t->owner_cpu = now >= 0 ? now : t->owner_cpu;
}

static void team_key_make(void)
{
    (void)pthread_key_create(&team_key, team_end);
}

// team_ensure gives the calling thread a team with n - 1 workers; returns how many threads there
// are.
static int team_ensure(int n)
{
    if (me.team == NULL) {
        pthread_once(&team_once, team_key_make);
        team *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
        if (t == NULL) {
            return 1;
        }
        *t = (team){.owner_cpu = sched_getcpu()};
        t->owner_cpu = t->owner_cpu < 0 ? 0 : t->owner_cpu;
        if (pthread_setspecific(team_key, t) != 0) {
            free(t);
            return 1;
        }
        me.team = t;
    }
    team *t = me.team;
    while (t->n_workers < n - 1 && t->n_workers < TEAM_MAX - 1) {
        if (pthread_create(&t->worker[t->n_workers], NULL, worker_main, t) != 0) {
            break;
        }
        worker_place(t, t->n_workers);
        t->n_workers++;
    }
    return t->n_workers + 1 < n ? t->n_workers + 1 : n;
}

static void run_alone(void (*fn)(void *), void *data)
{
    int share = me.share, n = me.n;
    me.share = 0;
    me.n = 1;
    fn(data);
    me.share = share;
    me.n = n;
}

static void run_region(void (*fn)(void *), void *data, int n)
{
    if (me.inside || n <= 1 || (n = team_ensure(n)) <= 1) {
        run_alone(fn, data);
        return;
    }
    team *t = me.team;
    int share;
    team_spread(t);
    atomic_store_explicit(&t->keeps, me.keeps, memory_order_relaxed);
    t->fn = fn;
    t->data = data;
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
    uint64_t number = atomic_load_explicit(&t->ticket, memory_order_relaxed) >> 32;
    atomic_store_explicit(&t->ticket, (number + 1) << 32 | (uint64_t)n << 16 | 1,
                          memory_order_release);
    publish(&t->region, &t->sleeping);
    run_share(t, 0, n);
    while (claim(t, &share, &n)) {
        run_share(t, share, n);
    }
    for (uint32_t done;
         (done = atomic_load_explicit(&t->done, memory_order_acquire)) != (uint32_t)n;) {
        wait_until_not(t, &t->done, done, TEAM_SPIN_DONE_NS, &t->owner_sleeps);
    }
}

static bool omp_here(void)
{
    return me.size != 0;
}

static void omp_parallel(void (*fn)(void *), void *data, unsigned n_threads)
{
    run_region(fn, data, n_threads > 0 ? (int)n_threads : me.size);
}

static void omp_barrier(void)
{
    if (me.n <= 1) {
        return;
    }
    team *t = me.team;
    uint32_t generation = atomic_load(&t->generation);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == (uint32_t)me.n) {
        atomic_store(&t->arrived, 0);
        publish(&t->generation, &t->barrier_sleeps);
    } else {
        wait_until_not(t, &t->generation, generation, TEAM_SPIN_DONE_NS, &t->barrier_sleeps);
    }
}

static int omp_n(void)
{
    return me.n;
}

static int omp_share(void)
{
    return me.share;
}

static int omp_inside(void)
{
    return me.inside;
}

void hth_team_set(int n_threads)
{
    me.size = (int)hth_clamp(n_threads, 1, TEAM_MAX);
}

void hth_team_keep(bool on)
{
    keep(on);
}

hth_team *hth_team_open(void)
{
    return me.inside || team_ensure(me.size) <= 1 ? NULL : me.team;
}

void hth_team_low(hth_team *team)
{
    for (int i = 0; i < team->n_workers; i++) {
        (void)pthread_setschedparam(team->worker[i], SCHED_IDLE, &(struct sched_param){0});
    }
    atomic_store(&team->low, true);
}

int hth_team_size(void)
{
    return me.size == 0 ? 1 : me.size;
}

typedef struct team_call {
    void (*fn)(void *arg, int i, int n);
    void *arg;
} team_call;

static void team_enter(void *data)
{
    const team_call *c = data;
    c->fn(c->arg, me.share, me.n);
}

void hth_team_run(void (*fn)(void *arg, int i, int n), void *arg)
{
    team_call c = {fn, arg};
    run_region(team_enter, &c, hth_team_size());
}

const hth_team_omp hth_team_openmp = {omp_here, omp_parallel, omp_barrier, hth_team_size,
                                      omp_n,    omp_share,    omp_inside};
