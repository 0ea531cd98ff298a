// SPDX-License-Identifier: Apache-2.0
// Winograd convolution F(4x4, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural
// Networks", 2015): a 6x6 patch of the input becomes, by additions, 36 numbers per channel; 36
// matrix products over the channels, 4 times fewer multiplications than the sum over the filter; a
// transform back gives 4x4 outputs.
//
// Why not only oneDNN's: version 3 has none for x86, and version 2 transforms the whole image at
// once, which takes tens of megabytes. Here tiles go in chunks: chunk by chunk {transform,
// multiply, transform back}, so that the workspace stays near WINO_BYTES whatever the image, while
// each chunk has enough tiles for a filter read from memory to pay. Each thread takes chunks of its
// own, without waiting for others; a layer with too few tiles for that is one chunk that all
// threads share, step by step.
//
// The data gradient of such a convolution is another one, of dy with the filter turned around and
// its channels exchanged; only the filter's transform knows.
//
// Forms: filter U[36][oc/16][ic][16], patches V[36][ic/16][tile][16], products
// M[36][oc/16][tile][16]. The inner kernel holds ROWS tiles x 2 blocks of outputs in registers.
// Padding channels are zero in V and U, hence in the result.
#include "kernels/cpu/winograd.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "kernels/cpu/post.h"
#include "kernels/ref/ref_window.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)

#include "kernels/cpu/winograd_tile.h"

#define WINO_BYTES (3u << 19) // V and M of one chunk: about what a second-level cache holds
#define WINO_LEAST 56         // tiles of a chunk, so that reading U does not dominate
#define WINO_ROWS  14         // 14 x 2 accumulators, 2 filters, 1 broadcast: 31 of 32 registers

typedef struct wino_kernel {
    hth_kernel base;
    hth_packing packing;
    hth_kernel *tail;         // post ops that the last transform does not do; NULL: none
    int n_threads, bias, add; // inputs; -1: none
    float add_scale, low, high;
    hth_wino_filter filter;
    int mask; // input y of a ReluGrad behind; -1: none
    float mask_low, mask_high;
    hth_wino_grid grid;       // of the input
    size_t batch, ic, oc, ob; // channels, blocks of outputs
    size_t oh, ow, chunk;
    bool shared; // one chunk at a time, by all threads
} wino_kernel;

typedef struct wino_job {
    const wino_kernel *k;
    const float *x, *u, *bias, *add, *mask;
    float *y, *v, *m;
    size_t first, count; // tiles of this chunk
} wino_job;

// One row of A^T m.
WINO_INLINE void wino_out(__m512 *o, size_t s, __m512 a, __m512 b, __m512 c, __m512 d, __m512 e,
                          __m512 f)
{
    const float a2 = HTH_WINO_A * HTH_WINO_A, b2 = HTH_WINO_B * HTH_WINO_B;
    __m512 p = b + c, q = HTH_WINO_A * (b - c), r = d + e, t = HTH_WINO_B * (d - e);
    o[0] = a + p + r;
    o[s] = q + t;
    o[2 * s] = a2 * p + b2 * r;
    o[3 * s] = a2 * q + b2 * t + f;
}

WINO static void wino_patches(void *arg, int i, int n)
{
    const wino_job *j = arg;
    size_t begin, end, step = j->k->grid.blocks * j->count * 16;
    hth_team_range(j->count * j->k->grid.blocks, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        hth_wino_patch(&j->k->grid, j->x, j->first + u % j->count, u / j->count, j->v + u * 16,
                       step);
    }
}

