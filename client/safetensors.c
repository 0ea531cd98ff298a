// SPDX-License-Identifier: Apache-2.0
// The format is huggingface/safetensors': the header is padded with spaces to 8 bytes, so that the
// data starts aligned.
#include "client/safetensors.h"

#include "base/alloc.h"
#include "client/dtype.h"
#include "client/atomic_file.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

static json_t *safetensors_entry(const hearth_tensor *tensor, uint64_t at)
{
    const hth_dtype_names *d = hth_dtype_names_of((int)tensor->dtype);
    json_t *shape = json_array();
    for (int i = 0; i < tensor->rank; i++) {
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    }
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", d != NULL ? d->safetensors : "?", "shape",
                     shape, "data_offsets", (json_int_t)at, (json_int_t)(at + tensor->bytes));
}

static hth_err safetensors_header(const hearth_tensor *tensor, int n, char **out)
{
    json_t *head = json_object();
    hth_err err = HTH_OK;
    uint64_t at = 0;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        if (json_object_get(head, tensor[i].name) != NULL) {
            err = hth_fail(HTH_EINVAL, "two tensors are named '%s'", tensor[i].name);
        } else if (json_object_set_new(head, tensor[i].name, safetensors_entry(&tensor[i], at)) !=
                   0) {
            err = hth_fail(HTH_EINVAL, "tensor '%s' cannot be described in JSON", tensor[i].name);
        }
        at += tensor[i].bytes;
    }
    *out = err == HTH_OK ? json_dumps(head, JSON_COMPACT) : NULL;
    json_decref(head);
    if (err == HTH_OK && *out == NULL) {
        return hth_no_memory("a header");
    }
    return err;
}

#define SAFETENSORS_LENGTH 8

hth_err hth_safetensors_head(const hearth_tensor *tensors, int count, char **head, size_t *bytes)
{
    char *json;
    *head = NULL;
    HTH_TRY(safetensors_header(tensors, count, &json));
    size_t n = strlen(json), padded = (n + 7) / 8 * 8;
    char *out = hth_alloc(SAFETENSORS_LENGTH + padded);
    if (out != NULL) {
        for (int i = 0; i < SAFETENSORS_LENGTH; i++) {
            out[i] = (char)(padded >> (8 * i));
        }
        memset(out + SAFETENSORS_LENGTH, ' ', padded);
        memcpy(out + SAFETENSORS_LENGTH, json, n);
        *head = out;
        *bytes = SAFETENSORS_LENGTH + padded;
    }
    free(json);
    return out != NULL ? HTH_OK : hth_no_memory("a header");
}

hth_err hth_safetensors_write(const char *path, const hearth_tensor *tensors, int count)
{
    char *head;
    size_t bytes;
    HTH_TRY(hth_safetensors_head(tensors, count, &head, &bytes));
    hth_atomic_file_piece *piece = hth_calloc(1 + (size_t)count, sizeof *piece);
    hth_err err = hth_no_memory("writing %s", path);
    if (piece != NULL) {
        piece[0] = (hth_atomic_file_piece){head, bytes};
        for (int i = 0; i < count; i++) {
            piece[1 + i] = (hth_atomic_file_piece){tensors[i].data, tensors[i].bytes};
        }
        err = hth_atomic_file_write(path, piece, 1 + (size_t)count);
    }
    hth_free(piece);
    hth_free(head);
    return err;
}
