// SPDX-License-Identifier: Apache-2.0
// Bilinear resampling as Pillow does it (libImaging/Resample.c): a triangle filter, as wide as the
// image shrinks, with weights of 22 bits; first rows, then columns, 8 bits between them.
#include "client/data/image.h"

#include "base/alloc.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

#define RESAMPLE_BITS 22 // 32 - 8 - 2: sums of products stay within 32 bits

// The weights of one direction: pixel i of the output is the sum of `taps` products at most.
typedef struct resample_axis {
    int *first, *count;
    int32_t *weight; // [out][taps]
    int taps;
} resample_axis;

hth_err hth_image_limit(uint64_t width, uint64_t height)
{
    if (width == 0 || height == 0 || width > HTH_IMAGE_SIDE || height > HTH_IMAGE_SIDE ||
        width * height > HTH_IMAGE_AREA) {
        return hth_fail(
            HTH_ETOOBIG, "an image of %llux%llu pixels; at most %d a side and %zu in all are read",
            (unsigned long long)width, (unsigned long long)height, HTH_IMAGE_SIDE, HTH_IMAGE_AREA);
    }
    return HTH_OK;
}

static void axis_free(resample_axis *axis)
{
    hth_free(axis->first);
    hth_free(axis->count);
    hth_free(axis->weight);
}

static void axis_weights(resample_axis *axis, int i, int in, double scale, double wide)
{
    double center = (i + 0.5) * scale, sum = 0;
    int first = (int)(center - wide + 0.5), last = (int)(center + wide + 0.5);
    first = first > 0 ? first : 0;
    last = last < in ? last : in;
    axis->first[i] = first;
    axis->count[i] = last - first;
    int32_t *w = axis->weight + (size_t)i * (size_t)axis->taps;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < last - first; k++) {
            double x = fabs((k + first - center + 0.5) * (1 / wide)), v = x < 1 ? 1 - x : 0;
            if (pass == 0) {
                sum += v;
            } else {
                w[k] = (int32_t)(0.5 + (sum != 0 ? v / sum : v) * (1 << RESAMPLE_BITS));
            }
        }
    }
}

static hth_err axis_make(resample_axis *axis, int in, int out)
{
    double scale = (double)in / out, wide = scale < 1 ? 1 : scale;
    *axis = (resample_axis){.taps = (int)ceil(wide) * 2 + 1};
    axis->first = hth_calloc((size_t)out, sizeof *axis->first);
    axis->count = hth_calloc((size_t)out, sizeof *axis->count);
    axis->weight = hth_calloc((size_t)out * (size_t)axis->taps, sizeof *axis->weight);
    if (axis->first == NULL || axis->count == NULL || axis->weight == NULL) {
        return hth_no_memory("resampling an image");
    }
    for (int i = 0; i < out; i++) {
        axis_weights(axis, i, in, scale, wide);
    }
    return HTH_OK;
}

// axis_sum is one sample of the output: `from` is the first one of the input's line, whose samples
// lie `stride` apart.
static uint8_t axis_sum(const resample_axis *axis, int i, const uint8_t *from, size_t stride)
{
    const int32_t *w = axis->weight + (size_t)i * (size_t)axis->taps;
    int64_t sum = 1 << (RESAMPLE_BITS - 1);
    from += (size_t)axis->first[i] * stride;
    for (int k = 0; k < axis->count[i]; k++, from += stride) {
        sum += (int64_t)*from * w[k];
    }
    sum >>= RESAMPLE_BITS;
    if (sum < 0) {
        return 0;
    }
    return (uint8_t)(sum > UINT8_MAX ? UINT8_MAX : sum);
}

static void resample_rows(const resample_axis *axis, const uint8_t *from, const hth_image *image,
                          int width, uint8_t *out)
{
    size_t c = (size_t)image->channels, row = (size_t)image->width * c;
    for (int y = 0; y < image->height; y++, from += row) {
        for (int i = 0; i < width; i++) {
            for (size_t k = 0; k < c; k++) {
                *out++ = axis_sum(axis, i, from + k, c);
            }
        }
    }
}

static void resample_columns(const resample_axis *axis, const uint8_t *from, size_t row, int height,
                             uint8_t *out)
{
    for (int i = 0; i < height; i++) {
        for (size_t k = 0; k < row; k++) {
            *out++ = axis_sum(axis, i, from + k, row);
        }
    }
}

hth_err hth_image_resample(const uint8_t *from, const hth_image *image, int width, int height,
                           uint8_t *out)
{
    resample_axis x = {.taps = 0}, y = {.taps = 0};
    size_t row = (size_t)width * (size_t)image->channels;
    uint8_t *between = NULL;
    hth_err err;
    HTH_GOTO(axis_make(&x, image->width, width), done);
    HTH_GOTO(axis_make(&y, image->height, height), done);
    between = hth_alloc(row * (size_t)image->height);
    HTH_GOTO(between != NULL ? HTH_OK : hth_no_memory("resampling an image"), done);
    resample_rows(&x, from, image, width,
                  between); // over an axis of the same size each weight is 1
    resample_columns(&y, between, row, height, out);
done:
    hth_free(between);
    axis_free(&x);
    axis_free(&y);
    return err;
}
