// SPDX-License-Identifier: Apache-2.0
// device/cuda/grid.h - one source for two compilers: nvcc makes a GPU's kernel of a .cu file, the C
// compiler a function that the fake driver calls for every thread.
//
// Design notes
// The files are what C11 and CUDA C++ have in common. A kernel is a sequence of *phases*: between
// two of them all threads of a block wait for each other, and what a thread hands to another, or to
// its own next phase, stands in shared memory. So a block on the host is a loop over phases around
// a loop over threads, in any order, and an order that mattered would show: the fake driver changes
// it. All threads are in one dimension. Parameters are one struct, by value.
#ifndef HTH_DEVICE_CUDA_GRID_H
#define HTH_DEVICE_CUDA_GRID_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_grid {
    uint32_t block, n_blocks, thread, n_threads; // thread: in its block
} hth_grid;

// What the fake driver runs in a kernel's place.
typedef struct hth_cuda_body {
    const char *name;
    void (*run)(const void *params, const hth_grid *grid, int phase, float *shared);
    size_t param_bytes;
    int n_phases;
} hth_cuda_body;

#ifdef __CUDACC__
#define HTH_FN static __device__ __forceinline__
// HTH_KERNEL(name, params, phases) { one phase of one thread: p, t, phase, shared }
#define HTH_KERNEL(name, params, phases)                                                           \
    HTH_FN void name##_phase(const params *p, const hth_grid *t, int phase, float *shared);        \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ params p)       \
    {                                                                                              \
        extern __shared__ float hth_shared[];                                                      \
        const hth_grid t = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};                       \
        _Pragma("unroll") for (int phase = 0; phase < (phases); phase++)                           \
        {                                                                                          \
            if (phase > 0) {                                                                       \
                __syncthreads();                                                                   \
            }                                                                                      \
            name##_phase(&p, &t, phase, hth_shared);                                               \
        }                                                                                          \
    }                                                                                              \
    HTH_FN void name##_phase(const params *p, const hth_grid *t, int phase, float *shared)
#define HTH_ALIGN16 __align__(16)
#else
#define HTH_FN __attribute__((unused)) static inline
#define HTH_KERNEL(name, params, phases)                                                           \
    static void name##_phase(const params *p, const hth_grid *t, int phase, float *shared);        \
    static void name##_run(const void *p, const hth_grid *t, int phase, float *shared)             \
    {                                                                                              \
        name##_phase((const params *)p, t, phase, shared);                                         \
    }                                                                                              \
    const hth_cuda_body hth_body_##name = {#name, name##_run, sizeof(params), phases};             \
    static void name##_phase(const params *p, const hth_grid *t, int phase, float *shared)
#define HTH_ALIGN16 __attribute__((aligned(16)))
#endif

// The widest access of one thread.
typedef struct HTH_ALIGN16 hth_f4 {
    float v[4];
} hth_f4;
typedef struct HTH_ALIGN16 hth_u4 {
    uint32_t v[4];
} hth_u4;

typedef struct __attribute__((aligned(8))) hth_h4 {
    uint16_t v[4];
} hth_h4;

// bf16: the upper half of an f32; rounded to nearest, ties to even, NaN stays NaN.
HTH_FN float hth_bf16_get(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)h << 16;
    return v.f;
}

HTH_FN uint16_t hth_bf16_put(float f)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = f;
    return (uint16_t)(f != f ? v.u >> 16 | 0x40u : (v.u + 0x7fffu + (v.u >> 16 & 1u)) >> 16);
}

