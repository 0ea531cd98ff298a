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

static const hth_menu_item *stream_item(const hth_stream_model *m, const hth_stream_decision *d,
                                        int s)
{
    return &m->menu[m->menu_start[s] + d->item[s]];
}

static uint64_t stream_min_workspace(const hth_stream_model *m, int s)
{
    return m->menu[m->menu_start[s + 1] - 1].workspace;
}

// The fastest item of stage s within `room`; the last one when none fits.
static int stream_fastest(const hth_stream_model *m, int s, uint64_t room)
{
    int i = m->menu_start[s];
    while (i < m->menu_start[s + 1] - 1 && m->menu[i].workspace > room) {
        i++;
    }
    return i - m->menu_start[s];
}

// Sets used_base: buffers and, around their uses, streamed weights. Returns the largest stage's
// bytes with the least workspaces.
static uint64_t stream_min_room(hth_stream_model *m, const hth_stream_decision *d)
{
    uint64_t most = 0;
    memcpy(m->used_base, m->base, (size_t)m->n_stages * sizeof *m->base);
    for (int u = 0; u < m->n_uses; u++) {
        const hth_stream_use *x = &m->use[u];
        for (int s = x->need; d->stream[x->weight] && s <= x->last; s++) {
            m->used_base[s] += m->weight[x->weight].bytes;
        }
    }
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t bytes = m->used_base[s] + stream_min_workspace(m, s);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t stream_resident(const hth_stream_model *m, const hth_stream_decision *d)
{
    uint64_t bytes = m->fixed_bytes;
    for (int w = 0; w < m->n_weights; w++) {
        bytes += d->stream[w] ? 0 : m->weight[w].bytes;
    }
    return bytes;
}

// Decides per use whether the weight is fetched or kept since the use before: kept when the
// interval has room for it.
static void stream_intervals(hth_stream_model *m, hth_stream_decision *d, uint64_t room)
{
    for (int u = 0; u < m->n_uses; u++) {
        const hth_stream_use *x = &m->use[u];
        d->fetched[u] = d->stream[x->weight];
        d->begin[u] = x->need;
        if (!d->fetched[u] || x->previous < 0) {
            continue;
        }
        int from = m->use[x->previous].last + 1, s = from;
        uint64_t bytes = m->weight[x->weight].bytes;
        while (s < x->need && x->need - from <= STREAM_KEEP_STAGES &&
               m->used_base[s] + stream_min_workspace(m, s) + bytes <= room) {
            s++;
        }
        if (s < x->need) {
            continue;
        }
        d->fetched[u] = false;
        for (s = from; s < x->need; s++) {
            m->used_base[s] += bytes;
        }
    }
}

// The timeline: end_us[s + 1] is the end of stage s.
static void stream_time(hth_stream_model *m, const hth_stream_decision *d)
{
    double link = 0;
    int u = 0;
    m->end_us[0] = 0;
    for (int s = 0; s < m->n_stages; s++) {
        double start = m->end_us[s];
        for (; u < m->n_uses && m->use[u].need == s; u++) {
            if (d->fetched[u]) {
                link =
                    STREAM_MAX(link, m->end_us[d->begin[u]]) + m->weight[m->use[u].weight].copy_us;
                start = STREAM_MAX(start, link);
            }
        }
        m->end_us[s + 1] = start + stream_item(m, d, s)->time_us;
    }
}

// Gives every fetch the lead that it needs to hide, as far as the bytes allow, on top of used_base
// and the items' workspaces (min_workspaces: of the least ones instead).
static void stream_leads(hth_stream_model *m, hth_stream_decision *d, uint64_t room,
                         bool min_workspaces)
{
    double latest = INFINITY;
    for (int u = m->n_uses - 1; u >= 0; u--) {
        if (d->fetched[u]) {
            latest =
                STREAM_MIN(latest, m->end_us[m->use[u].need]) - m->weight[m->use[u].weight].copy_us;
            m->latest_us[u] = latest;
        }
    }
    memcpy(m->used, m->used_base, (size_t)m->n_stages * sizeof *m->used);
    int floor = 0; // the link is first in, first out: nobody begins before the one ahead of it
    for (int u = 0; u < m->n_uses; u++) {
        if (!d->fetched[u]) {
            continue;
        }
        const hth_stream_use *x = &m->use[u];
        uint64_t bytes = m->weight[x->weight].bytes;
        int s = x->need, stop = x->previous >= 0 ? m->use[x->previous].last + 1 : 0;
        stop = stop > floor ? stop : floor;
        while (s > stop && m->end_us[s] > m->latest_us[u]) {
            uint64_t workspace = min_workspaces ? stream_min_workspace(m, s - 1)
                                                : stream_item(m, d, s - 1)->workspace;
            if (m->used[s - 1] + workspace + bytes > room) {
                break;
            }
            m->used[--s] += bytes;
        }
        floor = d->begin[u] = s;
    }
}

static void stream_algorithms(hth_stream_model *m, hth_stream_decision *d, const uint64_t *used,
                              uint64_t room)
{
    for (int s = 0; s < m->n_stages; s++) {
        d->item[s] = stream_fastest(m, s, room - used[s]);
    }
}

// Decodes d->stream within `budget`. leads_first: leads take their bytes before workspaces do.
static void stream_decode(hth_stream_model *m, uint64_t budget, bool leads_first,
                          hth_stream_decision *d)
{
    d->time_us = d->cost_us = INFINITY;
    d->resident_bytes = stream_resident(m, d);
    uint64_t room = budget - d->resident_bytes;
    if (d->resident_bytes > budget || stream_min_room(m, d) > room) {
        return;
    }
    stream_intervals(m, d, room);
    stream_algorithms(m, d, m->used_base, room);
    stream_time(m, d);
    for (int pass = 0; pass < 2;
         pass++) { // the second knows the stalls that the first could not avoid
        stream_leads(m, d, room, leads_first);
        if (leads_first) {
            stream_algorithms(m, d, m->used, room);
        }
        stream_time(m, d);
    }
    d->time_us = m->end_us[m->n_stages];
    d->link_bytes = 0;
    for (int u = 0; u < m->n_uses; u++) {
        d->link_bytes += d->fetched[u] ? m->weight[m->use[u].weight].bytes : 0;
    }
    double link_us = d->link_bytes > 0 ? (double)d->link_bytes / m->p->h2d_bytes_per_s * 1e6 : 0;
    d->cost_us = d->time_us + m->p->copy_interference * link_us;
}

static void stream_copy(const hth_stream_model *m, const hth_stream_decision *from,
                        hth_stream_decision *to)
{
    memcpy(to->stream, from->stream, (size_t)m->n_weights * sizeof *to->stream);
    memcpy(to->item, from->item, (size_t)m->n_stages * sizeof *to->item);
    memcpy(to->fetched, from->fetched, (size_t)m->n_uses * sizeof *to->fetched);
    memcpy(to->begin, from->begin, (size_t)m->n_uses * sizeof *to->begin);
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

// Decodes `x` both ways; takes it over into `best` when better. True when it was.
static bool stream_try(hth_stream_model *m, uint64_t budget, hth_stream_decision *x,
                       hth_stream_decision *best)
{
    bool taken = false;
    for (int leads_first = 0; leads_first < 2; leads_first++) {
        stream_decode(m, budget, leads_first, x);
        if (stream_better(x, best)) {
            stream_copy(m, x, best);
            taken = true;
        }
    }
    return taken;
}

uint64_t hth_stream_minimal(hth_stream_model *m, hth_stream_decision *d)
{
    for (int w = 0; w < m->n_weights; w++) {
        d->stream[w] = true;
    }
    for (int u = 0; u < m->n_uses; u++) {
        d->fetched[u] = true;
        d->begin[u] = m->use[u].need;
    }
    for (int s = 0; s < m->n_stages; s++) {
        d->item[s] = m->menu_start[s + 1] - m->menu_start[s] - 1;
    }
    d->resident_bytes = m->fixed_bytes;
    stream_time(m, d);
    d->time_us = d->cost_us = m->end_us[m->n_stages];
    return m->fixed_bytes + stream_min_room(m, d);
}

void hth_stream_keep_all(hth_stream_model *m, uint64_t budget, hth_stream_decision *d,
                         bool *fastest)
{
    memset(d->stream, 0, (size_t)m->n_weights * sizeof *d->stream);
    stream_decode(m, budget, false, d);
    *fastest = d->time_us < INFINITY;
    for (int s = 0; s < m->n_stages && *fastest; s++) {
        *fastest = d->item[s] == 0;
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
static void stream_order(const hth_stream_model *m, int kind, stream_rank *rank)
{
    int seen = 0;
    for (int w = 0; w < m->n_weights; w++) {
        rank[w] = (stream_rank){0, w};
    }
    for (int u = 0; u < m->n_uses; u++) {
        const hth_stream_use *x = &m->use[u];
        const hth_streamable *w = &m->weight[x->weight];
        if (x->previous >= 0) {
            rank[x->weight].key *= kind == 1 ? 1 : 0.5; // every further use is another copy
            continue;
        }
        double before = 0;
        for (int s = x->need - 1; s >= 0 && s >= x->need - 3; s--) {
            before += m->menu[m->menu_start[s]].time_us;
        }
        double spread = fmod(++seen * 0.6180339887498949, 1);
        double key[] = {before / w->copy_us, (double)w->bytes, x->need, spread};
        rank[x->weight].key = key[kind];
    }
    qsort(rank, (size_t)m->n_weights, sizeof *rank, stream_rank_cmp);
}

static void stream_prefix(const hth_stream_model *m, const stream_rank *rank, int k,
                          hth_stream_decision *d)
{
    for (int i = 0; i < m->n_weights; i++) {
        d->stream[rank[i].weight] = i < k;
    }
}

// The shortest prefix of the order that makes it fit: each weight more never needs more bytes.
// n_weights + 1: none.
static int stream_shortest(hth_stream_model *m, uint64_t budget, const stream_rank *rank,
                           hth_stream_decision *d)
{
    int low = 0, high = m->n_weights + 1;
    while (low < high) {
        int k = (low + high) / 2;
        stream_prefix(m, rank, k, d);
        uint64_t resident = stream_resident(m, d);
        if (k > m->n_weights ||
            (resident <= budget && stream_min_room(m, d) <= budget - resident)) {
            high = k;
        } else {
            low = k + 1;
        }
    }
    return low;
}

static void stream_starts(hth_stream_model *m, uint64_t budget, stream_rank *rank,
                          hth_stream_decision *x, hth_stream_decision *best)
{
    static const int more_of_64[] = {0, 2, 6, 16, 32, 64};
    for (int kind = 0; kind < 4; kind++) {
        stream_order(m, kind, rank);
        int k = stream_shortest(m, budget, rank, x), rest = m->n_weights - k, tried = -1;
        for (int i = 0; i < 6 && rest >= 0; i++) {
            int more = rest * more_of_64[i] / 64;
            if (more != tried) {
                stream_prefix(m, rank, k + more, x);
                stream_try(m, budget, x, best);
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
static void stream_flips(hth_stream_model *m, uint64_t budget, uint64_t seed,
                         hth_stream_decision *x, hth_stream_decision *best)
{
    uint64_t random = seed * 2 + 1;
    int steps = m->n_stages > 2000 ? STREAM_FLIPS / 2 : STREAM_FLIPS;
    for (int step = 0; step < steps && m->n_weights > 0; step++) {
        memcpy(x->stream, best->stream, (size_t)m->n_weights * sizeof *x->stream);
        size_t w = stream_random(&random) % (size_t)m->n_weights;
        x->stream[w] ^= 1;
        for (int tries = step % 4 ? 8 : 0; tries > 0; tries--) {
            size_t v = stream_random(&random) % (size_t)m->n_weights;
            if (v != w && x->stream[v] == x->stream[w]) {
                x->stream[v] ^= 1;
                break;
            }
        }
        stream_try(m, budget, x, best);
    }
}

hth_err hth_stream_search(hth_stream_model *m, uint64_t budget, uint64_t seed, bool warm,
                          hth_stream_decision *d)
{
    hth_stream_decision x;
    stream_rank *rank = hth_alloc((size_t)m->n_weights * sizeof *rank);
    if (rank == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to plan %d nodes", m->n_stages);
    }
    hth_err err = hth_stream_decision_init(m, &x);
    if (err == HTH_OK) {
        if (warm) {
            memcpy(x.stream, d->stream, (size_t)m->n_weights * sizeof *x.stream);
        }
        d->time_us = d->cost_us = INFINITY;
        stream_try(m, budget, &x, d);
        if (!warm || !(d->time_us < INFINITY)) {
            stream_starts(m, budget, rank, &x, d);
            if (d->time_us < INFINITY) {
                stream_flips(m, budget, seed, &x, d);
            }
        }
        hth_stream_decision_fini(&x);
    }
    hth_free(rank);
    return err;
}
