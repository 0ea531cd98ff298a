// SPDX-License-Identifier: Apache-2.0
// What is handed out is one block: structures first, then the numbers and the strings that they
// point to.
#include "client/jobs/job_document.h"

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- states

static const char *const job_words[] = {
    [HEARTH_JOB_OTHER] = "other",       [HEARTH_JOB_WAITING] = "waiting",
    [HEARTH_JOB_QUEUED] = "queued",     [HEARTH_JOB_RUNNING] = "running",
    [HEARTH_JOB_PAUSED] = "paused",     [HEARTH_JOB_STOPPED] = "stopped",
    [HEARTH_JOB_FINISHED] = "finished", [HEARTH_JOB_FAILED] = "failed",
    [HEARTH_JOB_CANCELED] = "canceled",
};
#define JOB_WORDS (sizeof job_words / sizeof job_words[0])

const char *hearth_job_state_name(hearth_job_state state)
{
    return job_words[(size_t)state < JOB_WORDS ? (size_t)state : 0];
}

hearth_job_state hth_job_state_of(const json_t *row)
{
    const char *word = json_string_value(json_object_get(row, "state"));
    size_t i = JOB_WORDS - 1;
    while (i > 0 && (word == NULL || strcmp(word, job_words[i]) != 0)) {
        i--;
    }
    return (hearth_job_state)i;
}

bool hth_job_goes_on(hearth_job_state state)
{
    return state != HEARTH_JOB_STOPPED && state != HEARTH_JOB_FINISHED &&
           state != HEARTH_JOB_FAILED && state != HEARTH_JOB_CANCELED;
}

// ---- documents

static const char *row_text(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text != NULL ? text : "";
}

