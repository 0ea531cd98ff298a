// SPDX-License-Identifier: Apache-2.0
// A training step on one synthetic batch: measured, or compiled for a look. Either a number of
// steps of the plan as it is, or, for a time, steps of a plan that is corrected as a job's is
// (replan.h) before anything counts: then what is predicted, of a step or of a new plan's
// step, can be held against the steps that come after. In both cases what the nodes took is
// remembered for plans that come after this one. Several policies take turns, step by step: what
// else the machine does meets all of them, and a step counts relative to the mean of its round.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compare.h"
#include "planner/plan_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BENCH_WARMUP   2 // steps before the plan is corrected
#define BENCH_MAX_RUNS 100000

typedef struct bench {
    hth_trainer *trainer;
    hth_tensor *inputs;
    hth_tensor target;
    int n_inputs;
    uint64_t used_bytes, anon_bytes; // before the trainer: the device's, and bench_anonymous
} bench;

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
        return hth_no_memory("a synthetic batch");
    }
    memset(b->target.data, 0, b->target.bytes);
    HTH_TRY(hth_trainer_prepare(b->trainer, b->inputs, &b->target));
    int64_t classes = hth_trainer_classes(b->trainer);
    int64_t *label = b->target.data;
    for (size_t i = 0; classes > 0 && i < b->target.bytes / sizeof *label; i++) {
        label[i] = (int64_t)(i * 2654435761u >> 7) % classes;
    }
    return HTH_OK;
}

// The process's own pages that are there, 0: the system does not say.
static uint64_t bench_anonymous(void)
{
    char line[128];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f != NULL && kib == 0 && fgets(line, sizeof line, f) != NULL) {
        (void)sscanf(line, "RssAnon: %" SCNu64, &kib);
    }
    if (f != NULL) {
        fclose(f);
    }
    return kib << 10;
}

static uint64_t bench_used(const hth_models *ms)
{
    hth_pool_ledger l;
    hth_pool_ledger_get(ms->site->pool, &l);
    uint64_t used = l.padding_bytes;
    for (int i = 0; i < HTH_POOL_N_USES; i++) {
        used += l.used_bytes[i];
    }
    return used;
}

static hth_err bench_open(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                          bench *b)
{
    hth_model *model; // not held: it may be dropped while a step computes
    *b = (bench){.n_inputs = 0};
    HTH_TRY(hth_model_find(ms, spec->model, &model));
    b->n_inputs = model->source.graph->n_inputs;
    b->inputs = hth_calloc((size_t)b->n_inputs, sizeof *b->inputs);
    HTH_TRY(b->inputs == NULL ? hth_no_memory("a synthetic batch")
                              : hth_train_synthetic(model, spec, true, b->inputs));
    b->used_bytes = bench_used(ms);
    b->anon_bytes = bench_anonymous();
    HTH_TRY(hth_trainer_open(ms, spec, request, &b->trainer));
    b->trainer->lr = 0; // as long a step, and what is synthetic drives no weight to infinity
    return bench_target(b);
}

static hth_err bench_warm(bench *b)
{
    float loss;
    bool whole = b->trainer->parts == 1;
    for (int i = 0; i < BENCH_WARMUP; i++) {
        HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
    }
    HTH_TRY(whole ? hth_replan_correct(b->trainer) : HTH_OK);
    for (int i = 0; whole && i < HTH_REPLAN_SAMPLES + 1; i++) { // one in a new plan's memory
        HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
    }
    return HTH_OK;
}

static hth_err bench_step(bench *b, double *ms)
{
    float loss;
    uint64_t from_ns = hth_now_ns();
    HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
    *ms = (double)(hth_now_ns() - from_ns) / 1e6;
    return HTH_OK;
}

// Steps for `seconds`, three at least; ms[]: how long each took.
static hth_err bench_seconds(bench *b, double seconds, hth_request *request, double *ms, int *n)
{
    HTH_TRY(bench_warm(b));
    uint64_t start_ns = hth_now_ns(), end_ns = start_ns + hth_ns_of(seconds * 1e9);
    for (*n = 0; *n < 3 || (hth_now_ns() < end_ns && *n < BENCH_MAX_RUNS); ++*n) {
        HTH_TRY(bench_step(b, &ms[*n]));
        if (request->progress != NULL) {
            request->progress(request, "measuring", hth_now_ns() - start_ns, end_ns - start_ns);
        }
    }
    return HTH_OK;
}

