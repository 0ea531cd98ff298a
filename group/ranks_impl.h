// SPDX-License-Identifier: Apache-2.0
// group/ranks_impl.h - a member that is a rank: ranks.c (what goes to its client and comes from it,
// and what is agreed on before a round), ranks_round.c (its part of one).
#ifndef HTH_GROUP_RANKS_IMPL_H
#define HTH_GROUP_RANKS_IMPL_H

#include "base/ipc/sum_link.h"
#include "group/group_impl.h"

typedef enum ranks_phase {
    RANKS_JOINS,
    RANKS_STATE, // the lead's state goes to the others
    RANKS_GATHERS,
    RANKS_WORKS, // a round
    RANKS_OVER,
} ranks_phase;

// Rows of the vectors that are summed; all doubles, which hold integers below 2^53.
typedef struct join_row {
    double here, fingerprint_high, fingerprint_low, batch, steps, floats, state_bytes, at;
} join_row;

typedef struct end_row {
    double weight, loss; // loss: weighted
    double sample_us, fixed_us;
    double most, broken; // most: 0, no limit is known
} end_row;

// What the lead says, and the others are sent.
typedef struct ranks_plan {
    int64_t step, stops; // stops: no round follows
    int64_t shards[HTH_GROUP_MEMBERS];
} ranks_plan;

// The memory that the client sees: this, then a state, then what is summed.
typedef struct ranks_memory {
    join_row join[HTH_GROUP_MEMBERS];
    end_row end[HTH_GROUP_MEMBERS];
    ranks_plan plan;
} ranks_memory;

typedef struct ranks {
    hth_group group; // first
    int link, n;
    ranks_memory *memory;
    ranks_phase phase;
    int64_t step;         // whole steps
    uint64_t next, ask;   // next message's number; that of the phase's question
    bool asked, answered; // .. there is one, and its answer
    bool given;           // RANKS_STATE: the lead has written it
    bool lacks;           // the others lack what a server has made of the last sums
    bool stopped;         // by the lead's plan
    int64_t shards[HTH_GROUP_MEMBERS];
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    // a round: its parts are the buckets, and the end
    size_t n_parts, posted, n_done;
    uint64_t first, began_ns; // number of the first part's message
    bool *done;
    bool passed, broken;
    double divisor; // of this rank's gradients; 0: it has no samples
    double factor;  // of the last round's gradients, to be means
    hth_err err;    // why nothing more is exchanged
    char why[EXCHANGE_WHY];
} ranks;

static inline ranks *ranks_of(hth_group *group)
{
    return (ranks *)(void *)group;
}

static inline int ranks_self(const ranks *group)
{
    return group->group.spec.member;
}

// ranks.c
// ranks_lost notes the first reason why nothing can be exchanged any more.
void ranks_lost(ranks *group, hth_err err);
// ranks_send asks the client for a sum; HTH_EBUSY: it is slow to read, HTH_ECANCELED: it has gone.
hth_err ranks_send(ranks *group, hth_sum_what what, const void *at, size_t count);
// ranks_hear takes what the client has answered.
void ranks_hear(ranks *group);
// ranks_next begins another phase, in which nothing is asked yet.
void ranks_next(ranks *group, ranks_phase phase);

// ranks_round.c
// ranks_round_begin: the shards are known.
void ranks_round_begin(ranks *group);
bool ranks_alone(hth_group *base);
void ranks_weigh(hth_group *base, double weight, double divisor);
float *ranks_place(hth_group *base, int slot);
void ranks_ready(hth_group *base, int slot, const float *content);
void ranks_passed(hth_group *base, double loss, double sample_us, double fixed_us);
void ranks_most(hth_group *base, int64_t most);
hth_group_result ranks_look(hth_group *base);
void ranks_advance(hth_group *base);
const float *ranks_summed(const hth_group *base, int slot);
double ranks_factor(const hth_group *base);
double ranks_loss(const hth_group *base, int64_t step, double *ms);
void ranks_break(hth_group *base);
void ranks_wait(hth_group *base, uint64_t ns);

#endif
