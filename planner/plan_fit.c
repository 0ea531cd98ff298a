// SPDX-License-Identifier: Apache-2.0
// Forwards through the stages of a decoded step: where the bytes are too many, the copy that hurts
// least is hurried or put off; then each node gets the fastest algorithm that finds room.
#include "planner/plan_decode.h"

// The bytes that stage s needs besides its live ones, at least.
static uint64_t fit_min(const hth_decoder *decoder, int s)
{
    const hth_step *m = decoder->m;
    uint64_t most = hth_step_smallest(m, s)->workspace;
    for (int r = decoder->run_of[s]; r >= 0; r = decoder->run[r].next) {
        uint64_t b =
            decoder->run[r].scratch + hth_step_smallest(m, decoder->run[r].node)->workspace;
        most = b > most ? b : most;
    }
    return most;
}

static bool fit_leaves(const hth_decoder *decoder, int g, int s)
{
    const hth_interval *interval = &decoder->m->interval[g];
    return decoder->away[g] > s && s > (interval->cyclic ? decoder->until[g] : interval->p);
}

// What it costs, per byte, to hurry interval g's copy out in stage s, or to put its copy in off.
static double fit_hurt(const hth_decoder *decoder, int g, int s)
{
    const hth_step *m = decoder->m;
    int t = m->interval[g].tensor;
    double us = fit_leaves(decoder, g, s)
                    ? decoder->saved_us[g] - decoder->begin_us[s]
                    : decoder->begin_us[s + 1] + m->h2d_us[t] - decoder->begin_us[decoder->need[g]];
    return hth_later(us, 0) / (double)m->bytes[t];
}

static bool fit_returns(const hth_decoder *decoder, int g, int s)
{
    return decoder->back[g] <= s && s < decoder->need[g];
}

// Whether interval g's copy in was put off in stage s: in the next one it is in flight again.
static bool fit_waits(const hth_decoder *decoder, int g, int s)
{
    return decoder->back[g] == s + 1 && s + 1 < decoder->need[g];
}

static bool fit_before(hth_flight a, hth_flight b)
{
    return a.hurt < b.hurt || (a.hurt == b.hurt && a.interval < b.interval);
}

// Moves element i of the heap h[0..n) down to where it belongs.
static void fit_sift(hth_flight *flight, int n, int i)
{
    hth_flight x = flight[i];
    for (int k = 2 * i + 1; k < n; k = 2 * i + 1) {
        k += k + 1 < n && fit_before(flight[k + 1], flight[k]);
        if (!fit_before(flight[k], x)) {
            break;
        }
        flight[i] = flight[k];
        i = k;
    }
    flight[i] = x;
}

// Takes back what fit_repair did to an interval, if stage s has room for it.
static void fit_undo(hth_decoder *decoder, int s, hth_flight flight, int64_t *over)
{
    const hth_step *m = decoder->m;
    int64_t bytes =
        flight.interval >= 0 ? (int64_t)m->bytes[m->interval[flight.interval].tensor] : 0;
    int was = (int)flight.hurt;
    if (flight.interval < 0 || *over + bytes > 0) {
        return;
    }
    if (decoder->away[flight.interval] == s && was > s) {
        decoder->delta[was] -= bytes;
        decoder->away[flight.interval] = was;
    } else {
        decoder->delta[s + 1] -= bytes;
        decoder->back[flight.interval] = was;
    }
    decoder->live += bytes;
    *over += bytes;
}

// Makes a heap of the copies in flight in stage s, by what they hurt; returns how many.
static int fit_heap(hth_decoder *decoder, int s, int *n_flight)
{
    int n = 0;
    for (int i = 0; i < *n_flight;) {
        int g = decoder->flight[i];
        bool moves = fit_leaves(decoder, g, s) || fit_returns(decoder, g, s);
        if (moves) {
            decoder->order[n++] = (hth_flight){fit_hurt(decoder, g, s), g};
        }
        if (moves || fit_waits(decoder, g, s)) {
            i++;
        } else {
            decoder->flight[i] = decoder->flight[--*n_flight];
        }
    }
    for (int i = n / 2 - 1; i >= 0; i--) {
        fit_sift(decoder->order, n, i);
    }
    hth_plan_work_add(HTH_WORK_FLIGHT, n);
    return n;
}

