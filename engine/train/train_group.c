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
#include "engine/train/train_job_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/train/trainer_impl.h"
#include "group/group.h"
#include "group/sequence.h"
#include "modelstore/hold.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define GROUP_TIMES   5       // passes that a sample's time is the median of
#define GROUP_SETTLE  8       // steps from one change of shards to the next, at least
#define GROUP_WAIT_NS 1000000 // a slice's
#define GROUP_TURN    "a round with sync-bn"
#define GROUP_NEXT    "the next round with sync-bn"
// After a time without news a slice waits for longer: the lead is paused, or evaluates.
#define GROUP_LONG_NS    200000000u
#define GROUP_RELAXED_NS 10000000u

struct hth_train_group {
    hth_group *exchange;
    hth_trainer_sums sums;
    const float **summed; // per slot of `sums`, of the last round
    int member, members;
    bool at_work; // in `round`, with what its pass left
    bool passed;  // .. which there was
    bool broke;   // .. and ended in its middle with the round
    hth_group_round round;
    int64_t good, epoch; // most samples that were planned; whose order the data have, -1: none
    double pass_us[GROUP_TIMES];
    int n_passes;
    int64_t n_of;      // samples that these were of
    uint64_t since_ns; // when anything came last
    // the lead's
    int64_t shards[HTH_GROUP_MEMBERS], changed; // of a whole batch; the step since when
    bool recalled;                              // what there was before it came is known
    const json_t *replay;                       // in their place; NULL: none
    hth_store *store;
    pthread_t thread; // the device's own
    // Held (hth_store_hold), or -1: while a round with sync_bn is at work; to have the next one.
    int turn, next;
};

bool hth_train_group_lead(const hth_train_job *job)
{
    return job->group == NULL || job->group->member == HTH_GROUP_LEAD;
}

static int64_t group_batch(const hth_train_job *job)
{
    return job->spec.batch < job->data.n_samples ? job->spec.batch : job->data.n_samples;
}

// ---- joining

// The shards to repeat: a list, or the summary of the job that had them. NULL: none are given.
static const json_t *group_given(const hth_train_job *job)
{
    const json_t *given = json_object_get(job->args, "shards");
    return json_is_object(given) ? json_object_get(given, "shards") : given;
}

// All begin with even shards, unless they were given.
static void group_first(const hth_train_job *job, int members, int64_t n[HTH_GROUP_MEMBERS])
{
    hth_shard_member m[HTH_GROUP_MEMBERS];
    int64_t batch = group_batch(job);
    memset(n, 0, HTH_GROUP_MEMBERS * sizeof *n);
    for (int i = 0; i < members; i++) {
        m[i] = (hth_shard_member){.sample_us = 1, .least = 1, .most = batch};
    }
    if (!hth_sequence_at(group_given(job), members, job->step, n) ||
        !hth_shards_fit(m, members, batch, n)) {
        memset(n, 0, HTH_GROUP_MEMBERS * sizeof *n);
        (void)hth_shards_balance(m, members, batch, n);
    }
}

// group_check looks at shards that were given. A job that goes on may have other devices by now.
static hth_err group_check(const hth_train_job *job, int members)
{
    bool any = json_object_get(job->args, "shards") != NULL;
    return any && !job->spec.resume
               ? hth_sequence_check(group_given(job), members, group_batch(job))
               : HTH_OK;
}

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
    HTH_TRY(group_check(job, members));
    HTH_TRY(group_sync(job));
    group_first(job, members, n);
    if (job->group != NULL && job->group->round.n > 0) { // it is at work, and planned again
        n[member] = job->group->round.n;
    }
    hth_train_data_shape(&job->data, n[member]);
    HTH_TRY(hth_trainer_prepare(job->trainer, job->data.input, &job->data.target));
    if (job->group != NULL) {
        job->group->good = n[member]; // more may be too much now
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
                               .epoch = -1,
                               .since_ns = hth_now_ns(),
                               .replay = group_given(job),
                               .store = job->ms->store,
                               .turn = -1,
                               .next = -1};
    group_first(job, group->members, group->shards);
    group->good = group->shards[group->member];
    memset(group->shards, 0, sizeof group->shards); // the first change is told, too
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
        hth_store_hold_end(group->store, GROUP_TURN, group->turn);
        hth_store_hold_end(group->store, GROUP_NEXT, group->next);
        hth_group_leave(group->exchange);
        hth_trainer_sums_close(&group->sums);
        hth_free(group->summed);
        hth_free(group);
    }
}

