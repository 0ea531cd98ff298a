// SPDX-License-Identifier: Apache-2.0
// Rows of the integer program that say when: the three lanes by the rules of plan_schedule.h, and
// the windows, which are true of every schedule and make the relaxation tight.
#include "planner/exact/plan_optimal_impl.h"

// Time.

void hth_ilp_saves(hth_ilp *ilp)
{
    const hth_step *m = ilp->m;
    for (int s = 0; s < ilp->n; s++) {
        for (int g = 0; g < m->n_intervals; g++) {
            const hth_interval *interval = &m->interval[g];
            int t = interval->tensor, made = m->p->tensors[t].producer;
            int from = made >= 0 ? made : 0;
            from = g > m->interval_start[t] ? m->interval[g - 1].q : from;
            bool may = m->arena[t] && s == from;
            if (interval->cyclic && m->dirty[t] && s >= interval->p) { // after the last read
                may = s == interval->p;
                for (int w = 0; w < s; w++) {
                    may = may || (ilp->may[w * ilp->n + s] && hth_ilp_reads(ilp, w, t));
                }
            }
            if (may && interval->can_offload) {
                ilp->save[ilp->n_saves++] = (hth_ilp_save){g, s};
            }
        }
    }
}

static void rows_saves(hth_ilp *ilp)
{
    const hth_step *m = ilp->m;
    for (int k = 0; k < ilp->n_saves; k++) {
        int g = ilp->save[k].interval, s = ilp->save[k].stage, t = m->interval[g].tensor;
        const hth_interval *interval = &m->interval[g];
        hth_ilp_term(ilp, 'D', k, 0, 1);
        hth_ilp_term(ilp, 'D', k - 1, 0, k > 0 ? -1 : 0);
        hth_ilp_term(ilp, 'y', k, 0, -m->d2h_us[t]);
        hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        hth_ilp_term(ilp, 'D', k, 0, 1);
        hth_ilp_term(ilp, 'E', s, 0, -1);
        hth_ilp_term(ilp, 'y', k, 0, -m->d2h_us[t]);
        hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        int end = interval->cyclic || hth_ilp_tail(ilp, g) ? ilp->n - 1 : interval->q;
        for (int b = (s > interval->p ? s : interval->p) + 1; b <= end; b++) {
            double large = ilp->horizon - ilp->head[b];
            hth_ilp_term(ilp, 'W', b, 0, 1);
            hth_ilp_term(ilp, 'D', k, 0, -1);
            hth_ilp_term(ilp, 'y', k, 0, -large);
            hth_ilp_term(ilp, 'a', g, b, b < interval->q || interval->cyclic ? large : 0);
            hth_ilp_row(ilp, ">=", -large, ilp->unit_us);
        }
        for (int r = s + 1; interval->cyclic && r < ilp->n;
             r++) { // there until its copy, not read later
            for (int w = 0; w < r; w++) {
                if (ilp->may[w * ilp->n + r] && hth_ilp_reads(ilp, w, t)) {
                    hth_ilp_term(ilp, 'y', k, 0, 1);
                    hth_ilp_term(ilp, 'x', w, r, 1);
                    hth_ilp_row(ilp, "<=", 1, 1);
                }
            }
        }
        if (interval->cyclic && s > interval->p) {
            hth_ilp_term(ilp, 'a', g, s, 1);
            hth_ilp_term(ilp, 'y', k, 0, -1);
            hth_ilp_row(ilp, ">=", 0, 1);
        }
    }
    for (int g = 0; g < m->n_intervals; g++) { // the first one that leaves is copied out
        const hth_interval *interval = &m->interval[g];
        bool any = false;
        for (int k = 0; k < ilp->n_saves; k++) {
            any = any || ilp->save[k].interval == g;
            hth_ilp_term(ilp, 'y', k, 0, ilp->save[k].interval == g);
        }
        for (int h = m->interval_start[interval->tensor]; h <= g; h++) {
            bool counts = any && (!interval->cyclic || h == g);
            int sign = h < g ? 1 : -1;
            hth_ilp_term(ilp, 'o', h, 0, counts ? sign : 0);
        }
        hth_ilp_row(ilp, ">=", 0, 1);
    }
}

