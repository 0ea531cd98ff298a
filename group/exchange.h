// SPDX-License-Identifier: Apache-2.0
// group/exchange.h - what crosses between the members of a group: gradients, summed, and the state
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
// breaks the round for all, and they arrive again, with other shards.
//
// No call waits but hth_exchange_wait: a member's thread has other work, and two groups on the same
// devices would wait for each other crosswise. Each member holds a robust mutex for as long as it
// takes part; of a dead thread's or process's the kernel says so. The words that others decide by
// (round, committed, broken) are each written once, last, so that a death between two writes leaves
// nothing half done.
#ifndef HTH_GROUP_EXCHANGE_H
#define HTH_GROUP_EXCHANGE_H

#include "base/err.h"
#include "group/shards.h"

#include <stddef.h>

#define HTH_EXCHANGE_LEAD 0

typedef struct hth_exchange hth_exchange;

// What all members must agree on, but for `member` and `at`.
typedef struct hth_exchange_spec {
    int member;
    int64_t batch, steps; // samples in a step, at most; steps of the job
    int64_t at;           // whole steps in the state that it comes with
    int n_slots;
    const size_t *floats; // in each slot that is summed, in the order in which they become ready
    const bool *by_count; // weighted by samples, not by the loss's weights
    size_t state_bytes;
    uint64_t fingerprint; // of model, data and options
} hth_exchange_spec;

// hth_exchange_make makes the region of a group; *fd, closed on exec, is the caller's. Memory is
// taken as it is written.
hth_err hth_exchange_make(int members, int *fd);
// hth_exchange_end ends the group: no round begins any more, and members find out why.
// hth_exchange_refuse does so only before its first step; returns whether that was before.
void hth_exchange_end(int fd, hth_err err, const char *why);
bool hth_exchange_refuse(int fd, hth_err err, const char *why);

// hth_exchange_join maps the region and takes the member's seat; `spec` is copied, `fd` stays the
// caller's. HTH_EINVAL: it does not agree with those who are there; HTH_EBUSY: the seat is taken.
// All calls for *out come from this thread.
hth_err hth_exchange_join(int fd, const hth_exchange_spec *spec, hth_exchange **out);
void hth_exchange_leave(hth_exchange *exchange); // NULL is allowed

typedef enum hth_exchange_turn {
    HTH_EXCHANGE_WAITS,
    HTH_EXCHANGE_LEADS, // all are there: the lead is to call hth_exchange_start
    HTH_EXCHANGE_ROUND, // a round began: *round
    HTH_EXCHANGE_GIVES, // this member's state is to be written to hth_exchange_state
    HTH_EXCHANGE_TAKES, // .. read from there, of *round's step
    HTH_EXCHANGE_OVER,  // the group has ended: hth_exchange_over
} hth_exchange_turn;

typedef struct hth_exchange_round {
    int64_t step;    // whole steps before it
    int64_t from, n; // this member's samples of the batch
    int64_t shards[HTH_GROUP_MEMBERS];
} hth_exchange_round;

// hth_exchange_begin arrives for the next round, or joins in one that has begun.
hth_exchange_turn hth_exchange_begin(hth_exchange *exchange, hth_exchange_round *round);
// hth_exchange_gave and _took: the state was written, or read.
void *hth_exchange_state(hth_exchange *exchange);
void hth_exchange_gave(hth_exchange *exchange);
void hth_exchange_took(hth_exchange *exchange);
// hth_exchange_over is why the group has ended; HTH_OK: its job is done.
hth_err hth_exchange_over(hth_exchange *exchange);

// What the lead knows of a member when it decides shards.
typedef struct hth_exchange_seat {
    bool joined;
    double sample_us; // of its last passes; 0: not known
    int64_t most;     // samples that it can take
} hth_exchange_seat;
// hth_exchange_seats tells of all; returns how many members the group was made for.
int hth_exchange_seats(hth_exchange *exchange, hth_exchange_seat seat[HTH_GROUP_MEMBERS]);
// hth_exchange_start begins a round; false: somebody has left since.
bool hth_exchange_start(hth_exchange *exchange, const int64_t shards[HTH_GROUP_MEMBERS]);
// hth_exchange_most says that this member can take no more than `most` samples, and breaks the
// round.
void hth_exchange_most(hth_exchange *exchange, int64_t most);

// Of a member's part in a round, in this order. weight: what its samples weigh in the loss, its
// gradients being their mean.
void hth_exchange_weigh(hth_exchange *exchange, double weight);
void hth_exchange_ready(hth_exchange *exchange, int slot, const float *content);
// hth_exchange_passed: all slots are handed in. The time is that of a sample, smoothed by the
// caller.
void hth_exchange_passed(hth_exchange *exchange, double loss, double sample_us);

typedef enum hth_exchange_result {
    HTH_EXCHANGE_SUMMING,
    HTH_EXCHANGE_SUMMED, // the step is certain: sums can be read until the next begin
    HTH_EXCHANGE_BROKEN,
} hth_exchange_result;

// hth_exchange_look sums what can be summed, and says how the round stands.
hth_exchange_result hth_exchange_look(hth_exchange *exchange);
const float *hth_exchange_summed(const hth_exchange *exchange, int slot);
// hth_exchange_loss is the loss of a step that was committed, and what it took in ms.
double hth_exchange_loss(const hth_exchange *exchange, int64_t step, double *ms);
// hth_exchange_break breaks the round unless it is committed.
void hth_exchange_break(hth_exchange *exchange);

// hth_exchange_wait sleeps until something has changed since the last begin or look, at most for
// `ns`: deaths are noticed only by looking.
void hth_exchange_wait(hth_exchange *exchange, uint64_t ns);

#endif
