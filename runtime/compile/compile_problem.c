// SPDX-License-Identifier: Apache-2.0
// A program's planning problem: one plan tensor per value that is computed or given, one per weight
// in the form in which a kernel wants it, one plan node per graph node with the candidates of its
// menu. The form (and size) of a weight depends on the prepared kernel, so the problem is made
// again when a plan chose another one.
#include "runtime/compile/compile_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PROBLEM_SLOW 30 // times that the reference takes longer

static const hth_packing *packing_of(const hth_kernel *kernel, int input)
{
    for (int i = 0; i < kernel->n_packings; i++) {
        if (kernel->packings[i].input == input) {
            return &kernel->packings[i];
        }
    }
    return NULL;
}

static const char *packing_form(const hth_packing *pack)
{
    return pack != NULL && pack->pack != NULL ? pack->form : "plain";
}

const char *hth_compile_form(const hth_kernel *kernel, int input)
{
    return packing_form(packing_of(kernel, input));
}

bool hth_compile_in_place(const hth_site *site, const hth_const *constant, const char *form)
{
    return strcmp(form, "plain") == 0 && site->device->props.host_visible &&
           !hth_device_paced(site->device) && constant->materialize == NULL &&
           constant->data != NULL && (uintptr_t)constant->data % 16 == 0;
}

// weight_find returns the program's weight for this content in this form, adding it when new.
static hth_err weight_find(hth_site *site, hth_program *program, int *cap, hth_const *constant,
                           const hth_kernel *kernel, const hth_packing *pack, int *out)
{
    const char *form = packing_form(pack);
    for (int i = 0; i < program->n_weights; i++) {
        if (hth_id_equal(&program->weights[i].content->id, &constant->id) &&
            strcmp(program->weights[i].form, form) == 0) {
            *out = i;
            return HTH_OK;
        }
    }
    if (HTH_GROW(program->weights, program->n_weights, *cap) != 0) {
        return hth_no_memory("a program");
    }
    hth_weight *w = &program->weights[program->n_weights];
    *w = (hth_weight){.content = constant, .bytes = constant->bytes};
    snprintf(w->form, sizeof w->form, "%s", form);
    if (strcmp(form, "plain") != 0) {
        w->kernel = kernel;
        w->packing = pack;
        w->bytes = pack->bytes;
    }
    w->in_place = hth_compile_in_place(site, constant, form);
    *out = program->n_weights++;
    return HTH_OK;
}

static hth_err problem_add_tensor(hth_problem *pr, int *cap, const char *name, uint64_t bytes,
                                  hth_mem_class cls, bool external, int *out)
{
    if (HTH_GROW(pr->tensors, pr->n_tensors, *cap) != 0) {
        return hth_no_memory("a program");
    }
    hth_plan_tensor t = {
        .name = hth_strdup(name), .bytes = bytes, .cls = cls, .producer = -1, .external = external};
    if (t.name == NULL) {
        return hth_no_memory("a program");
    }
    *out = pr->n_tensors;
    pr->tensors[pr->n_tensors++] = t;
    return HTH_OK;
}

// problem_values makes a plan tensor of every value that is computed or given.
static hth_err problem_values(hth_program *program, bool host_visible, int *cap)
{
    const hth_graph *g = program->graph;
    for (int v = 0; v < g->n_values; v++) {
        const hth_value *val = &g->values[v];
        program->value_tensor[v] = -1;
        if (val->constant != NULL) {
            continue;
        }
        size_t bytes;
        HTH_TRY(hth_tensor_bytes(val->dtype, &val->shape, val->layout, &bytes));
        hth_mem_class cls = val->is_output ? HTH_MEM_OUTPUT : HTH_MEM_ACTIVATION;
        cls = val->is_input ? HTH_MEM_INPUT : cls;
        bool external = host_visible && cls != HTH_MEM_ACTIVATION;
        HTH_TRY(problem_add_tensor(&program->problem, cap, val->name, bytes, cls, external,
                                   &program->value_tensor[v]));
        program->problem.tensors[program->value_tensor[v]].producer = val->producer;
    }
    return HTH_OK;
}

