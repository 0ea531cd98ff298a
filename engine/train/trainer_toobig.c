// SPDX-License-Identifier: Apache-2.0
// What to tell who asked for a job that no plan was found for: whether none can exist, the memory
// that plans were really found for, as it is, and with the changes that the user could make.
// Algorithms that nobody measured yet are guessed at, so that the answer comes in seconds.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

// Adds what a plan was found for with `parts` parts of a batch of `n` samples, if that is less than
// `most`.
static void never_try(hth_trainer *trainer, const hth_tensor *inputs, int64_t n, int64_t parts,
                      uint64_t most, const char *what, int64_t number, char *text, size_t cap)
{
    int n_inputs = trainer->model->n_inputs;
    hth_trainer_need need;
    size_t at = strlen(text);
    hth_tensor *part = hth_memdup(inputs, (size_t)n_inputs * sizeof *inputs);
    for (int i = 0; part != NULL && i < n_inputs; i++) {
        part[i].bytes = part[i].bytes / (size_t)inputs[i].shape.dim[0] * (size_t)n;
        part[i].shape.dim[0] = n;
    }
    if (part != NULL &&
        hth_trainer_least(trainer->ms, trainer->spec, trainer->progress, part, parts, &need) ==
            HTH_OK &&
        need.found < most) {
        snprintf(text + at, cap - at, "; with %s %lld for %s", what, (long long)number,
                 hth_size_up(need.found).text);
    }
    hth_free(part);
}

// The batch as it is, in as many parts as it may be taken in; each of *out is the least of them.
static hth_err never_least(hth_trainer *trainer, const hth_tensor *inputs, hth_trainer_need *out)
{
    int64_t n = inputs[0].shape.dim[0];
    int64_t parts = trainer->spec->accumulate > 1 ? trainer->spec->accumulate : 1;
    int64_t last = trainer->spec->accumulate > 0 || trainer->whole ? parts : HTH_TRAINER_PARTS;
    HTH_TRY(hth_trainer_least(trainer->ms, trainer->spec, trainer->progress, inputs, parts, out));
    for (parts *= 2; parts <= last && n % parts == 0; parts *= 2) {
        hth_trainer_need need;
        HTH_TRY(
            hth_trainer_least(trainer->ms, trainer->spec, trainer->progress, inputs, parts, &need));
        out->found = need.found < out->found ? need.found : out->found;
        if (need.least < out->least) {
            out->least = need.least;
            memcpy(out->node, need.node, sizeof out->node);
        }
    }
    return HTH_OK;
}

hth_err hth_trainer_toobig(hth_trainer *trainer, const hth_tensor *inputs)
{
    char text[HTH_TRAINER_WHY], plain[HTH_TRAINER_WHY];
    hth_trainer_need need;
    uint64_t budget = trainer->budget_bytes;
    int64_t n = inputs[0].shape.dim[0],
            parts = trainer->spec->accumulate > 1 ? trainer->spec->accumulate : 1;
    snprintf(plain, sizeof plain, "%s", hth_err_detail());
    hth_err err = never_least(trainer, inputs, &need);
    if (err != HTH_OK || budget == 0 || need.found <= budget) {
        return hth_fail(HTH_ETOOBIG, "%s", plain);
    }
    hth_shortage_fail(&(hth_shortage){budget, need.least, need.found, need.node,
                                      hth_policy_name(trainer->spec->plan.policy)});
    snprintf(text, sizeof text, "%s", hth_err_detail());
    if (n % (2 * parts) == 0 && trainer->spec->accumulate > 0 && !trainer->whole) {
        never_try(trainer, inputs, n, 2 * parts, need.found, "--accumulate", 2 * parts, text,
                  sizeof text);
    }
    if (n % 2 == 0 && n / 2 % parts == 0) {
        never_try(trainer, inputs, n / 2, parts, need.found, "--batch", n / 2, text, sizeof text);
    }
    return hth_fail(HTH_ETOOBIG, "%s", text);
}
