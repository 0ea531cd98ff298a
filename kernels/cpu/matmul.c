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

static float *matmul_scratch(const matmul_job *j, int i)
{
    return (float *)(void *)(j->workspace + (size_t)i * j->k->scratch);
}

static float *matmul_packed(const matmul_job *j, int i)
{
    const matmul_kernel *k = j->k;
    return (float *)(void *)(j->workspace + (size_t)k->n_threads * k->scratch +
                             (size_t)i * k->packed);
}

static hth_gemm matmul_batch(const matmul_job *j, size_t batch, const float **b)
{
    const matmul_kernel *k = j->k;
    size_t at[2] = {0, 0}, rest = batch;
    for (int d = k->rank - 1; d >= 0; d--) {
        size_t i = rest % (size_t)k->dim[d];
        rest /= (size_t)k->dim[d];
        at[0] += i * k->step[0][d];
        at[1] += i * k->step[1][d];
    }
    hth_gemm g = j->gemm;
    g.a = j->a + at[0] * g.m * g.k;
    g.c = j->c + batch * g.m * g.n;
    g.first_row = batch * g.m;
    *b = j->b + at[1] * g.k * g.n;
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

static void matmul_parts(const matmul_kernel *k, void (*fn)(void *, int, int), matmul_job *j)
{
    if (k->gemm.m * k->gemm.n * k->gemm.k * k->batches < MATMUL_SERIAL) {
        fn(j, 0, 1);
    } else {
        hth_team_run(fn, j);
    }
}

static hth_err matmul_run(const hth_kernel *base, const hth_kernel_args *a)
{
    const matmul_kernel *k = (const matmul_kernel *)base;
    hth_epilogue post = k->post;
    hth_epilogue_bind(&post, a->in);
    matmul_job j = {k, k->gemm, a->in[0], a->in[1], a->out[0], a->workspace};
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

static hth_err matmul_pack(const hth_kernel *base, const hth_packing *p, const void *plain,
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
static hth_shape matmul_rows(const hth_shape *s)
{
    hth_shape m = {2, {1, s->dim[s->rank - 1]}};
    for (int i = 0; i < s->rank - 1; i++) {
        m.dim[0] *= s->dim[i];
    }
    return m;
}

static void matmul_describe_gemm(matmul_kernel *k, const hth_graph *g, const hth_node *n)
{
    const hth_shape ma = matmul_rows(&g->values[n->inputs[0]].shape), *a = &ma;
    const hth_shape mb = matmul_rows(&g->values[n->inputs[1]].shape), *b = &mb;
    bool ta = hth_node_int(n, "transA", 0) != 0, tb = hth_node_int(n, "transB", 0) != 0;
    hth_gemm *x = &k->gemm;
    x->m = (size_t)a->dim[ta];
    x->k = (size_t)a->dim[!ta];
    x->n = (size_t)b->dim[!tb];
    x->a_row = ta ? 1 : x->k;
    x->a_col = ta ? x->m : 1;
    k->b_row = tb ? 1 : x->n;
    k->b_col = tb ? x->k : 1;
    x->alpha = hth_node_float(n, "alpha", 1);
}

// Strides of the batch dimensions, in matrices; 0 where an operand is broadcast.
static void matmul_batches(matmul_kernel *k, const hth_shape *s, int which)
{
    size_t matrices = 1;
    for (int d = k->rank - 1; d >= 0; d--) {
        int from = d - k->rank + s->rank - 2;
        int64_t size = from < 0 ? 1 : s->dim[from];
        k->step[which][d] = size == 1 ? 0 : matrices;
        matrices *= (size_t)size;
        k->dim[d] = size > k->dim[d] ? size : k->dim[d];
    }
}

static void matmul_describe(matmul_kernel *k, const hth_graph *g, const hth_node *n)
{
    const hth_shape *a = &g->values[n->inputs[0]].shape, *b = &g->values[n->inputs[1]].shape;
    bool ta = a->rank > 1 && hth_node_int(n, "transA", 0) != 0;
    bool tb = b->rank > 1 && hth_node_int(n, "transB", 0) != 0;
    hth_gemm *x = &k->gemm;
    x->m = a->rank > 1 ? (size_t)a->dim[a->rank - 2 + ta] : 1;
    x->k = (size_t)a->dim[a->rank - 1 - ta];
    x->n = b->rank > 1 ? (size_t)b->dim[b->rank - 1 - tb] : 1;
    x->a_row = ta ? 1 : x->k;
    x->a_col = ta ? x->m : 1;
    k->b_row = tb ? 1 : x->n;
    k->b_col = tb ? x->k : 1;
    k->rank = (a->rank > b->rank ? a->rank : b->rank) - 2;
    k->rank = k->rank < 0 ? 0 : k->rank;
    for (int d = 0; d < k->rank; d++) {
        k->dim[d] = 1;
    }
    matmul_batches(k, a, 0);
    matmul_batches(k, b, 1);
    size_t of_b = (size_t)hth_shape_elements(b) / (x->k * x->n);
    for (int d = 0; d < k->rank; d++) {
        k->batches *= (size_t)k->dim[d];
    }
    if (of_b == 1 && !ta) { // one matrix for all: its rows are the rows of one product
        x->m *= k->batches;
        k->batches = 1;
        k->rank = 0;
    }
}

// Gemm's C, unless that place belongs to the operand of a post op.
static hth_err matmul_bias(matmul_kernel *k, const hth_graph *g, const hth_node *n)
{
    bool has = n->op == HTH_OP_GEMM && n->n_inputs > 2 && n->inputs[2] >= 0;
    for (int i = 0; i < n->n_post; i++) {
        has = has && n->post[i].input != 2;
    }
    float beta = hth_node_float(n, "beta", 1);
    if (!has || beta == 0) {
        return HTH_OK;
    }
    hth_epilogue_step *s = &k->post.step[k->post.n++];
    *s = (hth_epilogue_step){.op = HTH_OP_ADD, .alpha = beta, .input = 2};
    if (!hth_epilogue_operand(&g->values[n->inputs[2]].shape, &g->values[n->outputs[0]].shape, 1,
                              s)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': shape of C", n->name);
    }
    return HTH_OK;
}

static bool matmul_takes(const hth_graph *g, const hth_node *n)
{
    for (int i = 0; i < n->n_inputs; i++) {
        const hth_value *v = n->inputs[i] < 0 ? NULL : &g->values[n->inputs[i]];
        if (v != NULL && (v->dtype != HTH_DT_F32 || v->layout != HTH_LAYOUT_PLAIN ||
                          hth_shape_elements(&v->shape) == 0)) {
            return false;
        }
    }
    const hth_value *y = &g->values[n->outputs[0]];
    const hth_shape *b = &g->values[n->inputs[1]].shape;
    return y->layout == HTH_LAYOUT_PLAIN && hth_shape_elements(&y->shape) > 0 &&
           g->values[n->inputs[0]].shape.rank > 0 && (b->rank > 1 || n->n_post == 0);
}

hth_err cpu_matmul_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                           const char *algorithm, hth_kernel **out)
{
    if (algorithm != NULL || !matmul_takes(g, n)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or shape", n->name);
    }
    matmul_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for node '%s'", n->name);
    }
    k->base = (hth_kernel){.run = matmul_run,
                           .close = hth_cpu_kernel_free,
                           .implementation = "gemm",
                           .inplace_input = -1};
    k->n_threads = d->props.n_threads;
    k->batches = 1;
    k->gemm.alpha = 1;
    if (n->op == HTH_OP_GEMM) {
        matmul_describe_gemm(k, g, n);
    } else {
        matmul_describe(k, g, n);
    }
    hth_err err = matmul_bias(k, g, n);
    if (err == HTH_OK) {
        err = hth_epilogue_of(g, n, &k->post);
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
    if (g->values[n->inputs[1]].constant != NULL && k->batches == 1) {
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

bool cpu_epilogue_can_fuse(hth_device *d, const hth_graph *g, const hth_node *n,
                           const hth_post_op *post, int operand)
{
    bool matrix = n->op != HTH_OP_MAT_MUL || g->values[n->inputs[1]].shape.rank > 1;
    return matrix && hth_epilogue_can(g, n, post, operand);
}
