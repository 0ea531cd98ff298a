// SPDX-License-Identifier: Apache-2.0
// Compiling: from a model graph and concrete inputs to kernels and a plan. Runs on the engine's
// thread, because measuring candidates and packing use the device's threads.
//
// The form (and size) in which a kernel wants its weights depends on its algorithm, so kernels are
// prepared with the fastest candidate first, the plan is made with all candidates on the front, and
// where the budget made it choose another, that kernel is prepared instead and the plan made again
// with the choices fixed. Two rounds suffice: the second has no choice left.
#include "server/program.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "graph/pass.h"

#include <stdio.h>
#include <string.h>

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for a program");
}

// A training step has its own patterns and folds no batch norm: autodiff saw to that.
static hth_err compile_passes(hth_device *d, hth_graph *g, bool training)
{
    const hth_fuse_oracle *oracle = hth_kernel_oracle(d);
    HTH_TRY(hth_pass_simplify(g));
    if (!training) {
        HTH_TRY(hth_pass_pattern(g));
        HTH_TRY(hth_pass_fold_norm(g));
    }
    HTH_TRY(hth_pass_fuse(g, oracle));
    HTH_TRY(hth_pass_layout(g, oracle));
    HTH_TRY(hth_graph_compact(g));
    return hth_graph_check(g);
}

#define COMPILE_SPILL_BYTES ((uint64_t)32 << 20) // written and read to measure a disk
#define PROBLEM_SLOW        30                   // times that the reference takes longer

typedef struct menu { // the candidates of one node
    int n;
    hth_choice *list;
} menu;

bool hth_program_measured(hth_site *site, const hth_graph *g, int i)
{
    const hth_node *n = &g->nodes[i];
    return !hth_convsel_has_menu(n->op) || hth_convsel_known(site->device, g, n, site->timings);
}

// compile_menu fills the candidates of node i, fastest first, only those on the front. Of a
// training step, whose plan weighs the time of every node, all nodes are measured.
static hth_err compile_menu(hth_site *site, const hth_graph *g, int i, bool train, bool tune,
                            menu *m)
{
    hth_choice list[HTH_MAX_CHOICES];
    int n = 0, kept = 0;
    const hth_node *node = &g->nodes[i];
    bool has_menu = hth_convsel_has_menu(node->op);
    if ((has_menu || train) && (tune || hth_convsel_known(site->device, g, node, site->timings))) {
        HTH_TRY(hth_convsel_measure(site->device, g, &g->nodes[i], site->timings, list,
                                    HTH_MAX_CHOICES, &n));
        hth_convsel_front(list, n, site->tolerance);
        for (int k = 0; k < n; k++) {
            if (list[k].front) {
                list[kept++] = list[k];
            }
        }
    }
    if (kept == 0 && has_menu) { // not measured, or none within the tolerance: the device's order
        HTH_TRY(hth_kernel_algorithms(site->device, g, &g->nodes[i], list, HTH_MAX_CHOICES, &kept));
    }
    if (kept == 0) {
        list[kept++] = (hth_choice){
            .name = "default", .time_us = -1, .error = -1, .split = 1, .deterministic = true};
    }
    if (train && (g->nodes[i].op == HTH_OP_GEMM || g->nodes[i].op == HTH_OP_MAT_MUL)) {
        // Slow, but without the panels and blocks that can be more than a small step's tensors.
        list[kept++] = (hth_choice){
            .name = "ref", .time_us = -1, .error = 0, .split = 1, .deterministic = true};
    }
    m->list = hth_memdup(list, (size_t)kept * sizeof *list);
    m->n = kept;
    return m->list == NULL ? no_memory() : HTH_OK;
}

static hth_err compile_kernel(hth_site *site, hth_program *p, int i, const char *algorithm)
{
    hth_kernel_close(p->kernels[i]);
    p->kernels[i] = NULL;
    const hth_node *n = &p->graph->nodes[i];
    const char *name = strcmp(algorithm, "default") == 0 ? NULL : algorithm;
    hth_err err = hth_kernel_prepare(site->device, p->graph, n, name, &p->kernels[i]);
    return err == HTH_OK ? HTH_OK
                         : hth_err_prefix(err, "node '%s' (%s)", n->name, hth_op_name(n->op));
}

