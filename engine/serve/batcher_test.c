// SPDX-License-Identifier: Apache-2.0
// The batcher as a function of data, on a simulated clock: orders, joins, delays, refusals, shares
// of tenants. Under load: batcher_load_test.c.
#include "tests/rig/batcher_rig.h"

#include <math.h>
#include <string.h>

static int count(const hth_batch_item *item)
{
    int n = 0;
    for (; item != NULL; item = item->next) {
        n++;
    }
    return n;
}

static hth_batch_item *next(rig *r, uint64_t now_ns, int64_t *bucket)
{
    uint64_t wake_ns;
    return hth_batcher_next(&r->b, now_ns, (hth_batch_filter){.hurry = false}, bucket, &wake_ns);
}

static void test_order(void **state)
{
    rig r;
    rig_init(&r);
    int64_t bucket;
    hth_batch_item i[6];
    static const uint32_t priority[] = {0, 7, 3, 0, 7, 1};
    static const int want[] = {5, 2, 1, 4, 0, 3};
    for (int k = 0; k < 6; k++) {
        i[k] = item(1, (uint64_t)k);
        i[k].joins = false;
        i[k].priority = priority[k];
        assert_ok(hth_batcher_add(&r.b, k % 2 ? &r.other : &r.q, &i[k], (uint64_t)k));
    }
    assert_int_equal(r.b.n, 6);
    for (int k = 0; k < 6; k++) { // over both queues
        assert_ptr_equal(next(&r, 10, &bucket), &i[want[k]]);
        assert_int_equal(bucket, 0);
    }
    assert_null(next(&r, 10, &bucket));
    assert_null(r.b.queues);
}

static void test_buckets(void **state)
{
    hth_batch_policy p = {.max_samples = 24, .n_preferred = 2, .preferred = {6, 12}};
    static const int64_t want[][2] = {{1, 1}, {2, 2},  {3, 4},   {4, 4},   {5, 6},   {6, 6},
                                      {7, 8}, {9, 12}, {13, 16}, {17, 24}, {24, 24}, {25, 32}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        assert_int_equal(hth_batch_bucket(&p, want[i][0]), want[i][1]);
    }
}

// Joined: what is alike and fits, in order; padded where that is still faster per sample.
static void test_join(void **state)
{
    rig r;
    rig_init(&r);
    int64_t bucket;
    hth_batch_item i[10];
    for (int k = 0; k < 10; k++) {
        i[k] = item(1, (uint64_t)k);
        i[k].timeout_ns = k == 3 ? 1000001 : 1000000;
        i[k].joins = k != 5;
        assert_ok(hth_batcher_add(&r.b, &r.q, &i[k], 10));
    }
    hth_batch_item *got = next(&r, 20, &bucket);
    assert_int_equal(count(got), 8); // not 3 (another shape) and not 5
    assert_int_equal(bucket, 8);
    assert_ptr_equal(got, &i[0]);
    assert_ptr_equal(next(&r, 20, &bucket), &i[3]);
    assert_ptr_equal(next(&r, 20, &bucket), &i[5]);
    assert_int_equal(r.b.n, 0);
    // Five in a bucket of 8: four in their own are faster per sample, until 8 are cheap enough.
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 5; k++) {
            i[k] = item(1, (uint64_t)k);
            assert_ok(hth_batcher_add(&r.b, &r.q, &i[k], 10));
        }
        assert_int_equal(count(next(&r, 20, &bucket)), round == 0 ? 4 : 5);
        assert_int_equal(bucket, round == 0 ? 4 : 8);
        assert_int_equal(count(next(&r, 20, &bucket)), round == 0 ? 1 : 0);
        r.time_ns[8] = 3 * MS;
    }
    // Never more than the most.
    r.q.policy.max_samples = 4;
    for (int k = 0; k < 3; k++) {
        i[k] = item(2, (uint64_t)k);
        assert_ok(hth_batcher_add(&r.b, &r.q, &i[k], 10));
    }
    assert_int_equal(count(next(&r, 20, &bucket)), 2);
    assert_int_equal(bucket, 4);
    assert_int_equal(count(next(&r, 20, &bucket)), 1);
}

