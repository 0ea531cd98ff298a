// SPDX-License-Identifier: Apache-2.0
// The planning of a training step as an integer program. It decides what the search decides (modes,
// algorithms) and what the decoder decides by rules (when a buffer goes and when it is taken
// again), and times by the rules of plan_schedule.h. What is fixed, so that the program stays
// small:
//   copies out go in the order of the stages behind which they may begin (the stage that filled the
//   buffer, or the use before the gap when the tensor was kept until there), then of tensors
//   copies in go in the order of the stages that release them, then of the next uses
// A gap's reads by recomputes see what came back, never what has not left yet, as in the decoder.
//
// Variables, by letter; g: gap, s: stage, v: node
//   o_g r_g g_g   offload, recompute, again (none: keep)
//   a_g_s      offloaded and not gone yet in stage s, falling
//   b_g_s      offloaded and its buffer taken again by stage s, rising
//   c_g_s      recomputed by stage s, rising
//   v_g_s      a recompute in stage s reads the tensor of g; P_g_s it is there for that, in mode
//              again; q_g_s it is computed in s for that
//   I_g_s J_g  a buffer is taken over: by what is made in gap g, by the heir of tail gap g's tensor
//   x_v_s      node v runs again in stage s; t_v_s how long that takes
//   m_v_k      node v uses alternative k of its menu
//   y_k D_k    copy out k is made; end of the lane behind it
//   u_g_s      something reads the tensor of tail gap g in stage s or later; n_g_s it has a buffer
//   W_s S_s E_s F_s   times of a stage; end of the copies in that were released by then
//   f_g        end of the copy in of gap g;  L, T: the lanes' time, the step's
// Implications between a decision and a time use the horizon as the large constant; what makes the
// relaxation tight are the windows, which need none: what is absent at stage s and needed at m or
// earlier comes in between W_s and S_m, what was made at r or later and is absent at s went out
// between E_r and W_s.
#include "memmgr/plan_optimal.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define MODEL_SCALE 1000.0 // of the horizon and the budget: what CBC's tolerances are made for
#define MODEL_LINE  6      // terms
#define MODEL_KINDS "orabcxtmyDunWSEFfLTgvPqIJ"
#define MODEL_TIMES "tDWSEFfLT" // in units of the horizon / MODEL_SCALE

typedef struct model_save { // a copy out that may be made
    int gap, stage;
} model_save;

typedef struct model {
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
    model_save *save;
    int n_saves;
    double *head; // per stage: least time before it
} model;

static bool model_tail(const model *x, int g)
{
    return x->m->gap[g].q == x->n;
}

static int model_first(const model *x, int g) // stage of the gap
{
    return x->m->gap[g].cyclic ? 0 : x->m->gap[g].p + 1;
}

// Rows.

static bool model_allows(const model *x, char kind, int i, int j)
{
    const hth_gap *gap = &x->m->gap[i];
    switch (kind) {
    case 'o':
    case 'a':
    case 'b':
    case 'f':
        return gap->can_offload;
    case 'r':
    case 'c':
    case 'g':
    case 'P':
        return gap->can_rerun;
    case 'q':
        return gap->can_rerun && j > gap->p + 1;
    case 'v':
        return j > gap->p && x->reads[i * x->n + j];
    case 'x':
    case 't':
        return x->may[i * x->n + j];
    default:
        return true;
    }
}

static void term(model *x, char kind, int i, int j, double coef)
{
    if (coef == 0 || !model_allows(x, kind, i, j)) {
        return;
    }
    int at = ((int)(strchr(MODEL_KINDS, kind) - MODEL_KINDS) * x->side + i) * x->side + j;
    if (x->coef[at] == 0) {
        x->touched[x->n_touched++] = at;
    }
    x->coef[at] += strchr(MODEL_TIMES, kind) != NULL ? coef * x->unit_us : coef;
    x->coef[at] = x->coef[at] == 0 ? 1e-300 : x->coef[at]; // stays touched
}

static void model_name(const model *x, int at)
{
    fprintf(x->f, "%c_%d_%d", MODEL_KINDS[at / x->side / x->side], at / x->side % x->side,
            at % x->side);
}

