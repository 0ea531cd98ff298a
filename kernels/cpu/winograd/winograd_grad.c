// SPDX-License-Identifier: Apache-2.0
// The filter gradient of a 3x3 convolution by Winograd's algorithm, transposed: where the forward
// pass computes Y = A^T [U . V] A with U = G g G^T and V = B^T d B, the gradient is
// dg = G^T [sum over tiles of (A dY A^T) . (B^T d B)] G: as many matrix products as points, whose
// long side is the number of tiles.
//
// The sums M are as large as the transformed filter. They are computed region by region (so many
// result channels times so many input channels), and tiles go in chunks: transform patches V and
// gradients Z of the region's channels, then add their products to M. Each chunk reads and writes
// M, each region transforms V and Z again: with less workspace regions get smaller, so that M stays
// in a cache, and chunks shorter. The threads share the units of each step; which of them adds what
// does not change any sum.
//
// With few tiles and many channels V and Z are small and M is huge. Then all tiles are one chunk,
// and each thread computes parts of M in its own cache, from the products to the gradient, without
// waiting for others.
#include "kernels/cpu/winograd/winograd.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

#include <string.h>

#define GRAD_MIN  32                  // tiles of a chunk
#define GRAD_FEW  32                  // tiles so cheap that V may be transformed more than once
#define GRAD_PART ((size_t)448 << 10) // bytes of M that a thread computes at once

typedef struct grad_kernel {
    hth_kernel base;
    hth_wino_plan p;
    int n_threads;
    bool bias;
    size_t ins, outs, chunk;            // blocks of a region; tiles of a chunk
    bool parts;                         // threads compute parts of a region's M on their own
    size_t in_part, out_part, m_floats; // blocks of a part; M of it
    size_t m_step, x_step, dy_step, at_x, at_dy, at_sums;
} grad_kernel;

typedef struct grad_job {
    const grad_kernel *k;
    const float *x, *dy;
    hth_wino_sums s;
    double *sums; // of dy per channel, a set per thread; NULL: not in this region
    bool same_x;  // V is there from the region before
} grad_job;

static size_t grad_channels(const grad_kernel *kernel)
{
    return kernel->p.grid.groups * kernel->p.grid.ob * kernel->p.isa->block;
}

static void grad_transforms(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    int size = k->p.pairs - 1;
    double *sums = j->sums == NULL ? NULL : j->sums + (size_t)i * grad_channels(k);
    size_t begin, end;
    if (!j->same_x) {
        hth_team_range(j->s.x.count * j->s.x.blocks, i, n, &begin, &end);
        k->p.isa->patches[size](&k->p.grid, j->x, &j->s.x, begin, end);
    }
    hth_team_range(j->s.dy.count * j->s.dy.blocks, i, n, &begin, &end);
    k->p.isa->tiles[size](&k->p.grid, j->dy, &j->s.dy, begin, end, sums);
}

static void grad_products(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const hth_wino_isa *isa = j->k->p.isa;
    size_t vectors = j->s.dy.blocks * isa->block / isa->lanes, begin, end;
    hth_team_range(j->k->p.points * ((vectors + isa->vecs - 1) / isa->vecs), i, n, &begin, &end);
    isa->sum(&j->s, begin, end, j->s.x.first == 0);
}

static void grad_results(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const hth_wino_isa *isa = j->k->p.isa;
    size_t begin, end;
    hth_team_range(j->s.dy.blocks * isa->block / isa->lanes * j->s.x.blocks, i, n, &begin, &end);
    isa->gradient[j->k->p.pairs - 1](&j->s, begin, end);
}

// Narrows a chunk to `most` blocks from `first`, counted from its own.
static void grad_part(hth_wino_chunk *chunk, size_t first, size_t most, size_t block)
{
    chunk->v += first * chunk->count * block;
    chunk->block += first;
    chunk->blocks = chunk->blocks - first < most ? chunk->blocks - first : most;
}

