// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/fixture.h - the cases of kernels/cpu's tests on CUDA's kernels, over the fake
// driver: included before such a test's source. Kernels are prepared on a CUDA device and waited
// for after each run; a case's buffers are host memory, which the kernels' host form may touch.
// Cases in other layouts than plain are run plain, with the same tolerance. What is refused is
// counted and printed.
#ifndef HTH_KERNELS_CUDA_FIXTURE_H
#define HTH_KERNELS_CUDA_FIXTURE_H

#include "base/alloc.h"
#include "base/settings.h"
#include "device/cuda/fake/impl.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fake/fake.h"
#include "kernels/cuda/seq.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define CUDA_TEST_ARENA ((size_t)96 << 20)

typedef struct cuda_wrapped {
    hth_kernel base;
    hth_kernel *inner;
    const hth_graph *graph;
    const hth_node *node;
    hth_kernel_args args; // on the device, of the run at work
    hth_packing packing[HTH_CUDA_PACKINGS];
} cuda_wrapped;

static hth_device *cuda_test_device;
static hth_stream *cuda_test_stream;
static void *cuda_test_arena;
static int cuda_test_ran, cuda_test_refused, cuda_test_n_last;

__attribute__((destructor)) static void cuda_test_end(void)
{
    printf(
        "# on CUDA's kernels: %d cases ran, %d of them with channels last, too; %d were refused\n",
        cuda_test_ran, cuda_test_n_last, cuda_test_refused);
}

static inline hth_err cuda_wrapped_launched(void *arg)
{
    const cuda_wrapped *w = arg;
    return w->inner->run(w->inner, &w->args);
}

static inline hth_err cuda_wrapped_pack(const hth_kernel *kernel, const hth_packing *packing,
                                        const void *plain, void *dst)
{
    const cuda_wrapped *w = (const cuda_wrapped *)kernel;
    const hth_packing *inner = &w->inner->packings[packing - w->packing];
    return inner->pack(w->inner, inner, plain, dst);
}

// input -1: of a value that is not packed
static inline size_t cuda_wrapped_bytes(const cuda_wrapped *wrapped, int input, int value)
{
    const hth_value *v = &wrapped->graph->values[value];
    for (int i = 0; i < wrapped->inner->n_packings; i++) {
        if (wrapped->packing[i].input == input) {
            return wrapped->packing[i].bytes;
        }
    }
    return (size_t)hth_shape_elements(&v->shape) * hth_dtype_bytes(v->dtype);
}

// Aligned to HTH_DEVICE_ALIGN and no more, as in an arena.
static inline void *cuda_wrapped_take(size_t *at, size_t bytes)
{
    void *p = (char *)cuda_test_arena + *at + HTH_DEVICE_ALIGN;
    *at += (bytes + 255) / 256 * 256 + 256;
    return *at <= CUDA_TEST_ARENA ? p : NULL;
}

// Copies the operands to the device, outputs' old content too, launches, copies the outputs back.
static inline hth_err cuda_wrapped_run(const hth_kernel *kernel, const hth_kernel_args *args)
{
    cuda_wrapped *w = (cuda_wrapped *)kernel;
    const hth_node *n = w->node;
    void *far[96] = {NULL};
    size_t at = 0;
    for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
        bool in = i < n->n_inputs;
        int value = in ? n->inputs[i] : n->outputs[i - n->n_inputs];
        const void *host = in ? args->in[i] : args->out[i - n->n_inputs];
        for (int b = 0; b < n->n_inputs && value >= 0 && !in; b++) { // in place
            far[i] = args->in[b] == host && far[i] == NULL ? far[b] : far[i];
        }
        if (value >= 0 && far[i] == NULL) {
            size_t bytes = cuda_wrapped_bytes(w, in ? i : -1, value);
            far[i] = cuda_wrapped_take(&at, bytes);
            HTH_TRY(far[i] == NULL ? HTH_ENOMEM : HTH_OK);
            HTH_TRY(hth_device_put(cuda_test_device, far[i], host, bytes));
        }
    }
    void *workspace =
        kernel->workspace_bytes > 0 ? cuda_wrapped_take(&at, kernel->workspace_bytes) : NULL;
    HTH_TRY(kernel->workspace_bytes > 0 && workspace == NULL ? HTH_ENOMEM : HTH_OK);
    w->args = (hth_kernel_args){far, far + n->n_inputs, workspace, NULL};
    HTH_TRY(hth_stream_launch(cuda_test_stream, cuda_wrapped_launched, w));
    HTH_TRY(hth_stream_sync(cuda_test_stream));
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] >= 0) {
            HTH_TRY(hth_device_get(cuda_test_device, args->out[i], far[n->n_inputs + i],
                                   cuda_wrapped_bytes(w, -1, n->outputs[i])));
        }
    }
    return HTH_OK;
}

