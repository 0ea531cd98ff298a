// SPDX-License-Identifier: Apache-2.0
// Whose step comes next, of the jobs at work (sched/turns.h): tenants have the device's time by
// their weights, and of a tenant's jobs the one with the least left has most of that. A tenant's
// requests are on the same account: they are charged where they are run, and its steps are charged
// to them.
#include "engine/train/queue/train_entry_impl.h"

#include "base/clock.h"

#include <math.h>
#include <stddef.h>

// Of a tenant's jobs that wait so many are planned; the next one when one of them begins. So jobs
// can be passed by others, and hundreds of them do not keep the device from computing.
#define TURN_PLANNED 4

// turn_plans says that a job is to be planned: it was not yet, or too little memory was free for
// any plan, and some was given back since.
static bool turn_plans(const hth_train_queue *queue, const hth_train_entry *entry)
{
    return hth_train_entry_waits(entry) && entry->gate == HTH_TRAIN_GATE_NONE &&
           entry->offer.n == 0 && entry->tried != queue->freed + 1 &&
           hth_train_fair_standing(&queue->fair, entry->tenant).waiting < TURN_PLANNED;
}

// turn_wants says that a job has a step to make, or is to be planned. One that is stuck
// (hth_job_stuck) is paused.
static bool turn_wants(const hth_train_queue *queue, const hth_train_entry *entry)
{
    bool steps = entry->work != NULL && !entry->paused && entry->leaving == HTH_TRAIN_STAYS;
    return steps || turn_plans(queue, entry);
}

static void turn_enter(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_turns_job *job = &entry->turn;
    job->tenant = entry->tenant != NULL ? &entry->tenant->turns : &queue->nobodys;
    job->priority = entry->priority;
    queue->nobodys.item.weight = 1;
    hth_turns_add(&queue->turns, job);
}

void hth_train_turn_leave(hth_train_queue *queue, hth_train_entry *entry)
{
    if (entry->turn.item.queued) {
        hth_turns_remove(&queue->turns, &entry->turn);
    }
}

hth_train_entry *hth_train_turn_next(hth_train_queue *queue)
{
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        bool wants = turn_wants(queue, e);
        if (wants && !e->turn.item.queued) {
            turn_enter(queue, e);
        } else if (!wants) {
            hth_train_turn_leave(queue, e);
        }
    }
    hth_turns_job *job = hth_turns_next(&queue->turns);
    return job != NULL ? (hth_train_entry *)((char *)job - offsetof(hth_train_entry, turn)) : NULL;
}

void hth_train_turn_ran(hth_train_queue *queue, hth_train_entry *entry, uint64_t took_ns)
{
    hth_tenant *t = entry->tenant;
    queue->ran_ns += took_ns;
    hth_turns_ran(&queue->turns, &entry->turn, took_ns);
    if (t != NULL) {
        uint64_t link_ns = (uint64_t)((double)took_ns * entry->link);
        hth_batch_flow_charge(&t->flow, took_ns);
        hth_tenant_ran(t, took_ns, link_ns, hth_now_ns());
    }
}

void hth_train_turn_predict(const hth_train_queue *queue)
{
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        double left_s = e->work != NULL ? hth_job_seconds_left(e->work) : 0;
        e->turn.need_ns = isfinite(left_s) ? left_s * 1e9 : INFINITY;
        e->turn.ends_ns = e->turn.need_ns; // if it is in no turns yet
    }
    hth_turns_predict(&queue->turns);
}

// What requests, planning and checkpoints take is not in turns: since a job began so much time has
// passed, and turns took so much of it.
double hth_train_turn_left(const hth_train_queue *queue, const hth_train_entry *entry)
{
    double turns_ns = (double)(queue->ran_ns - entry->began_ran_ns);
    double passed_ns = (double)(hth_now_ns() - entry->began_ns);
    double slower = turns_ns > 0 ? fmax(1, passed_ns / turns_ns) : 1;
    return isfinite(entry->turn.ends_ns) ? entry->turn.ends_ns * slower / 1e9 : NAN;
}
