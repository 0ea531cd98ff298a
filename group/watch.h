// SPDX-License-Identifier: Apache-2.0
// group/watch.h - a group as the queue of a member's device sees it, whether that member is at work
// there or waits for memory.
//
// Design notes
// A member that is at work holds its device's memory also while its group waits for another one,
// which perhaps waits for memory elsewhere. So that groups do not wait for each other for ever,
// members give their memory back for older groups, and come again: the group waits for them. Which
// group is older is the same everywhere; all else is each queue's own decision.
#ifndef HTH_GROUP_WATCH_H
#define HTH_GROUP_WATCH_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_group_watch hth_group_watch;

// hth_group_watch_open looks at the group in the region `fd`, which stays the caller's, for member
// `member`. HTH_EINVAL: it has none of that number.
hth_err hth_group_watch_open(int fd, int member, hth_group_watch **out);
void hth_group_watch_close(hth_group_watch *watch); // NULL is allowed

// hth_group_watch_order: older groups have smaller numbers, no two the same.
uint64_t hth_group_watch_order(const hth_group_watch *watch);
// hth_group_watch_over: the group has ended, its member has nothing more to do.
bool hth_group_watch_over(const hth_group_watch *watch);
// hth_group_watch_error is why the group was ended, with its sentence; HTH_OK: its work is done.
hth_err hth_group_watch_error(hth_group_watch *watch);
// hth_group_watch_pause notes that the group's job is paused or waits for another job, or not any
// more: its members need no memory then.
void hth_group_watch_pause(hth_group_watch *watch, bool paused);
bool hth_group_watch_paused(const hth_group_watch *watch);
// hth_group_watch_lacks: no round can begin, because somebody is not there.
bool hth_group_watch_lacks(hth_group_watch *watch);
// hth_group_watch_away: the member leaves now, and comes again. No round begins without it.
void hth_group_watch_away(hth_group_watch *watch);

#endif
