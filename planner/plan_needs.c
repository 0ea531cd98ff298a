// SPDX-License-Identifier: Apache-2.0
// The first part of decoding modes: backwards through the step, what each interval is needed for,
// what has to be computed again when, and which intervals need a copy out of their own.
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
        d->run[at] = (hth_stage_rerun){d->run_of[s], v, s, all};
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

// Lists the stages after interval g's start that read its tensor in d->reader, ascending, each
// once; returns how many.
static int needs_readers(hth_decoder *d, int g)
{
    const hth_interval *interval = &d->m->interval[g];
    int n = 0;
    for (int r = d->read_of[interval->tensor]; r >= 0; r = d->read[r].next) {
        int s = d->read[r].stage, at = n;
        while (at > 0 && d->reader[at - 1] > s) {
            at--;
        }
        if (s > interval->p && s < interval->q && (at == 0 || d->reader[at - 1] < s)) {
            memmove(&d->reader[at + 1], &d->reader[at], (size_t)(n - at) * sizeof *d->reader);
            d->reader[at] = s;
            n++;
        }
    }
    if (interval->q < d->m->n_stages) {
        d->reader[n++] = interval->q;
    }
    return n;
}

// Mode REMATERIALIZE: groups of adjacent readers, a rerun for each that does not follow the
// interval's start.
static double needs_again(hth_decoder *d, int g)
{
    const hth_step *m = d->m;
    const hth_interval *interval = &m->interval[g];
    int v = m->p->tensors[interval->tensor].producer, n = needs_readers(d, g), i = 0,
        from = d->n_groups;
    double us = 0;
    d->away[g] = interval->p + 1;
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
    d->mode[g] = HTH_INTERVAL_REMATERIALIZE;
    d->group_of[g] = from;
    d->groups[g] = d->n_groups - from;
    for (int k = from; k < d->n_groups; k++) {
        us += needs_run(d, v, d->group[k].first, m->bytes[interval->tensor]);
    }
    return us;
}

static double needs_interval(hth_decoder *d, int g, hth_interval_mode mode)
{
    const hth_step *m = d->m;
    const hth_interval *interval = &m->interval[g];
    int need = interval->q, until = interval->cyclic ? interval->p : -1;
    for (int r = d->read_of[interval->tensor]; r >= 0; r = d->read[r].next) {
        int s = d->read[r].stage;
        if (s > interval->p && (s < interval->q || interval->cyclic)) {
            need = s < need && !interval->cyclic ? s : need;
            until = s > until ? s : until;
        }
    }
    d->need[g] = need;
    d->until[g] = until;
    int v = m->p->tensors[interval->tensor].producer;
    if (mode == HTH_INTERVAL_REMATERIALIZE && interval->can_rerun && need < m->n_stages) {
        return needs_again(d, g);
    }
    if (mode == HTH_INTERVAL_KEEP || need >= m->n_stages ||
        (need < interval->p + 2 && !interval->cyclic)) {
        return 0;
    }
    if (mode == HTH_INTERVAL_OFFLOAD && interval->can_offload) {
        d->mode[g] = HTH_INTERVAL_OFFLOAD;
    } else if (mode == HTH_INTERVAL_RECOMPUTE && interval->can_rerun &&
               hth_step_may_rerun(m, v, need)) {
        d->mode[g] = HTH_INTERVAL_RECOMPUTE;
        return needs_run(d, v, need, m->bytes[interval->tensor]);
    }
    return 0;
}

// Decides which intervals of tensor t need a copy out of their own, and after which stage it goes:
// the one that filled the buffer when nothing but adjacent uses lies between, else the last use.
static void needs_saves(hth_decoder *d, int t)
{
    const hth_step *m = d->m;
    int filled = m->p->tensors[t].producer;
    bool saved = false;
    for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
        const hth_interval *interval = &m->interval[g];
        if (interval->cyclic) {
            if (d->mode[g] == HTH_INTERVAL_OFFLOAD && m->dirty[t]) {
                d->save[g] = d->until[g];
            }
        } else if (d->mode[g] == HTH_INTERVAL_OFFLOAD && !saved && m->arena[t]) {
            d->save[g] = filled >= 0 ? filled : 0;
            saved = true;
        } else if (d->mode[g] == HTH_INTERVAL_RECOMPUTE) {
            filled = d->need[g];
        } else if (d->mode[g] == HTH_INTERVAL_REMATERIALIZE) {
            filled = d->group[d->group_of[g] + d->groups[g] - 1].first;
        } else if (d->mode[g] == HTH_INTERVAL_KEEP) {
            filled = interval->q;
        }
    }
}

static double needs_tensor(hth_decoder *d, int t, bool root, const uint8_t *mode)
{
    const hth_step *m = d->m;
    int from = m->interval_start[t], end = m->interval_start[t + 1];
    bool moved = d->read_of[t] >= 0, away = false;
    double us = 0;
    for (int g = from; g < end; g++) {
        moved = moved || mode[g] != HTH_INTERVAL_KEEP;
    }
    if (!moved) {
        return 0;
    }
    for (int g = from; g < end; g++) {
        // What is there before the step and leaves within it lives on the far side, so it comes
        // from there.
        bool far = root && m->interval[g].cyclic && away;
        us += needs_interval(d, g, far ? HTH_INTERVAL_OFFLOAD : mode[g]);
        away = away || d->mode[g] == HTH_INTERVAL_OFFLOAD;
    }
    needs_saves(d, t);
    d->moved[d->n_moved++] = t;
    return us;
}

double hth_decode_needs(hth_decoder *d, const uint8_t *mode, double limit_us)
{
    const hth_step *m = d->m;
    size_t n = (size_t)m->n_intervals;
    double us = m->fastest_us;
    memset(d->read_of, -1, (size_t)m->p->n_tensors * sizeof *d->read_of);
    memset(d->run_of, -1, (size_t)m->n_stages * sizeof *d->run_of);
    memset(d->mode, HTH_INTERVAL_KEEP, n);
    memset(d->save, -1, n * sizeof *d->save);
    memcpy(d->need, d->need0, n * sizeof *d->need);
    memcpy(d->until, d->until0, n * sizeof *d->until);
    d->n_reads = d->n_runs = d->n_groups = d->n_moved = d->n_off = 0;
    for (int k = 0; k < m->n_backward && us < limit_us; k++) {
        us += needs_tensor(d, m->backward[k], k >= m->n_backward - m->n_roots, mode);
    }
    d->min_us = us;
    double in_us = 0, out_us = 0;
    for (int g = m->n_intervals - 1; g >= 0; g--) {
        if (d->mode[g] == HTH_INTERVAL_OFFLOAD) {
            d->off[d->n_off++] = g;
            in_us += m->h2d_us[m->interval[g].tensor];
            out_us += d->save[g] >= 0 ? m->d2h_us[m->interval[g].tensor] : 0;
        }
    }
    return hth_later(us, hth_later(in_us, out_us));
}
