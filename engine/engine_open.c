// SPDX-License-Identifier: Apache-2.0
// Opens the implementation that a configuration asks for.
#include "engine/engine.h"

#include "device/device.h"
#include "engine/engine_ops.h"
#include "engine/local/local.h"
#include "engine/process/proxy.h"
#include "engine/router/router.h"

hth_err hth_engine_open(const hth_engine_config *config, hth_store *store, hth_engine **out)
{
    hth_engine *e = NULL;
    *out = NULL;
    if (hth_router_several(config->device)) {
        HTH_TRY(hth_router_open(config, store, &e));
    } else if (config->child_store != NULL) {
        HTH_TRY(hth_proxy_open(config, &e));
    } else {
        HTH_TRY(hth_local_open(config, store, &e));
    }
    const char *device = config->device != NULL ? config->device : "cpu";
    if (hth_router_several(config->device) || config->inner ||
        hth_device_name(device, e->name, sizeof e->name) != HTH_OK) {
        e->name[0] = 0;
    }
    e->store = config->inner ? NULL : store;
    *out = e;
    return HTH_OK;
}
