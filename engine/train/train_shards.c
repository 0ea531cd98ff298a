// SPDX-License-Identifier: Apache-2.0
// Who computes how many samples of a step. The lead decides: by the times of the members' passes,
// when they have settled, or as it is given (group/shards.h, group/sequence.h).
#include "engine/train/train_group_impl.h"

#include "group/sequence.h"

#include <stdio.h>
#include <string.h>

#define SHARDS_SETTLE 5 // steps from one change of shards to the next, at least

void hth_train_shards_first(const hth_train_job *job, int64_t step, int members,
                            int64_t n[HTH_GROUP_MEMBERS])
{
    hth_shard_member m[HTH_GROUP_MEMBERS];
    int64_t batch = group_batch(job);
    memset(n, 0, HTH_GROUP_MEMBERS * sizeof *n);
    for (int i = 0; i < members; i++) {
        m[i] = (hth_shard_member){.sample_us = 1, .least = 1, .most = batch};
    }
    if (!hth_sequence_at(hth_sequence_given(job->args), members, step, n) ||
        !hth_shards_fit(m, members, batch, n)) {
        memset(n, 0, HTH_GROUP_MEMBERS * sizeof *n);
        (void)hth_shards_balance(m, members, batch, n);
    }
}

// A job that goes on may have other devices by now.
hth_err hth_train_shards_check(const hth_train_job *job, int members)
{
    bool any = json_object_get(job->args, "shards") != NULL;
    return any && !job->spec.resume
               ? hth_sequence_check(hth_sequence_given(job->args), members, group_batch(job))
               : HTH_OK;
}

// What each member can have; of one whose time is not known yet that of the others. Returns whether
// all are known.
static bool shards_bounds(const hth_train_job *job, hth_shard_member m[HTH_GROUP_MEMBERS])
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
                                  .fixed_us = known == joined ? seat[i].fixed_us : 0,
                                  .least = seat[i].joined,
                                  .most = seat[i].joined ? most : 0};
    }
    return known == joined;
}

// Of a lead that comes after another one, or goes on from a checkpoint: which shards the steps
// before had, that it was there for or not.
static hth_err shards_recall(hth_train_job *job, int64_t step)
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
static hth_err shards_note(hth_train_job *job, int64_t step)
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
static bool shards_replayed(const hth_train_job *job, const hth_shard_member *m, int64_t step,
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

// shards_lack is for a batch that does not fit who is there: those who come again are waited for.
static hth_err shards_lack(const hth_train_job *job, bool *waits)
{
    *waits = hth_group_awaits(job->group->exchange);
    return *waits ? HTH_OK
                  : hth_fail(HTH_ETOOBIG,
                             "a batch of %lld samples does not fit the devices that are left",
                             (long long)group_batch(job));
}

static bool shards_whole(const hth_train_job *job, int64_t step)
{
    return job->data.n_samples - group_at(job, step) >= group_batch(job);
}

void hth_train_shards_took(hth_train_job *job, int64_t step, double us)
{
    hth_train_group *group = job->group;
    if (!shards_whole(job, step)) {
        return;
    }
    if (group->chosen && step == group->changed) {
        hth_shards_paid(&group->pace, us - group->round_us + group->gain_us);
        group->chosen = false;
    }
    group->round_us = us;
}

// Shards that are faster, if a change pays by now. A step counts once, however often it is tried.
static bool shards_better(hth_train_job *job, const hth_shard_member *m, int64_t step,
                          int64_t n[HTH_GROUP_MEMBERS])
{
    hth_train_group *group = job->group;
    if (!shards_whole(job, step) || step == group->judged) {
        return false;
    }
    group->judged = step;
    bool better = hth_shards_balance(m, group->members, group_batch(job), n);
    group->gain_us = hth_shards_step_us(m, group->members, group->shards) -
                     hth_shards_step_us(m, group->members, n);
    return hth_shards_pays(&group->pace, better ? group->gain_us : 0);
}

// Whole batches' shards for the step to come: other ones where these cannot be any more, or where
// the members' times have settled and others are faster. *waits: there are none so far.
static hth_err shards_decide(hth_train_job *job, int64_t step, bool *waits)
{
    hth_train_group *group = job->group;
    hth_shard_member m[HTH_GROUP_MEMBERS];
    int64_t batch = group_batch(job), n[HTH_GROUP_MEMBERS] = {0};
    bool known = shards_bounds(job, m), chosen = false;
    if (group->replay != NULL && shards_replayed(job, m, step, n)) {
        if (memcmp(n, group->shards, sizeof n) == 0) {
            return HTH_OK;
        }
    } else {
        bool fits = hth_shards_fit(m, group->members, batch, group->shards);
        bool settled = known && step - group->changed >= SHARDS_SETTLE;
        memcpy(n, group->shards, sizeof n);
        if (!fits && json_array_size(job->shards) == 0) {
            hth_train_shards_first(job, job->step, group->members, n);
        }
        if (!fits && !hth_shards_fit(m, group->members, batch, n) &&
            !hth_shards_balance(m, group->members, batch, n)) {
            return shards_lack(job, waits);
        }
        chosen = fits && group->replay == NULL && settled && shards_better(job, m, step, n);
        if (fits && !chosen) {
            return HTH_OK;
        }
    }
    memcpy(group->shards, n, sizeof n);
    group->changed = step;
    group->chosen = chosen;
    group->pace.lost_us = 0;
    return shards_note(job, step);
}

hth_err hth_train_shards_start(hth_train_job *job, int64_t step, bool *started)
{
    hth_train_group *group = job->group;
    int64_t n[HTH_GROUP_MEMBERS] = {0};
    int64_t left = job->data.n_samples - group_at(job, step);
    bool waits = false;
    *started = false;
    HTH_TRY(group->recalled ? HTH_OK : shards_recall(job, step));
    HTH_TRY(shards_decide(job, step, &waits));
    if (waits) {
        return HTH_OK;
    }
    memcpy(n, group->shards, sizeof n);
    if (left < group_batch(job)) {
        hth_shards_rest(group->shards, group->members, left, n);
    }
    HTH_TRY(hth_train_group_turn(job));
    if (job->spec.sync_bn && group->turn < 0) {
        hth_group_idle(group->exchange, group->since_ns); // nothing tells when it is this one's
        return HTH_OK;
    }
    *started = hth_group_start(group->exchange, n);
    if (!*started) {
        hth_train_group_turn_over(group);
    }
    return HTH_OK;
}
