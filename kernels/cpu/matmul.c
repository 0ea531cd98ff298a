// SPDX-License-Identifier: Apache-2.0
// MatMul and Gemm. Activations times one matrix are a single product, however many dimensions they
// have; the matrix is packed once if it is constant, else on every run. Of many products (both
// operands computed) each thread takes some whole ones if there are enough, else all threads share
// each. Gemm's C is the first step of the epilogue.
#include "kernels/cpu/plain.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "kernels/cpu/gemm.h"

#include <stdio.h>
#include <string.h>

#define MATMUL_SERIAL 65536 // multiply-adds below which waking the team costs more than it gains

typedef struct matmul_kernel {
    hth_kernel base;
    hth_packing packing;
    hth_gemm gemm; // without addresses
    size_t b_row, b_col, packed;
    size_t batches, scratch; // products; bytes of scratch per thread
    int n_threads, rank;     // rank of the batch dimensions
    int64_t dim[HTH_MAX_RANK];
    size_t step[2][HTH_MAX_RANK]; // matrices of A and B per step along a batch dimension
    hth_epilogue post;
} matmul_kernel;

typedef struct matmul_job {
    const matmul_kernel *k;
    hth_gemm gemm;
    const float *a, *b;
    float *c;
    char *workspace;
} matmul_job;

static float *matmul_scratch(const matmul_job *job, int i)
{
    return (float *)(void *)(job->workspace + (size_t)i * job->k->scratch);
}

static float *matmul_packed(const matmul_job *job, int i)
{
    const matmul_kernel *k = job->k;
    return (float *)(void *)(job->workspace + (size_t)k->n_threads * k->scratch +
                             (size_t)i * k->packed);
}

static hth_gemm matmul_batch(const matmul_job *job, size_t batch, const float **b)
{
    const matmul_kernel *k = job->k;
    size_t at[2] = {0, 0}, rest = batch;
    for (int d = k->rank - 1; d >= 0; d--) {
        size_t i = rest % (size_t)k->dim[d];
        rest /= (size_t)k->dim[d];
        at[0] += i * k->step[0][d];
        at[1] += i * k->step[1][d];
    }
    hth_gemm g = job->gemm;
    g.a = job->a + at[0] * g.m * g.k;
    g.c = job->c + batch * g.m * g.n;
    g.first_row = batch * g.m;
    *b = job->b + at[1] * g.k * g.n;
    return g;
}

static void matmul_share(void *arg, int i, int n)
{
    const matmul_job *j = arg;
    hth_gemm_share(&j->gemm, i, n, matmul_scratch(j, i));
}

static void matmul_pack_share(void *arg, int i, int n)
{
    const matmul_job *j = arg;
    size_t begin, end;
    hth_team_range(hth_gemm_panels(j->gemm.n), i, n, &begin, &end);
    hth_gemm_pack(j->b, j->k->b_row, j->k->b_col, j->gemm.k, j->gemm.n, begin, end,
                  (float *)j->gemm.b);
}

static void matmul_each(void *arg, int i, int n)
{
    const matmul_job *j = arg;
    size_t begin, end, panels = hth_gemm_panels(j->gemm.n);
    hth_team_range(j->k->batches, i, n, &begin, &end);
    const float *b, *last = NULL;
    for (size_t q = begin; q < end; q++) {
        hth_gemm g = matmul_batch(j, q, &b);
        if (b != last) {
            hth_gemm_pack(b, j->k->b_row, j->k->b_col, g.k, g.n, 0, panels, matmul_packed(j, i));
        }
        last = b;
        g.b = matmul_packed(j, i);
        hth_gemm_block(&g, 0, g.m, 0, panels, matmul_scratch(j, i));
    }
}

static void matmul_parts(const matmul_kernel *kernel, void (*fn)(void *, int, int), matmul_job *job)
{
    if (kernel->gemm.m * kernel->gemm.n * kernel->gemm.k * kernel->batches < MATMUL_SERIAL) {
        fn(job, 0, 1);
    } else {
        hth_team_run(fn, job);
    }
}

