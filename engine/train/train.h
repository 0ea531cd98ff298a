// SPDX-License-Identifier: Apache-2.0
// engine/train/train.h - training jobs on an engine: a specification, and what runs it. Engine's
// thread only.
#ifndef HTH_ENGINE_TRAIN_TRAIN_H
#define HTH_ENGINE_TRAIN_TRAIN_H

#include "graph/autodiff/train.h"
#include "planner/plan_curve.h"
#include "runtime/model.h"
#include "engine/train/data/augment.h"
#include "engine/train/job.h"
#include "engine/train/timeline.h"

#include <jansson.h>

#define HTH_TRAIN_MAX_FREEZE 16
#define HTH_TRAIN_STEPS      5    // most that are measured one by one
#define HTH_TRAIN_ROUNDS     1000 // most of hth_train_compare
// Of a group's job's arguments: how many members it has. Only the server says so.
#define HTH_TRAIN_MEMBERS "members"
// Of a job's arguments: {"need_bytes", "host_bytes", "budget_bytes", "step_us"} that it had when it
// was paused for another one, and goes on with.
#define HTH_TRAIN_HAD "had"

// How the learning rate goes on from spec->lr.
typedef enum hth_schedule_kind {
    HTH_RATE_CONSTANT,
    HTH_RATE_STEP,   // times `gamma` every `every` epochs (torch.optim.lr_scheduler.StepLR)
    HTH_RATE_COSINE, // half a cosine down to 0 over all steps (CosineAnnealingLR, called each step)
    HTH_RATE_LINEAR, // in a line down to 0 over all steps
    HTH_RATE_EXPONENTIAL, // times `gamma` every epoch (ExponentialLR)
    HTH_RATE_ONE_CYCLE, // from lr / 25 up to lr and down to lr / 250,000 (OneCycleLR, its defaults)
} hth_schedule_kind;

// Whose parameters are the result.
typedef enum hth_train_keep {
    HTH_KEEP_LAST, // the last step's
    HTH_KEEP_BEST, // those of the epoch with the least held-out loss
    HTH_KEEP_BEST_ACCURACY,
} hth_train_keep;

// Samples: {"dataset": NAME} of the store, or a file: "PATH", or {"file": NAME, "descriptor": I,
// "path": PATH}, which a client has passed as descriptor I of its request; with a path the file can
// be opened again without it.
typedef struct hth_train_file {
    const char *name; // NULL: there is none
    const char *path; // that may be opened; NULL: it may not
    int passed;       // which descriptor of the request; -1: none
    bool stored;      // `name` is a dataset's
    bool own;         // .. that came with the job, under a name that a client made up
} hth_train_file;

// What a job is asked to do. Formulas and defaults are PyTorch's (torch.optim).
typedef struct hth_train_spec {
    const char *model;
    hth_train_file data;       // none: one synthetic batch
    const char *save_as;       // the model that gets the result as a new version; NULL: `model`
    const char *owner;         // whose that is then; NULL: nobody's (runtime/tenants/owner.h)
    hth_train_options options; // without weights: a trainer has them (hth_trainer_options)
    hth_augment augment;       // of samples that are trained on; those evaluated stay as they are
    const json_t *weights;     // of classes or positive targets: numbers. NULL: all are 1
    const char *freeze[HTH_TRAIN_MAX_FREEZE]; // what options.freeze points to
    hth_schedule_kind schedule;
    double gamma;
    int64_t every, warmup; // epochs; steps in which the rate grows in a line from lr / warmup
    double lr, momentum, beta1, beta2, eps, weight_decay;
    int64_t batch, epochs;
    bool group;          // its batches are shards of a group's, whose gradients are summed
    bool server;         // .. and whose lead alone makes updates
    bool sync_bn;        // and batch norm's statistics are summed
    bool replan;         // look for better plans while the job runs
    int64_t accumulate;  // parts of equal size that a batch is taken in; 0: the fastest
    int64_t checkpoint;  // a checkpoint after every so many steps, and every epoch; 0: none
    double time_limit;   // seconds that it may be at work; 0: no limit
    bool resume;         // begin at the last one, if there is one
    double hold_out;     // share of the data that is evaluated, not trained on
    hth_train_file eval; // more data to evaluate
    hth_train_keep keep;
    int64_t patience; // epochs without a better evaluation that end the job; 0: it makes all steps
    uint64_t seed;
    bool shuffle;
    const char *spill;     // directory for what leaves the device; NULL: memory
    const json_t *profile; // costs to plan with (convsel/profile.h); NULL: this device's
    bool write_profile;    // tell this device's
    bool trace;            // of one more step: tell the predicted and the measured timeline
    const char *budget;    // NULL: the whole device
    hth_plan_options plan;
} hth_train_spec;

