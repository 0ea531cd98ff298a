// SPDX-License-Identifier: Apache-2.0
// Batch norm in training, forward and backward. What counts is memory traffic: a block of channels
// of all images is summed and at once, while it lies in a cache, normalised, so that each tensor
// comes from memory once. A thread takes whole blocks; the blocks that are left over when their
// number is no multiple of the threads are shared: all sum a part, then all normalise a part.
//
// One loop serves all layouts: it walks sixteen lanes, which hold one position of a block of 16
// channels, two of a block of 8, or sixteen positions of one plain channel, and parameters are
// repeated to fill the lanes. Images are walked in pieces
// that fit the first-level cache. Variance is the mean of (x - pivot)^2 less that of (x - pivot)
// squared; the pivot is the channel's first element, so nothing cancels. Rows are summed in f32,
// their sums added in double, in an order that depends on the number of threads only.
//
// A shard of a batch (attribute `share`) is summed whole first; its sums, of x and its square in
// double, or of dy and dy (x - mean), are added to those of the other shards, and x comes from
// memory a second time.
#include "kernels/cpu/train/train.h"

#include "device/cpu/team.h"

#include <float.h>

#define LANES       16
#define PIECE       2048 // floats
#define NORM_SHARED 64   // most threads that share a block

typedef struct norm_kernel {
    hth_kernel base;
    int n_threads, add; // add: input of the Add post op, -1: none
    int share;          // name of its sums over all shards, -1: the batch is whole
    float epsilon, momentum, low, high, add_scale;
    bool grad, clamp, masked;
    hth_rows rows;
} norm_kernel;

typedef struct norm_job {
    const norm_kernel *k;
    void *const *in, *const *out;
    size_t block;  // the shared block
    double *parts; // its sums, one set per thread
    // of a shard: sums of each channel, [2][channels], and those of all shards, with at last the
    // number of elements of a channel; else NULL
    double *own, *all;
} norm_job;

// What the lanes of one block need.
typedef struct norm_lanes {
    float pivot[LANES], a[LANES], b[LANES], c[LANES];
    float open_a[LANES], open_b[LANES]; // backward: the forward's line
} norm_lanes;

typedef struct norm_sums {
    double first[LANES], second[LANES];
} norm_sums;

// Sums of (x - pivot) and its square.
HTH_VECTOR(norm_moments, (const float *x, size_t n, const float *pivot, float *out),
           (x, n, pivot, out))
{
    hth_v16 p = *(const hth_v16 *)pivot, s0 = {0}, s1 = s0, q0 = s0, q1 = s0;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        hth_v16 d0 = *(const hth_v16 *)(x + i) - p, d1 = *(const hth_v16 *)(x + i + 16) - p;
        s0 += d0;
        s1 += d1;
        q0 += d0 * d0;
        q1 += d1 * d1;
    }
    *(hth_v16 *)out = s0 + s1;
    *(hth_v16 *)(out + LANES) = q0 + q1;
    for (; i < n; i++) {
        float d = x[i] - pivot[i % LANES];
        out[i % LANES] += d;
        out[LANES + i % LANES] += d * d;
    }
}

// Leaves *dy where the forward's line y = *x a + b lies between low and high, else 0. Pointers:
// a vector by value has another ABI in each HTH_VECTOR version.
HTH_INLINE void norm_open(hth_v16 *dy, const hth_v16 *v16, const norm_lanes *lanes, float low,
                          float high)
{
    hth_v16 y = *v16 * *(const hth_v16 *)lanes->open_a + *(const hth_v16 *)lanes->open_b;
    hth_open16(dy, &y, low, high);
}

HTH_INLINE float norm_open_one(const float *dy, const float *x, size_t i, const norm_lanes *lanes,
                               float low, float high)
{
    float y = x[i] * lanes->open_a[i % LANES] + lanes->open_b[i % LANES];
    return y > low && y < high ? dy[i] : 0;
}

