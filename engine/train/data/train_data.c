// SPDX-License-Identifier: Apache-2.0
#include "engine/train/data/train_data.h"

#include "base/alloc.h"
#include "base/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_DATA_HELD (-1) // the "epoch" whose order says what is held out
#define DATA_LABEL_ROWS 512  // samples whose labels are looked at at a time

void hth_train_data_close(hth_train_data *data)
{
    for (int i = 0; i < data->n_inputs; i++) {
        hth_free(data->input[i].data);
    }
    hth_free(data->target.data);
    hth_free(data->rows);
    hth_free(data->used);
    hth_dataset_close(&data->set);
}

static bool data_is_input(const hth_train_data *data, const hth_dataset_tensor *tensor)
{
    for (int i = 0; i < data->n_inputs; i++) {
        if (data->source[i] == tensor) {
            return true;
        }
    }
    return false;
}

// The target is "y" if that is no input, else the only tensor that is left.
static hth_err data_target(hth_train_data *data)
{
    int left = 0;
    const hth_dataset_tensor *last = NULL, *y = hth_dataset_find(&data->set, "y");
    for (int k = 0; k < data->set.n_tensors; k++) {
        if (!data_is_input(data, &data->set.tensors[k])) {
            left++;
            last = &data->set.tensors[k];
        }
    }
    data->target_source = left == 1 ? last : NULL;
    if (y != NULL && !data_is_input(data, y)) {
        data->target_source = y;
    }
    return data->target_source != NULL
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the dataset has no tensor 'y', the targets");
}

static hth_err data_buffer(const hth_dataset_tensor *source, int64_t samples, int64_t batch,
                           hth_tensor *out)
{
    *out = source->t;
    out->bytes = source->t.bytes / (size_t)samples * (size_t)batch;
    out->shape.dim[0] = batch;
    out->data = hth_alloc_aligned(out->bytes, HTH_DEVICE_ALIGN);
    return out->data != NULL ? HTH_OK : hth_no_memory("a batch");
}

// Chooses the samples: the first of an order of their own are held out.
static hth_err data_part(hth_train_data *data, const hth_train_part *part)
{
    int64_t n = data->set.n_samples, held = llround(part->share * (double)n);
    data->n_samples = n;
    if (part->share <= 0) {
        return HTH_OK;
    }
    held = held > 1 ? held : 1;
    if (held >= n) {
        return hth_fail(HTH_EINVAL,
                        "of %lld samples none is left to train on when %lld are held out",
                        (long long)n, (long long)held);
    }
    data->used = hth_calloc((size_t)n, sizeof *data->used);
    if (data->used == NULL) {
        return hth_no_memory("a batch");
    }
    hth_dataset_order(n, true, part->seed, TRAIN_DATA_HELD, data->used);
    data->n_samples = part->held ? held : n - held;
    if (!part->held) {
        memmove(data->used, data->used + held, (size_t)(n - held) * sizeof *data->used);
    }
    qsort(data->used, (size_t)data->n_samples, sizeof *data->used, hth_compare_i64);
    return HTH_OK;
}

#define TRAIN_LABEL(DTYPE, TYPE)                                                                   \
    case DTYPE: {                                                                                  \
        TYPE v;                                                                                    \
        memcpy(&v, (const char *)tensor->data + index * sizeof v, sizeof v);                       \
        return (int64_t)v;                                                                         \
    }

int64_t hth_train_data_label(const hth_tensor *tensor, size_t index)
{
    switch (tensor->dtype) {
        TRAIN_LABEL(HTH_DT_I8, int8_t)
        TRAIN_LABEL(HTH_DT_U8, uint8_t)
        TRAIN_LABEL(HTH_DT_I16, int16_t)
        TRAIN_LABEL(HTH_DT_U16, uint16_t)
        TRAIN_LABEL(HTH_DT_I32, int32_t)
        TRAIN_LABEL(HTH_DT_U32, uint32_t)
        TRAIN_LABEL(HTH_DT_U64, uint64_t)
        TRAIN_LABEL(HTH_DT_I64, int64_t)
    default: // no integers: the model's loss refuses them
        return 0;
    }
}