// weight_find returns the program's weight for this content in this form, adding it when new.
static hth_err weight_find(hth_site *site, hth_program *p, int *cap, hth_const *c,
                           const hth_kernel *k, const hth_packing *pack, int *out)
{
    const char *form = pack != NULL && pack->pack != NULL ? pack->form : "plain";
    for (int i = 0; i < p->n_weights; i++) {
        if (hth_id_equal(&p->weights[i].content->id, &c->id) &&
            strcmp(p->weights[i].form, form) == 0) {
            *out = i;
            return HTH_OK;
        }
    }
    if (HTH_GROW(p->weights, p->n_weights, *cap) != 0) {
        return no_memory();
    }
    hth_weight *w = &p->weights[p->n_weights];
    *w = (hth_weight){.content = c, .bytes = c->bytes};
    snprintf(w->form, sizeof w->form, "%s", form);
    if (strcmp(form, "plain") != 0) {
        w->kernel = k;
        w->packing = pack;
        w->bytes = pack->bytes;
    } else {
        w->in_place = site->device->props.host_visible && c->materialize == NULL &&
                      c->data != NULL && (uintptr_t)c->data % 16 == 0;
    }
    *out = p->n_weights++;
    return HTH_OK;
}

static const hth_packing *packing_of(const hth_kernel *k, int input)
{
    for (int i = 0; i < k->n_packings; i++) {
        if (k->packings[i].input == input) {
            return &k->packings[i];
        }
    }
    return NULL;
}

static hth_err problem_add_tensor(hth_problem *pr, int *cap, const char *name, uint64_t bytes,
                                  hth_mem_class cls, bool external, int *out)
{
    if (HTH_GROW(pr->tensors, pr->n_tensors, *cap) != 0) {
        return no_memory();
    }
    hth_plan_tensor t = {
        .name = hth_strdup(name), .bytes = bytes, .cls = cls, .producer = -1, .external = external};
    if (t.name == NULL) {
        return no_memory();
    }
    *out = pr->n_tensors;
    pr->tensors[pr->n_tensors++] = t;
    return HTH_OK;
}

static void program_drop_problem(hth_program *p)
{
    hth_problem_fini(&p->problem);
    hth_free(p->weights);
    hth_free(p->weight_tensor);
    p->weights = NULL;
    p->weight_tensor = NULL;
    p->n_weights = 0;
    for (int i = 0; p->node_in != NULL && i < p->graph->n_nodes; i++) {
        hth_free(p->node_in[i]);
        p->node_in[i] = NULL;
    }
    for (int i = 0; p->node_out != NULL && i < p->graph->n_nodes; i++) {
        hth_free(p->node_out[i]);
        p->node_out[i] = NULL;
    }
}

// problem_values makes a plan tensor of every value that is computed or given.
static hth_err problem_values(hth_program *p, bool host_visible, int *cap)
{
    const hth_graph *g = p->graph;
    for (int v = 0; v < g->n_values; v++) {
        const hth_value *val = &g->values[v];
        p->value_tensor[v] = -1;
        if (val->constant != NULL) {
            continue;
        }
        size_t bytes;
        HTH_TRY(hth_tensor_bytes(val->dtype, &val->shape, val->layout, &bytes));
        hth_mem_class cls = val->is_input    ? HTH_MEM_INPUT
                            : val->is_output ? HTH_MEM_OUTPUT
                                             : HTH_MEM_ACTIVATION;
        bool external = host_visible && cls != HTH_MEM_ACTIVATION;
        HTH_TRY(problem_add_tensor(&p->problem, cap, val->name, bytes, cls, external,
                                   &p->value_tensor[v]));
        p->problem.tensors[p->value_tensor[v]].producer = val->producer;
    }
    return HTH_OK;
}

// Slots are state that stays from step to step; their new values take the old ones' places.
static void problem_slots(hth_program *p)
{
    const hth_graph *g = p->graph;
    for (int i = 0; p->train != NULL && i < p->train->n_slots; i++) {
        const hth_train_slot *s = &p->train->slots[i];
        int in = p->value_tensor[g->inputs[s->input]];
        int out = s->output < 0 ? -1 : p->value_tensor[g->outputs[s->output]];
        if (in < 0) {
            continue;
        }
        p->problem.tensors[in].cls = HTH_MEM_STATE;
        p->problem.tensors[in].external = false;
        if (out >= 0 && out != in) {
            p->problem.tensors[out].external = true;
            p->problem.tensors[out].replaces = in + 1;
        }
    }
}