// hth_train_spec_read reads a job's JSON object; what it points to stays in `args`. `bench`: data,
// loss and the like may be missing. HTH_EINVAL says which key is wrong.
hth_err hth_train_spec_read(const json_t *args, bool bench, hth_train_spec *out);

// What a job that begins gets of the device. All zero: what is spare.
typedef struct hth_train_admission {
    // ask is called with what the job could have, unless it is alone: *budget_bytes is what it is
    // planned for, 0: whatever there is. HTH_ENODEVMEM: nothing now. NULL: not asked
    hth_err (*ask)(void *ctx, const hth_curve *curve, int64_t steps, uint64_t *budget_bytes);
    void *ctx;
    int64_t steps;         // that it makes in all
    uint64_t budget_bytes; // not 0: it was asked before, and is planned for these ..
    uint64_t need_bytes;   // .. if it has so many
    bool exact;            // it goes on as it was: another budget would have other bits
} hth_train_admission;

// A job at work: slots on the device or far from it, and a compiled step per batch size.
typedef struct hth_trainer hth_trainer;

// hth_trainer_open loads the model and makes everything ready for batches of `inputs` and `target`
// (dtypes and shapes; data unused): builds the step, plans it, allocates.
hth_err hth_trainer_open(hth_models *ms, const hth_train_spec *spec, hth_request *progress,
                         hth_trainer **out);
void hth_trainer_close(hth_trainer *trainer); // NULL is allowed

// hth_trainer_admission is set before the first hth_trainer_prepare.
void hth_trainer_set_admission(hth_trainer *trainer, const hth_train_admission *admission);
// hth_trainer_prepare makes the step for one batch shape the current one.
hth_err hth_trainer_prepare(hth_trainer *trainer, const hth_tensor *inputs,
                            const hth_tensor *target);
// hth_trainer_step runs one step on the current shape; data of inputs and target are read.
hth_err hth_trainer_step(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                         float *loss);
// hth_trainer_replan forgets what was compiled: the next prepare does so under spec->budget as it
// is then. Slots keep their contents.
hth_err hth_trainer_replan(hth_trainer *trainer);
// hth_trainer_more has a plan searched for, while steps go on, that makes use of the memory that is
// spare: if the `steps` that are left can gain more than changing over costs. hth_trainer_less has
// one searched for with which the job takes `bytes` at most. HTH_EBUSY: not now, HTH_ENOTSUP: the
// job keeps what it has. Algorithms and parts stay, so that all bits do. hth_trainer_resized,
// between two steps, says what became of that; false: it is still searched for. *err: HTH_OK, the
// job has that memory now; else it goes on as before.
hth_err hth_trainer_more(hth_trainer *trainer, int64_t steps);
hth_err hth_trainer_less(hth_trainer *trainer, uint64_t bytes);
bool hth_trainer_resized(hth_trainer *trainer, hth_err *err);
// hth_trainer_keep_size: the job is to have neither any more.
void hth_trainer_keep_size(hth_trainer *trainer);
// A better plan that was taken over, after `step` steps: what an update was predicted to take, and
// is now.
typedef struct hth_train_swap {
    int64_t step;
    double from_us, to_us;
} hth_train_swap;
// hth_trainer_swap is the last one; step 0: there was none.
hth_train_swap hth_trainer_swap(const hth_trainer *trainer);
// hth_trainer_measured_us is the median of the last updates on whole batches, 0: not known;
// hth_trainer_predicted_us what they are planned to take; hth_trainer_swaps how often a better plan
// was taken over; hth_trainer_plans says that one is looked for, or will be soon.
double hth_trainer_measured_us(const hth_trainer *trainer);
double hth_trainer_predicted_us(const hth_trainer *trainer);
int hth_trainer_swaps(const hth_trainer *trainer);
bool hth_trainer_plans(const hth_trainer *trainer);
// hth_trainer_stall_ms is how long kernels of the last step waited for the link.
double hth_trainer_stall_ms(const hth_trainer *trainer);
// hth_trainer_link stores which part of an update's time its copies keep each direction of the link
// busy, as planned.
void hth_trainer_link(const hth_trainer *trainer, double *in, double *out);
// hth_trainer_memory_bytes is what the job holds of the device now, hth_trainer_budget_bytes what
// it was planned for.
uint64_t hth_trainer_memory_bytes(const hth_trainer *trainer);
uint64_t hth_trainer_budget_bytes(const hth_trainer *trainer);
// hth_trainer_timeline has one step in a while measured into `timeline`, which outlives the
// trainer.
void hth_trainer_timeline(hth_trainer *trainer, hth_timeline *timeline);
// hth_trainer_rate sets the learning rate of the steps to come (spec->lr until then).
void hth_trainer_rate(hth_trainer *trainer, double lr);
// The current program and its graph, the model's graph, and for softmax-xent the number of classes
// (else 0).
const hth_program *hth_trainer_program(const hth_trainer *trainer);
const hth_train_graph *hth_trainer_graph(const hth_trainer *trainer);
const hth_graph *hth_trainer_model(const hth_trainer *trainer);
// hth_trainer_account is whom its memory belongs to.
const hth_account *hth_trainer_account(const hth_trainer *trainer);
int64_t hth_trainer_classes(const hth_trainer *trainer);
// hth_trainer_whole says that its batches are never taken in parts: the model's samples depend on
// each other.
bool hth_trainer_whole(const hth_trainer *trainer);
// hth_trainer_options is spec->options with the weights of its loss, which the trainer has.
hth_train_options hth_trainer_options(const hth_trainer *trainer);
// hth_trainer_class_axis is hth_train_class_axis for labels of shape `labels` on such inputs.
hth_err hth_trainer_class_axis(hth_trainer *trainer, const hth_tensor *inputs,
                               const hth_shape *labels, int *axis);
