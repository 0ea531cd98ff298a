// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/lowered.h - convolutions as matrix products in blocks of channels, of our own.
//
// Design notes
// Results at `rows` positions times two vectors of channels stay in registers over all inputs. A
// filter of 1x1 and stride 1 reads its inputs where they are; of others the patches of some
// positions are first copied side by side ("lowered"), so that the same product serves every
// filter, stride and dilation. While it computes, a product asks for what the next ones read and
// for the lines that it will write.
//
// The filter's form is F[panel][block of inputs][tap][channel of the block][of the panel], a panel
// being two vectors of results, inputs filled up to blocks with zeros: the plain filter's bytes,
// whatever the batch.
//
// "lowered:amx" multiplies by AMX, which takes bf16: each factor is the sum of two bf16 numbers,
// its value rounded and what is left, and of the four products the three larger ones are summed in
// f32. What is lost is 2^-16 of a factor at most, about what Winograd's transforms lose.
#ifndef HTH_KERNELS_CPU_LOWERED_H
#define HTH_KERNELS_CPU_LOWERED_H

#include "kernels/cpu/cpu.h"

#define HTH_LOWERED_NAME  24
#define HTH_LOWERED_PANEL 2 // vectors of a panel

// Of one image, its results and the filter. Pads wrap below zero.
typedef struct hth_lowered_grid {
    size_t ib, h, w, oh, ow; // blocks of inputs; sizes
    size_t kh, kw, stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
} hth_lowered_grid;

// Positions that lie one after the other, times a panel.
typedef struct hth_lowered_tile {
    const float *u, *v;  // the panel's filter; the inputs: [block][position][channel of it]
    size_t blocks, next; // blocks of inputs times taps; floats from one to the next in v
    const float *u_ahead, *v_ahead; // what is read next, as far as u and v go here
    const float *bias, *add;        // of the panel's channels, of the positions; NULL: none
    size_t outs;                    // channels of the panel that there are
    float *y;
    size_t plane; // floats from block to block of y and add
    float add_scale, low, high;
} hth_lowered_tile;

typedef struct hth_lowered_isa {
    const char *name;
    size_t block, rows, even; // blocks of inputs times taps are filled up to a multiple of `even`
    bool copies;              // inputs are always copied
    // A thread calls begin before its first product, end after its last; NULL: nothing to do.
    void (*begin)(void);
    void (*end)(void);
    // The tile's results at `rows` positions of `vecs` vectors of channels.
    void (*product)(const hth_lowered_tile *tile, size_t rows, size_t vecs);
    // Copies what results first.. read: v[block][tap][of hth_lowered_isa.rows positions][channel].
    void (*patches)(const hth_lowered_grid *grid, const float *x, size_t first, size_t rows,
                    float *v);
    // Turns a panel of `blocks` blocks and `vecs` vectors into the form that product reads, of the
    // same size; NULL: it is that.
    void (*pack)(const float *panel, size_t blocks, size_t vecs, float *u);
} hth_lowered_isa;

extern const hth_lowered_isa hth_lowered_avx512, hth_lowered_avx2, hth_lowered_amx;

typedef struct hth_lowered_filter {
    size_t outs, ins, taps;
    size_t blocks; // of inputs times taps, filled up to a multiple of hth_lowered_isa.even
} hth_lowered_filter;

// hth_lowered_pack makes the form of a plain filter, [out][in][taps], at u, on the calling thread's
// team.
hth_err hth_lowered_pack(const hth_lowered_isa *isa, const hth_lowered_filter *filter,
                         const float *w, float *u);

#define HTH_LOWERED_NAMES 2 // most algorithms of a node

// cpu_lowered_prepare makes the kernel of a Conv. HTH_ENOTSUP: another algorithm's name than
// "lowered:ISA", an instruction set that is not there, groups, a filter that is not constant, or
// not f32 in blocks.
hth_err cpu_lowered_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const char *algorithm, hth_kernel **out);
// cpu_lowered_names writes the algorithms for the node and returns their number.
int cpu_lowered_names(const hth_graph *graph, const hth_node *node,
                      char names[HTH_LOWERED_NAMES][HTH_LOWERED_NAME]);
// cpu_lowered_fits says whether there is one once its image and its result are in layout `layout`.
bool cpu_lowered_fits(const hth_graph *graph, const hth_node *node, hth_layout layout);

#endif
