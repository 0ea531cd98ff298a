// SPDX-License-Identifier: Apache-2.0
// Compiling: from a model graph and concrete inputs to kernels and a plan. Runs on the engine's
// thread, because measuring candidates and packing use the device's threads.
//
// The form (and size) in which a kernel wants its weights depends on its algorithm, so kernels are
// prepared with the fastest candidate first, the plan is made with all candidates on the front, and
// where the budget made it choose another, that kernel is prepared instead and the plan made again
// with the choices fixed. Two rounds suffice: the second has no choice left.
#include "runtime/compile/compile_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/size.h"
#include "graph/passes/pass.h"
#include "runtime/host.h"
#include "runtime/overhead.h"
#include "runtime/paced.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPILE_SPILL_BYTES ((uint64_t)32 << 20) // written and read to measure a disk

static bool compile_read(const hth_graph *graph, int value)
{
    bool read = false;
    for (int i = 0; i < graph->n_nodes && !read; i++) {
        const hth_node *n = &graph->nodes[i];
        for (int k = 0; k < n->n_inputs && !n->deleted; k++) {
            read = read || n->inputs[k] == value;
        }
    }
    return read;
}

// compile_passed has outputs that are inputs be those, without a node that copies them: who asked
// does that (program_run.c).
static void compile_passed(hth_graph *graph)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        hth_node *n = &graph->nodes[i];
        if (n->deleted || n->op != HTH_OP_IDENTITY || !graph->values[n->inputs[0]].is_input ||
            compile_read(graph, n->outputs[0])) {
            continue;
        }
        for (int k = 0; k < graph->n_outputs; k++) {
            if (graph->outputs[k] == n->outputs[0]) {
                graph->outputs[k] = n->inputs[0];
                graph->values[n->inputs[0]].is_output = true;
            }
        }
        n->deleted = true;
    }
}

// A training step has its own patterns and folds no batch norm: autodiff saw to that.
static hth_err compile_passes(hth_device *device, hth_graph *graph, bool training)
{
    const hth_fuse_oracle *oracle = hth_kernel_oracle(device);
    HTH_TRY(hth_pass_attention_parts(graph));
    HTH_TRY(hth_pass_simplify(graph));
    if (!training) {
        HTH_TRY(hth_pass_pattern(graph));
        HTH_TRY(hth_pass_fold_norm(graph));
        compile_passed(graph);
    }
    HTH_TRY(hth_pass_fuse(graph, oracle));
    HTH_TRY(hth_pass_layout(graph, oracle));
    HTH_TRY(hth_graph_compact(graph));
    HTH_TRY(hth_kernel_half(device, graph));
    return hth_graph_check(graph);
}

// Prices of a byte in microseconds: from less than a layer ever saves by larger filters to more.
#define PRICE_FIRST 0x1p-20
#define PRICE_LAST  0x1p+10
#define PRICE_STEP  32

static hth_err compile_search(void *arg)
{
    hth_program *program = arg;
    return hth_plan_train(&program->problem, &program->options, &program->plan);
}

// A plan that goes on from another one of the same step may be slower by so much, for sums.
#define COMPILE_ALIKE 1e-6

// compile_faster has *plan, of a search that returned `err`, be the faster one of it and `other`
// (NULL: none), and frees the other one.
static hth_err compile_faster(hth_plan **plan, hth_plan *other, hth_err err)
{
    if (other == NULL || (err != HTH_OK && err != HTH_ETOOBIG) ||
        (err == HTH_OK && (*plan)->predicted_us <= other->predicted_us)) {
        hth_plan_free(other);
        return err;
    }
    hth_plan_free(*plan);
    *plan = other;
    return HTH_OK;
}

// compile_chosen has `plan` be one of program's problem, in which each node has the algorithm alone
// that the plan chose; false: what the algorithm needs is not what it said.
static bool compile_chosen(const hth_program *program, hth_plan *plan)
{
    for (int k = 0; k < plan->n_instrs; k++) {
        plan->instrs[k].alt = 0;
    }
    return hth_plan_verify(&program->problem, plan) == HTH_OK;
}