// hth_trainer_target is the shape that targets have for the current (or given) inputs.
hth_err hth_trainer_target(hth_trainer *trainer, const hth_tensor *inputs, hth_tensor *target);
// hth_trainer_arena lends the memory that steps of whole batches compute in until the next step,
// prepare, or change of the budget. hth_trainer_evaluates: who borrows it needs so much of it, and
// until the budget changes no plan is taken over that leaves less.
hth_err hth_trainer_arena(hth_trainer *trainer, void **out, uint64_t *bytes);
void hth_trainer_evaluates(hth_trainer *trainer, uint64_t bytes);
// hth_trainer_finite: HTH_EINVAL names a parameter or statistic with elements that are not finite,
// but were.
hth_err hth_trainer_finite(hth_trainer *trainer);
// hth_trainer_bytes is how many bytes of files the store gets by hth_trainer_publish at most, and
// by one checkpoint.
void hth_trainer_bytes(const hth_trainer *trainer, uint64_t *result, uint64_t *state);
// hth_trainer_publish stores the parameters, or those that were kept, as a new version of
// spec->save_as.
hth_err hth_trainer_publish(hth_trainer *trainer, int *version);

// hth_trainer_keep_open takes memory, or with spec->spill a file, for a copy of the model's
// parameters and statistics; hth_trainer_keep makes them as they are now the result, whatever steps
// come after. hth_trainer_keeps: there is such a copy.
hth_err hth_trainer_keep_open(hth_trainer *trainer);
hth_err hth_trainer_keep(hth_trainer *trainer);
bool hth_trainer_keeps(const hth_trainer *trainer);

// hth_trainer_state tells all slots but copies of parameters (count; the table is to be freed by
// hth_free) as they are now, then what was kept; valid until the next call. hth_trainer_restore
// sets them, and the number of steps that made them so.
hth_err hth_trainer_state(hth_trainer *trainer, hth_put_tensor **out, int *count);
hth_err hth_trainer_restore(hth_trainer *trainer, hth_store *store, const hth_manifest *manifest,
                            uint64_t steps);

// hth_train_rate is the learning rate of step `step` (from 0) of `steps`, `per_epoch` in an epoch.
double hth_train_rate(const hth_train_spec *spec, int64_t step, int64_t steps, int64_t per_epoch);

