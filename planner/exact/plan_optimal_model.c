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
//   I_g_s J_g  a buffer is taken over: by what is made in interval g, by the heir of tail interval g's tensor
//   x_v_s      node v runs again in stage s; t_v_s how long that takes
//   m_v_k      node v uses alternative k of its menu
//   y_k D_k    copy out k is made; end of the lane after it
//   u_g_s      something reads the tensor of tail interval g in stage s or later; n_g_s it has a buffer
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

static bool ilp_allows(const hth_ilp *x, char kind, int i, int j)
{
    const hth_interval *interval = &x->m->interval[i];
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
        return j > interval->p && x->reads[i * x->n + j];
    case 'x':
    case 't':
        return x->may[i * x->n + j];
    default:
        return true;
    }
}

void hth_ilp_term(hth_ilp *x, char kind, int i, int j, double coef)
{
    if (coef == 0 || !ilp_allows(x, kind, i, j)) {
        return;
    }
    int at = ((int)(strchr(MODEL_KINDS, kind) - MODEL_KINDS) * x->side + i) * x->side + j;
    if (x->coef[at] == 0) {
        x->touched[x->n_touched++] = at;
    }
    x->coef[at] += strchr(MODEL_TIMES, kind) != NULL ? coef * x->unit_us : coef;
    x->coef[at] = x->coef[at] == 0 ? 1e-300 : x->coef[at]; // stays touched
}

static void ilp_name(const hth_ilp *x, int at)
{
    fprintf(x->f, "%c_%d_%d", MODEL_KINDS[at / x->side / x->side], at / x->side % x->side,
            at % x->side);
}

// Ends the hth_ilp_row: its terms, `sense`, x->rhs + rhs. Everything divided by `unit`.
void hth_ilp_row(hth_ilp *x, const char *sense, double rhs, double unit)
{
    int printed = 0;
    for (int i = 0; i < x->n_touched; i++) {
        int at = x->touched[i];
        double c = x->coef[at] / unit;
        x->coef[at] = 0;
        if (fabs(c) > 1e-12) {
            fprintf(x->f, "%s %+.14g ", printed++ % MODEL_LINE ? "" : "\n", c);
            ilp_name(x, at);
            x->named[at] = true;
        }
    }
    if (printed > 0) {
        fprintf(x->f, " %s %.14g", sense, (rhs + x->rhs) / unit);
    }
    x->n_touched = 0;
    x->rhs = 0;
}

// States of an interval in stage s, times coef.

void hth_ilp_back(hth_ilp *x, int g, int s, double coef)
{
    const hth_interval *interval = &x->m->interval[g];
    if (s >= interval->q && !hth_ilp_tail(x, g)) {
        hth_ilp_term(x, 'o', g, 0, coef);
    } else if (s >= hth_ilp_first(x, g)) {
        hth_ilp_term(x, 'b', g, s, coef);
    }
}

static void ilp_rerun(hth_ilp *x, int g, int s, double coef)
{
    const hth_interval *interval = &x->m->interval[g];
    if (s >= interval->q && !hth_ilp_tail(x, g)) {
        hth_ilp_term(x, 'r', g, 0, coef);
    } else if (s >= hth_ilp_first(x, g)) {
        hth_ilp_term(x, 'c', g, s, coef);
    }
}

// Its copy in is released at s.
void hth_ilp_release(hth_ilp *x, int g, int s, double coef)
{
    hth_ilp_back(x, g, s, coef);
    hth_ilp_back(x, g, s - 1, -coef);
}

// It is recomputed in s.
void hth_ilp_made(hth_ilp *x, int g, int s, double coef)
{
    hth_ilp_term(x, 'q', g, s, coef);
    ilp_rerun(x, g, s, coef);
    ilp_rerun(x, g, s - 1, -coef);
}

void hth_ilp_keep(hth_ilp *x, int g, double coef)
{
    hth_ilp_term(x, 'o', g, 0, -coef);
    hth_ilp_term(x, 'r', g, 0, -coef);
    hth_ilp_term(x, 'g', g, 0, -coef);
    x->rhs -= coef;
}

void hth_ilp_alternatives(hth_ilp *x, int v, bool time, double coef)
{
    const hth_step *m = x->m;
    for (int i = m->menu_start[v]; i < m->menu_end[v]; i++) {
        double c = time ? m->menu[i].time_us : (double)m->menu[i].workspace;
        hth_ilp_term(x, 'm', v, i - m->menu_start[v], coef * c);
    }
}

bool hth_ilp_reads(const hth_ilp *x, int v, int t)
{
    const hth_plan_node *n = &x->m->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        if (n->inputs[j] == t) {
            return true;
        }
    }
    return false;
}

