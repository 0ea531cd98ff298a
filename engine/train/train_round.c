// SPDX-License-Identifier: Apache-2.0
// A member's part of a step: the pass over its samples, whose gradients go to the others while it
// goes on, and then the update, or, where the round has broken, the way back.
#include "engine/train/train_group_impl.h"

#include <math.h>

#define ROUND_WAIT_NS 1000000 // in the middle of a pass, at a time

// round_samples refuses a plan, which the client of a rank can write, for samples that a step does
// not have: an epoch's last one has fewer.
static hth_err round_samples(const hth_train_job *job)
{
    const hth_group_round *round = &job->group->round;
    int64_t left = job->data.n_samples - group_at(job, round->step);
    return round->n <= left - round->from
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT,
                          "step %lld has %lld samples; member %d is to compute %lld of them, "
                          "from %lld",
                          (long long)round->step, (long long)left, job->group->member,
                          (long long)round->n, (long long)round->from);
}

// Reads and plans the member's samples. Of more than it has memory for it takes no part.
static hth_err round_ready(hth_train_job *job)
{
    hth_train_group *group = job->group;
    const hth_group_round *round = &group->round;
    hth_train_data *d = &job->data;
    int64_t epoch = round->step / (job->steps / job->spec.epochs);
    if (group->epoch != epoch) {
        hth_train_data_order(d, job->spec.shuffle, job->spec.seed, epoch);
        group->epoch = epoch;
    }
    HTH_TRY(round_samples(job));
    HTH_TRY(hth_train_data_batch(d, group_at(job, round->step) + round->from, round->n));
    hth_err err = hth_trainer_prepare(job->trainer, d->input, &d->target);
    if ((err == HTH_ETOOBIG || err == HTH_ENODEVMEM) && round->n > group->good) {
        hth_group_most(group->exchange, group->good);
        group->at_work = false;
        hth_train_group_turn_over(group);
        return HTH_OK;
    }
    HTH_TRY(err);
    group->good = round->n > group->good ? round->n : group->good;
    if (d->n_samples - group_at(job, round->step) >= group_batch(job)) {
        group->whole = round->n; // an epoch's last batch can be shorter
    }
    return HTH_OK;
}

static void round_written(void *ctx, int k, const float *content)
{
    hth_group_ready(((hth_train_job *)ctx)->group->exchange, k, content);
}

static void round_between(void *ctx)
{
    hth_group_advance(((hth_train_job *)ctx)->group->exchange);
}

// Sums in the middle of a pass. Others may be in front of theirs, and then compute for long; a
// member that is interrupted here, on its device's own thread, lets requests come first.
static hth_err round_sum(void *ctx, int share, double *values)
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
        hth_group_wait(group->exchange, ROUND_WAIT_NS);
    }
    group->broke = result == HTH_GROUP_BROKEN;
    return group->broke ? hth_fail(HTH_EBUSY, "a member has left") : HTH_OK;
}

// The pass over the member's samples. What it has written goes to the others while it goes on, and
// so do the sums of what all have written; hence what it weighs is said before.
static hth_err round_compute(hth_train_job *job, float *loss)
{
    hth_train_group *group = job->group;
    hth_train_data *d = &job->data;
    const hth_trainer_watch watch = {round_written, round_between, round_sum, job};
    bool alone = hth_group_alone(group->exchange);
    group->thread = pthread_self();
    group->broke = false;
    double weight = hth_trainer_weight(job->trainer, d->input, &d->target);
    hth_group_weigh(group->exchange, weight, hth_trainer_divisor(weight));
    for (int k = 0; k < group->sums.n; k++) {
        group->sums.place[k] = hth_group_place(group->exchange, k);
    }
    hth_err err = hth_trainer_pass(job->trainer, group->member, d->input, &d->target, &group->sums,
                                   alone ? NULL : &watch, loss);
    return group->broke ? HTH_OK : err;
}

// round_overlaps tells whether a member may still make its update while others compute the next
// round. It may not where something has to happen between two rounds: a parameter server sends its
// state, a group with sync_bn waits for its turn, rank 0 says that it leaves.
static bool round_overlaps(const hth_train_job *job)
{
    return !job->spec.server && !job->spec.sync_bn && job->rank.ranks == 0;
}

