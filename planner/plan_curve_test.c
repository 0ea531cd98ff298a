// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_curve.h"

#include "planner/plan_train_gen.h"

#include <math.h>

static const hth_plan_options quick = {.limit_ms = 1000, .limit_decodes = 60};

static void curves_are_monotone(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 4 + (int)(seed % 20));
        hth_curve c;
        assert_ok(hth_plan_curve(&p, &quick, &c));
        assert_true(c.n >= 1);
        assert_true(c.point[c.n - 1].device_bytes <= c.peak_bytes);
        for (int i = 0; i < c.n; i++) {
            assert_true(c.point[i].device_bytes <= c.point[i].budget_bytes);
            assert_true(c.point[i].time_us >= c.point[i].lower_bound_us * 0.999999);
            assert_true(i == 0 || c.point[i].budget_bytes > c.point[i - 1].budget_bytes ||
                        c.peak_bytes - c.floor_bytes < HTH_CURVE_POINTS);
            assert_true(i == 0 || c.point[i].time_us <= c.point[i - 1].time_us);
            assert_true(i == 0 || c.point[i].lower_bound_us <= c.point[i - 1].lower_bound_us);
        }
        hth_problem_fini(&p);
    }
}

// A curve ends where it is canceled; and the refusal of a search that was says nothing of a plan
// that nobody saw.
static void canceled(void **state)
{
    static const int blocks[] = {1, 1, 2, 1};
    hth_problem p = pg_resnet(16, blocks);
    atomic_int cancel = 1;
    hth_plan_options o = {.cancel = &cancel, .limit_ms = 100};
    hth_curve c;
    hth_plan *plan;
    assert_int_equal(hth_plan_curve(&p, &o, &c), HTH_ECANCELED);
    assert_int_equal(c.n, 0);
    assert_ok(hth_plan_train_floor(&p, &p.budget));
    assert_err(hth_plan_train(&p, &o, &plan), HTH_ETOOBIG, "no plan was found");
    assert_null(strstr(hth_err_detail(), "TiB"));
    hth_problem_fini(&p);
}

typedef struct limits {
    uint64_t least; // a plan takes half of what its budget has above this
    int asked;
} limits;

static hth_err limits_plan(void *ctx, uint64_t budget, hth_curve_point *out, bool *fits)
{
    limits *x = ctx;
    x->asked++;
    *fits = budget >= x->least;
    *out = (hth_curve_point){.budget_bytes = budget,
                             .device_bytes = x->least + (budget - x->least) / 2};
    return HTH_OK;
}

// What is said to be enough is what a plan was found for, and little more than the least.
static void least_memory_is_found(void **state)
{
    for (uint64_t least = 100; least <= 1000000; least = least * 3 / 2) {
        limits x = {.least = least};
        uint64_t bytes;
        assert_ok(hth_curve_min(limits_plan, &x, 1000000, 90, &bytes));
        assert_true(bytes >= least && bytes <= least + 10000);
        assert_true(x.asked <= 9);
    }
    limits x = {.least = 11};
    uint64_t bytes;
    assert_err(hth_curve_min(limits_plan, &x, 10, 5, &bytes), HTH_ETOOBIG,
               "no plan was found for 10 B");
}

// ---- admission, against trying everything

typedef struct admission {
    hth_curve curve[4];
    hth_admit_job job[4];
    int n;
    uint64_t device;
} admission;

// Up to four jobs with up to four points: with more memory faster, and mostly fewer copies.
static void admission_make(admission *x, uint64_t seed, bool turns)
{
    pt_state = seed * 7919 + 3;
    *x = (admission){.n = 1 + (int)pt_random(4)};
    for (int j = 0; j < x->n; j++) {
        hth_curve *c = &x->curve[j];
        uint64_t bytes = 20 + pt_random(100);
        double us = 100 + pt_random(100);
        c->n = 1 + (int)pt_random(4);
        for (int k = c->n - 1; k >= 0; k--) {
            c->point[c->n - 1 - k] = (hth_curve_point){.device_bytes = bytes,
                                                       .time_us = us * (1 + 0.1 * k),
                                                       .h2d_us = us * (double)pt_random(90) / 100,
                                                       .d2h_us = us * (double)pt_random(90) / 100};
            bytes += 10 + pt_random(100);
        }
        double turn = turns ? 1.0 / x->n : 1;
        x->job[j] = (hth_admit_job){c, 1 + (double)pt_random(3), turn};
    }
    x->device = 100 + pt_random(900);
}

