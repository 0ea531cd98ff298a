// SPDX-License-Identifier: Apache-2.0
// server/net/tenant_parts.h - what each tenant has of something that is limited in number.
//
// Design notes
// A tenant may have no more than it leaves free: alone it gets half, two that want all get a third
// each, and whoever comes next always finds some (dynamic thresholds: Choudhury and Hahne,
// "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). A fixed half would
// let two tenants keep a third out, and a part by weight would be lost while others are away. Not
// thread-safe: its owner has a lock.
#ifndef HTH_SERVER_NET_TENANT_PARTS_H
#define HTH_SERVER_NET_TENANT_PARTS_H

#include "base/err.h"

#include <stdint.h>

typedef struct hth_tenant_part hth_tenant_part;

typedef struct hth_tenant_parts { // zeroed: nobody has any
    hth_tenant_part *by_name;
    int64_t n; // that tenants have
} hth_tenant_parts;

// What is limited, as the user reads it.
typedef struct hth_tenant_limited {
    const char *what;    // "watches of training jobs"
    const char *setting; // "limits.watches"
    int64_t most;
} hth_tenant_limited;

// hth_tenant_part_take gives a tenant another one. HTH_EBUSY: it has as many as are free; *out is
// NULL then, else it goes back by hth_tenant_part_give, once, while `parts` is there.
hth_err hth_tenant_part_take(hth_tenant_parts *parts, const char *tenant,
                             const hth_tenant_limited *limited, hth_tenant_part **out);
void hth_tenant_part_give(hth_tenant_part *part); // NULL is allowed

#endif
