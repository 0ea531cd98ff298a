// SPDX-License-Identifier: Apache-2.0
// No policy's plan is faster than hearth's, on recorded problems (tests/data/plan) and on generated
// ones, at the same limit; none is faster than one that contains it, or fits where that does not;
// and addresses cost next to nothing. The limits are decodes or work, so the result is the same on
// every machine.
#include "planner/search/plan_rounds.h"
#include "planner/search/plan_search.h"
#include "planner/plan_train_gen.h"

#include "base/clock.h"

#include <glob.h>
#include <math.h>
#include <unistd.h>

#define POLICY_RECORDED  600 // decodes in each round
#define POLICY_GENERATED 2500
// A search that ends by its limit is so far from the best it can do.
#define POLICY_WORSE_RECORDED  1.0005
#define POLICY_WORSE_GENERATED 1.002
#define POLICY_ARENA           1.02
#define POLICY_GAP             1.05 // of the bound
#define POLICY_PART_MS         15   // work, for each plan

static void check_step(hth_problem *problem, const char *name, const double *shares, int n_shares,
                       uint64_t decodes, double worse)
{
    uint64_t peak;
    assert_ok(hth_plan_train_peak(problem, &peak));
    for (int i = 0; i < n_shares; i += TEST_STRIDE) {
        double hearth = 0;
        problem->budget = (uint64_t)((double)peak * shares[i]);
        for (int k = 0; k < HTH_POLICY_OPTIMAL; k++) {
            hth_plan *plan;
            hth_plan_options o = {
                .policy = (hth_policy)k, .seed = 1, .limit_ms = 1e6, .limit_decodes = decodes};
            hth_err err = hth_plan_train(problem, &o, &plan);
            if (k == HTH_POLICY_HEARTH) {
                assert_ok(err);
                hearth = plan->predicted_us;
                double arena = (double)plan->arena_bytes;
                if (getenv("PLAN_TABLE") != NULL) {
                    print_message("%s %.1f arena %.4f\n", name, shares[i],
                                  arena / (double)plan->live_peak_bytes);
                }
                assert_true(arena <= POLICY_ARENA * (double)plan->live_peak_bytes);
            }
            if (err == HTH_OK) {
                if (hearth > plan->predicted_us && getenv("PLAN_TABLE") != NULL) {
                    print_message("%s %.1f: %s is faster, %.4f\n", name, shares[i],
                                  hth_policy_name(o.policy), hearth / plan->predicted_us);
                }
                assert_true(hearth <= plan->predicted_us * worse);
            }
            hth_plan_free(plan);
        }
    }
    hth_problem_fini(problem);
}

// Plans of every policy for one budget; those that contain others are held to it. hearth has no
// time for a baseline's own search, except mo-sos's, which runs concurrently, and str-auto's where
// the certificate leaves 5 % open.
static void check_parts(const hth_problem *problem, const char *name, double share)
{
    double us[HTH_POLICY_OPTIMAL];
    bool open = false;
    for (int k = 0; k < HTH_POLICY_OPTIMAL; k++) {
        hth_plan *plan;
        hth_plan_options o = {.policy = (hth_policy)k, .seed = 1, .limit_ms = POLICY_PART_MS};
        hth_err err = hth_plan_train(problem, &o, &plan);
        us[k] = err == HTH_OK ? plan->predicted_us : INFINITY;
        if (err == HTH_OK) {
            assert_ok(hth_plan_verify(problem, plan));
            assert_true(plan->arena_bytes + plan->resident_bytes <= problem->budget);
            assert_false(plan->stopped);
            open = open || (k == HTH_POLICY_HEARTH && us[k] > 1.05 * plan->lower_bound_us);
        }
        hth_plan_free(plan);
    }
    for (int k = 0; k < HTH_POLICY_OPTIMAL * HTH_POLICY_OPTIMAL; k++) {
        hth_policy a = (hth_policy)(k / HTH_POLICY_OPTIMAL),
                   b = (hth_policy)(k % HTH_POLICY_OPTIMAL);
        bool also = b == HTH_POLICY_MOSOS || (open && b == HTH_POLICY_STR);
        bool held = a != HTH_POLICY_HEARTH || also || !hth_policy_searches(b);
        if (held && hth_policy_contains(a, b) && us[a] > us[b] * (1 + 1e-9)) {
            fail_msg("%s at %.1f: %s takes %.3f us, %s takes %.3f", name, share, hth_policy_name(a),
                     us[a], hth_policy_name(b), us[b]);
        }
    }
}

static void no_policy_is_faster_than_one_that_contains_it(void **state)
{
    static const double shares[] = {0.6, 0.4};
    for (uint64_t seed = 0; seed < 12; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 12 + 3 * (int)seed);
        char *name = hth_asprintf("random step %d", (int)seed);
        uint64_t peak;
        assert_ok(hth_plan_train_peak(&p, &peak));
        for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
            p.budget = (uint64_t)((double)peak * shares[i]);
            check_parts(&p, name, shares[i]);
        }
        hth_free(name);
        hth_problem_fini(&p);
    }
}

