// SPDX-License-Identifier: Apache-2.0
// The first part of decoding modes: backwards through the step, what each interval is needed for,
// what has to be computed again when, and which intervals need a copy out of their own.
#include "planner/plan_decode.h"

#include "base/alloc.h"

#include <string.h>

static void needs_read(hth_decoder *decoder, int t, int stage)
{
    if (HTH_GROW(decoder->read, decoder->n_reads, decoder->cap_reads) != 0) {
        decoder->failed = true;
        return;
    }
    decoder->read[decoder->n_reads] = (hth_read){decoder->read_of[t], stage};
    decoder->read_of[t] = decoder->n_reads++;
}

// Has node v run again in stage s, for an output of `bytes`. Returns the time that this adds, at
// least.
static double needs_run(hth_decoder *decoder, int v, int s, uint64_t bytes)
{
    const hth_step *m = decoder->m;
    const hth_plan_node *n = &m->p->nodes[v];
    int at = decoder->run_of[s];
    double us = 0;
    if (at < 0 || decoder->run[at].node != v) {
        if (HTH_GROW(decoder->run, decoder->n_runs, decoder->cap_runs) != 0) {
            decoder->failed = true;
            return 0;
        }
        uint64_t all = 0;
        for (int j = 0; j < n->n_outputs; j++) {
            all += hth_plan_round(m->p->tensors[n->outputs[j]].bytes);
        }
        at = decoder->n_runs++;
        decoder->run[at] = (hth_stage_rerun){decoder->run_of[s], v, s, all};
        decoder->run_of[s] = at;
        us = hth_step_fastest(m, v)->time_us;
        for (int j = 0; j < n->n_inputs; j++) {
            if (m->arena[n->inputs[j]] || m->bytes[n->inputs[j]] > 0) {
                needs_read(decoder, n->inputs[j], s);
            }
        }
    }
    decoder->run[at].scratch -= bytes;
    return us;
}

// Lists the stages after interval g's start that read its tensor in decoder->reader, ascending,
// each once; returns how many.
static int needs_readers(hth_decoder *decoder, int g)
{
    const hth_interval *interval = &decoder->m->interval[g];
    int n = 0;
    for (int r = decoder->read_of[interval->tensor]; r >= 0; r = decoder->read[r].next) {
        int s = decoder->read[r].stage, at = n;
        while (at > 0 && decoder->reader[at - 1] > s) {
            at--;
        }
        if (s > interval->p && s < interval->q && (at == 0 || decoder->reader[at - 1] < s)) {
            memmove(&decoder->reader[at + 1], &decoder->reader[at],
                    (size_t)(n - at) * sizeof *decoder->reader);
            decoder->reader[at] = s;
            n++;
        }
    }
    if (interval->q < decoder->m->n_stages) {
        decoder->reader[n++] = interval->q;
    }
    return n;
}

// Mode REMATERIALIZE: groups of adjacent readers, a rerun for each that does not follow the
// interval's start.
static double needs_again(hth_decoder *decoder, int g)
{
    const hth_step *m = decoder->m;
    const hth_interval *interval = &m->interval[g];
    int v = m->p->tensors[interval->tensor].producer, n = needs_readers(decoder, g), i = 0,
        from = decoder->n_groups;
    double us = 0;
    decoder->away[g] = interval->p + 1;
    for (; i < n && decoder->reader[i] <= decoder->away[g]; i++) {
        decoder->away[g] = decoder->reader[i] + 1;
    }
    for (int k = i; k < n; k++) {
        bool follows = k > i && decoder->reader[k] == decoder->reader[k - 1] + 1;
        if (follows) {
            decoder->group[decoder->n_groups - 1].last = decoder->reader[k];
        } else if (HTH_GROW(decoder->group, decoder->n_groups, decoder->cap_groups) != 0) {
            decoder->failed = true;
            return 0;
        } else if (!hth_step_may_rerun(m, v, decoder->reader[k])) {
            decoder->n_groups = from;
            return 0;
        } else {
            decoder->group[decoder->n_groups++] =
                (hth_group){decoder->reader[k], decoder->reader[k]};
        }
    }
    if (decoder->n_groups == from) {
        return 0;
    }
    decoder->mode[g] = HTH_INTERVAL_REMATERIALIZE;
    decoder->group_of[g] = from;
    decoder->groups[g] = decoder->n_groups - from;
    for (int k = from; k < decoder->n_groups; k++) {
        us += needs_run(decoder, v, decoder->group[k].first, m->bytes[interval->tensor]);
    }
    return us;
}

