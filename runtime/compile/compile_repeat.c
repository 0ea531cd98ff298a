// SPDX-License-Identifier: Apache-2.0
// The algorithms of a training step, kept for the next time that the same step is planned.
//
// The search ends with its time, so how busy the machine is decides what it finds, and another
// algorithm rounds otherwise. A job that goes on from its checkpoint, or is begun anew, shall have
// the bits of one that was never stopped: for a problem that was planned before, in all its times
// and sizes, each node has the one algorithm that it got then, and only memory is searched, from
// where that plan had ended: a search of its own might not find it again.
#include "runtime/compile/compile_impl.h"

#include "base/alloc.h"
#include "base/id.h"
#include "planner/plan_schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEAT_BUDGETS 16  // whose lists are kept: the points of a curve
#define REPEAT_HEAD    44  // of a list: two numbers and the line's end
#define REPEAT_DIGITS  4   // of a number in the list, its space included
#define REPEAT_PLAN    60  // of what the plan took, and how it was searched
#define REPEAT_MODE    'a' // .. and of its first mode, the others after it

typedef struct repeat_row { // what decides of one alternative or tensor; hashed as it lies: no gaps
    uint64_t a, b;
    double us;
    int32_t split, flags;
    char name[48];
} repeat_row;

static int repeat_rows(const hth_problem *problem)
{
    int n = problem->n_tensors + 6;
    for (int i = 0; i < problem->n_nodes; i++) {
        n += problem->nodes[i].n_alternatives + 1;
    }
    return n;
}

static void repeat_fill(const hth_program *program, repeat_row *row)
{
    const hth_problem *q = &program->problem;
    const hth_plan_options *o = &program->options;
    *row++ = (repeat_row){.b = o->seed, .us = o->limit_ms, .split = (int)o->policy};
    *row++ = (repeat_row){.a = o->limit_decodes, .us = q->latency_us};
    *row++ = (repeat_row){.us = q->h2d_bytes_per_s};
    *row++ = (repeat_row){.us = q->d2h_bytes_per_s};
    *row++ = (repeat_row){.us = q->copy_interference};
    *row++ = (repeat_row){.us = q->copy_us};
    for (int i = 0; i < q->n_tensors; i++) {
        const hth_plan_tensor *t = &q->tensors[i];
        *row++ = (repeat_row){.a = t->bytes, .b = (uint64_t)t->cls, .split = t->producer};
    }
    for (int i = 0; i < q->n_nodes; i++) {
        const hth_plan_node *n = &q->nodes[i];
        *row = (repeat_row){.a = (uint64_t)n->n_inputs, .b = (uint64_t)n->n_outputs};
        snprintf(row->name, sizeof row->name, "%.47s", n->op);
        row++;
        for (int k = 0; k < n->n_alternatives; k++) {
            const hth_choice *c = &n->alternatives[k];
            *row = (repeat_row){.a = c->workspace_bytes,
                                .b = c->resident_bytes,
                                .us = c->time_us,
                                .split = c->split,
                                .flags = c->accumulates};
            snprintf(row->name, sizeof row->name, "%s", c->name);
            row++;
        }
    }
}

// Written whole, so that no byte between two fields is left to chance; calloc'd for the same
// reason.
_Static_assert(sizeof(repeat_row) == 80, "a row has no gaps");

static hth_err repeat_key(const hth_program *program, char out[HTH_REPEAT_KEY])
{
    char hex[HTH_ID_HEX];
    size_t n = (size_t)repeat_rows(&program->problem);
    repeat_row *row = hth_calloc(n, sizeof *row);
    if (row == NULL) {
        return hth_no_memory("a program");
    }
    repeat_fill(program, row);
    const hth_id id = hth_id_of(&(hth_chunk){row, n * sizeof *row}, 1);
    hth_free(row);
    snprintf(out, HTH_REPEAT_KEY, "algorithms2 %s", hth_id_hex(&id, hex));
    return HTH_OK;
}

// repeat_plan reads what a list has after its algorithms, if it has that.
static hth_err repeat_plan(const char *text, hth_plan *before)
{
    int hurries, at = 0;
    unsigned long long bytes;
    double us;
    if (sscanf(text, " ; %lf %llu %d %n", &us, &bytes, &hurries, &at) != 3 || at == 0) {
        return HTH_OK;
    }
    size_t n = strcspn(text + at, "\n");
    uint8_t *mode = hth_alloc(n + 1);
    if (mode == NULL) {
        return hth_no_memory("a program");
    }
    for (size_t i = 0; i < n; i++) {
        mode[i] = (uint8_t)(text[(size_t)at + i] - REPEAT_MODE);
        if (mode[i] >= HTH_N_INTERVAL_MODES) { // damaged
            hth_free(mode);
            return HTH_OK;
        }
    }
    *before = (hth_plan){.predicted_us = us,
                         .hurries = hurries != 0,
                         .mode = mode,
                         .n_modes = (int)n,
                         .mode_bytes = bytes};
    return HTH_OK;
}

