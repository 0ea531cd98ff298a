// SPDX-License-Identifier: Apache-2.0
// The filter gradient of a 3x3 convolution by Winograd's F(4x4, 3x3), transposed: where the forward
// pass computes Y = A^T [U . V] A with U = G g G^T and V = B^T d B, the gradient is
// dg = G^T [sum over tiles of (A dY A^T) . (B^T d B)] G. A quarter of the direct sum's
// multiplications, 36 matrix products whose long side is the number of tiles.
//
// Tiles go in chunks: transform patches V[36][ic/16][tile][16] and gradients
// Z[36][oc/16][tile][16], then add their products to M[36][oc/16][ic][16]. M is as large as four
// filters and is read and written once per chunk, so chunks are as large as its multiple when it is
// large, else what the caches hold. "NAME/k" takes chunks of a k-th of that: less workspace, more
// traffic of M. The threads share the units of each step; which of them adds what does not change
// any sum. The inner kernel holds 8 input channels x 3 blocks of outputs in registers.
#include "kernels/cpu/winograd.h"

#include "device/cpu/team.h"
#include "kernels/cpu/conv_form.h"
#include "kernels/ref/ref_window.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)

#include "kernels/cpu/winograd_tile.h"

#define GRAD_BYTES  ((size_t)8 << 20) // V and Z of a chunk, when M is small
#define GRAD_OF_M   4                 // .. and how many times M when it is not
#define GRAD_LEAST  64                // tiles of a chunk
#define GRAD_SPLIT  16
#define GRAD_HALF   8 // input channels at once
#define GRAD_BLOCKS 3 // blocks of outputs at once

typedef struct grad_kernel {
    hth_kernel base;
    int n_threads;
    hth_wino_grid grid;        // of x
    size_t ic, oc, ob, oh, ow; // ob: blocks of outputs
    size_t tiles, chunk;
    size_t at_v, at_z, at_sums; // floats behind M
} grad_kernel;

typedef struct grad_job {
    const grad_kernel *k;
    const float *x, *dy;
    float *m, *v, *z, *dw;
    double *sums;        // of dy per channel, a set per thread; NULL: no bias
    size_t first, count; // tiles of this chunk
} grad_job;

// One row of A y: polynomials of y at the points.
WINO_INLINE void grad_out(__m512 *o, size_t s, __m512 a, __m512 b, __m512 c, __m512 d)
{
    const float a2 = HTH_WINO_A * HTH_WINO_A, b2 = HTH_WINO_B * HTH_WINO_B;
    __m512 p = a + a2 * c, q = HTH_WINO_A * (b + a2 * d);
    __m512 r = a + b2 * c, t = HTH_WINO_B * (b + b2 * d);
    o[0] = a;
    o[s] = p + q;
    o[2 * s] = p - q;
    o[3 * s] = r + t;
    o[4 * s] = r - t;
    o[5 * s] = d;
}

// One row of G^T m.
WINO_INLINE void grad_filter(__m512 *o, size_t s, __m512 a, __m512 b, __m512 c, __m512 d, __m512 e,
                             __m512 f)
{
    const float a2 = HTH_WINO_A * HTH_WINO_A, b2 = HTH_WINO_B * HTH_WINO_B;
    const float na = 1 / (2 * a2 * (a2 - b2)), nb = 1 / (2 * b2 * (b2 - a2));
    __m512 p = na * (b + c), q = (na * HTH_WINO_A) * (b - c);
    __m512 r = nb * (d + e), t = (nb * HTH_WINO_B) * (d - e);
    o[0] = a * (1 / (a2 * b2)) + p + r;
    o[s] = q + t;
    o[2 * s] = a2 * p + b2 * r + f;
}

