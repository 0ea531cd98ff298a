// SPDX-License-Identifier: Apache-2.0
// A job's plan while it runs: predicted times become the measured ones, a better plan takes the
// place of the old one between two steps, and no bit of a loss changes.
#include "engine/train/replan_impl.h"
#include "tests/rig/trainer_rig.h"

#include "base/settings.h"
#include "base/spin.h"
#include "base/thread.h"

#include <limits.h>
#include <stdatomic.h>

#define SAMPLES 16
#define MANY    INT64_C(1000000000) // steps: any gain is worth it

// How many searches asked for the lowest priority. Here they get none: on a machine that others
// keep busy they would hardly come to an end.
static atomic_int n_low;

static void low_counted(void)
{
    n_low++;
}

static void rig_open(rig *r, hth_policy policy, const char *budget, int64_t parts, bool replan)
{
    rig_make(r, &unet, SAMPLES, policy);
    r->t->parts = parts;
    r->spec.budget = budget;
    r->spec.replan = r->t->replan.on = replan;
    rig_prepare(r);
}

static void predictions_are_corrected(void **state)
{
    rig r;
    rig_open(&r, HTH_POLICY_HEARTH, NULL, 1, true);
    hth_program *p = r.t->shapes[0].apply.program;
    for (int i = 0; i < p->problem.n_nodes; i++) { // as if it had been measured on another machine
        p->problem.nodes[i].alternatives[0].time_us *= 1000;
    }
    p->plan->predicted_us *= 1000;
    p->plan->lower_bound_us *= 1000; // so that no search stands in the way
    assert_true(hth_trainer_measured_us(r.t) == 0);
    int steps = 0;
    for (; r.t->replan.corrections == 0 || r.t->replan.n_samples >= 0; steps++) {
        assert_true(steps < 200);
        rig_step(&r);
    }
    assert_int_equal(steps, 2 * HTH_REPLAN_STEPS + HTH_REPLAN_SAMPLES);
    double sampled = r.t->replan.sampled_us;
    if (fabs(hth_trainer_predicted_us(r.t) - sampled) > 0.05 * sampled) {
        fail_msg("predicted %g us, measured %g us", hth_trainer_predicted_us(r.t), sampled);
    }
    rig_step(&r);
    assert_true(hth_trainer_measured_us(r.t) > 0);
    rig_close(&r);
}

// At once, as `bench` has it: after the last of the measured steps nothing is left to do.
static void correction_can_be_asked_for(void **state)
{
    rig r;
    rig_open(&r, HTH_POLICY_HEARTH, "600000", 1, false);
    hth_program *p = r.t->shapes[0].apply.program;
    for (int i = 0; i < p->problem.n_nodes; i++) {
        p->problem.nodes[i].alternatives[0].time_us /= 1000;
    }
    p->plan->predicted_us /= 1000;
    assert_ok(hth_replan_correct(r.t));
    assert_true(hth_trainer_plans(r.t));
    for (int i = 0; i < HTH_REPLAN_SAMPLES; i++) {
        assert_int_equal(r.t->replan.n_samples, i);
        rig_step(&r);
    }
    assert_true(r.t->replan.n_samples < 0 && !r.t->replan.searching);
    double predicted = hth_trainer_predicted_us(r.t), sampled = r.t->replan.sampled_us;
    if (!(r.t->replan.swaps > 0 ? predicted < sampled
                                : fabs(predicted - sampled) < 0.05 * sampled)) {
        fail_msg("predicted %g us, measured %g us", predicted, sampled);
    }
    rig_step(&r);
    assert_true(r.t->replan.n_samples < 0 && !hth_trainer_plans(r.t));
    rig_close(&r);
}

// A plan that is thought to be slower than what the search then finds.
static void check_taken_over(int64_t parts)
{
    rig a, b;
    rig_open(&a, HTH_POLICY_HEARTH, "600000", parts, true);
    rig_open(&b, HTH_POLICY_HEARTH, "600000", parts, false);
    hth_trainer_shape *s = &a.t->shapes[0];
    const hth_program *p = parts > 1 ? s->add.program : s->apply.program;
    p->plan->predicted_us *= 2;
    assert_true(hth_trainer_plans(a.t) && !hth_trainer_plans(b.t));
    int steps = 0, after = 0;
    uint64_t until = hth_real_after(300000000000u);
    for (; after < 5; steps++) {
        float x = rig_step(&a), y = rig_step(&b);
        assert_memory_equal(&x, &y, sizeof x);
        after += hth_trainer_swaps(a.t) > 0;
        if (steps > 20 && after == 0) {
            usleep(10000); // the search needs the processor, too
        }
        assert_true(hth_real_ns() < until);
    }
    assert_int_equal(hth_trainer_swaps(b.t), 0);
    assert_true(p->plan->arena_bytes + p->plan->resident_bytes <= p->budget);
    assert_string_equal(p->plan->policy, "hearth");
    print_message("# %d parts: another plan after %d steps\n", (int)parts, steps - 5);
    rig_same_state(&a, &b); // contents are where the new plan has them
    rig_close(&a);
    rig_close(&b);
}

