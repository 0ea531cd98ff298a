// SPDX-License-Identifier: Apache-2.0
// A training step on one synthetic batch, planned, or planned for every budget; for this device or,
// from a profile, for another one; and the profile of this device.
#include "engine/train/train.h"

#include "base/alloc.h"
#include "base/size.h"
#include "convsel/profile.h"
#include "graph/onnx/onnx.h"
#include "planner/plan_curve.h"
#include "runtime/compile/compile.h"
#include "runtime/paced.h"

#include <stdio.h>

// plan_images refuses to normalise images where the model reads none.
static hth_err plan_images(const hth_model *model, const hth_train_spec *spec,
                           const hth_tensor *inputs)
{
    bool any = !spec->options.scale.images;
    for (int i = 0; i < model->source.graph->n_inputs; i++) {
        any = any || (inputs[i].dtype == HTH_DT_F32 && inputs[i].shape.rank == 4);
    }
    return any ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "--normalize is for images [N, C, H, W], and model '%s' reads none",
                          model->name);
}

// With a scale the largest input that reads floats is made of bytes.
hth_err hth_train_synthetic(const hth_model *model, const hth_train_spec *spec, bool whole,
                            hth_tensor *inputs)
{
    int most = -1;
    HTH_TRY(hth_model_synthetic(model, spec->batch, whole, inputs));
    HTH_TRY(plan_images(model, spec, inputs));
    for (int i = 0; i < model->source.graph->n_inputs && spec->options.scale.on; i++) {
        if (inputs[i].dtype == HTH_DT_F32 && (most < 0 || inputs[i].bytes > inputs[most].bytes)) {
            most = i;
        }
    }
    if (most < 0) {
        return spec->options.scale.on
                   ? hth_fail(HTH_EINVAL,
                              "--scale makes floats of bytes, and model '%s' reads none",
                              model->name)
                   : HTH_OK;
    }
    hth_tensor *t = &inputs[most];
    t->dtype = HTH_DT_U8;
    t->bytes /= sizeof(float);
    for (size_t k = 0; t->data != NULL && k < t->bytes; k++) {
        ((uint8_t *)t->data)[k] = (uint8_t)(k * 2654435761u >> 13);
    }
    return HTH_OK;
}

// elsewhere_step builds the step that `spec` describes of the model's graph.
static hth_err elsewhere_step(hth_site *site, const hth_graph *graph, const hth_train_spec *spec,
                              const hth_request *request, const hth_tensor *inputs,
                              hth_train_graph *step)
{
    hth_paced paced;
    hth_paced_begin(&paced, site, request);
    hth_err err = hth_train_build(graph, inputs, &spec->options, hth_ref_eval, NULL, step);
    hth_paced_end(&paced);
    return err;
}

// elsewhere_plan plans the step of `graph`, or only makes its problem; the model's own has the same
// inputs.
static hth_err elsewhere_plan(hth_site *site, const hth_model *model, const hth_graph *graph,
                              const hth_train_spec *spec, hth_request *request, bool plans,
                              hth_err (*visit)(void *ctx, const hth_program *program), void *ctx)
{
    hth_profile *profile = NULL;
    hth_program *p = NULL;
    hth_train_graph step = {.graph = NULL};
    uint64_t budget = 0;
    int n = model->source.graph->n_inputs;
    hth_tensor *inputs = hth_calloc((size_t)n + 1, sizeof *inputs);
    if (inputs == NULL) {
        return hth_no_memory("a synthetic batch");
    }
    hth_err err;
    HTH_GOTO(hth_train_synthetic(model, spec, false, inputs), done);
    HTH_GOTO(hth_profile_from_json(spec->profile, &profile), done);
    HTH_GOTO(elsewhere_step(site, graph, spec, request, inputs, &step), done);
    hth_step_spec s = {.train = &step,
                       .budget = spec->budget,
                       .budget_bytes = &budget,
                       .options = spec->plan,
                       .profile = profile,
                       .plan_only = true,
                       .problem_only = !plans};
    HTH_GOTO(hth_program_compile_step(site, &s, false, request, &p), done);
    err = visit(ctx, p);
done:
    hth_program_free(site, p);
    hth_train_graph_fini(&step);
    hth_profile_close(profile);
    for (int i = 0; i < n; i++) {
        hth_free(inputs[i].data);
    }
    hth_free(inputs);
    return err;
}

