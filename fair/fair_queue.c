// SPDX-License-Identifier: Apache-2.0
// Who is in the queue, and what each holds. Tenants with waiting jobs are in one heap by their
// levels, each tenant's waiting jobs in a heap of its own, and what runs in one by predicted ends:
// each change costs the logarithm of their numbers.
#include "fair/fair_queue_impl.h"

#include "base/alloc.h"

#include <assert.h>
#include <stddef.h>

#define QUEUE_PRIORITY 1000
#define QUEUE_DAY_NS   86400000000000u

static bool job_before(const void *a, const void *b)
{
    const hth_fair_job *x = a, *y = b;
    return x->key != y->key ? x->key < y->key : x->order < y->order;
}

static bool job_ends_before(const void *a, const void *b)
{
    const hth_fair_job *x = a, *y = b;
    return x->ends_ns != y->ends_ns ? x->ends_ns < y->ends_ns : x->order < y->order;
}

static bool tenant_before(const void *a, const void *b)
{
    const queue_tenant *x = a, *y = b;
    if (x->level != y->level || x->served != y->served) {
        return x->level != y->level ? x->level < y->level : x->served < y->served;
    }
    return job_before(hth_fair_heap_first(&x->waiting), hth_fair_heap_first(&y->waiting));
}

bool hth_queue_fits(const hth_fair_queue *queue, const hth_fair_amounts *demand,
                    const hth_fair_amounts *room)
{
    bool fits = true;
    for (int r = 0; r < queue->o.n_resources; r++) {
        double spare = room->of[r] + HTH_QUEUE_ROUNDING * queue->o.capacity.of[r];
        fits = fits && (demand->of[r] == 0 || demand->of[r] <= spare);
    }
    return fits;
}

void hth_queue_sum(const hth_fair_queue *queue, hth_fair_amounts *to,
                   const hth_fair_amounts *amounts, double sign)
{
    for (int r = 0; r < queue->o.n_resources; r++) {
        to->of[r] += sign * amounts->of[r];
    }
}

double hth_queue_level(const hth_fair_queue *queue, const queue_tenant *tenant,
                       const hth_fair_amounts *used)
{
    return hth_fair_dominant(used, &queue->o.capacity, queue->o.n_resources, NULL) / tenant->weight;
}

hth_err hth_fair_queue_open(const hth_fair_queue_options *options, hth_fair_queue **out)
{
    hth_fair_queue *q = hth_calloc(1, sizeof *q);
    *out = q;
    if (q == NULL) {
        return hth_no_memory("a queue of jobs");
    }
    q->o = *options;
    q->o.priority_ns = q->o.priority_ns < QUEUE_DAY_NS ? q->o.priority_ns : QUEUE_DAY_NS;
    q->free = options->capacity;
    q->by_level = (hth_fair_heap){.before = tenant_before, .place = offsetof(queue_tenant, place)};
    q->ends = (hth_fair_heap){.before = job_ends_before, .place = offsetof(hth_fair_job, place)};
    return HTH_OK;
}

void hth_fair_queue_close(hth_fair_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    for (int i = 0; i < queue->n_tenants; i++) {
        hth_fair_heap_fini(&queue->tenants[i]->waiting);
        hth_free(queue->tenants[i]);
    }
    hth_free(queue->tenants);
    hth_free(queue->victim);
    hth_fair_heap_fini(&queue->by_level);
    hth_fair_heap_fini(&queue->ends);
    hth_free(queue);
}

static hth_err queue_weight(double weight)
{
    return weight >= HTH_FAIR_WEIGHT_MIN && weight <= HTH_FAIR_WEIGHT_MAX
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "a tenant's weight is %.15g; it must be %g to %.0f", weight,
                          HTH_FAIR_WEIGHT_MIN, HTH_FAIR_WEIGHT_MAX);
}

hth_err hth_fair_queue_tenant(hth_fair_queue *queue, double weight, int *out)
{
    HTH_TRY(queue_weight(weight));
    HTH_TRY(hth_fair_heap_room(&queue->by_level, queue->n_tenants + 1));
    queue_tenant *t = hth_calloc(1, sizeof *t);
    if (t == NULL || HTH_GROW(queue->tenants, queue->n_tenants, queue->cap) != 0) {
        hth_free(t);
        return hth_no_memory("a tenant of a queue");
    }
    *t = (queue_tenant){.weight = weight,
                        .index = queue->n_tenants,
                        .waiting = {.before = job_before, .place = offsetof(hth_fair_job, place)}};
    *out = queue->n_tenants;
    queue->tenants[queue->n_tenants++] = t;
    return HTH_OK;
}

static queue_tenant *queue_of(const hth_fair_queue *queue, const hth_fair_job *job)
{
    assert(job->tenant >= 0 && job->tenant < queue->n_tenants);
    return queue->tenants[job->tenant];
}

// Summed up anew, so that no rounding stays.
static void queue_weights(hth_fair_queue *queue)
{
    queue->weights = 0;
    for (int i = 0; i < queue->n_tenants; i++) {
        const queue_tenant *t = queue->tenants[i];
        queue->weights += t->running + t->waiting.n > 0 ? t->weight : 0;
    }
}

