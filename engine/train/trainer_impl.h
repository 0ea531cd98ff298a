// SPDX-License-Identifier: Apache-2.0
// engine/train/trainer_impl.h - the inside of a trainer: shared by trainer*.c only.
#ifndef HTH_ENGINE_TRAIN_TRAINER_IMPL_H
#define HTH_ENGINE_TRAIN_TRAINER_IMPL_H

#include "planner/plan_curve.h"
#include "runtime/job_memory.h"
#include "engine/train/timeline.h"
#include "engine/train/train.h"
#include "engine/train/trainer_slots.h"
#include "engine/train/replan.h"

#define HTH_TRAINER_SHAPES 6    // of a group's shards; others have two: the batch, and the last one
#define HTH_TRAINER_PARTS  16   // most parts of a batch that are tried
#define HTH_TRAINER_GAIN   0.98 // of the time, to be worth twice as many parts
#define HTH_TRAINER_WHY    512

// One phase of an update, compiled.
typedef struct hth_trainer_phase {
    hth_train_graph graph;
    hth_program *program;
    hth_tensor *in, *out; // of the program
    uint64_t *place; // per slot: where it is while this one runs, HTH_SLOT_OFF_DEVICE: not resident
    uint64_t slots_bytes; // of those that are resident
} hth_trainer_phase;

// What an update of one batch shape consists of: `parts` - 1 runs of `add`, which only adds up
// gradients, then one of `apply`. One part and no accumulation: `apply` is a whole step. A group's
// shard has two parts: all of it is added up, and `apply` only updates.
typedef struct hth_trainer_shape {
    hth_tensor *inputs; // of the whole batch; NULL: there is none
    int64_t parts;
    uint64_t used; // when it was the current one last, by the trainer's count
    hth_trainer_phase add, apply;
} hth_trainer_shape;

// A copy of what the result is to be made of (trainer_keep.c).
typedef struct hth_trainer_kept {
    int n;        // slots; 0: the job keeps none
    bool any;     // there is something in it
    uint64_t *at; // per slot: where it is, UINT64_MAX: it is no part of the model
    char **name;  // .. and what it is called in a checkpoint; else NULL
    void *memory;
    hth_spill *file; // in its place
} hth_trainer_kept;

struct hth_trainer {
    hth_models *ms;
    const hth_train_spec *spec;
    hth_request *progress;
    hth_manifest manifest;
    hth_graph *model;
    hth_trainer_shape shapes[HTH_TRAINER_SHAPES];
    int n_shapes, current; // current -1: none
    hth_trainer_slots slots;
    bool
        *retained; // per slot: resident in the first step planned, and so in all others; or none is
    hth_profile *profile; // costs to plan with, NULL: measured
    bool problem_only;    // steps are to be planned by others, and are not run
    bool group;           // spec->group, but not to plan a curve: of a whole step, that is close
    bool whole;           // its batches are not taken in parts: samples depend on each other
    bool guess;           // with problem_only, for the least memory: what was not measured yet need
                          // not be, and batch norms are taken in slices
    uint64_t retained_bytes;
    void *memory; // on the device: slots, and after them the arena of the step at work
    uint64_t memory_bytes;
    uint64_t eval_bytes;           // of hth_trainer_arena, that evaluations were planned for
    hth_job_memory share;          // of the device: that memory
    hth_train_admission admission; // .. and how it gets it
    hth_account account;           // whose it is
    hth_replan replan;             // of the first shape
    hth_timeline *timeline;        // gets a step now and then; NULL: nobody looks
    bool measured;                 // .. and it gets the present one
    int64_t part;                  // samples in a part of a whole batch; 0: not known yet
    int64_t parts;                 // .. of which a whole batch has so many; 0: not known yet
    uint64_t budget_bytes;         // of all steps; 0: not known yet
    uint64_t available_bytes;      // what it may be at most
    uint64_t counter;              // steps done
    uint64_t stall_ns;             // of the last one
    uint64_t run_ns;               // that the last update's runs took
    uint64_t part_ns;              // .. and the last one with the plan that is watched
    uint64_t step_input;
    double lr;
    float hyper[HTH_N_HYPER];
    float *weights; // of the loss; NULL: all are 1
    int n_weights;
    hth_trainer_kept kept;
    uint64_t prepared; // counts the times that a shape was made current
    float *statistics; // of a group's member: running ones, as they were before the pass
    int64_t aside_ns;  // .. of run_ns: what its caller did in the middle of the pass
    uint64_t apply_ns; // .. of run_ns: the update
    // .. per slot: where a pass writes gradients, or an update reads their sums, in place of the
    // slot's own memory; NULL: there
    float **elsewhere;
    float *zeros; // .. as many as the largest has: never written, so no memory is read for them
    size_t zeros_bytes;
};

