// SPDX-License-Identifier: Apache-2.0
// libpng reports errors by longjmp: what must survive one is in a structure, and nothing is held in
// locals. Values are those of the file: neither gamma nor profiles are applied.
#include "client/data/image.h"

#include "base/alloc.h"

#include <png.h>

#include <string.h>

typedef struct png_file {
    const uint8_t *data;
    size_t bytes, at;
    png_structp png;
    png_infop info;
    png_bytep *rows;
    char why[120];
} png_file;

bool hth_png_is(const void *data, size_t bytes)
{
    return bytes >= 8 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0;
}

static void png_feed(png_structp png, png_bytep out, size_t n)
{
    png_file *f = png_get_io_ptr(png);
    if (n > f->bytes - f->at) {
        png_error(png, "it is cut off");
    }
    memcpy(out, f->data + f->at, n);
    f->at += n;
}

static void png_fails(png_structp png, png_const_charp why)
{
    png_file *f = png_get_error_ptr(png);
    strncpy(f->why, why, sizeof f->why - 1);
    png_longjmp(png, 1);
}

static void png_warns(png_structp png, png_const_charp why)
{
}

static hth_err png_begin(png_file *file, const void *data, size_t bytes)
{
    memset(file, 0, sizeof *file);
    file->data = data;
    file->bytes = bytes;
    file->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, file, png_fails, png_warns);
    file->info = file->png != NULL ? png_create_info_struct(file->png) : NULL;
    if (file->info == NULL) {
        png_destroy_read_struct(&file->png, NULL, NULL);
        return hth_no_memory("an image");
    }
    png_set_read_fn(file->png, file, png_feed);
    png_set_user_limits(file->png, HTH_IMAGE_SIDE, HTH_IMAGE_SIDE);
    png_set_chunk_malloc_max(file->png, 8u << 20);
    png_set_chunk_cache_max(file->png, 128);
    return HTH_OK;
}

static void png_end(png_file *file)
{
    png_destroy_read_struct(&file->png, &file->info, NULL);
    hth_free(file->rows);
}

static hth_err png_damaged(const png_file *file)
{
    return hth_fail(HTH_ECORRUPT, "a damaged PNG: %s", file->why);
}

static int png_header(png_file *file, hth_image *out)
{
    if (setjmp(png_jmpbuf(file->png)) != 0) {
        return -1;
    }
    png_read_info(file->png, file->info);
    out->width = (int)png_get_image_width(file->png, file->info);
    out->height = (int)png_get_image_height(file->png, file->info);
    out->channels = (png_get_color_type(file->png, file->info) & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
    return 0;
}

hth_err hth_png_look(const void *data, size_t bytes, hth_image *out)
{
    png_file f;
    HTH_TRY(png_begin(&f, data, bytes));
    hth_err err = png_header(&f, out) == 0
                      ? hth_image_limit((uint64_t)out->width, (uint64_t)out->height)
                      : png_damaged(&f);
    png_end(&f);
    return err;
}

static int png_pixels(png_file *file, const hth_image *image)
{
    if (setjmp(png_jmpbuf(file->png)) != 0) {
        return -1;
    }
    png_set_expand(file->png); // palettes, less than 8 bits
    png_set_strip_16(file->png);
    png_set_strip_alpha(file->png);
    if (image->channels == 3) {
        png_set_gray_to_rgb(file->png);
    }
    png_set_interlace_handling(file->png);
    png_read_update_info(file->png, file->info);
    if (png_get_rowbytes(file->png, file->info) != (size_t)image->width * (size_t)image->channels) {
        png_error(file->png, "its rows have another length than its header says");
    }
    png_read_image(file->png, file->rows);
    png_read_end(file->png, NULL);
    return 0;
}

static hth_err png_decode(png_file *file, const hth_image *image, uint8_t *out)
{
    hth_image now = {0, 0, 0};
    if (png_header(file, &now) != 0) {
        return png_damaged(file);
    }
    if (now.width != image->width || now.height != image->height ||
        now.channels > image->channels) {
        return hth_fail(HTH_EIO, "the image changed while it was read");
    }
    file->rows = hth_calloc((size_t)now.height, sizeof *file->rows);
    if (file->rows == NULL) {
        return hth_no_memory("an image");
    }
    for (int y = 0; y < now.height; y++) {
        file->rows[y] = out + (size_t)y * (size_t)now.width * (size_t)image->channels;
    }
    return png_pixels(file, image) == 0 ? HTH_OK : png_damaged(file);
}

hth_err hth_png_decode(const void *data, size_t bytes, const hth_image *image, uint8_t *out)
{
    png_file f;
    HTH_TRY(png_begin(&f, data, bytes));
    f.rows = NULL;
    hth_err err = png_decode(&f, image, out);
    png_end(&f);
    return err;
}