// Slots are state that stays from step to step; their new values take the old ones' places.
static void problem_slots(hth_program *program)
{
    const hth_graph *g = program->graph;
    for (int i = 0; program->train != NULL && i < program->train->n_slots; i++) {
        const hth_train_slot *s = &program->train->slots[i];
        int in = program->value_tensor[g->inputs[s->input]];
        int out = s->output < 0 ? -1 : program->value_tensor[g->outputs[s->output]];
        if (in < 0) {
            continue;
        }
        program->problem.tensors[in].cls = HTH_MEM_STATE;
        program->problem.tensors[in].external = program->retained != NULL && program->retained[i];
        if (out >= 0 && out != in) {
            program->problem.tensors[out].external = true;
            program->problem.tensors[out].replaces = in + 1;
        }
    }
}

static const char *problem_op(hth_op op)
{
    switch (op) {
    case HTH_OP_CONV:
        return "conv_fwd";
    case HTH_OP_CONV_GRAD_DATA:
        return "conv_bwd_data";
    case HTH_OP_CONV_GRAD_FILTER:
        return "conv_bwd_filter";
    default:
        return hth_op_name(op);
    }
}

// A node that nobody measured costs the traffic of its tensors, at the speed of a copy in memory.
static double problem_guess(const hth_site *site, const hth_program *program,
                            const hth_plan_node *pn)
{
    const hth_problem *problem = &program->problem;
    double bytes = 0, speed = site->traffic_bytes_per_s;
    speed = speed > 0 ? speed : site->link_bytes_per_s;
    speed = program->plan_only ? problem->h2d_bytes_per_s : speed; // of the other device
    for (int j = 0; j < pn->n_inputs + pn->n_outputs; j++) {
        int t = j < pn->n_inputs ? pn->inputs[j] : pn->outputs[j - pn->n_inputs];
        bytes += (double)problem->tensors[t].bytes;
    }
    return speed > 0 ? 1 + bytes / speed * 1e6 : 1;
}

static hth_err problem_node(hth_site *site, hth_program *program, int i, const hth_menu *menu,
                            int *cap_tensors, int *cap_weights)
{
    const hth_graph *g = program->graph;
    const hth_node *n = &g->nodes[i];
    const hth_kernel *k = program->kernels[i];
    hth_plan_node *pn = &program->problem.nodes[i];
    *pn = (hth_plan_node){0};
    pn->name = hth_strdup(n->name);
    pn->op = hth_strdup(problem_op(n->op));
    pn->recomputable = n->op != HTH_OP_SGD_STEP && n->op != HTH_OP_ADAM_STEP;
    pn->inputs = hth_calloc((size_t)n->n_inputs, sizeof(int));
    pn->outputs = hth_calloc((size_t)n->n_outputs, sizeof(int));
    pn->alternatives = hth_memdup(menu->list, (size_t)menu->n * sizeof *menu->list);
    pn->n_alternatives = menu->n;
    program->node_in[i] = hth_calloc((size_t)n->n_inputs, sizeof(int));
    program->node_out[i] = hth_calloc((size_t)n->n_outputs, sizeof(int));
    if (pn->name == NULL || pn->op == NULL || pn->inputs == NULL || pn->outputs == NULL ||
        pn->alternatives == NULL || program->node_in[i] == NULL || program->node_out[i] == NULL) {
        return hth_no_memory("a program");
    }
    program->n_in[i] = n->n_inputs;
    program->n_out[i] = n->n_outputs;
    for (int s = 0; s < n->n_inputs; s++) {
        int v = n->inputs[s], t = -1;
        if (v >= 0 && g->values[v].constant == NULL) {
            t = program->value_tensor[v];
        } else if (v >= 0) {
            int before = program->n_weights, w = 0;
            HTH_TRY(weight_find(site, program, cap_weights, g->values[v].constant, k,
                                packing_of(k, s), &w));
            if (program->n_weights > before) {
                hth_weight *weight = &program->weights[w];
                int *grown =
                    hth_realloc(program->weight_tensor, (size_t)program->n_weights, sizeof(int));
                if (grown == NULL) {
                    return hth_no_memory("a program");
                }
                program->weight_tensor = grown;
                HTH_TRY(problem_add_tensor(&program->problem, cap_tensors, g->values[v].name,
                                           weight->bytes, HTH_MEM_WEIGHT, weight->in_place,
                                           &program->weight_tensor[w]));
            }
            t = program->weight_tensor[w];
        }
        program->node_in[i][s] = t;
        if (t >= 0) {
            pn->inputs[pn->n_inputs++] = t;
        }
    }
    for (int s = 0; s < n->n_outputs; s++) {
        int t = n->outputs[s] < 0 ? -1 : program->value_tensor[n->outputs[s]];
        program->node_out[i][s] = t;
        if (t >= 0) {
            pn->outputs[pn->n_outputs++] = t;
        }
    }
    if (k->inplace_input >= 0 && k->inplace_input < n->n_inputs && program->node_out[i][0] >= 0) {
        int pair[2] = {program->node_in[i][k->inplace_input], program->node_out[i][0]};
        pn->n_inplace = pair[0] >= 0;
        pn->inplace = pn->n_inplace ? hth_memdup(pair, sizeof pair) : NULL;
        if (pn->n_inplace && pn->inplace == NULL) {
            return hth_no_memory("a program");
        }
    }
    // What the first of all candidates took says what the reference takes, wherever that stands.
    const double guess = problem_guess(site, program, pn);
    const double slow = PROBLEM_SLOW * fmax(guess, menu->every[0].time_us);
    for (int a = 0; program->train != NULL && a < pn->n_alternatives; a++) {
        hth_choice *c = &pn->alternatives[a];
        if (c->time_us < 0) {
            c->time_us = strcmp(c->name, "ref") == 0 ? slow : guess;
        }
    }
    // The prepared kernel's workspace is exact; the other candidates' are what the library said.
    if (!program->plan_only) {
        pn->alternatives[0].workspace_bytes = k->workspace_bytes;
    }
    return HTH_OK;
}

