// SPDX-License-Identifier: Apache-2.0
// engine/train/kmeans/kmeans_source.h - the points of a K-means job: a dataset's tensor, mapped or
// read, all of it or a window at a time.
//
// Design notes
// The store's datasets are mapped: their pages are the system's, which can take them back. A file
// is read, because its owner may cut it. Points are cut into blocks. Of a file a few lie in memory,
// one under a small budget; pages of a mapped dataset that were passed are let go of under one.
//
// While points come from memory all threads read a block, and then compute with it. Where that
// takes as long as if it came from a disk, a thread of its own reads further blocks from there on,
// up to the end of the pass: neither the disk nor the processors wait for the other one.
#ifndef HTH_ENGINE_TRAIN_KMEANS_KMEANS_SOURCE_H
#define HTH_ENGINE_TRAIN_KMEANS_KMEANS_SOURCE_H

#include "engine/train/data/dataset.h"
#include "engine/train/kmeans/kmeans_ahead.h"
#include "kernels/kmeans.h"

typedef struct hth_kmeans_source {
    hth_dataset set;
    const hth_dataset_tensor *x;
    size_t n, d;
    size_t most;             // points in a block; 0: all are at hand
    size_t places;           // of blocks: block b is at b mod `places`
    float *window;           // of a file: (places, most, d); NULL: they are in memory or mapped
    float *row;              // .. (d) a point that is asked for by itself
    bool drops;              // pages of a mapped one are let go of
    uint64_t passed;         // .. bytes that were
    hth_kmeans_ahead *ahead; // NULL: nothing is read ahead
    // the present pass
    size_t block, next; // block that was asked for last, point after the last one
} hth_kmeans_source;

// Where points are: what a job's arguments name.
typedef struct hth_kmeans_place {
    const char *name; // of the dataset, or the file
    const char *tenant;
    hth_store *store; // NULL: it is a file
    int fd;           // .. passed as this descriptor, which stays the caller's; -1: by its name
    bool own;         // a client made the name up: it tells nobody anything
} hth_kmeans_place;

// hth_kmeans_source_open opens what `place` says and finds the points in it: the tensor 'x', or the
// only one there is. HTH_EINVAL: they are not FP32 of rank 2. Closed also on error. Blocks.
hth_err hth_kmeans_source_open(const hth_kmeans_place *place, hth_kmeans_source *out);
void hth_kmeans_source_close(hth_kmeans_source *source);
// hth_kmeans_source_bytes is what it takes of memory with a window of `most` points (0: none was
// asked for); hth_kmeans_source_window sets that, rounded up to what can be done. HTH_ENOMEM.
uint64_t hth_kmeans_source_bytes(const hth_kmeans_source *source, size_t most);
hth_err hth_kmeans_source_window(hth_kmeans_source *source, size_t most);
// hth_kmeans_source_points is how a shard reads them, hth_kmeans_source_all where all of them are;
// NULL: they are read.
hth_kmeans_points hth_kmeans_source_points(hth_kmeans_source *source);
const float *hth_kmeans_source_all(const hth_kmeans_source *source);
// hth_kmeans_source_copy copies all points to (n, d) floats.
hth_err hth_kmeans_source_copy(hth_kmeans_source *source, float *out);

#endif
