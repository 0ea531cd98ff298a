// SPDX-License-Identifier: Apache-2.0
// From modes to times and bytes: copies, the exact rules of time, and the decoder's memory. See
// plan_decode.h.
#include "planner/plan_decode.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define DECODE_FAR 1.02 // times the limit, which a second round does not make up for

// Which copies out a stage waits for.
static void decode_aways(hth_decoder *decoder)
{
    hth_lists_clear(&decoder->aways, decoder->m->n_stages + 1);
    for (int k = decoder->n_off - 1; k >= 0; k--) {
        if (decoder->save[decoder->off[k]] >= 0) {
            hth_lists_add(&decoder->aways, decoder->away[decoder->off[k]], decoder->off[k]);
        }
    }
}

// When stages would begin if nothing waited; with `waits`, if they waited for the copies out as the
// last round has them.
static void decode_estimate(hth_decoder *decoder, bool waits)
{
    const hth_step *m = decoder->m;
    double at = 0, lane = 0;
    if (waits) {
        decode_aways(decoder);
    }
    for (int s = 0; s < m->n_stages; s++) {
        for (int g = waits ? decoder->aways.head[s] : -1; g >= 0; g = decoder->aways.next[g]) {
            at = hth_later(at, decoder->saved_us[g]);
        }
        decoder->begin_us[s] = at;
        at += m->menu[decoder->item[s]].time_us;
        for (int r = decoder->run_of[s]; r >= 0; r = decoder->run[r].next) {
            at += m->menu[decoder->item[decoder->run[r].node]].time_us;
        }
        for (int g = waits ? decoder->saves.head[s] : -1; g >= 0; g = decoder->saves.next[g]) {
            lane = decoder->saved_us[g] = hth_later(lane, at) + m->d2h_us[m->interval[g].tensor];
        }
    }
    decoder->begin_us[m->n_stages] = at;
}

static void decode_saves(hth_decoder *decoder)
{
    const hth_step *m = decoder->m;
    int n = m->n_stages, after = 0; // first stage that would begin when the lane is free
    double lane = 0;
    hth_lists_clear(&decoder->saves, n);
    for (int k = 0; k < decoder->n_off; k++) {
        int g = decoder->off[k];
        if (decoder->save[g] >= 0) {
            hth_lists_add(&decoder->saves, decoder->save[g], g);
        } else {
            decoder->away[g] = (m->interval[g].cyclic ? decoder->until[g] : m->interval[g].p) + 1;
        }
    }
    for (int s = 0; s < n; s++) {
        for (int g = decoder->saves.head[s]; g >= 0; g = decoder->saves.next[g]) {
            const hth_interval *interval = &m->interval[g];
            int first = (interval->cyclic ? decoder->until[g] : interval->p) + 1;
            int limit = interval->cyclic ? n : decoder->need[g] - 1;
            lane = decoder->saved_us[g] =
                hth_later(lane, decoder->begin_us[s + 1]) + m->d2h_us[interval->tensor];
            while (after < n && decoder->begin_us[after] < lane) {
                after++;
            }
            int b = after > first ? after : first;
            decoder->away[g] = b < limit ? b : limit;
        }
    }
}

static void decode_fetches(hth_decoder *decoder)
{
    const hth_step *m = decoder->m;
    int n = m->n_stages, before = n;
    double latest = INFINITY;
    hth_lists_clear(&decoder->needs, n);
    for (int k = 0; k < decoder->n_off; k++) {
        hth_lists_add(&decoder->needs, decoder->need[decoder->off[k]], decoder->off[k]);
    }
    for (int s = n - 1; s >= 0; s--) {
        for (int g = decoder->needs.head[s]; g >= 0; g = decoder->needs.next[g]) {
            latest = hth_sooner(latest, decoder->begin_us[s]) - m->h2d_us[m->interval[g].tensor];
            while (before > 0 && decoder->begin_us[before] > latest) {
                before--;
            }
            int first = m->interval[g].cyclic ? 0 : decoder->away[g];
            int c = before < s ? before : s;
            decoder->back[g] = c > first ? c : first;
        }
    }
}

