// SPDX-License-Identifier: Apache-2.0
// cublasLt's algorithms for a product: asked for with several limits of workspace, so that the list
// has what needs none as well as what is fastest; named, and made again from their names.
#include "kernels/cuda/blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLAS_RESULTS 8 // of one limit
#define BLAS_CONFIG  8

static const size_t blas_limits[] = {(size_t)32 << 20, (size_t)4 << 20, 0};
#define BLAS_LIMITS ((int)(sizeof blas_limits / sizeof *blas_limits))

// The settings after the algorithm's number, in the order of names.
static const struct {
    cublasLtMatmulAlgoConfigAttributes_t attribute;
    size_t bytes;
} blas_config[BLAS_CONFIG] = {
    {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},          {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4}, {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},   {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};

hth_err hth_blas_status(cublasStatus_t r, const char *call)
{
    if (r == CUBLAS_STATUS_SUCCESS) {
        return HTH_OK;
    }
    return hth_fail(r == CUBLAS_STATUS_NOT_SUPPORTED ? HTH_ENOTSUP : HTH_EIO,
                    "cublasLt: %s answered %d", call, (int)r);
}

// A setting's value; false: the library does not tell it.
static bool blas_read(const hth_cuda_api *api, const cublasLtMatmulAlgo_t *algo,
                      cublasLtMatmulAlgoConfigAttributes_t attribute, size_t bytes, uint32_t *out)
{
    size_t written;
    uint16_t half = 0;
    *out = 0;
    void *to = bytes == 2 ? (void *)&half : (void *)out;
    bool ok = api->cublasLtMatmulAlgoConfigGetAttribute(algo, attribute, to, bytes, &written) ==
              CUBLAS_STATUS_SUCCESS;
    *out = bytes == 2 ? half : *out;
    return ok;
}

static bool blas_name(const hth_cuda_api *api, const cublasLtMatmulAlgo_t *algo, char *out,
                      size_t cap)
{
    uint32_t v;
    if (!blas_read(api, algo, CUBLASLT_ALGO_CONFIG_ID, 4, &v)) {
        return false;
    }
    size_t at = (size_t)snprintf(out, cap, "m%u", v);
    for (int i = 0; i < BLAS_CONFIG && at < cap; i++) {
        if (!blas_read(api, algo, blas_config[i].attribute, blas_config[i].bytes, &v)) {
            return false;
        }
        at += (size_t)snprintf(out + at, cap - at, "%c%u", i == 0 ? ':' : ',', v);
    }
    return at < cap;
}

static bool blas_parse(const char *name, int *id, uint32_t v[BLAS_CONFIG])
{
    char *end;
    if (name[0] != 'm') {
        return false;
    }
    *id = (int)strtol(name + 1, &end, 10);
    for (int i = 0; i < BLAS_CONFIG; i++) {
        if (end == name + 1 || *end != (i == 0 ? ':' : ',')) {
            return false;
        }
        v[i] = (uint32_t)strtoul(end + 1, &end, 10);
    }
    return *end == '\0';
}

// The algorithm that a name spells out, checked by the library.
static hth_err blas_make(const hth_cuda *cuda, const hth_blas_product *product, const char *name,
                         hth_blas_algo *out)
{
    const hth_cuda_api *api = cuda->api;
    cublasLtHandle_t handle = hth_cuda_site_of(cuda)->blas;
    cublasLtMatmulHeuristicResult_t found;
    uint32_t v[BLAS_CONFIG];
    int id;
    if (!blas_parse(name, &id, v)) {
        return hth_fail(HTH_ENOTSUP, "'%s' is not an algorithm's name", name);
    }
    HTH_TRY(BLAS(api, cublasLtMatmulAlgoInit, handle, product->compute, CUDA_R_32F,
                 product->factors, product->factors, product->result, product->result, id,
                 &out->algo));
    for (int i = 0; i < BLAS_CONFIG; i++) {
        uint16_t half = (uint16_t)v[i];
        bool whole = blas_config[i].bytes == 4;
        HTH_TRY(BLAS(api, cublasLtMatmulAlgoConfigSetAttribute, &out->algo,
                     blas_config[i].attribute, whole ? (void *)&v[i] : (void *)&half,
                     blas_config[i].bytes));
    }
    HTH_TRY(BLAS(api, cublasLtMatmulAlgoCheck, handle, product->desc, product->b, product->a,
                 product->c, product->c, &out->algo, &found));
    out->workspace_bytes = found.workspaceSize;
    return HTH_OK;
}

// What the heuristics are told: at most `limit` bytes of workspace, sums in an order, alignments.
static hth_err blas_preference(const hth_cuda *cuda, const hth_blas_product *product, size_t limit,
                               cublasLtMatmulPreference_t preference)
{
    const uint32_t ordered =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    const uint32_t b = product->align_b > 0 ? product->align_b : HTH_DEVICE_ALIGN;
    const uint32_t a = product->align_a > 0 ? product->align_a : HTH_DEVICE_ALIGN;
    const uint32_t c = product->align_c > 0 ? product->align_c : HTH_DEVICE_ALIGN;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } set[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &ordered, sizeof ordered},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        HTH_TRY(BLAS(cuda->api, cublasLtMatmulPreferenceSetAttribute, preference, set[i].name,
                     set[i].value, set[i].bytes));
    }
    return HTH_OK;
}