static const char *problem_op(hth_op op)
{
    return op == HTH_OP_CONV               ? "conv_fwd"
           : op == HTH_OP_CONV_GRAD_DATA   ? "conv_bwd_data"
           : op == HTH_OP_CONV_GRAD_FILTER ? "conv_bwd_filter"
                                           : hth_op_name(op);
}

// A node that nobody measured costs the traffic of its tensors, at the speed of a copy.
static double problem_guess(const hth_site *site, const hth_problem *p, const hth_plan_node *pn)
{
    double bytes = 0;
    for (int j = 0; j < pn->n_inputs + pn->n_outputs; j++) {
        int t = j < pn->n_inputs ? pn->inputs[j] : pn->outputs[j - pn->n_inputs];
        bytes += (double)p->tensors[t].bytes;
    }
    return site->link_bytes_per_s > 0 ? 1 + bytes / site->link_bytes_per_s * 1e6 : 1;
}

static hth_err problem_node(hth_site *site, hth_program *p, int i, const menu *m, int *cap_tensors,
                            int *cap_weights)
{
    const hth_graph *g = p->graph;
    const hth_node *n = &g->nodes[i];
    const hth_kernel *k = p->kernels[i];
    hth_plan_node *pn = &p->problem.nodes[i];
    *pn = (hth_plan_node){0};
    pn->name = hth_strdup(n->name);
    pn->op = hth_strdup(problem_op(n->op));
    pn->recomputable = n->op != HTH_OP_SGD_STEP && n->op != HTH_OP_ADAM_STEP;
    pn->inputs = hth_calloc((size_t)n->n_inputs, sizeof(int));
    pn->outputs = hth_calloc((size_t)n->n_outputs, sizeof(int));
    pn->alternatives = hth_memdup(m->list, (size_t)m->n * sizeof *m->list);
    pn->n_alternatives = m->n;
    p->node_in[i] = hth_calloc((size_t)n->n_inputs, sizeof(int));
    p->node_out[i] = hth_calloc((size_t)n->n_outputs, sizeof(int));
    if (pn->name == NULL || pn->op == NULL || pn->inputs == NULL || pn->outputs == NULL ||
        pn->alternatives == NULL || p->node_in[i] == NULL || p->node_out[i] == NULL) {
        return no_memory();
    }
    p->n_in[i] = n->n_inputs;
    p->n_out[i] = n->n_outputs;
    for (int s = 0; s < n->n_inputs; s++) {
        int v = n->inputs[s], t = -1;
        if (v >= 0 && g->values[v].constant == NULL) {
            t = p->value_tensor[v];
        } else if (v >= 0) {
            int before = p->n_weights, w = 0;
            HTH_TRY(
                weight_find(site, p, cap_weights, g->values[v].constant, k, packing_of(k, s), &w));
            if (p->n_weights > before) {
                hth_weight *weight = &p->weights[w];
                int *grown = hth_realloc(p->weight_tensor, (size_t)p->n_weights, sizeof(int));
                if (grown == NULL) {
                    return no_memory();
                }
                p->weight_tensor = grown;
                HTH_TRY(problem_add_tensor(&p->problem, cap_tensors, g->values[v].name,
                                           weight->bytes, HTH_MEM_WEIGHT, weight->in_place,
                                           &p->weight_tensor[w]));
            }
            t = p->weight_tensor[w];
        }
        p->node_in[i][s] = t;
        if (t >= 0) {
            pn->inputs[pn->n_inputs++] = t;
        }
    }
    for (int s = 0; s < n->n_outputs; s++) {
        int t = n->outputs[s] < 0 ? -1 : p->value_tensor[n->outputs[s]];
        p->node_out[i][s] = t;
        if (t >= 0) {
            pn->outputs[pn->n_outputs++] = t;
        }
    }
    if (k->inplace_input >= 0 && k->inplace_input < n->n_inputs && p->node_out[i][0] >= 0) {
        int pair[2] = {p->node_in[i][k->inplace_input], p->node_out[i][0]};
        pn->n_inplace = pair[0] >= 0;
        pn->inplace = pn->n_inplace ? hth_memdup(pair, sizeof pair) : NULL;
        if (pn->n_inplace && pn->inplace == NULL) {
            return no_memory();
        }
    }
    for (int a = 0; p->train != NULL && a < pn->n_alternatives; a++) {
        if (pn->alternatives[a].time_us < 0) {
            bool slow = strcmp(pn->alternatives[a].name, "ref") == 0;
            pn->alternatives[a].time_us =
                problem_guess(site, &p->problem, pn) * (slow ? PROBLEM_SLOW : 1);
        }
    }
    // The prepared kernel's workspace is exact; the other candidates' are what the library said.
    pn->alternatives[0].workspace_bytes = k->workspace_bytes;
    return HTH_OK;
}

