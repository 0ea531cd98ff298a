// SPDX-License-Identifier: Apache-2.0
// Where each tensor is, stage by stage, as the decoded modes have it: the bytes of every stage, and
// the schedule that is written out.
#include "planner/plan_decode.h"

#include "base/alloc.h"

#include <string.h>

// The stage with which the last stay of an arena tensor ends.
static int residencies_last(const hth_decoder *decoder, int t)
{
    const hth_step *m = decoder->m;
    int g = m->interval_start[t + 1] - 1;
    bool tail = g >= m->interval_start[t] && m->interval[g].q == m->n_stages;
    return tail && decoder->until[g] > m->last[t] ? decoder->until[g] : m->last[t];
}

// Whether a stay of arena tensor t ends with stage s, a use of it or a recompute's read.
static bool residencies_end(const hth_decoder *decoder, int t, int s)
{
    const hth_step *m = decoder->m;
    for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
        const hth_interval *interval = &m->interval[g];
        bool tail = interval->q == m->n_stages;
        if (decoder->mode[g] != HTH_INTERVAL_REMATERIALIZE || s <= interval->p ||
            s >= interval->q) {
            continue;
        }
        for (int k = 0; k < decoder->groups[g]; k++) {
            bool ends = k + 1 < decoder->groups[g] || tail;
            if (ends && decoder->group[decoder->group_of[g] + k].last == s) {
                return true;
            }
        }
        return s == decoder->away[g] - 1;
    }
    int g = m->interval_start[t + 1] - 1;
    hth_interval_mode tail = g >= m->interval_start[t] && m->interval[g].q == m->n_stages
                                 ? (hth_interval_mode)decoder->mode[g]
                                 : HTH_INTERVAL_KEEP;
    if (s == m->last[t] && (tail == HTH_INTERVAL_RECOMPUTE || tail == HTH_INTERVAL_REMATERIALIZE)) {
        return tail == HTH_INTERVAL_RECOMPUTE || decoder->away[g] == s + 1;
    }
    return residencies_last(decoder, t) == s;
}

// Tensor t takes over the buffer of its pair, which nothing reads any more, when its producer runs
// in stage `stage`, first or again.
static bool residencies_shares(const hth_decoder *decoder, int t, int stage)
{
    const hth_step *m = decoder->m;
    int x = m->pair[t], readers = 0;
    if (x < 0 || !residencies_end(decoder, x, stage)) {
        return false;
    }
    for (int r = decoder->read_of[x]; r >= 0; r = decoder->read[r].next) {
        readers += decoder->read[r].stage == stage;
    }
    // Recomputes go before their stage's node, in the order of their nodes: this one must be the
    // only one that reads there.
    bool first = m->p->tensors[t].producer == stage;
    return first ? m->last[x] == stage : m->last[x] != stage && readers == 1;
}

// A resident tensor: away for a while, or there all the time (no stay).
static int residencies_resident(const hth_decoder *decoder, int t, hth_segment *out)
{
    const hth_step *m = decoder->m;
    int n = 0, g = m->interval_start[t], round = m->interval_start[t + 1] - 1;
    if (g > round || decoder->mode[round] != HTH_INTERVAL_OFFLOAD) {
        return 0;
    }
    hth_segment at = {t, decoder->back[round], 0, HTH_FROM_HOST, decoder->need[round], -1, -1};
    for (; g < round; g++) {
        if (decoder->mode[g] == HTH_INTERVAL_OFFLOAD) {
            at.last = decoder->away[g] - 1;
            out[n++] = at;
            at = (hth_segment){t, decoder->back[g], 0, HTH_FROM_HOST, decoder->need[g], -1, -1};
        }
    }
    at.last = decoder->away[round] - 1;
    at.save = decoder->save[round];
    out[n++] = at;
    return n;
}

// Writes the stays of tensor t as the modes have it, returns how many.
static int residencies_of(const hth_decoder *decoder, int t, hth_segment *out)
{
    const hth_step *m = decoder->m;
    int n = 0;
    if (!m->arena[t]) {
        return residencies_resident(decoder, t, out);
    }
    if (m->first[t] < 0) {
        return 0; // nobody reads it
    }
    hth_origin origin = m->p->tensors[t].producer >= 0 ? HTH_FROM_NODE : HTH_FROM_START;
    hth_segment at = {t, m->first[t], 0, origin, -1, -1, -1};
    for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
        if (decoder->mode[g] == HTH_INTERVAL_OFFLOAD) {
            at.last = decoder->away[g] - 1;
            at.save = decoder->save[g];
            out[n++] = at;
            at = (hth_segment){t, decoder->back[g], 0, HTH_FROM_HOST, decoder->need[g], -1, -1};
        } else if (decoder->mode[g] == HTH_INTERVAL_RECOMPUTE) {
            at.last = m->interval[g].p;
            out[n++] = at;
            at = (hth_segment){t, decoder->need[g], 0, HTH_FROM_RERUN, -1, -1, -1};
        } else if (decoder->mode[g] == HTH_INTERVAL_REMATERIALIZE) {
            at.last = decoder->away[g] - 1;
            out[n++] = at;
            for (int k = 0; k < decoder->groups[g]; k++) {
                const hth_group *r = &decoder->group[decoder->group_of[g] + k];
                at = (hth_segment){t, r->first, r->last, HTH_FROM_RERUN, -1, -1, -1};
                if (k + 1 < decoder->groups[g] || m->interval[g].q == m->n_stages) {
                    out[n++] = at;
                }
            }
            if (m->interval[g].q == m->n_stages) {
                return n;
            }
        }
    }
    at.last = residencies_last(decoder, t);
    out[n++] = at;
    return n;
}

