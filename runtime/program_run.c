// SPDX-License-Identifier: Apache-2.0
// A run of an active program: inputs and outputs where kernels reach them, or copied to and from
// the arena; nothing of other tenants' runs left in there; outputs that no node writes.
#include "runtime/program.h"

#include <string.h>

hth_tensor hth_program_output(const hth_program *program, int i)
{
    const hth_value *v = &program->graph->values[program->graph->outputs[i]];
    hth_tensor t = {.dtype = v->dtype, .shape = v->shape};
    (void)hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN,
                           &t.bytes); // was computed when compiling
    return t;
}

// output_pass copies an input to an output, or leaves that to the caller's thread.
static void output_pass(const hth_site *site, const hth_tensor *in, const hth_tensor *out)
{
    hth_leftover *later = site->later;
    if (later == NULL || later->n == HTH_LEFTOVER_COPIES) {
        memcpy(out->data, in->data, out->bytes);
        return;
    }
    later->copy[later->n].to = out->data;
    later->copy[later->n].from = in->data;
    later->copy[later->n++].bytes = out->bytes;
}

// output_copy serves outputs that no node writes: constants, inputs passed through, a value given
// twice.
static hth_err output_copy(const hth_site *site, const hth_program *program, int i,
                           const hth_tensor *inputs, const hth_tensor *out)
{
    const hth_graph *g = program->graph;
    const hth_value *v = &g->values[g->outputs[i]];
    if (v->constant != NULL) {
        const void *data;
        HTH_TRY(hth_const_map(v->constant, &data));
        memcpy(out[i].data, data, out[i].bytes);
        hth_const_unmap(v->constant);
        return HTH_OK;
    }
    for (int k = 0; k < g->n_inputs && v->is_input; k++) {
        if (g->inputs[k] == g->outputs[i] && inputs[k].data != out[i].data) {
            output_pass(site, &inputs[k], &out[i]);
            return HTH_OK;
        }
    }
    if (program->same_output[i] != i) {
        memcpy(out[i].data, out[program->same_output[i]].data, out[i].bytes);
    }
    return HTH_OK;
}

// arena_hand_over leaves nothing of other models' runs where this one could read it. No operator
// lets what was there into a result, so that clearing is a second wall; debug builds fill the
// host's arena with NaNs instead, and all tests would show an operator that does.
static hth_err arena_hand_over(hth_site *site, const hth_program *program)
{
    size_t need = program->plan->arena_bytes;
    if (site->arena == NULL) {
        return HTH_OK;
    }
#ifdef HTH_DEBUG
    if (site->device->props.host_visible) {
        memset(site->arena, 0xff, need);
        return HTH_OK;
    }
#endif
    if (site->arena_cleared &&
        (program->account == NULL || program->account != site->arena_owner)) {
        site->arena_owner = program->account;
        site->arena_owned = 0;
    }
    if (site->arena_cleared && need > site->arena_owned) {
        HTH_TRY(hth_device_zero(site->device, (char *)site->arena + site->arena_owned,
                                need - site->arena_owned));
        site->arena_owned = need;
    }
    return HTH_OK;
}

// Memory that kernels cannot reach: its tensor lives in the arena, and is copied.
static bool program_far(const hth_site *site, const void *memory)
{
    return !site->device->props.host_visible && !hth_pool_holds(site->pool, memory);
}

static hth_err program_upload(hth_site *site, const hth_program *program, const hth_tensor *inputs)
{
    const hth_graph *g = program->graph;
    for (int i = 0; i < g->n_inputs; i++) {
        int t = inputs[i].data == NULL ? -1 : program->value_tensor[g->inputs[i]];
        void *to = t >= 0 && program->fixed[t] == NULL ? hth_run_filled(program->run, t) : NULL;
        if (to != NULL) {
            HTH_TRY(hth_device_put(site->device, to, inputs[i].data,
                                   program->problem.tensors[t].bytes));
        }
    }
    return HTH_OK;
}

static hth_err program_download(hth_site *site, const hth_program *program, const hth_tensor *out)
{
    const hth_graph *g = program->graph;
    for (int i = 0; i < g->n_outputs; i++) {
        int t = out[i].data == NULL ? -1 : program->value_tensor[g->outputs[i]];
        bool written = t >= 0 && program->fixed[t] == NULL && !g->values[g->outputs[i]].is_input;
        const void *from = written ? hth_run_left(program->run, t) : NULL;
        if (from != NULL) {
            HTH_TRY(hth_device_get(site->device, out[i].data, from, out[i].bytes));
        }
    }
    return HTH_OK;
}

typedef struct execution {
    hth_run *run;
    const atomic_int *canceled;
} execution;

static hth_err execute(void *arg)
{
    const execution *x = arg;
    return hth_run_execute(x->run, x->canceled);
}

static void run_point(void *ctx)
{
    (void)hth_work_point(ctx);
}

hth_err hth_program_begin(hth_site *site, hth_program *program, const hth_tensor *inputs,
                          const hth_tensor *out)
{
    const hth_graph *g = program->graph;
    HTH_TRY(hth_program_activate(site, program));
    for (int i = 0; i < g->n_inputs; i++) {
        int t = program->value_tensor[g->inputs[i]];
        if (t >= 0) { // not constant: its value was not what made the program
            program->fixed[t] = program_far(site, inputs[i].data) ? NULL : inputs[i].data;
        }
    }
    for (int i = g->n_outputs - 1; i >= 0;
         i--) { // the first of several outputs with one value is the one written
        int t = program->value_tensor[g->outputs[i]];
        if (t >= 0 && !g->values[g->outputs[i]].is_input) {
            program->fixed[t] = program_far(site, out[i].data) ? NULL : out[i].data;
        }
    }
    HTH_TRY(hth_run_bind(program->run, program->arena != NULL ? program->arena : site->arena,
                         program->fixed));
    if (program->arena == NULL) {
        HTH_TRY(arena_hand_over(site, program));
    }
    if (program->arena == NULL && program->threads == 0) {
        hth_run_between(program->run, run_point, site->queue);
    }
    return program_upload(site, program, inputs);
}

hth_err hth_program_end(hth_site *site, hth_program *program, const hth_tensor *inputs,
                        const hth_tensor *out)
{
    HTH_TRY(program_download(site, program, out));
    program->runs++;
    for (int i = 0; i < program->graph->n_outputs; i++) {
        HTH_TRY(output_copy(site, program, i, inputs, out));
    }
    return HTH_OK;
}

static hth_err program_run(hth_site *site, hth_program *program, const hth_tensor *inputs,
                           const hth_tensor *out, const atomic_int *canceled)
{
    execution x = {program->run, canceled};
    HTH_TRY(hth_program_begin(site, program, inputs, out));
    program->running = true;
    hth_err err =
        program->arena != NULL ? hth_work_elsewhere(site->queue, execute, &x) : execute(&x);
    program->running = false;
    site->freed++;
    HTH_TRY(err);
    return hth_program_end(site, program, inputs, out);
}

hth_err hth_program_run(hth_site *site, hth_program *program, const hth_tensor *inputs,
                        const hth_tensor *out, const atomic_int *canceled)
{
    bool shared = program->arena == NULL; // all runs have the site's arena
    if (shared) {
        hth_work_hold(site->queue);
    }
    hth_err err = program_run(site, program, inputs, out, canceled);
    if (shared) {
        hth_work_let(site->queue);
    }
    if (site->trim) {
        hth_site_trim(site);
    }
    return err;
}
