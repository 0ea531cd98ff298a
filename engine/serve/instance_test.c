// SPDX-License-Identifier: Apache-2.0
// Instances: results and failures of runs come back; and requests answered during a training
// step: the job's parameters, state and losses are the bits that they are without, whatever leaves
// the device meanwhile; the answers are those of an idle device.
#include "engine/serve/instance.h"
#include "device/cpu/team.h"
#include "engine/serve/infer.h"
#include "tests/rig/trainer_rig.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#define SPACE_STEPS 3
#define OUT_BYTES   40

// What is asked in the middle of a step.
typedef struct asker {
    rig *r;
    float image[64];
    char right[OUT_BYTES], got[OUT_BYTES];
    int asked, wrong, runs;
    atomic_int ended;
    hth_instance *instance[2], *at;
    hth_work_queue queue;
    hth_work_other other;
    hth_work work;
    float loss;
} asker;

static hth_err asker_place(hth_request *request, hth_request_tensor *out, int n)
{
    asker *a = request->ctx;
    assert_int_equal(n, 1);
    assert_int_equal(out[0].t.bytes, OUT_BYTES);
    out[0].t.data = a->got;
    return HTH_OK;
}

static void asker_ask(asker *a)
{
    hth_request_tensor in = {
        .t = {.dtype = HTH_DT_F32, .shape = {4, {1, 1, 8, 8}}, .data = a->image, .bytes = 256}};
    hth_request q = {
        .model = "digits", .inputs = &in, .n_inputs = 1, .place = asker_place, .ctx = a};
    hth_model *m;
    hth_infer_request *w;
    assert_ok(hth_model_find(&a->r->models, q.model, &m));
    assert_ok(hth_infer_request_open(&a->r->models, m, &q, &w));
    assert_ok(hth_infer(&a->r->models, w));
    hth_infer_request_close(&a->r->models, w);
    hth_free(q.outputs);
}

static void asker_woken(void *ctx)
{
    atomic_fetch_add(&((asker *)ctx)->ended, 1);
}

// In the place of the engine's: what computes elsewhere, and a loop that asks at least twice
// meanwhile.
static bool asker_start(void *ctx, hth_err (*fn)(void *arg), void *arg)
{
    asker *a = ctx;
    a->at = a->instance[a->runs++ % 2];
    hth_instance_start(a->at, fn, arg);
    return true;
}

static bool asker_busy(void *ctx)
{
    return hth_instance_busy(((const asker *)ctx)->at);
}

static hth_err asker_wait(void *ctx)
{
    return hth_instance_wait(((const asker *)ctx)->at);
}

static void asker_main(void *arg)
{
    asker *a = arg;
    a->loss = rig_step(a->r);
}

static float asker_step(asker *a)
{
    hth_work_begin(&a->queue, &a->work, asker_main, a);
    while (hth_work_busy(&a->work)) {
        for (int i = 0; i < 2 || hth_work_computes(&a->queue, &a->work); i++) {
            if (a->asked++ % 40 == 0) { // the model leaves, too: the room is needed now and then
                hth_models_unload(&a->r->models, "digits", 0);
            }
            asker_ask(a);
            a->wrong += memcmp(a->got, a->right, OUT_BYTES) != 0;
        }
        hth_work_go(&a->queue, &a->work);
    }
    return a->loss;
}

static void asker_open(asker *a, rig *r)
{
    *a = (asker){.r = r};
    for (int i = 0; i < 64; i++) {
        a->image[i] = (float)(i * 37 % 16) / 16;
    }
    put(r->store, "digits", "tests/data/digits/digits.onnx");
    asker_ask(a);
    memcpy(a->right, a->got, OUT_BYTES);
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_instance_open(
            &(hth_instance_config){.name = "step", .threads = 2, .done = asker_woken, .ctx = a},
            &a->instance[i]));
    }
    hth_instance_lower(a->instance[1]);
    a->other = (hth_work_other){asker_start, asker_busy, asker_wait, a};
    a->queue = (hth_work_queue){.other = &a->other, .ctx = a};
    a->work = (hth_work){.item = {.weight = 1}};
    r->site.queue = &a->queue;
}