// Z of tile `t` of the chunk: dy is zero outside of the image.
WINO static void grad_tile(const grad_job *j, size_t t, size_t block, double *sums)
{
    const grad_kernel *k = j->k;
    hth_wino_tile at = hth_wino_where(&k->grid, j->first + t);
    const float *dy = j->dy + (at.image * k->ob + block) * k->oh * k->ow * 16;
    __m512 y[16], half[24], sum = _mm512_setzero_ps();
    for (size_t r = 0; r < 4; r++) {
        for (size_t c = 0; c < 4; c++) {
            bool inside = at.row + r < k->oh && at.col + c < k->ow;
            y[r * 4 + c] = inside ? _mm512_loadu_ps(dy + ((at.row + r) * k->ow + at.col + c) * 16)
                                  : _mm512_setzero_ps();
            sum += y[r * 4 + c];
        }
    }
    for (size_t c = 0; c < 4; c++) {
        grad_out(half + c, 4, y[c], y[4 + c], y[8 + c], y[12 + c]);
    }
    float *z = j->z + (block * j->count + t) * 16;
    size_t step = k->ob * j->count * 16;
    for (size_t r = 0; r < 6; r++) {
        __m512 *h = half + r * 4, o[6];
        grad_out(o, 1, h[0], h[1], h[2], h[3]);
        for (size_t c = 0; c < 6; c++) {
            _mm512_storeu_ps(z + (r * 6 + c) * step, o[c]);
        }
    }
    if (sums != NULL) {
        float lane[16];
        _mm512_storeu_ps(lane, sum);
        for (size_t l = 0; l < 16; l++) {
            sums[block * 16 + l] += (double)lane[l];
        }
    }
}

WINO static void grad_transforms(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    size_t begin, end;
    double *sums = j->sums == NULL ? NULL : j->sums + (size_t)i * k->ob * 16;
    hth_team_range(j->count * (k->grid.blocks + k->ob), i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        size_t t = u % j->count, block = u / j->count;
        if (block < k->grid.blocks) {
            hth_wino_patch(&k->grid, j->x, j->first + t, block, j->v + (block * j->count + t) * 16,
                           k->grid.blocks * j->count * 16);
        } else {
            grad_tile(j, t, block - k->grid.blocks, sums);
        }
    }
}

// 8 input channels times `blocks` blocks of outputs, over all tiles of the chunk.
WINO_INLINE void grad_product(const grad_job *j, const float *v, const float *z, float *m,
                              size_t blocks)
{
    size_t zstep = j->count * 16, mstep = j->k->grid.blocks * 16 * 16;
    __m512 acc[GRAD_BLOCKS][GRAD_HALF];
    for (size_t o = 0; o < blocks; o++) {
        for (size_t r = 0; r < GRAD_HALF; r++) {
            acc[o][r] = j->first > 0 ? _mm512_load_ps(m + o * mstep + r * 16) : _mm512_setzero_ps();
        }
    }
    for (size_t t = 0; t < j->count; t++, v += 16, z += 16) {
        __m512 z0 = _mm512_load_ps(z), z1 = blocks > 1 ? _mm512_load_ps(z + zstep) : z0,
               z2 = blocks > 2 ? _mm512_load_ps(z + 2 * zstep) : z0;
        for (size_t r = 0; r < GRAD_HALF; r++) {
            __m512 x = _mm512_set1_ps(v[r]);
            acc[0][r] = _mm512_fmadd_ps(x, z0, acc[0][r]);
            if (blocks > 1) {
                acc[1][r] = _mm512_fmadd_ps(x, z1, acc[1][r]);
            }
            if (blocks > 2) {
                acc[2][r] = _mm512_fmadd_ps(x, z2, acc[2][r]);
            }
        }
    }
    for (size_t o = 0; o < blocks; o++) {
        for (size_t r = 0; r < GRAD_HALF; r++) {
            _mm512_store_ps(m + o * mstep + r * 16, acc[o][r]);
        }
    }
}

WINO static void grad_group(const grad_job *j, const float *v, const float *z, float *m,
                            size_t blocks)
{
    const grad_kernel *k = j->k;
    for (size_t c = 0; c < k->ic; c += GRAD_HALF, m += GRAD_HALF * 16) {
        const float *from = v + c / 16 * j->count * 16 + c % 16;
        if (blocks == 3) {
            grad_product(j, from, z, m, 3);
        } else if (blocks == 2) {
            grad_product(j, from, z, m, 2);
        } else {
            grad_product(j, from, z, m, 1);
        }
    }
}

