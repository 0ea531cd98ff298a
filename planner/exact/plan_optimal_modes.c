// SPDX-License-Identifier: Apache-2.0
// Rows of the integer program that say which modes work: what is recomputed is recomputed for a
// reader, with its producer, and finds what it reads.
#include "planner/exact/plan_optimal_impl.h"

static void rows_interval(hth_ilp *ilp, int g)
{
    const hth_step *m = ilp->m;
    const hth_interval *interval = &m->interval[g];
    int first = hth_ilp_first(ilp, g), end = interval->cyclic ? ilp->n : interval->q;
    bool owner = !m->arena[interval->tensor] && !interval->cyclic;
    hth_ilp_term(ilp, 'o', g, 0, 1);
    hth_ilp_term(ilp, 'r', g, 0, 1);
    hth_ilp_term(ilp, 'g', g, 0, 1);
    hth_ilp_row(ilp, "<=", 1, 1);
    if (owner) { // what leaves within the step starts and ends it away
        hth_ilp_term(ilp, 'o', g, 0, 1);
        hth_ilp_term(ilp, 'o', m->interval_start[interval->tensor + 1] - 1, 0, -1);
        hth_ilp_row(ilp, "<=", 0, 1);
    }
    for (int s = first; s < end; s++) {
        bool out = !interval->cyclic || s > interval->p, in = !interval->cyclic || s < interval->q;
        if (out && s > interval->p + 1) { // falls
            hth_ilp_term(ilp, 'a', g, s, 1);
            hth_ilp_term(ilp, 'a', g, s - 1, -1);
            hth_ilp_row(ilp, "<=", 0, 1);
        }
        if (in && s > first) { // rise
            hth_ilp_term(ilp, 'b', g, s, -1);
            hth_ilp_term(ilp, 'b', g, s - 1, 1);
            hth_ilp_row(ilp, "<=", 0, 1);
            hth_ilp_term(ilp, 'c', g, s, -1);
            hth_ilp_term(ilp, 'c', g, s - 1, 1);
            hth_ilp_row(ilp, "<=", 0, 1);
        }
        if (in || out) {
            if (out) {
                hth_ilp_term(ilp, 'a', g, s, 1);
            }
            if (in) {
                hth_ilp_term(ilp, 'b', g, s, 1);
            }
            hth_ilp_term(ilp, 'o', g, 0, -1);
            hth_ilp_row(ilp, "<=", 0, 1);
            hth_ilp_term(ilp, 'c', g, s, in);
            hth_ilp_term(ilp, 'r', g, 0, -1);
            hth_ilp_row(ilp, "<=", 0, 1);
        }
    }
}

// Whether a recompute reads the tensor of interval g in stage s.
static void rows_read(hth_ilp *ilp, int g, int s)
{
    const hth_interval *interval = &ilp->m->interval[g];
    for (int w = 0; w < s; w++) {
        if (ilp->may[w * ilp->n + s] && hth_ilp_reads(ilp, w, interval->tensor)) {
            hth_ilp_term(ilp, 'v', g, s, 1);
            hth_ilp_term(ilp, 'x', w, s, -1);
            hth_ilp_row(ilp, ">=", 0, 1);
        }
    }
    hth_ilp_term(ilp, 'v', g, s, 1);
    for (int w = 0; w < s; w++) {
        hth_ilp_term(ilp, 'x', w, s, hth_ilp_reads(ilp, w, interval->tensor) ? -1 : 0);
    }
    hth_ilp_row(ilp, "<=", 0, 1);
}

// Mode again: there while it is read, computed where it was not there the stage before.
static void rows_again(hth_ilp *ilp, int g, int s)
{
    const hth_interval *interval = &ilp->m->interval[g];
    if (s < interval->q) {
        hth_ilp_term(ilp, 'P', g, s, 1);
        hth_ilp_term(ilp, 'g', g, 0, -1);
        hth_ilp_term(ilp, 'v', g, s, -1);
        hth_ilp_row(ilp, ">=", -1, 1);
    }
    if (s == interval->p + 1) {
        return;
    }
    hth_ilp_term(ilp, 'q', g, s, 1);
    hth_ilp_term(ilp, 'g', g, 0, -1);
    hth_ilp_term(ilp, 'v', g, s - 1, 1);
    hth_ilp_term(ilp, 'v', g, s, s < interval->q ? -1 : 0);
    hth_ilp_row(ilp, ">=", s < interval->q ? -1 : 0, 1);
    hth_ilp_term(ilp, 'q', g, s, 1);
    hth_ilp_term(ilp, 'g', g, 0, -1);
    hth_ilp_row(ilp, "<=", 0, 1);
    hth_ilp_term(ilp, 'q', g, s, 1);
    hth_ilp_term(ilp, 'v', g, s - 1, 1);
    hth_ilp_row(ilp, "<=", 1, 1);
}

// What is recomputed is recomputed for a reader, and with its producer.
static void rows_made(hth_ilp *ilp, int g)
{
    const hth_step *m = ilp->m;
    const hth_interval *interval = &m->interval[g];
    int v = m->p->tensors[interval->tensor].producer;
    for (int s = interval->p + 1; !interval->cyclic && s <= interval->q && s < ilp->n; s++) {
        if (s < interval->q && ilp->reads[g * ilp->n + s]) {
            rows_read(ilp, g, s);
        }
        if (!interval->can_rerun) {
            continue;
        }
        rows_again(ilp, g, s);
        hth_ilp_made(ilp, g, s, 1);
        hth_ilp_term(ilp, 'x', v, s, -1);
        hth_ilp_row(ilp, "<=", 0, 1);
        if (s < interval->q) {
            hth_ilp_made(ilp, g, s, 1);
            hth_ilp_term(ilp, 'v', g, s, -1);
            hth_ilp_row(ilp, "<=", 0, 1);
        }
    }
}

