// SPDX-License-Identifier: Apache-2.0
// The run queue on a simulated clock: shares follow weights, deadlines are met where any order
// meets them, nobody starves, who rests leaves the device alone.
#include "sched/run_queue.h"
#include "base/test.h"

#include <math.h>

#define MS 1000000u

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t below(uint64_t *state, uint64_t n)
{
    return (random_next(state) >> 11) % n;
}

// A device whose items compute what they predict.
typedef struct sim {
    hth_run_queue q;
    uint64_t now_ns, seed;
} sim;

// sim_slice runs the next item for its slice; NULL: nobody, and the clock goes on to when somebody.
static hth_run_item *sim_slice(sim *s)
{
    uint64_t wake_ns;
    hth_run_item *i = hth_run_queue_next(&s->q, s->now_ns, &wake_ns);
    if (i == NULL) {
        assert_true(wake_ns > s->now_ns);
        s->now_ns = wake_ns;
        return NULL;
    }
    uint64_t wake_again;
    assert_ptr_equal(hth_run_queue_next(&s->q, s->now_ns, &wake_again), i);
    s->now_ns += i->slice_ns;
    hth_run_queue_ran(&s->q, i, i->slice_ns, s->now_ns);
    return i;
}

// At any time two items that both want the device have had it by their weights, but for a slice of
// each.
static void test_weights(void **state)
{
    static const double weight[] = {1, 2, 5, 0.3};
    sim s = {.seed = 7};
    hth_run_item item[4] = {{.weight = 0}};
    double had[4] = {0};
    for (int i = 0; i < 4; i++) {
        item[i] = (hth_run_item){.weight = weight[i], .credit_ns = HTH_RUN_CREDIT_ALL};
        hth_run_queue_add(&s.q, &item[i]);
    }
    for (int n = 0; n < 100000; n++) {
        for (int i = 0; i < 4; i++) {
            item[i].slice_ns = 1 + below(&s.seed, 3 * MS);
        }
        hth_run_item *i = sim_slice(&s);
        had[i - item] += (double)i->slice_ns;
        for (int a = 0; a < 4; a++) {
            for (int b = 0; b < 4; b++) {
                double ahead = had[a] / weight[a] - had[b] / weight[b];
                assert_true(ahead <= 3 * MS / weight[a] + 3 * MS / weight[b]);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        assert_true(fabs(had[i] / (double)s.now_ns - weight[i] / 8.3) < 0.001);
    }
}

// What an item did not want it is not owed later, but for its credit.
static void test_credit(void **state)
{
    static const uint64_t credit[] = {0, 20 * MS, HTH_RUN_CREDIT_ALL};
    static const uint64_t most_ms[] = {1, 21, 2};
    for (int k = 0; k < 3; k++) {
        sim s = {.seed = 7};
        uint64_t alone_ns = 0;
        hth_run_item busy = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .slice_ns = MS};
        hth_run_item late = {.weight = 1, .credit_ns = credit[k], .slice_ns = MS};
        hth_run_queue_add(&s.q, &busy);
        for (int i = 0; i < 1000; i++) {
            assert_ptr_equal(sim_slice(&s), &busy);
        }
        hth_run_queue_add(&s.q, &late);
        while (sim_slice(&s) == &late) {
            alone_ns += MS;
        }
        assert_true(alone_ns <= most_ms[k] * MS);
        assert_true(k != 1 || alone_ns >= 19 * MS);
    }
}

// An item of no credit has no claim to what it waited for: after a long slice of another it is its
// turn, for one slice.
static void test_no_claim(void **state)
{
    sim s = {.now_ns = 0};
    hth_run_item runs = {.weight = 4, .slice_ns = MS};
    hth_run_item makes = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .slice_ns = 10 * MS};
    hth_run_queue_add(&s.q, &makes);
    hth_run_queue_add(&s.q, &runs);
    (void)sim_slice(&s);
    for (int i = 0; i < 100; i++) {
        hth_run_item *a = sim_slice(&s), *b = sim_slice(&s);
        assert_true(a != b);
    }
    makes.slice_ns = MS / 10; // short ones: a fifth by their weights, and what a slice overshoots
    uint64_t from_ns = s.now_ns, made_ns = 0;
    for (int i = 0; i < 10000; i++) {
        made_ns += sim_slice(&s) == &makes ? makes.slice_ns : 0;
    }
    double share = (double)made_ns / (double)(s.now_ns - from_ns);
    assert_true(share > 0.19 && share < 0.24);
}

