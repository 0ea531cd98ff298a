// SPDX-License-Identifier: Apache-2.0
// A folder of images with a folder per class, each with its PNG and JPEG files: x is uint8
// [N, 1 or 3, height, width], y the classes' numbers in the order of their folders' names.
//
// Opening looks at the header of every file, so that what does not fit is named before anything is
// read; an image is decoded when it is wanted, and the last one is kept.
#include "client/data/data_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/utf8.h"
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

static hth_err image_path(const hth_data *data, const char *name, char **out)
{
    *out = hth_asprintf("%s/%s", data->path, name);
    return *out != NULL ? HTH_OK : hth_no_memory("a dataset");
}

// image_load reads the first `most` bytes of a file, or all: *n.
static hth_err image_load(const hth_data *data, const char *name, size_t most, uint8_t **out,
                          size_t *n)
{
    char *path;
    hth_file f;
    *out = NULL;
    HTH_TRY(image_path(data, name, &path));
    hth_err err = hth_file_open(path, name, &f);
    hth_free(path);
    HTH_TRY(err);
    if (f.bytes > IMAGES_FILE) {
        err = hth_fail(HTH_ETOOBIG, "'%s' has %llu bytes; an image has at most %zu", name,
                       (unsigned long long)f.bytes, IMAGES_FILE);
    }
    *n = f.bytes < most ? (size_t)f.bytes : most;
    if (err == HTH_OK && (*out = hth_alloc(*n + 1)) == NULL) {
        err = hth_no_memory("a dataset");
    }
    if (err == HTH_OK) {
        err = hth_file_read(&f, name, 0, *out, *n);
    }
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
        err = hth_image_look(data, n, out);
        hth_free(data);
        if (err != HTH_ECORRUPT || n < IMAGES_FIRST) {
            break;
        }
    }
    return hth_err_prefix(err, "'%s'", name);
}

// ---- the folder

static hth_err images_add(hth_data *data, images_set *set, char *name)
{
    if (name == NULL) {
        return hth_no_memory("a dataset");
    }
    if (set->n == set->cap) {
        size_t cap = set->cap > 0 ? 2 * set->cap : 256;
        images_file *file = hth_realloc(set->file, cap, sizeof *file);
        set->file = file != NULL ? file : set->file;
        int64_t *label = file != NULL ? hth_realloc(set->label, cap, sizeof *label) : NULL;
        set->label = label != NULL ? label : set->label;
        if (label == NULL) {
            hth_free(name);
            return hth_no_memory("a dataset");
        }
        set->cap = cap;
    }
    set->file[set->n] = (images_file){.name = name};
    set->label[set->n] = data->n_classes - 1;
    return image_header(data, name, &set->file[set->n++].image);
}

static hth_err images_class(hth_data *data, images_set *set, const char *class)
{
    char **names, *folder;
    size_t n, before = set->n;
    HTH_TRY(image_path(data, class, &folder));
    hth_err err = hth_data_names(folder, &names, &n);
    hth_free(folder);
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        err =
            hth_data_is_image(names[i])
                ? images_add(data, set, hth_asprintf("%s/%s", class, names[i]))
                : hth_fail(HTH_EINVAL, "'%s/%s' is neither .png, .jpg nor .jpeg", class, names[i]);
    }
    hth_data_names_free(names, n);
    if (err == HTH_OK && set->n == before) {
        return hth_fail(HTH_EINVAL, "the folder of class '%s' has no images", class);
    }
    return err;
}

// images_class_named: a name that is not UTF-8 would be missing in the list of classes, and those
// after it would have a wrong number there.
static hth_err images_class_named(const char *class)
{
    size_t n = strlen(class), k;
    for (size_t at = 0; at < n; at += k) {
        uint32_t code;
        k = hth_utf8_next(class + at, n - at, &code);
        if (k == 0 || code == HTH_UTF8_NONE) {
            return hth_fail(HTH_EINVAL, "the name of class '%s' is not UTF-8", class);
        }
    }
    return HTH_OK;
}

// images_class_add reads the folder `name` as the next class.
static hth_err images_class_add(hth_data *data, images_set *set, const char *name)
{
    char *path;
    HTH_TRY(image_path(data, name, &path));
    bool folder = hth_data_is_folder(path);
    hth_free(path);
    if (!folder) {
        return hth_fail(HTH_EINVAL,
                        "'%s' is not a folder: a dataset of images is a folder with a folder of "
                        "PNG or JPEG files for each class",
                        name);
    }
    HTH_TRY(images_class_named(name));
    data->classes[data->n_classes] = hth_strdup(name);
    if (data->classes[data->n_classes] == NULL) {
        return hth_no_memory("a dataset");
    }
    data->n_classes++;
    return images_class(data, set, name);
}