static void no_policy_is_faster_on_recorded_steps(void **state)
{
    static const double shares[] = {0.5};
    glob_t g;
    assert_int_equal(glob("tests/data/plan/*.json.gz", 0, NULL, &g), 0);
    for (size_t i = 0; i < g.gl_pathc; i += TEST_STRIDE) {
        char plain[] = "/tmp/plan-policy-XXXXXX";
        hth_problem p;
        close(mkstemp(plain));
        char *command = hth_asprintf("gzip -dcf -- '%s' >%s", g.gl_pathv[i], plain);
        assert_int_equal(system(command), 0);
        assert_ok(hth_problem_read(plain, &p));
        unlink(plain);
        hth_free(command);
        check_step(&p, g.gl_pathv[i], shares, 1, POLICY_RECORDED, POLICY_WORSE_RECORDED);
    }
    globfree(&g);
}

static void no_policy_is_faster_on_generated_steps(void **state)
{
    static const double shares[] = {0.8, 0.6, 0.4};
    static const int blocks[] = {2, 2, 2, 2};
    hth_problem vgg = pg_vgg19(144, 227), unet = pg_unet(16, 256, 256),
                resnet = pg_resnet(64, blocks);
    check_step(&vgg, "vgg19", shares, 2, POLICY_GENERATED, POLICY_WORSE_GENERATED);
    check_step(&unet, "unet", shares, 3, POLICY_GENERATED, POLICY_WORSE_GENERATED);
    check_step(&resnet, "resnet-26", shares, 3, POLICY_GENERATED, POLICY_WORSE_GENERATED);
}

// What a search starts from costs it little: on a large step near its floor a greedy policy once
// took all of its work, and the plan took 3.6 times the bound.
static void greedy_policies_leave_the_search_its_work(void **state)
{
    static const int blocks[] = {3, 8, 36, 3};
    hth_problem p = pg_resnet(64, blocks);
    hth_plan *plan;
    uint64_t peak;
    assert_ok(hth_plan_train_peak(&p, &peak));
    p.budget = peak / 10 * 4;
    assert_ok(hth_plan_train(&p, &(hth_plan_options){.seed = 0}, &plan));
    assert_true(plan->predicted_us <= plan->lower_bound_us * POLICY_GAP);
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

// Seeds differ by 8 % here. With seed 0 hearth's own search is 6 % slower than mo-sos's.
static void seeds_that_favour_a_baseline(void **state)
{
    hth_problem p = pg_vgg19(144, 227);
    uint64_t peak;
    assert_ok(hth_plan_train_peak(&p, &peak));
    p.budget = peak / 2;
    for (uint64_t seed = 0; seed < 3; seed += TEST_STRIDE) {
        hth_plan *hearth, *again, *other;
        hth_plan_options o = {.seed = seed};
        assert_ok(hth_plan_train(&p, &o, &hearth));
        assert_ok(hth_plan_train(&p, &o, &again));
        assert_memory_equal(&hearth->predicted_us, &again->predicted_us, sizeof(double));
        assert_string_equal(hearth->policy, "hearth");
        o.policy = HTH_POLICY_MOSOS;
        assert_ok(hth_plan_train(&p, &o, &other));
        assert_true(hearth->predicted_us <= other->predicted_us);
        hth_plan_free(hearth);
        hth_plan_free(again);
        hth_plan_free(other);
    }
    hth_problem_fini(&p);
}

// Near its floor this step waits for copies. Kicks that bring back what it waits for find plans
// that others rarely do: the mean is 1.64 to 1.66 times the fastest step, by what the seeds hit;
// without them 1.76 to 1.81.
static void what_is_waited_for_comes_back(void **state)
{
    hth_problem p = pg_unet(120, 256, 256);
    hth_step step;
    uint64_t peak, found = UINT64_MAX;
    double sum = 0;
    assert_ok(hth_plan_train_peak(&p, &peak));
    p.budget = peak / 4;
    assert_ok(hth_step_init(&step, &p));
    hth_plan_work_begin(1e6, NULL, NULL);
    for (uint64_t seed = 0; seed < 8; seed++) {
        hth_plan *plan = NULL;
        hth_dual *dual = NULL;
        hth_plan_options o = {.seed = seed, .limit_ms = 1e6, .limit_decodes = 4000};
        assert_ok(hth_rounds_search(&p, &step, &o, HTH_ROUNDS_FIRST, true, &dual, &found, &plan));
        sum += plan->predicted_us / step.fastest_us;
        hth_plan_free(plan);
        hth_dual_free(dual);
    }
    assert_false(hth_plan_work_end());
    hth_step_fini(&step);
    hth_problem_fini(&p);
    if (sum / 8 > 1.70) {
        fail_msg("the mean is %.3f times the fastest step", sum / 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_policies_leave_the_search_its_work),
        cmocka_unit_test(seeds_that_favour_a_baseline),
        cmocka_unit_test(what_is_waited_for_comes_back),
        cmocka_unit_test(no_policy_is_faster_than_one_that_contains_it),
        cmocka_unit_test(no_policy_is_faster_on_recorded_steps),
        cmocka_unit_test(no_policy_is_faster_on_generated_steps),
    };
    hth_clock_inject(pt_still_ns, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