static void add_ones(rig *r, hth_batch_item *i, int n)
{
    for (int k = 0; k < n; k++) {
        i[k] = item(1, 0);
        assert_ok(hth_batcher_add(&r->b, &r->q, &i[k], 0));
    }
}

static void drain(rig *r)
{
    int64_t bucket;
    while (next(r, 0, &bucket) != NULL) {
    }
}

// What was measured not to be faster is not joined, but for less than 1 % of the time; what has no
// program is requested; what is not timed is tried.
static void test_measured(void **state)
{
    rig r;
    rig_init(&r);
    int64_t bucket;
    int joined = 0;
    hth_batch_item i[8];
    for (int n = 2; n <= 32; n *= 2) {
        r.time_ns[n] = (uint64_t)n * 2 * MS;
    }
    for (uint64_t now = MS; now <= 2048 * MS; now += MS) { // 4 ms are lost by a joined run
        add_ones(&r, i, 4);
        joined += count(next(&r, now, &bucket)) > 1;
        while (r.b.n > 0) { // the rest decides nothing
            r.time_ns[1] = 0;
            assert_non_null(next(&r, now, &bucket));
            r.time_ns[1] = MS;
        }
    }
    assert_int_equal(joined, 3);
    assert_int_equal(r.n_wants, 0);
    r.time_ns[8] = r.time_ns[4] = HTH_BATCH_NONE;
    add_ones(&r, i, 8);
    assert_int_equal(count(next(&r, 0, &bucket)), 1);
    assert_int_equal(r.wanted, 8);
    drain(&r);
    r.most = 4; // a smaller one may fit
    add_ones(&r, i, 8);
    assert_int_equal(count(next(&r, 0, &bucket)), 1);
    assert_int_equal(r.wanted, 4);
    drain(&r);
    r.most = 0;
    r.time_ns[8] = 0;
    add_ones(&r, i, 7);
    assert_int_equal(count(next(&r, 0, &bucket)), 7);
    assert_int_equal(bucket, 8);
    r.time_ns[8] = 9 * MS; // slower: a smaller one may be faster
    add_ones(&r, i, 7);
    assert_int_equal(count(next(&r, 0, &bucket)), 1);
    assert_int_equal(r.wanted, 4);
    drain(&r);
    r.time_ns[1] = 0; // nothing to compare with yet
    add_ones(&r, i, 7);
    assert_int_equal(count(next(&r, 0, &bucket)), 1);
    drain(&r);
}

static void test_delay(void **state)
{
    rig r;
    rig_init(&r);
    int64_t bucket;
    uint64_t wake_ns;
    hth_batch_item i[8];
    hth_batch_filter patient = {.hurry = false}, hurry = {.hurry = true};
    r.q.policy.delay_ns = 100 * US;
    r.q.policy.n_preferred = 1;
    r.q.policy.preferred[0] = 3;
    r.time_ns[3] = 1900 * US;
    add_ones(&r, i, 1);
    assert_null(hth_batcher_next(&r.b, 50 * US, patient, &bucket, &wake_ns));
    assert_int_equal(wake_ns, 100 * US);
    i[1] = item(1, 60 * US);
    assert_ok(hth_batcher_add(&r.b, &r.q, &i[1], 60 * US));
    assert_null(hth_batcher_next(&r.b, 60 * US, patient, &bucket, &wake_ns));
    assert_int_equal(count(hth_batcher_next(&r.b, 100 * US, patient, &bucket, &wake_ns)), 2);
    add_ones(&r, i, 3); // a preferred size goes at once
    assert_int_equal(count(hth_batcher_next(&r.b, 1, patient, &bucket, &wake_ns)), 3);
    assert_int_equal(bucket, 3);
    add_ones(&r, i, 1);
    assert_non_null(hth_batcher_next(&r.b, 1, hurry, &bucket, &wake_ns));
    // Another model's request does not wait for this one.
    add_ones(&r, i, 1);
    i[1] = item(1, 5);
    assert_ok(hth_batcher_add(&r.b, &r.other, &i[1], 5));
    assert_ptr_equal(hth_batcher_next(&r.b, 10, patient, &bucket, &wake_ns), &i[1]);
    assert_non_null(hth_batcher_next(&r.b, 200 * US, patient, &bucket, &wake_ns));
    // Larger runs are no faster: no delay.
    r.time_ns[2] = 2 * MS;
    add_ones(&r, i, 1);
    assert_non_null(hth_batcher_next(&r.b, 1, patient, &bucket, &wake_ns));
    // A client alone stops paying.
    r.time_ns[2] = MS;
    int waited = 0;
    for (int k = 0; k < 160; k++) {
        add_ones(&r, i, 1);
        if (hth_batcher_next(&r.b, 1, patient, &bucket, &wake_ns) == NULL) {
            waited++;
            assert_non_null(hth_batcher_next(&r.b, 100 * US, patient, &bucket, &wake_ns));
        }
    }
    assert_in_range(waited, 4, 16);
}