static double row_number(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static uint64_t row_count(const json_t *row, const char *key)
{
    double v = row_number(row, key); // NAN compares with nothing
    return v >= 0 && v < 0x1p63 ? (uint64_t)v : 0;
}

// row_keep copies a text to *at, which then is after it.
static const char *row_keep(const char *text, char **at)
{
    size_t n = strlen(text) + 1;
    const char *kept = memcpy(*at, text, n);
    *at += n;
    return kept;
}

static size_t row_bytes(const json_t *row)
{
    return sizeof(hearth_job_info) + strlen(row_text(row, "job")) + strlen(row_text(row, "model")) +
           strlen(row_text(row, "tenant")) + strlen(row_text(row, "why")) + 4;
}

static hearth_job_info row_read(const json_t *row, char **at)
{
    return (hearth_job_info){.id = row_count(row, "id"),
                             .name = row_keep(row_text(row, "job"), at),
                             .model = row_keep(row_text(row, "model"), at),
                             .tenant = row_keep(row_text(row, "tenant"), at),
                             .state = hth_job_state_of(row),
                             .why = row_keep(row_text(row, "why"), at),
                             .step = row_count(row, "step"),
                             .steps = row_count(row, "steps"),
                             .loss = row_number(row, "loss"),
                             .held_out_loss = row_number(row, "held_out_loss"),
                             .accuracy = row_number(row, "accuracy"),
                             .step_ms = row_number(row, "step_ms"),
                             .seconds_left = row_number(row, "seconds_left"),
                             .peak_bytes = row_count(row, "peak_bytes"),
                             .budget_bytes = row_count(row, "budget_bytes"),
                             .version = (int)row_count(row, "version"),
                             .ended_ns = row_count(row, "ended_ns"),
                             .event = "",
                             .lr = row_number(row, "lr"),
                             .top5 = row_number(row, "top5"),
                             .perplexity = row_number(row, "perplexity")};
}

hth_err hth_job_rows(const json_t *rows, hearth_job_info **out)
{
    size_t bytes = 0, i, n = json_array_size(rows);
    const json_t *row;
    *out = NULL;
    json_array_foreach(rows, i, row)
    {
        bytes += row_bytes(row);
    }
    hearth_job_info *list = n > 0 ? hth_calloc(1, bytes) : NULL;
    if (list == NULL) {
        return n > 0 ? hth_no_memory("a job") : HTH_OK;
    }
    char *at = (char *)(list + n);
    json_array_foreach(rows, i, row)
    {
        list[i] = row_read(row, &at);
        list[i].next = i + 1 < n ? &list[i + 1] : NULL;
    }
    *out = list;
    return HTH_OK;
}

hth_err hth_job_row(const json_t *row, const char *event, hearth_job_info **out)
{
    event = event != NULL ? event : "";
    *out = hth_calloc(1, row_bytes(row) + strlen(event) + 1);
    if (*out == NULL) {
        return hth_no_memory("a job");
    }
    char *at = (char *)(*out + 1);
    **out = row_read(row, &at);
    (*out)->event = row_keep(event, &at);
    return HTH_OK;
}

// ---- results

static hth_err result_none(const json_t *doc)
{
    const char *name = row_text(doc, "job"), *why = row_text(doc, "why");
    switch (hth_job_state_of(doc)) {
    case HEARTH_JOB_FAILED:
        return hth_fail(HTH_EIO, "job '%s' has failed: %s", name, why);
    case HEARTH_JOB_CANCELED:
        return hth_fail(HTH_ECANCELED, "job '%s' was canceled%s%s", name, why[0] != 0 ? ": " : "",
                        why);
    case HEARTH_JOB_STOPPED:
        return hth_fail(HTH_ECANCELED, "job '%s' is stopped, with a checkpoint%s%s", name,
                        why[0] != 0 ? ": " : "", why);
    default:
        return hth_fail(HTH_EBUSY, "job '%s' has not ended: it is %s", name,
                        row_text(doc, "state"));
    }
}

static hearth_evaluation result_evaluation(const json_t *json, char **at)
{
    return (hearth_evaluation){.step = row_count(json, "step"),
                               .epoch = row_count(json, "epoch"),
                               .set = row_keep(row_text(json, "set"), at),
                               .loss = row_number(json, "loss"),
                               .accuracy = row_number(json, "accuracy")};
}

hth_err hth_job_result(const json_t *doc, hearth_train_result **out)
{
    const json_t *history = json_object_get(doc, "history"),
                 *held = json_object_get(doc, "held_out");
    const json_t *v;
    size_t n = json_array_size(history), n_held = json_array_size(held), i;
    *out = NULL;
    if (hth_job_state_of(doc) != HEARTH_JOB_FINISHED) {
        return result_none(doc);
    }
    size_t bytes = sizeof **out + 2 * (n + n_held) * sizeof(double) +
                   n_held * sizeof(hearth_evaluation) + strlen(row_text(doc, "job")) + 1;
    json_array_foreach(held, i, v)
    {
        bytes += strlen(row_text(v, "set")) + 1;
    }
    hearth_train_result *r = hth_calloc(1, bytes);
    if (r == NULL) {
        return hth_no_memory("a job");
    }
    double *losses = (double *)(r + 1), *step_ms = losses + n;
    double *top5 = step_ms + n, *perplexity = top5 + n_held;
    hearth_evaluation *evaluations = (hearth_evaluation *)(perplexity + n_held);
    char *at = (char *)(evaluations + n_held);
    json_array_foreach(history, i, v)
    {
        losses[i] = json_number_value(json_array_get(v, 0));
        step_ms[i] = json_number_value(json_array_get(v, 1));
    }
    json_array_foreach(held, i, v)
    {
        evaluations[i] = result_evaluation(v, &at);
        top5[i] = row_number(v, "top5");
        perplexity[i] = row_number(v, "perplexity");
    }
    uint64_t every = row_count(doc, "every");
    *r =
        (hearth_train_result){.model = row_keep(row_text(doc, "job"), &at),
                              .version = (int)row_count(doc, "version"),
                              .steps = row_count(doc, "step"),
                              .n_losses = n,
                              .every = every > 0 ? every : 1,
                              .losses = losses,
                              .step_ms = step_ms,
                              .n_evaluations = n_held,
                              .evaluations = evaluations,
                              .top5 = top5,
                              .perplexity = perplexity,
                              .best_step = row_count(doc, "best_step"),
                              .best_epoch = row_count(doc, "best_epoch"),
                              .stopped_early = json_is_true(json_object_get(doc, "stopped_early"))};
    *out = r;
    return HTH_OK;
}

// ---- what a job is asked to do

static void put_text(json_t *args, const char *key, const char *text)
{
    if (text != NULL) {
        json_object_set_new(args, key, json_string(text));
    }
}

static void put_number(json_t *args, const char *key, double v)
{
    if (v != 0) {
        json_object_set_new(args, key, json_real(v));
    }
}

static void put_count(json_t *args, const char *key, uint32_t v)
{
    if (v != 0) {
        json_object_set_new(args, key, json_integer(v));
    }
}

// arguments_more adds the options that have no field.
static hth_err arguments_more(json_t *args, const char *more)
{
    json_error_t why = {.text = ""};
    json_t *v = json_loads(more, JSON_REJECT_DUPLICATES, &why);
    hth_err err = HTH_OK;
    if (!json_is_object(v)) {
        err = hth_fail(HTH_EINVAL, "more is not a JSON object%s%s", why.text[0] != 0 ? ": " : "",
                       hth_err_json(why.text));
    } else if (json_object_update(args, v) != 0) {
        err = hth_no_memory("a job");
    }
    json_decref(v);
    return err;
}

hth_err hth_options_read(const void *given, void *out, size_t bytes, size_t first)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    memset(out, 0, bytes);
    size_t said = size == 0 ? first : size;
    memcpy(out, given, said < bytes ? said : bytes);
    for (size_t i = bytes; i < size; i++) {
        if (((const uint8_t *)given)[i] != 0) {
            return hth_fail(HTH_ENOTSUP, "the options use a field of a newer hearth.h: this is "
                                         "libhearth " HEARTH_VERSION);
        }
    }
    return HTH_OK;
}

