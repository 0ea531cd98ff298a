// SPDX-License-Identifier: Apache-2.0
// A member's slices: it arrives, takes part in the round that the lead starts, hands its gradients
// in, and updates when they are summed. A round that breaks is undone, so that between two slices a
// member's state is that of a whole step, or can be made so.
//
// Design notes
// Each member is a job of its own device's queue, with its own plan; member 0, the lead, is the one
// that the user sees: it alone evaluates, writes checkpoints and the result, and decides when the
// job ends. What it decides, shards included, others find in the exchange. A slice of a job never
// waits for long: it comes again. With sync_bn alone a pass waits for the others' in its middle, on
// the thread that steps compute on, while the device's own serves requests.
#include "engine/train/train_group_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "group/members.h"
#include "group/sequence.h"
#include "modelstore/hold.h"

#include <string.h>

bool hth_train_group_lead(const hth_train_job *job)
{
    return job->group == NULL || job->group->member == HTH_GROUP_LEAD;
}

// ---- joining

// Statistics of the whole batch are summed in the middle of kernels, which run on the host.
static hth_err group_sync(const hth_train_job *job)
{
    const hth_device_props *props = &job->ms->site->device->props;
    return !job->spec.sync_bn || props->inline_compute
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP,
                          "--sync-bn needs CPU devices: device %s cannot wait for other devices' "
                          "statistics in the middle of a step",
                          props->name);
}

static int group_members(const hth_train_job *job)
{
    return job->rank.ranks > 0
               ? job->rank.ranks
               : (int)json_integer_value(json_object_get(job->args, HTH_TRAIN_MEMBERS));
}

static hth_err group_plan(hth_train_job *job, int64_t samples)
{
    hth_train_data_shape(&job->data, samples);
    return hth_trainer_prepare(job->trainer, job->data.input, &job->data.target);
}

// The job's first shard is planned first, also where the job goes on with another one: what others
// cost follows from it (step_kin), so that a job that was stopped has the algorithms of one that
// never was. It need not fit any more.
static hth_err group_plans(hth_train_job *job, int64_t first, int64_t now)
{
    hth_err err = first != now && first > 0 ? group_plan(job, first) : HTH_OK;
    HTH_TRY(err == HTH_ETOOBIG || err == HTH_ENODEVMEM ? HTH_OK : err);
    return group_plan(job, now);
}

hth_err hth_train_group_prepare(hth_train_job *job)
{
    int members = group_members(job), member = job->r->member - 1;
    int64_t n[HTH_GROUP_MEMBERS], batch = group_batch(job);
    if (members < 1 || members > HTH_GROUP_MEMBERS || member >= members) {
        return hth_fail(HTH_EINVAL, "a group has 1 to %d members, not %d", HTH_GROUP_MEMBERS,
                        members);
    }
    if (batch < members) {
        return hth_fail(HTH_EINVAL, "a batch of %lld samples is too small for %d devices",
                        (long long)batch, members);
    }
    HTH_TRY(hth_train_shards_check(job, members));
    HTH_TRY(group_sync(job));
    hth_train_shards_first(job, 0, members, n);
    int64_t first = n[member];
    hth_train_shards_first(job, job->step, members, n);
    if (job->group != NULL && job->group->whole > 0) { // it is at work, and planned again
        first = n[member] = job->group->whole; // 60 % as a budget is of what these samples take
    }
    HTH_TRY(group_plans(job, first, n[member]));
    job->planned = n[member];
    if (job->group != NULL) {
        job->group->good = job->planned; // more may be too much now
    }
    return HTH_OK;
}

static hth_err group_join(hth_train_job *job, hth_train_group *group)
{
    hth_trainer_sums *sums = &group->sums;
    HTH_TRY(hth_trainer_sums_open(job->trainer, sums));
    group->summed = hth_calloc((size_t)sums->n + 1, sizeof *group->summed);
    if (group->summed == NULL) {
        return hth_no_memory("a training job");
    }
    hth_group_spec spec = {.member = group->member,
                           .batch = group_batch(job),
                           .steps = job->steps,
                           .at = job->step,
                           .n_slots = sums->n,
                           .floats = sums->floats,
                           .by_count = sums->statistic,
                           .n_shares = sums->n_shares,
                           .shares = sums->shares,
                           .state_bytes = hth_trainer_whole_bytes(job->trainer),
                           .fingerprint = hth_trainer_fingerprint(job->trainer),
                           .server = job->spec.server};
    return job->rank.ranks > 0
               ? hth_train_rank_join(job, &spec, &group->exchange)
               : hth_group_join(job->r->files[job->r->n_files - 1], &spec, &group->exchange);
}

