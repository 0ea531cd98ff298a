// SPDX-License-Identifier: Apache-2.0
// base/clock.h - monotonic time, replaceable in tests so that no test sleeps.
#ifndef HTH_BASE_CLOCK_H
#define HTH_BASE_CLOCK_H

#include <stdint.h>

// hth_now_ns returns CLOCK_MONOTONIC in nanoseconds, or the injected clock's time. Any thread.
uint64_t hth_now_ns(void);
// hth_clock_inject makes hth_now_ns return fn(ctx) for the whole process; NULL restores the real
// clock.
void hth_clock_inject(uint64_t (*fn)(void *ctx), void *ctx);
// hth_ns_of is a computed time of `ns` nanoseconds as an integer: none below 0 or of NaN, and at
// most 9e18, 285 years, so that adding it to hth_now_ns does not overflow.
static inline uint64_t hth_ns_of(double ns)
{
    double most = ns < 9e18 ? ns : 9e18;
    return ns > 0 ? (uint64_t)most : 0;
}
// hth_sleep_until returns when hth_now_ns has reached `ns`, at once if it has. Any thread.
void hth_sleep_until(uint64_t ns);
// hth_sleep_inject has hth_sleep_until call fn(ctx, ns) for the whole process, which moves an
// injected clock or waits for it; NULL restores real sleep.
void hth_sleep_inject(void (*fn)(void *ctx, uint64_t ns), void *ctx);

#endif
