// SPDX-License-Identifier: Apache-2.0
// Convolutions as matrix products. Positions go in tiles of at most as many as a product takes,
// never of two images, and tiles in chunks whose inputs (or patches) a core's cache holds while all
// panels of the filter go by. Threads share the tiles; where there are fewer positions than
// channels of results, and the filter is more to read than the inputs, they share the panels.
//
// Results are written once, in the tensor's own blocks, with bias, sum and clamp. Padding channels
// are zero in the filter's form and in the bias, so they are in the result.
#include "kernels/cpu/lowered.h"

#include "base/alloc.h"
#include "base/isa.h"
#include "device/cpu/team.h"
#include "kernels/cpu/conv_last.h"
#include "kernels/ref/ref_window.h"

#include <stdio.h>
#include <string.h>

#define LOWERED_CACHED ((size_t)768 << 10) // bytes of a thread's chunk
#define LOWERED_LINE   16                  // floats of a cache line

typedef struct lowered_kernel {
    hth_kernel base;
    hth_packing packing;
    char name[HTH_LOWERED_NAME];
    const hth_lowered_isa *isa;
    hth_lowered_grid grid;
    hth_conv_last last;
    size_t images, ins, outs, ob; // channels; blocks of results
    size_t blocks, panels;        // blocks of inputs times taps; panels of the filter
    size_t tiles, chunk;          // of an image; of a chunk
    size_t patch;                 // floats of a tile's patches, 0: inputs are read where they are
    int n_threads;
    bool by_panel; // threads share the panels
} lowered_kernel;

typedef struct lowered_run {
    const lowered_kernel *k;
    const float *x, *u, *bias, *add;
    float *y, *patches; // of all threads
} lowered_run;

// A tile's positions first..first + rows of image `image`.
typedef struct lowered_place {
    size_t image, first, rows;
} lowered_place;

static lowered_place lowered_where(const lowered_kernel *kernel, size_t tile)
{
    size_t all = kernel->grid.oh * kernel->grid.ow, in = tile % kernel->tiles;
    size_t begin = all * in / kernel->tiles, end = all * (in + 1) / kernel->tiles;
    return (lowered_place){tile / kernel->tiles, begin, end - begin};
}

static size_t lowered_vecs(const lowered_kernel *kernel, size_t panel)
{
    size_t left = kernel->ob - panel * HTH_LOWERED_PANEL;
    return left < HTH_LOWERED_PANEL ? left : HTH_LOWERED_PANEL;
}

static size_t lowered_panel_floats(const lowered_kernel *kernel, size_t panel)
{
    return kernel->blocks * kernel->isa->block * lowered_vecs(kernel, panel) * kernel->isa->block;
}

static const float *lowered_panel(const lowered_kernel *kernel, const float *u, size_t panel)
{
    return u + panel * lowered_panel_floats(kernel, 0);
}

// Where the inputs of a tile are that are read in place.
static const float *lowered_inputs(const lowered_run *run, lowered_place at)
{
    const hth_lowered_grid *g = &run->k->grid;
    return run->x + (at.image * g->ib * g->h * g->w + at.first) * run->k->isa->block;
}

// A chunk's tiles from..to times a panel; `first` and `next`, the panels before which inputs and
// after which nothing was read yet.
static void lowered_tiles(const lowered_run *run, const float *patches, size_t from, size_t to,
                          size_t panel, bool first, size_t next)
{
    const lowered_kernel *k = run->k;
    const hth_lowered_grid *g = &k->grid;
    size_t block = k->isa->block, vecs = lowered_vecs(k, panel), channel = panel * block * 2;
    hth_lowered_tile t = {.u = lowered_panel(k, run->u, panel),
                          .blocks = k->blocks,
                          .next = k->patch > 0 ? k->isa->rows * block : g->h * g->w * block,
                          .bias = run->bias == NULL ? NULL : run->bias + channel,
                          .outs = k->outs - channel,
                          .plane = g->oh * g->ow * block,
                          .add_scale = k->last.add_scale,
                          .low = k->last.low,
                          .high = k->last.high};
    const float *ahead = lowered_panel(k, run->u, next);
    size_t step = k->blocks * block * LOWERED_LINE; // what one product asks for
    for (size_t tile = from; tile < to; tile++) {
        lowered_place at = lowered_where(k, tile);
        size_t y =
            ((at.image * k->ob + panel * HTH_LOWERED_PANEL) * g->oh * g->ow + at.first) * block;
        size_t asked = (tile - from) * step;
        t.u_ahead = asked < lowered_panel_floats(k, next) ? ahead + asked : t.u;
        t.v = k->patch > 0 ? patches + (tile - from) * k->patch : lowered_inputs(run, at);
        t.v_ahead = first && k->patch == 0 && tile + 1 < to
                        ? lowered_inputs(run, lowered_where(k, tile + 1))
                        : t.v;
        t.y = run->y + y;
        t.add = run->add == NULL ? NULL : run->add + y;
        k->isa->product(&t, at.rows, vecs);
    }
}

