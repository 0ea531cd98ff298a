// SPDX-License-Identifier: Apache-2.0
// A trainer owns what lives from step to step: the slots (parameters, optimizer state, running
// statistics), their memory, and what each batch shape was compiled to.
#include "engine/train/trainer_impl.h"
#include "engine/train/data/train_data.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "runtime/catalog.h"
#include "runtime/paced.h"
#include "runtime/tenants/quota.h"

#include <math.h>
#include <stdio.h>

static hth_err trainer_make(hth_trainer *trainer, const hth_tensor *inputs,
                            const hth_tensor *target, hth_trainer_shape *shape)
{
    return trainer->parts > 0 ? hth_trainer_shape_make(trainer, inputs, target, shape)
                              : hth_trainer_choose(trainer, inputs, target, shape);
}

// The first shape: what it is planned for is the job's budget from then on.
static hth_err trainer_first(hth_trainer *trainer, const hth_tensor *inputs,
                             const hth_tensor *target, hth_trainer_shape *shape)
{
    HTH_TRY(hth_trainer_admit(trainer, inputs));
    hth_err err = trainer_make(trainer, inputs, target, shape);
    if (err == HTH_ETOOBIG && hth_trainer_admit_more(trainer)) {
        err = trainer_make(trainer, inputs, target, shape);
    }
    err = err == HTH_ETOOBIG ? hth_trainer_toobig(trainer, inputs) : err;
    return hth_quota_job(trainer->ms->site, &trainer->share, err);
}

// A step is ready when it has all its memory: a group's for its pass, which needs the most, before
// another job takes that.
static hth_err trainer_enter(hth_trainer *trainer)
{
    hth_trainer_shape *s = hth_trainer_current(trainer);
    HTH_TRY(trainer->group ? hth_trainer_enter(trainer, &s->add) : HTH_OK);
    return hth_trainer_enter(trainer, &s->apply);
}

// The device has the bytes that the first shape was planned for, but not in one piece: once more,
// for the largest piece there is.
static hth_err trainer_smaller(hth_trainer *trainer, const hth_tensor *inputs,
                               const hth_tensor *target)
{
    char why[HTH_TRAINER_WHY];
    hth_pool_ledger ledger;
    snprintf(why, sizeof why, "%s", hth_err_detail());
    hth_pool_ledger_get(trainer->ms->site->pool, &ledger);
    hth_trainer_shape_free(trainer, &trainer->shapes[0]);
    trainer->n_shapes = 0;
    trainer->current = -1;
    trainer->budget_bytes = ledger.largest_free_bytes;
    hth_err err = trainer_make(trainer, inputs, target, &trainer->shapes[0]);
    if (err != HTH_OK) {
        return err == HTH_ETOOBIG ? hth_fail(HTH_ENODEVMEM, "%s", why) : err;
    }
    trainer->current = trainer->n_shapes++;
    return trainer_enter(trainer);
}

static bool trainer_same(const hth_trainer *trainer, const hth_trainer_shape *shape,
                         const hth_tensor *inputs)
{
    bool same = shape->inputs != NULL;
    for (int i = 0; same && i < trainer->model->n_inputs; i++) {
        same = hth_shape_equal(&shape->inputs[i].shape, &inputs[i].shape);
    }
    return same;
}

// trainer_place is where a new shape goes: in the place of the one that was used longest ago, where
// there is no other. The first one stays, and is the current one if the new one cannot be made.
static int trainer_place(hth_trainer *trainer)
{
    int most = trainer->group ? HTH_TRAINER_SHAPES : 2, oldest = 1;
    for (int k = 1; k < trainer->n_shapes; k++) {
        bool older = trainer->shapes[k].used < trainer->shapes[oldest].used;
        if (trainer->shapes[k].inputs == NULL) {
            return k;
        }
        oldest = older ? k : oldest;
    }
    if (trainer->n_shapes < most) {
        return trainer->n_shapes;
    }
    hth_trainer_shape_free(trainer, &trainer->shapes[oldest]);
    trainer->current = 0;
    return oldest;
}

