// SPDX-License-Identifier: Apache-2.0
// cublasLt for tests: column-major products in double, with the epilogues bias and ReLU; in TF32 of
// factors that are rounded to it. Factors are f32 or bf16, the result is of their type or f32, a
// bias of the result's. Its algorithms are three that differ in workspace, which they overwrite so
// that too little is found, one whose sums have no order, which must never be taken, and one that
// wants operands where nothing promises them to be. An algorithm is its settings, one after the
// other; how it wants operands aligned is part of it, and addresses that are not are refused, as is
// a workspace that is not at a multiple of 256 bytes.
#include "kernels/cuda/fake/fake.h"

#include "device/cuda/fake/impl.h"
#include "device/cuda/grid.h"

#include <stdlib.h>
#include <string.h>

#define FAKE_WORKSPACE 4096 // of algorithm 1; 2: four times that, 3: none

typedef struct fake_matrix {
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch;
    bool half; // bf16
} fake_matrix;

typedef struct fake_product {
    cublasOperation_t op[2]; // of the first and the second factor
    cublasLtEpilogue_t epilogue;
    cublasComputeType_t compute;
    const void *bias;
    fake_matrix m[3];
    const void *in[2];
    void *out;
    float *workspace;
    size_t workspace_bytes;
    float alpha, beta;
} fake_product;