static hth_err compile_problem(hth_site *site, hth_program *p, const menu *menus)
{
    const hth_device_props *props = &site->device->props;
    int cap_tensors = 0, cap_weights = 0;
    program_drop_problem(p);
    p->problem = (hth_problem){.budget = p->budget,
                               .h2d_bytes_per_s = site->link_bytes_per_s,
                               .d2h_bytes_per_s = site->link_back_bytes_per_s,
                               .latency_us = site->link_latency_us,
                               .copy_interference = site->copy_interference};
    if (p->spill != NULL) {
        p->problem.h2d_bytes_per_s = p->spill_speed.read_bytes_per_s;
        p->problem.d2h_bytes_per_s = p->spill_speed.write_bytes_per_s;
        p->problem.latency_us = p->spill_speed.latency_us;
    }
    snprintf(p->problem.device, sizeof p->problem.device, "%s", props->fingerprint);
    p->problem.nodes = hth_calloc((size_t)p->graph->n_nodes, sizeof *p->problem.nodes);
    if (p->problem.nodes == NULL) {
        return no_memory();
    }
    HTH_TRY(problem_values(p, props->host_visible, &cap_tensors));
    problem_slots(p);
    for (int i = 0; i < p->graph->n_nodes; i++) {
        p->problem.n_nodes = i + 1;
        HTH_TRY(problem_node(site, p, i, &menus[i], &cap_tensors, &cap_weights));
    }
    return HTH_OK;
}

// compile_choose reads the plan's choices into the menus; true if any node was given another than
// the prepared one.
static hth_err compile_choose(hth_site *site, hth_program *p, menu *menus, bool *changed)
{
    *changed = false;
    for (int k = 0; k < p->plan->n_instrs; k++) {
        const hth_instr *in = &p->plan->instrs[k];
        if (in->kind != HTH_INSTR_COMPUTE || in->recompute) {
            continue;
        }
        menu *m = &menus[in->node];
        if (in->alt != 0) {
            *changed = true;
            m->list[0] = m->list[in->alt];
            HTH_TRY(compile_kernel(site, p, in->node, m->list[0].name));
        }
        m->n = 1;
    }
    return HTH_OK;
}

static hth_err compile_rounds(hth_site *site, hth_program *p, menu *menus)
{
    bool changed = true;
    for (int round = 0; round < 2 && changed; round++) {
        HTH_TRY(compile_problem(site, p, menus));
        hth_plan_free(p->plan);
        p->plan = NULL;
        HTH_TRY(p->train != NULL ? hth_plan_train(&p->problem, &p->options, &p->plan)
                                 : hth_plan_inference(&p->problem, &p->plan));
        HTH_TRY(compile_choose(site, p, menus, &changed));
    }
    return HTH_OK;
}

// compile_smallest leaves each node the candidate with the least workspace; true if that is another
// than the prepared one for any.
static hth_err compile_smallest(hth_site *site, hth_program *p, menu *menus, bool *changed)
{
    *changed = false;
    for (int i = 0; i < p->graph->n_nodes; i++) {
        menu *m = &menus[i];
        int least = 0;
        for (int k = 1; k < m->n; k++) {
            least = m->list[k].workspace_bytes < m->list[least].workspace_bytes ? k : least;
        }
        m->n = 1;
        if (least != 0) {
            *changed = true;
            m->list[0] = m->list[least];
            HTH_TRY(compile_kernel(site, p, i, m->list[0].name));
        }
    }
    return HTH_OK;
}

// Winograd's filters are up to four times as large as the plain ones: what does not fit with the
// fastest candidates' weights is tried with the smallest's.
static hth_err compile_plan(hth_site *site, hth_program *p, menu *menus)
{
    hth_err err = compile_rounds(site, p, menus);
    if (err == HTH_ETOOBIG) {
        bool changed;
        HTH_TRY(compile_smallest(site, p, menus, &changed));
        err = changed ? compile_rounds(site, p, menus) : err;
    }
    HTH_TRY(err);
    HTH_TRY(hth_plan_verify(&p->problem, p->plan));
    for (int w = 0; w < p->n_weights; w++) {
        p->weights[w].streamed =
            p->plan->streamed != NULL && p->plan->streamed[p->weight_tensor[w]];
    }
    return HTH_OK;
}

