// SPDX-License-Identifier: Apache-2.0
// The candidates of every node of a program, and the kernels prepared for those chosen. Runs on the
// engine's thread, because measuring and preparing use the device's threads.
#include "runtime/compile/compile_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "device/cpu/team.h"
#include "convsel/link.h"

#include <stdio.h>
#include <string.h>

bool hth_program_measured(hth_site *site, const hth_graph *graph, int i)
{
    const hth_node *n = &graph->nodes[i];
    return !hth_convsel_lists(site->device, n->op) ||
           hth_convsel_known(site->device, graph, n, NULL, site->timings);
}

// Moves the choices on the front to the beginning, returns how many.
static int menu_front(hth_choice *list, int n)
{
    int kept = 0;
    for (int k = 0; k < n; k++) {
        if (list[k].front) {
            list[kept++] = list[k];
        }
    }
    return kept;
}

// A program for inference is made again after timings that were disturbed (hth_tune_step).
static void menu_disturbed(hth_site *site, hth_program *program, const hth_choice *list, int n)
{
    bool disturbed = program->train == NULL && n > 0 && list[0].disturbed;
    program->disturbed = program->disturbed || disturbed;
    site->disturbed_ns = disturbed && site->disturbed_ns == 0 ? hth_now_ns() : site->disturbed_ns;
}

// What the same node of a step for another number of samples tells, whether or not this one was
// measured by now: a job's algorithms depend on its first step's alone. HTH_ENOENT: nothing.
static hth_err menu_kin(hth_site *site, const hth_program *program, int i, hth_choice *list, int *n)
{
    const hth_program *kin = program->kin;
    const hth_node *node = &program->graph->nodes[i], *of;
    char mine[HTH_CONVSEL_KEY], its[HTH_CONVSEL_KEY];
    if (kin == NULL || kin->graph->n_nodes != program->graph->n_nodes) {
        return HTH_ENOENT;
    }
    of = &kin->graph->nodes[i];
    if (of->op != node->op || strcmp(of->name, node->name) != 0) {
        return HTH_ENOENT;
    }
    hth_convsel_describe(program->graph, node, mine, sizeof mine);
    hth_convsel_describe(kin->graph, of, its, sizeof its);
    double scale = strcmp(mine, its) == 0 ? 1 : program->kin_scale; // what parameters take stays
    return hth_convsel_scaled(site->device, program->graph, node, kin->graph, of, &kin->heat,
                              site->timings, scale, list, HTH_MAX_CHOICES, n);
}

// compile_menu fills the candidates of node i, fastest first, only those on the front. Of a
// training step, whose plan weighs the time of every node, all nodes are measured.
static hth_err compile_menu(hth_site *site, hth_program *program, int i, bool tune, hth_menu *menu)
{
    const hth_graph *g = program->graph;
    bool train = program->train != NULL;
    hth_choice list[HTH_MAX_CHOICES];
    int n = 0, kept = 0;
    const hth_node *node = &g->nodes[i];
    bool has_menu = hth_convsel_lists(site->device, node->op);
    hth_err known = program->profile != NULL
                        ? hth_profile_find(program->profile, g, node, list, HTH_MAX_CHOICES, &n)
                        : HTH_ENOENT;
    if (known != HTH_OK && program->plan_only) {
        return known;
    }
    if (known != HTH_OK && train) {
        known = menu_kin(site, program, i, list, &n);
        HTH_TRY(known == HTH_ENOENT || known == HTH_ENOMEM ? HTH_OK : known);
        hth_convsel_front(list, n, hth_convsel_tolerance(g, site->tolerance));
    }
    if (known == HTH_OK) {
        kept = menu_front(list, n);
    } else if ((has_menu || train) &&
               (tune || hth_convsel_known(site->device, g, node, &program->heat, site->timings))) {
        hth_err err = hth_convsel_measure(site->device, g, node, &program->heat, site->timings,
                                          list, HTH_MAX_CHOICES, &n);
        HTH_TRY(err == HTH_ENOMEM ? HTH_OK : err); // no room to measure: it counts as not measured
        hth_convsel_front(list, n, hth_convsel_tolerance(g, site->tolerance));
        kept = menu_front(list, n);
        menu_disturbed(site, program, list, kept);
    }
    if (kept == 0 && has_menu) { // not measured, or none within the tolerance: the device's order
        HTH_TRY(hth_kernel_first(site->device, g, &g->nodes[i], list, HTH_MAX_CHOICES, &kept));
    }
    if (kept == 0) {
        list[kept++] = (hth_choice){
            .name = "default", .time_us = -1, .error = -1, .split = 1, .deterministic = true};
    }
    if (train && !program->plan_only && site->device->kernels == NULL &&
        (g->nodes[i].op == HTH_OP_GEMM || g->nodes[i].op == HTH_OP_MAT_MUL)) {
        // Slow, but without the panels and blocks that can be more than a small step's tensors.
        list[kept++] = (hth_choice){
            .name = "ref", .time_us = -1, .error = 0, .split = 1, .deterministic = true};
    }
    menu->list = hth_memdup(list, (size_t)kept * sizeof *list);
    menu->every = hth_memdup(list, (size_t)kept * sizeof *list);
    menu->n = menu->n_every = kept;
    return menu->list == NULL || menu->every == NULL ? hth_no_memory("a program") : HTH_OK;
}

