// SPDX-License-Identifier: Apache-2.0
// The questions "plan", "curve" and "convsel": what is planned for a model, a training step or a
// problem that comes with the question, and what there was to choose from.
#include "engine/query/query_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "engine/train/train_spec.h"
#include "planner/plan_json.h"
#include "runtime/paced.h"

#include <math.h>
#include <string.h>

// plan_add adds a document that the client writes to a file; `doc` NULL: it could not be made.
static hth_err plan_add(json_t *out, const char *key, json_t *doc)
{
    json_t *files = json_object_get(out, "files");
    if (files == NULL) {
        files = json_object();
        if (json_object_set_new(out, "files", files) != 0) { // frees it
            json_decref(doc);
            return hth_no_memory("a document");
        }
    }
    return doc != NULL && json_object_set_new(files, key, doc) == 0 ? HTH_OK
                                                                    : hth_no_memory("a document");
}

static hth_err plan_files(const query *q, const hth_problem *problem, const hth_plan *plan,
                          json_t *out)
{
    hth_err err = HTH_OK;
    if (json_is_true(json_object_get(q->args, "out"))) {
        err = plan_add(out, "out", hth_plan_json(problem, plan));
    }
    if (err == HTH_OK && json_is_true(json_object_get(q->args, "trace"))) {
        err = plan_add(out, "trace", hth_plan_trace_json(problem, plan, NULL));
    }
    return err;
}

// plan_report describes the plan, with the documents that were asked for.
static hth_err plan_report(const query *q, const hth_problem *problem, const hth_plan *plan,
                           json_t **out)
{
    uint64_t floor = 0, streamed = 0;
    HTH_TRY(strcmp(plan->policy, "inference") == 0 ? hth_plan_floor(problem, &floor)
                                                   : hth_plan_train_floor(problem, &floor));
    for (int t = 0; plan->streamed != NULL && t < problem->n_tensors; t++) {
        streamed += plan->streamed[t] ? problem->tensors[t].bytes : 0;
    }
    *out = json_pack("{s:s, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:i, s:i, s:i, s:I, s:I}",
                     "policy", plan->policy, "budget_bytes", (json_int_t)problem->budget,
                     "predicted_us", plan->predicted_us, "lower_bound_us", plan->lower_bound_us,
                     "arena_bytes", (json_int_t)plan->arena_bytes, "live_peak_bytes",
                     (json_int_t)plan->live_peak_bytes, "resident_bytes",
                     (json_int_t)plan->resident_bytes, "host_bytes", (json_int_t)plan->host_bytes,
                     "plan_ms", plan->plan_ms, "instructions", plan->n_instrs, "nodes",
                     problem->n_nodes, "tensors", problem->n_tensors, "streamed_bytes",
                     (json_int_t)streamed, "floor_bytes", (json_int_t)floor);
    if (*out == NULL) {
        return hth_no_memory("a plan's report");
    }
    return plan_files(q, problem, plan, *out);
}

// problem_budget takes the budget that is given, a share of the problem's own perhaps.
static hth_err problem_budget(const char *text, hth_problem *problem)
{
    if (text != NULL && strchr(text, '%') != NULL && problem->budget == 0) {
        return hth_fail(HTH_EINVAL,
                        "'%.80s': the problem has no budget of its own; give bytes, such "
                        "as 512MiB",
                        text);
    }
    return text != NULL
               ? hth_err_prefix(hth_parse_size(text, problem->budget, &problem->budget), "budget")
               : HTH_OK;
}

static hth_err plan_verified(const query *q, const hth_problem *problem, const hth_plan *plan,
                             json_t **out)
{
    HTH_TRY(hth_plan_verify(problem, plan));
    return plan_report(q, problem, plan, out);
}

// As of a training step.
static hth_err problem_options(const query *q, hth_plan_options *out)
{
    double seed;
    *out = (hth_plan_options){.limit_ms = 0};
    HTH_TRY(hth_spec_number(q->args, "plan-ms", 0, 0, HTH_SPEC_MOST_PLAN_MS, &out->limit_ms));
    HTH_TRY(hth_spec_number(q->args, "seed", 0, 0, HTH_SPEC_MOST_SEED, &seed));
    out->seed = (uint64_t)seed;
    return HTH_OK;
}

// A problem that came with the question.
typedef struct problem_search {
    const query *q;
    hth_problem problem;
    hth_plan_options options;
    bool inference;
    hth_plan *plan;
    json_t **out;
} problem_search;

// Nothing here is the engine's thread's own: how long it takes, the plan's check and report
// included, is for the problem to say.
static hth_err problem_plan(void *arg)
{
    problem_search *x = arg;
    HTH_TRY(x->inference ? hth_plan_inference(&x->problem, &x->plan)
                         : hth_plan_train(&x->problem, &x->options, &x->plan));
    return plan_verified(x->q, &x->problem, x->plan, x->out);
}

