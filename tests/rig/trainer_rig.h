// SPDX-License-Identifier: Apache-2.0
// tests/rig/trainer_rig.h - a trainer with what it needs of an engine, on this thread: for tests
// that look inside.
#ifndef HTH_TESTS_RIG_TRAINER_RIG_H
#define HTH_TESTS_RIG_TRAINER_RIG_H

#include "engine/serve/version_swap.h"
#include "engine/train/trainer_impl.h"
#include "tests/rig/train_job.h"

#include <ctype.h>
#include <math.h>

// Measurements, so that all trainers choose the same algorithms.
static struct {
    char key[HTH_CONVSEL_KEY], value[4096];
} known[1000];
static int n_known;

static inline hth_err known_get(void *ctx, const char *key, char *value, size_t cap)
{
    for (int i = 0; i < n_known; i++) {
        if (strcmp(known[i].key, key) == 0) {
            snprintf(value, cap, "%s", known[i].value);
            return HTH_OK;
        }
    }
    return HTH_ENOENT;
}

// One of a node's algorithms, as a timing cache has it.
typedef struct known_choice {
    char name[48], rest[80]; // rest: all after the time
    unsigned long long workspace_bytes, resident_bytes;
    double time_us;
} known_choice;

static inline int known_order(const void *x, const void *y)
{
    const known_choice *a = x, *b = y;
    unsigned long long m = a->workspace_bytes + a->resident_bytes;
    unsigned long long n = b->workspace_bytes + b->resident_bytes;
    return m != n ? (m < n) - (m > n) : (a->time_us > b->time_us) - (a->time_us < b->time_us);
}

// known_rank gives a node's algorithms the times that a plan has something to choose from, whatever
// this machine is good at: the one with the most memory is the fastest, each with less a quarter
// slower. Those that are far slower stay what they are. Other texts are copied.
static inline void known_rank(const char *value, char *out, size_t cap)
{
    known_choice c[HTH_MAX_CHOICES];
    double least_us = INFINITY;
    int n = 0, used = 0, near = 0;
    const char *in = value;
    while (n < HTH_MAX_CHOICES &&
           sscanf(in, "%47s %llu %llu %lf %79[^\n]\n%n", c[n].name, &c[n].workspace_bytes,
                  &c[n].resident_bytes, &c[n].time_us, c[n].rest, &used) == 5) {
        least_us = fmin(least_us, c[n].time_us);
        in += used;
        n++;
    }
    if (n == 0 || *in != '\0' || isdigit((unsigned char)value[0])) { // numbers: no names
        snprintf(out, cap, "%s", value);
        return;
    }
    qsort(c, (size_t)n, sizeof *c, known_order);
    for (size_t i = 0, at = 0; i < (size_t)n; i++) {
        double us = c[i].time_us;
        us = us > 8 * least_us ? us : least_us * (1 + 0.25 * near++);
        at += (size_t)snprintf(out + at, cap - at, "%s %llu %llu %.3f %s\n", c[i].name,
                               c[i].workspace_bytes, c[i].resident_bytes, us, c[i].rest);
        assert_true(at < cap);
    }
}

static inline hth_err known_put(void *ctx, const char *key, const char *value)
{
    int i = 0;
    while (i < n_known && strcmp(known[i].key, key) != 0) {
        i++;
    }
    assert_true(i < 1000);
    n_known += i == n_known;
    snprintf(known[i].key, sizeof known[i].key, "%s", key);
    known_rank(value, known[i].value, sizeof known[i].value);
    return HTH_OK;
}

static const hth_timing_cache known_timings = {.get = known_get, .put = known_put};

typedef struct rig {
    char dir[64];
    hth_store *store;
    hth_site site;
    hth_models models;
    hth_train_spec spec;
    hth_trainer *t;
    hth_tensor input, target; // one batch; data malloc'd
} rig;