hth_err hth_train_elsewhere(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                            bool plans, hth_err (*visit)(void *ctx, const hth_program *program),
                            void *ctx)
{
    hth_model *model = NULL;
    hth_graph *graph = NULL;
    HTH_TRY(hth_model_find(ms, spec->model, &model));
    hth_paced paced;
    hth_paced_begin(&paced, ms->site, request);
    hth_err err = hth_model_graph(ms->store, &model->manifest, &graph);
    hth_paced_end(&paced);
    HTH_TRY(err);
    err = elsewhere_plan(ms->site, model, graph, spec, request, plans, visit, ctx);
    hth_graph_free(graph);
    return err;
}

// file_site opens what kernels are prepared on, which tell the forms of weights and what may be in
// place: nothing runs there, so it needs hardly any memory.
static hth_err file_site(hth_site *site)
{
    HTH_TRY(hth_device_open("cpu:mem=1MiB,threads=1", &site->device));
    HTH_TRY(hth_pool_open(site->device, site->device->props.budget_bytes, &site->pool));
    return hth_residency_open(site->pool, &site->residency);
}

static void file_site_close(hth_site *site)
{
    hth_residency_close(site->residency);
    hth_pool_close(site->pool);
    hth_device_close(site->device);
}

// The costs of a program's nodes, as measured here.
static hth_err plan_profile(const hth_site *site, const hth_program *program, json_t **out)
{
    hth_profile *profile;
    const hth_link link = {site->link_bytes_per_s, site->link_back_bytes_per_s,
                           site->link_latency_us,  site->copy_interference,
                           site->copy_us,          site->traffic_bytes_per_s};
    const hth_device_props *props = &site->device->props;
    HTH_TRY(hth_profile_new(props->fingerprint, props->budget_bytes, &link, &profile));
    hth_err err = HTH_OK;
    for (int i = 0; err == HTH_OK && i < program->graph->n_nodes; i++) {
        hth_choice list[HTH_MAX_CHOICES];
        int n;
        err = hth_convsel_measure(site->device, program->graph, &program->graph->nodes[i],
                                  &program->heat, site->timings, list, HTH_MAX_CHOICES, &n);
        if (err == HTH_OK) {
            err = hth_profile_add(profile, program->graph, &program->graph->nodes[i], list, n);
        }
    }
    if (err == HTH_OK && (*out = hth_profile_json(profile)) == NULL) {
        err = hth_no_memory("a profile");
    }
    hth_profile_close(profile);
    return err;
}

typedef struct plan_of {
    const hth_site *site;
    json_t **profile; // NULL: not wanted
    hth_err (*report)(void *ctx, const hth_problem *problem, const hth_plan *plan);
    void *ctx;
} plan_of;

static hth_err plan_visit(void *ctx, const hth_program *program)
{
    const plan_of *x = ctx;
    if (x->profile != NULL) {
        HTH_TRY(plan_profile(x->site, program, x->profile));
    }
    return x->report(x->ctx, &program->problem, program->plan);
}

static hth_err plan_one_way(const hth_train_spec *spec)
{
    return spec->profile != NULL && spec->write_profile
               ? hth_fail(HTH_EINVAL, "a profile is read or written, not both: what is written is "
                                      "measured on this device")
               : HTH_OK;
}

hth_err hth_train_plan(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                       hth_err (*report)(void *ctx, const hth_problem *problem,
                                         const hth_plan *plan),
                       void *ctx, json_t **profile)
{
    plan_of x = {ms->site, spec->write_profile ? profile : NULL, report, ctx};
    *profile = NULL;
    HTH_TRY(plan_one_way(spec));
    return hth_train_visit(ms, spec, request, plan_visit, &x);
}

// file_visit plans the step of a model's file, which has no store, and calls visit.
static hth_err file_visit(const hth_train_spec *spec, hth_site *site, bool plans,
                          hth_err (*visit)(void *ctx, const hth_program *program), void *ctx)
{
    hth_model model = {.max_batch = -1};
    if (spec->profile == NULL) {
        return hth_fail(HTH_EINVAL, "a model file is planned for the device of a profile: give "
                                    "--profile FILE, or import the model");
    }
    snprintf(model.name, sizeof model.name, "%s", spec->model);
    hth_err err;
    HTH_GOTO(hth_onnx_load_file(spec->model, &model.source.graph), done);
    HTH_GOTO(file_site(site), done);
    err = elsewhere_plan(site, &model, model.source.graph, spec, NULL, plans, visit, ctx);
done:
    file_site_close(site);
    hth_graph_free(model.source.graph);
    return err;
}

