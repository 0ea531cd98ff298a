// SPDX-License-Identifier: Apache-2.0
// From a plan to what runs it: where everything is while it is away, and the run; another plan for
// the same kernels; and the end of a program.
#include "runtime/compile/compile_impl.h"
#include "runtime/host.h"

#include "base/alloc.h"

#include <string.h>

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for a program");
}

// Where streamed weights come from: memory, or a file.
static hth_err compile_weights_far(hth_site *site, hth_program *p)
{
    uint64_t end = 0;
    hth_err err = HTH_OK;
    for (int w = 0; err == HTH_OK && w < p->n_weights; w++) {
        hth_weight *weight = &p->weights[w];
        if (!weight->streamed) {
            continue;
        }
        if (weight->far.memory != NULL || weight->far.file != NULL) { // from an earlier plan
            p->far_of[p->weight_tensor[w]] = &weight->far;
            continue;
        }
        p->far_of[p->weight_tensor[w]] = &weight->far;
        if (p->spill != NULL) {
            weight->far.at = end;
            end += (weight->bytes + HTH_SPILL_ALIGN - 1) / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
            continue;
        }
        err = hth_device_reserve_host(site->device, weight->bytes, &weight->far.memory);
    }
    if (err == HTH_OK && end > 0) {
        err = hth_spill_open(p->spill, end, &p->spill_weights);
    }
    for (int w = 0; w < p->n_weights; w++) {
        p->weights[w].far.file = p->weights[w].streamed ? p->spill_weights : NULL;
    }
    return err;
}

hth_err hth_compile_run(hth_site *site, hth_program *p)
{
    p->far_of = hth_calloc((size_t)p->problem.n_tensors, sizeof *p->far_of);
    p->fixed = hth_calloc((size_t)p->problem.n_tensors, sizeof *p->fixed);
    hth_err err = p->far_of == NULL || p->fixed == NULL ? no_memory() : HTH_OK;
    for (int i = 0; err == HTH_OK && p->train != NULL && i < p->train->n_slots; i++) {
        int t = hth_program_slot(p, i);
        if (t >= 0 && p->plan->streamed[t]) {
            p->far_of[t] = &p->far[i];
        }
    }
    err = err == HTH_OK ? compile_weights_far(site, p) : err;
    if (err == HTH_OK) {
        hth_run_spec spec = {.device = site->device,
                             .problem = &p->problem,
                             .plan = p->plan,
                             .kernels = p->kernels,
                             .node_in = (const int *const *)p->node_in,
                             .n_in = p->n_in,
                             .node_out = (const int *const *)p->node_out,
                             .n_out = p->n_out,
                             .far = p->far_of,
                             .spill_dir = p->spill};
        err = hth_run_open(&spec, &p->run);
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

static run_parts parts_take(hth_program *p)
{
    run_parts x = {p->problem, p->plan, p->run, p->far_of, p->fixed};
    p->run = NULL;
    p->far_of = NULL;
    p->fixed = NULL;
    return x;
}

static void parts_free(run_parts *x)
{
    hth_run_close(x->run);
    hth_plan_free(x->plan);
    hth_problem_fini(&x->problem);
    hth_free(x->far_of);
    hth_free(x->fixed);
}

static bool replan_streams(const hth_program *p, const hth_plan *plan)
{
    for (int w = 0; w < p->n_weights; w++) {
        if (plan->streamed[p->weight_tensor[w]] != p->weights[w].streamed) {
            return true;
        }
    }
    return false;
}

hth_err hth_program_replan(hth_site *site, hth_program *p, hth_problem *problem, hth_plan **plan)
{
    if (replan_streams(p, *plan)) {
        return hth_fail(HTH_ENOTSUP, "the plan streams other frozen weights");
    }
    run_parts old = parts_take(p), new;
    p->problem = *problem;
    p->plan = *plan;
    hth_err err = hth_compile_run(site, p);
    new = parts_take(p);
    run_parts *keep = err == HTH_OK ? &new : &old;
    p->problem = keep->problem;
    p->plan = keep->plan;
    p->run = keep->run;
    p->far_of = keep->far_of;
    p->fixed = keep->fixed;
    if (err != HTH_OK) {
        new.problem = (hth_problem){.n_nodes = 0}; // still the caller's
        new.plan = NULL;
        parts_free(&new);
        return err;
    }
    for (int w = 0; w < p->n_weights; w++) { // resident ones: what was bound stays bound
        p->fixed[p->weight_tensor[w]] = old.fixed[p->weight_tensor[w]];
    }
    parts_free(&old);
    *problem = (hth_problem){.n_nodes = 0};
    *plan = NULL;
    return HTH_OK;
}

int hth_program_slot(const hth_program *p, int i)
{
    int t = p->value_tensor[p->graph->inputs[p->train->slots[i].input]];
    return t >= 0 && p->problem.tensors[t].cls == HTH_MEM_STATE ? t : -1;
}

// Leaves the site: its list, and the device, where nobody else holds what it brought there.
static void program_leave(hth_site *site, hth_program *p)
{
    hth_program **at = &site->programs;
    hth_program_pin(site, p, false);
    hth_program_evict(site, p);
    while (*at != NULL && *at != p) {
        at = &(*at)->site_next;
    }
    if (*at == p) {
        *at = p->site_next;
    }
}

void hth_program_free(hth_site *site, hth_program *p)
{
    if (p == NULL) {
        return;
    }
    while (p->n_instances > 0) {
        hth_program_free(site, p->instance[--p->n_instances]);
    }
    program_leave(site, p);
    site->arena_owner = site->arena_owner == p->account ? NULL : site->arena_owner;
    if (p->source != NULL) {
        hth_program **at = &p->source->programs;
        while (*at != p) {
            at = &(*at)->next;
        }
        *at = p->next;
        p->source->n_programs--;
    }
    hth_source_fini(site, &p->rest);
    hth_run_close(p->run);
    for (int i = 0; p->graph != NULL && p->kernels != NULL && i < p->graph->n_nodes; i++) {
        hth_kernel_close(p->kernels[i]);
    }
    for (int i = 0; i < p->n_contents; i++) {
        hth_const_rele(p->contents[i]);
    }
    hth_free(p->contents);
    hth_host_give(site, HTH_HOST_CONTENTS, p->content_bytes);
    for (int w = 0; w < p->n_weights; w++) {
        hth_device_release_host(site->device, p->weights[w].far.memory, p->weights[w].bytes);
    }
    hth_spill_close(p->spill_weights);
    hth_free(p->far_of);
    if (p->graph != NULL) {
        hth_program_drop_problem(p);
    }
    hth_plan_free(p->plan);
    hth_free(p->key);
    hth_free(p->final_index);
    hth_free(p->same_output);
    hth_free(p->kernels);
    hth_free(p->node_in);
    hth_free(p->node_out);
    hth_free(p->n_in);
    hth_free(p->n_out);
    hth_free(p->value_tensor);
    hth_cache_model_fini(&p->heat);
    hth_free(p->fixed);
    hth_graph_free(p->graph);
    hth_free(p);
}

void hth_source_fini(hth_site *site, hth_source *s)
{
    while (s->programs != NULL) {
        hth_program_free(site, s->programs);
    }
    hth_graph_free(s->graph);
    s->graph = NULL;
}
