// SPDX-License-Identifier: Apache-2.0
// convsel/bench_impl.h - the inside of measuring a node. Shared by bench*.c only.
#ifndef HTH_CONVSEL_BENCH_IMPL_H
#define HTH_CONVSEL_BENCH_IMPL_H

#include "convsel/bench.h"

typedef struct bench_input {
    void *plain;  // row-major content, for packings and samples
    void *placed; // in the value's layout, where kernels read it
    void *kept;   // a copy, where runs are in place; NULL: none
    size_t bytes;
} bench_input;

struct hth_bench {
    hth_device *device;
    const hth_graph *graph;
    const hth_node *node;
    const hth_timing_cache *cache; // NULL: host memory
    const hth_cache_model *cache_state;
    const char *cache_state_text; // of the node; NULL: run after run
    bench_input *in;
    void *scratch;  // what is touched between runs; NULL: no room, caches stay warm
    void *operands; // inputs and outputs, one after the other as in an arena
    size_t operand_bytes;
    void **args_in, **packed, **out;
    void *workspace; // the largest so far: fresh pages would cost each choice's first run
    size_t workspace_bytes;
    int64_t *index; // of the sampled points
    double *want;   // their values, computed when first needed
    int n_points;
};

// hth_bench_between lets others have the device (timing_cache's between); true: something else ran.
bool hth_bench_between(const hth_timing_cache *cache);
// A generator for contents and for points.
uint64_t hth_bench_next(uint64_t *seed);
// hth_bench_load points the arguments at the inputs in the forms that `kernel` wants, and gives it
// a workspace; hth_bench_unload frees the forms.
hth_err hth_bench_load(hth_bench *bench, const hth_kernel *kernel);
// hth_bench_forms is the part of it that concerns inputs.
hth_err hth_bench_forms(hth_bench *bench, const hth_kernel *kernel);
void hth_bench_unload(hth_bench *bench, const hth_kernel *kernel);

// hth_bench_samples makes the points and their values, of `bare`: the node without post ops.
// hth_bench_compare then fills c->error from the output as it lies in bench->out[0], `relu`: after
// one.
hth_err hth_bench_samples(hth_bench *bench, const hth_node *bare);
// hth_bench_point is where point i lies, in elements.
size_t hth_bench_point(const hth_bench *bench, int i);
void hth_bench_compare(const hth_bench *bench, bool relu, hth_choice *choice);
// hth_bench_bare is the node without its post ops, and without their operands.
hth_node hth_bench_bare(const hth_bench *bench);
// hth_bench_has_error says whether errors are measured of the node.
bool hth_bench_has_error(const hth_bench *bench);
// hth_bench_relu says whether all that follows the node's operator is a ReLU.
bool hth_bench_relu(const hth_bench *bench);
// hth_sample_get is element i of a tensor of f32 or bf16.
float hth_sample_get(const void *p, size_t i, hth_dtype type);

// hth_bench_outputs fills `out` with where a kernel that runs in place (`inplace_input`) writes.
void hth_bench_outputs(const hth_bench *bench, int inplace_input, void **out);
// hth_bench_warm brings caches and inputs to the state in which the step would leave them.
void hth_bench_warm(const hth_bench *bench, void *const *out);

#endif
