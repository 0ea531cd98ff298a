// SPDX-License-Identifier: Apache-2.0
// Search over modes: starts (plan_search_starts.c), then iterated local search from the best: a
// kick around one stage, ejections until it fits again, and completions that give back what the
// kick made unnecessary (plan_search_moves.c). Every candidate is decoded exactly, so nothing is
// estimated but which moves are tried, and in what order.
#include "planner/plan_search.h"

#include "planner/bound/plan_bound.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_PENALTY 40.0 // of the fastest step, per budget of excess
#define SEARCH_TIE                                                                                 \
    1e-4 // of the fastest step, per budget of mean residency: prefers what leaves room
#define SEARCH_WARM_NS  30000000u // that a warm start may take even when the time is up
#define SEARCH_SAME     1e-4      // of the score: less is no difference
#define SEARCH_LOOK     4         // decodes between two looks at the clock
#define SEARCH_HOPELESS 16.0      // times the fastest step: not worth decoding further
#define SEARCH_STALL    4.0       // what a stall counts on top of its time among the starts
#define SEARCH_ALIKE    100       // kicks without success before another start, per 100 intervals
#define SEARCH_STALLS   0.01      // of the time: worth getting out of

uint32_t hth_search_random(hth_search *x, uint32_t below)
{
    x->rng = x->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((x->rng >> 32) * below) >> 32);
}

// Asks the clock only every few decodes: it costs as much as some of them.
bool hth_search_over(hth_search *x)
{
    if (x->n_decodes >= x->next_look) {
        x->next_look = x->n_decodes + SEARCH_LOOK;
        x->now_ns = hth_now_ns();
    }
    return x->n_decodes >= x->max_decodes || x->now_ns >= x->deadline_ns;
}

// hth_search_try, given up (with some score from `limit` on) as soon as the score cannot be under
// `limit`.
double hth_search_try_under(hth_search *x, const uint8_t *mode, double limit, hth_outcome *o)
{
    double budget = (double)x->d.budget + 1, unit = x->m->fastest_us + 1;
    double most = hth_sooner(limit, SEARCH_HOPELESS * unit);
    double least = hth_decode_needs(&x->d, mode, most);
    x->n_decodes++;
    if (least >= most) {
        *o = (hth_outcome){.time_us = INFINITY, .excess = INFINITY, .worst = -1};
        return least >= limit ? least : INFINITY;
    }
    // Bytes too many cost a step at least.
    bool all = least + unit < limit;
    if (!hth_decode_fit(&x->d, all, limit, o)) {
        *o = (hth_outcome){.time_us = INFINITY, .excess = INFINITY, .worst = -1};
        return limit;
    }
    if (!all && o->excess > 0) {
        return least + unit;
    }
    hth_decode_time(&x->d, o);
    double score = o->time_us + SEARCH_TIE * unit * o->mean / budget;
    if (x->no_stalls && o->stall_us > 1e-6 * o->time_us) {
        score += unit + o->stall_us;
    }
    score += x->stall_price * o->stall_us;
    return o->excess > 0 ? score + unit + SEARCH_PENALTY * unit * o->excess / budget : score;
}

double hth_search_try(hth_search *x, const uint8_t *mode, hth_outcome *o)
{
    return hth_search_try_under(x, mode, INFINITY, o);
}

void hth_search_elite(hth_search *x, const uint8_t *mode, double score)
{
    size_t n = (size_t)x->m->n_intervals;
    int at = x->n_elites;
    for (int i = 0; i < x->n_elites; i++) {
        if (fabs(x->elite_score[i] - score) <= SEARCH_SAME * score) {
            return;
        }
    }
    for (; at > 0 && x->elite_score[at - 1] > score; at--) {
        if (at < HTH_SEARCH_ELITES) {
            memcpy(x->elite + (size_t)at * n, x->elite + (size_t)(at - 1) * n, n);
            x->elite_score[at] = x->elite_score[at - 1];
        }
    }
    if (at < HTH_SEARCH_ELITES) {
        memcpy(x->elite + (size_t)at * n, mode, n);
        x->elite_score[at] = score;
        x->n_elites += x->n_elites < HTH_SEARCH_ELITES;
    }
}

// Takes the modes at hand as the best if they are.
void hth_search_keep_best(hth_search *x)
{
    if (x->score < x->best_score) {
        x->best_score = x->score;
        memcpy(x->best, x->mode, (size_t)x->m->n_intervals);
    }
}

// .. and among the best few.
void hth_search_keep_elite(hth_search *x)
{
    if (x->fits && x->stall_price == 0) {
        hth_search_elite(x, x->mode, x->score);
    }
}

// Kicks until the time is up. When they bring nothing any more, other starts, until these bring
// nothing, either.
static void search_kicks(hth_search *x)
{
    int limit = SEARCH_ALIKE * (1 + x->m->n_intervals / 100), next = 0, since = 0;
    bool more = x->dual && x->m->n_intervals > 0;
    while ((more || since < limit) && x->m->n_intervals > 0 && !hth_search_over(x)) {
        since = hth_search_kick(x) ? 0 : since + 1;
        if (since >= limit && more) {
            more = hth_search_another(x, &next);
            since = 0;
        }
    }
}

// Goes down from the best, unless it is known to be down, and kicks; what stalls cost besides is
// x->stall_price.
static void search_improve(hth_search *x)
{
    hth_outcome o;
    memcpy(x->mode, x->best, (size_t)x->m->n_intervals);
    x->best_score = x->score = hth_search_try(x, x->best, &o);
    hth_search_note(x, &o);
    if (x->best_score != x->settled) {
        hth_search_descend(x);
    }
    search_kicks(x);
}

