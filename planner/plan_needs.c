// SPDX-License-Identifier: Apache-2.0
// The first part of decoding modes: backwards through the step, what each gap is needed for, what
// has to be computed again when, and which gaps need a copy out of their own.
#include "planner/plan_decode.h"

#include "base/alloc.h"

#include <string.h>

static void needs_read(hth_decoder *d, int t, int stage)
{
    if (HTH_GROW(d->read, d->n_reads, d->cap_reads) != 0) {
        d->failed = true;
        return;
    }
    d->read[d->n_reads] = (hth_read){d->read_of[t], stage};
    d->read_of[t] = d->n_reads++;
}

// Has node v run again in stage s, for an output of `bytes`. Returns the time that this adds, at
// least.
static double needs_run(hth_decoder *d, int v, int s, uint64_t bytes)
{
    const hth_step *m = d->m;
    const hth_plan_node *n = &m->p->nodes[v];
    int at = d->run_of[s];
    double us = 0;
    if (at < 0 || d->run[at].node != v) {
        if (HTH_GROW(d->run, d->n_runs, d->cap_runs) != 0) {
            d->failed = true;
            return 0;
        }
        uint64_t all = 0;
        for (int j = 0; j < n->n_outputs; j++) {
            all += hth_plan_round(m->p->tensors[n->outputs[j]].bytes);
        }
        at = d->n_runs++;
        d->run[at] = (hth_run){d->run_of[s], v, s, all};
        d->run_of[s] = at;
        us = hth_step_fastest(m, v)->time_us;
        for (int j = 0; j < n->n_inputs; j++) {
            if (m->arena[n->inputs[j]] || m->bytes[n->inputs[j]] > 0) {
                needs_read(d, n->inputs[j], s);
            }
        }
    }
    d->run[at].scratch -= bytes;
    return us;
}

// Lists the stages behind gap g's start that read its tensor in d->reader, ascending, each once;
// returns how many.
static int needs_readers(hth_decoder *d, int g)
{
    const hth_gap *gap = &d->m->gap[g];
    int n = 0;
    for (int r = d->read_of[gap->tensor]; r >= 0; r = d->read[r].next) {
        int s = d->read[r].stage, at = n;
        while (at > 0 && d->reader[at - 1] > s) {
            at--;
        }
        if (s > gap->p && s < gap->q && (at == 0 || d->reader[at - 1] < s)) {
            memmove(&d->reader[at + 1], &d->reader[at], (size_t)(n - at) * sizeof *d->reader);
            d->reader[at] = s;
            n++;
        }
    }
    if (gap->q < d->m->n_stages) {
        d->reader[n++] = gap->q;
    }
    return n;
}

// Mode AGAIN: groups of adjacent readers, a rerun for each that does not follow the gap's start.
static double needs_again(hth_decoder *d, int g)
{
    const hth_step *m = d->m;
    const hth_gap *gap = &m->gap[g];
    int v = m->p->tensors[gap->tensor].producer, n = needs_readers(d, g), i = 0, from = d->n_groups;
    double us = 0;
    d->away[g] = gap->p + 1;
    for (; i < n && d->reader[i] <= d->away[g]; i++) {
        d->away[g] = d->reader[i] + 1;
    }
    for (int k = i; k < n; k++) {
        bool follows = k > i && d->reader[k] == d->reader[k - 1] + 1;
        if (follows) {
            d->group[d->n_groups - 1].last = d->reader[k];
        } else if (HTH_GROW(d->group, d->n_groups, d->cap_groups) != 0) {
            d->failed = true;
            return 0;
        } else if (!hth_step_may_rerun(m, v, d->reader[k])) {
            d->n_groups = from;
            return 0;
        } else {
            d->group[d->n_groups++] = (hth_group){d->reader[k], d->reader[k]};
        }
    }
    if (d->n_groups == from) {
        return 0;
    }
    d->mode[g] = HTH_GAP_AGAIN;
    d->group_of[g] = from;
    d->groups[g] = d->n_groups - from;
    for (int k = from; k < d->n_groups; k++) {
        us += needs_run(d, v, d->group[k].first, m->bytes[gap->tensor]);
    }
    return us;
}