// ---- the lead's decisions

// What each member can have; of one whose time is not known yet that of the others. Returns whether
// all are known.
static bool group_bounds(const hth_train_job *job, hth_shard_member m[HTH_GROUP_MEMBERS])
{
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    int members = hth_group_seats(job->group->exchange, seat), known = 0, joined = 0;
    int64_t batch = group_batch(job);
    double sum_us = 0;
    for (int i = 0; i < members; i++) {
        bool counts = seat[i].joined && seat[i].sample_us > 0;
        sum_us += counts ? seat[i].sample_us : 0;
        known += counts;
        joined += seat[i].joined;
    }
    for (int i = 0; i < members; i++) {
        double us = seat[i].sample_us > 0 ? seat[i].sample_us : 0;
        us = us > 0 || known == 0 ? us : sum_us / known;
        int64_t most = seat[i].most < batch ? seat[i].most : batch;
        m[i] = (hth_shard_member){.sample_us = us > 0 ? us : 1,
                                  .least = seat[i].joined,
                                  .most = seat[i].joined ? most : 0};
    }
    return known == joined;
}

// Of a lead that comes after another one, or goes on from a checkpoint: which shards the steps
// before had, that it was there for or not.
static hth_err group_recall(hth_train_job *job, int64_t step)
{
    hth_train_group *group = job->group;
    const hth_group_note *note;
    int64_t begun = job->begun > 0 ? job->begun : 0, n[HTH_GROUP_MEMBERS] = {0};
    size_t notes = hth_group_notes(group->exchange, step, &note);
    group->recalled = true;
    hth_sequence_cut(job->shards, begun);
    for (size_t i = 0; i < notes; i++) {
        if (note[i].step >= begun) {
            HTH_TRY(hth_sequence_add(job->shards, group->members, note[i].step, note[i].shards));
        }
    }
    if (hth_sequence_at(job->shards, group->members, step, n)) {
        memcpy(group->shards, n, sizeof n);
        group->changed = step;
    }
    return HTH_OK;
}

// Notes shards that are others than before: they are in the job's log, and with the same ones it
// can be repeated.
static hth_err group_note(hth_train_job *job, int64_t step)
{
    hth_train_group *group = job->group;
    char text[80 + 24 * HTH_GROUP_MEMBERS];
    int n = snprintf(text, sizeof text, "shards from step %lld on:", (long long)step + 1);
    for (int i = 0; i < group->members; i++) {
        n += snprintf(text + n, sizeof text - (size_t)n, " %lld", (long long)group->shards[i]);
    }
    if (job->events.log != NULL) {
        job->events.log(job->events.ctx, "info", text);
    }
    hth_group_noted(group->exchange, step, group->shards);
    hth_sequence_cut(job->shards, step); // a round that was broken had others
    return hth_sequence_add(job->shards, group->members, step, group->shards);
}

// The shards that were given for a step; false: there are none that who is there can have. A member
// that left then had none from that step on.
static bool group_replayed(const hth_train_job *job, const hth_shard_member *m, int64_t step,
                           int64_t n[HTH_GROUP_MEMBERS])
{
    hth_shard_member may[HTH_GROUP_MEMBERS];
    int members = job->group->members;
    for (int i = 0; i < members; i++) {
        may[i] = m[i];
        may[i].least = 0;
    }
    return hth_sequence_at(job->group->replay, members, step, n) &&
           hth_shards_fit(may, members, group_batch(job), n);
}

