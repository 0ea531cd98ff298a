// SPDX-License-Identifier: Apache-2.0
// Search over modes: starts (plan_search_starts.c), then iterated local search from the best: a
// kick of an interval or a tensor, ejections until it fits again, and completions that give back
// what the kick made unnecessary (plan_search_moves.c). Every candidate is decoded exactly, so
// nothing is estimated but which moves are tried, and in what order.
#include "planner/search/plan_search.h"

#include "planner/bound/plan_bound.h"

#include "base/alloc.h"

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
#define SEARCH_FITS     1e4       // .. for what does not fit, where what fits comes first
#define SEARCH_STALL    4.0       // what a stall counts on top of its time among the starts
#define SEARCH_ALIKE    100       // kicks without success before another start, per 100 intervals
#define SEARCH_HOPEFUL  1.1       // times the best: given modes that are searched on from

uint32_t hth_search_random(hth_search *search, uint32_t below)
{
    search->rng = search->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((search->rng >> 32) * below) >> 32);
}

// Asks the clock only every few decodes: it costs as much as some of them.
bool hth_search_over(hth_search *search)
{
    if (search->n_decodes >= search->next_look) {
        search->next_look = search->n_decodes + SEARCH_LOOK;
        search->now_ns = hth_plan_work_now_ns();
    }
    return search->n_decodes >= search->max_decodes || search->now_ns >= search->deadline_ns;
}

// hth_search_try, given up (with some score from `limit` on) as soon as the score cannot be under
// `limit`.
double hth_search_try_under(hth_search *search, const uint8_t *mode, double limit,
                            hth_outcome *outcome)
{
    double budget = (double)search->d.budget + 1, unit = search->m->fastest_us + 1;
    double none = search->fits_first ? SEARCH_FITS * unit : unit; // for not fitting
    double most = hth_sooner(limit, search->fits_first ? none : SEARCH_HOPELESS * unit);
    double least = hth_decode_needs(&search->d, mode, most);
    search->n_decodes++;
    if (least >= most) {
        *outcome = (hth_outcome){.time_us = INFINITY, .excess = INFINITY, .worst = -1};
        return least >= limit ? least : INFINITY;
    }
    // Bytes too many cost a step at least.
    bool all = least + none < limit;
    if (!hth_decode_fit(&search->d, all, limit, outcome)) {
        *outcome = (hth_outcome){.time_us = INFINITY, .excess = INFINITY, .worst = -1};
        return limit;
    }
    if (!all && outcome->excess > 0) {
        return least + none;
    }
    hth_decode_time(&search->d, outcome);
    double score = outcome->time_us + SEARCH_TIE * unit * outcome->mean / budget;
    if (search->no_stalls && outcome->stall_us > 1e-6 * outcome->time_us) {
        score += unit + outcome->stall_us;
    }
    score += search->stall_price * outcome->stall_us;
    return outcome->excess > 0 ? score + none + SEARCH_PENALTY * unit * outcome->excess / budget
                               : score;
}

double hth_search_try(hth_search *search, const uint8_t *mode, hth_outcome *outcome)
{
    return hth_search_try_under(search, mode, INFINITY, outcome);
}

void hth_search_elite(hth_search *search, const uint8_t *mode, double score)
{
    size_t n = (size_t)search->m->n_intervals;
    int at = search->n_elites;
    for (int i = 0; i < search->n_elites; i++) {
        if (fabs(search->elite_score[i] - score) <= SEARCH_SAME * score) {
            return;
        }
    }
    for (; at > 0 && search->elite_score[at - 1] > score; at--) {
        if (at < HTH_SEARCH_ELITES) {
            memcpy(search->elite + (size_t)at * n, search->elite + (size_t)(at - 1) * n, n);
            search->elite_score[at] = search->elite_score[at - 1];
        }
    }
    if (at < HTH_SEARCH_ELITES) {
        memcpy(search->elite + (size_t)at * n, mode, n);
        search->elite_score[at] = score;
        search->n_elites += search->n_elites < HTH_SEARCH_ELITES;
    }
}

