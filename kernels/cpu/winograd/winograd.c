// SPDX-License-Identifier: Apache-2.0
// Winograd convolution (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks",
// 2015): an (m + 2) x (m + 2) patch of the input becomes, by additions, as many numbers per
// channel; as many matrix products over the channels, 2.25 (m = 2), 4 (4) or 5 (6) times fewer
// multiplications than the sum over the filter; a transform back gives m x m results.
//
// Tiles go in chunks. A chunk's patches are transformed to V; then, panel by panel of result
// channels, the products of all points go to a small M that stays in the second-level cache and are
// transformed back from there. What is between the workspace and the traffic is the chunk's size:
// every chunk reads the filter U once. Two orders:
// - apart: each thread takes chunks of its own, without waiting for others. For filters that a
//   core's cache holds.
// - shared: one chunk at a time; its panels are shared, so that U is read once by all threads
//   together, and V lies in the shared cache. For large filters.
// A filter that changes with every run is transformed to the workspace if that holds it and a cache
// does. Else it rolls: each thread transforms a block of inputs of one panel to a buffer in its own
// cache, multiplies all tiles of the chunk with it, adding to their sums in M, and goes on with the
// next block. The transformed filter never exists as a whole, and memory sees the plain one, once
// per chunk.
//
// The data gradient is another convolution, of dy with the filter turned around and its channels
// exchanged; only the filter's transform knows. Padding channels are zero in V and U, hence in the
// result.
#include "kernels/cpu/winograd/winograd_kernel.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "kernels/cpu/winograd/winograd_point.h"

#include <stdio.h>
#include <string.h>

typedef struct wino_run {
    const hth_wino_kernel *k;
    hth_wino_job j;
    const float *w, *whole; // the plain filter of all groups; the group's, transformed
    float *u, *v, *m;       // u: of a computed filter; rolling, a block for each thread
} wino_run;

static void run_chunk(wino_run *run, size_t first, size_t end)
{
    const hth_wino_kernel *k = run->k;
    size_t left = end - first;
    run->j.at.first = first;
    run->j.at.count = left < k->chunk ? left : k->chunk;
    run->j.at.step = k->v_step;
    run->j.at.blocks = k->p.grid.ib;
}

static void run_inputs(const wino_run *run, size_t panel, size_t first, size_t blocks, float *u)
{
    const hth_wino_plan *p = &run->k->p;
    size_t block = p->isa->block;
    p->isa->filter[p->pairs - 1](&p->filter, run->w, u, run->j.at.group, panel, first * block,
                                 (first + blocks) * block);
}

// Thread i: tiles from..to of the chunk times a panel. Rolling, sums of all the tiles wait in M
// for the next blocks of inputs; the filter's block stays in the core's cache meanwhile.
static void run_panel(const wino_run *run, int i, size_t panel, size_t from, size_t to)
{
    const hth_wino_kernel *k = run->k;
    const hth_wino_isa *isa = k->p.isa;
    size_t ib = k->p.grid.ib, parts = (to - from + k->part - 1) / k->part;
    float *m = run->m + (size_t)i * k->m_parts * k->m_floats;
    float *block = run->u + (size_t)i * k->block_floats;
    const float *u = k->rolling ? block : run->whole + panel * k->panel_floats;
    for (size_t first = 0; first < ib; first += k->depth) {
        size_t blocks = hth_wino_min(k->depth, ib - first);
        if (k->rolling) {
            run_inputs(run, panel, first, blocks, block);
        }
        for (size_t p = 0; p < parts; p++) {
            hth_wino_part part = {.panel = panel,
                                  .from = from + (to - from) * p / parts,
                                  .to = from + (to - from) * (p + 1) / parts,
                                  .block = first,
                                  .blocks = blocks,
                                  .m = m + (k->m_parts > 1 ? p * k->m_floats : 0)};
            isa->products(&run->j, &part, u);
            if (first + blocks == ib) {
                isa->results[k->p.pairs - 1](&run->j, &part);
            }
        }
    }
}

// ---- apart

