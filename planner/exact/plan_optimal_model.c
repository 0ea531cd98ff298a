// SPDX-License-Identifier: Apache-2.0
// The planning of a training step as an integer program. It decides what the search decides (modes,
// algorithms) and what the decoder decides by rules (when a buffer goes and when it is taken
// again), and times by the rules of plan_schedule.h. What is fixed, so that the program stays
// small:
//   copies out go in the order of the stages after which they may begin (the stage that filled the
//   buffer, or the use before the interval when the tensor was kept until there), then of tensors
//   copies in go in the order of the stages that release them, then of the next uses
// An interval's reads by recomputes see what came back, never what has not left yet, as in the
// decoder.
//
// Variables, by letter; g: interval, s: stage, v: node
//   o_g r_g g_g   offload, recompute, again (none: keep)
//   a_g_s      offloaded and not gone yet in stage s, falling
//   b_g_s      offloaded and its buffer taken again by stage s, rising
//   c_g_s      recomputed by stage s, rising
//   v_g_s      a recompute in stage s reads the tensor of g; P_g_s it is there for that, in mode
//              again; q_g_s it is computed in s for that
//   I_g_s J_g  a buffer is taken over: by what is made in interval g, by the heir of tail interval
// g's tensor
//   x_v_s      node v runs again in stage s; t_v_s how long that takes
//   m_v_k      node v uses alternative k of its menu
//   y_k D_k    copy out k is made; end of the lane after it
//   u_g_s      something reads the tensor of tail interval g in stage s or later; n_g_s it has a
// buffer
//   W_s S_s E_s F_s   times of a stage; end of the copies in that were released by then
//   f_g        end of the copy in of interval g;  L, T: the lanes' time, the step's
// Implications between a decision and a time use the horizon as the large constant; what makes the
// relaxation tight are the windows, which need none: what is absent at stage s and needed at m or
// earlier comes in between W_s and S_m, what was made at r or later and is absent at s went out
// between E_r and W_s.
#include "planner/exact/plan_optimal_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define MODEL_SCALE 1000.0 // of the horizon and the budget: what CBC's tolerances are made for
#define MODEL_LINE  6      // terms
#define MODEL_KINDS "orabcxtmyDunWSEFfLTgvPqIJ"
#define MODEL_TIMES "tDWSEFfLT" // in units of the horizon / MODEL_SCALE

// Rows.

static bool ilp_allows(const hth_ilp *ilp, char kind, int i, int j)
{
    const hth_interval *interval = &ilp->m->interval[i];
    switch (kind) {
    case 'o':
    case 'a':
    case 'b':
    case 'f':
        return interval->can_offload;
    case 'r':
    case 'c':
    case 'g':
    case 'P':
        return interval->can_rerun;
    case 'q':
        return interval->can_rerun && j > interval->p + 1;
    case 'v':
        return j > interval->p && ilp->reads[i * ilp->n + j];
    case 'x':
    case 't':
        return ilp->may[i * ilp->n + j];
    default:
        return true;
    }
}

void hth_ilp_term(hth_ilp *ilp, char kind, int i, int j, double coef)
{
    if (coef == 0 || !ilp_allows(ilp, kind, i, j)) {
        return;
    }
    int at = ((int)(strchr(MODEL_KINDS, kind) - MODEL_KINDS) * ilp->side + i) * ilp->side + j;
    if (ilp->coef[at] == 0) {
        ilp->touched[ilp->n_touched++] = at;
    }
    ilp->coef[at] += strchr(MODEL_TIMES, kind) != NULL ? coef * ilp->unit_us : coef;
    ilp->coef[at] = ilp->coef[at] == 0 ? 1e-300 : ilp->coef[at]; // stays touched
}

static void ilp_name(const hth_ilp *ilp, int at)
{
    fprintf(ilp->f, "%c_%d_%d", MODEL_KINDS[at / ilp->side / ilp->side], at / ilp->side % ilp->side,
            at % ilp->side);
}

// Ends the hth_ilp_row: its terms, `sense`, ilp->rhs + rhs. Everything divided by `unit`.
void hth_ilp_row(hth_ilp *ilp, const char *sense, double rhs, double unit)
{
    int printed = 0;
    for (int i = 0; i < ilp->n_touched; i++) {
        int at = ilp->touched[i];
        double c = ilp->coef[at] / unit;
        ilp->coef[at] = 0;
        if (fabs(c) > 1e-12) {
            fprintf(ilp->f, "%s %+.14g ", printed++ % MODEL_LINE ? "" : "\n", c);
            ilp_name(ilp, at);
            ilp->named[at] = true;
        }
    }
    if (printed > 0) {
        fprintf(ilp->f, " %s %.14g", sense, (rhs + ilp->rhs) / unit);
    }
    ilp->n_touched = 0;
    ilp->rhs = 0;
}