static void grad_products(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    size_t groups = (k->ob + GRAD_BLOCKS - 1) / GRAD_BLOCKS, begin, end;
    hth_team_range(36 * groups, i, n, &begin, &end);
    for (size_t p = begin; p < end; p++) {
        size_t a = p / groups, from, to;
        hth_team_range(k->ob, (int)(p % groups), (int)groups, &from, &to);
        grad_group(j, j->v + a * k->grid.blocks * j->count * 16,
                   j->z + (a * k->ob + from) * j->count * 16,
                   j->m + (a * k->ob + from) * k->grid.blocks * 16 * 16, to - from);
    }
}

// dw of block `block` of outputs and 16 input channels from `first` on.
WINO static void grad_result(const grad_job *j, size_t block, size_t first)
{
    const grad_kernel *k = j->k;
    size_t step = k->ob * k->grid.blocks * 16 * 16, count = k->ic - first;
    const float *m = j->m + (block * k->grid.blocks * 16 + first) * 16;
    _Alignas(64) float tap[16 * 9 * 16]; // [channel][tap][output]
    count = count < 16 ? count : 16;
    for (size_t c = 0; c < count; c++, m += 16) {
        __m512 d[36], half[18], o[9];
        for (size_t i = 0; i < 36; i++) {
            d[i] = _mm512_load_ps(m + i * step);
        }
        for (size_t i = 0; i < 6; i++) {
            grad_filter(half + i, 6, d[i], d[6 + i], d[12 + i], d[18 + i], d[24 + i], d[30 + i]);
        }
        for (size_t r = 0; r < 3; r++) {
            __m512 *h = half + r * 6;
            grad_filter(o + r * 3, 1, h[0], h[1], h[2], h[3], h[4], h[5]);
        }
        for (size_t i = 0; i < 9; i++) {
            _mm512_store_ps(tap + (c * 9 + i) * 16, o[i]);
        }
    }
    for (size_t l = 0; l < 16 && block * 16 + l < k->oc; l++) {
        float *to = j->dw + ((block * 16 + l) * k->ic + first) * 9;
        for (size_t i = 0; i < count * 9; i++) {
            to[i] = tap[i * 16 + l];
        }
    }
}

static void grad_results(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    size_t begin, end;
    hth_team_range(k->ob * k->grid.blocks, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        grad_result(j, u / k->grid.blocks, u % k->grid.blocks * 16);
    }
}

static hth_err grad_run(const hth_kernel *base, const hth_kernel_args *a)
{
    const grad_kernel *k = (const grad_kernel *)base;
    float *ws = a->workspace;
    size_t channels = k->ob * 16;
    grad_job j = {.k = k,
                  .x = a->in[0],
                  .dy = a->in[1],
                  .m = ws,
                  .v = ws + k->at_v,
                  .z = ws + k->at_z,
                  .dw = a->out[0]};
    if (k->at_sums > 0) {
        j.sums = (double *)(void *)(ws + k->at_sums);
        memset(j.sums, 0, (size_t)k->n_threads * channels * sizeof *j.sums);
    }
    hth_team_set(k->n_threads);
    for (; j.first < k->tiles; j.first += j.count) {
        j.count = k->tiles - j.first < k->chunk ? k->tiles - j.first : k->chunk;
        hth_team_run(grad_transforms, &j);
        hth_team_run(grad_products, &j);
    }
    hth_team_run(grad_results, &j);
    for (size_t c = 0; j.sums != NULL && c < k->oc; c++) {
        double sum = 0;
        for (int i = 0; i < k->n_threads; i++) {
            sum += j.sums[(size_t)i * channels + c];
        }
        ((float *)a->out[1])[c] = (float)sum;
    }
    return HTH_OK;
}

static bool grad_takes(hth_device *d, const hth_graph *g, const hth_node *n)
{
    const hth_value *x = &g->values[n->inputs[0]], *dy = &g->values[n->inputs[1]],
                    *w = &g->values[n->outputs[0]];
    return n->op == HTH_OP_CONV_GRAD_FILTER && n->n_post == 0 && d->props.vector_bytes >= 64 &&
           __builtin_cpu_supports("avx512f") && x->dtype == HTH_DT_F32 &&
           x->layout == HTH_LAYOUT_C16 && dy->layout == HTH_LAYOUT_C16 && x->shape.rank == 4 &&
           w->dtype == HTH_DT_F32 && w->shape.dim[2] == 3 && w->shape.dim[3] == 3 &&
           hth_node_int(n, "group", 1) == 1 && hth_shape_elements(&dy->shape) > 0;
}