// Sums of dy and dy * (x - mean).
HTH_VECTOR(norm_dots, (const float *dy, const float *x, size_t n, const float *mean, float *out),
           (dy, x, n, mean, out))
{
    hth_v16 m = *(const hth_v16 *)mean, s0 = {0}, s1 = s0, q0 = s0, q1 = s0;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        hth_v16 g0 = *(const hth_v16 *)(dy + i), g1 = *(const hth_v16 *)(dy + i + 16);
        s0 += g0;
        s1 += g1;
        q0 += g0 * (*(const hth_v16 *)(x + i) - m);
        q1 += g1 * (*(const hth_v16 *)(x + i + 16) - m);
    }
    *(hth_v16 *)out = s0 + s1;
    *(hth_v16 *)(out + LANES) = q0 + q1;
    for (; i < n; i++) {
        out[i % LANES] += dy[i];
        out[LANES + i % LANES] += dy[i] * (x[i] - mean[i % LANES]);
    }
}

// The same of what a fused Relu let through.
HTH_VECTOR(norm_open_dots,
           (const float *dy, const float *x, size_t n, const norm_lanes *l, float low, float high,
            float *out),
           (dy, x, n, l, low, high, out))
{
    hth_v16 m = *(const hth_v16 *)l->pivot, s0 = {0}, s1 = s0, q0 = s0, q1 = s0;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        hth_v16 x0 = *(const hth_v16 *)(x + i), x1 = *(const hth_v16 *)(x + i + 16);
        hth_v16 g0 = *(const hth_v16 *)(dy + i), g1 = *(const hth_v16 *)(dy + i + 16);
        norm_open(&g0, &x0, l, low, high);
        norm_open(&g1, &x1, l, low, high);
        s0 += g0;
        s1 += g1;
        q0 += g0 * (x0 - m);
        q1 += g1 * (x1 - m);
    }
    *(hth_v16 *)out = s0 + s1;
    *(hth_v16 *)(out + LANES) = q0 + q1;
    for (; i < n; i++) {
        float g = norm_open_one(dy, x, i, l, low, high);
        out[i % LANES] += g;
        out[LANES + i % LANES] += g * (x[i] - l->pivot[i % LANES]);
    }
}

// y = clamp(x * a + b + scale * add)
HTH_VECTOR(norm_apply,
           (const float *x, const float *add, float *y, size_t n, const norm_lanes *l, float scale,
            float low, float high),
           (x, add, y, n, l, scale, low, high))
{
    hth_v16 a = *(const hth_v16 *)l->a, b = *(const hth_v16 *)l->b;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        hth_v16 v = *(const hth_v16 *)(x + i) * a + b;
        if (add != NULL) {
            v += scale * *(const hth_v16 *)(add + i);
        }
        *(hth_v16 *)(y + i) = v;
    }
    for (; i < n; i++) {
        float v = x[i] * l->a[i % LANES] + l->b[i % LANES];
        y[i] = add == NULL ? v : v + scale * add[i];
    }
    for (i = 0; i < n; i++) { // in the first-level cache
        y[i] = hth_clampf(y[i], low, high);
    }
}

// dx = a * dy + b * (x - mean) + c
HTH_VECTOR(norm_apply_grad,
           (const float *dy, const float *x, float *dx, size_t n, const norm_lanes *l),
           (dy, x, dx, n, l))
{
    hth_v16 a = *(const hth_v16 *)l->a, b = *(const hth_v16 *)l->b, c = *(const hth_v16 *)l->c,
            m = *(const hth_v16 *)l->pivot;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        hth_v16 g = *(const hth_v16 *)(dy + i), v = *(const hth_v16 *)(x + i) - m;
        *(hth_v16 *)(dx + i) = g * a + (v * b + c);
    }
    for (; i < n; i++) {
        dx[i] = dy[i] * l->a[i % LANES] +
                ((x[i] - l->pivot[i % LANES]) * l->b[i % LANES] + l->c[i % LANES]);
    }
}