// compile_again searches a step's plan from `before` on, which an earlier search found: another one
// may end in a worse valley. *found: it came out as fast as it was.
static hth_err compile_again(hth_site *site, hth_program *program, const hth_plan *before,
                             bool *found)
{
    *found = false;
    if (before == NULL || before->n_modes == 0) {
        return HTH_OK;
    }
    program->options.from = before;
    hth_err err = hth_paced_search(site, NULL, &program->options, compile_search, program);
    program->options.from = NULL;
    *found =
        err == HTH_OK && program->plan->predicted_us <= before->predicted_us * (1 + COMPILE_ALIKE);
    return err == HTH_ETOOBIG ? HTH_OK : err;
}

// compile_step_plan plans a step. `before`: a plan of it that an earlier process had, NULL: none.
static hth_err compile_step_plan(hth_site *site, hth_program *program, const hth_plan *before)
{
    bool found;
    HTH_TRY(compile_again(site, program, before, &found));
    if (found) {
        return HTH_OK;
    }
    hth_plan *other = program->plan;
    program->plan = NULL;
    hth_err err = hth_paced_search(site, NULL, &program->options, compile_search, program);
    return compile_faster(&program->plan, other, err);
}

// compile_round plans once. `last`: the plan before it, which is freed, NULL: there is none, and
// `before` is as in compile_step_plan.
static hth_err compile_round(hth_site *site, hth_program *program, const hth_plan *before,
                             hth_plan *last)
{
    if (program->train == NULL) {
        hth_plan_free(last);
        return hth_plan_inference(&program->problem, &program->plan);
    }
    hth_err err = compile_step_plan(site, program, last == NULL ? before : NULL);
    if (last != NULL && compile_chosen(program, last)) {
        err = compile_faster(&program->plan, last, err);
    } else {
        hth_plan_free(last);
    }
    if (err == HTH_OK) {
        hth_log(DEBUG, CONVSEL, "plan-round", "us=%.3f", program->plan->predicted_us);
    }
    return err;
}

// compile_rounds chooses algorithms, and plans once more with what their kernels need. `before`: as
// in compile_step_plan, for the first round.
static hth_err compile_rounds(hth_site *site, hth_program *program, hth_menu *menus,
                              const hth_plan *before)
{
    bool changed = true;
    hth_plan_free(program->plan);
    program->plan = NULL;
    for (int round = 0; round < 2 && changed; round++) {
        HTH_TRY(hth_compile_problem(site, program, menus));
        hth_plan *last = program->plan;
        program->plan = NULL;
        HTH_TRY(compile_round(site, program, before, last));
        HTH_TRY(hth_compile_choose(site, program, menus, &changed));
    }
    return HTH_OK;
}

static bool compile_streams(const hth_program *program)
{
    bool any = false;
    for (int w = 0; w < program->n_weights; w++) {
        any = any || (program->plan->streamed != NULL &&
                      program->plan->streamed[program->weight_tensor[w]]);
    }
    return any;
}

// Winograd's filters are up to seven times as large as the plain ones. Where the fastest
// candidates' weights do not fit, or have to be streamed, candidates are chosen at a rising price
// of bytes; the fastest plan is kept.
static hth_err compile_lighter(hth_site *site, hth_program *program, hth_menu *menus, hth_err first)
{
    double best_us = first == HTH_OK ? program->plan->predicted_us : INFINITY, best = 0, last = 0;
    hth_err err = first;
    bool changed;
    for (double price = PRICE_FIRST; price <= PRICE_LAST; price *= PRICE_STEP) {
        HTH_TRY(hth_compile_lighter(site, program, menus, price, &changed));
        err = changed ? compile_rounds(site, program, menus, NULL) : err;
        HTH_TRY(err == HTH_ETOOBIG ? HTH_OK : err);
        last = price;
        if (err == HTH_OK && program->plan->predicted_us < best_us) {
            best_us = program->plan->predicted_us;
            best = price;
        }
    }
    if (best_us < INFINITY && best < last) {
        HTH_TRY(hth_compile_lighter(site, program, menus, best, &changed));
        err = compile_rounds(site, program, menus, NULL);
    }
    return err;
}