// Integers that the loss does not know are widened as they are read.
static bool data_widens(hth_dtype dt)
{
    return dt == HTH_DT_I8 || dt == HTH_DT_U8 || dt == HTH_DT_I16 || dt == HTH_DT_U16 ||
           dt == HTH_DT_U32 || dt == HTH_DT_U64;
}

static hth_err data_label(const hth_train_data *data, int64_t label, int64_t sample)
{
    return label == HTH_TRAIN_IGNORED || (label >= 0 && label < data->classes)
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "label %lld of sample %lld is out of range: the model has %lld classes",
                          (long long)label, (long long)sample, (long long)data->classes);
}

static hth_err data_target_buffer(hth_train_data *data, int64_t batch)
{
    hth_dataset_tensor wide = *data->target_source;
    if (data_widens(wide.t.dtype)) {
        wide.t.bytes = wide.t.bytes / hth_dtype_bytes(wide.t.dtype) * sizeof(int64_t);
        wide.t.dtype = HTH_DT_I64;
    }
    return data_buffer(&wide, data->set.n_samples, batch, &data->target);
}

// The targets of n samples; narrow ones are gathered at the buffer's end and widened from there.
static hth_err data_gather_target(hth_train_data *data, const int64_t *rows, int64_t n)
{
    const hth_tensor *source = &data->target_source->t;
    size_t size = hth_dtype_bytes(source->dtype), wide = hth_dtype_bytes(data->target.dtype);
    size_t count = source->bytes / size / (size_t)data->set.n_samples * (size_t)n;
    int64_t *out = data->target.data;
    hth_tensor narrow = {.dtype = source->dtype,
                         .data = (char *)data->target.data + count * (wide - size)};
    HTH_TRY(hth_dataset_gather(&data->set, data->target_source, rows, n, narrow.data));
    for (size_t i = 0; data_widens(source->dtype) && i < count; i++) {
        out[i] = hth_train_data_label(&narrow, i);
    }
    for (size_t i = 0; data->classes > 0 && i < count; i++) {
        int64_t sample = rows[i / (count / (size_t)n)];
        HTH_TRY(data_label(data, hth_train_data_label(&data->target, i), sample));
    }
    return HTH_OK;
}

// -1: more than can be counted.
static int64_t data_sample(const hth_shape *shape)
{
    int64_t n = 1;
    for (int d = 1; d < shape->rank; d++) {
        if (__builtin_mul_overflow(n, shape->dim[d], &n)) {
            return -1;
        }
    }
    return n;
}

// Whether two shapes are the same but for dimensions of 1, the first one apart.
static bool data_alike(const hth_shape *a, const hth_shape *b)
{
    int i = 1, k = 1;
    for (;;) {
        while (i < a->rank && a->dim[i] == 1) {
            i++;
        }
        while (k < b->rank && b->dim[k] == 1) {
            k++;
        }
        if (i >= a->rank || k >= b->rank) {
            return i >= a->rank && k >= b->rank;
        }
        if (a->dim[i++] != b->dim[k++]) {
            return false;
        }
    }
}

// Rows of a table are samples of any shape, and what has one channel may not say so. Nothing else
// is reshaped: images with their channels last would only seem to fit.
static void data_reshape(const hth_shape *want, hth_tensor *tensor)
{
    hth_shape to = *want;
    bool open = want->rank < 1;
    for (int d = 1; d < want->rank; d++) {
        open = open || want->dim[d] < 0;
    }
    if (open || tensor->shape.rank < 1 || data_sample(&to) < 0) {
        return;
    }
    to.dim[0] = tensor->shape.dim[0];
    bool flat = to.rank == 2 || tensor->shape.rank == 2;
    if (data_sample(&to) == data_sample(&tensor->shape) &&
        (flat || data_alike(&to, &tensor->shape))) {
        tensor->shape = to;
    }
}