static void run_apart(void *arg, int i, int n)
{
    wino_run r = *(const wino_run *)arg;
    const hth_wino_kernel *k = r.k;
    size_t begin, end;
    hth_team_range(k->p.grid.tiles, i, n, &begin, &end);
    r.j.at.v = r.v + (size_t)i * k->v_floats;
    for (size_t first = begin; first < end; first += r.j.at.count) {
        run_chunk(&r, first, end);
        k->p.isa->patches[k->p.pairs - 1](&k->p.grid, r.j.x, &r.j.at, 0,
                                          r.j.at.count * k->p.grid.ib);
        for (size_t panel = 0; panel < k->panels; panel++) {
            run_panel(&r, i, panel, 0, r.j.at.count);
        }
    }
}

// ---- shared

static void run_patches(void *arg, int i, int n)
{
    const wino_run *r = arg;
    size_t begin, end;
    hth_team_range(r->j.at.count * r->k->p.grid.ib, i, n, &begin, &end);
    r->k->p.isa->patches[r->k->p.pairs - 1](&r->k->p.grid, r->j.x, &r->j.at, begin, end);
}

// How many parts the chunk's tiles make: as many as M wants, more when there would be less to do
// for some threads. Rolling, each part transforms the filter again, and M wants but one.
static size_t run_parts(const wino_run *run, size_t n)
{
    const hth_wino_kernel *k = run->k;
    size_t count = run->j.at.count, panels = k->panels;
    size_t parts = k->rolling ? 1 : (count + k->part - 1) / k->part;
    while (panels * parts < 4 * n && panels * parts % n != 0 && parts < count) {
        parts++;
    }
    return parts;
}

static void run_panels(void *arg, int i, int n)
{
    const wino_run *r = arg;
    size_t count = r->j.at.count, parts = run_parts(r, (size_t)n), begin, end;
    hth_team_range(r->k->panels * parts, i, n, &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        size_t part = unit % parts;
        run_panel(r, i, unit / parts, count * part / parts, count * (part + 1) / parts);
    }
}

static void run_filter(void *arg, int i, int n)
{
    const wino_run *r = arg;
    size_t begin, end;
    hth_team_range(r->k->panels, i, n, &begin, &end);
    for (size_t panel = begin; panel < end; panel++) {
        run_inputs(r, panel, 0, r->k->p.grid.ib, r->u + panel * r->k->panel_floats);
    }
}

static void run_group(wino_run *run)
{
    const hth_wino_kernel *k = run->k;
    size_t tiles = k->p.grid.tiles;
    if (!k->packed && !k->rolling) {
        hth_team_run(run_filter, run);
    }
    if (k->apart) {
        hth_team_run(run_apart, run);
        return;
    }
    run->j.at.v = run->v;
    for (size_t first = 0; first < tiles; first += run->j.at.count) {
        run_chunk(run, first, tiles);
        hth_team_run(run_patches, run);
        hth_team_run(run_panels, run);
    }
}

static hth_err wino_run_kernel(const hth_kernel *base, const hth_kernel_args *args)
{
    const hth_wino_kernel *k = (const hth_wino_kernel *)base;
    float *ws = args->workspace;
    wino_run r = {.k = k,
                  .j = {.grid = &k->p.grid,
                        .filter = &k->p.filter,
                        .x = args->in[0],
                        .bias = k->last.bias < 0 ? NULL : args->in[k->last.bias],
                        .add = k->last.add < 0 ? NULL : args->in[k->last.add],
                        .mask = k->mask < 0 ? NULL : args->in[k->mask],
                        .y = args->out[0],
                        .add_scale = k->last.add_scale,
                        .low = k->last.low,
                        .high = k->last.high,
                        .mask_low = k->mask_low,
                        .mask_high = k->mask_high},
                  .w = args->in[1],
                  .u = ws};
    size_t threads = (size_t)k->n_threads;
    hth_team_set(k->n_threads);
    r.v = ws + k->filter_floats;
    r.m = r.v + (k->apart ? threads : 1) * k->v_floats;
    for (size_t group = 0; group < k->p.grid.groups; group++) {
        r.j.at.group = group;
        r.whole = k->packed ? r.w + group * k->u_floats : r.u;
        run_group(&r);
    }
    return hth_conv_last_run(&k->last, args);
}