hth_err hth_trainer_prepare(hth_trainer *trainer, const hth_tensor *inputs,
                            const hth_tensor *target)
{
    for (int k = 0; k < trainer->n_shapes; k++) {
        if (trainer_same(trainer, &trainer->shapes[k], inputs)) {
            trainer->current = k;
            trainer->shapes[k].used = ++trainer->prepared;
            return HTH_OK;
        }
    }
    int place = trainer_place(trainer);
    hth_trainer_shape *s = &trainer->shapes[place];
    HTH_TRY(place == 0 ? trainer_first(trainer, inputs, target, s)
                       : hth_trainer_shape_make(trainer, inputs, target, s));
    trainer->current = place;
    trainer->n_shapes += place == trainer->n_shapes;
    s->used = ++trainer->prepared;
    hth_err err = trainer_enter(trainer);
    if (err == HTH_ENODEVMEM && trainer->n_shapes == 1 && trainer->spec->budget == NULL &&
        !trainer->admission.exact) {
        err = trainer_smaller(trainer, inputs, target);
    }
    if (err == HTH_OK) {
        hth_trainer_share(trainer);
    }
    return err;
}

hth_err hth_trainer_replan(hth_trainer *trainer)
{
    hth_replan_stop(trainer);
    HTH_TRY(hth_trainer_slots_leave(&trainer->slots));
    while (trainer->n_shapes > 0) {
        hth_trainer_shape_free(trainer, &trainer->shapes[--trainer->n_shapes]);
    }
    hth_pool_free(trainer->ms->site->pool, trainer->memory);
    hth_free(trainer->retained);
    trainer->memory = NULL;
    trainer->retained = NULL;
    trainer->memory_bytes = trainer->budget_bytes = trainer->eval_bytes = 0;
    trainer->admission = (hth_train_admission){.ask = NULL};
    trainer->current = -1;
    hth_trainer_share(trainer);
    return HTH_OK;
}

// What the labels of a whole batch weigh together.
double hth_trainer_norm(const hth_trainer *trainer, const hth_tensor *labels)
{
    double sum = 0;
    for (int64_t i = 0; i < hth_shape_elements(&labels->shape); i++) {
        int64_t label = hth_train_data_label(labels, (size_t)i);
        bool weighs = trainer->weights != NULL && label >= 0 && label < trainer->n_weights;
        double weight = weighs ? (double)trainer->weights[label] : 1;
        sum += label == HTH_TRAIN_IGNORED ? 0 : weight;
    }
    return sum;
}

// A batch in parts has one mean: each part is divided by what the whole one is, over the parts.
void hth_trainer_hyper(hth_trainer *trainer, int64_t parts, double norm)
{
    const hth_train_spec *s = trainer->spec;
    bool adam =
        s->options.optimizer == HTH_OPTIMIZER_ADAM || s->options.optimizer == HTH_OPTIMIZER_ADAMW;
    double n = (double)(trainer->counter + 1);
    trainer->hyper[HTH_HYPER_LR] = (float)trainer->lr;
    trainer->hyper[HTH_HYPER_BETA1] = (float)(adam ? s->beta1 : s->momentum);
    trainer->hyper[HTH_HYPER_BETA2] = (float)s->beta2;
    trainer->hyper[HTH_HYPER_EPS] = (float)s->eps;
    trainer->hyper[HTH_HYPER_DECAY] = (float)s->weight_decay;
    trainer->hyper[HTH_HYPER_GRAD_SCALE] = (float)(1.0 / (double)parts);
    trainer->hyper[HTH_HYPER_CORRECT1] = (float)(1 - pow((float)s->beta1, n));
    trainer->hyper[HTH_HYPER_CORRECT2] = (float)(1 - pow((float)s->beta2, n));
    trainer->hyper[HTH_HYPER_CLIP] = 0;
    trainer->hyper[HTH_HYPER_LOSS_NORM] = (float)(norm / (double)parts);
}

// Runs what is ready, for the timeline too when it gets this step.
static hth_err trainer_run(hth_trainer *trainer, hth_trainer_phase *phase)
{
    hth_program *p = phase->program;
    uint64_t from_ns = hth_now_ns();
    if (trainer->measured) {
        hth_run_measure(p->run, true);
    }
    hth_err err = hth_program_run(trainer->ms->site, p, phase->in, phase->out,
                                  trainer->progress != NULL ? &trainer->progress->canceled : NULL);
    if (trainer->measured && err == HTH_OK) {
        hth_timeline_add(trainer->timeline, &p->problem, p->plan, hth_run_times(p->run), from_ns);
    }
    if (trainer->measured) { // the watch may need all steps
        hth_run_measure(p->run, hth_replan_measures(trainer, p));
    }
    return err;
}

