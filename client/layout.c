// SPDX-License-Identifier: Apache-2.0
#include "client/layout.h"

uint64_t hth_ring_layout_lane(const hth_ring_layout *l, uint32_t lane)
{
    return hth_ring_bytes(l->request_bytes) + lane * (uint64_t)hth_ring_bytes(l->lane_bytes);
}

uint64_t hth_ring_layout_bytes(const hth_ring_layout *l)
{
    bool good = hth_ring_bytes(l->request_bytes) != 0 && hth_ring_bytes(l->lane_bytes) != 0 &&
                l->lanes > 0 && l->lanes <= HTH_MAX_LANES;
    return good ? hth_ring_layout_lane(l, l->lanes) : 0;
}