static void compare(const training *t, const char *budget)
{
    rig alone, concurrent;
    asker a;
    rig_make(&alone, t, 4, HTH_POLICY_HEARTH);
    rig_make(&concurrent, t, 4, HTH_POLICY_HEARTH);
    alone.spec.budget = concurrent.spec.budget = budget;
    rig_prepare(&alone);
    rig_prepare(&concurrent);
    asker_open(&a, &concurrent);
    for (int i = 0; i < SPACE_STEPS; i++) {
        float x = rig_step(&alone), y = asker_step(&a);
        assert_memory_equal(&x, &y, sizeof x);
    }
    rig_same_state(&alone, &concurrent);
    assert_int_equal(a.wrong, 0);
    assert_true(a.asked >= SPACE_STEPS * 2);
    hth_instance_close(a.instance[0]);
    hth_instance_close(a.instance[1]);
    assert_true(a.runs >= SPACE_STEPS);
    assert_int_equal(a.ended, a.runs);
    hth_work_fini(&a.queue);
    print_message("# %s, budget %s: %d requests in %d steps\n", t->model,
                  budget != NULL ? budget : "all", a.asked, SPACE_STEPS);
    rig_close(&alone);
    rig_close(&concurrent);
}

static void test_same_bits(void **state)
{
    const training *const models[] = {&unet, &mobile, &encoder};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        compare(models[i], NULL);
        compare(models[i], "70%");
    }
}

static hth_err fails(void *arg)
{
    return ++*(int *)arg < 3 ? hth_fail(HTH_EIO, "failed for the %d. time", *(int *)arg) : HTH_OK;
}

static void test_failure(void **state)
{
    asker a = {.ended = 0};
    hth_instance *s;
    int n = 0;
    assert_ok(hth_instance_open(
        &(hth_instance_config){.name = "step", .threads = 1, .done = asker_woken, .ctx = &a}, &s));
    hth_instance_start(s, fails, &n);
    assert_int_equal(hth_instance_wait(s), HTH_EIO);
    assert_string_equal(hth_err_detail(), "failed for the 1. time");
    hth_instance_start(s, fails, &n);
    assert_int_equal(hth_instance_wait(s), HTH_EIO);
    hth_fail(HTH_EINVAL, "another");
    assert_int_equal(hth_instance_wait(s), HTH_EIO); // as often as one asks
    assert_string_equal(hth_err_detail(), "failed for the 2. time");
    hth_instance_start(s, fails, &n);
    assert_ok(hth_instance_wait(s));
    assert_false(hth_instance_busy(s));
    hth_instance_start(s, fails, &n); // closing waits
    hth_instance_close(s);
    assert_int_equal(n, 4);
    assert_int_equal(a.ended, 4);
    hth_instance_close(NULL);
}

// What the threads of a team say of themselves.
typedef struct crew {
    atomic_int begun, high; // shares that were not of the lowest priority
    int tid[2];
    cpu_set_t cpus[2];
} crew;

static void crew_share(void *arg, int i, int n)
{
    crew *c = arg;
    c->high += n != 2;
    c->tid[i] = gettid();
    c->high += sched_getscheduler(0) != SCHED_IDLE;
    c->high += sched_getaffinity(0, sizeof c->cpus[i], &c->cpus[i]) != 0;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); // the other's is the other thread's
}

static hth_err crew_work(void *arg)
{
    crew *c = arg;
    c->begun = 1;
    while (sched_getscheduler(0) != SCHED_IDLE) { // in the middle of the work
        sched_yield();
    }
    do {
        hth_team_run(crew_share, c);
    } while (c->tid[0] == c->tid[1]);
    return HTH_OK;
}

// An instance that is lowered while it works is so with all its threads, on processors of their
// own.
static void test_lowered(void **state)
{
    asker a = {.ended = 0};
    crew c = {.begun = 0};
    hth_instance *s;
    cpu_set_t both;
    assert_int_equal(sched_getaffinity(0, sizeof both, &both), 0);
    int n_cpus = CPU_COUNT(&both);
    assert_ok(hth_instance_open(
        &(hth_instance_config){.name = "step", .threads = 2, .done = asker_woken, .ctx = &a}, &s));
    hth_instance_start(s, crew_work, &c);
    while (c.begun == 0) {
        sched_yield();
    }
    hth_instance_lower(s);
    hth_instance_lower(s); // is so already
    assert_ok(hth_instance_wait(s));
    assert_int_equal(c.high, 0);
    CPU_AND(&both, &c.cpus[0], &c.cpus[1]);
    assert_true(n_cpus < 2 || CPU_COUNT(&both) == 0);
    hth_instance_close(s);
    assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_failure),
                                       cmocka_unit_test(test_lowered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
