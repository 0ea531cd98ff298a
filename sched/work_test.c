// SPDX-License-Identifier: Apache-2.0
// Works are interrupted at their points where others want the device, and nowhere else; what holds
// the device is left alone; what computes on other threads leaves the loop to others.
#include "sched/work.h"
#include "base/clock.h"
#include "base/test.h"
#include "base/thread.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

typedef struct rig {
    hth_work_queue q;
    hth_work w, v;
    int looks, slices, over, steps, met;
    bool wanted;
    // elsewhere
    hth_work_other other;
    pthread_t thread;
    hth_err (*fn)(void *arg);
    void *arg;
    hth_err err;
    atomic_bool busy;
    bool none;
    sem_t go;
} rig;

static void rig_poll(void *ctx)
{
    ((rig *)ctx)->looks++;
}

static bool rig_wanted(void *ctx)
{
    return ((rig *)ctx)->wanted;
}

static void rig_slice(void *ctx, hth_work *work, uint64_t took_ns, uint64_t now_ns, bool over)
{
    rig *r = ctx;
    r->slices++;
    r->over += over;
}

static void rig_init(rig *r)
{
    memset(r, 0, sizeof *r);
    r->q = (hth_work_queue){.poll = rig_poll, .wanted = rig_wanted, .slice = rig_slice, .ctx = r};
    r->w = r->v = (hth_work){.item = {.weight = 1}};
}

static void rig_work(void *arg)
{
    rig *r = arg;
    for (int i = 0; i < 10; i++) {
        r->steps++;
        r->met += hth_work_point(&r->q);
    }
}

static void test_points(void **state)
{
    rig r;
    rig_init(&r);
    hth_work_begin(&r.q, &r.w, rig_work, &r); // nobody else wants the device
    assert_false(hth_work_busy(&r.w));
    assert_int_equal(r.steps, 10);
    assert_int_equal(r.looks, 10);
    assert_int_equal(r.slices, 11);
    assert_int_equal(r.over, 1);
    r.wanted = true;
    hth_work_begin(&r.q, &r.w, rig_work, &r);
    for (int i = 1; i < 10; i++) {
        assert_int_equal(r.steps, 10 + i);
        assert_int_equal(r.met, (i - 1) / 2);
        if (i % 2 == 0) {
            hth_work_ran(&r.q, 5);
        }
        hth_work_go(&r.q, &r.w);
    }
    assert_true(hth_work_busy(&r.w)); // at its last point
    hth_work_go(&r.q, &r.w);
    assert_false(hth_work_busy(&r.w));
    assert_int_equal(r.steps, 20);
    assert_int_equal(r.over, 2);
    r.wanted = false;
    r.w.item.rests = 1; // whoever rests does so at each point
    hth_work_begin(&r.q, &r.w, rig_work, &r);
    assert_int_equal(r.steps, 21);
    r.w.least_ns = UINT64_MAX; // no slice ends before
    hth_work_go(&r.q, &r.w);
    assert_int_equal(r.steps, 30);
    hth_work_fini(&r.q);
}

static void rig_holds(void *arg)
{
    rig *r = arg;
    hth_work_hold(&r->q);
    hth_work_hold(&r->q);
    rig_work(r);
    hth_work_let(&r->q);
    assert_false(hth_work_point(&r->q));
    hth_work_let(&r->q);
    (void)hth_work_point(&r->q);
}

static void test_hold(void **state)
{
    rig r;
    rig_init(&r);
    r.wanted = true;
    hth_work_begin(&r.q, &r.w, rig_holds, &r);
    assert_int_equal(r.steps, 10);
    assert_int_equal(r.looks, 12);
    assert_int_equal(r.slices, 1);
    assert_true(hth_work_busy(&r.w));
    hth_work_go(&r.q, &r.w);
    assert_false(hth_work_busy(&r.w));
    hth_work_fini(&r.q);
}

// On the loop's own stack a point is a look, also with a work in progress.
static void test_loop(void **state)
{
    rig r;
    rig_init(&r);
    r.wanted = true;
    hth_work_begin(&r.q, &r.w, rig_work, &r);
    assert_false(hth_work_point(&r.q));
    assert_int_equal(r.looks, 2);
    assert_int_equal(r.steps, 1);
    hth_work_begin(&r.q, &r.v, rig_work, &r); // a second one
    assert_int_equal(r.steps, 2);
    while (hth_work_busy(&r.w) || hth_work_busy(&r.v)) {
        if (hth_work_busy(&r.w)) {
            hth_work_go(&r.q, &r.w);
        }
        if (hth_work_busy(&r.v)) {
            hth_work_go(&r.q, &r.v);
        }
    }
    assert_int_equal(r.steps, 20);
    assert_int_equal(r.met, 20); // at each point the other had its turn
    assert_false(hth_work_point(NULL));
    hth_work_hold(NULL);
    hth_work_let(NULL);
    hth_work_fini(&r.q);
}

