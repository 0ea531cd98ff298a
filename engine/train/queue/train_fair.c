// SPDX-License-Identifier: Apache-2.0
// The queue is asked after each step while jobs wait: where nothing changed since, that costs a
// walk over the jobs.
#include "engine/train/queue/train_fair.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "device/cpu/machine.h"
#include "engine/train/queue/train_entry_impl.h"
#include "runtime/job_memory.h"
#include "runtime/tenants/quota.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#define FAIR_PRIORITY_NS 60000000000u // of waiting, for each level of priority
#define FAIR_ENDS_NS     1000000000u  // from one look at predicted ends to the next
#define FAIR_MODELS      10           // the part of the device that is left to models, if it can be
// A job runs for so many times what it took to make it ready before it is paused for another.
#define FAIR_SWITCHES 4

uint64_t hth_train_fair_patience_ns(void)
{
    double seconds = hth_setting_real(HTH_SET_FAIR_PATIENCE);
    return seconds > 0 ? hth_ns_of(seconds * 1e9) : HTH_FAIR_NEVER;
}

void hth_train_fair_fini(hth_train_fair *fair)
{
    hth_fair_queue_close(fair->jobs);
    hth_free(fair->tenants);
    *fair = (hth_train_fair){.jobs = NULL};
}

hth_train_entry *hth_train_fair_entry(const hth_fair_job *job)
{
    return (hth_train_entry *)((const char *)job - offsetof(hth_train_entry, fair));
}

// ---- what there is

uint64_t hth_train_fair_capacity(const hth_site *site)
{
    uint64_t all = site->device->props.budget_bytes;
    uint64_t pinned = site->pinned_bytes + site->pinned_arena;
    return all > pinned ? all - pinned : 0;
}

static hth_fair_amounts fair_amounts(const hth_train_fair *fair, uint64_t device_bytes)
{
    hth_fair_amounts all = {{0}};
    all.of[HTH_TRAIN_DEVICE_MEMORY] = (double)device_bytes;
    all.of[HTH_TRAIN_HOST_MEMORY] = fair->host_bytes;
    return all;
}

static hth_err fair_open(hth_train_queue *queue)
{
    hth_fair_queue_options o = {.n_resources = HTH_TRAIN_HELD,
                                .patience_ns = hth_train_fair_patience_ns(),
                                .priority_ns = FAIR_PRIORITY_NS,
                                .sliced = true};
    if (queue->fair.jobs != NULL) {
        return HTH_OK;
    }
    uint64_t host_bytes = hth_machine_memory();
    queue->fair.host_bytes = host_bytes > 0 ? (double)host_bytes : HTH_FAIR_AMOUNT_MAX;
    o.capacity = fair_amounts(&queue->fair, queue->ms->site->device->props.budget_bytes);
    return hth_fair_queue_open(&o, &queue->fair.jobs);
}

static double fair_weight(const hth_tenant *tenant)
{
    return tenant != NULL ? tenant->limits.weight : 1;
}

static int fair_find(const hth_train_fair *fair, const hth_tenant *tenant)
{
    int i = 0;
    while (i < fair->n_tenants && fair->tenants[i].tenant != tenant) {
        i++;
    }
    return i;
}

static hth_err fair_number(hth_train_fair *fair, const hth_tenant *tenant, int *out)
{
    double weight = fair_weight(tenant);
    *out = fair_find(fair, tenant);
    if (*out < fair->n_tenants) {
        return HTH_OK;
    }
    if (HTH_GROW(fair->tenants, fair->n_tenants, fair->cap_tenants) != 0) {
        return hth_no_memory("a tenant of the queue of jobs");
    }
    HTH_TRY(hth_fair_queue_tenant(fair->jobs, weight, out));
    fair->tenants[fair->n_tenants++] = (hth_train_fair_tenant){tenant, weight};
    return HTH_OK;
}

hth_fair_standing hth_train_fair_standing(const hth_train_fair *fair, const hth_tenant *tenant)
{
    int i = fair_find(fair, tenant);
    return i < fair->n_tenants ? hth_fair_queue_standing(fair->jobs, i)
                               : (hth_fair_standing){.dominant = -1};
}

// ---- what a job could have