hth_err hth_train_group_open(hth_train_job *job)
{
    hth_train_group *group = hth_calloc(1, sizeof *group);
    if (group == NULL) {
        return hth_no_memory("a training job");
    }
    *group = (hth_train_group){.member = job->r->member - 1,
                               .members = group_members(job),
                               .good = job->planned,
                               .epoch = -1,
                               .since_ns = hth_now_ns(),
                               .replay = hth_sequence_given(job->args),
                               .store = job->ms->store,
                               .turn = -1,
                               .next = -1};
    hth_err err = group_join(job, group);
    if (err != HTH_OK) {
        hth_train_group_close(group);
        return err;
    }
    job->group = group;
    hth_train_group_budget(job); // it may have been paused, and have another one now
    return HTH_OK;
}

void hth_train_group_close(hth_train_group *group)
{
    if (group != NULL) {
        hth_store_hold_end(group->store, HTH_TRAIN_GROUP_TURN, group->turn);
        hth_store_hold_end(group->store, HTH_TRAIN_GROUP_NEXT, group->next);
        hth_group_leave(group->exchange);
        hth_trainer_sums_close(&group->sums);
        hth_free(group->summed);
        hth_free(group);
    }
}

// ---- a turn

static hth_err group_hold(hth_train_group *group, const char *what, int *fd)
{
    hth_err err = *fd < 0 ? hth_store_hold(group->store, what, true, fd) : HTH_OK;
    return err == HTH_EBUSY ? HTH_OK : err;
}

static void group_hold_end(hth_train_group *group, const char *what, int *fd)
{
    hth_store_hold_end(group->store, what, *fd);
    *fd = -1;
}

hth_err hth_train_group_turn(hth_train_job *job)
{
    hth_train_group *group = job->group;
    if (!job->spec.sync_bn || group->turn >= 0) {
        return HTH_OK;
    }
    HTH_TRY(group_hold(group, HTH_TRAIN_GROUP_NEXT, &group->next));
    if (group->next >= 0) {
        HTH_TRY(group_hold(group, HTH_TRAIN_GROUP_TURN, &group->turn));
    }
    if (group->turn >= 0) {
        group_hold_end(group, HTH_TRAIN_GROUP_NEXT, &group->next);
    }
    return HTH_OK;
}

void hth_train_group_turn_over(hth_train_group *group)
{
    group_hold_end(group, HTH_TRAIN_GROUP_TURN, &group->turn);
}

// ---- slices

static hth_err group_look(hth_train_job *job, hth_train_group_event *event)
{
    switch (hth_group_look(job->group->exchange)) {
    case HTH_GROUP_SUMMED:
        if (job->spec.server && job->group->member != HTH_GROUP_LEAD) {
            return hth_train_round_undo(job); // what the lead makes of it is taken
        }
        *event = HTH_TRAIN_GROUP_STEPPED;
        return hth_train_round_update(job);
    case HTH_GROUP_BROKEN:
        return hth_train_round_undo(job);
    default:
        hth_group_idle(job->group->exchange, job->group->since_ns);
        return HTH_OK;
    }
}

// Takes the state after `step` steps: of the next step from a parameter server, or of any from who
// has it.
static hth_err group_takes(hth_train_job *job, int64_t step, hth_train_group_event *event)
{
    hth_group *exchange = job->group->exchange;
    HTH_TRY(hth_trainer_read(job->trainer, hth_group_state(exchange), (uint64_t)step));
    hth_group_took(exchange);
    if (job->spec.server && step == job->step + 1) {
        job->loss = hth_group_loss(exchange, job->step, &job->step_ms);
        *event = HTH_TRAIN_GROUP_STEPPED;
    } else {
        job->step = step;
        *event = HTH_TRAIN_GROUP_MOVED;
    }
    return HTH_OK;
}

