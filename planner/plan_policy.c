// SPDX-License-Identifier: Apache-2.0
// The policies: hearth's own search, and those of other systems in the same decoder, so that every
// claim has its baseline. What a published system leaves open (ties, thresholds, the number of
// segments) is decided in its favour: several variants are decoded and the best is taken.
#include "planner/search/plan_search.h"

#include "base/spelling.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLICY_PART    0.2   // of hearth's search: without stalls, as mo-sos does, ..
#define POLICY_PART_NS 1.5e5 // .. where there is so much work for each stage

static const char *const policy_names[HTH_N_POLICIES] = {
    "hearth",   "keep",  "vdnn",     "chen",   "checkmate-auto",
    "str-auto", "monet", "capuchin", "mo-sos", "optimal"};

const char *hth_policy_name(hth_policy policy)
{
    return (unsigned)policy < HTH_N_POLICIES ? policy_names[policy] : "?";
}

hth_err hth_policy_find(const char *name, hth_policy *out)
{
    for (int i = 0; i < HTH_N_POLICIES; i++) {
        if (strcmp(name, policy_names[i]) == 0) {
            *out = (hth_policy)i;
            return HTH_OK;
        }
    }
    char hint[60] = "";
    int meant = hth_spelling_nearest(name, policy_names, HTH_N_POLICIES, 3);
    if (meant >= 0) {
        snprintf(hint, sizeof hint, "did you mean '%s'? ", policy_names[meant]);
    }
    return hth_fail(HTH_EINVAL,
                    "unknown policy '%.40s'; %sthe policies are hearth, keep, vdnn, chen, "
                    "checkmate-auto, str-auto, monet, capuchin, mo-sos and optimal",
                    name, hint);
}

// Returns whether the modes at hand fit.
static bool policy_try(hth_search *search)
{
    hth_outcome o;
    search->score = hth_search_try(search, search->mode, &o);
    if (search->score < search->best_score) {
        search->best_score = search->score;
        memcpy(search->best, search->mode, (size_t)search->m->n_intervals);
    }
    return o.excess == 0;
}

static bool policy_is_conv(const hth_search *search, int node)
{
    return strncmp(search->m->p->nodes[node].op, "conv", 4) == 0;
}

// Everything, or what convolutions read.
static void policy_vdnn(hth_search *search)
{
    for (int all = 0; all < 2; all++) {
        for (int g = 0; g < search->m->n_intervals; g++) {
            const hth_interval *interval = &search->m->interval[g];
            bool take = all || (interval->p >= 0 && policy_is_conv(search, interval->p));
            search->mode[g] =
                interval->can_offload && take ? HTH_INTERVAL_OFFLOAD : HTH_INTERVAL_KEEP;
        }
        policy_try(search);
    }
}

// Every k-th node's outputs are checkpoints, all else is computed again; the best k.
static void policy_chen(hth_search *search)
{
    int limit = (int)(3 * sqrt((double)search->m->n_stages)) + 2;
    for (int k = 1; k <= limit; k++) {
        for (int g = 0; g < search->m->n_intervals; g++) {
            const hth_interval *interval = &search->m->interval[g];
            int v = search->m->p->tensors[interval->tensor].producer;
            bool kept = !interval->can_rerun || v % k == 0;
            search->mode[g] = kept ? HTH_INTERVAL_KEEP : HTH_INTERVAL_RECOMPUTE;
        }
        policy_try(search);
    }
}

static int policy_rank_cmp(const void *a, const void *b)
{
    const hth_rank *x = a, *y = b;
    if (x->value != y->value) {
        return x->value > y->value ? -1 : 1;
    }
    return x->interval - y->interval;
}

// Returns whether the modes at hand fit, and no more: that is known at the first stage that does
// not.
static bool policy_fits(hth_search *search)
{
    hth_outcome o;
    search->n_decodes++;
    hth_decode_needs(&search->d, search->mode, INFINITY);
    hth_decode_fit(&search->d, false, INFINITY, &o);
    return o.excess == 0;
}

// Recomputes the first of search->rank, as many of the n as it takes to fit, and returns whether
// that is enough. A recompute needs bytes, too, so each is tried.
static bool policy_recompute(hth_search *search, int n)
{
    for (int i = 0; i < n; i++) {
        search->mode[search->rank[i].interval] = HTH_INTERVAL_RECOMPUTE;
        if (policy_fits(search)) {
            return true;
        }
    }
    return false;
}

static void policy_set(hth_search *search, int from, int to, hth_interval_mode mode)
{
    for (int i = from; i < to; i++) {
        search->mode[search->rank[i].interval] = (uint8_t)mode;
    }
}