// A kernel is made for the team that its device has, and that the calling thread has.
static hth_err kernel_prepare(hth_site *site, hth_program *program, const hth_node *node,
                              const char *algorithm, hth_kernel **out)
{
    hth_device narrow = *site->device;
    if (program->plan_only && narrow.kernels == NULL) {
        // Nothing computes here: a fake device has the CPU's kernels, and no limit of their time.
        snprintf(narrow.props.name, sizeof narrow.props.name, "fake:0");
        return hth_kernel_prepare(&narrow, program->graph, node, algorithm, out);
    }
    if (program->threads == 0) {
        return hth_kernel_prepare(site->device, program->graph, node, algorithm, out);
    }
    narrow.props.n_threads = program->threads;
    hth_team_set(program->threads);
    hth_err err = hth_kernel_prepare(&narrow, program->graph, node, algorithm, out);
    hth_team_set(site->device->props.n_threads);
    return err;
}

hth_err hth_compile_kernel(hth_site *site, hth_program *program, int i, const char *algorithm)
{
    if (program->plan_only) { // the algorithms may be another device's; any kernel tells the forms
        algorithm = "default";
        if (program->kernels[i] != NULL) {
            return HTH_OK;
        }
    }
    hth_kernel_close(program->kernels[i]);
    program->kernels[i] = NULL;
    const hth_node *n = &program->graph->nodes[i];
    const char *name = strcmp(algorithm, "default") == 0 ? NULL : algorithm;
    hth_err err = kernel_prepare(site, program, n, name, &program->kernels[i]);
    return hth_err_prefix(err, "node '%s' (%s)", n->name, hth_op_name(n->op));
}

hth_err hth_compile_fix(hth_site *site, hth_program *program, int i, hth_menu *menu, int k)
{
    menu->list[0] = menu->list[k];
    menu->n = 1;
    return k > 0 ? hth_compile_kernel(site, program, i, menu->list[0].name) : HTH_OK;
}

hth_err hth_compile_choose(hth_site *site, hth_program *program, hth_menu *menus, bool *changed)
{
    *changed = false;
    for (int k = 0; k < program->plan->n_instrs; k++) {
        const hth_instr *in = &program->plan->instrs[k];
        if (in->kind != HTH_INSTR_COMPUTE || in->recompute) {
            continue;
        }
        hth_menu *m = &menus[in->node];
        if (in->alt != 0) {
            *changed = true;
            m->list[0] = m->list[in->alt];
            HTH_TRY(hth_compile_kernel(site, program, in->node, m->list[0].name));
        }
        m->n = 1;
    }
    return HTH_OK;
}

// Workspaces take turns, so a byte of one counts for less.
#define MENU_TURNS 8

static double menu_cost(const hth_choice *choice, double us_per_byte)
{
    return choice->time_us + us_per_byte * ((double)choice->resident_bytes +
                                            (double)choice->workspace_bytes / MENU_TURNS);
}

static hth_err menu_lighten(hth_site *site, hth_program *program, int i, hth_menu *menu,
                            double us_per_byte, bool *changed)
{
    char before[sizeof menu->list[0].name];
    int least = 0, n = us_per_byte > 0 ? 1 : menu->n_every;
    for (int k = 1; k < menu->n_every && us_per_byte > 0; k++) {
        double cost = menu_cost(&menu->every[k], us_per_byte);
        least = cost < menu_cost(&menu->every[least], us_per_byte) ? k : least;
    }
    memcpy(before, menu->list[0].name, sizeof before);
    memcpy(menu->list, menu->every, (size_t)menu->n_every * sizeof *menu->list);
    menu->list[0] = menu->every[least];
    bool other = strcmp(before, menu->list[0].name) != 0;
    *changed = *changed || other || menu->n != n;
    menu->n = n;
    return other ? hth_compile_kernel(site, program, i, menu->list[0].name) : HTH_OK;
}