// Each part draws other random numbers.
hth_err hth_trainer_part(hth_trainer *trainer, hth_trainer_phase *phase, int64_t part,
                         uint64_t draw, const hth_tensor *inputs, const hth_tensor *target,
                         float *loss)
{
    HTH_TRY(hth_trainer_enter(trainer, phase));
    hth_trainer_bind(trainer, phase);
    hth_tensor *to = &phase->in[phase->graph.target];
    for (int i = 0; i < phase->graph.n_data; i++) {
        phase->in[i].data = (char *)inputs[i].data + (size_t)part * phase->in[i].bytes;
    }
    to->data = (char *)target->data + (size_t)part * to->bytes;
    trainer->step_input =
        (trainer->spec->seed << 32) + trainer->counter + draw * 0x9E3779B97F4A7C15u;
    *loss = 0;
    phase->out[0].data = loss;
    const hth_work_queue *queue = trainer->ms->site->queue;
    uint64_t from_ns = hth_now_ns(), others_ns = hth_work_others_ns(queue);
    HTH_TRY(trainer_run(trainer, phase));
    uint64_t took_ns = hth_now_ns() - from_ns - (hth_work_others_ns(queue) - others_ns);
    bool watched = phase == &trainer->shapes[0].add || trainer->shapes[0].parts == 1;
    trainer->part_ns = watched ? took_ns : trainer->part_ns;
    trainer->run_ns += took_ns;
    trainer->stall_ns += hth_run_stall_ns(phase->program->run);
    for (int i = 0; i < trainer->slots.n; i++) {
        if (phase->graph.slots[i].output >= 0) {
            hth_trainer_slots_changed(&trainer->slots, i);
        }
    }
    return HTH_OK;
}

hth_err hth_trainer_step(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                         float *loss)
{
    hth_trainer_shape *s = hth_trainer_current(trainer);
    double sum = 0;
    hth_err err = HTH_OK;
    bool weighed = trainer->spec->options.loss == HTH_LOSS_SOFTMAX_XENT && trainer->parts != 1;
    hth_trainer_hyper(trainer, s->parts, weighed ? hth_trainer_norm(trainer, target) : 0);
    hth_trainer_slots_unview(&trainer->slots);
    trainer->stall_ns = trainer->run_ns = 0;
    trainer->measured = hth_timeline_begin(trainer->timeline, hth_now_ns());
    for (int64_t i = 0; i < s->parts && err == HTH_OK; i++) {
        err = hth_trainer_part(trainer, i + 1 < s->parts ? &s->add : &s->apply, i, (uint64_t)i,
                               inputs, target, loss);
        sum += *loss;
    }
    *loss = s->parts > 1 ? (float)(sum / (double)s->parts) : *loss;
    HTH_TRY(err);
    trainer->counter++;
    if (trainer->measured) {
        hth_timeline_end(trainer->timeline, trainer->counter, hth_now_ns());
    }
    return s == &trainer->shapes[0] ? hth_replan_step(trainer, (double)trainer->run_ns / 1e3,
                                                      (double)trainer->part_ns / 1e3)
                                    : HTH_OK;
}

double hth_trainer_stall_ms(const hth_trainer *trainer)
{
    return (double)trainer->stall_ns / 1e6;
}

void hth_trainer_link(const hth_trainer *trainer, double *in, double *out)
{
    const hth_curve_point *point = &trainer->share.point;
    *in = point->time_us > 0 ? fmin(1, point->h2d_us / point->time_us) : 0;
    *out = point->time_us > 0 ? fmin(1, point->d2h_us / point->time_us) : 0;
}

void hth_trainer_set_admission(hth_trainer *trainer, const hth_train_admission *admission)
{
    trainer->admission = *admission;
    trainer->replan.steps = admission->steps;
}