// round_times is what a sample takes the member, 0: not known yet, and a step whatever its samples
// are: an update counts where nobody waits for it.
static void round_times(hth_train_job *job, double *sample_us, double *fixed_us)
{
    hth_train_group *group = job->group;
    double update_us, none, pass_us = hth_trainer_pass_us(job->trainer);
    if (pass_us > 0) {
        hth_pass_times_add(&group->passes, group->round.n, pass_us);
    }
    *sample_us = *fixed_us = 0;
    if (hth_pass_times_fit(&group->passes, sample_us, fixed_us) && round_overlaps(job) &&
        hth_pass_times_fit(&group->updates, &update_us, &none)) {
        *fixed_us += update_us;
    }
}

hth_err hth_train_round_pass(hth_train_job *job)
{
    hth_train_group *group = job->group;
    float loss = 0;
    double sample_us = 0, fixed_us = 0; // without samples: not known
    group->at_work = true;
    group->passed = false;
    hth_train_job_first(job); // not while members are waited for
    job->lr =
        hth_train_rate(&job->spec, group->round.step, job->steps, job->steps / job->spec.epochs);
    hth_trainer_rate(job->trainer, job->lr);
    if (group->round.n > 0) {
        HTH_TRY(round_ready(job));
        if (!group->at_work) {
            return HTH_OK;
        }
        group->passed = true;
        HTH_TRY(round_compute(job, &loss));
        if (group->broke) {
            return HTH_OK; // the next look undoes it
        }
        round_times(job, &sample_us, &fixed_us);
    } else {
        hth_trainer_pass_none(job->trainer);
    }
    hth_group_passed(group->exchange, (double)loss, sample_us, fixed_us);
    return HTH_OK;
}

hth_err hth_train_round_undo(hth_train_job *job)
{
    hth_train_group *group = job->group;
    bool passed = group->passed;
    group->at_work = group->passed = false;
    hth_train_group_turn_over(group);
    return passed ? hth_trainer_undo(job->trainer, &group->sums) : HTH_OK;
}

// The lead begins the next round before its update, so that no member that has made its own waits
// for another's. An evaluation comes first, and no round follows the last one.
static hth_err round_ahead(hth_train_job *job, bool *ahead)
{
    hth_train_group *group = job->group;
    int64_t next = group->round.step + 1;
    double ms, loss = hth_group_loss(group->exchange, group->round.step, &ms);
    hth_train_shards_took(job, group->round.step, ms * 1e3);
    bool evaluates = job->n_evaluators > 0 && group_at(job, next) == 0;
    bool begins = group->member == HTH_GROUP_LEAD && round_overlaps(job) && next < job->steps &&
                  !evaluates && isfinite(loss) && !job->r->canceled;
    *ahead = false;
    hth_err err = begins ? hth_train_shards_start(job, next, ahead) : HTH_OK;
    return err == HTH_ETOOBIG ? HTH_OK : err; // which is found again after the update
}

hth_err hth_train_round_update(hth_train_job *job)
{
    hth_train_group *group = job->group;
    bool ahead;
    bool alone = hth_group_alone(group->exchange);
    for (int k = 0; k < group->sums.n && !alone; k++) {
        group->summed[k] = hth_group_summed(group->exchange, k);
    }
    group->at_work = group->passed = false;
    hth_train_group_turn_over(group);
    HTH_TRY(round_ahead(job, &ahead));
    HTH_TRY(hth_trainer_update(job->trainer, job->data.input, &job->data.target, &group->sums,
                               alone ? NULL : group->summed, hth_group_factor(group->exchange)));
    double us = hth_trainer_update_us(job->trainer);
    hth_pass_times_add(&group->updates, 1, us);
    job->loss = hth_group_loss(group->exchange, group->round.step, &job->step_ms);
    job->step_ms += ahead ? 0 : us / 1e3; // otherwise it is in the next round's time
    return HTH_OK;
}
