// SPDX-License-Identifier: Apache-2.0
// engine/train/kmeans/kmeans_spec.h - what a K-means job is asked to do: a JSON object of its
// options, read and checked.
#ifndef HTH_ENGINE_TRAIN_KMEANS_KMEANS_SPEC_H
#define HTH_ENGINE_TRAIN_KMEANS_KMEANS_SPEC_H

#include "engine/train/train.h"
#include "kernels/kmeans.h"

typedef struct hth_kmeans_spec {
    hth_train_file data, start; // start: the first centroids; no name: as `init` says
    const char *save_as, *owner;
    const char *budget; // NULL: no limit but the device's
    hth_kmeans what;    // without what->start
    double time_limit;  // seconds that it may be at work; 0: no limit
    size_t checkpoint;  // a checkpoint after every so many iterations, too; 0: by time only
    bool resume;
} hth_kmeans_spec;

// hth_kmeans_spec_read reads a job's arguments; what it points to stays in `args`. HTH_EINVAL says
// which one is wrong.
hth_err hth_kmeans_spec_read(const json_t *args, hth_kmeans_spec *out);

#endif
