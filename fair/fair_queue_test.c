// SPDX-License-Identifier: Apache-2.0
// The rules of the queue one by one; fair_queue_sim_test.c has them at work.
#include "fair/fair_queue.h"

#include "fair/fixture.h"

#define S 1000000000u

// Two resources of 100; a job needs as much of the first as its demands say.
static hth_fair_queue *queue_of(uint64_t patience_ns, int tenants)
{
    hth_fair_queue_options o = {.n_resources = 2,
                                .capacity = {{100, 100}},
                                .patience_ns = patience_ns,
                                .priority_ns = 60ull * S};
    hth_fair_queue *q;
    int t;
    assert_ok(hth_fair_queue_open(&o, &q));
    for (int i = 0; i < tenants; i++) {
        assert_ok(hth_fair_queue_tenant(q, 1, &t));
        assert_int_equal(t, i);
    }
    return q;
}

typedef struct elastic {
    hth_fair_job job;
    hth_fair_amounts demand[3];
    uint64_t run_ns[3];
} elastic;

// Up to three demands (0 ends them), each with the time predicted for it; s 0: none is known.
static void job_of(elastic *e, int tenant, double a, double b, double c, uint64_t s)
{
    const double need[] = {a, b, c};
    *e = (elastic){.job = {.tenant = tenant, .submitted_ns = S, .demand = e->demand}};
    for (int k = 0; k < 3 && need[k] > 0; k++) {
        e->demand[k].of[0] = need[k];
        e->run_ns[k] = s * S * (uint64_t)(k + 1);
        e->job.n_demands++;
    }
    e->job.run_ns = s > 0 ? e->run_ns : NULL;
}

static void add(hth_fair_queue *queue, elastic *e, int tenant, double need, uint64_t s)
{
    job_of(e, tenant, need, 0, 0, s);
    assert_ok(hth_fair_queue_add(queue, &e->job));
}

static hth_fair_decision next(hth_fair_queue *queue, uint64_t s)
{
    hth_fair_decision d, again;
    hth_fair_queue_next(queue, s * S, &d);
    hth_fair_queue_next(queue, s * S, &again);
    assert_memory_equal(&d, &again, sizeof d);
    return d;
}

// The next job is this one, with this demand, and starts.
static void starts(hth_fair_queue *queue, uint64_t s, elastic *e, int with, bool passes)
{
    hth_fair_decision d = next(queue, s);
    assert_int_equal(d.action, HTH_FAIR_START);
    assert_ptr_equal(d.job, &e->job);
    assert_int_equal(d.with, with);
    assert_int_equal(d.passes, passes);
    hth_fair_queue_start(queue, d.job, d.with, s * S);
    assert_int_equal(e->job.state, HTH_FAIR_RUNS);
}

static void waits(hth_fair_queue *queue, uint64_t s)
{
    assert_int_equal(next(queue, s).action, HTH_FAIR_NOTHING);
}

// The least dominant share by weight is next; among equal ones who waits longest.
static void test_shares(void **state)
{
    hth_fair_queue *q = queue_of(HTH_FAIR_NEVER, 2);
    elastic a[4], b[4];
    assert_ok(hth_fair_queue_weigh(q, 1, 2));
    for (int i = 0; i < 4; i++) {
        add(q, &b[i], 1, 12, 0);
        add(q, &a[i], 0, 8, 0);
    }
    starts(q, 1, &b[0], 0, false); // nobody has anything; B came first
    starts(q, 1, &a[0], 0, false); // 0 and 6
    starts(q, 1, &b[1], 0, false); // 8 and 6
    starts(q, 1, &a[1], 0, false); // 8 and 12
    starts(q, 1, &b[2], 0, false); // 16 and 12
    starts(q, 1, &a[2], 0, false); // 16 and 18
    starts(q, 1, &b[3], 0, false); // 24 and 18
    starts(q, 1, &a[3], 0, false);
    waits(q, 1);
    hth_fair_standing s = hth_fair_queue_standing(q, 1);
    assert_true(s.share == 0.48 && s.dominant == 0 && s.running == 4);
    assert_true(s.entitlement * 3 == 2);
    hth_fair_queue_close(q);
}

