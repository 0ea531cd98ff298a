// SPDX-License-Identifier: Apache-2.0
// What is summed: buckets of slots, of each of which every member sums a segment of its own. An
// element's sum is computed once, in the order of the members, and read by all.
#include "group/group_impl.h"

#include <math.h>
#include <string.h>

#define BLOCK ((size_t)2048) // floats: of all members they fit the cache

static size_t bucket_floats(const hth_group *group, size_t bucket)
{
    size_t end = group->at[group->spec.n_slots], from = bucket * EXCHANGE_BUCKET;
    return end - from < EXCHANGE_BUCKET ? end - from : EXCHANGE_BUCKET;
}

static float *area(const hth_group *group, size_t member)
{
    return group->area + member * group->at[group->spec.n_slots];
}

void group_sum_begin(hth_group *group)
{
    memset(group->left, 0, group->n_buckets * sizeof *group->left);
    memset(group->summed, 0, group->n_buckets * sizeof *group->summed);
    group->n_left = group->n_buckets;
    group->first = 0;
    group->passed = false;
    for (int i = 0; i < group->spec.n_slots; i++) {
        size_t at = group->at[i], end = at + group->spec.floats[i];
        for (size_t to; at < end; at = to) {
            size_t bucket = at / EXCHANGE_BUCKET;
            to = (bucket + 1) * EXCHANGE_BUCKET < end ? (bucket + 1) * EXCHANGE_BUCKET : end;
            group->left[bucket] += to - at;
        }
    }
}

void region_weigh(hth_group *group, double weight, double divisor)
{
    group->seat->weight = weight;
    group->seat->divisor = divisor;
}

float *region_place(hth_group *group, int slot)
{
    return area(group, (size_t)group->spec.member) + group->at[slot];
}

void region_ready(hth_group *group, int slot, const float *content)
{
    float *place = region_place(group, slot);
    size_t at = group->at[slot], end = at + group->spec.floats[slot];
    _Atomic uint32_t *ready = group->ready + (size_t)group->spec.member * group->n_buckets;
    if (content != place) {
        memcpy(place, content, group->spec.floats[slot] * sizeof *content);
    }
    for (size_t to; at < end; at = to) {
        size_t bucket = at / EXCHANGE_BUCKET;
        to = (bucket + 1) * EXCHANGE_BUCKET < end ? (bucket + 1) * EXCHANGE_BUCKET : end;
        group->left[bucket] -= to - at;
        if (group->left[bucket] == 0) {
            atomic_store_explicit(&ready[bucket], (uint32_t)group->round, memory_order_release);
        }
    }
}

// What is summed in this round: whose areas, and by which factors. Shards and who takes part do not
// change while it is at work; a weight was written before what it weighs was handed in.
typedef struct terms {
    int n, first, parts; // parts: segments of a bucket; first: which of them is this member's
    const float *from[HTH_GROUP_MEMBERS];
    double by_weight[HTH_GROUP_MEMBERS], by_count[HTH_GROUP_MEMBERS];
    int member[HTH_GROUP_MEMBERS];
} terms;

static bool terms_ready(const hth_group *group, const terms *sum, size_t bucket)
{
    for (int i = 0; i < sum->n; i++) {
        const _Atomic uint32_t *ready = group->ready + (size_t)sum->member[i] * group->n_buckets;
        if (atomic_load_explicit(&ready[bucket], memory_order_acquire) != (uint32_t)group->round) {
            return false;
        }
    }
    return true;
}

static void terms_who(const hth_group *group, terms *sum)
{
    const group_region *r = group->region;
    *sum = (terms){.n = 0};
    for (int i = 0; i < group->members; i++) {
        if ((r->taking >> i & 1) == 0) {
            continue;
        }
        sum->first += i < group->spec.member;
        sum->parts++;
        if (group_counts(r, i)) {
            sum->from[sum->n] = area(group, (size_t)i);
            sum->member[sum->n++] = i;
        }
    }
}

static void terms_factors(const hth_group *group, terms *sum)
{
    const group_region *r = group->region;
    double weight = 0, count = 0;
    for (int i = 0; i < sum->n; i++) {
        weight += r->seat[sum->member[i]].weight;
        count += (double)r->shards[sum->member[i]];
    }
    for (int i = 0; i < sum->n; i++) {
        sum->by_weight[i] = weight > 0 ? r->seat[sum->member[i]].divisor / weight : 0;
        sum->by_count[i] = (double)r->shards[sum->member[i]] / count;
    }
}

static void sum_segment(const terms *sum, const double *factor, size_t at, size_t end, float *to)
{
    for (size_t next; at < end; at = next) {
        next = at + BLOCK < end ? at + BLOCK : end;
        float first = (float)factor[0];
        for (size_t k = at; k < next; k++) {
            to[k] = first * sum->from[0][k];
        }
        for (int i = 1; i < sum->n; i++) {
            const float *from = sum->from[i];
            float f = (float)factor[i];
            for (size_t k = at; k < next; k++) {
                to[k] += f * from[k];
            }
        }
    }
}

// This member's segment of a bucket.
static void sum_bucket(hth_group *group, const terms *sum, size_t bucket)
{
    size_t at = bucket * EXCHANGE_BUCKET, floats = bucket_floats(group, bucket);
    size_t part = (floats / 16 + (size_t)sum->parts - 1) / (size_t)sum->parts * 16;
    size_t from = (size_t)sum->first * part, end = from + part;
    from = from < floats ? from : floats;
    end = end < floats ? end : floats;
    sum_segment(sum, group->count[bucket] ? sum->by_count : sum->by_weight, at + from, at + end,
                area(group, (size_t)group->members));
    group->summed[bucket] = true;
    group->n_left--;
}

void group_sum(hth_group *group, size_t most)
{
    terms sum;
    size_t before = group->n_left;
    if (group->n_left == 0 || group->round == 0) {
        return;
    }
    terms_who(group, &sum);
    for (size_t b = group->first; b < group->n_buckets && sum.n > 0; b++) {
        if (group->summed[b] || !terms_ready(group, &sum, b)) {
            continue;
        }
        if (group->n_left == before) {
            terms_factors(group, &sum);
        }
        sum_bucket(group, &sum, b);
        if (before - group->n_left == most) {
            break;
        }
    }
    while (group->first < group->n_buckets && group->summed[group->first]) {
        group->first++;
    }
}

void region_advance(hth_group *group)
{
    group_sum(group, 1);
}

const float *region_summed(const hth_group *group, int slot)
{
    return area(group, (size_t)group->members) + group->at[slot];
}
