// SPDX-License-Identifier: Apache-2.0
// The certificate: a time that no plan of this step can beat under the budget. The dual
// (plan_bound_impl.h) is concave and piecewise linear in prices and weights together; a projected
// subgradient with Polyak's step and averaged directions climbs it, and every few iterations the
// paths that are too long under the average of the minimisers join. Every point that it visits is a
// valid bound; the best is kept.
// Sources: Held and Karp 1971; Polyak 1969; averaged directions: Camerini, Fratta and Maffioli
// 1975; projection on the simplex: Duchi et al. 2008.
#include "planner/bound/plan_bound_impl.h"
#include "planner/plan_work.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define BOUND_NEW       0.08 // part of a new subgradient in the direction
#define BOUND_MEAN      0.06 // .. of a new minimiser in the average
#define BOUND_ROUND     6    // iterations between new paths
#define BOUND_STALE     24   // .. without progress before the step shrinks
#define BOUND_SHRINK    0.7
#define BOUND_LOST      100   // intervals below the best point: a step along too short a mean
#define BOUND_MIN       0.002 // a step that gets nowhere
#define BOUND_FAR       4     // a weight's step: the projection loses digits, too
#define BOUND_DEAR      1e4   // steps per budget: beyond that sums lose the digits that count
#define BOUND_SURE      24    // last iterations, which try every stage, of a small problem, ..
#define BOUND_SURE_OPEN 80    // .. of one whose certificate leaves more than BOUND_OPEN
#define BOUND_OPEN      0.05  // .. of the step's time
#define BOUND_SURE_STEP 0.02  // the step that they begin with
#define BOUND_CLOSE     1e-5  // of the step's time: nothing worth more iterations

// The best point that a climb has visited.
struct hth_dual {
    uint64_t budget;
    double best;
    double *price;
    hth_bound_path path[BOUND_PATHS];
    int n_paths;
    double weight[BOUND_PATHS + 1];
};

typedef struct climb {
    hth_bound *b;
    hth_dual *top; // the best point so far
    bool fresh;    // the next direction is that of one subgradient
    double unit;   // prices and weights have other units: a weight moves the bound by up to this
    double *down;  // per stage: direction of the price
    double turn[BOUND_PATHS + 1]; // .. of the weight
    double step, best;
    int stale;
} climb;

// The nearest point of the simplex of size `total`.
static void bound_simplex(double *w, int n, double total)
{
    double sorted[BOUND_PATHS + 1], sum = 0, shift = 0;
    memcpy(sorted, w, (size_t)n * sizeof *w);
    for (int i = 1; i < n; i++) { // descending
        for (int j = i; j > 0 && sorted[j] > sorted[j - 1]; j--) {
            double x = sorted[j];
            sorted[j] = sorted[j - 1];
            sorted[j - 1] = x;
        }
    }
    for (int i = 0; i < n; i++) {
        sum += sorted[i];
        double at = (sum - total) / (i + 1);
        shift = sorted[i] > at ? at : shift;
    }
    for (int i = 0; i < n; i++) {
        w[i] = fmax(w[i] - shift, 0);
    }
}

// Copies slow compute by `copy_interference` of their time at most, so `busy` has that weight at
// most.
static void bound_project(hth_bound *bound)
{
    double most = fmin(bound->m->p->copy_interference, 1), w[BOUND_PATHS + 1];
    int n = bound->n_paths;
    memcpy(w, bound->weight, (size_t)n * sizeof *w);
    w[n] = bound->weight[BOUND_BUSY];
    if (most > 0) {
        bound_simplex(w, n + 1, 1);
    }
    if (most <= 0 || w[n] > most) {
        memcpy(w, bound->weight, (size_t)n * sizeof *w);
        w[n] = fmax(most, 0);
        bound_simplex(w, n, 1 - w[n]);
    }
    memcpy(bound->weight, w, (size_t)n * sizeof *w);
    bound->weight[BOUND_BUSY] = w[n];
}

