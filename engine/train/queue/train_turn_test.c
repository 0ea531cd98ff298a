// SPDX-License-Identifier: Apache-2.0
// Who makes the next step, simulated: tenants have the device's time by their weights, whatever
// their steps take, and a tenant's jobs have equal parts of it.
#include "base/test.h"

#include "engine/train/queue/train_entry_impl.h"

#define MS UINT64_C(1000000)

static const int at_work; // stands for a job's steps

typedef struct simulated {
    hth_train_entry entry[4];
    hth_tenant tenant[2];
    hth_train_queue queue;
    uint64_t step_ns[4], ran_ns[4], now_ns;
} simulated;

static void add(simulated *s, int i, hth_tenant *tenant, uint64_t step_ns)
{
    hth_train_entry **last = &s->queue.first;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = &s->entry[i];
    s->entry[i].tenant = tenant;
    s->entry[i].work = (hth_train_job *)&at_work;
    s->step_ns[i] = step_ns;
}

static void run(simulated *s, uint64_t ns)
{
    memset(s->ran_ns, 0, sizeof s->ran_ns);
    for (uint64_t end_ns = s->now_ns + ns; s->now_ns < end_ns;) {
        hth_train_entry *e = hth_train_turn_next(&s->queue);
        assert_non_null(e);
        size_t i = (size_t)(e - s->entry);
        s->now_ns += s->step_ns[i];
        s->ran_ns[i] += s->step_ns[i];
        hth_train_turn_ran(&s->queue, e, s->step_ns[i]);
    }
}

static void expect_share(uint64_t ran_ns, uint64_t of_ns, double share)
{
    double is = (double)ran_ns / (double)of_ns;
    if (is < share - 0.01 || is > share + 0.01) {
        fail_msg("%.3f of the time, not %.3f", is, share);
    }
}

static void setup_weights(simulated *s)
{
    s->tenant[0].limits.weight = 3;
    s->tenant[1].limits.weight = 1;
}

// Weights 3 and 1, steps of 45 and 1 ms, either way round.
static void time_follows_weights(void **state)
{
    for (int k = 0; k < 2; k++) {
        simulated s = {.now_ns = 0};
        setup_weights(&s);
        add(&s, 0, &s.tenant[0], k == 0 ? 45 * MS : 1 * MS);
        add(&s, 1, &s.tenant[1], k == 0 ? 1 * MS : 45 * MS);
        run(&s, 30000 * MS);
        expect_share(s.ran_ns[0], s.ran_ns[0] + s.ran_ns[1], 0.75);
        assert_int_equal(s.tenant[0].steps.run_ns, s.ran_ns[0]);
    }
}

// A tenant with more jobs has no more, and its jobs have equal parts; who comes, or comes back,
// saves nothing up and owes nothing.
static void who_comes_later_begins_anew(void **state)
{
    simulated s = {.now_ns = 0};
    setup_weights(&s);
    add(&s, 0, &s.tenant[1], 7 * MS);
    run(&s, 60000 * MS);
    add(&s, 1, &s.tenant[0], 20 * MS);
    add(&s, 2, &s.tenant[0], 5 * MS);
    run(&s, 30000 * MS);
    expect_share(s.ran_ns[0], 30000 * MS, 0.25);
    expect_share(s.ran_ns[1], 30000 * MS, 0.375);
    expect_share(s.ran_ns[2], 30000 * MS, 0.375);
    s.entry[0].paused = true;
    run(&s, 30000 * MS);
    expect_share(s.ran_ns[1], 30000 * MS, 0.5);
    s.entry[0].paused = false;
    run(&s, 10000 * MS);
    expect_share(s.ran_ns[0], 10000 * MS, 0.25);
    add(&s, 3, NULL, 1 * MS); // nobody's: weight 1
    run(&s, 30000 * MS);
    expect_share(s.ran_ns[0], 30000 * MS, 0.2);
    expect_share(s.ran_ns[3], 30000 * MS, 0.2);
    expect_share(s.ran_ns[1] + s.ran_ns[2], 30000 * MS, 0.6);
}

// A step that takes for ever, or a clock that leaps, counts as a minute.
static void leaps_cost_a_minute(void **state)
{
    simulated s = {.now_ns = 0};
    setup_weights(&s);
    add(&s, 0, &s.tenant[0], MS);
    add(&s, 1, &s.tenant[1], MS);
    hth_train_turn_ran(&s.queue, &s.entry[0], UINT64_MAX / 2);
    run(&s, 20000 * MS); // a minute of weight 3 is made up for by 20 s of weight 1
    assert_true(s.ran_ns[0] < 100 * MS);
    run(&s, 10000 * MS);
    expect_share(s.ran_ns[0], 10000 * MS, 0.75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_follows_weights),
        cmocka_unit_test(who_comes_later_begins_anew),
        cmocka_unit_test(leaps_cost_a_minute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
