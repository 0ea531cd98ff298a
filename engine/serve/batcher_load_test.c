// SPDX-License-Identifier: Apache-2.0
// A server on a simulated clock under less load than it can bear, and under three times as much:
// who is admitted is served in time, whatever the background work.
#include "tests/rig/batcher_rig.h"

#include <math.h>

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static double uniform(uint64_t *state)
{
    return ((double)(random_next(state) >> 11) + 0.5) * 0x1p-53;
}

typedef struct load {
    double rate;   // arrivals per capacity
    double spread; // of the time of runs: 1 +- spread
    double hiccup; // share of runs that take ten times as long
    double stalls; // share of runs that take stall_ns longer
    uint64_t stall_ns;
    uint64_t timeout_ns; // of each
    double joined;       // time of a further sample, of one alone
    bool delays;
    uint64_t slice_ns; // of a background slice, at most; 0: there is none
    double others;     // the least time between two pieces, of the first
} load;

typedef struct outcome {
    uint64_t admitted, refused, late, done, ended_ns;
    int longest, pieces;
    double busy; // done samples per capacity
} outcome;

#define LOAD_ARRIVALS 200000
#define LOAD_ITEMS    4096

static uint64_t run_takes(const load *l, uint64_t expected_ns, uint64_t *seed)
{
    double f = 1 + l->spread * (2 * uniform(seed) - 1);
    f *= uniform(seed) < l->hiccup ? 10 : 1;
    uint64_t ns = (uint64_t)((double)expected_ns * f);
    return ns + (uniform(seed) < l->stalls ? l->stall_ns : 0);
}

// simulate lets requests arrive at random and one server run what the batcher says.
static outcome simulate(const load *l, uint64_t seed)
{
    static hth_batch_item pool[LOAD_ITEMS];
    static int unused[LOAD_ITEMS];
    int n_unused = 0;
    outcome o = {0};
    rig r;
    rig_init(&r);
    for (int i = 1; i <= 32; i++) {
        r.time_ns[i] = (i & (i - 1)) != 0 ? HTH_BATCH_NONE
                                          : (uint64_t)(MS * (1 + (double)(i - 1) * l->joined));
    }
    r.q.policy.delay_ns = l->delays ? 2 * MS : 0;
    double capacity = 32 / (double)r.time_ns[32]; // samples per nanosecond
    if (l->joined >= 1) {
        capacity = 1 / (double)r.time_ns[1];
    }
    for (int i = 0; i < LOAD_ITEMS; i++) {
        unused[n_unused++] = i;
    }
    uint64_t now = 0, free_at = 0, arrives = 0, wake = UINT64_MAX, last = 0, piece_at = 0;
    int64_t ran = 0;
    uint64_t ran_ns = 0, expected_ns = 0;
    for (int arrivals = 0; arrivals < LOAD_ARRIVALS || r.b.n > 0 || ran > 0;) {
        uint64_t due = ran > 0 ? free_at : wake;
        uint64_t then = arrivals < LOAD_ARRIVALS && arrives < due ? arrives : due;
        now = then > now ? then : now; // after a piece: what has come meanwhile
        if (arrivals < LOAD_ARRIVALS && arrives <= now) {
            assert_true(n_unused > 0); // the queue stays short
            hth_batch_item *i = &pool[unused[--n_unused]];
            *i = item(1, arrives);
            i->timeout_ns = l->timeout_ns;
            arrivals++;
            arrives += (uint64_t)(-log(uniform(&seed)) / (capacity * l->rate)) + 1;
            if (hth_batcher_add(&r.b, &r.q, i, now) != HTH_OK) {
                unused[n_unused++] = (int)(i - pool);
                o.refused++;
            } else {
                o.admitted++;
            }
            o.longest = r.b.n > o.longest ? r.b.n : o.longest;
            if (arrivals < LOAD_ARRIVALS && arrives <= now) {
                continue;
            }
        }
        if (ran > 0 && now >= free_at) {
            hth_batcher_end(&r.b, &r.q, ran, ran_ns);
            hth_batcher_note_stall(&r.b, expected_ns, ran_ns, now);
            o.done += (uint64_t)ran;
            ran = 0;
            last = now;
        }
        if (ran > 0) {
            continue;
        }
        for (hth_batch_item *i = hth_batcher_sweep(&r.b, now); i != NULL; i = i->next) {
            unused[n_unused++] = (int)(i - pool);
            o.late++;
        }
        if (l->slice_ns > 0 && now >= piece_at) {
            uint64_t slack = hth_batcher_slack_ns(&r.b, now);
            uint64_t took = slack > 0 && slack >= hth_batcher_slice_ns(&r.b)
                                ? (uint64_t)((double)l->slice_ns * (1 + uniform(&seed)) / 2)
                                : 0;
            hth_batcher_background(&r.b, took, now + took);
            if (took > 0) {
                now += took;
                piece_at = now + (uint64_t)(l->others * (double)took);
                wake = now;
                o.pieces++;
                continue;
            }
        }
        int64_t bucket = 0;
        hth_batch_item *i =
            hth_batcher_next(&r.b, now, (hth_batch_filter){.hurry = false}, &bucket, &wake);
        wake = wake <= now ? now + 1 : wake;
        for (; i != NULL; i = i->next) {
            unused[n_unused++] = (int)(i - pool);
            ran++;
        }
        if (ran > 0) {
            expected_ns = r.time_ns[bucket > 0 ? bucket : 1];
            ran_ns = run_takes(l, expected_ns, &seed);
            hth_batcher_begin(&r.b, &r.q, ran, now);
            free_at = now + ran_ns;
        }
    }
    o.busy = (double)o.done / ((double)last * capacity);
    o.ended_ns = last;
    return o;
}

