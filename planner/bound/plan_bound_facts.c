// SPDX-License-Identifier: Apache-2.0
// What the dual knows before any price is set: bytes that are there in every plan, the fastest
// algorithm that can ever fit, and what recomputes read that is dead by then.
#include "planner/bound/plan_bound_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define FACTS_DEPTH    8    // of chains of recomputes
#define FACTS_DEAD     16   // of what they read, for each interval ..
#define FACTS_DEAD_MIN 4096 // .. and for all
#define FACTS_LOOK     32   // stages before a recompute that are looked at
#define FACTS_LARGE    0.01 // of the budget: tensors that are worth tying to a stage

void hth_bound_between(const hth_step *step, const hth_interval *interval, double *per_stage,
                       double add)
{
    if (interval->cyclic) { // [0, q) and (p, n)
        per_stage[0] += add;
        per_stage[interval->q] -= add;
        per_stage[interval->p + 1] += add;
        per_stage[step->n_stages] -= add;
    } else {
        per_stage[interval->p + 1] += add;
        per_stage[interval->q] -= add;
    }
}

// Adds what tensor t takes whatever the modes: from its first use to its last, less its intervals;
// an in-place pair once.
static void facts_tensor(const hth_bound *bound, int t, double *d)
{
    const hth_step *m = bound->m;
    int n = m->use_start[t + 1] - m->use_start[t], producer = m->p->tensors[t].producer;
    bool whole = !m->arena[t];
    double bytes = hth_bound_bytes(bound, t);
    if (m->bytes[t] == 0 || (n == 0 && (producer >= 0 || !whole))) {
        return;
    }
    int first = whole || producer < 0 ? 0 : m->use[m->use_start[t]];
    int last =
        whole || m->p->tensors[t].cls == HTH_MEM_OUTPUT ? m->n_stages - 1 : bound->last_use[t];
    d[first] += bytes;
    d[last + 1] -= bytes;
    if (m->pair[t] >= 0 && !whole) {
        d[first] -= bytes;
        d[first + 1] += bytes;
    }
    for (int g = m->interval_start[t]; g < m->interval_start[t + 1]; g++) {
        if (hth_bound_counts(m, &m->interval[g])) {
            hth_bound_between(m, &m->interval[g], d, -bytes);
        }
    }
}

static void facts_stages(hth_bound *bound)
{
    const hth_step *m = bound->m;
    double live = 0;
    memset(bound->use, 0, ((size_t)m->n_stages + 2) * sizeof *bound->use);
    for (int t = 0; t < m->p->n_tensors; t++) {
        facts_tensor(bound, t, bound->use);
    }
    for (int s = 0; s < m->n_stages; s++) {
        const hth_plan_node *n = &m->p->nodes[s];
        live += bound->use[s];
        bound->fixed[s] = live;
        double workspace = (double)hth_step_smallest(m, s)->workspace / bound->budget;
        bound->crest = fmax(bound->crest, live + workspace);
        bound->fast_us[s] = INFINITY; // then hth_bound_value says so
        for (int i = m->menu_start[s]; i < m->menu_end[s]; i++) {
            if (hth_bound_room(bound, s, (double)m->menu[i].workspace / bound->budget)) {
                bound->fast_us[s] = fmin(bound->fast_us[s], m->menu[i].time_us);
            }
        }
        for (int j = 0; j < n->n_outputs; j++) {
            bound->n_made[s] += m->arena[n->outputs[j]];
        }
    }
}

// Most tensors fit besides everything: one comparison tells.
static bool facts_fits_all(const hth_bound *bound, int t)
{
    return bound->crest + hth_bound_bytes(bound, t) <= BOUND_ROOM;
}

static bool facts_fits(const hth_bound *bound, int t, int s)
{
    double workspace = (double)hth_step_smallest(bound->m, s)->workspace / bound->budget;
    return hth_bound_room(bound, s, hth_bound_bytes(bound, t) + workspace);
}

int hth_bound_come(const hth_bound *bound, int u, int first, int s)
{
    int come = s;
    if (facts_fits_all(bound, u)) {
        return first;
    }
    while (come > first && s - come < FACTS_LOOK && facts_fits(bound, u, come - 1)) {
        come--;
    }
    return s - come < FACTS_LOOK ? come : first;
}

// The stages in which interval g's tensor finds no room. A cyclic interval's
// lie before its first use and after its last one.
static void facts_room(hth_bound *bound, int g)
{
    const hth_interval *interval = &bound->m->interval[g];
    bool fits = facts_fits_all(bound, interval->tensor);
    bound->leave[g] = interval->cyclic ? bound->m->n_stages : interval->q - 1;
    bound->come[g] = interval->cyclic ? 0 : interval->p + 1;
    for (int s = 0; s < bound->m->n_stages && !fits; s++) {
        bool before = s < interval->q && (interval->cyclic || s > interval->p);
        bool behind = interval->cyclic ? s > interval->p : before;
        if ((before || behind) && !facts_fits(bound, interval->tensor, s)) {
            bound->leaves[g] = true;
            bound->leave[g] = behind && s < bound->leave[g] ? s : bound->leave[g];
            bound->come[g] = before && s >= bound->come[g] ? s + 1 : bound->come[g];
        }
    }
}

