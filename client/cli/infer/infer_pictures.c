// SPDX-License-Identifier: Apache-2.0
#include "client/cli/infer/infer_pictures.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text/numbers.h"
#include "client/data/data.h"
#include "client/dtype.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#define FORM_RANK 8
#define FORM_FROM 64 // what says something, in sentences

// ---- texts

// form_text is what says something: the option, or hearth's own key of the metadata. *from names it
// in sentences.
static const char *form_text(const json_t *options, const json_t *model, const char *name,
                             char from[FORM_FROM])
{
    const char *option = json_string_value(json_object_get(options, name));
    char key[32];
    if (option != NULL) {
        snprintf(from, FORM_FROM, "--%s", name);
        return option;
    }
    snprintf(key, sizeof key, "hearth.%s", name);
    snprintf(from, FORM_FROM, "the model's %s", key);
    return hth_infer_metadata(model, key);
}

// form_numbers reads up to `most` numbers.
static hth_err form_numbers(const char *from, const char *text, int most, double *list, int *n)
{
    *n = hth_numbers_of(text, most, list);
    if (*n < 0 || *n > most) {
        return hth_fail(HTH_EINVAL, "%s '%.60s' is not a list of up to %d numbers", from, text,
                        most);
    }
    return *n > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "%s has no values", from);
}

// form_scale reads a number other than 0.
static hth_err form_scale(const char *from, const char *text, double *out)
{
    return hth_number_of(text, out) && isnormal(*out)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "%s '%.60s' is no number like 1/255 or 0.5", from, text);
}

// form_channels reads a value for each channel, or one for all.
static hth_err form_channels(const char *from, const char *text, int channels, double *out)
{
    double list[HTH_PICTURE_CHANNELS];
    int n;
    HTH_TRY(form_numbers(from, text, HTH_PICTURE_CHANNELS, list, &n));
    if (n != 1 && n != channels) {
        return hth_fail(HTH_EINVAL, "%s has %d values, but the input has %d channel%s", from, n,
                        channels, channels == 1 ? "" : "s");
    }
    for (int k = 0; k < channels; k++) {
        out[k] = list[n == 1 ? 0 : k];
    }
    return HTH_OK;
}

// ---- values

// Bytes in a range of values: v * scale - mean.
static const struct form_range {
    const char *name;
    double scale, mean;
} form_ranges[] = {{"NominalRange_0_255", 1, 0},
                   {"Normalized_0_1", 1 / 255.0, 0},
                   {"Normalized_1_1", 2 / 255.0, 1},
                   {"NominalRange_16_235", 219 / 255.0, -16}};

static hth_err form_range(const json_t *model, const struct form_range **out)
{
    const char *text = hth_infer_metadata(model, "Image.NominalPixelRange");
    *out = &form_ranges[1];
    for (size_t i = 0; i < sizeof form_ranges / sizeof *form_ranges && text != NULL; i++) {
        if (strcasecmp(text, form_ranges[i].name) == 0) {
            *out = &form_ranges[i];
            return HTH_OK;
        }
    }
    return text == NULL ? HTH_OK
                        : hth_fail(HTH_EINVAL,
                                   "the model's Image.NominalPixelRange '%.60s' is unknown; "
                                   "--scale, --mean and --std say what its values are",
                                   text);
}

// form_values settles scale, mean and std. Where options or hearth's own keys say scale and mean,
// the model's range of values counts for nothing, and need not be known.
static hth_err form_values(const json_t *options, const json_t *model, hth_picture_form *form)
{
    const struct form_range *range;
    char from[FORM_FROM];
    const char *scale = form_text(options, model, "scale", from);
    const char *mean = form_text(options, model, "mean", from);
    bool all = scale != NULL && mean != NULL;
    hth_err err = form_range(model, &range);
    HTH_TRY(all ? HTH_OK : err);
    form->scale = range->scale;
    for (int k = 0; k < form->channels; k++) {
        form->mean[k] = range->mean;
    }
    if (scale != NULL) {
        (void)form_text(options, model, "scale", from);
        HTH_TRY(form_scale(from, scale, &form->scale));
    }
    if (mean != NULL) {
        (void)form_text(options, model, "mean", from);
        HTH_TRY(form_channels(from, mean, form->channels, form->mean));
    }
    const char *std = form_text(options, model, "std", from);
    if (std != NULL) {
        HTH_TRY(form_channels(from, std, form->channels, form->std));
    }
    for (int k = 0; k < form->channels; k++) {
        if (form->std[k] == 0) {
            return hth_fail(HTH_EINVAL, "%s has a 0, which is no deviation", from);
        }
    }
    return HTH_OK;
}

// form_bytes: an input of bytes takes the pixels.
static hth_err form_bytes(const json_t *options)
{
    static const char *const names[] = {"scale", "mean", "std"};
    for (int i = 0; i < 3; i++) {
        if (json_object_get(options, names[i]) != NULL) {
            return hth_fail(HTH_EINVAL, "it takes the pixels as they are; --%s is for floats",
                            names[i]);
        }
    }
    return HTH_OK;
}