// fair_curve makes a job's demands of its curve, but of points that take more memory than another
// one and no less time. What a job that goes on has left is less than all its steps. All times are
// predicted, those of jobs at work as well (fair_ends): so they can be compared, whatever else the
// machine does, and however slow first steps are.
static void fair_curve(hth_train_entry *entry, const hth_curve *curve, int64_t steps)
{
    hth_train_offer *o = &entry->offer;
    double left = (double)(entry->left_steps > 0 ? entry->left_steps : steps);
    *o = (hth_train_offer){.n = 0};
    for (int i = curve->n - 1; i >= 0; i--) {
        const hth_curve_point *p = &curve->point[i];
        bool as_fast = i > 0 && curve->point[i - 1].time_us <= p->time_us;
        if (as_fast || p->device_bytes == 0) {
            continue;
        }
        o->demand[o->n].of[HTH_TRAIN_DEVICE_MEMORY] = (double)p->device_bytes;
        o->demand[o->n].of[HTH_TRAIN_HOST_MEMORY] = entry->spills ? 0 : (double)p->host_bytes;
        o->run_ns[o->n] = hth_ns_of(p->time_us * left * 1e3);
        o->budget_bytes[o->n] = p->budget_bytes;
        o->n++;
    }
}

void hth_train_fair_exact(hth_train_entry *entry, const json_t *args)
{
    const json_t *had = json_object_get(args, HTH_TRAIN_HAD);
    double need = json_number_value(json_object_get(had, "need_bytes"));
    if (need <= 0) {
        return;
    }
    entry->offer = (hth_train_offer){.n = 1, .exact = true};
    entry->offer.demand[0].of[HTH_TRAIN_DEVICE_MEMORY] = need;
    entry->offer.demand[0].of[HTH_TRAIN_HOST_MEMORY] =
        json_number_value(json_object_get(had, "host_bytes"));
    double step_us = json_number_value(json_object_get(had, "step_us"));
    entry->offer.run_ns[0] = hth_ns_of(step_us * 1e3 * (double)entry->left_steps);
    entry->offer.budget_bytes[0] =
        (uint64_t)json_integer_value(json_object_get(had, "budget_bytes"));
}

// ---- in and out

static hth_err fair_add(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_train_fair *fair = &queue->fair;
    HTH_TRY(fair_open(queue));
    entry->fair = (hth_fair_job){.priority = entry->priority,
                                 .submitted_ns = entry->since_ns,
                                 .demand = entry->offer.demand,
                                 .run_ns = entry->offer.run_ns[0] > 0 ? entry->offer.run_ns : NULL,
                                 .n_demands = entry->offer.n};
    HTH_TRY(fair_number(fair, entry->tenant, &entry->fair.tenant));
    fair->changed = true;
    // A job that fits the device is in the queue, also while pinned models leave too little.
    const hth_fair_amounts all = fair_amounts(fair, queue->ms->site->device->props.budget_bytes);
    hth_fair_queue_capacity(fair->jobs, &all);
    hth_err err = hth_fair_queue_add(fair->jobs, &entry->fair);
    fair->capacity_bytes = hth_train_fair_capacity(queue->ms->site);
    const hth_fair_amounts now = fair_amounts(fair, fair->capacity_bytes);
    hth_fair_queue_capacity(fair->jobs, &now);
    return err;
}

void hth_train_fair_leave(hth_train_queue *queue, hth_train_entry *entry)
{
    if (queue->fair.jobs != NULL && entry->fair.state != HTH_FAIR_OUT) {
        hth_fair_queue_remove(queue->fair.jobs, &entry->fair);
        queue->fair.changed = true;
    }
    queue->fair.grows = queue->fair.grows == entry ? NULL : queue->fair.grows;
    entry->leaving = HTH_TRAIN_STAYS;
}

void hth_train_fair_forget(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_train_fair_leave(queue, entry);
    entry->offer.n = 0;
    entry->offer.exact = false;
}

uint64_t hth_train_fair_granted(const hth_train_entry *entry, uint64_t *budget_bytes)
{
    const hth_fair_job *job = &entry->fair;
    bool given = job->state == HTH_FAIR_RUNS;
    *budget_bytes = given ? entry->offer.budget_bytes[job->with] : 0;
    return given ? (uint64_t)job->demand[job->with].of[HTH_TRAIN_DEVICE_MEMORY] : 0;
}

static void fair_ends(hth_train_queue *queue, hth_train_entry *entry, uint64_t now_ns)
{
    double left_s = hth_train_turn_left(queue, entry);
    uint64_t ends_ns = isfinite(left_s) ? now_ns + hth_ns_of(left_s * 1e9) : HTH_FAIR_NEVER;
    hth_fair_queue_ends(queue->fair.jobs, &entry->fair, ends_ns);
    entry->fair.left_ns = hth_job_left_ns(entry->work);
}

// fair_counts counts a job that works and is not counted so far; false: it works all the same.
static bool fair_counts(hth_train_queue *queue, hth_train_entry *entry)
{
    char detail[HTH_CHECKPOINT_NOTE];
    snprintf(detail, sizeof detail, "%s", hth_err_detail());
    bool counts = fair_add(queue, entry) == HTH_OK;
    (void)hth_err_restore(HTH_EIO, detail);
    return counts;
}

