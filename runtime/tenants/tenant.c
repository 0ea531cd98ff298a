// SPDX-License-Identifier: Apache-2.0
#include "runtime/tenants/tenant.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/settings.h"
#include "runtime/request.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void tenant_limit(const hth_tenants *all, hth_tenant *tenant)
{
    tenant->limits = hth_tenant_rules_of(&all->rules, tenant->name);
    tenant->flow.weight = tenant->limits.weight;
    tenant->turns.item.weight = tenant->limits.weight;
}

hth_err hth_tenants_read(hth_tenants *tenants)
{
    char path[HTH_SETTING_TEXT];
    hth_tenant_rules fresh;
    HTH_TRY(hth_tenant_rules_read(hth_setting_text(HTH_SET_TENANT_FILE, path), &fresh));
    hth_tenant_rules_fini(&tenants->rules);
    tenants->rules = fresh;
    tenants->reads++;
    tenants->by_memory = false;
    for (int i = 0; i < fresh.n; i++) {
        tenants->by_memory =
            tenants->by_memory || fresh.list[i].limits.memory_bytes != HTH_TENANT_NEVER;
    }
    for (hth_tenant *x = tenants->list; x != NULL; x = x->next) {
        tenant_limit(tenants, x);
    }
    hth_log(INFO, SERVER, "tenants", "file=%s n=%d", path, fresh.n);
    return HTH_OK;
}

void hth_tenants_fini(hth_tenants *tenants)
{
    for (hth_tenant *x = tenants->list, *next; x != NULL; x = next) {
        next = x->next;
        hth_free(x);
    }
    hth_tenant_rules_fini(&tenants->rules);
    *tenants = (hth_tenants){.list = NULL};
}

static hth_tenant *tenant_find(const hth_tenants *tenants, const char *name)
{
    hth_tenant *x = tenants->list;
    while (x != NULL && strcmp(x->name, name) != 0) {
        x = x->next;
    }
    return x;
}

hth_tenant *hth_tenant_of(hth_tenants *tenants, const char *name)
{
    name = name != NULL ? name : HTH_TENANT_OWN;
    hth_tenant *x = tenants != NULL ? tenant_find(tenants, name) : NULL;
    if (tenants == NULL || x != NULL) {
        return x;
    }
    if (tenants->n >= HTH_TENANTS_MOST && strcmp(name, "others") != 0) {
        return hth_tenant_of(tenants, "others");
    }
    x = hth_calloc(1, sizeof *x);
    if (x != NULL) {
        snprintf(x->name, sizeof x->name, "%s", name);
        tenant_limit(tenants, x);
        x->next = tenants->list;
        tenants->list = x;
        tenants->n++;
    }
    return x;
}

static hth_err tenant_limited(hth_tenant *tenant, const char *what, int64_t used, int64_t limit)
{
    if (used < limit) {
        return HTH_OK;
    }
    tenant->refused++;
    return hth_fail(HTH_EBUSY, "tenant '%s' has %lld %s, its limit is %lld", tenant->name,
                    (long long)used, what, (long long)limit);
}

hth_err hth_tenant_waits(hth_tenant *tenant)
{
    return tenant == NULL
               ? HTH_OK
               : tenant_limited(tenant, "requests waiting", tenant->flow.n + tenant->flow.away,
                                tenant->limits.waiting);
}

hth_err hth_tenant_trains(hth_tenant *tenant)
{
    return tenant == NULL || tenant->limits.jobs > 0 ? HTH_OK
                                                     : tenant_limited(tenant, "jobs", 0, 0);
}

hth_tenant *hth_tenant_of_flow(hth_batch_flow *flow)
{
    return (hth_tenant *)((char *)flow - offsetof(hth_tenant, flow));
}

// lately_left is how much of what was counted then still counts.
static double lately_left(const hth_tenant_lately *lately, uint64_t now_ns)
{
    double ago_ns = now_ns > lately->at_ns ? (double)(now_ns - lately->at_ns) : 0;
    return exp(-ago_ns / HTH_TENANT_LATELY_NS);
}

void hth_tenant_ran(hth_tenant *tenant, uint64_t device_ns, uint64_t link_ns, uint64_t now_ns)
{
    hth_tenant_lately *l = &tenant->lately;
    double left = lately_left(l, now_ns);
    l->device_ns = l->device_ns * left + (double)device_ns;
    l->link_ns = l->link_ns * left + (double)link_ns;
    l->at_ns = now_ns;
}

void hth_tenant_share(const hth_tenant *tenant, uint64_t now_ns, double *device, double *link)
{
    double left = lately_left(&tenant->lately, now_ns) / HTH_TENANT_LATELY_NS;
    *device = fmin(1, tenant->lately.device_ns * left);
    *link = fmin(1, tenant->lately.link_ns * left);
}
