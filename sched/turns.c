// SPDX-License-Identifier: Apache-2.0
#include "sched/turns.h"

#include <math.h>
#include <stddef.h>

#define TURNS_SLICE_NS 1000000000u
// What a tenant may owe for what it computed beside its jobs: they wait for no longer than that.
#define TURNS_OWED_NS 1000000000u
// What another job has left, times what the first has, to take its place.
#define TURNS_LESS 0.875

void hth_turns_add(hth_turns *turns, hth_turns_job *job)
{
    job->item.weight = 1;
    job->item.credit_ns = job->tenant->item.credit_ns = HTH_RUN_CREDIT_ALL;
    hth_run_queue_add(&job->tenant->jobs, &job->item);
    hth_run_queue_add(&turns->tenants, &job->tenant->item);
}

void hth_turns_remove(hth_turns *turns, hth_turns_job *job)
{
    hth_run_queue_remove(&job->tenant->jobs, &job->item);
    job->tenant->first = job->tenant->first == job ? NULL : job->tenant->first;
    if (job->tenant->jobs.first == NULL) {
        hth_run_queue_remove(&turns->tenants, &job->tenant->item);
    }
}

// Each item is the first member of what it stands for.

// turns_before: `job` has less left than `other`, or a higher priority. 0, which is not known, is
// more than all else.
static bool turns_before(const hth_turns_job *job, const hth_turns_job *other, double times)
{
    double left = (double)(job->left_ns - 1), than = (double)(other->left_ns - 1);
    return job->priority != other->priority ? job->priority > other->priority : left < times * than;
}

// turns_favour gives the first of a tenant's jobs its weight. Of equal ones the first that came,
// which is last in the list, is it; and it stays so until another has clearly less left, or jobs
// that are alike would take turns.
static void turns_favour(hth_turns_tenant *tenant)
{
    hth_turns_job *first = NULL;
    for (hth_run_item *i = tenant->jobs.first; i != NULL; i = i->next) {
        hth_turns_job *job = (hth_turns_job *)i;
        first = first == NULL || !turns_before(first, job, 1) ? job : first;
    }
    if (tenant->first == NULL || turns_before(first, tenant->first, TURNS_LESS)) {
        tenant->first = first;
    }
    for (hth_run_item *i = tenant->jobs.first; i != NULL; i = i->next) {
        i->weight = i == &tenant->first->item ? HTH_TURNS_FIRST : 1;
    }
}

hth_turns_job *hth_turns_next(hth_turns *turns)
{
    uint64_t wake_ns; // nobody rests
    hth_turns_tenant *t = (hth_turns_tenant *)hth_run_queue_next(&turns->tenants, 0, &wake_ns);
    if (t == NULL) {
        return NULL;
    }
    turns_favour(t);
    return (hth_turns_job *)hth_run_queue_next(&t->jobs, 0, &wake_ns);
}

void hth_turns_ran(hth_turns *turns, hth_turns_job *job, uint64_t took_ns)
{
    hth_turns_tenant *t = job->tenant;
    uint64_t twice_ns = job->item.slice_ns * 2;
    uint64_t most_ns = twice_ns > TURNS_SLICE_NS ? twice_ns : TURNS_SLICE_NS;
    job->item.most_ns = t->item.most_ns = most_ns;
    t->ran_ns += took_ns < most_ns ? took_ns : most_ns;
    hth_run_queue_ran(&t->jobs, &job->item, took_ns, 0);
    hth_run_queue_ran(&turns->tenants, &t->item, took_ns, 0);
}

void hth_turns_charge(hth_turns *turns, hth_turns_tenant *tenant, uint64_t took_ns)
{
    tenant->ran_ns += took_ns;
    hth_run_queue_charge(&turns->tenants, &tenant->item, took_ns, TURNS_OWED_NS);
}

// ---- predicted ends. A job with rest_ns of 0 has ended.

