// SPDX-License-Identifier: Apache-2.0
// group/shards.h - how many of a batch's samples each member of a group computes. Pure.
//
// Member i takes fixed_us + n * sample_us for n samples. A step lasts as long as its slowest member
// computes, while the others wait: the best shards are those whose times lie closest together.
#ifndef HTH_GROUP_SHARDS_H
#define HTH_GROUP_SHARDS_H

#include <stdbool.h>
#include <stdint.h>

#define HTH_GROUP_MEMBERS 16

typedef struct hth_shard_member {
    double sample_us, fixed_us; // sample_us > 0
    int64_t least, most;        // samples that it may get
} hth_shard_member;

// hth_shards_solve sets n[i], sum = batch, least <= n[i] <= most, with the smallest difference
// between the longest and the shortest time; of equal ones those with the shortest step. Exact.
// false: the bounds leave no such numbers.
bool hth_shards_solve(const hth_shard_member *member, int count, int64_t batch, int64_t *n);
// hth_shards_spread is that difference, hth_shards_step_us the longest time.
double hth_shards_spread(const hth_shard_member *member, int count, const int64_t *n);
double hth_shards_step_us(const hth_shard_member *member, int count, const int64_t *n);

// hth_shards_balance solves in multiples of a grain, at most a 32nd of an even shard, so that few
// sizes are compiled (what is left over goes to the fastest member), and replaces n where the step
// is shorter by HTH_SHARDS_GAIN of its time then, or n breaks the bounds. Returns whether it did.
// n all 0: there are none yet.
#define HTH_SHARDS_GAIN 0.04
bool hth_shards_balance(const hth_shard_member *member, int count, int64_t batch, int64_t *n);

// A change of shards takes as long as some members need to plan and compile theirs. It is made when
// steps have lost half as much by their shards as the last changes took: so changes take about
// twice what steps lost, and these lose about half a change before one (ski rental).
typedef struct hth_shards_pace {
    double change_us; // what the last changes took, on average; 0: nothing that is known
    double lost_us;   // by shards that others were better than, in a row
} hth_shards_pace;
// hth_shards_pays adds what a step loses with the shards that it has, 0 if none are better, and
// tells whether to change them. hth_shards_paid: a change took `us`.
bool hth_shards_pays(hth_shards_pace *pace, double loses_us);
void hth_shards_paid(hth_shards_pace *pace, double us);

// hth_shards_fit tells whether n is within the bounds and makes up the batch.
bool hth_shards_fit(const hth_shard_member *member, int count, int64_t batch, const int64_t *n);
// hth_shards_rest divides the last, smaller batch of an epoch like `whole` does a whole one; a
// member may get nothing.
void hth_shards_rest(const int64_t *whole, int count, int64_t rest, int64_t *n);

#endif
