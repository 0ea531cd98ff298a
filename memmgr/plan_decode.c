// SPDX-License-Identifier: Apache-2.0
// From modes to times and bytes. The order of the steps:
//   needs     backwards: what each gap is needed for, and what has to be recomputed when
//   saves     copies out as soon as possible, buffers freed when they would have ended
//   fetches   backwards: copies in as late as they cause no stall
//   memory    live bytes of every stage
//   fit       forwards: where it is too much, the copy that hurts least is hurried or put off; then
//             the fastest algorithm that finds room
//   time      the exact rules of plan_schedule.h
#include "memmgr/plan_step.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void list_clear(hth_lists *l, int n)
{
    memset(l->head, -1, (size_t)n * sizeof *l->head);
}

static void list_add(hth_lists *l, int key, int g)
{
    l->next[g] = l->head[key];
    l->head[key] = g;
}

// Needs.

static void needs_read(hth_decoder *d, int t, int stage)
{
    if (HTH_GROW(d->read, d->n_reads, d->cap_reads) != 0) {
        d->failed = true;
        return;
    }
    d->read[d->n_reads] = (hth_read){d->read_of[t], stage};
    d->read_of[t] = d->n_reads++;
}

// Whether node v may run again in stage s: what it reads has not been updated in place by then,
// except by itself, which its other outputs do not depend on.
static bool needs_may_run(const hth_step *m, int v, int s)
{
    const hth_plan_node *n = &m->p->nodes[v];
    for (int j = 0; j < n->n_inputs; j++) {
        int by = m->updated[n->inputs[j]];
        if (by <= s && by != v) {
            return false;
        }
    }
    return true;
}

// Has node v run again in stage s, for an output of `bytes`.
static void needs_run(hth_decoder *d, int v, int s, uint64_t bytes)
{
    const hth_step *m = d->m;
    const hth_plan_node *n = &m->p->nodes[v];
    int at = d->run_of[s];
    if (at < 0 || d->run[at].node != v) {
        if (HTH_GROW(d->run, d->n_runs, d->cap_runs) != 0) {
            d->failed = true;
            return;
        }
        uint64_t all = 0;
        for (int j = 0; j < n->n_outputs; j++) {
            all += hth_plan_round(m->p->tensors[n->outputs[j]].bytes);
        }
        at = d->n_runs++;
        d->run[at] = (hth_run){d->run_of[s], v, all};
        d->run_of[s] = at;
        for (int j = 0; j < n->n_inputs; j++) {
            if (m->arena[n->inputs[j]] || m->bytes[n->inputs[j]] > 0) {
                needs_read(d, n->inputs[j], s);
            }
        }
    }
    d->run[at].scratch -= bytes;
}

static void needs_gap(hth_decoder *d, int g, hth_gap_mode mode)
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
    d->save[g] = -1;
    d->mode[g] = HTH_GAP_KEEP;
    int v = m->p->tensors[gap->tensor].producer;
    if (mode == HTH_GAP_KEEP || need >= m->n_stages || (need < gap->p + 2 && !gap->cyclic)) {
        return;
    }
    if (mode == HTH_GAP_OFFLOAD && gap->can_offload) {
        d->mode[g] = HTH_GAP_OFFLOAD;
    } else if (mode == HTH_GAP_RECOMPUTE && gap->can_rerun && needs_may_run(m, v, need)) {
        d->mode[g] = HTH_GAP_RECOMPUTE;
        needs_run(d, v, need, m->bytes[gap->tensor]);
    }
}

static void decode_needs(hth_decoder *d, const uint8_t *mode)
{
    const hth_step *m = d->m;
    memset(d->read_of, -1, (size_t)m->p->n_tensors * sizeof *d->read_of);
    memset(d->run_of, -1, (size_t)m->n_stages * sizeof *d->run_of);
    d->n_reads = d->n_runs = 0;
    for (int v = m->n_stages - 1; v >= 0; v--) {
        const hth_plan_node *n = &m->p->nodes[v];
        for (int j = 0; j < n->n_outputs; j++) {
            int t = n->outputs[j];
            for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
                needs_gap(d, g, mode[g]);
            }
        }
    }
    for (int k = 0; k < m->n_roots; k++) { // there before the step
        int t = m->root[k];
        bool away = false;
        for (int g = m->gap_start[t]; g < m->gap_start[t + 1]; g++) {
            // What leaves within the step lives on the far side, so it comes from there.
            needs_gap(d, g, m->gap[g].cyclic && away ? HTH_GAP_OFFLOAD : mode[g]);
            away = away || d->mode[g] == HTH_GAP_OFFLOAD;
        }
    }
}

