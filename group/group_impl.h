// SPDX-License-Identifier: Apache-2.0
// group/group_impl.h - what a group's calls do, by how its members exchange (group_ops.c). The
// region, and a member's view of it: group.c (who is there), group_round.c (rounds), group_sum.c
// (what is summed), group_share.c (small sums in the middle of a pass), group_notes.c (what leads
// leave), group_watch.c (the view from outside). Ranks: ranks.c.
#ifndef HTH_GROUP_GROUP_IMPL_H
#define HTH_GROUP_GROUP_IMPL_H

#include "group/group.h"

#include <pthread.h>
#include <stdatomic.h>

#define EXCHANGE_BUCKET ((size_t)1 << 18) // floats
#define EXCHANGE_WHY    400
#define GROUP_MAGIC     0x70756f7267687468u

// A seat, and everything of the region but counters, contents and notes, which are the lead's, is
// written under the lock; weight and divisor also by its member alone, before it hands anything in.
typedef struct group_seat {
    pthread_mutex_t alive;    // robust; held by its member's thread
    uint32_t joined, holds;   // holds: it has the group's state
    uint32_t away;            // it comes again, and is waited for: it gave its memory back, perhaps
    uint32_t gone;            // it does not come again
    uint32_t awaited;         // it may come again, and the lead cannot go on before somebody does
    int64_t at;               // steps in the state that it came with
    uint64_t arrived, summed; // for which round, in which
    double weight, divisor, loss, sample_us, fixed_us;
    int64_t most;
} group_seat;

typedef struct group_region {
    uint64_t magic, order; // order: of when it was made
    uint32_t members;
    pthread_mutex_t lock;   // robust
    _Atomic uint32_t event; // counts changes: what is slept on
    // what the first who joined brought
    uint64_t fingerprint, floats, doubles, state_bytes;
    int64_t batch, steps;
    uint32_t server;
    // a round is at work where round is neither committed nor broken
    uint64_t round, committed, broken;
    int64_t before[2]; // whole steps before the round; of odd rounds, and of even ones
    uint64_t began_ns;
    uint64_t given;  // for which round the state lies there
    uint32_t giver;  // .. with a server: of this member
    uint32_t taking; // members that take part, as bits
    int64_t shards[HTH_GROUP_MEMBERS];
    _Atomic uint32_t closed, paused;
    int32_t err;
    char why[EXCHANGE_WHY];
    uint64_t n_notes;
    char budget[HTH_GROUP_BUDGET];
    uint32_t budgets; // counts its changes
    group_seat seat[HTH_GROUP_MEMBERS];
} group_region;

typedef struct group_loss {
    double loss, ms;
} group_loss;

// What the calls of group.h do, by how the members exchange.
typedef struct group_ops {
    void (*leave)(hth_group *group);
    hth_group_turn (*begin)(hth_group *group, hth_group_round *round);
    void *(*state)(hth_group *group);
    void (*gave)(hth_group *group);
    void (*took)(hth_group *group);
    bool (*parks)(hth_group *group); // optional
    hth_err (*over)(hth_group *group);
    int (*seats)(hth_group *group, hth_group_seat seat[HTH_GROUP_MEMBERS]);
    bool (*start)(hth_group *group, const int64_t shards[HTH_GROUP_MEMBERS]);
    void (*most)(hth_group *group, int64_t most);
    bool (*awaits)(hth_group *group); // NULL: nobody
    void (*note)(hth_group *group, int64_t step, const int64_t shards[HTH_GROUP_MEMBERS]);
    size_t (*notes)(hth_group *group, int64_t step, const hth_group_note **notes);
    void (*plan_for)(hth_group *group, const char *budget);
    bool (*planned_for)(hth_group *group, char budget[HTH_GROUP_BUDGET]);
    bool (*alone)(hth_group *group);
    void (*weigh)(hth_group *group, double weight, double divisor);
    float *(*place)(hth_group *group, int slot); // NULL: nowhere
    void (*ready)(hth_group *group, int slot, const float *content);
    void (*advance)(hth_group *group); // NULL: nothing
    void (*share)(hth_group *group, int share, const double *values);
    hth_group_result (*shared)(hth_group *group, int share, double *sum);
    void (*passed)(hth_group *group, double loss, double sample_us, double fixed_us);
    hth_group_result (*look)(hth_group *group);
    const float *(*summed)(const hth_group *group, int slot);
    double (*factor)(const hth_group *group); // NULL: 1
    double (*loss)(const hth_group *group, int64_t step, double *ms);
    void (*break_round)(hth_group *group);
    void (*wait)(hth_group *group, uint64_t ns);
} group_ops;

extern const group_ops group_region_ops; // group.c
extern const group_ops group_ranks_ops;  // ranks.c