#define SET 6

typedef struct work {
    hth_run_item item;
    uint64_t left_ns, slice_ns, ended_ns;
} work;

// order_meets says whether some order of the works [from, n) of `order` meets all deadlines.
static bool order_meets(const work *w, int *order, int from, int n, uint64_t now_ns)
{
    if (from == n) {
        return true;
    }
    for (int k = from; k < n; k++) {
        int swap = order[from];
        order[from] = order[k];
        order[k] = swap;
        const work *x = &w[order[from]];
        uint64_t end_ns = now_ns + x->left_ns;
        bool meets = end_ns <= x->item.deadline_ns && order_meets(w, order, from + 1, n, end_ns);
        order[k] = order[from];
        order[from] = swap;
        if (meets) {
            return true;
        }
    }
    return false;
}

static void set_make(work *w, int n, bool tight, uint64_t *seed)
{
    uint64_t all_ns = 0;
    for (int i = 0; i < n; i++) {
        w[i] = (work){.left_ns = (1 + below(seed, 20)) * MS, .slice_ns = (1 + below(seed, 5)) * MS};
        all_ns += w[i].left_ns;
    }
    for (int i = 0; i < n; i++) {
        w[i].item = (hth_run_item){.weight = (double)(1 + below(seed, 9)),
                                   .credit_ns = HTH_RUN_CREDIT_ALL,
                                   .need_ns = w[i].left_ns,
                                   .deadline_ns = 1 + below(seed, all_ns * (tight ? 1 : 2))};
    }
}

// set_run has the works done, and others without deadlines, and says whether all were in time.
static bool set_run(work *w, int n, work *others, int n_others)
{
    sim s = {.now_ns = 0};
    bool in_time = true;
    int left = n + n_others;
    for (int i = 0; i < n; i++) {
        hth_run_queue_add(&s.q, &w[i].item);
    }
    for (int i = 0; i < n_others; i++) {
        others[i].item.deadline_ns = 0;
        hth_run_queue_add(&s.q, &others[i].item);
    }
    while (left > 0) {
        for (int i = 0; i < n; i++) {
            w[i].item.slice_ns = w[i].slice_ns < w[i].left_ns ? w[i].slice_ns : w[i].left_ns;
        }
        for (int i = 0; i < n_others; i++) {
            others[i].item.slice_ns =
                others[i].slice_ns < others[i].left_ns ? others[i].slice_ns : others[i].left_ns;
        }
        work *x = (work *)sim_slice(&s);
        x->left_ns -= x->item.slice_ns;
        x->item.need_ns = x->left_ns;
        if (x->left_ns == 0) {
            in_time = in_time && (x->item.deadline_ns == 0 || s.now_ns <= x->item.deadline_ns);
            hth_run_queue_remove(&s.q, &x->item);
            left--;
        }
    }
    return in_time;
}

// All orders are tried: where one of them meets all deadlines, the queue does, whatever the weights
// and whatever else wants the device. It always comes to an end.
static void test_deadlines(void **state)
{
    uint64_t seed = 0x9E3779B97F4A7C15u;
    int possible = 0, tight = 0;
    for (int round = 0; round < 20000; round++) {
        work w[SET], others[3];
        int order[SET] = {0, 1, 2, 3, 4, 5}, n = 1 + (int)below(&seed, SET);
        set_make(w, n, round % 2 == 0, &seed);
        set_make(others, 3, false, &seed);
        bool may = order_meets(w, order, 0, n, 0);
        bool in_time = set_run(w, n, others, (int)below(&seed, 4));
        assert_true(in_time || !may);
        possible += may;
        tight += !may;
    }
    assert_true(possible > 2000 && tight > 2000);
}