// A step's weights have one form, and its plan knows all candidates: what does not fit is tried
// with the smallest.
static hth_err compile_plan(hth_site *site, hth_program *program, hth_menu *menus)
{
    bool records = program->train != NULL && !program->plan_only, known = false, changed;
    char key[HTH_REPEAT_KEY];
    hth_plan before = {.n_modes = 0};
    hth_err err = records ? hth_compile_repeat(site, program, menus, key, &before, &known) : HTH_OK;
    if (err == HTH_OK) {
        err = compile_rounds(site, program, menus, known ? &before : NULL);
    }
    hth_free(before.mode);
    if (known && err == HTH_ETOOBIG) { // its memory is not found again
        HTH_TRY(hth_compile_lighter(site, program, menus, 0, &changed));
        err = compile_rounds(site, program, menus, NULL);
        known = false;
    }
    if (err == HTH_OK && records && !known) {
        hth_compile_record(site, program, menus, key);
    }
    if (program->train != NULL && err == HTH_ETOOBIG) {
        HTH_TRY(hth_compile_lighter(site, program, menus, PRICE_LAST, &changed));
        err = changed ? compile_rounds(site, program, menus, NULL) : err;
    } else if (program->train == NULL &&
               (err == HTH_ETOOBIG || (err == HTH_OK && compile_streams(program)))) {
        err = compile_lighter(site, program, menus, err);
    }
    HTH_TRY(err);
    HTH_TRY(hth_plan_verify(&program->problem, program->plan));
    for (int w = 0; w < program->n_weights; w++) {
        program->weights[w].streamed =
            program->plan->streamed != NULL && program->plan->streamed[program->weight_tensor[w]];
    }
    return HTH_OK;
}

// ---- contents

// What is computed on the host while a program is made: results of which nobody knew the size.
typedef struct evaluation {
    hth_site *site;
    uint64_t bytes; // counted so far
} evaluation;

// compile_eval is hth_ref_eval, but memory for a computed size is asked for first.
static hth_err compile_eval(void *ctx, const hth_graph *graph, const hth_node *node,
                            const hth_tensor *in, hth_tensor *out)
{
    evaluation *e = ctx;
    bool asks = out[0].data == NULL;
    HTH_TRY(hth_ref_eval(NULL, graph, node, in, out));
    if (asks) {
        HTH_TRY(hth_host_take(e->site, HTH_HOST_CONTENTS, out[0].bytes,
                              "the result of node '%.60s' (%s)", node->name,
                              hth_op_name(node->op)));
        e->bytes += out[0].bytes;
    }
    return HTH_OK;
}

static int by_pointer(const void *a, const void *b)
{
    const hth_const *x = *(hth_const *const *)a, *y = *(hth_const *const *)b;
    return ((uintptr_t)x > (uintptr_t)y) - ((uintptr_t)x < (uintptr_t)y);
}

// constants_of lists the constants of a graph that own their bytes; returns how many.
static size_t constants_of(const hth_graph *graph, hth_const **to)
{
    size_t n = 0;
    for (int v = 0; graph != NULL && v < graph->n_values; v++) {
        hth_const *c = graph->values[v].constant;
        if (c != NULL && c->owner != NULL) {
            to[n++] = c;
        }
    }
    return n;
}

