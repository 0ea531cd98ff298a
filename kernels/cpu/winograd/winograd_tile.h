// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_tile.h - what the kernels of Winograd's algorithm share: the grid
// of tiles, the transformed filter's form, and the table of what is compiled per instruction set.
//
// Design notes
// F(m x m, 3x3): a tile of m x m results comes from a patch of (m + 2) x (m + 2) inputs. The
// polynomials' points are zero, m / 2 pairs of opposite numbers, infinity; `pairs` names the size
// everywhere. A group of a convolution whose channels do not fill blocks is merged with its
// neighbours until they do: the filter is then block-diagonal.
//
// Results are computed in panels: two vectors of output channels at once. The transformed filter
// is U[group][panel][point][input channel][of the panel], inputs filled up to blocks with zeros, so
// that a product reads it from one end to the other; a range of a panel's inputs has the same form.
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_TILE_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_TILE_H

#include <stdbool.h>
#include <stddef.h>

#define HTH_WINO_PAIRS  3  // most: F(6x6, 3x3)
#define HTH_WINO_LINE   16 // floats of a cache line: keeps points out of each other's sets
#define HTH_WINO_PANEL  2  // vectors of a panel
#define HTH_WINO_SQUARE 64 // most points of a patch

typedef struct hth_wino_filter {
    size_t out, in;       // channels of a merged group
    size_t groups, merge; // merged groups; the node's groups in each
    bool back;            // of a data gradient: [in][out][3][3], read turned around
} hth_wino_filter;

typedef struct hth_wino_grid {
    size_t groups, ib, ob;                // merged groups; blocks of inputs, of results, of each
    size_t h, w, oh, ow;                  // of an image, of a result
    size_t pad_h, pad_w;                  // wrap below zero
    size_t size, tiles_h, tiles_w, tiles; // m; tiles of a result; of the batch
} hth_wino_grid;

// Floats from point to point of a panel of `width` results: a power of two would send all points of
// a filter to the same sets of a cache.
static inline size_t hth_wino_point(size_t ins, size_t width)
{
    return ins * width + HTH_WINO_LINE;
}

// A range of tiles, transformed: V[point][block][tile][channel of it], points `step` floats apart.
typedef struct hth_wino_chunk {
    size_t group, first, count;
    size_t block, blocks; // first, number
    float *v;
    size_t step;
} hth_wino_chunk;

typedef struct hth_wino_job {
    const hth_wino_grid *grid;
    const hth_wino_filter *filter;
    const float *x, *bias, *add, *mask;
    float *y;
    float add_scale, low, high, mask_low, mask_high;
    hth_wino_chunk at;
} hth_wino_job;

// Tiles from..to of a chunk times a panel, over a range of blocks of inputs; the first range begins
// the sums in m, further ones add to them. m: hth_wino_scratch floats.
typedef struct hth_wino_part {
    size_t panel, from, to;
    size_t block, blocks; // first, number
    float *m;
} hth_wino_part;

// Filter gradients: the products' sums over tiles, M[point][vector of results][input][of it].
typedef struct hth_wino_sums {
    const hth_wino_grid *grid;
    const hth_wino_filter *filter; // of the forward pass
    hth_wino_chunk x, dy;          // count, first: the same
    float *m, *dw;
    size_t step; // floats from point to point
} hth_wino_sums;

typedef struct hth_wino_isa {
    const char *name;
    size_t block, lanes, rows, half, vecs;
    // Input channels begin..end of a panel of group `group`, to u.
    void (*filter[HTH_WINO_PAIRS])(const hth_wino_filter *filter, const float *w, float *u,
                                   size_t group, size_t panel, size_t begin, size_t end);
    // The same of a constant filter, in double; u: of all the panel's inputs.
    void (*constant[HTH_WINO_PAIRS])(const hth_wino_filter *filter, const float *w, float *u,
                                     size_t group, size_t panel, size_t begin, size_t end);
    // (tile, block) begin..end of a chunk.
    void (*patches[HTH_WINO_PAIRS])(const hth_wino_grid *grid, const float *x,
                                    const hth_wino_chunk *chunk, size_t begin, size_t end);
    // The products of a part, u: of its panel and inputs; their way back to results.
    void (*products)(const hth_wino_job *job, const hth_wino_part *part, const float *u);
    void (*results[HTH_WINO_PAIRS])(const hth_wino_job *job, const hth_wino_part *part);
    // The same as patches of dy; sums of dy per channel, NULL: none.
    void (*tiles[HTH_WINO_PAIRS])(const hth_wino_grid *grid, const float *dy,
                                  const hth_wino_chunk *chunk, size_t begin, size_t end,
                                  double *sums);
    // Adds the products of points begin..end (counted with groups of vectors of results) to m;
    // `fresh`: it has no content yet.
    void (*sum)(const hth_wino_sums *sums, size_t begin, size_t end, bool fresh);
    // dw of (vector of results, block of inputs) begin..end.
    void (*gradient[HTH_WINO_PAIRS])(const hth_wino_sums *sums, size_t begin, size_t end);
} hth_wino_isa;

extern const hth_wino_isa hth_wino_avx512, hth_wino_avx2, hth_wino_sse2;

// Floats of m for `tiles` tiles.
static inline size_t hth_wino_scratch(const hth_wino_isa *isa, size_t points, size_t tiles)
{
    return points * (HTH_WINO_PANEL * tiles * isa->lanes + HTH_WINO_LINE);
}

typedef struct hth_wino_tile {
    size_t image, row, col; // of the tile's first result
} hth_wino_tile;

static inline hth_wino_tile hth_wino_where(const hth_wino_grid *grid, size_t tile)
{
    size_t per = grid->tiles_h * grid->tiles_w, in = tile % per;
    return (hth_wino_tile){tile / per, in / grid->tiles_w * grid->size,
                           in % grid->tiles_w * grid->size};
}

// The tap (0, 0) of an output's and an input's channel, as plain filters have them; NULL: they are
// of different groups of the node.
static inline const float *hth_wino_taps(const hth_wino_filter *filter, const float *w,
                                         size_t group, size_t o, size_t c)
{
    size_t outs = filter->out / filter->merge, ins = filter->in / filter->merge;
    if (o >= filter->out || c >= filter->in || o / outs != c / ins) {
        return NULL;
    }
    return filter->back ? w + ((group * filter->in + c) * outs + o % outs) * 9
                        : w + ((group * filter->out + o) * ins + c % ins) * 9;
}

#endif
