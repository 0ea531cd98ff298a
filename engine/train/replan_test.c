// SPDX-License-Identifier: Apache-2.0
// A job's plan while it runs: predicted times become the measured ones, a better plan takes the
// place of the old one between two steps, and no bit of a loss changes.
#include "tests/rig/trainer_rig.h"

#include "base/spin.h"

#define SAMPLES 16

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
            usleep(10000); // the search has the lowest priority
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

// Between two rounds the search rests while requests need the processors, but not for ever, and
// not once it is to stop.
static void searches_let_requests_pass(void **state)
{
    rig r;
    rig_open(&r, HTH_POLICY_HEARTH, "600000", 1, false);
    rig_step(&r);
    hth_replan *w = &r.t->replan;
    assert_ok(hth_replan_search(r.t, r.t->memory_bytes, 2));
    while (!w->done) {
        usleep(1000);
    }
    assert_int_equal(w->rests, 0);
    hth_replan_end(r.t);
    hth_spin_suspend(hth_real_after(600000000000u));
    assert_ok(hth_replan_search(r.t, r.t->memory_bytes, 2));
    while (!w->done) {
        usleep(1000);
    }
    assert_int_equal(w->rests, 1);
    hth_replan_end(r.t);
    assert_ok(hth_replan_search(r.t, r.t->memory_bytes, 1000000));
    while (!w->rests && !w->done) {
        usleep(1000);
    }
    hth_replan_stop(r.t);
    rig_close(&r);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_are_corrected),
        cmocka_unit_test(correction_can_be_asked_for),
        cmocka_unit_test(better_plans_are_taken_over),
        cmocka_unit_test(searches_are_stopped),
        cmocka_unit_test(searches_let_requests_pass),
        cmocka_unit_test(steps_are_remembered), // last: it changes what is known
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
