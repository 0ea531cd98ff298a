// SPDX-License-Identifier: Apache-2.0
// group/members.h - the members of a group, as a job's document has them.
#ifndef HTH_GROUP_MEMBERS_H
#define HTH_GROUP_MEMBERS_H

#include "group/group.h"

#include <jansson.h>

// hth_group_members is [{"member", "samples", "sample_ms", "joined"}, ..] as it is now, with
// everybody's shard of a whole batch; the caller's. NULL: there is no memory for it. It may come at
// any time, as hth_group_seats.
json_t *hth_group_members(hth_group *group, const int64_t shards[HTH_GROUP_MEMBERS]);

#endif
