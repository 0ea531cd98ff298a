// SPDX-License-Identifier: Apache-2.0
// A link's rate, on a clock that moves only where copies sleep, a little late each time as a
// system's clock does; and a device with such a link, which does all that a device must do.
#define CONFORMANCE_SPEC "cpu:mem=1MiB,threads=1,link=1GB/s"
#include "tests/rig/device_conformance.h"

#include "base/test.h"

#include "base/clock.h"
#include "device/cpu/paced_copy.h"

#include <pthread.h>
#include <stdatomic.h>

#define MB    ((size_t)1000000)
#define LATE  60000u // ns
#define SLOTS 4096

static _Atomic uint64_t now;
static uint64_t late;
static uint64_t slept_until[SLOTS];
static atomic_int n_slept;

static uint64_t clock_read(void *ctx)
{
    return atomic_load(&now);
}

// Several threads sleep: time is what the latest of them slept for.
static void clock_sleep(void *ctx, uint64_t ns)
{
    uint64_t is = atomic_load(&now), will = ns + late;
    slept_until[atomic_fetch_add(&n_slept, 1) % SLOTS] = ns;
    while (is < ns && !atomic_compare_exchange_weak(&now, &is, will)) {
    }
}

static int clock_setup(void **state)
{
    atomic_store(&now, 1000000000u);
    atomic_store(&n_slept, 0);
    late = 0;
    hth_clock_inject(clock_read, NULL);
    hth_sleep_inject(clock_sleep, NULL);
    return 0;
}

static int clock_teardown(void **state)
{
    hth_sleep_inject(NULL, NULL);
    hth_clock_inject(NULL, NULL);
    return 0;
}

static char *bytes_new(size_t n, int first)
{
    char *p = hth_alloc_large(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        p[i] = (char)(first + i * 31 + i / 251);
    }
    return p;
}

// Every piece is due when its bytes have crossed, however late the one before it was.
static void pieces_are_due_at_their_times(void **state)
{
    const size_t n = 11 * MB + 12345;
    char *from = bytes_new(n, 3), *to = bytes_new(n, 0);
    hth_paced_link link = {.bytes_per_s = 2e9};
    late = LATE;
    uint64_t start = hth_now_ns();
    hth_paced_copy(&link, start, to, from, n);
    assert_memory_equal(to, from, n);
    assert_int_equal(n_slept, 3); // 4 MB each
    for (int i = 0; i < n_slept; i++) {
        size_t crossed = i < 2 ? (size_t)(i + 1) * 4 * MB : n;
        assert_int_equal(slept_until[i], start + HTH_LINK_LATENCY_NS + crossed / 2);
    }
    assert_int_equal(link.free_ns, slept_until[2]);
    assert_int_equal(hth_now_ns(), link.free_ns + LATE);
    hth_free(from);
    hth_free(to);
}

// Copies that wait for each other take the link's time together: being late does not add up. Those
// that come later begin when they come.
static void the_rate_holds_over_many_copies(void **state)
{
    const size_t n = 3 * MB;
    char *from = bytes_new(n, 5), *to = bytes_new(n, 0);
    hth_paced_link link = {.bytes_per_s = 1.5e9};
    late = LATE;
    uint64_t start = hth_now_ns();
    for (int i = 0; i < 200; i++) {
        hth_paced_copy(&link, start, to, from, n);
    }
    double took = (double)(hth_now_ns() - start), want = 200.0 * (double)n / 1.5;
    print_message("# 200 copies of 3 MB at 1.5 GB/s, each woken 60 us late: %.3f %% over\n",
                  100 * (took / want - 1));
    assert_true(took > want && took < 1.02 * want);
    assert_int_equal(link.free_ns, start + 200u * (HTH_LINK_LATENCY_NS + 2 * MB));
    uint64_t later = link.free_ns + 5 * MB;
    hth_paced_copy(&link, later, to, from, n);
    assert_int_equal(link.free_ns, later + HTH_LINK_LATENCY_NS + 2 * MB);
    hth_free(from);
    hth_free(to);
}