static inline hth_trainer_shape *hth_trainer_current(const hth_trainer *trainer)
{
    return (hth_trainer_shape *)&trainer->shapes[trainer->current];
}

// trainer.c
// hth_trainer_part runs a phase on part `part` of a batch, with the random numbers `draw`.
hth_err hth_trainer_part(hth_trainer *trainer, hth_trainer_phase *phase, int64_t part,
                         uint64_t draw, const hth_tensor *inputs, const hth_tensor *target,
                         float *loss);
// hth_trainer_hyper sets what the next update is made with, of a batch in `parts` parts whose
// labels weigh `norm`.
void hth_trainer_hyper(hth_trainer *trainer, int64_t parts, double norm);
// hth_trainer_norm is what the labels of a batch weigh together.
double hth_trainer_norm(const hth_trainer *trainer, const hth_tensor *labels);

// trainer_shape.c
// hth_trainer_shape_make compiles the steps of one batch shape; freed also on error.
hth_err hth_trainer_shape_make(hth_trainer *trainer, const hth_tensor *inputs,
                               const hth_tensor *target, hth_trainer_shape *out);
void hth_trainer_shape_free(hth_trainer *trainer, hth_trainer_shape *shape);
// hth_trainer_place gives the slots of both steps their places, where one's plan is new or they
// agreed on none.
void hth_trainer_place(hth_trainer *trainer, hth_trainer_shape *shape);
// hth_trainer_enter makes everything ready to run a step: its memory, and the slots where it wants
// them.
hth_err hth_trainer_enter(hth_trainer *trainer, hth_trainer_phase *phase);

// trainer_parts.c
// hth_trainer_choose is hth_trainer_shape_make of the first batch in the number of parts (1, 2, 4,
// .. HTH_TRAINER_PARTS, as long as they divide it) whose update is planned to be the shortest.
// HTH_ETOOBIG: none fits.
hth_err hth_trainer_choose(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                           hth_trainer_shape *out);
// hth_trainer_shape_us is what an update is planned to take.
double hth_trainer_shape_us(const hth_trainer *trainer, const hth_trainer_shape *shape);

// trainer_keep.c
// hth_trainer_kept_view points content[i] at what was kept of slot i, as far as there is anything.
// Valid until the next step.
hth_err hth_trainer_kept_view(hth_trainer *trainer, const void **content);
// hth_trainer_kept_set sets what was kept of slot i.
hth_err hth_trainer_kept_set(hth_trainer *trainer, int slot, const void *content);
void hth_trainer_kept_close(hth_trainer *trainer);

// trainer_curve.c hth_trainer_demands is hth_trainer_curve of a job that begins, with `steps` to
// make: the searches take a small part of what those take. With spec->budget the one point that was
// asked for; none, where no plan was found for it.
hth_err hth_trainer_demands(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                            const hth_tensor *inputs, int64_t steps, hth_curve *out);
// hth_trainer_least looks for the least memory that an update on batches like `inputs` in `parts`
// parts can be planned for, for a second or two.
typedef struct hth_trainer_need {
    uint64_t found; // bytes for which a plan was found, with room for another search to find one
    uint64_t least; // bytes below which there is none (hth_plan_min)
    char node[80];  // .. because of this node
} hth_trainer_need;
hth_err hth_trainer_least(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                          const hth_tensor *inputs, int64_t parts, hth_trainer_need *out);

// trainer_admit.c
// hth_trainer_admit finds out what a job that begins, with batches like `inputs`, may have now.
// HTH_ENODEVMEM: too little; HTH_OK says nothing about never.
hth_err hth_trainer_admit(hth_trainer *trainer, const hth_tensor *inputs);
// hth_trainer_admit_more raises that by what idle models occupy; false: there is no more.
bool hth_trainer_admit_more(hth_trainer *trainer);
// hth_trainer_share tells the site what the job holds and needs now.
void hth_trainer_share(hth_trainer *trainer);