// From modes that may not fit: a tighter budget than before, as a rule. What is missing is little,
// so it is freed whatever the time, before everything else would leave.
static void search_warm(hth_search *x, hth_outcome *out)
{
    uint64_t deadline_ns = x->deadline_ns, min_ns = hth_now_ns() + SEARCH_WARM_NS;
    x->deadline_ns = deadline_ns > min_ns ? deadline_ns : min_ns;
    memcpy(x->mode, x->best, (size_t)x->m->n_intervals);
    x->best_score = hth_search_try(x, x->best, out);
    if (out->excess > 0) {
        hth_search_greedy(x, 0.3, false, INFINITY);
    }
    hth_search_try(x, x->best, out);
    if (out->excess > 0) {
        hth_search_away(x);
    }
    x->deadline_ns = deadline_ns;
}

void hth_search_run(hth_search *x, uint64_t deadline_ns, bool warm, hth_outcome *out)
{
    x->deadline_ns = deadline_ns;
    x->n_elites = 0;
    if (warm) {
        search_warm(x, out);
    } else {
        x->best_score = INFINITY;
        hth_search_keep_all(x, x->mode);
        x->score = hth_search_try(x, x->mode, out);
        hth_search_keep_best(x);
        if (out->excess == 0 && out->time_us <= x->m->fastest_us * (1 + 1e-9)) {
            return; // nothing is faster
        }
        x->stall_price = SEARCH_STALL;
        if (x->dual) {
            hth_search_valleys(x);
        } else {
            hth_search_starts(x);
        }
    }
    hth_search_try(x, x->best, out);
    if (x->dual && !warm && out->stall_us > SEARCH_STALLS * out->time_us) {
        // Out of a valley of stalls by making them dear, for most of the time.
        uint64_t now_ns = hth_now_ns(), end_decodes = x->max_decodes;
        x->deadline_ns =
            now_ns < deadline_ns ? now_ns + (deadline_ns - now_ns) / 3 * 2 : deadline_ns;
        if (end_decodes < UINT64_MAX && x->n_decodes < end_decodes) {
            x->max_decodes = x->n_decodes + (end_decodes - x->n_decodes) / 3 * 2;
        }
        x->stall_price = 1;
        search_improve(x);
        x->deadline_ns = deadline_ns;
        x->max_decodes = end_decodes;
    }
    x->stall_price = 0;
    search_improve(x);
    hth_search_try(x, x->best, out);
}

hth_err hth_search_open(hth_search *x, const hth_step *m, uint64_t budget,
                        const hth_plan_options *o)
{
    size_t n = (size_t)m->n_intervals + 1;
    *x = (hth_search){.m = m,
                      .offload = true,
                      .recompute = true,
                      .rng = o->seed * 2 + 1,
                      .max_decodes = UINT64_MAX,
                      .mode = hth_calloc(n, 1),
                      .best = hth_calloc(n, 1),
                      .kept = hth_calloc(n, 1),
                      .first = hth_calloc(n, 1),
                      .modes = hth_calloc(n, 1),
                      .before = hth_calloc(n, 1),
                      .banned = hth_calloc(n, 1),
                      .step = hth_calloc(n, 1),
                      .elite = hth_calloc(n, HTH_SEARCH_ELITES),
                      .room = hth_calloc((size_t)m->n_stages + 1, sizeof(int64_t)),
                      .item = hth_calloc((size_t)m->n_stages + 1, sizeof(int)),
                      .end = hth_calloc(n, sizeof(int)),
                      .late = hth_calloc(n, sizeof(double)),
                      .span = hth_calloc(n, sizeof(double)),
                      .share = hth_calloc(n, sizeof(hth_bound_share)),
                      .lane = hth_calloc(n, sizeof(int)),
                      .tie_us = SEARCH_TIE * m->fastest_us / (double)(budget + 1) / m->n_stages,
                      .order = hth_calloc(n, sizeof(int)),
                      .rank = hth_calloc(n, sizeof *x->rank),
                      .cover = hth_calloc((size_t)m->n_stages + 1, sizeof(int))};
    hth_err err = hth_decoder_init(&x->d, m, budget);
    if (err == HTH_OK &&
        (!x->mode || !x->modes || !x->room || !x->elite || !x->before || !x->banned || !x->step ||
         !x->item || !x->end || !x->late || !x->span || !x->lane || !x->share || !x->best ||
         !x->kept || !x->first || !x->order || !x->cover || !x->rank)) {
        err = hth_fail(HTH_ENOMEM, "no memory to plan a step of %d nodes", m->n_stages);
    }
    if (err != HTH_OK) {
        hth_search_close(x);
    }
    return err;
}

void hth_search_close(hth_search *x)
{
    hth_decoder_fini(&x->d);
    hth_free(x->mode);
    hth_free(x->best);
    hth_free(x->kept);
    hth_free(x->first);
    hth_free(x->modes);
    hth_free(x->before);
    hth_free(x->banned);
    hth_free(x->step);
    hth_free(x->elite);
    hth_free(x->room);
    hth_free(x->item);
    hth_free(x->end);
    hth_free(x->late);
    hth_free(x->span);
    hth_free(x->lane);
    hth_free(x->share);
    hth_free(x->order);
    hth_free(x->cover);
    hth_free(x->rank);
    memset(x, 0, sizeof *x);
}