static inline void cuda_wrapped_close(hth_kernel *kernel)
{
    hth_kernel_close(((cuda_wrapped *)kernel)->inner);
    free(kernel);
}

// The fake driver's device, or with HEARTH_GPU=1 in the environment the machine's own.
static inline hth_err cuda_test_open(void)
{
    const char *libs = getenv("CUDA_HOME");
    if (getenv("HEARTH_GPU") != NULL && libs != NULL) {
        HTH_TRY(hth_setting_set("cuda.libs", libs));
    }
    if (getenv("HEARTH_GPU") == NULL && hth_cuda_fake_engine_open(7, (uint64_t)256 << 20) == NULL) {
        return HTH_EIO;
    }
    HTH_TRY(hth_device_open("cuda:0", &cuda_test_device));
    HTH_TRY(hth_device_reserve(cuda_test_device, CUDA_TEST_ARENA, &cuda_test_arena));
    return hth_stream_open(cuda_test_device, HTH_STREAM_COMPUTE, &cuda_test_stream);
}

// A group's setup and teardown, for tests of what the device keeps: the fake driver is left empty.
static inline int cuda_test_setup(void **state)
{
    return cuda_test_open() == HTH_OK ? 0 : -1;
}

static inline int cuda_test_teardown(void **state)
{
    hth_stream_close(cuda_test_stream);
    hth_device_release(cuda_test_device, cuda_test_arena, CUDA_TEST_ARENA);
    hth_device_close(cuda_test_device);
    cuda_test_device = NULL;
    assert_int_equal(hth_cuda_fake_state()->live, 0);
    hth_cuda_fake_close();
    return 0;
}

static inline hth_err cuda_test_prepare(const hth_graph *graph, const hth_node *node,
                                        const char *algorithm, hth_kernel **out)
{
    hth_kernel *inner;
    *out = NULL;
    if (cuda_test_device == NULL && cuda_test_open() != HTH_OK) {
        print_message("# no device: %s\n", hth_err_detail());
        exit(1);
    }
    HTH_TRY(hth_kernel_prepare(cuda_test_device, graph, node, algorithm, &inner));
    cuda_wrapped *w = calloc(1, sizeof *w);
    if (w == NULL) {
        hth_kernel_close(inner);
        return HTH_ENOMEM;
    }
    w->base = *inner;
    w->base.run = cuda_wrapped_run;
    w->base.close = cuda_wrapped_close;
    w->inner = inner;
    w->graph = graph;
    w->node = node;
    for (int i = 0; i < inner->n_packings; i++) {
        w->packing[i] = inner->packings[i];
        w->packing[i].pack = cuda_wrapped_pack;
    }
    w->base.packings = w->packing;
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

// The same with the channels of images last, where a graph in TF32 may have them so; false: it does
// not. Convolutions have tests of their own.
static inline bool cuda_test_last(fixture *f)
{
    hth_graph *g = f->graph;
    const hth_node *n = &g->nodes[f->node];
    const hth_fuse_oracle *o = hth_kernel_oracle(cuda_test_device);
    bool any = false, image = false;
    g->precision = HTH_PRECISION_TF32;
    hth_layout preference = o->layout(o->ctx, g, n, &any);
    g->precision = HTH_PRECISION_FP32;
    for (int v = 0; v < g->n_values && preference == HTH_LAYOUT_PLAIN && any; v++) {
        if (g->values[v].shape.rank >= 3 && g->values[v].constant == NULL) {
            g->values[v].layout = HTH_LAYOUT_NHWC;
            image = true;
        }
    }
    cuda_test_n_last += image;
    return image;
}

static inline void cuda_test_case(fixture *f, bool in_place, double tolerance)
{
    if (cuda_test_takes(f)) {
        fixture_check(f, NULL, in_place, tolerance);
        if (cuda_test_last(f)) {
            fixture_check(f, NULL, in_place, tolerance);
        }
    }
}

static inline void cuda_test_own(fixture *f, double tolerance)
{
    if (cuda_test_takes(f)) {
        fixture_check(f, NULL, false, tolerance);
        fixture_check(f, NULL, true, tolerance);
        fixture_faults(f, NULL);
        if (cuda_test_last(f)) {
            fixture_check(f, NULL, false, tolerance);
            fixture_check(f, NULL, true, tolerance);
        }
    }
    fixture_close(f);
}

#define fixture_check(f, algorithm, in_place, tolerance) cuda_test_case(f, in_place, tolerance)

#define fixture_check_own(f, layout, tolerance) ((void)(layout), cuda_test_own(f, tolerance))

#endif
