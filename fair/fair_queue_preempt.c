// SPDX-License-Identifier: Apache-2.0
// Who is paused in whose favour (rules 5 and 6 of fair_queue.h).
#include "fair/fair_queue_impl.h"

#include <stddef.h>

#define PREEMPT_OVER   (1 + 1e-9)
#define PREEMPT_LONGER 2 // times what the job of its tenant takes for which a job is paused

// preempt_note notes since when tenants wait below their entitlement, and *until_ns when the next
// one has waited long enough.
static void preempt_note(hth_fair_queue *queue, uint64_t now_ns, uint64_t *until_ns)
{
    for (int i = 0; i < queue->n_tenants; i++) {
        queue_tenant *t = queue->tenants[i];
        bool below = t->level * queue->weights * PREEMPT_OVER < 1;
        bool under = t->waiting.n > 0 && below && (!queue->o.sliced || t->running == 0);
        uint64_t since_ns = t->under_since_ns > 0 ? t->under_since_ns : now_ns;
        t->under_since_ns = under ? since_ns : 0;
        if (under && since_ns + queue->o.patience_ns > now_ns &&
            since_ns + queue->o.patience_ns < *until_ns) {
            *until_ns = since_ns + queue->o.patience_ns;
        }
    }
}

static bool preempt_owed(const hth_fair_queue *queue, const queue_tenant *tenant, uint64_t now_ns)
{
    return tenant->under_since_ns > 0 && now_ns - tenant->under_since_ns >= queue->o.patience_ns;
}

// preempt_less takes a job that is to be paused from what its tenant has.
static void preempt_less(const hth_fair_queue *queue, queue_tenant *tenant, const hth_fair_job *job)
{
    hth_queue_sum(queue, &tenant->left, &job->held, -1);
    tenant->left_level = hth_queue_level(queue, tenant, &tenant->left);
    tenant->victim = job->older;
}

// What a tenant has without the victims chosen so far, and without one more.
static double preempt_level(const hth_fair_queue *queue, const queue_tenant *tenant,
                            const hth_fair_job *more)
{
    hth_fair_amounts used = tenant->left;
    hth_queue_sum(queue, &used, &more->held, -1);
    return hth_queue_level(queue, tenant, &used);
}

// preempt_ripe is when a job that runs may be paused.
static uint64_t preempt_ripe(const hth_fair_queue *queue, const hth_fair_job *job)
{
    uint64_t least_ns = queue->o.patience_ns;
    return job->began_ns + (job->least_ns > least_ns ? job->least_ns : least_ns);
}

// preempt_job is the job of tenant that started last, is not chosen, and has run for long enough;
// NULL: none has.
static hth_fair_job *preempt_job(const hth_fair_queue *queue, queue_tenant *tenant, uint64_t now_ns,
                                 uint64_t *until_ns)
{
    hth_fair_job *job = tenant->victim;
    while (job != NULL && preempt_ripe(queue, job) > now_ns) {
        uint64_t ripe_ns = preempt_ripe(queue, job);
        *until_ns = ripe_ns < *until_ns ? ripe_ns : *until_ns;
        job = job->older;
    }
    tenant->victim = job;
    return job;
}

// preempt_over: a tenant that has `level` is above its entitlement. With slices its jobs also have
// their part of the time, which is more than that while another tenant has none.
static bool preempt_over(const hth_fair_queue *queue, const queue_tenant *tenant, double level)
{
    return tenant->running > 0 && (queue->o.sliced || level * queue->weights > PREEMPT_OVER);
}

// preempt_victim is the next job to pause for tenant `tenant`: of the tenant with the most over its
// entitlement. NULL: nobody may be paused.
static hth_fair_job *preempt_victim(const hth_fair_queue *queue, const queue_tenant *tenant,
                                    hth_fair_decision *decision, uint64_t now_ns)
{
    hth_fair_job *victim = NULL;
    double most = -1;
    for (int i = 0; i < queue->n_tenants; i++) {
        queue_tenant *v = queue->tenants[i];
        hth_fair_job *job =
            v != tenant && preempt_over(queue, v, v->left_level) && v->left_level > most
                ? preempt_job(queue, v, now_ns, &decision->until_ns)
                : NULL;
        if (job != NULL && (tenant->running == 0 || preempt_level(queue, v, job) > tenant->level)) {
            most = v->left_level;
            victim = job;
        }
    }
    return victim;
}

// preempt_spare gives up those victims without which the job fits as well.
static void preempt_spare(const hth_fair_queue *queue, const hth_fair_amounts *need,
                          hth_fair_amounts *room, hth_fair_decision *decision)
{
    for (int i = decision->n_victims - 1; i >= 0; i--) {
        const hth_fair_amounts *gives = &decision->victim[i]->held;
        hth_fair_amounts less = *room;
        hth_queue_sum(queue, &less, gives, -1);
        if (hth_queue_fits(queue, need, &less)) {
            *room = less;
            decision->victim[i] = decision->victim[--decision->n_victims];
        }
    }
}