// queue_changed puts a tenant where it belongs after its jobs or what they hold have changed.
static void queue_changed(hth_fair_queue *queue, queue_tenant *tenant)
{
    tenant->level = hth_queue_level(queue, tenant, &tenant->used);
    if (tenant->waiting.n == 0) {
        tenant->under_since_ns = 0;
        hth_fair_heap_remove(&queue->by_level, tenant);
    } else if (tenant->place > 0) {
        hth_fair_heap_moved(&queue->by_level, tenant);
    } else {
        hth_err err = hth_fair_heap_push(&queue->by_level, tenant);
        assert(err == HTH_OK); // hth_fair_queue_tenant made room
        (void)err;
    }
}

hth_err hth_fair_queue_weigh(hth_fair_queue *queue, int tenant, double weight)
{
    HTH_TRY(queue_weight(weight));
    queue->tenants[tenant]->weight = weight;
    queue_weights(queue);
    queue_changed(queue, queue->tenants[tenant]);
    return HTH_OK;
}

void hth_fair_queue_capacity(hth_fair_queue *queue, const hth_fair_amounts *capacity)
{
    queue->o.capacity = queue->free = *capacity;
    for (int i = 0; i < queue->n_tenants; i++) {
        hth_queue_sum(queue, &queue->free, &queue->tenants[i]->used, -1);
        queue_changed(queue, queue->tenants[i]);
    }
}

void hth_fair_queue_patience(hth_fair_queue *queue, uint64_t patience_ns)
{
    queue->o.patience_ns = patience_ns;
}

void hth_fair_queue_hole(hth_fair_queue *queue, const hth_fair_amounts *hole)
{
    queue->holes = hole != NULL;
    queue->hole = hole != NULL ? *hole : queue->hole;
}

static hth_err queue_check(const hth_fair_queue *queue, const hth_fair_job *job)
{
    const hth_fair_amounts *least = &job->demand[job->n_demands - 1];
    bool fits = false;
    for (int k = 0; k < job->n_demands; k++) {
        for (int r = 0; r < queue->o.n_resources; r++) {
            if (!hth_fair_amount_valid(job->demand[k].of[r])) {
                return hth_fail(HTH_EINVAL,
                                "a job needs %.15g of resource %d; it must be 0, or from %g to %g",
                                job->demand[k].of[r], r, HTH_FAIR_AMOUNT_MIN, HTH_FAIR_AMOUNT_MAX);
            }
        }
        fits = fits || hth_queue_fits(queue, &job->demand[k], &queue->o.capacity);
    }
    for (int r = 0; r < queue->o.n_resources && !fits; r++) {
        if (least->of[r] > queue->o.capacity.of[r]) {
            return hth_fail(HTH_ETOOBIG, "a job needs %.15g of resource %d; the capacity is %.15g",
                            least->of[r], r, queue->o.capacity.of[r]);
        }
    }
    return HTH_OK;
}

int64_t hth_queue_key(const hth_fair_queue *queue, const hth_fair_job *job, uint64_t left_ns)
{
    int priority = job->priority < QUEUE_PRIORITY ? job->priority : QUEUE_PRIORITY;
    priority = priority > -QUEUE_PRIORITY ? priority : -QUEUE_PRIORITY;
    left_ns = left_ns < QUEUE_DAY_NS ? left_ns : QUEUE_DAY_NS;
    return (int64_t)(job->submitted_ns + left_ns) - priority * (int64_t)queue->o.priority_ns;
}

// queue_wait has a job wait; there is room for it.
static void queue_wait(hth_fair_queue *queue, hth_fair_job *job)
{
    queue_tenant *t = queue_of(queue, job);
    job->key = hth_queue_key(queue, job, job->run_ns != NULL ? job->run_ns[0] : 0);
    hth_err err = hth_fair_heap_push(&t->waiting, job);
    assert(err == HTH_OK);
    (void)err;
    job->state = HTH_FAIR_WAITS;
    queue_changed(queue, t);
}

// queue_victims makes room for a decision that pauses as many jobs as can run.
static hth_err queue_victims(hth_fair_queue *queue)
{
    int cap = queue->ends.cap;
    if (cap <= queue->cap_victims) {
        return HTH_OK;
    }
    hth_fair_job **victim = hth_realloc(queue->victim, (size_t)cap, sizeof(hth_fair_job *));
    if (victim == NULL) {
        return hth_no_memory("%d jobs of a queue", cap);
    }
    queue->victim = victim;
    queue->cap_victims = cap;
    return HTH_OK;
}

hth_err hth_fair_queue_add(hth_fair_queue *queue, hth_fair_job *job)
{
    queue_tenant *t = queue_of(queue, job);
    assert(job->state == HTH_FAIR_OUT && job->n_demands > 0);
    HTH_TRY(queue_check(queue, job));
    // Starting, pausing and deciding cannot fail: there is room for each job where it runs, where
    // it waits, and among those to pause.
    HTH_TRY(hth_fair_heap_room(&queue->ends, queue->jobs + 1));
    HTH_TRY(queue_victims(queue));
    HTH_TRY(hth_fair_heap_room(&t->waiting, t->waiting.n + t->running + 1));
    job->order = queue->order++;
    queue->jobs++;
    bool active = t->running + t->waiting.n > 0;
    queue_wait(queue, job);
    if (!active) {
        queue_weights(queue);
    }
    return HTH_OK;
}

