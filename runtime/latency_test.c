// SPDX-License-Identifier: Apache-2.0
// Percentiles and rates against what sorting all values and counting them by time gives.
#include "runtime/latency.h"

#include "base/compare.h"
#include "base/test.h"

#include <math.h>
#include <stdlib.h>

#define SECOND  1000000000ull
#define SAMPLES 20000

static uint64_t random_state = 1;

static double random_share(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

// The definition: the value that a share q of all values does not exceed.
static double exact(const double *sorted, int n, double q)
{
    int want = (int)ceil(q * n);
    return sorted[want > 0 ? want - 1 : 0];
}

static void expect_percentiles(const hth_latency_sum *sum, double *values, int n)
{
    static const double q[] = {0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1};
    qsort(values, (size_t)n, sizeof *values, hth_compare_double);
    assert_int_equal(sum->requests, n);
    for (size_t i = 0; i < sizeof q / sizeof q[0]; i++) {
        double want = exact(values, n, q[i]), got = (double)hth_latency_percentile(sum, q[i]);
        double off = fmax(HTH_LATENCY_UNIT, want / (2 * HTH_LATENCY_PARTS));
        if (fabs(got - want) > off + 1) {
            fail_msg("percentile %g: %g, exactly %g", q[i], got, want);
        }
    }
    assert_int_equal((uint64_t)values[n - 1], sum->longest_ns);
}

// From a hundred nanoseconds to a minute.
static void test_percentiles(void **state)
{
    hth_latency *l;
    hth_latency_sum s;
    static double values[SAMPLES];
    assert_ok(hth_latency_open(SECOND, 4, 0, &l));
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t took = (uint64_t)(100 * pow(6e8, random_share() * random_share()));
        values[i] = (double)took;
        hth_latency_add(l, (uint64_t)i * 4 * SECOND / SAMPLES, took, true);
    }
    hth_latency_get(l, 4 * SECOND - 1, 0, 4, &s);
    expect_percentiles(&s, values, SAMPLES);
    assert_int_equal(s.failures, 0);
    hth_latency_close(l);
}

static void test_buckets(void **state)
{
    assert_int_equal(hth_latency_bucket(0), 0);
    assert_int_equal(hth_latency_bucket(HTH_LATENCY_BUCKETS), HTH_LATENCY_MOST);
    for (int i = 0; i < HTH_LATENCY_BUCKETS; i++) {
        uint64_t from = hth_latency_bucket(i), to = hth_latency_bucket(i + 1);
        assert_true(to > from);
        assert_true(to - from == HTH_LATENCY_UNIT || (to - from) * HTH_LATENCY_PARTS <= from);
        for (int edge = 0; edge < 2; edge++) { // both ends are in it
            hth_latency *l;
            hth_latency_sum s;
            assert_ok(hth_latency_open(SECOND, 1, 0, &l));
            hth_latency_add(l, 1, edge == 0 ? from : to - 1, true);
            hth_latency_get(l, 1, 0, 1, &s);
            assert_int_equal(s.count[i], 1);
            hth_latency_close(l);
        }
    }
}

// Three requests in each second, one of them fails; the ring holds four seconds.
static void test_windows(void **state)
{
    hth_latency *l;
    hth_latency_sum s;
    uint64_t begin = 1000 * SECOND + SECOND / 2;
    assert_ok(hth_latency_open(SECOND, 4, begin, &l));
    hth_latency_get(l, begin, 0, 4, &s);
    assert_true(s.requests == 0 && s.seconds == 0 && hth_latency_percentile(&s, 0.5) == 0);
    for (uint64_t t = begin; t < begin + 10 * SECOND; t += SECOND / 4) {
        hth_latency_add(l, t, 5000, (t / (SECOND / 4)) % 4 != 0);
    }
    uint64_t now = begin + 10 * SECOND - 1; // half a second into the last slot
    hth_latency_get(l, now, 0, 4, &s);
    assert_int_equal(s.requests + s.failures, 3 * 4 + 2);
    assert_int_equal(s.failures, 4);
    assert_true(fabs(s.seconds - 3.5) < 1e-6);
    hth_latency_get(l, now, 1, 1, &s);
    assert_int_equal(s.requests, 3);
    assert_int_equal(s.failures, 1);
    assert_true(s.seconds == 1);
    assert_int_equal(s.longest_ns, 5000);
    hth_latency_get(l, now + 2 * SECOND, 0, 4, &s); // silence: what is old goes
    assert_int_equal(s.requests + s.failures, 4 + 2);
    hth_latency_get(l, now + 100 * SECOND, 0, 4, &s);
    assert_int_equal(s.requests + s.failures, 0);
    hth_latency_get(l, now, 2, 100, &s); // no more than there are
    assert_int_equal(s.requests + s.failures, 8);
    hth_latency_close(l);
}

// Before a whole slot has passed, and with nothing to count in.
static void test_young(void **state)
{
    hth_latency *l;
    hth_latency_sum s;
    assert_ok(hth_latency_open(SECOND, 4, SECOND / 4, &l));
    hth_latency_add(l, SECOND / 2, 100, true);
    hth_latency_get(l, 3 * SECOND / 4, 0, 4, &s);
    assert_true(s.requests == 1 && s.seconds == 0.5);
    hth_latency_close(l);
    hth_latency_add(NULL, 1, 1, true);
    hth_latency_get(NULL, 1, 0, 1, &s);
    assert_int_equal(s.requests, 0);
    hth_latency_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_young),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
