// SPDX-License-Identifier: Apache-2.0
// device/cpu/team.h - the compute threads of the CPU device: one team, shared by our kernels and
// oneDNN's.
//
// Design notes
// Debian's oneDNN computes by OpenMP: it calls six functions of libgomp's stable ABI
// (GOMP_parallel, GOMP_barrier, four omp_get_*). team.c defines these six, so that oneDNN's
// parallel regions run on this team and no second pool spins for the same cores. On a thread that
// never called hth_team_set they hand over to the real libgomp: other users of OpenMP in the
// process see no difference. What is better than libgomp's here: threads spin briefly and then
// sleep (libgomp spins for milliseconds, which, when another process wants the core, keeps the very
// thread from running that is waited for), and a thread that finished its share takes over one that
// nobody has begun.
#ifndef HTH_DEVICE_CPU_TEAM_H
#define HTH_DEVICE_CPU_TEAM_H

#include <stddef.h>

// hth_team_set makes later calls from this thread (and oneDNN's) use n threads. The team belongs to
// the calling thread and ends with it.
void hth_team_set(int n_threads);
int hth_team_size(void);
// hth_team_run calls fn(arg, i, n) once for every i of 0..n-1, on n threads or fewer, and returns
// when all have. Called inside fn it runs on the calling thread alone.
void hth_team_run(void (*fn)(void *arg, int i, int n), void *arg);
// hth_team_range splits [0, count) evenly: thread i of n gets [*begin, *end).
static inline void hth_team_range(size_t count, int i, int n, size_t *begin, size_t *end)
{
    *begin = count * (size_t)i / (size_t)n;
    *end = count * ((size_t)i + 1) / (size_t)n;
}

#endif
