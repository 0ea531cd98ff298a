// SPDX-License-Identifier: Apache-2.0
// Who makes the next step, simulated: tenants have the device's time by their weights, whatever
// their steps take, and of a tenant's jobs the one with the least left has most of it.
#include "base/test.h"

#include "base/clock.h"
#include "engine/train/queue/train_entry_impl.h"

#include <math.h>

#define MS UINT64_C(1000000)

// Stands for a job's steps.
typedef struct work {
    hth_job job; // first
    double left_s;
} work;

static double work_left(const hth_job *job)
{
    return ((const work *)job)->left_s;
}

static const hth_job_ops work_ops = {.seconds_left = work_left};

typedef struct simulated {
    hth_train_entry entry[4];
    work work[4];
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
    s->work[i] = (work){.job = {&work_ops}, .left_s = NAN};
    s->entry[i].work = &s->work[i].job;
    s->step_ns[i] = step_ns;
}

static void run_more(simulated *s, uint64_t ns)
{
    for (uint64_t end_ns = s->now_ns + ns; s->now_ns < end_ns;) {
        hth_train_entry *e = hth_train_turn_next(&s->queue);
        assert_non_null(e);
        size_t i = (size_t)(e - s->entry);
        s->now_ns += s->step_ns[i];
        s->ran_ns[i] += s->step_ns[i];
        hth_train_turn_ran(&s->queue, e, s->step_ns[i]);
    }
}

static void run(simulated *s, uint64_t ns)
{
    memset(s->ran_ns, 0, sizeof s->ran_ns);
    run_more(s, ns);
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
    s->tenant[0].turns.item.weight = 3;
    s->tenant[1].turns.item.weight = 1;
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
        assert_int_equal(s.tenant[0].turns.ran_ns, s.ran_ns[0]);
    }
}

// A tenant with more jobs has no more; who comes, or comes back, saves nothing up and owes nothing.
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
    expect_share(s.ran_ns[1], 30000 * MS, 0.75 * 16 / 17);
    expect_share(s.ran_ns[2], 30000 * MS, 0.75 / 17);
    s.entry[0].paused = true;
    s.entry[1].turn.left_ns = 100000 * MS;
    s.entry[2].turn.left_ns = 50000 * MS;
    run(&s, 30000 * MS);
    expect_share(s.ran_ns[2], 30000 * MS, 16.0 / 17);
    s.entry[0].paused = false;
    run(&s, 10000 * MS);
    expect_share(s.ran_ns[0], 10000 * MS, 0.25);
    add(&s, 3, NULL, 1 * MS); // nobody's: weight 1
    run(&s, 30000 * MS);
    expect_share(s.ran_ns[0], 30000 * MS, 0.2);
    expect_share(s.ran_ns[3], 30000 * MS, 0.2);
    expect_share(s.ran_ns[1] + s.ran_ns[2], 30000 * MS, 0.6);
}

// What a tenant's requests take is on its account; however much that is, its job starves not.
static void requests_are_charged(void **state)
{
    simulated s = {.now_ns = 0};
    setup_weights(&s);
    s.tenant[0].turns.item.weight = 1;
    add(&s, 0, &s.tenant[0], 10 * MS);
    add(&s, 1, &s.tenant[1], 10 * MS);
    for (int k = 0; k < 1000; k++) { // a fifth of the time is the first one's requests
        run_more(&s, 40 * MS);
        hth_turns_charge(&s.queue.turns, &s.tenant[0].turns, 10 * MS);
    }
    expect_share(s.ran_ns[0] + 10000 * MS, 50000 * MS, 0.5);
    memset(s.ran_ns, 0, sizeof s.ran_ns);
    for (int k = 0; k < 100; k++) { // ten times what the jobs have
        run_more(&s, 100 * MS);
        hth_turns_charge(&s.queue.turns, &s.tenant[0].turns, 1000 * MS);
    }
    assert_true(s.ran_ns[0] > 50 * MS);
}

static uint64_t clock_now(void *ctx)
{
    return ((const simulated *)ctx)->now_ns;
}

// When jobs end is predicted from their turns, and from what turns have of the time.
static void ends_are_predicted(void **state)
{
    simulated s = {.now_ns = 1000 * MS};
    setup_weights(&s);
    add(&s, 0, &s.tenant[0], 10 * MS);
    add(&s, 1, &s.tenant[1], 10 * MS);
    s.work[0].left_s = 30;
    s.work[1].left_s = 30;
    hth_clock_inject(clock_now, &s);
    s.entry[0].began_ns = s.entry[1].began_ns = s.now_ns;
    hth_train_turn_predict(&s.queue); // before any turn: as if alone
    assert_true(fabs(hth_train_turn_left(&s.queue, &s.entry[0]) - 30) < 1e-6);
    (void)hth_train_turn_next(&s.queue);
    hth_train_turn_predict(&s.queue);
    assert_true(fabs(hth_train_turn_left(&s.queue, &s.entry[0]) - 40) < 1e-6);
    assert_true(fabs(hth_train_turn_left(&s.queue, &s.entry[1]) - 60) < 1e-6);
    run(&s, 30000 * MS);
    s.now_ns += 15000 * MS; // of requests: half as long again
    s.work[0].left_s -= (double)s.ran_ns[0] / 1e9;
    s.work[1].left_s -= (double)s.ran_ns[1] / 1e9;
    hth_train_turn_predict(&s.queue);
    assert_true(fabs(hth_train_turn_left(&s.queue, &s.entry[0]) - 15) < 0.2);
    assert_true(fabs(hth_train_turn_left(&s.queue, &s.entry[1]) - 45) < 0.2);
    s.work[1].left_s = NAN;
    hth_train_turn_predict(&s.queue);
    assert_true(isnan(hth_train_turn_left(&s.queue, &s.entry[1])));
    hth_clock_inject(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_follows_weights),
        cmocka_unit_test(who_comes_later_begins_anew),
        cmocka_unit_test(requests_are_charged),
        cmocka_unit_test(ends_are_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