// Ends the row: its terms, `sense`, x->rhs + rhs. Everything divided by `unit`.
static void row(model *x, const char *sense, double rhs, double unit)
{
    int printed = 0;
    for (int i = 0; i < x->n_touched; i++) {
        int at = x->touched[i];
        double c = x->coef[at] / unit;
        x->coef[at] = 0;
        if (fabs(c) > 1e-12) {
            fprintf(x->f, "%s %+.14g ", printed++ % MODEL_LINE ? "" : "\n", c);
            model_name(x, at);
            x->named[at] = true;
        }
    }
    if (printed > 0) {
        fprintf(x->f, " %s %.14g", sense, (rhs + x->rhs) / unit);
    }
    x->n_touched = 0;
    x->rhs = 0;
}

// States of a gap in stage s, times coef.

static void term_back(model *x, int g, int s, double coef)
{
    const hth_gap *gap = &x->m->gap[g];
    if (s >= gap->q && !model_tail(x, g)) {
        term(x, 'o', g, 0, coef);
    } else if (s >= model_first(x, g)) {
        term(x, 'b', g, s, coef);
    }
}

static void term_rerun(model *x, int g, int s, double coef)
{
    const hth_gap *gap = &x->m->gap[g];
    if (s >= gap->q && !model_tail(x, g)) {
        term(x, 'r', g, 0, coef);
    } else if (s >= model_first(x, g)) {
        term(x, 'c', g, s, coef);
    }
}

// Its copy in is released at s.
static void term_release(model *x, int g, int s, double coef)
{
    term_back(x, g, s, coef);
    term_back(x, g, s - 1, -coef);
}

// It is recomputed in s.
static void term_made(model *x, int g, int s, double coef)
{
    term(x, 'q', g, s, coef);
    term_rerun(x, g, s, coef);
    term_rerun(x, g, s - 1, -coef);
}

static void term_keep(model *x, int g, double coef)
{
    term(x, 'o', g, 0, -coef);
    term(x, 'r', g, 0, -coef);
    term(x, 'g', g, 0, -coef);
    x->rhs -= coef;
}

// Its buffer is there; a cyclic gap's in what it has of stages.
static void term_owned(model *x, int g, int s, double coef)
{
    const hth_gap *gap = &x->m->gap[g];
    if (model_tail(x, g)) {
        term(x, 'n', g, s, coef);
        return;
    }
    term_keep(x, g, coef);
    if (!gap->cyclic || s > gap->p) {
        term(x, 'a', g, s, coef);
    }
    if (!gap->cyclic || s < gap->q) {
        term(x, 'b', g, s, coef);
        term(x, 'c', g, s, coef);
        term(x, 'P', g, s, coef);
    }
}

static void term_alternatives(model *x, int v, bool time, double coef)
{
    const hth_step *m = x->m;
    for (int i = m->menu_start[v]; i < m->menu_end[v]; i++) {
        double c = time ? m->menu[i].time_us : (double)m->menu[i].workspace;
        term(x, 'm', v, i - m->menu_start[v], coef * c);
    }
}

static bool model_reads(const model *x, int v, int t)
{
    const hth_plan_node *n = &x->m->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        if (n->inputs[j] == t) {
            return true;
        }
    }
    return false;
}

// Structure of modes.

// Whether running node v again in stage s has a use: an output is missing there that the stage's
// node reads, or a node that runs again there. may[] of later nodes is known.
static bool model_useful(const model *x, int v, int s)
{
    const hth_step *m = x->m;
    const hth_plan_node *n = &m->p->nodes[v];
    for (int j = 0; j < n->n_outputs; j++) {
        int t = n->outputs[j];
        for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
            bool in = m->gap[g].can_rerun && s > m->gap[g].p + 1 && s <= m->gap[g].q;
            for (int w = v + 1; in && w < s; w++) {
                if (x->may[w * x->n + s] && model_reads(x, w, t)) {
                    return true;
                }
            }
            if (in && s == m->gap[g].q) {
                return true;
            }
        }
    }
    return false;
}

static void model_may(model *x)
{
    for (int v = x->n - 1; v >= 0; v--) {
        for (int s = v + 1; s < x->n; s++) {
            x->may[v * x->n + s] = x->m->p->nodes[v].recomputable &&
                                   hth_step_may_rerun(x->m, v, s) && model_useful(x, v, s);
        }
    }
}

