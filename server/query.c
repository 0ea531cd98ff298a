// SPDX-License-Identifier: Apache-2.0
#include "server/query.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compare.h"
#include "base/settings.h"
#include "device/plugin.h"
#include "server/infer.h"
#include "server/precision.h"
#include "server/query_latency.h"
#include "server/tenant.h"
#include "server/slice.h"
#include "server/train.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

// Runs before timing starts, and the most that are kept for the percentiles.
#define BENCH_WARMUP   3
#define BENCH_MAX_RUNS 1000000
// Nobody else is served meanwhile.
#define BENCH_MAX_SECONDS 600

typedef struct query {
    hth_models *ms;
    hth_request *r;
    json_t *args;
    hth_source other; // of the model in another precision, for this question; graph NULL: none
} query;

static const char *arg_str(const query *q, const char *name)
{
    return json_string_value(json_object_get(q->args, name));
}

static double arg_num(const query *q, const char *name, double dflt)
{
    json_t *v = json_object_get(q->args, name);
    return json_is_number(v) ? json_number_value(v) : dflt;
}

static hth_err arg_model(const query *q, hth_model **out)
{
    const char *name = arg_str(q, "model");
    return name == NULL ? hth_fail(HTH_EINVAL, "which model? the argument 'model' is missing")
                        : hth_model_find(q->ms, name, out);
}

static json_t *shape_json(const hth_shape *s)
{
    json_t *a = json_array();
    for (int i = 0; i < s->rank; i++) {
        json_array_append_new(a, json_integer(s->dim[i] < 0 ? -1 : s->dim[i]));
    }
    return a;
}

static json_t *values_json(const hth_graph *g, const int *list, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        const hth_value *v = &g->values[list[i]];
        json_array_append_new(a,
                              json_pack("{s:s, s:s, s:o}", "name", v->name, "datatype",
                                        hth_dtype_name(v->dtype), "shape", shape_json(&v->shape)));
    }
    return a;
}

static hth_err query_model(query *q, json_t **out)
{
    hth_model *m;
    HTH_TRY(arg_model(q, &m));
    const hth_graph *g = m->source.graph;
    hth_batch_policy p = hth_model_batch_policy(m);
    *out = json_pack(
        "{s:s, s:i, s:o, s:o, s:i, s:i, s:I, s:I, s:s, s:b, s:b, s:o}", "name", m->name, "version",
        m->version, "inputs", values_json(g, g->inputs, g->n_inputs), "outputs",
        values_json(g, g->outputs, g->n_outputs), "nodes", g->n_nodes, "tensors",
        m->manifest.n_tensors, "bytes", (json_int_t)m->weight_bytes, "max_batch",
        (json_int_t)m->max_batch, "precision", hth_precision_name(g->precision), "training",
        g->training, "batched", m->source.batched, "batching", hth_batching_json(&p));
    return HTH_OK;
}

// query_batching sets how a model's requests wait and are joined, where something is given, and
// says how that is now.
static hth_err query_batching(query *q, json_t **out)
{
    hth_model *m;
    HTH_TRY(arg_model(q, &m));
    hth_batching b = m->batching;
    if (json_object_size(q->args) > 1) {
        HTH_TRY(hth_batching_change(q->ms->store, m->name, q->args, &b));
    }
    for (hth_model *each = q->ms->list; each != NULL; each = each->next) {
        each->batching = strcmp(each->name, m->name) == 0 ? b : each->batching;
    }
    hth_batch_policy p = hth_model_batch_policy(m);
    *out = hth_batching_json(&p);
    json_object_set_new(*out, "model", json_string(m->name));
    return HTH_OK;
}

