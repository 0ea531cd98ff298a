// SPDX-License-Identifier: Apache-2.0
// client/data/picture.h - a PNG or JPEG as a sample of a model's input.
//
// A picture becomes gray or RGB as the input has 1 or 3 channels (gray from RGB as Pillow's
// convert("L") computes it), then has the input's height and width (hth_image_resample: its sides
// are not kept in proportion, nothing is cropped), then each of its 256 values v in channel c is
// (v * scale - mean[c]) / std[c], computed in double precision and rounded once.
#ifndef HTH_CLIENT_DATA_PICTURE_H
#define HTH_CLIENT_DATA_PICTURE_H

#include "client/hearth.h"

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_PICTURE_CHANNELS 3
#define HTH_PICTURE_FILE     ((size_t)256 << 20) // most bytes of a file

typedef struct hth_picture_form {
    hearth_dtype dtype; // HEARTH_F32, HEARTH_F16 or HEARTH_U8
    bool batched;       // the input's first dimension counts pictures
    int64_t batch;      // so many, -1: any number
    bool channels_last; // (height, width, channels), else (channels, height, width)
    int channels;       // 1 or 3
    int height, width;  // 0: the input leaves them open
    bool bgr;           // channels in this order, instead of red, green, blue
    double scale;
    double mean[HTH_PICTURE_CHANNELS], std[HTH_PICTURE_CHANNELS]; // in the input's order
} hth_picture_form;

// hth_picture_form_of tells from an input's type and shape (open dimensions are -1) how pictures
// are to lie in it; values stay as they are (scale 1, mean 0, std 1). A shape of 4 dimensions is a
// batch, one of 3 a single picture. Channels come last where the last dimension is 1 or 3 and the
// one before height and width is not. HTH_EINVAL, with a sentence that goes on after the input's
// name: pictures do not fit it.
hth_err hth_picture_form_of(int dtype, int rank, const int64_t *shape, hth_picture_form *out);
// hth_picture_check stores what one sample takes, when height and width are settled. HTH_ETOOBIG:
// they are more than hth_image_limit allows; HTH_EINVAL: scale, mean and std make values that the
// type does not hold.
hth_err hth_picture_check(const hth_picture_form *form, size_t *bytes);
// hth_picture_look stores height and width of an encoded picture. Errors are those of
// hth_image_look, here and below; no sentence names the file.
hth_err hth_picture_look(const void *data, size_t bytes, int *height, int *width);
// hth_picture_put writes the sample that an encoded picture makes to `out`, which has
// what hth_picture_check said. HTH_ENOMEM.
hth_err hth_picture_put(const hth_picture_form *form, const void *data, size_t bytes, void *out);

// hth_picture_files lists the pictures in a folder: names below it, in the order of their bytes,
// without those that begin with a dot. The caller frees *names[0 .. *n) and *names
// (hth_picture_files_free). HTH_EINVAL: there are none, or a file is not called .png, .jpg or
// .jpeg; others by the system's reason.
hth_err hth_picture_files(const char *folder, char ***names, size_t *n);
void hth_picture_files_free(char **names, size_t n);

#endif