// Saves and fetches.

static void decode_estimate(hth_decoder *d)
{
    const hth_step *m = d->m;
    d->begin_us[0] = 0;
    for (int s = 0; s < m->n_stages; s++) {
        double us = m->menu[d->item[s]].time_us;
        for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
            us += m->menu[d->item[d->run[r].node]].time_us;
        }
        d->begin_us[s + 1] = d->begin_us[s] + us;
    }
}

// Decides which gaps of tensor t need a copy out of their own, and behind which stage it goes: the
// one that filled the buffer when nothing but adjacent uses lies between, else the last use.
static void saves_of(hth_decoder *d, int t)
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
        } else if (d->mode[g] == HTH_GAP_KEEP) {
            filled = gap->q;
        }
    }
}

static void decode_saves(hth_decoder *d)
{
    const hth_step *m = d->m;
    int n = m->n_stages, after = 0; // first stage that would begin when the lane is free
    double lane = 0;
    list_clear(&d->saves, n);
    for (int g = m->n_gaps - 1; g >= 0; g--) {
        if (d->mode[g] != HTH_GAP_OFFLOAD) {
            continue;
        }
        if (d->save[g] >= 0) {
            list_add(&d->saves, d->save[g], g);
        } else {
            d->away[g] = (m->gap[g].cyclic ? d->until[g] : m->gap[g].p) + 1;
        }
    }
    for (int s = 0; s < n; s++) {
        for (int g = d->saves.head[s]; g >= 0; g = d->saves.next[g]) {
            const hth_gap *gap = &m->gap[g];
            int first = (gap->cyclic ? d->until[g] : gap->p) + 1;
            int limit = gap->cyclic ? n : d->need[g] - 1;
            lane = d->saved_us[g] = fmax(lane, d->begin_us[s + 1]) + m->d2h_us[gap->tensor];
            while (after < n && d->begin_us[after] < lane) {
                after++;
            }
            int b = after > first ? after : first;
            d->away[g] = b < limit ? b : limit;
        }
    }
}

static void decode_fetches(hth_decoder *d)
{
    const hth_step *m = d->m;
    int n = m->n_stages, before = n;
    double latest = INFINITY;
    list_clear(&d->needs, n);
    for (int g = m->n_gaps - 1; g >= 0; g--) {
        if (d->mode[g] == HTH_GAP_OFFLOAD) {
            list_add(&d->needs, d->need[g], g);
        }
    }
    for (int s = n - 1; s >= 0; s--) {
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            latest = fmin(latest, d->begin_us[s]) - m->h2d_us[m->gap[g].tensor];
            while (before > 0 && d->begin_us[before] > latest) {
                before--;
            }
            int first = m->gap[g].cyclic ? 0 : d->away[g], c = before < s ? before : s;
            d->back[g] = c > first ? c : first;
        }
    }
}

// Memory.

// The stage with which the last stay of an arena tensor ends.
static int memory_last(const hth_decoder *d, int t)
{
    const hth_step *m = d->m;
    int g = m->gap_start[t + 1] - 1, n_uses = m->use_start[t + 1] - m->use_start[t];
    int last = n_uses > 0 ? m->use[m->use_start[t + 1] - 1] : m->p->tensors[t].producer;
    if (m->p->tensors[t].cls == HTH_MEM_OUTPUT) {
        return m->n_stages - 1;
    }
    return g >= m->gap_start[t] && m->gap[g].q == m->n_stages && d->until[g] > last ? d->until[g]
                                                                                    : last;
}

