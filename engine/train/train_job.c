// SPDX-License-Identifier: Apache-2.0
// A training job: its way through the data step by step, and what is reported about it.
#include "engine/train/train_job_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "runtime/catalog.h"
#include "engine/serve/version_swap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *hth_train_memory(const hth_program *program)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:s, s:f, s:f}", "peak_bytes",
                     (json_int_t)(program->plan->arena_bytes + program->plan->resident_bytes),
                     "unconstrained_bytes", (json_int_t)program->peak_bytes, "budget_bytes",
                     (json_int_t)program->budget, "host_bytes",
                     (json_int_t)program->plan->host_bytes, "policy", program->plan->policy,
                     "plan_ms", program->plan->plan_ms, "predicted_ms",
                     program->plan->predicted_us / 1e3);
}

// The evaluations but those of an epoch that are not complete yet.
static json_t *job_held_out(const hth_train_job *job)
{
    json_t *out = json_copy(job->held_out);
    size_t n = json_array_size(out);
    for (; n > 0 && job->evaluating < job->n_evaluators; n--) {
        const json_t *step = json_object_get(json_array_get(out, n - 1), "step");
        if (json_integer_value(step) != job->step) {
            break;
        }
        json_array_remove(out, n - 1);
    }
    return out;
}

// job_ran_ms is how much of its time limit the job has used.
static uint64_t job_ran_ms(const hth_train_job *job)
{
    return job->ran_ms + (job->first_ns > 0 ? (hth_now_ns() - job->first_ns) / 1000000u : 0);
}

// job_save begins a checkpoint. One that is due by time may stop the job for a twentieth of its
// time at most: where nothing can be copied, writing takes as long as the file system does.
static hth_err job_save(hth_train_job *job)
{
    HTH_TRY(hth_train_job_rest(job));
    hth_checkpoint c = {job->args,
                        job->step,
                        job->steps,
                        job->history,
                        job_held_out(job),
                        job_ran_ms(job),
                        hth_train_job_shards(job)};
    uint64_t start_ns = hth_now_ns();
    hth_err err = hth_checkpointer_save(job->writer, &job->spec, job->trainer, &c);
    uint64_t now_ns = hth_now_ns(), stopped_ns = now_ns - start_ns;
    uint64_t every_ns = (uint64_t)hth_setting_int(HTH_SET_TRAIN_CHECKPOINT_SECONDS) * 1000000000u;
    job->due_ns = now_ns + (every_ns > 20 * stopped_ns ? every_ns : 20 * stopped_ns);
    json_decref(c.held_out);
    return err;
}

static void job_log(const hth_train_job *job, const char *level, const char *text)
{
    if (job->events.log != NULL) {
        job->events.log(job->events.ctx, level, text);
    }
}

// job_saved notes that the checkpoint of step `saved` is written.
static void job_saved(hth_train_job *job, int64_t saved)
{
    char text[80];
    if (saved > job->saved) {
        job->saved = saved;
        job->trouble[0] = 0;
        snprintf(text, sizeof text, "checkpoint of step %lld written", (long long)saved);
        job_log(job, "info", text);
    }
}

hth_err hth_train_job_save(hth_train_job *job)
{
    int64_t saved;
    if (job->writer == NULL) { // of a group only the lead stores anything
        HTH_TRY(hth_train_job_rest(job));
        return hth_train_group_park(job);
    }
    (void)hth_checkpointer_wait(job->writer, &saved); // another one is written now
    HTH_TRY(job_save(job));
    HTH_TRY(hth_checkpointer_wait(job->writer, &saved));
    job_saved(job, saved);
    return HTH_OK;
}

static double job_memory(const hth_train_job *job, const char *key)
{
    return json_number_value(json_object_get(job->memory, key));
}

hth_err hth_train_job_leave(hth_train_job *job)
{
    if (job->writing || job->group != NULL) {
        return hth_fail(HTH_EBUSY, "a checkpoint is being written, or it is a group's job");
    }
    if (json_object_set(job->args, HTH_TRAIN_HAD, job->had) != 0) {
        return hth_no_memory("a training job");
    }
    HTH_TRY(job_save(job));
    job->writing = true;
    return HTH_OK;
}

bool hth_train_job_left(hth_train_job *job, hth_err *err)
{
    int64_t saved;
    *err = HTH_OK;
    if (job->writing && !hth_checkpointer_poll(job->writer, &saved, err)) {
        return false;
    }
    if (job->writing && *err == HTH_OK) {
        job_saved(job, saved);
    }
    job->writing = false;
    return true;
}

