// SPDX-License-Identifier: Apache-2.0
// A training job: its way through the data step by step, and what is told about it.
#include "server/train.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/catalog.h"
#include "server/checkpoint_write.h"
#include "server/train_eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory to train");
}

json_t *hth_train_memory(const hth_program *p)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:s, s:f, s:f}", "peak_bytes",
                     (json_int_t)(p->plan->arena_bytes + p->plan->resident_bytes),
                     "unconstrained_bytes", (json_int_t)p->peak_bytes, "budget_bytes",
                     (json_int_t)p->budget, "host_bytes", (json_int_t)p->plan->host_bytes, "policy",
                     p->plan->policy, "plan_ms", p->plan->plan_ms, "predicted_ms",
                     p->plan->predicted_us / 1e3);
}

struct hth_train_job {
    hth_models *ms;
    hth_request *r;
    json_t *args;                        // what spec points into
    json_t *memory;                      // of a whole batch's step
    char model[HTH_CHECKPOINT_JOB + 16]; // with its version
    hth_train_spec spec;
    hth_train_data data;
    hth_trainer *trainer;
    int64_t epoch, at, step, steps; // epoch and first sample of the next batch; steps in all
    int64_t begun;                  // step of the checkpoint that it began with, -1: none
    hth_checkpointer *writer;
    json_t *history;              // [[loss, ms], ..]
    json_t *held_out;             // [{"step", "epoch", "set", "loss", "accuracy"}, ..]
    int n_evaluators, evaluating; // evaluating: which of them is at work, n_evaluators: none
    hth_evaluator *evaluator[2];
    const char *set[2]; // what they evaluate
    hth_train_tell tell;
    double loss, step_ms; // of the last step
};

void hth_train_job_free(hth_train_job *j)
{
    if (j == NULL) {
        return;
    }
    for (int i = 0; i < j->n_evaluators; i++) {
        hth_evaluator_close(j->evaluator[i]);
    }
    hth_checkpointer_close(j->writer);
    hth_trainer_close(j->trainer);
    hth_train_data_close(&j->data);
    json_decref(j->held_out);
    json_decref(j->history);
    json_decref(j->memory);
    json_decref(j->args);
    hth_free(j);
}

// Goes on where the last checkpoint was made, the order of its epoch included.
static hth_err job_resume(hth_train_job *j)
{
    hth_checkpoint c = {j->args, 0, j->steps, j->history, j->held_out};
    int64_t per_epoch = j->steps / j->spec.epochs;
    c.step = -1;
    HTH_TRY(hth_checkpoint_load(j->ms->store, &j->spec, j->trainer, &c));
    j->begun = c.step;
    j->step = c.step = c.step > 0 ? c.step : 0;
    j->epoch = c.step / per_epoch;
    j->at = c.step % per_epoch * j->spec.batch;
    hth_train_data_order(&j->data, j->spec.shuffle, j->spec.seed, j->epoch);
    const json_t *last = json_array_get(j->held_out, json_array_size(j->held_out) - 1);
    bool told = json_integer_value(json_object_get(last, "step")) == j->step;
    j->evaluating = j->step > 0 && j->at == 0 && !told ? 0 : j->n_evaluators;
    return HTH_OK;
}

// The evaluations but those of an epoch that are not complete yet.
static json_t *job_held_out(const hth_train_job *j)
{
    json_t *out = json_copy(j->held_out);
    size_t n = json_array_size(out);
    for (; n > 0 && j->evaluating < j->n_evaluators; n--) {
        const json_t *step = json_object_get(json_array_get(out, n - 1), "step");
        if (json_integer_value(step) != j->step) {
            break;
        }
        json_array_remove(out, n - 1);
    }
    return out;
}

static hth_err job_save(hth_train_job *j)
{
    hth_checkpoint c = {j->args, j->step, j->steps, j->history, job_held_out(j)};
    hth_err err = hth_checkpointer_save(j->writer, &j->spec, j->trainer, &c);
    json_decref(c.held_out);
    return err;
}

hth_err hth_train_job_save(hth_train_job *j)
{
    int64_t saved;
    HTH_TRY(job_save(j));
    return hth_checkpointer_wait(j->writer, &saved);
}

