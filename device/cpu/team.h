// SPDX-License-Identifier: Apache-2.0
// device/cpu/team.h - the compute threads of the CPU device: one team, shared by our kernels and
// oneDNN's.
//
// Design notes
// What is better than libgomp's threads here: they spin briefly and then sleep (libgomp's spin for
// milliseconds, which, when another process wants the core, keeps the very thread from running that
// is waited for), and a thread that finished its share takes over one that nobody has begun.
// oneDNN, which computes by OpenMP, gets this team instead of libgomp's (device/cpu/onednn.h).
#ifndef HTH_DEVICE_CPU_TEAM_H
#define HTH_DEVICE_CPU_TEAM_H

#include <stdbool.h>
#include <stddef.h>

// hth_team_set makes later calls from this thread (and oneDNN's) use n threads. The team belongs to
// the calling thread and ends with it.
void hth_team_set(int n_threads);
int hth_team_size(void);
// hth_team_keep has the calling thread's team keep their processors where threads of the lowest
// priority want them, too: they do not yield while they wait for each other (at most some tens of
// microseconds, then they sleep), and have the turns of quantum.h. The scheduler gives who is
// yielded to, or has a turn, a whole tick, milliseconds, however low its priority. Cheap where
// nothing changes.
void hth_team_keep(bool on);

typedef struct hth_team hth_team;
// hth_team_open starts the calling thread's team, at the size that was set, which stays the
// largest; NULL: the thread is alone. The team ends with the thread.
hth_team *hth_team_open(void);
// hth_team_low has the workers run only while no other thread wants the processor, and its owner
// keep off their processors from its next region on: the system moves threads of the lowest
// priority late, and a team with two of them on one processor takes twice as long. There is no way
// back without privileges. Any thread.
void hth_team_low(hth_team *team);
// hth_team_run calls fn(arg, i, n) once for every i of 0..n-1, on n threads or fewer, and returns
// when all have. Called inside fn it runs on the calling thread alone.
void hth_team_run(void (*fn)(void *arg, int i, int n), void *arg);
// hth_team_range splits [0, count) evenly: thread i of n gets [*begin, *end).
static inline void hth_team_range(size_t count, int i, int n, size_t *begin, size_t *end)
{
    *begin = count * (size_t)i / (size_t)n;
    *end = count * ((size_t)i + 1) / (size_t)n;
}

// What OpenMP's functions mean to the calling thread, for the plug-in that has oneDNN.
typedef struct hth_team_omp {
    bool (*here)(void); // whether hth_team_set was ever called on this thread, or it is a worker
    void (*parallel)(void (*fn)(void *data), void *data, unsigned n_threads); // 0: the team's size
    void (*barrier)(void);
    int (*size)(void);
    int (*n)(void), (*share)(void), (*inside)(void); // of the region that runs; 1, 0, 0: none
} hth_team_omp;
extern const hth_team_omp hth_team_openmp;

#endif