// query_precision sets in what a model computes, where something is given, and says what holds. The
// model itself is not needed for that: it may not be for this device as it is.
static hth_err query_precision(query *q, json_t **out)
{
    hth_manifest found;
    char set[HTH_PRECISION_TEXT];
    const char *name = arg_str(q, "model"), *wanted = arg_str(q, "precision");
    if (name == NULL || strchr(name, ':') != NULL) {
        return hth_fail(HTH_EINVAL, "which model? a name without a version");
    }
    HTH_TRY(hth_store_get(q->ms->store, name, 0, &found));
    hth_manifest_fini(&found);
    if (wanted != NULL && wanted[0]) {
        hth_precision p;
        HTH_TRY(hth_precision_find(wanted, &p));
        HTH_TRY(hth_kernel_computes(q->ms->site->device, p));
    }
    HTH_TRY(wanted != NULL ? hth_precision_set(q->ms->store, name, wanted) : HTH_OK);
    hth_models_renew(q->ms, name);
    hth_precision_get(q->ms->store, name, set);
    *out = json_pack("{s:s, s:s, s:b}", "model", name, "precision",
                     hth_precision_name(hth_precision_of(q->ms->store, name)), "set", set[0] != 0);
    return HTH_OK;
}

// query_spec reads the step that a question is about.
static hth_err query_spec(query *q, hth_train_spec *out)
{
    hth_precision_fill(q->ms->store, q->args);
    return hth_train_spec_read(q->args, true, out);
}

static hth_err query_devices(query *q, json_t **out)
{
    const hth_device_props *p = &q->ms->site->device->props;
    hth_pool_ledger l;
    char cuda[256];
    hth_pool_ledger_get(q->ms->site->pool, &l);
    bool found = hth_plugin_cuda_probe(cuda, sizeof cuda) == HTH_OK;
    *out = json_pack(
        "{s:s, s:[{s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:s, s:f, s:f}]}", "cuda",
        found ? cuda : hth_err_detail(), "devices", "name", p->name, "description", p->description,
        "total_bytes", (json_int_t)p->total_bytes, "budget_bytes", (json_int_t)p->budget_bytes,
        "used_bytes", (json_int_t)(l.reserved_bytes - l.free_bytes), "threads", p->n_threads,
        "vector_bytes", p->vector_bytes, "fingerprint", p->fingerprint, "h2d_bytes_per_s",
        q->ms->site->link_bytes_per_s, "d2h_bytes_per_s", q->ms->site->link_back_bytes_per_s);
    return HTH_OK;
}

static hth_err query_stats(query *q, json_t **out)
{
    hth_model *only = NULL;
    if (arg_str(q, "model") != NULL) {
        HTH_TRY(arg_model(q, &only));
    }
    return hth_query_stats(q->ms, only, out);
}

static hth_err query_latency(query *q, json_t **out)
{
    *out = hth_latency_json(q->ms);
    return HTH_OK;
}

static void tensors_free(hth_tensor *t, int n)
{
    for (int i = 0; t != NULL && i < n; i++) {
        hth_free(t[i].data);
    }
    hth_free(t);
}

// query_source is the model's source, or one of its own for the precision that was asked for.
static hth_err query_source(query *q, hth_model *m, hth_source **out)
{
    const char *name = arg_str(q, "precision");
    hth_precision p = m->source.graph->precision;
    HTH_TRY(name != NULL ? hth_precision_find(name, &p) : HTH_OK);
    *out = &m->source;
    if (p == m->source.graph->precision) {
        return HTH_OK;
    }
    q->other = (hth_source){.batched = m->source.batched, .account = m->source.account};
    HTH_TRY(hth_graph_clone(m->source.graph, &q->other.graph));
    q->other.graph->precision = p;
    *out = &q->other;
    return HTH_OK;
}

