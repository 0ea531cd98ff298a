// SPDX-License-Identifier: Apache-2.0
// From modes to times and bytes: copies, the exact rules of time, and the decoder's memory. See
// plan_decode.h.
#include "planner/plan_decode.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define DECODE_FAR 1.02 // times the limit, which a second round does not make up for

// Which copies out a stage waits for.
static void decode_aways(hth_decoder *d)
{
    hth_lists_clear(&d->aways, d->m->n_stages + 1);
    for (int k = d->n_off - 1; k >= 0; k--) {
        if (d->save[d->off[k]] >= 0) {
            hth_lists_add(&d->aways, d->away[d->off[k]], d->off[k]);
        }
    }
}

// When stages would begin if nothing waited; with `waits`, if they waited for the copies out as the
// last round has them.
static void decode_estimate(hth_decoder *d, bool waits)
{
    const hth_step *m = d->m;
    double at = 0, lane = 0;
    if (waits) {
        decode_aways(d);
    }
    for (int s = 0; s < m->n_stages; s++) {
        for (int g = waits ? d->aways.head[s] : -1; g >= 0; g = d->aways.next[g]) {
            at = hth_later(at, d->saved_us[g]);
        }
        d->begin_us[s] = at;
        at += m->menu[d->item[s]].time_us;
        for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
            at += m->menu[d->item[d->run[r].node]].time_us;
        }
        for (int g = waits ? d->saves.head[s] : -1; g >= 0; g = d->saves.next[g]) {
            lane = d->saved_us[g] = hth_later(lane, at) + m->d2h_us[m->interval[g].tensor];
        }
    }
    d->begin_us[m->n_stages] = at;
}

static void decode_saves(hth_decoder *d)
{
    const hth_step *m = d->m;
    int n = m->n_stages, after = 0; // first stage that would begin when the lane is free
    double lane = 0;
    hth_lists_clear(&d->saves, n);
    for (int k = 0; k < d->n_off; k++) {
        int g = d->off[k];
        if (d->save[g] >= 0) {
            hth_lists_add(&d->saves, d->save[g], g);
        } else {
            d->away[g] = (m->interval[g].cyclic ? d->until[g] : m->interval[g].p) + 1;
        }
    }
    for (int s = 0; s < n; s++) {
        for (int g = d->saves.head[s]; g >= 0; g = d->saves.next[g]) {
            const hth_interval *interval = &m->interval[g];
            int first = (interval->cyclic ? d->until[g] : interval->p) + 1;
            int limit = interval->cyclic ? n : d->need[g] - 1;
            lane = d->saved_us[g] =
                hth_later(lane, d->begin_us[s + 1]) + m->d2h_us[interval->tensor];
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
    hth_lists_clear(&d->needs, n);
    for (int k = 0; k < d->n_off; k++) {
        hth_lists_add(&d->needs, d->need[d->off[k]], d->off[k]);
    }
    for (int s = n - 1; s >= 0; s--) {
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            latest = hth_sooner(latest, d->begin_us[s]) - m->h2d_us[m->interval[g].tensor];
            while (before > 0 && d->begin_us[before] > latest) {
                before--;
            }
            int first = m->interval[g].cyclic ? 0 : d->away[g], c = before < s ? before : s;
            d->back[g] = c > first ? c : first;
        }
    }
}

static void time_lists(hth_decoder *d)
{
    const hth_step *m = d->m;
    hth_lists_clear(&d->aways, m->n_stages + 1);
    hth_lists_clear(&d->backs, m->n_stages + 1);
    for (int k = d->n_off - 1; k >= 0; k--) {
        if (d->save[d->off[k]] >= 0) {
            hth_lists_add(&d->aways, d->away[d->off[k]], d->off[k]);
        }
    }
    for (int s = m->n_stages - 1; s >= 0; s--) {
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            hth_lists_add(&d->backs, d->back[g], g);
        }
    }
}