// The directions, and the square of their length; `part` of them is new.
static double climb_turn(climb *c, double value, double part)
{
    hth_bound *b = c->b;
    double norm = 0;
    for (int s = 0; s < b->m->n_stages; s++) {
        c->down[s] += part * (b->over[s] - c->down[s]);
        norm += b->price[s] > 0 || c->down[s] > 0 ? c->down[s] * c->down[s] : 0;
    }
    for (int k = 0; k <= BOUND_BUSY; k++) {
        if (k < b->n_paths || k == BOUND_BUSY) {
            c->turn[k] += part * ((b->length[k] - value) / c->unit - c->turn[k]);
            norm += b->weight[k] > 0 || c->turn[k] > 0 ? c->turn[k] * c->turn[k] : 0;
        }
    }
    return norm;
}

static void climb_step(climb *c, double by)
{
    hth_bound *b = c->b;
    for (int s = 0; s < b->m->n_stages; s++) {
        b->price[s] = fmin(fmax(0, b->price[s] + by * c->down[s]), BOUND_DEAR * c->unit);
    }
    for (int k = 0; k <= BOUND_BUSY; k++) {
        b->weight[k] += fmin(fmax(by * c->turn[k] / c->unit, -BOUND_FAR), BOUND_FAR);
    }
    bound_project(b);
}

// The point at hand is the best one.
static void climb_keep(climb *c, double value)
{
    const hth_bound *b = c->b;
    c->best = c->top->best = value;
    c->top->n_paths = b->n_paths;
    memcpy(c->top->price, b->price, (size_t)b->m->n_stages * sizeof *b->price);
    memcpy(c->top->path, b->path, sizeof b->path);
    memcpy(c->top->weight, b->weight, sizeof b->weight);
}

// Back to the best point.
static void climb_back(climb *c)
{
    hth_bound *b = c->b;
    b->n_paths = c->top->n_paths;
    memcpy(b->price, c->top->price, (size_t)b->m->n_stages * sizeof *b->price);
    memcpy(b->path, c->top->path, sizeof b->path);
    memcpy(b->weight, c->top->weight, sizeof b->weight);
    c->fresh = true;
}

// Goes on from the best point of an earlier climb, if there is one.
static void climb_begin(climb *c, uint64_t budget)
{
    hth_bound *b = c->b;
    hth_bound_path_begin(b);
    if (c->top->n_paths > 0) {
        climb_back(c);
        for (int k = 0; k < b->n_paths; k++) {
            b->path[k].age = -1; // older than what follows
        }
        c->best = c->top->budget == budget ? c->top->best : 0;
    }
    c->top->best = c->best; // another budget's is none
    c->top->budget = budget;
}

static hth_err bound_climb(climb *c, double upper_us, int iterations, uint64_t deadline_ns)
{
    for (int i = 0; i < iterations && c->step > BOUND_MIN; i++) {
        double value = hth_bound_value(c->b);
        hth_plan_work_add(HTH_WORK_BOUND, c->b->m->n_stages + c->b->m->n_intervals);
        if (!(value < INFINITY)) {
            c->best = value;
            return HTH_OK;
        }
        c->stale = value > c->best + BOUND_CLOSE * c->unit ? 0 : c->stale + 1;
        if (value > c->best || c->top->n_paths == 0) {
            climb_keep(c, value);
        }
        if (c->best >= upper_us * (1 - BOUND_CLOSE) || hth_plan_work_now_ns() >= deadline_ns) {
            return HTH_OK;
        }
        if (c->stale == BOUND_STALE) {
            c->step *= BOUND_SHRINK;
            c->stale = 0;
        }
        if (value < c->best - BOUND_LOST * (upper_us - c->best)) {
            c->step *= BOUND_SHRINK;
            climb_back(c);
            continue;
        }
        hth_bound_average(c->b, i == 0 ? 1 : BOUND_MEAN);
        if (i == 0 || i % BOUND_ROUND == BOUND_ROUND - 1) {
            HTH_TRY(hth_bound_path_add(c->b, i));
        }
        double norm = climb_turn(c, value, c->fresh ? 1 : BOUND_NEW);
        c->fresh = false;
        climb_step(c, norm > 0 ? c->step * (upper_us * 1.0001 - value) / norm : 0);
    }
    return HTH_OK;
}