hth_err hth_train_plan_file(const hth_train_spec *spec,
                            hth_err (*report)(void *ctx, const hth_problem *problem,
                                              const hth_plan *plan),
                            void *ctx)
{
    hth_site site = {.device = NULL};
    plan_of x = {&site, NULL, report, ctx};
    HTH_TRY(plan_one_way(spec));
    return file_visit(spec, &site, true, plan_visit, &x);
}

typedef struct curve_of {
    hth_site *site; // whose thread calls; NULL: any
    const hth_request *request;
    hth_plan_options options;
    const hth_problem *problem;
    hth_curve curve;
} curve_of;

static hth_err curve_search(void *arg)
{
    curve_of *x = arg;
    return hth_plan_curve(x->problem, &x->options, &x->curve);
}

static hth_err curve_visit(void *ctx, const hth_program *program)
{
    curve_of *x = ctx;
    x->problem = &program->problem;
    return hth_paced_search(x->site, x->request, &x->options, curve_search, x);
}

// For this device: in parts, too.
static hth_err curve_here(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                          hth_curve *out)
{
    hth_model *model;
    HTH_TRY(hth_model_find(ms, spec->model, &model));
    int n = model->source.graph->n_inputs;
    hth_tensor *inputs = hth_calloc((size_t)n + 1, sizeof *inputs);
    hth_err err = inputs == NULL ? hth_no_memory("a synthetic batch")
                                 : hth_train_synthetic(model, spec, false, inputs);
    if (err == HTH_OK) {
        err = hth_trainer_curve(ms, spec, request, inputs, out);
    }
    for (int i = 0; inputs != NULL && i < n; i++) {
        hth_free(inputs[i].data);
    }
    hth_free(inputs);
    return err;
}

// A share of `whole`; all of it where there is nothing to have a share of.
static double curve_share(double part, double whole)
{
    return whole > 0 ? part / whole : 1;
}

static hth_err curve_answer(const hth_curve *curve, json_t **out)
{
    if (curve->n == 0) {
        hth_size peak, floor;
        hth_size_pair(curve->peak_bytes, curve->floor_bytes, &peak, &floor);
        return hth_fail(HTH_ETOOBIG, "no plan was found for %s or less; needs at least %s",
                        peak.text, floor.text);
    }
    double fastest_us = curve->point[curve->n - 1].time_us;
    *out = json_array();
    for (int i = 0; i < curve->n; i++) {
        const hth_curve_point *p = &curve->point[i];
        json_t *row = json_pack(
            "{s:f, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "share",
            curve_share((double)p->budget_bytes, (double)curve->peak_bytes), "accumulate", p->parts,
            "budget_bytes", (json_int_t)p->budget_bytes, "device_bytes",
            (json_int_t)p->device_bytes, "host_bytes", (json_int_t)p->host_bytes, "time_ms",
            p->time_us / 1e3, "slowdown", curve_share(p->time_us, fastest_us), "lower_bound_ms",
            p->lower_bound_us / 1e3, "link_in_ms", p->h2d_us / 1e3, "link_out_ms", p->d2h_us / 1e3);
        if (json_array_append_new(*out, row) != 0) {
            json_decref(*out);
            *out = NULL;
            return hth_no_memory("a curve");
        }
    }
    return HTH_OK;
}

// Of a profile's device the batch is taken as a whole.
static hth_err curve_whole(const hth_train_spec *spec)
{
    return spec->profile != NULL && spec->accumulate != 1
               ? hth_fail(HTH_ENOTSUP, "batches cannot be split for the device of a profile")
               : HTH_OK;
}

hth_err hth_train_curve(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                        json_t **out)
{
    curve_of x = {.site = ms->site, .request = request, .options = spec->plan};
    HTH_TRY(curve_whole(spec));
    HTH_TRY(spec->profile != NULL ? hth_train_elsewhere(ms, spec, request, false, curve_visit, &x)
                                  : curve_here(ms, spec, request, &x.curve));
    return curve_answer(&x.curve, out);
}

hth_err hth_train_curve_file(const hth_train_spec *spec, json_t **out)
{
    hth_site site = {.device = NULL};
    curve_of x = {.options = spec->plan};
    HTH_TRY(curve_whole(spec));
    HTH_TRY(file_visit(spec, &site, false, curve_visit, &x));
    return curve_answer(&x.curve, out);
}

hth_err hth_train_curve_problem(hth_site *site, const hth_request *request,
                                const hth_problem *problem, const hth_plan_options *options,
                                json_t **out)
{
    curve_of x = {.options = *options, .problem = problem};
    HTH_TRY(hth_paced_search(site, request, &x.options, curve_search, &x));
    return curve_answer(&x.curve, out);
}