// Element i of a tensor of f32 or (half) bf16.
HTH_FN float hth_get(const void *p, int64_t i, int half)
{
    return half ? hth_bf16_get(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

HTH_FN void hth_set(void *p, int64_t i, float v, int half)
{
    if (half) {
        ((uint16_t *)p)[i] = hth_bf16_put(v);
    } else {
        ((float *)p)[i] = v;
    }
}

// Elements i .. i + 3 in one access, where i is a multiple of 4; `n` < 4: as many one by one.
HTH_FN hth_f4 hth_get4(const void *p, int64_t i, uint32_t n, int half)
{
    hth_f4 r = {{0, 0, 0, 0}};
    if (n >= 4 && !half) {
        return *(const hth_f4 *)(const void *)((const float *)p + i);
    }
    if (n >= 4) {
        hth_h4 h = *(const hth_h4 *)(const void *)((const uint16_t *)p + i);
        for (int k = 0; k < 4; k++) {
            r.v[k] = hth_bf16_get(h.v[k]);
        }
        return r;
    }
    for (uint32_t k = 0; k < n; k++) {
        r.v[k] = hth_get(p, i + k, half);
    }
    return r;
}

HTH_FN void hth_set4(void *p, int64_t i, uint32_t n, hth_f4 v, int half)
{
    if (n >= 4 && !half) {
        *(hth_f4 *)(void *)((float *)p + i) = v;
    } else if (n >= 4) {
        hth_h4 h;
        for (int k = 0; k < 4; k++) {
            h.v[k] = hth_bf16_put(v.v[k]);
        }
        *(hth_h4 *)(void *)((uint16_t *)p + i) = h;
    } else {
        for (uint32_t k = 0; k < n; k++) {
            hth_set(p, i + k, v.v[k], half);
        }
    }
}

// Elements i .. i + 3 of a row of n elements that begins at `first`, a multiple of n: in one access
// where n is a multiple of 4. What is after the row's end reads zeros and is not written.
HTH_FN uint32_t hth_row_count(uint32_t i, uint32_t n)
{
    return n - i < 4 ? n - i : 4;
}

HTH_FN hth_f4 hth_row_get(const void *p, int64_t first, uint32_t i, uint32_t n, int half)
{
    hth_f4 r = {{0, 0, 0, 0}};
    if (n % 4 == 0) {
        return hth_get4(p, first + i, 4, half);
    }
    for (uint32_t k = 0; k < hth_row_count(i, n); k++) {
        r.v[k] = hth_get(p, first + i + k, half);
    }
    return r;
}

HTH_FN void hth_row_set(void *p, int64_t first, uint32_t i, uint32_t n, hth_f4 v, int half)
{
    if (n % 4 == 0) {
        hth_set4(p, first + i, 4, v, half);
        return;
    }
    for (uint32_t k = 0; k < hth_row_count(i, n); k++) {
        hth_set(p, first + i + k, v.v[k], half);
    }
}

// The number of this thread among all, and of all.
HTH_FN uint32_t hth_index(const hth_grid *grid)
{
    return grid->block * grid->n_threads + grid->thread;
}

HTH_FN uint32_t hth_total(const hth_grid *grid)
{
    return grid->n_blocks * grid->n_threads;
}

// Strided positions: dimensions of a loop, last one fastest, and the steps of one operand in it.
#define HTH_CUDA_RANK 6
typedef struct hth_steps {
    int64_t step[HTH_CUDA_RANK];
} hth_steps;
typedef struct hth_dims {
    int32_t rank;
    uint32_t dim[HTH_CUDA_RANK];
} hth_dims;

HTH_FN int64_t hth_offset(uint32_t i, const hth_dims *dims, const hth_steps *steps)
{
    int64_t at = 0;
    for (int k = dims->rank - 1; k > 0; k--) {
        at += (int64_t)(i % dims->dim[k]) * steps->step[k];
        i /= dims->dim[k];
    }
    return dims->rank > 0 ? at + (int64_t)i * steps->step[0] : 0;
}

// Sums of a block: every thread leaves a part in shared[thread]; in the next phase the first
// HTH_FOLD threads each fold their share; in the one after, everybody reads the HTH_FOLD results.
// The order is fixed, so a sum has the same bits every time.
#define HTH_FOLD 16

HTH_FN float hth_fold_share(const hth_grid *grid, const float *part)
{
    float sum = 0;
    for (uint32_t i = grid->thread; i < grid->n_threads; i += HTH_FOLD) {
        sum += part[i];
    }
    return sum;
}

HTH_FN float hth_fold_sum(const float *part)
{
    float sum = 0;
    for (int i = 0; i < HTH_FOLD; i++) {
        sum += part[i];
    }
    return sum;
}

HTH_FN float hth_fold_share_max(const hth_grid *grid, const float *part)
{
    float m = -INFINITY;
    for (uint32_t i = grid->thread; i < grid->n_threads; i += HTH_FOLD) {
        m = part[i] > m || part[i] != part[i] ? part[i] : m;
    }
    return m;
}

HTH_FN float hth_fold_max(const float *part)
{
    float m = -INFINITY;
    for (int i = 0; i < HTH_FOLD; i++) {
        m = part[i] > m || part[i] != part[i] ? part[i] : m;
    }
    return m;
}

#endif