void hth_decode_time(hth_decoder *d, hth_outcome *out)
{
    const hth_step *m = d->m;
    double end = 0, in = 0, away = 0, compute = 0, link = 0;
    time_lists(d);
    for (int k = 0; k < d->n_off; k++) {
        d->host_us[m->interval[d->off[k]].tensor] = 0;
    }
    for (int s = 0; s < m->n_stages; s++) {
        double at = end;
        for (int g = d->aways.head[s]; g >= 0; g = d->aways.next[g]) {
            at = hth_later(at, d->saved_us[g]);
        }
        for (int g = d->backs.head[s]; g >= 0; g = d->backs.next[g]) {
            int t = m->interval[g].tensor;
            in = hth_later(hth_later(in, at), m->interval[g].cyclic ? 0 : d->host_us[t]) +
                 m->h2d_us[t];
            d->fetched_us[g] = in;
            link += m->h2d_us[t];
        }
        for (int g = d->needs.head[s]; g >= 0; g = d->needs.next[g]) {
            at = hth_later(at, d->fetched_us[g]);
        }
        d->start_us[s] = at;
        for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
            at += m->menu[d->item[d->run[r].node]].time_us;
        }
        end = d->end_us[s] = at + m->menu[d->item[s]].time_us;
        compute += end - d->start_us[s];
        for (int g = d->saves.head[s]; g >= 0; g = d->saves.next[g]) {
            int t = m->interval[g].tensor;
            away = hth_later(away, end) + m->d2h_us[t];
            d->saved_us[g] = d->host_us[t] = away;
            link += m->d2h_us[t];
        }
    }
    double time = hth_later(end, away);
    out->time_us = hth_plan_slowed(m->p, time, compute, link);
    out->compute_us = compute;
    out->stall_us = time - compute;
    out->link_us = link;
}

// One round of putting copies and algorithms in place; false: given up.
static bool fit_round(hth_decoder *d, bool waits, bool all, double limit_us, hth_outcome *out)
{
    decode_estimate(d, waits);
    d->hurried = false;
    decode_saves(d);
    decode_fetches(d);
    hth_decode_memory(d);
    return hth_decode_room(d, all, limit_us, out);
}

// A round that knows nothing of waits and of slow algorithms, and another one that knows those of
// the first.
bool hth_decode_fit(hth_decoder *d, bool all, double limit_us, hth_outcome *out)
{
    const hth_step *m = d->m;
    size_t items = (size_t)m->n_stages * sizeof *d->item;
    memcpy(d->item, m->menu_start, items);
    if (!fit_round(d, false, all, limit_us, out)) {
        return false;
    }
    bool hurried = d->hurried;
    if (out->excess > 0 || // whether it fits is the modes' doing
        (!hurried && memcmp(d->item, m->menu_start, items) == 0)) {
        return true;
    }
    double first_us = INFINITY;
    if (hurried) {
        hth_decode_time(d, out);
        first_us = out->time_us;
        if (first_us > limit_us * DECODE_FAR) {
            return true;
        }
    }
    if (!fit_round(d, true, all, hurried ? INFINITY : limit_us, out)) {
        return false;
    }
    if (hurried) { // what waited may have been better off
        hth_decode_time(d, out);
        if (out->time_us > first_us) {
            memcpy(d->item, m->menu_start, items);
            fit_round(d, false, all, INFINITY, out);
        }
    }
    return true;
}

void hth_decode(hth_decoder *d, const uint8_t *mode, hth_outcome *out)
{
    hth_decode_needs(d, mode, INFINITY);
    hth_decode_fit(d, true, INFINITY, out);
    hth_decode_time(d, out);
}