// Whole batches' shards for the step to come: other ones where these cannot be any more, or where
// the members' times have settled and others are faster.
static hth_err group_decide(hth_train_job *job, int64_t step)
{
    hth_train_group *group = job->group;
    hth_shard_member m[HTH_GROUP_MEMBERS];
    int64_t batch = group_batch(job), n[HTH_GROUP_MEMBERS] = {0};
    bool known = group_bounds(job, m);
    if (group->replay != NULL && group_replayed(job, m, step, n)) {
        if (memcmp(n, group->shards, sizeof n) == 0) {
            return HTH_OK;
        }
    } else {
        bool fits = hth_shards_fit(m, group->members, batch, group->shards);
        bool settled = known && step - group->changed >= GROUP_SETTLE;
        memcpy(n, group->shards, sizeof n);
        if (!fits && json_array_size(job->shards) == 0) {
            group_first(job, group->members, n);
        }
        if (!fits && !hth_shards_fit(m, group->members, batch, n) &&
            !hth_shards_balance(m, group->members, batch, n)) {
            return hth_fail(HTH_ETOOBIG,
                            "a batch of %lld samples does not fit the devices that are left",
                            (long long)batch);
        }
        if (fits && (group->replay != NULL || !settled ||
                     !hth_shards_balance(m, group->members, batch, n))) {
            return HTH_OK;
        }
    }
    memcpy(group->shards, n, sizeof n);
    group->changed = step;
    return group_note(job, step);
}

static int64_t group_at(const hth_train_job *job, int64_t step)
{
    return step % (job->steps / job->spec.epochs) * job->spec.batch;
}

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

// With sync_bn members wait for each other in the middle of a pass, so two groups on the same
// devices would do so crosswise: of all groups of this store one has its turn, for a round. Who
// waits for it has the next one: a lead comes back at once, and would have every turn.
static hth_err group_turn(hth_train_job *job)
{
    hth_train_group *group = job->group;
    if (!job->spec.sync_bn || group->turn >= 0) {
        return HTH_OK;
    }
    HTH_TRY(group_hold(group, GROUP_NEXT, &group->next));
    if (group->next >= 0) {
        HTH_TRY(group_hold(group, GROUP_TURN, &group->turn));
    }
    if (group->turn >= 0) {
        group_hold_end(group, GROUP_NEXT, &group->next);
    }
    return HTH_OK;
}

static void group_turn_over(hth_train_group *group)
{
    group_hold_end(group, GROUP_TURN, &group->turn);
}

static hth_err group_lead(hth_train_job *job, int64_t step)
{
    hth_train_group *group = job->group;
    int64_t n[HTH_GROUP_MEMBERS] = {0};
    int64_t left = job->data.n_samples - group_at(job, step);
    HTH_TRY(group->recalled ? HTH_OK : group_recall(job, step));
    HTH_TRY(group_decide(job, step));
    memcpy(n, group->shards, sizeof n);
    if (left < group_batch(job)) {
        hth_shards_rest(group->shards, group->members, left, n);
    }
    HTH_TRY(group_turn(job));
    if ((group->turn >= 0 || !job->spec.sync_bn) && !hth_group_start(group->exchange, n)) {
        group_turn_over(group);
    }
    return HTH_OK;
}

// ---- a round

// The median of the last passes over as many samples.
static double group_sample_us(hth_train_group *group, int64_t n, double us)
{
    double sorted[GROUP_TIMES];
    if (n != group->n_of) {
        group->n_of = n;
        group->n_passes = 0;
    }
    memmove(group->pass_us + 1, group->pass_us, (GROUP_TIMES - 1) * sizeof us);
    group->pass_us[0] = us;
    group->n_passes += group->n_passes < GROUP_TIMES;
    for (int i = 0; i < group->n_passes; i++) {
        int k = i;
        for (; k > 0 && sorted[k - 1] > group->pass_us[i]; k--) {
            sorted[k] = sorted[k - 1];
        }
        sorted[k] = group->pass_us[i];
    }
    return group->n_passes >= 3 ? sorted[group->n_passes / 2] / (double)n : 0;
}

