// SPDX-License-Identifier: Apache-2.0
// libjpeg-turbo reports errors by longjmp, as libpng does. What it would only warn of and fill up
// with gray, a file that is cut off, is an error here. A progressive file may have so many scans
// that a few bytes take minutes: their number is limited.
#include "client/data/image.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#define JPEG_SCANS 500

typedef struct jpeg_file {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    char why[JMSG_LENGTH_MAX];
    int code;
} jpeg_file;

bool hth_jpeg_is(const void *data, size_t bytes)
{
    return bytes >= 3 && memcmp(data, "\xff\xd8\xff", 3) == 0;
}

static void jpeg_fails(j_common_ptr info)
{
    jpeg_file *f = info->client_data;
    info->err->format_message(info, f->why);
    f->code = info->err->msg_code;
    longjmp(f->back, 1);
}

// Of warnings those count that mean missing data.
static void jpeg_warns(j_common_ptr info, int level)
{
    int code = info->err->msg_code;
    if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) {
        jpeg_fails(info);
    }
}

static void jpeg_scans(j_common_ptr info)
{
    jpeg_file *f = info->client_data;
    if (f->info.input_scan_number > JPEG_SCANS) {
        strcpy(f->why, "it has too many scans");
        longjmp(f->back, 1);
    }
}

static hth_err jpeg_damaged(const jpeg_file *file)
{
    return file->code == JERR_OUT_OF_MEMORY
               ? hth_no_memory("an image")
               : hth_fail(HTH_ECORRUPT, "a damaged JPEG: %s", file->why);
}

// jpeg_begin prepares *file; before it only file->info.err may be touched.
static void jpeg_begin(jpeg_file *file)
{
    memset(file, 0, sizeof *file);
    file->info.err = jpeg_std_error(&file->errors);
    file->errors.error_exit = jpeg_fails;
    file->errors.emit_message = jpeg_warns;
    file->progress.progress_monitor = jpeg_scans;
    file->info.client_data = file;
}

static int jpeg_header(jpeg_file *file, const void *data, size_t bytes)
{
    if (setjmp(file->back) != 0) {
        return -1;
    }
    jpeg_create_decompress(&file->info);
    file->info.client_data = file;
    file->info.progress = &file->progress;
    jpeg_mem_src(&file->info, data, (unsigned long)bytes);
    jpeg_read_header(&file->info, TRUE);
    return 0;
}

static hth_err jpeg_looked(jpeg_file *file, hth_image *out)
{
    J_COLOR_SPACE space = file->info.jpeg_color_space;
    if (space != JCS_GRAYSCALE && space != JCS_RGB && space != JCS_YCbCr) {
        return hth_fail(HTH_ENOTSUP, "a JPEG with %d colours that are neither gray nor RGB",
                        file->info.num_components);
    }
    HTH_TRY(hth_image_limit(file->info.image_width, file->info.image_height));
    *out = (hth_image){(int)file->info.image_width, (int)file->info.image_height,
                       space == JCS_GRAYSCALE ? 1 : 3};
    return HTH_OK;
}

hth_err hth_jpeg_look(const void *data, size_t bytes, hth_image *out)
{
    jpeg_file f;
    jpeg_begin(&f);
    hth_err err = jpeg_header(&f, data, bytes) == 0 ? jpeg_looked(&f, out) : jpeg_damaged(&f);
    jpeg_destroy_decompress(&f.info);
    return err;
}

static int jpeg_pixels(jpeg_file *file, const hth_image *image, uint8_t *out)
{
    if (setjmp(file->back) != 0) {
        return -1;
    }
    file->info.out_color_space = image->channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_start_decompress(&file->info);
    while (file->info.output_scanline < file->info.output_height) {
        JSAMPROW row = out + (size_t)file->info.output_scanline * (size_t)image->width *
                                 (size_t)image->channels;
        jpeg_read_scanlines(&file->info, &row, 1);
    }
    jpeg_finish_decompress(&file->info);
    return 0;
}

hth_err hth_jpeg_decode(const void *data, size_t bytes, const hth_image *image, uint8_t *out)
{
    jpeg_file f;
    hth_image now = {0, 0, 0};
    jpeg_begin(&f);
    hth_err err = jpeg_header(&f, data, bytes) == 0 ? jpeg_looked(&f, &now) : jpeg_damaged(&f);
    if (err == HTH_OK && (now.width != image->width || now.height != image->height ||
                          now.channels > image->channels)) {
        err = hth_fail(HTH_EIO, "the image changed while it was read");
    }
    if (err == HTH_OK && jpeg_pixels(&f, image, out) != 0) {
        err = jpeg_damaged(&f);
    }
    jpeg_destroy_decompress(&f.info);
    return err;
}
