// SPDX-License-Identifier: Apache-2.0
#include "group/members.h"

json_t *hth_group_members(hth_group *group, const int64_t shards[HTH_GROUP_MEMBERS])
{
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    json_t *rows = json_array();
    int members = hth_group_seats(group, seat);
    for (int i = 0; i < members; i++) {
        json_array_append_new(rows, json_pack("{s:i, s:I, s:f, s:f, s:b}", "member", i, "samples",
                                              (json_int_t)shards[i], "sample_ms",
                                              seat[i].sample_us / 1e3, "fixed_ms",
                                              seat[i].fixed_us / 1e3, "joined", seat[i].joined));
    }
    return rows;
}
