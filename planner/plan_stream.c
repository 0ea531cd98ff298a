// SPDX-License-Identifier: Apache-2.0
// Which weights to stream. A decision is decoded from one bit per weight: the streamed ones take
// their bytes only around their uses, what is left of the budget goes to workspaces (the fastest
// algorithm that fits its stage, which needs no search) and to *lead*: stages by which a fetch
// begins before its need, so that the copy overlaps compute. How long a lead must be follows from a
// backward pass over the link (latest starts without a stall); how long it may be, from the bytes.
// Decoding costs O(stages + uses + leads), some tens of microseconds for 500 nodes.
//
// The search starts from several orders of which weights to give up first, each taken as far as
// needed and further, and improves the best by single flips. Time is simulated by the rules of
// plan.c: FIFO link, a fetch starts when its first stage does, compute waits for what it reads.
#include "planner/plan_stream.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// libm's fmax and fmin are calls, these are instructions: times are never NaN.
#define STREAM_MAX(a, b) ((a) > (b) ? (a) : (b))
#define STREAM_MIN(a, b) ((a) < (b) ? (a) : (b))

#define STREAM_FLIPS       100 // evaluations of the local search; each costs two decodes
#define STREAM_KEEP_STAGES 64  // an interval between uses longer than this is not worth its bytes

static const hth_menu_item *stream_item(const hth_stream_model *model,
                                        const hth_stream_decision *decision, int s)
{
    return &model->menu[model->menu_start[s] + decision->item[s]];
}

static uint64_t stream_min_workspace(const hth_stream_model *model, int s)
{
    return model->menu[model->menu_start[s + 1] - 1].workspace;
}

// The fastest item of stage s within `room`; the last one when none fits.
static int stream_fastest(const hth_stream_model *model, int s, uint64_t room)
{
    int i = model->menu_start[s];
    while (i < model->menu_start[s + 1] - 1 && model->menu[i].workspace > room) {
        i++;
    }
    return i - model->menu_start[s];
}