// Whether tensor t takes over the buffer of its pair, which nothing reads any more.
static bool memory_shares(const hth_decoder *d, int t)
{
    int x = d->m->pair[t];
    return x >= 0 && memory_last(d, x) == d->m->p->tensors[t].producer;
}

// Writes the stays of tensor t, returns how many.
static int memory_walk(const hth_decoder *d, int t, hth_segment *out)
{
    const hth_step *m = d->m;
    int n = 0, producer = m->p->tensors[t].producer, g = m->gap_start[t];
    if (!m->arena[t]) { // resident and away for a while
        int round = m->gap_start[t + 1] - 1;
        if (g > round || d->mode[round] != HTH_GAP_OFFLOAD) {
            return 0;
        }
        hth_segment at = {t, d->back[round], 0, HTH_FROM_HOST, d->need[round], -1, -1};
        for (; g < round; g++) {
            if (d->mode[g] == HTH_GAP_OFFLOAD) {
                at.last = d->away[g] - 1;
                out[n++] = at;
                at = (hth_segment){t, d->back[g], 0, HTH_FROM_HOST, d->need[g], -1, -1};
            }
        }
        at.last = d->away[round] - 1;
        at.save = d->save[round];
        out[n++] = at;
        return n;
    }
    if (producer < 0 && m->use_start[t + 1] == m->use_start[t]) {
        return 0; // nobody reads it
    }
    hth_segment at = {
        t, producer >= 0 ? producer : 0, 0, producer >= 0 ? HTH_FROM_NODE : HTH_FROM_START, -1, -1,
        -1};
    for (; g < m->gap_start[t + 1]; g++) {
        if (d->mode[g] == HTH_GAP_OFFLOAD) {
            at.last = d->away[g] - 1;
            at.save = d->save[g];
            out[n++] = at;
            at = (hth_segment){t, d->back[g], 0, HTH_FROM_HOST, d->need[g], -1, -1};
        } else if (d->mode[g] == HTH_GAP_RECOMPUTE) {
            at.last = m->gap[g].p;
            out[n++] = at;
            at = (hth_segment){t, d->need[g], 0, HTH_FROM_RERUN, -1, -1, -1};
        }
    }
    at.last = memory_last(d, t);
    out[n++] = at;
    return n;
}

static void decode_memory(hth_decoder *d)
{
    const hth_step *m = d->m;
    memset(d->delta, 0, ((size_t)m->n_stages + 2) * sizeof *d->delta);
    d->delta[0] = (int64_t)m->resident_bytes;
    for (int t = 0; t < m->p->n_tensors; t++) {
        if (m->bytes[t] == 0) {
            continue;
        }
        int64_t bytes = (int64_t)m->bytes[t];
        int n = memory_walk(d, t, d->stay);
        if (!m->arena[t] && n > 0) {
            d->delta[0] -= bytes;
        }
        for (int i = 0; i < n; i++) {
            d->delta[d->stay[i].first] += bytes;
            d->delta[d->stay[i].last + 1] -= bytes;
        }
        if (m->arena[t] && memory_shares(d, t)) {
            d->delta[d->stay[0].first] -= bytes;
            d->delta[d->stay[0].first + 1] += bytes;
        }
    }
}

// Fit.

// The bytes that stage s needs beside its live ones, at least.
static uint64_t fit_least(const hth_decoder *d, int s)
{
    const hth_step *m = d->m;
    uint64_t most = hth_step_smallest(m, s)->workspace;
    for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
        uint64_t b = d->run[r].scratch + hth_step_smallest(m, d->run[r].node)->workspace;
        most = b > most ? b : most;
    }
    return most;
}

static int fit_cmp(const void *a, const void *b)
{
    const hth_flight *x = a, *y = b;
    if (x->hurt != y->hurt) {
        return x->hurt < y->hurt ? -1 : 1;
    }
    return x->gap - y->gap;
}

static bool fit_leaves(const hth_decoder *d, int g, int s)
{
    const hth_gap *gap = &d->m->gap[g];
    return d->away[g] > s && s > (gap->cyclic ? d->until[g] : gap->p);
}

