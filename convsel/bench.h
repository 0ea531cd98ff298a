// SPDX-License-Identifier: Apache-2.0
// convsel/bench.h - runs one node alone: buffers with random content, time and error of one
// algorithm.
#ifndef HTH_CONVSEL_BENCH_H
#define HTH_CONVSEL_BENCH_H

#include "convsel/convsel.h"
#include "convsel/successive_halving.h"
#include "kernels/kernel.h"

typedef struct hth_bench hth_bench;

// hth_bench_open makes the node's inputs (random in [-1, 1), the same for every algorithm) and
// outputs, in memory from `cache` (NULL: host memory). `heat` says how the step uses the caches
// (NULL: the node is run again and again by itself). Both must outlive it.
hth_err hth_bench_open(hth_device *device, const hth_graph *graph, const hth_node *node,
                       const hth_timing_cache *cache, const hth_cache_model *cache_state,
                       hth_bench **out);
void hth_bench_close(hth_bench *bench); // NULL is allowed
// hth_bench_bytes: what the node's operands take together.
uint64_t hth_bench_bytes(const hth_bench *bench);
// hth_bench_turn runs the choice once more, or, while runs are short and caches stay warm, after a
// warm-up a few times, and adds the times to samples. Fills choice->workspace_bytes, and, when that
// costs nothing, choice->error.
hth_err hth_bench_turn(hth_bench *bench, hth_choice *choice, hth_samples *samples);
// hth_bench_error fills choice->error of a convolution: the node without its post ops, at sampled
// output points, against the sum in double precision. Other operators are left at "not measured",
// with a negative error; so is, on a device that runs it only so, what is fused with more than a
// ReLU.
hth_err hth_bench_error(hth_bench *bench, hth_choice *choice);

// The same on a device whose memory the host does not see: times are the device's own events'.
// Memory there is taken from `cache`. HTH_ENOMEM: no room.
typedef struct hth_bench_device hth_bench_device;
hth_err hth_bench_device_open(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const hth_timing_cache *cache, hth_bench_device **out);
void hth_bench_device_close(hth_bench_device *device); // NULL is allowed
uint64_t hth_bench_device_bytes(const hth_bench_device *device);
hth_err hth_bench_device_turn(hth_bench_device *device, hth_choice *choice, hth_samples *samples);
hth_err hth_bench_device_error(hth_bench_device *device, hth_choice *choice);

// hth_sample_conv computes `n_points` points of Conv, ConvTranspose or ConvGradData `node` in
// double from inputs of f32 or bf16 as they lie in memory. Point i is element index[i] of the
// row-major output.
hth_err hth_sample_conv(const hth_graph *graph, const hth_node *node, const void *x, const void *w,
                        const void *bias, const int64_t *index, int n_points, double *out);
// hth_sample_filter_grad is the same for ConvGradFilter: point i is element index[i] of dw.
hth_err hth_sample_filter_grad(const hth_graph *graph, const hth_node *node, const void *x,
                               const void *dy, const int64_t *index, int n_points, double *out);

#endif
