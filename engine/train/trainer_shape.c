// SPDX-License-Identifier: Apache-2.0
// What a batch shape is compiled to, and where slots and arena lie while one of its steps runs.
//
// All steps of a job agree on the slots that the first one keeps on the device: to the others they
// are the caller's, and their budget is what is left. Hence these never move, whatever the order in
// which steps run. What else a step keeps is moved when it is entered. Where those slots leave too
// little for the other steps, none is agreed on: each step has the whole budget then.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "runtime/compile/compile.h"
#include "runtime/paced.h"

#include <string.h>

#define STEP_KIN 4 // times as many samples: those of more may have other fastest algorithms

static void step_free(hth_trainer *trainer, hth_trainer_phase *phase)
{
    hth_program_free(trainer->ms->site, phase->program);
    hth_train_graph_fini(&phase->graph);
    hth_free(phase->in);
    hth_free(phase->out);
    hth_free(phase->place);
    *phase = (hth_trainer_phase){.program = NULL};
}

static bool step_keeps(const hth_program *program, int i)
{
    int tensor = hth_program_slot(program, i);
    return tensor >= 0 && !program->plan->streamed[tensor];
}

// The first step of a job decides which slots stay.
static hth_err step_keep(hth_trainer *trainer, const hth_program *program)
{
    trainer->retained = hth_calloc((size_t)trainer->slots.n + 1, sizeof *trainer->retained);
    if (trainer->retained == NULL) {
        return hth_no_memory("a training job");
    }
    trainer->retained_bytes = 0;
    for (int i = 0; i < trainer->slots.n; i++) {
        trainer->retained[i] = step_keeps(program, i);
        trainer->retained_bytes +=
            trainer->retained[i] ? hth_plan_round(trainer->slots.bytes[i]) : 0;
    }
    return HTH_OK;
}

// A plan that keeps others than the first one did has all of them close together.
static void step_gather(const hth_trainer *trainer, hth_trainer_phase *phase)
{
    uint64_t at = 0;
    for (int i = 0; i < trainer->slots.n; i++) {
        bool resident = step_keeps(phase->program, i);
        phase->place[i] = resident ? at : HTH_SLOT_OFF_DEVICE;
        at += resident ? hth_plan_round(trainer->slots.bytes[i]) : 0;
    }
    phase->slots_bytes = at;
}

static bool step_has(const hth_trainer *trainer, const hth_trainer_phase *phase, int slot)
{
    return trainer->retained[slot] || step_keeps(phase->program, slot);
}

// Those that `other` (NULL: none is known) has too come first, so that they have the same place in
// both steps.
static void step_places(const hth_trainer *trainer, hth_trainer_phase *phase,
                        const hth_trainer_phase *other)
{
    uint64_t at = 0;
    for (int both = 1; both >= 0; both--) {
        for (int i = 0; i < trainer->slots.n; i++) {
            bool here = step_has(trainer, phase, i);
            bool there = other != NULL ? step_has(trainer, other, i) : trainer->retained[i];
            if ((here && there) != (both == 1)) {
                continue;
            }
            phase->place[i] = here ? at : HTH_SLOT_OFF_DEVICE;
            at += here ? hth_plan_round(trainer->slots.bytes[i]) : 0;
        }
    }
    phase->slots_bytes = at;
}

void hth_trainer_place(hth_trainer *trainer, hth_trainer_shape *shape)
{
    if (shape->parts > 1) {
        step_places(trainer, &shape->add, &shape->apply);
        step_places(trainer, &shape->apply, &shape->add);
    } else {
        step_gather(trainer, &shape->apply);
    }
}

static hth_err step_tensors(const hth_trainer *trainer, hth_trainer_phase *phase)
{
    const hth_graph *g = phase->program->graph;
    phase->in = hth_calloc((size_t)g->n_inputs + 1, sizeof *phase->in);
    phase->out = hth_calloc((size_t)g->n_outputs + 1, sizeof *phase->out);
    phase->place = hth_calloc((size_t)trainer->slots.n + 1, sizeof *phase->place);
    if (phase->in == NULL || phase->out == NULL || phase->place == NULL) {
        return hth_no_memory("a training job");
    }
    for (int i = 0; i < g->n_inputs; i++) {
        const hth_value *v = &g->values[g->inputs[i]];
        phase->in[i] = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &phase->in[i].bytes));
    }
    for (int i = 0; i < g->n_outputs; i++) {
        phase->out[i] = hth_program_output(phase->program, i);
    }
    step_places(trainer, phase, NULL);
    return HTH_OK;
}

static hth_err step_check_target(const hth_trainer_phase *phase, const hth_tensor *target)
{
    const hth_value *want =
        &phase->graph.graph->values[phase->graph.graph->inputs[phase->graph.target]];
    if (want->dtype == target->dtype && hth_shape_equal(&want->shape, &target->shape)) {
        return HTH_OK;
    }
    char a[160], b[160];
    return hth_fail(HTH_EINVAL, "targets are %s %s, but the model and this loss need %s %s",
                    hth_dtype_name(target->dtype), hth_shape_str(&target->shape, a, sizeof a),
                    hth_dtype_name(want->dtype), hth_shape_str(&want->shape, b, sizeof b));
}