static double needs_interval(hth_decoder *decoder, int g, hth_interval_mode mode)
{
    const hth_step *m = decoder->m;
    const hth_interval *interval = &m->interval[g];
    int need = interval->q, until = interval->cyclic ? interval->p : -1;
    for (int r = decoder->read_of[interval->tensor]; r >= 0; r = decoder->read[r].next) {
        int s = decoder->read[r].stage;
        if (s > interval->p && (s < interval->q || interval->cyclic)) {
            need = s < need && !interval->cyclic ? s : need;
            until = s > until ? s : until;
        }
    }
    decoder->need[g] = need;
    decoder->until[g] = until;
    int v = m->p->tensors[interval->tensor].producer;
    if (mode == HTH_INTERVAL_REMATERIALIZE && interval->can_rerun && need < m->n_stages) {
        return needs_again(decoder, g);
    }
    if (mode == HTH_INTERVAL_KEEP || need >= m->n_stages ||
        (need < interval->p + 2 && !interval->cyclic)) {
        return 0;
    }
    if (mode == HTH_INTERVAL_OFFLOAD && interval->can_offload) {
        decoder->mode[g] = HTH_INTERVAL_OFFLOAD;
    } else if (mode == HTH_INTERVAL_RECOMPUTE && interval->can_rerun &&
               hth_step_may_rerun(m, v, need)) {
        decoder->mode[g] = HTH_INTERVAL_RECOMPUTE;
        return needs_run(decoder, v, need, m->bytes[interval->tensor]);
    }
    return 0;
}

// Decides which intervals of tensor t need a copy out of their own, and after which stage it goes:
// the one that filled the buffer when nothing but adjacent uses lies between, else the last use.
static void needs_saves(hth_decoder *decoder, int t)
{
    const hth_step *m = decoder->m;
    int filled = m->p->tensors[t].producer;
    bool saved = false;
    for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
        const hth_interval *interval = &m->interval[g];
        if (interval->cyclic) {
            if (decoder->mode[g] == HTH_INTERVAL_OFFLOAD && m->dirty[t]) {
                decoder->save[g] = decoder->until[g];
            }
        } else if (decoder->mode[g] == HTH_INTERVAL_OFFLOAD && !saved && m->arena[t]) {
            decoder->save[g] = filled >= 0 ? filled : 0;
            saved = true;
        } else if (decoder->mode[g] == HTH_INTERVAL_RECOMPUTE) {
            filled = decoder->need[g];
        } else if (decoder->mode[g] == HTH_INTERVAL_REMATERIALIZE) {
            filled = decoder->group[decoder->group_of[g] + decoder->groups[g] - 1].first;
        } else if (decoder->mode[g] == HTH_INTERVAL_KEEP) {
            filled = interval->q;
        }
    }
}

static double needs_tensor(hth_decoder *decoder, int t, bool root, const uint8_t *mode)
{
    const hth_step *m = decoder->m;
    int from = m->interval_start[t], end = m->interval_start[t + 1];
    bool moved = decoder->read_of[t] >= 0, away = false;
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
        us += needs_interval(decoder, g, far ? HTH_INTERVAL_OFFLOAD : mode[g]);
        away = away || decoder->mode[g] == HTH_INTERVAL_OFFLOAD;
    }
    needs_saves(decoder, t);
    decoder->moved[decoder->n_moved++] = t;
    return us;
}

double hth_decode_needs(hth_decoder *decoder, const uint8_t *mode, double limit_us)
{
    const hth_step *m = decoder->m;
    size_t n = (size_t)m->n_intervals;
    double us = m->fastest_us;
    memset(decoder->read_of, -1, (size_t)m->p->n_tensors * sizeof *decoder->read_of);
    memset(decoder->run_of, -1, (size_t)m->n_stages * sizeof *decoder->run_of);
    memset(decoder->mode, HTH_INTERVAL_KEEP, n);
    memset(decoder->save, -1, n * sizeof *decoder->save);
    memcpy(decoder->need, decoder->need0, n * sizeof *decoder->need);
    memcpy(decoder->until, decoder->until0, n * sizeof *decoder->until);
    decoder->n_reads = decoder->n_runs = decoder->n_groups = decoder->n_moved = decoder->n_off = 0;
    for (int k = 0; k < m->n_backward && us < limit_us; k++) {
        us += needs_tensor(decoder, m->backward[k], k >= m->n_backward - m->n_roots, mode);
    }
    decoder->min_us = us;
    hth_plan_work_add(HTH_WORK_DECODE, 1);
    hth_plan_work_add(HTH_WORK_NEEDS, m->n_intervals + m->p->n_tensors);
    hth_plan_work_add(HTH_WORK_RERUN, decoder->n_runs + decoder->n_reads);
    double in_us = 0, out_us = 0;
    for (int g = m->n_intervals - 1; g >= 0; g--) {
        if (decoder->mode[g] == HTH_INTERVAL_OFFLOAD) {
            decoder->off[decoder->n_off++] = g;
            in_us += m->h2d_us[m->interval[g].tensor];
            out_us += decoder->save[g] >= 0 ? m->d2h_us[m->interval[g].tensor] : 0;
        }
    }
    return hth_later(us, hth_later(in_us, out_us));
}
