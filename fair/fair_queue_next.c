// SPDX-License-Identifier: Apache-2.0
// The decision: who is next, with which demand, and who may pass one that waits (rules 1 to 4 of
// fair_queue.h).
#include "fair/fair_queue_impl.h"

#include <stddef.h>

#define NEXT_SLOWER 1.05 // times as long as with the best demand

// What one job can get now. A hole is as large as it is: what hth_queue_fits allows for rounding in
// the sum of all that is free is taken off.
hth_fair_amounts hth_queue_room(const hth_fair_queue *queue)
{
    hth_fair_amounts room = queue->free;
    for (int r = 0; r < queue->o.n_resources && queue->holes; r++) {
        double hole = queue->hole.of[r] - HTH_QUEUE_ROUNDING * queue->o.capacity.of[r];
        room.of[r] = hole < room.of[r] ? hole : room.of[r];
    }
    return room;
}

// next_fits is the first of a job's demands that fits; -1: none does.
static int next_fits(const hth_fair_queue *queue, const hth_fair_job *job,
                     const hth_fair_amounts *room)
{
    int k = 0;
    while (k < job->n_demands && !hth_queue_fits(queue, &job->demand[k], room)) {
        k++;
    }
    return k < job->n_demands ? k : -1;
}

// What runs ends in the order in which it is predicted to; what should have ended by now is said to
// end now.
queue_shadow hth_queue_shadow(const hth_fair_queue *queue, const hth_fair_job *job, uint64_t now_ns)
{
    queue_shadow s = {.at_ns = now_ns, .extra = queue->free};
    hth_fair_walk walk;
    hth_fair_walk_begin(&walk, &queue->ends);
    int k = next_fits(queue, job, &s.extra);
    while (k < 0) {
        const hth_fair_job *ends = hth_fair_walk_next(&walk);
        if (ends == NULL || ends->ends_ns == HTH_FAIR_NEVER) {
            s.at_ns = HTH_FAIR_NEVER;
            return s;
        }
        s.at_ns = ends->ends_ns > now_ns ? ends->ends_ns : now_ns;
        hth_queue_sum(queue, &s.extra, &ends->held, 1);
        k = next_fits(queue, job, &s.extra);
    }
    hth_queue_sum(queue, &s.extra, &job->demand[k], -1);
    return s;
}

uint64_t hth_fair_queue_predict(const hth_fair_queue *queue, const hth_fair_job *job,
                                uint64_t now_ns)
{
    return hth_queue_shadow(queue, job, now_ns).at_ns;
}

// Rule 4: with its demand k the job is in nobody's way.
static bool next_passes(const hth_fair_queue *queue, const hth_fair_job *job, int k,
                        const queue_shadow *shadow, uint64_t now_ns)
{
    if (shadow->at_ns == HTH_FAIR_NEVER) {
        return false;
    }
    bool in_time =
        job->run_ns != NULL && shadow->at_ns > now_ns && job->run_ns[k] <= shadow->at_ns - now_ns;
    return in_time || hth_queue_fits(queue, &job->demand[k], &shadow->extra);
}

// next_alone: no other tenant's job waits.
static bool next_alone(const hth_fair_queue *queue, const queue_tenant *tenant)
{
    return queue->by_level.n - (tenant->place > 0) == 0;
}

// Rule 2: with its demand k the job keeps its tenant within its entitlement, or nobody else waits.
static bool next_entitled(const hth_fair_queue *queue, const hth_fair_job *job, int k)
{
    const queue_tenant *t = queue->tenants[job->tenant];
    hth_fair_amounts used = t->used;
    if (next_alone(queue, t)) {
        return true;
    }
    hth_queue_sum(queue, &used, &job->demand[k], 1);
    return hth_queue_level(queue, t, &used) * queue->weights <= 1 + 1e-9;
}

// Rule 7: with its demand k the job takes no time of its tenant's that end sooner.
static bool next_in_turn(const hth_fair_queue *queue, const hth_fair_job *job, int k,
                         uint64_t now_ns)
{
    const queue_tenant *t = queue->tenants[job->tenant];
    bool slower =
        job->run_ns != NULL && (double)job->run_ns[k] > NEXT_SLOWER * (double)job->run_ns[0];
    if (!queue->o.sliced || !slower || !next_alone(queue, t)) {
        return true;
    }
    for (const hth_fair_job *j = t->newest; j != NULL; j = j->older) {
        if (j->priority >= job->priority && !hth_queue_longer(j, job->run_ns[k], now_ns)) {
            return false;
        }
    }
    return true;
}

int hth_queue_point(const hth_fair_queue *queue, const hth_fair_job *job,
                    const hth_fair_amounts *room, const queue_shadow *shadow, uint64_t now_ns)
{
    int last = -1;
    for (int k = 0; k < job->n_demands; k++) {
        if (hth_queue_fits(queue, &job->demand[k], room) && next_in_turn(queue, job, k, now_ns) &&
            (shadow == NULL || next_passes(queue, job, k, shadow, now_ns))) {
            last = k;
            if (next_entitled(queue, job, k)) {
                return k;
            }
        }
    }
    return last;
}

static bool next_start(hth_fair_decision *out, hth_fair_job *job, int with, bool passes)
{
    if (with >= 0) {
        out->action = HTH_FAIR_START;
        out->job = job;
        out->with = with;
        out->passes = passes;
    }
    return with >= 0;
}

// next_backfill looks for a job that may pass the one that keeps its turn: tenants by level, each
// one's jobs in their order. Where there is too little for that one by now, nobody delays it.
static bool next_backfill(hth_fair_queue *queue, uint64_t now_ns, hth_fair_decision *out)
{
    hth_fair_amounts room = hth_queue_room(queue);
    bool ever = next_fits(queue, queue->reserved, &queue->o.capacity) >= 0;
    queue_shadow shadow = hth_queue_shadow(queue, queue->reserved, now_ns);
    hth_fair_walk tenants, jobs;
    queue_tenant *t;
    int looks = 0;
    if (ever && (queue->o.no_backfill || shadow.at_ns == HTH_FAIR_NEVER)) {
        return false;
    }
    hth_fair_walk_begin(&tenants, &queue->by_level);
    while (looks < HTH_FAIR_WALK && (t = hth_fair_walk_next(&tenants)) != NULL) {
        hth_fair_job *job;
        hth_fair_walk_begin(&jobs, &t->waiting);
        while (looks++ < HTH_FAIR_WALK && (job = hth_fair_walk_next(&jobs)) != NULL) {
            int with = hth_queue_point(queue, job, &room, ever ? &shadow : NULL, now_ns);
            if (job != queue->reserved && next_start(out, job, with, true)) {
                return true;
            }
        }
    }
    return false;
}

void hth_fair_queue_next(hth_fair_queue *queue, uint64_t now_ns, hth_fair_decision *out)
{
    hth_fair_amounts room = hth_queue_room(queue);
    const queue_tenant *least = hth_fair_heap_first(&queue->by_level);
    *out = (hth_fair_decision){.action = HTH_FAIR_NOTHING, .until_ns = HTH_FAIR_NEVER};
    if (least == NULL) {
        return;
    }
    if (queue->reserved != NULL) {
        least = queue->tenants[queue->reserved->tenant]; // its turn, and the first of its jobs
    }
    hth_fair_job *job = hth_fair_heap_first(&least->waiting);
    if (next_start(out, job, hth_queue_point(queue, job, &room, NULL, now_ns), false)) {
        return;
    }
    queue->reserved = job;
    if (!hth_queue_preempt(queue, now_ns, out)) {
        (void)next_backfill(queue, now_ns, out);
    }
}
