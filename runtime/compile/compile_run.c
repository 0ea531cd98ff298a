// SPDX-License-Identifier: Apache-2.0
// From a plan to what runs it: where everything is while it is away, and the run; another plan for
// the same kernels.
#include "runtime/compile/compile_impl.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

// Where streamed weights come from: memory, or a file.
static hth_err compile_weights_far(hth_site *site, hth_program *program)
{
    uint64_t end = 0;
    hth_err err = HTH_OK;
    for (int w = 0; err == HTH_OK && w < program->n_weights; w++) {
        hth_weight *weight = &program->weights[w];
        if (!weight->streamed) {
            continue;
        }
        if (weight->far.memory != NULL || weight->far.file != NULL) { // from an earlier plan
            program->far_of[program->weight_tensor[w]] = &weight->far;
            continue;
        }
        program->far_of[program->weight_tensor[w]] = &weight->far;
        if (program->spill != NULL) {
            weight->far.at = end;
            end += (weight->bytes + HTH_SPILL_ALIGN - 1) / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
            continue;
        }
        err = hth_device_reserve_host(site->device, weight->bytes, &weight->far.memory);
    }
    if (err == HTH_OK && end > 0) {
        err = hth_spill_open(program->spill, end, &program->spill_weights);
    }
    for (int w = 0; w < program->n_weights; w++) {
        program->weights[w].far.file = program->weights[w].streamed ? program->spill_weights : NULL;
    }
    return err;
}

hth_err hth_compile_run(hth_site *site, hth_program *program)
{
    program->far_of = hth_calloc((size_t)program->problem.n_tensors, sizeof *program->far_of);
    program->fixed = hth_calloc((size_t)program->problem.n_tensors, sizeof *program->fixed);
    hth_err err =
        program->far_of == NULL || program->fixed == NULL ? hth_no_memory("a program") : HTH_OK;
    for (int i = 0; err == HTH_OK && program->train != NULL && i < program->train->n_slots; i++) {
        int t = hth_program_slot(program, i);
        if (t >= 0 && program->plan->streamed[t]) {
            program->far_of[t] = &program->far[i];
        }
    }
    if (err == HTH_OK) {
        err = compile_weights_far(site, program);
    }
    if (err == HTH_OK) {
        hth_run_spec spec = {.device = site->device,
                             .problem = &program->problem,
                             .plan = program->plan,
                             .kernels = program->kernels,
                             .node_in = (const int *const *)program->node_in,
                             .n_in = program->n_in,
                             .node_out = (const int *const *)program->node_out,
                             .n_out = program->n_out,
                             .far = program->far_of,
                             .spill_dir = program->spill};
        err = hth_run_open(&spec, &program->run);
    }
    return err;
}

// What a run needs besides kernels and graph.
typedef struct run_parts {
    hth_problem problem;
    hth_plan *plan;
    hth_run *run;
    const hth_run_far **far_of;
    void **fixed;
} run_parts;

static run_parts parts_take(hth_program *program)
{
    run_parts x = {program->problem, program->plan, program->run, program->far_of, program->fixed};
    program->run = NULL;
    program->far_of = NULL;
    program->fixed = NULL;
    return x;
}

static void parts_free(run_parts *parts)
{
    hth_run_close(parts->run);
    hth_plan_free(parts->plan);
    hth_problem_fini(&parts->problem);
    hth_free(parts->far_of);
    hth_free(parts->fixed);
}

static bool replan_streams(const hth_program *program, const hth_plan *plan)
{
    for (int w = 0; w < program->n_weights; w++) {
        if (plan->streamed[program->weight_tensor[w]] != program->weights[w].streamed) {
            return true;
        }
    }
    return false;
}

hth_err hth_program_replan(hth_site *site, hth_program *program, hth_problem *problem,
                           hth_plan **plan)
{
    if (replan_streams(program, *plan)) {
        return hth_fail(HTH_ENOTSUP, "the plan streams other frozen weights");
    }
    run_parts old = parts_take(program), new;
    program->problem = *problem;
    program->plan = *plan;
    hth_err err = hth_compile_run(site, program);
    new = parts_take(program);
    run_parts *keep = err == HTH_OK ? &new : &old;
    program->problem = keep->problem;
    program->plan = keep->plan;
    program->run = keep->run;
    program->far_of = keep->far_of;
    program->fixed = keep->fixed;
    if (err != HTH_OK) {
        new.problem = (hth_problem){.n_nodes = 0}; // still the caller's
        new.plan = NULL;
        parts_free(&new);
        return err;
    }
    for (int w = 0; w < program->n_weights; w++) { // resident ones: what was bound stays bound
        program->fixed[program->weight_tensor[w]] = old.fixed[program->weight_tensor[w]];
    }
    parts_free(&old);
    *problem = (hth_problem){.n_nodes = 0};
    *plan = NULL;
    return HTH_OK;
}

int hth_program_slot(const hth_program *program, int i)
{
    int t = program->value_tensor[program->graph->inputs[program->train->slots[i].input]];
    return t >= 0 && program->problem.tensors[t].cls == HTH_MEM_STATE ? t : -1;
}