// turns_rate gives a tenant's jobs parts of `rate`, its own; the first one's as in turns_favour.
static void turns_rate(const hth_turns_tenant *tenant, double rate)
{
    hth_turns_job *first = NULL;
    double sum = HTH_TURNS_FIRST - 1;
    for (hth_run_item *i = tenant->jobs.first; i != NULL; i = i->next) {
        hth_turns_job *job = (hth_turns_job *)i;
        bool sooner = first == NULL || job->priority > first->priority ||
                      (job->priority == first->priority && job->rest_ns <= first->rest_ns);
        first = job->rest_ns > 0 && sooner ? job : first;
        sum += job->rest_ns > 0;
    }
    for (hth_run_item *i = tenant->jobs.first; i != NULL; i = i->next) {
        hth_turns_job *job = (hth_turns_job *)i;
        job->rate = rate / sum * (job == first ? HTH_TURNS_FIRST : 1);
    }
}

static bool turns_works(const hth_turns_tenant *tenant)
{
    const hth_run_item *i = tenant->jobs.first;
    while (i != NULL && ((const hth_turns_job *)i)->rest_ns <= 0) {
        i = i->next;
    }
    return i != NULL;
}

// turns_rates divides the device among those that have not ended; false: nobody has a known end.
static bool turns_rates(const hth_turns *turns)
{
    double weights = 0;
    bool known = false;
    for (hth_run_item *t = turns->tenants.first; t != NULL; t = t->next) {
        weights += turns_works((hth_turns_tenant *)t) ? t->weight : 0;
    }
    for (hth_run_item *t = turns->tenants.first; t != NULL; t = t->next) {
        const hth_turns_tenant *tenant = (hth_turns_tenant *)t;
        turns_rate(tenant, weights > 0 ? t->weight / weights : 0);
        for (hth_run_item *i = tenant->jobs.first; i != NULL; i = i->next) {
            const hth_turns_job *job = (hth_turns_job *)i;
            known = known || (job->rest_ns > 0 && isfinite(job->rest_ns));
        }
    }
    return known;
}

// turns_first_end is the least time until a job ends at its present rate.
static double turns_first_end(const hth_turns *turns)
{
    double least = INFINITY;
    for (hth_run_item *t = turns->tenants.first; t != NULL; t = t->next) {
        for (hth_run_item *i = ((hth_turns_tenant *)t)->jobs.first; i != NULL; i = i->next) {
            const hth_turns_job *job = (hth_turns_job *)i;
            least = job->rest_ns > 0 ? fmin(least, job->rest_ns / job->rate) : least;
        }
    }
    return least;
}

// turns_pass has all jobs get on for `ns`; those that would end within a part of 1e-9 of it end.
static void turns_pass(const hth_turns *turns, double ns, double now_ns)
{
    for (hth_run_item *t = turns->tenants.first; t != NULL; t = t->next) {
        for (hth_run_item *i = ((hth_turns_tenant *)t)->jobs.first; i != NULL; i = i->next) {
            hth_turns_job *job = (hth_turns_job *)i;
            if (job->rest_ns > 0 && job->rest_ns <= ns * job->rate * (1 + 1e-9)) {
                job->rest_ns = 0;
                job->ends_ns = now_ns;
            }
            job->rest_ns = job->rest_ns > 0 ? job->rest_ns - ns * job->rate : 0;
        }
    }
}

void hth_turns_predict(const hth_turns *turns)
{
    double now_ns = 0;
    for (hth_run_item *t = turns->tenants.first; t != NULL; t = t->next) {
        for (hth_run_item *i = ((hth_turns_tenant *)t)->jobs.first; i != NULL; i = i->next) {
            hth_turns_job *job = (hth_turns_job *)i;
            job->rest_ns = job->need_ns;
            job->ends_ns = job->need_ns > 0 ? INFINITY : 0;
        }
    }
    while (turns_rates(turns)) {
        double ns = turns_first_end(turns);
        now_ns += ns;
        turns_pass(turns, ns, now_ns);
    }
}