static void test_sweep(void **state)
{
    rig r;
    rig_init(&r);
    int64_t bucket;
    uint64_t wake_ns;
    atomic_int canceled = 0;
    hth_batch_item i[4];
    for (int k = 0; k < 4; k++) {
        i[k] = item(1, 0);
        i[k].canceled = k == 1 ? &canceled : NULL;
        i[k].timeout_ns = k == 2 ? 5 * MS : 0;
        assert_ok(hth_batcher_add(&r.b, &r.q, &i[k], 0));
    }
    assert_null(hth_batcher_sweep(&r.b, MS));
    canceled = 1;
    hth_batch_item *gone = hth_batcher_sweep(&r.b, 2 * MS);
    assert_ptr_equal(gone, &i[1]);
    assert_null(gone->next);
    // The third has expired: it is not run, and is left to the sweep.
    assert_int_equal(count(next(&r, 6 * MS, &bucket)), 2);
    assert_null(
        hth_batcher_next(&r.b, 6 * MS, (hth_batch_filter){.hurry = true}, &bucket, &wake_ns));
    assert_int_equal(wake_ns, 7 * MS);
    assert_ptr_equal(hth_batcher_sweep(&r.b, 6 * MS), &i[2]);
    assert_int_equal(r.b.n, 0);
}

static void test_refusals(void **state)
{
    rig r;
    rig_init(&r);
    hth_batch_item i[12];
    r.q.policy.max_queue = 11;
    add_ones(&r, i, 10);
    assert_int_equal(hth_batcher_wait_ns(&r.b, NULL, 100, 0), 0); // nothing is known
    hth_batcher_begin(&r.b, &r.q, 1, 0);
    hth_batcher_end(&r.b, &r.q, 1, MS);
    assert_int_equal(hth_batcher_wait_ns(&r.b, NULL, 100, 0), 10 * MS);
    assert_int_equal(hth_batcher_wait_ns(&r.b, NULL, 99, 0), 0);
    hth_batcher_begin(&r.b, &r.q, 1, 0);
    hth_batcher_end(&r.b, &r.q, 1, 0); // it failed
    assert_int_equal(hth_batcher_wait_ns(&r.b, NULL, 100, 0), 10 * MS);
    hth_batcher_begin(&r.b, &r.q, 2, 0);
    assert_int_equal(hth_batcher_wait_ns(&r.b, NULL, 99, MS), MS);
    i[10] = item(1, 0);
    i[10].timeout_ns = 10 * MS;
    assert_err(hth_batcher_add(&r.b, &r.q, &i[10], 0), HTH_ETIMEDOUT, "Request timeout expired");
    assert_null(i[10].queue);
    i[10].priority = 1; // before all others
    assert_ok(hth_batcher_add(&r.b, &r.q, &i[10], 0));
    i[11] = item(1, 0);
    assert_err(hth_batcher_add(&r.b, &r.q, &i[11], 0), HTH_EBUSY, "Exceeds maximum queue size");
}