// `rows` tiles times `blocks` (1 or 2) blocks of outputs, over all input channels.
WINO_INLINE void wino_tile_product(const wino_job *j, const float *u, const float *v, float *m,
                                   size_t rows, size_t blocks)
{
    const wino_kernel *k = j->k;
    size_t ic = k->grid.blocks * 16, mstep = j->count * 16;
    __m512 acc[2][WINO_ROWS];
    for (size_t r = 0; r < rows; r++) {
        acc[0][r] = acc[1][r] = _mm512_setzero_ps();
    }
    for (size_t b = 0; b < k->grid.blocks; b++, v += j->count * 16) {
        for (size_t l = 0; l < 16; l++, u += 16) {
            __m512 u0 = _mm512_load_ps(u), u1 = blocks == 2 ? _mm512_load_ps(u + ic * 16) : u0;
            for (size_t r = 0; r < rows; r++) {
                __m512 x = _mm512_set1_ps(v[r * 16 + l]);
                acc[0][r] = _mm512_fmadd_ps(x, u0, acc[0][r]);
                if (blocks == 2) {
                    acc[1][r] = _mm512_fmadd_ps(x, u1, acc[1][r]);
                }
            }
        }
    }
    for (size_t r = 0; r < rows; r++) {
        _mm512_store_ps(m + r * 16, acc[0][r]);
        if (blocks == 2) {
            _mm512_store_ps(m + mstep + r * 16, acc[1][r]);
        }
    }
}

#define WINO_CASE(R)                                                                               \
    case R:                                                                                        \
        if (blocks == 2) {                                                                         \
            wino_tile_product(j, u, v, m, R, 2);                                                   \
        } else {                                                                                   \
            wino_tile_product(j, u, v, m, R, 1);                                                   \
        }                                                                                          \
        break

WINO static void wino_rows(const wino_job *j, const float *u, const float *v, float *m, size_t rows,
                           size_t blocks)
{
    switch (rows) {
        WINO_CASE(1);
        WINO_CASE(2);
        WINO_CASE(3);
        WINO_CASE(4);
        WINO_CASE(5);
        WINO_CASE(6);
        WINO_CASE(7);
        WINO_CASE(8);
        WINO_CASE(9);
        WINO_CASE(10);
        WINO_CASE(11);
        WINO_CASE(12);
        WINO_CASE(13);
        WINO_CASE(14);
    default:
        break;
    }
}

static void wino_products(void *arg, int i, int n)
{
    const wino_job *j = arg;
    const wino_kernel *k = j->k;
    size_t pairs = (k->ob + 1) / 2, begin, end, groups = (j->count + WINO_ROWS - 1) / WINO_ROWS;
    hth_team_range(36 * pairs, i, n, &begin, &end);
    for (size_t p = begin; p < end; p++) {
        size_t a = p / pairs, o = p % pairs * 2, blocks = o + 1 < k->ob ? 2 : 1;
        const float *u = j->u + (a * k->ob + o) * k->grid.blocks * 16 * 16;
        const float *v = j->v + a * k->grid.blocks * j->count * 16;
        float *m = j->m + (a * k->ob + o) * j->count * 16;
        for (size_t g = 0; g < groups; g++) { // of nearly equal sizes
            size_t from, to;
            hth_team_range(j->count, (int)g, (int)groups, &from, &to);
            wino_rows(j, u, v + from * 16, m + from * 16, to - from, blocks);
        }
    }
}