// ---- preparing

static void wino_close(hth_kernel *base)
{
    hth_wino_kernel *k = (hth_wino_kernel *)base;
    hth_conv_last_close(&k->last);
    hth_free(k);
}

static hth_err wino_pack(const hth_kernel *base, const hth_packing *packing, const void *plain,
                         void *dst)
{
    const hth_wino_kernel *k = (const hth_wino_kernel *)base;
    const hth_wino_plan *p = &k->p;
    hth_team_set(k->n_threads);
    hth_wino_filter_pack(p->isa, p->pairs, &p->filter, plain, dst);
    return HTH_OK;
}

// Behind a data gradient there may be one ReluGrad.
static hth_err wino_mask(const hth_graph *graph, const hth_node *node, hth_wino_kernel *kernel)
{
    const hth_post_op *p = &node->post[0];
    if (node->n_post == 0) {
        return HTH_OK;
    }
    if (node->n_post > 1 || p->op != HTH_OP_RELU_GRAD ||
        graph->values[node->inputs[p->input]].layout != graph->values[node->outputs[0]].layout) {
        return hth_fail(HTH_ENOTSUP, "node '%s': post ops", node->name);
    }
    kernel->mask = p->input;
    kernel->mask_low = p->alpha;
    kernel->mask_high = p->beta;
    return HTH_OK;
}

static hth_err wino_finish(hth_device *device, const hth_graph *graph, const hth_node *node,
                           hth_wino_kernel *kernel)
{
    static const char *const points[] = HTH_WINO_POINTS_TEXT;
    const hth_wino_plan *p = &kernel->p;
    size_t panel = HTH_WINO_PANEL * p->isa->lanes;
    bool constant = graph->values[node->inputs[1]].constant != NULL && node->op == HTH_OP_CONV;
    HTH_TRY(node->op == HTH_OP_CONV_GRAD_DATA ? wino_mask(graph, node, kernel) : HTH_OK);
    HTH_TRY(hth_conv_last_open(device, graph, node, &kernel->last));
    kernel->u_floats = hth_wino_filter_floats(p->isa, p->pairs, &p->filter);
    kernel->panel_floats = hth_wino_panel_floats(p->isa, p->pairs, &p->filter);
    kernel->panels = (p->grid.ob * p->isa->block + panel - 1) / panel;
    kernel->packed = constant && !p->run;
    hth_wino_reserve(kernel);
    hth_conv_last_finish(&kernel->last, &kernel->base);
    if (kernel->packed) {
        kernel->base.n_packings = 1;
        kernel->packing = (hth_packing){.input = 1,
                                        .bytes = p->grid.groups * kernel->u_floats * sizeof(float),
                                        .pack = wino_pack};
        snprintf(kernel->packing.form, sizeof kernel->packing.form, "winograd:%s:%zu:%zu/%zu",
                 points[p->pairs - 1], panel, p->filter.groups, p->filter.merge);
    }
    return HTH_OK;
}

hth_err cpu_winograd_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const char *algorithm, hth_kernel **out)
{
    hth_wino_plan p;
    HTH_TRY(hth_wino_describe(device, graph, node, algorithm, &p));
    if (node->op == HTH_OP_CONV_GRAD_FILTER) {
        return hth_wino_grad_prepare(device, graph, node, &p, out);
    }
    hth_wino_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    *k = (hth_wino_kernel){.p = p, .n_threads = device->props.n_threads, .mask = -1};
    k->base = (hth_kernel){.run = wino_run_kernel,
                           .close = wino_close,
                           .implementation = k->p.name,
                           .packings = &k->packing,
                           .inplace_input = -1};
    hth_err err = wino_finish(device, graph, node, k);
    if (err != HTH_OK) {
        wino_close(&k->base);
        return err;
    }
    *out = &k->base;
    return HTH_OK;
}
