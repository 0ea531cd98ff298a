// SPDX-License-Identifier: Apache-2.0
// A job's plan while it runs: predicted times become the measured ones, a better plan takes the
// place of the old one between two steps, and no bit of a loss changes.
#include "server/trainer.h"
#include "tests/engine_call.h"

#include <math.h>

#define SAMPLES 16

// Measurements, so that all trainers choose the same algorithms.
static struct {
    char key[HTH_CONVSEL_KEY], value[4096];
} known[300];
static int n_known;

static hth_err known_get(void *ctx, const char *key, char *value, size_t cap)
{
    for (int i = 0; i < n_known; i++) {
        if (strcmp(known[i].key, key) == 0) {
            snprintf(value, cap, "%s", known[i].value);
            return HTH_OK;
        }
    }
    return HTH_ENOENT;
}

static hth_err known_put(void *ctx, const char *key, const char *value)
{
    assert_true(n_known < 300);
    snprintf(known[n_known].key, sizeof known[n_known].key, "%s", key);
    snprintf(known[n_known++].value, sizeof known[0].value, "%s", value);
    return HTH_OK;
}

static const hth_timing_cache timings = {.get = known_get, .put = known_put};

// What an engine has, on this thread.
typedef struct rig {
    char dir[64];
    hth_store *store;
    hth_site site;
    hth_models models;
    hth_train_spec spec;
    hth_trainer *t;
    float x[SAMPLES * 3 * 12 * 12];
    int64_t y[SAMPLES * 12 * 12];
    hth_tensor input, target;
} rig;