// Where only what has a program is run, others are passed over, and background work, which they
// wait for, is not delayed for them.
static void test_passed(void **state)
{
    rig r;
    rig_init(&r);
    int64_t bucket;
    uint64_t wake_ns;
    hth_batch_item without = item(3, 0), with = item(1, 1);
    without.timeout_ns = with.timeout_ns = 20 * MS;
    without.joins = with.joins = false;
    hth_batcher_begin(&r.b, &r.q, 1, 0);
    hth_batcher_end(&r.b, &r.q, 1, MS);
    hth_batcher_background(&r.b, 4 * MS, 0);
    assert_ok(hth_batcher_add(&r.b, &r.q, &without, 1));
    assert_true(hth_batcher_slack_ns(&r.b, 19 * MS) == UINT64_MAX);
    assert_ok(hth_batcher_add(&r.b, &r.q, &with, 1));
    assert_true(hth_batcher_slice_ns(&r.b) == 6 * MS);
    assert_in_range(hth_batcher_slack_ns(&r.b, 2 * MS), 6 * MS, 20 * MS);
    assert_in_range(hth_batcher_slack_ns(&r.b, 19 * MS), 0, MS);
    assert_ptr_equal(
        hth_batcher_next(&r.b, 2, (hth_batch_filter){.ready = true}, &bucket, &wake_ns), &with);
    assert_true(r.b.passed);
    assert_null(hth_batcher_next(&r.b, 2, (hth_batch_filter){.ready = true}, &bucket, &wake_ns));
    assert_true(r.b.passed);
    assert_ptr_equal(next(&r, 2, &bucket), &without);
    assert_false(r.b.passed);
}

// ---- tenants

// Closed loops of clients: each flow keeps `depth` items of `q` waiting.
typedef struct client {
    hth_batch_flow flow;
    hth_batch_queue *q;
    int depth;
    uint64_t longest_ns; // wait
} client;

typedef struct shop {
    rig r;
    client c[3];
    uint64_t now;
} shop;

static hth_batch_item shop_items[3][64];

static void shop_add(shop *s, int k, hth_batch_item *i)
{
    *i = item(1, s->now);
    i->flow = &s->c[k].flow;
    i->joins = s->r.q.policy.max_samples > 1;
    assert_ok(hth_batcher_add(&s->r.b, s->c[k].q, i, s->now));
}

// One run, whose items come again at its end.
static void shop_run(shop *s, const int *depth)
{
    static hth_batch_bill bill;
    int64_t bucket = 0, samples = 0;
    hth_batch_item *list = next(&s->r, s->now, &bucket), *done[HTH_BATCH_ITEMS];
    assert_non_null(list);
    hth_batch_bill_open(&bill, list);
    hth_batch_queue *q = NULL;
    for (hth_batch_item *i = list; i != NULL; i = i->next) {
        client *c = (client *)i->flow;
        q = c->q;
        uint64_t waited = s->now - i->arrived_ns;
        c->longest_ns = waited > c->longest_ns ? waited : c->longest_ns;
        done[samples++] = i;
    }
    uint64_t took = s->r.time_ns[bucket > 0 ? bucket : 1];
    took *= q == &s->r.other ? 10 : 1;
    hth_batcher_begin(&s->r.b, q, samples, s->now);
    s->now += took;
    hth_batcher_end(&s->r.b, q, samples, took);
    hth_batch_bill_settle(&bill, took);
    for (int64_t k = 0; k < samples; k++) {
        int c = (int)((client *)done[k]->flow - s->c);
        if (s->c[c].flow.n < depth[c]) {
            shop_add(s, c, done[k]);
        }
    }
}

static void shop_open(shop *s, const double *weight, const int *depth, bool joins)
{
    memset(s, 0, sizeof *s);
    rig_init(&s->r);
    s->r.q.policy.max_samples = s->r.other.policy.max_samples = joins ? 8 : 1;
    for (int k = 0; k < 3; k++) {
        s->c[k].flow.weight = weight[k];
        s->c[k].q = k == 2 ? &s->r.other : &s->r.q; // whose runs take ten times as long
        for (int i = 0; i < depth[k]; i++) {
            shop_add(s, k, &shop_items[k][i]);
        }
    }
}

static double part(const shop *s, int k)
{
    uint64_t all = 0;
    for (int i = 0; i < 3; i++) {
        all += s->c[i].flow.run_ns;
    }
    return (double)s->c[k].flow.run_ns / (double)all;
}