static void lowered_work(void *arg, int i, int n)
{
    const lowered_run *r = arg;
    const lowered_kernel *k = r->k;
    const hth_lowered_grid *g = &k->grid;
    size_t begin = 0, end = k->images * k->tiles, panel = 0, panels = k->panels;
    size_t image = g->ib * g->h * g->w * k->isa->block;
    float *patches = k->patch > 0 ? r->patches + (size_t)i * k->chunk * k->patch : NULL;
    if (k->by_panel) {
        hth_team_range(k->panels, i, n, &panel, &panels);
    } else {
        hth_team_range(end, i, n, &begin, &end);
    }
    if (k->isa->begin != NULL) {
        k->isa->begin();
    }
    for (size_t from = begin, to; from < end; from = to) {
        to = from + k->chunk < end ? from + k->chunk : end;
        for (size_t tile = from; k->patch > 0 && tile < to; tile++) {
            lowered_place at = lowered_where(k, tile);
            k->isa->patches(g, r->x + at.image * image, at.first, at.rows,
                            patches + (tile - from) * k->patch);
        }
        for (size_t p = panel; p < panels; p++) {
            lowered_tiles(r, patches, from, to, p, p == panel, p + 1 < panels ? p + 1 : panel);
        }
    }
    if (k->isa->end != NULL) {
        k->isa->end();
    }
}

static hth_err lowered_run_kernel(const hth_kernel *base, const hth_kernel_args *args)
{
    const lowered_kernel *k = (const lowered_kernel *)base;
    lowered_run r = {.k = k,
                     .x = args->in[0],
                     .u = args->in[1],
                     .bias = k->last.bias < 0 ? NULL : args->in[k->last.bias],
                     .add = k->last.add < 0 ? NULL : args->in[k->last.add],
                     .y = args->out[0],
                     .patches = args->workspace};
    hth_team_set(k->n_threads);
    hth_team_run(lowered_work, &r);
    return hth_conv_last_run(&k->last, args);
}

// ---- preparing

static void lowered_close(hth_kernel *base)
{
    lowered_kernel *k = (lowered_kernel *)base;
    hth_conv_last_close(&k->last);
    hth_free(k);
}

static hth_err lowered_pack(const hth_kernel *base, const hth_packing *packing, const void *plain,
                            void *dst)
{
    const lowered_kernel *k = (const lowered_kernel *)base;
    const hth_lowered_filter f = {
        .outs = k->outs, .ins = k->ins, .taps = k->grid.kh * k->grid.kw, .blocks = k->blocks};
    hth_team_set(k->n_threads);
    return hth_lowered_pack(k->isa, &f, plain, dst);
}

// The instruction sets for tensors of layout `layout`, the plainest first.
static int lowered_isas(hth_layout layout, const hth_lowered_isa *list[HTH_LOWERED_NAMES])
{
    int n = 0;
    if (layout == HTH_LAYOUT_C16 && hth_isa_bytes() >= 64) {
        list[n++] = &hth_lowered_avx512;
        if (hth_lowered_amx.product != NULL && hth_isa_amx()) {
            list[n++] = &hth_lowered_amx;
        }
    } else if (layout == HTH_LAYOUT_C8 && hth_isa_bytes() >= 32) {
        list[n++] = &hth_lowered_avx2;
    }
    return n;
}

bool cpu_lowered_fits(const hth_graph *graph, const hth_node *node, hth_layout layout)
{
    const hth_lowered_isa *list[HTH_LOWERED_NAMES];
    const hth_value *x = &graph->values[node->inputs[0]], *w = &graph->values[node->inputs[1]];
    return node->op == HTH_OP_CONV && x->dtype == HTH_DT_F32 && w->dtype == HTH_DT_F32 &&
           w->constant != NULL && x->shape.rank == 4 && hth_node_int(node, "group", 1) == 1 &&
           hth_shape_elements(&x->shape) > 0 &&
           hth_shape_elements(&graph->values[node->outputs[0]].shape) > 0 &&
           lowered_isas(layout, list) > 0;
}

int cpu_lowered_names(const hth_graph *graph, const hth_node *node,
                      char names[HTH_LOWERED_NAMES][HTH_LOWERED_NAME])
{
    const hth_lowered_isa *list[HTH_LOWERED_NAMES];
    hth_layout l = graph->values[node->inputs[0]].layout;
    bool takes = graph->values[node->outputs[0]].layout == l && cpu_lowered_fits(graph, node, l);
    int count = takes ? lowered_isas(l, list) : 0;
    for (int i = 0; i < count; i++) {
        snprintf(names[i], HTH_LOWERED_NAME, "lowered:%s", list[i]->name);
    }
    return count;
}