// The interval of tensor t around stage s, -1: none.
int hth_ilp_around(const hth_ilp *x, int t, int s)
{
    for (int g = x->m->interval_start[t]; g < x->m->interval_start[t + 1]; g++) {
        if (s > x->m->interval[g].p && s < x->m->interval[g].q && !x->m->interval[g].cyclic) {
            return g;
        }
    }
    return -1;
}

// Structure of modes.

// Whether running node v again in stage s has a use: an output is missing there that the stage's
// node reads, or a node that runs again there. may[] of later nodes is known.
static bool ilp_useful(const hth_ilp *x, int v, int s)
{
    const hth_step *m = x->m;
    const hth_plan_node *n = &m->p->nodes[v];
    for (int j = 0; j < n->n_outputs; j++) {
        int t = n->outputs[j];
        for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
            bool in = m->interval[g].can_rerun && s > m->interval[g].p + 1 && s <= m->interval[g].q;
            for (int w = v + 1; in && w < s; w++) {
                if (x->may[w * x->n + s] && hth_ilp_reads(x, w, t)) {
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

static void ilp_may(hth_ilp *x)
{
    for (int v = x->n - 1; v >= 0; v--) {
        for (int s = v + 1; s < x->n; s++) {
            x->may[v * x->n + s] = x->m->p->nodes[v].recomputable &&
                                   hth_step_may_rerun(x->m, v, s) && ilp_useful(x, v, s);
        }
    }
}

static void ilp_rows(hth_ilp *x)
{
    fprintf(x->f, "Minimize\n obj: T_0_0\nSubject To");
    hth_ilp_times(x);
    hth_ilp_modes(x);
    hth_ilp_bytes(x);
}

static void ilp_ends(hth_ilp *x)
{
    static const char whole[] = "orabcxmygv";
    int size = x->side * x->side;
    fprintf(x->f, "\nBounds\n T_0_0 <= %.14g\n", x->horizon / x->unit_us);
    fprintf(x->f, "Binaries");
    for (size_t k = 0; k < strlen(MODEL_KINDS); k++) {
        for (int i = 0; i < size; i++) {
            if (strchr(whole, MODEL_KINDS[k]) != NULL && x->named[(int)k * size + i]) {
                fprintf(x->f, "\n ");
                ilp_name(x, (int)k * size + i);
            }
        }
    }
    fprintf(x->f, "\nEnd\n");
}

static hth_err ilp_open(hth_ilp *x)
{
    const hth_step *m = x->m;
    size_t n = (size_t)x->n;
    x->may = hth_calloc(n * n, sizeof *x->may);
    x->reads = hth_calloc((size_t)m->n_intervals * n + 1, sizeof *x->reads);
    x->save = hth_calloc((size_t)m->n_intervals * n + 1, sizeof *x->save);
    x->head = hth_calloc(n, sizeof *x->head);
    if (!x->may || !x->reads || !x->save || !x->head) {
        return HTH_ENOMEM;
    }
    ilp_may(x);
    for (int g = 0; g < m->n_intervals; g++) {
        for (int s = 0; s < x->n; s++) {
            for (int w = 0; w < s; w++) {
                x->reads[g * x->n + s] =
                    x->reads[g * x->n + s] ||
                    (x->may[w * x->n + s] && hth_ilp_reads(x, w, m->interval[g].tensor));
            }
        }
    }
    hth_ilp_saves(x);
    x->side = x->n > m->n_intervals ? x->n : m->n_intervals;
    x->side = x->side > x->n_saves ? x->side : x->n_saves;
    for (int s = 0; s < x->n; s++) {
        int items = m->menu_end[s] - m->menu_start[s];
        x->side = items > x->side ? items : x->side;
        x->head[s] = s > 0 ? x->head[s - 1] + hth_step_fastest(m, s - 1)->time_us : 0;
    }
    size_t size = strlen(MODEL_KINDS) * (size_t)x->side * (size_t)x->side;
    x->coef = hth_calloc(size, sizeof *x->coef);
    x->named = hth_calloc(size, sizeof *x->named);
    x->touched = hth_calloc(size, sizeof *x->touched);
    return x->coef && x->named && x->touched ? HTH_OK : HTH_ENOMEM;
}

hth_err hth_optimal_write(FILE *f, const hth_step *m, uint64_t budget, double horizon_us)
{
    hth_ilp x = {.m = m,
                 .f = f,
                 .n = m->n_stages,
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

void hth_optimal_value(const hth_step *m, const char *name, double value, hth_fixed *out)
{
    char kind;
    int i, j;
    if (value < 0.5 || sscanf(name, "%c_%d_%d", &kind, &i, &j) != 3 || i < 0 || j < 0) {
        return;
    }
    bool interval = strchr("orabg", kind) != NULL && i < m->n_intervals && j < m->n_stages;
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
    } else if (kind == 'm' && i < m->n_stages && j < m->menu_end[i] - m->menu_start[i]) {
        out->item[i] = m->menu_start[i] + j;
    }
}
