// SPDX-License-Identifier: Apache-2.0
// The memory/time curve of a job's update, in whatever number of parts is best at each point, and
// the least memory that it can be planned for. Nothing is run, and no device memory is taken.
//
// An update in parts is planned as it will be compiled: first the step that updates, then the one
// that adds, with what the first keeps on the device taken from its budget, if it fits then.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "runtime/compile/compile.h"
#include "runtime/paced.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CURVE_NUMBERS   5     // 1, 2, 4, 8, 16 parts
#define CURVE_LEAST_MS  15    // for each plan while the least memory is looked for
#define CURVE_ROOM      32    // a part more than that, so that the next search finds a plan as well
#define CURVE_DEMAND_MS 50    // for each point, at most, of the curve of a job that begins ..
#define CURVE_SHARE     0.005 // .. and of the time that its steps will take, all points together

// One number of parts, compiled.
typedef struct curve_trial {
    hth_trainer *t;
    const hth_trainer_shape *s;
    const hth_plan_options *o;
} curve_trial;

typedef struct curve_jobs {
    hth_plan_options options; // of all
    int n;
    curve_trial trial[CURVE_NUMBERS];
} curve_jobs;

static bool trial_keeps(const hth_program *program, const hth_plan *plan, int slot)
{
    int t = hth_program_slot(program, slot);
    return t >= 0 && !plan->streamed[t];
}

// What one plan keeps and the other does not is moved between them, twice in each update.
static double trial_moves_us(const curve_trial *trial, const hth_plan *apply, const hth_plan *add,
                             const bool *retained)
{
    const hth_problem *p = &trial->s->apply.program->problem;
    double us = 0;
    for (int i = 0; i < trial->t->slots.n; i++) {
        bool here = trial_keeps(trial->s->apply.program, apply, i);
        bool there = retained[i] || trial_keeps(trial->s->add.program, add, i);
        const hth_trainer_phase *only = here ? &trial->s->apply : &trial->s->add;
        bool changes = here != there && only->graph.slots[i].output >= 0;
        double bytes = here != there ? (double)trial->t->slots.bytes[i] : 0;
        us += p->h2d_bytes_per_s > 0 ? bytes / p->h2d_bytes_per_s * 1e6 : 0;
        us += changes && p->d2h_bytes_per_s > 0 ? bytes / p->d2h_bytes_per_s * 1e6 : 0;
    }
    return us;
}

// The adding step as it will be planned: what `apply` keeps is there. *retained_bytes: of the
// budget. apply NULL: nothing stays.
static hth_err trial_problem(const curve_trial *trial, const hth_plan *apply, hth_problem *out,
                             bool *retained, uint64_t *retained_bytes)
{
    const hth_program *add = trial->s->add.program;
    *out = add->problem;
    out->tensors = hth_memdup(out->tensors, (size_t)out->n_tensors * sizeof *out->tensors);
    if (out->tensors == NULL) {
        return hth_no_memory("a curve");
    }
    *retained_bytes = 0;
    for (int i = 0; i < trial->t->slots.n; i++) {
        int t = hth_program_slot(add, i);
        retained[i] = apply != NULL && trial_keeps(trial->s->apply.program, apply, i);
        *retained_bytes += retained[i] ? hth_plan_round(trial->t->slots.bytes[i]) : 0;
        if (t >= 0) {
            out->tensors[t].external = retained[i];
        }
    }
    return HTH_OK;
}

// Plans the adding step with what `keeps` (NULL: nothing) leaves of the budget.
static hth_err trial_second(const curve_trial *trial, uint64_t budget, const hth_plan *keeps,
                            bool *retained, hth_curve_point *add, bool *fits, hth_plan **plan)
{
    hth_problem p;
    uint64_t bytes = 0;
    HTH_TRY(trial_problem(trial, keeps, &p, retained, &bytes));
    hth_err err =
        hth_curve_point_of(&p, trial->o, budget > bytes ? budget - bytes : 0, add, fits, plan);
    add->device_bytes += bytes;
    hth_free(p.tensors);
    return err;
}

