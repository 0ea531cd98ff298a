// SPDX-License-Identifier: Apache-2.0
// A training step on one synthetic batch: measured, or compiled for a look. Before what counts the
// plan is corrected as a job's is (trainer_watch.h), so that what is predicted then, of a step or
// of a new plan's step, can be held against the steps that come after.
#include "server/trainer.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compare.h"

#include <stdlib.h>
#include <string.h>

#define BENCH_WARMUP   2
#define BENCH_MAX_RUNS 100000

typedef struct bench {
    hth_trainer *trainer;
    hth_model *model;
    hth_tensor *inputs, target;
    int n_inputs;
} bench;

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for a synthetic batch");
}

static void bench_close(bench *b)
{
    hth_trainer_close(b->trainer);
    for (int i = 0; b->inputs != NULL && i < b->n_inputs; i++) {
        hth_free(b->inputs[i].data);
    }
    hth_free(b->inputs);
    hth_free(b->target.data);
}

// Labels are spread over the classes; other targets are zeros.
static hth_err bench_target(bench *b)
{
    HTH_TRY(hth_trainer_target(b->trainer, b->inputs, &b->target));
    b->target.data = hth_alloc_aligned(b->target.bytes, HTH_DEVICE_ALIGN);
    if (b->target.data == NULL) {
        return no_memory();
    }
    memset(b->target.data, 0, b->target.bytes);
    HTH_TRY(hth_trainer_prepare(b->trainer, b->inputs, &b->target));
    int64_t classes = hth_trainer_classes(b->trainer), *label = b->target.data;
    for (size_t i = 0; classes > 0 && i < b->target.bytes / sizeof *label; i++) {
        label[i] = (int64_t)(i * 2654435761u >> 7) % classes;
    }
    return HTH_OK;
}

static hth_err bench_open(hth_models *ms, const hth_train_spec *spec, hth_request *r, bench *b)
{
    *b = (bench){.n_inputs = 0};
    HTH_TRY(hth_model_find(ms, spec->model, &b->model));
    b->n_inputs = b->model->source.graph->n_inputs;
    b->inputs = hth_calloc((size_t)b->n_inputs, sizeof *b->inputs);
    HTH_TRY(b->inputs == NULL ? no_memory()
                              : hth_model_synthetic(b->model, spec->batch, b->inputs));
    HTH_TRY(hth_trainer_open(ms, spec, r, &b->trainer));
    return bench_target(b);
}

static hth_err bench_warm(bench *b)
{
    float loss;
    bool whole = b->trainer->parts == 1;
    for (int i = 0; i < BENCH_WARMUP; i++) {
        HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
    }
    HTH_TRY(whole ? hth_watch_correct(b->trainer) : HTH_OK);
    for (int i = 0; whole && i < HTH_WATCH_SAMPLES + 1; i++) { // one in a new plan's memory
        HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
    }
    return HTH_OK;
}

// Steps for `seconds`, three at least; ms[]: how long each took.
static hth_err bench_steps(bench *b, double seconds, hth_request *r, double *ms, int *n)
{
    float loss;
    HTH_TRY(bench_warm(b));
    uint64_t start_ns = hth_now_ns(), last_ns = start_ns;
    uint64_t end_ns = start_ns + (uint64_t)(seconds * 1e9);
    for (*n = 0; *n < 3 || (last_ns < end_ns && *n < BENCH_MAX_RUNS); ++*n) {
        HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
        uint64_t now_ns = hth_now_ns();
        ms[*n] = (double)(now_ns - last_ns) / 1e6;
        last_ns = now_ns;
        if (r->progress != NULL) {
            r->progress(r, "measuring", now_ns - start_ns, end_ns - start_ns);
        }
    }
    return HTH_OK;
}

static hth_err bench_trace(bench *b, const char *path)
{
    float loss;
    const hth_program *p = hth_trainer_program(b->trainer);
    hth_run_measure(p->run, true);
    HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
    return hth_plan_write_trace(path, &p->problem, p->plan, hth_run_times(p->run));
}

hth_err hth_train_bench(hth_models *ms, const hth_train_spec *spec, double seconds, hth_request *r,
                        json_t **out)
{
    bench b;
    int n = 0;
    double *took = hth_calloc(BENCH_MAX_RUNS, sizeof *took);
    hth_err err = bench_open(ms, spec, r, &b);
    err = err == HTH_OK && took == NULL ? no_memory() : err;
    double planned_us = err == HTH_OK ? hth_trainer_predicted_us(b.trainer) : 0;
    err = err == HTH_OK ? bench_steps(&b, seconds, r, took, &n) : err;
    err = err == HTH_OK && spec->trace != NULL ? bench_trace(&b, spec->trace) : err;
    if (err == HTH_OK) {
        qsort(took, (size_t)n, sizeof *took, hth_compare_double);
        double p50 = took[n / 2], p99 = took[(int)((double)(n - 1) * 0.99)];
        const hth_device_props *props = &ms->site->device->props;
        *out = json_pack("{s:s, s:I, s:f, s:f, s:f, s:i, s:i, s:s, s:b, s:f}", "model",
                         b.model->name, "batch", (json_int_t)spec->batch, "p50_ms", p50, "p99_ms",
                         p99, "samples_per_second", (double)spec->batch * 1e3 / p50, "runs", n,
                         "threads", props->n_threads, "device", props->name, "train", true,
                         "planned_ms", planned_us / 1e3);
        json_object_update_new(*out, hth_trainer_memory(b.trainer));
    }
    bench_close(&b);
    hth_free(took);
    return err;
}

hth_err hth_train_visit(hth_models *ms, const hth_train_spec *spec, hth_request *r,
                        hth_err (*visit)(void *ctx, const hth_program *p), void *ctx)
{
    bench b;
    if (spec->profile != NULL) {
        return hth_train_elsewhere(ms, spec, r, visit, ctx);
    }
    hth_err err = bench_open(ms, spec, r, &b);
    err = err == HTH_OK ? visit(ctx, hth_trainer_program(b.trainer)) : err;
    bench_close(&b);
    return err;
}
