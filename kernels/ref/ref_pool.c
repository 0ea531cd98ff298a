// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_pool.c - average, maximum and Lp pooling, over windows and over all positions.
//
// A window's taps inside the image are the product of one range of taps per dimension, computed
// once per output position and dimension; the reducers then walk whole rows of taps. What differs
// between the three kinds is one small function per window, so that borders, dilation and ceil_mode
// are handled in one place.
#include "kernels/ref/ref_num.h"
#include "kernels/ref/ref_window.h"

#include <math.h>
#include <string.h>

typedef struct pool {
    ref_window w;
    double (*reduce)(const struct pool *p, const double *x, const int64_t at[3], int64_t *where);
    double p;          // of LpPool
    bool count_pads;   // average: pads count
    int64_t *indices;  // of the maxima, NULL: not wanted
    bool column_major; // storage order of the indices
} pool;

// Taps [lo, hi) of dimension i at output position `o` that lie in [0, size).
static void pool_taps(const ref_window *window, int i, int64_t o, int64_t size, int64_t *lo,
                      int64_t *hi)
{
    int64_t base = o * window->stride[i] - window->pad[i], d = window->dilation[i];
    *lo = base < 0 ? (-base + d - 1) / d : 0;
    *hi = base >= size ? 0 : (size - base + d - 1) / d;
    *hi = *hi > window->k[i] ? window->k[i] : *hi;
    *lo = *lo > *hi ? *hi : *lo;
}

typedef struct pool_walk {
    int64_t lo[3], hi[3], base[3];
    int64_t taps;
} pool_walk;

static pool_walk pool_start(const ref_window *window, const int64_t at[3])
{
    pool_walk k = {.taps = 1};
    for (int i = 0; i < 3; i++) {
        pool_taps(window, i, at[i], window->in[i], &k.lo[i], &k.hi[i]);
        k.base[i] = at[i] * window->stride[i] - window->pad[i];
        k.taps *= k.hi[i] - k.lo[i];
    }
    return k;
}

// Index of the first tap of row (z, y) of the window.
static int64_t pool_row(const ref_window *window, const pool_walk *walk, int64_t z, int64_t y)
{
    int64_t iz = walk->base[0] + z * window->dilation[0],
            iy = walk->base[1] + y * window->dilation[1];
    return (iz * window->in[1] + iy) * window->in[2] + walk->base[2] +
           walk->lo[2] * window->dilation[2];
}

#define POOL_FOR_ROWS(k, z, y)                                                                     \
    for (int64_t z = (k).lo[0]; z < (k).hi[0]; z++)                                                \
        for (int64_t y = (k).lo[1]; y < (k).hi[1]; y++)

static double pool_average(const pool *p, const double *x, const int64_t at[3], int64_t *where)
{
    const ref_window *w = &p->w;
    pool_walk k = pool_start(w, at);
    double sum = 0;
    int64_t divisor = k.taps;
    POOL_FOR_ROWS(k, z, y)
    {
        const double *row = x + pool_row(w, &k, z, y);
        for (int64_t t = 0; t < k.hi[2] - k.lo[2]; t++) {
            sum += row[t * w->dilation[2]];
        }
    }
    if (p->count_pads) {
        divisor = 1;
        for (int i = 0; i < 3; i++) {
            // What lies after the end pad (ceil_mode) counts nowhere.
            int64_t lo, hi;
            pool_taps(w, i, at[i], w->in[i] + w->pad_end[i], &lo, &hi);
            divisor *= hi;
        }
    }
    return divisor ? sum / (double)divisor : 0;
}

static double pool_lp(const pool *p, const double *x, const int64_t at[3], int64_t *where)
{
    const ref_window *w = &p->w;
    pool_walk k = pool_start(w, at);
    double sum = 0;
    POOL_FOR_ROWS(k, z, y)
    {
        const double *row = x + pool_row(w, &k, z, y);
        for (int64_t t = 0; t < k.hi[2] - k.lo[2]; t++) {
            sum += pow(fabs(row[t * w->dilation[2]]), p->p);
        }
    }
    return pow(sum, 1 / p->p);
}

static double pool_max(const pool *p, const double *x, const int64_t at[3], int64_t *where)
{
    const ref_window *w = &p->w;
    pool_walk k = pool_start(w, at);
    double best = -INFINITY;
    *where = -1;
    POOL_FOR_ROWS(k, z, y)
    {
        int64_t first = pool_row(w, &k, z, y);
        for (int64_t t = 0; t < k.hi[2] - k.lo[2]; t++) {
            int64_t i = first + t * w->dilation[2];
            if (*where < 0 || x[i] > best || (x[i] != x[i] && best == best)) {
                best = x[i];
                *where = i;
            }
        }
    }
    return best;
}