WINO static void wino_result(const wino_job *j, size_t t, size_t block)
{
    const wino_kernel *k = j->k;
    hth_wino_tile at = hth_wino_where(&k->grid, j->first + t);
    const float *m = j->m + (block * j->count + t) * 16;
    size_t step = k->ob * j->count * 16, image = (at.image * k->ob + block) * k->oh * k->ow * 16;
    float bias[16] = {0};
    __m512 half[24];
    if (j->bias != NULL) {
        size_t left = k->oc - block * 16;
        memcpy(bias, j->bias + block * 16, (left < 16 ? left : 16) * sizeof *bias);
    }
    for (size_t c = 0; c < 6; c++) {
        __m512 d[6];
        for (size_t r = 0; r < 6; r++) {
            d[r] = _mm512_load_ps(m + (r * 6 + c) * step);
        }
        wino_out(half + c, 6, d[0], d[1], d[2], d[3], d[4], d[5]);
    }
    // Operands in this order let a NaN through.
    __m512 b = _mm512_loadu_ps(bias), low = _mm512_set1_ps(k->low), high = _mm512_set1_ps(k->high);
    for (size_t r = 0; r < 4 && at.row + r < k->oh; r++) {
        __m512 *h = half + r * 6, o[4];
        wino_out(o, 1, h[0], h[1], h[2], h[3], h[4], h[5]);
        for (size_t c = 0; c < 4 && at.col + c < k->ow; c++) {
            size_t to = image + ((at.row + r) * k->ow + at.col + c) * 16;
            __m512 y = o[c] + b;
            if (j->add != NULL) {
                y += k->add_scale * _mm512_loadu_ps(j->add + to);
            }
            y = _mm512_min_ps(high, _mm512_max_ps(low, y));
            if (j->mask != NULL) {
                __m512 z = _mm512_loadu_ps(j->mask + to);
                __mmask16 open = _mm512_cmp_ps_mask(z, _mm512_set1_ps(k->mask_low), _CMP_GT_OQ) &
                                 _mm512_cmp_ps_mask(z, _mm512_set1_ps(k->mask_high), _CMP_LT_OQ);
                y = _mm512_maskz_mov_ps(open, y);
            }
            _mm512_storeu_ps(j->y + to, y);
        }
    }
}

static void wino_results(void *arg, int i, int n)
{
    const wino_job *j = arg;
    size_t begin, end;
    hth_team_range(j->count * j->k->ob, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        wino_result(j, u % j->count, u / j->count);
    }
}

// The chunks of thread `i`: all steps of a chunk in one go, in that thread's part of the workspace.
static void wino_chunks(void *arg, int i, int n)
{
    wino_job j = *(const wino_job *)arg;
    const wino_kernel *k = j.k;
    size_t begin, end, blocks = k->grid.blocks + k->ob;
    hth_team_range(j.count, i, n, &begin, &end);
    j.v += (size_t)i * 36 * 16 * blocks * k->chunk;
    j.m = j.v + 36 * k->grid.blocks * 16 * k->chunk;
    for (j.first = begin; j.first < end; j.first += j.count) {
        j.count = end - j.first < k->chunk ? end - j.first : k->chunk;
        wino_patches(&j, 0, 1);
        wino_products(&j, 0, 1);
        wino_results(&j, 0, 1);
    }
}

static hth_err wino_run(const hth_kernel *base, const hth_kernel_args *a)
{
    const wino_kernel *k = (const wino_kernel *)base;
    size_t total = k->batch * k->grid.tiles_h * k->grid.tiles_w;
    wino_job j = {.k = k,
                  .x = a->in[0],
                  .u = a->in[1],
                  .bias = k->bias < 0 ? NULL : a->in[k->bias],
                  .add = k->add < 0 ? NULL : a->in[k->add],
                  .mask = k->mask < 0 ? NULL : a->in[k->mask],
                  .y = a->out[0],
                  .v = a->workspace};
    hth_team_set(k->n_threads);
    if (k->packing.pack == NULL) { // the filter is computed: transformed at the workspace's start
        j.u = a->workspace;
        j.v += hth_wino_filter_floats(&k->filter);
        hth_wino_filter_run(&k->filter, a->in[1], a->workspace);
    }
    j.count = total;
    if (k->shared) {
        j.m = j.v + 36 * k->grid.blocks * 16 * k->chunk;
        hth_team_run(wino_patches, &j);
        hth_team_run(wino_products, &j);
        hth_team_run(wino_results, &j);
    } else {
        hth_team_run(wino_chunks, &j);
    }
    return k->tail == NULL ? HTH_OK : k->tail->run(k->tail, a);
}

static void wino_close(hth_kernel *base)
{
    wino_kernel *k = (wino_kernel *)base;
    hth_kernel_close(k->tail);
    hth_free(k);
}

static hth_err wino_pack(const hth_kernel *base, const hth_packing *p, const void *plain, void *dst)
{
    hth_wino_filter_pack(&((const wino_kernel *)base)->filter, plain, dst);
    return HTH_OK;
}