static void rows_gap(model *x, int g)
{
    const hth_step *m = x->m;
    const hth_gap *gap = &m->gap[g];
    int first = model_first(x, g), end = gap->cyclic ? x->n : gap->q;
    bool owner = !m->arena[gap->tensor] && !gap->cyclic;
    term(x, 'o', g, 0, 1);
    term(x, 'r', g, 0, 1);
    term(x, 'g', g, 0, 1);
    row(x, "<=", 1, 1);
    if (owner) { // what leaves within the step starts and ends it away
        term(x, 'o', g, 0, 1);
        term(x, 'o', m->gap_start[gap->tensor + 1] - 1, 0, -1);
        row(x, "<=", 0, 1);
    }
    for (int s = first; s < end; s++) {
        bool out = !gap->cyclic || s > gap->p, in = !gap->cyclic || s < gap->q;
        if (out && s > gap->p + 1) { // falls
            term(x, 'a', g, s, 1);
            term(x, 'a', g, s - 1, -1);
            row(x, "<=", 0, 1);
        }
        if (in && s > first) { // rise
            term(x, 'b', g, s, -1);
            term(x, 'b', g, s - 1, 1);
            row(x, "<=", 0, 1);
            term(x, 'c', g, s, -1);
            term(x, 'c', g, s - 1, 1);
            row(x, "<=", 0, 1);
        }
        if (in || out) {
            if (out) {
                term(x, 'a', g, s, 1);
            }
            if (in) {
                term(x, 'b', g, s, 1);
            }
            term(x, 'o', g, 0, -1);
            row(x, "<=", 0, 1);
            term(x, 'c', g, s, in);
            term(x, 'r', g, 0, -1);
            row(x, "<=", 0, 1);
        }
    }
}

// Whether a recompute reads the tensor of gap g in stage s.
static void rows_read(model *x, int g, int s)
{
    const hth_gap *gap = &x->m->gap[g];
    for (int w = 0; w < s; w++) {
        if (x->may[w * x->n + s] && model_reads(x, w, gap->tensor)) {
            term(x, 'v', g, s, 1);
            term(x, 'x', w, s, -1);
            row(x, ">=", 0, 1);
        }
    }
    term(x, 'v', g, s, 1);
    for (int w = 0; w < s; w++) {
        term(x, 'x', w, s, model_reads(x, w, gap->tensor) ? -1 : 0);
    }
    row(x, "<=", 0, 1);
}

// Mode again: there while it is read, computed where it was not there the stage before.
static void rows_again(model *x, int g, int s)
{
    const hth_gap *gap = &x->m->gap[g];
    if (s < gap->q) {
        term(x, 'P', g, s, 1);
        term(x, 'g', g, 0, -1);
        term(x, 'v', g, s, -1);
        row(x, ">=", -1, 1);
    }
    if (s == gap->p + 1) {
        return;
    }
    term(x, 'q', g, s, 1);
    term(x, 'g', g, 0, -1);
    term(x, 'v', g, s - 1, 1);
    term(x, 'v', g, s, s < gap->q ? -1 : 0);
    row(x, ">=", s < gap->q ? -1 : 0, 1);
    term(x, 'q', g, s, 1);
    term(x, 'g', g, 0, -1);
    row(x, "<=", 0, 1);
    term(x, 'q', g, s, 1);
    term(x, 'v', g, s - 1, 1);
    row(x, "<=", 1, 1);
}

// What is recomputed is recomputed for a reader, and with its producer.
static void rows_made(model *x, int g)
{
    const hth_step *m = x->m;
    const hth_gap *gap = &m->gap[g];
    int v = m->p->tensors[gap->tensor].producer;
    for (int s = gap->p + 1; !gap->cyclic && s <= gap->q && s < x->n; s++) {
        if (s < gap->q && x->reads[g * x->n + s]) {
            rows_read(x, g, s);
        }
        if (!gap->can_rerun) {
            continue;
        }
        rows_again(x, g, s);
        term_made(x, g, s, 1);
        term(x, 'x', v, s, -1);
        row(x, "<=", 0, 1);
        if (s < gap->q) {
            term_made(x, g, s, 1);
            term(x, 'v', g, s, -1);
            row(x, "<=", 0, 1);
        }
    }
}

// The gap of tensor t around stage s, -1: none.
static int model_around(const model *x, int t, int s)
{
    for (int g = x->m->gap_start[t]; g < x->m->gap_start[t + 1]; g++) {
        if (s > x->m->gap[g].p && s < x->m->gap[g].q && !x->m->gap[g].cyclic) {
            return g;
        }
    }
    return -1;
}