// queue_hold takes what a job runs with from what is free, or (sign -1) gives it back.
static void queue_hold(hth_fair_queue *queue, queue_tenant *tenant, const hth_fair_job *job,
                       double sign)
{
    hth_queue_sum(queue, &queue->free, &job->held, -sign);
    hth_queue_sum(queue, &tenant->used, &job->held, sign);
    if (tenant->running == 0) {
        tenant->used = (hth_fair_amounts){{0}};
    }
    if (queue->ends.n == 0) {
        queue->free = queue->o.capacity;
    }
}

static void queue_stop(hth_fair_queue *queue, hth_fair_job *job)
{
    queue_tenant *t = queue_of(queue, job);
    hth_fair_heap_remove(&queue->ends, job);
    if (job->newer != NULL) {
        job->newer->older = job->older;
    } else {
        t->newest = job->older;
    }
    if (job->older != NULL) {
        job->older->newer = job->newer;
    }
    assert(t->running > 0);
    t->running--;
    queue_hold(queue, t, job, -1);
    queue_changed(queue, t);
}

void hth_fair_queue_remove(hth_fair_queue *queue, hth_fair_job *job)
{
    if (job->state == HTH_FAIR_OUT) {
        return;
    }
    queue_tenant *t = queue_of(queue, job);
    queue->reserved = queue->reserved == job ? NULL : queue->reserved;
    if (job->state == HTH_FAIR_RUNS) {
        queue_stop(queue, job);
    } else {
        hth_fair_heap_remove(&t->waiting, job);
        queue_changed(queue, t);
    }
    job->state = HTH_FAIR_OUT;
    assert(queue->jobs > 0);
    queue->jobs--;
    if (t->running + t->waiting.n == 0) {
        queue_weights(queue);
    }
}

// queue_run puts a job among those that run.
static void queue_run(hth_fair_queue *queue, queue_tenant *tenant, hth_fair_job *job)
{
    hth_err err = hth_fair_heap_push(&queue->ends, job);
    assert(err == HTH_OK);
    (void)err;
    job->older = tenant->newest;
    job->newer = NULL;
    if (tenant->newest != NULL) {
        tenant->newest->newer = job;
    }
    tenant->newest = job;
    tenant->running++;
}

void hth_fair_queue_start(hth_fair_queue *queue, hth_fair_job *job, int with, uint64_t now_ns)
{
    queue_tenant *t = queue_of(queue, job);
    assert(job->state == HTH_FAIR_WAITS && with >= 0 && with < job->n_demands);
    hth_fair_heap_remove(&t->waiting, job);
    queue->reserved = queue->reserved == job ? NULL : queue->reserved;
    job->state = HTH_FAIR_RUNS;
    job->with = with;
    job->held = job->demand[with];
    job->began_ns = now_ns;
    job->ends_ns = job->run_ns != NULL ? now_ns + job->run_ns[with] : HTH_FAIR_NEVER;
    t->under_since_ns = 0; // its patience begins anew
    t->served = ++queue->starts;
    queue_run(queue, t, job);
    queue_hold(queue, t, job, 1);
    queue_changed(queue, t);
}

void hth_fair_queue_pause(hth_fair_queue *queue, hth_fair_job *job)
{
    assert(job->state == HTH_FAIR_RUNS);
    queue_stop(queue, job);
    queue_wait(queue, job);
}

void hth_fair_queue_holds(hth_fair_queue *queue, hth_fair_job *job, const hth_fair_amounts *held)
{
    queue_tenant *t = queue_of(queue, job);
    assert(job->state == HTH_FAIR_RUNS);
    queue_hold(queue, t, job, -1);
    job->held = *held;
    queue_hold(queue, t, job, 1);
    queue_changed(queue, t);
}

void hth_fair_queue_ends(hth_fair_queue *queue, hth_fair_job *job, uint64_t ends_ns)
{
    assert(job->state == HTH_FAIR_RUNS);
    job->ends_ns = ends_ns;
    hth_fair_heap_moved(&queue->ends, job);
}

hth_fair_standing hth_fair_queue_standing(const hth_fair_queue *queue, int tenant)
{
    const queue_tenant *t = queue->tenants[tenant];
    hth_fair_standing s = {.used = t->used,
                           .waiting = t->waiting.n,
                           .running = t->running,
                           .under_since_ns = t->under_since_ns};
    s.share = hth_fair_dominant(&t->used, &queue->o.capacity, queue->o.n_resources, &s.dominant);
    s.entitlement = s.waiting + s.running > 0 ? t->weight / queue->weights : 0;
    return s;
}

const hth_fair_job *hth_fair_queue_reserved(const hth_fair_queue *queue)
{
    return queue->reserved;
}