HTH_VECTOR(norm_open_apply,
           (const float *dy, const float *x, float *dx, size_t n, const norm_lanes *l, float low,
            float high),
           (dy, x, dx, n, l, low, high))
{
    hth_v16 a = *(const hth_v16 *)l->a, b = *(const hth_v16 *)l->b, c = *(const hth_v16 *)l->c,
            m = *(const hth_v16 *)l->pivot;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        hth_v16 v = *(const hth_v16 *)(x + i);
        hth_v16 g = *(const hth_v16 *)(dy + i);
        norm_open(&g, &v, l, low, high);
        *(hth_v16 *)(dx + i) = g * a + ((v - m) * b + c);
    }
    for (; i < n; i++) {
        float g = norm_open_one(dy, x, i, l, low, high);
        dx[i] = g * l->a[i % LANES] +
                ((x[i] - l->pivot[i % LANES]) * l->b[i % LANES] + l->c[i % LANES]);
    }
}

// The part of block `block` that positions [from, to) of all images' positions cover: calls for
// each image's piece.
typedef struct norm_chunk {
    size_t at, n; // first float, number of floats
} norm_chunk;

static bool norm_next(const hth_rows *rows, size_t block, size_t *from, size_t to,
                      norm_chunk *chunk)
{
    if (*from >= to) {
        return false;
    }
    size_t image = *from / rows->s, first = *from % rows->s, left = to - *from;
    size_t count = left < rows->s - first ? left : rows->s - first;
    count = count < PIECE / rows->b ? count : PIECE / rows->b;
    chunk->at = ((image * rows->blocks + block) * rows->s + first) * rows->b;
    chunk->n = count * rows->b;
    *from += count;
    return true;
}

static void norm_sum(const norm_job *job, size_t block, size_t from, size_t to,
                     const norm_lanes *lanes, norm_sums *sums)
{
    const norm_kernel *k = job->k;
    norm_chunk p;
    float part[2 * LANES];
    memset(sums, 0, sizeof *sums);
    while (norm_next(&k->rows, block, &from, to, &p)) {
        const float *first = (const float *)job->in[0] + p.at;
        if (k->masked) {
            norm_open_dots(first, (const float *)job->in[1] + p.at, p.n, lanes, k->low, k->high,
                           part);
        } else if (k->grad) {
            norm_dots(first, (const float *)job->in[1] + p.at, p.n, lanes->pivot, part);
        } else {
            norm_moments(first, p.n, lanes->pivot, part);
        }
        for (size_t i = 0; i < LANES; i++) {
            sums->first[i] += part[i];
            sums->second[i] += part[LANES + i];
        }
    }
}

static void norm_write(const norm_job *job, size_t block, size_t from, size_t to,
                       const norm_lanes *lanes)
{
    const norm_kernel *k = job->k;
    norm_chunk p;
    while (job->out[0] != NULL && norm_next(&k->rows, block, &from, to, &p)) {
        float *to0 = (float *)job->out[0] + p.at;
        const float *first = (const float *)job->in[0] + p.at;
        if (k->masked) {
            norm_open_apply(first, (const float *)job->in[1] + p.at, to0, p.n, lanes, k->low,
                            k->high);
        } else if (k->grad) {
            norm_apply_grad(first, (const float *)job->in[1] + p.at, to0, p.n, lanes);
        } else {
            norm_apply(first, k->add < 0 ? NULL : (const float *)job->in[k->add] + p.at, to0, p.n,
                       lanes, k->add_scale, k->low, k->high);
        }
    }
}

// Lanes that belong to one channel are joined; then lane c holds channel c of the block.
static void norm_join(const hth_rows *rows, norm_sums *sums)
{
    for (size_t i = rows->b; i < LANES; i++) {
        sums->first[i % rows->b] += sums->first[i];
        sums->second[i % rows->b] += sums->second[i];
    }
}

static size_t norm_channels(const hth_rows *rows, size_t block)
{
    size_t left = rows->c - block * rows->b;
    return left < rows->b ? left : rows->b;
}

static void norm_repeat(const hth_rows *rows, float *lanes)
{
    for (size_t i = rows->b; i < LANES; i++) {
        lanes[i] = lanes[i % rows->b];
    }
}