// What is recomputed in gap g in stage s may take over its pair's buffer when nothing else reads
// that there and its stay ends.
static void rows_takes(model *x, int g, int s)
{
    const hth_step *m = x->m;
    int t = m->gap[g].tensor, v = m->p->tensors[t].producer, pair = m->pair[t];
    int h = pair >= 0 ? model_around(x, pair, s) : -1;
    if (h < 0 || (!model_tail(x, h) && s + 1 == m->gap[h].q)) {
        return;
    }
    term(x, 'I', g, s, 1);
    term_made(x, g, s, -1);
    row(x, "<=", 0, 1);
    for (int w = 0; w < s; w++) {
        if (w != v && x->may[w * x->n + s] && model_reads(x, w, pair)) {
            term(x, 'I', g, s, 1);
            term(x, 'x', w, s, 1);
            row(x, "<=", 1, 1);
        }
    }
    term(x, 'I', g, s, 1);
    if (model_tail(x, h)) {
        term(x, 'u', h, s + 1, s + 1 < x->n);
        term(x, 'g', h, 0, -1);
        row(x, "<=", 1, 1);
        term(x, 'I', g, s, 1);
        term(x, 'v', h, s + 1, s + 1 < x->n);
        term(x, 'g', h, 0, 1);
        row(x, "<=", 2, 1);
    } else {
        term(x, 'g', h, 0, -1);
        row(x, "<=", 0, 1);
        term(x, 'I', g, s, 1);
        term(x, 'v', h, s + 1, 1);
        row(x, "<=", 1, 1);
    }
}

// What node v reads when it runs again in stage s is there; it does so for one of its outputs.
static void rows_rerun(model *x, int v, int s)
{
    const hth_step *m = x->m;
    const hth_plan_node *n = &m->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        int t = n->inputs[j];
        for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
            const hth_gap *gap = &m->gap[g];
            bool inside = s > gap->p && (s < gap->q || gap->cyclic);
            if (!inside) {
                continue;
            }
            term_keep(x, g, 1);
            term(x, gap->cyclic ? 'a' : 'b', g, s, 1);
            term(x, 'c', g, s, !gap->cyclic);
            term(x, 'g', g, 0, !gap->cyclic);
            term(x, 'x', v, s, -1);
            row(x, ">=", 0, 1);
        }
    }
    term(x, 'x', v, s, 1);
    for (int j = 0; j < n->n_outputs; j++) {
        int t = n->outputs[j];
        for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
            if (s > m->gap[g].p && s <= m->gap[g].q) {
                term_made(x, g, s, -1);
            }
        }
    }
    row(x, "<=", 0, 1);
    // The algorithm of the first execution.
    double slowest = m->menu[m->menu_end[v] - 1].time_us;
    term(x, 't', v, s, 1);
    term_alternatives(x, v, true, -1);
    term(x, 'x', v, s, -slowest);
    row(x, ">=", -slowest, x->unit_us);
    term(x, 't', v, s, 1);
    term(x, 'x', v, s, -hth_step_fastest(m, v)->time_us);
    row(x, ">=", 0, x->unit_us);
}

// A tail gap has a buffer until the last reader, if there is one.
static void rows_tail(model *x, int g)
{
    const hth_step *m = x->m;
    const hth_gap *gap = &m->gap[g];
    for (int s = gap->p + 1; s < x->n; s++) {
        for (int w = 0; w < s; w++) {
            if (x->may[w * x->n + s] && model_reads(x, w, gap->tensor)) {
                term(x, 'u', g, s, 1);
                term(x, 'x', w, s, -1);
                row(x, ">=", 0, 1);
            }
        }
        if (s + 1 < x->n) {
            term(x, 'u', g, s, 1);
            term(x, 'u', g, s + 1, -1);
            row(x, ">=", 0, 1);
        }
        term(x, 'n', g, s, 1);
        term(x, 'u', g, s, -1);
        term_keep(x, g, -1);
        term(x, 'b', g, s, -1);
        term(x, 'c', g, s, -1);
        row(x, ">=", -1, 1);
        term(x, 'n', g, s, 1);
        term(x, 'a', g, s, -1);
        row(x, ">=", 0, 1);
        term(x, 'n', g, s, 1);
        term(x, 'P', g, s, -1);
        row(x, ">=", 0, 1);
    }
    // In place: its heir takes the buffer unless it is read later, and was not computed for that.
    term(x, 'J', g, 0, 1);
    term(x, 'u', g, gap->p + 1, 1);
    term(x, 'r', g, 0, -1);
    term(x, 'g', g, 0, -1);
    row(x, "<=", 1, 1);
    term(x, 'J', g, 0, 1);
    term(x, 'v', g, gap->p + 1, 1);
    term(x, 'g', g, 0, 1);
    row(x, "<=", 2, 1);
    term(x, 'J', g, 0, 1);
    row(x, "<=", 1, 1);
}