// Parts of the region's M, each from the products to the gradient.
static void grad_parts(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    const hth_wino_isa *isa = k->p.isa;
    size_t rows = (j->s.x.blocks + k->in_part - 1) / k->in_part;
    size_t columns = (j->s.dy.blocks + k->out_part - 1) / k->out_part, begin, end;
    hth_team_range(rows * columns, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        hth_wino_sums s = j->s;
        s.m += (size_t)i * k->m_floats;
        grad_part(&s.x, u % rows * k->in_part, k->in_part, isa->block);
        grad_part(&s.dy, u / rows * k->out_part, k->out_part, isa->block);
        size_t vectors = s.dy.blocks * isa->block / isa->lanes;
        isa->sum(&s, 0, k->p.points * ((vectors + isa->vecs - 1) / isa->vecs), true);
        isa->gradient[k->p.pairs - 1](&s, 0, vectors * s.x.blocks);
    }
}

static void grad_region(grad_job *job)
{
    const grad_kernel *k = job->k;
    size_t tiles = k->p.grid.tiles;
    for (size_t first = 0; first < tiles; first += k->chunk) {
        job->s.x.first = job->s.dy.first = first;
        job->s.x.count = job->s.dy.count = tiles - first < k->chunk ? tiles - first : k->chunk;
        hth_team_run(grad_transforms, job);
        hth_team_run(k->parts ? grad_parts : grad_products, job);
    }
    if (!k->parts) {
        hth_team_run(grad_results, job);
    }
}

static void grad_group(grad_job *job, size_t group, double *sums)
{
    const grad_kernel *k = job->k;
    const hth_wino_grid *g = &k->p.grid;
    job->s.x.group = job->s.dy.group = group;
    for (size_t out = 0; out < g->ob; out += k->outs) {
        job->s.dy.block = out;
        job->s.dy.blocks = g->ob - out < k->outs ? g->ob - out : k->outs;
        for (size_t in = 0; in < g->ib; in += k->ins) {
            job->s.x.block = in;
            job->s.x.blocks = g->ib - in < k->ins ? g->ib - in : k->ins;
            job->sums = in == 0 ? sums : NULL;
            job->same_x = out > 0 && k->ins == g->ib && k->chunk >= g->tiles;
            grad_region(job);
        }
    }
}

// The node's channels of the merged groups, in order: only the last group has some to spare.
static void grad_bias(const grad_kernel *kernel, const double *sums, float *db)
{
    for (size_t c = 0; c < kernel->p.filter.groups * kernel->p.filter.out; c++) {
        double sum = 0;
        for (int i = 0; i < kernel->n_threads; i++) {
            sum += sums[(size_t)i * grad_channels(kernel) + c];
        }
        db[c] = (float)sum;
    }
}

static hth_err grad_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const grad_kernel *k = (const grad_kernel *)base;
    float *ws = args->workspace;
    double *sums = k->bias ? (double *)(void *)(ws + k->at_sums) : NULL;
    grad_job j = {.k = k,
                  .x = args->in[0],
                  .dy = args->in[1],
                  .s = {.grid = &k->p.grid,
                        .filter = &k->p.filter,
                        .x = {.v = ws + k->at_x, .step = k->x_step},
                        .dy = {.v = ws + k->at_dy, .step = k->dy_step},
                        .m = ws,
                        .dw = args->out[0],
                        .step = k->m_step}};
    if (sums != NULL) {
        memset(sums, 0, (size_t)k->n_threads * grad_channels(k) * sizeof *sums);
    }
    hth_team_set(k->n_threads);
    for (size_t group = 0; group < k->p.grid.groups; group++) {
        grad_group(&j, group, sums);
    }
    if (sums != NULL) {
        grad_bias(k, sums, args->out[1]);
    }
    return HTH_OK;
}

static void grad_close(hth_kernel *base)
{
    hth_free(base);
}