static void time_lists(hth_decoder *decoder)
{
    const hth_step *m = decoder->m;
    hth_lists_clear(&decoder->aways, m->n_stages + 1);
    hth_lists_clear(&decoder->backs, m->n_stages + 1);
    for (int k = decoder->n_off - 1; k >= 0; k--) {
        if (decoder->save[decoder->off[k]] >= 0) {
            hth_lists_add(&decoder->aways, decoder->away[decoder->off[k]], decoder->off[k]);
        }
    }
    for (int s = m->n_stages - 1; s >= 0; s--) {
        for (int g = decoder->needs.head[s]; g >= 0; g = decoder->needs.next[g]) {
            hth_lists_add(&decoder->backs, decoder->back[g], g);
        }
    }
}

void hth_decode_time(hth_decoder *decoder, hth_outcome *out)
{
    const hth_step *m = decoder->m;
    double end = 0, in = 0, away = 0, compute = 0, link = 0;
    int copies = 0;
    hth_plan_work_add(HTH_WORK_TIME, m->n_stages + decoder->n_off);
    time_lists(decoder);
    for (int k = 0; k < decoder->n_off; k++) {
        decoder->host_us[m->interval[decoder->off[k]].tensor] = 0;
    }
    for (int s = 0; s < m->n_stages; s++) {
        double at = end;
        for (int g = decoder->aways.head[s]; g >= 0; g = decoder->aways.next[g]) {
            at = hth_later(at, decoder->saved_us[g]);
        }
        for (int g = decoder->backs.head[s]; g >= 0; g = decoder->backs.next[g]) {
            int t = m->interval[g].tensor;
            in = hth_later(hth_later(in, at), m->interval[g].cyclic ? 0 : decoder->host_us[t]) +
                 m->h2d_us[t];
            decoder->fetched_us[g] = in;
            link += m->h2d_us[t];
            copies++;
        }
        for (int g = decoder->needs.head[s]; g >= 0; g = decoder->needs.next[g]) {
            at = hth_later(at, decoder->fetched_us[g]);
        }
        decoder->start_us[s] = at;
        for (int r = decoder->run_of[s]; r >= 0; r = decoder->run[r].next) {
            at += m->menu[decoder->item[decoder->run[r].node]].time_us;
        }
        end = decoder->end_us[s] = at + m->menu[decoder->item[s]].time_us;
        compute += end - decoder->start_us[s];
        for (int g = decoder->saves.head[s]; g >= 0; g = decoder->saves.next[g]) {
            int t = m->interval[g].tensor;
            away = hth_later(away, end) + m->d2h_us[t];
            decoder->saved_us[g] = decoder->host_us[t] = away;
            link += m->d2h_us[t];
            copies++;
        }
    }
    double time = hth_later(end, away);
    out->time_us = hth_plan_slowed(m->p, time, compute, link, copies);
    out->compute_us = compute;
    out->stall_us = time - compute;
    out->link_us = link;
}

// One round of putting copies and algorithms in place; false: given up.
static bool fit_round(hth_decoder *decoder, bool waits, bool all, double limit_us, hth_outcome *out)
{
    hth_plan_work_add(HTH_WORK_STAGE, decoder->m->n_stages);
    hth_plan_work_add(HTH_WORK_COPY, decoder->n_off + decoder->n_runs);
    decode_estimate(decoder, waits);
    decoder->hurried = false;
    decode_saves(decoder);
    decode_fetches(decoder);
    hth_decode_memory(decoder);
    return hth_decode_room(decoder, all, limit_us, out);
}

