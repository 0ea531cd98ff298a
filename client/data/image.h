// SPDX-License-Identifier: Apache-2.0
// client/data/image.h - PNG and JPEG as 8-bit samples, gray or RGB.
#ifndef HTH_CLIENT_DATA_IMAGE_H
#define HTH_CLIENT_DATA_IMAGE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_IMAGE_SIDE 32768               // most pixels of a side
#define HTH_IMAGE_AREA ((size_t)256 << 20) // most pixels of an image

typedef struct hth_image {
    int width, height;
    int channels; // 1: gray; 3: RGB
} hth_image;

// hth_png_* and hth_jpeg_* read the bytes of a file. _look reads its header: size and channels,
// without transparency, which is dropped; a palette is RGB, 16 bits a sample become their upper 8.
// _decode writes (height, width, channels) with the channels of *image, 3 also of a gray file.
// HTH_ECORRUPT: damaged or cut off; HTH_ENOTSUP: colours that are neither gray nor RGB (CMYK);
// HTH_ETOOBIG: more pixels than the limits above; HTH_ENOMEM. The sentence names no file.
hth_err hth_png_look(const void *data, size_t bytes, hth_image *out);
hth_err hth_png_decode(const void *data, size_t bytes, const hth_image *image, uint8_t *out);
hth_err hth_jpeg_look(const void *data, size_t bytes, hth_image *out);
hth_err hth_jpeg_decode(const void *data, size_t bytes, const hth_image *image, uint8_t *out);
bool hth_png_is(const void *data, size_t bytes);
bool hth_jpeg_is(const void *data, size_t bytes);
// hth_image_is tells by the first bytes whether it is one of the two; hth_image_look and _decode
// are those of the one that it is. HTH_EINVAL, of _decode HTH_EIO: it is neither.
bool hth_image_is(const void *data, size_t bytes);
hth_err hth_image_look(const void *data, size_t bytes, hth_image *out);
hth_err hth_image_decode(const void *data, size_t bytes, const hth_image *image, uint8_t *out);

// hth_image_limit refuses what is larger than the limits.
hth_err hth_image_limit(uint64_t width, uint64_t height);

// hth_image_resample resamples (height, width, channels) bytes to another size: bilinear, with a
// filter as wide as the image shrinks (antialiased), the bytes that Pillow's Image.BILINEAR gives.
hth_err hth_image_resample(const uint8_t *from, const hth_image *image, int width, int height,
                           uint8_t *out);

#endif
