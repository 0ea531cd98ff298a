// SPDX-License-Identifier: Apache-2.0
// The question "bench": a model's steady state on inputs that are made up, or a training step's.
#include "engine/query/query_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compare.h"
#include "runtime/host.h"
#include "engine/serve/microbatch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Runs before timing starts, and the most that are kept for the percentiles.
#define BENCH_WARMUP   3
#define BENCH_MAX_RUNS 1000000
// Nobody else is served meanwhile.
#define BENCH_MAX_SECONDS 600
#define BENCH_POLICIES    16 // the step that is not constrained, too

static hth_err bench_runs(query *q, hth_program *program, const hth_tensor *inputs,
                          const hth_tensor *out, double seconds, double *ms, int *n)
{
    for (int i = 0; i < BENCH_WARMUP; i++) {
        HTH_TRY(hth_microbatch_run(q->ms, program, inputs, out, &q->r->canceled));
    }
    uint64_t t0 = hth_now_ns(), last = t0, end = t0 + hth_ns_of(seconds * 1e9), reported = t0;
    for (*n = 0; *n < BENCH_MAX_RUNS && (last < end || *n < 3); (*n)++) {
        HTH_TRY(hth_microbatch_run(q->ms, program, inputs, out, &q->r->canceled));
        uint64_t now = hth_now_ns();
        ms[*n] = (double)(now - last) / 1e6;
        last = now;
        if (q->r->progress != NULL && now - reported > 200000000u) {
            q->r->progress(q->r, "measuring", now - t0, end - t0);
            reported = now;
        }
    }
    return HTH_OK;
}

// bench_outputs makes places for program's outputs; *bytes are counted for them.
static hth_err bench_outputs(query *q, const hth_program *program, hth_tensor *out, uint64_t *bytes)
{
    uint64_t all = 0;
    for (int i = 0; i < program->graph->n_outputs; i++) {
        out[i] = hth_program_output(program, i);
        all = __builtin_add_overflow(all, out[i].bytes, &all) ? UINT64_MAX : all;
    }
    HTH_TRY(hth_host_take(q->ms->site, HTH_HOST_BATCHES, all, "the outputs of this batch"));
    *bytes = all;
    for (int i = 0; i < program->graph->n_outputs; i++) {
        out[i].data = hth_alloc_aligned(out[i].bytes, HTH_DEVICE_ALIGN);
        if (out[i].data == NULL) {
            return hth_no_memory("an output of %zu bytes", out[i].bytes);
        }
    }
    return HTH_OK;
}

// The policies of a list, and before them the step that is not constrained.
typedef struct bench_policies {
    json_t *args[BENCH_POLICIES];
    hth_train_spec spec[BENCH_POLICIES];
    int n;
} bench_policies;

static hth_err bench_policy(query *call, const char *name, size_t bytes, const char *budget,
                            bench_policies *p)
{
    HTH_TRY(p->n < BENCH_POLICIES
                ? HTH_OK
                : hth_fail(HTH_EINVAL, "policy names more than %d policies", BENCH_POLICIES - 1));
    json_t *args = p->args[p->n] = json_copy(call->args);
    json_object_set_new(args, "policy", json_stringn(name, bytes));
    if (budget == NULL) {
        json_object_del(args, "budget");
    }
    return query_spec(call, args, &p->spec[p->n++]);
}

// bench_compare measures steps of several policies in turns.
static hth_err bench_compare(query *call, double seconds, int steps, json_t **out)
{
    bench_policies p = {.n = 0};
    const char *name = query_text(call, "policy"), *budget = query_text(call, "budget");
    hth_err err;
    HTH_GOTO(!json_is_true(json_object_get(call->args, "trace"))
                 ? HTH_OK
                 : hth_fail(HTH_EINVAL, "trace is for one policy"),
             done);
    HTH_GOTO(bench_policy(call, "keep", strlen("keep"), NULL, &p), done);
    for (size_t bytes; name != NULL; name = name[bytes] == ',' ? name + bytes + 1 : NULL) {
        bytes = strcspn(name, ",");
        HTH_GOTO(bench_policy(call, name, bytes, budget, &p), done);
    }
    err = hth_train_compare(call->ms, p.spec, p.n, seconds, steps, call->r, out);
done:
    for (int i = 0; i < p.n; i++) {
        json_decref(p.args[i]);
    }
    return err;
}

