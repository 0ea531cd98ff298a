// SPDX-License-Identifier: Apache-2.0
// The nearest centroid is the one with the smallest |c|^2 / 2 - x c, of points and centroids less
// the centroids' mean: with large coordinates the difference would lose its digits. Its distance is
// that of the differences.
#include "engine/train/kmeans/kmeans_model.h"

#include "base/alloc.h"
#include "graph/onnx/onnx_make.h"

static const hth_onnx_make_node model_nodes[] = {
    {"Sub", "around", {"x", "mean"}, {{NULL, 0}}},
    {"Gemm", "score", {"around", "directions", "halves"}, {{NULL, 0}}},
    {"ArgMin", "label", {"score"}, {{"axis", 1}, {"keepdims", 0}}},
    {"Gather", "nearest", {"centroids", "label"}, {{"axis", 0}}},
    {"Sub", "apart", {"x", "nearest"}, {{NULL, 0}}},
    {"ReduceL2", "distance", {"apart", "columns"}, {{"keepdims", 0}}},
};

typedef struct model_numbers {
    float *memory, *centroids, *mean, *directions, *halves;
} model_numbers;

static hth_err model_fill(const double *c, size_t k, size_t d, model_numbers *out)
{
    double *mean = hth_calloc(d, sizeof *mean);
    out->memory = hth_calloc(2 * k * d + d + k, sizeof(float));
    if (mean == NULL || out->memory == NULL) {
        hth_free(mean);
        hth_free(out->memory);
        return hth_no_memory("a model of %zu centroids", k);
    }
    out->centroids = out->memory;
    out->directions = out->centroids + k * d;
    out->mean = out->directions + k * d;
    out->halves = out->mean + d;
    for (size_t i = 0; i < k * d; i++) {
        out->centroids[i] = (float)c[i];
        mean[i % d] += c[i] / (double)k;
    }
    for (size_t j = 0; j < d; j++) {
        out->mean[j] = (float)mean[j];
    }
    for (size_t i = 0; i < k; i++) {
        double squares = 0;
        for (size_t j = 0; j < d; j++) {
            double x = c[i * d + j] - (double)out->mean[j];
            squares += x * x;
            out->directions[j * k + i] = (float)-x;
        }
        out->halves[i] = (float)(squares / 2);
    }
    hth_free(mean);
    return HTH_OK;
}

hth_err hth_kmeans_model(const double *centroids, size_t k, size_t d, void **out, size_t *bytes)
{
    static const int64_t axis = 1;
    const int64_t n = (int64_t)k, m = (int64_t)d;
    model_numbers x = {.memory = NULL};
    *out = NULL;
    HTH_TRY(model_fill(centroids, k, d, &x));
    const hth_onnx_tensor tensors[] = {
        {"centroids", HTH_DT_F32, {2, {n, m}}, x.centroids, k * d * sizeof(float), 0, 0},
        {"mean", HTH_DT_F32, {1, {m}}, x.mean, d * sizeof(float), 0, 0},
        {"directions", HTH_DT_F32, {2, {m, n}}, x.directions, k * d * sizeof(float), 0, 0},
        {"halves", HTH_DT_F32, {1, {n}}, x.halves, k * sizeof(float), 0, 0},
        {"columns", HTH_DT_I64, {1, {1}}, &axis, sizeof axis, 0, 0},
    };
    const hth_onnx_make_value input = {"x", HTH_DT_F32, {2, {-1, m}}};
    static const hth_onnx_make_value outputs[] = {{"label", HTH_DT_I64, {1, {-1}}},
                                                  {"distance", HTH_DT_F32, {1, {-1}}}};
    const hth_onnx_make make = {.name = "kmeans",
                                .nodes = model_nodes,
                                .n_nodes = sizeof model_nodes / sizeof *model_nodes,
                                .tensors = tensors,
                                .n_tensors = sizeof tensors / sizeof *tensors,
                                .inputs = &input,
                                .n_inputs = 1,
                                .outputs = outputs,
                                .n_outputs = 2};
    hth_err err = hth_onnx_make_file(&make, out, bytes);
    hth_free(x.memory);
    return err;
}

size_t hth_kmeans_model_bytes(size_t k, size_t d)
{
    return (2 * k * d + k + d) * sizeof(float) + 4096; // names, nodes
}