// Index in the whole tensor of position `where` of image `image`, in the storage order asked for.
static int64_t pool_index(const pool *p, int64_t image, int64_t where)
{
    const ref_window *w = &p->w;
    if (p->column_major && where >= 0) {
        int64_t x = where % w->in[2], y = where / w->in[2] % w->in[1],
                z = where / w->in[2] / w->in[1];
        where = (x * w->in[1] + y) * w->in[0] + z;
    }
    return image * w->n_in + where;
}

static void pool_image(const pool *p, int64_t image, const double *x, double *y)
{
    const ref_window *w = &p->w;
    int64_t o = 0, where = 0, at[3];
    uint64_t row = (uint64_t)w->out[2] * (uint64_t)w->n_taps; // of work, at most
    for (at[0] = 0; at[0] < w->out[0]; at[0]++) {
        for (at[1] = 0; at[1] < w->out[1] && !hth_pace_over(row); at[1]++) {
            for (at[2] = 0; at[2] < w->out[2]; at[2]++, o++) {
                y[o] = p->reduce(p, x, at, &where);
                if (p->indices) {
                    p->indices[image * w->n_out + o] = pool_index(p, image, where);
                }
            }
        }
    }
}

static hth_err pool_run(ref_mem *mem, const hth_node *node, const hth_tensor *x, hth_tensor *y,
                        pool *p)
{
    int64_t kernel[HTH_MAX_RANK];
    int n_kernel = hth_node_ints(node, "kernel_shape", kernel, HTH_MAX_RANK);
    double *from, *to;
    HTH_TRY(ref_window_init(&p->w, node, &x->shape, &y->shape, kernel, n_kernel));
    HTH_TRY(ref_need_count(y, p->w.batch * p->w.channels * p->w.n_out));
    HTH_TRY(REF_TAKE(mem, p->w.n_in, &from));
    HTH_TRY(REF_TAKE(mem, p->w.n_out, &to));
    for (int64_t i = 0; i < p->w.batch * p->w.channels && !hth_pace_over(1); i++) {
        ref_wide_at(x, i * p->w.n_in, p->w.n_in, from);
        pool_image(p, i, from, to);
        ref_round_at(to, i * p->w.n_out, p->w.n_out, y);
    }
    return HTH_OK;
}

static hth_err pool_average_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                 hth_tensor *out)
{
    pool p = {.reduce = pool_average,
              .count_pads = hth_node_int(node, "count_include_pad", 0) != 0};
    return pool_run(mem, node, &in[0], &out[0], &p);
}

static hth_err pool_lp_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                            hth_tensor *out)
{
    pool p = {.reduce = pool_lp, .p = (double)hth_node_int(node, "p", 2)};
    return pool_run(mem, node, &in[0], &out[0], &p);
}

static hth_err pool_max_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    hth_tensor *indices = ref_out(node, out, 1);
    pool p = {.reduce = pool_max,
              .indices = indices ? indices->data : NULL,
              .column_major = hth_node_int(node, "storage_order", 0) != 0};
    HTH_TRY(ref_need_count(indices, ref_count(&out[0])));
    return pool_run(mem, node, &in[0], &out[0], &p);
}

// Global pooling: one value per image, whatever the number of spatial dimensions.
typedef double pool_global_fn(const double *x, int64_t n, double p);

static double pool_global_average(const double *x, int64_t n, double p)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum / (double)n;
}

static double pool_global_max(const double *x, int64_t n, double p)
{
    double best = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        best = x[i] > best || x[i] != x[i] ? x[i] : best;
    }
    return best;
}

static double pool_global_lp(const double *x, int64_t n, double p)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += pow(fabs(x[i]), p);
    }
    return pow(sum, 1 / p);
}

static hth_err pool_global_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                hth_tensor *out)
{
    pool_global_fn *fn = pool_global_average;
    if (node->op == HTH_OP_GLOBAL_MAX_POOL) {
        fn = pool_global_max;
    } else if (node->op == HTH_OP_GLOBAL_LP_POOL) {
        fn = pool_global_lp;
    }
    HTH_TRY(ref_need_rank(&in[0], 2));
    int64_t images = ref_span(&in[0].shape, 0, 2),
            size = ref_span(&in[0].shape, 2, in[0].shape.rank);
    double *x;
    HTH_TRY(ref_need_count(&out[0], images));
    HTH_TRY(REF_TAKE(mem, size, &x));
    for (int64_t i = 0; i < images; i++) {
        ref_wide_at(&in[0], i * size, size, x);
        double v = fn(x, size, (double)hth_node_int(node, "p", 2));
        ref_round_at(&v, i, 1, &out[0]);
    }
    return HTH_OK;
}

REF_OP(ref_average_pool, pool_average_body)
REF_OP(ref_lp_pool, pool_lp_body)
REF_OP(ref_max_pool, pool_max_body)
REF_OP(ref_global_pool, pool_global_body)