// Before the sums: the pivot of each channel (forward), or its mean and what the forward pass made
// of x, for the mask of a fused Relu (backward): y itself need not be read again.
static void norm_begin(const norm_job *job, size_t block, norm_lanes *lanes)
{
    const hth_rows *r = &job->k->rows;
    size_t n = norm_channels(r, block);
    memset(lanes, 0, sizeof *lanes);
    for (size_t c = 0; c < n; c++) {
        lanes->pivot[c] = job->k->grad ? ((const float *)job->in[3])[block * r->b + c]
                                       : ((const float *)job->in[0])[block * r->s * r->b + c];
    }
    norm_repeat(r, lanes->pivot);
    for (size_t c = 0; job->k->masked && c < n; c++) {
        size_t at = block * r->b + c;
        double a = (double)((const float *)job->in[2])[at] * ((const float *)job->in[4])[at];
        lanes->open_a[c] = (float)a;
        lanes->open_b[c] = (float)(((const float *)job->in[5])[at] - lanes->pivot[c] * a);
    }
    norm_repeat(r, lanes->open_a);
    norm_repeat(r, lanes->open_b);
}

static void norm_put(const norm_job *job, int i, size_t c, double v)
{
    if (job->out[i] != NULL) {
        ((float *)job->out[i])[c] = (float)v;
    }
}

// From the sums of a channel to its line y = a x + b, its statistics, and the running ones.
static void norm_line(const norm_job *job, size_t block, norm_sums *sums, norm_lanes *lanes)
{
    const norm_kernel *k = job->k;
    const hth_rows *r = &k->rows;
    double count = job->all != NULL ? job->all[2 * r->c] : (double)(r->n * r->s);
    size_t n = norm_channels(r, block);
    norm_join(r, sums);
    for (size_t i = 0; i < n; i++) {
        size_t c = block * r->b + i;
        double pivot = job->all != NULL ? 0 : (double)lanes->pivot[i];
        double off = sums->first[i] / count, mean = pivot + off;
        double var = sums->second[i] / count - off * off;
        var = var < 0 ? 0 : var;
        double inv = 1 / sqrt(var + (double)k->epsilon);
        double unbiased = count > 1 ? var * count / (count - 1) : var;
        double a = ((const float *)job->in[1])[c] * inv, m = k->momentum;
        lanes->a[i] = (float)a;
        lanes->b[i] = (float)(((const float *)job->in[2])[c] - mean * a);
        norm_put(job, 1, c, mean);
        norm_put(job, 2, c, inv);
        norm_put(job, 3, c, m * ((const float *)job->in[3])[c] + (1 - m) * mean);
        norm_put(job, 4, c, m * ((const float *)job->in[4])[c] + (1 - m) * unbiased);
    }
    norm_repeat(r, lanes->a);
    norm_repeat(r, lanes->b);
}

// dx = a dy + b (x - mean) + c with a = scale inv, b = -a inv^2 sum(dy (x - mean)) / n, c = -a
// sum(dy) / n. Of a shard the gradients of scale and bias are its own.
static void norm_line_grad(const norm_job *job, size_t block, norm_sums *sums, norm_lanes *lanes)
{
    const hth_rows *r = &job->k->rows;
    double count = job->all != NULL ? job->all[2 * r->c] : (double)(r->n * r->s);
    size_t n = norm_channels(r, block);
    norm_join(r, sums);
    for (size_t i = 0; i < n; i++) {
        size_t c = block * r->b + i;
        const double *own = job->own != NULL ? job->own + c : NULL;
        double inv = ((const float *)job->in[4])[c], dot = sums->second[i] * inv;
        double a = ((const float *)job->in[2])[c] * inv;
        lanes->a[i] = (float)a;
        lanes->b[i] = (float)(-a * inv * dot / count);
        lanes->c[i] = (float)(-a * sums->first[i] / count);
        norm_put(job, 1, c, own != NULL ? own[r->c] * inv : dot);
        norm_put(job, 2, c, own != NULL ? own[0] : sums->first[i]);
    }
    norm_repeat(r, lanes->a);
    norm_repeat(r, lanes->b);
    norm_repeat(r, lanes->c);
}