static hth_err images_classes(hth_data *data, images_set *set)
{
    char **names;
    size_t n;
    HTH_TRY(hth_data_names(data->path, &names, &n));
    data->classes = hth_calloc(n + 1, sizeof *data->classes);
    hth_err err = data->classes != NULL ? HTH_OK : hth_no_memory("a dataset");
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        err = images_class_add(data, set, names[i]);
    }
    hth_data_names_free(names, n);
    return err;
}

// images_size settles the size of the samples.
static hth_err images_size(images_set *set, const hth_data_options *options)
{
    const hth_image *first = &set->file[0].image;
    set->width = options->width > 0 ? options->width : first->width;
    set->height = options->height > 0 ? options->height : first->height;
    set->channels = 1;
    for (size_t i = 0; i < set->n; i++) {
        const hth_image *image = &set->file[i].image;
        set->channels = image->channels > set->channels ? image->channels : set->channels;
        bool same = image->width == set->width && image->height == set->height;
        if (!same && options->width == 0) {
            return hth_fail(HTH_EINVAL,
                            "'%s' has %dx%d pixels (height x width), but '%s' has %dx%d; --size "
                            "HxW resamples all",
                            set->file[0].name, first->height, first->width, set->file[i].name,
                            image->height, image->width);
        }
        set->resampled = set->resampled || !same;
    }
    return hth_image_limit((uint64_t)set->width, (uint64_t)set->height);
}

static hth_err images_open(hth_data *data, const hth_data_options *options)
{
    images_set *s = data->of = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("a dataset");
    }
    s->kept = -1;
    HTH_TRY(images_classes(data, s));
    if (s->n == 0) {
        return hth_fail(HTH_EINVAL, "the folder is empty");
    }
    if (data->n_classes == 1) {
        return hth_fail(HTH_EINVAL,
                        "the only class is '%s': a dataset of images has a folder for each of at "
                        "least two classes",
                        data->classes[0]);
    }
    HTH_TRY(images_size(s, options));
    size_t bytes = (size_t)s->width * (size_t)s->height * (size_t)s->channels;
    s->planes = hth_alloc(bytes);
    s->pixels = hth_alloc(bytes);
    if (s->planes == NULL || s->pixels == NULL) {
        return hth_no_memory("a dataset");
    }
    const int64_t shape[] = {(int64_t)s->n, s->channels, s->height, s->width};
    HTH_TRY(hth_data_add(data, "x", HEARTH_U8, 4, shape));
    return hth_data_add(data, "y", HEARTH_I64, 1, shape);
}

// ---- samples

// images_decode fills set->pixels; `own`: memory for one of another size.
static hth_err images_decode(images_set *set, const images_file *file, const uint8_t *data,
                             size_t n)
{
    hth_image image = {file->image.width, file->image.height, set->channels};
    bool same = image.width == set->width && image.height == set->height;
    uint8_t *own =
        same ? set->pixels
             : hth_alloc((size_t)image.width * (size_t)image.height * (size_t)image.channels);
    if (own == NULL) {
        return hth_no_memory("a dataset");
    }
    hth_err err = hth_image_decode(data, n, &image, own);
    if (err == HTH_OK && !same) {
        err = hth_image_resample(own, &image, set->width, set->height, set->pixels);
    }
    if (!same) {
        hth_free(own);
    }
    return err;
}

static hth_err images_sample(hth_data *d, images_set *set, int64_t i)
{
    const images_file *f = &set->file[i];
    uint8_t *data;
    size_t n, area = (size_t)set->width * (size_t)set->height, c = (size_t)set->channels;
    set->kept = -1;
    HTH_TRY(image_load(d, f->name, IMAGES_FILE, &data, &n));
    hth_err err = images_decode(set, f, data, n);
    hth_free(data);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "'%s'", f->name);
    }
    for (size_t k = 0; k < c; k++) {
        for (size_t p = 0; p < area; p++) {
            set->planes[k * area + p] = set->pixels[p * c + k];
        }
    }
    set->kept = i;
    return HTH_OK;
}

static hth_err images_read(hth_data *data, int i, uint64_t at, void *out, size_t n)
{
    images_set *s = data->of;
    uint64_t bytes = (uint64_t)s->width * (uint64_t)s->height * (uint64_t)s->channels;
    if (i == 1) {
        memcpy(out, (const char *)s->label + at, n);
        return HTH_OK;
    }
    while (n > 0) {
        int64_t sample = (int64_t)(at / bytes);
        size_t from = (size_t)(at % bytes), k = n < bytes - from ? n : (size_t)(bytes - from);
        HTH_TRY(sample != s->kept ? images_sample(data, s, sample) : HTH_OK);
        memcpy(out, s->planes + from, k);
        out = (char *)out + k;
        at += k;
        n -= k;
    }
    return HTH_OK;
}

static void images_close(hth_data *data)
{
    images_set *s = data->of;
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