// query_program makes the program that a question is about: arguments model, batch, budget; budget
// of its own: not kept.
static hth_err query_program(query *q, bool tune, hth_model **model, hth_tensor **inputs,
                             hth_program **out)
{
    hth_site *site = q->ms->site;
    *inputs = NULL;
    HTH_TRY(arg_model(q, model));
    hth_model *m = *model;
    *inputs = hth_calloc((size_t)m->source.graph->n_inputs, sizeof **inputs);
    if (*inputs == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a query");
    }
    double batch = arg_num(q, "batch", 1);
    if (!(batch >= 1 && batch <= INT32_MAX)) {
        return hth_fail(HTH_EINVAL, "a batch is at least 1 and at most %d", INT32_MAX);
    }
    hth_source *source;
    HTH_TRY(hth_model_synthetic(m, (int64_t)batch, *inputs));
    HTH_TRY(query_source(q, m, &source));
    uint64_t budget = site->device->props.budget_bytes, whole = budget;
    const char *text = arg_str(q, "budget");
    if (text != NULL &&
        strchr(text, '%') != NULL) { // of what the model takes when nothing is short
        uint64_t weights, arena;
        HTH_TRY(hth_infer_program(q->ms, source, *inputs, tune, q->r, out));
        hth_program_ledger(*out, &weights, &arena);
        HTH_TRY(hth_parse_size(text, weights + arena, &budget));
        *out = NULL;
    } else if (text != NULL) {
        HTH_TRY(hth_parse_size(text, whole, &budget));
    }
    if (budget > whole) {
        return hth_fail(HTH_ETOOBIG, "a budget of %llu bytes is more than the device's %llu",
                        (unsigned long long)budget, (unsigned long long)whole);
    }
    if (budget == whole) {
        return hth_infer_program(q->ms, source, *inputs, tune, q->r, out);
    }
    return hth_program_compile(site, source, *inputs, budget, tune, q->r, out);
}

// query_program_done drops a program made for one question under a budget of its own.
static void query_program_done(query *q, hth_program *p)
{
    if (p != NULL && p->budget != q->ms->site->device->props.budget_bytes) {
        hth_program_free(q->ms->site, p);
    }
    if (q->other.graph != NULL) {
        hth_source_fini(q->ms->site, &q->other);
    }
}

static hth_err bench_runs(query *q, hth_program *p, const hth_tensor *inputs, const hth_tensor *out,
                          double seconds, double *ms, int *n)
{
    for (int i = 0; i < BENCH_WARMUP; i++) {
        HTH_TRY(hth_slice_run(q->ms, p, inputs, out, &q->r->canceled));
    }
    uint64_t t0 = hth_now_ns(), last = t0, end = t0 + (uint64_t)(seconds * 1e9), told = t0;
    for (*n = 0; *n < BENCH_MAX_RUNS && (last < end || *n < 3); (*n)++) {
        HTH_TRY(hth_slice_run(q->ms, p, inputs, out, &q->r->canceled));
        uint64_t now = hth_now_ns();
        ms[*n] = (double)(now - last) / 1e6;
        last = now;
        if (q->r->progress != NULL && now - told > 200000000u) {
            q->r->progress(q->r, "measuring", now - t0, end - t0);
            told = now;
        }
    }
    return HTH_OK;
}