static void norm_solve(const norm_job *job, size_t block, norm_sums *sums, norm_lanes *lanes)
{
    if (job->k->grad) {
        norm_line_grad(job, block, sums, lanes);
    } else {
        norm_line(job, block, sums, lanes);
    }
}

// Padding lanes: the forward's line would leave them at the lower bound where that is above zero;
// its a and b are 0 there, so only such a clamp matters.
static void norm_clear(const norm_job *job, size_t block, size_t from, size_t to)
{
    const hth_rows *r = &job->k->rows;
    bool lifted = !job->k->grad && (job->k->low > 0 || job->k->high < 0);
    for (size_t p = from; p < to && lifted && norm_channels(r, block) < r->b; p++) {
        float *y = (float *)job->out[0] + ((p / r->s * r->blocks + block) * r->s + p % r->s) * r->b;
        for (size_t c = norm_channels(r, block); c < r->b; c++) {
            y[c] = 0;
        }
    }
}

static void norm_whole(void *arg, int i, int n)
{
    const norm_job *j = arg;
    const hth_rows *r = &j->k->rows;
    size_t begin, end, even = r->blocks - r->blocks % (size_t)j->k->n_threads;
    hth_team_range(even, i, n, &begin, &end);
    for (size_t b = begin; b < end; b++) {
        norm_lanes l;
        norm_sums s;
        norm_begin(j, b, &l);
        norm_sum(j, b, 0, r->n * r->s, &l, &s);
        norm_solve(j, b, &s, &l);
        norm_write(j, b, 0, r->n * r->s, &l);
        norm_clear(j, b, 0, r->n * r->s);
    }
}

static void norm_shared_sum(void *arg, int i, int n)
{
    const norm_job *j = arg;
    const hth_rows *r = &j->k->rows;
    size_t begin, end;
    norm_lanes l;
    hth_team_range(r->n * r->s, i, n, &begin, &end);
    norm_begin(j, j->block, &l);
    norm_sum(j, j->block, begin, end, &l, (norm_sums *)(void *)j->parts + i);
}

typedef struct norm_share {
    const norm_job *j;
    const norm_lanes *l;
} norm_share;

static void norm_shared_write(void *arg, int i, int n)
{
    const norm_share *s = arg;
    const hth_rows *r = &s->j->k->rows;
    size_t begin, end;
    hth_team_range(r->n * r->s, i, n, &begin, &end);
    norm_write(s->j, s->j->block, begin, end, s->l);
    norm_clear(s->j, s->j->block, begin, end);
}

static void norm_shared(norm_job *job, size_t block)
{
    norm_sums parts[NORM_SHARED] = {0}, *s = &parts[0];
    norm_lanes l;
    job->block = block;
    job->parts = parts[0].first;
    hth_team_run(norm_shared_sum, job);
    for (int i = 1; i < job->k->n_threads; i++) {
        for (size_t c = 0; c < LANES; c++) {
            s->first[c] += parts[i].first[c];
            s->second[c] += parts[i].second[c];
        }
    }
    norm_begin(job, block, &l);
    norm_solve(job, block, s, &l);
    norm_share share = {job, &l};
    hth_team_run(norm_shared_write, &share);
}

// The sums of a shard's channels. Those of x are about 0, whatever each shard's pivot: in double
// nothing of float32 cancels.
static void norm_shard_sum(void *arg, int i, int n)
{
    const norm_job *j = arg;
    const hth_rows *r = &j->k->rows;
    size_t begin, end;
    double count = (double)(r->n * r->s);
    hth_team_range(r->blocks, i, n, &begin, &end);
    for (size_t b = begin; b < end; b++) {
        norm_lanes l;
        norm_sums s;
        norm_begin(j, b, &l);
        norm_sum(j, b, 0, r->n * r->s, &l, &s);
        norm_join(r, &s);
        for (size_t c = 0; c < norm_channels(r, b); c++) {
            double pivot = j->k->grad ? 0 : (double)l.pivot[c], *own = j->own + b * r->b + c;
            own[0] = s.first[c] + count * pivot;
            own[r->c] = s.second[c] + pivot * (2 * s.first[c] + count * pivot);
        }
    }
}

