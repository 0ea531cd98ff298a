// SPDX-License-Identifier: Apache-2.0
// device/cpu/team.h - the compute threads of the CPU device: one team, shared by our kernels and oneDNN's.
//
// Design notes
// Debian's oneDNN computes on libgomp's threads. A second pool of our own would spin against it for the same cores, so
// our kernels run on libgomp's team too, entered through its documented ABI entry GOMP_parallel: no -fopenmp, the same
// code with gcc and clang. libgomp keeps one team per calling thread: only the device's owner thread computes.
#ifndef HTH_DEVICE_CPU_TEAM_H
#define HTH_DEVICE_CPU_TEAM_H

#include <stddef.h>

// hth_team_set makes later calls from this thread (and oneDNN's) use n threads.
void hth_team_set(int n_threads);
int hth_team_size(void);
// hth_team_run calls fn(arg, i, n) on every thread i of n and returns when all have. Not from inside fn.
void hth_team_run(void (*fn)(void *arg, int i, int n), void *arg);
// hth_team_range splits [0, count) evenly: thread i of n gets [*begin, *end).
static inline void hth_team_range(size_t count, int i, int n, size_t *begin, size_t *end)
{
    *begin = count * (size_t)i / (size_t)n;
    *end = count * ((size_t)i + 1) / (size_t)n;
}

#endif