// Deadlines that leave no slack hold others up only for as long as those have patience.
static void test_patience(void **state)
{
    static const uint64_t patience_ns[] = {50 * MS, 0};
    for (int k = 0; k < 2; k++) {
        sim s = {.now_ns = 1};
        hth_run_item runs = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .slice_ns = 4 * MS};
        hth_run_item background = {.weight = 1,
                                   .credit_ns = HTH_RUN_CREDIT_ALL,
                                   .slice_ns = 2 * MS,
                                   .patience_ns = patience_ns[k]};
        uint64_t last_ns = s.now_ns, had = 0;
        hth_run_queue_add(&s.q, &runs);
        hth_run_queue_add(&s.q, &background);
        for (int i = 0; i < 10000; i++) {
            runs.need_ns = runs.slice_ns;
            runs.deadline_ns = s.now_ns + 5 * MS; // one after the other, each with 1 ms to spare
            bool held = sim_slice(&s) == &runs;
            had += !held;
            assert_true(patience_ns[k] == 0 || s.now_ns - last_ns <= patience_ns[k] + 12 * MS);
            last_ns = held ? last_ns : s.now_ns;
        }
        assert_true(patience_ns[k] > 0 ? had > 500 : had == 0);
    }
}

// Who waits for an item has it begin in its turn, whatever the deadlines of others.
static void test_insists(void **state)
{
    sim s = {.now_ns = 1};
    hth_run_item runs = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .slice_ns = MS};
    hth_run_item asked = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .slice_ns = 2 * MS};
    uint64_t had_ns = 0;
    asked.insists = true;
    hth_run_queue_add(&s.q, &runs);
    hth_run_queue_add(&s.q, &asked);
    for (int i = 0; i < 1000; i++) {
        runs.need_ns = MS;
        runs.deadline_ns = s.now_ns + MS;
        had_ns += sim_slice(&s) == &asked ? asked.slice_ns : 0;
    }
    assert_true(fabs((double)had_ns / (double)s.now_ns - 0.5) < 0.01);
}

// A deadline that is lost holds nobody up, and keeps no other from being met.
static void test_lost(void **state)
{
    sim s = {.now_ns = 100 * MS};
    uint64_t wake_ns;
    hth_run_item lost = {.weight = 1, .slice_ns = 2 * MS, .need_ns = MS, .deadline_ns = 50 * MS};
    hth_run_item met = {.weight = 1, .slice_ns = 9 * MS, .need_ns = 9 * MS};
    hth_run_item other = {.weight = 100, .slice_ns = 5 * MS};
    met.deadline_ns = 110 * MS;
    hth_run_queue_add(&s.q, &met);
    hth_run_queue_add(&s.q, &other);
    hth_run_queue_add(&s.q, &lost);
    assert_ptr_equal(sim_slice(&s), &met);
    hth_run_queue_remove(&s.q, &met);
    assert_ptr_equal(hth_run_queue_next(&s.q, s.now_ns, &wake_ns), &lost); // by its turn
    assert_ptr_equal(sim_slice(&s), &lost);
    assert_ptr_equal(sim_slice(&s), &other);
}

// Who rests has its part of the time at most, and leaves the rest to nobody; until it is woken.
static void test_rests(void **state)
{
    sim s = {.seed = 7};
    hth_run_item i = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .rests = 19};
    uint64_t had_ns = 0, wake_ns;
    hth_run_queue_add(&s.q, &i);
    for (int n = 0; n < 1000; n++) {
        i.slice_ns = 1 + below(&s.seed, 3 * MS);
        had_ns += sim_slice(&s) == &i ? i.slice_ns : 0;
    }
    assert_true(fabs((double)had_ns / (double)s.now_ns - 0.05) < 0.001);
    i.slice_ns = MS;
    while (sim_slice(&s) == NULL) {
    }
    assert_null(hth_run_queue_next(&s.q, s.now_ns, &wake_ns));
    assert_int_equal(wake_ns, s.now_ns + 19 * MS);
    hth_run_queue_wake(&i);
    assert_ptr_equal(hth_run_queue_next(&s.q, s.now_ns, &wake_ns), &i);
}

