// SPDX-License-Identifier: Apache-2.0
// What the paper proves of the divisible form, on random problems: sharing incentive,
// envy-freeness, Pareto efficiency, and that nobody gains by a false demand.
#include "fair/fair.h"

#include "fair/fixture.h"

#include <math.h>

#define PROBLEMS 1000
#define EPSILON  1e-9

static double weights(const hth_fair_problem *problem)
{
    double sum = 0;
    for (int i = 0; i < problem->n_tenants; i++) {
        sum += problem->tenants[i].weight;
    }
    return sum;
}

static double wanted(const hth_fair_tenant *tenant)
{
    return tenant->tasks == HTH_FAIR_UNLIMITED ? INFINITY : (double)tenant->tasks;
}

// How many tasks of `demand` are in `has`.
static double tasks_in(const hth_fair_amounts *demand, const hth_fair_amounts *has, int n)
{
    double tasks = INFINITY;
    for (int r = 0; r < n; r++) {
        tasks = demand->of[r] > 0 ? fmin(tasks, has->of[r] / demand->of[r]) : tasks;
    }
    return tasks;
}

static hth_fair_amounts times(const hth_fair_amounts *amounts, double x, int n)
{
    hth_fair_amounts b = {{0}};
    for (int r = 0; r < n; r++) {
        b.of[r] = amounts->of[r] * x;
    }
    return b;
}

// The paper's example: 3 and 2 tasks, here too.
static void test_paper(void **state)
{
    hth_fair_amounts a = {{1, 4}}, b = {{3, 1}};
    hth_fair_tenant tenants[] = {{"A", 1, HTH_FAIR_UNLIMITED, &a, 1},
                                 {"B", 1, HTH_FAIR_UNLIMITED, &b, 1}};
    hth_fair_problem p = {2, 2, {"cpu", "memory"}, {{9, 18}}, tenants, {1, 1}};
    double tasks[2];
    assert_ok(hth_fair_divide(&p, tasks));
    assert_true(fabs(tasks[0] - 3) < EPSILON && fabs(tasks[1] - 2) < EPSILON);
    tenants[0].weight = 2; // 2/3 of the memory before, and twice B's share now: x + 3y = 9, x = 3y
    assert_ok(hth_fair_divide(&p, tasks));
    assert_true(fabs(tasks[0] * 4 / 18 / 2 - tasks[1] * 3 / 9) < EPSILON);
    assert_true(fabs(tasks[0] * 4 + tasks[1] - 18) < EPSILON);
}

static void test_sharing_incentive(void **state)
{
    for (uint64_t seed = 1; seed <= PROBLEMS; seed++) {
        hth_fair_problem p = fair_random_problem(seed, true);
        double tasks[16], sum = weights(&p);
        assert_ok(hth_fair_divide(&p, tasks));
        for (int i = 0; i < p.n_tenants; i++) {
            const hth_fair_tenant *t = &p.tenants[i];
            hth_fair_amounts part = times(&p.capacity, t->weight / sum, p.n_resources);
            double own = tasks_in(&t->demand[0], &part, p.n_resources);
            assert_true(tasks[i] >= fmin(own, wanted(t)) * (1 - EPSILON));
        }
        hth_fair_problem_fini(&p);
    }
}

// With another's share, by weight, nobody could do more.
static void test_envy(void **state)
{
    for (uint64_t seed = 1; seed <= PROBLEMS; seed++) {
        hth_fair_problem p = fair_random_problem(seed, true);
        double tasks[16];
        assert_ok(hth_fair_divide(&p, tasks));
        for (int i = 0; i < p.n_tenants; i++) {
            for (int j = 0; j < p.n_tenants; j++) {
                const hth_fair_tenant *t = &p.tenants[i], *u = &p.tenants[j];
                hth_fair_amounts has =
                    times(&u->demand[0], tasks[j] * t->weight / u->weight, p.n_resources);
                double could = fmin(tasks_in(&t->demand[0], &has, p.n_resources), wanted(t));
                assert_true(tasks[i] >= could * (1 - EPSILON));
            }
        }
        hth_fair_problem_fini(&p);
    }
}

