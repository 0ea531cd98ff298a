// SPDX-License-Identifier: Apache-2.0
#include "base/pace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static _Thread_local hth_pace *pace_now;

hth_pace *hth_pace_enter(hth_pace *pace)
{
    hth_pace *before = pace_now;
    pace_now = pace;
    return before;
}

void hth_pace_leave(hth_pace *before)
{
    pace_now = before;
}

hth_pace *hth_pace_now(void)
{
    return pace_now;
}

// pace_end notes that the work ended with the thread's present sentence.
static hth_err pace_end(hth_pace *pace, hth_err err)
{
    pace->err = err;
    snprintf(pace->detail, sizeof pace->detail, "%s", hth_err_detail());
    return err;
}

static hth_err pace_exceeds(hth_pace *pace, const char *what, uint64_t has, uint64_t most)
{
    pace->over = true;
    return pace_end(pace, hth_fail(HTH_ETOOBIG,
                                   "it takes more than %" PRIu64 " %s (at least %" PRIu64 ")", most,
                                   what, has));
}

// pace_turn lets others have their turn. What they do is counted by nobody here.
static hth_err pace_turn(hth_pace *pace)
{
    pace->turned = pace->work;
    if (pace->turn == NULL) {
        return HTH_OK;
    }
    pace_now = NULL;
    hth_err err = pace->turn(pace->ctx);
    pace_now = pace;
    return err == HTH_OK ? HTH_OK : pace_end(pace, err);
}

static hth_err pace_count(hth_pace *pace, uint64_t work)
{
    if (pace->err != HTH_OK) {
        return hth_fail(pace->err, "%s", pace->detail);
    }
    if (__builtin_add_overflow(pace->work, work, &pace->work)) {
        pace->work = UINT64_MAX;
    }
    if (pace->work > pace->most_work) {
        return pace_exceeds(pace, "operations", pace->work, pace->most_work);
    }
    return pace->work - pace->turned < HTH_PACE_QUANTUM ? HTH_OK : pace_turn(pace);
}

hth_err hth_pace_step(uint64_t work)
{
    hth_pace *p = pace_now;
    return p == NULL ? HTH_OK : pace_count(p, work);
}

bool hth_pace_over(uint64_t work)
{
    hth_pace *p = pace_now;
    return p != NULL && pace_count(p, work) != HTH_OK;
}

hth_err hth_pace_fill(void *to, const void *from, size_t bytes)
{
    size_t most = pace_now != NULL ? HTH_PACE_QUANTUM : SIZE_MAX;
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < most ? bytes - at : most;
        HTH_TRY(hth_pace_step(n));
        if (from != NULL) {
            memcpy((char *)to + at, (const char *)from + at, n);
        } else {
            memset((char *)to + at, 0, n);
        }
    }
    return HTH_OK;
}

hth_err hth_pace_take(uint64_t bytes)
{
    hth_pace *p = pace_now;
    if (p == NULL) {
        return HTH_OK;
    }
    if (p->err != HTH_OK) {
        return hth_fail(p->err, "%s", p->detail);
    }
    if (__builtin_add_overflow(p->bytes, bytes, &p->bytes)) {
        p->bytes = UINT64_MAX;
    }
    return p->bytes <= p->most_bytes ? HTH_OK
                                     : pace_exceeds(p, "bytes to work in", p->bytes, p->most_bytes);
}
