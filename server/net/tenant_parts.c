// SPDX-License-Identifier: Apache-2.0
#include "server/net/tenant_parts.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "runtime/tenants/tenant_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct hth_tenant_part {
    hth_tenant_parts *of;
    char tenant[HTH_TENANT];
    int64_t n;
    UT_hash_handle hh; // by tenant
};

// part_find returns the tenant's part, made if it has none; NULL: out of memory.
static hth_tenant_part *part_find(hth_tenant_parts *parts, const char *tenant)
{
    hth_tenant_part *part;
    HASH_FIND_STR(parts->by_name, tenant, part);
    if (part == NULL && (part = hth_calloc(1, sizeof *part)) != NULL) {
        part->of = parts;
        snprintf(part->tenant, sizeof part->tenant, "%s", tenant);
        HASH_ADD_STR(parts->by_name, tenant, part);
        if (!HTH_HASH_ADDED(part)) {
            hth_free(part);
            part = NULL;
        }
    }
    return part;
}

static void part_drop(hth_tenant_part *part)
{
    if (part->n == 0) {
        HASH_DEL(part->of->by_name, part);
        hth_free(part);
    }
}

hth_err hth_tenant_part_take(hth_tenant_parts *parts, const char *tenant,
                             const hth_tenant_limited *limited, hth_tenant_part **out)
{
    *out = NULL;
    hth_tenant_part *part = part_find(parts, tenant);
    if (part == NULL) {
        return hth_no_memory("what tenants have");
    }
    int64_t has = part->n, free = limited->most > parts->n ? limited->most - parts->n : 0;
    if (has >= free) {
        part_drop(part);
        return hth_fail(HTH_EBUSY,
                        "tenant '%s' has %" PRId64 " %s, and %" PRId64 " are free (%s = %" PRId64
                        "): it may have as many as it leaves free; "
                        "try again when one has ended",
                        tenant, has, limited->what, free, limited->setting, limited->most);
    }
    part->n++;
    parts->n++;
    *out = part;
    return HTH_OK;
}

void hth_tenant_part_give(hth_tenant_part *part)
{
    if (part != NULL) {
        part->n--;
        part->of->n--;
        part_drop(part);
    }
}
