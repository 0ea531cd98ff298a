// SPDX-License-Identifier: Apache-2.0
// Of each channel's 256 values the elements are made once, in a table: what is left for each pixel
// is a copy.
#include "client/data/picture.h"

#include "base/alloc.h"
#include "client/data/data_impl.h"
#include "client/data/image.h"
#include "client/dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

// ---- what an input is like

static bool form_channels(int64_t dimension)
{
    return dimension == 1 || dimension == HTH_PICTURE_CHANNELS;
}

hth_err hth_picture_form_of(int dtype, int rank, const int64_t *shape, hth_picture_form *out)
{
    *out = (hth_picture_form){.dtype = (hearth_dtype)dtype, .batch = 1, .scale = 1};
    for (int i = 0; i < HTH_PICTURE_CHANNELS; i++) {
        out->std[i] = 1;
    }
    if (dtype != HEARTH_F32 && dtype != HEARTH_F16 && dtype != HEARTH_U8) {
        return hth_fail(HTH_EINVAL, "pictures become FP32, FP16 or UINT8; for others give a .npy");
    }
    if (rank != 3 && rank != 4) {
        return hth_fail(HTH_EINVAL, "pictures need 4 dimensions, or 3 for a single one");
    }
    const int64_t *sides = shape + rank - 3;
    out->batched = rank == 4;
    out->batch = rank == 4 ? shape[0] : 1;
    out->channels_last = !form_channels(sides[0]);
    int at = out->channels_last ? 0 : 1; // of the height
    int64_t channels = sides[2 - 2 * at], height = sides[at], width = sides[at + 1];
    if (!form_channels(channels)) {
        return hth_fail(HTH_EINVAL, "pictures have 1 or 3 channels; neither its last dimension nor "
                                    "that before height and width is 1 or 3");
    }
    if (height > HTH_IMAGE_SIDE || width > HTH_IMAGE_SIDE || height == 0 || width == 0) {
        return hth_fail(HTH_EINVAL, "pictures have from 1 to %d pixels a side", HTH_IMAGE_SIDE);
    }
    out->channels = (int)channels;
    out->height = height > 0 ? (int)height : 0;
    out->width = width > 0 ? (int)width : 0;
    return HTH_OK;
}

static double picture_value(const hth_picture_form *form, int channel, int v)
{
    return (v * form->scale - form->mean[channel]) / form->std[channel];
}

hth_err hth_picture_check(const hth_picture_form *form, size_t *bytes)
{
    double most = form->dtype == HEARTH_F16 ? 65504 : FLT_MAX;
    HTH_TRY(hth_image_limit((uint64_t)form->width, (uint64_t)form->height));
    for (int k = 0; k < form->channels; k++) {
        double a = picture_value(form, k, 0), b = picture_value(form, k, 255);
        if (!(fabs(a) <= most && fabs(b) <= most)) {
            return hth_fail(HTH_EINVAL, "scale, mean and std make values from %g to %g", a, b);
        }
    }
    *bytes = (size_t)form->width * (size_t)form->height * (size_t)form->channels *
             hth_dtype_names_of((int)form->dtype)->bytes;
    return HTH_OK;
}

hth_err hth_picture_look(const void *data, size_t bytes, int *height, int *width)
{
    hth_image image;
    HTH_TRY(hth_image_look(data, bytes, &image));
    *height = image.height;
    *width = image.width;
    return HTH_OK;
}

// ---- pixels

// picture_gray turns (.., 3) into (.., 1) in place, with the weights of ITU-R 601-2 as Pillow has
// them, in 16 bits.
static void picture_gray(uint8_t *pixels, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t *p = pixels + 3 * i;
        pixels[i] = (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
    }
}