// The same phase of the first shape, whose nodes were measured: what a batch of other samples goes
// by, the last one of an epoch, or a group's shard of up to STEP_KIN times as many samples or as
// few. Measuring those takes as long as many steps.
static const hth_program *step_kin(const hth_trainer *trainer, hth_train_phase phase,
                                   const hth_tensor *inputs, double *scale)
{
    if (trainer->n_shapes == 0) {
        return NULL;
    }
    const hth_trainer_shape *first = &trainer->shapes[0];
    int64_t parts = trainer->group ? 1 : first->parts;
    *scale = (double)(inputs[0].shape.dim[0] * parts) / (double)first->inputs[0].shape.dim[0];
    if (trainer->group && (*scale > STEP_KIN || *scale * STEP_KIN < 1)) {
        return NULL;
    }
    return phase == HTH_TRAIN_ACCUMULATE ? first->add.program : first->apply.program;
}

static hth_err step_compile(hth_trainer *trainer, hth_trainer_phase *phase, const bool *retained,
                            const hth_program *kin, double kin_scale)
{
    hth_step_spec spec = {.train = &phase->graph,
                          .kin = kin,
                          .kin_scale = kin_scale,
                          .account = &trainer->account,
                          .budget = trainer->spec->budget,
                          .budget_bytes = &trainer->budget_bytes,
                          .available_bytes = trainer->available_bytes,
                          .retained = retained,
                          .retained_bytes = retained != NULL ? trainer->retained_bytes : 0,
                          .options = trainer->spec->plan,
                          .far = trainer->slots.far,
                          .profile = trainer->profile,
                          .spill = trainer->spec->spill,
                          .problem_only = trainer->problem_only,
                          .slice_bytes = trainer->guess ? 1 : 0};
    return hth_program_compile_step(trainer->ms->site, &spec, !trainer->guess, trainer->progress,
                                    &phase->program);
}

static hth_err step_make(hth_trainer *trainer, hth_trainer_phase *s, hth_train_phase phase,
                         const hth_tensor *inputs, const hth_tensor *target)
{
    hth_train_options o = hth_trainer_options(trainer);
    o.phase = phase;
    o.keep_sums = hth_trainer_at_hand(trainer);
    hth_paced paced;
    hth_paced_begin(&paced, trainer->ms->site, trainer->progress);
    hth_err err = hth_train_build(trainer->model, inputs, &o, hth_ref_eval, NULL, &s->graph);
    hth_paced_end(&paced);
    HTH_TRY(err);
    HTH_TRY(step_check_target(s, target));
    if (trainer->slots.n == 0) {
        HTH_TRY(hth_trainer_slots_open(&trainer->slots, trainer->ms->site->device, &s->graph,
                                       trainer->spec->spill));
    }
    double kin_scale = 1;
    const hth_program *kin = step_kin(trainer, phase, inputs, &kin_scale);
    HTH_TRY(step_compile(trainer, s, trainer->retained, kin, kin_scale));
    if (trainer->problem_only) {
        return HTH_OK;
    }
    HTH_TRY(trainer->retained == NULL ? step_keep(trainer, s->program) : HTH_OK);
    return step_tensors(trainer, s);
}

// Shapes.

void hth_trainer_shape_free(hth_trainer *trainer, hth_trainer_shape *shape)
{
    step_free(trainer, &shape->add);
    step_free(trainer, &shape->apply);
    hth_free(shape->inputs);
    *shape = (hth_trainer_shape){.parts = 0};
}

static hth_tensor shape_part(hth_tensor whole, int64_t parts)
{
    whole.shape.dim[0] /= parts;
    whole.bytes /= (size_t)parts;
    return whole;
}

// How many parts of equal size a batch of `n` samples is taken in: the whole batch as asked for,
// another one in parts that are no larger.
static hth_err shape_parts(hth_trainer *trainer, int64_t n, int64_t *parts)
{
    if (trainer->group) {
        *parts = 2;
        return HTH_OK;
    }
    if (trainer->part == 0 && n % trainer->parts != 0) {
        return hth_fail(HTH_EINVAL, "a batch of %lld samples cannot be split into %lld equal parts",
                        (long long)n, (long long)trainer->parts);
    }
    trainer->part = trainer->part == 0 ? n / trainer->parts : trainer->part;
    int64_t part = n < trainer->part ? n : trainer->part;
    while (n % part != 0) {
        part--;
    }
    *parts = n / part;
    return HTH_OK;
}