// Whose thread asks; NULL: any.
static hth_site *query_site(const query *q)
{
    return q->ms != NULL ? q->ms->site : NULL;
}

// plan_problem plans a problem that came with the question, for its own budget or the one given.
static hth_err plan_problem(const query *q, json_t **out)
{
    problem_search x = {.q = q, .out = out};
    HTH_TRY(problem_options(q, &x.options));
    HTH_TRY(hth_problem_from_json(json_object_get(q->args, "problem"), &x.problem));
    hth_err err;
    HTH_GOTO(problem_budget(query_text(q, "budget"), &x.problem), done);
    x.inference =
        query_text(q, "policy") == NULL || strcmp(query_text(q, "policy"), "inference") == 0;
    if (!x.inference) {
        HTH_GOTO(hth_policy_find(query_text(q, "policy"), &x.options.policy), done);
    }
    err = hth_paced_search(query_site(q), q->r, &x.options, problem_plan, &x);
done:
    hth_plan_free(x.plan);
    hth_problem_fini(&x.problem);
    return err;
}

// curve_problem answers with the curve of a problem that came with the question.
static hth_err curve_problem(const query *q, json_t **out)
{
    hth_problem problem = {0};
    hth_plan_options o;
    HTH_TRY(problem_options(q, &o));
    const char *parts = query_text(q, "accumulate");
    if (query_number(q, "accumulate", 1) != 1 || (parts != NULL && strcmp(parts, "1") != 0)) {
        return hth_fail(HTH_ENOTSUP, "a planning problem's batch cannot be split");
    }
    if (query_text(q, "policy") != NULL) {
        HTH_TRY(hth_policy_find(query_text(q, "policy"), &o.policy));
    }
    HTH_TRY(hth_problem_from_json(json_object_get(q->args, "problem"), &problem));
    hth_err err = hth_train_curve_problem(query_site(q), q->r, &problem, &o, out);
    hth_problem_fini(&problem);
    return err;
}

typedef struct plan_answer {
    const query *q;
    json_t **out;
} plan_answer;

static hth_err plan_answer_report(void *ctx, const hth_problem *problem, const hth_plan *plan)
{
    const plan_answer *a = ctx;
    return plan_report(a->q, problem, plan, a->out);
}

// A file's plan is checked: nobody runs it.
static hth_err plan_answer_checked(void *ctx, const hth_problem *problem, const hth_plan *plan)
{
    const plan_answer *a = ctx;
    return plan_verified(a->q, problem, plan, a->out);
}

hth_err hth_query_data(hth_command_id command, json_t *args, json_t **out)
{
    bool curve = command == HTH_COMMAND_CURVE;
    query q = {.args = args};
    hth_train_spec spec;
    if (json_object_get(args, "problem") != NULL) {
        return curve ? curve_problem(&q, out) : plan_problem(&q, out);
    }
    if (!curve && !json_is_true(json_object_get(args, "train"))) {
        return hth_fail(HTH_EINVAL, "profiles are for training steps: add --train");
    }
    HTH_TRY(hth_train_spec_read(args, true, &spec));
    return curve ? hth_train_curve_file(&spec, out)
                 : hth_train_plan_file(&spec, plan_answer_checked, &(plan_answer){&q, out});
}

hth_err query_curve(query *call, json_t **out)
{
    hth_train_spec spec;
    if (json_object_get(call->args, "problem") != NULL) {
        return curve_problem(call, out);
    }
    HTH_TRY(query_spec(call, call->args, &spec));
    return hth_train_curve(call->ms, &spec, call->r, out);
}

hth_err query_plan(query *call, json_t **out)
{
    if (json_is_true(json_object_get(call->args, "train"))) {
        hth_train_spec spec;
        HTH_TRY(query_spec(call, call->args, &spec));
        json_t *profile;
        hth_err err = hth_train_plan(call->ms, &spec, call->r, plan_answer_report,
                                     &(plan_answer){call, out}, &profile);
        if (err == HTH_OK && profile != NULL) {
            return plan_add(*out, "write-profile", profile);
        }
        json_decref(profile);
        return err;
    }
    if (json_object_get(call->args, "problem") != NULL) {
        return plan_problem(call, out);
    }
    if (json_object_get(call->args, "profile") != NULL ||
        json_is_true(json_object_get(call->args, "write-profile"))) {
        return hth_fail(HTH_EINVAL, "profiles are for training steps: add --train");
    }
    query_subject s = {.model = NULL};
    hth_err err;
    HTH_GOTO(query_program(call, &s), done);
    HTH_GOTO(plan_report(call, &s.program->problem, s.program->plan, out), done);
    json_object_set_new(*out, "model", json_string(s.model->name));
done:
    query_program_done(call, &s);
    return err;
}