// A level of priority is a minute of waiting, among one's own jobs.
static void test_priority(void **state)
{
    hth_fair_queue *q = queue_of(HTH_FAIR_NEVER, 2);
    elastic low, high, late, other;
    job_of(&low, 0, 1, 0, 0, 0);
    job_of(&high, 0, 1, 0, 0, 0);
    job_of(&late, 0, 1, 0, 0, 0);
    low.job.submitted_ns = 1000ull * S;
    high.job.submitted_ns = 1110ull * S;
    late.job.submitted_ns = 1130ull * S;
    high.job.priority = late.job.priority = 2;
    assert_ok(hth_fair_queue_add(q, &low.job));
    assert_ok(hth_fair_queue_add(q, &high.job));
    assert_ok(hth_fair_queue_add(q, &late.job));
    starts(q, 1200, &high, 0, false);
    job_of(&other, 1, 1, 0, 0, 0);
    other.job.submitted_ns = 1190ull * S;
    other.job.priority = -1000;
    assert_ok(hth_fair_queue_add(q, &other.job));
    starts(q, 1200, &other, 0, false); // its tenant has nothing
    starts(q, 1200, &low, 0, false);
    starts(q, 1200, &late, 0, false);
    hth_fair_queue_close(q);
}

// Of a tenant's jobs the shorter ones pass the longer, but for those that came earlier by more than
// the difference.
static void test_shortest(void **state)
{
    hth_fair_queue *q = queue_of(HTH_FAIR_NEVER, 1);
    elastic runs, early, late, quick, unknown;
    add(q, &runs, 0, 90, 1000);
    starts(q, 1, &runs, 0, false);
    job_of(&early, 0, 50, 0, 0, 100);
    job_of(&late, 0, 50, 0, 0, 95);
    job_of(&quick, 0, 50, 0, 0, 10);
    job_of(&unknown, 0, 50, 0, 0, 0);
    late.job.submitted_ns = 10ull * S;
    quick.job.submitted_ns = 20ull * S;
    unknown.job.submitted_ns = 31ull * S;
    assert_ok(hth_fair_queue_add(q, &early.job)); // 101
    assert_ok(hth_fair_queue_add(q, &late.job));  // 105
    assert_ok(hth_fair_queue_add(q, &quick.job)); // 30
    assert_ok(hth_fair_queue_add(q, &unknown.job));
    waits(q, 40);
    hth_fair_queue_remove(q, &runs.job);
    starts(q, 40, &quick, 0, false);
    starts(q, 40, &unknown, 0, false);
    hth_fair_queue_remove(q, &quick.job);
    starts(q, 41, &early, 0, false);
    hth_fair_queue_remove(q, &unknown.job);
    starts(q, 42, &late, 0, false);
    hth_fair_queue_close(q);
}