static cublasStatus_t fake_create(cublasLtHandle_t *out)
{
    *out = (cublasLtHandle_t)(void *)hth_cuda_fake_state();
    hth_cuda_fake_state()->live++;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_destroy(cublasLtHandle_t h)
{
    hth_cuda_fake_state()->live--;
    return CUBLAS_STATUS_SUCCESS;
}

static void *fake_object(size_t bytes)
{
    hth_cuda_fake_state()->live++;
    return calloc(1, bytes);
}

static cublasStatus_t fake_end(void *p)
{
    hth_cuda_fake_state()->live--;
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_desc_create(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                       cudaDataType_t scale)
{
    fake_product *p = fake_object(sizeof *p);
    *out = (cublasLtMatmulDesc_t)(void *)p;
    p->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p->compute = compute;
    bool known = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    return known && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t fake_desc_destroy(cublasLtMatmulDesc_t d)
{
    return fake_end(d);
}

static cublasStatus_t fake_desc_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name,
                                    const void *value, size_t bytes)
{
    fake_product *p = (fake_product *)(void *)d;
    void *to;
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        to = &p->op[0];
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        to = &p->op[1];
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        to = &p->epilogue;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        to = &p->bias;
        break;
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_layout_create(cublasLtMatrixLayout_t *out, cudaDataType type,
                                         uint64_t rows, uint64_t cols, int64_t ld)
{
    fake_matrix *m = fake_object(sizeof *m);
    *m = (fake_matrix){rows, cols, ld, 0, 1, type == CUDA_R_16BF};
    *out = (cublasLtMatrixLayout_t)(void *)m;
    bool known = type == CUDA_R_32F || type == CUDA_R_16BF;
    return known && ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static cublasStatus_t fake_layout_destroy(cublasLtMatrixLayout_t l)
{
    return fake_end(l);
}

static cublasStatus_t fake_layout_set(cublasLtMatrixLayout_t l,
                                      cublasLtMatrixLayoutAttribute_t name, const void *value,
                                      size_t bytes)
{
    fake_matrix *m = (fake_matrix *)(void *)l;
    bool count = name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    if (!count && name != CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(count ? (void *)&m->batch : (void *)&m->stride, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// What is asked of the heuristics.
typedef struct fake_preference {
    size_t limit;
    uint32_t reductions, align[4]; // of A, B, C, D
} fake_preference;

static cublasStatus_t fake_preference_create(cublasLtMatmulPreference_t *out)
{
    fake_preference *w = fake_object(sizeof *w);
    w->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (int i = 0; i < 4; i++) {
        w->align[i] = 256;
    }
    *out = (cublasLtMatmulPreference_t)(void *)w;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_preference_destroy(cublasLtMatmulPreference_t p)
{
    return fake_end(p);
}

static cublasStatus_t fake_preference_set(cublasLtMatmulPreference_t p,
                                          cublasLtMatmulPreferenceAttributes_t name,
                                          const void *value, size_t bytes)
{
    fake_preference *w = (fake_preference *)(void *)p;
    int align = (int)name - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    void *to = NULL;
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        to = &w->limit;
    } else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
        to = &w->reductions;
    } else if (align >= 0 && align < 4) {
        to = &w->align[align];
    }
    if (to == NULL || bytes != (to == &w->limit ? sizeof w->limit : sizeof w->reductions)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

typedef struct fake_algo {
    uint16_t setting[CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID + 1];
} fake_algo;

static const fake_algo fake_algos[] = {{{4, 1, 8, CUBLASLT_REDUCTION_SCHEME_INPLACE}},
                                       {{5, 15, 1}},
                                       {{1, 15, 1}},
                                       {{2, 20, 4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}},
                                       {{3, 18, 1, 0, 0, 0, 7}}};
#define FAKE_ALGOS ((int)(sizeof fake_algos / sizeof *fake_algos))

static size_t algo_workspace(const fake_algo *algo)
{
    if (algo->setting[0] == 2) {
        return 4 * FAKE_WORKSPACE;
    }
    return algo->setting[0] == 3 ? 0 : FAKE_WORKSPACE;
}

// How it wants operands aligned.
static uint32_t algo_align(const fake_algo *algo)
{
    static const uint32_t align[] = {4, 64, 16, 4, 4, 256};
    return align[algo->setting[0]];
}

static bool algo_fits(const fake_algo *algo, const fake_preference *preference)
{
    uint16_t scheme = algo->setting[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME];
    bool fits =
        (scheme & ~preference->reductions) == 0 && algo_workspace(algo) <= preference->limit;
    for (int i = 0; i < 4; i++) {
        fits = fits && algo_align(algo) <= preference->align[i];
    }
    return fits;
}

unsigned hth_cuda_fake_products[3];

static cublasStatus_t fake_heuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t e,
                                     cublasLtMatmulPreference_t preference, int cap,
                                     cublasLtMatmulHeuristicResult_t *out, int *n)
{
    const fake_preference *w = (const fake_preference *)(void *)preference;
    const fake_matrix *factor[] = {(const fake_matrix *)(void *)a, (const fake_matrix *)(void *)b};
    bool rounds = ((const fake_product *)(void *)d)->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    *n = 0;
    if (factor[0]->half != factor[1]->half || (rounds && factor[0]->half)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    hth_cuda_fake_products[factor[0]->half ? 2 : rounds]++;
    for (int i = 0; i < FAKE_ALGOS && *n < cap; i++) {
        if (algo_fits(&fake_algos[i], w)) {
            memset(&out[*n], 0, sizeof *out);
            memcpy(&out[*n].algo, &fake_algos[i], sizeof fake_algos[i]);
            out[(*n)++].workspaceSize = algo_workspace(&fake_algos[i]);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_algo_init(cublasLtHandle_t h, cublasComputeType_t compute,
                                     cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                     cudaDataType_t c, cudaDataType_t d, int id,
                                     cublasLtMatmulAlgo_t *out)
{
    memset(out, 0, sizeof *out);
    ((fake_algo *)(void *)out)->setting[0] = (uint16_t)id;
    return id >= 1 && id <= FAKE_ALGOS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t fake_algo_set(cublasLtMatmulAlgo_t *algo,
                                    cublasLtMatmulAlgoConfigAttributes_t name, const void *value,
                                    size_t bytes)
{
    memcpy(&((fake_algo *)(void *)algo)->setting[name], value, sizeof(uint16_t));
    return bytes == 2 || bytes == 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static cublasStatus_t fake_algo_get(const cublasLtMatmulAlgo_t *algo,
                                    cublasLtMatmulAlgoConfigAttributes_t name, void *value,
                                    size_t bytes, size_t *written)
{
    bool half = name >= CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID;
    memset(value, 0, bytes);
    memcpy(value, &((const fake_algo *)(const void *)algo)->setting[name], sizeof(uint16_t));
    *written = bytes;
    unsigned want = half ? 2 : 4;
    return bytes == want ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static const fake_algo *algo_known(const cublasLtMatmulAlgo_t *algo)
{
    for (int i = 0; i < FAKE_ALGOS; i++) {
        if (memcmp(algo, &fake_algos[i], sizeof fake_algos[i]) == 0) {
            return &fake_algos[i];
        }
    }
    return NULL;
}

static cublasStatus_t fake_algo_check(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t e,
                                      const cublasLtMatmulAlgo_t *algo,
                                      cublasLtMatmulHeuristicResult_t *out)
{
    const fake_algo *known = algo_known(algo);
    out->workspaceSize = known != NULL ? algo_workspace(known) : 0;
    return known != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static double product_at(const fake_product *product, int f, int64_t batch, uint64_t i, uint64_t k)
{
    const fake_matrix *m = &product->m[f];
    uint64_t row = product->op[f] == CUBLAS_OP_T ? k : i;
    uint64_t col = product->op[f] == CUBLAS_OP_T ? i : k;
    float v =
        hth_get(product->in[f], batch * m->stride + (int64_t)col * m->ld + (int64_t)row, m->half);
    return product->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? hth_cuda_fake_tf32(v) : v;
}

static hth_err product_run(void *job)
{
    const fake_product *p = job;
    const fake_matrix *c = &p->m[2];
    uint64_t sum = p->op[0] == CUBLAS_OP_T ? p->m[0].rows : p->m[0].cols;
    if (p->workspace_bytes > 0) {
        memset(p->workspace, 0xFF, p->workspace_bytes);
    }
    for (int64_t b = 0; b < c->batch; b++) {
        for (uint64_t j = 0; j < c->cols; j++) {
            for (uint64_t i = 0; i < c->rows; i++) {
                int64_t to = b * c->stride + (int64_t)j * c->ld + (int64_t)i;
                double v = 0;
                for (uint64_t k = 0; k < sum; k++) {
                    v += product_at(p, 0, b, i, k) * product_at(p, 1, b, k, j);
                }
                v = p->alpha * v +
                    (p->beta != 0 ? p->beta * (double)hth_get(p->out, to, c->half) : 0);
                v += p->epilogue & CUBLASLT_EPILOGUE_BIAS ? hth_get(p->bias, (int64_t)i, c->half)
                                                          : 0;
                v = p->epilogue & CUBLASLT_EPILOGUE_RELU && v < 0 ? 0 : v;
                hth_set(p->out, to, (float)v, c->half);
            }
        }
    }
    return HTH_OK;
}

static cublasStatus_t fake_matmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                                  const void *a, cublasLtMatrixLayout_t la, const void *b,
                                  cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                                  cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lo,
                                  const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                                  cudaStream_t stream)
{
    fake_product p = *(fake_product *)(void *)d;
    cublasLtMatrixLayout_t from[] = {la, lb, lc};
    for (int i = 0; i < 3; i++) {
        memcpy(&p.m[i], from[i], sizeof p.m[i]);
    }
    p.in[0] = a;
    p.in[1] = b;
    p.out = out;
    const fake_algo *known = algo_known(algo);
    p.workspace = workspace;
    p.workspace_bytes = known != NULL ? algo_workspace(known) : SIZE_MAX;
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    bool types = p.m[0].half == p.m[1].half && (p.m[0].half || !p.m[2].half) &&
                 (!p.m[0].half || p.compute == CUBLAS_COMPUTE_32F);
    uint64_t rows = p.op[0] == CUBLAS_OP_T ? p.m[0].cols : p.m[0].rows;
    uint64_t cols = p.op[1] == CUBLAS_OP_T ? p.m[1].rows : p.m[1].cols;
    bool fits = rows == p.m[2].rows && cols == p.m[2].cols;
    bool aligned = known != NULL && ((uintptr_t)workspace & 255) == 0 &&
                   ((uintptr_t)a | (uintptr_t)b | (uintptr_t)out) % algo_align(known) == 0;
    if (!fits || !types || !aligned || c != out || p.workspace_bytes > bytes ||
        (p.workspace_bytes > 0 && workspace == NULL)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return hth_cuda_fake_issue((CUstream)stream, product_run, &p, sizeof p) == CUDA_SUCCESS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

void hth_cuda_fake_fill_blas(hth_cuda_api *api)
{
    api->cublasLtCreate = fake_create;
    api->cublasLtDestroy = fake_destroy;
    api->cublasLtMatmulDescCreate = fake_desc_create;
    api->cublasLtMatmulDescDestroy = fake_desc_destroy;
    api->cublasLtMatmulDescSetAttribute = fake_desc_set;
    api->cublasLtMatrixLayoutCreate = fake_layout_create;
    api->cublasLtMatrixLayoutDestroy = fake_layout_destroy;
    api->cublasLtMatrixLayoutSetAttribute = fake_layout_set;
    api->cublasLtMatmulPreferenceCreate = fake_preference_create;
    api->cublasLtMatmulPreferenceDestroy = fake_preference_destroy;
    api->cublasLtMatmulPreferenceSetAttribute = fake_preference_set;
    api->cublasLtMatmulAlgoGetHeuristic = fake_heuristic;
    api->cublasLtMatmulAlgoInit = fake_algo_init;
    api->cublasLtMatmulAlgoCheck = fake_algo_check;
    api->cublasLtMatmulAlgoConfigSetAttribute = fake_algo_set;
    api->cublasLtMatmulAlgoConfigGetAttribute = fake_algo_get;
    api->cublasLtMatmul = fake_matmul;
}
