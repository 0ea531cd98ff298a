// SPDX-License-Identifier: Apache-2.0
// MatMul and Gemm through cublasLt, in the graph's precision. cublasLt's matrices are column-major,
// so the row- major product C = A B is asked for as C' = B' A', where X' is X read column by
// column. A bias along the last axis and a ReLU after it are the product's epilogue; what else
// follows is one kernel of ours. Where the second matrix is one for all of a batch, the batch's
// rows are rows of one product. Batches that are broadcast against each other are copied out in the
// workspace first.
#include "kernels/cuda/blas.h"
#include "kernels/cuda/product.h"

#include "base/alloc.h"

#include <string.h>

typedef struct matmul_form {
    int64_t m, n, k, batch;
    hth_shape lead;              // the dimensions that make the batch, where both have several
    int64_t stride_a, stride_b;  // elements from one product of the batch to the next
    int64_t row_a, row_b, row_c; // .. and from one row to the next, 0: dense
    bool trans_a, trans_b, bias, relu;
    float alpha;
    hth_precision precision;
    bool half;                          // the result is bf16
    uint32_t align_a, align_b, align_c; // of addresses, 0: HTH_DEVICE_ALIGN
} matmul_form;

struct hth_cuda_product {
    hth_blas_product product;
    hth_blas_algo choice;
    bool bias;
    float alpha, beta;
};

static int64_t matmul_batch(const hth_shape *shape)
{
    int64_t n = 1;
    for (int d = 0; d < shape->rank - 2; d++) {
        n *= shape->dim[d];
    }
    return n;
}

// MatMul: [.., m, k] x [.., k, n]; of one dimension a row or a column. Both operators may read a
// factor transposed; Gemm has no batches: of its factors all dimensions but the last are rows.
static hth_shape matmul_shape(const hth_graph *graph, const hth_node *node, int i)
{
    const hth_shape *s = &hth_cuda_in(graph, node, i)->shape;
    if (node->op != HTH_OP_GEMM || s->rank <= 2) {
        return *s;
    }
    int64_t cols = s->dim[s->rank - 1];
    return (hth_shape){2, {cols > 0 ? hth_shape_elements(s) / cols : 0, cols}};
}

static hth_err matmul_form_of(const hth_graph *graph, const hth_node *node, matmul_form *form)
{
    const hth_shape sa = matmul_shape(graph, node, 0), sb = matmul_shape(graph, node, 1);
    const hth_shape *a = &sa, *b = &sb;
    bool gemm = node->op == HTH_OP_GEMM;
    *form = (matmul_form){.alpha = gemm ? hth_node_float(node, "alpha", 1) : 1,
                          .batch = 1,
                          .precision = graph->precision};
    form->trans_a = a->rank > 1 && hth_node_int(node, "transA", 0) != 0;
    form->trans_b = b->rank > 1 && hth_node_int(node, "transB", 0) != 0;
    int64_t rows_a = a->rank < 2 ? 1 : a->dim[a->rank - 2], cols_a = a->dim[a->rank - 1];
    int64_t rows_b = b->rank < 2 ? b->dim[0] : b->dim[b->rank - 2];
    int64_t cols_b = b->rank < 2 ? 1 : b->dim[b->rank - 1];
    form->m = form->trans_a ? cols_a : rows_a;
    form->k = form->trans_a ? rows_a : cols_a;
    form->n = form->trans_b ? rows_b : cols_b;
    int64_t batch_a = matmul_batch(a), batch_b = matmul_batch(b);
    if (batch_b == 1 && !form->trans_a) {
        form->m *= batch_a;
        return HTH_OK;
    }
    form->batch = batch_b > batch_a ? batch_b : batch_a;
    form->stride_b = batch_b == 1 ? 0 : rows_b * cols_b;
    form->stride_a = batch_a == 1 ? 0 : rows_a * cols_a;
    if (batch_a != 1 && batch_b != 1) {
        form->lead.rank = (a->rank > b->rank ? a->rank : b->rank) - 2;
        form->batch = 1;
        for (int d = form->lead.rank - 1; d >= 0; d--) {
            int back = form->lead.rank - d + 2; // from the end
            int64_t da = back <= a->rank ? a->dim[a->rank - back] : 1;
            int64_t db = back <= b->rank ? b->dim[b->rank - back] : 1;
            form->lead.dim[d] = da == 1 ? db : da;
            form->batch *= form->lead.dim[d];
        }
    }
    return HTH_OK;
}

