// SPDX-License-Identifier: Apache-2.0
// The queue at work on a simulated clock: an hour of random jobs, of which none starves; and what
// backfill promises. After every step what is held and what is free add up.
#include "fair/fair_queue.h"

#include "fair/fixture.h"

#include <math.h>

#define S       1000000000ull
#define TENANTS 4
#define JOBS    2000

typedef struct sim_job {
    hth_fair_job job;
    hth_fair_amounts demand[4];
    uint64_t whole_ns[4], run_ns[4]; // from the beginning, and what is left
    uint64_t arrives_ns, first_ns, ended_ns, really_ns;
    double left; // of its work
    int pauses;
} sim_job;

typedef struct sim {
    hth_fair_queue *q;
    sim_job job[JOBS];
    int n, arrived, ended;
    uint64_t now_ns, until_ns, seed;
    uint64_t hungry_ns[TENANTS], hungriest_ns; // since when it waits and has nothing; the longest
    uint64_t passed, preempted;
    bool exact; // jobs take what was predicted
    // The job that keeps its turn, and when it was predicted to start.
    const hth_fair_job *reserved;
    uint64_t promised_ns;
} sim;

static void sim_check(const sim *s)
{
    hth_fair_amounts used[TENANTS] = {{{0}}}, sum = {{0}};
    for (int i = 0; i < s->arrived; i++) {
        const hth_fair_job *j = &s->job[i].job;
        for (int r = 0; r < 2 && j->state == HTH_FAIR_RUNS; r++) {
            used[j->tenant].of[r] += j->demand[j->with].of[r];
            sum.of[r] += j->demand[j->with].of[r];
        }
    }
    assert_true(sum.of[0] <= 100 + 1e-6 && sum.of[1] <= 100 + 1e-6);
    for (int t = 0; t < TENANTS; t++) {
        hth_fair_standing x = hth_fair_queue_standing(s->q, t);
        assert_true(fabs(x.used.of[0] - used[t].of[0]) < 1e-6);
        assert_true(fabs(x.used.of[1] - used[t].of[1]) < 1e-6);
    }
}

// How much of its work a job has done since it started.
static void sim_progress(const sim *s, sim_job *job)
{
    double part = (double)(s->now_ns - job->job.began_ns) / (double)job->really_ns;
    job->left -= job->left * (part < 1 ? part : 1);
    for (int k = 0; k < job->job.n_demands; k++) {
        job->run_ns[k] = (uint64_t)((double)job->whole_ns[k] * job->left);
    }
}

static void sim_start(sim *s, hth_fair_decision *decision)
{
    sim_job *j = (sim_job *)decision->job;
    for (int i = 0; i < decision->n_victims; i++) {
        sim_job *v = (sim_job *)decision->victim[i];
        sim_progress(s, v);
        v->pauses++;
        hth_fair_queue_pause(s->q, decision->victim[i]);
    }
    s->preempted += (uint64_t)decision->n_victims;
    s->passed += decision->passes;
    if (!decision->passes && s->reserved != NULL && s->reserved->tenant == decision->job->tenant) {
        s->reserved = NULL;
    }
    hth_fair_queue_start(s->q, decision->job, decision->with, s->now_ns);
    double off = s->exact ? 1 : fair_between(&s->seed, 0.5, 2);
    j->really_ns = (uint64_t)((double)j->run_ns[decision->with] * off);
    j->first_ns = j->first_ns > 0 ? j->first_ns : s->now_ns;
}

// sim_promise: where jobs take what was predicted, and nobody is paused, the predicted start of the
// job that keeps its turn never moves back, but for one of its own tenant's that is ahead of it.
static void sim_promise(sim *s)
{
    const hth_fair_job *r = hth_fair_queue_reserved(s->q);
    if (s->exact && r != NULL) {
        uint64_t at_ns = hth_fair_queue_predict(s->q, r, s->now_ns);
        assert_true(r != s->reserved || at_ns <= s->promised_ns);
        s->promised_ns = at_ns;
    } else if (s->exact && s->reserved != NULL && s->reserved->state == HTH_FAIR_RUNS) {
        assert_true(s->reserved->began_ns <= s->promised_ns);
    }
    s->reserved = r;
}

static void sim_decide(sim *s)
{
    hth_fair_decision d;
    for (hth_fair_queue_next(s->q, s->now_ns, &d); d.action != HTH_FAIR_NOTHING;
         hth_fair_queue_next(s->q, s->now_ns, &d)) {
        sim_start(s, &d);
        sim_promise(s);
    }
    sim_promise(s);
    s->until_ns = d.until_ns;
    for (int t = 0; t < TENANTS; t++) {
        hth_fair_standing x = hth_fair_queue_standing(s->q, t);
        bool hungry = x.waiting > 0 && x.running == 0;
        uint64_t since_ns = s->hungry_ns[t] > 0 ? s->hungry_ns[t] : s->now_ns;
        s->hungry_ns[t] = hungry ? since_ns : 0;
        s->hungriest_ns = hungry && s->now_ns - since_ns > s->hungriest_ns ? s->now_ns - since_ns
                                                                           : s->hungriest_ns;
    }
}

// sim_step goes on to what happens next: a job ends, one arrives, or the queue wants to be asked.
static bool sim_step(sim *s)
{
    uint64_t at_ns = s->until_ns;
    sim_job *ends = NULL;
    for (int i = 0; i < s->arrived; i++) {
        sim_job *j = &s->job[i];
        if (j->job.state == HTH_FAIR_RUNS && j->job.began_ns + j->really_ns <= at_ns) {
            at_ns = j->job.began_ns + j->really_ns;
            ends = j;
        }
    }
    bool arrives = s->arrived < s->n && s->job[s->arrived].arrives_ns < at_ns;
    s->now_ns = arrives ? s->job[s->arrived].arrives_ns : at_ns;
    if (arrives) {
        assert_ok(hth_fair_queue_add(s->q, &s->job[s->arrived++].job));
    } else if (ends != NULL) {
        hth_fair_queue_remove(s->q, &ends->job);
        ends->ended_ns = s->now_ns;
        s->ended++;
    }
    sim_decide(s);
    sim_check(s);
    return s->ended < s->n;
}

