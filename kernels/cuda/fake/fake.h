// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/fake/fake.h - cuDNN and cublasLt for tests, next to the fake driver: descriptors
// keep what is set, engines and algorithms are a few that differ in workspace and notes, and what
// is executed is computed by kernels/ref, in the stream's order.
#ifndef HTH_KERNELS_CUDA_FAKE_FAKE_H
#define HTH_KERNELS_CUDA_FAKE_FAKE_H

#include "device/cuda/fake/fake.h"

#include <stdatomic.h>
#include <string.h>

// hth_cuda_fake_engine_open is hth_cuda_fake_open with kernels: what follows opens devices that can
// compute, through hth_plugin_use. `bytes`: the device's memory.
hth_cuda_fake *hth_cuda_fake_engine_open(uint64_t seed, uint64_t bytes);
const hth_plugin *hth_cuda_fake_engine_plugin(void);

// What the fake cuDNN's engines do, by index. `slow_ns` is a test's to set, while nothing runs:
// what a run takes besides its computing. hth_cuda_fake_engine_open sets all to 0.
#define HTH_CUDA_FAKE_ENGINES 5
typedef struct hth_cuda_fake_engine {
    atomic_uint runs;
    uint64_t slow_ns;
} hth_cuda_fake_engine;
extern hth_cuda_fake_engine hth_cuda_fake_engines[HTH_CUDA_FAKE_ENGINES];

// How often the fake cublasLt's heuristics were asked for a product in FP32, in TF32, of bf16.
extern unsigned hth_cuda_fake_products[3];

void hth_cuda_fake_fill_dnn(hth_cuda_api *api);
void hth_cuda_fake_fill_blas(hth_cuda_api *api);

// hth_cuda_fake_tf32 rounds to TF32, ties away from zero, as the hardware does.
static inline float hth_cuda_fake_tf32(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits = (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
    memcpy(&v, &bits, sizeof v);
    return v;
}

#endif