struct hth_group {
    const group_ops *ops;
    group_region *region;
    size_t mapped_bytes;
    hth_group_spec spec;
    int members;      // of the region, when it joined
    group_seat *seat; // its own
    size_t n_buckets;
    _Atomic uint32_t *ready; // [member][bucket]: in which round it was handed in
    group_loss *losses;      // [step]
    float *area;             // [member + 1][floats]: the last one has the sums
    _Atomic uint32_t *given; // [member][share]: in which round it was handed in
    double *shares;          // [member][doubles]
    void *state;
    size_t *at;     // [slot]: where it begins in an area
    size_t *begins; // [share]: .. among the doubles
    bool *count;    // [bucket]: weighted by samples
    size_t *left;   // [bucket]: floats that are not handed in yet
    bool *summed;   // [bucket]: its segment is
    size_t n_left;  // buckets whose segment is not
    size_t first;   // .. of which this is the first one, or comes before it
    bool passed;    // all of this member's part of the round is handed in
    bool alone;     // nobody else takes part in it
    uint64_t round; // that it takes part in, or did
    int64_t step;   // .. which is this one
    uint32_t seen;  // event, at the last look
    hth_group_note *notes;
    uint32_t budgets; // of the region, at the last look
    uint64_t takes;   // the state given for which round it reads
    uint64_t gives;   // for which round it gives its own
    size_t states;    // 1, but with a server one of each member
    size_t giver;     // whose is to be written or read
};

// group_most_notes is how many notes there is place for: shards that are given may change at every
// step. What is not written takes no memory.
static inline size_t group_most_notes(int64_t steps)
{
    return (size_t)steps;
}

// group_members is how many seats there are to look at: never more than the region has, even if
// another process has overwritten the number.
static inline int group_members(const group_region *region)
{
    uint32_t members = *(const volatile uint32_t *)&region->members;
    return members < HTH_GROUP_MEMBERS ? (int)members : HTH_GROUP_MEMBERS;
}

static inline bool group_at_work(const group_region *region)
{
    return region->round != region->committed && region->round != region->broken;
}

// group_before is where the steps before a round stand: those of the next one are written while
// this one's count.
static inline int64_t *group_before(group_region *region, uint64_t round)
{
    return &region->before[round & 1];
}

// group_write writes one of the words that others decide by, after all that it stands for.
static inline void group_write(uint64_t *word, uint64_t value)
{
    atomic_thread_fence(memory_order_release);
    *(volatile uint64_t *)word = value;
}

// group_counts tells whether a member has samples in the round at work: it has part in all sums.
static inline bool group_counts(const group_region *region, int member)
{
    return (region->taking >> member & 1) != 0 && region->shards[member] > 0;
}

static inline int64_t group_step(group_region *region)
{
    return *group_before(region, region->round) +
           (region->round > 0 && region->round == region->committed);
}

// group_map maps the first bytes of a region, NULL: errno says why not. group_has: there is one,
// and it has such a member.
group_region *group_map(int fd, size_t bytes);
static inline bool group_has(const group_region *region, int member)
{
    return region->magic == GROUP_MAGIC && region->members <= HTH_GROUP_MEMBERS && member >= 0 &&
           (uint32_t)member < region->members;
}

// group_lock takes the region's lock, and notes who has died. Whoever died with it has left
// nothing half done. group_region_lock only takes it. group_wake wakes all who wait.
void group_lock(hth_group *group);
void group_unlock(hth_group *group, bool changed);
void group_region_lock(group_region *region);
void group_region_unlock(group_region *region, bool changed);
void group_wake(group_region *region);

// group_steps_check refuses a job whose steps' losses have no place. HTH_EINVAL.
hth_err group_steps_check(const hth_group_spec *spec);
// group.c: what every member has of its own, by its spec: where slots lie, what is left to hand in.
hth_err group_arrays(hth_group *group, const hth_group_spec *spec);
void group_arrays_free(hth_group *group);
size_t group_pages(size_t bytes); // whole ones
// group_region_error is why the group was ended, with its sentence. The lock is held, or the group
// is closed.
hth_err group_region_error(const group_region *region);

// group_round.c
// group_lacks: no round begins, because somebody is not there. The lock is held.
bool group_lacks(const group_region *region);
hth_group_turn region_begin(hth_group *group, hth_group_round *round);
void *region_state(hth_group *group);
void region_gave(hth_group *group);
void region_took(hth_group *group);
bool region_parks(hth_group *group);
int region_seats(hth_group *group, hth_group_seat seat[HTH_GROUP_MEMBERS]);
bool region_start(hth_group *group, const int64_t shards[HTH_GROUP_MEMBERS]);
bool region_alone(hth_group *group);
void region_break(hth_group *group);
void region_most(hth_group *group, int64_t most);
bool region_awaits(hth_group *group);
void region_passed(hth_group *group, double loss, double sample_us, double fixed_us);
hth_group_result region_look(hth_group *group);
double region_loss(const hth_group *group, int64_t step, double *ms);

// group_notes.c
void region_note(hth_group *group, int64_t step, const int64_t shards[HTH_GROUP_MEMBERS]);
size_t region_notes(hth_group *group, int64_t step, const hth_group_note **notes);
void region_plan_for(hth_group *group, const char *budget);
bool region_planned_for(hth_group *group, char budget[HTH_GROUP_BUDGET]);

// group_sum.c
void region_weigh(hth_group *group, double weight, double divisor);
float *region_place(hth_group *group, int slot);
void region_ready(hth_group *group, int slot, const float *content);
void region_advance(hth_group *group);
const float *region_summed(const hth_group *group, int slot);
void group_sum_begin(hth_group *group);        // a round that this member takes part in
void group_sum(hth_group *group, size_t most); // `most` buckets at most

// group_share.c
void region_share(hth_group *group, int share, const double *values);
hth_group_result region_shared(hth_group *group, int share, double *sum);

#endif
