// SPDX-License-Identifier: Apache-2.0
// Forwards through the stages of a decoded step: where the bytes are too many, the copy that hurts
// least is hurried or put off; then each node gets the fastest algorithm that finds room.
#include "planner/plan_decode.h"

// The bytes that stage s needs besides its live ones, at least.
static uint64_t fit_min(const hth_decoder *d, int s)
{
    const hth_step *m = d->m;
    uint64_t most = hth_step_smallest(m, s)->workspace;
    for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
        uint64_t b = d->run[r].scratch + hth_step_smallest(m, d->run[r].node)->workspace;
        most = b > most ? b : most;
    }
    return most;
}

static bool fit_leaves(const hth_decoder *d, int g, int s)
{
    const hth_interval *interval = &d->m->interval[g];
    return d->away[g] > s && s > (interval->cyclic ? d->until[g] : interval->p);
}

// What it costs, per byte, to hurry interval g's copy out in stage s, or to put its copy in off.
static double fit_hurt(const hth_decoder *d, int g, int s)
{
    const hth_step *m = d->m;
    int t = m->interval[g].tensor;
    double us = fit_leaves(d, g, s) ? d->saved_us[g] - d->begin_us[s]
                                    : d->begin_us[s + 1] + m->h2d_us[t] - d->begin_us[d->need[g]];
    return hth_later(us, 0) / (double)m->bytes[t];
}

static bool fit_returns(const hth_decoder *d, int g, int s)
{
    return d->back[g] <= s && s < d->need[g];
}

static bool fit_before(hth_flight a, hth_flight b)
{
    return a.hurt < b.hurt || (a.hurt == b.hurt && a.interval < b.interval);
}

// Moves element i of the heap h[0..n) down to where it belongs.
static void fit_sift(hth_flight *h, int n, int i)
{
    hth_flight x = h[i];
    for (int k = 2 * i + 1; k < n; k = 2 * i + 1) {
        k += k + 1 < n && fit_before(h[k + 1], h[k]);
        if (!fit_before(h[k], x)) {
            break;
        }
        h[i] = h[k];
        i = k;
    }
    h[i] = x;
}

// Takes back what fit_repair did to an interval, if stage s has room for it.
static void fit_undo(hth_decoder *d, int s, hth_flight x, int64_t *over)
{
    const hth_step *m = d->m;
    int64_t bytes = x.interval >= 0 ? (int64_t)m->bytes[m->interval[x.interval].tensor] : 0;
    int was = (int)x.hurt;
    if (x.interval < 0 || *over + bytes > 0) {
        return;
    }
    if (d->away[x.interval] == s && was > s) {
        d->delta[was] -= bytes;
        d->away[x.interval] = was;
    } else {
        d->delta[s + 1] -= bytes;
        d->back[x.interval] = was;
    }
    d->live += bytes;
    *over += bytes;
}

// Frees bytes of copies in flight in stage s, those that hurt least first, until `over` is gone.
static void fit_repair(hth_decoder *d, int s, int64_t over, int *n_flight)
{
    const hth_step *m = d->m;
    int n = 0;
    for (int i = 0; i < *n_flight;) {
        int g = d->flight[i];
        if (fit_leaves(d, g, s) || fit_returns(d, g, s)) {
            d->order[n++] = (hth_flight){fit_hurt(d, g, s), g};
            i++;
        } else {
            d->flight[i] = d->flight[--*n_flight];
        }
    }
    for (int i = n / 2 - 1; i >= 0; i--) {
        fit_sift(d->order, n, i);
    }
    int all = n;
    for (; n > 0 && over > 0; fit_sift(d->order, n, 0)) {
        hth_flight x = d->order[0];
        int64_t bytes = (int64_t)m->bytes[m->interval[x.interval].tensor];
        d->order[0] = d->order[--n];
        d->order[n] = (hth_flight){0, -1}; // after the heap: what was taken, and where it was
        if (fit_leaves(d, x.interval, s)) {
            d->order[n] = (hth_flight){d->away[x.interval], x.interval};
            d->delta[d->away[x.interval]] += bytes;
            d->away[x.interval] = s;
            d->hurried = true;
        } else if (fit_returns(d, x.interval, s)) {
            d->order[n] = (hth_flight){d->back[x.interval], x.interval};
            d->delta[s + 1] += bytes;
            d->back[x.interval] = s + 1;
        } else {
            continue; // it was there twice: leaving, and about to come back
        }
        d->live -= bytes;
        over -= bytes;
    }
    for (; n < all; n++) { // the last one may have made others needless
        fit_undo(d, s, d->order[n], &over);
    }
}

