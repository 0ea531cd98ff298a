// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file is checked as a whole (the format's description is at
// github.com/huggingface/safetensors); data are the reader's.
#include "client/safetensors.h"

#include "base/alloc.h"
#include "client/dtype.h"

#include <jansson.h>

#include <string.h>

#define SAFETENSORS_MAX_HEADER ((uint64_t)100 << 20) // the format's own limit

static hth_err look_shape(const char *name, const json_t *shape, hth_safetensors_entry *out)
{
    size_t i;
    json_t *v;
    if (!json_is_array(shape) || json_array_size(shape) > HEARTH_MAX_RANK) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has no shape of at most %d dimensions", name,
                        HEARTH_MAX_RANK);
    }
    out->rank = (int)json_array_size(shape);
    json_array_foreach(shape, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0) {
            return hth_fail(HTH_EINVAL, "tensor '%s' has an invalid dimension", name);
        }
        out->shape[i] = json_integer_value(v);
    }
    return HTH_OK;
}

// look_tensor reads what the header says of one of the `bytes` bytes of data at `data` of the file.
static hth_err look_tensor(const char *name, const json_t *json, uint64_t data, uint64_t bytes,
                           hth_safetensors_entry *out)
{
    const char *type = json_string_value(json_object_get(json, "dtype"));
    const json_t *at = json_object_get(json, "data_offsets");
    const hth_dtype_names *d = type != NULL ? hth_dtype_of_safetensors(type) : NULL;
    if (d == NULL) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has the unknown type '%.16s'", name,
                        type != NULL ? type : "");
    }
    out->dtype = d->dtype;
    HTH_TRY(look_shape(name, json_object_get(json, "shape"), out));
    HTH_TRY(hth_dtype_bytes_of((int)out->dtype, out->rank, out->shape, &out->bytes));
    json_int_t from = json_integer_value(json_array_get(at, 0)),
               to = json_integer_value(json_array_get(at, 1));
    if (json_array_size(at) != 2 || from < 0 || to < from || (uint64_t)to > bytes ||
        (uint64_t)(to - from) != out->bytes) {
        return hth_fail(HTH_EINVAL,
                        "tensor '%s' lies outside of the file, or its %llu bytes do not", name,
                        (unsigned long long)out->bytes);
    }
    out->at = data + (uint64_t)from;
    out->name = hth_strdup(name);
    return out->name != NULL ? HTH_OK : hth_no_memory("the header of a dataset");
}

static hth_err look_tensors(const json_t *head, uint64_t data, uint64_t bytes,
                            hth_safetensors_entry **entries, int *n)
{
    const char *name;
    json_t *o;
    *entries = hth_calloc(json_object_size(head) + 1, sizeof **entries);
    if (*entries == NULL) {
        return hth_no_memory("the header of a dataset");
    }
    json_object_foreach((json_t *)head, name, o)
    {
        if (strcmp(name, "__metadata__") != 0) {
            HTH_TRY(look_tensor(name, o, data, bytes, &(*entries)[*n]));
            ++*n;
        }
    }
    return HTH_OK;
}

static hth_err look_text(const hth_file *file, const char *text, size_t n,
                         hth_safetensors_entry **entries, int *count)
{
    json_error_t je;
    json_t *head = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    uint64_t data = 8 + (uint64_t)n;
    hth_err err =
        json_is_object(head)
            ? look_tensors(head, data, file->bytes - data, entries, count)
            : hth_fail(HTH_EINVAL, "not a safetensors file: its header is no JSON object");
    json_decref(head);
    return err;
}

static hth_err look_file(const hth_file *file, const char *shown, hth_safetensors_entry **entries,
                         int *n)
{
    uint8_t length[8];
    uint64_t bytes = 0;
    if (file->bytes == 0) {
        return hth_fail(HTH_EINVAL, "it is empty");
    }
    if (file->bytes < 8) {
        return hth_fail(HTH_EINVAL, "not a safetensors file: it has %llu bytes",
                        (unsigned long long)file->bytes);
    }
    HTH_TRY(hth_file_read(file, shown, 0, length, 8));
    for (int i = 0; i < 8; i++) {
        bytes |= (uint64_t)length[i] << (8 * i);
    }
    if (bytes > SAFETENSORS_MAX_HEADER || bytes > file->bytes - 8) {
        return hth_fail(HTH_EINVAL,
                        "not a safetensors file: it does not begin with its header "
                        "(safetensors.numpy.save_file({'x': x, 'y': y}, FILE) writes one)");
    }
    char *text = hth_alloc((size_t)bytes + 1);
    if (text == NULL) {
        return hth_no_memory("the header of a dataset");
    }
    hth_err err = hth_file_read(file, shown, 8, text, (size_t)bytes);
    if (err == HTH_OK) {
        err = look_text(file, text, (size_t)bytes, entries, n);
    }
    hth_free(text);
    return err;
}

hth_err hth_safetensors_look(const hth_file *file, const char *shown,
                             hth_safetensors_entry **entries, int *n)
{
    *entries = NULL;
    *n = 0;
    hth_err err = look_file(file, shown, entries, n);
    if (err != HTH_OK) {
        hth_safetensors_looked(*entries, *n);
        *entries = NULL;
        *n = 0;
    }
    return err;
}

void hth_safetensors_looked(hth_safetensors_entry *entries, int n)
{
    for (int i = 0; i < n; i++) {
        hth_free(entries[i].name);
    }
    hth_free(entries);
}
