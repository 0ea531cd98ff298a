// SPDX-License-Identifier: Apache-2.0
// A training job made ready: everything that can be wrong is found here, before its first step.
#include "engine/train/train_job_impl.h"

#include "base/alloc.h"
#include "base/size.h"
#include "runtime/catalog.h"
#include "runtime/precision.h"
#include "engine/serve/version_swap.h"
#include "group/sequence.h"

#include <stdio.h>
#include <string.h>

// Of the index's pages, in addition to the tensors.
#define ROOM_INDEX ((uint64_t)64 << 10)

// The version that is trained goes with the arguments: a job asked for by name stays with it, and
// the checkpoint of another one is of another job.
static hth_err job_pin(hth_train_job *job, hth_model **out)
{
    char name[HTH_CHECKPOINT_JOB];
    int version, begun = (int)json_integer_value(json_object_get(job->args, "version"));
    HTH_TRY(hth_checkpoint_job(job->args, name)); // the result's name
    HTH_TRY(hth_store_alias_free(job->ms->store, name));
    HTH_TRY(hth_catalog_parse(job->spec.model, name, &version));
    if (begun > 0) {
        snprintf(job->model, sizeof job->model, "%s:%d", name, begun);
        job->spec.model = job->model;
    }
    hth_version_swap_settle(job->ms, name); // what is trained is the newest, served or not
    HTH_TRY(hth_model_find(job->ms, job->spec.model, out));
    return json_object_set_new(job->args, "version", json_integer((*out)->version)) == 0
               ? HTH_OK
               : hth_no_memory("a training job");
}

// Data that are evaluated after each epoch. They must be of the dtypes and shapes that are trained
// on.
static hth_err job_evaluator(hth_train_job *job, const hth_train_part *part, const hth_model *model,
                             const char *set)
{
    hth_train_data d = {.n_inputs = 0};
    hth_err err = hth_train_data_open(part, model, &d);
    if (err == HTH_OK) {
        hth_tensor a = d.target, b = job->data.target;
        a.shape.dim[0] = b.shape.dim[0];
        if (a.dtype != b.dtype || !hth_shape_equal(&a.shape, &b.shape)) {
            err = hth_fail(HTH_EINVAL, "dataset %s: its targets are not like those of %s",
                           part->path, job->spec.data.name);
        }
    }
    if (err != HTH_OK) {
        hth_train_data_close(&d);
        return err;
    }
    HTH_TRY(hth_evaluator_open(job->ms, &job->spec, job->trainer, &d, job->r,
                               &job->evaluator[job->n_evaluators]));
    job->set[job->n_evaluators++] = set;
    return HTH_OK;
}

// job_had notes what the job would go on with after a pause. A plan that nothing was short for is
// found again wherever it fits, any other within its budget.
static hth_err job_had(hth_train_job *job)
{
    const json_t *m = job->memory;
    bool short_of = json_number_value(json_object_get(m, "peak_bytes")) <
                    json_number_value(json_object_get(m, "unconstrained_bytes"));
    uint64_t budget = hth_trainer_budget_bytes(job->trainer);
    uint64_t need = short_of ? budget : hth_trainer_memory_bytes(job->trainer);
    json_t *host = job->spec.spill == NULL ? json_object_get(m, "host_bytes") : NULL;
    json_decref(job->had);
    double step_us = json_number_value(json_object_get(m, "predicted_ms")) * 1e3;
    job->had = json_pack("{s:I, s:O?, s:I, s:f}", "need_bytes", (json_int_t)need, "host_bytes",
                         host, "budget_bytes", (json_int_t)budget, "step_us", step_us);
    return job->had != NULL ? HTH_OK : hth_no_memory("a training job");
}

static hth_err job_planned(hth_train_job *job)
{
    json_decref(job->memory);
    job->memory = hth_trainer_memory(job->trainer);
    return job->memory != NULL ? job_had(job) : hth_no_memory("a training job");
}