hth_err hth_compile_problem(hth_site *site, hth_program *program, const hth_menu *menus)
{
    const hth_device_props *props = &site->device->props;
    int cap_tensors = 0, cap_weights = 0;
    hth_program_drop_problem(program);
    program->problem = (hth_problem){.budget = program->budget,
                                     .h2d_bytes_per_s = site->link_bytes_per_s,
                                     .d2h_bytes_per_s = site->link_back_bytes_per_s,
                                     .latency_us = site->link_latency_us,
                                     .copy_interference = site->copy_interference,
                                     .copy_us = site->copy_us,
                                     .loose = true};
    if (program->profile != NULL) {
        const hth_link *link = hth_profile_link(program->profile);
        program->problem.h2d_bytes_per_s = link->h2d_bytes_per_s;
        program->problem.d2h_bytes_per_s = link->d2h_bytes_per_s;
        program->problem.latency_us = link->latency_us;
        program->problem.copy_interference = link->interference;
        program->problem.copy_us = link->copy_us;
    }
    if (program->spill != NULL) {
        program->problem.h2d_bytes_per_s = program->spill_speed.read_bytes_per_s;
        program->problem.d2h_bytes_per_s = program->spill_speed.write_bytes_per_s;
        program->problem.latency_us = program->spill_speed.latency_us;
        // What processors do of it is a copy to or from the block that the disk reads or writes.
        program->problem.copy_interference *=
            fmin(1, program->spill_speed.read_bytes_per_s / fmax(1, site->link_bytes_per_s));
    }
    snprintf(program->problem.device, sizeof program->problem.device, "%s",
             program->profile != NULL ? hth_profile_device(program->profile) : props->fingerprint);
    program->problem.nodes =
        hth_calloc((size_t)program->graph->n_nodes, sizeof *program->problem.nodes);
    if (program->problem.nodes == NULL) {
        return hth_no_memory("a program");
    }
    HTH_TRY(problem_values(program, props->host_visible, &cap_tensors));
    problem_slots(program);
    for (int i = 0; i < program->graph->n_nodes; i++) {
        program->problem.n_nodes = i + 1;
        HTH_TRY(problem_node(site, program, i, &menus[i], &cap_tensors, &cap_weights));
    }
    return HTH_OK;
}