static void arguments_loss(json_t *args, const hearth_train_options *options)
{
    json_t *weights = options->weights != NULL ? json_array() : NULL;
    bool bce = options->loss != NULL && strcmp(options->loss, "bce") == 0;
    for (size_t i = 0; weights != NULL && i < options->n_weights; i++) {
        json_array_append_new(weights, json_real(options->weights[i]));
    }
    if (weights != NULL) {
        json_object_set_new(args, bce ? "pos-weight" : "class-weights", weights);
    }
    if (options->class_axis != 0) {
        json_object_set_new(args, "class-axis", json_integer(options->class_axis));
    }
    put_number(args, "label-smoothing", options->label_smoothing);
    put_text(args, "schedule", options->schedule);
    put_text(args, "keep", options->keep);
    put_count(args, "patience", options->patience);
}

hth_err hth_job_arguments(const char *model, const char *data, const hearth_train_options *options,
                          char **text)
{
    const hearth_train_options o = *options;
    *text = NULL;
    if (!isfinite(o.lr) || !isfinite(o.weight_decay) || !isfinite(o.hold_out) ||
        !isfinite(o.label_smoothing)) {
        return hth_fail(HTH_EINVAL, "lr, weight_decay, hold_out and label_smoothing must be finite "
                                    "numbers");
    }
    for (size_t i = 0; o.weights != NULL && i < o.n_weights; i++) {
        if (!isfinite(o.weights[i])) {
            return hth_fail(HTH_EINVAL, "weight %zu is not a finite number", i + 1);
        }
    }
    json_t *args = json_pack("{s:s, s:s, s:s, s:b}", "model", model, "data", data, "loss",
                             o.loss != NULL ? o.loss : "softmax-xent", "detach", 1);
    if (args == NULL) {
        return hth_fail(HTH_EINVAL, "the model's name or the data's path is not UTF-8");
    }
    put_text(args, "optimizer", o.optimizer);
    put_number(args, "lr", o.lr);
    put_number(args, "weight-decay", o.weight_decay);
    put_count(args, "batch", o.batch);
    put_count(args, "epochs", o.epochs);
    put_count(args, "seed", o.seed);
    if (o.no_shuffle != 0) {
        json_object_set_new(args, "no-shuffle", json_true());
    }
    put_text(args, "budget", o.budget);
    put_text(args, "save-as", o.save_as);
    put_text(args, "eval", o.eval);
    put_number(args, "hold-out", o.hold_out);
    put_count(args, "checkpoint-every", o.checkpoint_every);
    put_text(args, "on", o.on);
    arguments_loss(args, &o);
    hth_err err = o.more != NULL ? arguments_more(args, o.more) : HTH_OK;
    json_object_set_new(args, "detach", json_true());
    if (o.exchange != NULL) {
        json_object_set_new(args, "exchange",
                            json_loads(hearth_exchange_argument(o.exchange), 0, NULL));
    }
    char *dumped = err == HTH_OK ? json_dumps(args, JSON_COMPACT) : NULL;
    *text = dumped != NULL ? hth_strdup(dumped) : NULL;
    free(dumped);
    json_decref(args);
    if (err == HTH_OK && *text == NULL) {
        return hth_no_memory("a job");
    }
    return err;
}