// compile_count finds out how many bytes of constants program has that its model has not: contents
// of inputs, and what was folded from those and from the inputs' shapes.
static hth_err compile_count(const hth_program *program, const hth_graph *model, uint64_t *bytes)
{
    const hth_graph *rest = program->rest.graph;
    size_t all = (size_t)program->graph->n_values + (rest != NULL ? (size_t)rest->n_values : 0);
    hth_const **own = hth_calloc(all + 1, sizeof *own);
    hth_const **theirs = hth_calloc((size_t)model->n_values + 1, sizeof *theirs);
    *bytes = 0;
    if (own == NULL || theirs == NULL) {
        hth_free(own);
        hth_free(theirs);
        return hth_no_memory("a program");
    }
    size_t n = constants_of(program->graph, own);
    n += constants_of(rest, own + n);
    size_t m = constants_of(model, theirs);
    qsort(own, n, sizeof *own, by_pointer);
    qsort(theirs, m, sizeof *theirs, by_pointer);
    for (size_t i = 0; i < n; i++) {
        bool seen = i > 0 && own[i] == own[i - 1];
        if (!seen && bsearch(&own[i], theirs, m, sizeof *theirs, by_pointer) == NULL) {
            *bytes += own[i]->bytes;
        }
    }
    for (int i = 0; i < program->n_contents; i++) { // of which the graph may have no use any more
        const hth_const *c = program->contents[i];
        if (c != NULL && bsearch(&c, own, n, sizeof *own, by_pointer) == NULL) {
            *bytes += c->bytes;
        }
    }
    hth_free(own);
    hth_free(theirs);
    return HTH_OK;
}

// compile_keeps counts what program keeps of contents.
static hth_err compile_keeps(hth_site *site, hth_program *program, const hth_source *source)
{
    const char *name = source->account != NULL ? source->account->name : "";
    uint64_t bytes;
    HTH_TRY(compile_count(program, source->graph, &bytes));
    HTH_TRY(bytes > 0 ? hth_host_take(site, HTH_HOST_CONTENTS, bytes,
                                      "a program for these inputs of model '%.60s'", name)
                      : HTH_OK);
    program->content_bytes = bytes;
    return HTH_OK;
}

// compile_key notes what program was made for. Contents that counted are those that the stage was
// made of: the inputs may lie in a client's memory, and hold something else by now.
static hth_err compile_key(hth_program *program, const hth_graph *model, const hth_tensor *inputs,
                           hth_stage *stage)
{
    program->key = hth_calloc((size_t)model->n_inputs, sizeof *program->key);
    if (program->key == NULL) {
        return hth_no_memory("a program");
    }
    for (int i = 0; i < model->n_inputs; i++) {
        program->key[i] = inputs[i];
        program->key[i].data = NULL;
        if (stage->contents[i] != NULL) {
            program->key[i].data = (void *)stage->contents[i]->data; // never written
        }
    }
    program->contents = stage->contents;
    program->n_contents = stage->n_contents;
    stage->contents = NULL;
    stage->n_contents = 0;
    return HTH_OK;
}

static hth_err compile_arrays(hth_program *program)
{
    size_t nodes = (size_t)program->graph->n_nodes, values = (size_t)program->graph->n_values;
    program->kernels = hth_calloc(nodes, sizeof *program->kernels);
    program->node_in = hth_calloc(nodes, sizeof *program->node_in);
    program->node_out = hth_calloc(nodes, sizeof *program->node_out);
    program->n_in = hth_calloc(nodes, sizeof *program->n_in);
    program->n_out = hth_calloc(nodes, sizeof *program->n_out);
    program->value_tensor = hth_calloc(values, sizeof *program->value_tensor);
    program->same_output =
        hth_calloc((size_t)program->graph->n_outputs, sizeof *program->same_output);
    int *first = hth_calloc(values, sizeof *first); // 1 + the first output that is this value
    bool made = program->kernels != NULL && program->node_in != NULL && program->node_out != NULL &&
                program->n_in != NULL && program->n_out != NULL && program->value_tensor != NULL &&
                program->same_output != NULL && first != NULL;
    for (int i = 0; i < program->graph->n_outputs && made; i++) {
        int *at = &first[program->graph->outputs[i]];
        *at = *at != 0 ? *at : i + 1;
        program->same_output[i] = *at - 1;
    }
    hth_free(first);
    return made ? HTH_OK : hth_no_memory("a program");
}