typedef struct sums {
    double cost, in, out;
    uint64_t bytes;
} sums;

static sums admission_sums(const admission *x, const int *chosen)
{
    sums s = {0};
    for (int j = 0; j < x->n; j++) {
        const hth_curve *c = &x->curve[j];
        const hth_curve_point *p = &c->point[chosen[j]];
        s.cost += x->job[j].weight * p->time_us / c->point[c->n - 1].time_us;
        s.in += x->job[j].turn * p->h2d_us / p->time_us;
        s.out += x->job[j].turn * p->d2h_us / p->time_us;
        s.bytes += p->device_bytes;
    }
    return s;
}

// The least cost of all choices that fit; INFINITY: none does.
static double admission_best(const admission *x, double link)
{
    double best = INFINITY;
    int chosen[4] = {0};
    for (;;) {
        sums s = admission_sums(x, chosen);
        if (s.bytes <= x->device && s.in <= link + 1e-9 && s.out <= link + 1e-9) {
            best = fmin(best, s.cost);
        }
        int j = 0;
        while (j < x->n && ++chosen[j] == x->curve[j].n) {
            chosen[j++] = 0;
        }
        if (j == x->n) {
            return best;
        }
    }
}

static void admission_is_the_best_choice(void **state)
{
    int by_link = 0, none = 0;
    for (uint64_t seed = 0; seed < 4000; seed++) {
        admission x;
        int chosen[4];
        bool link;
        admission_make(&x, seed, false);
        double best = admission_best(&x, 1), alone = admission_best(&x, INFINITY);
        hth_err err = hth_curve_admit(x.job, x.n, x.device, chosen, &link);
        assert_int_equal(err, isinf(best) ? HTH_ETOOBIG : HTH_OK);
        assert_int_equal(link, isinf(best) && !isinf(alone));
        if (err == HTH_OK) {
            sums s = admission_sums(&x, chosen);
            assert_true(s.bytes <= x.device && s.in <= 1 + 1e-9 && s.out <= 1 + 1e-9);
            assert_true(fabs(s.cost - best) < 1e-9);
        }
        by_link += best > alone + 1e-9;
        none += isinf(alone);
    }
    assert_true(by_link > 500 && none > 100);
}

// In turns, which add up to the whole time, no job's copies are in another's way.
static void turns_have_the_link(void **state)
{
    for (uint64_t seed = 0; seed < 4000; seed += TEST_STRIDE) {
        admission x;
        int chosen[4];
        bool link;
        admission_make(&x, seed, true);
        double best = admission_best(&x, INFINITY);
        hth_err err = hth_curve_admit(x.job, x.n, x.device, chosen, &link);
        assert_int_equal(err, isinf(best) ? HTH_ETOOBIG : HTH_OK);
        assert_true(err != HTH_OK || fabs(admission_sums(&x, chosen).cost - best) < 1e-9);
        assert_false(link);
    }
}

static hth_curve curve_of(double in, double out)
{
    return (hth_curve){.n = 2,
                       .point = {{.device_bytes = 100, .time_us = 12, .h2d_us = in, .d2h_us = out},
                                 {.device_bytes = 200, .time_us = 10}}};
}