// Adds what the adding steps of an update need to *out.
static hth_err trial_add(const curve_trial *trial, uint64_t budget, const hth_plan *apply,
                         bool *retained, hth_curve_point *out, bool *fits)
{
    hth_plan *plan = NULL;
    hth_curve_point add = {.device_bytes = 0};
    double times = (double)(trial->s->parts - 1);
    hth_err err = trial_second(trial, budget, apply, retained, &add, fits, &plan);
    if (err == HTH_OK && !*fits) {
        err = trial_second(trial, budget, NULL, retained, &add, fits, &plan);
    }
    if (err == HTH_OK && *fits) {
        out->device_bytes =
            add.device_bytes > out->device_bytes ? add.device_bytes : out->device_bytes;
        out->host_bytes += add.host_bytes;
        out->time_us += times * add.time_us + trial_moves_us(trial, apply, plan, retained);
        out->lower_bound_us += times * add.lower_bound_us;
        out->h2d_us += times * add.h2d_us;
        out->d2h_us += times * add.d2h_us;
    }
    hth_plan_free(plan);
    return err;
}

static hth_err trial_plan(void *ctx, uint64_t budget, hth_curve_point *out, bool *fits)
{
    const curve_trial *x = ctx;
    hth_plan *plan;
    HTH_TRY(hth_curve_point_of(&x->s->apply.program->problem, x->o, budget, out, fits, &plan));
    if (*fits && x->s->parts > 1) {
        bool *retained = hth_calloc((size_t)x->t->slots.n + 1, sizeof *retained);
        hth_err err = retained == NULL ? hth_no_memory("a curve")
                                       : trial_add(x, budget, plan, retained, out, fits);
        hth_free(retained);
        hth_plan_free(plan);
        out->parts = (int)x->s->parts;
        return err;
    }
    hth_plan_free(plan);
    return HTH_OK;
}

// The best number of parts: the first one that the next does not beat.
static hth_err jobs_plan(void *ctx, uint64_t budget, hth_curve_point *out, bool *fits)
{
    curve_jobs *x = ctx;
    *fits = false;
    for (int i = 0; i < x->n; i++) {
        hth_curve_point point;
        bool one;
        HTH_TRY(trial_plan(&x->trial[i], budget, &point, &one));
        bool better = one && (!*fits || point.time_us < out->time_us * HTH_TRAINER_GAIN);
        if (*fits && !better) {
            break;
        }
        if (better) {
            *out = point;
            *fits = true;
        }
    }
    return HTH_OK;
}

static hth_err curve_open(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                          const hth_tensor *inputs, int64_t parts, bool guess, curve_jobs *jobs)
{
    hth_tensor target;
    hth_trainer *t;
    curve_trial *trial = &jobs->trial[jobs->n];
    HTH_TRY(hth_trainer_open(ms, spec, request, &t));
    jobs->n++;
    trial->t = t;
    trial->o = &jobs->options;
    t->parts = parts;
    t->group = false;
    t->problem_only = true;
    t->guess = guess;
    HTH_TRY(hth_trainer_target(t, inputs, &target));
    HTH_TRY(hth_trainer_shape_make(t, inputs, &target, &t->shapes[0]));
    t->current = 0;
    t->n_shapes = 1;
    trial->s = &t->shapes[0];
    return HTH_OK;
}

static hth_err curve_compile(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                             const hth_tensor *inputs, curve_jobs *jobs)
{
    int64_t parts = spec->accumulate > 0 ? spec->accumulate : 1, n = inputs[0].shape.dim[0];
    int64_t last = spec->accumulate > 0 ? parts : HTH_TRAINER_PARTS;
    if (n % parts != 0) {
        return hth_fail(HTH_EINVAL, "a batch of %lld samples cannot be split into %lld equal parts",
                        (long long)n, (long long)parts);
    }
    for (; parts <= last && n % parts == 0; parts *= 2) {
        HTH_TRY(curve_open(ms, spec, request, inputs, parts, false, jobs));
        if (jobs->trial[0].t->whole) {
            break;
        }
    }
    return HTH_OK;
}

static hth_err curve_limits(const curve_jobs *jobs, uint64_t *peak, uint64_t *floor)
{
    *peak = 0;
    *floor = UINT64_MAX;
    for (int i = 0; i < jobs->n; i++) {
        uint64_t high, low;
        const hth_problem *p = &jobs->trial[i].s->apply.program->problem;
        HTH_TRY(hth_plan_train_peak(p, &high));
        HTH_TRY(hth_plan_train_floor(p, &low));
        *peak = high > *peak ? high : *peak;
        *floor = low < *floor ? low : *floor;
    }
    return HTH_OK;
}

static void curve_close(curve_jobs *jobs)
{
    for (int i = 0; i < jobs->n; i++) {
        hth_trainer_close(jobs->trial[i].t);
    }
}

static hth_err curve_plan(curve_jobs *jobs, void *out)
{
    uint64_t peak, floor;
    HTH_TRY(curve_limits(jobs, &peak, &floor));
    return hth_plan_curve_by(jobs_plan, jobs, peak, floor, out);
}

