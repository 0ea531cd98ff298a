// SPDX-License-Identifier: Apache-2.0
// A training job: its way through the data step by step, and what is told about it.
#include "server/train.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/catalog.h"
#include "server/checkpoint.h"
#include "server/train_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory to train");
}

static void job_tell(hth_request *r, int64_t step, int64_t steps, int64_t epoch, double loss,
                     double ms)
{
    char text[200];
    snprintf(text, sizeof text, "{\"step\":%lld,\"epoch\":%lld,\"loss\":%.9g,\"ms\":%.3f}",
             (long long)step, (long long)epoch, loss, ms);
    if (r->progress != NULL) {
        r->progress(r, text, (uint64_t)step, (uint64_t)steps);
    }
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
    char model[HTH_CHECKPOINT_JOB + 16]; // with its version
    hth_train_spec spec;
    hth_train_data data;
    hth_trainer *trainer;
    int64_t epoch, at, step, steps; // epoch and first sample of the next batch; steps in all
    int64_t saved;                  // step of the last checkpoint, 0: none
    json_t *history;                // [[loss, ms], ..]
};

void hth_train_job_free(hth_train_job *j)
{
    if (j == NULL) {
        return;
    }
    hth_trainer_close(j->trainer);
    hth_train_data_close(&j->data);
    json_decref(j->history);
    json_decref(j->args);
    hth_free(j);
}

// Goes on where the last checkpoint was made, the order of its epoch included.
static hth_err job_resume(hth_train_job *j)
{
    hth_checkpoint c = {j->args, 0, j->steps, j->history};
    int64_t per_epoch = j->steps / j->spec.epochs;
    HTH_TRY(hth_checkpoint_load(j->ms->store, &j->spec, j->trainer, &c));
    j->step = j->saved = c.step;
    j->epoch = c.step / per_epoch;
    j->at = c.step % per_epoch * j->spec.batch;
    hth_dataset_order(&j->data.set, j->spec.shuffle, j->spec.seed, j->epoch, j->data.rows);
    return HTH_OK;
}

static hth_err job_checkpoint(hth_train_job *j)
{
    if (j->spec.checkpoint == 0 || (j->at != 0 && j->step % j->spec.checkpoint != 0)) {
        return HTH_OK;
    }
    HTH_TRY(hth_checkpoint_save(j->ms->store, &j->spec, j->trainer,
                                &(hth_checkpoint){j->args, j->step, j->steps, j->history}));
    j->saved = j->step;
    return HTH_OK;
}

json_t *hth_train_job_state(const hth_train_job *j)
{
    return hth_checkpoint_doc(&(hth_checkpoint){j->args, j->step, j->steps, j->history});
}

int64_t hth_train_job_saved(const hth_train_job *j)
{
    return j->saved;
}

// What is left of a job that ends early.
static const char *job_kept(const hth_train_job *j, char text[80])
{
    if (j->saved == 0) {
        return "nothing is saved";
    }
    snprintf(text, 80, "the checkpoint of step %lld is kept", (long long)j->saved);
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

// Everything that can be known before a step runs: data, labels, gradients, the plans of both batch
// shapes.
static hth_err job_open(hth_train_job *j)
{
    hth_model *m;
    hth_train_data *d = &j->data;
    hth_train_spec *s = &j->spec;
    HTH_TRY(hth_train_spec_read(j->args, false, s));
    HTH_TRY(job_pin(j, &m));
    HTH_TRY(hth_train_data_open(s, m, d));
    s->options.label_dtype = d->target.dtype;
    HTH_TRY(hth_trainer_open(j->ms, s, j->r, &j->trainer));
    HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
    if (s->options.loss == HTH_LOSS_SOFTMAX_XENT) {
        HTH_TRY(hth_train_data_check_labels(d, hth_trainer_classes(j->trainer)));
    }
    int64_t rest = d->set.n_samples % s->batch;
    if (d->set.n_samples > s->batch && rest > 0) {
        hth_train_data_shape(d, rest);
        HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
        hth_train_data_shape(d, s->batch);
        HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
    }
    j->steps = (d->set.n_samples + s->batch - 1) / s->batch * s->epochs;
    return s->resume ? job_resume(j) : HTH_OK;
}

hth_err hth_train_job_open(hth_models *ms, hth_request *r, hth_train_job **out)
{
    json_error_t je;
    *out = NULL;
    hth_train_job *j = hth_calloc(1, sizeof *j);
    if (j == NULL) {
        return no_memory();
    }
    *j = (hth_train_job){.ms = ms, .r = r, .history = json_array()};
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
    HTH_TRY(j->saved > 0 ? hth_checkpoint_drop(j->ms->store, &j->spec) : HTH_OK);
    json_array_foreach(j->history, i, v)
    {
        ms_sum += json_number_value(json_array_get(v, 1));
    }
    json_t *doc = hth_train_memory(hth_trainer_program(j->trainer));
    json_object_update_new(doc, json_pack("{s:s, s:i, s:I, s:f, s:O}", "saved_as", name, "version",
                                          version, "steps", (json_int_t)j->step, "mean_ms",
                                          ms_sum / (double)j->step, "history", j->history));
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

hth_err hth_train_job_turn(hth_train_job *j, bool *done)
{
    hth_train_data *d = &j->data;
    float loss = NAN;
    char kept[80];
    *done = false;
    if (j->r->canceled) {
        return job_canceled(j);
    }
    if (j->at == 0) {
        hth_dataset_order(&d->set, j->spec.shuffle, j->spec.seed, j->epoch, d->rows);
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
    double ms = (double)(hth_now_ns() - start_ns) / 1e6;
    j->step++;
    job_tell(j->r, j->step, j->steps, j->epoch + 1, loss, ms);
    if (!isfinite(loss)) {
        return hth_fail(HTH_EINVAL, "the loss of step %lld is %g: training stops, %s",
                        (long long)j->step, (double)loss, job_kept(j, kept));
    }
    if (json_array_append_new(j->history, json_pack("[f, f]", (double)loss, ms)) != 0) {
        return no_memory();
    }
    j->at += j->spec.batch;
    if (j->at >= d->set.n_samples) {
        j->at = 0;
        j->epoch++;
    }
    *done = j->epoch == j->spec.epochs;
    return *done ? job_answer(j) : job_checkpoint(j);
}