static bool wino_takes(hth_device *d, const hth_graph *g, const hth_node *n)
{
    const hth_value *x = &g->values[n->inputs[0]], *w = &g->values[n->inputs[1]],
                    *y = &g->values[n->outputs[0]];
    return (n->op == HTH_OP_CONV || n->op == HTH_OP_CONV_GRAD_DATA) &&
           d->props.vector_bytes >= 64 && __builtin_cpu_supports("avx512f") &&
           x->dtype == HTH_DT_F32 && x->layout == HTH_LAYOUT_C16 && y->layout == HTH_LAYOUT_C16 &&
           x->shape.rank == 4 && w->dtype == HTH_DT_F32 && w->shape.dim[2] == 3 &&
           w->shape.dim[3] == 3 && hth_node_int(n, "group", 1) == 1 &&
           hth_shape_elements(&y->shape) > 0;
}

// Behind a data gradient there may be one ReluGrad.
static hth_err wino_mask(const hth_graph *g, const hth_node *n, wino_kernel *k)
{
    const hth_post_op *p = &n->post[0];
    if (n->n_post == 0) {
        return HTH_OK;
    }
    if (n->n_post > 1 || p->op != HTH_OP_RELU_GRAD ||
        g->values[n->inputs[p->input]].layout != g->values[n->outputs[0]].layout) {
        return hth_fail(HTH_ENOTSUP, "node '%s': post ops", n->name);
    }
    k->mask = p->input;
    k->mask_low = p->alpha;
    k->mask_high = p->beta;
    return HTH_OK;
}

// Takes the post ops that the last transform can do: one sum, then one clamp that keeps zero. The
// rest becomes the tail.
static hth_err wino_posts(hth_device *d, const hth_graph *g, const hth_node *n, wino_kernel *k)
{
    const hth_value *y = &g->values[n->outputs[0]];
    hth_cpu_post list[HTH_DN_MAX_POST];
    int count, sum, done = 0;
    if (n->op == HTH_OP_CONV_GRAD_DATA) {
        return wino_mask(g, n, k);
    }
    HTH_TRY(hth_cpu_posts(g, n, y->layout, true, list, &count, &sum));
    if (done < count && list[done].dn.kind == dnnl_sum) {
        k->add = list[done].input;
        k->add_scale = list[done].dn.alpha;
        k->base.inplace_input = k->add; // read and written by the same tile only
        done++;
    }
    if (done < count && list[done].dn.kind == dnnl_eltwise) {
        const hth_dn_post *p = &list[done].dn;
        bool relu = p->alg == dnnl_eltwise_relu && p->alpha == 0;
        if (relu || (p->alg == dnnl_eltwise_clip && p->alpha <= 0 && p->beta >= 0)) {
            k->low = relu ? 0 : p->alpha;
            k->high = relu ? INFINITY : p->beta;
            done++;
        }
    }
    if (done == count) {
        return HTH_OK;
    }
    hth_seq *s;
    hth_dn_md md = hth_dn_md_of(HTH_DT_F32, &y->shape, y->layout);
    HTH_TRY(hth_seq_open(d, &s));
    hth_err err = hth_cpu_tail(s, list, done, count, &md);
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    return hth_seq_finish(s, NULL, &k->tail);
}