static double needs_gap(hth_decoder *d, int g, hth_gap_mode mode)
{
    const hth_step *m = d->m;
    const hth_gap *gap = &m->gap[g];
    int need = gap->q, until = gap->cyclic ? gap->p : -1;
    for (int r = d->read_of[gap->tensor]; r >= 0; r = d->read[r].next) {
        int s = d->read[r].stage;
        if (s > gap->p && (s < gap->q || gap->cyclic)) {
            need = s < need && !gap->cyclic ? s : need;
            until = s > until ? s : until;
        }
    }
    d->need[g] = need;
    d->until[g] = until;
    int v = m->p->tensors[gap->tensor].producer;
    if (mode == HTH_GAP_AGAIN && gap->can_rerun && need < m->n_stages) {
        return needs_again(d, g);
    }
    if (mode == HTH_GAP_KEEP || need >= m->n_stages || (need < gap->p + 2 && !gap->cyclic)) {
        return 0;
    }
    if (mode == HTH_GAP_OFFLOAD && gap->can_offload) {
        d->mode[g] = HTH_GAP_OFFLOAD;
    } else if (mode == HTH_GAP_RECOMPUTE && gap->can_rerun && hth_step_may_rerun(m, v, need)) {
        d->mode[g] = HTH_GAP_RECOMPUTE;
        return needs_run(d, v, need, m->bytes[gap->tensor]);
    }
    return 0;
}

// Decides which gaps of tensor t need a copy out of their own, and behind which stage it goes: the
// one that filled the buffer when nothing but adjacent uses lies between, else the last use.
static void needs_saves(hth_decoder *d, int t)
{
    const hth_step *m = d->m;
    int filled = m->p->tensors[t].producer;
    bool saved = false;
    for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
        const hth_gap *gap = &m->gap[g];
        if (gap->cyclic) {
            if (d->mode[g] == HTH_GAP_OFFLOAD && m->dirty[t]) {
                d->save[g] = d->until[g];
            }
        } else if (d->mode[g] == HTH_GAP_OFFLOAD && !saved && m->arena[t]) {
            d->save[g] = filled >= 0 ? filled : 0;
            saved = true;
        } else if (d->mode[g] == HTH_GAP_RECOMPUTE) {
            filled = d->need[g];
        } else if (d->mode[g] == HTH_GAP_AGAIN) {
            filled = d->group[d->group_of[g] + d->groups[g] - 1].first;
        } else if (d->mode[g] == HTH_GAP_KEEP) {
            filled = gap->q;
        }
    }
}

static double needs_tensor(hth_decoder *d, int t, bool root, const uint8_t *mode)
{
    const hth_step *m = d->m;
    int from = m->gap_start[t], end = m->gap_start[t + 1];
    bool moved = d->read_of[t] >= 0, away = false;
    double us = 0;
    for (int g = from; g < end; g++) {
        moved = moved || mode[g] != HTH_GAP_KEEP;
    }
    if (!moved) {
        return 0;
    }
    for (int g = from; g < end; g++) {
        // What is there before the step and leaves within it lives on the far side, so it comes
        // from there.
        bool far = root && m->gap[g].cyclic && away;
        us += needs_gap(d, g, far ? HTH_GAP_OFFLOAD : mode[g]);
        away = away || d->mode[g] == HTH_GAP_OFFLOAD;
    }
    needs_saves(d, t);
    d->moved[d->n_moved++] = t;
    return us;
}

double hth_decode_needs(hth_decoder *d, const uint8_t *mode, double limit_us)
{
    const hth_step *m = d->m;
    size_t n = (size_t)m->n_gaps;
    double us = m->fastest_us;
    memset(d->read_of, -1, (size_t)m->p->n_tensors * sizeof *d->read_of);
    memset(d->run_of, -1, (size_t)m->n_stages * sizeof *d->run_of);
    memset(d->mode, HTH_GAP_KEEP, n);
    memset(d->save, -1, n * sizeof *d->save);
    memcpy(d->need, d->need0, n * sizeof *d->need);
    memcpy(d->until, d->until0, n * sizeof *d->until);
    d->n_reads = d->n_runs = d->n_groups = d->n_moved = d->n_off = 0;
    for (int k = 0; k < m->n_backward && us < limit_us; k++) {
        us += needs_tensor(d, m->backward[k], k >= m->n_backward - m->n_roots, mode);
    }
    d->least_us = us;
    double in_us = 0, out_us = 0;
    for (int g = m->n_gaps - 1; g >= 0; g--) {
        if (d->mode[g] == HTH_GAP_OFFLOAD) {
            d->off[d->n_off++] = g;
            in_us += m->h2d_us[m->gap[g].tensor];
            out_us += d->save[g] >= 0 ? m->d2h_us[m->gap[g].tensor] : 0;
        }
    }
    return hth_later(us, hth_later(in_us, out_us));
}
