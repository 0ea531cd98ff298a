// SPDX-License-Identifier: Apache-2.0
// planner/exact/plan_optimal_impl.h - the inside of the integer program: rows under construction,
// and the terms that several kinds of rows are made of. Shared by plan_optimal_*.c only.
#ifndef HTH_PLANNER_EXACT_PLAN_OPTIMAL_IMPL_H
#define HTH_PLANNER_EXACT_PLAN_OPTIMAL_IMPL_H

#include "planner/exact/plan_optimal.h"

typedef struct hth_ilp_save { // a copy out that may be made
    int interval, stage;
} hth_ilp_save;

typedef struct hth_ilp {
    const hth_step *m;
    FILE *f;
    int n, side; // stages; of the square that each kind of variable has
    double budget, horizon, unit_us, unit_bytes;
    double *coef; // per variable: of the row at hand
    bool *named;  // .. whether any row has it
    int *touched, n_touched;
    double rhs;
    bool *reads; // [g * n + s]: a node that may run again in stage s reads the tensor of g
    bool *may;   // [v * n + s]: node v may run again in stage s
    hth_ilp_save *save;
    int n_saves;
    double *head; // per stage: least time before it
} hth_ilp;

static inline bool hth_ilp_tail(const hth_ilp *ilp, int g)
{
    return ilp->m->interval[g].q == ilp->n;
}

static inline int hth_ilp_first(const hth_ilp *ilp, int g) // stage of the interval
{
    return ilp->m->interval[g].cyclic ? 0 : ilp->m->interval[g].p + 1;
}

// A row is built by terms on its left side; constants go into ilp->rhs with the other sign.
// hth_ilp_term adds coef times the variable (variables that cannot be are 0), hth_ilp_row ends the
// row: `sense`, ilp->rhs + rhs; all divided by `unit`.
void hth_ilp_term(hth_ilp *ilp, char kind, int i, int j, double coef);
void hth_ilp_row(hth_ilp *ilp, const char *sense, double rhs, double unit);

// States of interval g in stage s, times coef: its buffer has been taken again, its copy in is
// released, it is recomputed, it is kept.
void hth_ilp_back(hth_ilp *ilp, int g, int s, double coef);
void hth_ilp_release(hth_ilp *ilp, int g, int s, double coef);
void hth_ilp_made(hth_ilp *ilp, int g, int s, double coef);
void hth_ilp_keep(hth_ilp *ilp, int g, double coef);
// hth_ilp_alternatives: the time or the workspace of node v.
void hth_ilp_alternatives(hth_ilp *ilp, int v, bool time, double coef);
bool hth_ilp_reads(const hth_ilp *ilp, int v, int t); // node v reads tensor t
int hth_ilp_around(const hth_ilp *ilp, int t, int s); // the interval of t around stage s, -1: none

// The rows: modes, bytes, times. hth_ilp_saves lists the copies out that may be made.
void hth_ilp_modes(hth_ilp *ilp);
void hth_ilp_bytes(hth_ilp *ilp);
void hth_ilp_saves(hth_ilp *ilp);
void hth_ilp_times(hth_ilp *ilp);

#endif