static int fit_item(const hth_step *m, int node, int64_t room)
{
    int i = m->menu_start[node];
    while (i + 1 < m->menu_end[node] && (int64_t)m->menu[i].workspace > room) {
        i++;
    }
    return i;
}

// Takes the copies that begin to leave or to come back in stage s among those in flight.
static int fit_flights(hth_decoder *d, int s, int n)
{
    for (int g = d->aways.head[s]; g >= 0; g = d->aways.next[g]) {
        if (d->away[g] > s) {
            d->flight[n++] = g;
        }
    }
    for (int g = d->backs.head[s]; g >= 0; g = d->backs.next[g]) {
        if (d->back[g] == s && s < d->need[g]) {
            d->flight[n++] = g;
        }
    }
    return n;
}

// Gives stage s and its reruns the fastest algorithms that fit `room`; returns what they take. Adds
// the time that is lost to *us.
static uint64_t fit_algorithms(hth_decoder *d, int s, int64_t room, double *us)
{
    const hth_step *m = d->m;
    d->item[s] = fit_item(m, s, room);
    *us += m->menu[d->item[s]].time_us - hth_step_fastest(m, s)->time_us;
    uint64_t most = m->menu[d->item[s]].workspace;
    for (int r = d->run_of[s]; r >= 0; r = d->run[r].next) {
        hth_stage_rerun *run = &d->run[r];
        // The node's own algorithm, so that the bits are the same: both give way.
        int item = fit_item(m, run->node, room - (int64_t)run->scratch);
        int was = d->item[run->node];
        item = was > item ? was : item;
        d->item[run->node] = item;
        *us += 2 * m->menu[item].time_us - m->menu[was].time_us -
               hth_step_fastest(m, run->node)->time_us;
        uint64_t b = run->scratch + m->menu[item].workspace;
        most = b > most ? b : most;
    }
    return most;
}

static void fit_lists(hth_decoder *d)
{
    const hth_step *m = d->m;
    hth_lists_clear(&d->backs, m->n_stages + 1);
    hth_lists_clear(&d->aways, m->n_stages + 1);
    for (int k = 0; k < d->n_off; k++) {
        int g = d->off[k], first = (m->interval[g].cyclic ? d->until[g] : m->interval[g].p) + 1;
        hth_lists_add(&d->backs, d->back[g], g);
        if (d->away[g] > first) {
            hth_lists_add(&d->aways, first, g);
        }
    }
}

bool hth_decode_room(hth_decoder *d, bool all, double limit_us, hth_outcome *out)
{
    const hth_step *m = d->m;
    int n_flight = 0;
    double worst = 0, mean = 0, us = d->min_us;
    out->excess = 0;
    out->worst = -1;
    out->peak_bytes = 0;
    d->live = 0;
    fit_lists(d);
    for (int s = 0; s < m->n_stages; s++) {
        d->live += d->delta[s];
        n_flight = fit_flights(d, s, n_flight);
        uint64_t most = m->menu[m->menu_start[s]].workspace;
        if (d->run_of[s] < 0 && d->live + (int64_t)most <= (int64_t)d->budget) {
            d->item[s] = m->menu_start[s];
        } else {
            int64_t over = d->live + (int64_t)fit_min(d, s) - (int64_t)d->budget;
            if (over > 0) {
                fit_repair(d, s, over, &n_flight);
            }
            most = fit_algorithms(d, s, (int64_t)d->budget - d->live, &us);
            if (us >= limit_us) {
                return false;
            }
        }
        d->used[s] = (uint64_t)d->live;
        uint64_t peak = (uint64_t)d->live + most;
        double over = peak > d->budget ? (double)(peak - d->budget) : 0;
        out->excess += over;
        if (over > worst) {
            worst = over;
            out->worst = s;
            if (!all) {
                return true;
            }
        }
        mean += (double)d->live;
        out->peak_bytes = peak > out->peak_bytes ? peak : out->peak_bytes;
    }
    out->mean = mean / m->n_stages;
    return true;
}