static hth_err form_colours(const json_t *options, const json_t *model, hth_picture_form *form)
{
    const char *option = json_string_value(json_object_get(options, "bgr"));
    const char *format = hth_infer_metadata(model, "Image.BitmapPixelFormat");
    const char *gamma = hth_infer_metadata(model, "Image.ColorSpaceGamma");
    if (option != NULL && strcmp(option, "on") != 0 && strcmp(option, "off") != 0) {
        return hth_fail(HTH_EINVAL, "--bgr is on or off, not '%.40s'", option);
    }
    if (gamma != NULL && strcasecmp(gamma, "Linear") == 0) {
        return hth_fail(HTH_ENOTSUP,
                        "the model wants linear colours (Image.ColorSpaceGamma), and pictures "
                        "are read as sRGB: give a .npy");
    }
    bool bgr = option != NULL ? strcmp(option, "on") == 0
                              : format != NULL && strncasecmp(format, "bgr", 3) == 0;
    form->bgr = bgr && form->channels == HTH_PICTURE_CHANNELS;
    return HTH_OK;
}

// ---- size

// form_asked reads the size that an option or the metadata names; *out 0x0: none does.
static hth_err form_asked(const json_t *options, const json_t *model, hth_data_options *out)
{
    double list[2];
    int n = 0;
    char from[FORM_FROM];
    const char *text = form_text(options, model, "size", from);
    const char *imgsz = hth_infer_metadata(model, "imgsz");
    *out = (hth_data_options){.label = NULL};
    if (text != NULL) {
        return hth_err_prefix(hth_data_size(text, out), "%s", from);
    }
    // What is no size there is another program's.
    if (imgsz != NULL && form_numbers("imgsz", imgsz, 2, list, &n) == HTH_OK && list[0] >= 1 &&
        list[0] <= 99999 && list[n - 1] >= 1 && list[n - 1] <= 99999) {
        out->height = (int)list[0];
        out->width = (int)list[n - 1];
    }
    return HTH_OK;
}

static hth_err form_size(const json_t *options, const json_t *model, hth_picture_form *form)
{
    hth_data_options asked;
    HTH_TRY(form_asked(options, model, &asked));
    bool differs = (form->height > 0 && form->height != asked.height) ||
                   (form->width > 0 && form->width != asked.width);
    if (differs && json_object_get(options, "size") != NULL) {
        return hth_fail(HTH_EINVAL, "its pictures cannot have %dx%d pixels (--size)", asked.height,
                        asked.width);
    }
    form->height = form->height > 0 ? form->height : asked.height;
    form->width = form->width > 0 ? form->width : asked.width;
    return HTH_OK;
}

hth_err hth_infer_form(const json_t *options, const json_t *model, const json_t *input,
                       hth_picture_form *out)
{
    int64_t shape[FORM_RANK];
    const char *type = json_string_value(json_object_get(input, "datatype"));
    const json_t *list = json_object_get(input, "shape");
    const hth_dtype_names *dtype = type != NULL ? hth_dtype_of_name(type) : NULL;
    int rank = json_array_size(list) <= FORM_RANK ? (int)json_array_size(list) : 0;
    for (int i = 0; i < rank; i++) {
        shape[i] = json_integer_value(json_array_get(list, (size_t)i));
    }
    HTH_TRY(hth_picture_form_of(dtype != NULL ? (int)dtype->dtype : -1, rank, shape, out));
    HTH_TRY(form_size(options, model, out));
    HTH_TRY(form_colours(options, model, out));
    return out->dtype == HEARTH_U8 ? form_bytes(options) : form_values(options, model, out);
}

// ---- the pictures of one input

typedef struct input_pictures {
    hth_infer_inputs *in;
    int input;
    hth_picture_form form;
    const char *first; // the picture that decides on the sides that are open
    bool high, wide;   // height and width are open: all pictures must have the first one's
    size_t bytes;      // of a sample
    int n;
} input_pictures;

// pictures_load: *own is what is to be freed.
static hth_err pictures_load(const hth_infer_picture *picture, void **own, const void **data,
                             size_t *bytes)
{
    *own = NULL;
    *data = picture->data;
    *bytes = picture->bytes;
    if (picture->data == NULL) {
        HTH_TRY(hth_file_load(picture->shown, HTH_PICTURE_FILE, own, bytes));
        *data = *own;
    }
    return HTH_OK;
}

