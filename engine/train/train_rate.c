// SPDX-License-Identifier: Apache-2.0
// Learning rates: the schedule, and the warm-up that its first steps are multiplied with.
#include "engine/train/train_spec.h"

#include "base/spelling.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// PyTorch's defaults of OneCycleLR.
#define CYCLE_UP    0.3 // share of the steps in which the rate grows
#define CYCLE_BEGIN 25.0
#define CYCLE_END   1e4 // of the rate at the beginning

static hth_err rate_unknown(const char *text)
{
    static const char *const names[] = {"constant", "step",   "exponential",
                                        "cosine",   "linear", "one-cycle"};
    static const char *const forms[] = {
        "constant", "step:EPOCHS:GAMMA", "exponential:GAMMA", "cosine", "linear", "one-cycle"};
    char hint[60] = "", word[40];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, ":"), text);
    int meant = hth_spelling_nearest(word, names, sizeof names / sizeof *names, 4);
    if (meant >= 0) {
        snprintf(hint, sizeof hint, "; did you mean '%s'?", forms[meant]);
    }
    return hth_fail(HTH_EINVAL,
                    "schedule '%.40s' is not one of constant, step:EPOCHS:GAMMA, "
                    "exponential:GAMMA, cosine, linear, one-cycle%s",
                    text, hint);
}

// "constant", "step:EPOCHS:GAMMA", "exponential:GAMMA", "cosine", "linear", "one-cycle".
hth_err hth_train_spec_rate(const json_t *args, hth_train_spec *spec)
{
    const char *text = hth_spec_text(args, "schedule");
    double warmup;
    long long every = 0;
    int end = 0;
    HTH_TRY(hth_spec_number(args, "warmup", 0, 0, 1e9, &warmup));
    spec->warmup = (int64_t)warmup;
    if (text == NULL || strcmp(text, "constant") == 0) {
        spec->schedule = HTH_RATE_CONSTANT;
    } else if (strcmp(text, "cosine") == 0) {
        spec->schedule = HTH_RATE_COSINE;
    } else if (strcmp(text, "linear") == 0) {
        spec->schedule = HTH_RATE_LINEAR;
    } else if (strcmp(text, "one-cycle") == 0) {
        spec->schedule = HTH_RATE_ONE_CYCLE;
    } else if (sscanf(text, "exponential:%lf%n", &spec->gamma, &end) == 1 && text[end] == 0 &&
               isfinite(spec->gamma) && spec->gamma > 0) {
        spec->schedule = HTH_RATE_EXPONENTIAL;
    } else if (sscanf(text, "step:%lld:%lf%n", &every, &spec->gamma, &end) == 2 && text[end] == 0 &&
               every > 0 && isfinite(spec->gamma) && spec->gamma > 0) {
        spec->schedule = HTH_RATE_STEP;
        spec->every = every;
    } else {
        return rate_unknown(text);
    }
    return HTH_OK;
}

// From `from` to `to`, half a cosine.
static double rate_cosine(double from, double to, double share)
{
    return to + (from - to) / 2 * (1 + cos(acos(-1) * share));
}

static double rate_one_cycle(double most, double step, double steps)
{
    double begin = most / CYCLE_BEGIN, up = CYCLE_UP * steps - 1, down = steps - 1;
    if (step <= up || down <= up) {
        return up > 0 ? rate_cosine(begin, most, step / up) : most;
    }
    return rate_cosine(most, begin / CYCLE_END, (step - up) / (down - up));
}

double hth_train_rate(const hth_train_spec *spec, int64_t step, int64_t steps, int64_t per_epoch)
{
    double lr = spec->lr, share = steps > 0 ? (double)step / (double)steps : 0;
    if (spec->schedule == HTH_RATE_STEP) {
        lr *= pow(spec->gamma, (double)(step / per_epoch / spec->every));
    } else if (spec->schedule == HTH_RATE_EXPONENTIAL) {
        lr *= pow(spec->gamma, (double)(step / per_epoch));
    } else if (spec->schedule == HTH_RATE_COSINE) {
        lr *= (1 + cos(acos(-1) * share)) / 2;
    } else if (spec->schedule == HTH_RATE_LINEAR) {
        lr *= 1 - share;
    } else if (spec->schedule == HTH_RATE_ONE_CYCLE) {
        lr = rate_one_cycle(lr, (double)step, (double)steps);
    }
    return step < spec->warmup ? lr * (double)(step + 1) / (double)spec->warmup : lr;
}