// States of an interval in stage s, times coef.

void hth_ilp_back(hth_ilp *ilp, int g, int s, double coef)
{
    const hth_interval *interval = &ilp->m->interval[g];
    if (s >= interval->q && !hth_ilp_tail(ilp, g)) {
        hth_ilp_term(ilp, 'o', g, 0, coef);
    } else if (s >= hth_ilp_first(ilp, g)) {
        hth_ilp_term(ilp, 'b', g, s, coef);
    }
}

static void ilp_rerun(hth_ilp *ilp, int g, int s, double coef)
{
    const hth_interval *interval = &ilp->m->interval[g];
    if (s >= interval->q && !hth_ilp_tail(ilp, g)) {
        hth_ilp_term(ilp, 'r', g, 0, coef);
    } else if (s >= hth_ilp_first(ilp, g)) {
        hth_ilp_term(ilp, 'c', g, s, coef);
    }
}

// Its copy in is released at s.
void hth_ilp_release(hth_ilp *ilp, int g, int s, double coef)
{
    hth_ilp_back(ilp, g, s, coef);
    hth_ilp_back(ilp, g, s - 1, -coef);
}

// It is recomputed in s.
void hth_ilp_made(hth_ilp *ilp, int g, int s, double coef)
{
    hth_ilp_term(ilp, 'q', g, s, coef);
    ilp_rerun(ilp, g, s, coef);
    ilp_rerun(ilp, g, s - 1, -coef);
}

void hth_ilp_keep(hth_ilp *ilp, int g, double coef)
{
    hth_ilp_term(ilp, 'o', g, 0, -coef);
    hth_ilp_term(ilp, 'r', g, 0, -coef);
    hth_ilp_term(ilp, 'g', g, 0, -coef);
    ilp->rhs -= coef;
}

void hth_ilp_alternatives(hth_ilp *ilp, int v, bool time, double coef)
{
    const hth_step *m = ilp->m;
    for (int i = m->menu_start[v]; i < m->menu_end[v]; i++) {
        double c = time ? m->menu[i].time_us : (double)m->menu[i].workspace;
        hth_ilp_term(ilp, 'm', v, i - m->menu_start[v], coef * c);
    }
}

bool hth_ilp_reads(const hth_ilp *ilp, int v, int t)
{
    const hth_plan_node *n = &ilp->m->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        if (n->inputs[j] == t) {
            return true;
        }
    }
    return false;
}

// The interval of tensor t around stage s, -1: none.
int hth_ilp_around(const hth_ilp *ilp, int t, int s)
{
    for (int g = ilp->m->interval_start[t]; g < ilp->m->interval_start[t + 1]; g++) {
        if (s > ilp->m->interval[g].p && s < ilp->m->interval[g].q && !ilp->m->interval[g].cyclic) {
            return g;
        }
    }
    return -1;
}

// Structure of modes.

// Whether running node v again in stage s has a use: an output is missing there that the stage's
// node reads, or a node that runs again there. may[] of later nodes is known.
static bool ilp_useful(const hth_ilp *ilp, int v, int s)
{
    const hth_step *m = ilp->m;
    const hth_plan_node *n = &m->p->nodes[v];
    for (int j = 0; j < n->n_outputs; j++) {
        int t = n->outputs[j];
        for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
            bool in = m->interval[g].can_rerun && s > m->interval[g].p + 1 && s <= m->interval[g].q;
            for (int w = v + 1; in && w < s; w++) {
                if (ilp->may[w * ilp->n + s] && hth_ilp_reads(ilp, w, t)) {
                    return true;
                }
            }
            if (in && s == m->interval[g].q) {
                return true;
            }
        }
    }
    return false;
}

static void ilp_may(hth_ilp *ilp)
{
    for (int v = ilp->n - 1; v >= 0; v--) {
        for (int s = v + 1; s < ilp->n; s++) {
            ilp->may[v * ilp->n + s] = ilp->m->p->nodes[v].recomputable &&
                                       hth_step_may_rerun(ilp->m, v, s) && ilp_useful(ilp, v, s);
        }
    }
}

static void ilp_rows(hth_ilp *ilp)
{
    fprintf(ilp->f, "Minimize\n obj: T_0_0\nSubject To");
    hth_ilp_times(ilp);
    hth_ilp_modes(ilp);
    hth_ilp_bytes(ilp);
}