// A job runs in turns of one step, so that requests are served in between.
typedef struct hth_train_job hth_train_job;
// What is told after every step and evaluation, to r->progress and to `fn`: {"step", "epoch",
// "loss", "lr", "ms", "stall_ms", "peak_bytes", "budget_bytes"} and, of the last evaluation,
// "held_out_step", "held_out_loss" and what it has of "accuracy", "top5", "perplexity". A job that
// ends early says {"early_stop": {"epoch", "best_step", "best_epoch"}} before, one that has a
// better plan {"replanned": {"step", "from_ms", "to_ms"}}.
typedef struct hth_train_events {
    void (*fn)(void *ctx, const char *what, uint64_t done, uint64_t total); // NULL: nobody else
    void *ctx;
    hth_timeline *timeline; // gets a step now and then; NULL: none
    // gets the lines of the job's log; NULL: nobody. level: "info", "warning", "error"
    void (*log)(void *ctx, const char *level, const char *text);
    hth_train_admission admission; // without steps
} hth_train_events;
// hth_train_job_open reads the specification in request->arguments and makes everything ready: what
// can be wrong is told here, before any step runs. `request` must outlive the job.
hth_err hth_train_job_open(hth_models *ms, hth_request *request, hth_train_events events,
                           hth_train_job **out);
// hth_train_job_slice runs one step, or evaluates one batch of held-out data after an epoch. After
// the last one the result is published, r->json is the summary, and *done; with an error there was
// no memory for the summary. HTH_ETIMEDOUT: it was at work for as long as it may be
// (spec->time_limit), and a checkpoint of where it stands was made.
hth_err hth_train_job_slice(hth_train_job *job, bool *done);
// hth_train_job_state says where the job stands, as a checkpoint's meta does. NULL: no memory.
json_t *hth_train_job_state(const hth_train_job *job);
// hth_train_job_times is what they take of time: {"predicted_ms", "measured_ms" (median of the last
// steps, null: none yet), "replans", "step_ms" and "stall_ms" of the last step, "link_in" and
// "link_out" (hth_trainer_link)}, and the bytes that it holds of the device, "memory_bytes"; after
// a better plan "replanned" {"step", "from_ms", "to_ms"}. NULL: no memory.
json_t *hth_train_job_times(const hth_train_job *job);
// hth_train_job_predicted_ns is what a step will take, as planned and then measured;
// hth_train_job_left_ns what those that are left were planned to take; and hth_train_job_link
// which part of a step's time the busier direction of the link is busy.
uint64_t hth_train_job_predicted_ns(const hth_train_job *job);
uint64_t hth_train_job_left_ns(const hth_train_job *job);
double hth_train_job_link(const hth_train_job *job);
// hth_train_job_seconds_left is for how long it will have the device, by what its slices took so
// far, or its steps are planned to take.
double hth_train_job_seconds_left(const hth_train_job *job);
// hth_train_job_arguments is the job as it was asked for, and what was chosen; the job's.
const json_t *hth_train_job_arguments(const hth_train_job *job);
// hth_train_job_number gives a job its number.
void hth_train_job_number(hth_train_job *job, uint64_t id);
// hth_train_job_memory is what its steps take ({"peak_bytes", "budget_bytes", ..}); the job's.
const json_t *hth_train_job_memory(const hth_train_job *job);
// hth_train_job_save makes a checkpoint of where the job stands.
hth_err hth_train_job_save(hth_train_job *job);
// hth_train_job_leave begins a checkpoint of where the job stands, with what it needs to go on as
// it is (HTH_TRAIN_HAD). It makes no step until hth_train_job_left says what became of that, or all
// the same goes on. HTH_EBUSY: an earlier one is being written.
hth_err hth_train_job_leave(hth_train_job *job);
bool hth_train_job_left(hth_train_job *job, hth_err *err); // false: it is being written
// hth_train_job_more and _less are hth_trainer_more and _less: of a job that is not planned for a
// budget of its own, and less only of one that evaluates nothing. hth_train_job_resized and
// _keep_size are those of the trainer.
hth_err hth_train_job_more(hth_train_job *job);
hth_err hth_train_job_less(hth_train_job *job, uint64_t bytes);
bool hth_train_job_resized(hth_train_job *job, hth_err *err);
void hth_train_job_keep_size(hth_train_job *job);
// hth_train_job_device_bytes is what the job holds of the device.
uint64_t hth_train_job_device_bytes(const hth_train_job *job);
// hth_train_job_budget goes on under another budget ("512MiB", "60%"). Where that is too small the
// job stays as it is, or, if its memory is not free any more, has ended: its next slice says so.
hth_err hth_train_job_budget(hth_train_job *job, const char *budget);
// hth_train_job_saved is the step of the last checkpoint, -1: none.
int64_t hth_train_job_saved(const hth_train_job *job);
// hth_train_job_trouble says what does not go as it should while the job goes on; "": nothing.
const char *hth_train_job_trouble(const hth_train_job *job);
// hth_train_job_stuck tells of a job that is done that neither its result nor a checkpoint could be
// stored: the next turn tries that again.
bool hth_train_job_stuck(const hth_train_job *job);
// hth_train_job_for has a job that is stuck go on for another request than it was made for.
void hth_train_job_for(hth_train_job *job, hth_request *request);
void hth_train_job_free(hth_train_job *job); // NULL is allowed
// hth_train_job_base is the job as the queue has it (job.h).
hth_job *hth_train_job_base(hth_train_job *job);

