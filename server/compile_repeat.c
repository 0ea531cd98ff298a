// SPDX-License-Identifier: Apache-2.0
// The algorithms of a training step, kept for the next time that the same step is planned.
//
// The search ends with its time, so how busy the machine is decides what it finds, and another
// algorithm rounds otherwise. A job that goes on from its checkpoint, or is begun anew, shall have
// the bits of one that was never stopped: for a problem that was planned before, in all its times,
// sizes and limits, each node has the one algorithm that it got then, and only memory is searched.
#include "server/compile.h"

#include "base/alloc.h"
#include "base/id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEAT_DIGITS 4 // of a number in the list, its space included

typedef struct repeat_row { // what decides of one alternative or tensor; hashed as it lies: no gaps
    uint64_t a, b;
    double us;
    int32_t split, flags;
    char name[48];
} repeat_row;

static int repeat_rows(const hth_problem *q)
{
    int n = q->n_tensors + 5;
    for (int i = 0; i < q->n_nodes; i++) {
        n += q->nodes[i].n_alternatives + 1;
    }
    return n;
}

// p->problem was made before the budget was settled: p->budget counts.
static void repeat_fill(const hth_program *p, repeat_row *row)
{
    const hth_problem *q = &p->problem;
    const hth_plan_options *o = &p->options;
    *row++ = (repeat_row){.a = p->budget, .b = o->seed, .us = o->limit_ms, .split = (int)o->policy};
    *row++ = (repeat_row){.a = o->limit_decodes, .us = q->latency_us};
    *row++ = (repeat_row){.us = q->h2d_bytes_per_s};
    *row++ = (repeat_row){.us = q->d2h_bytes_per_s};
    *row++ = (repeat_row){.us = q->copy_interference};
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

static hth_err repeat_key(const hth_program *p, char out[HTH_COMPILE_KEY])
{
    char hex[HTH_ID_HEX];
    size_t n = (size_t)repeat_rows(&p->problem);
    repeat_row *row = hth_calloc(n, sizeof *row);
    if (row == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a program");
    }
    repeat_fill(p, row);
    const hth_id id = hth_id_of(&(hth_piece){row, n * sizeof *row}, 1);
    hth_free(row);
    snprintf(out, HTH_COMPILE_KEY, "algorithms1 %s", hth_id_hex(&id, hex));
    return HTH_OK;
}

// repeat_parse reads a number for each node, all within its menu.
static bool repeat_parse(const char *text, const hth_menu *menus, int n, int *alt)
{
    for (int i = 0; i < n; i++) {
        char *end;
        long k = strtol(text, &end, 10);
        if (end == text || k < 0 || k >= menus[i].n) {
            return false;
        }
        alt[i] = (int)k;
        text = end;
    }
    return true;
}

hth_err hth_compile_repeat(hth_site *site, hth_program *p, hth_menu *menus,
                           char key[HTH_COMPILE_KEY])
{
    int n = p->graph->n_nodes;
    size_t cap = (size_t)n * REPEAT_DIGITS + 1;
    HTH_TRY(repeat_key(p, key));
    char *text = hth_alloc(cap);
    int *alt = hth_alloc(((size_t)n + 1) * sizeof *alt);
    hth_err err =
        text == NULL || alt == NULL ? hth_fail(HTH_ENOMEM, "no memory for a program") : HTH_OK;
    if (err == HTH_OK && site->timings != NULL &&
        site->timings->get(site->timings->ctx, key, text, cap) == HTH_OK &&
        repeat_parse(text, menus, n, alt)) {
        for (int i = 0; i < n && err == HTH_OK; i++) {
            err = hth_compile_fix(site, p, i, &menus[i], alt[i]);
        }
        key[0] = 0; // is known
    }
    hth_free(text);
    hth_free(alt);
    return err;
}

// Where a list cannot be kept, the next job chooses again: no reason to refuse this one.
void hth_compile_record(hth_site *site, const hth_program *p, const hth_menu *menus,
                        const char *key)
{
    int n = p->graph->n_nodes;
    size_t cap = (size_t)n * REPEAT_DIGITS + 1, used = 0;
    char *text = key[0] != 0 && site->timings != NULL ? hth_alloc(cap) : NULL;
    for (int i = 0; text != NULL && i < n; i++) {
        int k = 0;
        while (k < menus[i].n_every && strcmp(menus[i].every[k].name, menus[i].list[0].name) != 0) {
            k++;
        }
        used += (size_t)snprintf(text + used, cap - used, "%d ", k);
    }
    if (text != NULL) {
        (void)site->timings->put(site->timings->ctx, key, text);
    }
    hth_free(text);
}