// Offloads them. That only frees bytes, so halves are tried.
static bool policy_offload(hth_search *search, int n)
{
    int less = 0, enough = n;
    policy_set(search, 0, n, HTH_INTERVAL_OFFLOAD);
    if (n == 0 || !policy_fits(search)) {
        return false;
    }
    while (enough - less > 1) {
        int half = less + (enough - less) / 2;
        policy_set(search, less, half, HTH_INTERVAL_OFFLOAD);
        policy_set(search, half, enough, HTH_INTERVAL_KEEP);
        bool fits = policy_fits(search);
        policy_set(search, half, fits ? half : enough, HTH_INTERVAL_OFFLOAD);
        enough = fits ? half : enough;
        less = fits ? less : half;
    }
    return true;
}

// Swaps by free time (the interval's length less both copies), longest first, as long as something
// is missing; what the link cannot hide is computed again, most bytes per microsecond first.
static void policy_capuchin(hth_search *search)
{
    hth_rank *rank = search->rank;
    const hth_step *m = search->m;
    bool fits = policy_try(search);
    for (int pass = 0; pass < 3 && !fits; pass++) { // hidden swaps, recomputes, the other swaps
        int n = 0;
        for (int g = 0; g < m->n_intervals; g++) {
            const hth_interval *interval = &m->interval[g];
            int end = interval->q < m->n_stages ? interval->q : m->n_stages;
            double free_us = search->d.begin_us[end] - search->d.begin_us[interval->p + 1] -
                             m->h2d_us[interval->tensor] - m->d2h_us[interval->tensor];
            bool may = pass == 1 ? interval->can_rerun
                                 : interval->can_offload && (pass == 2 || free_us > 0);
            if (search->mode[g] == HTH_INTERVAL_KEEP && may && !interval->cyclic) {
                int v = m->p->tensors[interval->tensor].producer;
                double us = pass == 1 ? hth_step_fastest(m, v)->time_us + 1e-3 : 0;
                rank[n++] =
                    (hth_rank){pass == 1 ? (double)m->bytes[interval->tensor] / us : free_us, g};
            }
        }
        qsort(rank, (size_t)n, sizeof *rank, policy_rank_cmp);
        fits = pass == 1 ? policy_recompute(search, n) : policy_offload(search, n);
        policy_try(search);
    }
}

// Levers. What they leave open (plan_train.h) is decided by a search, or greedily.
enum {
    LEVER_OFFLOAD = 1,
    LEVER_RECOMPUTE = 2,
    LEVER_ALGORITHMS = 4, // seen by the search, not chosen after it
    LEVER_STALLS = 8,     // compute may wait for copies
    LEVER_SEARCH = 16
};

static const int policy_levers[HTH_N_POLICIES] = {
    [HTH_POLICY_HEARTH] =
        LEVER_OFFLOAD | LEVER_RECOMPUTE | LEVER_ALGORITHMS | LEVER_STALLS | LEVER_SEARCH,
    [HTH_POLICY_KEEP] = 0,
    [HTH_POLICY_VDNN] = LEVER_OFFLOAD | LEVER_STALLS,
    [HTH_POLICY_CHEN] = LEVER_RECOMPUTE,
    [HTH_POLICY_CHECKMATE] = LEVER_RECOMPUTE | LEVER_SEARCH,
    [HTH_POLICY_STR] = LEVER_OFFLOAD | LEVER_RECOMPUTE | LEVER_STALLS | LEVER_SEARCH,
    [HTH_POLICY_MONET] = LEVER_RECOMPUTE | LEVER_ALGORITHMS | LEVER_SEARCH,
    [HTH_POLICY_CAPUCHIN] = LEVER_OFFLOAD | LEVER_RECOMPUTE | LEVER_STALLS,
    [HTH_POLICY_MOSOS] = LEVER_OFFLOAD | LEVER_RECOMPUTE | LEVER_ALGORITHMS | LEVER_SEARCH,
    [HTH_POLICY_OPTIMAL] = LEVER_OFFLOAD | LEVER_RECOMPUTE | LEVER_ALGORITHMS | LEVER_STALLS,
};

bool hth_policy_searches(hth_policy policy)
{
    return (policy_levers[policy] & LEVER_SEARCH) != 0;
}

bool hth_policy_contains(hth_policy policy, hth_policy other)
{
    return policy != other && other != HTH_POLICY_OPTIMAL && hth_policy_searches(policy) &&
           (policy_levers[other] & ~policy_levers[policy]) == 0;
}

static void policy_greedy(hth_search *search, hth_policy policy)
{
    search->n_elites = 0;
    memset(search->mode, HTH_INTERVAL_KEEP, (size_t)search->m->n_intervals);
    search->best_score = INFINITY;
    policy_try(search);
    if (policy == HTH_POLICY_VDNN) {
        policy_vdnn(search);
    } else if (policy == HTH_POLICY_CHEN) {
        policy_chen(search);
    } else if (policy == HTH_POLICY_CAPUCHIN) {
        policy_capuchin(search);
    }
}

