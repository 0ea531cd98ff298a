// SPDX-License-Identifier: Apache-2.0
// tests/rig/site_rig.h - a site without an engine's thread, on a store of its own.
#ifndef HTH_TESTS_RIG_SITE_RIG_H
#define HTH_TESTS_RIG_SITE_RIG_H

#include "engine/serve/infer.h"
#include "engine/serve/version_swap.h"
#include "tests/rig/engine_call.h"

#include <stdlib.h>

typedef struct site_rig {
    char dir[64];
    hth_store *store;
    hth_site site;
    hth_models models;
} site_rig;

// site_rig_open: measurements go to `cache`, the caller's.
static inline void site_rig_open(site_rig *r, const hth_timing_cache *cache)
{
    memset(r, 0, sizeof *r);
    strcpy(r->dir, "/tmp/hearth-site-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    assert_ok(hth_store_open(r->dir, true, false, &r->store));
    assert_ok(hth_device_open("cpu:mem=64MiB,threads=1", &r->site.device));
    assert_ok(hth_pool_open(r->site.device, r->site.device->props.budget_bytes, &r->site.pool));
    assert_ok(hth_residency_open(r->site.pool, &r->site.residency));
    r->site.tolerance = 1e-3;
    r->site.timings = cache;
    r->site.link_bytes_per_s = r->site.link_back_bytes_per_s = 2e9;
    r->models =
        (hth_models){.store = r->store, .site = &r->site, .changed = hth_version_swap_check};
}

static inline void site_rig_close(site_rig *r)
{
    hth_models_fini(&r->models);
    hth_residency_close(r->site.residency);
    hth_pool_close(r->site.pool);
    hth_device_close(r->site.device);
    hth_store_close(r->store);
    assert_int_equal(test_remove(r->dir), 0);
}

#endif