static hth_err compile_key(hth_program *p, const hth_graph *model, const hth_tensor *inputs)
{
    p->key = hth_calloc((size_t)model->n_inputs, sizeof *p->key);
    if (p->key == NULL) {
        return no_memory();
    }
    for (int i = 0; i < model->n_inputs; i++) {
        p->key[i] = inputs[i];
        p->key[i].data = NULL;
        if (i < 64 && (p->value_inputs >> i & 1)) {
            p->key[i].data = hth_memdup(inputs[i].data, inputs[i].bytes);
            if (p->key[i].data == NULL) {
                return no_memory();
            }
        }
    }
    return HTH_OK;
}

static hth_err compile_arrays(hth_program *p)
{
    size_t nodes = (size_t)p->graph->n_nodes, values = (size_t)p->graph->n_values;
    p->kernels = hth_calloc(nodes, sizeof *p->kernels);
    p->node_in = hth_calloc(nodes, sizeof *p->node_in);
    p->node_out = hth_calloc(nodes, sizeof *p->node_out);
    p->n_in = hth_calloc(nodes, sizeof *p->n_in);
    p->n_out = hth_calloc(nodes, sizeof *p->n_out);
    p->value_tensor = hth_calloc(values, sizeof *p->value_tensor);
    return p->kernels == NULL || p->node_in == NULL || p->node_out == NULL || p->n_in == NULL ||
                   p->n_out == NULL || p->value_tensor == NULL
               ? no_memory()
               : HTH_OK;
}

static hth_err compile_run(hth_site *site, hth_program *p)
{
    void **host = hth_calloc((size_t)p->problem.n_tensors, sizeof *host);
    p->fixed = hth_calloc((size_t)p->problem.n_tensors, sizeof *p->fixed);
    hth_err err = host == NULL || p->fixed == NULL ? no_memory() : HTH_OK;
    for (int i = 0; err == HTH_OK && p->train != NULL && i < p->train->n_slots; i++) {
        int t = hth_program_slot(p, i);
        if (t >= 0 && p->plan->streamed[t]) {
            host[t] = p->far[i];
        }
    }
    for (int w = 0; err == HTH_OK && w < p->n_weights; w++) {
        hth_weight *weight = &p->weights[w];
        if (weight->streamed) {
            weight->host_copy = hth_alloc_aligned(weight->bytes, HTH_DEVICE_ALIGN);
            host[p->weight_tensor[w]] = weight->host_copy;
            err = weight->host_copy == NULL ? no_memory() : HTH_OK;
        }
    }
    if (err == HTH_OK) {
        hth_run_spec spec = {.device = site->device,
                             .problem = &p->problem,
                             .plan = p->plan,
                             .kernels = p->kernels,
                             .node_in = (const int *const *)p->node_in,
                             .n_in = p->n_in,
                             .node_out = (const int *const *)p->node_out,
                             .n_out = p->n_out,
                             .host_copy = host,
                             .spill_dir = p->spill};
        err = hth_run_open(&spec, &p->run);
    }
    hth_free(host);
    return err;
}

// compile_kernels asks for every node's candidates and prepares the first.
static hth_err compile_kernels(hth_site *site, hth_program *p, bool tune, hth_request *progress,
                               menu *menus)
{
    for (int i = 0; i < p->graph->n_nodes; i++) {
        if (progress != NULL && progress->progress != NULL && tune) {
            progress->progress(progress, "measuring algorithms", (uint64_t)i,
                               (uint64_t)p->graph->n_nodes);
        }
        if (progress != NULL && progress->canceled) {
            return hth_fail(HTH_ECANCELED, "canceled while measuring algorithms");
        }
        HTH_TRY(compile_menu(site, p->graph, i, p->train != NULL, tune, &menus[i]));
        HTH_TRY(compile_kernel(site, p, i, menus[i].list[0].name));
    }
    return HTH_OK;
}

// compile_step_budget: what the step takes when nothing is short, and the share of it that it gets.
static hth_err compile_step_budget(hth_site *site, hth_program *p, const hth_step_spec *spec,
                                   const menu *menus)
{
    uint64_t whole = site->device->props.budget_bytes;
    p->budget = whole;
    HTH_TRY(compile_problem(site, p, menus));
    HTH_TRY(hth_plan_train_peak(&p->problem, &p->peak_bytes));
    if (spec->budget != NULL) {
        HTH_TRY(hth_parse_size(spec->budget, p->peak_bytes, &p->budget));
        if (p->budget > whole) {
            return hth_fail(HTH_ETOOBIG, "a budget of %llu bytes is more than the device's %llu",
                            (unsigned long long)p->budget, (unsigned long long)whole);
        }
    }
    return HTH_OK;
}