static void better_plans_are_taken_over(void **state)
{
    check_taken_over(1);
    check_taken_over(2);
}

// Such a plan, which leaves too little of the memory for evaluations.
static void evaluations_keep_their_memory(void **state)
{
    rig r;
    rig_open(&r, HTH_POLICY_HEARTH, "600000", 1, true);
    r.t->shapes[0].apply.program->plan->predicted_us *= 2;
    r.t->replan.corrections = INT_MAX;
    hth_trainer_evaluates(r.t, r.t->memory_bytes);
    while (hth_trainer_plans(r.t)) {
        rig_step(&r);
        usleep(1000); // the search needs the processor, too
    }
    assert_true(r.t->replan.slices > 0);
    assert_int_equal(hth_trainer_swaps(r.t), 0);
    rig_close(&r);
}

// With that budget; false: the first plan is as good as any that the search finds.
static bool quick_plan_is_refined(const char *budget)
{
    rig a, b;
    rig_make(&a, &unet, SAMPLES, HTH_POLICY_HEARTH);
    rig_make(&b, &unet, SAMPLES, HTH_POLICY_HEARTH);
    a.spec.budget = b.spec.budget = budget;
    a.spec.plan.limit_ms = b.spec.plan.limit_ms = 1e-3;
    a.t->replan.on = true;
    a.t->replan.steps = MANY;
    a.t->replan.corrections = INT_MAX; // predictions stay what they are
    rig_prepare(&a);
    rig_prepare(&b);
    double first = hth_trainer_predicted_us(a.t), before = first;
    bool nothing = false;
    assert_true(hth_trainer_predicted_us(b.t) == first && hth_trainer_swap(a.t).step == 0);
    for (int after = 0, swaps = 0; after < 5 && !nothing;) {
        float x = rig_step(&a), y = rig_step(&b);
        assert_memory_equal(&x, &y, sizeof x);
        after += swaps > 0;
        if (hth_trainer_swaps(a.t) > swaps) {
            hth_train_swap swap = hth_trainer_swap(a.t);
            swaps = hth_trainer_swaps(a.t);
            assert_true(swap.step == (int64_t)a.t->counter && swap.from_us == before);
            assert_true(swap.to_us == hth_trainer_predicted_us(a.t));
            assert_true(swap.to_us <= swap.from_us * 0.995);
            assert_true(a.t->replan.work_ms > 0 && a.t->replan.slices > 0);
            before = swap.to_us;
        } else if (after == 0) {
            nothing = a.t->replan.refined && !a.t->replan.searching;
            usleep(1000); // the search needs the processor, too
        }
    }
    print_message("# %s bytes: %.0f us, then %.0f us\n", budget, first, before);
    rig_same_state(&a, &b);
    rig_close(&a);
    rig_close(&b);
    return !nothing;
}

// From a plan of hardly any search, for as long as there is work to do and steps to make. For which
// budget that is no good depends on this machine's speeds.
static void quick_plans_are_refined(void **state)
{
    static const char *const budget[] = {"600000", "520000", "440000", "400000",
                                         "360000", "320000", "280000", "240000"};
    size_t n = 0;
    (void)state;
    while (n < sizeof budget / sizeof *budget && !quick_plan_is_refined(budget[n])) {
        n++;
    }
    assert_true(n < sizeof budget / sizeof *budget);
}