// A job of 5 to 100 of the first resource and up to 20 of the second, with up to four points: less
// memory, longer. It takes 10 s to 10 minutes.
static void sim_job_of(sim *s, sim_job *job, uint64_t arrives_ns)
{
    double need = fair_below(&s->seed, 8) == 0 ? fair_between(&s->seed, 60, 100)
                                               : fair_between(&s->seed, 5, 40);
    double seconds = 10 * exp(fair_between(&s->seed, 0, 4.09));
    *job = (sim_job){.arrives_ns = arrives_ns, .left = 1};
    job->job = (hth_fair_job){.tenant = (int)fair_below(&s->seed, TENANTS),
                              .priority = (int)fair_below(&s->seed, 3),
                              .submitted_ns = arrives_ns,
                              .demand = job->demand,
                              .run_ns = job->run_ns,
                              .n_demands = 1 + (int)fair_below(&s->seed, 4)};
    for (int k = 0; k < job->job.n_demands; k++) {
        job->demand[k].of[0] = need * (1 - 0.2 * k);
        job->demand[k].of[1] = fair_between(&s->seed, 0, 20);
        job->whole_ns[k] = job->run_ns[k] = (uint64_t)(seconds * (1 + 0.3 * k) * (double)S);
    }
}

static sim *sim_of(uint64_t seed, uint64_t patience_ns, bool exact, bool sliced)
{
    hth_fair_queue_options o = {.n_resources = 2,
                                .capacity = {{100, 100}},
                                .patience_ns = patience_ns,
                                .priority_ns = 60 * S,
                                .sliced = sliced};
    sim *s = hth_calloc(1, sizeof *s);
    int t;
    s->seed = seed * 2654435761u + 88172645463325252u;
    s->exact = exact;
    assert_ok(hth_fair_queue_open(&o, &s->q));
    for (int i = 0; i < TENANTS; i++) {
        assert_ok(hth_fair_queue_tenant(s->q, i + 1, &t));
    }
    uint64_t at_ns = S;
    while (at_ns < 3600 * S && s->n < JOBS) {
        sim_job_of(s, &s->job[s->n++], at_ns);
        at_ns +=
            (uint64_t)(fair_between(&s->seed, 0, 60) * (double)S); // more than there is room for
    }
    return s;
}

static void sim_close(sim *s)
{
    hth_fair_queue_close(s->q);
    hth_free(s);
}

// Every job ends; no tenant that waits has nothing for longer than the longest job may take (ten
// minutes, 1.9 times that at its slowest point, twice what was predicted) and two patiences.
static void test_hour(void **state)
{
    uint64_t preempted = 0, passed = 0;
    for (uint64_t seed = 1; seed <= 20; seed += 1 + TEST_STRIDE / 4) {
        sim *s = sim_of(seed, 30 * S, false, false);
        while (sim_step(s)) {
        }
        assert_true(s->n > 90 && s->ended == s->n);
        assert_true(s->hungriest_ns < 2280 * S + 60 * S);
        preempted += s->preempted;
        passed += s->passed;
        sim_close(s);
    }
    assert_true(preempted > 20 && passed > 20);
}

// With slices nobody has nothing for longer than it takes that each other tenant has its turn: of
// its patience, and of that of the job that is paused.
static void test_slices(void **state)
{
    uint64_t preempted = 0;
    for (uint64_t seed = 1; seed <= 20; seed += 1 + TEST_STRIDE / 4) {
        sim *s = sim_of(seed, 30 * S, false, true);
        while (sim_step(s)) {
        }
        assert_int_equal(s->ended, s->n);
        assert_true(s->hungriest_ns <= 2 * (TENANTS - 1) * 30 * S);
        preempted += s->preempted;
        sim_close(s);
    }
    assert_true(preempted > 20);
}

// Where small jobs of others keep a device full, large ones start all the same: no tenant has
// nothing for longer than the small ones may take and two patiences.
static void test_stream(void **state)
{
    sim *s = sim_of(5, 30 * S, false, false);
    s->n = 0;
    for (int i = 0; i < 1000;
         i++) { // 20 of 100 for a minute each, every six seconds: twice too much
        sim_job_of(s, &s->job[s->n++], (1 + (uint64_t)i * 6) * S);
        s->job[i].job.n_demands = 1;
        s->job[i].job.tenant = i % 50 == 49 ? 3 : i % 3;
        s->job[i].demand[0] = (hth_fair_amounts){{i % 50 == 49 ? 95 : 20, 1}};
        s->job[i].whole_ns[0] = s->job[i].run_ns[0] = 60 * S;
    }
    while (sim_step(s)) {
    }
    assert_true(s->hungriest_ns < 120 * S + 60 * S);
    sim_close(s);
}

// Jobs that pass never delay the one that keeps its turn.
static void test_backfill(void **state)
{
    uint64_t passed = 0;
    for (uint64_t seed = 1; seed <= 40; seed += 1 + TEST_STRIDE / 4) {
        sim *s = sim_of(seed, HTH_FAIR_NEVER, true, false);
        while (sim_step(s)) {
        }
        assert_int_equal(s->preempted, 0);
        passed += s->passed;
        sim_close(s);
    }
    assert_true(passed > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hour), cmocka_unit_test(test_slices),
                                       cmocka_unit_test(test_stream),
                                       cmocka_unit_test(test_backfill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