// A job is paused for one of its own tenant's that takes less than half of what it has left, when
// it has run for the patience; of several the one with the most left; and only one that would be
// after it in the queue.
static void test_longer(void **state)
{
    hth_fair_queue *q = queue_of(2ull * S, 1);
    elastic longest, longer, quick, half, late;
    hth_fair_decision d;
    add(q, &longest, 0, 40, 1000);
    starts(q, 1, &longest, 0, false);
    add(q, &longer, 0, 45, 500);
    starts(q, 1, &longer, 0, false);
    add(q, &half, 0, 40, 600);
    waits(q, 4);
    add(q, &quick, 0, 40, 10);
    d = next(q, 2);
    assert_int_equal(d.action, HTH_FAIR_NOTHING);
    assert_true(d.until_ns == 3ull * S);
    d = next(q, 3);
    assert_int_equal(d.action, HTH_FAIR_PREEMPT);
    assert_ptr_equal(d.job, &quick.job);
    assert_int_equal(d.n_victims, 1);
    assert_ptr_equal(d.victim[0], &longest.job);
    hth_fair_queue_remove(q, &quick.job);
    job_of(&late, 0, 57, 0, 0, 10); // 40 would not be enough, 45 are
    late.job.submitted_ns = 50ull * S;
    assert_ok(hth_fair_queue_add(q, &late.job));
    d = next(q, 400); // the one with 101 s left: 102 is after 60
    assert_int_equal(d.action, HTH_FAIR_PREEMPT);
    assert_ptr_equal(d.victim[0], &longer.job);
    hth_fair_queue_ends(q, &longer.job, 419ull * S); // not twice as long as it takes
    waits(q, 400);
    hth_fair_queue_ends(q, &longer.job, HTH_FAIR_NEVER);
    waits(q, 400);
    hth_fair_queue_remove(q, &late.job);
    hth_fair_queue_ends(q, &longer.job, 501ull * S);
    late.job.submitted_ns = 990ull * S; // it came when the other one had waited for so long
    assert_ok(hth_fair_queue_add(q, &late.job));
    hth_fair_queue_ends(q, &longer.job, 1100ull * S); // 1 + 100 s left: ahead of 990 + 10
    waits(q, 1000);
    hth_fair_queue_close(q);
}

// Where jobs share the device, what counts is the time of its own that a job has left.
static void test_longer_by_itself(void **state)
{
    hth_fair_queue *q = queue_of(2ull * S, 1);
    elastic longer, quick;
    hth_fair_decision d;
    add(q, &longer, 0, 60, 1000);
    starts(q, 1, &longer, 0, false);
    add(q, &quick, 0, 60, 10);
    longer.job.left_ns = 20ull * S;
    waits(q, 5);
    longer.job.left_ns = 21ull * S;
    d = next(q, 5);
    assert_int_equal(d.action, HTH_FAIR_PREEMPT);
    assert_ptr_equal(d.victim[0], &longer.job);
    hth_fair_queue_close(q);
}

// With slices a job is no slower than it could be only to take time from its tenant's others that
// end sooner; those of less priority are passed, and where other tenants wait it has what there is.
static void test_no_slower_beside_shorter(void **state)
{
    hth_fair_queue_options o = {
        .n_resources = 1, .capacity = {{100}}, .patience_ns = HTH_FAIR_NEVER, .sliced = true};
    hth_fair_queue *q;
    elastic runs, slower, other;
    int tenant;
    assert_ok(hth_fair_queue_open(&o, &q));
    assert_ok(hth_fair_queue_tenant(q, 1, &tenant));
    assert_ok(hth_fair_queue_tenant(q, 1, &tenant));
    add(q, &runs, 0, 60, 30);
    starts(q, 1, &runs, 0, false);
    job_of(&slower, 0, 60, 30, 0, 14);
    slower.run_ns[1] = slower.run_ns[0] * 104 / 100; // as good as the best
    assert_ok(hth_fair_queue_add(q, &slower.job));
    starts(q, 1, &slower, 1, false);
    hth_fair_queue_pause(q, &slower.job);
    slower.run_ns[1] = 15ull * S;
    waits(q, 1);
    runs.job.left_ns = 31ull * S; // more than twice as much
    starts(q, 1, &slower, 1, false);
    hth_fair_queue_remove(q, &slower.job);
    runs.job.left_ns = 30ull * S;
    slower.job.priority = 1;
    assert_ok(hth_fair_queue_add(q, &slower.job));
    starts(q, 1, &slower, 1, false);
    hth_fair_queue_remove(q, &slower.job);
    slower.job.priority = 0;
    assert_ok(hth_fair_queue_add(q, &slower.job));
    waits(q, 1);
    add(q, &other, 1, 90, 15);
    starts(q, 1, &slower, 1, false);
    hth_fair_queue_close(q);
}