static hth_err grad_geometry(const hth_graph *g, const hth_node *n, grad_kernel *k)
{
    const hth_shape *x = &g->values[n->inputs[0]].shape, *dy = &g->values[n->inputs[1]].shape;
    ref_window win;
    HTH_TRY(ref_window_init(&win, n, x, dy, g->values[n->outputs[0]].shape.dim + 2, 2));
    for (int i = 1; i < 3; i++) {
        if (win.stride[i] != 1 || win.dilation[i] != 1 || win.pad[i] < 0) {
            return hth_fail(HTH_ENOTSUP, "node '%s': stride or dilation", n->name);
        }
    }
    k->ic = (size_t)x->dim[1];
    k->oc = (size_t)dy->dim[1];
    k->ob = (k->oc + 15) / 16;
    k->oh = (size_t)dy->dim[2];
    k->ow = (size_t)dy->dim[3];
    k->grid = (hth_wino_grid){.blocks = (k->ic + 15) / 16,
                              .h = (size_t)x->dim[2],
                              .w = (size_t)x->dim[3],
                              .pad_h = (size_t)win.pad[1],
                              .pad_w = (size_t)win.pad[2],
                              .tiles_h = (k->oh + 3) / 4,
                              .tiles_w = (k->ow + 3) / 4};
    k->tiles = (size_t)x->dim[0] * k->grid.tiles_h * k->grid.tiles_w;
    return HTH_OK;
}

// The workspace: M, V, Z, sums of dy.
static void grad_reserve(grad_kernel *k, int split, bool bias)
{
    size_t m = 36 * k->ob * k->grid.blocks * 16 * 16, per_tile = 36 * 16 * sizeof(float);
    size_t bytes = GRAD_OF_M * m * sizeof(float);
    bytes = (bytes < GRAD_BYTES ? GRAD_BYTES : bytes) / (size_t)split;
    size_t most = bytes / (per_tile * (k->grid.blocks + k->ob));
    most = most < GRAD_LEAST ? GRAD_LEAST : most;
    size_t chunks = (k->tiles + most - 1) / most;
    k->chunk = (k->tiles + chunks - 1) / chunks; // equal chunks
    k->at_v = m;
    k->at_z = k->at_v + 36 * 16 * k->grid.blocks * k->chunk;
    size_t end = k->at_z + 36 * 16 * k->ob * k->chunk;
    k->at_sums = bias ? end : 0;
    end += bias ? (size_t)k->n_threads * k->ob * 16 * 2 : 0; // doubles
    k->base.workspace_bytes = end * sizeof(float);
}

hth_err cpu_winograd_grad_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                                  const char *algorithm, hth_kernel **out)
{
    char name[HTH_DN_NAME];
    int split = algorithm == NULL ? 0 : hth_conv_parse(algorithm, name);
    if (split < 1 || split > GRAD_SPLIT || (split & (split - 1)) != 0 ||
        strcmp(name, HTH_WINOGRAD_NAME) != 0 || !grad_takes(d, g, n)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not for %s", n->name, HTH_WINOGRAD_NAME);
    }
    grad_kernel k = {.base = {.run = grad_run,
                              .close = hth_cpu_kernel_free,
                              .implementation = HTH_WINOGRAD_NAME,
                              .inplace_input = -1},
                     .n_threads = d->props.n_threads};
    HTH_TRY(grad_geometry(g, n, &k));
    grad_reserve(&k, split, n->n_outputs > 1 && n->outputs[1] >= 0);
    return hth_cpu_kernel_made(n, &k.base, sizeof k, out);
}

#else

hth_err cpu_winograd_grad_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                                  const char *algorithm, hth_kernel **out)
{
    return hth_fail(HTH_ENOTSUP, "node '%s': %s is for x86-64", n->name, HTH_WINOGRAD_NAME);
}

#endif