// One step to warm up, and `steps` that are measured by instruction.
static hth_err bench_count(bench *b, int steps, hth_request *request, double *ms, int *n)
{
    double warm_ms;
    HTH_TRY(bench_step(b, &warm_ms));
    HTH_TRY(b->trainer->parts == 1 ? hth_replan_see(b->trainer, steps) : HTH_OK);
    for (*n = 0; *n < steps; ++*n) {
        HTH_TRY(bench_step(b, &ms[*n]));
        if (request->progress != NULL) {
            request->progress(request, "measuring", (uint64_t)*n, (uint64_t)steps);
        }
    }
    return HTH_OK;
}

static hth_err bench_trace(bench *b, json_t **out)
{
    float loss;
    const hth_program *p = hth_trainer_program(b->trainer);
    hth_run_measure(p->run, true);
    HTH_TRY(hth_trainer_step(b->trainer, b->inputs, &b->target, &loss));
    *out = hth_plan_trace_json(&p->problem, p->plan, hth_run_times(p->run));
    return *out != NULL ? HTH_OK : hth_no_memory("a synthetic batch");
}

// What the job has of the device, as the device's ledger counts it, and the process's own pages
// that came since it was made: the device's, where that is the processor, and the host's side,
// slots that are away among them.
static void bench_memory(const bench *b, json_t *doc)
{
    const hth_trainer_slots *slots = &b->trainer->slots;
    uint64_t away = 0;
    for (int i = 0; slots->file == NULL && i < slots->n; i++) {
        away += slots->resident[i] == NULL ? slots->bytes[i] : 0;
    }
    json_object_set_new(doc, "away_bytes", json_integer((json_int_t)away));
    uint64_t used = bench_used(b->trainer->ms) - b->used_bytes, anon = bench_anonymous();
    json_object_set_new(doc, "ledger_bytes", json_integer((json_int_t)used));
    if (anon > 0) {
        json_object_set_new(doc, "rss_bytes",
                            json_integer((json_int_t)anon - (json_int_t)b->anon_bytes));
    }
}

static json_t *bench_document(const bench *b, const hth_train_spec *spec, double *took, int n,
                              double planned_us)
{
    qsort(took, (size_t)n, sizeof *took, hth_compare_double);
    double p50 = hth_median(took, n), p99 = hth_percentile(took, n, 99);
    const hth_device_props *props = &b->trainer->ms->site->device->props;
    json_t *doc = json_pack("{s:s, s:I, s:f, s:f, s:f, s:i, s:i, s:s, s:b, s:f}", "model",
                            b->trainer->manifest.name, "batch", (json_int_t)spec->batch, "p50_ms",
                            p50, "p99_ms", p99, "samples_per_second",
                            (double)spec->batch * 1e3 / p50, "runs", n, "threads", props->n_threads,
                            "device", props->name, "train", true, "planned_ms", planned_us / 1e3);
    json_object_update_new(doc, hth_trainer_memory(b->trainer));
    json_object_set_new(doc, "calm", json_boolean(b->trainer->replan.calm));
    json_object_set_new(doc, "lower_bound_ms",
                        json_real(hth_trainer_program(b->trainer)->plan->lower_bound_us / 1e3));
    bench_memory(b, doc);
    return doc;
}

hth_err hth_train_bench(hth_models *ms, const hth_train_spec *spec, double seconds, int steps,
                        hth_request *request, json_t **out)
{
    bench b;
    int n = 0;
    double *took = hth_calloc(BENCH_MAX_RUNS, sizeof *took);
    json_t *trace = NULL;
    hth_err err;
    HTH_GOTO(bench_open(ms, spec, request, &b), done);
    HTH_GOTO(took != NULL ? HTH_OK : hth_no_memory("a benchmark"), done);
    double planned_us = hth_trainer_predicted_us(b.trainer);
    HTH_GOTO(steps > 0 ? bench_count(&b, steps, request, took, &n)
                       : bench_seconds(&b, seconds, request, took, &n),
             done);
    HTH_GOTO(hth_replan_remember(b.trainer), done);
    if (spec->trace) {
        HTH_GOTO(bench_trace(&b, &trace), done);
    }
    *out = bench_document(&b, spec, took, n, planned_us);
    if (trace != NULL) {
        json_object_set_new(*out, "files", json_pack("{s:O}", "trace", trace));
    }
done:
    json_decref(trace);
    bench_close(&b);
    hth_free(took);
    return err;
}