// Memory.

// Bytes of tensor t in stage s.
static void term_tensor(model *x, int t, int s)
{
    const hth_step *m = x->m;
    double bytes = (double)m->bytes[t];
    const int *use = &m->use[m->use_start[t]];
    int n = m->use_start[t + 1] - m->use_start[t];
    bool output = m->p->tensors[t].cls == HTH_MEM_OUTPUT;
    for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
        const hth_gap *gap = &m->gap[g];
        if (gap->cyclic ? s > gap->p || s < gap->q : s > gap->p && s < gap->q) {
            term_owned(x, g, s, bytes);
            return;
        }
    }
    bool here = !m->arena[t] || (n > 0 && s >= use[0] && (s <= use[n - 1] || output)) ||
                (n > 0 && m->p->tensors[t].producer < 0 && s <= use[n - 1]);
    x->rhs -= here ? bytes : 0;
    int y = m->p->tensors[t].producer, pair = m->pair[t];
    if (here && m->arena[t] && pair >= 0 && s == y && n > 0) { // in place, unless it is read later
        int last = m->gap_start[pair + 1] - 1;
        int tail = last >= m->gap_start[pair] && model_tail(x, last) ? last : -1;
        bool ends = m->use[m->use_start[pair + 1] - 1] == y && (tail >= 0 || y + 1 == x->n) &&
                    m->p->tensors[pair].cls != HTH_MEM_OUTPUT;
        if (ends && y + 1 < x->n) {
            term(x, 'J', tail, 0, -bytes);
        } else if (ends) {
            x->rhs += bytes;
        }
    }
}

// Less what recomputes of stage s take over.
static void term_taken(model *x, int s)
{
    for (int g = 0; g < x->m->n_gaps; g++) {
        const hth_gap *gap = &x->m->gap[g];
        int pair = x->m->pair[gap->tensor], v = x->m->p->tensors[gap->tensor].producer;
        int h = pair >= 0 ? model_around(x, pair, s) : -1;
        if (gap->can_rerun && s > gap->p && s <= gap->q && h >= 0 && x->may[v * x->n + s] &&
            (model_tail(x, h) || s + 1 < x->m->gap[h].q)) {
            term(x, 'I', g, s, -(double)x->m->bytes[gap->tensor]);
        }
    }
}

static void rows_memory(model *x, int s)
{
    const hth_step *m = x->m;
    for (int v = -1; v < s; v++) { // the stage's node, then what may run again
        if (v >= 0 && !x->may[v * x->n + s]) {
            continue;
        }
        for (int t = 0; t < m->p->n_tensors; t++) {
            if (m->bytes[t] > 0) {
                term_tensor(x, t, s);
            }
        }
        term_taken(x, s);
        term_alternatives(x, v < 0 ? s : v, false, 1);
        if (v >= 0) {
            const hth_plan_node *n = &m->p->nodes[v];
            double most = 0, all = 0;
            for (int i = m->menu_start[v]; i < m->menu_end[v]; i++) {
                most = fmax(most, (double)m->menu[i].workspace);
            }
            for (int j = 0; j < n->n_outputs; j++) {
                int t = n->outputs[j];
                all += (double)hth_plan_round(m->p->tensors[t].bytes);
                for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
                    if (s > m->gap[g].p && s <= m->gap[g].q) {
                        term_made(x, g, s, -(double)m->bytes[t]);
                    }
                }
            }
            term(x, 'x', v, s, all + most);
            x->rhs += most;
        }
        row(x, "<=", x->budget, x->unit_bytes);
    }
}

// Time.

static void model_saves(model *x)
{
    const hth_step *m = x->m;
    for (int s = 0; s < x->n; s++) {
        for (int g = 0; g < m->n_gaps; g++) {
            const hth_gap *gap = &m->gap[g];
            int t = gap->tensor, made = m->p->tensors[t].producer;
            int from = g > m->gap_start[t] ? m->gap[g - 1].q : made >= 0 ? made : 0;
            bool may = m->arena[t] && s == from;
            if (gap->cyclic && m->dirty[t] && s >= gap->p) { // behind the last read
                may = s == gap->p;
                for (int w = 0; w < s; w++) {
                    may = may || (x->may[w * x->n + s] && model_reads(x, w, t));
                }
            }
            if (may && gap->can_offload) {
                x->save[x->n_saves++] = (model_save){g, s};
            }
        }
    }
}