static size_t grad_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Regions whose M takes half of the workspace: first fewer result channels, then fewer of both.
// What is left goes to chunks.
static void grad_reserve_regions(grad_kernel *kernel, size_t budget)
{
    const hth_wino_plan *p = &kernel->p;
    size_t block = p->isa->block, points = p->points;
    size_t least = (p->isa->vecs * p->isa->lanes + block - 1) / block; // blocks of results
    kernel->ins = p->grid.ib;
    kernel->outs = p->grid.ob;
    while (points * kernel->ins * kernel->outs * block * block > budget / 2 &&
           (kernel->outs > least || kernel->ins > least)) {
        if (kernel->outs >= kernel->ins && kernel->outs > least) {
            kernel->outs = (kernel->outs + 1) / 2;
        } else {
            kernel->ins = (kernel->ins + 1) / 2;
        }
    }
    kernel->m_step = kernel->ins * kernel->outs * block * block + HTH_WINO_LINE;
    kernel->m_floats = points * kernel->m_step;
    size_t row = points * block * (kernel->ins + kernel->outs);
    size_t most = budget > kernel->m_floats ? (budget - kernel->m_floats) / row : 0;
    most = most < GRAD_MIN ? GRAD_MIN : most;
    size_t chunks = (p->grid.tiles + most - 1) / most;
    kernel->chunk = (p->grid.tiles + chunks - 1) / chunks; // equal chunks
}

// Parts of M for each thread, V and Z of all tiles: V of all inputs, so that nothing is transformed
// twice, or, for few tiles, of as many as fit. False: regions are better.
static bool grad_reserve_parts(grad_kernel *kernel, size_t budget)
{
    const hth_wino_plan *p = &kernel->p;
    size_t block = p->isa->block, threads = (size_t)kernel->n_threads,
           square = p->points * block * block;
    size_t ib = p->grid.ib, ob = p->grid.ob, row = p->points * block * p->grid.tiles;
    size_t fits = grad_min(budget / 8 / threads, GRAD_PART / sizeof(float)) / square;
    kernel->out_part = grad_min(ob, (p->isa->vecs * p->isa->lanes + block - 1) / block);
    kernel->in_part = grad_min(ib, fits / kernel->out_part > 0 ? fits / kernel->out_part : 1);
    while (kernel->in_part > 2 * kernel->out_part && kernel->out_part * 2 <= ob) {
        kernel->out_part *= 2;
        kernel->in_part /= 2;
    }
    kernel->m_step = kernel->in_part * kernel->out_part * block * block + HTH_WINO_LINE;
    kernel->m_floats = p->points * kernel->m_step;
    size_t left =
        budget > threads * kernel->m_floats ? (budget - threads * kernel->m_floats) / row : 0;
    bool all = left >= ib + kernel->out_part;
    if (square * ib * ob <= budget / 2 || left < kernel->in_part + kernel->out_part ||
        (!all && p->grid.tiles > GRAD_FEW)) {
        return false;
    }
    size_t half = left / 2 > kernel->in_part ? left / 2 : kernel->in_part;
    kernel->ins = all ? ib : grad_min(ib, half);
    kernel->outs = grad_min(ob, left - kernel->ins);
    kernel->chunk = p->grid.tiles;
    return true;
}

static void grad_reserve(grad_kernel *kernel)
{
    const hth_wino_plan *p = &kernel->p;
    size_t block = p->isa->block, budget = p->bytes / sizeof(float);
    kernel->parts = grad_reserve_parts(kernel, budget);
    if (!kernel->parts) {
        grad_reserve_regions(kernel, budget);
    }
    kernel->x_step = kernel->ins * block * kernel->chunk + HTH_WINO_LINE;
    kernel->dy_step = kernel->outs * block * kernel->chunk + HTH_WINO_LINE;
    kernel->at_x = kernel->m_floats * (kernel->parts ? (size_t)kernel->n_threads : 1);
    kernel->at_dy = kernel->at_x + p->points * kernel->x_step;
    kernel->at_sums = kernel->at_dy + p->points * kernel->dy_step;
    size_t sums =
        kernel->bias ? (size_t)kernel->n_threads * grad_channels(kernel) * 2 : 0; // doubles
    kernel->base.workspace_bytes = (kernel->at_sums + sums) * sizeof(float);
}

hth_err hth_wino_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const hth_wino_plan *plan, hth_kernel **out)
{
    if (node->n_post > 0 || plan->run) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not for %s", node->name, plan->name);
    }
    grad_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->p = *plan;
    k->n_threads = device->props.n_threads;
    k->bias = node->n_outputs > 1 && node->outputs[1] >= 0;
    k->base = (hth_kernel){
        .run = grad_run, .close = grad_close, .implementation = k->p.name, .inplace_input = -1};
    grad_reserve(k);
    *out = &k->base;
    return HTH_OK;
}
