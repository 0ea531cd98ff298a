// SPDX-License-Identifier: Apache-2.0
// The part of OpenMP's ABI that oneDNN calls, as the program's team does it. A thread that has no
// team, because it never computed for hearth, gets the real libgomp: others in the process may use
// the same oneDNN.
#include "kernels/dnnl/entry.h"

#include <dlfcn.h>

#define OMP_ABI __attribute__((visibility("default")))
OMP_ABI void GOMP_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);
OMP_ABI void GOMP_barrier(void);
OMP_ABI int omp_get_max_threads(void);
OMP_ABI int omp_get_num_threads(void);
OMP_ABI int omp_get_thread_num(void);
OMP_ABI int omp_in_parallel(void);

static const hth_team_omp *team;

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static void omp_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags)
{
    void (*next)(void (*)(void *), void *, unsigned, unsigned) = NULL;
    if (!team->here()) {
        *(void **)&next = real("GOMP_parallel");
    }
    if (next != NULL) {
        next(fn, data, n_threads, flags);
    } else {
        team->parallel(fn, data, n_threads);
    }
}

void GOMP_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags)
{
    omp_parallel(fn, data, n_threads, flags);
}

void GOMP_barrier(void)
{
    void (*next)(void) = NULL;
    if (!team->here()) {
        *(void **)&next = real("GOMP_barrier");
    }
    if (next != NULL) {
        next();
    } else {
        team->barrier();
    }
}

static int omp_number(const char *name, int (*ours)(void))
{
    int (*next)(void) = NULL;
    if (!team->here()) {
        *(void **)&next = real(name);
    }
    return next != NULL ? next() : ours();
}

int omp_get_max_threads(void)
{
    return omp_number("omp_get_max_threads", team->size);
}

int omp_get_num_threads(void)
{
    return omp_number("omp_get_num_threads", team->n);
}

int omp_get_thread_num(void)
{
    return omp_number("omp_get_thread_num", team->share);
}

int omp_in_parallel(void)
{
    return omp_number("omp_in_parallel", team->inside);
}

// Another OpenMP may stand before: a program that is itself linked with one.
bool hth_dnnl_openmp(const hth_team_omp *omp)
{
    Dl_info ours, found;
    void *at = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    team = omp;
    return at != NULL && dladdr((void *)omp_parallel, &ours) != 0 && dladdr(at, &found) != 0 &&
           ours.dli_fbase == found.dli_fbase;
}