static hth_err job_checkpoint(hth_train_job *j)
{
    if (j->spec.checkpoint == 0 || (j->at != 0 && j->step % j->spec.checkpoint != 0)) {
        return HTH_OK;
    }
    return job_save(j);
}

json_t *hth_train_job_state(const hth_train_job *j)
{
    return hth_checkpoint_doc(
        &(hth_checkpoint){j->args, j->step, j->steps, j->history, j->held_out});
}

int64_t hth_train_job_saved(const hth_train_job *j)
{
    int64_t saved = -1;
    if (j->writer != NULL) {
        (void)hth_checkpointer_wait(j->writer, &saved); // what counts is the last whole one
    }
    return saved >= 0 ? saved : j->begun;
}

// What is left of a job that ends early.
static const char *job_kept(const hth_train_job *j, char text[80])
{
    int64_t saved = hth_train_job_saved(j);
    if (saved < 0) {
        return "nothing is saved";
    }
    snprintf(text, 80, "the checkpoint of step %lld is kept", (long long)saved);
    return text;
}

// The version that is trained goes with the arguments: a job asked for by name stays with it, and
// the checkpoint of another one is of another job.
static hth_err job_pin(hth_train_job *j, hth_model **out)
{
    char name[HTH_CHECKPOINT_JOB];
    int version, begun = (int)json_integer_value(json_object_get(j->args, "version"));
    HTH_TRY(hth_catalog_parse(j->spec.model, name, &version));
    if (begun > 0) {
        snprintf(j->model, sizeof j->model, "%s:%d", name, begun);
        j->spec.model = j->model;
    }
    HTH_TRY(hth_model_find(j->ms, j->spec.model, out));
    return json_object_set_new(j->args, "version", json_integer((*out)->version)) == 0
               ? HTH_OK
               : no_memory();
}

// Data that are evaluated behind each epoch. They must be of the dtypes and shapes that are trained
// on.
static hth_err job_evaluator(hth_train_job *j, const hth_train_part *part, const hth_model *m,
                             const char *set)
{
    hth_train_data d = {.n_inputs = 0};
    hth_err err = hth_train_data_open(part, m, &d);
    if (err == HTH_OK) {
        hth_tensor a = d.target, b = j->data.target;
        a.shape.dim[0] = b.shape.dim[0];
        if (a.dtype != b.dtype || !hth_shape_equal(&a.shape, &b.shape)) {
            err = hth_fail(HTH_EINVAL, "dataset %s: its targets are not like those of %s",
                           part->path, j->spec.data);
        }
    }
    if (err != HTH_OK) {
        hth_train_data_close(&d);
        return err;
    }
    HTH_TRY(
        hth_evaluator_open(j->ms, &j->spec, j->trainer, &d, j->r, &j->evaluator[j->n_evaluators]));
    j->set[j->n_evaluators++] = set;
    return HTH_OK;
}

// The plans of both batch shapes.
static hth_err job_plan(hth_train_job *j)
{
    hth_train_data *d = &j->data;
    int64_t batch = j->spec.batch, rest = d->n_samples % batch;
    hth_train_data_shape(d, batch < d->n_samples ? batch : d->n_samples);
    HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
    if (d->n_samples > batch && rest > 0) {
        hth_train_data_shape(d, rest);
        HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
        hth_train_data_shape(d, batch);
        HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
    }
    json_decref(j->memory);
    j->memory = hth_trainer_memory(j->trainer);
    return j->memory != NULL ? HTH_OK : no_memory();
}

hth_err hth_train_job_budget(hth_train_job *j, const char *budget)
{
    char detail[512];
    json_t *before = json_incref(json_object_get(j->args, "budget"));
    json_object_set_new(j->args, "budget", json_string(budget));
    j->spec.budget = json_string_value(json_object_get(j->args, "budget"));
    HTH_TRY(hth_trainer_replan(j->trainer));
    hth_err err = job_plan(j);
    if (err != HTH_OK) {
        snprintf(detail, sizeof detail, "%s", hth_err_detail());
        json_object_del(j->args, "budget");
        if (before != NULL) {
            json_object_set(j->args, "budget", before);
        }
        j->spec.budget = json_string_value(before);
        HTH_TRY(hth_trainer_replan(j->trainer));
        HTH_TRY(job_plan(j));
        hth_fail(err, "%s; job goes on under the budget that it had", detail);
    }
    json_decref(before);
    return err;
}