// Everything fits, and who has less than it wants needs something of which nothing is left.
static void test_pareto(void **state)
{
    for (uint64_t seed = 1; seed <= PROBLEMS; seed++) {
        hth_fair_problem p = fair_random_problem(seed, true);
        hth_fair_amounts used = {{0}};
        double tasks[16];
        assert_ok(hth_fair_divide(&p, tasks));
        for (int i = 0; i < p.n_tenants; i++) {
            for (int r = 0; r < p.n_resources; r++) {
                used.of[r] += tasks[i] * p.tenants[i].demand[0].of[r];
            }
        }
        for (int r = 0; r < p.n_resources; r++) {
            assert_true(used.of[r] <= p.capacity.of[r] * (1 + EPSILON));
        }
        for (int i = 0; i < p.n_tenants; i++) {
            bool stopped = tasks[i] >= wanted(&p.tenants[i]) * (1 - EPSILON);
            for (int r = 0; r < p.n_resources; r++) {
                stopped = stopped || (p.tenants[i].demand[0].of[r] > 0 &&
                                      used.of[r] >= p.capacity.of[r] * (1 - EPSILON));
            }
            assert_true(stopped);
        }
        hth_fair_problem_fini(&p);
    }
}

// Each tenant in turn claims ten other demands; what it gets then holds no more of its true tasks.
static void test_lies(void **state)
{
    int differed = 0;
    for (uint64_t seed = 1; seed <= PROBLEMS; seed++) {
        hth_fair_problem p = fair_random_problem(seed, false);
        uint64_t s = seed + 12345;
        double honest[16], lying[16];
        assert_ok(hth_fair_divide(&p, honest));
        for (int n = 0; n < 10 * p.n_tenants; n++) {
            hth_fair_tenant *t = &p.tenants[n % p.n_tenants];
            hth_fair_amounts truth = t->demand[0], lie = truth;
            for (int r = 0; r < p.n_resources && n % 3 > 0; r++) {
                lie.of[r] *= fair_between(&s, 0.3, 2);
            }
            t->demand[0] = n % 3 == 0 ? fair_random_demand(&s, &p.capacity, p.n_resources) : lie;
            assert_ok(hth_fair_divide(&p, lying));
            hth_fair_amounts has = times(&t->demand[0], lying[n % p.n_tenants], p.n_resources);
            double gets = tasks_in(&truth, &has, p.n_resources);
            assert_true(gets <= honest[n % p.n_tenants] * (1 + EPSILON));
            differed += gets < honest[n % p.n_tenants] * (1 - EPSILON);
            t->demand[0] = truth;
        }
        hth_fair_problem_fini(&p);
    }
    assert_true(differed > PROBLEMS);
}

// Many tenants of great weight have enough at once, one of little weight goes on: next to what they
// took, what it takes is smaller than the rounding.
static void test_light_among_heavy(void **state)
{
    enum { N = 20000 };
    static hth_fair_tenant tenants[N + 1];
    static hth_fair_amounts demand[N];
    static double tasks[N + 1];
    static const double each[] = {1.0 / (1 << 20), 1e-6}; // sums of the first have no rounding
    for (size_t k = 0; k < sizeof each / sizeof *each; k++) {
        hth_fair_amounts light = {{0, 1}};
        double used = 0;
        for (int i = 0; i < N; i++) {
            demand[i] = (hth_fair_amounts){{each[k], each[k]}};
            tenants[i] = (hth_fair_tenant){"heavy", HTH_FAIR_WEIGHT_MAX, 1, &demand[i], 1};
            used += each[k];
        }
        tenants[N] = (hth_fair_tenant){"light", HTH_FAIR_WEIGHT_MIN, HTH_FAIR_UNLIMITED, &light, 1};
        hth_fair_problem p = {2, N + 1, {"a", "b"}, {{1, 1}}, tenants, {1, 1}};
        assert_ok(hth_fair_divide(&p, tasks));
        assert_true(fabs(tasks[0] - 1) < EPSILON && fabs(tasks[N - 1] - 1) < EPSILON);
        assert_true(fabs(tasks[N] - (1 - used)) < EPSILON);
    }
}

static void test_memory(void **state)
{
    hth_fair_problem p = fair_random_problem(3, true);
    double tasks[16];
    FAULT_LOOP(hth_fair_divide(&p, tasks));
    hth_fair_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paper),  cmocka_unit_test(test_sharing_incentive),
        cmocka_unit_test(test_envy),   cmocka_unit_test(test_pareto),
        cmocka_unit_test(test_lies),   cmocka_unit_test(test_light_among_heavy),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