// hth_train_synthetic is hth_model_synthetic for a step: with spec->options.scale an input is
// bytes.
hth_err hth_train_synthetic(const hth_model *model, const hth_train_spec *spec, bool whole,
                            hth_tensor *inputs);
// hth_train_bench measures steps on synthetic data: for `seconds`, or, with `steps` > 0 (at most
// HTH_TRAIN_STEPS), as many as that.
hth_err hth_train_bench(hth_models *ms, const hth_train_spec *spec, double seconds, int steps,
                        hth_request *request, json_t **out);
// hth_train_compare measures n steps, one for each of `specs`, in turns: a round is a step of each.
// It goes on for `seconds`, three rounds at least, or for `steps` rounds (0: any number).
// "policies" of *out has a row for each: its step time, relative to that of the first one with a
// plan, by the medians of what their steps take relative to the mean of their round; or "error",
// where there is no plan for its budget, or no memory for it beside the others.
hth_err hth_train_compare(hth_models *ms, const hth_train_spec *specs, int n, double seconds,
                          int steps, hth_request *request, json_t **out);
// hth_train_visit compiles the step of a synthetic batch and shows it to `visit`. With
// spec->profile it is compiled for that device: there is a plan, but nothing that could run.
hth_err hth_train_visit(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                        hth_err (*visit)(void *ctx, const hth_program *program), void *ctx);
// hth_train_elsewhere is hth_train_visit with spec->profile; plans false: program->problem is made,
// but no plan.
hth_err hth_train_elsewhere(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                            bool plans, hth_err (*visit)(void *ctx, const hth_program *program),
                            void *ctx);
// hth_train_plan plans the step of a synthetic batch and hands it to `report`; with
// spec->write_profile *profile gets the costs of its nodes on this device, the caller's; else NULL.
hth_err hth_train_plan(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                       hth_err (*report)(void *ctx, const hth_problem *problem,
                                         const hth_plan *plan),
                       void *ctx, json_t **profile);
// hth_train_plan_file is hth_train_plan for the ONNX file spec->model and the device of
// spec->profile: it needs no store, and nothing of this machine's device bounds it. Any thread.
hth_err hth_train_plan_file(const hth_train_spec *spec,
                            hth_err (*report)(void *ctx, const hth_problem *problem,
                                              const hth_plan *plan),
                            void *ctx);
// hth_train_curve answers with the points of the step's memory/time curve, least memory first.
hth_err hth_train_curve(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                        json_t **out);
// hth_train_curve_file is hth_train_curve for what hth_train_plan_file plans,
// hth_train_curve_problem for a problem. HTH_ETOOBIG: no plan was found. Any thread; `site` is that
// whose engine's thread calls for `request`, or both are NULL.
hth_err hth_train_curve_file(const hth_train_spec *spec, json_t **out);
hth_err hth_train_curve_problem(hth_site *site, const hth_request *request,
                                const hth_problem *problem, const hth_plan_options *options,
                                json_t **out);
// hth_trainer_curve plans a job's update for every budget; `inputs` are shapes of a whole batch.
hth_err hth_trainer_curve(hth_models *ms, const hth_train_spec *spec, hth_request *request,
                          const hth_tensor *inputs, hth_curve *out);
// hth_train_memory describes what a compiled step takes; hth_trainer_memory what an update does, in
// all its parts.
json_t *hth_train_memory(const hth_program *program);
json_t *hth_trainer_memory(const hth_trainer *trainer);

#endif