// Alone a job has its best demand, beside others that wait one within the entitlement, else the
// last that fits.
static void test_point(void **state)
{
    hth_fair_queue *q = queue_of(HTH_FAIR_NEVER, 3);
    elastic a, b, c, d;
    job_of(&a, 0, 70, 50, 20, 10);
    assert_ok(hth_fair_queue_add(q, &a.job));
    starts(q, 1, &a, 0, false);
    hth_fair_queue_remove(q, &a.job);
    assert_int_equal(a.job.state, HTH_FAIR_OUT);
    job_of(&b, 1, 70, 50, 20, 10);
    job_of(&c, 2, 70, 60, 20, 10);
    assert_ok(hth_fair_queue_add(q, &a.job));
    assert_ok(hth_fair_queue_add(q, &b.job));
    starts(q, 1, &b, 1, false); // half is b's, whose tenant was not served yet
    starts(q, 1, &a, 1, false); // nobody else waits
    assert_ok(hth_fair_queue_add(q, &c.job));
    waits(q, 1);
    assert_ptr_equal(hth_fair_queue_reserved(q), &c.job);
    assert_true(hth_fair_queue_predict(q, &c.job, S) == 21ull * S); // a and b end then
    hth_fair_queue_remove(q, &b.job);
    starts(q, 2, &c, 2, false);
    job_of(&d, 0, 70, 40, 0, 10);
    assert_ok(hth_fair_queue_add(q, &d.job));
    waits(q, 2);
    hth_fair_queue_remove(q, &d.job);
    hth_fair_queue_remove(q, &a.job);
    hth_fair_queue_holds(q, &c.job, &c.job.demand[0]); // it was given what is spare
    assert_true(hth_fair_queue_standing(q, 2).share == 0.7);
    hth_fair_queue_close(q);
}

// Small jobs pass a large one that waits, if they end before it starts or it does not need what
// they take; where an end is not known nobody passes.
static void test_backfill(void **state)
{
    hth_fair_queue *q = queue_of(HTH_FAIR_NEVER, 2);
    elastic runs, large, slow, quick, beside;
    add(q, &runs, 0, 60, 100);
    starts(q, 1, &runs, 0, false);
    add(q, &large, 1, 70, 10);
    waits(q, 1);
    assert_true(hth_fair_queue_predict(q, &large.job, S) == 101ull * S);
    add(q, &slow, 1, 35, 101);
    waits(q, 1);
    add(q, &quick, 1, 35, 100); // until 101 s
    starts(q, 1, &quick, 0, true);
    assert_true(hth_fair_queue_predict(q, &large.job, S) == 101ull * S);
    add(q, &beside, 0, 5, 100000); // 30 are left beside the large one
    starts(q, 1, &beside, 0, true);
    assert_true(hth_fair_queue_predict(q, &large.job, S) == 101ull * S);
    hth_fair_queue_remove(q, &runs.job);
    waits(q, 50);
    hth_fair_queue_remove(q, &quick.job);
    starts(q, 60, &large, 0, false);
    hth_fair_queue_remove(q, &large.job);
    starts(q, 60, &slow, 0, false);
    hth_fair_queue_close(q);

    q = queue_of(HTH_FAIR_NEVER, 2);
    add(q, &runs, 0, 60, 0); // nobody knows for how long
    starts(q, 1, &runs, 0, false);
    add(q, &large, 1, 70, 10);
    add(q, &quick, 0, 1, 1);
    waits(q, 1);
    assert_true(hth_fair_queue_predict(q, &large.job, S) == HTH_FAIR_NEVER);
    const hth_fair_amounts less = {{65, 100}};
    hth_fair_queue_capacity(q, &less); // too little for the large one at all
    starts(q, 1, &quick, 0, true);
    hth_fair_queue_remove(q, &large.job);
    hth_fair_queue_close(q);
}