// What it costs, per byte, to hurry gap g's copy out in stage s, or to put its copy in off.
static double fit_hurt(const hth_decoder *d, int g, int s)
{
    const hth_step *m = d->m;
    int t = m->gap[g].tensor;
    double us = fit_leaves(d, g, s) ? d->saved_us[g] - d->begin_us[s]
                                    : d->begin_us[s + 1] + m->h2d_us[t] - d->begin_us[d->need[g]];
    return fmax(us, 0) / (double)m->bytes[t];
}

// Frees bytes of copies in flight in stage s, those that hurt least first, until `over` is gone.
// Returns what is left of it.
static int64_t fit_repair(hth_decoder *d, int s, int64_t over, int *n_flight)
{
    const hth_step *m = d->m;
    int n = 0;
    for (int i = 0; i < *n_flight;) {
        int g = d->flight[i];
        if (fit_leaves(d, g, s) || (d->back[g] <= s && s < d->need[g])) {
            d->order[n++] = (hth_flight){fit_hurt(d, g, s), g};
            i++;
        } else {
            d->flight[i] = d->flight[--*n_flight];
        }
    }
    qsort(d->order, (size_t)n, sizeof *d->order, fit_cmp);
    for (int i = 0; i < n && over > 0; i++) {
        int g = d->order[i].gap;
        int64_t bytes = (int64_t)m->bytes[m->gap[g].tensor];
        if (i > 0 && d->order[i - 1].gap == g) {
            continue;
        }
        if (fit_leaves(d, g, s)) {
            d->delta[d->away[g]] += bytes;
            d->away[g] = s;
        } else {
            d->delta[s + 1] += bytes;
            d->back[g] = s + 1;
        }
        d->live -= bytes;
        over -= bytes;
    }
    return over > 0 ? over : 0;
}

static int fit_item(const hth_step *m, int node, int64_t room)
{
    int i = m->menu_start[node];
    while (i + 1 < m->menu_end[node] && (int64_t)m->menu[i].workspace > room) {
        i++;
    }
    return i;
}

static void decode_fit(hth_decoder *d, hth_outcome *out)
{
    const hth_step *m = d->m;
    int n_flight = 0;
    double worst = 0;
    out->excess = out->mean = 0;
    out->worst = -1;
    out->peak_bytes = 0;
    d->live = 0;
    list_clear(&d->backs, m->n_stages + 1);
    for (int g = 0; g < m->n_gaps; g++) {
        if (d->mode[g] == HTH_GAP_OFFLOAD) {
            list_add(&d->backs, d->back[g], g);
        }
    }
    for (int s = 0; s < m->n_stages; s++) {
        d->live += d->delta[s];
        for (int i = s > 0 ? m->by_p_start[s - 1] : 0; i < m->by_p_start[s]; i++) {
            int g = m->by_p[i];
            if (d->mode[g] == HTH_GAP_OFFLOAD && d->away[g] > s) {
                d->flight[n_flight++] = g;
            }
        }
        for (int g = d->backs.head[s]; g >= 0; g = d->backs.next[g]) {
            if (d->back[g] == s && s < d->need[g]) {
                d->flight[n_flight++] = g;
            }
        }
        int64_t over = d->live + (int64_t)fit_least(d, s) - (int64_t)d->budget;
        over = over > 0 ? fit_repair(d, s, over, &n_flight) : 0;
        int64_t room = (int64_t)d->budget - d->live;
        d->used[s] = (uint64_t)d->live;
        d->item[s] = fit_item(m, s, room);
        uint64_t most = m->menu[d->item[s]].workspace;
        for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
            hth_run *run = &d->run[r];
            // The node's own algorithm, so that the bits are the same: both give way.
            int item = fit_item(m, run->node, room - (int64_t)run->scratch);
            item = d->item[run->node] > item ? d->item[run->node] : item;
            d->item[run->node] = item;
            uint64_t b = run->scratch + m->menu[item].workspace;
            most = b > most ? b : most;
        }
        over = (int64_t)most - room;
        out->excess += over > 0 ? (double)over : 0;
        if ((double)over > worst) {
            worst = (double)over;
            out->worst = s;
        }
        out->mean += (double)d->live / m->n_stages;
        uint64_t peak = (uint64_t)d->live + most;
        out->peak_bytes = peak > out->peak_bytes ? peak : out->peak_bytes;
    }
}