// One of several policies.
typedef struct contender {
    bench b;
    char *why;                   // NULL: it runs; else why it has no plan
    double planned_us, bound_us; // as it was opened
    json_t *memory;
    double *ms, *relative; // per round: its step, and the logarithm of that / the round's mean
} contender;

typedef struct contest {
    contender *list;
    int n, rounds, most;
} contest;

static void contest_close(contest *c)
{
    for (int i = 0; c->list != NULL && i < c->n; i++) {
        bench_close(&c->list[i].b);
        json_decref(c->list[i].memory);
        hth_free(c->list[i].why);
        hth_free(c->list[i].ms);
        hth_free(c->list[i].relative);
    }
    hth_free(c->list);
}

static hth_err contender_open(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                              contender *c)
{
    hth_err err = bench_open(ms, spec, request, &c->b);
    if (err == HTH_ETOOBIG || err == HTH_ENODEVMEM) {
        c->why = hth_strdup(hth_err_detail());
        bench_close(&c->b);
        c->b = (bench){.n_inputs = 0};
        return c->why != NULL ? HTH_OK : hth_no_memory("a benchmark");
    }
    HTH_TRY(err);
    c->planned_us = hth_trainer_predicted_us(c->b.trainer);
    c->bound_us = hth_trainer_program(c->b.trainer)->plan->lower_bound_us;
    return HTH_OK;
}

// contender_warm makes its first steps, after which its memory is what it stays.
static hth_err contender_warm(contender *c, int steps)
{
    double ms;
    HTH_TRY(steps > 0 ? bench_step(&c->b, &ms) : bench_warm(&c->b));
    c->memory = json_object();
    HTH_TRY(c->memory != NULL ? HTH_OK : hth_no_memory("a benchmark"));
    bench_memory(&c->b, c->memory);
    int seen = c->b.trainer->parts == 1 ? (int)hth_clamp(steps, 0, HTH_TRAIN_STEPS) : 0;
    return seen > 0 ? hth_replan_see(c->b.trainer, seen) : HTH_OK;
}

static hth_err contest_open(hth_models *ms, const hth_train_spec *specs, int n, int steps,
                            hth_request *request, contest *c)
{
    *c = (contest){.n = n, .most = steps > 0 ? steps : HTH_TRAIN_ROUNDS};
    c->list = hth_calloc((size_t)n, sizeof *c->list);
    HTH_TRY(c->list != NULL ? HTH_OK : hth_no_memory("a benchmark"));
    for (int i = 0; i < n; i++) {
        contender *one = &c->list[i];
        one->ms = hth_calloc((size_t)c->most, sizeof *one->ms);
        one->relative = hth_calloc((size_t)c->most, sizeof *one->relative);
        HTH_TRY(one->ms != NULL && one->relative != NULL ? HTH_OK : hth_no_memory("a benchmark"));
        HTH_TRY(contender_open(ms, &specs[i], request, one));
        HTH_TRY(one->why == NULL ? contender_warm(one, steps) : HTH_OK);
    }
    return HTH_OK;
}

// A round is a step of each; another one begins it each time.
static hth_err contest_round(contest *c)
{
    double sum = 0;
    int n = 0, round = c->rounds;
    for (int k = 0; k < c->n; k++) {
        contender *one = &c->list[(round + k) % c->n];
        if (one->why == NULL) {
            HTH_TRY(bench_step(&one->b, &one->ms[round]));
            sum += log(one->ms[round]);
            n++;
        }
    }
    for (int i = 0; i < c->n; i++) { // of one without a plan: of no use
        c->list[i].relative[round] = log(c->list[i].ms[round]) - sum / n;
    }
    c->rounds++;
    return HTH_OK;
}