void hth_train_fair_began(hth_train_queue *queue, hth_train_entry *entry)
{
    hth_fair_amounts held = {{0}};
    uint64_t now_ns = hth_now_ns();
    const json_t *memory = hth_job_planned(entry->work);
    double host_bytes = json_number_value(json_object_get(memory, "host_bytes"));
    entry->began_ns = now_ns;
    entry->began_ran_ns = queue->ran_ns;
    held.of[HTH_TRAIN_DEVICE_MEMORY] = (double)hth_job_device_bytes(entry->work);
    held.of[HTH_TRAIN_HOST_MEMORY] = entry->spills ? 0 : host_bytes;
    if (entry->fair.state == HTH_FAIR_OUT) { // it was alone
        entry->offer = (hth_train_offer){.n = 1, .demand = {held}};
        if (!fair_counts(queue, entry)) {
            return;
        }
        hth_fair_queue_start(queue->fair.jobs, &entry->fair, 0, now_ns);
    }
    hth_fair_queue_holds(queue->fair.jobs, &entry->fair, &held);
    hth_train_turn_predict(queue);
    fair_ends(queue, entry, now_ns);
    // others of its group would wait for a member
    entry->fair.least_ns =
        entry->gang.watch != NULL ? HTH_FAIR_NEVER / 2 : FAIR_SWITCHES * entry->opened_ns;
    queue->fair.changed = true;
}

void hth_train_fair_blocked(hth_train_queue *queue, hth_train_entry *entry)
{
    uint64_t budget_bytes;
    queue->fair.piece_bytes = hth_train_fair_granted(entry, &budget_bytes);
    queue->fair.piece_freed = queue->freed;
    queue->fair.changed = true;
    hth_fair_queue_pause(queue->fair.jobs, &entry->fair);
}

// ---- the decision

// fair_sync has those in the queue that could begin now, and returns how many wait.
static int fair_sync(hth_train_queue *queue)
{
    int waits = 0;
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        bool could = hth_train_entry_waits(e) && e->gate == HTH_TRAIN_GATE_NONE && e->offer.n > 0;
        if (could && e->fair.state == HTH_FAIR_OUT && fair_add(queue, e) == HTH_ETOOBIG) {
            hth_train_fair_forget(queue, e); // it had more than this device has
            e->tried = 0;
        } else if (!could && e->fair.state == HTH_FAIR_WAITS) {
            hth_train_fair_leave(queue, e);
        }
        waits += e->fair.state == HTH_FAIR_WAITS;
    }
    return waits;
}

static void fair_weigh(hth_train_fair *fair)
{
    for (int i = 0; i < fair->n_tenants; i++) {
        double weight = fair_weight(fair->tenants[i].tenant);
        if (weight != fair->tenants[i].weight &&
            hth_fair_queue_weigh(fair->jobs, i, weight) == HTH_OK) {
            fair->tenants[i].weight = weight;
            fair->changed = true;
        }
    }
}

// fair_refresh tells the queue what has changed outside of it.
static void fair_refresh(hth_train_queue *queue, uint64_t now_ns)
{
    hth_train_fair *fair = &queue->fair;
    uint64_t rest_bytes = hth_job_memory_rest(queue->ms->site, NULL);
    uint64_t capacity_bytes = hth_train_fair_capacity(queue->ms->site);
    fair_weigh(fair);
    hth_fair_queue_patience(fair->jobs, hth_train_fair_patience_ns());
    if (rest_bytes != fair->rest_bytes) {
        fair->changed = true;
        fair->piece_bytes = 0;
    }
    fair->rest_bytes = rest_bytes;
    if (capacity_bytes != fair->capacity_bytes) {
        fair->capacity_bytes = capacity_bytes;
        fair->changed = true;
        const hth_fair_amounts capacity = fair_amounts(fair, capacity_bytes);
        hth_fair_queue_capacity(fair->jobs, &capacity);
    }
    if (now_ns - fair->ends_ns < FAIR_ENDS_NS) {
        return;
    }
    fair->ends_ns = now_ns;
    fair->changed = true;
    hth_train_turn_predict(queue);
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (e->fair.state == HTH_FAIR_RUNS && e->work != NULL) {
            fair_ends(queue, e, now_ns);
        }
    }
}