// picture_decode makes (height, width, channels) of the picture's own size; the caller frees it.
static hth_err picture_decode(const hth_picture_form *form, const void *data, size_t bytes,
                              hth_image *image, uint8_t **out)
{
    *out = NULL;
    HTH_TRY(hth_image_look(data, bytes, image));
    image->channels = image->channels > form->channels ? image->channels : form->channels;
    size_t area = (size_t)image->width * (size_t)image->height;
    uint8_t *pixels = hth_alloc(area * (size_t)image->channels);
    if (pixels == NULL) {
        return hth_no_memory("a picture");
    }
    hth_err err = hth_image_decode(data, bytes, image, pixels);
    if (err != HTH_OK) {
        hth_free(pixels);
        return err;
    }
    if (image->channels > form->channels) {
        picture_gray(pixels, area);
        image->channels = form->channels;
    }
    *out = pixels;
    return HTH_OK;
}

// picture_resample replaces *pixels where they are not of the form's size.
static hth_err picture_resample(const hth_picture_form *form, const hth_image *image,
                                uint8_t **pixels)
{
    if (image->width == form->width && image->height == form->height) {
        return HTH_OK;
    }
    uint8_t *sized =
        hth_alloc((size_t)form->width * (size_t)form->height * (size_t)image->channels);
    if (sized == NULL) {
        return hth_no_memory("a picture");
    }
    hth_err err = hth_image_resample(*pixels, image, form->width, form->height, sized);
    if (err != HTH_OK) {
        hth_free(sized);
        return err;
    }
    hth_free(*pixels);
    *pixels = sized;
    return HTH_OK;
}

// picture_values fills the table of a channel: the element for each value of a byte.
static void picture_values(const hth_picture_form *form, int channel, uint8_t table[256][4])
{
    for (int v = 0; v < 256; v++) {
        double value = picture_value(form, channel, v);
        float single = (float)value;
        uint16_t half = hth_dtype_half(value);
        if (form->dtype == HEARTH_U8) {
            table[v][0] = (uint8_t)v;
        } else if (form->dtype == HEARTH_F16) {
            memcpy(table[v], &half, sizeof half);
        } else {
            memcpy(table[v], &single, sizeof single);
        }
    }
}

static void picture_write(const hth_picture_form *form, const uint8_t *pixels, uint8_t *out)
{
    uint8_t table[256][4];
    size_t size = hth_dtype_names_of((int)form->dtype)->bytes, c = (size_t)form->channels;
    size_t area = (size_t)form->width * (size_t)form->height;
    for (size_t k = 0; k < c; k++) {
        size_t from = form->bgr ? c - 1 - k : k;
        size_t step = form->channels_last ? c * size : size;
        uint8_t *to = out + (form->channels_last ? k : k * area) * size;
        picture_values(form, (int)k, table);
        for (size_t p = 0; p < area; p++, to += step) {
            memcpy(to, table[pixels[p * c + from]], size);
        }
    }
}

hth_err hth_picture_put(const hth_picture_form *form, const void *data, size_t bytes, void *out)
{
    hth_image image;
    uint8_t *pixels;
    HTH_TRY(picture_decode(form, data, bytes, &image, &pixels));
    hth_err err = picture_resample(form, &image, &pixels);
    if (err == HTH_OK) {
        picture_write(form, pixels, out);
    }
    hth_free(pixels);
    return err;
}

// ---- a folder

hth_err hth_picture_files(const char *folder, char ***names, size_t *n)
{
    HTH_TRY(hth_data_names(folder, names, n));
    hth_err err = *n > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "the folder '%s' is empty", folder);
    for (size_t i = 0; i < *n && err == HTH_OK; i++) {
        if (!hth_data_is_image((*names)[i])) {
            err = hth_fail(HTH_EINVAL, "'%s/%s' is no picture: neither .png, .jpg nor .jpeg",
                           folder, (*names)[i]);
        }
    }
    if (err != HTH_OK) {
        hth_data_names_free(*names, *n);
        *names = NULL;
        *n = 0;
    }
    return err;
}

void hth_picture_files_free(char **names, size_t n)
{
    hth_data_names_free(names, n);
}
