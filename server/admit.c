// SPDX-License-Identifier: Apache-2.0
#include "server/admit.h"

#include "server/share.h"

#include <stdio.h>

hth_err hth_admit_refuse(hth_site *site, hth_source *s, const hth_tensor *inputs)
{
    char why[400];
    uint64_t whole = site->device->props.budget_bytes, left = hth_share_models(site);
    snprintf(why, sizeof why, "%s", hth_err_detail());
    if (left < whole) {
        hth_program *p;
        hth_err err = hth_program_compile(site, s, inputs, whole, false, NULL, &p);
        if (err == HTH_OK) {
            uint64_t jobs = whole - left - site->pinned_bytes, weights, arena;
            hth_program_ledger(p, &weights, &arena);
            hth_program_free(site, p);
            site->refused_over = left;
            site->refused_bytes = weights + arena;
            return hth_fail(HTH_ENODEVMEM,
                            "%s: not now, training jobs hold %llu bytes and pinned models %llu of "
                            "the device's %llu; it fits when jobs end, or models are unloaded",
                            why, (unsigned long long)jobs, (unsigned long long)site->pinned_bytes,
                            (unsigned long long)whole);
        }
        if (err != HTH_ETOOBIG) {
            return err;
        }
        snprintf(why, sizeof why, "%s", hth_err_detail());
    }
    return hth_fail(HTH_ETOOBIG,
                    "%s: never on this device, of %llu bytes; a smaller batch needs less, and "
                    "hearthd --device cpu:mem=SIZE gives more",
                    why, (unsigned long long)whole);
}
