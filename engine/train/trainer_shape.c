// SPDX-License-Identifier: Apache-2.0
// What a batch shape is compiled to, and where slots and arena lie while one of its steps runs.
//
// All steps of a job agree on the slots that the first one keeps on the device: to the others they
// are the caller's, and their budget is what is left. Hence these never move, whatever the order in
// which steps run. What else a step keeps is moved when it is entered.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "runtime/paced.h"

#include <string.h>

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory to train");
}

static void step_free(hth_trainer *t, hth_trainer_phase *s)
{
    hth_program_free(t->ms->site, s->program);
    hth_train_graph_fini(&s->graph);
    hth_free(s->in);
    hth_free(s->out);
    hth_free(s->place);
    *s = (hth_trainer_phase){.program = NULL};
}

static bool step_keeps(const hth_program *p, int i)
{
    int tensor = hth_program_slot(p, i);
    return tensor >= 0 && !p->plan->streamed[tensor];
}

// The first step of a job decides which slots stay.
static hth_err step_keep(hth_trainer *t, const hth_program *p)
{
    t->retained = hth_calloc((size_t)t->slots.n + 1, sizeof *t->retained);
    if (t->retained == NULL) {
        return no_memory();
    }
    t->retained_bytes = 0;
    for (int i = 0; i < t->slots.n; i++) {
        t->retained[i] = step_keeps(p, i);
        t->retained_bytes += t->retained[i] ? hth_plan_round(t->slots.bytes[i]) : 0;
    }
    return HTH_OK;
}

// A plan that keeps others than the first one did has all of them close together.
static void step_gather(const hth_trainer *t, hth_trainer_phase *s)
{
    uint64_t at = 0;
    for (int i = 0; i < t->slots.n; i++) {
        bool resident = step_keeps(s->program, i);
        s->place[i] = resident ? at : HTH_SLOT_OFF_DEVICE;
        at += resident ? hth_plan_round(t->slots.bytes[i]) : 0;
    }
    s->slots_bytes = at;
}

// Those that always stay come first, so that they have the same place in every step.
static void step_places(const hth_trainer *t, hth_trainer_phase *s)
{
    uint64_t at = 0;
    for (int retained = 1; retained >= 0; retained--) {
        for (int i = 0; i < t->slots.n; i++) {
            if (t->retained[i] != (retained == 1)) {
                continue;
            }
            bool resident = t->retained[i] || step_keeps(s->program, i);
            s->place[i] = resident ? at : HTH_SLOT_OFF_DEVICE;
            at += resident ? hth_plan_round(t->slots.bytes[i]) : 0;
        }
    }
    s->slots_bytes = at;
}

void hth_trainer_place(hth_trainer *trainer, hth_trainer_shape *shape)
{
    if (shape->parts > 1) {
        step_places(trainer, &shape->add);
    } else {
        step_gather(trainer, &shape->apply);
    }
}

static hth_err step_tensors(const hth_trainer *t, hth_trainer_phase *s)
{
    const hth_graph *g = s->program->graph;
    s->in = hth_calloc((size_t)g->n_inputs + 1, sizeof *s->in);
    s->out = hth_calloc((size_t)g->n_outputs + 1, sizeof *s->out);
    s->place = hth_calloc((size_t)t->slots.n + 1, sizeof *s->place);
    if (s->in == NULL || s->out == NULL || s->place == NULL) {
        return no_memory();
    }
    for (int i = 0; i < g->n_inputs; i++) {
        const hth_value *v = &g->values[g->inputs[i]];
        s->in[i] = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &s->in[i].bytes));
    }
    for (int i = 0; i < g->n_outputs; i++) {
        s->out[i] = hth_program_output(s->program, i);
    }
    step_places(t, s);
    return HTH_OK;
}

static hth_err step_check_target(const hth_trainer_phase *s, const hth_tensor *target)
{
    const hth_value *want = &s->graph.graph->values[s->graph.graph->inputs[s->graph.target]];
    if (want->dtype == target->dtype && hth_shape_equal(&want->shape, &target->shape)) {
        return HTH_OK;
    }
    char a[160], b[160];
    return hth_fail(HTH_EINVAL, "targets are %s %s, but the model and this loss need %s %s",
                    hth_dtype_name(target->dtype), hth_shape_str(&target->shape, a, sizeof a),
                    hth_dtype_name(want->dtype), hth_shape_str(&want->shape, b, sizeof b));
}