// The time that stage s loses if `bytes` more are there: its fastest algorithms find no room.
static double facts_loss(const hth_bound *bound, int s, double bytes)
{
    const hth_step *m = bound->m;
    int i = m->menu_start[s];
    while (i < m->menu_end[s] &&
           !hth_bound_room(bound, s, bytes + (double)m->menu[i].workspace / bound->budget)) {
        i++;
    }
    return i < m->menu_end[s] ? m->menu[i].time_us - bound->fast_us[s] : 0;
}

// Ties tensor t to the stage that would lose most.
static void facts_tie(hth_bound *bound, int t)
{
    const hth_step *m = bound->m;
    double most = 0, bytes = hth_bound_bytes(bound, t);
    bound->apart_interval[t] = bound->apart_at[t] = -1;
    for (int g = m->interval_start[t]; bytes >= FACTS_LARGE && g < m->interval_start[t + 1]; g++) {
        const hth_interval *interval = &m->interval[g];
        bool may = hth_bound_counts(m, interval) && !interval->cyclic && !bound->leaves[g];
        for (int s = interval->p + 1; may && s < interval->q; s++) {
            double us = facts_loss(bound, s, bytes);
            if (us > most) {
                most = us;
                bound->apart_interval[t] = g;
                bound->apart_at[t] = s;
            }
        }
    }
    if (most > 0) {
        bound->apart_next[t] = bound->apart_head[bound->apart_at[t]];
        bound->apart_head[bound->apart_at[t]] = t;
    }
}

static bool facts_taken(const hth_step *step, int v, int u)
{
    const hth_plan_node *n = &step->p->nodes[v];
    bool taken = false;
    for (int k = 0; k < n->n_outputs; k++) {
        taken = taken || step->pair[n->outputs[k]] == u;
    }
    return taken;
}

// Whether fixed[s] has tensor x.
static bool facts_there(const hth_bound *bound, int x, int s)
{
    const hth_step *m = bound->m;
    bool there = s <= bound->last_use[x] || !m->arena[x] || m->p->tensors[x].cls == HTH_MEM_OUTPUT;
    for (int g = m->interval_start[x]; g < m->interval_start[x + 1]; g++) {
        const hth_interval *interval = &m->interval[g];
        bool inside = interval->cyclic ? s < interval->q || s > interval->p
                                       : s > interval->p && s < interval->q;
        there = there && !(inside && hth_bound_counts(m, interval));
    }
    return there;
}

// facts_reads sums what a recompute of v reads, but what it takes over; s: .. that fixed[s] has
// not, -1: all.
static double facts_reads(const hth_bound *bound, int v, int s)
{
    const hth_plan_node *n = &bound->m->p->nodes[v];
    double sum = 0;
    for (int j = 0; j < n->n_inputs; j++) {
        int x = n->inputs[j];
        bool seen = facts_taken(bound->m, v, x) || (s >= 0 && facts_there(bound, x, s));
        for (int i = 0; i < j; i++) {
            seen = seen || n->inputs[i] == x;
        }
        sum += seen ? 0 : hth_bound_bytes(bound, x);
    }
    return sum;
}

bool hth_bound_reruns(const hth_bound *bound, int v, int s, double own)
{
    return bound->crest + bound->rerun[v] + own <= BOUND_ROOM ||
           hth_bound_room(bound, s, own + facts_reads(bound, v, s));
}

int hth_bound_rerun(const hth_bound *bound, int v, int first, int s, double own, double own_before)
{
    for (int k = 0; s >= first && k < FACTS_LOOK; k++, s--) {
        if (hth_bound_reruns(bound, v, s, k == 0 ? own : own_before)) {
            return s;
        }
    }
    return s >= first ? s : first - 1;
}

// How many recomputes could read tensor u in one stage.
static int facts_readers(const hth_step *step, int u)
{
    int n = 0;
    for (int k = step->use_start[u]; k < step->use_start[u + 1]; k++) {
        n += step->use[k] != step->p->tensors[u].producer &&
             step->p->nodes[step->use[k]].recomputable;
    }
    return n > 0 ? n : 1;
}