static void norm_shard_write(void *arg, int i, int n)
{
    const norm_job *j = arg;
    const hth_rows *r = &j->k->rows;
    size_t begin, end;
    hth_team_range(r->blocks, i, n, &begin, &end);
    for (size_t b = begin; b < end; b++) {
        norm_lanes l;
        norm_sums s = {.first = {0}};
        for (size_t c = 0; c < norm_channels(r, b); c++) {
            s.first[c] = j->all[b * r->b + c];
            s.second[c] = j->all[r->c + b * r->b + c];
        }
        norm_begin(j, b, &l);
        norm_solve(j, b, &s, &l);
        norm_write(j, b, 0, r->n * r->s, &l);
        norm_clear(j, b, 0, r->n * r->s);
    }
}

// Gradients are means of the shard, so sums over all of them are weighted, and come back in the
// measure of this one.
static hth_err norm_run_shard(norm_job *job, const hth_kernel_args *args)
{
    const norm_kernel *k = job->k;
    size_t n = 2 * k->rows.c;
    double weight = k->grad && args->group != NULL ? args->group->weight : 1;
    job->own = args->workspace;
    job->all = job->own + n;
    hth_team_run(norm_shard_sum, job);
    for (size_t i = 0; i < n; i++) {
        job->all[i] = job->own[i] * weight;
    }
    job->all[n] = (double)(k->rows.n * k->rows.s);
    if (args->group != NULL) {
        HTH_TRY(args->group->sum(args->group->ctx, k->share, job->all, n + 1));
    }
    for (size_t i = 0; i < n; i++) {
        job->all[i] /= weight;
    }
    hth_team_run(norm_shard_write, job);
    return HTH_OK;
}

static hth_err norm_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const norm_kernel *k = (const norm_kernel *)base;
    norm_job j = {.k = k, .in = args->in, .out = args->out};
    size_t rest = k->rows.blocks % (size_t)k->n_threads;
    hth_team_set(k->n_threads);
    if (k->share >= 0) {
        return norm_run_shard(&j, args);
    }
    if (rest < k->rows.blocks) {
        hth_team_run(norm_whole, &j);
    }
    for (size_t b = k->rows.blocks - rest; b < k->rows.blocks; b++) {
        norm_shared(&j, b);
    }
    return HTH_OK;
}

void cpu_batch_norm_sums(const hth_kernel *kernel, const hth_kernel_args *args, double *own)
{
    const norm_kernel *k = (const norm_kernel *)kernel;
    norm_job j = {.k = k, .in = args->in, .out = args->out, .own = own};
    hth_team_set(k->n_threads);
    hth_team_run(norm_shard_sum, &j);
}

void cpu_batch_norm_write(const hth_kernel *kernel, const hth_kernel_args *args, double *all)
{
    const norm_kernel *k = (const norm_kernel *)kernel;
    norm_job j = {.k = k, .in = args->in, .out = args->out, .own = all, .all = all};
    hth_team_set(k->n_threads);
    hth_team_run(norm_shard_write, &j);
}

static bool norm_bounds(const hth_post_op *op, float *low, float *high)
{
    *low = op->op == HTH_OP_CLIP ? op->alpha : 0;
    *high = op->op == HTH_OP_CLIP ? op->beta : INFINITY;
    return op->input < 0 && (op->op == HTH_OP_RELU || op->op == HTH_OP_CLIP);
}

bool cpu_batch_norm_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const hth_post_op *post, int operand)
{
    float low, high;
    if (operand >= 0) {
        return node->n_post == 0 && post->op == HTH_OP_ADD &&
               hth_shape_equal(&graph->values[operand].shape,
                               &graph->values[node->outputs[0]].shape);
    }
    return norm_bounds(post, &low, &high) &&
           (node->n_post == 0 || node->post[node->n_post - 1].input >= 0);
}