// bench_train measures steps of a training job.
static hth_err bench_train(query *call, double seconds, json_t **out)
{
    hth_train_spec spec;
    const char *policy = query_text(call, "policy");
    bool several = policy != NULL && strchr(policy, ',') != NULL;
    int most = several ? HTH_TRAIN_ROUNDS : HTH_TRAIN_STEPS;
    double steps = query_number(call, "steps", 0);
    if (!(steps >= 0 && steps <= most) || steps != floor(steps)) {
        return hth_fail(HTH_EINVAL, "steps is a whole number from 1 to %d", most);
    }
    if (several) {
        return bench_compare(call, steps > 0 ? BENCH_MAX_SECONDS : seconds, (int)steps, out);
    }
    HTH_TRY(query_spec(call, call->args, &spec));
    return hth_train_bench(call->ms, &spec, seconds, (int)steps, call->r, out);
}

// bench_program makes the program that is measured.
static hth_err bench_program(query *call, query_subject *subject)
{
    HTH_TRY(query_program(call, subject));
    hth_program *p = subject->program;
    if (p->rest.graph != NULL) {
        return hth_fail(
            HTH_ENOTSUP,
            "model '%s' runs in stages (its shapes depend on its values) and has no steady state",
            subject->model->name);
    }
    return p->sliced ? HTH_OK : hth_microbatch_choose(call->ms, p, call->r);
}

hth_err query_bench(query *call, json_t **out)
{
    double seconds = query_number(call, "seconds", 5), batch = query_number(call, "batch", 1);
    if (!(seconds >= 0 && seconds <= BENCH_MAX_SECONDS)) {
        return hth_fail(HTH_EINVAL, "a benchmark takes 0 to %d seconds", BENCH_MAX_SECONDS);
    }
    if (json_is_true(json_object_get(call->args, "train"))) {
        return bench_train(call, seconds, out);
    }
    if (batch != floor(batch)) {
        return hth_fail(HTH_EINVAL, "batch is a whole number");
    }
    query_subject s = {.model = NULL};
    hth_tensor *outputs = NULL;
    int n = 0, n_outputs = 0;
    uint64_t bytes = 0;
    double *ms = hth_calloc(BENCH_MAX_RUNS, sizeof *ms);
    hth_err err = ms == NULL ? hth_no_memory("a benchmark") : bench_program(call, &s);
    if (err != HTH_OK) {
        goto out;
    }
    hth_program *p = s.program;
    n_outputs = p->graph->n_outputs;
    outputs = hth_calloc((size_t)n_outputs, sizeof *outputs);
    HTH_GOTO(outputs == NULL ? hth_no_memory("a benchmark")
                             : bench_outputs(call, p, outputs, &bytes),
             out);
    HTH_GOTO(bench_runs(call, p, s.inputs, outputs, seconds, ms, &n), out);
    uint64_t weights, arena;
    const hth_program *works = hth_microbatch_program(call->ms, p);
    hth_program_ledger(works, &weights, &arena);
    qsort(ms, (size_t)n, sizeof *ms, hth_compare_double);
    double p50 = hth_median(ms, n), p99 = hth_percentile(ms, n, 99);
    *out = json_pack(
        "{s:s, s:s, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:i, s:i, s:s, s:i}",
        "model", s.model->name, "precision", hth_precision_name(p->graph->precision), "batch",
        (int)batch, "p50_ms", p50, "p99_ms", p99, "samples_per_second", batch * 1e3 / p50,
        "peak_bytes", (json_int_t)(weights + arena), "weight_bytes", (json_int_t)weights,
        "arena_bytes", (json_int_t)arena, "live_peak_bytes",
        (json_int_t)works->plan->live_peak_bytes, "budget_bytes", (json_int_t)p->budget, "plan_ms",
        works->plan->plan_ms, "predicted_ms", works->plan->predicted_us / 1e3, "runs", n, "threads",
        call->ms->site->device->props.n_threads, "device", call->ms->site->device->props.name,
        "slice", (int)p->slice);
out:
    hth_host_give(call->ms->site, HTH_HOST_BATCHES, bytes);
    query_program_done(call, &s);
    query_tensors_free(outputs, n_outputs);
    hth_free(ms);
    return err;
}
