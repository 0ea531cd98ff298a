// SPDX-License-Identifier: Apache-2.0
// planner/search/plan_search.h - looks for the modes with the shortest step; part of
// hth_plan_train.
#ifndef HTH_PLANNER_PLAN_SEARCH_H
#define HTH_PLANNER_PLAN_SEARCH_H

#include "planner/plan_decode.h"
#include "planner/plan_train.h"

typedef struct hth_rank {
    double value;
    int interval;
} hth_rank;

#define HTH_SEARCH_ELITES 8
#define HTH_SEARCH_GIVEN  8
#define HTH_SEARCH_STALLS                                                                          \
    0.01 // of the time that the compute waits for copies: worth getting out of

typedef struct hth_search {
    const hth_step *m;
    hth_decoder d;
    bool offload, recompute; // levers that the policy has
    bool dual;               // one start is what the dual of the certificate does
    bool no_stalls;          // a step whose compute waits for a copy counts as not fitting
    bool fits_first;         // whatever fits is better than what does not
    bool concurrent;         // mo-sos's search is another thread's
    uint64_t rng, deadline_ns, n_decodes, max_decodes;
    uint64_t now_ns, next_look; // the clock when last asked; the decode at which it is asked again
    uint8_t *mode, *best;       // per interval: at hand, best so far
    uint8_t *kept, *first, *before, *step; // scratch
    uint8_t *modes;                        // per interval: those below this make a difference
    uint8_t *banned; // per interval: modes, a bit each, that hth_search_moves leaves out
    int64_t *room;   // per stage: bytes that are free besides tensors, ..
    int *item, *end; // .. its algorithm; per interval: the stage that ends it
    double *late;    // per interval: stalls that its copies have a part in; ..
    double *span;    // .. time from its start to its end
    int *order;      // scratch: per interval
    int *lane;       // scratch: intervals in the order of their copies
    int *cover;      // scratch: number of stages over the budget before each
    hth_rank *rank;  // scratch: per interval
    double score, best_score, stall_price;
    double settled; // score of modes from which flips or kicks have gone down already
    double tie_us;  // the tie-break per byte and stage
    bool fits;      // whether the modes at hand fit, ..
    bool stalled;   // .. and whether the compute waits for copies for long
    uint8_t *elite; // the best few that fit, modes per interval, one after the other: addresses
    int n_elites;   // may be found for one when there are none for the best
    double elite_score[HTH_SEARCH_ELITES]; // ascending
    double proven_us;                      // no plan is faster, if > 0 (plan_optimal.h)
    uint8_t *given; // modes to start from besides, one after the other: other policies' plans
    int n_given;
    double given_us[HTH_N_POLICIES]; // what a greedy policy's step takes, 0: it was not tried
    struct hth_dual **prices;        // the caller's, may be NULL: where the dual ended
    struct hth_bound_share *share;   // per interval: what the dual does, ..
    bool shares;                     // .. once there is one
} hth_search;

hth_err hth_search_open(hth_search *search, const hth_step *step, uint64_t budget,
                        const hth_plan_options *options);
void hth_search_close(hth_search *search);

// hth_search_policy sets search->best to what options->policy decides; the other arguments are
// hth_search_run's. *step is trimmed for the policies that do not see algorithms, and whole again
// after it.
void hth_search_policy(hth_search *search, hth_step *step, const hth_plan_options *options,
                       uint64_t deadline_ns, bool warm, hth_outcome *out);

// hth_policy_searches: the policy's levers are set by a search, as good as its limit allows; not
// greedily. hth_policy_contains: it searches, and has all levers of `other`, whose plans it takes.
bool hth_policy_searches(hth_policy policy);
bool hth_policy_contains(hth_policy policy, hth_policy other);

// hth_search_run searches until the deadline or until it finds nothing more; search->best holds the
// modes, *out what they come to. warm: search->best holds the modes to start from.
void hth_search_run(hth_search *search, uint64_t deadline_ns, bool warm, hth_outcome *out);
// hth_search_elite takes modes that fit among the best few.
void hth_search_elite(hth_search *search, const uint8_t *mode, double score);
// hth_search_give has the next search start from these modes, too.
void hth_search_give(hth_search *search, const uint8_t *mode);
// hth_search_try decodes `mode` and returns its score: time, and a heavy price on bytes too many.
double hth_search_try(hth_search *search, const uint8_t *mode, hth_outcome *outcome);

// Parts of the search that its other files use.
// hth_search_over: time or decodes are used up. hth_search_try_under is hth_search_try, given up
// (with some score from `limit` on) as soon as the score cannot be under `limit`.
bool hth_search_over(hth_search *search);
double hth_search_try_under(hth_search *search, const uint8_t *mode, double limit,
                            hth_outcome *outcome);
// hth_search_keep_best takes the modes at hand as the best if they are; hth_search_keep_elite takes
// them among the best few.
void hth_search_keep_best(hth_search *search);
void hth_search_keep_elite(hth_search *search);
// Moves (plan_search_moves.c), from the modes at hand. hth_search_greedy frees bytes, cheapest
// first, counting `price` of the link's time and the fastest algorithms or the smallest; false: the
// step would take longer than limit_us. hth_search_descend flips single intervals as long as that
// helps. hth_search_kick: whether it found a better one than the best.
bool hth_search_greedy(hth_search *search, double price, bool fastest, double limit_us);
void hth_search_descend(hth_search *search);
bool hth_search_kick(hth_search *search);
// Starts (plan_search_starts.c). hth_search_starts: several greedy ones. hth_search_valleys: the
// budget comes down first. hth_search_another: one more start, in turn what the dual does and a
// greedy one; false: all have been used.
// hth_search_away: the least memory there can be.
void hth_search_starts(hth_search *search);
void hth_search_valleys(hth_search *search);
bool hth_search_another(hth_search *search, int *next);
void hth_search_away(hth_search *search);

// What the search knows about moves (plan_ways.c), as the last whole decode left it.
// hth_search_allows: interval g may have this mode under the policy.
bool hth_search_allows(const hth_search *search, int g, hth_interval_mode mode);
// hth_search_keep_all: everything is kept; what only recomputes read is computed again, too.
void hth_search_keep_all(const hth_search *search, uint8_t *mode);
// hth_search_cost: what giving interval g another mode would cost about, in us; `price` of the
// link's time.
double hth_search_cost(const hth_search *search, int g, hth_interval_mode mode, double price);
// hth_search_note takes over what the last decode, of search->mode, left: for hth_search_gain,
// which says about how much time another mode of interval g would gain: hardly ever too little, but
// often too much (reruns of inputs, stalls). <= 0: not worth trying.
void hth_search_note(hth_search *search, const hth_outcome *outcome);
double hth_search_gain(const hth_search *search, int g, hth_interval_mode mode);
// hth_search_worst returns the stage with the most bytes too many (*over), counting the fastest
// algorithms or the smallest; -1: none.
int hth_search_worst(const hth_search *search, bool fastest, double *over);
// hth_search_moves lists what could free bytes in stage s in search->rank (interval * 4 + mode),
// cheapest per byte and stage first; returns how many. `blur` > 0 randomises.
int hth_search_moves(hth_search *search, int s, bool fastest, double price, double blur);
int hth_search_rank_cmp(const void *a, const void *b);
uint32_t hth_search_random(hth_search *search, uint32_t below);

#endif
