// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "device/device.h"
#include "device/quota.h"

#include <time.h>

#define MS     1000000u
#define WINDOW (100 * MS)

static uint64_t random_ns(uint64_t *seed, uint64_t from, uint64_t to)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return from + (*seed >> 33) % (to - from);
}

typedef struct simulation {
    hth_quota quota;
    uint64_t now_ns, used_ns, window_used_ns, windows, seed;
    double worst; // difference of a window's share from the quota
} simulation;

// The share of each window of 100 ms, of which kernels and pauses may cover two.
static void pass(simulation *sim, uint64_t ns, bool computes, int percent)
{
    while (ns > 0) {
        uint64_t left = WINDOW - sim->now_ns % WINDOW, part = ns < left ? ns : left;
        sim->now_ns += part;
        sim->used_ns += computes ? part : 0;
        ns -= part;
        if (sim->now_ns % WINDOW == 0) {
            double share = (double)(sim->used_ns - sim->window_used_ns) / WINDOW;
            double off =
                share > percent / 100.0 ? share - percent / 100.0 : percent / 100.0 - share;
            sim->worst = off > sim->worst ? off : sim->worst;
            sim->window_used_ns = sim->used_ns;
            sim->windows++;
        }
    }
}

// Pauses last longer than asked for, as a system's do.
static void simulate(simulation *sim, int percent, uint64_t kernel_ns)
{
    for (uint64_t end = sim->now_ns + 50 * (uint64_t)WINDOW; sim->now_ns < end;) {
        pass(sim, random_ns(&sim->seed, kernel_ns / 10, kernel_ns), true, percent);
        uint64_t due = hth_quota_due(&sim->quota, percent, sim->now_ns, sim->used_ns);
        if (due > 0) {
            pass(sim, due + random_ns(&sim->seed, MS / 20, MS / 4), false, percent);
        }
    }
}

static void test_share_of_each_window(void **state)
{
    static const int percent[] = {5, 10, 25, 50, 75, 95};
    for (size_t i = 0; i < sizeof percent / sizeof *percent; i++) {
        simulation sim = {.seed = i};
        simulate(&sim, percent[i], MS);
        print_message("# %d%%: a window of 100 ms is at most %.3f off\n", percent[i], sim.worst);
        assert_true(sim.windows >= 49);
        assert_true(sim.worst <= 0.05);
    }
}

// One kernel of 400 ms is paid for, however long that takes; nobody saves up more than the credit.
static void test_long_kernels_and_idle_times(void **state)
{
    hth_quota quota = {0};
    assert_int_equal(hth_quota_due(&quota, 25, 5 * MS, 5 * MS), 0); // what was before is no debt
    assert_int_equal(hth_quota_due(&quota, 25, 405 * MS, 405 * MS), 1200 * (uint64_t)MS);
    assert_int_equal(hth_quota_due(&quota, 25, 409 * MS, 405 * MS), 1196 * (uint64_t)MS);
    assert_int_equal(hth_quota_due(&quota, 25, 90000 * (uint64_t)MS, 405 * MS), 0);
    uint64_t due = hth_quota_due(&quota, 25, 90010 * (uint64_t)MS, 415 * MS);
    assert_int_equal(due, 26 * MS); // 10 ms were used, of them 1 ms as credit and 2.5 ms as share
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// The processor's time in a second, of a thread that always has something to compute.
static double measured(hth_device *device)
{
    uint64_t from_ns = clock_ns(CLOCK_MONOTONIC), used_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID), ns;
    while ((ns = clock_ns(CLOCK_MONOTONIC) - from_ns) < 500 * MS) {
        for (uint64_t until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + MS / 5;
             clock_ns(CLOCK_THREAD_CPUTIME_ID) < until;) {
        }
        while (hth_device_pause(device)) {
        }
    }
    return (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - used_ns) / (double)ns;
}

// Other programs can only make it less.
static void test_processor_time(void **state)
{
    hth_device *d;
    assert_ok(hth_device_open("cpu:mem=1MiB,threads=1,quota=50%", &d));
    double half = measured(d);
    assert_ok(hth_device_quota(d, 20)); // from now on
    double fifth = measured(d);
    print_message("# 50%%: %.3f, 20%%: %.3f of a processor\n", half, fifth);
    assert_true(half < 0.56 && half > 0.05);
    assert_true(fifth < 0.24 && fifth > 0.02);
    assert_ok(hth_device_quota(d, 100));
    assert_false(hth_device_pause(d));
    assert_int_equal(hth_device_quota_percent(d), 100);
    uint64_t until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + 200 * MS;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until) {
        assert_false(hth_device_pause(d));
    }
    assert_ok(hth_device_quota(d, 50)); // what was used without a quota is no debt
    assert_false(hth_device_pause(d));
    assert_ok(hth_device_quota(d, 100));
    hth_device_close(d);
    assert_ok(hth_device_open("fake:mem=1MiB", &d));
    assert_err(hth_device_quota(d, 50), HTH_ENOTSUP, "only CPU devices have a quota");
    hth_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_share_of_each_window),
                                       cmocka_unit_test(test_long_kernels_and_idle_times),
                                       cmocka_unit_test(test_processor_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