// pictures_begin settles what is left open by the first picture, and makes room for all.
static hth_err pictures_begin(input_pictures *p, const char *shown, int height, int width)
{
    hth_picture_form *f = &p->form;
    uint64_t all;
    p->first = shown;
    p->high = f->height == 0;
    p->wide = f->width == 0;
    f->height = p->high ? height : f->height;
    f->width = p->wide ? width : f->width;
    HTH_TRY(hth_picture_check(f, &p->bytes));
    hearth_tensor *t = &p->in->t[p->input];
    t->data = hth_mul_bytes(p->bytes, (uint64_t)p->n, &all) == 0 && all < SIZE_MAX
                  ? hth_alloc_aligned((size_t)all, 64)
                  : NULL;
    if (t->data == NULL) {
        return hth_no_memory("%d pictures of %dx%d pixels", p->n, f->height, f->width);
    }
    t->bytes = (size_t)all;
    t->dtype = f->dtype;
    int64_t c = f->channels, h = f->height, w = f->width;
    const int64_t first[] = {p->n, c, h, w}, last[] = {p->n, h, w, c};
    const int64_t *shape = f->channels_last ? last : first;
    t->rank = f->batched ? 4 : 3;
    memcpy(t->shape, shape + 4 - t->rank, (size_t)t->rank * sizeof *t->shape);
    return HTH_OK;
}

static hth_err pictures_side(const input_pictures *p, const char *side, int has, int wanted)
{
    return hth_fail(HTH_EINVAL,
                    "it has %d pixels in %s, but '%s' decides for %d; --size HxW resamples all",
                    has, side, p->first, wanted);
}

// pictures_fit compares the sides that are open; the others are resampled.
static hth_err pictures_fit(const input_pictures *p, int height, int width)
{
    const hth_picture_form *f = &p->form;
    bool higher = p->high && height != f->height, wider = p->wide && width != f->width;
    if (p->high && p->wide && (higher || wider)) {
        return hth_fail(HTH_EINVAL,
                        "it has %dx%d pixels (height x width), but '%s' decides for %dx%d; --size "
                        "HxW resamples all",
                        height, width, p->first, f->height, f->width);
    }
    HTH_TRY(higher ? pictures_side(p, "height", height, f->height) : HTH_OK);
    return wider ? pictures_side(p, "width", width, f->width) : HTH_OK;
}

static hth_err pictures_one(input_pictures *p, const char *shown, const void *data, size_t bytes,
                            int at)
{
    int height, width;
    HTH_TRY(hth_picture_look(data, bytes, &height, &width));
    HTH_TRY(at == 0 ? pictures_begin(p, shown, height, width) : HTH_OK);
    HTH_TRY(pictures_fit(p, height, width));
    return hth_picture_put(&p->form, data, bytes,
                           (uint8_t *)p->in->t[p->input].data + (size_t)at * p->bytes);
}

static hth_err pictures_all(input_pictures *p)
{
    int at = 0;
    for (int i = 0; i < p->in->n_pictures; i++) {
        const hth_infer_picture *picture = &p->in->picture[i];
        void *own;
        const void *data;
        size_t bytes;
        if (picture->input != p->input) {
            continue;
        }
        HTH_TRY(pictures_load(picture, &own, &data, &bytes));
        hth_err err = pictures_one(p, picture->shown, data, bytes, at++);
        hth_free(own);
        if (err != HTH_OK) {
            return err == HTH_ENOMEM ? err : hth_err_prefix(err, "'%s'", picture->shown);
        }
    }
    return HTH_OK;
}

// pictures_count: a batch of a size that the model has fixed is of that size.
static hth_err pictures_count(input_pictures *p)
{
    for (int i = 0; i < p->in->n_pictures; i++) {
        p->n += p->in->picture[i].input == p->input;
    }
    const char *plural = p->form.batch == 1 ? "" : "s";
    return p->form.batch < 0 || p->form.batch == p->n
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "it takes %lld picture%s at a time, not %d",
                          (long long)p->form.batch, plural, p->n);
}

static int pictures_input(const hth_cli *cli, const json_t *model, hth_infer_inputs *in, int i)
{
    input_pictures p = {.in = in, .input = i};
    char signature[200];
    const json_t *input = hth_infer_find(model, in->name[i]);
    if (input == NULL) {
        return hth_infer_unknown(model, in->name[i]);
    }
    hth_err err = hth_infer_form(cli->options, model, input, &p.form);
    if (err == HTH_OK) {
        err = pictures_count(&p);
    }
    if (err != HTH_OK) {
        hth_infer_signature(input, signature, sizeof signature);
        hth_err_prefix(err, "input %s", signature);
        return hth_cli_error();
    }
    return pictures_all(&p) == HTH_OK ? HTH_CLI_OK : hth_cli_error();
}

int hth_infer_pictures(const hth_cli *cli, const json_t *model, hth_infer_inputs *in)
{
    for (int i = 0; i < in->n; i++) {
        int rv = in->pictures[i] ? pictures_input(cli, model, in, i) : HTH_CLI_OK;
        if (rv != HTH_CLI_OK) {
            return rv;
        }
    }
    return HTH_CLI_OK;
}
