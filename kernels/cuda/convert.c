// SPDX-License-Identifier: Apache-2.0
// Between layouts and between f32 and bf16: Reorder, Cast, and what a library wants otherwise than
// it is. A constant is packed once, on the host, and kept in that form; anything else is converted
// in the workspace each time.
#include "kernels/cuda/seq.h"

#include <stdio.h>
#include <string.h>

#define CONVERT_THREADS (HTH_TILE * HTH_TILE / 4)

// [N, C, ..] as N matrices of C rows: how many rows and columns.
static void convert_matrix(const hth_shape *shape, uint32_t *rows, uint32_t *cols)
{
    *rows = shape->rank > 1 ? (uint32_t)shape->dim[1] : 1;
    *cols = 1;
    for (int d = 2; d < shape->rank; d++) {
        *cols *= (uint32_t)shape->dim[d];
    }
}

// Whether a tensor lies differently in the two layouts.
static bool convert_turns(const hth_shape *shape, hth_layout a, hth_layout b)
{
    uint32_t rows, cols;
    convert_matrix(shape, &rows, &cols);
    return a != b && rows > 1 && cols > 1;
}

static size_t convert_bytes(const hth_shape *shape, bool half)
{
    return (size_t)hth_shape_elements(shape) * (half ? sizeof(uint16_t) : sizeof(float));
}

void hth_cuda_convert(hth_cuda_seq *seq, const hth_shape *shape, const hth_cuda_place *from,
                      const hth_cuda_place *to)
{
    uint32_t n = (uint32_t)hth_shape_elements(shape), rows, cols;
    size_t at[2];
    if (convert_turns(shape, from->lies, to->lies)) {
        convert_matrix(shape, &rows, &cols);
        bool last = to->lies == HTH_LAYOUT_NHWC;
        hth_transpose_params p = {.rows = last ? rows : cols,
                                  .cols = last ? cols : rows,
                                  .half_in = from->half,
                                  .half_out = to->half};
        uint64_t tiles =
            (uint64_t)((rows + HTH_TILE - 1) / HTH_TILE) * ((cols + HTH_TILE - 1) / HTH_TILE);
        hth_cuda_launch_add(seq, HTH_CUDA_hth_transpose, n / rows / cols * tiles, CONVERT_THREADS,
                            HTH_TILE * (HTH_TILE + 1) * sizeof(float), &p, sizeof p);
        at[0] = offsetof(hth_transpose_params, in);
        at[1] = offsetof(hth_transpose_params, out);
    } else {
        hth_convert_params p = {.n = n, .half_in = from->half, .half_out = to->half};
        hth_cuda_launch_add(seq, HTH_CUDA_hth_convert, hth_cuda_blocks(seq, (n + 3u) / 4u, true), 0,
                            0, &p, sizeof p);
        at[0] = offsetof(hth_convert_params, in);
        at[1] = offsetof(hth_convert_params, out);
    }
    hth_cuda_bind(seq, at[0], from->from, from->index, from->offset);
    hth_cuda_bind(seq, at[1], to->from, to->index, to->offset);
    seq->moved_bytes += convert_bytes(shape, from->half) + convert_bytes(shape, to->half);
}

static hth_cuda_place convert_value(const hth_value *value, hth_cuda_from from)
{
    return (hth_cuda_place){from, 0, 0, value->layout, hth_cuda_half(value)};
}

hth_err hth_cuda_reorder(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    if (x->dtype == y->dtype && !convert_turns(&x->shape, x->layout, y->layout)) {
        return hth_cuda_view(seq, graph, node, algorithm);
    }
    if (hth_cuda_need_float(graph, node, 1, 1) == HTH_OK) {
        hth_cuda_place from = convert_value(x, HTH_CUDA_IN), to = convert_value(y, HTH_CUDA_OUT);
        hth_cuda_convert(seq, &x->shape, &from, &to);
        return HTH_OK;
    }
    if (x->dtype != y->dtype) {
        return hth_fail(HTH_ENOTSUP, "%s to %s", hth_dtype_name(x->dtype),
                        hth_dtype_name(y->dtype));
    }
    hth_cuda_loop l;
    hth_cuda_loop_begin(&l, &x->shape, y->layout);
    (void)hth_cuda_loop_add(&l, &x->shape, x->layout);
    (void)hth_cuda_loop_add(&l, &x->shape, y->layout);
    return hth_cuda_move(seq, &l, hth_dtype_bytes(x->dtype), 0, 0, 0, 0);
}

hth_err hth_cuda_cast(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                      const char *algorithm)
{
    bool plain = hth_cuda_in(graph, node, 0)->layout == HTH_LAYOUT_PLAIN;
    return !plain || hth_cuda_need_float(graph, node, 1, 1) == HTH_OK
               ? hth_cuda_reorder(seq, graph, node, algorithm)
               : hth_cuda_typed(seq, graph, node, algorithm);
}

// Packing of f32 content, on the host.
static hth_err convert_pack(const hth_kernel *kernel, const hth_packing *packing, const void *plain,
                            void *dst)
{
    const hth_cuda_seq *s = (const hth_cuda_seq *)kernel;
    const hth_shape *shape = &s->packed[packing - s->packing];
    bool last = strncmp(packing->form, "last", 4) == 0,
         half = strstr(packing->form, "bf16") != NULL;
    uint32_t rows, cols;
    convert_matrix(shape, &rows, &cols);
    for (int64_t i = 0; i < hth_shape_elements(shape); i++) {
        int64_t c = i / cols % rows, at = i % cols, image = i / cols / rows;
        int64_t to = last ? (image * cols + at) * rows + c : i;
        hth_set(dst, to, ((const float *)plain)[i], half);
    }
    return HTH_OK;
}

// Whether constant input `input` is packed; it is then where the kernel finds it.
static bool convert_packs(hth_cuda_seq *seq, const hth_value *value, int input, bool turns,
                          bool half)
{
    if (value->constant == NULL || value->dtype != HTH_DT_F32 ||
        seq->base.n_packings == HTH_CUDA_PACKINGS) {
        return false;
    }
    int k = seq->base.n_packings++;
    seq->packed[k] = value->shape;
    seq->packing[k] = (hth_packing){
        .input = input, .bytes = convert_bytes(&value->shape, half), .pack = convert_pack};
    const char *order = turns ? "last" : "plain";
    const char *type = half ? ",bf16" : "";
    snprintf(seq->packing[k].form, sizeof seq->packing[k].form, "%s%s", order, type);
    seq->base.packings = seq->packing;
    return true;
}

hth_cuda_place hth_cuda_operand(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                int input, hth_layout lies, bool half)
{
    const hth_value *v = &graph->values[node->inputs[input]];
    hth_cuda_place from = {HTH_CUDA_IN, input, 0, v->layout, hth_cuda_half(v)}, to = from;
    bool turns = convert_turns(&v->shape, v->layout, lies);
    if ((!turns && from.half == half) || convert_packs(seq, v, input, turns, half)) {
        return from;
    }
    to = (hth_cuda_place){HTH_CUDA_WS, 0, hth_cuda_workspace(seq, convert_bytes(&v->shape, half)),
                          lies, half};
    hth_cuda_convert(seq, &v->shape, &from, &to);
    return to;
}
