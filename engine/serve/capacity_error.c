// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/capacity_error.h"

#include "base/size.h"
#include "runtime/compile/compile.h"
#include "runtime/tenants/quota.h"
#include "runtime/job_memory.h"

#include <stdio.h>

typedef struct refusal {
    const hth_site *site;
    const hth_account *account;
    uint64_t whole, limit, left; // the device, what the tenant may have of it, what there is now
} refusal;

static hth_err refuse_now(const refusal *x, const char *why)
{
    const hth_site *site = x->site;
    uint64_t device = hth_job_memory_models(site);
    if (x->left < device) {
        return hth_fail(
            HTH_ENODEVMEM,
            "%s: it does not fit now: tenant '%s' may hold %llu bytes of device memory, and its "
            "jobs and pinned models leave %llu; retry when those end",
            why, x->account->tenant, (unsigned long long)x->limit, (unsigned long long)x->left);
    }
    return hth_fail(
        HTH_ENODEVMEM,
        "%s: it does not fit now: training jobs hold %llu bytes and pinned models %llu of "
        "the device's %llu; retry when jobs end or models are unloaded",
        why, (unsigned long long)(x->whole - device - site->pinned_bytes),
        (unsigned long long)site->pinned_bytes, (unsigned long long)x->whole);
}

static hth_err refuse_ever(const refusal *x, const char *why)
{
    if (x->limit < x->whole) {
        return hth_fail(HTH_ETOOBIG,
                        "%s: tenant '%s' may hold %llu bytes of device memory; a smaller "
                        "batch needs less",
                        why, x->account->tenant, (unsigned long long)x->limit);
    }
    return hth_fail(HTH_ETOOBIG,
                    "%s: more than this device's %s; use a smaller batch, or hearthd --device "
                    "cpu:mem=SIZE with more memory",
                    why, hth_size_of(x->whole).text);
}

hth_err hth_capacity_error_refuse(hth_site *site, hth_source *source, const hth_tensor *inputs)
{
    char why[360];
    refusal x = {site, source->account, site->device->props.budget_bytes,
                 hth_quota_limit(site, source->account), hth_quota_models(site, source->account)};
    uint64_t most = x.limit < x.whole ? x.limit : x.whole;
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (x.left < most) {
        hth_program *p;
        hth_err err = hth_program_compile(site, source, inputs, most, false, NULL, &p);
        if (err == HTH_OK) {
            uint64_t weights, arena;
            hth_program_ledger(p, &weights, &arena);
            hth_program_free(site, p);
            site->refused_over = x.left > 0 ? x.left : 1;
            site->refused_bytes = x.left < hth_job_memory_models(site) ? 0 : weights + arena;
            return refuse_now(&x, why);
        }
        if (err != HTH_ETOOBIG) {
            return err;
        }
        snprintf(why, sizeof why, "%s", hth_err_detail());
    }
    return refuse_ever(&x, why);
}
