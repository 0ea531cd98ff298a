// SPDX-License-Identifier: Apache-2.0
// Operators that stand alone: RotaryEmbedding, Det and its gradient, Hardmax.
#include "kernels/cuda/seq.h"

#define RARE_ROOM ((size_t)1 << 30) // of cofactors

static hth_err rotary_params(const hth_graph *graph, const hth_node *node,
                             hth_rotary_params *params)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *at = hth_cuda_in(graph, node, 3);
    bool flat = x->shape.rank == 3;
    int64_t heads = flat ? hth_node_int(node, "num_heads", 0) : x->shape.dim[1];
    int64_t turned = hth_node_int(node, "rotary_embedding_dim", 0);
    int64_t size = x->shape.dim[3];
    if (flat) {
        size = heads > 0 ? x->shape.dim[2] / heads : 0;
    }
    turned = turned > 0 ? turned : size;
    if (heads < 1 || (flat && x->shape.dim[2] % heads != 0) || turned < 2 || turned > size ||
        turned % 2 != 0) {
        return hth_fail(HTH_ENOTSUP, "heads and rotary_embedding_dim do not fit the input");
    }
    *params = (hth_rotary_params){.n = hth_cuda_count(x),
                                  .heads = (uint32_t)heads,
                                  .len = (uint32_t)x->shape.dim[flat ? 1 : 2],
                                  .size = (uint32_t)size,
                                  .turned = (uint32_t)turned,
                                  .flat = flat,
                                  .interleaved = hth_node_int(node, "interleaved", 0) != 0,
                                  .wide = at != NULL && at->dtype == HTH_DT_I64};
    int64_t places = x->shape.dim[0] * params->len,
            angles = hth_cuda_count(hth_cuda_in(graph, node, 1));
    params->rows = angles / (turned / 2);
    if (angles % (turned / 2) != 0 ||
        angles != (int64_t)hth_cuda_count(hth_cuda_in(graph, node, 2)) ||
        (at == NULL ? params->rows : (int64_t)hth_cuda_count(at)) != places ||
        (at != NULL && !params->wide && at->dtype != HTH_DT_I32)) {
        return hth_fail(HTH_ENOTSUP, "the tables of angles do not fit the input");
    }
    return HTH_OK;
}

hth_err hth_cuda_rotary(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    hth_rotary_params p;
    HTH_TRY(hth_cuda_need_f32(graph, node, 3, 1));
    HTH_TRY(rotary_params(graph, node, &p));
    hth_cuda_launch_add(seq, HTH_CUDA_hth_rotary, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_rotary_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_rotary_params, cos), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_rotary_params, sin), HTH_CUDA_IN, 2, 0);
    if (hth_cuda_in(graph, node, 3) != NULL) {
        hth_cuda_bind(seq, offsetof(hth_rotary_params, positions), HTH_CUDA_IN, 3, 0);
    }
    hth_cuda_bind(seq, offsetof(hth_rotary_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += 2 * hth_cuda_bytes(hth_cuda_out(graph, node, 0));
    return seq->err;
}

// Inputs: matrices; of the gradient the result's gradient before them.
hth_err hth_cuda_det(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                     const char *algorithm)
{
    bool grad = node->op == HTH_OP_DET_GRAD;
    const hth_value *x = hth_cuda_in(graph, node, grad ? 1 : 0);
    int rank = x->shape.rank;
    HTH_TRY(hth_cuda_need_f32(graph, node, grad ? 2 : 1, 1));
    if (rank < 2 || x->shape.dim[rank - 1] != x->shape.dim[rank - 2] ||
        x->shape.dim[rank - 1] > INT16_MAX) {
        return hth_fail(HTH_ENOTSUP, "the matrices are not square, or too large");
    }
    hth_det_params p = {.n = hth_cuda_count(hth_cuda_out(graph, node, 0)),
                        .size = (uint32_t)x->shape.dim[rank - 1]};
    size_t rows = grad ? p.size - 1 : p.size, room = p.n * rows * rows * sizeof(double);
    if (room > RARE_ROOM) {
        return hth_fail(HTH_ENOTSUP,
                        "the determinants of %u x %u take %zu bytes at once: at most %zu", p.size,
                        p.size, room, RARE_ROOM);
    }
    size_t at = hth_cuda_workspace(seq, room);
    hth_cuda_launch_add(seq, grad ? HTH_CUDA_hth_det_grad : HTH_CUDA_hth_det,
                        hth_cuda_blocks(seq, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_det_params, x), HTH_CUDA_IN, grad ? 1 : 0, 0);
    if (grad) {
        hth_cuda_bind(seq, offsetof(hth_det_params, dy), HTH_CUDA_IN, 0, 0);
    }
    hth_cuda_bind(seq, offsetof(hth_det_params, room), HTH_CUDA_WS, 0, at);
    hth_cuda_bind(seq, offsetof(hth_det_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += hth_cuda_bytes(x);
    return seq->err;
}

hth_err hth_cuda_hardmax(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    hth_hardmax_params p = {.rows = 0};
    uint32_t outer;
    HTH_TRY(hth_cuda_need_f32(graph, node, 1, 1));
    HTH_TRY(
        hth_cuda_axis(node, &hth_cuda_in(graph, node, 0)->shape, -1, &outer, &p.along, &p.inner));
    p.rows = outer * p.inner;
    hth_cuda_launch_add(seq, HTH_CUDA_hth_hardmax, hth_cuda_blocks(seq, p.rows, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_hardmax_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_hardmax_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += 2 * hth_cuda_bytes(hth_cuda_in(graph, node, 0));
    return seq->err;
}