uint64_t hth_trainer_budget_bytes(const hth_trainer *trainer)
{
    return trainer->budget_bytes;
}

uint64_t hth_trainer_memory_bytes(const hth_trainer *trainer)
{
    return trainer->memory_bytes;
}

void hth_trainer_timeline(hth_trainer *trainer, hth_timeline *timeline)
{
    trainer->timeline = timeline;
}

void hth_trainer_rate(hth_trainer *trainer, double lr)
{
    trainer->lr = lr;
}

const hth_program *hth_trainer_program(const hth_trainer *trainer)
{
    return trainer->current >= 0 ? hth_trainer_current(trainer)->apply.program : NULL;
}

const hth_train_graph *hth_trainer_graph(const hth_trainer *trainer)
{
    return &hth_trainer_current(trainer)->apply.graph;
}

const hth_graph *hth_trainer_model(const hth_trainer *trainer)
{
    return trainer->model;
}

const hth_account *hth_trainer_account(const hth_trainer *trainer)
{
    return &trainer->account;
}

bool hth_trainer_whole(const hth_trainer *trainer)
{
    return trainer->whole;
}

hth_train_options hth_trainer_options(const hth_trainer *trainer)
{
    hth_train_options o = trainer->spec->options;
    o.weights = trainer->weights;
    o.n_weights = trainer->n_weights;
    o.sync_bn = trainer->group && trainer->spec->sync_bn;
    return o;
}

int64_t hth_trainer_classes(const hth_trainer *trainer)
{
    const hth_trainer_shape *s = hth_trainer_current(trainer);
    const hth_graph *g = (trainer->group ? &s->add : &s->apply)->graph.graph;
    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op == HTH_OP_SOFTMAX_XENT) {
            const hth_shape *s = &g->values[g->nodes[i].inputs[0]].shape;
            return s->dim[trainer->spec->options.class_axis < 0 ? s->rank - 1 : 1];
        }
    }
    return 0;
}

// The step of such inputs, only to look at.
static hth_err trainer_look(hth_trainer *trainer, const hth_tensor *inputs,
                            const hth_train_options *options, hth_train_graph *out)
{
    hth_paced paced;
    hth_paced_begin(&paced, trainer->ms->site, trainer->progress);
    hth_err err = hth_train_build(trainer->model, inputs, options, hth_ref_eval, NULL, out);
    hth_paced_end(&paced);
    return err;
}

hth_err hth_trainer_target(hth_trainer *trainer, const hth_tensor *inputs, hth_tensor *target)
{
    hth_train_graph g;
    const hth_train_options o = hth_trainer_options(trainer);
    HTH_TRY(trainer_look(trainer, inputs, &o, &g));
    const hth_value *v = &g.graph->values[g.graph->inputs[g.target]];
    *target = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
    hth_err err = hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &target->bytes);
    hth_train_graph_fini(&g);
    return err;
}

hth_err hth_trainer_class_axis(hth_trainer *trainer, const hth_tensor *inputs,
                               const hth_shape *labels, int *axis)
{
    hth_train_graph g;
    const hth_train_options o = trainer->spec->options; // weights are counted when it is known
    HTH_TRY(trainer_look(trainer, inputs, &o, &g));
    hth_err err = hth_train_class_axis(&g, labels, axis);
    hth_train_graph_fini(&g);
    return err;
}

// The first shape's, whichever the last batch had: to a smaller one more slots may have stayed.
hth_err hth_trainer_arena(hth_trainer *trainer, void **out, uint64_t *bytes)
{
    if (trainer->current < 0) {
        return hth_fail(HTH_EINVAL, "there is no step to share memory with");
    }
    hth_trainer_phase *s = &trainer->shapes[0].apply;
    HTH_TRY(hth_trainer_enter(trainer, s));
    *out = s->program->arena;
    *bytes = trainer->memory_bytes - s->slots_bytes;
    return HTH_OK;
}

void hth_trainer_evaluates(hth_trainer *trainer, uint64_t bytes)
{
    trainer->eval_bytes = bytes > trainer->eval_bytes ? bytes : trainer->eval_bytes;
}