static hth_err query_bench(query *q, json_t **out)
{
    if (json_is_true(json_object_get(q->args, "train"))) {
        hth_train_spec spec;
        HTH_TRY(query_spec(q, &spec));
        double steps = arg_num(q, "steps", 0);
        if (!(steps >= 0 && steps <= HTH_TRAIN_STEPS)) {
            return hth_fail(HTH_EINVAL, "steps is a number from 1 to %d", HTH_TRAIN_STEPS);
        }
        return hth_train_bench(q->ms, &spec, arg_num(q, "seconds", 5), (int)steps, q->r, out);
    }
    hth_model *m = NULL;
    hth_program *p = NULL;
    hth_tensor *inputs = NULL, *outputs = NULL;
    double *ms = hth_calloc(BENCH_MAX_RUNS, sizeof *ms);
    int n = 0, n_outputs = 0;
    hth_err err = ms == NULL ? hth_fail(HTH_ENOMEM, "no memory for a benchmark") : HTH_OK;
    double seconds = arg_num(q, "seconds", 5), batch = arg_num(q, "batch", 1);
    if (err == HTH_OK && !(seconds >= 0 && seconds <= BENCH_MAX_SECONDS)) {
        err = hth_fail(HTH_EINVAL, "a benchmark takes 0 to %d seconds", BENCH_MAX_SECONDS);
    }
    if (err == HTH_OK) {
        err = query_program(q, true, &m, &inputs, &p);
    }
    if (err == HTH_OK && p->rest.graph != NULL) {
        err = hth_fail(
            HTH_ENOTSUP,
            "model '%s' runs in stages (its shapes depend on its values) and has no steady state",
            m->name);
    }
    if (err == HTH_OK && !p->sliced) {
        err = hth_slice_choose(q->ms, p, q->r);
    }
    if (err != HTH_OK) {
        goto out;
    }
    n_outputs = p->graph->n_outputs;
    outputs = hth_calloc((size_t)n_outputs, sizeof *outputs);
    for (int i = 0; outputs != NULL && i < n_outputs; i++) {
        outputs[i] = hth_program_output(p, i);
        outputs[i].data = hth_alloc_aligned(outputs[i].bytes, HTH_DEVICE_ALIGN);
        err = outputs[i].data == NULL ? hth_fail(HTH_ENOMEM, "no memory for an output") : err;
    }
    err = outputs == NULL ? hth_fail(HTH_ENOMEM, "no memory for a benchmark") : err;
    if (err == HTH_OK) {
        err = bench_runs(q, p, inputs, outputs, seconds, ms, &n);
    }
    if (err != HTH_OK) {
        goto out;
    }
    uint64_t weights, arena;
    const hth_program *works = hth_slice_program(q->ms, p);
    hth_program_ledger(works, &weights, &arena);
    qsort(ms, (size_t)n, sizeof *ms, hth_compare_double);
    double p50 = ms[n / 2], p99 = ms[(int)((double)(n - 1) * 0.99)];
    *out = json_pack(
        "{s:s, s:s, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:i, s:i, s:s, s:i}",
        "model", m->name, "precision", hth_precision_name(p->graph->precision), "batch", (int)batch,
        "p50_ms", p50, "p99_ms", p99, "samples_per_second", batch * 1e3 / p50, "peak_bytes",
        (json_int_t)(weights + arena), "weight_bytes", (json_int_t)weights, "arena_bytes",
        (json_int_t)arena, "live_peak_bytes", (json_int_t)works->plan->live_peak_bytes,
        "budget_bytes", (json_int_t)p->budget, "plan_ms", works->plan->plan_ms, "predicted_ms",
        works->plan->predicted_us / 1e3, "runs", n, "threads", q->ms->site->device->props.n_threads,
        "device", q->ms->site->device->props.name, "slice", (int)p->slice);
out:
    query_program_done(q, p);
    tensors_free(outputs, n_outputs);
    tensors_free(inputs, inputs != NULL && m != NULL ? m->source.graph->n_inputs : 0);
    hth_free(ms);
    return err;
}

// plan_report writes the files that were asked for and describes the plan.
static hth_err plan_report(const query *q, const hth_problem *p, const hth_plan *plan, json_t **out)
{
    uint64_t floor = 0, streamed = 0;
    HTH_TRY(strcmp(plan->policy, "inference") == 0 ? hth_plan_floor(p, &floor)
                                                   : hth_plan_train_floor(p, &floor));
    if (arg_str(q, "out") != NULL) {
        HTH_TRY(hth_plan_write(arg_str(q, "out"), p, plan));
    }
    if (arg_str(q, "trace") != NULL) {
        HTH_TRY(hth_plan_write_trace(arg_str(q, "trace"), p, plan, NULL));
    }
    for (int t = 0; plan->streamed != NULL && t < p->n_tensors; t++) {
        streamed += plan->streamed[t] ? p->tensors[t].bytes : 0;
    }
    *out = json_pack(
        "{s:s, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:i, s:i, s:i, s:I, s:I}", "policy",
        plan->policy, "budget_bytes", (json_int_t)p->budget, "predicted_us", plan->predicted_us,
        "lower_bound_us", plan->lower_bound_us, "arena_bytes", (json_int_t)plan->arena_bytes,
        "live_peak_bytes", (json_int_t)plan->live_peak_bytes, "resident_bytes",
        (json_int_t)plan->resident_bytes, "host_bytes", (json_int_t)plan->host_bytes, "plan_ms",
        plan->plan_ms, "instructions", plan->n_instrs, "nodes", p->n_nodes, "tensors", p->n_tensors,
        "streamed_bytes", (json_int_t)streamed, "floor_bytes", (json_int_t)floor);
    return HTH_OK;
}