// fair_decide asks the queue: first for what leaves something to models, then for all there is.
static void fair_decide(hth_train_queue *queue, uint64_t now_ns, hth_fair_decision *out)
{
    hth_train_fair *fair = &queue->fair;
    bool pieces = fair->piece_bytes > 0 && fair->piece_freed == queue->freed;
    uint64_t rest_bytes = fair->rest_bytes;
    uint64_t models_bytes = queue->ms->site->device->props.budget_bytes / FAIR_MODELS;
    hth_fair_amounts hole = {{0}};
    if (pieces && fair->piece_bytes <= rest_bytes) {
        rest_bytes = fair->piece_bytes - 1;
    }
    hole.of[HTH_TRAIN_HOST_MEMORY] = HTH_FAIR_AMOUNT_MAX;
    hole.of[HTH_TRAIN_DEVICE_MEMORY] =
        rest_bytes > models_bytes ? (double)(rest_bytes - models_bytes) : 0;
    hth_fair_queue_hole(fair->jobs, &hole);
    hth_fair_queue_next(fair->jobs, now_ns, out);
    if (out->action != HTH_FAIR_START || out->passes) {
        hole.of[HTH_TRAIN_DEVICE_MEMORY] = (double)rest_bytes;
        hth_fair_queue_hole(fair->jobs, &hole);
        hth_fair_queue_next(fair->jobs, now_ns, out);
    }
    fair->changed = false;
    fair->until_ns = out->until_ns;
}

// fair_rest is what the job's tenant may have in addition to what its other jobs hold.
static uint64_t fair_rest(const hth_train_queue *queue, const hth_train_entry *entry)
{
    hth_account account = {.job = true};
    hth_job_memory mine = {.account = &account};
    snprintf(account.tenant, sizeof account.tenant, "%s", entry->of);
    return hth_quota_rest(queue->ms->site, &mine);
}

bool hth_train_fair_quota(const hth_train_queue *queue, const hth_train_entry *entry)
{
    int least = entry->offer.n - 1;
    return least < 0 || entry->offer.demand[least].of[HTH_TRAIN_DEVICE_MEMORY] <=
                            (double)fair_rest(queue, entry);
}

// fair_start gives a job that point, or the best after it within its tenant's limit.
static void fair_start(hth_train_queue *queue, hth_train_entry *entry, int with, uint64_t now_ns)
{
    double rest = (double)fair_rest(queue, entry);
    while (with + 1 < entry->offer.n &&
           entry->offer.demand[with].of[HTH_TRAIN_DEVICE_MEMORY] > rest) {
        with++;
    }
    hth_fair_queue_start(queue->fair.jobs, &entry->fair, with, now_ns);
    queue->fair.changed = true;
}

hth_err hth_train_fair_ask(void *ctx, const hth_curve *curve, int64_t steps, uint64_t *budget_bytes)
{
    hth_train_queue *queue = ctx;
    hth_train_entry *e = queue->active;
    hth_fair_decision d;
    char why[HTH_CHECKPOINT_NOTE];
    uint64_t now_ns = hth_now_ns();
    fair_curve(e, curve, steps);
    if (e->offer.n == 0 || !hth_train_fair_quota(queue, e)) {
        return HTH_OK; // planning finds out why not, and says so
    }
    hth_err err = fair_add(queue, e);
    if (err == HTH_ETOOBIG) {
        hth_train_fair_forget(queue, e);
        return HTH_OK;
    }
    HTH_TRY(err);
    fair_refresh(queue, now_ns);
    fair_decide(queue, now_ns, &d);
    if (d.action == HTH_FAIR_START && d.job == &e->fair) {
        fair_start(queue, e, d.with, now_ns);
        (void)hth_train_fair_granted(e, budget_bytes);
        return HTH_OK;
    }
    queue->fair.changed = true; // it is somebody else's turn
    (void)hth_train_reason(queue, e, why, sizeof why);
    return hth_fail(HTH_ENODEVMEM, "%s", why);
}

hth_train_entry *hth_train_fair_next(hth_train_queue *queue)
{
    hth_train_fair *fair = &queue->fair;
    uint64_t now_ns = hth_now_ns();
    hth_fair_decision d = {.action = HTH_FAIR_NOTHING};
    bool writes = hth_train_preempt_poll(queue);
    if (fair_sync(queue) == 0) {
        hth_train_preempt_stay(queue, &d);
        hth_train_grow(queue, now_ns);
        return NULL;
    }
    hth_train_grow_stop(queue, now_ns);
    fair_refresh(queue, now_ns);
    if (!fair->changed && !writes && now_ns < fair->until_ns) {
        return NULL;
    }
    fair_decide(queue, now_ns, &d);
    if (!hth_train_preempt_may(queue, &d)) {
        d = (hth_fair_decision){.action = HTH_FAIR_NOTHING};
    }
    hth_train_preempt_stay(queue, &d);
    if (d.action == HTH_FAIR_NOTHING ||
        (d.action == HTH_FAIR_PREEMPT && !hth_train_preempt(queue, &d))) {
        return NULL;
    }
    hth_train_entry *e = hth_train_fair_entry(d.job);
    fair_start(queue, e, d.with, now_ns);
    return e;
}