static hth_err wino_geometry(const hth_graph *g, const hth_node *n, wino_kernel *k)
{
    const hth_shape *x = &g->values[n->inputs[0]].shape, *w = &g->values[n->inputs[1]].shape;
    const hth_shape *y = &g->values[n->outputs[0]].shape;
    bool back = n->op == HTH_OP_CONV_GRAD_DATA;
    ref_window win;
    HTH_TRY(ref_window_init(&win, n, back ? y : x, back ? x : y, w->dim + 2, 2));
    for (int i = 1; i < 3; i++) {
        // The gradient is the convolution of dy, padded by what the filter reaches beyond.
        win.pad[i] = back ? 2 - win.pad[i] : win.pad[i];
        if (win.stride[i] != 1 || win.dilation[i] != 1 || win.pad[i] < 0) {
            return hth_fail(HTH_ENOTSUP, "node '%s': stride or dilation", n->name);
        }
    }
    k->batch = (size_t)x->dim[0];
    k->ic = (size_t)x->dim[1];
    k->oc = (size_t)y->dim[1];
    k->grid.blocks = (k->ic + 15) / 16;
    k->ob = (k->oc + 15) / 16;
    k->grid.h = (size_t)x->dim[2];
    k->grid.w = (size_t)x->dim[3];
    k->oh = (size_t)y->dim[2];
    k->ow = (size_t)y->dim[3];
    k->grid.pad_h = (size_t)win.pad[1];
    k->grid.pad_w = (size_t)win.pad[2];
    k->filter = (hth_wino_filter){k->oc, k->ic, back};
    k->grid.tiles_h = (k->oh + 3) / 4;
    k->grid.tiles_w = (k->ow + 3) / 4;
    size_t per_tile = 36 * 16 * sizeof(float) * (k->grid.blocks + k->ob),
           total = k->batch * k->grid.tiles_h * k->grid.tiles_w;
    size_t threads = (size_t)k->n_threads, share = (total + threads - 1) / threads,
           chunk = WINO_BYTES / per_tile;
    k->shared = share < WINO_LEAST && total <= WINO_LEAST * threads;
    chunk = chunk < WINO_LEAST ? WINO_LEAST : chunk;
    size_t n_chunks = (share + chunk - 1) / chunk;
    k->chunk = k->shared ? total : (share + n_chunks - 1) / n_chunks; // equal chunks
    k->base.workspace_bytes = k->chunk * per_tile * (k->shared ? 1 : threads);
    return HTH_OK;
}

hth_err cpu_winograd_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                             const char *algorithm, hth_kernel **out)
{
    if (n->op == HTH_OP_CONV_GRAD_FILTER) {
        return cpu_winograd_grad_prepare(d, g, n, algorithm, out);
    }
    if (algorithm == NULL || strcmp(algorithm, HTH_WINOGRAD_NAME) != 0 || !wino_takes(d, g, n)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not for %s", n->name, HTH_WINOGRAD_NAME);
    }
    wino_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for node '%s'", n->name);
    }
    k->base = (hth_kernel){.run = wino_run,
                           .close = wino_close,
                           .implementation = HTH_WINOGRAD_NAME,
                           .packings = &k->packing,
                           .inplace_input = -1};
    k->n_threads = d->props.n_threads;
    k->mask = -1;
    k->bias = n->op == HTH_OP_CONV && n->n_inputs > 2 && n->inputs[2] >= 0 ? 2 : -1;
    for (int i = 0; i < n->n_post; i++) {
        k->bias = n->post[i].input == 2 ? -1 : k->bias;
    }
    k->add = -1;
    k->low = -INFINITY;
    k->high = INFINITY;
    hth_err err;
    HTH_GOTO(wino_geometry(g, n, k), fail);
    HTH_GOTO(wino_posts(d, g, n, k), fail);
    if (k->tail != NULL && k->tail->workspace_bytes > k->base.workspace_bytes) {
        k->base.workspace_bytes = k->tail->workspace_bytes;
    }
    if (g->values[n->inputs[1]].constant != NULL && n->op == HTH_OP_CONV) {
        k->base.n_packings = 1;
        k->packing = (hth_packing){.input = 1,
                                   .bytes = hth_wino_filter_floats(&k->filter) * sizeof(float),
                                   .form = "winograd4x4:5/8,3/2",
                                   .pack = wino_pack};
    } else {
        k->base.workspace_bytes += hth_wino_filter_floats(&k->filter) * sizeof(float);
    }
    *out = &k->base;
    return HTH_OK;
fail:
    wino_close(&k->base);
    return err;
}

#else

hth_err cpu_winograd_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                             const char *algorithm, hth_kernel **out)
{
    return hth_fail(HTH_ENOTSUP, "node '%s': %s is for x86-64", n->name, HTH_WINOGRAD_NAME);
}

#endif