// compile_graph makes kernels, plan and run for p->graph, which is concrete.
static hth_err compile_graph(hth_site *site, hth_program *p, const hth_step_spec *step, bool tune,
                             hth_request *progress)
{
    HTH_TRY(compile_passes(site->device, p->graph, step != NULL));
    HTH_TRY(compile_arrays(p));
    int n = p->graph->n_nodes;
    menu *menus = hth_calloc((size_t)n, sizeof *menus);
    hth_err err = menus == NULL ? no_memory() : compile_kernels(site, p, tune, progress, menus);
    if (err == HTH_OK && step != NULL) {
        err = compile_step_budget(site, p, step, menus);
    }
    err = err == HTH_OK ? compile_plan(site, p, menus) : err;
    err = err == HTH_OK ? compile_run(site, p) : err;
    for (int i = 0; menus != NULL && i < n; i++) {
        hth_free(menus[i].list);
    }
    hth_free(menus);
    return err;
}

hth_err hth_program_compile(hth_site *site, hth_source *source, const hth_tensor *inputs,
                            uint64_t budget, bool tune, hth_request *progress, hth_program **out)
{
    uint64_t t0 = hth_now_ns();
    hth_stage stage = {0};
    hth_err err;
    *out = NULL;
    hth_program *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return no_memory();
    }
    p->budget = budget;
    p->tuned = tune;
    HTH_GOTO(hth_specialize(source->graph, inputs, hth_ref_eval, NULL, &stage), out);
    p->graph = stage.graph;
    p->rest.graph = stage.rest;
    p->n_final = stage.n_final;
    p->final_index = stage.final_index;
    p->value_inputs = stage.value_inputs;
    stage = (hth_stage){0};
    HTH_GOTO(compile_key(p, source->graph, inputs), out);
    HTH_GOTO(compile_graph(site, p, NULL, tune, progress), out);
    p->compile_ms = (double)(hth_now_ns() - t0) / 1e6;
    p->source = source;
    p->next = source->programs;
    source->programs = p;
    source->n_programs++;
    *out = p;
out:
    hth_stage_fini(&stage);
    if (err != HTH_OK) {
        hth_program_free(site, p);
    }
    return err;
}

hth_err hth_program_compile_step(hth_site *site, const hth_step_spec *spec, bool tune,
                                 hth_request *progress, hth_program **out)
{
    uint64_t t0 = hth_now_ns();
    *out = NULL;
    hth_program *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return no_memory();
    }
    p->tuned = tune;
    p->train = spec->train;
    p->options = spec->options;
    p->far = spec->far;
    p->spill = spec->spill;
    hth_err err = hth_graph_clone(spec->train->graph, &p->graph);
    if (err == HTH_OK && p->spill != NULL) {
        err = hth_spill_measure(p->spill, COMPILE_SPILL_BYTES, &p->spill_speed);
    }
    err = err == HTH_OK ? compile_graph(site, p, spec, tune, progress) : err;
    if (err != HTH_OK) {
        hth_program_free(site, p);
        return err;
    }
    p->compile_ms = (double)(hth_now_ns() - t0) / 1e6;
    *out = p;
    return HTH_OK;
}

int hth_program_slot(const hth_program *p, int i)
{
    int t = p->value_tensor[p->graph->inputs[p->train->slots[i].input]];
    return t >= 0 && p->problem.tensors[t].cls == HTH_MEM_STATE ? t : -1;
}

void hth_program_free(hth_site *site, hth_program *p)
{
    if (p == NULL) {
        return;
    }
    hth_program_deactivate(site, p);
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
    for (int i = 0; p->key != NULL && i < p->graph->n_inputs; i++) {
        hth_free(p->key[i].data);
    }
    for (int w = 0; w < p->n_weights; w++) {
        hth_free(p->weights[w].host_copy);
    }
    if (p->graph != NULL) {
        program_drop_problem(p);
    }
    hth_plan_free(p->plan);
    hth_free(p->key);
    hth_free(p->final_index);
    hth_free(p->kernels);
    hth_free(p->node_in);
    hth_free(p->node_out);
    hth_free(p->n_in);
    hth_free(p->n_out);
    hth_free(p->value_tensor);
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
