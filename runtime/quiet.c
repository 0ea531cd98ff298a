// SPDX-License-Identifier: Apache-2.0
#include "runtime/quiet.h"

hth_quiet_is hth_quiet_look(hth_quiet *quiet, double share, uint64_t now_ns)
{
    uint64_t since_ns = now_ns - quiet->looked_ns;
    bool first = quiet->looked_ns == 0;
    if (share >= 1) {
        return HTH_QUIET_YES;
    }
    if (!first && since_ns < HTH_QUIET_LOOK_NS) {
        return HTH_QUIET_UNKNOWN;
    }
    bool read = hth_machine_read(&quiet->machine);
    quiet->looked_ns = now_ns;
    if (first || since_ns > HTH_QUIET_OLD_NS || !read) {
        return HTH_QUIET_UNKNOWN;
    }
    return quiet->machine.utilization <= share ? HTH_QUIET_YES : HTH_QUIET_NO;
}