static hth_err matmul_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const matmul_kernel *k = (const matmul_kernel *)base;
    hth_epilogue post = k->post;
    hth_epilogue_bind(&post, args->in);
    matmul_job j = {k, k->gemm, args->in[0], args->in[1], args->out[0], args->workspace};
    j.gemm.post = post.n > 0 ? &post : NULL;
    hth_team_set(k->n_threads);
    if (k->batches >= 2 * (size_t)k->n_threads) {
        matmul_parts(k, matmul_each, &j);
        return HTH_OK;
    }
    for (size_t q = 0; q < k->batches; q++) {
        matmul_job part = j;
        part.gemm = matmul_batch(&j, q, &part.b);
        part.gemm.b = part.b;
        if (k->base.n_packings == 0) {
            part.gemm.b = matmul_packed(&j, 0);
            matmul_parts(k, matmul_pack_share, &part);
        }
        matmul_parts(k, matmul_share, &part);
    }
    return HTH_OK;
}

static hth_err matmul_pack(const hth_kernel *base, const hth_packing *packing, const void *plain,
                           void *dst)
{
    const matmul_kernel *k = (const matmul_kernel *)base;
    matmul_job j = {.k = k, .gemm = k->gemm, .b = plain};
    j.gemm.b = dst;
    hth_team_set(k->n_threads);
    matmul_parts(k, matmul_pack_share, &j);
    return HTH_OK;
}

// All dimensions but the last are rows (attribute flatten; a matrix stays as it is).
static hth_shape matmul_rows(const hth_shape *shape)
{
    hth_shape m = {2, {1, shape->dim[shape->rank - 1]}};
    for (int i = 0; i < shape->rank - 1; i++) {
        m.dim[0] *= shape->dim[i];
    }
    return m;
}

static void matmul_describe_gemm(matmul_kernel *kernel, const hth_graph *graph,
                                 const hth_node *node)
{
    const hth_shape ma = matmul_rows(&graph->values[node->inputs[0]].shape);
    const hth_shape *a = &ma;
    const hth_shape mb = matmul_rows(&graph->values[node->inputs[1]].shape);
    const hth_shape *b = &mb;
    bool ta = hth_node_int(node, "transA", 0) != 0, tb = hth_node_int(node, "transB", 0) != 0;
    hth_gemm *x = &kernel->gemm;
    x->m = (size_t)a->dim[ta];
    x->k = (size_t)a->dim[!ta];
    x->n = (size_t)b->dim[!tb];
    x->a_row = ta ? 1 : x->k;
    x->a_col = ta ? x->m : 1;
    kernel->b_row = tb ? 1 : x->n;
    kernel->b_col = tb ? x->k : 1;
    x->alpha = hth_node_float(node, "alpha", 1);
}

// Strides of the batch dimensions, in matrices; 0 where an operand is broadcast.
static void matmul_batches(matmul_kernel *kernel, const hth_shape *shape, int which)
{
    size_t matrices = 1;
    for (int d = kernel->rank - 1; d >= 0; d--) {
        int from = d - kernel->rank + shape->rank - 2;
        int64_t size = from < 0 ? 1 : shape->dim[from];
        kernel->step[which][d] = size == 1 ? 0 : matrices;
        matrices *= (size_t)size;
        kernel->dim[d] = size > kernel->dim[d] ? size : kernel->dim[d];
    }
}

static void matmul_describe(matmul_kernel *kernel, const hth_graph *graph, const hth_node *node)
{
    const hth_shape *a = &graph->values[node->inputs[0]].shape,
                    *b = &graph->values[node->inputs[1]].shape;
    bool ta = a->rank > 1 && hth_node_int(node, "transA", 0) != 0;
    bool tb = b->rank > 1 && hth_node_int(node, "transB", 0) != 0;
    hth_gemm *x = &kernel->gemm;
    x->m = a->rank > 1 ? (size_t)a->dim[a->rank - 2 + ta] : 1;
    x->k = (size_t)a->dim[a->rank - 1 - ta];
    x->n = b->rank > 1 ? (size_t)b->dim[b->rank - 1 - tb] : 1;
    x->a_row = ta ? 1 : x->k;
    x->a_col = ta ? x->m : 1;
    kernel->b_row = tb ? 1 : x->n;
    kernel->b_col = tb ? x->k : 1;
    kernel->rank = (a->rank > b->rank ? a->rank : b->rank) - 2;
    kernel->rank = kernel->rank < 0 ? 0 : kernel->rank;
    for (int d = 0; d < kernel->rank; d++) {
        kernel->dim[d] = 1;
    }
    matmul_batches(kernel, a, 0);
    matmul_batches(kernel, b, 1);
    size_t of_b = (size_t)hth_shape_elements(b) / (x->k * x->n);
    for (int d = 0; d < kernel->rank; d++) {
        kernel->batches *= (size_t)kernel->dim[d];
    }
    if (of_b == 1 && !ta) { // one matrix for all: its rows are the rows of one product
        x->m *= kernel->batches;
        kernel->batches = 1;
        kernel->rank = 0;
    }
}

