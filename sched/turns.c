// SPDX-License-Identifier: Apache-2.0
#include "sched/turns.h"

#include <stddef.h>

#define TURNS_SLICE_NS 1000000000u
// What a tenant may owe for what it computed beside its jobs: they wait for no longer than that.
#define TURNS_OWED_NS 1000000000u

void hth_turns_add(hth_turns *turns, hth_turns_job *job)
{
    job->item.credit_ns = job->tenant->item.credit_ns = HTH_RUN_CREDIT_ALL;
    hth_run_queue_add(&job->tenant->jobs, &job->item);
    hth_run_queue_add(&turns->tenants, &job->tenant->item);
}

void hth_turns_remove(hth_turns *turns, hth_turns_job *job)
{
    hth_run_queue_remove(&job->tenant->jobs, &job->item);
    if (job->tenant->jobs.first == NULL) {
        hth_run_queue_remove(&turns->tenants, &job->tenant->item);
    }
}

// Each item is the first member of what it stands for.
hth_turns_job *hth_turns_next(hth_turns *turns)
{
    uint64_t wake_ns; // nobody rests
    hth_turns_tenant *t = (hth_turns_tenant *)hth_run_queue_next(&turns->tenants, 0, &wake_ns);
    return t != NULL ? (hth_turns_job *)hth_run_queue_next(&t->jobs, 0, &wake_ns) : NULL;
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