// job_told is who is told of the job, called `name`.
static hth_job_told job_told(const hth_train_job *job, const char *name)
{
    return (hth_job_told){.r = job->r,
                          .events = &job->events,
                          .job = name,
                          .done = (uint64_t)job->step,
                          .total = (uint64_t)job->steps};
}

// job_wrote notes what became of a checkpoint. One that could not be written costs nothing but what
// is computed again if the job ends now.
static void job_wrote(hth_train_job *job, hth_err err)
{
    char name[HTH_CHECKPOINT_JOB], detail[HTH_CHECKPOINT_NOTE];
    if (err == HTH_OK) {
        return;
    }
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    bool named = hth_checkpoint_job(job->args, name) == HTH_OK;
    const hth_job_told told = job_told(job, named ? name : "");
    (void)hth_err_restore(err, detail);
    hth_job_unwritten(&told, job->trouble);
}

// job_written looks what became of the checkpoint that was begun last; false: it is being written.
static bool job_written(hth_train_job *job)
{
    int64_t saved;
    hth_err err;
    if (job->writing) {
        if (!hth_checkpointer_poll(job->writer, &saved, &err)) {
            return false;
        }
        job->writing = false;
        job_wrote(job, err);
        job_saved(job, saved);
    }
    return true;
}

// job_evaluated: an epoch of a group has ended and is evaluated. What that found, and the
// parameters that are the best so far, nobody has but the lead: they are in a checkpoint before the
// next epoch begins, for the lead that may come after it.
static bool job_evaluated(const hth_train_job *job)
{
    return job->group != NULL && job->n_evaluators > 0 && job->at == 0 && job->step > 0;
}

// job_checkpoint makes a checkpoint where one is due: by the number of steps, or by time, unless
// the one before is still being written.
static hth_err job_checkpoint(hth_train_job *job)
{
    int64_t saved;
    bool counted = job_evaluated(job) || (job->spec.checkpoint > 0 &&
                                          (job->at == 0 || job->step % job->spec.checkpoint == 0));
    bool timed =
        hth_setting_int(HTH_SET_TRAIN_CHECKPOINT_SECONDS) > 0 && hth_now_ns() >= job->due_ns;
    bool idle = job_written(job);
    if (!counted && !(timed && idle)) {
        return HTH_OK;
    }
    if (!idle) {
        job->writing = false;
        job_wrote(job, hth_checkpointer_wait(job->writer, &saved)); // the one before
        job_saved(job, saved);
    }
    hth_err err = job_save(job);
    job->writing = err == HTH_OK;
    job_wrote(job, err);
    return HTH_OK;
}

const char *hth_train_job_trouble(const hth_train_job *job)
{
    return job->trouble;
}

bool hth_train_job_stuck(const hth_train_job *job)
{
    return job->stuck;
}

void hth_train_job_for(hth_train_job *job, hth_request *request)
{
    job->r = request;
}

// job_ends adds whose parameters the result has where held-out data decide that.
static void job_ends(const hth_train_job *job, json_t *doc)
{
    hth_best best = hth_train_job_best(job);
    if ((job->spec.keep == HTH_KEEP_LAST && job->spec.patience == 0) || best.step < 0) {
        return;
    }
    json_object_set_new(doc, "best_step", json_integer(best.step));
    json_object_set_new(doc, "best_epoch", json_integer(best.epoch));
    json_object_set_new(doc, "stopped_early", json_boolean(job->early && job->step < job->steps));
}

json_t *hth_train_job_state(const hth_train_job *job)
{
    json_t *doc =
        hth_checkpoint_doc(&(hth_checkpoint){job->args, job->step, job->steps, job->history,
                                             job->held_out, 0, hth_train_job_shards(job)});
    if (job->version > 0) {
        json_object_set_new(doc, "version", json_integer(job->version));
        job_ends(job, doc);
    }
    return doc;
}

const json_t *hth_train_job_arguments(const hth_train_job *job)
{
    return job->args;
}

void hth_train_job_number(hth_train_job *job, uint64_t id)
{
    json_object_set_new(job->args, "id", json_integer((json_int_t)id));
}

const json_t *hth_train_job_memory(const hth_train_job *job)
{
    return job->memory;
}

