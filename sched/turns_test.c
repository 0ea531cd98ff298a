// SPDX-License-Identifier: Apache-2.0
// Shares of measured time on a simulated clock.
#include "sched/turns.h"
#include "base/test.h"

#include <math.h>

#define MS 1000000u
#define S  1000000000u

typedef struct rig {
    hth_turns turns;
    hth_turns_tenant a, b;
    hth_turns_job job[8];
    uint64_t now_ns, had_ns[8];
} rig;

static void rig_job(rig *r, int i, hth_turns_tenant *tenant, uint64_t step_ns)
{
    r->job[i] = (hth_turns_job){.item = {.weight = 1, .slice_ns = step_ns}, .tenant = tenant};
    hth_turns_add(&r->turns, &r->job[i]);
}

// rig_step runs one step of whose turn it is.
static hth_turns_job *rig_step(rig *r)
{
    hth_turns_job *j = hth_turns_next(&r->turns);
    assert_ptr_equal(hth_turns_next(&r->turns), j);
    r->now_ns += j->item.slice_ns;
    r->had_ns[j - r->job] += j->item.slice_ns;
    hth_turns_ran(&r->turns, j, j->item.slice_ns);
    return j;
}

static double part(uint64_t x, uint64_t of)
{
    return (double)x / (double)of;
}

// Weights 3:1 are 75:25 of the time, whoever has the long steps: within 3 points after 30 s, and of
// steps of seconds after some minutes.
static void test_weights(void **state)
{
    static const uint64_t step_ns[][2] = {
        {45 * MS, MS}, {MS, 45 * MS}, {4000ull * MS, 40 * MS}, {40 * MS, 4000ull * MS}};
    for (int i = 0; i < 4; i++) {
        rig r = {.a = {.item = {.weight = 3}}, .b = {.item = {.weight = 1}}};
        rig_job(&r, 0, &r.a, step_ns[i][0]);
        rig_job(&r, 1, &r.b, step_ns[i][1]);
        while (r.now_ns < (i < 2 ? 30ull : 600ull) * S) {
            (void)rig_step(&r);
        }
        assert_true(fabs(part(r.had_ns[0], r.now_ns) - 0.75) < 0.03);
        assert_true(r.a.ran_ns == r.had_ns[0] && r.b.ran_ns == r.had_ns[1]);
    }
}

// More jobs get a tenant no more. Its first job has most of that, the others equal parts by time.
static void test_jobs(void **state)
{
    rig r = {.a = {.item = {.weight = 1}}, .b = {.item = {.weight = 1}}};
    rig_job(&r, 0, &r.a, 10 * MS);
    for (int i = 1; i <= 4; i++) {
        rig_job(&r, i, &r.b, (uint64_t)i * 7 * MS);
    }
    while (r.now_ns < 60ull * S) {
        (void)rig_step(&r);
    }
    assert_true(fabs(part(r.had_ns[0], r.now_ns) - 0.5) < 0.01);
    for (int i = 1; i <= 4; i++) {
        double parts = i == 1 ? HTH_TURNS_FIRST : 1;
        assert_true(fabs(part(r.had_ns[i], r.now_ns) - 0.5 * parts / (HTH_TURNS_FIRST + 3)) < 0.01);
    }
}

// The job of a tenant with the least left comes first, and before that priority counts; one that
// nothing is known of comes last. None of them stands still.
static void test_first(void **state)
{
    static const uint64_t left_ns[] = {90, 0, 10, 50};
    rig r = {.a = {.item = {.weight = 1}}};
    for (int i = 0; i < 4; i++) {
        rig_job(&r, i, &r.a, 10 * MS);
        r.job[i].left_ns = left_ns[i] * S;
    }
    static const int first[] = {2, 3, 0, 1};
    for (int k = 0; k < 4; k++) {
        memset(r.had_ns, 0, sizeof r.had_ns);
        for (int i = 0; i < 19 * 100; i++) {
            (void)rig_step(&r);
        }
        for (int i = 0; i < 4; i++) {
            uint64_t want_ns = (i == first[k] ? HTH_TURNS_FIRST : 1) * 1000ull * MS;
            assert_in_range(r.had_ns[i], want_ns - 200 * MS, want_ns + 200 * MS);
        }
        r.job[first[k]].left_ns = 0; // it was wrong; the next one is first
        r.job[1].priority = k == 2;
    }
    assert_int_equal(r.job[1].left_ns, 0);
}

// Six jobs of one tenant, with so many steps of 10 ms each: what their mean completion takes. Jobs
// are at work all together.
static double mean_steps(const uint64_t *steps)
{
    rig r = {.a = {.item = {.weight = 1}}};
    uint64_t left[6], sum = 0, now = 0;
    for (int i = 0; i < 6; i++) {
        left[i] = steps[i];
        rig_job(&r, i, &r.a, 10 * MS);
        r.job[i].left_ns = left[i] * 10 * MS;
    }
    for (int ended = 0; ended < 6;) {
        int i = (int)(rig_step(&r) - r.job);
        now++;
        r.job[i].left_ns = --left[i] * 10 * MS;
        if (left[i] == 0) {
            hth_turns_remove(&r.turns, &r.job[i]);
            sum += now;
            ended++;
        }
    }
    return (double)sum / 6;
}

// No order has a mean below that of the shortest first: equal jobs take 3.5 times one of them, in
// equal parts nearly 6. One after the other, the long one first, the other six take 6.25 times 100.
static void test_mean(void **state)
{
    static const uint64_t equal[6] = {100, 100, 100, 100, 100, 100};
    static const uint64_t unequal[6] = {500, 50, 50, 50, 50, 50};
    double mean = mean_steps(equal);
    assert_true(mean >= 350 && mean < 350 * 1.15);
    mean = mean_steps(unequal);
    assert_true(mean >= 250 && mean < 625 * 0.75);
}