// Time.

static void time_lists(hth_decoder *d)
{
    const hth_step *m = d->m;
    list_clear(&d->aways, m->n_stages + 1);
    list_clear(&d->backs, m->n_stages + 1);
    for (int g = 0; g < m->n_gaps; g++) {
        if (d->mode[g] == HTH_GAP_OFFLOAD && d->save[g] >= 0) {
            list_add(&d->aways, d->away[g], g);
        }
    }
    for (int s = m->n_stages - 1; s >= 0; s--) {
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            list_add(&d->backs, d->back[g], g);
        }
    }
}

static void decode_time(hth_decoder *d, hth_outcome *out)
{
    const hth_step *m = d->m;
    double end = 0, in = 0, away = 0, compute = 0, link = 0;
    time_lists(d);
    for (int t = 0; t < m->p->n_tensors; t++) {
        d->host_us[t] = 0;
    }
    for (int s = 0; s < m->n_stages; s++) {
        double at = end;
        for (int g = d->aways.head[s]; g >= 0; g = d->aways.next[g]) {
            at = fmax(at, d->saved_us[g]);
        }
        for (int g = d->backs.head[s]; g >= 0; g = d->backs.next[g]) {
            int t = m->gap[g].tensor;
            in = fmax(fmax(in, at), m->gap[g].cyclic ? 0 : d->host_us[t]) + m->h2d_us[t];
            d->fetched_us[g] = in;
            link += m->h2d_us[t];
        }
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            at = fmax(at, d->fetched_us[g]);
        }
        d->start_us[s] = at;
        for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
            at += m->menu[d->item[d->run[r].node]].time_us;
        }
        end = d->end_us[s] = at + m->menu[d->item[s]].time_us;
        compute += end - d->start_us[s];
        for (int g = d->saves.head[s]; g >= 0; g = d->saves.next[g]) {
            int t = m->gap[g].tensor;
            away = fmax(away, end) + m->d2h_us[t];
            d->saved_us[g] = d->host_us[t] = away;
            link += m->d2h_us[t];
        }
    }
    double time = fmax(end, away);
    out->time_us = hth_plan_slowed(m->p, time, compute, link);
    out->compute_us = compute;
    out->stall_us = time - compute;
    out->link_us = link;
}

void hth_decode(hth_decoder *d, const uint8_t *mode, hth_outcome *out)
{
    const hth_step *m = d->m;
    decode_needs(d, mode);
    for (int t = 0; t < m->p->n_tensors; t++) {
        if (m->gap_start[t] < m->gap_start[t + 1]) {
            saves_of(d, t);
        }
    }
    for (int s = 0; s < m->n_stages; s++) {
        d->item[s] = m->menu_start[s];
    }
    for (int round = 0; round < 2; round++) {
        decode_estimate(d);
        decode_saves(d);
        decode_fetches(d);
        decode_memory(d);
        decode_fit(d, out);
    }
    decode_time(d, out);
}

// The decoder's memory, and the schedule.

void hth_decoder_fini(hth_decoder *d)
{
    void *all[] = {d->item,       d->begin_us,   d->start_us,   d->end_us,     d->delta,
                   d->used,       d->mode,       d->need,       d->until,      d->away,
                   d->back,       d->save,       d->saved_us,   d->fetched_us, d->host_us,
                   d->read_of,    d->run_of,     d->read,       d->run,        d->saves.head,
                   d->saves.next, d->aways.head, d->aways.next, d->backs.head, d->backs.next,
                   d->needs.head, d->needs.next, d->flight,     d->stay,       d->order};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
    memset(d, 0, sizeof *d);
}

