// SPDX-License-Identifier: Apache-2.0
// engine/train/kmeans/kmeans_model.h - centroids as a model that serves: x (N, d) FP32 -> label (N)
// INT64, the nearest centroid, and distance (N) FP32 from it.
#ifndef HTH_ENGINE_TRAIN_KMEANS_KMEANS_MODEL_H
#define HTH_ENGINE_TRAIN_KMEANS_KMEANS_MODEL_H

#include "base/err.h"

#include <stddef.h>

// hth_kmeans_model writes the ONNX file of k `centroids` of d columns to memory that the caller
// frees with hth_free. Its tensor "centroids" is (k, d) FP32. HTH_ENOMEM.
hth_err hth_kmeans_model(const double *centroids, size_t k, size_t d, void **out, size_t *bytes);
// hth_kmeans_model_bytes is how many bytes that has, at most.
size_t hth_kmeans_model_bytes(size_t k, size_t d);

#endif