// What a tenant computes beside its jobs is on the same account.
static void test_charge(void **state)
{
    rig r = {.a = {.item = {.weight = 1}}, .b = {.item = {.weight = 1}}};
    uint64_t beside_ns = 0;
    hth_turns_charge(&r.turns, &r.a, 5 * MS); // without any job
    rig_job(&r, 0, &r.a, 10 * MS);
    rig_job(&r, 1, &r.b, 10 * MS);
    assert_ptr_equal(rig_step(&r), &r.job[1]);
    while (r.now_ns < 60ull * S) {
        if (rig_step(&r) == &r.job[0]) {
            hth_turns_charge(&r.turns, &r.a, 5 * MS);
            r.now_ns += 5 * MS;
            beside_ns += 5 * MS;
        }
    }
    assert_true(fabs(part(r.had_ns[0] + beside_ns, r.now_ns) - 0.5) < 0.01);
    // One that runs requests only, while others train, owes for what it had lately.
    hth_turns_remove(&r.turns, &r.job[0]);
    for (int i = 0; i < 1000; i++) {
        (void)rig_step(&r);
    }
    hth_turns_charge(&r.turns, &r.a, 100 * MS);
    hth_turns_add(&r.turns, &r.job[0]);
    for (int i = 0; i < 9; i++) {
        assert_ptr_equal(rig_step(&r), &r.job[1]);
    }
}

// Who comes back starts with the others: nothing is saved up.
static void test_no_claim(void **state)
{
    rig r = {.a = {.item = {.weight = 1}}, .b = {.item = {.weight = 1}}};
    rig_job(&r, 0, &r.a, 10 * MS);
    for (int i = 0; i < 1000; i++) {
        (void)rig_step(&r);
    }
    rig_job(&r, 1, &r.b, 10 * MS);
    uint64_t had_ns = r.had_ns[0];
    for (int i = 0; i < 100; i++) {
        (void)rig_step(&r);
    }
    assert_in_range(r.had_ns[0] - had_ns, 490 * MS, 510 * MS);
    hth_turns_remove(&r.turns, &r.job[0]);
    hth_turns_remove(&r.turns, &r.job[1]);
    assert_null(hth_turns_next(&r.turns));
}

// A step during which the clock leapt counts as twice what was predicted, or a second.
static void test_leap(void **state)
{
    rig r = {.a = {.item = {.weight = 1}}, .b = {.item = {.weight = 1}}};
    rig_job(&r, 0, &r.a, 4000ull * MS);
    rig_job(&r, 1, &r.b, 4000ull * MS);
    hth_turns_ran(&r.turns, &r.job[0], 3600ull * S);
    assert_true(r.a.ran_ns == 8ull * S);
    assert_ptr_equal(rig_step(&r), &r.job[1]);
    assert_ptr_equal(rig_step(&r), &r.job[1]);
    r.job[1].item.slice_ns = 0;
    hth_turns_ran(&r.turns, &r.job[1], 3600ull * S);
    assert_true(r.b.ran_ns == 9ull * S);
}

// Ends as they are predicted before the first step, against the steps themselves.
static void test_predicted_ends(void **state)
{
    uint64_t seed = 88172645463325252u;
    for (int k = 0; k < 300; k++) {
        rig r = {.a = {.item = {.weight = 1}}, .b = {.item = {.weight = 1 + k % 3}}};
        uint64_t left[8];
        double ends_ns[8];
        int n = 1 + k % 8;
        for (int i = 0; i < n; i++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            left[i] = 50 + seed % 500;
            rig_job(&r, i, seed % 1000 < 500 ? &r.a : &r.b, (1 + seed / 1000 % 20) * MS);
            r.job[i].left_ns = left[i] * r.job[i].item.slice_ns;
            r.job[i].need_ns = (double)r.job[i].left_ns;
            r.job[i].priority = (int)(seed / 100000 % 5 == 0);
        }
        hth_turns_predict(&r.turns);
        for (int i = 0; i < n; i++) {
            ends_ns[i] = r.job[i].ends_ns;
        }
        for (int ended = 0; ended < n;) {
            int i = (int)(rig_step(&r) - r.job);
            r.job[i].left_ns = --left[i] * r.job[i].item.slice_ns;
            if (left[i] == 0) {
                hth_turns_remove(&r.turns, &r.job[i]);
                assert_true(fabs((double)r.now_ns - ends_ns[i]) < 0.05 * ends_ns[i] + n * 40. * MS);
                ended++;
            }
        }
    }
    rig r = {.a = {.item = {.weight = 1}}, .b = {.item = {.weight = 1}}};
    hth_turns_predict(&r.turns); // of nobody
    rig_job(&r, 0, &r.a, 10 * MS);
    rig_job(&r, 1, &r.b, 10 * MS);
    r.job[0].need_ns = 5e9;
    r.job[1].need_ns = INFINITY; // it works, nobody knows for how long
    hth_turns_predict(&r.turns);
    assert_true(fabs(r.job[0].ends_ns - 10e9) < 1 && isinf(r.job[1].ends_ns));
    r.job[1].need_ns = 3e9;
    hth_turns_predict(&r.turns);
    assert_true(fabs(r.job[0].ends_ns - 8e9) < 1 && fabs(r.job[1].ends_ns - 6e9) < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights), cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_first),   cmocka_unit_test(test_mean),
        cmocka_unit_test(test_charge),  cmocka_unit_test(test_no_claim),
        cmocka_unit_test(test_leap),    cmocka_unit_test(test_predicted_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
