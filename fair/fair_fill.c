// SPDX-License-Identifier: Apache-2.0
// Progressive filling with whole tasks. What is left only shrinks, so a demand that does not fit
// never fits again: each tenant goes down its list once, and one at its end leaves the heap. Keys
// only grow, and only the first one's does, so the heap is an array of keys of which the first
// sinks: with four below each, and nothing looked at but keys, for memory is what its steps wait
// for.
#include "fair/fair.h"

#include "base/alloc.h"

#include <math.h>

typedef struct fill_key {
    // Dominant share by weight. A quotient of two whole numbers, rounded once: equal quotients are
    // equal, and in a long double others that are nearly so differ.
    long double key;
    int tenant;
} fill_key;

typedef struct fill_tenant {
    double weight; // the tenant's, by fill_weights
    int demand;
} fill_tenant;

typedef struct fill {
    const hth_fair_problem *p;
    fill_key *heap;
    fill_tenant *tenants;
    int n; // in the heap
    uint64_t given, most;
    hth_fair_shares *out;
} fill;

static bool fill_before(const fill_key *a, const fill_key *b)
{
    return a->key != b->key ? a->key < b->key : a->tenant < b->tenant;
}

// fill_sink puts a key in the place of the first.
static void fill_sink(fill *f, fill_key key)
{
    int at = 0;
    for (int below = 1; below < f->n; below = at * 4 + 1) {
        int least = below, end = below + 4 < f->n ? below + 4 : f->n;
        for (int i = below + 1; i < end; i++) {
            least = fill_before(&f->heap[i], &f->heap[least]) ? i : least;
        }
        if (!fill_before(&f->heap[least], &key)) {
            break;
        }
        f->heap[at] = f->heap[least];
        at = least;
    }
    f->heap[at] = key;
}

bool hth_fair_fits(const hth_fair_amounts *demand, const hth_fair_amounts *room, int n)
{
    bool fits = true;
    for (int r = 0; r < n; r++) {
        fits = fits && demand->of[r] <= room->of[r];
    }
    return fits;
}

double hth_fair_dominant(const hth_fair_amounts *used, const hth_fair_amounts *capacity, int n,
                         int *which)
{
    double most = 0;
    int at = -1;
    for (int r = 0; r < n; r++) {
        double share = capacity->of[r] > 0 ? used->of[r] / capacity->of[r] : 0;
        at = share > most ? r : at;
        most = share > most ? share : most;
    }
    if (which != NULL) {
        *which = at;
    }
    return most;
}

static long double fill_level(const fill *f, int i)
{
    long double most = 0;
    for (int r = 0; r < f->p->n_resources; r++) {
        double capacity = f->p->capacity.of[r];
        long double level = capacity > 0 ? (long double)f->out->of[i].used.of[r] /
                                               ((long double)capacity * f->tenants[i].weight)
                                         : 0;
        most = level > most ? level : most;
    }
    return most;
}

static bool fill_free(const fill *f, const hth_fair_amounts *demand)
{
    static const hth_fair_amounts none = {{0}};
    return hth_fair_fits(demand, &none, f->p->n_resources);
}

// fill_next is the first of the tenant's demands that fits; NULL: it gets no more.
static const hth_fair_amounts *fill_next(const fill *f, int i)
{
    const hth_fair_tenant *t = &f->p->tenants[i];
    int *k = &f->tenants[i].demand;
    while (*k < t->n_demands && !hth_fair_fits(&t->demand[*k], &f->out->left, f->p->n_resources)) {
        ++*k;
    }
    return *k < t->n_demands && f->out->of[i].tasks < t->tasks ? &t->demand[*k] : NULL;
}

// fill_give gives the tenant one task, or, where they need nothing, all that it wants.
static hth_err fill_give(fill *f, int i, const hth_fair_amounts *demand)
{
    hth_fair_share *share = &f->out->of[i];
    if (fill_free(f, demand)) {
        share->tasks = f->p->tenants[i].tasks;
        return HTH_OK;
    }
    if (f->given++ == f->most) {
        return hth_fail(HTH_EINVAL,
                        "more than %llu tasks fit the capacity (tenant '%s' has %llu of them); at "
                        "most %llu are given out: measure in larger units",
                        (unsigned long long)f->most, f->p->tenants[i].name,
                        (unsigned long long)share->tasks, (unsigned long long)f->most);
    }
    share->tasks++;
    for (int r = 0; r < f->p->n_resources; r++) {
        share->used.of[r] += demand->of[r];
        f->out->left.of[r] -= demand->of[r];
    }
    return HTH_OK;
}

bool hth_fair_whole(double x, double scale)
{
    double whole = nearbyint(x * scale);
    return whole <= HTH_FAIR_EXACT && whole / scale == x;
}

// fill_weights is what all weights are multiplied by to be whole numbers; 1 if they have too many
// decimals.
static double fill_weights(const hth_fair_problem *problem)
{
    double scale = 1;
    bool whole = false;
    for (; !whole && scale <= 1 / HTH_FAIR_WEIGHT_MIN; scale *= 10) {
        whole = true;
        for (int i = 0; i < problem->n_tenants && whole; i++) {
            whole = hth_fair_whole(problem->tenants[i].weight, scale);
        }
    }
    return whole ? scale / 10 : 1;
}

static hth_err fill_begin(fill *f)
{
    double scale = fill_weights(f->p);
    int n = f->p->n_tenants;
    f->tenants = hth_calloc((size_t)n + 1, sizeof *f->tenants);
    f->heap = hth_calloc((size_t)n + 1, sizeof *f->heap);
    f->out->of = hth_calloc((size_t)n + 1, sizeof *f->out->of);
    if (f->tenants == NULL || f->heap == NULL || f->out->of == NULL) {
        return hth_no_memory("the shares of %d tenants", n);
    }
    for (int i = 0; i < n; i++) { // all keys are 0: in the order of the file they are a heap
        double weight = f->p->tenants[i].weight;
        f->tenants[i].weight = scale > 1 ? nearbyint(weight * scale) : weight;
        f->heap[i].tenant = i;
    }
    f->n = n;
    return HTH_OK;
}

static hth_err fill_run(fill *f)
{
    while (f->n > 0) {
        int i = f->heap[0].tenant;
        const hth_fair_amounts *demand = fill_next(f, i);
        if (demand == NULL) {
            f->n--;
            fill_sink(f, f->heap[f->n]);
        } else {
            HTH_TRY(fill_give(f, i, demand));
            fill_sink(f, (fill_key){fill_level(f, i), i});
        }
    }
    for (int i = 0; i < f->p->n_tenants; i++) {
        hth_fair_share *share = &f->out->of[i];
        share->dominant_share =
            hth_fair_dominant(&share->used, &f->p->capacity, f->p->n_resources, &share->dominant);
    }
    return HTH_OK;
}

hth_err hth_fair_fill(const hth_fair_problem *problem, uint64_t most, hth_fair_shares *out)
{
    *out = (hth_fair_shares){.left = problem->capacity};
    fill f = {.p = problem, .most = most, .out = out};
    hth_err err;
    HTH_GOTO(hth_fair_check(problem), done);
    HTH_GOTO(fill_begin(&f), done);
    err = fill_run(&f);
done:
    hth_free(f.heap);
    hth_free(f.tenants);
    if (err != HTH_OK) {
        hth_fair_shares_fini(out);
    }
    return err;
}

void hth_fair_shares_fini(hth_fair_shares *shares)
{
    hth_free(shares->of);
    *shares = (hth_fair_shares){.of = NULL};
}