hth_err hth_decoder_init(hth_decoder *d, const hth_step *m, uint64_t budget)
{
    size_t ns = (size_t)m->n_stages + 2, ng = (size_t)m->n_gaps + 1,
           nt = (size_t)m->p->n_tensors + 1;
    *d = (hth_decoder){.m = m, .budget = budget};
    struct {
        void *at;
        size_t n, size;
    } all[] = {{&d->item, ns, sizeof(int)},
               {&d->begin_us, ns, sizeof(double)},
               {&d->start_us, ns, sizeof(double)},
               {&d->end_us, ns, sizeof(double)},
               {&d->delta, ns, sizeof(int64_t)},
               {&d->used, ns, sizeof(uint64_t)},
               {&d->mode, ng, 1},
               {&d->need, ng, sizeof(int)},
               {&d->until, ng, sizeof(int)},
               {&d->away, ng, sizeof(int)},
               {&d->back, ng, sizeof(int)},
               {&d->save, ng, sizeof(int)},
               {&d->saved_us, ng, sizeof(double)},
               {&d->fetched_us, ng, sizeof(double)},
               {&d->host_us, nt, sizeof(double)},
               {&d->read_of, nt, sizeof(int)},
               {&d->run_of, ns, sizeof(int)},
               {&d->saves.head, ns, sizeof(int)},
               {&d->saves.next, ng, sizeof(int)},
               {&d->aways.head, ns, sizeof(int)},
               {&d->aways.next, ng, sizeof(int)},
               {&d->backs.head, ns, sizeof(int)},
               {&d->backs.next, ng, sizeof(int)},
               {&d->needs.head, ns, sizeof(int)},
               {&d->needs.next, ng, sizeof(int)},
               {&d->flight, 2 * ng, sizeof(int)},
               {&d->order, 2 * ng, sizeof(hth_flight)},
               {&d->stay, ng + 1, sizeof(hth_segment)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *block = hth_calloc(all[i].n, all[i].size);
        if (block == NULL) {
            hth_decoder_fini(d);
            return hth_fail(HTH_ENOMEM, "no memory to plan a step of %d nodes", m->n_stages);
        }
        memcpy(all[i].at, &block, sizeof block);
    }
    return HTH_OK;
}

static void schedule_segments(const hth_decoder *d, hth_schedule *s, int *last_of)
{
    const hth_step *m = d->m;
    for (int t = 0; t < m->p->n_tensors; t++) {
        last_of[t] = -1;
        if (m->bytes[t] > 0) {
            int n = memory_walk(d, t, &s->segment[s->n_segments]);
            s->n_segments += n;
            last_of[t] = n > 0 ? s->n_segments - 1 : -1;
            s->resident_bytes += !m->arena[t] && n == 0 ? m->bytes[t] : 0;
        }
    }
    for (int i = 0; i < s->n_segments; i++) {
        hth_segment *x = &s->segment[i];
        if (m->arena[x->tensor] && x->origin == HTH_FROM_NODE && memory_shares(d, x->tensor)) {
            x->inplace = last_of[m->pair[x->tensor]];
        }
    }
}

hth_err hth_decode_schedule(const hth_decoder *d, const hth_outcome *o, hth_schedule *out)
{
    const hth_step *m = d->m;
    *out = (hth_schedule){
        .n_stages = m->n_stages,
        .alt = hth_calloc((size_t)m->n_stages + 1, sizeof(int)),
        .segment = hth_calloc((size_t)(m->p->n_tensors + m->n_gaps) + 1, sizeof *out->segment),
        .rerun = hth_calloc((size_t)d->n_runs + 1, sizeof *out->rerun),
        .peak_bytes = o->peak_bytes,
        .time_us = o->time_us};
    int *last_of = hth_alloc(((size_t)m->p->n_tensors + 1) * sizeof *last_of);
    if (!out->alt || !out->segment || !out->rerun || !last_of) {
        hth_free(last_of);
        hth_schedule_fini(out);
        return hth_fail(HTH_ENOMEM, "no memory for a schedule of %d nodes", m->n_stages);
    }
    for (int s = 0; s < m->n_stages; s++) {
        out->alt[s] = m->menu[d->item[s]].alt;
        for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
            out->rerun[out->n_reruns++] =
                (hth_rerun){s, d->run[r].node, m->menu[d->item[d->run[r].node]].alt};
        }
    }
    schedule_segments(d, out, last_of);
    hth_free(last_of);
    return HTH_OK;
}