// A factor of fewer matrices than the batch has, copied out to them; `half`: it is bf16 where it
// lies.
static hth_err matmul_spread(hth_cuda_seq *seq, const hth_shape *shape, const matmul_form *form,
                             bool half, hth_cuda_place *place)
{
    hth_shape y = form->lead;
    int64_t out[HTH_MAX_RANK];
    hth_cuda_loop l;
    if (form->lead.rank == 0 || matmul_batch(shape) == form->batch) {
        return HTH_OK;
    }
    y.dim[y.rank++] = shape->dim[shape->rank - 2];
    y.dim[y.rank++] = shape->dim[shape->rank - 1];
    size_t element = half ? sizeof(uint16_t) : sizeof(float);
    size_t at = hth_cuda_workspace(seq, (size_t)hth_shape_elements(&y) * element);
    const hth_cuda_place copy = {HTH_CUDA_WS, 0, at, HTH_LAYOUT_PLAIN, half};
    hth_cuda_loop_begin(&l, &y, HTH_LAYOUT_PLAIN);
    hth_cuda_loop_add(&l, shape, HTH_LAYOUT_PLAIN);
    hth_cuda_row_major(&y, out);
    memcpy(l.step[l.n++], out, (size_t)y.rank * sizeof *out);
    HTH_TRY(hth_cuda_move_between(seq, &l, element, place, 0, &copy, 0));
    *place = copy;
    return seq->err;
}