// Two whole-device jobs take turns of a minute; before that nobody is paused.
static void test_turns(void **state)
{
    hth_fair_queue *q = queue_of(60ull * S, 2);
    elastic job[2];
    hth_fair_decision d;
    add(q, &job[0], 0, 100, 1000);
    add(q, &job[1], 1, 100, 1000);
    starts(q, 1, &job[0], 0, false);
    for (uint64_t turn = 0; turn < 10; turn++) {
        uint64_t from = 1 + turn * 60;
        d = next(q, from);
        assert_int_equal(d.action, HTH_FAIR_NOTHING);
        assert_true(d.until_ns == (from + 60) * S);
        waits(q, from + 59);
        d = next(q, from + 60);
        assert_int_equal(d.action, HTH_FAIR_PREEMPT);
        assert_ptr_equal(d.job, &job[(turn + 1) % 2].job);
        assert_int_equal(d.n_victims, 1);
        assert_ptr_equal(d.victim[0], &job[turn % 2].job);
        hth_fair_queue_pause(q, d.victim[0]);
        hth_fair_queue_start(q, d.job, d.with, (from + 60) * S);
    }
    hth_fair_queue_close(q);
}

// The tenant with the most over its entitlement loses those of its jobs that started last, and no
// more than are needed; one that would fall behind the waiting one loses none.
static void test_victims(void **state)
{
    hth_fair_queue *q = queue_of(60ull * S, 4);
    elastic a[6], b[3], c, e;
    hth_fair_decision d;
    for (int i = 0; i < 6; i++) {
        add(q, &a[i], 0, 10, 1000);
        hth_fair_queue_start(q, &a[i].job, 0, (1 + (uint64_t)i) * S);
    }
    for (int i = 0; i < 3; i++) {
        add(q, &b[i], 1, 13, 1000);
        hth_fair_queue_start(q, &b[i].job, 0, S);
    }
    add(q, &c, 2, 15, 1000);
    waits(q, 10);
    d = next(q, 70);
    assert_int_equal(d.action, HTH_FAIR_PREEMPT);
    assert_int_equal(d.n_victims, 2); // 1 is free
    assert_ptr_equal(d.victim[0], &a[5].job);
    assert_ptr_equal(d.victim[1], &a[4].job);
    hth_fair_queue_pause(q, d.victim[0]);
    hth_fair_queue_pause(q, d.victim[1]);
    hth_fair_queue_start(q, d.job, d.with, 70ull * S);
    // 40, 39 and 15, and each is entitled to 33.
    hth_fair_queue_remove(q, &a[4].job);
    hth_fair_queue_remove(q, &a[5].job);
    add(q, &e, 2, 30, 1000);
    waits(q, 71);
    waits(q, 140); // two of a's would have to go, and it would be behind then
    hth_fair_queue_remove(q, &e.job);
    add(q, &e, 2, 14, 1000);
    waits(q, 141);
    d = next(q, 201);
    assert_int_equal(d.action, HTH_FAIR_PREEMPT);
    assert_int_equal(d.n_victims, 1);
    assert_ptr_equal(d.victim[0], &a[3].job);
    hth_fair_queue_close(q);
}

