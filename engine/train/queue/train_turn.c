// SPDX-License-Identifier: Apache-2.0
// Whose step comes next, of the jobs at work: start-time fair queueing (Goyal, Vin and Cheng 1996)
// at two levels. A tenant's virtual time grows by what its jobs' steps took, as measured, divided
// by its weight; the tenant with the least is next. Of its jobs, the one is next whose own steps
// took least. Whoever begins starts at the virtual time of those that are there: nothing is saved
// up. So two tenants with weights 3 and 1 have 3/4 and 1/4 of the time, whatever their steps take,
// to within one step. Pure: time is an argument, so that it is tested by simulation.
#include "engine/train/queue/train_entry_impl.h"

#define TURN_MOST_NS 60000000000u

// turn_steps tells that a job makes steps; one that is stuck (hth_train_job_stuck) is paused.
static bool turn_steps(const hth_train_entry *entry)
{
    return entry->work != NULL && !entry->paused;
}

static hth_train_share *turn_share(hth_train_queue *queue, const hth_train_entry *entry)
{
    return entry->tenant != NULL ? &entry->tenant->steps : &queue->nobodys;
}

static double turn_weight(const hth_train_entry *entry)
{
    return entry->tenant != NULL ? entry->tenant->limits.weight : 1;
}

// turn_least returns the least virtual time of the tenant's other jobs at work; of none, its own.
static double turn_least(const hth_train_queue *queue, const hth_train_entry *entry)
{
    double least = entry->turn.at;
    bool other = false;
    for (const hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (e != entry && turn_steps(e) && e->in_turn && e->tenant == entry->tenant) {
            least = !other || e->turn.at < least ? e->turn.at : least;
            other = true;
        }
    }
    return least;
}

static bool turn_others(const hth_train_queue *queue, const hth_train_entry *entry)
{
    const hth_train_entry *e = queue->first;
    while (e != NULL &&
           (e == entry || !turn_steps(e) || !e->in_turn || e->tenant != entry->tenant)) {
        e = e->next;
    }
    return e != NULL;
}

// turn_enter has a job take part from now on, and its tenant, if none of its jobs did.
static void turn_enter(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_train_share *s = turn_share(queue, entry);
    double least = turn_least(queue, entry);
    if (!turn_others(queue, entry)) {
        s->at = s->at > queue->turn_at ? s->at : queue->turn_at;
    }
    entry->turn.at = entry->turn.at > least ? entry->turn.at : least;
    entry->in_turn = true;
}

// turn_before orders by the tenant's time, then the job's, then by who ran longest ago.
static bool turn_before(hth_train_queue *queue, const hth_train_entry *a, const hth_train_entry *b)
{
    double at = turn_share(queue, a)->at, bt = turn_share(queue, b)->at;
    if (a->tenant != b->tenant && at != bt) {
        return at < bt;
    }
    if (a->tenant == b->tenant && a->turn.at != b->turn.at) {
        return a->turn.at < b->turn.at;
    }
    return a->turn.ran < b->turn.ran;
}

hth_train_entry *hth_train_turn_next(hth_train_queue *queue)
{
    hth_train_entry *best = NULL;
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (!turn_steps(e)) {
            e->in_turn = false;
            continue;
        }
        if (!e->in_turn) {
            turn_enter(queue, e);
        }
        best = best == NULL || turn_before(queue, e, best) ? e : best;
    }
    return best;
}

void hth_train_turn_ran(hth_train_queue *queue, hth_train_entry *entry, uint64_t took_ns)
{
    hth_train_share *s = turn_share(queue, entry);
    double ns = (double)(took_ns < TURN_MOST_NS ? took_ns : TURN_MOST_NS);
    queue->turn_at = s->at; // where the step began
    s->at += ns / turn_weight(entry);
    s->run_ns += took_ns;
    entry->turn.at += ns;
    entry->turn.run_ns += took_ns;
    entry->turn.ran = s->ran = ++queue->turns;
}