// With few steps left, or if nothing may be spent, there is no search at all; a search that is
// running ends with the work that it may do.
static void searches_are_bounded(void **state)
{
    for (int k = 0; k < 3; k++) {
        rig r;
        rig_open(&r, HTH_POLICY_HEARTH, "600000", 1, true);
        hth_plan *plan = r.t->shapes[0].apply.program->plan;
        double work_ms = hth_plan_limit_ms(&r.t->shapes[0].apply.program->problem);
        plan->predicted_us *= 2;
        r.t->replan.steps = k == 0 ? 40 : MANY;
        assert_ok(hth_setting_set("train.replan_share", k == 1 ? "0" : "0.02"));
        if (k == 2) { // what is left is a slice less than a slice
            r.t->replan.work_ms = 39.5 * work_ms;
        }
        for (int i = 0; i < 4; i++) {
            rig_step(&r);
        }
        assert_false(hth_trainer_plans(r.t));
        assert_int_equal(r.t->replan.slices, 0);
        rig_close(&r);
    }
    assert_ok(hth_setting_set("train.replan_share", "0.02"));
}

// Without host memory the job goes on with the plan that it has.
static void no_host_memory(void **state)
{
    rig a, b;
    rig_open(&a, HTH_POLICY_HEARTH, "600000", 1, true);
    rig_open(&b, HTH_POLICY_HEARTH, "600000", 1, false);
    hth_replan *w = &a.t->replan;
    w->corrections = INT_MAX;
    for (uint64_t nth = 1; hth_trainer_swaps(a.t) == 0; nth += 1 + nth / 4) {
        a.t->shapes[0].apply.program->plan->predicted_us *= 2;
        w->refined = false;
        w->work_ms = 0;
        for (bool tried = false; !w->searching; tried = tried || w->refined) {
            w->refined = false;
            float y = rig_step(&b);
            hth_fault_alloc(!tried && w->n_us > 0 ? nth : 0); // of those that begin the search
            float x = rig_step(&a);
            hth_fault_alloc(0);
            assert_memory_equal(&x, &y, sizeof x);
        }
        while (!w->done) {
            usleep(1000);
        }
        float y = rig_step(&b);
        hth_fault_alloc(nth);
        float x = rig_step(&a);
        hth_fault_alloc(0);
        assert_memory_equal(&x, &y, sizeof x);
        assert_false(w->searching);
    }
    rig_same_state(&a, &b);
    rig_close(&a);
    rig_close(&b);
}

// Closing, and planning again for another budget, end a search.
static void searches_are_stopped(void **state)
{
    rig r;
    rig_open(&r, HTH_POLICY_HEARTH, "600000", 1, true);
    r.t->shapes[0].apply.program->plan->predicted_us *= 2;
    while (!r.t->replan.searching) {
        rig_step(&r);
    }
    assert_ok(hth_trainer_replan(r.t));
    assert_false(r.t->replan.searching);
    assert_ok(hth_trainer_prepare(r.t, &r.input, &r.target));
    while (!r.t->replan.searching) {
        rig_step(&r);
        r.t->shapes[0].apply.program->plan->predicted_us *= 2;
    }
    rig_close(&r);
}

// Before a slice the search rests while requests need the processors, but not once it is to
// stop; it has the lowest priority.
static void searches_let_requests_pass(void **state)
{
    for (int requests = 0; requests < 2; requests++) {
        rig r;
        rig_open(&r, HTH_POLICY_HEARTH, "600000", 1, true);
        hth_replan *w = &r.t->replan;
        int low = n_low;
        w->steps = MANY;
        hth_spin_suspend(requests ? hth_real_after(600000000000u) : 0);
        while (!w->searching) {
            r.t->shapes[0].apply.program->plan->predicted_us *= 2;
            rig_step(&r);
        }
        while (!w->done && !w->rests) {
            usleep(1000);
        }
        assert_int_equal(w->rests, requests);
        assert_int_equal(n_low, low + 1);
        rig_close(&r);
    }
}

