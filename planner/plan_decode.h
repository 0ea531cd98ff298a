// SPDX-License-Identifier: Apache-2.0
// planner/plan_decode.h - from modes (one per interval) to a schedule with its times and bytes.
// Part of hth_plan_train.
//
// Design notes
// The search decodes thousands of times a second, mostly to hear that a change is no good. So the
// decoder touches what differs from "everything is kept" (whose memory the model knows), and the
// search may ask after each part whether it wants to hear the rest:
//   needs  backwards: what each interval is needed for, what has to be computed again when. A lower
//          bound of the time is known.
//   fit    copies out as soon as possible, copies in as late as they cause no stall; where that is
//          too much, the copy that hurts least is hurried or put off; then the fastest algorithm
//          that finds room. Bytes are known. Whether a stage fits depends on the modes alone, since
//          every copy in flight can give way.
//   time   the exact rules of plan_schedule.h.
#ifndef HTH_PLANNER_PLAN_DECODE_H
#define HTH_PLANNER_PLAN_DECODE_H

#include "planner/plan_step.h"
#include "planner/plan_work.h"

// What a decode found, besides the modes.
typedef struct hth_outcome {
    double time_us, compute_us, stall_us, link_us;
    double excess; // bytes over the budget, summed over the stages
    double mean;   // bytes, over the stages
    int worst;     // stage with the most excess, -1: none
    uint64_t peak_bytes;
} hth_outcome;

// Lists of ints that share one pool: head per key, next per element.
typedef struct hth_lists {
    int *head, *next;
} hth_lists;

typedef struct hth_flight { // a copy in flight
    double hurt;
    int interval;
} hth_flight;

typedef struct hth_read { // of a tensor, by a rerun
    int next, stage;
} hth_read;
typedef struct hth_stage_rerun { // a rerun of a stage
    int next, node, stage;
    uint64_t scratch;
} hth_stage_rerun;

typedef struct hth_group { // stages without a pause: a rerun in the first serves them all
    int first, last;
} hth_group;

// The decoder's working memory; one per thread.
typedef struct hth_decoder {
    const hth_step *m;
    uint64_t budget;
    int *item;                 // per stage: menu item chosen
    double *begin_us;          // per stage, and the end: when it would begin without stalls
    double *start_us, *end_us; // per stage
    int64_t *delta;            // per stage: change of live bytes
    uint64_t *used;            // per stage: live bytes, resident ones and buffers
    uint8_t *mode;             // per interval: what it came to; a mode that cannot work is KEEP
    int *need;                 // per interval: first stage that reads after it; n_stages: none
    int *until; // per interval: last stage that reads after a tail interval, or before a cyclic one
    int *away, *back; // per interval: absent in [away, back); the copy in may begin at `back`
    int *save;        // per interval: the stage after which its copy out goes, -1: the host has one
    int *need0, *until0;           // .. while everything is kept
    double *saved_us, *fetched_us; // per interval: ends of the copies
    double *host_us;               // per tensor: when the host has it
    int *read_of;                  // per tensor: first of `read`
    int *run_of;                   // per stage: first of `run`, nodes ascending
    hth_read *read;
    hth_stage_rerun *run;
    hth_group *group;       // of all intervals in mode REMATERIALIZE
    int *group_of, *groups; // per such interval: its first group, how many
    int n_reads, cap_reads, n_runs, cap_runs, n_groups, cap_groups;
    int *moved, n_moved; // tensors with an interval that is not kept, or that a rerun reads
    int *off, n_off;     // intervals that are offloaded, descending
    hth_lists saves, aways, backs, needs; // intervals by stage
    int *flight, *reader;                 // scratch
    hth_flight *order;                    // scratch
    hth_segment *residency;               // scratch
    int64_t live;                         // of the stage at hand
    double min_us;                        // hth_decode_needs: what the nodes and reruns take
    bool hurried;                         // hth_decode_room made a stage wait for a copy out
    bool hurries;                         // copies give way to faster algorithms, too
    bool failed;                          // out of memory
} hth_decoder;

hth_err hth_decoder_init(hth_decoder *decoder, const hth_step *step, uint64_t budget);
void hth_decoder_fini(hth_decoder *decoder);

// hth_decode turns modes (per interval) into times and bytes; everything is left in the decoder.
// O(nodes + intervals + what the modes recompute). No memory is allocated after the first few
// calls.
void hth_decode(hth_decoder *decoder, const uint8_t *mode, hth_outcome *out);

// The parts of hth_decode, in this order. hth_decode_needs returns a time that the step cannot
// beat; from limit_us on it ends early, and the rest must not be called. hth_decode_fit with `all`
// unset ends at the first stage that does not fit; *out then says nothing but that excess > 0.
// False: slower algorithms make the time limit_us or more, hardly ever less; *out says nothing. A
// time far above limit_us is not improved on.
double hth_decode_needs(hth_decoder *decoder, const uint8_t *mode, double limit_us);
bool hth_decode_fit(hth_decoder *decoder, bool all, double limit_us, hth_outcome *out);
void hth_decode_time(hth_decoder *decoder, hth_outcome *out);

// hth_decode_fixed is hth_decode for decisions that are all made: modes, stages and algorithms.
// Modes that cannot work become KEEP, stages that cannot be are moved to where they can.
typedef struct hth_fixed {
    uint8_t *mode;    // per interval
    int *away, *back; // per interval: hth_decoder's
    int *item;        // per stage
} hth_fixed;
void hth_decode_fixed(hth_decoder *decoder, const hth_fixed *fixed, hth_outcome *out);

// hth_decode_schedule writes out what the last of the two found.
hth_err hth_decode_schedule(const hth_decoder *decoder, const hth_outcome *outcome,
                            hth_schedule *out);

// Parts of the decoder that other parts use.
// hth_decode_memory sets decoder->delta. hth_decode_room goes forwards through the stages (see
// fit); false: given up, as hth_decode_fit does.
void hth_decode_memory(hth_decoder *decoder);
bool hth_decode_room(hth_decoder *decoder, bool all, double limit_us, hth_outcome *out);

static inline void hth_lists_clear(hth_lists *lists, int n)
{
    for (int i = 0; i < n; i++) {
        lists->head[i] = -1;
    }
}
static inline void hth_lists_add(hth_lists *lists, int key, int g)
{
    lists->next[g] = lists->head[key];
    lists->head[key] = g;
}
// libm's are calls, for the sake of NaN.
static inline double hth_later(double a, double b)
{
    return a > b ? a : b;
}
static inline double hth_sooner(double a, double b)
{
    return a < b ? a : b;
}

#endif
