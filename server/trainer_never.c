// SPDX-License-Identifier: Apache-2.0
// What to tell who asked for a job that never fits its budget: the memory that plans were really
// found for, as it is, and with the changes that the user could make. Algorithms that nobody
// measured yet are guessed at, so that the answer comes in seconds.
#include "server/trainer.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

// Adds what `parts` parts of a batch of `n` samples would need, if that is less than `most`.
static void never_try(hth_trainer *t, const hth_tensor *inputs, int64_t n, int64_t parts,
                      uint64_t most, const char *what, int64_t number, char *text, size_t cap)
{
    int n_inputs = t->model->n_inputs;
    uint64_t bytes;
    size_t at = strlen(text);
    hth_tensor *part = hth_memdup(inputs, (size_t)n_inputs * sizeof *inputs);
    for (int i = 0; part != NULL && i < n_inputs; i++) {
        part[i].bytes = part[i].bytes / (size_t)inputs[i].shape.dim[0] * (size_t)n;
        part[i].shape.dim[0] = n;
    }
    if (part != NULL &&
        hth_trainer_least(t->ms, t->spec, t->progress, part, parts, &bytes) == HTH_OK &&
        bytes < most) {
        snprintf(text + at, cap - at, "; with %s %lld: at least %llu", what, (long long)number,
                 (unsigned long long)bytes);
    }
    hth_free(part);
}

hth_err hth_trainer_never(hth_trainer *t, const hth_tensor *inputs)
{
    char text[HTH_TRAINER_WHY], plain[HTH_TRAINER_WHY];
    uint64_t least, budget = t->budget_bytes;
    int64_t n = inputs[0].shape.dim[0], parts = t->spec->accumulate > 1 ? t->spec->accumulate : 1;
    snprintf(plain, sizeof plain, "%s", hth_err_detail());
    hth_err err = hth_trainer_least(t->ms, t->spec, t->progress, inputs, parts, &least);
    if (err != HTH_OK || budget == 0 || least <= budget) {
        return hth_fail(HTH_ETOOBIG, "%s", plain);
    }
    snprintf(text, sizeof text,
             "needs at least %llu bytes (policy %s), the budget is %llu: %llu are missing",
             (unsigned long long)least, hth_policy_name(t->spec->plan.policy),
             (unsigned long long)budget, (unsigned long long)(least - budget));
    if (n % (2 * parts) == 0 && t->spec->accumulate > 0 && !t->whole) {
        never_try(t, inputs, n, 2 * parts, least, "--accumulate", 2 * parts, text, sizeof text);
    }
    if (n % 2 == 0 && n / 2 % parts == 0) {
        never_try(t, inputs, n / 2, parts, least, "--batch", n / 2, text, sizeof text);
    }
    return hth_fail(HTH_ETOOBIG, "%s", text);
}
