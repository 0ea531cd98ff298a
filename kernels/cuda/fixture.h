// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/fixture.h - the cases of kernels/cpu's tests on CUDA's kernels, over the fake
// driver: included before such a test's source. Kernels are prepared on a CUDA device and waited
// for after each run; a case's buffers are host memory, which the kernels' host form may touch.
// Cases in other layouts than plain are run plain, with the same tolerance. What is refused is
// counted and printed.
#ifndef HTH_KERNELS_CUDA_FIXTURE_H
#define HTH_KERNELS_CUDA_FIXTURE_H

#include "base/alloc.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fake/fake.h"

#include <stdlib.h>

typedef struct cuda_wrapped {
    hth_kernel base;
    hth_kernel *inner;
} cuda_wrapped;

static hth_device *cuda_test_device;
static int cuda_test_ran, cuda_test_refused;

__attribute__((destructor)) static void cuda_test_end(void)
{
    printf("# on CUDA's kernels: %d cases ran, %d were refused\n", cuda_test_ran,
           cuda_test_refused);
}

static inline hth_err cuda_wrapped_run(const hth_kernel *k, const hth_kernel_args *a)
{
    const cuda_wrapped *w = (const cuda_wrapped *)k;
    hth_cuda *d = (hth_cuda *)cuda_test_device;
    HTH_TRY(w->inner->run(w->inner, a));
    return HTH_CUDA(d, cuStreamSynchronize, d->current);
}

static inline void cuda_wrapped_close(hth_kernel *k)
{
    hth_kernel_close(((cuda_wrapped *)k)->inner);
    free(k);
}

static inline hth_err cuda_test_prepare(const hth_graph *g, const hth_node *n,
                                        const char *algorithm, hth_kernel **out)
{
    hth_kernel *inner;
    *out = NULL;
    if (cuda_test_device == NULL && (hth_cuda_fake_engine_open(7, (uint64_t)64 << 20) == NULL ||
                                     hth_device_open("cuda:0", &cuda_test_device) != HTH_OK)) {
        return HTH_EIO;
    }
    HTH_TRY(hth_kernel_prepare(cuda_test_device, g, n, algorithm, &inner));
    cuda_wrapped *w = calloc(1, sizeof *w);
    if (w == NULL) {
        hth_kernel_close(inner);
        return HTH_ENOMEM;
    }
    w->base = *inner;
    w->base.run = cuda_wrapped_run;
    w->base.close = cuda_wrapped_close;
    w->inner = inner;
    *out = &w->base;
    return HTH_OK;
}

#define FIXTURE_BAD_LABEL                           HTH_OK
#define hth_kernel_prepare(d, g, n, algorithm, out) cuda_test_prepare(g, n, algorithm, out)
#include "kernels/cpu/fixture.h"

// The node in plain layout; false: refused.
static inline bool cuda_test_takes(fixture *f)
{
    hth_kernel *k;
    for (int v = 0; v < f->graph->n_values; v++) {
        f->graph->values[v].layout = HTH_LAYOUT_PLAIN;
    }
    hth_err err = cuda_test_prepare(f->graph, &f->graph->nodes[f->node], NULL, &k);
    if (err == HTH_ENOTSUP) {
        cuda_test_refused++;
        print_message("# refused: %s\n", hth_err_detail());
        return false;
    }
    assert_int_equal(err, HTH_OK);
    hth_kernel_close(k);
    cuda_test_ran++;
    return true;
}

static inline void cuda_test_case(fixture *f, bool in_place, double tolerance)
{
    if (cuda_test_takes(f)) {
        fixture_check(f, NULL, in_place, tolerance);
    }
}

static inline void cuda_test_own(fixture *f, double tolerance)
{
    if (cuda_test_takes(f)) {
        fixture_check(f, NULL, false, tolerance);
        fixture_check(f, NULL, true, tolerance);
        fixture_faults(f, NULL);
    }
    fixture_close(f);
}

#define fixture_check(f, algorithm, in_place, tolerance) cuda_test_case(f, in_place, tolerance)
#define fixture_check_own(f, layout, tolerance)          ((void)(layout), cuda_test_own(f, tolerance))

#endif