// At most one Add of a tensor like the output, then at most one clamp.
static bool norm_posts(const hth_graph *graph, const hth_node *node, norm_kernel *kernel)
{
    const hth_value *y = &graph->values[node->outputs[0]];
    int i = 0;
    if (i < node->n_post && node->post[i].op == HTH_OP_ADD && node->post[i].input >= 0) {
        const hth_value *v = &graph->values[node->inputs[node->post[i].input]];
        kernel->add = node->post[i].input;
        kernel->add_scale = node->post[i++].alpha;
        if (!hth_shape_equal(&v->shape, &y->shape) || v->layout != y->layout ||
            v->dtype != HTH_DT_F32) {
            return false;
        }
    }
    return i == node->n_post ||
           (i + 1 == node->n_post && norm_bounds(&node->post[i], &kernel->low, &kernel->high));
}

static hth_err norm_make(hth_device *device, const hth_graph *graph, const hth_node *node,
                         norm_kernel *kernel, hth_kernel **out)
{
    const hth_value *x = &graph->values[node->inputs[kernel->grad ? 1 : 0]];
    bool fits = hth_rows_of(&x->shape, x->layout, &kernel->rows) && x->dtype == HTH_DT_F32 &&
                hth_shape_elements(&x->shape) > 0;
    kernel->share = (int)hth_node_int(node, "share", -1);
    fits = fits && (kernel->share >= 0 || device->props.n_threads <= NORM_SHARED);
    for (int i = 0; i < node->n_inputs + node->n_outputs && fits; i++) {
        int at = i < node->n_inputs ? node->inputs[i] : node->outputs[i - node->n_inputs];
        const hth_value *v = at < 0 ? x : &graph->values[at];
        bool param = v->shape.rank == 1;
        fits = v->dtype == HTH_DT_F32 &&
               (param ? hth_shape_elements(&v->shape) == (int64_t)kernel->rows.c
                      : v->layout == x->layout);
    }
    if (!fits) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or post ops", node->name);
    }
    kernel->n_threads = device->props.n_threads;
    kernel->base.run = norm_run;
    kernel->base.close = hth_cpu_kernel_free;
    kernel->base.implementation = kernel->share < 0 ? "blocks" : "shard";
    kernel->base.workspace_bytes =
        kernel->share < 0 ? 0 : (4 * kernel->rows.c + 1) * sizeof(double);
    return hth_cpu_kernel_made(node, &kernel->base, sizeof *kernel, out);
}

hth_err cpu_batch_norm_train_prepare(hth_device *device, const hth_graph *graph,
                                     const hth_node *node, const char *algorithm, hth_kernel **out)
{
    norm_kernel k = {.add = -1,
                     .add_scale = 1,
                     .low = -INFINITY,
                     .high = INFINITY,
                     .epsilon = hth_node_float(node, "epsilon", 1e-5F),
                     .momentum = hth_node_float(node, "momentum", 0.9F)};
    if (algorithm != NULL || !norm_posts(graph, node, &k)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': algorithm or post ops", node->name);
    }
    k.base.inplace_input = k.add; // the backward pass reads x again
    return norm_make(device, graph, node, &k, out);
}

hth_err cpu_batch_norm_grad_prepare(hth_device *device, const hth_graph *graph,
                                    const hth_node *node, const char *algorithm, hth_kernel **out)
{
    norm_kernel k = {.grad = true,
                     .add = -1,
                     .masked = node->n_inputs > 5 && node->inputs[5] >= 0,
                     .low = hth_node_float(node, "low", 0),
                     .high = hth_node_float(node, "high", INFINITY)};
    if (algorithm != NULL || node->n_post > 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': algorithm or post ops", node->name);
    }
    k.base.inplace_input = node->outputs[0] >= 0 ? 0 : -1;
    return norm_make(device, graph, node, &k, out);
}
