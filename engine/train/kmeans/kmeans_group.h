// SPDX-License-Identifier: Apache-2.0
// engine/train/kmeans/kmeans_group.h - a K-means job as a member of a group: kmeans_group.c (its
// rounds, and what crosses in them), kmeans_shards.c (what the lead decides).
#ifndef HTH_ENGINE_TRAIN_KMEANS_KMEANS_GROUP_H
#define HTH_ENGINE_TRAIN_KMEANS_KMEANS_GROUP_H

#include "engine/train/kmeans/kmeans_job_impl.h"
#include "group/group.h"

// An iteration that is done.
typedef struct kmeans_past {
    double inertia, ms;
    int64_t shards[HTH_GROUP_MEMBERS];
} kmeans_past;

struct kmeans_group {
    hth_group *exchange;
    int member, members;
    // in the shared memory
    void *state;
    kmeans_past *past; // (iterations)
    void *part[HTH_GROUP_MEMBERS];
    // the round at work
    hth_group_round round;
    bool at_work, ranges, handed; // ranges: its range has begun; handed: its part is handed in
    bool again;                   // hth_kmeans_range's
    bool broke;                   // a round has since the last iteration
    uint32_t took;                // who had points in that, as bits
    double us[2];                 // a point of the last passes, 0: there were none
    double trial_us;              // .. by a trial before the first one
    uint64_t since_ns;            // when anything came last
    // the lead's
    int64_t shards[HTH_GROUP_MEMBERS];
};

// kmeans_shards.c
// kmeans_shards_check looks at shards that were given ("shards"). HTH_EINVAL.
hth_err kmeans_shards_check(const kmeans_job *job);
// kmeans_shards_start decides everybody's shard of the next pass, and begins its round.
hth_err kmeans_shards_start(kmeans_job *job);

#endif