// A step that was planned within `budget` bytes and needs `need` of them is what any budget between
// the two allows, so it repeats it: a smaller one cannot have better.
static bool repeat_parse(const char *text, uint64_t budget, const hth_menu *menus, int n, int *alt,
                         const char **rest)
{
    char *end;
    unsigned long long most = strtoull(text, &end, 10), need = strtoull(end, &end, 10);
    if (budget > most || budget < need) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        text = end;
        long k = strtol(text, &end, 10);
        if (end == text || *end != ' ' || k < 0 || k >= menus[i].n) {
            return false;
        }
        alt[i] = (int)k;
    }
    *rest = end;
    return true;
}

// The first of the kept lines that is for this budget.
static bool repeat_find(const char *text, uint64_t budget, const hth_menu *menus, int n, int *alt,
                        const char **rest)
{
    for (const char *line = text; line != NULL && *line != 0; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (repeat_parse(line, budget, menus, n, alt, rest)) {
            return true;
        }
    }
    return false;
}

// A plan's modes are of what lies between two uses of a tensor.
static size_t repeat_cap(const hth_program *program)
{
    const hth_problem *q = &program->problem;
    size_t modes = (size_t)q->n_tensors;
    for (int i = 0; i < q->n_nodes; i++) {
        modes += (size_t)(q->nodes[i].n_inputs + q->nodes[i].n_outputs);
    }
    return REPEAT_BUDGETS * (REPEAT_HEAD + (size_t)program->graph->n_nodes * REPEAT_DIGITS +
                             REPEAT_PLAN + modes) +
           1;
}

static hth_err repeat_fix(hth_site *site, hth_program *program, hth_menu *menus, const char *text,
                          hth_plan *before, bool *known)
{
    int n = program->graph->n_nodes;
    int *alt = hth_alloc(((size_t)n + 1) * sizeof *alt);
    const char *rest = "";
    hth_err err = alt == NULL ? hth_no_memory("a program") : HTH_OK;
    *known = err == HTH_OK && repeat_find(text, program->budget, menus, n, alt, &rest);
    err = *known ? repeat_plan(rest, before) : err;
    for (int i = 0; *known && i < n && err == HTH_OK; i++) {
        err = hth_compile_fix(site, program, i, &menus[i], alt[i]);
    }
    hth_free(alt);
    return err;
}

hth_err hth_compile_repeat(hth_site *site, hth_program *program, hth_menu *menus,
                           char key[HTH_REPEAT_KEY], hth_plan *before, bool *known)
{
    char *text = hth_alloc(repeat_cap(program));
    *known = false;
    hth_err err = text == NULL ? hth_no_memory("a program") : repeat_key(program, key);
    if (err == HTH_OK && site->timings != NULL &&
        site->timings->get(site->timings->ctx, key, text, repeat_cap(program)) == HTH_OK) {
        err = repeat_fix(site, program, menus, text, before, known);
    }
    hth_free(text);
    return err;
}

static size_t repeat_line(const hth_program *program, const hth_menu *menus, char *text, size_t cap)
{
    size_t used = (size_t)snprintf(
        text, cap, "%llu %llu ", (unsigned long long)program->budget,
        (unsigned long long)(program->plan->resident_bytes + program->plan->arena_bytes));
    for (int i = 0; i < program->graph->n_nodes; i++) {
        int k = 0;
        while (k < menus[i].n_every && strcmp(menus[i].every[k].name, menus[i].list[0].name) != 0) {
            k++;
        }
        used += (size_t)snprintf(text + used, cap - used, "%d ", k);
    }
    const hth_plan *plan = program->plan;
    size_t n = (size_t)plan->n_modes;
    if (n > 0 && used + REPEAT_PLAN + n < cap) {
        used += (size_t)snprintf(text + used, cap - used, "; %.12g %llu %d ", plan->predicted_us,
                                 (unsigned long long)plan->mode_bytes, plan->hurries);
        for (size_t i = 0; i < n; i++) {
            text[used++] = (char)(REPEAT_MODE + plan->mode[i]);
        }
    }
    return used;
}

// The newest line first; the oldest of more than REPEAT_BUDGETS goes. Where a list cannot be kept,
// the next job chooses again: no reason to refuse this one.
void hth_compile_record(hth_site *site, const hth_program *program, const hth_menu *menus,
                        const char *key)
{
    size_t cap = repeat_cap(program);
    char *text = site->timings != NULL ? hth_alloc(2 * cap) : NULL;
    if (text != NULL) {
        size_t used = repeat_line(program, menus, text, cap);
        char *rest = text + used;
        *rest++ = '\n';
        if (site->timings->get(site->timings->ctx, key, rest, cap) != HTH_OK) {
            *rest = 0;
        }
        char *end = rest;
        for (int i = 1; i < REPEAT_BUDGETS && end != NULL; i++) {
            end = strchr(end, '\n');
            end = end != NULL ? end + 1 : NULL;
        }
        if (end != NULL) {
            *end = 0;
        }
        (void)site->timings->put(site->timings->ctx, key, text);
    }
    hth_free(text);
}