static hth_err step_compile(hth_trainer *t, hth_trainer_phase *s, const bool *retained)
{
    hth_step_spec spec = {.train = &s->graph,
                          .account = &t->account,
                          .budget = t->spec->budget,
                          .budget_bytes = &t->budget_bytes,
                          .available_bytes = t->available_bytes,
                          .retained = retained,
                          .retained_bytes = retained != NULL ? t->retained_bytes : 0,
                          .options = t->spec->plan,
                          .far = t->slots.far,
                          .profile = t->profile,
                          .spill = t->spec->spill,
                          .problem_only = t->problem_only};
    return hth_program_compile_step(t->ms->site, &spec, !t->guess, t->progress, &s->program);
}

static hth_err step_make(hth_trainer *t, hth_trainer_phase *s, hth_train_phase phase,
                         const hth_tensor *inputs, const hth_tensor *target)
{
    hth_train_options o = hth_trainer_options(t);
    o.phase = phase;
    hth_paced paced;
    hth_paced_begin(&paced, t->ms->site, t->progress);
    hth_err err = hth_train_build(t->model, inputs, &o, hth_ref_eval, NULL, &s->graph);
    hth_paced_end(&paced);
    HTH_TRY(err);
    HTH_TRY(step_check_target(s, target));
    if (t->slots.n == 0) {
        HTH_TRY(hth_trainer_slots_open(&t->slots, t->ms->site->device, &s->graph, t->spec->spill));
    }
    HTH_TRY(step_compile(t, s, t->retained));
    if (t->problem_only) {
        return HTH_OK;
    }
    HTH_TRY(t->retained == NULL ? step_keep(t, s->program) : HTH_OK);
    return step_tensors(t, s);
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
static hth_err shape_parts(hth_trainer *t, int64_t n, int64_t *parts)
{
    if (t->part == 0 && n % t->parts != 0) {
        return hth_fail(HTH_EINVAL, "a batch of %lld samples cannot be split into %lld equal parts",
                        (long long)n, (long long)t->parts);
    }
    t->part = t->part == 0 ? n / t->parts : t->part;
    int64_t part = n < t->part ? n : t->part;
    while (n % part != 0) {
        part--;
    }
    *parts = n / part;
    return HTH_OK;
}

static hth_err shape_steps(hth_trainer *t, const hth_tensor *inputs, const hth_tensor *target,
                           hth_trainer_shape *s)
{
    int n = t->model->n_inputs;
    hth_tensor *part = hth_memdup(inputs, (size_t)n * sizeof *inputs);
    if (part == NULL) {
        return no_memory();
    }
    for (int i = 0; i < n; i++) {
        part[i] = shape_part(inputs[i], s->parts);
    }
    hth_tensor to = shape_part(*target, s->parts);
    bool whole = t->parts == 1;
    hth_err err = step_make(t, &s->apply, whole ? HTH_TRAIN_WHOLE : HTH_TRAIN_APPLY, part, &to);
    if (err == HTH_OK && s->parts > 1) {
        err = step_make(t, &s->add, HTH_TRAIN_ACCUMULATE, part, &to);
    }
    hth_free(part);
    return err;
}

hth_err hth_trainer_shape_make(hth_trainer *trainer, const hth_tensor *inputs,
                               const hth_tensor *target, hth_trainer_shape *out)
{
    *out = (hth_trainer_shape){.parts = 1};
    HTH_TRY(shape_parts(trainer, inputs[0].shape.dim[0], &out->parts));
    out->inputs = hth_memdup(inputs, (size_t)trainer->model->n_inputs * sizeof *inputs);
    hth_err err = out->inputs == NULL ? no_memory() : shape_steps(trainer, inputs, target, out);
    if (err != HTH_OK) {
        hth_trainer_shape_free(trainer, out);
    }
    return err;
}

// Entering.

// Memory for slots and arena. What is too small is given back first: two of them need not fit.
static hth_err step_memory(hth_trainer *t, uint64_t bytes)
{
    if (t->memory_bytes >= bytes) {
        return HTH_OK;
    }
    HTH_TRY(hth_trainer_slots_leave(&t->slots));
    hth_pool_free(t->ms->site->pool, t->memory);
    t->memory = NULL;
    t->memory_bytes = 0;
    HTH_TRY(hth_site_alloc(t->ms->site, bytes, HTH_POOL_ARENA, &t->memory));
    t->memory_bytes = bytes;
    hth_trainer_share(t);
    return HTH_OK;
}

hth_err hth_trainer_enter(hth_trainer *trainer, hth_trainer_phase *phase)
{
    uint64_t bytes = phase->slots_bytes + phase->program->plan->arena_bytes;
    HTH_TRY(step_memory(trainer, bytes > 0 ? bytes : HTH_PLAN_ALIGN));
    HTH_TRY(hth_trainer_slots_enter(&trainer->slots, trainer->memory, phase->place));
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