// A batch is taken in parts only where they make the same update together: `auto` never divides
// others, and who asks for it is told.
static hth_err trainer_divides(hth_trainer *trainer)
{
    hth_independence samples;
    HTH_TRY(hth_train_divides(trainer->model, &trainer->spec->options, &samples));
    trainer->whole = !samples.proven;
    trainer->parts = trainer->whole ? 1 : trainer->parts;
    if (trainer->group) {
        trainer->parts = 2;
        return samples.proven ? HTH_OK
                              : hth_fail(HTH_EINVAL,
                                         "several devices cannot train this model together, "
                                         "because its samples are not independent: %s",
                                         samples.why);
    }
    return samples.proven || trainer->spec->accumulate <= 1
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "a batch cannot be split into %lld parts, because the model's samples "
                          "are not independent: %s",
                          (long long)trainer->spec->accumulate, samples.why);
}

static hth_err trainer_weights(hth_trainer *trainer)
{
    const json_t *list = trainer->spec->weights;
    size_t n = json_is_array(list) ? json_array_size(list) : 1;
    if (list == NULL) {
        return HTH_OK;
    }
    trainer->weights = hth_calloc(n, sizeof *trainer->weights);
    if (trainer->weights == NULL) {
        return hth_no_memory("a training job");
    }
    trainer->n_weights = (int)n;
    for (size_t i = 0; i < n; i++) {
        trainer->weights[i] =
            (float)json_number_value(json_is_array(list) ? json_array_get(list, i) : list);
    }
    return HTH_OK;
}

// trainer_read reads the model, and what of the job depends on it.
static hth_err trainer_read(hth_trainer *trainer, const char *name, int version)
{
    hth_store *store = trainer->ms->store;
    const json_t *profile = trainer->spec->profile;
    HTH_TRY(hth_store_get(store, name, version, &trainer->manifest));
    HTH_TRY(hth_model_graph(store, &trainer->manifest, &trainer->model));
    HTH_TRY(trainer_divides(trainer));
    HTH_TRY(trainer_weights(trainer));
    return profile != NULL ? hth_profile_from_json(profile, &trainer->profile) : HTH_OK;
}

hth_err hth_trainer_open(hth_models *ms, const hth_train_spec *spec, hth_request *progress,
                         hth_trainer **out)
{
    char name[208];
    int version;
    *out = NULL;
    HTH_TRY(hth_catalog_parse(spec->model, name, &version));
    hth_trainer *t = hth_calloc(1, sizeof *t);
    if (t == NULL) {
        return hth_no_memory("a training job");
    }
    *t = (hth_trainer){.ms = ms,
                       .spec = spec,
                       .progress = progress,
                       .current = -1,
                       .parts = spec->accumulate,
                       .group = spec->group,
                       .replan = {.n_samples = -1, .on = spec->replan},
                       .share = {.account = &t->account},
                       .account = {.job = true},
                       .lr = spec->lr};
    snprintf(t->account.name, sizeof t->account.name, "%s",
             spec->save_as != NULL ? spec->save_as : name);
    snprintf(t->account.tenant, sizeof t->account.tenant, "%s",
             progress != NULL && progress->tenant != NULL ? progress->tenant : HTH_TENANT_OWN);
    hth_err err = trainer_read(t, name, version);
    if (err != HTH_OK) {
        hth_trainer_close(t);
        return err;
    }
    *out = t;
    return HTH_OK;
}

void hth_trainer_close(hth_trainer *trainer)
{
    if (trainer == NULL) {
        return;
    }
    hth_replan_stop(trainer);
    while (trainer->n_shapes > 0) {
        hth_trainer_shape_free(trainer, &trainer->shapes[--trainer->n_shapes]);
    }
    hth_trainer_kept_close(trainer);
    hth_trainer_slots_close(&trainer->slots);
    hth_pool_free(trainer->ms->site->pool, trainer->memory);
    trainer->memory_bytes = 0;
    hth_trainer_share(trainer);
    hth_free(trainer->retained);
    hth_free(trainer->statistics);
    hth_free(trainer->elsewhere);
    hth_trainer_zeros_close(trainer);
    hth_free(trainer->weights);
    hth_profile_close(trainer->profile);
    hth_graph_free(trainer->model);
    hth_manifest_fini(&trainer->manifest);
    hth_free(trainer);
}