static void rows_saves(model *x)
{
    const hth_step *m = x->m;
    for (int k = 0; k < x->n_saves; k++) {
        int g = x->save[k].gap, s = x->save[k].stage, t = m->gap[g].tensor;
        const hth_gap *gap = &m->gap[g];
        term(x, 'D', k, 0, 1);
        term(x, 'D', k - 1, 0, k > 0 ? -1 : 0);
        term(x, 'y', k, 0, -m->d2h_us[t]);
        row(x, ">=", 0, x->unit_us);
        term(x, 'D', k, 0, 1);
        term(x, 'E', s, 0, -1);
        term(x, 'y', k, 0, -m->d2h_us[t]);
        row(x, ">=", 0, x->unit_us);
        int end = gap->cyclic || model_tail(x, g) ? x->n - 1 : gap->q;
        for (int b = (s > gap->p ? s : gap->p) + 1; b <= end; b++) {
            double large = x->horizon - x->head[b];
            term(x, 'W', b, 0, 1);
            term(x, 'D', k, 0, -1);
            term(x, 'y', k, 0, -large);
            term(x, 'a', g, b, b < gap->q || gap->cyclic ? large : 0);
            row(x, ">=", -large, x->unit_us);
        }
        for (int r = s + 1; gap->cyclic && r < x->n; r++) { // there until its copy, not read later
            for (int w = 0; w < r; w++) {
                if (x->may[w * x->n + r] && model_reads(x, w, t)) {
                    term(x, 'y', k, 0, 1);
                    term(x, 'x', w, r, 1);
                    row(x, "<=", 1, 1);
                }
            }
        }
        if (gap->cyclic && s > gap->p) {
            term(x, 'a', g, s, 1);
            term(x, 'y', k, 0, -1);
            row(x, ">=", 0, 1);
        }
    }
    for (int g = 0; g < m->n_gaps; g++) { // the first one that leaves is copied out
        const hth_gap *gap = &m->gap[g];
        bool any = false;
        for (int k = 0; k < x->n_saves; k++) {
            any = any || x->save[k].gap == g;
            term(x, 'y', k, 0, x->save[k].gap == g);
        }
        for (int h = m->gap_start[gap->tensor]; h <= g; h++) {
            bool counts = !gap->cyclic || h == g;
            term(x, 'o', h, 0, !any || !counts ? 0 : h < g ? 1 : -1);
        }
        row(x, ">=", 0, 1);
    }
}

// Order of copies in that the same stage releases.
static bool model_before(const model *x, int g, int h)
{
    int a = x->m->gap[g].q, b = x->m->gap[h].q;
    return a < b || (a == b && g <= h);
}

// Gap g's copy in when stage s releases it: behind the lane, behind W_s.
static void rows_fetch(model *x, int g, int s)
{
    const hth_step *m = x->m;
    for (int lane = 0; lane < 2; lane++) {
        if (lane == 1 && s == 0) {
            continue;
        }
        double large = x->horizon;
        term(x, 'f', g, 0, 1);
        term(x, lane ? 'F' : 'W', lane ? s - 1 : s, 0, -1);
        for (int h = 0; h < m->n_gaps; h++) {
            const hth_gap *gap = &m->gap[h];
            if (s >= model_first(x, h) && s <= gap->q && s < x->n && model_before(x, h, g) &&
                gap->can_offload) {
                term_release(x, h, s, -m->h2d_us[gap->tensor]);
                large += h == g ? 0 : m->h2d_us[gap->tensor];
            }
        }
        term_release(x, g, s, -large);
        row(x, ">=", -large, x->unit_us);
    }
}