// Gemm's C, unless that place belongs to the operand of a post op.
static hth_err matmul_bias(matmul_kernel *kernel, const hth_graph *graph, const hth_node *node)
{
    bool has = node->op == HTH_OP_GEMM && node->n_inputs > 2 && node->inputs[2] >= 0;
    for (int i = 0; i < node->n_post; i++) {
        has = has && node->post[i].input != 2;
    }
    float beta = hth_node_float(node, "beta", 1);
    if (!has || beta == 0) {
        return HTH_OK;
    }
    hth_epilogue_step *s = &kernel->post.step[kernel->post.n++];
    *s = (hth_epilogue_step){.op = HTH_OP_ADD, .alpha = beta, .input = 2};
    if (!hth_epilogue_operand(&graph->values[node->inputs[2]].shape,
                              &graph->values[node->outputs[0]].shape, 1, s)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': shape of C", node->name);
    }
    return HTH_OK;
}

static bool matmul_takes(const hth_graph *graph, const hth_node *node)
{
    for (int i = 0; i < node->n_inputs; i++) {
        const hth_value *v = node->inputs[i] < 0 ? NULL : &graph->values[node->inputs[i]];
        if (v != NULL && (v->dtype != HTH_DT_F32 || v->layout != HTH_LAYOUT_PLAIN ||
                          hth_shape_elements(&v->shape) == 0)) {
            return false;
        }
    }
    const hth_value *y = &graph->values[node->outputs[0]];
    const hth_shape *b = &graph->values[node->inputs[1]].shape;
    return y->layout == HTH_LAYOUT_PLAIN && hth_shape_elements(&y->shape) > 0 &&
           graph->values[node->inputs[0]].shape.rank > 0 && (b->rank > 1 || node->n_post == 0);
}

hth_err cpu_matmul_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const char *algorithm, hth_kernel **out)
{
    if (algorithm != NULL || !matmul_takes(graph, node)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or shape", node->name);
    }
    matmul_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->base = (hth_kernel){.run = matmul_run,
                           .close = hth_cpu_kernel_free,
                           .implementation = "gemm",
                           .inplace_input = -1};
    k->n_threads = device->props.n_threads;
    k->batches = 1;
    k->gemm.alpha = 1;
    if (node->op == HTH_OP_GEMM) {
        matmul_describe_gemm(k, graph, node);
    } else {
        matmul_describe(k, graph, node);
    }
    hth_err err = matmul_bias(k, graph, node);
    if (err == HTH_OK) {
        err = hth_epilogue_of(graph, node, &k->post);
    }
    if (err != HTH_OK) {
        hth_free(k);
        return err;
    }
    hth_gemm *x = &k->gemm;
    x->c_row = x->n;
    k->scratch = hth_gemm_scratch_bytes(x->m);
    k->packed = hth_gemm_packed_bytes(x->k, x->n);
    k->base.workspace_bytes = (size_t)k->n_threads * k->scratch;
    if (graph->values[node->inputs[1]].constant != NULL && k->batches == 1) {
        k->packing = (hth_packing){.input = 1, .bytes = k->packed, .pack = matmul_pack};
        snprintf(k->packing.form, sizeof k->packing.form, "panels%d:%zux%zu:%zu,%zu",
                 hth_gemm_width(), x->k, x->n, k->b_row, k->b_col);
        k->base.packings = &k->packing;
        k->base.n_packings = 1;
    } else {
        bool each = k->batches >= 2 * (size_t)k->n_threads;
        k->base.workspace_bytes += k->packed * (each ? (size_t)k->n_threads : 1);
    }
    *out = &k->base;
    return HTH_OK;
}

bool cpu_epilogue_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_post_op *post, int operand)
{
    bool matrix = node->op != HTH_OP_MAT_MUL || graph->values[node->inputs[1]].shape.rank > 1;
    return matrix && hth_epilogue_can(graph, node, post, operand);
}
