// SPDX-License-Identifier: Apache-2.0
// A folder of images with a folder per class, each with its PNG and JPEG files: x is uint8
// [N, 1 or 3, height, width], y the classes' numbers in the order of their folders' names.
//
// Opening looks at the header of every file, so that what does not fit is named before anything is
// read; an image is decoded when it is wanted, and the last one is kept.
#include "client/data/data_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/data/image.h"

#include <string.h>
#include <strings.h>

#define IMAGES_FILE  ((size_t)256 << 20) // most bytes of a file
#define IMAGES_FIRST ((size_t)64 << 10)  // in which most headers lie

typedef struct images_file {
    char *name; // CLASS/FILE, below the folder
    hth_image image;
} images_file;

typedef struct images_set {
    images_file *file;
    int64_t *label;
    size_t n, cap;
    int width, height, channels; // of every sample
    bool resampled;
    uint8_t *pixels; // (height, width, channels) of the image `kept`
    uint8_t *planes; // (channels, height, width) of it
    int64_t kept;    // -1: none
} images_set;

bool hth_data_is_image(const char *name)
{
    static const char *const tails[] = {".png", ".jpg", ".jpeg"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t k = strlen(tails[i]);
        if (n > k && strcasecmp(name + n - k, tails[i]) == 0) {
            return true;
        }
    }
    return false;
}

// ---- one file

static hth_err image_look(const void *data, size_t n, hth_image *out)
{
    return hth_png_is(data, n)    ? hth_png_look(data, n, out)
           : hth_jpeg_is(data, n) ? hth_jpeg_look(data, n, out)
                                  : hth_fail(HTH_EINVAL, "it is neither PNG nor JPEG");
}

static hth_err image_path(const hth_data *d, const char *name, char **out)
{
    *out = hth_asprintf("%s/%s", d->path, name);
    return *out != NULL ? HTH_OK : hth_data_no_memory();
}

// image_load reads the first `most` bytes of a file, or all: *n.
static hth_err image_load(const hth_data *d, const char *name, size_t most, uint8_t **out,
                          size_t *n)
{
    char *path;
    hth_file f;
    *out = NULL;
    HTH_TRY(image_path(d, name, &path));
    hth_err err = hth_file_open(path, name, &f);
    hth_free(path);
    HTH_TRY(err);
    if (f.bytes > IMAGES_FILE) {
        err = hth_fail(HTH_ETOOBIG, "'%s' has %llu bytes; an image has at most %zu", name,
                       (unsigned long long)f.bytes, IMAGES_FILE);
    }
    *n = f.bytes < most ? (size_t)f.bytes : most;
    if (err == HTH_OK && (*out = hth_alloc(*n + 1)) == NULL) {
        err = hth_data_no_memory();
    }
    err = err == HTH_OK ? hth_file_read(&f, name, 0, *out, *n) : err;
    hth_file_close(&f);
    if (err != HTH_OK) {
        hth_free(*out);
        *out = NULL;
    }
    return err;
}

// image_header looks at the file's beginning, and at all of it where that is too little.
static hth_err image_header(const hth_data *d, const char *name, hth_image *out)
{
    hth_err err = HTH_OK;
    for (int whole = 0; whole < 2; whole++) {
        uint8_t *data;
        size_t n;
        HTH_TRY(image_load(d, name, whole ? IMAGES_FILE : IMAGES_FIRST, &data, &n));
        err = image_look(data, n, out);
        hth_free(data);
        if (err != HTH_ECORRUPT || n < IMAGES_FIRST) {
            break;
        }
    }
    return err == HTH_OK ? HTH_OK : hth_err_prefix(err, "'%s'", name);
}

// ---- the folder

static hth_err images_add(hth_data *d, images_set *s, char *name)
{
    if (name == NULL) {
        return hth_data_no_memory();
    }
    if (s->n == s->cap) {
        size_t cap = s->cap > 0 ? 2 * s->cap : 256;
        images_file *file = hth_realloc(s->file, cap, sizeof *file);
        s->file = file != NULL ? file : s->file;
        int64_t *label = file != NULL ? hth_realloc(s->label, cap, sizeof *label) : NULL;
        s->label = label != NULL ? label : s->label;
        if (label == NULL) {
            hth_free(name);
            return hth_data_no_memory();
        }
        s->cap = cap;
    }
    s->file[s->n] = (images_file){.name = name};
    s->label[s->n] = d->n_classes - 1;
    return image_header(d, name, &s->file[s->n++].image);
}

static hth_err images_class(hth_data *d, images_set *s, const char *class)
{
    char **names, *folder;
    size_t n, before = s->n;
    HTH_TRY(image_path(d, class, &folder));
    hth_err err = hth_data_names(folder, &names, &n);
    hth_free(folder);
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        err =
            hth_data_is_image(names[i])
                ? images_add(d, s, hth_asprintf("%s/%s", class, names[i]))
                : hth_fail(HTH_EINVAL, "'%s/%s' is neither .png, .jpg nor .jpeg", class, names[i]);
    }
    hth_data_names_free(names, n);
    return err != HTH_OK || s->n > before
               ? err
               : hth_fail(HTH_EINVAL, "the folder of class '%s' has no images", class);
}