// Order of copies in that the same stage releases.
static bool rows_before(const hth_ilp *ilp, int g, int h)
{
    int a = ilp->m->interval[g].q, b = ilp->m->interval[h].q;
    return a < b || (a == b && g <= h);
}

// Interval g's copy in when stage s releases it: after the lane, after W_s.
static void rows_fetch(hth_ilp *ilp, int g, int s)
{
    const hth_step *m = ilp->m;
    for (int lane = 0; lane < 2; lane++) {
        if (lane == 1 && s == 0) {
            continue;
        }
        double large = ilp->horizon;
        hth_ilp_term(ilp, 'f', g, 0, 1);
        if (lane) {
            hth_ilp_term(ilp, 'F', s - 1, 0, -1);
        } else {
            hth_ilp_term(ilp, 'W', s, 0, -1);
        }
        for (int h = 0; h < m->n_intervals; h++) {
            const hth_interval *interval = &m->interval[h];
            if (s >= hth_ilp_first(ilp, h) && s <= interval->q && s < ilp->n &&
                rows_before(ilp, h, g) && interval->can_offload) {
                hth_ilp_release(ilp, h, s, -m->h2d_us[interval->tensor]);
                large += h == g ? 0 : m->h2d_us[interval->tensor];
            }
        }
        hth_ilp_release(ilp, g, s, -large);
        hth_ilp_row(ilp, ">=", -large, ilp->unit_us);
    }
}

static void rows_fetches(hth_ilp *ilp)
{
    const hth_step *m = ilp->m;
    for (int s = 0; s < ilp->n; s++) {
        for (int lane = 0; lane < 2; lane++) {
            hth_ilp_term(ilp, 'F', s, 0, 1);
            if (lane) {
                hth_ilp_term(ilp, 'F', s - 1, 0, s == 0 ? 0 : -1);
            } else {
                hth_ilp_term(ilp, 'W', s, 0, -1);
            }
            for (int g = 0; g < m->n_intervals; g++) {
                const hth_interval *interval = &m->interval[g];
                if (s >= hth_ilp_first(ilp, g) && s <= interval->q && interval->can_offload) {
                    hth_ilp_release(ilp, g, s, -m->h2d_us[interval->tensor]);
                }
            }
            hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        }
    }
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        if (!interval->can_offload) {
            continue;
        }
        for (int s = hth_ilp_first(ilp, g); s <= interval->q && s < ilp->n; s++) {
            rows_fetch(ilp, g, s);
        }
        if (!hth_ilp_tail(ilp, g)) {
            hth_ilp_term(ilp, 'S', interval->q, 0, 1);
            hth_ilp_term(ilp, 'f', g, 0, -1);
            hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        }
        for (int s = interval->p + 1; !interval->cyclic && s < interval->q; s++) {
            for (int w = 0; w < s; w++) { // needed earlier
                if (ilp->may[w * ilp->n + s] && hth_ilp_reads(ilp, w, interval->tensor)) {
                    hth_ilp_term(ilp, 'S', s, 0, 1);
                    hth_ilp_term(ilp, 'f', g, 0, -1);
                    hth_ilp_term(ilp, 'x', w, s, -ilp->horizon);
                    hth_ilp_term(ilp, 'o', g, 0, -ilp->horizon);
                    hth_ilp_row(ilp, ">=", -2 * ilp->horizon, ilp->unit_us);
                }
            }
        }
    }
}

