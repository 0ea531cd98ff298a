// SPDX-License-Identifier: Apache-2.0
#include "base/spin.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t spin_rests_ns;

uint64_t hth_real_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t hth_real_after(uint64_t timeout_ns)
{
    uint64_t now = hth_real_ns();
    return timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
}

void hth_spin(bool (*idle)(void *ctx), void *ctx, uint64_t until_ns)
{
    for (uint64_t now; idle(ctx) && (now = hth_real_ns()) < until_ns && now >= spin_rests_ns;) {
        sched_yield();
    }
}

void hth_spin_suspend(uint64_t until_ns)
{
    uint64_t old = spin_rests_ns;
    while (old < until_ns && !atomic_compare_exchange_weak(&spin_rests_ns, &old, until_ns)) {
    }
}

uint64_t hth_spin_suspended_until(void)
{
    return spin_rests_ns;
}