static void rig_thread(void *ctx)
{
    rig *r = ctx;
    sem_wait(&r->go);
    r->err = r->fn(r->arg);
    r->busy = false;
}

static bool rig_start(void *ctx, hth_err (*fn)(void *arg), void *arg)
{
    rig *r = ctx;
    r->fn = fn;
    r->arg = arg;
    r->busy = !r->none;
    return !r->none && hth_thread_start("other", rig_thread, r, &r->thread) == HTH_OK;
}

static bool rig_busy(void *ctx)
{
    return ((rig *)ctx)->busy;
}

static hth_err rig_wait(void *ctx)
{
    rig *r = ctx;
    hth_thread_join(r->thread);
    return r->err == HTH_OK ? HTH_OK : hth_fail(r->err, "elsewhere");
}

static hth_err rig_other(void *arg)
{
    rig *r = arg;
    r->steps += 100;
    return HTH_EIO;
}

static void rig_goes(void *arg)
{
    rig *r = arg;
    hth_err err = hth_work_elsewhere(&r->q, rig_other, r);
    assert_int_equal(err, HTH_EIO);
    r->met = hth_work_others_ns(&r->q) >= 7;
    r->steps++;
}

// A slice of its own ends as the work goes away.
static void rig_computes_and_goes(void *arg)
{
    rig *r = arg;
    uint64_t until_ns = hth_now_ns() + 1000000;
    while (hth_now_ns() < until_ns) {
    }
    uint64_t others_ns = hth_work_others_ns(&r->q);
    assert_int_equal(hth_work_elsewhere(&r->q, rig_other, r), HTH_EIO);
    r->met = (int)(hth_work_others_ns(&r->q) - others_ns);
    r->steps++;
}

static void test_elsewhere(void **state)
{
    rig r;
    rig_init(&r);
    sem_init(&r.go, 0, 0);
    assert_int_equal(hth_work_elsewhere(NULL, rig_other, &r), HTH_EIO);
    assert_int_equal(hth_work_elsewhere(&r.q, rig_other, &r), HTH_EIO); // there is nowhere else
    hth_work_begin(&r.q, &r.w, rig_goes, &r);
    assert_int_equal(r.steps, 301);
    r.other = (hth_work_other){rig_start, rig_busy, rig_wait, &r};
    r.q.other = &r.other;
    r.none = true;
    hth_work_begin(&r.q, &r.w, rig_goes, &r);
    assert_int_equal(r.steps, 402);
    assert_int_equal(r.met, 0);
    r.none = false;
    hth_work_begin(&r.q, &r.w, rig_goes, &r);
    assert_true(hth_work_computes(&r.q, &r.w));
    r.w.least_ns = 0;
    hth_work_ran(&r.q, 7);
    sem_post(&r.go);
    while (hth_work_computes(&r.q, &r.w)) {
        sched_yield();
    }
    assert_true(hth_work_busy(&r.w) && r.w.away);
    assert_int_equal(r.steps, 502);
    hth_work_go(&r.q, &r.w);
    assert_false(hth_work_busy(&r.w) || r.w.away);
    assert_int_equal(r.steps, 503);
    assert_int_equal(r.met, 0); // others took nothing from what computed elsewhere
    sem_destroy(&r.go);
    hth_work_fini(&r.q);
}

// While a work computes elsewhere others take nothing from it; nor is its own slice before that
// theirs.
static void test_others(void **state)
{
    rig r;
    rig_init(&r);
    sem_init(&r.go, 0, 0);
    r.other = (hth_work_other){rig_start, rig_busy, rig_wait, &r};
    r.q.other = &r.other;
    hth_work_begin(&r.q, &r.w, rig_computes_and_goes, &r);
    hth_work_ran(&r.q, 7);
    sem_post(&r.go);
    while (hth_work_computes(&r.q, &r.w)) {
        sched_yield();
    }
    hth_work_go(&r.q, &r.w);
    assert_int_equal(r.met, 0);
    sem_destroy(&r.go);
    hth_work_fini(&r.q);
}

// Without a stack of its own a work is done without interruption.
static void test_no_stack(void **state)
{
    rig r;
    rig_init(&r);
    hth_fault_alloc(1);
    hth_work_begin(&r.q, &r.w, rig_work, &r);
    hth_fault_alloc(0);
    assert_int_equal(r.steps, 10);
    assert_int_equal(r.over, 1);
    hth_work_fini(&r.q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_points), cmocka_unit_test(test_hold),
        cmocka_unit_test(test_loop),   cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_others), cmocka_unit_test(test_no_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