// trainer_toobig.c
// hth_trainer_toobig says that the first batch's shape cannot be planned for trainer->budget_bytes,
// or that no plan was found; for how much one was, and for how much less in other ways. Returns
// HTH_ETOOBIG.
hth_err hth_trainer_toobig(hth_trainer *trainer, const hth_tensor *inputs);

// trainer_member.c: a step of a group's member (spec->group) is a pass over its shard, which leaves
// gradients, and an update with their sums.
// What is summed: slots of gradients, in the order in which a pass writes them, and running
// statistics.
typedef struct hth_trainer_sums {
    int n;
    int *slot, *tensor; // tensor: of the pass's plan
    size_t *floats;
    bool *statistic;
    int n_shares;   // sums in a pass (hth_train_shard_sums), and last that of weights; 0: none
    size_t *shares; // .. numbers in each
    float **place;  // the caller's: where the next pass writes gradients, if it can; or NULL
    bool *ready;    // .. the k-th was reported
    bool *held;     // .. the slot has what the last pass computed: it is not zeros
} hth_trainer_sums;

// What a pass reports while it goes on, on the thread that computes it.
typedef struct hth_trainer_watch {
    // ready: the k-th is complete, at `content` until the call returns; at place[k] for longer.
    void (*ready)(void *ctx, int k, const float *content);
    void (*between)(void *ctx); // between two operators, and now and then within long ones
    // sum puts in the place of the values of sums->shares[share] their sums over all shards.
    hth_err (*sum)(void *ctx, int share, double *values);
    void *ctx;
} hth_trainer_watch;

// hth_trainer_bind has a phase that was entered write gradients, or read sums, elsewhere.
void hth_trainer_bind(const hth_trainer *trainer, hth_trainer_phase *phase);
// hth_trainer_at_hand: kernels read and write the host's memory, wherever that is.
bool hth_trainer_at_hand(const hth_trainer *trainer);
// hth_trainer_sums_open lists them; closed also on error.
hth_err hth_trainer_sums_open(hth_trainer *trainer, hth_trainer_sums *sums);
void hth_trainer_sums_close(hth_trainer_sums *sums);
void hth_trainer_zeros_close(hth_trainer *trainer);

// hth_trainer_weight is what a shard of the current shape weighs in the loss; never 0 with sync_bn.
double hth_trainer_weight(const hth_trainer *trainer, const hth_tensor *inputs,
                          const hth_tensor *target);
// hth_trainer_divisor is what the loss and the gradients of a shard of that weight are divided by:
// label smoothing has a part of labels whose classes weigh nothing.
static inline double hth_trainer_divisor(double weight)
{
    return weight > 0 ? weight : 1;
}
// hth_trainer_pass computes the loss and the mean gradients of the current shape's samples, and has
// reported all of them when it returns. member: others draw other random numbers. watch NULL:
// nothing is reported, and all stays in the slots.
hth_err hth_trainer_pass(hth_trainer *trainer, int member, const hth_tensor *inputs,
                         const hth_tensor *target, hth_trainer_sums *sums,
                         const hth_trainer_watch *watch, float *loss);
// hth_trainer_pass_none is that of a member without samples: it only makes the update.
// hth_trainer_pass_us is what the last one took, 0: not known.
void hth_trainer_pass_none(hth_trainer *trainer);
double hth_trainer_pass_us(const hth_trainer *trainer);
// hth_trainer_update makes the step with summed[k] in the place of the k-th, where gradients count
// times `factor`, or, if `summed` is NULL, with what the pass left in the slots. It reads no
// samples, but a device may be given them. hth_trainer_update_us is what the last one took.
hth_err hth_trainer_update(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                           hth_trainer_sums *sums, const float *const *summed, double factor);
double hth_trainer_update_us(const hth_trainer *trainer);
// hth_trainer_undo makes as if there had been no pass.
hth_err hth_trainer_undo(hth_trainer *trainer, const hth_trainer_sums *sums);

// hth_trainer_whole_bytes is what all slots take that are not copies (with spec->server: those of
// the model); hth_trainer_write writes them, hth_trainer_read sets them and the number of steps
// that made them so.
size_t hth_trainer_whole_bytes(const hth_trainer *trainer);
hth_err hth_trainer_write(hth_trainer *trainer, void *to);
hth_err hth_trainer_read(hth_trainer *trainer, const void *from, uint64_t steps);
// hth_trainer_fingerprint is the same for trainers of which these slots, those that are summed, and
// the stored tensors are the same.
uint64_t hth_trainer_fingerprint(const hth_trainer *trainer);

#endif