// compile_step_budget: what the step takes when nothing is short, and the share of it that it gets.
// What is only planned may have any budget.
static hth_err compile_step_budget(hth_site *site, hth_program *program, const hth_step_spec *spec,
                                   const hth_menu *menus)
{
    uint64_t whole = program->plan_only ? hth_profile_memory(program->profile)
                                        : (uint64_t)site->device->props.budget_bytes;
    uint64_t available = spec->available_bytes > 0 ? spec->available_bytes : whole;
    program->budget = *spec->budget_bytes > 0 ? *spec->budget_bytes : available;
    HTH_TRY(hth_compile_problem(site, program, menus));
    HTH_TRY(hth_plan_train_peak(&program->problem, &program->peak_bytes));
    program->peak_bytes += spec->retained_bytes;
    if (*spec->budget_bytes == 0 && spec->budget != NULL) {
        HTH_TRY(hth_err_prefix(hth_parse_size(spec->budget, program->peak_bytes, &program->budget),
                               "budget"));
        if (program->budget == 0) {
            return hth_fail(HTH_EINVAL, "a budget of '%.40s' is zero bytes", spec->budget);
        }
        if (program->budget > whole && !program->plan_only) {
            hth_size asked, there;
            hth_size_pair(program->budget, whole, &asked, &there);
            return hth_fail(HTH_ETOOBIG, "a budget of %s is more than the device's %s", asked.text,
                            there.text);
        }
        if (program->budget > available && !program->plan_only) {
            hth_size asked, left;
            hth_size_pair(program->budget, available, &asked, &left);
            return hth_fail(HTH_ENODEVMEM, "a budget of %s: other jobs leave %s of the device's %s",
                            asked.text, left.text, hth_size_of(whole).text);
        }
    }
    *spec->budget_bytes = program->budget;
    program->budget -=
        spec->retained_bytes < program->budget ? spec->retained_bytes : program->budget;
    return HTH_OK;
}

// The CPU's kernels compute batch norms in slices; a profile has no times of them.
static bool compile_may_slice(const hth_site *site, const hth_step_spec *spec)
{
    return !spec->plan_only && site->device->kernels == NULL;
}

// compile_graph makes kernels, plan and run for program->graph, which is concrete.
static hth_err compile_graph(hth_site *site, hth_program *program, const hth_step_spec *step,
                             bool tune, hth_request *progress)
{
    HTH_TRY(hth_kernel_computes(site->device, program->graph->precision));
    HTH_TRY(compile_passes(site->device, program->graph, step != NULL));
    if (step != NULL && step->slice_bytes > 0 && compile_may_slice(site, step)) {
        int joined;
        HTH_TRY(hth_pass_conv_norm(program->graph, step->slice_bytes, &joined));
    }
    HTH_TRY(compile_arrays(program));
    int n = program->graph->n_nodes;
    hth_menu *menus = hth_calloc((size_t)n, sizeof *menus);
    hth_err err;
    HTH_GOTO(menus == NULL ? hth_no_memory("a program")
                           : hth_compile_kernels(site, program, tune, progress, menus),
             done);
    if (step != NULL) {
        HTH_GOTO(compile_step_budget(site, program, step, menus), done);
    }
    if (step == NULL || !step->problem_only) {
        HTH_GOTO(compile_plan(site, program, menus), done);
        err = program->plan_only ? HTH_OK : hth_compile_run(site, program);
    }
done:
    for (int i = 0; menus != NULL && i < n; i++) {
        hth_free(menus[i].list);
        hth_free(menus[i].every);
    }
    hth_free(menus);
    return err;
}