// Whether input j of node v is dead after stage p, so that a recompute of v has to see to it.
static bool facts_is_dead(const hth_bound *bound, int v, int j, int p)
{
    const hth_step *m = bound->m;
    const hth_plan_node *n = &m->p->nodes[v];
    int u = n->inputs[j];
    for (int i = 0; i < j; i++) {
        if (n->inputs[i] == u) {
            return false;
        }
    }
    return m->arena[u] && m->bytes[u] > 0 && m->p->tensors[u].cls != HTH_MEM_OUTPUT &&
           m->p->tensors[u].producer >= 0 && bound->last_use[u] <= p;
}

// Lists what a recompute of v after stage p reads that is dead; an interval pays `share` of it,
// and `save` of a copy out. What is not listed makes the bound lower, no less true: layers in which
// every node reads all of the layer before have paths without number.
static hth_err facts_dead(hth_bound *bound, int v, int p, double share, double save, int depth,
                          int *head)
{
    const hth_step *m = bound->m;
    *head = -1;
    int most = FACTS_DEAD * m->n_intervals + FACTS_DEAD_MIN;
    for (int j = 0; j < m->p->nodes[v].n_inputs && depth < FACTS_DEPTH && bound->n_dead < most;
         j++) {
        if (!facts_is_dead(bound, v, j, p)) {
            continue;
        }
        if (HTH_GROW(bound->dead, bound->n_dead, bound->cap_dead) != 0) {
            return hth_no_memory("bounding a step of %d nodes", m->n_stages);
        }
        int u = m->p->nodes[v].inputs[j], at = bound->n_dead++, w = m->p->tensors[u].producer,
            reads;
        double part = 1.0 / facts_readers(m, u);
        bool taken = facts_taken(m, v, u);
        int leave = facts_fits_all(bound, u) ? m->n_stages : p + 1;
        while (leave < m->n_stages && facts_fits(bound, u, leave)) {
            leave++;
        }
        bound->dead[at] = (hth_dead){.tensor = u,
                                     .since = p,
                                     .share = share * part,
                                     .save = save * part,
                                     .next = *head,
                                     .reads = -1,
                                     .leave = leave,
                                     .taken = taken};
        *head = at;
        if (m->p->nodes[w].recomputable) {
            part /= bound->n_made[w];
            HTH_TRY(facts_dead(bound, w, p, share * part, save * part, depth + 1, &reads));
            bound->dead[at].reads = reads;
        }
    }
    return HTH_OK;
}

// A tensor is copied out at most once, however many read it. One with intervals of its own pays for
// the copy there; for one without, the shares of all readers add up to one copy at most.
static hth_err facts_saves(hth_bound *bound)
{
    const hth_step *m = bound->m;
    double *sum = hth_calloc((size_t)m->p->n_tensors + 1, sizeof *sum);
    if (sum == NULL) {
        return hth_no_memory("bounding a step of %d nodes", m->n_stages);
    }
    for (int i = 0; i < bound->n_dead; i++) {
        sum[bound->dead[i].tensor] += bound->dead[i].save;
    }
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        bool pays = hth_bound_counts(m, interval) && interval->can_offload;
        sum[interval->tensor] = pays ? INFINITY : sum[interval->tensor];
    }
    for (int i = 0; i < bound->n_dead; i++) {
        bound->dead[i].save /= fmax(sum[bound->dead[i].tensor], 1);
    }
    hth_free(sum);
    return HTH_OK;
}

// The part of interval g in all intervals of its tensor: what they need once is mostly for the
// longest.
static double facts_part(const hth_step *step, int g)
{
    int t = step->interval[g].tensor;
    double all = 0;
    for (int h = step->interval_start[t]; h < step->interval_start[t + 1]; h++) {
        bool other = step->interval[h].cyclic || !hth_bound_counts(step, &step->interval[h]);
        all += other ? 0 : step->interval[h].q - step->interval[h].p;
    }
    return (step->interval[g].q - step->interval[g].p) / all;
}

hth_err hth_bound_facts(hth_bound *bound)
{
    const hth_step *m = bound->m;
    for (int t = 0; t < m->p->n_tensors; t++) {
        int end = m->use_start[t + 1];
        bound->last_use[t] = end > m->use_start[t] ? m->use[end - 1] : -1;
    }
    facts_stages(bound);
    for (int s = 0; s < m->n_stages; s++) {
        bound->rerun[s] = facts_reads(bound, s, -1);
    }
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        int v = m->p->tensors[interval->tensor].producer;
        bound->dead_of[g] = -1;
        facts_room(bound, g);
        if (hth_bound_counts(m, interval) && interval->can_rerun) {
            double share = 1.0 / bound->n_made[v], save = share * facts_part(m, g);
            HTH_TRY(facts_dead(bound, v, interval->p, share, save, 0, &bound->dead_of[g]));
        }
    }
    HTH_TRY(facts_saves(bound));
    memset(bound->apart_head, -1, (size_t)m->n_stages * sizeof *bound->apart_head);
    for (int t = 0; t < m->p->n_tensors; t++) {
        facts_tie(bound, t);
    }
    return HTH_OK;
}
