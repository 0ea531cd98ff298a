// SPDX-License-Identifier: Apache-2.0
// What to tell who asked for a job that no plan was found for: whether none can exist, the memory
// that plans were really found for, as it is, and with the changes that the user could make.
// Algorithms that nobody measured yet are guessed at, so that the answer comes in seconds.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NEVER_TRIES 4 // batches that are planned to find one that fits

// What a change of the job needs: the first number that fits the budget, or the one that comes
// nearest.
typedef struct never_change {
    const char *what;
    int64_t number; // 0: none
    uint64_t found;
} never_change;

// Stores what a plan was found for with `parts` parts of a batch of `n` samples, and takes it for
// *change if it is less. False: there is nothing to store.
static bool never_try(hth_trainer *trainer, const hth_tensor *inputs, int64_t n, int64_t parts,
                      int64_t number, never_change *change, uint64_t *found)
{
    int n_inputs = trainer->model->n_inputs;
    hth_trainer_need need;
    hth_tensor *part = hth_memdup(inputs, (size_t)n_inputs * sizeof *inputs);
    for (int i = 0; part != NULL && i < n_inputs; i++) {
        part[i].bytes = part[i].bytes / (size_t)inputs[i].shape.dim[0] * (size_t)n;
        part[i].shape.dim[0] = n;
    }
    hth_err err = part == NULL ? HTH_ENOMEM
                               : hth_trainer_least(trainer->ms, trainer->spec, trainer->progress,
                                                   part, parts, &need);
    hth_free(part);
    if (err != HTH_OK) {
        return false;
    }
    *found = need.found;
    if (need.found < change->found) {
        change->number = number;
        change->found = need.found;
    }
    return true;
}

// More parts of the same batch, twice as many each time.
static void never_parts(hth_trainer *trainer, const hth_tensor *inputs, int64_t parts,
                        never_change *change)
{
    int64_t n = inputs[0].shape.dim[0];
    uint64_t found = UINT64_MAX;
    for (parts *= 2; parts <= HTH_TRAINER_PARTS && n % parts == 0; parts *= 2) {
        if (!never_try(trainer, inputs, n, parts, parts, change, &found) ||
            found <= trainer->budget_bytes) {
            return;
        }
    }
}

// Fewer samples: bytes grow about as they do, so a line through the last two numbers meets the
// budget near the largest batch that fits.
static void never_batch(hth_trainer *trainer, const hth_tensor *inputs, int64_t parts,
                        never_change *change)
{
    double budget = (double)trainer->budget_bytes, more_bytes = (double)change->found;
    int64_t more = inputs[0].shape.dim[0];
    double at = (double)more * budget / more_bytes;
    for (int i = 0; i < NEVER_TRIES; i++) {
        uint64_t found;
        int64_t n = (int64_t)fmin(at, (double)(more - 1)) / parts * parts;
        n = n < parts ? parts : n;
        if (n >= more || !never_try(trainer, inputs, n, parts, n, change, &found) ||
            found <= trainer->budget_bytes) {
            return;
        }
        double each = (more_bytes - (double)found) / (double)(more - n);
        at = each > 0 ? (double)n - ((double)found - budget) / each : (double)n / 2;
        more = n;
        more_bytes = (double)found;
    }
}

static void never_say(const never_change *change, char *text, size_t cap)
{
    size_t at = strlen(text);
    if (change->number > 0) {
        snprintf(text + at, cap - at, "; with %s %lld for %s", change->what,
                 (long long)change->number, hth_size_up(change->found).text);
    }
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
    int64_t parts = trainer->spec->accumulate > 1 ? trainer->spec->accumulate : 1;
    snprintf(plain, sizeof plain, "%s", hth_err_detail());
    hth_err err = never_least(trainer, inputs, &need);
    HTH_TRY(err == HTH_ECANCELED ? err : HTH_OK);
    if (err != HTH_OK || budget == 0 || need.found <= budget) {
        return hth_fail(HTH_ETOOBIG, "%s", plain);
    }
    hth_shortage_fail(&(hth_shortage){budget, need.least, need.found, need.node,
                                      hth_policy_name(trainer->spec->plan.policy)});
    snprintf(text, sizeof text, "%s", hth_err_detail());
    never_change divided = {"--accumulate", 0, need.found}, smaller = {"--batch", 0, need.found};
    if (trainer->spec->accumulate > 0 && !trainer->whole) {
        never_parts(trainer, inputs, parts, &divided);
    }
    never_batch(trainer, inputs, parts, &smaller);
    if (trainer->progress != NULL && trainer->progress->canceled) {
        return hth_fail(HTH_ECANCELED, "canceled while it was being prepared");
    }
    never_say(&divided, text, sizeof text);
    never_say(&smaller, text, sizeof text);
    return hth_fail(HTH_ETOOBIG, "%s", text);
}