void hth_search_give(hth_search *search, const uint8_t *mode)
{
    size_t n = (size_t)search->m->n_intervals;
    if (search->n_given < HTH_SEARCH_GIVEN) {
        memcpy(search->given + (size_t)search->n_given++ * n, mode, n);
    }
}

// Goes down from the best of the given modes, if it is one of the best so far.
static void search_given(hth_search *search)
{
    size_t n = (size_t)search->m->n_intervals;
    hth_outcome o;
    int first = -1;
    double least = search->best_score * SEARCH_HOPEFUL;
    for (int i = 0; i < search->n_given; i++) {
        memcpy(search->mode, search->given + (size_t)i * n, n);
        search->score = hth_search_try(search, search->mode, &o);
        search->fits = o.excess == 0;
        hth_search_keep_best(search);
        first = search->score < least ? i : first;
        least = hth_sooner(least, search->score);
    }
    if (first >= 0) {
        memcpy(search->mode, search->given + (size_t)first * n, n);
        hth_search_descend(search);
    }
}

// Takes the modes at hand as the best if they are.
void hth_search_keep_best(hth_search *search)
{
    if (search->score < search->best_score) {
        search->best_score = search->score;
        memcpy(search->best, search->mode, (size_t)search->m->n_intervals);
    }
}

// .. and among the best few.
void hth_search_keep_elite(hth_search *search)
{
    if (search->fits && search->stall_price == 0) {
        hth_search_elite(search, search->mode, search->score);
    }
}

// Kicks until the time is up. When they bring nothing any more, other starts, until these bring
// nothing, either.
static void search_kicks(hth_search *search)
{
    int limit = SEARCH_ALIKE * (1 + search->m->n_intervals / 100), next = 0, since = 0;
    bool more = search->dual && search->m->n_intervals > 0;
    while ((more || since < limit) && search->m->n_intervals > 0 && !hth_search_over(search)) {
        since = hth_search_kick(search) ? 0 : since + 1;
        if (since >= limit && more) {
            more = hth_search_another(search, &next);
            since = 0;
        }
    }
}

// Goes down from the best, unless it is known to be down, and kicks; what stalls cost besides is
// search->stall_price.
static void search_improve(hth_search *search)
{
    hth_outcome o;
    memcpy(search->mode, search->best, (size_t)search->m->n_intervals);
    search->best_score = search->score = hth_search_try(search, search->best, &o);
    hth_search_note(search, &o);
    if (search->best_score != search->settled) {
        hth_search_descend(search);
    }
    search_kicks(search);
}

// From modes that may not fit: a tighter budget than before, as a rule. What is missing is little,
// so it is freed whatever the time, before everything else would leave.
static void search_warm(hth_search *search, hth_outcome *out)
{
    uint64_t deadline_ns = search->deadline_ns, min_ns = hth_plan_work_now_ns() + SEARCH_WARM_NS;
    search->deadline_ns = deadline_ns > min_ns ? deadline_ns : min_ns;
    memcpy(search->mode, search->best, (size_t)search->m->n_intervals);
    search->best_score = hth_search_try(search, search->best, out);
    if (out->excess > 0) {
        hth_search_greedy(search, 0.3, false, INFINITY);
    }
    hth_search_try(search, search->best, out);
    if (out->excess > 0) {
        hth_search_away(search);
    }
    search->deadline_ns = deadline_ns;
}