// A member's budget is the lead's, whenever that changes. One that cannot be planned for here
// leaves it as it is.
static void group_follow(hth_train_job *job)
{
    char budget[HTH_GROUP_BUDGET];
    const char *own = job->spec.budget != NULL ? job->spec.budget : "";
    if (!hth_group_planned_for(job->group->exchange, budget) || strcmp(budget, own) == 0) {
        return;
    }
    if (hth_train_job_budget(job, budget) != HTH_OK) {
        hth_log(WARN, SERVER, "train", "member %d of a group: %s", job->group->member,
                hth_err_detail());
    }
}

hth_err hth_train_group_slice(hth_train_job *job, hth_train_group_event *event)
{
    hth_train_group *group = job->group;
    *event = HTH_TRAIN_GROUP_NOTHING;
    if (group->at_work) {
        return group_look(job, event);
    }
    if (group->member != HTH_GROUP_LEAD) {
        group_follow(job);
    }
    bool started;
    hth_group_turn turn = hth_group_begin(group->exchange, &group->round);
    group->since_ns = turn == HTH_GROUP_WAITS ? group->since_ns : hth_now_ns();
    if (turn != HTH_GROUP_LEADS) { // members are waited for, for long perhaps
        group_hold_end(group, HTH_TRAIN_GROUP_NEXT, &group->next);
    }
    // A round that the lead has started may break before the lead takes part: it waits again.
    if (turn != HTH_GROUP_LEADS && turn != HTH_GROUP_ROUND) {
        hth_train_group_turn_over(group);
    }
    switch (turn) {
    case HTH_GROUP_LEADS:
        return hth_train_shards_start(job, group->round.step, &started);
    case HTH_GROUP_ROUND:
        return hth_train_round_pass(job);
    case HTH_GROUP_GIVES:
        HTH_TRY(hth_trainer_write(job->trainer, hth_group_state(group->exchange)));
        hth_group_gave(group->exchange);
        return HTH_OK;
    case HTH_GROUP_TAKES:
        return group_takes(job, group->round.step, event);
    case HTH_GROUP_OVER:
        *event = HTH_TRAIN_GROUP_OVER;
        return HTH_OK;
    default:
        hth_group_idle(group->exchange, group->since_ns);
        return HTH_OK;
    }
}

bool hth_train_group_at_work(const hth_train_job *job)
{
    return job->group != NULL && job->group->at_work;
}

hth_err hth_train_group_rest(hth_train_job *job, hth_train_group_event *event)
{
    *event = HTH_TRAIN_GROUP_NOTHING;
    if (!hth_train_group_at_work(job)) {
        return HTH_OK;
    }
    hth_group_break(job->group->exchange);
    return group_look(job, event);
}

void hth_train_group_wait(const hth_train_job *job)
{
    hth_group_idle(job->group->exchange, job->group->since_ns);
}

hth_err hth_train_group_park(hth_train_job *job)
{
    hth_group *exchange = job->group->exchange;
    if (!hth_group_parks(exchange)) {
        return HTH_OK;
    }
    HTH_TRY(hth_trainer_write(job->trainer, hth_group_state(exchange)));
    hth_group_gave(exchange);
    return HTH_OK;
}

hth_err hth_train_group_over(const hth_train_job *job)
{
    return hth_group_over(job->group->exchange);
}

double hth_train_group_loss(const hth_train_job *job, int64_t step, double *ms)
{
    return hth_group_loss(job->group->exchange, step, ms);
}

void hth_train_group_planned(hth_train_job *job)
{
    hth_train_group_budget(job);
    if (job->group != NULL && job->rank.ranks == 0) {
        hth_group_most(job->group->exchange, INT64_MAX);
    }
}

void hth_train_group_budget(hth_train_job *job)
{
    if (job->group != NULL && job->group->member == HTH_GROUP_LEAD && job->spec.budget != NULL) {
        hth_group_plan_for(job->group->exchange, job->spec.budget);
    }
}

json_t *hth_train_group_row(const hth_train_job *job)
{
    const hth_train_group *group = job->group;
    return group != NULL ? hth_group_members(group->exchange, group->shards) : NULL;
}