// data_bytes has bytes be bound as the floats that they become.
static hth_err data_bytes(const hth_train_part *part, const char *tensor, const hth_value *want,
                          hth_tensor *t)
{
    if (t->dtype != HTH_DT_U8 || want->dtype != HTH_DT_F32) {
        return HTH_OK;
    }
    if (part->scale == NULL || !part->scale->on) {
        return hth_fail(HTH_EINVAL,
                        "tensor '%s' holds bytes, and input '%s' reads floats: --scale 1/255 makes "
                        "them 0 to 1, --scale 1 keeps them (and --mean, --std)",
                        tensor, want->name);
    }
    t->dtype = HTH_DT_F32;
    t->bytes *= sizeof(float);
    return HTH_OK;
}

// data_input finds input i's tensor; *bound is what is compared with the model's signature.
static hth_err data_input(hth_train_data *data, int i, const hth_train_part *part,
                          const hth_model *model, int64_t batch, hth_request_tensor *bound)
{
    const hth_graph *g = model->source.graph;
    const hth_value *want = &g->values[g->inputs[i]];
    const hth_dataset_tensor *t = hth_dataset_find(&data->set, want->name);
    if (t == NULL && g->n_inputs == 1) {
        t = hth_dataset_find(&data->set, "x");
    }
    if (t == NULL) {
        return hth_fail(HTH_EINVAL, "the dataset has no tensor '%s', which model '%s' reads",
                        want->name, model->name);
    }
    data->source[i] = t;
    data->n_inputs = i + 1;
    HTH_TRY(data_buffer(t, data->set.n_samples, batch, &data->input[i]));
    data_reshape(&want->shape, &data->input[i]);
    *bound = (hth_request_tensor){.name = want->name, .t = data->input[i]};
    return data_bytes(part, t->name, want, &bound->t);
}

// data_option is what was asked for that is about images; NULL: nothing.
static const char *data_option(const hth_train_part *part)
{
    if (part->augment != NULL && hth_augment_any(part->augment)) {
        return part->augment->flip ? "--flip" : "--crop";
    }
    return part->scale != NULL && part->scale->images ? "--normalize" : NULL;
}

// data_cropped refuses a crop of which nothing of an image may be left.
static hth_err data_cropped(const hth_train_data *data, const hth_value *want)
{
    const int64_t *dim = data->input[data->image].shape.dim;
    int64_t least = dim[2] < dim[3] ? dim[2] : dim[3];
    return data->augment.crop == 0 || data->augment.crop < least
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "--crop %lld may leave nothing of the images of '%s', which are %lld x "
                          "%lld: the most is %lld",
                          (long long)data->augment.crop, want->name, (long long)dim[2],
                          (long long)dim[3], (long long)least - 1);
}

// data_images finds the input that is images, if that matters: there is one such.
static hth_err data_images(const hth_train_part *part, const hth_model *model, hth_train_data *data)
{
    const hth_graph *g = model->source.graph;
    const char *option = data_option(part);
    int found = -1;
    for (int i = 0; option != NULL && i < data->n_inputs; i++) {
        if (data->input[i].shape.rank != 4) {
            continue;
        }
        if (found >= 0) {
            return hth_fail(HTH_EINVAL, "%s is for one input of images: '%s' and '%s' both are",
                            option, g->values[g->inputs[found]].name, g->values[g->inputs[i]].name);
        }
        found = i;
    }
    if (option == NULL) {
        return HTH_OK;
    }
    if (found < 0) {
        return hth_fail(HTH_EINVAL,
                        "%s is for images [N, C, H, W]: no input of model '%s' has 4 dimensions",
                        option, model->name);
    }
    data->image = found;
    data->augment = part->augment != NULL ? *part->augment : (hth_augment){.flip = false};
    return data_cropped(data, &g->values[g->inputs[found]]);
}