// Time is shared by weight, whatever each asks for at once and however long its runs are.
static void test_fair_shares(void **state)
{
    static const struct {
        double weight[3];
        int depth[3];
        double want[3];
    } row[] = {{{1, 1, 1}, {64, 2, 2}, {1. / 3, 1. / 3, 1. / 3}},
               {{1, 3, 2}, {64, 2, 3}, {1. / 6, 3. / 6, 2. / 6}},
               {{1, 1, 1}, {64, 0, 64}, {.5, 0, .5}},
               {{5, 1, 1}, {3, 64, 0}, {5. / 6, 1. / 6, 0}}};
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
        shop s;
        shop_open(&s, row[k].weight, row[k].depth, false);
        for (int i = 0; i < 5000; i++) {
            shop_run(&s, row[k].depth);
        }
        for (int i = 0; i < 3; i++) {
            if (fabs(part(&s, i) - row[k].want[i]) > 0.01) {
                fail_msg("row %zu: flow %d had %.3f", k, i, part(&s, i));
            }
        }
    }
}

// One that sends a request at a time waits for a run, not for the queue of another; who comes back
// has saved nothing; joined runs are everybody's who is in them.
static void test_flood(void **state)
{
    static const double weight[] = {1, 1, 1};
    int depth[] = {60, 1, 0};
    shop s;
    shop_open(&s, weight, depth, false);
    for (int i = 0; i < 1000; i++) {
        shop_run(&s, depth);
    }
    assert_true(s.c[1].longest_ns <= 2 * MS && s.c[0].longest_ns > 50 * MS);
    depth[1] = 0;
    for (int i = 0; i < 1000; i++) {
        shop_run(&s, depth);
    }
    uint64_t before[2] = {s.c[0].flow.run_ns, s.c[1].flow.run_ns};
    depth[1] = 1;
    shop_add(&s, 1, &shop_items[1][0]);
    for (int i = 0; i < 100; i++) {
        shop_run(&s, depth);
    }
    double own = (double)(s.c[1].flow.run_ns - before[1]),
           other = (double)(s.c[0].flow.run_ns - before[0]);
    assert_true(fabs(own / other - 1) < 0.05);

    // Eight in a run, two of them the second tenant's: it has a quarter of it.
    static const int deep[] = {60, 2, 0};
    shop_open(&s, weight, deep, true);
    for (int i = 0; i < 1000; i++) {
        shop_run(&s, deep);
    }
    assert_true(part(&s, 1) > 0.2 && part(&s, 1) < 0.3);
    assert_int_equal(s.r.b.n, 62);
}

// The wait that is predicted is what is in front of one's own turn, not the others' queues.
static void test_flow_waits(void **state)
{
    static const double weight[] = {1, 1, 1};
    static const int depth[] = {60, 1, 0};
    shop s;
    shop_open(&s, weight, depth, false);
    hth_batch_flow late = {.weight = 1};
    for (int i = 0; i < 100; i++) {
        shop_run(&s, depth);
    }
    uint64_t flood = hth_batcher_wait_ns(&s.r.b, &s.c[0].flow, 100, s.now),
             light = hth_batcher_wait_ns(&s.r.b, &s.c[1].flow, 100, s.now),
             fresh = hth_batcher_wait_ns(&s.r.b, &late, 100, s.now);
    assert_in_range(flood, 60 * MS, 62 * MS); // the other has one item
    assert_in_range(light, 2 * MS, 5 * MS);
    assert_in_range(fresh, MS, 3 * MS);
    hth_batch_item i = item(1, s.now);
    i.flow = &late;
    i.timeout_ns = 20 * MS;
    assert_ok(hth_batcher_add(&s.r.b, &s.r.q, &i, s.now));
    hth_batch_item j = item(1, s.now);
    j.flow = &s.c[0].flow;
    j.timeout_ns = 20 * MS;
    assert_err(hth_batcher_add(&s.r.b, &s.r.q, &j, s.now), HTH_ETIMEDOUT, "timeout");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_join),        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_delay),       cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_passed),
        cmocka_unit_test(test_fair_shares), cmocka_unit_test(test_flood),
        cmocka_unit_test(test_flow_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