// plan_problem plans a problem that is a file, for its own budget or the one given.
static hth_err plan_problem(const query *q, json_t **out)
{
    hth_problem problem = {0};
    hth_plan *plan = NULL;
    HTH_TRY(hth_problem_read(arg_str(q, "problem"), &problem));
    hth_err err = arg_str(q, "budget") != NULL
                      ? hth_parse_size(arg_str(q, "budget"), problem.budget, &problem.budget)
                      : HTH_OK;
    hth_plan_options o = {.limit_ms = arg_num(q, "plan-ms", 0),
                          .seed = (uint64_t)arg_num(q, "seed", 0)};
    bool inference = arg_str(q, "policy") == NULL || strcmp(arg_str(q, "policy"), "inference") == 0;
    if (err == HTH_OK && !inference) {
        err = hth_policy_find(arg_str(q, "policy"), &o.policy);
    }
    if (err == HTH_OK) {
        err = inference ? hth_plan_inference(&problem, &plan) : hth_plan_train(&problem, &o, &plan);
    }
    err = err == HTH_OK ? hth_plan_verify(&problem, plan) : err;
    err = err == HTH_OK ? plan_report(q, &problem, plan, out) : err;
    hth_plan_free(plan);
    hth_problem_fini(&problem);
    return err;
}

typedef struct plan_answer {
    query *q;
    json_t **out;
} plan_answer;

static hth_err plan_answer_report(void *ctx, const hth_problem *p, const hth_plan *plan)
{
    const plan_answer *a = ctx;
    return plan_report(a->q, p, plan, a->out);
}

static hth_err query_curve(query *q, json_t **out)
{
    hth_train_spec spec;
    HTH_TRY(query_spec(q, &spec));
    return hth_train_curve(q->ms, &spec, q->r, out);
}

static hth_err query_plan(query *q, json_t **out)
{
    if (json_is_true(json_object_get(q->args, "train"))) {
        hth_train_spec spec;
        HTH_TRY(query_spec(q, &spec));
        return hth_train_plan(q->ms, &spec, q->r, plan_answer_report, &(plan_answer){q, out});
    }
    hth_model *m = NULL;
    hth_program *p = NULL;
    hth_tensor *inputs = NULL;
    if (arg_str(q, "problem") != NULL) {
        return plan_problem(q, out);
    }
    if (arg_str(q, "profile") != NULL || arg_str(q, "write-profile") != NULL) {
        return hth_fail(HTH_EINVAL, "profiles are for training steps: add --train");
    }
    hth_err err = query_program(q, true, &m, &inputs, &p);
    err = err == HTH_OK ? plan_report(q, &p->problem, p->plan, out) : err;
    if (err == HTH_OK) {
        json_object_set_new(*out, "model", json_string(m->name));
    }
    query_program_done(q, p);
    tensors_free(inputs, inputs != NULL ? m->source.graph->n_inputs : 0);
    return err;
}

typedef struct convsel_answer {
    hth_site *site;
    json_t *rows;
} convsel_answer;