// data_normal refuses to normalise what are neither floats nor bytes that become such.
static hth_err data_normal(const hth_train_part *part, const hth_train_data *data,
                           const hth_tensor *bound)
{
    bool images = part->scale != NULL && part->scale->images;
    return !images || bound[data->image].dtype == HTH_DT_F32
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "--normalize is for %s, and tensor '%s' is %s",
                          hth_dtype_name(HTH_DT_F32), data->source[data->image]->name,
                          hth_dtype_name(data->input[data->image].dtype));
}

// data_scaled refuses a scale that nothing would be scaled by.
static hth_err data_scaled(const hth_train_data *data, const hth_train_part *part,
                           const hth_tensor *bound)
{
    bool any = part->scale == NULL || !part->scale->on;
    for (int i = 0; i < data->n_inputs; i++) {
        any = any || bound[i].dtype != data->input[i].dtype;
    }
    return any ? HTH_OK
               : hth_fail(HTH_EINVAL, "--scale is for bytes (uint8), and tensor '%s' is %s",
                          data->source[0]->name, hth_dtype_name(data->input[0].dtype));
}

typedef struct data_file {
    const hth_train_part *part;
    hth_dataset *set;
} data_file;

static hth_err data_open(void *arg)
{
    const data_file *f = arg;
    if (f->part->store != NULL) {
        return hth_dataset_open_stored(f->part->store, f->part->path, f->part->tenant, f->set);
    }
    return f->part->fd >= 0 ? hth_dataset_open_fd(f->part->fd, f->part->path, f->set)
                            : hth_dataset_open(f->part->path, f->set);
}

hth_err hth_train_data_open(const hth_train_part *part, const hth_model *model,
                            hth_train_data *data)
{
    const hth_graph *g = model->source.graph;
    hth_request_tensor named[HTH_TRAIN_MAX_INPUTS];
    hth_tensor bound[HTH_TRAIN_MAX_INPUTS];
    if (g->n_inputs > HTH_TRAIN_MAX_INPUTS) {
        return hth_fail(HTH_ENOTSUP, "model '%s' has more than %d inputs", model->name,
                        HTH_TRAIN_MAX_INPUTS);
    }
    data->site = part->site;
    HTH_TRY(hth_work_elsewhere(part->site->queue, data_open, &(data_file){part, &data->set}));
    HTH_TRY(data_part(data, part));
    int64_t samples = data->set.n_samples;
    int64_t batch = part->batch < data->n_samples ? part->batch : data->n_samples;
    for (int i = 0; i < g->n_inputs; i++) {
        HTH_TRY(data_input(data, i, part, model, batch, &named[i]));
    }
    HTH_TRY(hth_model_bind(model, named, data->n_inputs, bound));
    HTH_TRY(data_scaled(data, part, bound));
    HTH_TRY(data_images(part, model, data));
    HTH_TRY(data_normal(part, data, bound));
    HTH_TRY(data_target(data));
    HTH_TRY(data_target_buffer(data, batch));
    data->rows = hth_calloc((size_t)samples, sizeof *data->rows);
    return data->rows != NULL ? HTH_OK : hth_no_memory("a batch");
}

// data_labels looks at all labels, a piece of the file at a time.
static hth_err data_labels(void *arg)
{
    hth_train_data *d = arg;
    int64_t rows[DATA_LABEL_ROWS];
    const hth_tensor *t = &d->target_source->t;
    size_t row = t->bytes / (size_t)d->set.n_samples, per = row / hth_dtype_bytes(t->dtype);
    hth_tensor piece = {.dtype = t->dtype, .data = hth_alloc(DATA_LABEL_ROWS * row + 1)};
    hth_err err = piece.data != NULL ? HTH_OK : hth_no_memory("a batch");
    bool any = false;
    for (int64_t at = 0, n; err == HTH_OK && at < d->set.n_samples; at += n) {
        n = d->set.n_samples - at < DATA_LABEL_ROWS ? d->set.n_samples - at : DATA_LABEL_ROWS;
        for (int64_t i = 0; i < n; i++) {
            rows[i] = at + i;
        }
        err = hth_dataset_gather(&d->set, d->target_source, rows, n, piece.data);
        for (size_t i = 0; err == HTH_OK && i < (size_t)n * per; i++) {
            int64_t label = hth_train_data_label(&piece, i);
            any = any || label != HTH_TRAIN_IGNORED;
            err = data_label(d, label, at + (int64_t)(i / per));
        }
    }
    hth_free(piece.data);
    if (err == HTH_OK && !any && d->classes != 0) {
        return hth_fail(HTH_EINVAL, "none of the %lld samples has a label: all are %d",
                        (long long)d->set.n_samples, HTH_TRAIN_IGNORED);
    }
    return err;
}

