// SPDX-License-Identifier: Apache-2.0
// group/group.h - what crosses between the members of a group: gradients, summed, and the state
// of a member for one that comes later. All in one region of shared memory, whether members are
// threads or processes.
//
// Design notes
// A group computes in *rounds*, each an attempt at one step. Members arrive; when all are there the
// lead (member 0) starts the round with everybody's shard. Each member computes its gradients, and
// hands each slot in when it is written (`ready`). Slots lie one after the other in buckets; of a
// bucket that all have handed in, each member sums its own segment, in the order of the members, so
// that every member reads the same bits. When the last segment is summed the round is *committed*:
// one word is written, and from then on nobody's end can undo it. Until then the end of any member
// breaks the round for all, and they arrive again, with other shards. The lead may start the next
// round at once, before anybody has made the update: a member that is done with it first computes
// while others still make theirs.
//
// No call waits but hth_group_wait: a member's thread has other work, and two groups on the same
// devices would wait for each other crosswise. Each member holds a robust mutex for as long as it
// takes part; of a dead thread's or process's the kernel says so. The words that others decide by
// (round, committed, broken) are each written once, last, so that a death between two writes leaves
// nothing half done.
#ifndef HTH_GROUP_GROUP_H
#define HTH_GROUP_GROUP_H

#include "base/err.h"
#include "group/shards.h"

#include <stddef.h>

#define HTH_GROUP_LEAD 0

typedef struct hth_group hth_group;

// What all members must agree on, but for `member` and `at`.
typedef struct hth_group_spec {
    int member;
    int64_t batch, steps; // samples in a step, at most; steps of the job
    int64_t at;           // whole steps in the state that it comes with
    int n_slots;
    const size_t *floats; // in each slot that is summed, in the order in which they become ready
    const bool *by_count; // weighted by samples, not by the loss's weights
    int n_shares;         // vectors that are summed in the middle of a pass
    const size_t *shares; // doubles in each
    size_t state_bytes;
    uint64_t fingerprint; // of model, data and options
    // The lead alone makes updates: the others take the state after each step, and when the lead
    // dies with what only it had, its own state counts when it comes again.
    bool server;
} hth_group_spec;

// hth_group_make makes the region of a group; *fd, closed on exec, is the caller's. Memory is
// taken as it is written.
hth_err hth_group_make(int members, int *fd);
// hth_group_end ends the group: no round begins any more, and members find out why.
// hth_group_refuse does so only before its first step; false: it goes on.
void hth_group_end(int fd, hth_err err, const char *why);
bool hth_group_refuse(int fd, hth_err err, const char *why);
// hth_group_gone: that member does not come again, if it was to (group/watch.h).
void hth_group_gone(int fd, int member);

// hth_group_join maps the region and takes the member's seat; `spec` is copied, `fd` stays the
// caller's. HTH_EINVAL: it does not agree with those who are there; HTH_EBUSY: the seat is taken.
// hth_group_leave comes from this thread, and calls for *out from one thread at a time; but for
// hth_group_seats, which may come at any time.
hth_err hth_group_join(int fd, const hth_group_spec *spec, hth_group **out);
// hth_group_join_ranks is the same where members are jobs of other servers, ranks 0 to ranks - 1:
// their clients sum, and the one that holds the other end of `link` (base/ipc/sum_link.h) for this
// one. `link` is the group's from then on; on an error it stays the caller's. Whether the ranks
// agree is known when all are there, by hth_group_begin. HTH_ECANCELED: the client has gone.
hth_err hth_group_join_ranks(int link, int ranks, const hth_group_spec *spec, hth_group **out);
void hth_group_leave(hth_group *group); // NULL is allowed

typedef enum hth_group_turn {
    HTH_GROUP_WAITS,
    HTH_GROUP_LEADS, // all are there: the lead is to call hth_group_start
    HTH_GROUP_ROUND, // a round began: *round
    HTH_GROUP_GIVES, // this member's state is to be written to hth_group_state
    HTH_GROUP_TAKES, // .. read from there, of *round's step
    HTH_GROUP_OVER,  // the group has ended: hth_group_over
} hth_group_turn;

typedef struct hth_group_round {
    int64_t step;    // whole steps before it
    int64_t from, n; // this member's samples of the batch
    int64_t shards[HTH_GROUP_MEMBERS];
} hth_group_round;

// hth_group_begin arrives for the next round, or joins in one that has begun.
hth_group_turn hth_group_begin(hth_group *group, hth_group_round *round);
// hth_group_gave and _took: the state was written, or read. Of a parameter server's group each
// member has a place of its own to write to: hth_group_state is where the last turn says.
void *hth_group_state(hth_group *group);
void hth_group_gave(hth_group *group);
void hth_group_took(hth_group *group);
// hth_group_parks: of all who are there this member alone has the group's state. If it leaves now
// that is to be written first, as for HTH_GROUP_GIVES: who comes next takes it.
bool hth_group_parks(hth_group *group);
// hth_group_over is why the group has ended; HTH_OK: its job is done. Another member's HTH_EDEVLOST
// is HTH_EIO here: a device that answers HTH_EDEVLOST is taken to be lost itself.
hth_err hth_group_over(hth_group *group);