static const hth_lowered_isa *lowered_find(const hth_graph *graph, const hth_node *node,
                                           const char *algorithm)
{
    const hth_lowered_isa *list[HTH_LOWERED_NAMES];
    char names[HTH_LOWERED_NAMES][HTH_LOWERED_NAME];
    int i = algorithm == NULL ? -1 : cpu_lowered_names(graph, node, names) - 1;
    while (i >= 0 && strcmp(algorithm, names[i]) != 0) {
        i--;
    }
    return i < 0 || lowered_isas(graph->values[node->inputs[0]].layout, list) <= i ? NULL : list[i];
}

static hth_err lowered_geometry(const hth_graph *graph, const hth_node *node,
                                lowered_kernel *kernel)
{
    const hth_shape *x = &graph->values[node->inputs[0]].shape,
                    *w = &graph->values[node->inputs[1]].shape;
    const hth_shape *y = &graph->values[node->outputs[0]].shape;
    ref_window win;
    HTH_TRY(ref_window_init(&win, node, x, y, w->dim + 2, 2));
    size_t block = kernel->isa->block;
    kernel->images = (size_t)x->dim[0];
    kernel->ins = (size_t)x->dim[1];
    kernel->outs = (size_t)y->dim[1];
    kernel->ob = (kernel->outs + block - 1) / block;
    kernel->panels = (kernel->ob + HTH_LOWERED_PANEL - 1) / HTH_LOWERED_PANEL;
    kernel->grid = (hth_lowered_grid){.ib = (kernel->ins + block - 1) / block,
                                      .h = (size_t)x->dim[2],
                                      .w = (size_t)x->dim[3],
                                      .oh = (size_t)y->dim[2],
                                      .ow = (size_t)y->dim[3],
                                      .kh = (size_t)win.k[1],
                                      .kw = (size_t)win.k[2],
                                      .stride_h = (size_t)win.stride[1],
                                      .stride_w = (size_t)win.stride[2],
                                      .dilation_h = (size_t)win.dilation[1],
                                      .dilation_w = (size_t)win.dilation[2],
                                      .pad_h = (size_t)win.pad[1],
                                      .pad_w = (size_t)win.pad[2]};
    return HTH_OK;
}

static void lowered_reserve(lowered_kernel *kernel)
{
    const hth_lowered_grid *g = &kernel->grid;
    size_t positions = g->oh * g->ow, rows = kernel->isa->rows, threads = (size_t)kernel->n_threads;
    bool in_place = !kernel->isa->copies && g->kh * g->kw == 1 && g->stride_h == 1 &&
                    g->stride_w == 1 && g->pad_h == 0 && g->pad_w == 0 && g->oh == g->h &&
                    g->ow == g->w;
    kernel->blocks =
        (g->ib * g->kh * g->kw + kernel->isa->even - 1) / kernel->isa->even * kernel->isa->even;
    kernel->tiles = (positions + rows - 1) / rows;
    size_t patch = rows * kernel->blocks * kernel->isa->block, all = kernel->images * kernel->tiles;
    kernel->by_panel = kernel->outs > kernel->images * positions && kernel->panels >= threads;
    size_t share = kernel->by_panel ? all : (all + threads - 1) / threads;
    size_t most = LOWERED_CACHED / sizeof(float) / patch;
    size_t chunks = most > 0 ? (share + most - 1) / most : share;
    kernel->chunk = (share + chunks - 1) / chunks;
    kernel->patch = in_place ? 0 : patch;
    kernel->base.workspace_bytes = threads * kernel->chunk * kernel->patch * sizeof(float);
}

hth_err cpu_lowered_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const char *algorithm, hth_kernel **out)
{
    const hth_lowered_isa *isa = lowered_find(graph, node, algorithm);
    if (isa == NULL) {
        return hth_fail(HTH_ENOTSUP, "node '%s': no such lowered convolution", node->name);
    }
    lowered_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->isa = isa;
    strcpy(k->name, algorithm);
    k->n_threads = device->props.n_threads;
    k->base = (hth_kernel){.run = lowered_run_kernel,
                           .close = lowered_close,
                           .implementation = k->name,
                           .packings = &k->packing,
                           .n_packings = 1};
    hth_err err = lowered_geometry(graph, node, k);
    if (err == HTH_OK) {
        err = hth_conv_last_open(device, graph, node, &k->last);
    }
    if (err != HTH_OK) {
        hth_free(k);
        return err;
    }
    lowered_reserve(k);
    hth_conv_last_finish(&k->last, &k->base);
    size_t block = k->isa->block;
    k->packing = (hth_packing){.input = 1,
                               .bytes = k->blocks * block * k->ob * block * sizeof(float),
                               .pack = lowered_pack};
    snprintf(k->packing.form, sizeof k->packing.form, "lowered:%s:%zux%d",
             k->isa->pack != NULL ? k->isa->name : "f32", block, HTH_LOWERED_PANEL);
    *out = &k->base;
    return HTH_OK;
}
