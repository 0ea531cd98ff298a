// SPDX-License-Identifier: Apache-2.0
// engine/train/kmeans/kmeans_ahead.h - a thread that fetches blocks of points from a disk, one
// after the other, while those before are computed with.
#ifndef HTH_ENGINE_TRAIN_KMEANS_KMEANS_AHEAD_H
#define HTH_ENGINE_TRAIN_KMEANS_KMEANS_AHEAD_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_kmeans_ahead hth_kmeans_ahead;

typedef struct hth_kmeans_blocks {
    // fetch brings a block to its place; on the thread. After an error nothing more is fetched.
    hth_err (*fetch)(void *ctx, size_t block);
    void *ctx;
    size_t n, most; // blocks in all; how many there may be, with the one that is in use
} hth_kmeans_blocks;

// hth_kmeans_ahead_open makes the thread, which fetches nothing yet. HTH_ENOMEM, HTH_EIO.
hth_err hth_kmeans_ahead_open(const hth_kmeans_blocks *blocks, hth_kmeans_ahead **out);
void hth_kmeans_ahead_close(hth_kmeans_ahead *ahead); // NULL is allowed
// hth_kmeans_ahead_start has what follows `block` fetched. hth_kmeans_ahead_stop: nothing is, from
// when it returns.
void hth_kmeans_ahead_start(hth_kmeans_ahead *ahead, size_t block);
void hth_kmeans_ahead_stop(hth_kmeans_ahead *ahead);
// hth_kmeans_ahead_take goes on to `block`: the places of those before are free. If it `waits` the
// block is there then; false: it does not come, the caller fetches it.
bool hth_kmeans_ahead_take(hth_kmeans_ahead *ahead, size_t block, bool waits);

#endif
