// SPDX-License-Identifier: Apache-2.0
// The team is libgomp's: entered through GOMP_parallel, the function that gcc's own `#pragma omp
// parallel` calls (its signature is part of libgomp's stable ABI, version GOMP_4.0). Declaring the
// four entries by hand keeps -fopenmp, and with it the choice of compiler, out of the build.
// Threads: each calling thread has a team of its own.
#include "device/cpu/team.h"

void GOMP_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);
void omp_set_num_threads(int n);
int omp_get_max_threads(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);

typedef struct team_call {
    void (*fn)(void *arg, int i, int n);
    void *arg;
} team_call;

void hth_team_set(int n_threads)
{
    omp_set_num_threads(n_threads < 1 ? 1 : n_threads);
}

int hth_team_size(void)
{
    return omp_get_max_threads();
}

static void team_enter(void *data)
{
    const team_call *c = data;
    c->fn(c->arg, omp_get_thread_num(), omp_get_num_threads());
}

void hth_team_run(void (*fn)(void *arg, int i, int n), void *arg)
{
    int n = omp_get_max_threads();
    if (n == 1) {
        fn(arg, 0, 1);
        return;
    }
    team_call c = {fn, arg};
    GOMP_parallel(team_enter, &c, (unsigned)n, 0);
}
