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

#define HTH_TENANTS_MOST 1024

// What training steps took: of a tenant, or of one job.
typedef struct hth_train_share {
    double at;       // virtual time
    uint64_t ran;    // number of the last step
    uint64_t run_ns; // in all
} hth_train_share;

typedef struct hth_tenant {
    struct hth_tenant *next;
    char name[HTH_TENANT];
    hth_tenant_limits limits;
    hth_batch_flow flow; // its turns, and its requests that wait
    int jobs;            // in the queue of jobs
    hth_train_share steps;
    uint64_t refused; // requests and jobs, for a limit
} hth_tenant;

typedef struct hth_tenants {
    hth_tenant_rules rules;
    hth_tenant *list;
    int n;
    bool by_memory; // some rule limits memory
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

#endif
