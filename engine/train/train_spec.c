// SPDX-License-Identifier: Apache-2.0
// What a training job is asked to do: a JSON object of its options, read and checked.
#include "engine/train/train_spec.h"

#include "base/spelling.h"
#include "engine/train/data/image_spec.h"
#include "runtime/tenants/owner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A job runs long enough to be planned well. Under a sanitizer a search takes five to ten times its
// limit.
#ifdef HTH_DEBUG
#define TRAIN_PLAN_MS 60
#else
#define TRAIN_PLAN_MS 1000
#endif

const char *hth_spec_text(const json_t *args, const char *key)
{
    return json_string_value(json_object_get(args, key));
}

hth_err hth_spec_number(const json_t *args, const char *key, double dflt, double least, double most,
                        double *out)
{
    const json_t *v = json_object_get(args, key);
    *out = v == NULL ? dflt : json_number_value(v);
    if (v == NULL || (json_is_number(v) && *out >= least && *out <= most)) {
        return HTH_OK;
    }
    char *given = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(10));
    hth_err err = hth_fail(HTH_EINVAL, "%s is a number from %.10g to %.10g, not %.40s", key, least,
                           most, given != NULL ? given : "this");
    free(given);
    return err;
}

hth_err hth_spec_choice(const json_t *args, const char *key, const char *dflt,
                        const char *const *names, int n, int *out)
{
    const char *v = hth_spec_text(args, key);
    char all[200] = "";
    v = v != NULL ? v : dflt;
    for (int i = 0; i < n; i++) {
        if (v != NULL && strcmp(v, names[i]) == 0) {
            *out = i;
            return HTH_OK;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    }
    int meant = v != NULL ? hth_spelling_nearest(v, names, n, 4) : -1;
    if (meant >= 0) {
        return hth_fail(HTH_EINVAL, "%s '%.40s' is not one of %s; did you mean '%s'?", key, v, all,
                        names[meant]);
    }
    return v == NULL ? hth_fail(HTH_EINVAL, "%s is missing: one of %s", key, all)
                     : hth_fail(HTH_EINVAL, "%s '%.40s' is not one of %s", key, v, all);
}

// At 1 Adam would divide by 0.
static hth_err spec_beta(const json_t *args, const char *key, double dflt, double *out)
{
    HTH_TRY(hth_spec_number(args, key, dflt, 0, 1, out));
    return *out < 1 ? HTH_OK : hth_fail(HTH_EINVAL, "%s is a number from 0 to less than 1", key);
}

// A setting of another optimizer is a mistake that would show in the losses only.
static hth_err spec_fitting(const json_t *args, const char *optimizer)
{
    static const struct {
        const char *key, *of;
    } settings[] = {{"momentum", "momentum"},
                    {"nesterov", "momentum"},
                    {"beta1", "adam and adamw"},
                    {"beta2", "adam and adamw"},
                    {"eps", "adam and adamw"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const json_t *v = json_object_get(args, settings[i].key);
        if (v != NULL && !json_is_false(v) && strstr(settings[i].of, optimizer) == NULL) {
            return hth_fail(HTH_EINVAL, "%s is a setting of the optimizer %s, not of %s",
                            settings[i].key, settings[i].of, optimizer);
        }
    }
    return HTH_OK;
}

static hth_err spec_optimizer(const json_t *args, hth_train_spec *spec)
{
    static const char *const names[] = {"sgd", "momentum", "adam", "adamw"};
    int which;
    HTH_TRY(hth_spec_choice(args, "optimizer", "sgd", names, 4, &which));
    spec->options.optimizer = (hth_train_optimizer)which;
    HTH_TRY(hth_spec_number(args, "lr", 1e-3, 0, 1e6, &spec->lr));
    HTH_TRY(hth_spec_number(args, "momentum", 0.9, 0, 1, &spec->momentum));
    HTH_TRY(spec_beta(args, "beta1", 0.9, &spec->beta1));
    HTH_TRY(spec_beta(args, "beta2", 0.999, &spec->beta2));
    HTH_TRY(hth_spec_number(args, "eps", 1e-8, 0, 1, &spec->eps));
    HTH_TRY(spec_fitting(args, names[which]));
    double decay = spec->options.optimizer == HTH_OPTIMIZER_ADAMW ? 0.01 : 0, clip;
    HTH_TRY(hth_spec_number(args, "weight-decay", decay, 0, 1e6, &spec->weight_decay));
    HTH_TRY(hth_spec_number(args, "clip", 0, 0, 1e9, &clip));
    spec->options.clip_norm = (float)clip;
    spec->options.nesterov = json_is_true(json_object_get(args, "nesterov"));
    return HTH_OK;
}

static hth_err spec_freeze(const json_t *args, hth_train_spec *spec)
{
    const json_t *v, *list = json_object_get(args, "freeze");
    size_t i;
    if (json_array_size(list) > HTH_TRAIN_MAX_FREEZE) {
        return hth_fail(HTH_EINVAL, "more than %d patterns of frozen parameters",
                        HTH_TRAIN_MAX_FREEZE);
    }
    json_array_foreach(list, i, v)
    {
        spec->freeze[spec->options.n_freeze++] = json_string_value(v) ? json_string_value(v) : "";
    }
    spec->options.freeze = spec->freeze;
    return HTH_OK;
}

// "auto", a number, or a number as text. What an earlier start of the job chose ("parts") stays.
static hth_err spec_accumulate(const json_t *args, hth_train_spec *spec)
{
    const json_t *v = json_object_get(args, "accumulate");
    const char *text = json_string_value(v);
    char *end;
    json_int_t begun = json_integer_value(json_object_get(args, "parts"));
    spec->accumulate = v == NULL ? 1 : json_integer_value(v);
    if (text != NULL && strcmp(text, "auto") != 0) {
        spec->accumulate = strtoll(text, &end, 10);
        spec->accumulate = *end == 0 ? spec->accumulate : -1;
    }
    bool is_auto = text != NULL && strcmp(text, "auto") == 0;
    if (!is_auto && (spec->accumulate < 1 || spec->accumulate > 1 << 20)) {
        return hth_fail(HTH_EINVAL, "accumulate is 'auto' or a number from 1 to %d", 1 << 20);
    }
    spec->accumulate = is_auto ? begun : spec->accumulate;
    return HTH_OK;
}

hth_err hth_spec_file(const json_t *args, const char *key, hth_train_file *out)
{
    const json_t *v = json_object_get(args, key), *which = json_object_get(v, "descriptor");
    *out = (hth_train_file){.passed = -1};
    if (json_is_string(json_object_get(v, "dataset"))) {
        out->name = hth_spec_text(v, "dataset");
        out->stored = true;
        out->own = json_is_true(json_object_get(v, "own"));
    } else if (json_is_object(v)) {
        out->name = hth_spec_text(v, "file");
        out->path = hth_spec_text(v, "path");
        out->passed = json_is_integer(which) ? (int)json_integer_value(which) : -1;
    } else {
        out->name = out->path = json_string_value(v);
    }
    return v == NULL || json_is_null(v) || out->name != NULL
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'%s' is neither a file nor a dataset", key);
}

hth_err hth_train_spec_read(const json_t *args, bool bench, hth_train_spec *spec)
{
    static const char *const switches[] = {"off", "on"}, *const reduce[] = {"all", "ps"};
    const char *text = hth_spec_text(args, "precision");
    double batch, epochs, seed, limit, checkpoint, retries, priority;
    int replan, server;
    *spec = (hth_train_spec){.model = hth_spec_text(args, "model"),
                             .save_as = hth_spec_text(args, "save-as"),
                             .owner = hth_spec_text(args, HTH_META_OWNER),
                             .spill = hth_spec_text(args, "spill"),
                             .trace = json_is_true(json_object_get(args, "trace")),
                             .profile = json_object_get(args, "profile"),
                             .write_profile = json_is_true(json_object_get(args, "write-profile")),
                             .budget = hth_spec_text(args, "budget"),
                             .sync_bn = json_is_true(json_object_get(args, "sync-bn")),
                             .shuffle = !json_is_true(json_object_get(args, "no-shuffle"))};
    if (spec->model == NULL) {
        return hth_fail(HTH_EINVAL, "the argument 'model' is missing");
    }
    HTH_TRY(hth_spec_file(args, "data", &spec->data));
    HTH_TRY(hth_spec_file(args, "eval", &spec->eval));
    if (spec->data.name == NULL && !bench) {
        return hth_fail(HTH_EINVAL, "--data FILE (the argument 'data') is missing");
    }
    HTH_TRY(hth_train_spec_loss(args, bench, spec));
    HTH_TRY(hth_precision_find(text != NULL ? text : hth_precision_name(HTH_PRECISION_FP32),
                               &spec->options.precision));
    HTH_TRY(spec_optimizer(args, spec));
    HTH_TRY(hth_train_spec_rate(args, spec));
    HTH_TRY(spec_freeze(args, spec));
    HTH_TRY(hth_image_spec_scale(args, &spec->options.scale));
    HTH_TRY(hth_image_spec_augment(args, &spec->augment));
    if (bench && hth_spec_text(args, "optimizer") == NULL) {
        spec->options.optimizer = HTH_OPTIMIZER_MOMENTUM;
    }
    HTH_TRY(hth_spec_number(args, "batch", bench ? 1 : 32, 1, 1 << 20, &batch));
    HTH_TRY(spec_accumulate(args, spec));
    HTH_TRY(hth_spec_choice(args, "replan", bench ? "off" : "on", switches, 2, &replan));
    spec->replan = replan == 1;
    HTH_TRY(hth_spec_choice(args, "reduce", reduce[0], reduce, 2, &server));
    spec->server = server == 1;
    HTH_TRY(hth_spec_number(args, "epochs", 1, 1, 1e9, &epochs));
    HTH_TRY(hth_spec_number(args, "seed", 0, 0, HTH_SPEC_MOST_SEED, &seed));
    HTH_TRY(hth_spec_number(args, "plan-ms", bench ? 0 : TRAIN_PLAN_MS, 0, HTH_SPEC_MOST_PLAN_MS,
                            &limit));
    HTH_TRY(hth_spec_number(args, "checkpoint-every", 0, 0, 1e9, &checkpoint));
    HTH_TRY(hth_spec_number(args, "retries", 0, 0, 1000, &retries)); // the queue's
    HTH_TRY(hth_spec_number(args, "priority", 0, -100, 100, &priority));
    HTH_TRY(hth_spec_number(args, "time-limit", 0, 0, 1e9, &spec->time_limit));
    HTH_TRY(hth_spec_number(args, "hold-out", 0, 0, 1, &spec->hold_out));
    HTH_TRY(hth_train_spec_keep(args, spec));
    spec->checkpoint = (int64_t)checkpoint;
    spec->resume = json_is_true(json_object_get(args, "resume"));
    spec->batch = (int64_t)batch;
    spec->epochs = (int64_t)epochs;
    spec->seed = (uint64_t)seed;
    spec->plan = (hth_plan_options){.seed = spec->seed, .limit_ms = limit};
    const char *policy = hth_spec_text(args, "policy");
    return policy != NULL ? hth_policy_find(policy, &spec->plan.policy) : HTH_OK;
}
