// SPDX-License-Identifier: Apache-2.0
// A group seen from outside: by the queue of a member's device, and by who made it.
#include "group/watch.h"

#include "base/alloc.h"
#include "base/ipc/memfd.h"
#include "group/group_impl.h"

#include <errno.h>
#include <sys/mman.h>

struct hth_group_watch {
    group_region *region;
    int member;
};

hth_err hth_group_watch_open(int fd, int member, hth_group_watch **out)
{
    *out = NULL;
    HTH_TRY(hth_memfd_check(fd, sizeof(group_region)));
    group_region *region = group_map(fd, sizeof *region);
    if (region == NULL) {
        return hth_fail_errno(errno, "cannot map a group's shared memory");
    }
    if (!group_has(region, member)) {
        munmap(region, sizeof *region);
        return hth_fail(HTH_EINVAL, "there is no member %d in this group", member);
    }
    hth_group_watch *watch = hth_calloc(1, sizeof *watch);
    if (watch == NULL) {
        munmap(region, sizeof *region);
        return hth_no_memory("a job on several devices");
    }
    *watch = (hth_group_watch){region, member};
    *out = watch;
    return HTH_OK;
}

void hth_group_watch_close(hth_group_watch *watch)
{
    if (watch != NULL) {
        munmap(watch->region, sizeof *watch->region);
        hth_free(watch);
    }
}

uint64_t hth_group_watch_order(const hth_group_watch *watch)
{
    return watch->region->order;
}

bool hth_group_watch_over(const hth_group_watch *watch)
{
    return atomic_load(&watch->region->closed) != 0;
}

hth_err hth_group_watch_error(hth_group_watch *watch)
{
    group_region_lock(watch->region);
    hth_err err = group_region_error(watch->region);
    group_region_unlock(watch->region, false);
    return err;
}

bool hth_group_watch_paused(const hth_group_watch *watch)
{
    return atomic_load(&watch->region->paused) != 0;
}

void hth_group_watch_pause(hth_group_watch *watch, bool paused)
{
    if (atomic_exchange(&watch->region->paused, paused) != paused) {
        group_wake(watch->region);
    }
}

bool hth_group_watch_lacks(hth_group_watch *watch)
{
    group_region_lock(watch->region);
    bool lacks = group_lacks(watch->region);
    group_region_unlock(watch->region, false);
    return lacks;
}

static void watch_away(group_region *region, int member, bool gone)
{
    group_region_lock(region);
    region->seat[member].away = !gone;
    region->seat[member].gone = gone;
    region->seat[member].awaited &= !gone;
    group_region_unlock(region, true);
}

void hth_group_watch_away(hth_group_watch *watch)
{
    watch_away(watch->region, watch->member, false);
}

void hth_group_gone(int fd, int member)
{
    hth_group_watch *watch;
    if (hth_group_watch_open(fd, member, &watch) == HTH_OK) {
        watch_away(watch->region, member, true);
    }
    hth_group_watch_close(watch);
}
