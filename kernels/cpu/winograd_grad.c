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
#include "kernels/cpu/winograd.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

#include <string.h>

#define GRAD_LEAST 32 // tiles of a chunk

typedef struct grad_kernel {
    hth_kernel base;
    hth_wino_plan p;
    int n_threads;
    bool bias;
    size_t ins, outs, chunk; // blocks of a region; tiles of a chunk
    size_t m_step, x_step, dy_step, at_x, at_dy, at_sums;
} grad_kernel;

typedef struct grad_job {
    const grad_kernel *k;
    const float *x, *dy;
    hth_wino_sums s;
    double *sums; // of dy per channel, a set per thread; NULL: not in this region
    bool same_x;  // V is there from the region before
} grad_job;

static size_t grad_channels(const grad_kernel *k)
{
    return k->p.grid.groups * k->p.grid.ob * k->p.isa->block;
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

static void grad_region(grad_job *j)
{
    const grad_kernel *k = j->k;
    size_t tiles = k->p.grid.tiles;
    for (size_t first = 0; first < tiles; first += k->chunk) {
        j->s.x.first = j->s.dy.first = first;
        j->s.x.count = j->s.dy.count = tiles - first < k->chunk ? tiles - first : k->chunk;
        hth_team_run(grad_transforms, j);
        hth_team_run(grad_products, j);
    }
    hth_team_run(grad_results, j);
}

static void grad_group(grad_job *j, size_t group, double *sums)
{
    const grad_kernel *k = j->k;
    const hth_wino_grid *g = &k->p.grid;
    j->s.x.group = j->s.dy.group = group;
    for (size_t out = 0; out < g->ob; out += k->outs) {
        j->s.dy.block = out;
        j->s.dy.blocks = g->ob - out < k->outs ? g->ob - out : k->outs;
        for (size_t in = 0; in < g->ib; in += k->ins) {
            j->s.x.block = in;
            j->s.x.blocks = g->ib - in < k->ins ? g->ib - in : k->ins;
            j->sums = in == 0 ? sums : NULL;
            j->same_x = out > 0 && k->ins == g->ib && k->chunk >= g->tiles;
            grad_region(j);
        }
    }
}

// The node's channels of the merged groups, in order: only the last group has some to spare.
static void grad_bias(const grad_kernel *k, const double *sums, float *db)
{
    for (size_t c = 0; c < k->p.filter.groups * k->p.filter.out; c++) {
        double sum = 0;
        for (int i = 0; i < k->n_threads; i++) {
            sum += sums[(size_t)i * grad_channels(k) + c];
        }
        db[c] = (float)sum;
    }
}

static hth_err grad_run(const hth_kernel *base, const hth_kernel_args *a)
{
    const grad_kernel *k = (const grad_kernel *)base;
    float *ws = a->workspace;
    double *sums = k->bias ? (double *)(void *)(ws + k->at_sums) : NULL;
    grad_job j = {.k = k,
                  .x = a->in[0],
                  .dy = a->in[1],
                  .s = {.grid = &k->p.grid,
                        .filter = &k->p.filter,
                        .x = {.v = ws + k->at_x, .step = k->x_step},
                        .dy = {.v = ws + k->at_dy, .step = k->dy_step},
                        .m = ws,
                        .dw = a->out[0],
                        .step = k->m_step}};
    if (sums != NULL) {
        memset(sums, 0, (size_t)k->n_threads * grad_channels(k) * sizeof *sums);
    }
    hth_team_set(k->n_threads);
    for (size_t group = 0; group < k->p.grid.groups; group++) {
        grad_group(&j, group, sums);
    }
    if (sums != NULL) {
        grad_bias(k, sums, a->out[1]);
    }
    return HTH_OK;
}

static void grad_close(hth_kernel *base)
{
    hth_free(base);
}

// Regions whose M takes half of the workspace: first fewer result channels, then fewer of both.
// What is left goes to chunks.
static void grad_reserve(grad_kernel *k)
{
    const hth_wino_plan *p = &k->p;
    size_t block = p->isa->block, budget = p->bytes / sizeof(float), points = p->points;
    size_t least = (p->isa->vecs * p->isa->lanes + block - 1) / block; // blocks of results
    k->ins = p->grid.ib;
    k->outs = p->grid.ob;
    while (points * k->ins * k->outs * block * block > budget / 2 &&
           (k->outs > least || k->ins > least)) {
        if (k->outs >= k->ins && k->outs > least) {
            k->outs = (k->outs + 1) / 2;
        } else {
            k->ins = (k->ins + 1) / 2;
        }
    }
    k->m_step = k->ins * k->outs * block * block + HTH_WINO_LINE;
    size_t m = points * k->m_step, row = points * block * (k->ins + k->outs);
    size_t most = budget > m ? (budget - m) / row : 0;
    most = most < GRAD_LEAST ? GRAD_LEAST : most;
    size_t chunks = (p->grid.tiles + most - 1) / most;
    k->chunk = (p->grid.tiles + chunks - 1) / chunks; // equal chunks
    k->x_step = k->ins * block * k->chunk + HTH_WINO_LINE;
    k->dy_step = k->outs * block * k->chunk + HTH_WINO_LINE;
    k->at_x = m;
    k->at_dy = k->at_x + points * k->x_step;
    k->at_sums = k->at_dy + points * k->dy_step;
    size_t sums = k->bias ? (size_t)k->n_threads * grad_channels(k) * 2 : 0; // doubles
    k->base.workspace_bytes = (k->at_sums + sums) * sizeof(float);
}

hth_err hth_wino_grad_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                              const hth_wino_plan *p, hth_kernel **out)
{
    if (n->n_post > 0 || p->run) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not for %s", n->name, p->name);
    }
    grad_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for node '%s'", n->name);
    }
    k->p = *p;
    k->n_threads = d->props.n_threads;
    k->bias = n->n_outputs > 1 && n->outputs[1] >= 0;
    k->base = (hth_kernel){
        .run = grad_run, .close = grad_close, .implementation = k->p.name, .inplace_input = -1};
    grad_reserve(k);
    *out = &k->base;
    return HTH_OK;
}