// The plans of both batch shapes; of a group's member that of its first shard.
static hth_err job_plan(hth_train_job *job)
{
    hth_train_data *d = &job->data;
    int64_t batch = job->spec.batch, rest = d->n_samples % batch;
    if (job->spec.group) {
        HTH_TRY(hth_train_group_prepare(job));
        return job_planned(job);
    }
    hth_train_data_shape(d, batch < d->n_samples ? batch : d->n_samples);
    HTH_TRY(hth_trainer_prepare(job->trainer, d->input, &d->target));
    if (d->n_samples > batch && rest > 0) {
        hth_train_data_shape(d, rest);
        HTH_TRY(hth_trainer_prepare(job->trainer, d->input, &d->target));
        hth_train_data_shape(d, batch);
        HTH_TRY(hth_trainer_prepare(job->trainer, d->input, &d->target));
    }
    return job_planned(job);
}

// job_budget_later keeps the budget of a rank for the next round: the others count on its part of
// the one at work, which a new plan would undo.
static hth_err job_budget_later(hth_train_job *job, const char *budget)
{
    char *next = hth_strdup(budget);
    if (next == NULL) {
        return hth_no_memory("a training job");
    }
    hth_free(job->budget_next);
    job->budget_next = next;
    return HTH_OK;
}

// job_replan plans the job anew, for the budget that its arguments say.
static hth_err job_replan(hth_train_job *job)
{
    job->spec.budget = json_string_value(json_object_get(job->args, "budget"));
    HTH_TRY(hth_trainer_replan(job->trainer));
    return job_plan(job);
}

// job_replan_back has the job go on as before a budget that it cannot have. Others may have taken
// the memory meanwhile: then it has no step any more, and has ended.
static hth_err job_replan_back(hth_train_job *job, hth_err err, json_t *before)
{
    char why[512];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    json_object_del(job->args, "budget");
    if (before != NULL) {
        json_object_set(job->args, "budget", before);
    }
    hth_err back = job_replan(job);
    if (back == HTH_OK) {
        return hth_fail(err, "%s; the job continues with the budget that it had", why);
    }
    job->lost_err = back;
    snprintf(job->lost, sizeof job->lost,
             "another budget was refused, and the memory that the job had is not free any more: %s",
             hth_err_detail());
    return hth_fail(err, "%s; %s", why, job->lost);
}

hth_err hth_train_job_budget(hth_train_job *job, const char *budget)
{
    if (job->rank.ranks > 0 && hth_train_group_at_work(job)) {
        return job_budget_later(job, budget);
    }
    HTH_TRY(hth_train_job_rest(job));
    json_t *before = json_incref(json_object_get(job->args, "budget"));
    json_object_set_new(job->args, "budget", json_string(budget));
    json_object_del(job->args, HTH_TRAIN_HAD);
    hth_err err = job_replan(job);
    for (int i = 0; i < job->n_evaluators && err == HTH_OK; i++) {
        err = hth_evaluator_refit(job->evaluator[i]);
        err = hth_err_prefix(err, "held-out data");
    }
    if (err == HTH_OK) {
        hth_train_group_planned(job);
    } else {
        err = job_replan_back(job, err, before);
    }
    json_decref(before);
    return err;
}