// The step that a shape's first one leaves memory for. If that is too little, and no other shape
// relies on the slots that stay, none does: they move when the other step is entered.
static hth_err shape_second(hth_trainer *trainer, hth_trainer_phase *phase, hth_train_phase kind,
                            const hth_tensor *inputs, const hth_tensor *target)
{
    hth_err err = step_make(trainer, phase, kind, inputs, target);
    if (err != HTH_ETOOBIG || trainer->retained_bytes == 0 || trainer->n_shapes > 0) {
        return err;
    }
    step_free(trainer, phase);
    memset(trainer->retained, 0, (size_t)trainer->slots.n * sizeof *trainer->retained);
    trainer->retained_bytes = 0;
    return step_make(trainer, phase, kind, inputs, target);
}

// What adds gradients up needs the most memory of a group's phases, and decides what stays.
static hth_err shape_group(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                           hth_trainer_shape *shape)
{
    HTH_TRY(step_make(trainer, &shape->add, HTH_TRAIN_ACCUMULATE, inputs, target));
    return shape_second(trainer, &shape->apply, HTH_TRAIN_UPDATE, inputs, target);
}

static hth_err shape_steps(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                           hth_trainer_shape *shape)
{
    int n = trainer->model->n_inputs;
    if (trainer->group) {
        return shape_group(trainer, inputs, target, shape);
    }
    hth_tensor *part = hth_memdup(inputs, (size_t)n * sizeof *inputs);
    if (part == NULL) {
        return hth_no_memory("a training job");
    }
    for (int i = 0; i < n; i++) {
        part[i] = shape_part(inputs[i], shape->parts);
    }
    hth_tensor to = shape_part(*target, shape->parts);
    bool whole = trainer->parts == 1;
    hth_err err =
        step_make(trainer, &shape->apply, whole ? HTH_TRAIN_WHOLE : HTH_TRAIN_APPLY, part, &to);
    if (err == HTH_OK && shape->parts > 1) {
        err = shape_second(trainer, &shape->add, HTH_TRAIN_ACCUMULATE, part, &to);
    }
    hth_free(part);
    return err;
}

hth_err hth_trainer_shape_make(hth_trainer *trainer, const hth_tensor *inputs,
                               const hth_tensor *target, hth_trainer_shape *out)
{
    *out = (hth_trainer_shape){.parts = 1};
    if (trainer->n_shapes == 0) { // what an attempt agreed on that failed
        hth_free(trainer->retained);
        trainer->retained = NULL;
        trainer->retained_bytes = 0;
    }
    HTH_TRY(shape_parts(trainer, inputs[0].shape.dim[0], &out->parts));
    out->inputs = hth_memdup(inputs, (size_t)trainer->model->n_inputs * sizeof *inputs);
    hth_err err = out->inputs == NULL ? hth_no_memory("a training job")
                                      : shape_steps(trainer, inputs, target, out);
    if (err != HTH_OK) {
        hth_trainer_shape_free(trainer, out);
    } else if (out->parts > 1 && trainer->retained_bytes == 0 && !trainer->problem_only) {
        hth_trainer_place(trainer, out);
    }
    return err;
}

// Entering.

// Memory for slots and arena. What is too small is given back first: two of them need not fit.
static hth_err step_memory(hth_trainer *trainer, uint64_t bytes)
{
    if (trainer->memory_bytes >= bytes) {
        return HTH_OK;
    }
    HTH_TRY(hth_trainer_slots_leave(&trainer->slots));
    hth_pool_free(trainer->ms->site->pool, trainer->memory);
    trainer->memory = NULL;
    trainer->memory_bytes = 0;
    HTH_TRY(hth_site_alloc(trainer->ms->site, bytes, HTH_POOL_ARENA, &trainer->memory));
    trainer->memory_bytes = bytes;
    hth_trainer_share(trainer);
    return HTH_OK;
}

// A job that begins moves all its slots: others compute in between.
static hth_err step_slots(hth_trainer *trainer, hth_trainer_phase *phase)
{
    hth_paced paced;
    hth_paced_begin(&paced, trainer->ms->site, NULL);
    hth_err err = hth_trainer_slots_enter(&trainer->slots, trainer->memory, phase->place);
    hth_paced_end(&paced);
    return err;
}

hth_err hth_trainer_enter(hth_trainer *trainer, hth_trainer_phase *phase)
{
    uint64_t bytes = phase->slots_bytes + phase->program->plan->arena_bytes;
    bool begins = trainer->memory == NULL;
    HTH_TRY(step_memory(trainer, bytes > 0 ? bytes : HTH_PLAN_ALIGN));
    HTH_TRY(begins ? step_slots(trainer, phase)
                   : hth_trainer_slots_enter(&trainer->slots, trainer->memory, phase->place));
    phase->program->arena = (char *)trainer->memory + phase->slots_bytes;
    for (int i = 0; i < trainer->slots.n; i++) {
        const hth_train_slot *slot = &phase->graph.slots[i];
        phase->in[slot->input].data = trainer->slots.resident[i];
        if (slot->output >= 0) {
            phase->out[slot->output].data = trainer->slots.resident[i];
        }
    }
    phase->in[phase->graph.step].data = &trainer->step_input;
    phase->in[phase->graph.hyper].data = trainer->hyper;
    return HTH_OK;
}