// Two jobs at the same time that both keep the link busy cannot both hide it. Directions are apart.
static void the_link_is_a_resource(void **state)
{
    hth_curve in = curve_of(9.6, 1), out = curve_of(1, 9.6);
    hth_admit_job same[] = {{&in, 1, 1}, {&in, 1, 1}}, apart[] = {{&in, 1, 1}, {&out, 1, 1}};
    int chosen[2];
    bool link;
    assert_ok(hth_curve_admit(same, 2, 310, chosen, NULL));
    assert_int_equal(chosen[0] + chosen[1], 1);
    assert_err(hth_curve_admit(same, 2, 210, chosen, &link), HTH_ETOOBIG, "copies of 2 jobs");
    assert_true(link);
    assert_err(hth_curve_admit(same, 2, 150, chosen, &link), HTH_ETOOBIG, "2 jobs do not fit 150");
    assert_false(link);
    assert_ok(hth_curve_admit(apart, 2, 210, chosen, NULL));
    same[0].turn = same[1].turn = 0.5;
    assert_ok(hth_curve_admit(same, 2, 210, chosen, NULL));
}

// Hundreds of jobs that keep their points, and some that choose: what is dropped leaves a choice.
static void many_jobs_are_admitted(void **state)
{
    enum { MANY = 300, CHOOSE = 12 };
    hth_curve curve[CHOOSE], fixed = {.n = 1, .point = {{.device_bytes = 10, .time_us = 1}}};
    hth_admit_job job[MANY];
    int chosen[MANY];
    uint64_t least = 0, peak = 0;
    pt_state = 5;
    for (int j = 0; j < MANY; j++) {
        job[j] = (hth_admit_job){j < CHOOSE ? &curve[j] : &fixed, 1, 1.0 / MANY};
    }
    for (int j = 0; j < CHOOSE; j++) {
        curve[j].n = HTH_CURVE_POINTS;
        for (int k = 0; k < HTH_CURVE_POINTS; k++) {
            curve[j].point[k] =
                (hth_curve_point){.device_bytes = 1000 + 100 * (uint64_t)k + pt_random(90),
                                  .time_us = 200 - 5 * k + (double)pt_random(400) / 100,
                                  .h2d_us = 100 - 3 * k + (double)pt_random(200) / 100,
                                  .d2h_us = 100 - 3 * k + (double)pt_random(200) / 100};
        }
        least += curve[j].point[0].device_bytes;
        peak += curve[j].point[HTH_CURVE_POINTS - 1].device_bytes;
    }
    const uint64_t others = (MANY - CHOOSE) * 10;
    assert_ok(hth_curve_admit(job, MANY, least + others, chosen, NULL));
    assert_err(hth_curve_admit(job, MANY, least + others - 1, chosen, NULL), HTH_ETOOBIG, "fit");
    assert_ok(hth_curve_admit(job, MANY, (least + peak) / 2 + others, chosen, NULL));
}

// Every allocation of one plan, every 37th of a curve's.
static void allocations_fail_cleanly(void **state)
{
    const hth_plan_options o = {.limit_ms = 1000, .limit_decodes = 3};
    hth_problem p = pg_random(3, 3);
    hth_curve c;
    uint64_t before = hth_alloc_count();
    assert_ok(hth_plan_curve(&p, &o, &c));
    uint64_t all = hth_alloc_count() - before;
    for (uint64_t nth = 1; nth <= all; nth += 37) {
        hth_curve other;
        int64_t live = hth_alloc_live();
        hth_fault_alloc(nth);
        hth_err err = hth_plan_curve(&p, &o, &other);
        hth_fault_alloc(0);
        assert_int_equal(err, HTH_ENOMEM);
        assert_int_equal(hth_alloc_live(), live);
    }
    hth_plan *plan;
    p.budget = c.peak_bytes / 10 * 8;
    FAULT_LOOP(hth_plan_train(&p, &o, &plan));
    hth_plan_free(plan);
    const hth_admit_job job = {&c, 1, 1};
    int chosen[1];
    FAULT_LOOP(hth_curve_admit(&job, 1, c.peak_bytes, chosen, NULL));
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves_are_monotone),    cmocka_unit_test(canceled),
        cmocka_unit_test(least_memory_is_found),  cmocka_unit_test(admission_is_the_best_choice),
        cmocka_unit_test(turns_have_the_link),    cmocka_unit_test(the_link_is_a_resource),
        cmocka_unit_test(many_jobs_are_admitted), cmocka_unit_test(allocations_fail_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