hth_err hth_compile_lighter(hth_site *site, hth_program *program, hth_menu *menus,
                            double us_per_byte, bool *changed)
{
    *changed = false;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        HTH_TRY(menu_lighten(site, program, i, &menus[i], us_per_byte, changed));
    }
    return HTH_OK;
}

// compile_heat describes what a step's nodes find in the caches. New values of slots take the old
// ones' places.
static hth_err compile_heat(const hth_site *site, hth_program *program)
{
    const hth_graph *g = program->graph;
    int *replaces = hth_alloc((size_t)(g->n_values + 1) * sizeof *replaces);
    if (replaces == NULL) {
        return hth_no_memory("a program");
    }
    memset(replaces, -1, (size_t)(g->n_values + 1) * sizeof *replaces);
    for (int i = 0; i < program->train->n_slots; i++) {
        const hth_train_slot *s = &program->train->slots[i];
        if (s->output >= 0 && g->outputs[s->output] != g->inputs[s->input]) {
            replaces[g->outputs[s->output]] = g->inputs[s->input];
        }
    }
    hth_err err = hth_cache_model_make(&site->device->props, g, replaces, &program->heat);
    hth_free(replaces);
    return err;
}

// The first candidate's kernel; one that cannot be made after all leaves the menu.
static hth_err compile_first(hth_site *site, hth_program *program, int i, hth_menu *menu)
{
    hth_err err = hth_compile_kernel(site, program, i, menu->list[0].name);
    while (err == HTH_ENOTSUP && menu->n > 1 && program->profile == NULL) {
        memmove(menu->list, menu->list + 1, (size_t)--menu->n * sizeof *menu->list);
        memcpy(menu->every, menu->list, (size_t)menu->n * sizeof *menu->list);
        menu->n_every = menu->n;
        err = hth_compile_kernel(site, program, i, menu->list[0].name);
    }
    return err;
}

hth_err hth_compile_kernels(hth_site *site, hth_program *program, bool tune, hth_request *progress,
                            hth_menu *menus)
{
    HTH_TRY(program->train != NULL ? compile_heat(site, program) : HTH_OK);
    for (int i = 0; i < program->graph->n_nodes; i++) {
        if (progress != NULL && progress->progress != NULL && tune) {
            progress->progress(progress, "measuring algorithms", (uint64_t)i,
                               (uint64_t)program->graph->n_nodes);
        }
        if (progress != NULL && *hth_request_canceled(progress)) {
            return hth_fail(HTH_ECANCELED, "canceled while measuring algorithms");
        }
        (void)hth_work_point(site->queue);
        HTH_TRY(compile_menu(site, program, i, tune, &menus[i]));
    }
    HTH_TRY(hth_compile_like(site, program, menus));
    for (int i = 0; i < program->graph->n_nodes; i++) {
        (void)hth_work_point(site->queue);
        HTH_TRY(menus[i].prepared ? HTH_OK : compile_first(site, program, i, &menus[i]));
    }
    return HTH_OK;
}

hth_err hth_program_remember(hth_site *site, const hth_program *program,
                             const hth_in_step_times *seen, const double copied[2])
{
    if (program->profile != NULL || site->timings == NULL) {
        return HTH_OK;
    }
    HTH_TRY(
        hth_in_step_times_learn(site->device, program->graph, &program->heat, site->timings, seen));
    if (program->spill != NULL) {
        return HTH_OK;
    }
    hth_link link = {site->link_bytes_per_s, site->link_back_bytes_per_s,
                     site->link_latency_us,  site->copy_interference,
                     site->copy_us,          site->traffic_bytes_per_s};
    double up = copied[0] > 0 ? program->problem.h2d_bytes_per_s : 0;
    double down = copied[1] > 0 ? program->problem.d2h_bytes_per_s : 0;
    HTH_TRY(hth_link_learn(site->device, site->timings, up, down, &link));
    site->link_bytes_per_s = link.h2d_bytes_per_s;
    site->link_back_bytes_per_s = link.d2h_bytes_per_s;
    return HTH_OK;
}