// A batch of `samples`; classes 0: floats.
static inline hth_tensor rig_batch(int64_t samples, const int64_t *dim, int rank, int64_t classes)
{
    hth_tensor t = {.dtype = classes > 0 ? HTH_DT_I64 : HTH_DT_F32, .shape = {rank, {samples}}};
    for (int i = 1; i < rank; i++) {
        t.shape.dim[i] = dim[i - 1];
    }
    assert_ok(hth_tensor_bytes(t.dtype, &t.shape, HTH_LAYOUT_PLAIN, &t.bytes));
    t.data = malloc(t.bytes);
    assert_non_null(t.data);
    for (int64_t i = 0; i < hth_shape_elements(&t.shape); i++) {
        if (classes > 0) {
            ((int64_t *)t.data)[i] = (i * 7 + i / 3) % classes;
        } else {
            ((float *)t.data)[i] = (float)((i * 37 + i / 7 * 13) % 67 - 33) / 32;
        }
    }
    return t;
}

// Everything but the compiled step, which rig_prepare makes.
static inline void rig_make_on(rig *r, const char *device, const training *t, int64_t samples,
                               hth_policy policy)
{
    char path[100];
    memset(r, 0, sizeof *r);
    strcpy(r->dir, "/tmp/hearth-trainer-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    assert_ok(hth_store_open(r->dir, true, false, &r->store));
    snprintf(path, sizeof path, "tests/data/train/%s.onnx", t->model);
    put(r->store, "net", path);
    assert_ok(hth_device_open(device, &r->site.device));
    assert_ok(hth_pool_open(r->site.device, r->site.device->props.budget_bytes, &r->site.pool));
    assert_ok(hth_residency_open(r->site.pool, &r->site.residency));
    r->site.tolerance = 1e-3;
    r->site.timings = &known_timings;
    r->site.link_bytes_per_s = r->site.link_back_bytes_per_s = 2e8; // offloads cost
    r->models =
        (hth_models){.store = r->store, .site = &r->site, .changed = hth_version_swap_check};
    r->spec = (hth_train_spec){
        .model = "net",
        .options = {.loss = t->y_classes > 0 ? HTH_LOSS_SOFTMAX_XENT : HTH_LOSS_MSE,
                    .optimizer = HTH_OPTIMIZER_ADAM},
        .lr = 0.001,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .batch = samples,
        .accumulate = 1,
        .plan = {.policy = policy, .limit_ms = 20}};
    r->input = rig_batch(samples, t->x, t->x_rank, t->x_classes);
    r->target = rig_batch(samples, t->y, t->y_rank, t->y_classes);
    assert_ok(hth_trainer_open(&r->models, &r->spec, NULL, &r->t));
}

static inline void rig_make(rig *r, const training *t, int64_t samples, hth_policy policy)
{
    rig_make_on(r, "cpu:mem=256MiB,threads=1", t, samples, policy);
}

static inline void rig_prepare(rig *r)
{
    if (hth_trainer_prepare(r->t, &r->input, &r->target) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
}

static inline void rig_close(rig *r)
{
    hth_trainer_close(r->t);
    hth_models_fini(&r->models);
    assert_null(r->site.shares);
    hth_pool_free(r->site.pool, r->site.arena);
    hth_residency_close(r->site.residency);
    hth_pool_close(r->site.pool);
    hth_device_close(r->site.device);
    hth_store_close(r->store);
    free(r->input.data);
    free(r->target.data);
    assert_int_equal(test_remove(r->dir), 0);
}

static inline float rig_step(rig *r)
{
    float loss;
    assert_ok(hth_trainer_step(r->t, &r->input, &r->target, &loss));
    return loss;
}

// All slots of both, bit by bit.
static inline void rig_same_state(rig *a, rig *b)
{
    hth_put_tensor *u, *v;
    int n, m;
    assert_ok(hth_trainer_state(a->t, &u, &n));
    assert_ok(hth_trainer_state(b->t, &v, &m));
    assert_int_equal(n, m);
    for (int i = 0; i < n; i++) {
        assert_string_equal(u[i].name, v[i].name);
        assert_memory_equal(u[i].data, v[i].data, u[i].bytes);
    }
    hth_free(u);
    hth_free(v);
}

#endif