// The windows.
static void rows_windows(hth_ilp *ilp)
{
    const hth_step *m = ilp->m;
    for (int s = 0; s < ilp->n; s++) {
        for (int q = s; q < ilp->n; q++) {
            bool ends = false;
            for (int g = 0; g < m->n_intervals; g++) {
                ends = ends || m->interval[g].q == q;
            }
            if (!ends) {
                continue;
            }
            hth_ilp_term(ilp, 'S', q, 0, 1);
            hth_ilp_term(ilp, 'W', s, 0, -1);
            for (int g = 0; g < m->n_intervals; g++) {
                const hth_interval *interval = &m->interval[g];
                if (interval->can_offload && interval->q <= q && interval->q >= s &&
                    !hth_ilp_tail(ilp, g)) {
                    hth_ilp_term(ilp, 'o', g, 0, -m->h2d_us[interval->tensor]);
                    hth_ilp_back(ilp, g, s - 1, m->h2d_us[interval->tensor]);
                }
            }
            hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        }
        for (int r = 0; r < s; r++) {
            hth_ilp_term(ilp, 'W', s, 0, 1);
            hth_ilp_term(ilp, 'E', r, 0, -1);
            for (int k = 0; k < ilp->n_saves; k++) {
                int g = ilp->save[k].interval;
                const hth_interval *interval = &m->interval[g];
                if (ilp->save[k].stage >= r && s > interval->p && s < interval->q &&
                    !interval->cyclic) {
                    hth_ilp_term(ilp, 'y', k, 0, -m->d2h_us[interval->tensor]);
                    hth_ilp_term(ilp, 'a', g, s, m->d2h_us[interval->tensor]);
                }
            }
            hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        }
    }
}

// row_copies adds what copies take from compute (hth_plan_slowed): `share` of their time, and the
// same of each.
static void row_copies(hth_ilp *ilp, double share)
{
    const hth_step *m = ilp->m;
    for (int k = 0; k < ilp->n_saves; k++) {
        double us = share * m->d2h_us[m->interval[ilp->save[k].interval].tensor];
        hth_ilp_term(ilp, 'y', k, 0, -us - m->p->copy_us);
    }
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        if (interval->can_offload) {
            double us = share * m->h2d_us[interval->tensor] + m->p->copy_us;
            if (hth_ilp_tail(ilp, g)) {
                hth_ilp_term(ilp, 'b', g, ilp->n - 1, -us);
            } else {
                hth_ilp_term(ilp, 'o', g, 0, -us);
            }
        }
    }
}

static void rows_time(hth_ilp *ilp)
{
    const hth_step *m = ilp->m;
    double share = m->p->copy_interference;
    for (int s = 0; s < ilp->n; s++) {
        if (s > 0) {
            hth_ilp_term(ilp, 'W', s, 0, 1);
            hth_ilp_term(ilp, 'E', s - 1, 0, -1);
            hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        }
        hth_ilp_term(ilp, 'S', s, 0, 1);
        hth_ilp_term(ilp, 'W', s, 0, -1);
        hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        hth_ilp_term(ilp, 'E', s, 0, 1);
        hth_ilp_term(ilp, 'S', s, 0, -1);
        hth_ilp_alternatives(ilp, s, true, -1);
        for (int v = 0; v < s; v++) {
            hth_ilp_term(ilp, 't', v, s, -1);
        }
        hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
        for (int i = m->menu_start[s]; i < m->menu_end[s]; i++) {
            hth_ilp_term(ilp, 'm', s, i - m->menu_start[s], 1);
        }
        hth_ilp_row(ilp, "=", 1, 1);
    }
    hth_ilp_term(ilp, 'L', 0, 0, 1);
    hth_ilp_term(ilp, 'E', ilp->n - 1, 0, -1);
    hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
    if (ilp->n_saves > 0) {
        hth_ilp_term(ilp, 'L', 0, 0, 1);
        hth_ilp_term(ilp, 'D', ilp->n_saves - 1, 0, -1);
        hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
    }
    hth_ilp_term(ilp, 'T', 0, 0, 1);
    hth_ilp_term(ilp, 'L', 0, 0, -1);
    if (m->p->copy_us > 0) {
        row_copies(ilp, 0);
    }
    hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
    if (share > 0) {
        hth_ilp_term(ilp, 'T', 0, 0, 1);
        hth_ilp_term(ilp, 'L', 0, 0, share - 1);
        row_copies(ilp, share);
        for (int s = 0; s < ilp->n; s++) {
            hth_ilp_alternatives(ilp, s, true, -share);
            for (int v = 0; v < s; v++) {
                hth_ilp_term(ilp, 't', v, s, -share);
            }
        }
        hth_ilp_row(ilp, ">=", 0, ilp->unit_us);
    }
}

void hth_ilp_times(hth_ilp *ilp)
{
    rows_time(ilp);
    rows_saves(ilp);
    rows_fetches(ilp);
    rows_windows(ilp);
}