static void ilp_ends(hth_ilp *ilp)
{
    static const char whole[] = "orabcxmygv";
    int size = ilp->side * ilp->side;
    fprintf(ilp->f, "\nBounds\n T_0_0 <= %.14g\n", ilp->horizon / ilp->unit_us);
    fprintf(ilp->f, "Binaries");
    for (size_t k = 0; k < strlen(MODEL_KINDS); k++) {
        for (int i = 0; i < size; i++) {
            if (strchr(whole, MODEL_KINDS[k]) != NULL && ilp->named[(int)k * size + i]) {
                fprintf(ilp->f, "\n ");
                ilp_name(ilp, (int)k * size + i);
            }
        }
    }
    fprintf(ilp->f, "\nEnd\n");
}

static hth_err ilp_open(hth_ilp *ilp)
{
    const hth_step *m = ilp->m;
    size_t n = (size_t)ilp->n;
    ilp->may = hth_calloc(n * n, sizeof *ilp->may);
    ilp->reads = hth_calloc((size_t)m->n_intervals * n + 1, sizeof *ilp->reads);
    ilp->save = hth_calloc((size_t)m->n_intervals * n + 1, sizeof *ilp->save);
    ilp->head = hth_calloc(n, sizeof *ilp->head);
    if (!ilp->may || !ilp->reads || !ilp->save || !ilp->head) {
        return HTH_ENOMEM;
    }
    ilp_may(ilp);
    for (int g = 0; g < m->n_intervals; g++) {
        for (int s = 0; s < ilp->n; s++) {
            for (int w = 0; w < s; w++) {
                ilp->reads[g * ilp->n + s] =
                    ilp->reads[g * ilp->n + s] ||
                    (ilp->may[w * ilp->n + s] && hth_ilp_reads(ilp, w, m->interval[g].tensor));
            }
        }
    }
    hth_ilp_saves(ilp);
    ilp->side = ilp->n > m->n_intervals ? ilp->n : m->n_intervals;
    ilp->side = ilp->side > ilp->n_saves ? ilp->side : ilp->n_saves;
    for (int s = 0; s < ilp->n; s++) {
        int items = m->menu_end[s] - m->menu_start[s];
        ilp->side = items > ilp->side ? items : ilp->side;
        ilp->head[s] = s > 0 ? ilp->head[s - 1] + hth_step_fastest(m, s - 1)->time_us : 0;
    }
    size_t size = strlen(MODEL_KINDS) * (size_t)ilp->side * (size_t)ilp->side;
    ilp->coef = hth_calloc(size, sizeof *ilp->coef);
    ilp->named = hth_calloc(size, sizeof *ilp->named);
    ilp->touched = hth_calloc(size, sizeof *ilp->touched);
    return ilp->coef && ilp->named && ilp->touched ? HTH_OK : HTH_ENOMEM;
}

hth_err hth_optimal_write(FILE *file, const hth_step *step, uint64_t budget, double horizon_us)
{
    hth_ilp x = {.m = step,
                 .f = file,
                 .n = step->n_stages,
                 .budget = (double)budget,
                 .horizon = horizon_us,
                 .unit_us = horizon_us / MODEL_SCALE,
                 .unit_bytes = (double)budget / MODEL_SCALE};
    hth_err err = ilp_open(&x);
    if (err == HTH_OK) {
        ilp_rows(&x);
        ilp_ends(&x);
    }
    void *all[] = {x.coef, x.named, x.touched, x.may, x.reads, x.save, x.head};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
    return err == HTH_OK ? HTH_OK : hth_fail(err, "no memory for an integer program");
}

void hth_optimal_value(const hth_step *step, const char *name, double value, hth_fixed *out)
{
    char kind;
    int i, j;
    if (value < 0.5 || sscanf(name, "%c_%d_%d", &kind, &i, &j) != 3 || i < 0 || j < 0) {
        return;
    }
    bool interval = strchr("orabg", kind) != NULL && i < step->n_intervals && j < step->n_stages;
    if (interval && kind == 'o') {
        out->mode[i] = HTH_INTERVAL_OFFLOAD;
    } else if (interval && kind == 'r') {
        out->mode[i] = HTH_INTERVAL_RECOMPUTE;
    } else if (interval && kind == 'g') {
        out->mode[i] = HTH_INTERVAL_REMATERIALIZE;
    } else if (interval && kind == 'a') {
        out->away[i] = j + 1 > out->away[i] ? j + 1 : out->away[i];
    } else if (interval && kind == 'b') {
        out->back[i] = j < out->back[i] ? j : out->back[i];
    } else if (kind == 'm' && i < step->n_stages && j < step->menu_end[i] - step->menu_start[i]) {
        out->item[i] = step->menu_start[i] + j;
    }
}
