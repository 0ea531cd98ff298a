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
static inline void site_rig_open(site_rig *rig, const hth_timing_cache *cache)
{
    memset(rig, 0, sizeof *rig);
    strcpy(rig->dir, "/tmp/hearth-site-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    assert_ok(hth_store_open(rig->dir, true, false, &rig->store));
    assert_ok(hth_device_open("cpu:mem=64MiB,threads=1", &rig->site.device));
    assert_ok(
        hth_pool_open(rig->site.device, rig->site.device->props.budget_bytes, &rig->site.pool));
    assert_ok(hth_residency_open(rig->site.pool, &rig->site.residency));
    rig->site.tolerance = 1e-3;
    rig->site.timings = cache;
    rig->site.link_bytes_per_s = rig->site.link_back_bytes_per_s = 2e9;
    rig->models =
        (hth_models){.store = rig->store, .site = &rig->site, .changed = hth_version_swap_check};
}

static inline void site_rig_close(site_rig *rig)
{
    hth_models_fini(&rig->models);
    hth_residency_close(rig->site.residency);
    hth_pool_close(rig->site.pool);
    hth_device_close(rig->site.device);
    hth_store_close(rig->store);
    assert_int_equal(test_remove(rig->dir), 0);
}

#endif