hth_err hth_program_compile(hth_site *site, hth_source *source, const hth_tensor *inputs,
                            uint64_t budget, bool tune, hth_request *progress, hth_program **out)
{
    uint64_t t0 = hth_now_ns();
    hth_stage stage = {0};
    evaluation e = {site, 0};
    *out = NULL;
    hth_program *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_no_memory("a program");
    }
    p->budget = budget;
    p->tuned = tune;
    hth_paced paced;
    hth_paced_begin(&paced, site, progress);
    site->host_refused = false;
    hth_err err = hth_specialize(source->graph, inputs, compile_eval, &e, &stage);
    hth_host_give(site, HTH_HOST_CONTENTS, e.bytes); // what is kept of it is counted again
    HTH_GOTO(err, out);
    p->graph = stage.graph;
    p->rest.graph = stage.rest;
    p->n_final = stage.n_final;
    p->final_index = stage.final_index;
    p->value_inputs = stage.value_inputs;
    stage.graph = stage.rest = NULL;
    stage.final_index = NULL;
    HTH_GOTO(hth_overhead_room(site, p), out);
    HTH_GOTO(compile_key(p, source->graph, inputs, &stage), out);
    HTH_GOTO(compile_keeps(site, p, source), out);
    HTH_GOTO(hth_host_sizes(site, p, progress), out);
    hth_compile_hold(p, source);
    err = compile_graph(site, p, NULL, tune, progress);
    site->host_refused = false; // others' runs may have been refused at its points: this was not
    HTH_GOTO(err, out);
    p->compile_ms = (double)(hth_now_ns() - t0) / 1e6;
    p->account = source->account;
    p->rest.account = source->account;
    p->site_next = site->programs;
    site->programs = p;
    p->source = source;
    p->used_at = ++site->clock; // or it would be the first to go, before its first run
    p->next = source->programs;
    source->programs = p;
    source->n_programs++;
    *out = p;
out:
    hth_paced_end(&paced);
    hth_compile_release(p);
    hth_stage_fini(&stage);
    if (err == HTH_OK) {
        hth_compile_lead(site, p);
    } else {
        hth_program_free(site, p);
    }
    return err;
}

// The forms of weights that `program` wants are ones that `whole` has.
static bool compile_same_forms(const hth_program *whole, const hth_program *program)
{
    bool same = true;
    for (int i = 0; i < program->n_weights && same; i++) {
        const hth_weight *w = &program->weights[i];
        same = w->in_place ||
               (!w->streamed && hth_compile_has(whole, &w->content->id, w->form) == HTH_LIKE_SAME);
    }
    return same;
}

static hth_err compile_instance(hth_site *site, hth_program *whole, hth_program *program)
{
    hth_stage stage = {0};
    const hth_graph *model = whole->source->graph;
    program->like[program->n_like++] = whole; // held by who calls
    hth_err err;
    HTH_GOTO(hth_specialize(model, whole->key, hth_ref_eval, NULL, &stage), out);
    program->graph = stage.graph;
    program->n_final = stage.n_final;
    program->final_index = stage.final_index;
    stage.graph = NULL;
    stage.final_index = NULL;
    HTH_GOTO(compile_key(program, model, whole->key, &stage), out);
    HTH_GOTO(hth_overhead_room(site, program), out);
    err = compile_graph(site, program, NULL, false, NULL);
out:
    hth_stage_fini(&stage);
    program->n_like = 0;
    HTH_TRY(err);
    return compile_same_forms(whole, program)
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "different packed weights for %d threads", program->threads);
}