static hth_err matmul_layout(const hth_cuda_api *api, bool half, int64_t rows, int64_t cols,
                             int64_t ld, int64_t batch, int64_t stride, cublasLtMatrixLayout_t *out)
{
    cudaDataType_t type = half ? CUDA_R_16BF : CUDA_R_32F;
    int32_t count = (int32_t)batch;
    HTH_TRY(BLAS(api, cublasLtMatrixLayoutCreate, out, type, (uint64_t)rows, (uint64_t)cols,
                 ld > 0 ? ld : rows));
    if (batch > 1) {
        HTH_TRY(BLAS(api, cublasLtMatrixLayoutSetAttribute, *out,
                     CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
        HTH_TRY(BLAS(api, cublasLtMatrixLayoutSetAttribute, *out,
                     CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    }
    return HTH_OK;
}

static cublasLtEpilogue_t matmul_epilogue(const matmul_form *form)
{
    if (form->bias) {
        return form->relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    }
    return form->relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

static hth_err matmul_describe(const hth_cuda_api *api, const matmul_form *form,
                               hth_blas_product *product)
{
    bool factor = form->precision == HTH_PRECISION_BF16;
    cublasOperation_t op_b = form->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_a = form->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = matmul_epilogue(form);
    product->compute =
        form->precision == HTH_PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    product->factors = factor ? CUDA_R_16BF : CUDA_R_32F;
    product->result = form->half ? CUDA_R_16BF : CUDA_R_32F;
    product->align_a = form->align_a;
    product->align_b = form->align_b;
    product->align_c = form->align_c;
    HTH_TRY(BLAS(api, cublasLtMatmulDescCreate, &product->desc, product->compute, CUDA_R_32F));
    HTH_TRY(BLAS(api, cublasLtMatmulDescSetAttribute, product->desc, CUBLASLT_MATMUL_DESC_TRANSA,
                 &op_b, sizeof op_b));
    HTH_TRY(BLAS(api, cublasLtMatmulDescSetAttribute, product->desc, CUBLASLT_MATMUL_DESC_TRANSB,
                 &op_a, sizeof op_a));
    HTH_TRY(BLAS(api, cublasLtMatmulDescSetAttribute, product->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                 &epilogue, sizeof epilogue));
    if (form->bias) { // its heuristics may look at how it is aligned; each run sets the real one
        const void *bias = (const void *)(uintptr_t)HTH_DEVICE_ALIGN;
        HTH_TRY(BLAS(api, cublasLtMatmulDescSetAttribute, product->desc,
                     CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    int64_t rows_b = form->trans_b ? form->k : form->n;
    int64_t cols_b = form->trans_b ? form->n : form->k;
    HTH_TRY(matmul_layout(api, factor, rows_b, cols_b, form->row_b, form->batch, form->stride_b,
                          &product->b));
    int64_t rows_a = form->trans_a ? form->m : form->k;
    int64_t cols_a = form->trans_a ? form->k : form->m;
    HTH_TRY(matmul_layout(api, factor, rows_a, cols_a, form->row_a, form->batch, form->stride_a,
                          &product->a));
    return matmul_layout(api, form->half, form->n, form->m, form->row_c, form->batch,
                         form->m * form->n, &product->c);
}

// Where in what was reserved cublasLt's workspace begins.
static void *product_room(void *workspace)
{
    return workspace == NULL
               ? NULL
               : (char *)workspace +
                     (HTH_BLAS_ALIGN - (uintptr_t)workspace % HTH_BLAS_ALIGN) % HTH_BLAS_ALIGN;
}

hth_err hth_cuda_product_run(const hth_cuda_seq *seq, const hth_cuda_product *product,
                             const float *a, const float *b, float *c, void *workspace)
{
    const hth_blas_product *q = &product->product;
    return BLAS(seq->d->api, cublasLtMatmul, hth_cuda_site_of(seq->d)->blas, q->desc,
                &product->alpha, b, q->b, a, q->a, &product->beta, c, q->c, c, q->c,
                &product->choice.algo, product_room(workspace), product->choice.workspace_bytes,
                seq->d->current);
}

// Addresses: A, B, C, the workspace, the bias.
static hth_err matmul_run(const hth_cuda_seq *seq, const hth_cuda_step *step, void *const *address)
{
    const hth_cuda_product *c = step->state;
    if (c->bias) {
        const void *bias = address[4];
        HTH_TRY(BLAS(seq->d->api, cublasLtMatmulDescSetAttribute, c->product.desc,
                     CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    return hth_cuda_product_run(seq, c, address[0], address[1], address[2], address[3]);
}

static void matmul_end(const hth_cuda_api *api, hth_blas_product *product)
{
    cublasLtMatrixLayout_t layout[] = {product->a, product->b, product->c};
    for (int i = 0; i < 3; i++) {
        if (layout[i] != NULL) {
            (void)api->cublasLtMatrixLayoutDestroy(layout[i]);
        }
    }
    if (product->desc != NULL) {
        (void)api->cublasLtMatmulDescDestroy(product->desc);
    }
}

void hth_cuda_product_close(const hth_cuda *cuda, hth_cuda_product *product)
{
    if (product != NULL) {
        matmul_end(cuda->api, &product->product);
        hth_free(product);
    }
}

static void matmul_close(hth_cuda_seq *seq, hth_cuda_step *step)
{
    hth_cuda_product_close(seq->d, step->state);
}

hth_err hth_cuda_product_open(const hth_cuda *cuda, const hth_cuda_product_form *form,
                              hth_precision precision, hth_cuda_product **out)
{
    const matmul_form f = {.m = form->m,
                           .n = form->n,
                           .k = form->k,
                           .batch = 1,
                           .row_a = form->row_a,
                           .row_b = form->row_b,
                           .row_c = form->row_c,
                           .trans_a = form->trans_a,
                           .trans_b = form->trans_b,
                           .align_a = form->align_a,
                           .align_b = form->align_b,
                           .align_c = form->align_c,
                           // factors are f32: of bf16 there is nothing to read
                           .precision =
                               precision == HTH_PRECISION_BF16 ? HTH_PRECISION_TF32 : precision};
    hth_cuda_product *p = hth_calloc(1, sizeof *p);
    *out = NULL;
    if (p == NULL) {
        return hth_no_memory("preparing a product");
    }
    p->alpha = 1;
    p->beta = form->adds ? 1 : 0;
    hth_err err = matmul_describe(cuda->api, &f, &p->product);
    if (err == HTH_OK) {
        err = hth_blas_choose(cuda, &p->product, NULL, &p->choice);
    }
    if (err != HTH_OK) {
        hth_cuda_product_close(cuda, p);
        return err;
    }
    *out = p;
    return HTH_OK;
}

size_t hth_cuda_product_workspace(const hth_cuda_product *product)
{
    return hth_blas_reserved(product->choice.workspace_bytes);
}

// Gemm's C, where it is a row for all rows of the result and not scaled.
static bool matmul_takes_bias(const hth_graph *graph, const hth_node *node, const matmul_form *form)
{
    const hth_value *c = node->op == HTH_OP_GEMM ? hth_cuda_in(graph, node, 2) : NULL;
    return c != NULL && hth_node_float(node, "beta", 1) == 1 && c->shape.rank > 0 &&
           hth_shape_elements(&c->shape) == form->n && c->shape.dim[c->shape.rank - 1] == form->n;
}

static hth_err matmul_tail(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const matmul_form *form)
{
    const hth_value *y = hth_cuda_out(graph, node, 0);
    const hth_value *c =
        node->op == HTH_OP_GEMM && !form->bias ? hth_cuda_in(graph, node, 2) : NULL;
    hth_cuda_chain chain;
    seq->posts_done = true;
    if (c == NULL && (node->n_post == 0 || (form->relu && node->n_post == 1))) {
        return HTH_OK;
    }
    hth_cuda_chain_begin(&chain, y);
    (void)hth_cuda_chain_value(&chain, y, HTH_CUDA_OUT, 0);
    if (c != NULL) {
        int k = hth_cuda_chain_value(&chain, c, HTH_CUDA_IN, 2);
        hth_cuda_chain_step(&chain, HTH_OP_ADD, k, hth_node_float(node, "beta", 1), 0);
    }
    hth_cuda_chain_posts(&chain, graph, node); // a ReLU twice is a ReLU
    return hth_cuda_chain_end(seq, &chain, 0);
}

// What a node asks of cublasLt; *product is to be ended also on error.
static hth_err matmul_ask(const hth_cuda_api *api, const hth_graph *graph, const hth_node *node,
                          matmul_form *form, hth_blas_product *product)
{
    HTH_TRY(hth_cuda_need_float(graph, node, 3, 1));
    HTH_TRY(matmul_form_of(graph, node, form));
    form->half = hth_cuda_half(hth_cuda_out(graph, node, 0));
    if (form->m * form->n * form->k == 0) {
        return hth_fail(HTH_ENOTSUP, "an empty product");
    }
    form->bias = matmul_takes_bias(graph, node, form);
    bool plain = node->op == HTH_OP_MAT_MUL || hth_cuda_in(graph, node, 2) == NULL || form->bias;
    form->relu = plain && node->n_post > 0 && node->post[0].op == HTH_OP_RELU;
    return matmul_describe(api, form, product);
}

// matmul_operands says where the operands are, and has those spread out that the product wants so.
static hth_err matmul_operands(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                               const matmul_form *f, hth_cuda_place *a, hth_cuda_place *b,
                               hth_cuda_place *bias)
{
    bool half = f->precision == HTH_PRECISION_BF16;
    *a = hth_cuda_operand(seq, graph, node, 0, HTH_LAYOUT_PLAIN, half);
    *b = hth_cuda_operand(seq, graph, node, 1, HTH_LAYOUT_PLAIN, half);
    *bias = f->bias ? hth_cuda_operand(seq, graph, node, 2, HTH_LAYOUT_PLAIN, f->half) : *a;
    HTH_TRY(matmul_spread(seq, &hth_cuda_in(graph, node, 0)->shape, f, half, a));
    return matmul_spread(seq, &hth_cuda_in(graph, node, 1)->shape, f, half, b);
}

hth_err hth_cuda_matmul(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    matmul_form f;
    hth_cuda_product *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_no_memory("preparing a product");
    }
    hth_err err = matmul_ask(seq->d->api, graph, node, &f, &c->product);
    if (err == HTH_OK) {
        err = hth_blas_choose(seq->d, &c->product, algorithm, &c->choice);
    }
    hth_cuda_place a = {HTH_CUDA_IN, 0, 0, HTH_LAYOUT_PLAIN, false}, b = a, bias = a;
    if (err == HTH_OK) {
        err = matmul_operands(seq, graph, node, &f, &a, &b, &bias);
    }
    hth_cuda_step_add(seq, (hth_cuda_step){.run = matmul_run, .close = matmul_close, .state = c});
    HTH_TRY(err);
    HTH_TRY(seq->err);
    c->bias = f.bias;
    c->alpha = f.alpha;
    hth_cuda_bind(seq, 0, a.from, a.index, a.offset);
    hth_cuda_bind(seq, 0, b.from, b.index, b.offset);
    hth_cuda_bind(seq, 0, HTH_CUDA_OUT, 0, 0);
    size_t workspace = hth_cuda_product_workspace(c);
    size_t at = workspace > 0 ? hth_cuda_workspace(seq, workspace) : 0;
    hth_cuda_bind(seq, 0, HTH_CUDA_WS, 0, at);
    if (f.bias) {
        hth_cuda_bind(seq, 0, bias.from, bias.index, bias.offset);
    }
    return matmul_tail(seq, graph, node, &f);
}

hth_err hth_cuda_matmul_algorithms(hth_cuda *cuda, const hth_graph *graph, const hth_node *node,
                                   bool first, hth_choice *list, int cap, int *count)
{
    hth_blas_product p = {.desc = NULL};
    matmul_form f;
    *count = 0;
    hth_err err = matmul_ask(cuda->api, graph, node, &f, &p);
    if (err == HTH_OK) {
        err = hth_blas_list(cuda, &p, first, list, cap, count);
    }
    matmul_end(cuda->api, &p);
    return err;
}
