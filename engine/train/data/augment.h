// SPDX-License-Identifier: Apache-2.0
// engine/train/data/augment.h - images that are flipped and cropped at random on their way into a
// batch of training samples. Any thread.
//
// Design notes
// What a sample gets is a function of seed, epoch and the sample's number in the dataset, by a
// generator that counts (Philox 4x32-10, kernels/philox.h): batches, parts of them, devices, ranks
// and pauses change nothing. The order is torchvision's RandomCrop(size, padding), then
// RandomHorizontalFlip; zeros are added to the values of the file, before any scale or mean. It is
// done to what a batch is gathered to, on the host: rows are moved, nothing is computed, and a
// device gets the same bytes as without. Means and deviations are the step's (train_scale.h).
#ifndef HTH_ENGINE_TRAIN_DATA_AUGMENT_H
#define HTH_ENGINE_TRAIN_DATA_AUGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_augment {
    bool flip;    // left to right, every second image on average
    int64_t crop; // zeros around an image, of which one of its size is cut out; 0: none
} hth_augment;

// What an image gets: the cut begins so many rows below and columns right of its own, -crop to
// crop, and is then flipped.
typedef struct hth_augment_draw {
    bool flip;
    int64_t down, right;
} hth_augment_draw;

static inline bool hth_augment_any(const hth_augment *augment)
{
    return augment->flip || augment->crop > 0;
}

// hth_augment_at is what sample `sample` of the dataset gets in an epoch. Of the four words w of
// Philox with the counter {sample, sample >> 32, epoch, epoch >> 32} and the key {seed,
// 0x6167756D ^ seed >> 32}, w[0] >> 31 flips, and the cut begins at w[1] and w[2], each times
// 2 crop + 1, >> 32, - crop. A flip is the same with and without a crop.
hth_augment_draw hth_augment_at(const hth_augment *augment, uint64_t seed, uint64_t epoch,
                                uint64_t sample);
// hth_augment_image makes of an image [dim[0], dim[1], dim[2]] (channels, height, width) of
// elements of `size` bytes (1, 2, 4 or 8) at `in` what was drawn, at `out`, which may be `in`, or
// is apart from it. |down| < height, |right| < width.
void hth_augment_image(const hth_augment_draw *draw, const int64_t dim[3], size_t size,
                       const void *in, void *out);

#endif