static void rows_fetches(model *x)
{
    const hth_step *m = x->m;
    for (int s = 0; s < x->n; s++) {
        for (int lane = 0; lane < 2; lane++) {
            term(x, 'F', s, 0, 1);
            term(x, lane ? 'F' : 'W', lane ? s - 1 : s, 0, lane && s == 0 ? 0 : -1);
            for (int g = 0; g < m->n_gaps; g++) {
                const hth_gap *gap = &m->gap[g];
                if (s >= model_first(x, g) && s <= gap->q && gap->can_offload) {
                    term_release(x, g, s, -m->h2d_us[gap->tensor]);
                }
            }
            row(x, ">=", 0, x->unit_us);
        }
    }
    for (int g = 0; g < m->n_gaps; g++) {
        const hth_gap *gap = &m->gap[g];
        if (!gap->can_offload) {
            continue;
        }
        for (int s = model_first(x, g); s <= gap->q && s < x->n; s++) {
            rows_fetch(x, g, s);
        }
        if (!model_tail(x, g)) {
            term(x, 'S', gap->q, 0, 1);
            term(x, 'f', g, 0, -1);
            row(x, ">=", 0, x->unit_us);
        }
        for (int s = gap->p + 1; !gap->cyclic && s < gap->q; s++) {
            for (int w = 0; w < s; w++) { // needed earlier
                if (x->may[w * x->n + s] && model_reads(x, w, gap->tensor)) {
                    term(x, 'S', s, 0, 1);
                    term(x, 'f', g, 0, -1);
                    term(x, 'x', w, s, -x->horizon);
                    term(x, 'o', g, 0, -x->horizon);
                    row(x, ">=", -2 * x->horizon, x->unit_us);
                }
            }
        }
    }
}

// The windows.
static void rows_windows(model *x)
{
    const hth_step *m = x->m;
    for (int s = 0; s < x->n; s++) {
        for (int q = s; q < x->n; q++) {
            bool ends = false;
            for (int g = 0; g < m->n_gaps; g++) {
                ends = ends || m->gap[g].q == q;
            }
            if (!ends) {
                continue;
            }
            term(x, 'S', q, 0, 1);
            term(x, 'W', s, 0, -1);
            for (int g = 0; g < m->n_gaps; g++) {
                const hth_gap *gap = &m->gap[g];
                if (gap->can_offload && gap->q <= q && gap->q >= s && !model_tail(x, g)) {
                    term(x, 'o', g, 0, -m->h2d_us[gap->tensor]);
                    term_back(x, g, s - 1, m->h2d_us[gap->tensor]);
                }
            }
            row(x, ">=", 0, x->unit_us);
        }
        for (int r = 0; r < s; r++) {
            term(x, 'W', s, 0, 1);
            term(x, 'E', r, 0, -1);
            for (int k = 0; k < x->n_saves; k++) {
                int g = x->save[k].gap;
                const hth_gap *gap = &m->gap[g];
                if (x->save[k].stage >= r && s > gap->p && s < gap->q && !gap->cyclic) {
                    term(x, 'y', k, 0, -m->d2h_us[gap->tensor]);
                    term(x, 'a', g, s, m->d2h_us[gap->tensor]);
                }
            }
            row(x, ">=", 0, x->unit_us);
        }
    }
}

static void rows_time(model *x)
{
    const hth_step *m = x->m;
    double share = m->p->copy_interference;
    for (int s = 0; s < x->n; s++) {
        if (s > 0) {
            term(x, 'W', s, 0, 1);
            term(x, 'E', s - 1, 0, -1);
            row(x, ">=", 0, x->unit_us);
        }
        term(x, 'S', s, 0, 1);
        term(x, 'W', s, 0, -1);
        row(x, ">=", 0, x->unit_us);
        term(x, 'E', s, 0, 1);
        term(x, 'S', s, 0, -1);
        term_alternatives(x, s, true, -1);
        for (int v = 0; v < s; v++) {
            term(x, 't', v, s, -1);
        }
        row(x, ">=", 0, x->unit_us);
        for (int i = m->menu_start[s]; i < m->menu_end[s]; i++) {
            term(x, 'm', s, i - m->menu_start[s], 1);
        }
        row(x, "=", 1, 1);
    }
    term(x, 'L', 0, 0, 1);
    term(x, 'E', x->n - 1, 0, -1);
    row(x, ">=", 0, x->unit_us);
    if (x->n_saves > 0) {
        term(x, 'L', 0, 0, 1);
        term(x, 'D', x->n_saves - 1, 0, -1);
        row(x, ">=", 0, x->unit_us);
    }
    term(x, 'T', 0, 0, 1);
    term(x, 'L', 0, 0, -1);
    row(x, ">=", 0, x->unit_us);
    if (share > 0) { // hth_plan_slowed
        term(x, 'T', 0, 0, 1);
        term(x, 'L', 0, 0, share - 1);
        for (int k = 0; k < x->n_saves; k++) {
            term(x, 'y', k, 0, -share * m->d2h_us[m->gap[x->save[k].gap].tensor]);
        }
        for (int g = 0; g < m->n_gaps; g++) {
            const hth_gap *gap = &m->gap[g];
            if (gap->can_offload) {
                double us = -share * m->h2d_us[gap->tensor];
                term(x, model_tail(x, g) ? 'b' : 'o', g, model_tail(x, g) ? x->n - 1 : 0, us);
            }
        }
        for (int s = 0; s < x->n; s++) {
            term_alternatives(x, s, true, -share);
            for (int v = 0; v < s; v++) {
                term(x, 't', v, s, -share);
            }
        }
        row(x, ">=", 0, x->unit_us);
    }
}