static hth_err images_classes(hth_data *d, images_set *s)
{
    char **names;
    size_t n;
    HTH_TRY(hth_data_names(d->path, &names, &n));
    d->classes = hth_calloc(n + 1, sizeof *d->classes);
    hth_err err = d->classes != NULL ? HTH_OK : hth_data_no_memory();
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        char *path;
        err = image_path(d, names[i], &path);
        if (err == HTH_OK && !hth_data_is_folder(path)) {
            err = hth_fail(HTH_EINVAL,
                           "'%s' is not a folder: a dataset of images is a folder with a folder of "
                           "PNG or JPEG files for each class",
                           names[i]);
        }
        hth_free(path);
        if (err == HTH_OK) {
            d->classes[d->n_classes] = hth_strdup(names[i]);
            err = d->classes[d->n_classes] != NULL ? HTH_OK : hth_data_no_memory();
            d->n_classes += err == HTH_OK;
        }
        err = err == HTH_OK ? images_class(d, s, names[i]) : err;
    }
    hth_data_names_free(names, n);
    return err;
}

// images_size settles the size of the samples.
static hth_err images_size(images_set *s, const hth_data_options *o)
{
    const hth_image *first = &s->file[0].image;
    s->width = o->width > 0 ? o->width : first->width;
    s->height = o->height > 0 ? o->height : first->height;
    s->channels = 1;
    for (size_t i = 0; i < s->n; i++) {
        const hth_image *image = &s->file[i].image;
        s->channels = image->channels > s->channels ? image->channels : s->channels;
        bool same = image->width == s->width && image->height == s->height;
        if (!same && o->width == 0) {
            return hth_fail(HTH_EINVAL,
                            "'%s' has %dx%d pixels (height x width), but '%s' has %dx%d; --size "
                            "HxW resamples all",
                            s->file[0].name, first->height, first->width, s->file[i].name,
                            image->height, image->width);
        }
        s->resampled = s->resampled || !same;
    }
    return hth_image_limit((uint64_t)s->width, (uint64_t)s->height);
}

static hth_err images_open(hth_data *d, const hth_data_options *options)
{
    images_set *s = d->of = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_data_no_memory();
    }
    s->kept = -1;
    HTH_TRY(images_classes(d, s));
    if (s->n == 0) {
        return hth_fail(HTH_EINVAL, "the folder is empty");
    }
    HTH_TRY(images_size(s, options));
    size_t bytes = (size_t)s->width * (size_t)s->height * (size_t)s->channels;
    s->planes = hth_alloc(bytes);
    s->pixels = hth_alloc(bytes);
    if (s->planes == NULL || s->pixels == NULL) {
        return hth_data_no_memory();
    }
    const int64_t shape[] = {(int64_t)s->n, s->channels, s->height, s->width};
    HTH_TRY(hth_data_add(d, "x", HEARTH_U8, 4, shape));
    return hth_data_add(d, "y", HEARTH_I64, 1, shape);
}

// ---- samples

// images_decode fills s->pixels; `own`: memory for one of another size.
static hth_err images_decode(images_set *s, const images_file *f, const uint8_t *data, size_t n)
{
    hth_image image = {f->image.width, f->image.height, s->channels};
    bool same = image.width == s->width && image.height == s->height;
    uint8_t *own =
        same ? s->pixels
             : hth_alloc((size_t)image.width * (size_t)image.height * (size_t)image.channels);
    if (own == NULL) {
        return hth_data_no_memory();
    }
    hth_err err = hth_png_is(data, n)    ? hth_png_decode(data, n, &image, own)
                  : hth_jpeg_is(data, n) ? hth_jpeg_decode(data, n, &image, own)
                                         : hth_fail(HTH_EIO, "it changed while it was read");
    if (err == HTH_OK && !same) {
        err = hth_image_resample(own, &image, s->width, s->height, s->pixels);
    }
    if (!same) {
        hth_free(own);
    }
    return err;
}

static hth_err images_sample(hth_data *d, images_set *s, int64_t i)
{
    const images_file *f = &s->file[i];
    uint8_t *data;
    size_t n, area = (size_t)s->width * (size_t)s->height, c = (size_t)s->channels;
    s->kept = -1;
    HTH_TRY(image_load(d, f->name, IMAGES_FILE, &data, &n));
    hth_err err = images_decode(s, f, data, n);
    hth_free(data);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "'%s'", f->name);
    }
    for (size_t k = 0; k < c; k++) {
        for (size_t p = 0; p < area; p++) {
            s->planes[k * area + p] = s->pixels[p * c + k];
        }
    }
    s->kept = i;
    return HTH_OK;
}

static hth_err images_read(hth_data *d, int i, uint64_t at, void *out, size_t n)
{
    images_set *s = d->of;
    uint64_t bytes = (uint64_t)s->width * (uint64_t)s->height * (uint64_t)s->channels;
    if (i == 1) {
        memcpy(out, (const char *)s->label + at, n);
        return HTH_OK;
    }
    while (n > 0) {
        int64_t sample = (int64_t)(at / bytes);
        size_t from = (size_t)(at % bytes), k = n < bytes - from ? n : (size_t)(bytes - from);
        HTH_TRY(sample != s->kept ? images_sample(d, s, sample) : HTH_OK);
        memcpy(out, s->planes + from, k);
        out = (char *)out + k;
        at += k;
        n -= k;
    }
    return HTH_OK;
}

static void images_close(hth_data *d)
{
    images_set *s = d->of;
    for (size_t i = 0; s != NULL && i < s->n; i++) {
        hth_free(s->file[i].name);
    }
    if (s != NULL) {
        hth_free(s->file);
        hth_free(s->label);
        hth_free(s->pixels);
        hth_free(s->planes);
    }
    hth_free(s);
}

const hth_data_reader hth_data_images = {"images", images_open, images_read, images_close};