// Reads and plans the member's samples. Of more than it has memory for it takes no part.
static hth_err group_ready(hth_train_job *job)
{
    hth_train_group *group = job->group;
    const hth_group_round *round = &group->round;
    hth_train_data *d = &job->data;
    int64_t epoch = round->step / (job->steps / job->spec.epochs);
    if (group->epoch != epoch) {
        hth_train_data_order(d, job->spec.shuffle, job->spec.seed, epoch);
        group->epoch = epoch;
    }
    HTH_TRY(hth_train_data_batch(d, group_at(job, round->step) + round->from, round->n));
    hth_err err = hth_trainer_prepare(job->trainer, d->input, &d->target);
    if ((err == HTH_ETOOBIG || err == HTH_ENODEVMEM) && round->n > group->good) {
        hth_group_most(group->exchange, group->good);
        group->at_work = false;
        group_turn_over(group);
        return HTH_OK;
    }
    group->good = err == HTH_OK && round->n > group->good ? round->n : group->good;
    return err;
}

static void group_written(void *ctx, int k, const float *content)
{
    hth_group_ready(((hth_train_job *)ctx)->group->exchange, k, content);
}

static void group_between(void *ctx)
{
    hth_group_advance(((hth_train_job *)ctx)->group->exchange);
}

// Sums in the middle of a pass. Others may be in front of theirs, and then compute for long; a
// member that is interrupted here, on its device's own thread, lets requests come first.
static hth_err group_sum(void *ctx, int share, double *values)
{
    hth_train_job *job = ctx;
    hth_train_group *group = job->group;
    hth_group_result result;
    hth_group_share(group->exchange, share, values);
    while ((result = hth_group_shared(group->exchange, share, values)) == HTH_GROUP_SUMMING) {
        if (job->r->canceled) {
            return hth_fail(HTH_ECANCELED, "canceled");
        }
        if (pthread_equal(pthread_self(), group->thread)) {
            (void)hth_work_point(job->ms->site->queue);
        }
        hth_group_advance(group->exchange);
        hth_group_wait(group->exchange, GROUP_WAIT_NS);
    }
    group->broke = result == HTH_GROUP_BROKEN;
    return group->broke ? hth_fail(HTH_EBUSY, "a member has left") : HTH_OK;
}

// The pass over the member's samples. What it has written goes to the others while it goes on, and
// so do the sums of what all have written; hence what it weighs is said before.
static hth_err group_compute(hth_train_job *job, float *loss)
{
    hth_train_group *group = job->group;
    hth_train_data *d = &job->data;
    const hth_trainer_watch watch = {group_written, group_between, group_sum, job};
    bool alone = hth_group_alone(group->exchange);
    group->thread = pthread_self();
    group->broke = false;
    hth_group_weigh(group->exchange, hth_trainer_weight(job->trainer, d->input, &d->target));
    for (int k = 0; k < group->sums.n; k++) {
        group->sums.place[k] = hth_group_place(group->exchange, k);
    }
    hth_err err = hth_trainer_pass(job->trainer, group->member, d->input, &d->target, &group->sums,
                                   alone ? NULL : &watch, loss);
    return group->broke ? HTH_OK : err;
}

