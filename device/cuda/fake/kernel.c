// SPDX-License-Identifier: Apache-2.0
// Kernels of the fake driver: functions compiled for the host from the same source (grid.h), run
// block by block, phase by phase, thread by thread. The order of blocks and of threads is forward
// or backward, as the seed says, and shared memory begins as NaNs: a kernel that relies on either
// gives other results. A launch that the real driver refuses is refused.
#include "device/cuda/fake/impl.h"

#include <stdlib.h>
#include <string.h>

#define FAKE_MAX_THREADS 1024u
#define FAKE_MAX_SHARED  (48u << 10) // without asking for more
#define FAKE_PARAMS      2048

static struct {
    const hth_cuda_body *const *list;
    int n;
    bool backward;
} bodies;

void hth_cuda_fake_bodies(const hth_cuda_body *const *list, int n)
{
    bodies.list = list;
    bodies.n = n;
}

void hth_cuda_fake_kernels_open(uint64_t seed)
{
    bodies.backward = seed % 2 != 0;
}

static CUresult fake_library_load(CUlibrary *out, const void *code, CUjit_option *options,
                                  void **values, unsigned n_options,
                                  CUlibraryOption *library_options, void **library_values,
                                  unsigned n_library_options)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    *out = (CUlibrary)(void *)&bodies;
    hth_cuda_fake_state()->live++;
    return CUDA_SUCCESS;
}

static CUresult fake_library_unload(CUlibrary library)
{
    hth_cuda_fake_state()->live--;
    return hth_cuda_fake_enter();
}

static CUresult fake_library_kernel(CUkernel *out, CUlibrary library, const char *name)
{
    FAKE_ENTER();
    for (int i = 0; i < bodies.n; i++) {
        if (strcmp(bodies.list[i]->name, name) == 0) {
            *out = (CUkernel)(void *)(uintptr_t)bodies.list[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

typedef struct fake_grid {
    const hth_cuda_body *body;
    unsigned blocks, threads, shared_bytes;
    _Alignas(16) char params[FAKE_PARAMS];
} fake_grid;

static hth_err grid_run(void *job)
{
    const fake_grid *g = job;
    float *shared = malloc(g->shared_bytes + 64);
    if (shared == NULL) {
        return HTH_ENOMEM;
    }
    for (unsigned b = 0; b < g->blocks; b++) {
        hth_grid t = {bodies.backward ? g->blocks - 1 - b : b, g->blocks, 0, g->threads};
        memset(shared, 0xFF, g->shared_bytes);
        for (int phase = 0; phase < g->body->n_phases; phase++) {
            for (unsigned k = 0; k < g->threads; k++) {
                t.thread = bodies.backward ? g->threads - 1 - k : k;
                g->body->run(g->params, &t, phase, shared);
            }
        }
    }
    free(shared);
    return HTH_OK;
}

static CUresult grid_launch(const hth_cuda_body *body, unsigned blocks, unsigned threads,
                            unsigned shared_bytes, CUstream stream, void **params)
{
    fake_grid g = {body, blocks, threads, shared_bytes, {0}};
    if (blocks == 0 || threads == 0 || threads > FAKE_MAX_THREADS ||
        shared_bytes > FAKE_MAX_SHARED || body->param_bytes > sizeof g.params) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(g.params, params[0], body->param_bytes);
    hth_cuda_fake_state()->launches++;
    return hth_cuda_fake_issue(stream, grid_run, &g, sizeof g);
}

// A function of a test's, with its pointer.
typedef struct fake_call {
    hth_cuda_fake_kernel *kernel;
    void *arg;
} fake_call;

static hth_err call_run(void *job)
{
    const fake_call *c = job;
    return c->kernel(c->arg);
}

static CUresult fake_launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void **params, void **extra)
{
    FAKE_ENTER();
    for (int i = 0; i < bodies.n; i++) {
        if ((const void *)f == bodies.list[i]) {
            return gy * gz * by * bz == 1
                       ? grid_launch(bodies.list[i], gx, bx, shared, stream, params)
                       : CUDA_ERROR_INVALID_VALUE;
        }
    }
    fake_call call = {.arg = *(void **)params[0]};
    memcpy(&call.kernel, &f, sizeof call.kernel);
    return hth_cuda_fake_issue(stream, call_run, &call, sizeof call);
}

void hth_cuda_fake_fill_kernels(hth_cuda_api *api)
{
    api->cuLibraryLoadData = fake_library_load;
    api->cuLibraryUnload = fake_library_unload;
    api->cuLibraryGetKernel = fake_library_kernel;
    api->cuLaunchKernel = fake_launch;
}
