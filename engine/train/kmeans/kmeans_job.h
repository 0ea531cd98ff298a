// SPDX-License-Identifier: Apache-2.0
// engine/train/kmeans/kmeans_job.h - K-means as a job of the queue.
//
// The folder engine/train/kmeans/ runs the K-means of kernels/ as jobs: kmeans_spec.h (what is
// asked for), kmeans_source.h (points), kmeans_job.c (iterations, a part of one at a time),
// kmeans_checkpoint.c (centroids in the store), kmeans_model.h (the result, which serves).
//
// Design notes
// A step of the job is an iteration; what is called its loss is the inertia. A slice is so many
// points that others wait some 40 ms for the device; it computes alongside requests, as a training
// step does (hth_work_elsewhere). A checkpoint is the centroids and the number of iterations that
// led to them, or those that k-means++ has chosen so far: from there a job goes on with the same
// bits.
#ifndef HTH_ENGINE_TRAIN_KMEANS_KMEANS_JOB_H
#define HTH_ENGINE_TRAIN_KMEANS_KMEANS_JOB_H

#include "engine/train/job.h"
#include "engine/train/train.h"

// hth_kmeans_job_open reads the specification in request->arguments and makes everything ready:
// what can be wrong without a look at all points is told here. `request` must outlive the job.
// HTH_ENODEVMEM: there is too little memory now; HTH_ETOOBIG: never. What is told after each
// iteration: {"step", "loss", "inertia", "ms", "peak_bytes", "budget_bytes"}; before the first one,
// while k-means++ chooses centroids: {"seeded", "centroids"}, how many of how many.
hth_err hth_kmeans_job_open(hth_models *ms, hth_request *request, hth_train_events events,
                            hth_job **out);
// hth_kmeans_job_check looks at a specification alone. HTH_EINVAL says which argument is wrong.
hth_err hth_kmeans_job_check(const json_t *args);

#endif