// Has a copy in flight give way in stage s; *was: where it was. Returns the bytes that this frees.
static int64_t fit_yield(hth_decoder *decoder, int s, int g, int *was)
{
    int64_t bytes = (int64_t)decoder->m->bytes[decoder->m->interval[g].tensor];
    if (fit_leaves(decoder, g, s)) {
        *was = decoder->away[g];
        decoder->delta[*was] += bytes;
        decoder->away[g] = s;
        decoder->hurried = true;
    } else if (fit_returns(decoder, g, s)) {
        *was = decoder->back[g];
        decoder->delta[s + 1] += bytes;
        decoder->back[g] = s + 1;
    } else {
        return 0; // it was there twice: leaving, and about to come back
    }
    decoder->live -= bytes;
    return bytes;
}

// Frees bytes of copies in flight in stage s, those that hurt least first, until `over` is gone.
static void fit_repair(hth_decoder *decoder, int s, int64_t over, int *n_flight)
{
    int n = fit_heap(decoder, s, n_flight), all = n;
    for (; n > 0 && over > 0; fit_sift(decoder->order, n, 0)) {
        int was, g = decoder->order[0].interval;
        decoder->order[0] = decoder->order[--n];
        int64_t bytes = fit_yield(decoder, s, g, &was);
        // After the heap: what was taken, and where it was.
        decoder->order[n] = bytes > 0 ? (hth_flight){was, g} : (hth_flight){0, -1};
        over -= bytes;
    }
    for (; n < all; n++) { // the last one may have made others needless
        fit_undo(decoder, s, decoder->order[n], &over);
    }
}

static int fit_item(const hth_step *step, int node, int64_t room)
{
    int i = step->menu_start[node];
    while (i + 1 < step->menu_end[node] && (int64_t)step->menu[i].workspace > room) {
        i++;
    }
    return i;
}

// Has copies in flight give way where a faster algorithm of stage s gains more than that costs.
static void fit_hurry(hth_decoder *decoder, int s, int *n_flight)
{
    const hth_step *m = decoder->m;
    int64_t room = (int64_t)decoder->budget - decoder->live;
    int item = fit_item(m, s, room), was, yield = 0;
    if (item == m->menu_start[s]) {
        return;
    }
    int n = fit_heap(decoder, s, n_flight), all = n;
    double wait = 0, late = 0, best = 0;
    while (n > 0) {
        hth_flight x = decoder->order[0];
        bool twice = n < all && decoder->order[n].interval == x.interval; // it left and returns
        double bytes = twice ? 0 : (double)m->bytes[m->interval[x.interval].tensor];
        bool leaves = fit_leaves(decoder, x.interval, s);
        wait = leaves ? hth_later(wait, x.hurt * bytes) : wait; // for the last of them
        late += leaves ? 0 : x.hurt * bytes;
        room += (int64_t)bytes;
        decoder->order[0] = decoder->order[--n];
        fit_sift(decoder->order, n, 0);
        decoder->order[n] = x; // after the heap, the last one first
        double gain = m->menu[item].time_us - m->menu[fit_item(m, s, room)].time_us - wait - late;
        yield = gain > best ? all - n : yield;
        best = hth_later(best, gain);
    }
    for (int i = 0; i < yield; i++) {
        fit_yield(decoder, s, decoder->order[all - 1 - i].interval, &was);
    }
}

