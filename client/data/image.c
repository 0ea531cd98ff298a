// SPDX-License-Identifier: Apache-2.0
// An image of either kind: its bytes say which, not its name.
#include "client/data/image.h"

bool hth_image_is(const void *data, size_t bytes)
{
    return hth_png_is(data, bytes) || hth_jpeg_is(data, bytes);
}

hth_err hth_image_look(const void *data, size_t bytes, hth_image *out)
{
    if (hth_png_is(data, bytes)) {
        return hth_png_look(data, bytes, out);
    }
    return hth_jpeg_is(data, bytes) ? hth_jpeg_look(data, bytes, out)
                                    : hth_fail(HTH_EINVAL, "it is neither PNG nor JPEG");
}

hth_err hth_image_decode(const void *data, size_t bytes, const hth_image *image, uint8_t *out)
{
    if (hth_png_is(data, bytes)) {
        return hth_png_decode(data, bytes, image, out);
    }
    return hth_jpeg_is(data, bytes) ? hth_jpeg_decode(data, bytes, image, out)
                                    : hth_fail(HTH_EIO, "it changed while it was read");
}
