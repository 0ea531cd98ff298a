// SPDX-License-Identifier: Apache-2.0
// runtime/tenants/tenant.h - those who ask an engine for something, by name, with what they may
// have (tenant_rules.h) and what they have. Engine's thread only.
//
// A tenant is made when it is first asked for and stays as long as the engine. Behind
// HTH_TENANTS_MOST of them all others are one, "others".
#ifndef HTH_RUNTIME_TENANTS_TENANT_H
#define HTH_RUNTIME_TENANTS_TENANT_H

#include "runtime/batching.h"
#include "runtime/tenants/tenant_rules.h"
#include "sched/turns.h"

#define HTH_TENANTS_MOST 1024

// What a tenant had lately: a moving average over HTH_TENANT_LATELY_NS.
#define HTH_TENANT_LATELY_NS 10000000000u
typedef struct hth_tenant_lately {
    double device_ns, link_ns; // of that time, at at_ns
    uint64_t at_ns;
} hth_tenant_lately;

typedef struct hth_tenant {
    struct hth_tenant *next;
    char name[HTH_TENANT];
    hth_tenant_limits limits;
    hth_batch_flow flow;    // its turns among requests, and those that wait
    int jobs;               // in the queue of jobs
    hth_turns_tenant turns; // its account: what its requests and its jobs took
    hth_tenant_lately lately;
    uint64_t refused; // requests and jobs, for a limit
} hth_tenant;

typedef struct hth_tenants {
    hth_tenant_rules rules;
    hth_tenant *list;
    int n;
    bool by_memory; // some rule limits memory
    uint64_t reads; // of the rules
} hth_tenants;

// hth_tenants_read takes the rules of the file that tenant.file names; on error they stay as they
// are.
hth_err hth_tenants_read(hth_tenants *tenants);
void hth_tenants_fini(hth_tenants *tenants);
// hth_tenant_of finds or makes a tenant; NULL: `tenants` is, or out of memory: without limits then.
// name NULL: the server itself.
hth_tenant *hth_tenant_of(hth_tenants *tenants, const char *name);
// hth_tenant_waits: HTH_EBUSY: as many of its requests wait as may. hth_tenant_trains: HTH_EBUSY:
// it may have no job at work, ever; one that is above the limit waits. NULL may always.
hth_err hth_tenant_waits(hth_tenant *tenant);
hth_err hth_tenant_trains(hth_tenant *tenant);

// hth_tenant_of_flow is whose flow that is, which is a tenant's.
hth_tenant *hth_tenant_of_flow(hth_batch_flow *flow);
// hth_tenant_ran counts what it had of the device until now, and of its link, for its share of
// late.
void hth_tenant_ran(hth_tenant *tenant, uint64_t device_ns, uint64_t link_ns, uint64_t now_ns);
// hth_tenant_share stores its shares of the device's and the link's time of late, 0 to 1.
void hth_tenant_share(const hth_tenant *tenant, uint64_t now_ns, double *device, double *link);

#endif