static void model_rows(model *x)
{
    const hth_step *m = x->m;
    fprintf(x->f, "Minimize\n obj: %.14g T_0_0\nSubject To", 1.0);
    rows_time(x);
    for (int g = 0; g < m->n_gaps; g++) {
        rows_gap(x, g);
        rows_made(x, g);
        if (model_tail(x, g)) {
            rows_tail(x, g);
        }
        for (int s = m->gap[g].p + 2; m->gap[g].can_rerun && s <= m->gap[g].q && s < x->n; s++) {
            if (x->may[m->p->tensors[m->gap[g].tensor].producer * x->n + s]) {
                rows_takes(x, g, s);
            }
        }
    }
    for (int s = 0; s < x->n; s++) {
        for (int v = 0; v < s; v++) {
            if (x->may[v * x->n + s]) {
                rows_rerun(x, v, s);
            }
        }
        rows_memory(x, s);
    }
    rows_saves(x);
    rows_fetches(x);
    rows_windows(x);
}

static void model_ends(model *x)
{
    static const char whole[] = "orabcxmygv";
    int size = x->side * x->side;
    fprintf(x->f, "\nBounds\n T_0_0 <= %.14g\n", x->horizon / x->unit_us);
    fprintf(x->f, "Binaries");
    for (size_t k = 0; k < strlen(MODEL_KINDS); k++) {
        for (int i = 0; i < size; i++) {
            if (strchr(whole, MODEL_KINDS[k]) != NULL && x->named[(int)k * size + i]) {
                fprintf(x->f, "\n ");
                model_name(x, (int)k * size + i);
            }
        }
    }
    fprintf(x->f, "\nEnd\n");
}

static hth_err model_open(model *x)
{
    const hth_step *m = x->m;
    size_t n = (size_t)x->n;
    x->may = hth_calloc(n * n, sizeof *x->may);
    x->reads = hth_calloc((size_t)m->n_gaps * n + 1, sizeof *x->reads);
    x->save = hth_calloc((size_t)m->n_gaps * n + 1, sizeof *x->save);
    x->head = hth_calloc(n, sizeof *x->head);
    if (!x->may || !x->reads || !x->save || !x->head) {
        return HTH_ENOMEM;
    }
    model_may(x);
    for (int g = 0; g < m->n_gaps; g++) {
        for (int s = 0; s < x->n; s++) {
            for (int w = 0; w < s; w++) {
                x->reads[g * x->n + s] =
                    x->reads[g * x->n + s] ||
                    (x->may[w * x->n + s] && model_reads(x, w, m->gap[g].tensor));
            }
        }
    }
    model_saves(x);
    x->side = x->n > m->n_gaps ? x->n : m->n_gaps;
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
    model x = {.m = m,
               .f = f,
               .n = m->n_stages,
               .budget = (double)budget,
               .horizon = horizon_us,
               .unit_us = horizon_us / MODEL_SCALE,
               .unit_bytes = (double)budget / MODEL_SCALE};
    hth_err err = model_open(&x);
    if (err == HTH_OK) {
        model_rows(&x);
        model_ends(&x);
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
    bool gap = strchr("orabg", kind) != NULL && i < m->n_gaps && j < m->n_stages;
    if (gap && kind == 'o') {
        out->mode[i] = HTH_GAP_OFFLOAD;
    } else if (gap && kind == 'r') {
        out->mode[i] = HTH_GAP_RECOMPUTE;
    } else if (gap && kind == 'g') {
        out->mode[i] = HTH_GAP_AGAIN;
    } else if (gap && kind == 'a') {
        out->away[i] = j + 1 > out->away[i] ? j + 1 : out->away[i];
    } else if (gap && kind == 'b') {
        out->back[i] = j < out->back[i] ? j : out->back[i];
    } else if (kind == 'm' && i < m->n_stages && j < m->menu_end[i] - m->menu_start[i]) {
        out->item[i] = m->menu_start[i] + j;
    }
}