// A leap of the clock in somebody's slice takes the device from him for a second's worth; what is
// something else from now on owes nothing.
static void test_leap(void **state)
{
    sim s = {.now_ns = 0};
    hth_run_item a = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .slice_ns = 3600000000000u};
    hth_run_item b = {.weight = 1, .credit_ns = HTH_RUN_CREDIT_ALL, .slice_ns = MS};
    uint64_t waited_ns = 0;
    hth_run_queue_add(&s.q, &a);
    (void)sim_slice(&s);
    a.slice_ns = MS;
    hth_run_queue_add(&s.q, &b);
    for (; sim_slice(&s) == &b; waited_ns += MS) {
    }
    assert_in_range(waited_ns, 999 * MS, 1001 * MS);
    a.slice_ns = 900 * MS;
    while (sim_slice(&s) != &a) {
    }
    hth_run_queue_remove(&s.q, &a);
    hth_run_queue_renew(&a);
    hth_run_queue_add(&s.q, &a);
    assert_true(sim_slice(&s) == &a || sim_slice(&s) == &a);
}

static void test_empty(void **state)
{
    hth_run_queue q = {.first = NULL};
    hth_run_item i = {.weight = 1};
    uint64_t wake_ns;
    assert_null(hth_run_queue_next(&q, 5, &wake_ns));
    assert_true(wake_ns == HTH_RUN_NEVER);
    hth_run_queue_remove(&q, &i);
    hth_run_queue_add(&q, &i);
    hth_run_queue_add(&q, &i); // once is enough
    assert_ptr_equal(hth_run_queue_next(&q, 5, &wake_ns), &i);
    hth_run_queue_remove(&q, &i);
    assert_null(hth_run_queue_next(&q, 5, &wake_ns));
}

// Items come and go at random: who is chosen wants the device and does not rest, somebody is chosen
// unless all rest, and nobody waits for longer than weights and patience explain.
static void test_random(void **state)
{
    sim s = {.seed = 99};
    hth_run_item item[5];
    uint64_t since_ns[5] = {0};
    for (int k = 0; k < 5; k++) {
        item[k] = (hth_run_item){.weight = k + 1,
                                 .credit_ns = k == 2 ? 5 * MS : HTH_RUN_CREDIT_ALL,
                                 .rests = k == 4 ? 3 : 0,
                                 .patience_ns = 100 * MS,
                                 .slice_ns = MS};
    }
    for (int n = 0; n < 200000; n++) {
        int k = (int)below(&s.seed, 5);
        uint64_t wake_ns;
        bool some = false;
        if (below(&s.seed, 10) == 0 && item[k].queued) {
            hth_run_queue_remove(&s.q, &item[k]);
        } else if (!item[k].queued) {
            item[k].slice_ns = (1 + below(&s.seed, 4)) * MS;
            item[k].need_ns = item[k].slice_ns;
            bool due = below(&s.seed, 3) == 0;
            item[k].deadline_ns = due ? s.now_ns + below(&s.seed, 10 * MS) + 1 : 0;
            since_ns[k] = s.now_ns;
            hth_run_queue_add(&s.q, &item[k]);
        }
        for (int i = 0; i < 5; i++) {
            some = some || (item[i].queued && item[i].rests_until_ns <= s.now_ns);
        }
        hth_run_item *x = hth_run_queue_next(&s.q, s.now_ns, &wake_ns);
        assert_int_equal(x != NULL, some);
        if (x != NULL) {
            assert_true(x->queued && x->rests_until_ns <= s.now_ns);
            assert_ptr_equal(sim_slice(&s), x);
            since_ns[x - item] = s.now_ns;
        } else {
            s.now_ns += wake_ns != HTH_RUN_NEVER ? wake_ns - s.now_ns : MS;
        }
        for (int i = 0; i < 5; i++) {
            assert_true(!item[i].queued || s.now_ns - since_ns[i] < 400 * MS);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),  cmocka_unit_test(test_credit),
        cmocka_unit_test(test_no_claim), cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_patience), cmocka_unit_test(test_insists),
        cmocka_unit_test(test_lost),     cmocka_unit_test(test_rests),
        cmocka_unit_test(test_leap),     cmocka_unit_test(test_empty),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