// job_check_capacity looks whether the store has room for the result, and for the checkpoints that
// there are at a time, and keeps it for the result.
static hth_err job_check_capacity(hth_train_job *job)
{
    uint64_t result, state, room;
    char why[200];
    hth_size need, with;
    hth_trainer_bytes(job->trainer, &result, &state);
    result += ROOM_INDEX;
    uint64_t all = result + (job->spec.checkpoint > 0 ? 2 * state : 0); // the last one and the next
    HTH_TRY(hth_store_room(job->ms->store, &room));
    hth_err err = hth_store_reserve(job->ms->store, result, &job->room);
    if (err == HTH_OK && all <= room) {
        return HTH_OK;
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    hth_size_pair(all, room, &need, &with);
    return err != HTH_OK
               ? hth_fail(err, "not enough space for the result of this job: %s", why)
               : hth_fail(HTH_EIO,
                          "not enough space for the result of this job and its checkpoints: %s are "
                          "needed, the store's file system has %s left",
                          need.text, with.text);
}

// The order of its epoch included.
void hth_train_job_place(hth_train_job *job, int64_t step)
{
    int64_t per_epoch = job->steps / job->spec.epochs;
    job->step = step;
    job->epoch = step / per_epoch;
    job->at = step % per_epoch * job->spec.batch;
    hth_train_data_order(&job->data, job->spec.shuffle, job->spec.seed, job->epoch);
    const json_t *last = json_array_get(job->held_out, json_array_size(job->held_out) - 1);
    bool reported = json_integer_value(json_object_get(last, "step")) == job->step;
    job->evaluating = job->step > 0 && job->at == 0 && !reported ? 0 : job->n_evaluators;
    job->early =
        reported && job->spec.patience > 0 && hth_train_job_best(job).stale >= job->spec.patience;
}

// Goes on where the last checkpoint was made.
static hth_err job_resume(hth_train_job *job)
{
    hth_checkpoint c = {job->args, 0, job->steps, job->history, job->held_out, 0, job->shards};
    c.step = -1;
    HTH_TRY(hth_checkpoint_load(job->ms->store, &job->spec, job->trainer, &c));
    if (c.step < 0 && job->r->crashes == 0) {
        char name[HTH_CHECKPOINT_JOB];
        HTH_TRY(hth_checkpoint_job(job->args, name));
        return hth_fail(
            HTH_ENOENT,
            "job '%s' has no checkpoint to resume from; without --resume it starts over", name);
    }
    job->begun = c.step;
    job->ran_ms = c.ran_ms;
    hth_train_job_place(job, c.step > 0 ? c.step : 0);
    // of several devices so far: its sums are others from here on
    return !job->spec.group && json_array_size(job->shards) > 0
               ? hth_sequence_add(job->shards, 1, job->step, &job->spec.batch)
               : HTH_OK;
}

// A job that goes on takes its batches in as many parts as before, whatever would be chosen now,
// and computes in the same precision, whatever is set for the model now. One that was interrupted
// also stays with the version that it began with, which its request does not know.
static void job_settle(hth_train_job *job)
{
    bool precise = json_object_get(job->args, "precision") != NULL;
    char name[HTH_CHECKPOINT_JOB];
    json_t *doc;
    if (json_is_true(json_object_get(job->args, "resume")) &&
        hth_checkpoint_job(job->args, name) == HTH_OK &&
        hth_checkpoint_find(job->ms->store, name, &doc) == HTH_OK) {
        const json_t *args = json_object_get(doc, "job");
        json_t *parts = json_object_get(args, "parts");
        json_t *precision = json_object_get(args, "precision");
        bool begun = json_integer_value(json_object_get(doc, "step")) > 0;
        if (job->r->crashes > 0) {
            json_object_set(job->args, "version", json_object_get(args, "version"));
        }
        json_object_set(job->args, "parts", parts); // nothing, where there is none
        if (!precise && begun) {
            json_object_set_new(job->args, "precision",
                                precision != NULL ? json_incref(precision) : json_string("fp32"));
        }
        json_decref(doc);
    }
}

// Whose job it is goes with it: who may have how much of the device is asked by that name, also
// when it goes on without who submitted it.
static void job_own(hth_train_job *job)
{
    const char *tenant = job->r->tenant != NULL ? job->r->tenant : HTH_TENANT_OWN;
    json_object_set_new(job->args, "tenant", json_string(tenant));
}

// job_file finds what a file with samples is opened by: the descriptor that came with the request,
// or the path. A job that goes on without who submitted it may have neither.
static hth_err job_file(const hth_train_job *job, const hth_train_file *file, hth_train_part *part)
{
    bool passed = file->passed >= 0 && file->passed < job->r->n_files;
    part->store = file->stored ? job->ms->store : NULL;
    part->tenant = json_string_value(json_object_get(job->args, "tenant"));
    if (file->stored) {
        part->path = file->name;
        return HTH_OK;
    }
    part->path = passed ? file->name : file->path;
    part->fd = passed ? job->r->files[file->passed] : -1;
    return part->path != NULL ? HTH_OK
                              : hth_fail(HTH_EDENIED,
                                         "'%s' was passed by a client that is gone; `hearth train "
                                         "--resume` with --data FILE (and --eval) continues",
                                         file->name);
}

// A batch that the data do not fill was meant for other data.
static hth_err job_batch(const hth_train_job *job)
{
    const hth_train_data *d = &job->data;
    char held[80] = "";
    if (job->spec.batch <= d->n_samples) {
        return HTH_OK;
    }
    if (d->n_samples < d->set.n_samples) {
        snprintf(held, sizeof held, " (%lld of %lld are held out)",
                 (long long)(d->set.n_samples - d->n_samples), (long long)d->set.n_samples);
    }
    return hth_fail(HTH_EINVAL, "a batch of %lld is more than the %lld samples to train on%s",
                    (long long)job->spec.batch, (long long)d->n_samples, held);
}

// Where the classes are follows from the labels' shape, unless it was said.
static hth_err job_class_axis(hth_train_job *job)
{
    const hth_tensor *y = &job->data.target;
    hth_train_options *o = &job->spec.options;
    bool labels = y->dtype == HTH_DT_I64 || y->dtype == HTH_DT_I32;
    return o->loss == HTH_LOSS_SOFTMAX_XENT && o->class_axis == 0 && labels
               ? hth_trainer_class_axis(job->trainer, job->data.input, &y->shape, &o->class_axis)
               : HTH_OK;
}

// job_alone refuses what is said about several devices. One that goes on may have had them.
static hth_err job_alone(hth_train_job *job)
{
    bool server = job->spec.server && json_object_get(job->args, "on") == NULL;
    bool shards = json_object_get(job->args, "shards") != NULL;
    job->spec.server = false;
    if (job->spec.resume || !(server || shards)) {
        return HTH_OK;
    }
    return hth_fail(HTH_EINVAL, "%s is for several devices: --on names them",
                    server ? "--reduce ps" : "--shards");
}

// A group takes a batch in shards, not in parts, and searches for no better plans. Members but the
// lead evaluate and store nothing.
static hth_err job_group(hth_train_job *job)
{
    hth_train_spec *s = &job->spec;
    s->group = job->r->member > 0;
    HTH_TRY(hth_train_rank_open(job));
    if (!s->group) {
        return job_alone(job);
    }
    const char *accumulate = json_string_value(json_object_get(job->args, "accumulate"));
    bool chosen = accumulate != NULL && strcmp(accumulate, "auto") == 0; // on one device, earlier
    if (s->accumulate > 1 && !chosen) {
        return hth_fail(HTH_EINVAL,
                        "--accumulate %lld and several devices: a batch is divided "
                        "among the devices, and not once more",
                        (long long)s->accumulate);
    }
    s->accumulate = 1;
    s->replan = false;
    if (job->r->member > 1) {
        s->eval = (hth_train_file){.passed = -1};
        s->keep = HTH_KEEP_LAST;
        s->patience = 0;
        s->checkpoint = 0;
        s->time_limit = 0;
        s->resume = s->resume && job->rank.ranks == 0; // the lead's state comes to the other ranks
    }
    if (job->r->member > 1 && s->server) { // it makes no updates, and needs no state for them
        s->options.optimizer = HTH_OPTIMIZER_SGD;
        s->options.nesterov = false;
        s->options.clip_norm = 0;
        s->resume = false;
    }
    return HTH_OK;
}

// Everything that can be known before a step runs: data, labels, gradients, the plans of both batch
// shapes.
static hth_err job_open(hth_train_job *job)
{
    hth_model *m;
    hth_train_data *d = &job->data;
    hth_train_spec *s = &job->spec;
    job_settle(job);
    job_own(job);
    hth_precision_fill(job->ms->store, job->args);
    HTH_TRY(hth_train_spec_read(job->args, false, s));
    HTH_TRY(job_group(job));
    HTH_TRY(hth_checkpoint_result(s));
    HTH_TRY(job_pin(job, &m));
    hth_train_part part = {.batch = s->batch,
                           .share = s->hold_out,
                           .seed = s->seed,
                           .site = job->ms->site,
                           .scale = &s->options.scale,
                           .augment = &s->augment};
    HTH_TRY(job_file(job, &s->data, &part));
    HTH_TRY(hth_train_data_open(&part, m, d));
    HTH_TRY(job_batch(job));
    s->options.label_dtype = d->target.dtype;
    HTH_TRY(hth_trainer_open(job->ms, s, job->r, &job->trainer));
    hth_trainer_timeline(job->trainer, job->events.timeline);
    job->steps = (d->n_samples + s->batch - 1) / s->batch * s->epochs;
    job->events.admission.steps = job->steps;
    hth_trainer_set_admission(job->trainer, &job->events.admission);
    HTH_TRY(job_class_axis(job));
    HTH_TRY(job_plan(job));
    HTH_TRY(s->keep != HTH_KEEP_LAST ? hth_trainer_keep_open(job->trainer) : HTH_OK);
    // What was chosen belongs to the job: its losses depend on it. A group has no choice.
    if (s->group) {
        json_object_del(job->args, "parts");
    } else {
        json_object_set(job->args, "parts", json_object_get(job->memory, "accumulate"));
    }
    if (s->options.loss == HTH_LOSS_SOFTMAX_XENT) {
        HTH_TRY(hth_train_data_check_labels(d, hth_trainer_classes(job->trainer)));
    }
    part.held = true;
    part.augment = NULL; // what is evaluated stays as it is
    bool leads = job->r->member <= 1;
    HTH_TRY(s->hold_out > 0 && leads ? job_evaluator(job, &part, m, "hold-out") : HTH_OK);
    if (s->eval.name != NULL) {
        part =
            (hth_train_part){.batch = s->batch, .site = job->ms->site, .scale = &s->options.scale};
        HTH_TRY(job_file(job, &s->eval, &part));
        HTH_TRY(job_evaluator(job, &part, m, "eval"));
    }
    job->evaluating = job->n_evaluators;
    HTH_TRY(leads ? job_check_capacity(job) : HTH_OK);
    HTH_TRY(leads ? hth_checkpointer_open(job->ms->store, &job->writer) : HTH_OK);
    HTH_TRY(s->resume ? job_resume(job) : HTH_OK);
    return s->group ? hth_train_group_open(job) : HTH_OK;
}

static hth_err job_make(hth_models *ms, hth_request *request, hth_train_events events, bool resume,
                        hth_train_job **out)
{
    json_error_t je;
    *out = NULL;
    hth_train_job *j = hth_calloc(1, sizeof *j);
    if (j == NULL) {
        return hth_no_memory("a training job");
    }
    *j = (hth_train_job){.job.ops = &hth_train_job_ops,
                         .ms = ms,
                         .r = request,
                         .history = json_array(),
                         .held_out = json_array(),
                         .shards = json_array(),
                         .begun = -1,
                         .room = -1,
                         .saved = -1,
                         .events = events};
    j->args = json_loads(request->arguments != NULL ? request->arguments : "", 0, &je);
    if (resume) {
        json_object_set_new(j->args, "resume", json_true());
    }
    hth_err err = json_is_object(j->args)
                      ? job_open(j)
                      : hth_fail(HTH_EINVAL, "the arguments of 'train' are no JSON object: %s",
                                 hth_err_json(je.text));
    if (err != HTH_OK) {
        hth_train_job_free(j);
        return err;
    }
    *out = j;
    return HTH_OK;
}

// job_replaces tells whether the checkpoint under the job's name is an older job's. *numbered: the
// job has a number, by which that is certain.
static bool job_replaces(const hth_models *ms, const hth_request *request, bool *numbered)
{
    char name[HTH_CHECKPOINT_JOB];
    json_t *stored = NULL;
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    bool there = hth_checkpoint_job(args, name) == HTH_OK &&
                 hth_checkpoint_args(ms->store, name, &stored) == HTH_OK;
    bool other = there && !hth_checkpoint_of(args, true, stored);
    *numbered = json_object_get(args, "id") != NULL;
    json_decref(stored);
    json_decref(args);
    return other;
}

// After a death of its process a job goes on from its checkpoint, or begins anew where it had made
// none: what there is under its name may be of an older job then, by its number or, of a job
// without one, by what it was to do.
hth_err hth_train_job_open(hth_models *ms, hth_request *request, hth_train_events events,
                           hth_train_job **out)
{
    bool numbered = false;
    bool died = request->crashes > 0 && !job_replaces(ms, request, &numbered);
    hth_err err = job_make(ms, request, events, died, out);
    bool other = died && !numbered && err == HTH_EINVAL;
    return other ? job_make(ms, request, events, false, out) : err;
}

void hth_train_job_free(hth_train_job *job)
{
    if (job == NULL) {
        return;
    }
    hth_train_group_close(job->group);
    for (int i = 0; i < job->n_evaluators; i++) {
        hth_evaluator_close(job->evaluator[i]);
    }
    hth_checkpointer_close(job->writer);
    hth_store_unreserve(job->room);
    hth_trainer_close(job->trainer);
    hth_train_data_close(&job->data);
    json_decref(job->held_out);
    json_decref(job->shards);
    json_decref(job->history);
    json_decref(job->memory);
    json_decref(job->had);
    json_decref(job->args);
    hth_free(job->budget_next);
    hth_free(job);
}
