// SPDX-License-Identifier: Apache-2.0
// device/quota.h - a share of a device's processors: a thread that computes for it pauses until
// what it computed is that share of the time.
//
// Design notes
// The account is a token bucket of processor time, one for each thread that issues kernels; its
// team computes and pauses with it. Time of a thread, not the clock's: who waits for a processor,
// or for work, owes nothing. Credit is capped at HTH_QUOTA_CREDIT_NS, a debt is not: a kernel
// longer than that is paid for by pauses after it. Pauses below HTH_QUOTA_PAUSE_NS would cost more
// than they give. Both are small against 100 ms, so that the share is kept in any such window if
// kernels are short.
#ifndef HTH_DEVICE_QUOTA_H
#define HTH_DEVICE_QUOTA_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define HTH_QUOTA_CREDIT_NS 1000000u
#define HTH_QUOTA_PAUSE_NS  1000000u // the least
#define HTH_QUOTA_SLICE_NS  4000000u // a longer pause is cut here, so that its thread can answer

typedef struct hth_quota { // all zero at first
    bool begun;
    uint64_t now_ns, used_ns; // at the last call
    double credit_ns;         // processor time that may still be used; below 0: owed
} hth_quota;

// hth_quota_read reads a quota, "1%" to "100%", as percent. HTH_EINVAL.
hth_err hth_quota_read(const char *text, int *percent);
// hth_quota_due accounts for the time until now_ns, of which the thread computed until used_ns (its
// processor time so far), and returns how long it should pause, in ns; 0: not at all. `percent`: 1
// to 99.
uint64_t hth_quota_due(hth_quota *quota, int percent, uint64_t now_ns, uint64_t used_ns);
// hth_quota_pause has the calling thread pause for what it owes, HTH_QUOTA_SLICE_NS at most; true:
// it owes more. percent 100: it owes nothing, and what it uses is no debt of a later quota.
bool hth_quota_pause(int percent);

#endif