// What nodes and copies took in one job's steps is what the next one is planned with: here a third
// more than alone, and half the link's speed, as if measured.
static void steps_are_remembered(void **state)
{
    rig a, b;
    rig_open(&a, HTH_POLICY_KEEP, NULL, 1, false);
    hth_program *p = a.t->shapes[0].apply.program;
    assert_ok(hth_replan_remember(a.t)); // nothing was measured
    assert_ok(hth_replan_see(a.t, 3));
    for (int i = 0; i < 4; i++) {
        rig_step(&a);
        assert_int_equal(a.t->replan.n_samples, i < 2 ? i + 1 : -1);
    }
    double seen = hth_trainer_predicted_us(a.t), sampled = a.t->replan.sampled_us;
    assert_true(sampled > 0 && fabs(seen / sampled - 1) < 0.05);
    assert_false(a.t->replan.searching || hth_trainer_swaps(a.t) > 0);
    rig_open(&b, HTH_POLICY_KEEP, NULL, 1, false);
    double alone = hth_trainer_predicted_us(b.t), sum = 0;
    const hth_problem *q = &b.t->shapes[0].apply.program->problem;
    assert_int_equal(q->n_nodes, p->problem.n_nodes);
    for (int i = 0; i < q->n_nodes; i++) {
        sum += q->nodes[i].alternatives[0].time_us;
        p->problem.nodes[i].alternatives[0].time_us = q->nodes[i].alternatives[0].time_us * 4 / 3;
    }
    rig_close(&b);
    a.t->replan.calm = false;
    assert_ok(hth_replan_remember(a.t)); // .. in steps that were disturbed: no
    rig_open(&b, HTH_POLICY_KEEP, NULL, 1, false);
    assert_true(hth_trainer_predicted_us(b.t) == alone);
    rig_close(&b);
    a.t->replan.calm = true;
    a.t->replan.busy_us[1] = 1;
    p->problem.d2h_bytes_per_s = a.site.link_back_bytes_per_s / 1.25;
    assert_ok(hth_replan_remember(a.t));
    assert_true(fabs(a.site.link_back_bytes_per_s / 1.6e8 - 1) < 1e-6);
    assert_true(a.site.link_bytes_per_s == 2e8);
    rig_open(&b, HTH_POLICY_KEEP, NULL, 1, false);
    double now = hth_trainer_predicted_us(b.t);
    print_message("# planned %.0f us alone (nodes %.0f), %.0f during a step\n", alone, sum, now);
    assert_true(fabs(now - alone - sum / 3) < 0.02 * alone);
    rig_close(&b);
    rig_close(&a);
}

// A device whose quota holds steps back: what they took is no news about its nodes.
static void quotas_are_not_remembered(void **state)
{
    rig a;
    rig_open(&a, HTH_POLICY_KEEP, NULL, 1, false);
    assert_ok(hth_device_quota(a.site.device, 50));
    assert_ok(hth_replan_see(a.t, 3));
    int known_before = n_known;
    for (int i = 0; i < 4; i++) {
        rig_step(&a);
        assert_true(i > 1 || a.t->replan.busy[i]);
    }
    assert_true(a.t->replan.sampled_us > 0); // the job itself learns from them
    assert_false(a.t->replan.calm);
    assert_ok(hth_replan_remember(a.t));
    assert_int_equal(n_known, known_before);
    rig_close(&a);
}

// Copies of steps that were disturbed do not count either.
static void disturbed_copies_do_not_count(void **state)
{
    rig a;
    rig_open(&a, HTH_POLICY_HEARTH, "600000", 1, false);
    hth_program *p = a.t->shapes[0].apply.program;
    hth_replan *w = &a.t->replan;
    assert_ok(hth_replan_see(a.t, 3));
    while (w->n_samples < 2) {
        rig_step(&a);
    }
    for (int k = 0; k < 2; k++) {
        w->busy[k] = k == 1;
        w->wall_us[k] = 1000;
        for (int way = 0; way < 2; way++) {
            w->bytes[k][way] = 1e6;
            w->copy_us[k][way] = k == 1 ? 1e5 : 1e4;
        }
    }
    w->want = 2;
    assert_ok(hth_replan_learn(a.t));
    assert_float_equal(p->problem.h2d_bytes_per_s, 1e8, 1);
    assert_float_equal(p->problem.d2h_bytes_per_s, 1e8, 1);
    assert_true(w->busy_us[0] == 1e4 && w->busy_us[1] == 1e4);
    rig_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_are_corrected),
        cmocka_unit_test(correction_can_be_asked_for),
        cmocka_unit_test(better_plans_are_taken_over),
        cmocka_unit_test(evaluations_keep_their_memory),
        cmocka_unit_test(quick_plans_are_refined),
        cmocka_unit_test(searches_are_bounded),
        cmocka_unit_test(no_host_memory),
        cmocka_unit_test(searches_are_stopped),
        cmocka_unit_test(searches_let_requests_pass),
        cmocka_unit_test(quotas_are_not_remembered),
        cmocka_unit_test(disturbed_copies_do_not_count),
        cmocka_unit_test(steps_are_remembered), // last: it changes what is known
    };
    hth_thread_low_inject(low_counted);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