// A tenant that has nothing is helped, however many jobs of another one's have to make room for it:
// all that are over the other's entitlement, or, where time is sliced, any.
static void test_many_victims(void **state)
{
    for (int sliced = 0; sliced < 2; sliced++) {
        hth_fair_queue_options o = {
            .n_resources = 1, .capacity = {{100}}, .patience_ns = 2ull * S, .sliced = sliced == 1};
        hth_fair_queue *q;
        elastic a[50], b;
        int t, need = sliced ? 80 : 50, victims = need / 2 - 1; // 2 are free
        assert_ok(hth_fair_queue_open(&o, &q));
        assert_ok(hth_fair_queue_tenant(q, 1, &t));
        assert_ok(hth_fair_queue_tenant(q, 1, &t));
        for (int i = 0; i < 50; i++) {
            add(q, &a[i], 0, 2, 1000);
            starts(q, 1, &a[i], 0, false);
        }
        hth_fair_queue_remove(q, &a[0].job);
        add(q, &b, 1, need, 10);
        waits(q, 3);
        hth_fair_decision d = next(q, 5);
        assert_int_equal(d.action, HTH_FAIR_PREEMPT);
        assert_ptr_equal(d.job, &b.job);
        assert_int_equal(d.n_victims, victims);
        for (int i = 0; i < d.n_victims; i++) {
            assert_int_equal(d.victim[i]->tenant, 0);
            hth_fair_queue_pause(q, d.victim[i]);
        }
        hth_fair_queue_start(q, d.job, d.with, 5ull * S);
        for (int i = 1; i < 50; i++) { // those that started first go on
            bool runs = i < 50 - victims;
            assert_int_equal(a[i].job.state, runs ? HTH_FAIR_RUNS : HTH_FAIR_WAITS);
        }
        hth_fair_queue_close(q);
    }
}

// Nobody gets more than the largest hole, however much is free.
static void test_hole(void **state)
{
    hth_fair_queue *q = queue_of(HTH_FAIR_NEVER, 1);
    const hth_fair_amounts hole = {{40, 100}};
    elastic e;
    job_of(&e, 0, 70, 50, 30, 1);
    assert_ok(hth_fair_queue_add(q, &e.job));
    hth_fair_queue_hole(q, &hole);
    assert_int_equal(next(q, 1).with, 2);
    const hth_fair_amounts less = {
        {50 * (1 - 1e-12), 100}}; // not for 50, however little is missing
    hth_fair_queue_hole(q, &less);
    assert_int_equal(next(q, 1).with, 2);
    hth_fair_queue_hole(q, NULL);
    starts(q, 1, &e, 0, false);
    hth_fair_queue_close(q);
}

static void test_bad(void **state)
{
    hth_fair_queue *q = queue_of(HTH_FAIR_NEVER, 1);
    hth_fair_decision d;
    elastic e;
    int t;
    assert_err(hth_fair_queue_tenant(q, 0, &t), HTH_EINVAL, "weight is 0; it must be 1e-06");
    assert_err(hth_fair_queue_weigh(q, 0, -3), HTH_EINVAL, "weight is -3;");
    job_of(&e, 0, 102, 101, 0, 0);
    assert_err(hth_fair_queue_add(q, &e.job), HTH_ETOOBIG,
               "needs 101 of resource 0; the capacity is 100");
    job_of(&e, 0, 1, 0, 0, 0);
    e.demand[0].of[1] = -1;
    assert_err(hth_fair_queue_add(q, &e.job), HTH_EINVAL, "needs -1 of resource 1");
    hth_fair_queue_remove(q, &e.job); // never was in it
    hth_fair_queue_next(q, S, &d);
    assert_int_equal(d.action, HTH_FAIR_NOTHING);
    hth_fair_queue_close(q);
    hth_fair_queue_close(NULL);
}

static hth_err queue_once(void)
{
    hth_fair_queue_options o = {.n_resources = 1, .capacity = {{9}}, .patience_ns = 1};
    hth_fair_amounts need = {{6}};
    hth_fair_job job[] = {{.tenant = 0, .demand = &need, .n_demands = 1},
                          {.tenant = 1, .demand = &need, .n_demands = 1}};
    hth_fair_queue *q;
    int a = 0, b = 1;
    HTH_TRY(hth_fair_queue_open(&o, &q));
    hth_err err;
    HTH_GOTO(hth_fair_queue_tenant(q, 1, &a), done);
    HTH_GOTO(hth_fair_queue_tenant(q, 1, &b), done);
    HTH_GOTO(hth_fair_queue_add(q, &job[0]), done);
    HTH_GOTO(hth_fair_queue_add(q, &job[1]), done);
    hth_fair_queue_start(q, &job[0], 0, 1); // from here on nothing can fail
    hth_fair_queue_pause(q, &job[0]);
done:
    hth_fair_queue_close(q);
    return err;
}