static void rig_open(rig *r, hth_policy policy, const char *budget, bool replan)
{
    memset(r, 0, sizeof *r);
    strcpy(r->dir, "/tmp/hearth-watch-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    assert_ok(hth_store_open(r->dir, true, false, &r->store));
    put(r->store, "net", "tests/data/train/unet_adam.onnx");
    assert_ok(hth_device_open("cpu:mem=256MiB,threads=1", &r->site.device));
    assert_ok(hth_pool_open(r->site.device, r->site.device->props.budget_bytes, &r->site.pool));
    assert_ok(hth_residency_open(r->site.pool, &r->site.residency));
    r->site.tolerance = 1e-3;
    r->site.timings = &timings;
    r->site.link_bytes_per_s = r->site.link_back_bytes_per_s = 2e8; // offloads cost
    r->models = (hth_models){.store = r->store, .site = &r->site};
    r->spec = (hth_train_spec){
        .model = "net",
        .options = {.loss = HTH_LOSS_SOFTMAX_XENT, .optimizer = HTH_OPTIMIZER_ADAM},
        .lr = 0.001,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .batch = SAMPLES,
        .accumulate = 1,
        .replan = replan,
        .budget = budget,
        .plan = {.policy = policy, .limit_ms = 500}};
    for (int i = 0; i < SAMPLES * 3 * 144; i++) {
        r->x[i] = (float)((i * 37 + i / 7 * 13) % 67 - 33) / 32;
    }
    for (int i = 0; i < SAMPLES * 144; i++) {
        r->y[i] = (i * 7 + i / 3) % 3;
    }
    r->input = (hth_tensor){.dtype = HTH_DT_F32,
                            .shape = {4, {SAMPLES, 3, 12, 12}},
                            .data = r->x,
                            .bytes = sizeof r->x};
    r->target = (hth_tensor){
        .dtype = HTH_DT_I64, .shape = {3, {SAMPLES, 12, 12}}, .data = r->y, .bytes = sizeof r->y};
    assert_ok(hth_trainer_open(&r->models, &r->spec, NULL, &r->t));
    assert_ok(hth_trainer_prepare(r->t, &r->input, &r->target));
}

static void rig_close(rig *r)
{
    char command[100];
    hth_trainer_close(r->t);
    hth_models_fini(&r->models);
    assert_null(r->site.shares);
    hth_pool_free(r->site.pool, r->site.arena);
    hth_residency_close(r->site.residency);
    hth_pool_close(r->site.pool);
    hth_device_close(r->site.device);
    hth_store_close(r->store);
    snprintf(command, sizeof command, "rm -rf %s", r->dir);
    assert_int_equal(system(command), 0);
}

static float rig_step(rig *r)
{
    float loss;
    assert_ok(hth_trainer_step(r->t, &r->input, &r->target, &loss));
    return loss;
}

static void predictions_are_corrected(void **state)
{
    rig r;
    rig_open(&r, HTH_POLICY_HEARTH, NULL, true);
    hth_program *p = r.t->shapes[0].apply.program;
    for (int i = 0; i < p->problem.n_nodes; i++) { // as if it had been measured on another machine
        p->problem.nodes[i].alternatives[0].time_us *= 1000;
    }
    p->plan->predicted_us *= 1000;
    assert_true(hth_trainer_measured_us(r.t) == 0);
    int steps = 0;
    for (; r.t->watch.corrections == 0 || r.t->watch.n_samples >= 0; steps++) {
        assert_true(steps < 200);
        rig_step(&r);
    }
    assert_int_equal(steps, 2 * HTH_WATCH_STEPS + HTH_WATCH_SAMPLES);
    double sampled = r.t->watch.wall_us / HTH_WATCH_SAMPLES;
    if (fabs(hth_trainer_predicted_us(r.t) - sampled) > 0.05 * sampled) {
        fail_msg("predicted %g us, measured %g us", hth_trainer_predicted_us(r.t), sampled);
    }
    rig_step(&r);
    assert_true(hth_trainer_measured_us(r.t) > 0);
    rig_close(&r);
}

// A plan that is thought to be slower than what the search then finds.
static void better_plans_are_taken_over(void **state)
{
    rig a, b;
    rig_open(&a, HTH_POLICY_HEARTH, "600000", true);
    rig_open(&b, HTH_POLICY_HEARTH, "600000", false);
    a.t->shapes[0].apply.program->plan->predicted_us *= 2;
    int steps = 0, after = 0;
    for (; after < 5; steps++) {
        float x = rig_step(&a), y = rig_step(&b);
        assert_memory_equal(&x, &y, sizeof x);
        after += hth_trainer_swaps(a.t) > 0;
        if (steps > 20 && after == 0) {
            usleep(10000); // the search has the lowest priority
        }
        assert_true(steps < 3000);
    }
    assert_int_equal(hth_trainer_swaps(b.t), 0);
    const hth_program *p = hth_trainer_program(a.t);
    assert_true(p->plan->arena_bytes + p->plan->resident_bytes <= p->budget);
    assert_string_equal(p->plan->policy, "hearth");
    print_message("# another plan behind %d steps\n", steps - 5);
    // Contents are where the new plan has them.
    hth_put_tensor *u, *v;
    int n, m;
    assert_ok(hth_trainer_state(a.t, &u, &n));
    assert_ok(hth_trainer_state(b.t, &v, &m));
    assert_int_equal(n, m);
    for (int i = 0; i < n; i++) {
        assert_memory_equal(u[i].data, v[i].data, u[i].bytes);
    }
    hth_free(u);
    hth_free(v);
    rig_close(&a);
    rig_close(&b);
}

// Closing, and planning again for another budget, end a search.
static void searches_are_stopped(void **state)
{
    rig r;
    rig_open(&r, HTH_POLICY_HEARTH, "600000", true);
    r.t->shapes[0].apply.program->plan->predicted_us *= 2;
    while (!r.t->watch.searching) {
        rig_step(&r);
    }
    assert_ok(hth_trainer_replan(r.t));
    assert_false(r.t->watch.searching);
    assert_ok(hth_trainer_prepare(r.t, &r.input, &r.target));
    while (!r.t->watch.searching) {
        rig_step(&r);
        r.t->shapes[0].apply.program->plan->predicted_us *= 2;
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_are_corrected),
        cmocka_unit_test(better_plans_are_taken_over),
        cmocka_unit_test(searches_are_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