// One row per choice of each convolution, in whatever direction it computes.
static hth_err convsel_rows(void *ctx, const hth_program *p)
{
    const convsel_answer *a = ctx;
    hth_err err = HTH_OK;
    for (int i = 0; err == HTH_OK && i < p->graph->n_nodes; i++) {
        const hth_node *n = &p->graph->nodes[i];
        hth_choice list[HTH_MAX_CHOICES];
        int count = 0;
        if (!hth_convsel_lists(a->site->device, n->op)) {
            continue;
        }
        err = hth_convsel_measure(a->site->device, p->graph, n, &p->heat, a->site->timings, list,
                                  HTH_MAX_CHOICES, &count);
        hth_convsel_front(list, count, hth_convsel_tolerance(p->graph, a->site->tolerance));
        for (int k = 0; err == HTH_OK && k < count; k++) {
            json_array_append_new(
                a->rows,
                json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:b}", "node", n->name,
                          "direction", hth_convsel_direction(n->op), "algorithm", list[k].name,
                          "workspace_bytes", (json_int_t)list[k].workspace_bytes, "resident_bytes",
                          (json_int_t)list[k].resident_bytes, "time_us", list[k].time_us, "error",
                          list[k].error, "rms_error", list[k].rms, "front", list[k].front));
        }
    }
    return err;
}

static hth_err query_convsel(query *q, json_t **out)
{
    convsel_answer a = {q->ms->site, json_array()};
    hth_err err;
    if (json_is_true(json_object_get(q->args, "train"))) {
        hth_train_spec spec;
        err = query_spec(q, &spec);
        err = err == HTH_OK ? hth_train_visit(q->ms, &spec, q->r, convsel_rows, &a) : err;
    } else {
        hth_model *m = NULL;
        hth_program *p = NULL;
        hth_tensor *inputs = NULL;
        err = query_program(q, true, &m, &inputs, &p);
        err = err == HTH_OK ? convsel_rows(&a, p) : err;
        query_program_done(q, p);
        tensors_free(inputs, inputs != NULL ? m->source.graph->n_inputs : 0);
    }
    if (err != HTH_OK) {
        json_decref(a.rows);
        return err;
    }
    *out = a.rows;
    return HTH_OK;
}

// What tenants may have and have; {"read"}: the file that says so is read again.
static hth_err query_tenants(query *q, json_t **out)
{
    json_t *stats;
    hth_tenants *all = q->ms->site->tenants;
    if (json_is_true(json_object_get(q->args, "read")) && all != NULL) {
        HTH_TRY(hth_tenants_read(all));
        q->ms->site->freed++; // a limit may be higher now
    }
    HTH_TRY(hth_query_stats(q->ms, NULL, &stats));
    *out = json_pack("{s:O}", "tenants", json_object_get(stats, "tenants"));
    json_decref(stats);
    return *out != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for an answer");
}

hth_err hth_query_answer(hth_models *ms, hth_request *r)
{
    static const struct {
        const char *name;
        hth_err (*answer)(query *q, json_t **out);
    } table[] = {
        {"model", query_model},         {"devices", query_devices}, {"stats", query_stats},
        {"bench", query_bench},         {"plan", query_plan},       {"convsel", query_convsel},
        {"curve", query_curve},         {"latency", query_latency}, {"batching", query_batching},
        {"precision", query_precision}, {"tenants", query_tenants}};
    query q = {.ms = ms, .r = r};
    json_error_t je;
    q.args = json_loads(r->arguments != NULL && r->arguments[0] ? r->arguments : "{}", 0, &je);
    if (!json_is_object(q.args)) {
        json_decref(q.args);
        return hth_fail(HTH_EINVAL, "the arguments of '%s' are not a JSON object: %s", r->query,
                        je.text);
    }
    hth_err err = hth_fail(HTH_ENOENT, "there is no question '%.32s'", r->query);
    ms->tenant = r->tenant;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].name, r->query) == 0) {
            json_t *doc = NULL;
            err = table[i].answer(&q, &doc);
            char *text = err == HTH_OK ? json_dumps(doc, JSON_COMPACT) : NULL;
            r->json = text != NULL ? hth_strdup(text) : NULL;
            err = err == HTH_OK && r->json == NULL ? hth_fail(HTH_ENOMEM, "no memory for an answer")
                                                   : err;
            free(text);
            json_decref(doc);
        }
    }
    ms->tenant = NULL;
    json_decref(q.args);
    return err;
}
