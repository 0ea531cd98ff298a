// SPDX-License-Identifier: Apache-2.0
// Rows of the integer program that count bytes: the buffers of every stage, less those that are
// taken over, and the workspaces and scratch of what runs there.
#include "planner/exact/plan_optimal_impl.h"

#include <math.h>

// What is recomputed in interval g in stage s may take over its pair's buffer when nothing else
// reads that there and its stay ends.
static void rows_takes(hth_ilp *ilp, int g, int s)
{
    const hth_step *m = ilp->m;
    int t = m->interval[g].tensor, v = m->p->tensors[t].producer, pair = m->pair[t];
    int h = pair >= 0 ? hth_ilp_around(ilp, pair, s) : -1;
    if (h < 0 || (!hth_ilp_tail(ilp, h) && s + 1 == m->interval[h].q)) {
        return;
    }
    hth_ilp_term(ilp, 'I', g, s, 1);
    hth_ilp_made(ilp, g, s, -1);
    hth_ilp_row(ilp, "<=", 0, 1);
    for (int w = 0; w < s; w++) {
        if (w != v && ilp->may[w * ilp->n + s] && hth_ilp_reads(ilp, w, pair)) {
            hth_ilp_term(ilp, 'I', g, s, 1);
            hth_ilp_term(ilp, 'x', w, s, 1);
            hth_ilp_row(ilp, "<=", 1, 1);
        }
    }
    hth_ilp_term(ilp, 'I', g, s, 1);
    if (hth_ilp_tail(ilp, h)) {
        hth_ilp_term(ilp, 'u', h, s + 1, s + 1 < ilp->n);
        hth_ilp_term(ilp, 'g', h, 0, -1);
        hth_ilp_row(ilp, "<=", 1, 1);
        hth_ilp_term(ilp, 'I', g, s, 1);
        hth_ilp_term(ilp, 'v', h, s + 1, s + 1 < ilp->n);
        hth_ilp_term(ilp, 'g', h, 0, 1);
        hth_ilp_row(ilp, "<=", 2, 1);
    } else {
        hth_ilp_term(ilp, 'g', h, 0, -1);
        hth_ilp_row(ilp, "<=", 0, 1);
        hth_ilp_term(ilp, 'I', g, s, 1);
        hth_ilp_term(ilp, 'v', h, s + 1, 1);
        hth_ilp_row(ilp, "<=", 1, 1);
    }
}

// Its buffer is there; a cyclic interval's in what it has of stages.
static void bytes_owned(hth_ilp *ilp, int g, int s, double coef)
{
    const hth_interval *interval = &ilp->m->interval[g];
    if (hth_ilp_tail(ilp, g)) {
        hth_ilp_term(ilp, 'n', g, s, coef);
        return;
    }
    hth_ilp_keep(ilp, g, coef);
    if (!interval->cyclic || s > interval->p) {
        hth_ilp_term(ilp, 'a', g, s, coef);
    }
    if (!interval->cyclic || s < interval->q) {
        hth_ilp_term(ilp, 'b', g, s, coef);
        hth_ilp_term(ilp, 'c', g, s, coef);
        hth_ilp_term(ilp, 'P', g, s, coef);
    }
}

// Memory.

// Bytes of tensor t in stage s.
static void bytes_tensor(hth_ilp *ilp, int t, int s)
{
    const hth_step *m = ilp->m;
    double bytes = (double)m->bytes[t];
    const int *use = &m->use[m->use_start[t]];
    int n = m->use_start[t + 1] - m->use_start[t];
    bool output = m->p->tensors[t].cls == HTH_MEM_OUTPUT;
    for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
        const hth_interval *interval = &m->interval[g];
        if (interval->cyclic ? s > interval->p || s < interval->q
                             : s > interval->p && s < interval->q) {
            bytes_owned(ilp, g, s, bytes);
            return;
        }
    }
    bool here = !m->arena[t] || (n > 0 && s >= use[0] && (s <= use[n - 1] || output)) ||
                (n > 0 && m->p->tensors[t].producer < 0 && s <= use[n - 1]);
    ilp->rhs -= here ? bytes : 0;
    int y = m->p->tensors[t].producer, pair = m->pair[t];
    if (here && m->arena[t] && pair >= 0 && s == y && n > 0) { // in place, unless it is read later
        int last = m->interval_start[pair + 1] - 1;
        int tail = last >= m->interval_start[pair] && hth_ilp_tail(ilp, last) ? last : -1;
        bool ends = m->use[m->use_start[pair + 1] - 1] == y && (tail >= 0 || y + 1 == ilp->n) &&
                    m->p->tensors[pair].cls != HTH_MEM_OUTPUT;
        if (ends && y + 1 < ilp->n) {
            hth_ilp_term(ilp, 'J', tail, 0, -bytes);
        } else if (ends) {
            ilp->rhs += bytes;
        }
    }
}

// Less what recomputes of stage s take over.
static void bytes_taken(hth_ilp *ilp, int s)
{
    for (int g = 0; g < ilp->m->n_intervals; g++) {
        const hth_interval *interval = &ilp->m->interval[g];
        int pair = ilp->m->pair[interval->tensor],
            v = ilp->m->p->tensors[interval->tensor].producer;
        int h = pair >= 0 ? hth_ilp_around(ilp, pair, s) : -1;
        if (interval->can_rerun && s > interval->p && s <= interval->q && h >= 0 &&
            ilp->may[v * ilp->n + s] && (hth_ilp_tail(ilp, h) || s + 1 < ilp->m->interval[h].q)) {
            hth_ilp_term(ilp, 'I', g, s, -(double)ilp->m->bytes[interval->tensor]);
        }
    }
}

static void rows_bytes(hth_ilp *ilp, int s)
{
    const hth_step *m = ilp->m;
    for (int v = -1; v < s; v++) { // the stage's node, then what may run again
        if (v >= 0 && !ilp->may[v * ilp->n + s]) {
            continue;
        }
        for (int t = 0; t < m->p->n_tensors; t++) {
            if (m->bytes[t] > 0) {
                bytes_tensor(ilp, t, s);
            }
        }
        bytes_taken(ilp, s);
        hth_ilp_alternatives(ilp, v < 0 ? s : v, false, 1);
        if (v >= 0) {
            const hth_plan_node *n = &m->p->nodes[v];
            double most = 0, all = 0;
            for (int i = m->menu_start[v]; i < m->menu_end[v]; i++) {
                most = fmax(most, (double)m->menu[i].workspace);
            }
            for (int j = 0; j < n->n_outputs; j++) {
                int t = n->outputs[j];
                all += (double)hth_plan_round(m->p->tensors[t].bytes);
                for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
                    if (s > m->interval[g].p && s <= m->interval[g].q) {
                        hth_ilp_made(ilp, g, s, -(double)m->bytes[t]);
                    }
                }
            }
            hth_ilp_term(ilp, 'x', v, s, all + most);
            ilp->rhs += most;
        }
        hth_ilp_row(ilp, "<=", ilp->budget, ilp->unit_bytes);
    }
}

void hth_ilp_bytes(hth_ilp *ilp)
{
    const hth_step *m = ilp->m;
    for (int g = 0; g < m->n_intervals; g++) {
        int v = m->p->tensors[m->interval[g].tensor].producer;
        for (int s = m->interval[g].p + 2;
             m->interval[g].can_rerun && s <= m->interval[g].q && s < ilp->n; s++) {
            if (ilp->may[v * ilp->n + s]) {
                rows_takes(ilp, g, s);
            }
        }
    }
    for (int s = 0; s < ilp->n; s++) {
        rows_bytes(ilp, s);
    }
}