// preempt_decide: the victims make enough room for the least of the job's demands.
static bool preempt_decide(const hth_fair_queue *queue, hth_fair_job *job,
                           const hth_fair_amounts *room, uint64_t now_ns,
                           hth_fair_decision *decision)
{
    decision->with = hth_queue_point(queue, job, room, NULL, now_ns);
    decision->job = decision->with >= 0 ? job : NULL;
    decision->action = decision->with >= 0 ? HTH_FAIR_PREEMPT : HTH_FAIR_NOTHING;
    decision->n_victims = decision->with >= 0 ? decision->n_victims : 0;
    return decision->with >= 0;
}

static bool preempt_for(const hth_fair_queue *queue, const queue_tenant *tenant, hth_fair_job *job,
                        uint64_t now_ns, hth_fair_decision *decision)
{
    const hth_fair_amounts *need = &job->demand[job->n_demands - 1];
    hth_fair_amounts room = queue->free;
    decision->n_victims = 0;
    for (int i = 0; i < queue->n_tenants; i++) {
        queue_tenant *t = queue->tenants[i];
        t->left = t->used;
        t->left_level = t->level;
        t->victim = t->newest;
    }
    while (!hth_queue_fits(queue, need, &room)) {
        hth_fair_job *victim = preempt_victim(queue, tenant, decision, now_ns);
        if (victim == NULL) {
            decision->n_victims = 0;
            return false;
        }
        decision->victim[decision->n_victims++] = victim;
        preempt_less(queue, queue->tenants[victim->tenant], victim);
        hth_queue_sum(queue, &room, &victim->held, 1);
    }
    preempt_spare(queue, need, &room, decision);
    if (decision->n_victims == 0) {
        room = hth_queue_room(queue); // nobody holds what it lacks: it lies in pieces
    }
    return preempt_decide(queue, job, &room, now_ns, decision);
}

// preempt_left is what a job that runs needs of time of its own; *known: that is known.
static uint64_t preempt_left(const hth_fair_job *runs, uint64_t now_ns, bool *known)
{
    uint64_t till_ns = runs->ends_ns > now_ns ? runs->ends_ns - now_ns : 0;
    *known = runs->left_ns > 0 || runs->ends_ns != HTH_FAIR_NEVER;
    return runs->left_ns > 0 ? runs->left_ns : till_ns;
}

bool hth_queue_longer(const hth_fair_job *runs, uint64_t run_ns, uint64_t now_ns)
{
    bool known;
    uint64_t left_ns = preempt_left(runs, now_ns, &known);
    return known && left_ns / PREEMPT_LONGER > run_ns;
}

// preempt_after: a job that runs has so much left that it is better after `job`.
static bool preempt_after(const hth_fair_queue *queue, const hth_fair_job *runs,
                          const hth_fair_job *job, uint64_t now_ns)
{
    bool known;
    return hth_queue_longer(runs, job->run_ns[0], now_ns) &&
           hth_queue_key(queue, runs, preempt_left(runs, now_ns, &known)) > job->key;
}

// preempt_own decides rule 6.
static bool preempt_own(const hth_fair_queue *queue, const queue_tenant *tenant, hth_fair_job *job,
                        uint64_t now_ns, hth_fair_decision *decision)
{
    hth_fair_job *victim = NULL;
    hth_fair_amounts room;
    uint64_t most_ns = 0;
    bool known;
    for (hth_fair_job *j = tenant->newest; j != NULL && job->run_ns != NULL; j = j->older) {
        room = queue->free;
        hth_queue_sum(queue, &room, &j->held, 1);
        uint64_t left_ns = preempt_left(j, now_ns, &known);
        bool would = preempt_after(queue, j, job, now_ns) &&
                     hth_queue_fits(queue, &job->demand[job->n_demands - 1], &room);
        uint64_t ripe_ns = preempt_ripe(queue, j);
        if (would && ripe_ns > now_ns) {
            decision->until_ns = ripe_ns < decision->until_ns ? ripe_ns : decision->until_ns;
        } else if (would && left_ns > most_ns) {
            most_ns = left_ns;
            victim = j;
        }
    }
    if (victim == NULL) {
        return false;
    }
    room = queue->free;
    hth_queue_sum(queue, &room, &victim->held, 1);
    decision->n_victims = 1;
    decision->victim[0] = victim;
    return preempt_decide(queue, job, &room, now_ns, decision);
}

bool hth_queue_preempt(hth_fair_queue *queue, uint64_t now_ns, hth_fair_decision *out)
{
    queue_tenant *t = queue->tenants[queue->reserved->tenant];
    hth_fair_walk walk;
    if (queue->o.patience_ns == HTH_FAIR_NEVER) {
        return false;
    }
    out->victim = queue->victim;
    preempt_note(queue, now_ns, &out->until_ns);
    if (preempt_owed(queue, t, now_ns) && preempt_for(queue, t, queue->reserved, now_ns, out)) {
        return true;
    }
    if (preempt_own(queue, t, queue->reserved, now_ns, out)) {
        return true;
    }
    if (t->under_since_ns > 0) {
        return false; // its turn is nobody else's
    }
    hth_fair_walk_begin(&walk, &queue->by_level);
    while ((t = hth_fair_walk_next(&walk)) != NULL) {
        hth_fair_job *job = hth_fair_heap_first(&t->waiting);
        if (job != queue->reserved && preempt_owed(queue, t, now_ns) &&
            preempt_for(queue, t, job, now_ns, out)) {
            return true;
        }
    }
    return false;
}