int64_t hth_train_job_saved(const hth_train_job *job)
{
    int64_t saved = -1;
    if (job->writer != NULL) {
        (void)hth_checkpointer_wait(job->writer, &saved); // what counts is the last whole one
    }
    return saved >= 0 ? saved : job->begun;
}

// What is left of a job that ends early.
static const char *job_kept(const hth_train_job *job, char text[80])
{
    int64_t saved = hth_train_job_saved(job);
    if (saved < 1) {
        return "nothing is saved";
    }
    snprintf(text, 80, "the checkpoint of step %lld is kept", (long long)saved);
    return text;
}

// The last update is not followed by a step that would tell. What was kept had a finite loss.
static hth_err job_finite(hth_train_job *job)
{
    char why[300], kept[80];
    if (hth_trainer_keeps(job->trainer)) {
        return HTH_OK;
    }
    hth_err err = hth_trainer_finite(job->trainer);
    if (err != HTH_EINVAL) {
        return err;
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    return hth_fail(err, "after step %lld %s: nothing is published, %s", (long long)job->step, why,
                    job_kept(job, kept));
}

// job_publish stores the result. Where that fails the result is not lost: it becomes a checkpoint,
// or where not even that can be written stays where it is (job->stuck) until somebody has made
// room.
static hth_err job_publish(hth_train_job *job, const char *name, int *version)
{
    char why[300];
    hth_store_unreserve(job->room);
    job->room = -1;
    hth_err err = hth_trainer_publish(job->trainer, version);
    if (err == HTH_OK) {
        return HTH_OK;
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (hth_train_job_save(job) == HTH_OK) {
        return hth_fail(
            err,
            "the result of job '%s' could not be saved: %s; its checkpoint of step %lld "
            "is kept: `hearth train --resume %s` saves it",
            name, why, (long long)job->step, name);
    }
    job->stuck = true;
    const hth_job_told told = job_told(job, name);
    hth_job_unstored(&told, why, job->trouble);
    return HTH_OK;
}

static hth_err job_answer(hth_train_job *job, bool *done)
{
    int version;
    char name[HTH_CHECKPOINT_JOB];
    double ms_sum = 0;
    size_t i;
    json_t *v;
    job->stuck = false;
    HTH_TRY(hth_checkpoint_job(job->args, name));
    HTH_TRY(job_finite(job));
    HTH_TRY(job_publish(job, name, &version));
    if (job->stuck) {
        return HTH_OK;
    }
    *done = true;
    job->version = version;
    hth_version_swap_settle(job->ms, name); // who waits for the job finds its result served
    (void)hth_train_job_saved(job);         // one may be being written
    if (hth_checkpoint_drop(job->ms->store, &job->spec) != HTH_OK) {
        hth_job_unremoved(job->ms->store, name);
    }
    json_array_foreach(job->history, i, v)
    {
        ms_sum += json_number_value(json_array_get(v, 1));
    }
    json_t *doc = json_copy(job->memory);
    json_object_update_new(doc, json_pack("{s:s, s:i, s:I, s:f, s:O, s:O}", "saved_as", name,
                                          "version", version, "steps", (json_int_t)job->step,
                                          "mean_ms", ms_sum / (double)job->step, "history",
                                          job->history, "held_out", job->held_out));
    job_ends(job, doc);
    json_object_set(doc, "shards", hth_train_job_shards(job)); // nothing, where there are none
    json_object_set_new(doc, "steps_per_epoch", json_integer(job->steps / job->spec.epochs));
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    job->r->json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return job->r->json != NULL ? HTH_OK : hth_no_memory("a training job");
}

// job_canceled ends a job. whole: between two steps, so that a checkpoint can be made of it.
static hth_err job_canceled(hth_train_job *job, bool whole)
{
    char kept[80];
    if (whole && job->step > 0 && hth_train_job_save(job) != HTH_OK) {
        job_wrote(job, HTH_EIO);
    }
    return hth_fail(HTH_ECANCELED, "canceled after step %lld: %s", (long long)job->step,
                    job_kept(job, kept));
}

// job_limited ends a job whose time is over; one that is resumed has all of it again.
static hth_err job_limited(hth_train_job *job)
{
    char kept[80];
    job->ran_ms = 0;
    job->first_ns = 0;
    if (hth_train_job_save(job) != HTH_OK) {
        job_wrote(job, HTH_EIO);
    }
    return hth_fail(HTH_ETIMEDOUT, "time limit: %g s are over after step %lld of %lld; %s",
                    job->spec.time_limit, (long long)job->step, (long long)job->steps,
                    job_kept(job, kept));
}

static void job_tell(const hth_train_job *job, const char *text)
{
    if (job->r->progress != NULL) {
        job->r->progress(job->r, text, (uint64_t)job->step, (uint64_t)job->steps);
    }
    if (job->events.fn != NULL) {
        job->events.fn(job->events.ctx, text, (uint64_t)job->step, (uint64_t)job->steps);
    }
}

static void job_event(const hth_train_job *job)
{
    static const char *const keys[][2] = {{"step", "held_out_step"},
                                          {"loss", "held_out_loss"},
                                          {"accuracy", "accuracy"},
                                          {"top5", "top5"},
                                          {"perplexity", "perplexity"}};
    char text[500];
    const json_t *held = hth_train_held_out(job->held_out);
    int n = snprintf(text, sizeof text,
                     "{\"step\":%lld,\"epoch\":%lld,\"loss\":%.9g,\"lr\":%.9g,\"ms\":%.3f,"
                     "\"stall_ms\":%.3f,\"peak_bytes\":%.0f,\"budget_bytes\":%.0f",
                     (long long)job->step,
                     (long long)((job->step - 1) / (job->steps / job->spec.epochs) + 1), job->loss,
                     job->lr, job->step_ms, hth_trainer_stall_ms(job->trainer),
                     job_memory(job, "peak_bytes"), job_memory(job, "budget_bytes"));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(held, keys[i][0]);
        if (v != NULL) {
            n += snprintf(text + n, sizeof text - (size_t)n, ",\"%s\":%.9g", keys[i][1],
                          json_number_value(v));
        }
    }
    snprintf(text + n, sizeof text - (size_t)n, "}");
    job_tell(job, text);
}

static void job_event_early(const hth_train_job *job, const hth_best *best)
{
    char text[160];
    snprintf(text, sizeof text,
             "{\"early_stop\":{\"epoch\":%lld,\"best_step\":%lld,\"best_epoch\":%lld}}",
             (long long)job->epoch, (long long)best->step, (long long)best->epoch);
    job_tell(job, text);
}

// After an epoch, and its evaluation.
static hth_err job_epoch(hth_train_job *job, bool *done)
{
    hth_best best = hth_train_job_best(job);
    if (job->spec.keep != HTH_KEEP_LAST && best.step == job->step) {
        HTH_TRY(hth_trainer_keep(job->trainer));
    }
    job->early = job->spec.patience > 0 && best.stale >= job->spec.patience;
    if (job->early && job->epoch < job->spec.epochs) {
        job_event_early(job, &best);
    }
    return job->early || job->epoch == job->spec.epochs ? job_answer(job, done)
                                                        : job_checkpoint(job);
}

static hth_err job_evaluate(hth_train_job *job, bool *done)
{
    json_t *found;
    bool whole;
    hth_err err = hth_evaluator_slice(job->evaluator[job->evaluating], &whole, &found);
    if (err != HTH_OK) {
        return err == HTH_ECANCELED ? job_canceled(job, true) : err;
    }
    if (!whole) {
        return HTH_OK;
    }
    json_t *row = json_pack("{s:I, s:I, s:s}", "step", (json_int_t)job->step, "epoch",
                            (json_int_t)job->epoch, "set", job->set[job->evaluating]);
    json_object_update_new(row, found);
    if (json_array_append_new(job->held_out, row) != 0) {
        return hth_no_memory("a training job");
    }
    job_event(job);
    return ++job->evaluating == job->n_evaluators ? job_epoch(job, done) : HTH_OK;
}

// The loss of the step after job->step is not finite, or the step failed by its data or its update.
// A checkpoint of that very state would lead to it again.
static hth_err job_lost(hth_train_job *job, hth_err err, float loss)
{
    char kept[80], why[300];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (job->writer != NULL && hth_train_job_saved(job) == job->step) {
        HTH_TRY(hth_checkpointer_back(job->writer, &job->spec));
    }
    if (isfinite(loss)) {
        return hth_fail(err, "step %lld: %s: training stops, %s", (long long)job->step + 1, why,
                        job_kept(job, kept));
    }
    return hth_fail(HTH_EINVAL, "the loss of step %lld is %s: training stops, %s",
                    (long long)job->step + 1, isnan(loss) ? "not a number" : "infinite",
                    job_kept(job, kept));
}

// job_read reads the next batch. Where that fails what was made so far is as good as before.
static hth_err job_read(hth_train_job *job)
{
    char kept[80], why[400];
    hth_err err = hth_train_data_batch(&job->data, job->at, job->spec.batch);
    if (err != HTH_OK) {
        snprintf(why, sizeof why, "%s", hth_err_detail());
        hth_fail(err, "step %lld: %s: training stops, %s", (long long)job->step + 1, why,
                 job_kept(job, kept));
    }
    return err;
}

void hth_train_job_first(hth_train_job *job)
{
    if (job->first_ns == 0) {
        job->first_ns = hth_now_ns();
        job->slices_ns = 0;
        job->first = job->step;
        job->due_ns = job->first_ns +
                      (uint64_t)hth_setting_int(HTH_SET_TRAIN_CHECKPOINT_SECONDS) * 1000000000u;
    }
}

// job_record keeps a step's loss. If that is not finite the lead ends the job, which has the
// checkpoint: the others wait for that, and a lead that comes back sees it in the next step.
static hth_err job_record(hth_train_job *job, double loss, double ms, double lr)
{
    json_t *known = isfinite(loss) ? json_real(loss) : json_null();
    if (json_array_append_new(job->history, json_pack("[o, f, f]", known, ms, lr)) != 0) {
        return hth_no_memory("a training job");
    }
    return HTH_OK;
}

// job_made counts a step that was made, and tells of it.
static hth_err job_made(hth_train_job *job)
{
    if (job->writer != NULL) {
        hth_checkpointer_proved(job->writer);
    }
    job->step++;
    if (hth_train_group_lead(job)) {
        job_event(job);
    }
    HTH_TRY(job_record(job, job->loss, job->step_ms, job->lr));
    job->at += job->spec.batch;
    if (job->at >= job->data.n_samples) {
        job->at = 0;
        job->epoch++;
        job->evaluating = 0;
    }
    return HTH_OK;
}

// job_went_on follows a step: a checkpoint where one is due, or the end of an epoch.
static hth_err job_went_on(hth_train_job *job, bool *done)
{
    if (job->at > 0) {
        return job_checkpoint(job);
    }
    return job->n_evaluators == 0 ? job_epoch(job, done) : HTH_OK;
}

static hth_err job_step(hth_train_job *job, bool *done)
{
    hth_train_data *d = &job->data;
    float loss = NAN;
    hth_train_job_first(job);
    if (job->at == 0) {
        hth_train_data_order(d, job->spec.shuffle, job->spec.seed, job->epoch);
    }
    job->lr = hth_train_rate(&job->spec, job->step, job->steps, job->steps / job->spec.epochs);
    hth_trainer_rate(job->trainer, job->lr);
    HTH_TRY(job_read(job));
    HTH_TRY(hth_trainer_prepare(job->trainer, d->input, &d->target));
    uint64_t start_ns = hth_now_ns();
    hth_err err = hth_trainer_step(job->trainer, d->input, &d->target, &loss);
    if (err != HTH_OK && err != HTH_EINVAL) {
        return err == HTH_ECANCELED ? job_canceled(job, false) : err;
    }
    if (err != HTH_OK || !isfinite(loss)) {
        return job_lost(job, err, loss);
    }
    job->step_ms = (double)(hth_now_ns() - start_ns) / 1e6;
    job->loss = (double)loss;
    HTH_TRY(job_made(job));
    hth_train_job_replanned(job);
    return job_went_on(job, done);
}

// ---- of a group

// job_moved: others have made steps that this job knows nothing of; their losses are known.
static hth_err job_moved(hth_train_job *job)
{
    int64_t known = (int64_t)json_array_size(job->history);
    for (; known < job->step; known++) {
        double ms, loss = hth_train_group_loss(job, known, &ms);
        double lr = hth_train_rate(&job->spec, known, job->steps, job->steps / job->spec.epochs);
        HTH_TRY(job_record(job, loss, ms, lr));
    }
    hth_train_job_place(job, job->step);
    return HTH_OK;
}

// job_left ends a job whose other members have gone: what was made so far is kept.
static hth_err job_left(hth_train_job *job, hth_err err)
{
    char kept[80], why[400];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (job->step > 0 && hth_train_job_save(job) != HTH_OK) {
        job_wrote(job, HTH_EIO);
    }
    return hth_fail(err, "after step %lld: %s; %s", (long long)job->step, why, job_kept(job, kept));
}

// job_over ends a member whose lead has ended the group, or a lead that somebody refused.
static hth_err job_over(hth_train_job *job, bool *done)
{
    hth_err err = hth_train_group_over(job);
    if (err != HTH_OK && job->rank.ranks > 0 && hth_train_group_lead(job)) {
        return job_left(job, err);
    }
    HTH_TRY(err);
    if (hth_train_group_lead(job)) {
        return hth_fail(HTH_ECANCELED, "the group was ended");
    }
    *done = true;
    job->r->json = hth_strdup("{}");
    return job->r->json != NULL ? HTH_OK : hth_no_memory("a training job");
}

// job_budget_next plans for the budget that a rank was given during a round.
static void job_budget_next(hth_train_job *job)
{
    char *budget = job->budget_next;
    job->budget_next = NULL;
    if (hth_train_job_budget(job, budget) != HTH_OK) {
        job_log(job, "warning", hth_err_detail());
    }
    hth_free(budget);
}

static hth_err job_group(hth_train_job *job, bool *done)
{
    hth_train_group_event event;
    if (job->budget_next != NULL && !hth_train_group_at_work(job)) {
        job_budget_next(job);
    }
    if (job_evaluated(job) && !job_written(job)) {
        hth_train_group_wait(job);
        return HTH_OK;
    }
    hth_err err = hth_train_group_slice(job, &event);
    if (err == HTH_EINVAL && hth_train_group_lead(job)) {
        return job_lost(job, err, 0);
    }
    if (err == HTH_ETOOBIG && hth_train_group_lead(job) && !hth_train_group_at_work(job)) {
        return job_left(job, err); // by those that had memory for the rest of the batch
    }
    if (err != HTH_OK) {
        return err == HTH_ECANCELED ? job_canceled(job, false) : err;
    }
    switch (event) {
    case HTH_TRAIN_GROUP_MOVED:
        return job_moved(job);
    case HTH_TRAIN_GROUP_OVER:
        return job_over(job, done);
    case HTH_TRAIN_GROUP_STEPPED:
        break;
    default:
        return HTH_OK;
    }
    if (!isfinite(job->loss) && hth_train_group_lead(job)) {
        return job_lost(job, HTH_OK, (float)job->loss);
    }
    HTH_TRY(job_made(job));
    return hth_train_group_lead(job) ? job_went_on(job, done) : HTH_OK;
}

// job_ended is why the job has ended.
static hth_err job_ended(const hth_train_job *job)
{
    return job->lost[0] != 0 ? hth_fail(job->lost_err, "%s", job->lost) : HTH_OK;
}

hth_err hth_train_job_rest(hth_train_job *job)
{
    hth_train_group_event event;
    HTH_TRY(job_ended(job));
    hth_err err = hth_train_group_rest(job, &event);
    bool made = err == HTH_OK && event == HTH_TRAIN_GROUP_STEPPED;
    bool lost = err == HTH_EINVAL || (made && !isfinite(job->loss));
    if (lost && hth_train_group_lead(job)) {
        err = job_lost(job, err, err == HTH_OK ? (float)job->loss : 0);
        snprintf(job->lost, sizeof job->lost, "%s", hth_err_detail());
        job->lost_err = err;
    }
    HTH_TRY(err);
    return made ? job_made(job) : HTH_OK;
}

static hth_err job_slice(hth_train_job *job, bool *done)
{
    HTH_TRY(job_ended(job));
    if (job->r->canceled) {
        return job_canceled(job, true);
    }
    if (job->spec.time_limit > 0 && job->step < job->steps &&
        (double)job_ran_ms(job) >= 1e3 * job->spec.time_limit) {
        return job_limited(job);
    }
    if (job->evaluating < job->n_evaluators) {
        return job_evaluate(job, done);
    }
    if (job->group != NULL &&
        (!hth_train_group_lead(job) || (job->step < job->steps && !job->early))) {
        return job_group(job, done);
    }
    // all steps may be made: its result could not be saved then
    return job->step < job->steps && !job->early ? job_step(job, done) : job_answer(job, done);
}

hth_err hth_train_job_slice(hth_train_job *job, bool *done)
{
    uint64_t start_ns = hth_now_ns();
    *done = false;
    hth_err err = job_slice(job, done);
    job->slices_ns += hth_now_ns() - start_ns;
    return err;
}