static hth_err contest_run(contest *c, double seconds, int steps, hth_request *request)
{
    uint64_t start_ns = hth_now_ns(), length_ns = hth_ns_of(seconds * 1e9);
    bool more = false;
    for (int i = 0; i < c->n; i++) {
        more = more || c->list[i].why == NULL;
    }
    while (more && c->rounds < c->most) {
        HTH_TRY(contest_round(c));
        uint64_t past_ns = hth_now_ns() - start_ns;
        more = c->rounds < 3 || past_ns < length_ns;
        if (request->progress != NULL && steps > 0) {
            request->progress(request, "measuring", (uint64_t)c->rounds, (uint64_t)steps);
        } else if (request->progress != NULL) {
            request->progress(request, "measuring", past_ns, length_ns);
        }
    }
    return HTH_OK;
}

// contender_document orders its rounds; `base`: the relative step that is 1.
static json_t *contender_document(contender *c, const hth_train_spec *spec, int rounds, double base)
{
    const char *policy = hth_policy_name(spec->plan.policy);
    if (c->why != NULL) {
        return json_pack("{s:s, s:s}", "policy", policy, "error", c->why);
    }
    const hth_trainer *t = c->b.trainer;
    qsort(c->ms, (size_t)rounds, sizeof *c->ms, hth_compare_double);
    double p25 = hth_percentile(c->relative, rounds, 25);
    double p75 = hth_percentile(c->relative, rounds, 75);
    double ratio = exp(hth_median(c->relative, rounds) - base);
    json_t *doc =
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "policy", policy, "ratio", ratio, "spread",
                  (p75 - p25) / 2, "p50_ms", hth_median(c->ms, rounds), "least_ms", c->ms[0],
                  "planned_ms", c->planned_us / 1e3, "lower_bound_ms", c->bound_us / 1e3);
    json_object_update_missing_new(doc, hth_trainer_memory(t));
    json_object_update_missing(doc, c->memory);
    json_object_set_new(doc, "calm", json_boolean(t->replan.calm));
    return doc;
}

static json_t *contest_document(contest *c, const hth_train_spec *specs,
                                const hth_device_props *props)
{
    const contender *first = NULL;
    json_t *list = json_array();
    for (int i = 0; i < c->n; i++) {
        if (c->list[i].why == NULL) {
            qsort(c->list[i].relative, (size_t)c->rounds, sizeof(double), hth_compare_double);
            first = first == NULL ? &c->list[i] : first;
        }
    }
    for (int i = 0; i < c->n; i++) {
        double base = first != NULL ? hth_median(first->relative, c->rounds) : 0;
        json_array_append_new(list, contender_document(&c->list[i], &specs[i], c->rounds, base));
    }
    return json_pack("{s:s, s:I, s:i, s:s, s:i, s:o}", "model", specs->model, "batch",
                     (json_int_t)specs->batch, "threads", props->n_threads, "device", props->name,
                     "rounds", c->rounds, "policies", list);
}

hth_err hth_train_compare(hth_models *ms, const hth_train_spec *specs, int n, double seconds,
                          int steps, hth_request *request, json_t **out)
{
    contest c;
    hth_err err;
    HTH_GOTO(contest_open(ms, specs, n, steps, request, &c), done);
    HTH_GOTO(contest_run(&c, seconds, steps, request), done);
    for (int i = 0; i < n; i++) {
        HTH_GOTO(c.list[i].why == NULL ? hth_replan_remember(c.list[i].b.trainer) : HTH_OK, done);
    }
    *out = contest_document(&c, specs, &ms->site->device->props);
done:
    contest_close(&c);
    return err;
}

hth_err hth_train_visit(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                        hth_err (*visit)(void *ctx, const hth_program *program), void *ctx)
{
    bench b;
    if (spec->profile != NULL) {
        return hth_train_elsewhere(ms, spec, request, true, visit, ctx);
    }
    hth_err err = bench_open(ms, spec, request, &b);
    if (err == HTH_OK) {
        err = visit(ctx, hth_trainer_program(b.trainer));
    }
    bench_close(&b);
    return err;
}
