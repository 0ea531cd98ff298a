// SPDX-License-Identifier: Apache-2.0
// Training jobs: what was asked for, the way through the data, and what is told about it.
#include "server/train.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/dataset.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_MAX_INPUTS 16

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
    return HTH_OK;
}

hth_err hth_train_spec_read(const json_t *args, bool bench, hth_train_spec *s)
{
    static const char *const losses[] = {"softmax-xent", "mse"};
    double batch, epochs, seed, limit;
    int loss;
    *s = (hth_train_spec){.model = spec_text(args, "model"),
                          .data = spec_text(args, "data"),
                          .save_as = spec_text(args, "save-as"),
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
    if (bench && spec_text(args, "optimizer") == NULL) {
        s->options.optimizer = HTH_OPTIMIZER_MOMENTUM;
    }
    HTH_TRY(spec_number(args, "batch", bench ? 1 : 32, 1, 1 << 20, &batch));
    HTH_TRY(spec_number(args, "epochs", 1, 1, 1e9, &epochs));
    HTH_TRY(spec_number(args, "seed", 0, 0, 4294967295.0, &seed));
    HTH_TRY(spec_number(args, "plan-ms", 0, 0, 600000, &limit));
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

// The tensor that is not an input: "y", or the only one that is left.
static hth_err data_target(train_data *d)
{
    int left = 0;
    d->target_source = hth_dataset_find(&d->set, "y");
    for (int k = 0; k < d->set.n_tensors && d->target_source == NULL; k++) {
        bool used = false;
        for (int i = 0; i < d->n_inputs; i++) {
            used = used || d->source[i] == &d->set.tensors[k];
        }
        left += !used;
    }
    for (int k = 0; k < d->set.n_tensors && d->target_source == NULL && left == 1; k++) {
        bool used = false;
        for (int i = 0; i < d->n_inputs; i++) {
            used = used || d->source[i] == &d->set.tensors[k];
        }
        d->target_source = used ? NULL : &d->set.tensors[k];
    }
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

static int64_t data_label(const hth_tensor *t, size_t i)
{
    return t->dtype == HTH_DT_I32 ? ((const int32_t *)t->data)[i] : ((const int64_t *)t->data)[i];
}

// Labels out of range are told before anything runs.
static hth_err data_check_labels(const train_data *d, int64_t classes)
{
    hth_tensor t = d->target_source->t;
    size_t n = t.bytes / (t.dtype == HTH_DT_I32 ? 4 : 8);
    void *copy = hth_memdup(t.data, t.bytes); // aligned
    if (copy == NULL) {
        return no_memory();
    }
    t.data = copy;
    hth_err err = HTH_OK;
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        int64_t l = data_label(&t, i);
        if (l != -100 && (l < 0 || l >= classes)) {
            err = hth_fail(HTH_EINVAL,
                           "label %lld of sample %zu is out of range: the model has %lld classes",
                           (long long)l, i / (n / (size_t)d->set.n_samples), (long long)classes);
        }
    }
    hth_free(copy);
    return err;
}

// Fills the batch that begins at `first` in the order of the epoch; the last one may be shorter.
static int64_t data_batch(train_data *d, int64_t first, int64_t batch)
{
    int64_t n = d->set.n_samples - first < batch ? d->set.n_samples - first : batch;
    for (int i = 0; i < d->n_inputs; i++) {
        hth_dataset_gather(&d->set, d->source[i], d->rows + first, n, d->input[i].data);
        d->input[i].shape.dim[0] = n;
    }
    hth_dataset_gather(&d->set, d->target_source, d->rows + first, n, d->target.data);
    d->target.shape.dim[0] = n;
    return n;
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

typedef struct job_result {
    int64_t steps;
    double ms;
    json_t *history; // [[loss, ms], ..]
} job_result;

static hth_err job_epochs(hth_trainer *t, const hth_train_spec *spec, train_data *d, hth_request *r,
                          job_result *out)
{
    int64_t per_epoch = (d->set.n_samples + spec->batch - 1) / spec->batch;
    int64_t step = 0, all = per_epoch * spec->epochs;
    for (int64_t epoch = 0; epoch < spec->epochs; epoch++) {
        hth_dataset_order(&d->set, spec->shuffle, spec->seed, epoch, d->rows);
        for (int64_t at = 0; at < d->set.n_samples; at += spec->batch) {
            float loss = NAN;
            data_batch(d, at, spec->batch);
            HTH_TRY(hth_trainer_prepare(t, d->input, &d->target));
            uint64_t start_ns = hth_now_ns();
            HTH_TRY(hth_trainer_step(t, d->input, &d->target, &loss));
            double ms = (double)(hth_now_ns() - start_ns) / 1e6;
            step++;
            job_tell(r, step, all, epoch + 1, loss, ms);
            if (!isfinite(loss)) {
                return hth_fail(HTH_EINVAL,
                                "the loss of step %lld is %g: training stops, nothing is saved",
                                (long long)step, (double)loss);
            }
            out->ms += ms;
            if (json_array_append_new(out->history, json_pack("[f, f]", (double)loss, ms)) != 0) {
                return no_memory();
            }
        }
    }
    out->steps = step;
    return HTH_OK;
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

hth_err hth_train_job(hth_models *ms, const hth_train_spec *spec, hth_request *r, json_t **out)
{
    hth_trainer *t = NULL;
    hth_train_spec s = *spec;
    train_data d = {.n_inputs = 0};
    hth_model *m;
    job_result result = {.history = json_array()};
    int version = 0;
    hth_err err;
    HTH_GOTO(hth_model_find(ms, s.model, &m), out);
    HTH_GOTO(data_open(&s, m, &d), out);
    s.options.label_dtype = d.target.dtype;
    HTH_GOTO(hth_trainer_open(ms, &s, r, &t), out);
    HTH_GOTO(hth_trainer_prepare(t, d.input, &d.target), out);
    if (s.options.loss == HTH_LOSS_SOFTMAX_XENT) {
        HTH_GOTO(data_check_labels(&d, hth_trainer_classes(t)), out);
    }
    HTH_GOTO(job_epochs(t, &s, &d, r, &result), out);
    HTH_GOTO(hth_trainer_publish(t, &version), out);
    *out = hth_train_memory(hth_trainer_program(t));
    json_object_update_new(*out, json_pack("{s:s, s:i, s:I, s:f, s:O}", "saved_as",
                                           s.save_as != NULL ? s.save_as : s.model, "version",
                                           version, "steps", (json_int_t)result.steps, "mean_ms",
                                           result.steps > 0 ? result.ms / (double)result.steps : 0,
                                           "history", result.history));
out:
    json_decref(result.history);
    hth_trainer_close(t);
    data_close(&d);
    return err;
}
