// SPDX-License-Identifier: Apache-2.0
#include "device/quota.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

hth_err hth_quota_read(const char *text, int *percent)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || strcmp(end, "%") != 0 || v < 1 || v > 100) {
        return hth_fail(HTH_EINVAL, "quota '%.40s': expected 1%% to 100%%", text);
    }
    *percent = (int)v;
    return HTH_OK;
}

uint64_t hth_quota_due(hth_quota *quota, int percent, uint64_t now_ns, uint64_t used_ns)
{
    double share = percent / 100.0;
    if (quota->begun) {
        double passed = (double)(now_ns - quota->now_ns);
        double credit = quota->credit_ns - (double)(used_ns - quota->used_ns) + share * passed;
        quota->credit_ns = credit < HTH_QUOTA_CREDIT_NS ? credit : HTH_QUOTA_CREDIT_NS;
    }
    quota->begun = true;
    quota->now_ns = now_ns;
    quota->used_ns = used_ns;
    double pause = -quota->credit_ns / share;
    return pause >= HTH_QUOTA_PAUSE_NS ? (uint64_t)pause : 0;
}

static uint64_t quota_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool hth_quota_pause(int percent)
{
    static _Thread_local hth_quota quota;
    if (percent >= 100) { // what is used without a quota is no debt of the next one
        quota.begun = false;
        quota.credit_ns = 0;
        return false;
    }
    uint64_t due = hth_quota_due(&quota, percent, quota_clock(CLOCK_MONOTONIC),
                                 quota_clock(CLOCK_THREAD_CPUTIME_ID));
    uint64_t pause = due < HTH_QUOTA_SLICE_NS ? due : HTH_QUOTA_SLICE_NS;
    if (pause > 0) {
        nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
    }
    return due > pause;
}