// What node v reads when it runs again in stage s is there; it does so for one of its outputs.
static void rows_rerun(hth_ilp *ilp, int v, int s)
{
    const hth_step *m = ilp->m;
    const hth_plan_node *n = &m->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        int t = n->inputs[j];
        for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
            const hth_interval *interval = &m->interval[g];
            bool inside = s > interval->p && (s < interval->q || interval->cyclic);
            if (!inside) {
                continue;
            }
            hth_ilp_keep(ilp, g, 1);
            hth_ilp_term(ilp, interval->cyclic ? 'a' : 'b', g, s, 1);
            hth_ilp_term(ilp, 'c', g, s, !interval->cyclic);
            hth_ilp_term(ilp, 'g', g, 0, !interval->cyclic);
            hth_ilp_term(ilp, 'x', v, s, -1);
            hth_ilp_row(ilp, ">=", 0, 1);
        }
    }
    hth_ilp_term(ilp, 'x', v, s, 1);
    for (int j = 0; j < n->n_outputs; j++) {
        int t = n->outputs[j];
        for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
            if (s > m->interval[g].p && s <= m->interval[g].q) {
                hth_ilp_made(ilp, g, s, -1);
            }
        }
    }
    hth_ilp_row(ilp, "<=", 0, 1);
    // The algorithm of the first execution.
    double slowest = m->menu[m->menu_end[v] - 1].time_us;
    hth_ilp_term(ilp, 't', v, s, 1);
    hth_ilp_alternatives(ilp, v, true, -1);
    hth_ilp_term(ilp, 'x', v, s, -slowest);
    hth_ilp_row(ilp, ">=", -slowest, ilp->unit_us);
    hth_ilp_term(ilp, 't', v, s, 1);
    hth_ilp_term(ilp, 'x', v, s, -hth_step_fastest(m, v)->time_us);
    hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
}

// A tail interval has a buffer until the last reader, if there is one.
static void rows_tail(hth_ilp *ilp, int g)
{
    const hth_step *m = ilp->m;
    const hth_interval *interval = &m->interval[g];
    for (int s = interval->p + 1; s < ilp->n; s++) {
        for (int w = 0; w < s; w++) {
            if (ilp->may[w * ilp->n + s] && hth_ilp_reads(ilp, w, interval->tensor)) {
                hth_ilp_term(ilp, 'u', g, s, 1);
                hth_ilp_term(ilp, 'x', w, s, -1);
                hth_ilp_row(ilp, ">=", 0, 1);
            }
        }
        if (s + 1 < ilp->n) {
            hth_ilp_term(ilp, 'u', g, s, 1);
            hth_ilp_term(ilp, 'u', g, s + 1, -1);
            hth_ilp_row(ilp, ">=", 0, 1);
        }
        hth_ilp_term(ilp, 'n', g, s, 1);
        hth_ilp_term(ilp, 'u', g, s, -1);
        hth_ilp_keep(ilp, g, -1);
        hth_ilp_term(ilp, 'b', g, s, -1);
        hth_ilp_term(ilp, 'c', g, s, -1);
        hth_ilp_row(ilp, ">=", -1, 1);
        hth_ilp_term(ilp, 'n', g, s, 1);
        hth_ilp_term(ilp, 'a', g, s, -1);
        hth_ilp_row(ilp, ">=", 0, 1);
        hth_ilp_term(ilp, 'n', g, s, 1);
        hth_ilp_term(ilp, 'P', g, s, -1);
        hth_ilp_row(ilp, ">=", 0, 1);
    }
    // In place: its heir takes the buffer unless it is read later, and was not computed for that.
    hth_ilp_term(ilp, 'J', g, 0, 1);
    hth_ilp_term(ilp, 'u', g, interval->p + 1, 1);
    hth_ilp_term(ilp, 'r', g, 0, -1);
    hth_ilp_term(ilp, 'g', g, 0, -1);
    hth_ilp_row(ilp, "<=", 1, 1);
    hth_ilp_term(ilp, 'J', g, 0, 1);
    hth_ilp_term(ilp, 'v', g, interval->p + 1, 1);
    hth_ilp_term(ilp, 'g', g, 0, 1);
    hth_ilp_row(ilp, "<=", 2, 1);
    hth_ilp_term(ilp, 'J', g, 0, 1);
    hth_ilp_row(ilp, "<=", 1, 1);
}

void hth_ilp_modes(hth_ilp *ilp)
{
    for (int g = 0; g < ilp->m->n_intervals; g++) {
        rows_interval(ilp, g);
        rows_made(ilp, g);
        if (hth_ilp_tail(ilp, g)) {
            rows_tail(ilp, g);
        }
    }
    for (int s = 0; s < ilp->n; s++) {
        for (int v = 0; v < s; v++) {
            if (ilp->may[v * ilp->n + s]) {
                rows_rerun(ilp, v, s);
            }
        }
    }
}