// A round that knows nothing of waits and of slow algorithms, and another one that knows those of
// the first.
bool hth_decode_fit(hth_decoder *decoder, bool all, double limit_us, hth_outcome *out)
{
    const hth_step *m = decoder->m;
    size_t items = (size_t)m->n_stages * sizeof *decoder->item;
    memcpy(decoder->item, m->menu_start, items);
    if (!fit_round(decoder, false, all, limit_us, out)) {
        return false;
    }
    bool hurried = decoder->hurried;
    if (out->excess > 0 || // whether it fits is the modes' doing
        (!hurried && memcmp(decoder->item, m->menu_start, items) == 0)) {
        return true;
    }
    double first_us = INFINITY;
    if (hurried) {
        hth_decode_time(decoder, out);
        first_us = out->time_us;
        if (first_us > limit_us * DECODE_FAR) {
            return true;
        }
    }
    if (!fit_round(decoder, true, all, hurried ? INFINITY : limit_us, out)) {
        return false;
    }
    if (hurried) { // what waited may have been better off
        hth_decode_time(decoder, out);
        if (out->time_us > first_us) {
            memcpy(decoder->item, m->menu_start, items);
            fit_round(decoder, false, all, INFINITY, out);
        }
    }
    return true;
}

void hth_decode(hth_decoder *decoder, const uint8_t *mode, hth_outcome *out)
{
    hth_decode_needs(decoder, mode, INFINITY);
    hth_decode_fit(decoder, true, INFINITY, out);
    hth_decode_time(decoder, out);
}

static void fixed_stages(hth_decoder *decoder, const hth_fixed *fixed)
{
    const hth_step *m = decoder->m;
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        if (decoder->mode[g] != HTH_INTERVAL_OFFLOAD) {
            continue;
        }
        int gone = (interval->cyclic ? decoder->until[g] : interval->p) + 1,
            need = decoder->need[g];
        int back = fixed->back[g] < need ? fixed->back[g] : need;
        int end = interval->cyclic ? m->n_stages : back;
        int away = fixed->away[g] < end ? fixed->away[g] : end;
        decoder->away[g] = away > gone ? away : gone;
        decoder->back[g] = interval->cyclic || back > decoder->away[g] ? back : decoder->away[g];
    }
}

static void fixed_bytes(hth_decoder *decoder, hth_outcome *out)
{
    const hth_step *m = decoder->m;
    *out = (hth_outcome){.worst = -1};
    decoder->live = 0;
    for (int s = 0; s < m->n_stages; s++) {
        decoder->live += decoder->delta[s];
        decoder->used[s] = (uint64_t)decoder->live;
        uint64_t most = m->menu[decoder->item[s]].workspace;
        for (int r = decoder->run_of[s]; r >= 0; r = decoder->run[r].next) {
            uint64_t b =
                decoder->run[r].scratch + m->menu[decoder->item[decoder->run[r].node]].workspace;
            most = b > most ? b : most;
        }
        uint64_t all = decoder->used[s] + most;
        out->excess += all > decoder->budget ? (double)(all - decoder->budget) : 0;
        out->mean += (double)decoder->live / m->n_stages;
        out->worst = all > decoder->budget && all > out->peak_bytes ? s : out->worst;
        out->peak_bytes = all > out->peak_bytes ? all : out->peak_bytes;
    }
}

void hth_decode_fixed(hth_decoder *decoder, const hth_fixed *fixed, hth_outcome *out)
{
    hth_decode_needs(decoder, fixed->mode, INFINITY);
    memcpy(decoder->item, fixed->item, (size_t)decoder->m->n_stages * sizeof *decoder->item);
    decode_estimate(decoder, false);
    decode_saves(decoder); // the order of the copies, ..
    decode_fetches(decoder);
    fixed_stages(decoder, fixed); // .. but not when
    hth_decode_memory(decoder);
    fixed_bytes(decoder, out);
    hth_decode_time(decoder, out);
}