hth_err hth_program_compile_instance(hth_site *site, hth_program *whole, int threads,
                                     hth_program **out)
{
    bool streamed = false;
    for (int w = 0; w < whole->n_weights; w++) {
        streamed = streamed || whole->weights[w].streamed;
    }
    if (whole->source == NULL || whole->rest.graph != NULL || whole->value_inputs != 0 ||
        streamed) {
        return hth_fail(HTH_ENOTSUP, "the model has stages, or streams weights");
    }
    hth_program *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_no_memory("a program");
    }
    p->budget = whole->budget;
    p->tuned = whole->tuned;
    p->threads = threads;
    hth_paced paced;
    whole->held++;
    hth_paced_begin(&paced, site, NULL);
    hth_err err = compile_instance(site, whole, p);
    hth_paced_end(&paced);
    assert(whole->held > 0);
    whole->held--;
    if (err != HTH_OK) {
        hth_program_free(site, p);
        return err;
    }
    p->account = whole->account;
    p->site_next = site->programs;
    site->programs = p;
    *out = p;
    return HTH_OK;
}

static hth_err compile_step(hth_site *site, hth_program *program, const hth_step_spec *spec,
                            hth_request *progress)
{
    HTH_TRY(hth_graph_clone(spec->train->graph, &program->graph));
    if (!program->plan_only) {
        HTH_TRY(hth_host_sizes(site, program, NULL));
    }
    if (program->spill != NULL) {
        HTH_TRY(hth_spill_measure(program->spill, COMPILE_SPILL_BYTES, &program->spill_speed));
    }
    HTH_TRY(hth_overhead_room(site, program));
    return compile_graph(site, program, spec, program->tuned, progress);
}

static hth_err compile_once(hth_site *site, const hth_step_spec *spec, bool tune,
                            hth_request *progress, hth_program **out)
{
    uint64_t t0 = hth_now_ns();
    *out = NULL;
    hth_program *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_no_memory("a program");
    }
    p->tuned = tune;
    p->train = spec->train;
    p->options = spec->options;
    p->far = spec->far;
    p->retained = spec->retained;
    p->spill = spec->spill;
    p->profile = spec->profile;
    p->plan_only = spec->plan_only;
    p->kin = spec->kin;
    p->kin_scale = spec->kin_scale;
    hth_paced paced;
    hth_paced_begin(&paced, site, progress);
    hth_err err = compile_step(site, p, spec, progress);
    hth_paced_end(&paced);
    if (err != HTH_OK) {
        hth_program_free(site, p);
        return err;
    }
    p->compile_ms = (double)(hth_now_ns() - t0) / 1e6;
    p->account = spec->account;
    p->site_next = site->programs;
    site->programs = p;
    p->kin = NULL;
    *out = p;
    return HTH_OK;
}

// compile_slices counts the batch norms of the step that can be taken in slices of the batch and
// have more than `bytes`.
static hth_err compile_slices(hth_site *site, const hth_step_spec *spec, uint64_t bytes, int *out)
{
    hth_graph *g;
    HTH_TRY(hth_graph_clone(spec->train->graph, &g));
    hth_err err = compile_passes(site->device, g, true);
    if (err == HTH_OK) {
        err = hth_pass_conv_norm(g, bytes, out);
    }
    hth_graph_free(g);
    return err;
}

// Slices cost time: first those of batch norms that are more than the budget, then of all.
hth_err hth_program_compile_step(hth_site *site, const hth_step_spec *spec, bool tune,
                                 hth_request *progress, hth_program **out)
{
    hth_err err = compile_once(site, spec, tune, progress, out);
    bool may = spec->slice_bytes == 0 && compile_may_slice(site, spec);
    hth_step_spec s = *spec;
    int before = 0, n;
    for (int i = 0; i < 2 && may && err == HTH_ETOOBIG; i++) {
        s.slice_bytes = i == 0 && *spec->budget_bytes > 0 ? *spec->budget_bytes : 1;
        if (compile_slices(site, spec, s.slice_bytes, &n) == HTH_OK && n > before) {
            err = compile_once(site, &s, tune, progress, out);
            before = n;
        }
    }
    return err;
}