// Copies of odd sizes, to odd places, write just their bytes, in whatever pieces. Where the link is
// faster than memory, no copy sleeps beyond the times that its rate gives.
static void all_bytes_arrive(void **state)
{
    static const size_t length[] = {1, 63, 64, 4096, 65536, 65537, 300007};
    static const double rate[] = {1e3, 1e6, 3e8, 1e15};
    char *from = bytes_new(300100, 9), *to = bytes_new(300100, 0);
    for (size_t k = 0; k < 2 * sizeof length / sizeof *length; k++) {
        for (size_t r = 0; r < sizeof rate / sizeof *rate; r++) {
            size_t n = length[k / 2], at = 64 + k % 2 * 3;
            hth_paced_link link = {.bytes_per_s = rate[r]};
            uint64_t start = hth_now_ns();
            memset(to, 'x', 300100);
            hth_paced_copy(&link, start, to + at, from + 7, n);
            assert_memory_equal(to + at, from + 7, n);
            assert_true(to[at - 1] == 'x' && to[at + n] == 'x');
            double want = HTH_LINK_LATENCY_NS + (double)n / rate[r] * 1e9;
            assert_true((double)(link.free_ns - start) <= want);
            assert_true((double)(link.free_ns - start) > want - 1);
        }
    }
    hth_free(from);
    hth_free(to);
}

// Both directions.

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
} gate;