// Labels out of range are told before anything runs.
hth_err hth_train_data_check_labels(hth_train_data *data, int64_t classes)
{
    data->classes = classes;
    return hth_work_elsewhere(data->site->queue, data_labels, data);
}

void hth_train_data_order(hth_train_data *data, bool shuffle, uint64_t seed, int64_t epoch)
{
    data->seed = seed;
    data->epoch = epoch;
    hth_dataset_order(data->n_samples, shuffle, seed, epoch, data->rows);
    for (int64_t i = 0; data->used != NULL && i < data->n_samples; i++) {
        data->rows[i] = data->used[data->rows[i]];
    }
}

void hth_train_data_shape(hth_train_data *data, int64_t count)
{
    for (int i = 0; i < data->n_inputs; i++) {
        data->input[i].shape.dim[0] = count;
    }
    data->target.shape.dim[0] = count;
}

typedef struct data_rows {
    hth_train_data *d;
    int64_t first, n;
} data_rows;

// data_gather_images gathers what was drawn for n samples: from memory row by row, else where they
// lie in the batch.
static hth_err data_gather_images(const hth_train_data *data, const int64_t *rows, int64_t n)
{
    const hth_dataset_tensor *source = data->source[data->image];
    const hth_tensor *to = &data->input[data->image];
    size_t bytes = source->t.bytes / (size_t)data->set.n_samples;
    bool there = source->t.data != NULL;
    HTH_TRY(there ? HTH_OK : hth_dataset_gather(&data->set, source, rows, n, to->data));
    for (int64_t i = 0; i < n; i++) {
        char *out = (char *)to->data + (size_t)i * bytes;
        const char *in = there ? (const char *)source->t.data + (size_t)rows[i] * bytes : out;
        const hth_augment_draw draw =
            hth_augment_at(&data->augment, data->seed, (uint64_t)data->epoch, (uint64_t)rows[i]);
        hth_augment_image(&draw, to->shape.dim + 1, hth_dtype_bytes(to->dtype), in, out);
    }
    return HTH_OK;
}

static hth_err data_gather(void *arg)
{
    const data_rows *r = arg;
    hth_train_data *d = r->d;
    const int64_t *rows = d->rows + r->first;
    for (int i = 0; i < d->n_inputs; i++) {
        bool images = hth_augment_any(&d->augment) && i == d->image;
        HTH_TRY(images ? data_gather_images(d, rows, r->n)
                       : hth_dataset_gather(&d->set, d->source[i], rows, r->n, d->input[i].data));
    }
    return data_gather_target(d, rows, r->n);
}

hth_err hth_train_data_batch(hth_train_data *data, int64_t first, int64_t batch)
{
    if (first < 0 || batch < 1 || first >= data->n_samples) {
        return hth_fail(HTH_EINVAL, "there is no sample %lld of %lld", (long long)first,
                        (long long)data->n_samples);
    }
    data_rows r = {data, first, data->n_samples - first < batch ? data->n_samples - first : batch};
    HTH_TRY(hth_work_elsewhere(data->site->queue, data_gather, &r));
    hth_train_data_shape(data, r.n);
    return HTH_OK;
}