// What the lead knows of a member when it decides shards.
typedef struct hth_group_seat {
    bool joined;
    double sample_us; // of its last passes; 0: not known
    double fixed_us;  // .. and what a step takes whatever its samples are
    int64_t most;     // samples that it can take
} hth_group_seat;
// hth_group_seats tells of all; returns how many members the group was made for.
int hth_group_seats(hth_group *group, hth_group_seat seat[HTH_GROUP_MEMBERS]);
// hth_group_start begins a round; false: somebody has left since. After a look that says "summed"
// it may come before that round's update, whose sums stay where they are until all have made it;
// false then also where a member is to have no samples.
bool hth_group_start(hth_group *group, const int64_t shards[HTH_GROUP_MEMBERS]);
// hth_group_most says that this member can take no more than `most` samples, and breaks the
// round. More than before, within a node: nobody is awaited any more, and no round is broken.
void hth_group_most(hth_group *group, int64_t most);
// hth_group_awaits: no round begins until one of those who have left is there again, or all are
// gone for good (hth_group_gone). false: nobody comes again.
bool hth_group_awaits(hth_group *group);

// What a lead leaves for others, and for the lead that comes after it. hth_group_noted notes that
// steps from `step` on have these shards (of whole batches); hth_group_notes returns how many notes
// there are of steps before `step`, and forgets the others.
typedef struct hth_group_note {
    int64_t step, shards[HTH_GROUP_MEMBERS];
} hth_group_note;
void hth_group_noted(hth_group *group, int64_t step, const int64_t shards[HTH_GROUP_MEMBERS]);
size_t hth_group_notes(hth_group *group, int64_t step, const hth_group_note **notes);
// hth_group_plan_for sets the budget ("60%") that all are to plan for from now on.
// hth_group_planned_for copies it; false: it is as it was at the last call.
#define HTH_GROUP_BUDGET 40
void hth_group_plan_for(hth_group *group, const char *budget);
bool hth_group_planned_for(hth_group *group, char budget[HTH_GROUP_BUDGET]);

// hth_group_alone: nobody else takes part in the round. Nothing need be handed in, and there are
// no sums to read.
bool hth_group_alone(hth_group *group);

// Of a member's part in a round, in this order. weight: what its samples weigh in the loss.
// divisor: what its loss and its gradients, sums over its samples, were divided by: the weight, or,
// of samples that weigh nothing but may have a part in the sums, any other number.
void hth_group_weigh(hth_group *group, double weight, double divisor);
// hth_group_ready hands a slot in. hth_group_place is where it may be written before, so that
// nothing is copied then; NULL: nowhere. What lies there does not outlive the round. Places and
// sums are 64-byte aligned: kernels write and read them.
float *hth_group_place(hth_group *group, int slot);
void hth_group_ready(hth_group *group, int slot, const float *content);
// hth_group_advance sums a part of what all have handed in, between two operators of a pass: a
// bucket at most.
void hth_group_advance(hth_group *group);
// hth_group_passed: all slots are handed in. The times are a member's of a step, smoothed by the
// caller: of each sample (0: not known yet), and of what does not depend on them.
void hth_group_passed(hth_group *group, double loss, double sample_us, double fixed_us);

// A member with samples hands each vector in (hth_group_share; only the first time in a round
// counts), and anybody asks until all such members have (hth_group_shared): *sum is then their
// plain sum, in the order of the members, so that all get the same bits. HTH_GROUP_SUMMING:
// somebody has not, and the caller may hth_group_wait; HTH_GROUP_BROKEN: the round has ended. A
// member reads all sums that it needs before hth_group_passed.
typedef enum hth_group_result {
    HTH_GROUP_SUMMING,
    HTH_GROUP_SUMMED, // the step is certain: sums can be read until the next begin
    HTH_GROUP_BROKEN,
} hth_group_result;
void hth_group_share(hth_group *group, int share, const double *values);
hth_group_result hth_group_shared(hth_group *group, int share, double *sum);

// hth_group_look sums what can be summed, and says how the round stands.
hth_group_result hth_group_look(hth_group *group);
// hth_group_summed is the sum of a slot. A slot that is by_count has its mean there already; of any
// other the mean is the sum times hth_group_factor.
const float *hth_group_summed(const hth_group *group, int slot);
double hth_group_factor(const hth_group *group);
// hth_group_loss is the loss of a step that was committed (0 where no sample weighs), and what it
// took in ms.
double hth_group_loss(const hth_group *group, int64_t step, double *ms);
// hth_group_break breaks the round unless it is committed.
void hth_group_break(hth_group *group);

// hth_group_wait sleeps until something has changed since the last begin, look or shared, at most
// for `ns`: deaths are noticed only by looking.
void hth_group_wait(hth_group *group, uint64_t ns);
// hth_group_idle does so for as long as a slice of a job may take; for longer where nothing has
// come for a long time, since `since_ns`: the lead is paused, or evaluates.
void hth_group_idle(hth_group *group, uint64_t since_ns);

#endif