// Whether a recompute in stage s begins a stay of the tensor of interval g.
static bool residencies_begin(const hth_decoder *decoder, int g, int s)
{
    bool begins = decoder->mode[g] == HTH_INTERVAL_RECOMPUTE && decoder->need[g] == s;
    for (int k = 0; decoder->mode[g] == HTH_INTERVAL_REMATERIALIZE && k < decoder->groups[g]; k++) {
        begins = begins || decoder->group[decoder->group_of[g] + k].first == s;
    }
    return begins;
}

// Recomputes in place: a buffer less in their stage.
static void residencies_again(hth_decoder *decoder)
{
    const hth_step *m = decoder->m;
    for (int r = 0; r < decoder->n_runs; r++) {
        const hth_plan_node *n = &m->p->nodes[decoder->run[r].node];
        int s = decoder->run[r].stage;
        for (int j = 0; j < n->n_outputs && n->n_inplace > 0; j++) {
            int t = n->outputs[j];
            bool begins = false;
            for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
                begins = begins || residencies_begin(decoder, g, s);
            }
            if (begins && residencies_shares(decoder, t, s)) {
                decoder->delta[s] -= (int64_t)m->bytes[t];
                decoder->delta[s + 1] += (int64_t)m->bytes[t];
            }
        }
    }
}

// Starts from what there is while everything is kept, and changes what is different.
void hth_decode_memory(hth_decoder *decoder)
{
    const hth_step *m = decoder->m;
    int64_t *delta = decoder->delta;
    memcpy(delta, m->kept, ((size_t)m->n_stages + 2) * sizeof *delta);
    for (int k = 0; k < decoder->n_moved; k++) {
        int t = decoder->moved[k], n = residencies_of(decoder, t, decoder->residency);
        int64_t bytes = (int64_t)m->bytes[t];
        if (m->arena[t]) {
            delta[m->first[t]] -= bytes;
            delta[m->last[t] + 1] += bytes;
            int y = m->heir[t];
            if (y >= 0 &&
                !residencies_end(decoder, t, m->last[t])) { // it is still read: a buffer more
                delta[m->first[y]] += bytes;
                delta[m->first[y] + 1] -= bytes;
            }
        } else if (n > 0) {
            delta[0] -= bytes;
        }
        for (int i = 0; i < n; i++) {
            delta[decoder->residency[i].first] += bytes;
            delta[decoder->residency[i].last + 1] -= bytes;
        }
    }
    residencies_again(decoder);
}

// The segment of tensor t, whose segments begin at `from`, that ends with stage `last`.
static int residencies_find(const hth_schedule *schedule, int from, int t, int last)
{
    for (int i = from; i < schedule->n_segments && schedule->segment[i].tensor == t; i++) {
        if (schedule->segment[i].last == last) {
            return i;
        }
    }
    return -1;
}

static void residencies_segments(const hth_decoder *decoder, hth_schedule *schedule, int *from)
{
    const hth_step *m = decoder->m;
    for (int t = 0; t < m->p->n_tensors; t++) {
        from[t] = schedule->n_segments;
        if (m->bytes[t] > 0) {
            int n = residencies_of(decoder, t, &schedule->segment[schedule->n_segments]);
            schedule->n_segments += n;
            schedule->resident_bytes += !m->arena[t] && n == 0 ? m->bytes[t] : 0;
        }
    }
    for (int i = 0; i < schedule->n_segments; i++) {
        hth_segment *x = &schedule->segment[i];
        bool computed = x->origin == HTH_FROM_NODE || x->origin == HTH_FROM_RERUN;
        if (m->arena[x->tensor] && computed && residencies_shares(decoder, x->tensor, x->first)) {
            int pair = m->pair[x->tensor];
            x->inplace = residencies_find(schedule, from[pair], pair, x->first);
        }
    }
}

hth_err hth_decode_schedule(const hth_decoder *decoder, const hth_outcome *outcome,
                            hth_schedule *out)
{
    const hth_step *m = decoder->m;
    int n = m->p->n_tensors + m->n_intervals + 1;
    for (int r = 0; r < decoder->n_runs; r++) {
        n += m->p->nodes[decoder->run[r].node].n_outputs;
    }
    *out = (hth_schedule){.n_stages = m->n_stages,
                          .alt = hth_calloc((size_t)m->n_stages + 1, sizeof(int)),
                          .segment = hth_calloc((size_t)n, sizeof *out->segment),
                          .rerun = hth_calloc((size_t)decoder->n_runs + 1, sizeof *out->rerun),
                          .peak_bytes = outcome->peak_bytes,
                          .time_us = outcome->time_us};
    int *from = hth_alloc(((size_t)m->p->n_tensors + 1) * sizeof *from);
    if (!out->alt || !out->segment || !out->rerun || !from) {
        hth_free(from);
        hth_schedule_fini(out);
        return hth_no_memory("a schedule of %d nodes", m->n_stages);
    }
    for (int s = 0; s < m->n_stages; s++) {
        out->alt[s] = m->menu[decoder->item[s]].alt;
        for (int r = decoder->run_of[s]; r >= 0; r = decoder->run[r].next) {
            out->rerun[out->n_reruns++] = (hth_rerun){
                s, decoder->run[r].node, m->menu[decoder->item[decoder->run[r].node]].alt};
        }
    }
    residencies_segments(decoder, out, from);
    hth_free(from);
    return HTH_OK;
}