static void fixed_stages(hth_decoder *d, const hth_fixed *f)
{
    const hth_step *m = d->m;
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        if (d->mode[g] != HTH_INTERVAL_OFFLOAD) {
            continue;
        }
        int gone = (interval->cyclic ? d->until[g] : interval->p) + 1, need = d->need[g];
        int back = f->back[g] < need ? f->back[g] : need;
        int end = interval->cyclic ? m->n_stages : back;
        int away = f->away[g] < end ? f->away[g] : end;
        d->away[g] = away > gone ? away : gone;
        d->back[g] = interval->cyclic || back > d->away[g] ? back : d->away[g];
    }
}

static void fixed_bytes(hth_decoder *d, hth_outcome *out)
{
    const hth_step *m = d->m;
    *out = (hth_outcome){.worst = -1};
    d->live = 0;
    for (int s = 0; s < m->n_stages; s++) {
        d->live += d->delta[s];
        d->used[s] = (uint64_t)d->live;
        uint64_t most = m->menu[d->item[s]].workspace;
        for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
            uint64_t b = d->run[r].scratch + m->menu[d->item[d->run[r].node]].workspace;
            most = b > most ? b : most;
        }
        uint64_t all = d->used[s] + most;
        out->excess += all > d->budget ? (double)(all - d->budget) : 0;
        out->mean += (double)d->live / m->n_stages;
        out->worst = all > d->budget && all > out->peak_bytes ? s : out->worst;
        out->peak_bytes = all > out->peak_bytes ? all : out->peak_bytes;
    }
}

void hth_decode_fixed(hth_decoder *d, const hth_fixed *f, hth_outcome *out)
{
    hth_decode_needs(d, f->mode, INFINITY);
    memcpy(d->item, f->item, (size_t)d->m->n_stages * sizeof *d->item);
    decode_estimate(d, false);
    decode_saves(d); // the order of the copies, ..
    decode_fetches(d);
    fixed_stages(d, f); // .. but not when
    hth_decode_memory(d);
    fixed_bytes(d, out);
    hth_decode_time(d, out);
}

void hth_decoder_fini(hth_decoder *d)
{
    void *all[] = {d->item,       d->begin_us,   d->start_us,   d->end_us,     d->delta,
                   d->used,       d->mode,       d->need,       d->until,      d->away,
                   d->back,       d->save,       d->saved_us,   d->fetched_us, d->host_us,
                   d->read_of,    d->run_of,     d->read,       d->run,        d->saves.head,
                   d->saves.next, d->aways.head, d->aways.next, d->backs.head, d->backs.next,
                   d->needs.head, d->needs.next, d->flight,     d->residency,  d->order,
                   d->need0,      d->until0,     d->moved,      d->off,        d->group,
                   d->group_of,   d->groups,     d->reader};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
    memset(d, 0, sizeof *d);
}

hth_err hth_decoder_init(hth_decoder *d, const hth_step *m, uint64_t budget)
{
    size_t ns = (size_t)m->n_stages + 2, ng = (size_t)m->n_intervals + 1,
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
               {&d->need0, ng, sizeof(int)},
               {&d->until0, ng, sizeof(int)},
               {&d->moved, nt, sizeof(int)},
               {&d->off, ng, sizeof(int)},
               {&d->flight, 2 * ng, sizeof(int)},
               {&d->order, 2 * ng, sizeof(hth_flight)},
               {&d->group_of, ng, sizeof(int)},
               {&d->groups, ng, sizeof(int)},
               {&d->reader, ns, sizeof(int)},
               {&d->residency, ng + ns, sizeof(hth_segment)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *block = hth_calloc(all[i].n, all[i].size);
        if (block == NULL) {
            hth_decoder_fini(d);
            return hth_fail(HTH_ENOMEM, "no memory to plan a step of %d nodes", m->n_stages);
        }
        memcpy(all[i].at, &block, sizeof block);
    }
    for (int g = 0; g < m->n_intervals; g++) {
        d->need0[g] = m->interval[g].q;
        d->until0[g] = m->interval[g].cyclic ? m->interval[g].p : -1;
    }
    return HTH_OK;
}
