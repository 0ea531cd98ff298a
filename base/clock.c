// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <stddef.h>
#include <time.h>

static uint64_t (*clock_fn)(void *ctx);
static void *clock_ctx;

uint64_t hth_now_ns(void)
{
    if (clock_fn != NULL) {
        return clock_fn(clock_ctx);
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void hth_clock_inject(uint64_t (*fn)(void *ctx), void *ctx)
{
    clock_fn = fn;
    clock_ctx = ctx;
}