// Goes on from the best point for a while with every stage tried: what that proves.
static hth_err bound_certify(climb *c, double upper_us)
{
    HTH_TRY(hth_bound_exact_table(c->b));
    bool open = c->best * (1 + BOUND_OPEN) < upper_us;
    if (c->best < INFINITY && c->top->n_paths > 0) {
        climb_back(c);
    }
    c->b->exact = true;
    c->best = c->stale = 0;
    c->step = BOUND_SURE_STEP;
    bool small = c->b->m->n_stages <= BOUND_SMALL;
    int most = open ? BOUND_SURE_OPEN : BOUND_SURE;
    hth_err err = bound_climb(c, upper_us, small ? most : 1, UINT64_MAX);
    c->b->exact = false;
    return err;
}

static void bound_fini(hth_bound *bound)
{
    void *all[] = {bound->fixed,      bound->fast_us,     bound->last_use,
                   bound->n_made,     bound->dead_of,     bound->leave,
                   bound->come,       bound->leaves,      bound->dead,
                   bound->price,      bound->sum,         bound->in,
                   bound->out,        bound->share,       bound->in_at,
                   bound->dip,        bound->choice,      bound->way,
                   bound->use,        bound->over,        bound->us,
                   bound->us_sum,     bound->mean_in,     bound->mean_out,
                   bound->mean_us,    bound->mean_again,  bound->way_apart,
                   bound->apart_cost, bound->apart_first, bound->apart_interval,
                   bound->apart_at,   bound->apart_head,  bound->apart_next,
                   bound->rerun,      bound->table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
}

static hth_err bound_init(hth_bound *bound, const hth_step *step, uint64_t budget)
{
    size_t ns = (size_t)step->n_stages + 2, ng = (size_t)step->n_intervals + 1,
           nt = (size_t)step->p->n_tensors + 1, na = BOUND_PATHS * BOUND_ARCS;
    *bound = (hth_bound){.m = step,
                         .budget = (double)budget + 1,
                         .fixed = hth_calloc(ns, sizeof(double)),
                         .fast_us = hth_calloc(ns, sizeof(double)),
                         .rerun = hth_calloc(ns, sizeof(double)),
                         .last_use = hth_calloc(nt, sizeof(int)),
                         .n_made = hth_calloc(ns, sizeof(int)),
                         .dead_of = hth_calloc(ng, sizeof(int)),
                         .leave = hth_calloc(ng, sizeof(int)),
                         .come = hth_calloc(ng, sizeof(int)),
                         .leaves = hth_calloc(ng, sizeof(bool)),
                         .price = hth_calloc(ns, sizeof(double)),
                         .sum = hth_calloc(ns, sizeof(double)),
                         .in = hth_calloc(na, sizeof(hth_arc)),
                         .out = hth_calloc(na, sizeof(hth_arc)),
                         .share = hth_calloc(ns, sizeof(double)),
                         .in_at = hth_calloc(ns, sizeof(double)),
                         .dip = hth_calloc(ns, sizeof(int)),
                         .way = hth_calloc(ng, sizeof(hth_way)),
                         .way_apart = hth_calloc(ng, sizeof(hth_way)),
                         .apart_cost = hth_calloc(nt, sizeof(double[2])),
                         .apart_first = hth_calloc(nt, sizeof(int[2])),
                         .apart_interval = hth_calloc(nt, sizeof(int)),
                         .apart_at = hth_calloc(nt, sizeof(int)),
                         .apart_head = hth_calloc(ns, sizeof(int)),
                         .apart_next = hth_calloc(nt, sizeof(int)),
                         .choice = hth_calloc(ng, sizeof(hth_choice_of_interval)),
                         .use = hth_calloc(ns, sizeof(double)),
                         .over = hth_calloc(ns, sizeof(double)),
                         .us = hth_calloc(ns, sizeof(double)),
                         .us_sum = hth_calloc(ns, sizeof(double)),
                         .mean_in = hth_calloc(ng, sizeof(double)),
                         .mean_out = hth_calloc(ng, sizeof(double)),
                         .mean_again = hth_calloc(ng, sizeof(double)),
                         .mean_us = hth_calloc(ns, sizeof(double))};
    if (!bound->fixed || !bound->fast_us || !bound->last_use || !bound->n_made || !bound->dead_of ||
        !bound->leave || !bound->come || !bound->leaves || !bound->price || !bound->sum ||
        !bound->in || !bound->out || !bound->share || !bound->in_at || !bound->dip || !bound->way ||
        !bound->choice || !bound->use || !bound->over || !bound->us || !bound->us_sum ||
        !bound->mean_in || !bound->mean_out || !bound->mean_us || !bound->mean_again ||
        !bound->way_apart || !bound->apart_cost || !bound->apart_first || !bound->apart_interval ||
        !bound->apart_at || !bound->apart_head || !bound->apart_next || !bound->rerun) {
        return hth_no_memory("bounding a step of %d nodes", step->n_stages);
    }
    return hth_bound_facts(bound);
}

// Behind its last use a tensor is kept for nobody but a recompute.
static void bound_shares(const hth_bound *bound, hth_bound_share *share)
{
    for (int g = 0; g < bound->m->n_intervals; g++) {
        const hth_interval *interval = &bound->m->interval[g];
        share[g] = hth_bound_counts(bound->m, interval)
                       ? (hth_bound_share){(float)bound->mean_in[g], (float)bound->mean_again[g]}
                       : (hth_bound_share){0, interval->can_rerun};
    }
}

void hth_dual_free(hth_dual *dual)
{
    if (dual != NULL) {
        hth_free(dual->price);
        hth_free(dual);
    }
}

static hth_dual *dual_new(const hth_step *step)
{
    hth_dual *d = hth_calloc(1, sizeof *d);
    if (d != NULL &&
        (d->price = hth_calloc((size_t)step->n_stages + 1, sizeof *d->price)) == NULL) {
        hth_free(d);
        d = NULL;
    }
    return d;
}

hth_err hth_step_bound(const hth_step *step, uint64_t budget, double upper_us, int iterations,
                       double limit_ms, hth_dual **dual, hth_bound_share *share, double *out)
{
    hth_bound b;
    climb c = {.b = &b, .unit = upper_us > 0 ? upper_us : 1, .step = 1};
    c.top = dual != NULL ? *dual : NULL;
    uint64_t deadline_ns =
        limit_ms > 0 ? hth_plan_work_now_ns() + (uint64_t)(limit_ms * 1e6) : UINT64_MAX;
    hth_err err;
    HTH_GOTO(bound_init(&b, step, budget), done);
    c.down = hth_calloc((size_t)step->n_stages + 1, sizeof *c.down);
    c.top = c.top != NULL ? c.top : dual_new(step);
    HTH_GOTO(c.down != NULL && c.top != NULL
                 ? HTH_OK
                 : hth_no_memory("bounding a step of %d nodes", step->n_stages),
             done);
    climb_begin(&c, budget);
    HTH_GOTO(bound_climb(&c, upper_us, iterations, deadline_ns), done);
    if (share != NULL) {
        bound_shares(&b, share);
    } else {
        HTH_GOTO(bound_certify(&c, upper_us), done);
    }
    *out = c.best;
done:
    if (dual != NULL) {
        *dual = c.top;
    } else {
        hth_dual_free(c.top);
    }
    hth_free(c.down);
    bound_fini(&b);
    return err;
}