void hth_decoder_fini(hth_decoder *decoder)
{
    void *all[] = {
        decoder->item,       decoder->begin_us,   decoder->start_us,   decoder->end_us,
        decoder->delta,      decoder->used,       decoder->mode,       decoder->need,
        decoder->until,      decoder->away,       decoder->back,       decoder->save,
        decoder->saved_us,   decoder->fetched_us, decoder->host_us,    decoder->read_of,
        decoder->run_of,     decoder->read,       decoder->run,        decoder->saves.head,
        decoder->saves.next, decoder->aways.head, decoder->aways.next, decoder->backs.head,
        decoder->backs.next, decoder->needs.head, decoder->needs.next, decoder->flight,
        decoder->residency,  decoder->order,      decoder->need0,      decoder->until0,
        decoder->moved,      decoder->off,        decoder->group,      decoder->group_of,
        decoder->groups,     decoder->reader};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
    memset(decoder, 0, sizeof *decoder);
}

hth_err hth_decoder_init(hth_decoder *decoder, const hth_step *step, uint64_t budget)
{
    size_t ns = (size_t)step->n_stages + 2, ng = (size_t)step->n_intervals + 1,
           nt = (size_t)step->p->n_tensors + 1;
    *decoder = (hth_decoder){.m = step, .budget = budget};
    struct {
        void *at;
        size_t n, size;
    } all[] = {{&decoder->item, ns, sizeof(int)},
               {&decoder->begin_us, ns, sizeof(double)},
               {&decoder->start_us, ns, sizeof(double)},
               {&decoder->end_us, ns, sizeof(double)},
               {&decoder->delta, ns, sizeof(int64_t)},
               {&decoder->used, ns, sizeof(uint64_t)},
               {&decoder->mode, ng, 1},
               {&decoder->need, ng, sizeof(int)},
               {&decoder->until, ng, sizeof(int)},
               {&decoder->away, ng, sizeof(int)},
               {&decoder->back, ng, sizeof(int)},
               {&decoder->save, ng, sizeof(int)},
               {&decoder->saved_us, ng, sizeof(double)},
               {&decoder->fetched_us, ng, sizeof(double)},
               {&decoder->host_us, nt, sizeof(double)},
               {&decoder->read_of, nt, sizeof(int)},
               {&decoder->run_of, ns, sizeof(int)},
               {&decoder->saves.head, ns, sizeof(int)},
               {&decoder->saves.next, ng, sizeof(int)},
               {&decoder->aways.head, ns, sizeof(int)},
               {&decoder->aways.next, ng, sizeof(int)},
               {&decoder->backs.head, ns, sizeof(int)},
               {&decoder->backs.next, ng, sizeof(int)},
               {&decoder->needs.head, ns, sizeof(int)},
               {&decoder->needs.next, ng, sizeof(int)},
               {&decoder->need0, ng, sizeof(int)},
               {&decoder->until0, ng, sizeof(int)},
               {&decoder->moved, nt, sizeof(int)},
               {&decoder->off, ng, sizeof(int)},
               {&decoder->flight, 2 * ng, sizeof(int)},
               {&decoder->order, 2 * ng, sizeof(hth_flight)},
               {&decoder->group_of, ng, sizeof(int)},
               {&decoder->groups, ng, sizeof(int)},
               {&decoder->reader, ns, sizeof(int)},
               {&decoder->residency, ng + ns, sizeof(hth_segment)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *block = hth_calloc(all[i].n, all[i].size);
        if (block == NULL) {
            hth_decoder_fini(decoder);
            return hth_no_memory("planning a step of %d nodes", step->n_stages);
        }
        memcpy(all[i].at, &block, sizeof block);
    }
    for (int g = 0; g < step->n_intervals; g++) {
        decoder->need0[g] = step->interval[g].q;
        decoder->until0[g] = step->interval[g].cyclic ? step->interval[g].p : -1;
    }
    return HTH_OK;
}