static hth_err group_pass(hth_train_job *job)
{
    hth_train_group *group = job->group;
    float loss = 0;
    double us = 0;
    group->at_work = true;
    group->passed = false;
    job->lr =
        hth_train_rate(&job->spec, group->round.step, job->steps, job->steps / job->spec.epochs);
    hth_trainer_rate(job->trainer, job->lr);
    if (group->round.n > 0) {
        HTH_TRY(group_ready(job));
        if (!group->at_work) {
            return HTH_OK;
        }
        group->passed = true;
        HTH_TRY(group_compute(job, &loss));
        if (group->broke) {
            return HTH_OK; // the next look undoes it
        }
        us = group_sample_us(group, group->round.n, hth_trainer_pass_us(job->trainer));
    } else {
        hth_trainer_pass_none(job->trainer);
    }
    hth_group_passed(group->exchange, (double)loss, us);
    return HTH_OK;
}

static hth_err group_undo(hth_train_job *job)
{
    hth_train_group *group = job->group;
    bool passed = group->passed;
    group->at_work = group->passed = false;
    group_turn_over(group);
    return passed ? hth_trainer_undo(job->trainer, &group->sums) : HTH_OK;
}

// The step is certain: all members make the same update.
static hth_err group_update(hth_train_job *job)
{
    hth_train_group *group = job->group;
    bool alone = hth_group_alone(group->exchange);
    for (int k = 0; k < group->sums.n && !alone; k++) {
        group->summed[k] = hth_group_summed(group->exchange, k);
    }
    group->at_work = group->passed = false;
    group_turn_over(group);
    HTH_TRY(hth_trainer_update(job->trainer, job->data.input, &job->data.target, &group->sums,
                               alone ? NULL : group->summed));
    job->loss = hth_group_loss(group->exchange, group->round.step, &job->step_ms);
    return HTH_OK;
}

static void group_wait(hth_train_group *group)
{
    bool relaxed = hth_now_ns() - group->since_ns > GROUP_LONG_NS;
    hth_group_wait(group->exchange, relaxed ? GROUP_RELAXED_NS : GROUP_WAIT_NS);
}

static hth_err group_look(hth_train_job *job, hth_train_group_event *event)
{
    switch (hth_group_look(job->group->exchange)) {
    case HTH_GROUP_SUMMED:
        if (job->spec.server && job->group->member != HTH_GROUP_LEAD) {
            return group_undo(job); // what the lead makes of it is taken
        }
        *event = HTH_TRAIN_GROUP_STEPPED;
        return group_update(job);
    case HTH_GROUP_BROKEN:
        return group_undo(job);
    default:
        group_wait(job->group);
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
    hth_group_turn turn = hth_group_begin(group->exchange, &group->round);
    group->since_ns = turn == HTH_GROUP_WAITS ? group->since_ns : hth_now_ns();
    switch (turn) {
    case HTH_GROUP_LEADS:
        return group_lead(job, group->round.step);
    case HTH_GROUP_ROUND:
        return group_pass(job);
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
        group_wait(group);
        return HTH_OK;
    }
}

hth_err hth_train_group_rest(hth_train_job *job, hth_train_group_event *event)
{
    *event = HTH_TRAIN_GROUP_NOTHING;
    if (job->group == NULL || !job->group->at_work) {
        return HTH_OK;
    }
    hth_group_break(job->group->exchange);
    return group_look(job, event);
}

void hth_train_group_wait(const hth_train_job *job)
{
    group_wait(job->group);
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

void hth_train_group_budget(hth_train_job *job)
{
    if (job->group != NULL && job->group->member == HTH_GROUP_LEAD && job->spec.budget != NULL) {
        hth_group_plan_for(job->group->exchange, job->spec.budget);
    }
}

json_t *hth_train_group_row(const hth_train_job *job)
{
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    if (job->group == NULL) {
        return NULL;
    }
    json_t *rows = json_array();
    int members = hth_group_seats(job->group->exchange, seat);
    for (int i = 0; i < members; i++) {
        json_array_append_new(rows, json_pack("{s:i, s:I, s:f, s:b}", "member", i, "samples",
                                              (json_int_t)job->group->shards[i], "sample_ms",
                                              seat[i].sample_us / 1e3, "joined", seat[i].joined));
    }
    return rows;
}
