// SPDX-License-Identifier: Apache-2.0
#include "sched/turns.h"

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