// A search for some of what is known of the jobs.
typedef struct curve_search {
    hth_err (*find)(curve_jobs *jobs, void *out);
    curve_jobs *jobs;
    void *out;
} curve_search;

static hth_err curve_find(void *arg)
{
    const curve_search *x = arg;
    return x->find(x->jobs, x->out);
}

// Others compute meanwhile.
static hth_err curve_paced(hth_models *ms, const hth_request *request, curve_jobs *jobs,
                           hth_err (*find)(curve_jobs *jobs, void *out), void *out)
{
    return hth_paced_search(ms->site, request, &jobs->options, curve_find,
                            &(curve_search){find, jobs, out});
}

hth_err hth_trainer_curve(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                          const hth_tensor *inputs, hth_curve *out)
{
    curve_jobs x = {.options = spec->plan};
    hth_err err = curve_compile(ms, spec, request, inputs, &x);
    if (err == HTH_OK) {
        err = curve_paced(ms, request, &x, curve_plan, out);
    }
    curve_close(&x);
    return err;
}

// curve_asked plans for the budget that was asked for: a share of it is one of what the batch takes
// as a whole.
static hth_err curve_asked(curve_jobs *jobs, hth_curve *out)
{
    bool fits;
    uint64_t budget = jobs->trial[0].t->budget_bytes;
    *out = (hth_curve){.n = 0};
    HTH_TRY(jobs_plan(jobs, budget, &out->point[0], &fits));
    out->point[0].budget_bytes = budget;
    out->n = fits;
    return HTH_OK;
}

// What a job wants that begins.
typedef struct curve_demand {
    int64_t steps; // that it will take
    bool asked;    // for a budget
    hth_curve *curve;
} curve_demand;

// curve_limit is for how long the search may go on for each point: other jobs wait meanwhile, so
// the curve of a short job costs a small part of its time.
static hth_err curve_limit(curve_jobs *jobs, const curve_demand *demand)
{
    uint64_t peak, floor;
    hth_curve_point point = {.time_us = 0};
    bool fits;
    double points = demand->asked ? 1 : HTH_CURVE_POINTS;
    jobs->options.limit_ms = 1;
    HTH_TRY(curve_limits(jobs, &peak, &floor));
    HTH_TRY(trial_plan(&jobs->trial[0], peak, &point, &fits));
    double share_ms = CURVE_SHARE * point.time_us / 1e3 * (double)demand->steps / points;
    jobs->options.limit_ms = fmin(fmax(share_ms, 1), CURVE_DEMAND_MS);
    return HTH_OK;
}

static hth_err curve_demands(curve_jobs *jobs, void *out)
{
    const curve_demand *demand = out;
    HTH_TRY(curve_limit(jobs, demand));
    return demand->asked ? curve_asked(jobs, demand->curve) : curve_plan(jobs, demand->curve);
}

hth_err hth_trainer_demands(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                            const hth_tensor *inputs, int64_t steps, hth_curve *out)
{
    curve_jobs x = {.options = spec->plan};
    hth_err err = curve_compile(ms, spec, request, inputs, &x);
    if (err == HTH_OK) {
        err = curve_paced(ms, request, &x, curve_demands,
                          &(curve_demand){steps, spec->budget != NULL, out});
    }
    curve_close(&x);
    return err;
}

static hth_err curve_least(curve_jobs *jobs, void *out)
{
    hth_trainer_need *need = out;
    int node;
    uint64_t peak, floor;
    HTH_TRY(curve_limits(jobs, &peak, &floor));
    HTH_TRY(hth_curve_min(trial_plan, &jobs->trial[0], peak, floor, &need->found));
    const hth_problem *p = &jobs->trial[0].s->apply.program->problem;
    need->found += need->found / CURVE_ROOM;
    need->least = hth_plan_min(p, &node);
    snprintf(need->node, sizeof need->node, "%s", node < 0 ? "" : p->nodes[node].name);
    return HTH_OK;
}

hth_err hth_trainer_least(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                          const hth_tensor *inputs, int64_t parts, hth_trainer_need *out)
{
    curve_jobs x = {.options = spec->plan};
    hth_train_spec quick = *spec;
    quick.budget = NULL;
    x.options.limit_ms = CURVE_LEAST_MS;
    x.options.any = true;
    hth_err err = curve_open(ms, &quick, request, inputs, parts, true, &x);
    if (err == HTH_OK) {
        err = curve_paced(ms, request, &x, curve_least, out);
    }
    curve_close(&x);
    return err;
}