static hth_err gate_pass(void *arg)
{
    gate *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->open) {
        pthread_cond_wait(&g->changed, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return HTH_OK;
}

static void gate_open(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

typedef struct linked {
    hth_device *device;
    hth_stream *compute, *h2d, *d2h;
    hth_event *up, *down;
    char *far, *host;
    size_t bytes;
} linked;

static void linked_open(linked *l, const char *spec)
{
    *l = (linked){.bytes = 8 * MB};
    assert_ok(hth_device_open(spec, &l->device));
    assert_ok(hth_stream_open(l->device, HTH_STREAM_COMPUTE, &l->compute));
    assert_ok(hth_stream_open(l->device, HTH_STREAM_H2D, &l->h2d));
    assert_ok(hth_stream_open(l->device, HTH_STREAM_D2H, &l->d2h));
    assert_ok(hth_event_open(l->device, &l->up));
    assert_ok(hth_event_open(l->device, &l->down));
    assert_ok(hth_device_reserve(l->device, 2 * l->bytes, (void **)&l->far));
    l->host = bytes_new(2 * l->bytes, 1);
    memset(l->far, 0, 2 * l->bytes);
}

static void linked_close(linked *l)
{
    hth_stream_close(l->compute);
    hth_stream_close(l->h2d);
    hth_stream_close(l->d2h);
    hth_event_close(l->up);
    hth_event_close(l->down);
    hth_device_release(l->device, l->far, 2 * l->bytes);
    hth_device_close(l->device);
    hth_free(l->host);
}

static hth_err computed(void *arg)
{
    ++*(int *)arg;
    return HTH_OK;
}

// 8 MB up at 2 GB/s and 4 MB down at 1 GB/s take 4 ms together, with a kernel meanwhile.
static void directions_and_compute_overlap(void **state)
{
    linked l;
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    int kernels = 0;
    linked_open(&l, "cpu:mem=32MiB,threads=1,link=1GB/s,h2d=2GB/s");
    uint64_t start = hth_now_ns();
    assert_ok(hth_stream_launch(l.h2d, gate_pass, &g)); // all is issued before time passes
    assert_ok(hth_stream_launch(l.d2h, gate_pass, &g));
    assert_ok(hth_stream_copy(l.h2d, l.far, l.host, l.bytes));
    assert_ok(hth_stream_copy(l.d2h, l.host + l.bytes, l.far + l.bytes, l.bytes / 2));
    assert_ok(hth_stream_record(l.h2d, l.up));
    assert_ok(hth_stream_record(l.d2h, l.down));
    assert_ok(hth_stream_launch(l.compute, computed, &kernels));
    assert_ok(hth_stream_sync(l.compute));
    assert_int_equal(kernels, 1);
    assert_int_equal(hth_event_time_ns(l.up), 0);
    assert_int_equal(hth_event_time_ns(l.down), 0);
    gate_open(&g);
    assert_ok(hth_event_sync(l.up));
    assert_ok(hth_event_sync(l.down));
    assert_int_equal(hth_now_ns(), start + HTH_LINK_LATENCY_NS + 4 * MB);
    assert_memory_equal(l.far, l.host, l.bytes);
    for (size_t i = 0; i < l.bytes / 2; i++) {
        assert_int_equal(l.host[l.bytes + i], 0);
    }
    linked_close(&l);
}

// A copy in waits for a copy out, and compute for the copy in; a copy out waits for compute.
static void copies_wait_for_each_other_and_for_compute(void **state)
{
    linked l;
    hth_event *ready;
    linked_open(&l, "cpu:mem=32MiB,threads=1,h2d=2GB/s,d2h=1GB/s");
    assert_ok(hth_event_open(l.device, &ready));
    memcpy(l.far, "to and fro", 11);
    uint64_t start = hth_now_ns() + 3 * MB;
    atomic_store(&now, start); // compute has taken that long
    assert_ok(hth_stream_record(l.compute, ready));
    assert_ok(hth_stream_wait(l.d2h, ready));
    assert_ok(hth_stream_copy(l.d2h, l.host, l.far, l.bytes));
    assert_ok(hth_stream_record(l.d2h, l.down));
    assert_ok(hth_stream_wait(l.h2d, l.down));
    assert_ok(hth_stream_copy(l.h2d, l.far + l.bytes, l.host, l.bytes));
    assert_ok(hth_stream_record(l.h2d, l.up));
    assert_ok(hth_stream_wait(l.compute, l.up)); // blocks the owner
    assert_string_equal(l.far + l.bytes, "to and fro");
    assert_int_equal(hth_event_time_ns(l.down), start + HTH_LINK_LATENCY_NS + 8 * MB);
    assert_int_equal(hth_event_time_ns(l.up), start + 2 * HTH_LINK_LATENCY_NS + 12 * MB);
    hth_event_close(ready);
    linked_close(&l);
}

static void put_and_get_go_over_it(void **state)
{
    linked l;
    linked_open(&l, "cpu:mem=32MiB,threads=1,h2d=2GB/s,d2h=1GB/s");
    uint64_t start = hth_now_ns();
    assert_ok(hth_device_put(l.device, l.far, l.host, l.bytes));
    assert_memory_equal(l.far, l.host, l.bytes);
    assert_int_equal(hth_now_ns() - start, HTH_LINK_LATENCY_NS + 4 * MB);
    start = hth_now_ns();
    memset(l.host, 0, l.bytes);
    assert_ok(hth_device_get(l.device, l.host, l.far, l.bytes));
    assert_memory_equal(l.host, l.far, l.bytes);
    assert_int_equal(hth_now_ns() - start, HTH_LINK_LATENCY_NS + 8 * MB);
    linked_close(&l);
}

static void assert_refused(const char *spec, const char *word)
{
    hth_device *d = (hth_device *)&d;
    assert_err(hth_device_open(spec, &d), HTH_EINVAL, word);
    assert_null(d);
}

static void options(void **state)
{
    static const struct {
        const char *spec;
        double h2d, d2h;
        const char *words; // in the description
    } good[] = {
        {"cpu:link=1.5GB/s", 1.5e9, 1.5e9, ", link 1.5 GB/s"},
        {"cpu:d2h=500MB/s,link=1.5GB/s", 1.5e9, 5e8, ", link 1.5 GB/s to it, 500 MB/s back"},
        {"cpu:h2d=2GB/s,d2h=1GiB/s", 2e9, 1073741824.0, ", link 2 GB/s to it"},
        {"cpu:threads=1", 0, 0, "1 thread"},
    };
    hth_device *d;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(hth_device_open(good[i].spec, &d));
        assert_true(d->props.h2d_bytes_per_s == good[i].h2d);
        assert_true(d->props.d2h_bytes_per_s == good[i].d2h);
        assert_int_equal(hth_device_paced(d), good[i].h2d > 0);
        assert_false(hth_device_paced(d) && d->props.inline_copies); // on all processors, too
        assert_non_null(strstr(d->props.description, good[i].words));
        assert_null(strstr(d->props.fingerprint, "link")); // kernels take as long
        hth_device_close(d);
    }
    assert_refused("cpu:link=0GB/s", "device option link=0GB/s: expected at least 1kB/s");
    assert_refused("cpu:link=-1GB/s", "device option link=-1GB/s: expected a rate such as");
    assert_refused("cpu:link=", "device option link=: expected a rate");
    assert_refused("cpu:link=fast", "device option link=fast: expected a rate");
    assert_refused("cpu:link=1.5GB", "KiB/s, MiB/s or GiB/s");
    assert_refused("cpu:h2d=1GB/s", "device option h2d=: d2h= is missing; link=RATE sets both");
    assert_refused("cpu:d2h=1GB/s", "device option d2h=: h2d= is missing; link=RATE sets both");
    assert_refused("fake:link=1GB/s", "no option 'link'");
}

#define CLOCKED(test) cmocka_unit_test_setup_teardown(test, clock_setup, clock_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFORMANCE_TESTS,
        CLOCKED(pieces_are_due_at_their_times),
        CLOCKED(the_rate_holds_over_many_copies),
        CLOCKED(all_bytes_arrive),
        CLOCKED(directions_and_compute_overlap),
        CLOCKED(copies_wait_for_each_other_and_for_compute),
        CLOCKED(put_and_get_go_over_it),
        cmocka_unit_test(options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