// Has the search start from what the greedy policies do whose levers it has.
static void policy_give(hth_search *search, hth_policy policy)
{
    hth_outcome o;
    bool no_stalls = search->no_stalls;
    search->no_stalls = false;
    for (int k = 0; k < HTH_N_POLICIES; k++) {
        if (hth_policy_contains(policy, (hth_policy)k) && !hth_policy_searches((hth_policy)k)) {
            policy_greedy(search, (hth_policy)k);
            hth_search_try(search, search->best, &o);
            search->given_us[k] = o.excess > 0 ? INFINITY : o.time_us;
            if (o.excess == 0) {
                hth_search_give(search, search->best);
            }
        }
    }
    search->no_stalls = no_stalls;
}

// Searches without seeing the algorithms, then gives every node the fastest that fits. What the
// search takes a node's time for is open: its smallest algorithm's, or its fastest's as if that
// needed no workspace. Both are tried; the best counts that they found or started from. The
// tie-break towards low memory is the search's own.
static void policy_auto(hth_search *search, hth_step *step, uint64_t deadline_ns, bool warm,
                        hth_outcome *out)
{
    uint64_t now_ns = hth_plan_work_now_ns();
    uint64_t half_ns = deadline_ns > now_ns ? (deadline_ns - now_ns) / 2 : 0;
    uint64_t from = search->n_decodes, all = search->max_decodes;
    size_t n = (size_t)step->n_intervals;
    double least = INFINITY;
    for (int k = 0; k < 2; k++) {
        search->max_decodes = all < UINT64_MAX ? from + (all - from) / 2 * (uint64_t)(k + 1) : all;
        hth_step_trim(step, k == 0 ? HTH_TRIM_SMALLEST : HTH_TRIM_FREE);
        hth_search_run(search, now_ns + half_ns * (uint64_t)(k + 1), warm, out);
        hth_step_trim(step, HTH_TRIM_NONE);
        double score = hth_search_try(search, search->best, out);
        if (score < least) {
            least = score;
            memcpy(search->first, search->best, n);
        }
    }
    search->max_decodes = all;
    search->n_elites = 0; // of trimmed menus
    for (int i = -1; i < search->n_given; i++) {
        const uint8_t *mode = i < 0 ? search->first : search->given + (size_t)i * n;
        double score = hth_search_try(search, mode, out);
        if (score <= least) {
            least = score;
            memcpy(search->best, mode, n);
        }
    }
}

// Searches as mo-sos does, for a share of the time, and gives what that finds: without stalls
// there are fewer valleys.
static void policy_part(hth_search *search, uint64_t deadline_ns)
{
    hth_outcome o;
    uint64_t now_ns = hth_plan_work_now_ns(), all = search->max_decodes;
    double left_ns = deadline_ns > now_ns ? (double)(deadline_ns - now_ns) : 0;
    if (left_ns < POLICY_PART_NS * search->m->n_stages) {
        return;
    }
    if (all < UINT64_MAX && all > search->n_decodes) {
        double left = (double)(all - search->n_decodes);
        search->max_decodes = search->n_decodes + (uint64_t)(left * POLICY_PART);
    }
    search->no_stalls = true;
    hth_search_run(search, now_ns + (uint64_t)(left_ns * POLICY_PART), false, &o);
    search->no_stalls = false;
    search->max_decodes = all;
    hth_search_give(search, search->best);
}

void hth_search_policy(hth_search *search, hth_step *step, const hth_plan_options *options,
                       uint64_t deadline_ns, bool warm, hth_outcome *out)
{
    hth_policy policy = options->policy;
    search->offload = (policy_levers[policy] & LEVER_OFFLOAD) != 0;
    search->recompute = (policy_levers[policy] & LEVER_RECOMPUTE) != 0;
    search->no_stalls = policy == HTH_POLICY_MOSOS;
    if (hth_policy_searches(policy) && !warm) {
        policy_give(search, policy);
    }
    switch (policy) {
    case HTH_POLICY_CHECKMATE:
    case HTH_POLICY_STR:
        policy_auto(search, step, deadline_ns, warm, out);
        break;
    case HTH_POLICY_MONET:
    case HTH_POLICY_MOSOS:
        hth_search_run(search, deadline_ns, warm, out);
        break;
    case HTH_POLICY_HEARTH:
        if (!warm && !search->concurrent) {
            policy_part(search, deadline_ns);
        }
        search->dual = true;
        hth_search_run(search, deadline_ns, warm, out);
        search->dual = false;
        if (warm && out->excess == 0) { // where the link is fast, everything away may be best
            search->best_score = hth_search_try(search, search->best, out);
            double before = search->best_score;
            policy_vdnn(search);
            if (search->best_score < before) {
                hth_search_elite(search, search->best, search->best_score);
            }
        }
        break;
    default:
        policy_greedy(search, policy);
    }
    hth_search_try(search, search->best, out);
}