// Everything that can be known before a step runs: data, labels, gradients, the plans of both batch
// shapes.
static hth_err job_open(hth_train_job *j)
{
    hth_model *m;
    hth_train_data *d = &j->data;
    hth_train_spec *s = &j->spec;
    HTH_TRY(hth_train_spec_read(j->args, false, s));
    HTH_TRY(job_pin(j, &m));
    hth_train_part part = {s->data, s->batch, s->hold_out, s->seed, false};
    HTH_TRY(hth_train_data_open(&part, m, d));
    s->options.label_dtype = d->target.dtype;
    HTH_TRY(hth_trainer_open(j->ms, s, j->r, &j->trainer));
    HTH_TRY(job_plan(j));
    // What was chosen belongs to the job: its losses depend on it.
    json_object_set(j->args, "parts", json_object_get(j->memory, "accumulate"));
    if (s->options.loss == HTH_LOSS_SOFTMAX_XENT) {
        HTH_TRY(hth_train_data_check_labels(d, hth_trainer_classes(j->trainer)));
    }
    j->steps = (d->n_samples + s->batch - 1) / s->batch * s->epochs;
    part.held = true;
    HTH_TRY(s->hold_out > 0 ? job_evaluator(j, &part, m, "hold-out") : HTH_OK);
    part = (hth_train_part){.path = s->eval, .batch = s->batch};
    HTH_TRY(s->eval != NULL ? job_evaluator(j, &part, m, "eval") : HTH_OK);
    j->evaluating = j->n_evaluators;
    HTH_TRY(hth_checkpointer_open(j->ms->store, &j->writer));
    return s->resume ? job_resume(j) : HTH_OK;
}

hth_err hth_train_job_open(hth_models *ms, hth_request *r, hth_train_tell tell, hth_train_job **out)
{
    json_error_t je;
    *out = NULL;
    hth_train_job *j = hth_calloc(1, sizeof *j);
    if (j == NULL) {
        return no_memory();
    }
    *j = (hth_train_job){.ms = ms,
                         .r = r,
                         .history = json_array(),
                         .held_out = json_array(),
                         .begun = -1,
                         .tell = tell};
    j->args = json_loads(r->arguments != NULL ? r->arguments : "", 0, &je);
    hth_err err =
        json_is_object(j->args)
            ? job_open(j)
            : hth_fail(HTH_EINVAL, "the arguments of 'train' are no JSON object: %s", je.text);
    if (err != HTH_OK) {
        hth_train_job_free(j);
        return err;
    }
    *out = j;
    return HTH_OK;
}

static hth_err job_answer(hth_train_job *j)
{
    int version;
    char name[HTH_CHECKPOINT_JOB];
    double ms_sum = 0;
    size_t i;
    json_t *v;
    HTH_TRY(hth_checkpoint_job(j->args, name));
    HTH_TRY(hth_trainer_publish(j->trainer, &version));
    HTH_TRY(hth_train_job_saved(j) >= 0 ? hth_checkpoint_drop(j->ms->store, &j->spec) : HTH_OK);
    json_array_foreach(j->history, i, v)
    {
        ms_sum += json_number_value(json_array_get(v, 1));
    }
    json_t *doc = json_copy(j->memory);
    json_object_update_new(doc, json_pack("{s:s, s:i, s:I, s:f, s:O, s:O}", "saved_as", name,
                                          "version", version, "steps", (json_int_t)j->step,
                                          "mean_ms", ms_sum / (double)j->step, "history",
                                          j->history, "held_out", j->held_out));
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    j->r->json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return j->r->json != NULL ? HTH_OK : no_memory();
}

static hth_err job_canceled(const hth_train_job *j)
{
    char kept[80];
    return hth_fail(HTH_ECANCELED, "canceled behind step %lld: %s", (long long)j->step,
                    job_kept(j, kept));
}

static double job_memory(const hth_train_job *j, const char *key)
{
    return json_number_value(json_object_get(j->memory, key));
}

