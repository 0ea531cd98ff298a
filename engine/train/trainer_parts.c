// SPDX-License-Identifier: Apache-2.0
// In how many parts a batch is taken (gradient accumulation), and what an update costs then.
//
// More parts need less memory for activations and more for the sums of gradients, and each part
// loads processors and caches less well: so the first number that is not followed by a faster one
// is taken. Two or more parts are planned under the bytes that one part would have had, so that a
// share of memory does not depend on the choice.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// What moves when `phase` is entered after `before`, and when that one is entered again: slots that
// only one of them keeps, in and (where they change) out; those that each has elsewhere, twice.
static double parts_moves_us(const hth_trainer *trainer, const hth_trainer_phase *phase,
                             const hth_trainer_phase *before)
{
    const hth_problem *p = &phase->program->problem;
    double us = 0;
    for (int i = 0; i < trainer->slots.n; i++) {
        bool here = phase->place[i] != HTH_SLOT_OFF_DEVICE,
             there = before->place[i] != HTH_SLOT_OFF_DEVICE;
        const hth_trainer_phase *only = here ? phase : before;
        bool changes = only->graph.slots[i].output >= 0;
        bool moves = phase->place[i] != before->place[i];
        double bytes = moves ? (double)trainer->slots.bytes[i] * (here + there) : 0;
        us += p->h2d_bytes_per_s > 0 ? bytes / p->h2d_bytes_per_s * 1e6 : 0;
        us += changes && p->d2h_bytes_per_s > 0 ? bytes / p->d2h_bytes_per_s * 1e6 : 0;
    }
    return us;
}

double hth_trainer_shape_us(const hth_trainer *trainer, const hth_trainer_shape *shape)
{
    double us = shape->apply.program->plan->predicted_us;
    if (shape->parts > 1) {
        us += (double)(shape->parts - 1) * shape->add.program->plan->predicted_us;
        us += parts_moves_us(trainer, &shape->apply, &shape->add);
    }
    return us;
}

json_t *hth_trainer_memory(const hth_trainer *trainer)
{
    const hth_trainer_shape *s = &trainer->shapes[0];
    bool group = trainer->group;
    const hth_program *first = (group ? &s->add : &s->apply)->program;
    json_t *doc = hth_train_memory(first);
    uint64_t peak = first->plan->arena_bytes + first->plan->resident_bytes;
    if (s->parts > 1) {
        const hth_plan *add = (group ? &s->apply : &s->add)->program->plan;
        uint64_t other = add->arena_bytes + add->resident_bytes + trainer->retained_bytes;
        json_int_t host = json_integer_value(json_object_get(doc, "host_bytes"));
        peak = other > peak ? other : peak;
        json_object_set_new(doc, "host_bytes", json_integer(host + (json_int_t)add->host_bytes));
    }
    json_object_set_new(doc, "peak_bytes", json_integer((json_int_t)peak));
    json_object_set_new(doc, "budget_bytes", json_integer((json_int_t)trainer->budget_bytes));
    json_object_set_new(doc, "predicted_ms", json_real(hth_trainer_shape_us(trainer, s) / 1e3));
    json_object_set_new(doc, "accumulate", json_integer(group ? 1 : trainer->parts));
    return doc;
}

// What a trial leaves behind when it is not the best one.
typedef struct trial {
    hth_trainer_shape shape;
    hth_trainer_slots slots;
    bool *retained;
    uint64_t retained_bytes;
    int64_t part, parts;
} trial;

static void trial_take(hth_trainer *trainer, trial *x)
{
    *x = (trial){x->shape,      trainer->slots, trainer->retained, trainer->retained_bytes,
                 trainer->part, trainer->parts};
    trainer->slots = (hth_trainer_slots){.n = 0};
    trainer->retained = NULL;
    trainer->part = 0;
}

static void trial_free(hth_trainer *trainer, trial *x)
{
    hth_trainer_shape_free(trainer, &x->shape);
    hth_trainer_slots_close(&x->slots);
    hth_free(x->retained);
    x->retained = NULL;
}

// The shape's programs know where their graphs are.
static void shape_move(hth_trainer_shape *to, hth_trainer_shape *from)
{
    *to = *from;
    *from = (hth_trainer_shape){.parts = 0};
    hth_trainer_phase *phase[2] = {&to->add, &to->apply};
    for (int i = 0; i < 2; i++) {
        if (phase[i]->program != NULL) {
            phase[i]->program->train = &phase[i]->graph;
        }
    }
}

// Plans the batch in `parts` parts. *us: what an update takes, INFINITY: it does not fit, `why`
// says by how much.
static hth_err trial_make(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                          int64_t parts, trial *x, double *us, char why[HTH_TRAINER_WHY])
{
    *us = INFINITY;
    trainer->parts = parts;
    hth_err err = hth_trainer_shape_make(trainer, inputs, target, &x->shape);
    if (err == HTH_ETOOBIG) {
        snprintf(why, HTH_TRAINER_WHY, "%s", hth_err_detail());
    } else if (err == HTH_OK) {
        *us = hth_trainer_shape_us(trainer, &x->shape);
    }
    trial_take(trainer, x);
    return err == HTH_ETOOBIG ? HTH_OK : err;
}

hth_err hth_trainer_choose(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                           hth_trainer_shape *out)
{
    trial best = {.parts = 0};
    double best_us = INFINITY;
    char why[HTH_TRAINER_WHY] = "";
    hth_err err = HTH_OK;
    int64_t n = inputs[0].shape.dim[0];
    for (int64_t parts = 1; err == HTH_OK && parts <= HTH_TRAINER_PARTS && n % parts == 0;
         parts *= 2) {
        trial x = {.parts = 0};
        double us;
        err = trial_make(trainer, inputs, target, parts, &x, &us, why);
        bool better = err == HTH_OK && us < best_us * HTH_TRAINER_GAIN;
        bool stop = best.parts > 0 && !better;
        if (better) {
            trial_free(trainer, &best);
            shape_move(&best.shape, &x.shape);
            x.shape = best.shape;
            best = x;
            best_us = us;
        } else {
            trial_free(trainer, &x);
        }
        if (stop) {
            break;
        }
    }
    if (err != HTH_OK || best.parts == 0) {
        trial_free(trainer, &best);
        trainer->parts = 0;
        HTH_TRY(err);
        return hth_fail(HTH_ETOOBIG, "%s; nor with --accumulate up to %d", why, HTH_TRAINER_PARTS);
    }
    shape_move(out, &best.shape);
    trainer->slots = best.slots;
    trainer->retained = best.retained;
    trainer->retained_bytes = best.retained_bytes;
    trainer->part = best.part;
    trainer->parts = best.parts;
    return HTH_OK;
}