// The library's choices with at most `limit` bytes of workspace.
static hth_err blas_ask(const hth_cuda *cuda, const hth_blas_product *product, size_t limit,
                        int cap, cublasLtMatmulHeuristicResult_t *found, int *n)
{
    const hth_cuda_api *api = cuda->api;
    cublasLtMatmulPreference_t preference;
    *n = 0;
    HTH_TRY(BLAS(api, cublasLtMatmulPreferenceCreate, &preference));
    hth_err err = blas_preference(cuda, product, limit, preference);
    if (err == HTH_OK) {
        err = BLAS(api, cublasLtMatmulAlgoGetHeuristic, hth_cuda_site_of(cuda)->blas, product->desc,
                   product->b, product->a, product->c, product->c, preference, cap, found, n);
    }
    (void)api->cublasLtMatmulPreferenceDestroy(preference);
    return err;
}

hth_err hth_blas_choose(const hth_cuda *cuda, const hth_blas_product *product, const char *name,
                        hth_blas_algo *out)
{
    cublasLtMatmulHeuristicResult_t found;
    int n;
    if (name != NULL) {
        return blas_make(cuda, product, name, out);
    }
    HTH_TRY(blas_ask(cuda, product, blas_limits[0], 1, &found, &n));
    if (n == 0) {
        return hth_fail(HTH_ENOTSUP, "cublasLt has no algorithm for this product");
    }
    *out = (hth_blas_algo){found.algo, found.workspaceSize};
    return HTH_OK;
}

static void blas_keep(const hth_cuda *cuda, const cublasLtMatmulHeuristicResult_t *found,
                      hth_choice *list, int cap, int *count)
{
    hth_choice c = {.workspace_bytes = hth_blas_reserved(found->workspaceSize),
                    .time_us = -1,
                    .error = -1,
                    .split = 1,
                    .deterministic = true};
    if (found->state != CUBLAS_STATUS_SUCCESS || *count == cap ||
        !blas_name(cuda->api, &found->algo, c.name, sizeof c.name)) {
        return;
    }
    for (int i = 0; i < *count; i++) {
        if (strcmp(list[i].name, c.name) == 0) {
            return;
        }
    }
    list[(*count)++] = c;
}

hth_err hth_blas_list(const hth_cuda *cuda, const hth_blas_product *product, bool few,
                      hth_choice *list, int cap, int *count)
{
    cublasLtMatmulHeuristicResult_t found[BLAS_RESULTS];
    *count = 0;
    for (int i = 0; i < BLAS_LIMITS; i++) {
        int n = 0;
        hth_err err = blas_ask(cuda, product, blas_limits[i], few ? 1 : BLAS_RESULTS, found, &n);
        HTH_TRY(err == HTH_ENOTSUP && *count > 0 ? HTH_OK : err);
        for (int k = 0; k < n; k++) {
            blas_keep(cuda, &found[k], list, cap, count);
        }
    }
    return *count > 0 ? HTH_OK
                      : hth_fail(HTH_ENOTSUP, "cublasLt has no algorithm for this product");
}
