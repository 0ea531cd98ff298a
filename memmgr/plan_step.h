// SPDX-License-Identifier: Apache-2.0
// memmgr/plan_step.h - the model of a training step that the planner's search works on: uses, gaps,
// menus, and the decoder from modes to a schedule. Part of hth_plan_train.
#ifndef HTH_MEMMGR_PLAN_STEP_H
#define HTH_MEMMGR_PLAN_STEP_H

#include "memmgr/plan_schedule.h"

// What lies between two uses (plan_schedule.h). q == n_stages: after the last use. A cyclic gap
// goes from the last use p round to the first use q < p of the next step.
typedef struct hth_gap {
    int tensor, p, q;
    bool cyclic, can_offload, can_rerun;
} hth_gap;

typedef struct hth_step {
    const hth_problem *p;
    int n_stages, n_gaps, n_roots;
    int *root;            // tensors without a producer
    int *use_start, *use; // per tensor: stages of its uses, ascending, the producer's first
    int *gap_start;       // per tensor: its gaps, ascending
    hth_gap *gap;
    int *by_p_start, *by_p;     // per stage: the gaps that begin behind it
    int *menu_start, *menu_end; // per stage: its menu, fastest first
    int *menu_whole;            // per stage: where it starts when it is not trimmed
    hth_menu_item *menu_free;   // per stage: its fastest without the workspace, behind the menus
    hth_menu_item *menu;
    int *pair;    // per tensor: the input whose buffer it may take over, -1: none
    int *updated; // per tensor: the stage that updates it in place (resident ones), n_stages: never
    bool *dirty;  // per tensor: changes within a step, so the host's copy must be written again
    uint64_t *bytes; // per tensor: rounded; 0 when it takes nothing (the caller's)
    bool *arena;     // per tensor
    double *h2d_us, *d2h_us;
    uint64_t resident_bytes; // all weights and state
    double fastest_us;       // every node at its fastest
} hth_step;

hth_err hth_step_init(hth_step *m, const hth_problem *p);
void hth_step_fini(hth_step *m);

// hth_step_trim leaves every node one algorithm only, the smallest or the fastest without its
// workspace, or gives it all of them again.
typedef enum hth_trim { HTH_TRIM_NONE, HTH_TRIM_SMALLEST, HTH_TRIM_FREE } hth_trim;
void hth_step_trim(hth_step *m, hth_trim how);

static inline const hth_menu_item *hth_step_fastest(const hth_step *m, int s)
{
    return &m->menu[m->menu_start[s]];
}
static inline const hth_menu_item *hth_step_smallest(const hth_step *m, int s)
{
    return &m->menu[m->menu_end[s] - 1];
}

// What a decode found, beside the modes.
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
    int gap;
} hth_flight;

typedef struct hth_read { // of a tensor, by a rerun
    int next, stage;
} hth_read;
typedef struct hth_run { // a rerun of a stage
    int next, node;
    uint64_t scratch;
} hth_run;

// The decoder's working memory; one per thread.
typedef struct hth_decoder {
    const hth_step *m;
    uint64_t budget;
    int *item;                 // per stage: menu item chosen
    double *begin_us;          // per stage, and the end: when it would begin without stalls
    double *start_us, *end_us; // per stage
    int64_t *delta;            // per stage: change of live bytes
    uint64_t *used;            // per stage: live bytes, resident ones and buffers
    uint8_t *mode;             // per gap: what it came to; a mode that cannot work is KEEP
    int *need;                 // per gap: first stage that reads behind it; n_stages: none
    int *until;       // per gap: last stage that reads behind a tail gap, or before a cyclic one
    int *away, *back; // per gap: absent in [away, back); the copy in may begin at `back`
    int *save;        // per gap: the stage behind which its copy out goes, -1: the host has one
    double *saved_us, *fetched_us; // per gap: ends of the copies
    double *host_us;               // per tensor: when the host has it
    int *read_of;                  // per tensor: first of `read`
    int *run_of;                   // per stage: first of `run`, nodes ascending
    hth_read *read;
    hth_run *run;
    int n_reads, cap_reads, n_runs, cap_runs;
    hth_lists saves, aways, backs, needs; // gaps by stage
    int *flight;                          // scratch
    hth_flight *order;                    // scratch
    hth_segment *stay;                    // scratch
    int64_t live;                         // of the stage at hand
    bool failed;                          // out of memory
} hth_decoder;

hth_err hth_decoder_init(hth_decoder *d, const hth_step *m, uint64_t budget);
void hth_decoder_fini(hth_decoder *d);

// hth_decode turns modes (per gap) into times and bytes; everything is left in the decoder.
// O(nodes + gaps + what the modes recompute). No memory is allocated after the first few calls.
void hth_decode(hth_decoder *d, const uint8_t *mode, hth_outcome *out);
// hth_decode_schedule writes out what the last hth_decode found.
hth_err hth_decode_schedule(const hth_decoder *d, const hth_outcome *o, hth_schedule *out);

#endif
