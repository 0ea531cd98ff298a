// SPDX-License-Identifier: Apache-2.0
// Exact shards: the shortest time L of the best solution is that of some member for some number of
// samples. Given L, each member has at least lo_i(L) samples, and the longest time is at least
// U(L) = max(U0, max t_i(lo_i(L))), where U0 is the least longest time of all; this is reached by
// giving each remaining sample to the member that would finish it first. U grows with L, so only an
// L of U0 - (best difference so far) or more is of interest: a few per member.
#include "group/shards.h"

#include <math.h>
#include <string.h>

#define GRAINS 32 // in an even shard, at least

static double time_us(const hth_shard_member *member, int64_t n)
{
    return member->fixed_us + (double)n * member->sample_us;
}

double hth_shards_step_us(const hth_shard_member *member, int count, const int64_t *n)
{
    double longest = 0;
    for (int i = 0; i < count; i++) {
        longest = fmax(longest, time_us(&member[i], n[i]));
    }
    return longest;
}

double hth_shards_spread(const hth_shard_member *member, int count, const int64_t *n)
{
    double shortest = INFINITY;
    for (int i = 0; i < count; i++) {
        shortest = fmin(shortest, time_us(&member[i], n[i]));
    }
    return hth_shards_step_us(member, count, n) - shortest;
}

// The fewest samples for which a member takes at least `us`.
static int64_t fewest(const hth_shard_member *member, double us)
{
    double guess = ceil((us - member->fixed_us) / member->sample_us);
    int64_t n = member->least;
    if (guess > (double)member->least) {
        n = guess < (double)member->most ? (int64_t)guess : member->most + 1;
    }
    while (n > member->least && time_us(member, n - 1) >= us) {
        n--;
    }
    while (n <= member->most && time_us(member, n) < us) {
        n++;
    }
    return n;
}

// Gives `left` samples, one by one, to the member that is done with one more first.
static bool hand_out(const hth_shard_member *member, int count, int64_t left, int64_t *n)
{
    for (; left > 0; left--) {
        int best = -1;
        for (int i = 0; i < count; i++) {
            bool first =
                n[i] < member[i].most &&
                (best < 0 || time_us(&member[i], n[i] + 1) < time_us(&member[best], n[best] + 1));
            best = first ? i : best;
        }
        if (best < 0) {
            return false;
        }
        n[best]++;
    }
    return true;
}

// The shards with the shortest step; false: there are none.
static bool shortest_step(const hth_shard_member *member, int count, int64_t batch, int64_t *n)
{
    int64_t left = batch;
    for (int i = 0; i < count; i++) {
        n[i] = member[i].least;
        left -= n[i];
        if (member[i].least > member[i].most) {
            return false;
        }
    }
    return left >= 0 && hand_out(member, count, left, n);
}

// The fewest samples that each member has where nobody takes less than `us`; -1: too many.
static int64_t left_over(const hth_shard_member *member, int count, int64_t batch, double us,
                         int64_t *n)
{
    for (int i = 0; i < count; i++) {
        n[i] = fewest(&member[i], us);
        batch -= n[i];
        if (n[i] > member[i].most || batch < 0) {
            return -1;
        }
    }
    return batch;
}

bool hth_shards_solve(const hth_shard_member *member, int count, int64_t batch, int64_t *n)
{
    int64_t low[HTH_GROUP_MEMBERS];
    if (!shortest_step(member, count, batch, n)) {
        return false;
    }
    double step_us = hth_shards_step_us(member, count, n),
           best = hth_shards_spread(member, count, n);
    double best_us = step_us;
    for (int i = 0; i < count; i++) {
        int64_t k = fewest(&member[i], step_us - best);
        for (; k <= member[i].most; k++) {
            double us = time_us(&member[i], k);
            int64_t left = left_over(member, count, batch, us, low);
            if (left < 0) {
                break;
            }
            double longest = fmax(step_us, hth_shards_step_us(member, count, low));
            if (longest - us > best || (longest - us == best && longest >= best_us)) {
                continue;
            }
            (void)hand_out(member, count, left, low);
            best = longest - us;
            best_us = longest;
            memcpy(n, low, (size_t)count * sizeof *n);
        }
    }
    return true;
}

static int64_t grain_of(int count, int64_t batch)
{
    int64_t grain = 1;
    while (grain * 2 * GRAINS * count <= batch) {
        grain *= 2;
    }
    return grain;
}

static bool balance_grains(const hth_shard_member *member, int count, int64_t batch, int64_t grain,
                           int64_t *n)
{
    hth_shard_member coarse[HTH_GROUP_MEMBERS] = {{.least = 0}};
    int fastest = -1;
    int64_t rest = batch % grain;
    for (int i = 0; i < count; i++) {
        bool takes = member[i].most / grain * grain + rest <= member[i].most;
        coarse[i] = member[i];
        coarse[i].sample_us *= (double)grain;
        coarse[i].least = (member[i].least + grain - 1) / grain;
        coarse[i].most /= grain;
        if (takes && (fastest < 0 || member[i].sample_us < member[fastest].sample_us)) {
            fastest = i;
        }
    }
    if ((rest > 0 && fastest < 0) || !hth_shards_solve(coarse, count, batch / grain, n)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        n[i] *= grain;
    }
    n[fastest < 0 ? 0 : fastest] += rest;
    return true;
}

bool hth_shards_fit(const hth_shard_member *member, int count, int64_t batch, const int64_t *n)
{
    for (int i = 0; i < count; i++) {
        if (n[i] < member[i].least || n[i] > member[i].most) {
            return false;
        }
        batch -= n[i];
    }
    return batch == 0;
}

bool hth_shards_balance(const hth_shard_member *member, int count, int64_t batch, int64_t *n)
{
    int64_t better[HTH_GROUP_MEMBERS];
    int64_t grain = grain_of(count, batch);
    bool found = balance_grains(member, count, batch, grain, better) ||
                 hth_shards_solve(member, count, batch, better);
    bool stays = hth_shards_fit(member, count, batch, n) &&
                 hth_shards_step_us(member, count, better) * (1 + HTH_SHARDS_GAIN) >
                     hth_shards_step_us(member, count, n);
    if (!found || stays) {
        return false;
    }
    memcpy(n, better, (size_t)count * sizeof *n);
    return true;
}

bool hth_shards_pays(hth_shards_pace *pace, double loses_us)
{
    pace->lost_us = loses_us > 0 ? pace->lost_us + loses_us : 0;
    return loses_us > 0 && pace->lost_us >= pace->change_us / 2;
}

void hth_shards_paid(hth_shards_pace *pace, double us)
{
    double cost = fmax(us, 0);
    pace->change_us = pace->change_us > 0 ? (pace->change_us + cost) / 2 : cost;
    pace->lost_us = 0;
}

// By largest remainders: of equal ones the first.
void hth_shards_rest(const int64_t *whole, int count, int64_t rest, int64_t *n)
{
    int64_t batch = 0, left = rest;
    for (int i = 0; i < count; i++) {
        batch += whole[i];
    }
    for (int i = 0; i < count; i++) {
        n[i] = rest * whole[i] / batch;
        left -= n[i];
    }
    for (; left > 0; left--) {
        int next = -1;
        for (int i = 0; i < count; i++) {
            bool larger =
                next < 0 || rest * whole[i] - n[i] * batch > rest * whole[next] - n[next] * batch;
            next = whole[i] > 0 && larger ? i : next;
        }
        n[next]++;
    }
}