// Of admitted requests at most one in 10,000 is late.
static void assert_in_time(const outcome *o, size_t k)
{
    if (o->late * 10000 > o->admitted) {
        fail_msg("load %zu: %llu of %llu admitted requests were late", k,
                 (unsigned long long)o->late, (unsigned long long)o->admitted);
    }
}

// At three times the capacity the admitted requests start in time, the server stays busy, and the
// queue stays as short as the timeout asks for.
static void test_overload(void **state)
{
    static const load loads[] = {
        {.rate = 3, .spread = 0, .timeout_ns = 50 * MS, .joined = 1},
        {.rate = 3, .spread = 0.3, .timeout_ns = 50 * MS, .joined = 1},
        {.rate = 3, .spread = 0.3, .timeout_ns = 100 * MS, .joined = 0.3},
        {.rate = 3, .spread = 0.5, .hiccup = 0.001, .timeout_ns = 100 * MS, .joined = 1},
        {.rate = 3, .spread = 0.3, .timeout_ns = 100 * MS, .joined = 0.3, .delays = true},
    };
    for (size_t k = 0; k < sizeof loads / sizeof loads[0]; k++) {
        outcome o = simulate(&loads[k], 0x9E3779B97F4A7C15u + k);
        assert_in_time(&o, k);
        assert_int_equal(o.admitted, o.done + o.late);
        assert_in_range(o.refused, LOAD_ARRIVALS / 2, LOAD_ARRIVALS);
        assert_true(o.busy > 0.85);
    }
}

// A host that takes the processors away for a while makes somebody late once: then promises leave
// room for it.
static void test_stalls(void **state)
{
    static const load loads[] = {
        {.rate = 3, .stalls = 0.001, .stall_ns = 30 * MS, .timeout_ns = 50 * MS, .joined = 1},
        {.rate = 3,
         .spread = 0.3,
         .stalls = 0.0002,
         .stall_ns = 29 * MS,
         .timeout_ns = 50 * MS,
         .joined = 1,
         .slice_ns = 3 * MS,
         .others = 19},
    };
    for (size_t k = 0; k < sizeof loads / sizeof loads[0]; k++) {
        outcome o = simulate(&loads[k], 0x9E3779B97F4A7C15u + k);
        assert_in_time(&o, k);
        assert_true(o.busy > 0.8);
    }
}

// Background work makes nobody late, and gets its part of the time all the same.
static void test_background(void **state)
{
    static const load loads[] = {
        {.rate = 3, .timeout_ns = 50 * MS, .joined = 1, .slice_ns = 2 * MS, .others = 19},
        {.rate = 3,
         .spread = 0.3,
         .timeout_ns = 50 * MS,
         .joined = 1,
         .slice_ns = 8 * MS,
         .others = 19},
        {.rate = 3,
         .spread = 0.3,
         .timeout_ns = 100 * MS,
         .joined = 0.3,
         .slice_ns = 16 * MS,
         .others = 19},
        {.rate = 3, .spread = 0.3, .timeout_ns = 50 * MS, .joined = 1, .slice_ns = 3 * MS},
    };
    for (size_t k = 0; k < sizeof loads / sizeof loads[0]; k++) {
        outcome o = simulate(&loads[k], 0x9E3779B97F4A7C15u + k);
        assert_in_time(&o, k);
        double background = o.pieces * (double)loads[k].slice_ns * 0.75 / (double)o.ended_ns;
        if (background < 0.03) {
            fail_msg("load %zu: background work got %.4f of the time", k, background);
        }
        assert_true(o.busy > 0.8);
    }
}

// Below the capacity hardly anybody is refused.
static void test_light_load(void **state)
{
    load l = {.rate = 0.7, .spread = 0.3, .timeout_ns = 50 * MS, .joined = 1};
    outcome o = simulate(&l, 7);
    assert_true(o.refused < LOAD_ARRIVALS / 1000);
    assert_true(o.late * 10000 <= o.admitted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overload), cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_background), cmocka_unit_test(test_light_load)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