// Sets used_base: buffers and, around their uses, streamed weights. Returns the largest stage's
// bytes with the least workspaces.
static uint64_t stream_min_room(hth_stream_model *model, const hth_stream_decision *decision)
{
    uint64_t most = 0;
    memcpy(model->used_base, model->base, (size_t)model->n_stages * sizeof *model->base);
    for (int u = 0; u < model->n_uses; u++) {
        const hth_stream_use *x = &model->use[u];
        for (int s = x->need; decision->stream[x->weight] && s <= x->last; s++) {
            model->used_base[s] += model->weight[x->weight].bytes;
        }
    }
    for (int s = 0; s < model->n_stages; s++) {
        uint64_t bytes = model->used_base[s] + stream_min_workspace(model, s);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t stream_resident(const hth_stream_model *model, const hth_stream_decision *decision)
{
    uint64_t bytes = model->fixed_bytes;
    for (int w = 0; w < model->n_weights; w++) {
        bytes += decision->stream[w] ? 0 : model->weight[w].bytes;
    }
    return bytes;
}

// Decides per use whether the weight is fetched or kept since the use before: kept when the
// interval has room for it.
static void stream_intervals(hth_stream_model *model, hth_stream_decision *decision, uint64_t room)
{
    for (int u = 0; u < model->n_uses; u++) {
        const hth_stream_use *x = &model->use[u];
        decision->fetched[u] = decision->stream[x->weight];
        decision->begin[u] = x->need;
        if (!decision->fetched[u] || x->previous < 0) {
            continue;
        }
        int from = model->use[x->previous].last + 1, s = from;
        uint64_t bytes = model->weight[x->weight].bytes;
        while (s < x->need && x->need - from <= STREAM_KEEP_STAGES &&
               model->used_base[s] + stream_min_workspace(model, s) + bytes <= room) {
            s++;
        }
        if (s < x->need) {
            continue;
        }
        decision->fetched[u] = false;
        for (s = from; s < x->need; s++) {
            model->used_base[s] += bytes;
        }
    }
}

// The timeline: end_us[s + 1] is the end of stage s.
static void stream_time(hth_stream_model *model, const hth_stream_decision *decision)
{
    double link = 0;
    int u = 0;
    model->end_us[0] = 0;
    for (int s = 0; s < model->n_stages; s++) {
        double start = model->end_us[s];
        for (; u < model->n_uses && model->use[u].need == s; u++) {
            if (decision->fetched[u]) {
                link = STREAM_MAX(link, model->end_us[decision->begin[u]]) +
                       model->weight[model->use[u].weight].copy_us;
                start = STREAM_MAX(start, link);
            }
        }
        model->end_us[s + 1] = start + stream_item(model, decision, s)->time_us;
    }
}

// Gives every fetch the lead that it needs to hide, as far as the bytes allow, on top of used_base
// and the items' workspaces (min_workspaces: of the least ones instead).
static void stream_leads(hth_stream_model *model, hth_stream_decision *decision, uint64_t room,
                         bool min_workspaces)
{
    double latest = INFINITY;
    for (int u = model->n_uses - 1; u >= 0; u--) {
        if (decision->fetched[u]) {
            latest = STREAM_MIN(latest, model->end_us[model->use[u].need]) -
                     model->weight[model->use[u].weight].copy_us;
            model->latest_us[u] = latest;
        }
    }
    memcpy(model->used, model->used_base, (size_t)model->n_stages * sizeof *model->used);
    int floor = 0; // the link is first in, first out: nobody begins before the one ahead of it
    for (int u = 0; u < model->n_uses; u++) {
        if (!decision->fetched[u]) {
            continue;
        }
        const hth_stream_use *x = &model->use[u];
        uint64_t bytes = model->weight[x->weight].bytes;
        int s = x->need, stop = x->previous >= 0 ? model->use[x->previous].last + 1 : 0;
        stop = stop > floor ? stop : floor;
        while (s > stop && model->end_us[s] > model->latest_us[u]) {
            uint64_t workspace = min_workspaces ? stream_min_workspace(model, s - 1)
                                                : stream_item(model, decision, s - 1)->workspace;
            if (model->used[s - 1] + workspace + bytes > room) {
                break;
            }
            model->used[--s] += bytes;
        }
        floor = decision->begin[u] = s;
    }
}

static void stream_algorithms(hth_stream_model *model, hth_stream_decision *decision,
                              const uint64_t *used, uint64_t room)
{
    for (int s = 0; s < model->n_stages; s++) {
        decision->item[s] = stream_fastest(model, s, room - used[s]);
    }
}

// Decodes decision->stream within `budget`. leads_first: leads take their bytes before workspaces
// do.
static void stream_decode(hth_stream_model *model, uint64_t budget, bool leads_first,
                          hth_stream_decision *decision)
{
    decision->time_us = decision->cost_us = INFINITY;
    decision->resident_bytes = stream_resident(model, decision);
    uint64_t room = budget - decision->resident_bytes;
    if (decision->resident_bytes > budget || stream_min_room(model, decision) > room) {
        return;
    }
    stream_intervals(model, decision, room);
    stream_algorithms(model, decision, model->used_base, room);
    stream_time(model, decision);
    for (int pass = 0; pass < 2;
         pass++) { // the second knows the stalls that the first could not avoid
        stream_leads(model, decision, room, leads_first);
        if (leads_first) {
            stream_algorithms(model, decision, model->used, room);
        }
        stream_time(model, decision);
    }
    decision->time_us = model->end_us[model->n_stages];
    decision->link_bytes = 0;
    int copies = 0;
    for (int u = 0; u < model->n_uses; u++) {
        copies += decision->fetched[u] != 0;
        decision->link_bytes +=
            decision->fetched[u] ? model->weight[model->use[u].weight].bytes : 0;
    }
    double link_us = decision->link_bytes > 0
                         ? (double)decision->link_bytes / model->p->h2d_bytes_per_s * 1e6
                         : 0;
    decision->cost_us =
        decision->time_us + model->p->copy_interference * link_us + model->p->copy_us * copies;
}

static void stream_copy(const hth_stream_model *model, const hth_stream_decision *from,
                        hth_stream_decision *to)
{
    memcpy(to->stream, from->stream, (size_t)model->n_weights * sizeof *to->stream);
    memcpy(to->item, from->item, (size_t)model->n_stages * sizeof *to->item);
    memcpy(to->fetched, from->fetched, (size_t)model->n_uses * sizeof *to->fetched);
    memcpy(to->begin, from->begin, (size_t)model->n_uses * sizeof *to->begin);
    to->time_us = from->time_us;
    to->cost_us = from->cost_us;
    to->link_bytes = from->link_bytes;
    to->resident_bytes = from->resident_bytes;
}

static bool stream_better(const hth_stream_decision *a, const hth_stream_decision *b)
{
    return a->cost_us < b->cost_us ||
           (a->cost_us == b->cost_us && a->cost_us < INFINITY && a->link_bytes < b->link_bytes);
}

// Decodes `decision` both ways; takes it over into `best` when better. True when it was.
static bool stream_try(hth_stream_model *model, uint64_t budget, hth_stream_decision *decision,
                       hth_stream_decision *best)
{
    bool taken = false;
    for (int leads_first = 0; leads_first < 2; leads_first++) {
        stream_decode(model, budget, leads_first, decision);
        if (stream_better(decision, best)) {
            stream_copy(model, decision, best);
            taken = true;
        }
    }
    return taken;
}

uint64_t hth_stream_minimal(hth_stream_model *model, hth_stream_decision *decision)
{
    for (int w = 0; w < model->n_weights; w++) {
        decision->stream[w] = true;
    }
    for (int u = 0; u < model->n_uses; u++) {
        decision->fetched[u] = true;
        decision->begin[u] = model->use[u].need;
    }
    for (int s = 0; s < model->n_stages; s++) {
        decision->item[s] = model->menu_start[s + 1] - model->menu_start[s] - 1;
    }
    decision->resident_bytes = model->fixed_bytes;
    stream_time(model, decision);
    decision->time_us = decision->cost_us = model->end_us[model->n_stages];
    return model->fixed_bytes + stream_min_room(model, decision);
}

void hth_stream_keep_all(hth_stream_model *model, uint64_t budget, hth_stream_decision *decision,
                         bool *fastest)
{
    memset(decision->stream, 0, (size_t)model->n_weights * sizeof *decision->stream);
    stream_decode(model, budget, false, decision);
    *fastest = decision->time_us < INFINITY;
    for (int s = 0; s < model->n_stages && *fastest; s++) {
        *fastest = decision->item[s] == 0;
    }
}

// Orders of giving up weights.

typedef struct stream_rank {
    double key;
    int weight;
} stream_rank;

static int stream_rank_cmp(const void *a, const void *b)
{
    const stream_rank *x = a, *y = b;
    if (x->key != y->key) {
        return x->key > y->key ? -1 : 1;
    }
    return (x->weight > y->weight) - (x->weight < y->weight);
}

// kind 0: copies that the compute before them hides best; 1: largest; 2: latest; 3: spread evenly
// over the pass.
static void stream_order(const hth_stream_model *model, int kind, stream_rank *rank)
{
    int seen = 0;
    for (int w = 0; w < model->n_weights; w++) {
        rank[w] = (stream_rank){0, w};
    }
    for (int u = 0; u < model->n_uses; u++) {
        const hth_stream_use *x = &model->use[u];
        const hth_streamable *w = &model->weight[x->weight];
        if (x->previous >= 0) {
            rank[x->weight].key *= kind == 1 ? 1 : 0.5; // every further use is another copy
            continue;
        }
        double before = 0;
        for (int s = x->need - 1; s >= 0 && s >= x->need - 3; s--) {
            before += model->menu[model->menu_start[s]].time_us;
        }
        double spread = fmod(++seen * 0.6180339887498949, 1);
        double key[] = {before / w->copy_us, (double)w->bytes, x->need, spread};
        rank[x->weight].key = key[kind];
    }
    qsort(rank, (size_t)model->n_weights, sizeof *rank, stream_rank_cmp);
}

static void stream_prefix(const hth_stream_model *model, const stream_rank *rank, int k,
                          hth_stream_decision *decision)
{
    for (int i = 0; i < model->n_weights; i++) {
        decision->stream[rank[i].weight] = i < k;
    }
}

// The shortest prefix of the order that makes it fit: each weight more never needs more bytes.
// n_weights + 1: none.
static int stream_shortest(hth_stream_model *model, uint64_t budget, const stream_rank *rank,
                           hth_stream_decision *decision)
{
    int low = 0, high = model->n_weights + 1;
    while (low < high) {
        int k = (low + high) / 2;
        stream_prefix(model, rank, k, decision);
        uint64_t resident = stream_resident(model, decision);
        if (k > model->n_weights ||
            (resident <= budget && stream_min_room(model, decision) <= budget - resident)) {
            high = k;
        } else {
            low = k + 1;
        }
    }
    return low;
}

static void stream_starts(hth_stream_model *model, uint64_t budget, stream_rank *rank,
                          hth_stream_decision *decision, hth_stream_decision *best)
{
    static const int more_of_64[] = {0, 2, 6, 16, 32, 64};
    for (int kind = 0; kind < 4; kind++) {
        stream_order(model, kind, rank);
        int k = stream_shortest(model, budget, rank, decision), rest = model->n_weights - k,
            tried = -1;
        for (int i = 0; i < 6 && rest >= 0; i++) {
            int more = rest * more_of_64[i] / 64;
            if (more != tried) {
                stream_prefix(model, rank, k + more, decision);
                stream_try(model, budget, decision, best);
                tried = more;
            }
        }
    }
}

static uint64_t stream_random(uint64_t *state) // xorshift64*
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du >> 33;
}

// Flips one random weight, and mostly one more the other way: a swap keeps the bytes about even.
static void stream_flips(hth_stream_model *model, uint64_t budget, uint64_t seed,
                         hth_stream_decision *decision, hth_stream_decision *best)
{
    uint64_t random = seed * 2 + 1;
    int steps = model->n_stages > 2000 ? STREAM_FLIPS / 2 : STREAM_FLIPS;
    for (int step = 0; step < steps && model->n_weights > 0; step++) {
        memcpy(decision->stream, best->stream, (size_t)model->n_weights * sizeof *decision->stream);
        size_t w = stream_random(&random) % (size_t)model->n_weights;
        decision->stream[w] ^= 1;
        for (int tries = step % 4 ? 8 : 0; tries > 0; tries--) {
            size_t v = stream_random(&random) % (size_t)model->n_weights;
            if (v != w && decision->stream[v] == decision->stream[w]) {
                decision->stream[v] ^= 1;
                break;
            }
        }
        stream_try(model, budget, decision, best);
    }
}

hth_err hth_stream_search(hth_stream_model *model, uint64_t budget, uint64_t seed, bool warm,
                          hth_stream_decision *decision)
{
    hth_stream_decision x;
    stream_rank *rank = hth_alloc((size_t)model->n_weights * sizeof *rank);
    if (rank == NULL) {
        return hth_no_memory("planning %d nodes", model->n_stages);
    }
    hth_err err = hth_stream_decision_init(model, &x);
    if (err == HTH_OK) {
        if (warm) {
            memcpy(x.stream, decision->stream, (size_t)model->n_weights * sizeof *x.stream);
        }
        decision->time_us = decision->cost_us = INFINITY;
        stream_try(model, budget, &x, decision);
        if (!warm || !(decision->time_us < INFINITY)) {
            stream_starts(model, budget, rank, &x, decision);
            if (decision->time_us < INFINITY) {
                stream_flips(model, budget, seed, &x, decision);
            }
        }
        hth_stream_decision_fini(&x);
    }
    hth_free(rank);
    return err;
}