static void job_tell(const hth_train_job *j)
{
    char text[400];
    const json_t *held = hth_train_held_out(j->held_out), *v;
    int n =
        snprintf(text, sizeof text,
                 "{\"step\":%lld,\"epoch\":%lld,\"loss\":%.9g,\"ms\":%.3f,\"stall_ms\":%.3f,"
                 "\"peak_bytes\":%.0f,\"budget_bytes\":%.0f",
                 (long long)j->step, (long long)((j->step - 1) / (j->steps / j->spec.epochs) + 1),
                 j->loss, j->step_ms, hth_trainer_stall_ms(j->trainer), job_memory(j, "peak_bytes"),
                 job_memory(j, "budget_bytes"));
    if ((v = json_object_get(held, "loss")) != NULL) {
        n += snprintf(text + n, sizeof text - (size_t)n, ",\"held_out_loss\":%.9g",
                      json_number_value(v));
    }
    if ((v = json_object_get(held, "accuracy")) != NULL) {
        n +=
            snprintf(text + n, sizeof text - (size_t)n, ",\"accuracy\":%.9g", json_number_value(v));
    }
    snprintf(text + n, sizeof text - (size_t)n, "}");
    if (j->r->progress != NULL) {
        j->r->progress(j->r, text, (uint64_t)j->step, (uint64_t)j->steps);
    }
    if (j->tell.fn != NULL) {
        j->tell.fn(j->tell.ctx, text, (uint64_t)j->step, (uint64_t)j->steps);
    }
}

// Behind an epoch, and its evaluation.
static hth_err job_epoch(hth_train_job *j, bool *done)
{
    *done = j->epoch == j->spec.epochs;
    return *done ? job_answer(j) : job_checkpoint(j);
}

static hth_err job_evaluate(hth_train_job *j, bool *done)
{
    json_t *found;
    bool whole;
    hth_err err = hth_evaluator_turn(j->evaluator[j->evaluating], &whole, &found);
    if (err != HTH_OK) {
        return err == HTH_ECANCELED ? job_canceled(j) : err;
    }
    if (!whole) {
        return HTH_OK;
    }
    json_t *row = json_pack("{s:I, s:I, s:s}", "step", (json_int_t)j->step, "epoch",
                            (json_int_t)j->epoch, "set", j->set[j->evaluating]);
    json_object_update_new(row, found);
    if (json_array_append_new(j->held_out, row) != 0) {
        return no_memory();
    }
    job_tell(j);
    return ++j->evaluating == j->n_evaluators ? job_epoch(j, done) : HTH_OK;
}

static hth_err job_step(hth_train_job *j, bool *done)
{
    hth_train_data *d = &j->data;
    float loss = NAN;
    char kept[80];
    if (j->at == 0) {
        hth_train_data_order(d, j->spec.shuffle, j->spec.seed, j->epoch);
    }
    hth_trainer_rate(j->trainer,
                     hth_train_rate(&j->spec, j->step, j->steps, j->steps / j->spec.epochs));
    hth_train_data_batch(d, j->at, j->spec.batch);
    HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
    uint64_t start_ns = hth_now_ns();
    hth_err err = hth_trainer_step(j->trainer, d->input, &d->target, &loss);
    if (err != HTH_OK) {
        return err == HTH_ECANCELED ? job_canceled(j) : err;
    }
    j->step_ms = (double)(hth_now_ns() - start_ns) / 1e6;
    j->loss = (double)loss;
    j->step++;
    job_tell(j);
    if (!isfinite(loss)) {
        return hth_fail(HTH_EINVAL, "the loss of step %lld is %g: training stops, %s",
                        (long long)j->step, j->loss, job_kept(j, kept));
    }
    if (json_array_append_new(j->history, json_pack("[f, f]", j->loss, j->step_ms)) != 0) {
        return no_memory();
    }
    j->at += j->spec.batch;
    if (j->at < d->n_samples) {
        return job_checkpoint(j);
    }
    j->at = 0;
    j->epoch++;
    j->evaluating = 0;
    return j->n_evaluators == 0 ? job_epoch(j, done) : HTH_OK;
}

hth_err hth_train_job_turn(hth_train_job *j, bool *done)
{
    *done = false;
    if (j->r->canceled) {
        return job_canceled(j);
    }
    return j->evaluating < j->n_evaluators ? job_evaluate(j, done) : job_step(j, done);
}
