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
// A filter that changes with every run is transformed to the workspace: as a whole when half of
// that holds it, else a slice of panels at a time; then all chunks pass by each slice, and their
// patches are transformed again for it, which costs less than transforming the filter again for
// each chunk.
//
// The data gradient is another convolution, of dy with the filter turned around and its channels
// exchanged; only the filter's transform knows. Padding channels are zero in V and U, hence in the
// result.
#include "kernels/cpu/winograd.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "kernels/cpu/post.h"
#include "kernels/cpu/winograd_point.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WINO_PART   56                   // tiles that M holds
#define WINO_LEAST  28                   // tiles of a chunk worth reading U for; at worst half
#define WINO_APART  ((size_t)1536 << 10) // bytes of a group's filter up to which chunks go apart
#define WINO_CACHED ((size_t)768 << 10)  // bytes of a chunk of one thread

typedef struct wino_kernel {
    hth_kernel base;
    hth_packing packing;
    hth_wino_plan p;
    hth_kernel *tail; // post ops that the last transform does not do; NULL: none
    int n_threads;
    int bias, add, mask; // inputs; -1: none
    float add_scale, low, high, mask_low, mask_high;
    bool packed, apart; // the filter comes transformed; threads take chunks of their own
    size_t chunk, part, panels, slice; // tiles of a chunk, of M; panels of a group, of a slice
    size_t u_floats, panel_floats;     // of a group's filter, of a panel
    size_t v_step, v_floats, m_floats; // from point to point; of a chunk; of M
} wino_kernel;

typedef struct wino_run {
    const wino_kernel *k;
    hth_wino_job j;
    const float *w;    // of all groups: transformed if it is packed, else plain
    float *u, *v, *m;  // u: of a slice
    size_t panel, end; // the slice
    bool same;         // the only chunk's patches are there from the slice before
} wino_run;

static size_t wino_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// `count` in equal pieces of at most `most`.
static size_t wino_even(size_t count, size_t most)
{
    size_t pieces = (count + most - 1) / most;
    return (count + pieces - 1) / pieces;
}

static void run_chunk(wino_run *r, size_t first, size_t end)
{
    const wino_kernel *k = r->k;
    size_t left = end - first;
    r->j.at.first = first;
    r->j.at.count = left < k->chunk ? left : k->chunk;
    r->j.at.step = k->v_step;
    r->j.at.blocks = k->p.grid.ib;
}

// ---- apart