// Takes the copies that begin to leave or to come back in stage s among those in flight.
static int fit_flights(hth_decoder *decoder, int s, int n)
{
    for (int g = decoder->aways.head[s]; g >= 0; g = decoder->aways.next[g]) {
        if (decoder->away[g] > s) {
            decoder->flight[n++] = g;
        }
    }
    for (int g = decoder->backs.head[s]; g >= 0; g = decoder->backs.next[g]) {
        if (decoder->back[g] == s && s < decoder->need[g]) {
            decoder->flight[n++] = g;
        }
    }
    return n;
}

// Gives stage s and its reruns the fastest algorithms that fit `room`; returns what they take. Adds
// the time that is lost to *us.
static uint64_t fit_algorithms(hth_decoder *decoder, int s, int64_t room, double *us)
{
    const hth_step *m = decoder->m;
    decoder->item[s] = fit_item(m, s, room);
    *us += m->menu[decoder->item[s]].time_us - hth_step_fastest(m, s)->time_us;
    uint64_t most = m->menu[decoder->item[s]].workspace;
    for (int r = decoder->run_of[s]; r >= 0; r = decoder->run[r].next) {
        hth_stage_rerun *run = &decoder->run[r];
        // The node's own algorithm, so that the bits are the same: both give way.
        int item = fit_item(m, run->node, room - (int64_t)run->scratch);
        int was = decoder->item[run->node];
        item = was > item ? was : item;
        decoder->item[run->node] = item;
        *us += 2 * m->menu[item].time_us - m->menu[was].time_us -
               hth_step_fastest(m, run->node)->time_us;
        uint64_t b = run->scratch + m->menu[item].workspace;
        most = b > most ? b : most;
    }
    return most;
}

static void fit_lists(hth_decoder *decoder)
{
    const hth_step *m = decoder->m;
    hth_lists_clear(&decoder->backs, m->n_stages + 1);
    hth_lists_clear(&decoder->aways, m->n_stages + 1);
    for (int k = 0; k < decoder->n_off; k++) {
        int g = decoder->off[k],
            first = (m->interval[g].cyclic ? decoder->until[g] : m->interval[g].p) + 1;
        hth_lists_add(&decoder->backs, decoder->back[g], g);
        if (decoder->away[g] > first) {
            hth_lists_add(&decoder->aways, first, g);
        }
    }
}

bool hth_decode_room(hth_decoder *decoder, bool all, double limit_us, hth_outcome *out)
{
    const hth_step *m = decoder->m;
    int n_flight = 0;
    double worst = 0, mean = 0, us = decoder->min_us;
    out->excess = 0;
    out->worst = -1;
    out->peak_bytes = 0;
    decoder->live = 0;
    fit_lists(decoder);
    for (int s = 0; s < m->n_stages; s++) {
        decoder->live += decoder->delta[s];
        n_flight = fit_flights(decoder, s, n_flight);
        uint64_t most = m->menu[m->menu_start[s]].workspace;
        if (decoder->run_of[s] < 0 && decoder->live + (int64_t)most <= (int64_t)decoder->budget) {
            decoder->item[s] = m->menu_start[s];
        } else {
            int64_t over = decoder->live + (int64_t)fit_min(decoder, s) - (int64_t)decoder->budget;
            if (over > 0) {
                fit_repair(decoder, s, over, &n_flight);
            }
            if (decoder->hurries && n_flight > 0) {
                fit_hurry(decoder, s, &n_flight);
            }
            most = fit_algorithms(decoder, s, (int64_t)decoder->budget - decoder->live, &us);
            if (us >= limit_us) {
                return false;
            }
        }
        decoder->used[s] = (uint64_t)decoder->live;
        uint64_t peak = (uint64_t)decoder->live + most;
        double over = peak > decoder->budget ? (double)(peak - decoder->budget) : 0;
        out->excess += over;
        if (over > worst) {
            worst = over;
            out->worst = s;
            if (!all) {
                return true;
            }
        }
        mean += (double)decoder->live;
        out->peak_bytes = peak > out->peak_bytes ? peak : out->peak_bytes;
    }
    out->mean = mean / m->n_stages;
    return true;
}