void hth_search_run(hth_search *search, uint64_t deadline_ns, bool warm, hth_outcome *out)
{
    search->deadline_ns = deadline_ns;
    search->n_elites = 0;
    if (warm) {
        search_warm(search, out);
    } else {
        search->best_score = INFINITY;
        search->settled = 0;
        hth_search_keep_all(search, search->mode);
        search->score = hth_search_try(search, search->mode, out);
        hth_search_keep_best(search);
        if (out->excess == 0 && out->time_us <= search->m->fastest_us * (1 + 1e-9)) {
            return; // nothing is faster
        }
        search->stall_price = SEARCH_STALL;
        if (search->dual) {
            hth_search_valleys(search);
        } else {
            hth_search_starts(search);
        }
        search->stall_price = 0;
        search->best_score = hth_search_try(search, search->best, out);
        search_given(search);
    }
    hth_search_try(search, search->best, out);
    if (search->dual && !warm && out->stall_us > HTH_SEARCH_STALLS * out->time_us) {
        // Out of a valley of stalls by making them dear, for most of the time.
        uint64_t now_ns = hth_plan_work_now_ns(), end_decodes = search->max_decodes;
        search->deadline_ns =
            now_ns < deadline_ns ? now_ns + (deadline_ns - now_ns) / 3 * 2 : deadline_ns;
        if (end_decodes < UINT64_MAX && search->n_decodes < end_decodes) {
            search->max_decodes = search->n_decodes + (end_decodes - search->n_decodes) / 3 * 2;
        }
        search->stall_price = 1;
        search_improve(search);
        search->deadline_ns = deadline_ns;
        search->max_decodes = end_decodes;
    }
    search->stall_price = 0;
    if (search->n_elites > 0 &&
        search->elite_score[0] < hth_search_try(search, search->best, out)) {
        memcpy(search->best, search->elite, (size_t)search->m->n_intervals);
    }
    search_improve(search);
    hth_search_try(search, search->best, out);
}

hth_err hth_search_open(hth_search *search, const hth_step *step, uint64_t budget,
                        const hth_plan_options *options)
{
    size_t n = (size_t)step->n_intervals + 1;
    *search = (hth_search){.m = step,
                           .offload = true,
                           .recompute = true,
                           .rng = options->seed * 2 + 1,
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
                           .given = hth_calloc(n, HTH_SEARCH_GIVEN),
                           .room = hth_calloc((size_t)step->n_stages + 1, sizeof(int64_t)),
                           .item = hth_calloc((size_t)step->n_stages + 1, sizeof(int)),
                           .end = hth_calloc(n, sizeof(int)),
                           .late = hth_calloc(n, sizeof(double)),
                           .span = hth_calloc(n, sizeof(double)),
                           .share = hth_calloc(n, sizeof(hth_bound_share)),
                           .lane = hth_calloc(n, sizeof(int)),
                           .tie_us = SEARCH_TIE * step->fastest_us / (double)(budget + 1) /
                                     step->n_stages,
                           .order = hth_calloc(n, sizeof(int)),
                           .rank = hth_calloc(n, sizeof *search->rank),
                           .cover = hth_calloc((size_t)step->n_stages + 1, sizeof(int))};
    hth_err err = hth_decoder_init(&search->d, step, budget);
    if (err == HTH_OK &&
        (!search->mode || !search->modes || !search->room || !search->elite || !search->given ||
         !search->before || !search->banned || !search->step || !search->item || !search->end ||
         !search->late || !search->span || !search->lane || !search->share || !search->best ||
         !search->kept || !search->first || !search->order || !search->cover || !search->rank)) {
        err = hth_no_memory("planning a step of %d nodes", step->n_stages);
    }
    if (err != HTH_OK) {
        hth_search_close(search);
    }
    return err;
}

void hth_search_close(hth_search *search)
{
    hth_decoder_fini(&search->d);
    hth_free(search->mode);
    hth_free(search->best);
    hth_free(search->kept);
    hth_free(search->first);
    hth_free(search->modes);
    hth_free(search->before);
    hth_free(search->banned);
    hth_free(search->step);
    hth_free(search->elite);
    hth_free(search->given);
    hth_free(search->room);
    hth_free(search->item);
    hth_free(search->end);
    hth_free(search->late);
    hth_free(search->span);
    hth_free(search->lane);
    hth_free(search->share);
    hth_free(search->order);
    hth_free(search->cover);
    hth_free(search->rank);
    memset(search, 0, sizeof *search);
}