static void test_memory(void **state)
{
    FAULT_LOOP(queue_once());
}

// Where time is sliced, who runs has its part of it: a tenant is paused for one that has nothing,
// and for no more, whatever the memory.
static void test_sliced(void **state)
{
    hth_fair_queue_options o = {.n_resources = 2,
                                .capacity = {{100, 100}},
                                .patience_ns = 2ull * S,
                                .priority_ns = 60ull * S,
                                .sliced = true};
    hth_fair_queue *q;
    elastic big, small, more, third;
    int t;
    assert_ok(hth_fair_queue_open(&o, &q));
    for (int i = 0; i < 3; i++) {
        assert_ok(hth_fair_queue_tenant(q, 1, &t));
    }
    add(q, &big, 0, 90, 100);
    starts(q, 1, &big, 0, false);
    add(q, &small, 1, 10, 100);
    starts(q, 1, &small, 0, false);
    add(q, &more, 1, 20, 100); // has time; below its part of the memory
    for (uint64_t s = 1; s < 50; s++) {
        waits(q, s);
    }
    assert_true(hth_fair_queue_standing(q, 1).under_since_ns == 0);
    add(q, &third, 2, 10, 100);
    waits(q, 50);
    assert_true(hth_fair_queue_standing(q, 2).under_since_ns == 50ull * S);
    waits(q, 51);
    hth_fair_decision d = next(q, 52);
    assert_int_equal(d.action, HTH_FAIR_PREEMPT);
    assert_ptr_equal(d.job, &third.job);
    assert_int_equal(d.n_victims, 1);
    assert_ptr_equal(d.victim[0], &big.job);
    big.job.least_ns = 60ull * S; // it costs more to pause
    d = next(q, 52);
    assert_int_equal(d.action, HTH_FAIR_PREEMPT);
    assert_ptr_equal(d.victim[0], &small.job);
    small.job.least_ns = 60ull * S;
    d = next(q, 52);
    assert_int_equal(d.action, HTH_FAIR_NOTHING);
    assert_true(d.until_ns == 61ull * S);
    hth_fair_queue_close(q);
}

// What a job really holds counts, and memory that lies in pieces is nobody's fault.
static void test_holds(void **state)
{
    hth_fair_queue *q = queue_of(2ull * S, 2);
    hth_fair_amounts less = {{30, 0}}, hole = {{20, 100}};
    elastic a, b;
    add(q, &a, 0, 80, 100);
    starts(q, 1, &a, 0, false);
    hth_fair_queue_holds(q, &a.job, &less);
    assert_true(hth_fair_queue_standing(q, 0).share == 0.3);
    add(q, &b, 1, 40, 100);
    hth_fair_queue_hole(q, &hole);
    for (uint64_t s = 1; s < 9; s++) {
        waits(q, s);
    }
    hth_fair_queue_hole(q, NULL);
    starts(q, 9, &b, 0, false);
    hth_fair_queue_ends(q, &a.job, 20ull * S);
    hth_fair_queue_remove(q, &a.job);
    assert_true(hth_fair_queue_standing(q, 0).share == 0);
    hth_fair_queue_close(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_shortest),
        cmocka_unit_test(test_longer),
        cmocka_unit_test(test_longer_by_itself),
        cmocka_unit_test(test_no_slower_beside_shorter),
        cmocka_unit_test(test_point),
        cmocka_unit_test(test_backfill),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_victims),
        cmocka_unit_test(test_many_victims),
        cmocka_unit_test(test_hole),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_sliced),
        cmocka_unit_test(test_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