static void run_apart(void *arg, int i, int n)
{
    wino_run r = *(const wino_run *)arg;
    const wino_kernel *k = r.k;
    const hth_wino_isa *isa = k->p.isa;
    int size = k->p.pairs - 1;
    size_t begin, end;
    float *m = r.m + (size_t)i * k->m_floats;
    hth_team_range(k->p.grid.tiles, i, n, &begin, &end);
    r.j.at.v = r.v + (size_t)i * k->v_floats;
    for (size_t first = begin; first < end; first += r.j.at.count) {
        run_chunk(&r, first, end);
        size_t count = r.j.at.count;
        isa->patches[size](&k->p.grid, r.j.x, &r.j.at, 0, count * k->p.grid.ib);
        for (size_t panel = r.panel; panel < r.end; panel++) {
            for (size_t from = 0; from < count; from += k->part) {
                size_t to = from + k->part < count ? from + k->part : count;
                isa->panel[size](&r.j, r.j.u + (panel - r.panel) * k->panel_floats, panel, from, to,
                                 m);
            }
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
// for some threads.
static size_t run_parts(const wino_run *r, size_t n)
{
    size_t count = r->j.at.count, panels = r->end - r->panel;
    size_t parts = (count + r->k->part - 1) / r->k->part;
    while (panels * parts < 4 * n && panels * parts % n != 0 && parts < count) {
        parts++;
    }
    return parts;
}

static void run_panels(void *arg, int i, int n)
{
    const wino_run *r = arg;
    const wino_kernel *k = r->k;
    size_t count = r->j.at.count, parts = run_parts(r, (size_t)n), begin, end;
    hth_team_range((r->end - r->panel) * parts, i, n, &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        size_t panel = unit / parts, part = unit % parts;
        k->p.isa->panel[k->p.pairs - 1](&r->j, r->j.u + panel * k->panel_floats, r->panel + panel,
                                        count * part / parts, count * (part + 1) / parts,
                                        r->m + (size_t)i * k->m_floats);
    }
}

static void run_filter(void *arg, int i, int n)
{
    const wino_run *r = arg;
    const wino_kernel *k = r->k;
    size_t begin, end;
    hth_team_range(r->end - r->panel, i, n, &begin, &end);
    for (size_t panel = begin; panel < end; panel++) {
        hth_wino_filter_panel(k->p.isa, k->p.pairs, &k->p.filter, r->w, r->j.at.group,
                              r->panel + panel, r->u + panel * k->panel_floats);
    }
}

static void run_slice(wino_run *r)
{
    const wino_kernel *k = r->k;
    size_t tiles = k->p.grid.tiles;
    if (k->packed) {
        r->j.u = r->w + r->j.at.group * k->u_floats + r->panel * k->panel_floats;
    } else {
        hth_team_run(run_filter, r);
        r->j.u = r->u;
    }
    if (k->apart) {
        hth_team_run(run_apart, r);
        return;
    }
    r->same = r->panel > 0 && k->chunk >= tiles;
    r->j.at.v = r->v;
    for (size_t first = 0; first < tiles; first += r->j.at.count) {
        run_chunk(r, first, tiles);
        if (!r->same) {
            hth_team_run(run_patches, r);
        }
        hth_team_run(run_panels, r);
    }
}

static hth_err wino_run_kernel(const hth_kernel *base, const hth_kernel_args *a)
{
    const wino_kernel *k = (const wino_kernel *)base;
    float *ws = a->workspace;
    wino_run r = {.k = k,
                  .j = {.grid = &k->p.grid,
                        .filter = &k->p.filter,
                        .x = a->in[0],
                        .bias = k->bias < 0 ? NULL : a->in[k->bias],
                        .add = k->add < 0 ? NULL : a->in[k->add],
                        .mask = k->mask < 0 ? NULL : a->in[k->mask],
                        .y = a->out[0],
                        .add_scale = k->add_scale,
                        .low = k->low,
                        .high = k->high,
                        .mask_low = k->mask_low,
                        .mask_high = k->mask_high},
                  .w = a->in[1],
                  .u = ws};
    size_t threads = (size_t)k->n_threads;
    hth_team_set(k->n_threads);
    r.v = r.u + (k->packed ? 0 : k->slice * k->panel_floats);
    r.m = r.v + (k->apart ? threads : 1) * k->v_floats;
    for (size_t group = 0; group < k->p.grid.groups; group++) {
        r.j.at.group = group;
        for (r.panel = 0; r.panel < k->panels; r.panel = r.end) {
            r.end = wino_least(r.panel + k->slice, k->panels);
            run_slice(&r);
        }
    }
    return k->tail == NULL ? HTH_OK : k->tail->run(k->tail, a);
}

// ---- preparing

static void wino_close(hth_kernel *base)
{
    wino_kernel *k = (wino_kernel *)base;
    hth_kernel_close(k->tail);
    hth_free(k);
}

static hth_err wino_pack(const hth_kernel *base, const hth_packing *packing, const void *plain,
                         void *dst)
{
    const hth_wino_plan *p = &((const wino_kernel *)base)->p;
    hth_wino_filter_pack(p->isa, p->pairs, &p->filter, plain, dst);
    return HTH_OK;
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

// Divides the workspace: a slice of the transformed filter, M's, what is left for V.
static void wino_reserve(wino_kernel *k)
{
    const hth_wino_plan *p = &k->p;
    size_t threads = (size_t)k->n_threads, budget = p->bytes / sizeof(float);
    size_t rows = p->isa->rows, row = p->points * p->grid.ib * p->isa->block;
    size_t fits = budget * 5 / 8 / k->panel_floats;
    k->slice = k->packed ? k->panels : wino_even(k->panels, fits > 0 ? fits : 1);
    size_t fixed = k->packed ? 0 : k->slice * k->panel_floats;
    k->part = (WINO_PART + rows - 1) / rows * rows;
    while (k->part > rows &&
           (threads + 1) * hth_wino_scratch(p->isa, p->points, k->part) + WINO_LEAST * row + fixed >
               budget) {
        k->part -= rows;
    }
    size_t share = (p->grid.tiles + threads - 1) / threads;
    k->part = wino_least(k->part, p->grid.tiles);
    k->m_floats = hth_wino_scratch(p->isa, p->points, k->part);
    fixed += threads * k->m_floats;
    size_t most = budget > fixed ? (budget - fixed) / row : 0;
    most = most < WINO_LEAST / 2 ? WINO_LEAST / 2 : most;
    k->apart = k->slice * k->panel_floats * sizeof(float) <= WINO_APART && share >= WINO_LEAST &&
               most / threads >= WINO_LEAST / 2;
    if (k->apart) {
        size_t cached = WINO_CACHED / sizeof(float) / row;
        most = wino_least(most / threads, cached < WINO_LEAST ? WINO_LEAST : cached);
        k->chunk = wino_even(share, most);
    } else {
        k->chunk = wino_even(p->grid.tiles, most);
    }
    k->v_step = p->grid.ib * k->chunk * p->isa->block + HTH_WINO_LINE;
    k->v_floats = p->points * k->v_step;
    k->base.workspace_bytes = (fixed + (k->apart ? threads : 1) * k->v_floats) * sizeof(float);
}

static hth_err wino_finish(hth_device *d, const hth_graph *g, const hth_node *n, wino_kernel *k)
{
    static const char *const points[] = HTH_WINO_POINTS_TEXT;
    const hth_wino_plan *p = &k->p;
    size_t panel = HTH_WINO_PANEL * p->isa->lanes;
    bool constant = g->values[n->inputs[1]].constant != NULL && n->op == HTH_OP_CONV;
    HTH_TRY(wino_posts(d, g, n, k));
    k->u_floats = hth_wino_filter_floats(p->isa, p->pairs, &p->filter);
    k->panel_floats = hth_wino_panel_floats(p->isa, p->pairs, &p->filter);
    k->panels = (p->grid.ob * p->isa->block + panel - 1) / panel;
    k->packed = constant && !p->run;
    wino_reserve(k);
    if (k->tail != NULL && k->tail->workspace_bytes > k->base.workspace_bytes) {
        k->base.workspace_bytes = k->tail->workspace_bytes;
    }
    if (k->packed) {
        k->base.n_packings = 1;
        k->packing = (hth_packing){
            .input = 1, .bytes = p->grid.groups * k->u_floats * sizeof(float), .pack = wino_pack};
        snprintf(k->packing.form, sizeof k->packing.form, "winograd:%s:%zu:%zu/%zu",
                 points[p->pairs - 1], panel, p->filter.groups, p->filter.merge);
    }
    return HTH_OK;
}

hth_err cpu_winograd_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                             const char *algorithm, hth_kernel **out)
{
    hth_wino_plan p;
    HTH_TRY(hth_wino_describe(d, g, n, algorithm, &p));
    if (n->op == HTH_OP_CONV_GRAD_FILTER) {
        return hth_wino_grad_prepare(d, g, n, &p, out);
    }
    wino_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for node '%s'", n->name);
    }
    *k = (wino_kernel){.p = p,
                       .n_threads = d->props.n_threads,
                       .bias = -1,
                       .add = -1,
                       .mask = -1,
                       .low = -INFINITY,
                       .high = INFINITY};
    k->base = (hth_kernel){.run = wino_run_kernel,
                           .close = wino_close,
                           .implementation = k->p.name,
                           .packings = &k->packing,
                           .inplace_input = -1};
    k->bias = n->op == HTH_OP_CONV && n->n_inputs > 2 && n->inputs[2] >= 0 ? 2 : -1;
    for (int i = 0; i < n->n_post; i++) {
        k->bias = n->post[i].input == 2 ? -1 : k->bias;
    }
    hth_err err = wino_finish(d, g, n, k);
    if (err != HTH_OK) {
        wino_close(&k->base);
        return err;
    }
    *out = &k->base;
    return HTH_OK;
}
