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

static json_t *safetensors_entry(const hearth_tensor *t, uint64_t at)
{
    const hth_dtype_names *d = hth_dtype_names_of((int)t->dtype);
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) {
        json_array_append_new(shape, json_integer(t->shape[i]));
    }
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", d != NULL ? d->safetensors : "?", "shape",
                     shape, "data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes));
}

static hth_err safetensors_header(const hearth_tensor *t, int n, char **out)
{
    json_t *head = json_object();
    hth_err err = HTH_OK;
    uint64_t at = 0;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        if (json_object_get(head, t[i].name) != NULL) {
            err = hth_fail(HTH_EINVAL, "two tensors are named '%s'", t[i].name);
        } else if (json_object_set_new(head, t[i].name, safetensors_entry(&t[i], at)) != 0) {
            err = hth_fail(HTH_EINVAL, "tensor '%s' cannot be described in JSON", t[i].name);
        }
        at += t[i].bytes;
    }
    *out = err == HTH_OK ? json_dumps(head, JSON_COMPACT) : NULL;
    json_decref(head);
    return err == HTH_OK && *out == NULL ? hth_fail(HTH_ENOMEM, "out of memory for a header") : err;
}

// safetensors_to writes to `path`, or (fd >= 0) to a descriptor.
static hth_err safetensors_to(const char *path, int fd, const hearth_tensor *t, int n)
{
    static const char spaces[8] = "        ";
    uint8_t length[8];
    char *head;
    HTH_TRY(safetensors_header(t, n, &head));
    size_t bytes = strlen(head), padded = (bytes + 7) / 8 * 8;
    hth_atomic_file_piece *piece = hth_calloc(3 + (size_t)n, sizeof *piece);
    hth_err err = hth_fail(HTH_ENOMEM, "out of memory to write %s", path);
    if (piece != NULL) {
        for (int i = 0; i < 8; i++) {
            length[i] = (uint8_t)(padded >> (8 * i));
        }
        piece[0] = (hth_atomic_file_piece){length, sizeof length};
        piece[1] = (hth_atomic_file_piece){head, bytes};
        piece[2] = (hth_atomic_file_piece){spaces, padded - bytes};
        for (int i = 0; i < n; i++) {
            piece[3 + i] = (hth_atomic_file_piece){t[i].data, t[i].bytes};
        }
        err = fd >= 0 ? hth_atomic_file_put(fd, path, piece, 3 + (size_t)n)
                      : hth_atomic_file_write(path, piece, 3 + (size_t)n);
    }
    hth_free(piece);
    free(head);
    return err;
}

hth_err hth_safetensors_write(const char *path, const hearth_tensor *tensors, int count)
{
    return safetensors_to(path, -1, tensors, count);
}

hth_err hth_safetensors_put(int fd, const char *shown, const hearth_tensor *tensors, int count)
{
    return safetensors_to(shown, fd, tensors, count);
}
