// SPDX-License-Identifier: Apache-2.0
// Training jobs: what was asked for, the way through the data, and what is told about it.
#include "server/train.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/catalog.h"
#include "server/checkpoint.h"
#include "server/dataset.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_MAX_INPUTS 16
#define TRAIN_PLAN_MS    1000 // a job runs long enough to be planned well

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory to train");
}

// The specification.

static const char *spec_text(const json_t *args, const char *key)
{
    return json_string_value(json_object_get(args, key));
}

static hth_err spec_number(const json_t *args, const char *key, double dflt, double least,
                           double most, double *out)
{
    const json_t *v = json_object_get(args, key);
    *out = v == NULL ? dflt : json_number_value(v);
    return v == NULL || (json_is_number(v) && *out >= least && *out <= most)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "%s is a number from %g to %g", key, least, most);
}

static hth_err spec_choice(const json_t *args, const char *key, const char *dflt,
                           const char *const *names, int n, int *out)
{
    const char *v = spec_text(args, key);
    char all[200] = "";
    v = v != NULL ? v : dflt;
    for (int i = 0; i < n; i++) {
        if (v != NULL && strcmp(v, names[i]) == 0) {
            *out = i;
            return HTH_OK;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    }
    return v == NULL ? hth_fail(HTH_EINVAL, "%s is missing: one of %s", key, all)
                     : hth_fail(HTH_EINVAL, "%s '%.40s' is none of %s", key, v, all);
}

static hth_err spec_optimizer(const json_t *args, hth_train_spec *s)
{
    static const char *const names[] = {"sgd", "momentum", "adam", "adamw"};
    int which;
    HTH_TRY(spec_choice(args, "optimizer", "sgd", names, 4, &which));
    s->options.optimizer = (hth_train_optimizer)which;
    HTH_TRY(spec_number(args, "lr", 1e-3, 0, 1e6, &s->lr));
    HTH_TRY(spec_number(args, "momentum", 0.9, 0, 1, &s->momentum));
    HTH_TRY(spec_number(args, "beta1", 0.9, 0, 1, &s->beta1));
    HTH_TRY(spec_number(args, "beta2", 0.999, 0, 1, &s->beta2));
    HTH_TRY(spec_number(args, "eps", 1e-8, 0, 1, &s->eps));
    double decay = s->options.optimizer == HTH_OPTIMIZER_ADAMW ? 0.01 : 0, clip;
    HTH_TRY(spec_number(args, "weight-decay", decay, 0, 1e6, &s->weight_decay));
    HTH_TRY(spec_number(args, "clip", 0, 0, 1e9, &clip));
    s->options.clip_norm = (float)clip;
    s->options.nesterov = json_is_true(json_object_get(args, "nesterov"));
    return HTH_OK;
}

static hth_err spec_freeze(const json_t *args, hth_train_spec *s)
{
    const json_t *v, *list = json_object_get(args, "freeze");
    size_t i;
    if (json_array_size(list) > HTH_TRAIN_MAX_FREEZE) {
        return hth_fail(HTH_EINVAL, "more than %d patterns of frozen parameters",
                        HTH_TRAIN_MAX_FREEZE);
    }
    json_array_foreach(list, i, v)
    {
        s->freeze[s->options.n_freeze++] = json_string_value(v) ? json_string_value(v) : "";
    }
    s->options.freeze = s->freeze;
    return HTH_OK;
}

// "constant", "step:EPOCHS:GAMMA", "cosine", "linear".
static hth_err spec_schedule(const json_t *args, hth_train_spec *s)
{
    const char *text = spec_text(args, "schedule");
    double warmup;
    long long every = 0;
    HTH_TRY(spec_number(args, "warmup", 0, 0, 1e9, &warmup));
    s->warmup = (int64_t)warmup;
    if (text == NULL || strcmp(text, "constant") == 0) {
        s->schedule = HTH_RATE_CONSTANT;
    } else if (strcmp(text, "cosine") == 0) {
        s->schedule = HTH_RATE_COSINE;
    } else if (strcmp(text, "linear") == 0) {
        s->schedule = HTH_RATE_LINEAR;
    } else if (sscanf(text, "step:%lld:%lf", &every, &s->gamma) == 2 && every > 0 && s->gamma > 0) {
        s->schedule = HTH_RATE_STEP;
        s->every = every;
    } else {
        return hth_fail(HTH_EINVAL,
                        "schedule '%.40s' is none of constant, step:EPOCHS:GAMMA, cosine, linear",
                        text);
    }
    return HTH_OK;
}

double hth_train_rate(const hth_train_spec *s, int64_t step, int64_t steps, int64_t per_epoch)
{
    double lr = s->lr, share = steps > 0 ? (double)step / (double)steps : 0;
    if (s->schedule == HTH_RATE_STEP) {
        lr *= pow(s->gamma, (double)(step / per_epoch / s->every));
    } else if (s->schedule == HTH_RATE_COSINE) {
        lr *= (1 + cos(acos(-1) * share)) / 2;
    } else if (s->schedule == HTH_RATE_LINEAR) {
        lr *= 1 - share;
    }
    return step < s->warmup ? lr * (double)(step + 1) / (double)s->warmup : lr;
}

hth_err hth_train_spec_read(const json_t *args, bool bench, hth_train_spec *s)
{
    static const char *const losses[] = {"softmax-xent", "mse"};
    double batch, epochs, seed, limit, checkpoint;
    int loss;
    *s = (hth_train_spec){.model = spec_text(args, "model"),
                          .data = spec_text(args, "data"),
                          .save_as = spec_text(args, "save-as"),
                          .spill = spec_text(args, "spill"),
                          .trace = spec_text(args, "trace"),
                          .budget = spec_text(args, "budget"),
                          .shuffle = !json_is_true(json_object_get(args, "no-shuffle"))};
    if (s->model == NULL) {
        return hth_fail(HTH_EINVAL, "which model? the argument 'model' is missing");
    }
    if (s->data == NULL && !bench) {
        return hth_fail(HTH_EINVAL, "which data? the argument 'data' is missing");
    }
    HTH_TRY(spec_choice(args, "loss", bench ? "softmax-xent" : NULL, losses, 2, &loss));
    s->options.loss = (hth_train_loss)loss;
    HTH_TRY(spec_optimizer(args, s));
    HTH_TRY(spec_schedule(args, s));
    HTH_TRY(spec_freeze(args, s));
    if (bench && spec_text(args, "optimizer") == NULL) {
        s->options.optimizer = HTH_OPTIMIZER_MOMENTUM;
    }
    HTH_TRY(spec_number(args, "batch", bench ? 1 : 32, 1, 1 << 20, &batch));
    HTH_TRY(spec_number(args, "epochs", 1, 1, 1e9, &epochs));
    HTH_TRY(spec_number(args, "seed", 0, 0, 4294967295.0, &seed));
    HTH_TRY(spec_number(args, "plan-ms", bench ? 0 : TRAIN_PLAN_MS, 0, 600000, &limit));
    HTH_TRY(spec_number(args, "checkpoint-every", 0, 0, 1e9, &checkpoint));
    s->checkpoint = (int64_t)checkpoint;
    s->resume = json_is_true(json_object_get(args, "resume"));
    s->batch = (int64_t)batch;
    s->epochs = (int64_t)epochs;
    s->seed = (uint64_t)seed;
    s->plan = (hth_plan_options){.seed = s->seed, .limit_ms = limit};
    const char *policy = spec_text(args, "policy");
    return policy != NULL ? hth_policy_find(policy, &s->plan.policy) : HTH_OK;
}

// Data.

typedef struct train_data {
    hth_dataset set;
    int n_inputs;
    const hth_dataset_tensor *source[TRAIN_MAX_INPUTS], *target_source;
    hth_tensor input[TRAIN_MAX_INPUTS], target; // one batch
    int64_t *rows;
} train_data;

static void data_close(train_data *d)
{
    for (int i = 0; i < d->n_inputs; i++) {
        hth_free(d->input[i].data);
    }
    hth_free(d->target.data);
    hth_free(d->rows);
    hth_dataset_close(&d->set);
}

static bool data_is_input(const train_data *d, const hth_dataset_tensor *t)
{
    for (int i = 0; i < d->n_inputs; i++) {
        if (d->source[i] == t) {
            return true;
        }
    }
    return false;
}

// The target is "y" if that is no input, else the only tensor that is left.
static hth_err data_target(train_data *d)
{
    int left = 0;
    const hth_dataset_tensor *last = NULL, *y = hth_dataset_find(&d->set, "y");
    for (int k = 0; k < d->set.n_tensors; k++) {
        if (!data_is_input(d, &d->set.tensors[k])) {
            left++;
            last = &d->set.tensors[k];
        }
    }
    d->target_source = y != NULL && !data_is_input(d, y) ? y : left == 1 ? last : NULL;
    return d->target_source != NULL
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the dataset has no tensor 'y' to train towards");
}

static hth_err data_buffer(const hth_dataset_tensor *source, int64_t samples, int64_t batch,
                           hth_tensor *out)
{
    *out = source->t;
    out->bytes = source->t.bytes / (size_t)samples * (size_t)batch;
    out->shape.dim[0] = batch;
    out->data = hth_alloc_aligned(out->bytes, HTH_DEVICE_ALIGN);
    return out->data != NULL ? HTH_OK : no_memory();
}

static hth_err data_open(const hth_train_spec *spec, const hth_model *m, train_data *d)
{
    const hth_graph *g = m->source.graph;
    hth_request_tensor named[TRAIN_MAX_INPUTS];
    hth_tensor bound[TRAIN_MAX_INPUTS];
    if (g->n_inputs > TRAIN_MAX_INPUTS) {
        return hth_fail(HTH_ENOTSUP, "model '%s' has more than %d inputs", m->name,
                        TRAIN_MAX_INPUTS);
    }
    HTH_TRY(hth_dataset_open(spec->data, &d->set));
    int64_t samples = d->set.n_samples, batch = spec->batch < samples ? spec->batch : samples;
    for (int i = 0; i < g->n_inputs; i++) {
        const char *name = g->values[g->inputs[i]].name;
        const hth_dataset_tensor *t = hth_dataset_find(&d->set, name);
        if (t == NULL && g->n_inputs == 1) {
            t = hth_dataset_find(&d->set, "x");
        }
        if (t == NULL) {
            return hth_fail(HTH_EINVAL, "the dataset has no tensor '%s', which model '%s' reads",
                            name, m->name);
        }
        d->source[i] = t;
        d->n_inputs = i + 1;
        HTH_TRY(data_buffer(t, samples, batch, &d->input[i]));
        named[i] = (hth_request_tensor){name, d->input[i]};
    }
    HTH_TRY(hth_model_bind(m, named, d->n_inputs, bound));
    HTH_TRY(data_target(d));
    HTH_TRY(data_buffer(d->target_source, samples, batch, &d->target));
    d->rows = hth_calloc((size_t)samples, sizeof *d->rows);
    return d->rows != NULL ? HTH_OK : no_memory();
}

// Element i of labels that need not be aligned.
static int64_t data_label(const hth_tensor *t, size_t i)
{
    int64_t wide;
    int32_t narrow;
    if (t->dtype == HTH_DT_I32) {
        memcpy(&narrow, (const char *)t->data + i * sizeof narrow, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const char *)t->data + i * sizeof wide, sizeof wide);
    return wide;
}

// Labels out of range are told before anything runs.
static hth_err data_check_labels(const train_data *d, int64_t classes)
{
    const hth_tensor *t = &d->target_source->t;
    size_t n = t->bytes / hth_dtype_bytes(t->dtype), per = n / (size_t)d->set.n_samples;
    for (size_t i = 0; i < n; i++) {
        int64_t l = data_label(t, i);
        if (l != -100 && (l < 0 || l >= classes)) {
            return hth_fail(HTH_EINVAL,
                            "label %lld of sample %zu is out of range: the model has %lld classes",
                            (long long)l, i / per, (long long)classes);
        }
    }
    return HTH_OK;
}

static void data_shape(train_data *d, int64_t n)
{
    for (int i = 0; i < d->n_inputs; i++) {
        d->input[i].shape.dim[0] = n;
    }
    d->target.shape.dim[0] = n;
}

// Fills the batch that begins at `first` in the order of the epoch; the last one may be shorter.
static void data_batch(train_data *d, int64_t first, int64_t batch)
{
    int64_t n = d->set.n_samples - first < batch ? d->set.n_samples - first : batch;
    for (int i = 0; i < d->n_inputs; i++) {
        hth_dataset_gather(&d->set, d->source[i], d->rows + first, n, d->input[i].data);
    }
    hth_dataset_gather(&d->set, d->target_source, d->rows + first, n, d->target.data);
    data_shape(d, n);
}

// Jobs.

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
    train_data data;
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
    data_close(&j->data);
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
    train_data *d = &j->data;
    hth_train_spec *s = &j->spec;
    HTH_TRY(hth_train_spec_read(j->args, false, s));
    HTH_TRY(job_pin(j, &m));
    HTH_TRY(data_open(s, m, d));
    s->options.label_dtype = d->target.dtype;
    HTH_TRY(hth_trainer_open(j->ms, s, j->r, &j->trainer));
    HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
    if (s->options.loss == HTH_LOSS_SOFTMAX_XENT) {
        HTH_TRY(data_check_labels(d, hth_trainer_classes(j->trainer)));
    }
    int64_t rest = d->set.n_samples % s->batch;
    if (d->set.n_samples > s->batch && rest > 0) {
        data_shape(d, rest);
        HTH_TRY(hth_trainer_prepare(j->trainer, d->input, &d->target));
        data_shape(d, s->batch);
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
    train_data *d = &j->data;
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
    data_batch(d, j->at, j->spec.batch);
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