typedef struct convsel_answer {
    hth_site *site;
    hth_request *r; // may be NULL
    json_t *rows;
    bool again;
    char (*key)[HTH_CONVSEL_KEY]; // what was measured again so far
    int n_keys, cap_keys;
} convsel_answer;

// Drops what is remembered of node, once for all nodes that are like it.
static hth_err convsel_drop(convsel_answer *answer, const hth_program *program,
                            const hth_node *node)
{
    char key[HTH_CONVSEL_KEY];
    hth_convsel_key(answer->site->device, program->graph, node, &program->heat, key, sizeof key);
    for (int i = 0; i < answer->n_keys; i++) {
        if (strcmp(answer->key[i], key) == 0) {
            return HTH_OK;
        }
    }
    if (HTH_GROW(answer->key, answer->n_keys, answer->cap_keys) != 0) {
        return hth_no_memory("measuring again");
    }
    memcpy(answer->key[answer->n_keys++], key, sizeof key);
    return hth_convsel_forget(answer->site->device, program->graph, node, &program->heat,
                              answer->site->timings);
}

// Lets others pass before node i of n is measured.
static hth_err convsel_point(const convsel_answer *answer, uint64_t i, uint64_t n)
{
    hth_request *r = answer->r;
    if (r != NULL && r->progress != NULL && answer->again) {
        r->progress(r, "measuring algorithms", i, n);
    }
    (void)hth_work_point(answer->site->queue);
    return r != NULL && *hth_request_canceled(r)
               ? hth_fail(HTH_ECANCELED, "canceled while measuring algorithms")
               : HTH_OK;
}

// A number of JSON, null where there is none such.
static json_t *convsel_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

// One row per choice of each convolution, in whatever direction it computes.
static hth_err convsel_rows(void *ctx, const hth_program *program)
{
    convsel_answer *a = ctx;
    hth_err err = HTH_OK;
    for (int i = 0; err == HTH_OK && i < program->graph->n_nodes; i++) {
        HTH_TRY(convsel_point(a, (uint64_t)i, (uint64_t)program->graph->n_nodes));
        const hth_node *n = &program->graph->nodes[i];
        hth_choice list[HTH_MAX_CHOICES];
        int count = 0;
        bool listed = hth_convsel_lists(a->site->device, n->op);
        if (!listed && !(a->again && program->train != NULL)) { // of a step all nodes are measured
            continue;
        }
        err = a->again ? convsel_drop(a, program, n) : HTH_OK;
        if (err == HTH_OK) {
            err = hth_convsel_measure(a->site->device, program->graph, n, &program->heat,
                                      a->site->timings, list, HTH_MAX_CHOICES, &count);
        }
        if (!listed) {
            continue;
        }
        hth_convsel_front(list, count, hth_convsel_tolerance(program->graph, a->site->tolerance));
        for (int k = 0; err == HTH_OK && k < count; k++) {
            json_array_append_new(
                a->rows,
                json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:o, s:o, s:b, s:b}", "node", n->name,
                          "direction", hth_convsel_direction(n->op), "algorithm", list[k].name,
                          "workspace_bytes", (json_int_t)list[k].workspace_bytes, "resident_bytes",
                          (json_int_t)list[k].resident_bytes, "time_us", list[k].time_us, "error",
                          convsel_number(list[k].error), "rms_error", convsel_number(list[k].rms),
                          "front", list[k].front, "disturbed", list[k].disturbed));
        }
    }
    return err;
}

hth_err query_convsel(query *call, json_t **out)
{
    if (json_is_true(json_object_get(call->args, "pairs"))) {
        return query_pairs(call, out);
    }
    convsel_answer a = {.site = call->ms->site,
                        .r = call->r,
                        .rows = json_array(),
                        .again = json_is_true(json_object_get(call->args, "again"))};
    hth_err err;
    if (json_is_true(json_object_get(call->args, "train"))) {
        hth_train_spec spec;
        err = query_spec(call, call->args, &spec);
        if (err == HTH_OK) {
            err = hth_train_visit(call->ms, &spec, call->r, convsel_rows, &a);
        }
    } else {
        query_subject s = {.model = NULL};
        err = query_program(call, &s);
        if (err == HTH_OK) {
            err = convsel_rows(&a, s.program);
        }
        for (hth_program *p = a.n_keys > 0 ? s.model->source.programs : NULL; p != NULL;
             p = p->next) {
            p->stale = true; // made again, with the new times, when nobody asks
        }
        query_program_done(call, &s);
    }
    hth_free(a.key);
    if (err != HTH_OK) {
        json_decref(a.rows);
        return err;
    }
    *out = a.rows;
    return HTH_OK;
}
