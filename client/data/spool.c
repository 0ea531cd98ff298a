// SPDX-License-Identifier: Apache-2.0
// A dataset as a safetensors file that has no name: what takes a file's descriptor takes any
// dataset.
#include "client/data/data.h"

#include "base/alloc.h"
#include "client/dtype.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPOOL_PIECE ((size_t)4 << 20)

static hth_err spool_put(int fd, const void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = write(fd, (const char *)data + at, n - at);
        if (k < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "cannot write the dataset to a file below /tmp");
        }
        at += k > 0 ? (size_t)k : 0;
    }
    return HTH_OK;
}

static hth_err spool_header(const hth_data *data, char **out)
{
    json_t *head = json_object();
    uint64_t at = 0;
    bool all = head != NULL;
    for (int i = 0; i < data->n_tensors; i++) {
        const hth_data_tensor *t = &data->tensors[i];
        json_t *shape = json_array();
        for (int k = 0; k < t->rank; k++) {
            json_array_append_new(shape, json_integer(t->shape[k]));
        }
        json_t *o = json_pack("{s:s, s:o, s:[I,I]}", "dtype",
                              hth_dtype_names_of((int)t->dtype)->safetensors, "shape", shape,
                              "data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes));
        if (all && json_object_set_new(head, t->name, o) != 0) {
            json_decref(head);
            return hth_fail(HTH_EINVAL, "the name of a tensor of %s is not UTF-8", data->path);
        }
        at += t->bytes;
    }
    *out = all ? json_dumps(head, JSON_COMPACT) : NULL;
    json_decref(head);
    return *out != NULL ? HTH_OK : hth_no_memory("a header");
}

static hth_err spool_head(const hth_data *data, int fd, uint64_t *bytes)
{
    uint8_t length[8];
    char *head;
    HTH_TRY(spool_header(data, &head));
    size_t n = strlen(head), padded = (n + 7) / 8 * 8;
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)(padded >> (8 * i));
    }
    hth_err err;
    HTH_GOTO(spool_put(fd, length, sizeof length), done);
    HTH_GOTO(spool_put(fd, head, n), done);
    err = spool_put(fd, "        ", padded - n);
done:
    free(head);
    *bytes = 8 + padded;
    return err;
}

static hth_err spool_tensors(hth_data *data, int fd, uint64_t *bytes)
{
    uint8_t *piece = hth_alloc(SPOOL_PIECE);
    hth_err err = piece != NULL ? HTH_OK : hth_no_memory("a dataset");
    for (int i = 0; i < data->n_tensors && err == HTH_OK; i++) {
        uint64_t all = data->tensors[i].bytes;
        for (uint64_t at = 0; at < all && err == HTH_OK;) {
            size_t n = all - at < SPOOL_PIECE ? (size_t)(all - at) : SPOOL_PIECE;
            err = hth_data_read(data, i, at, piece, n);
            if (err == HTH_OK) {
                err = spool_put(fd, piece, n);
            }
            at += n;
        }
        *bytes += all;
    }
    hth_free(piece);
    return err;
}

hth_err hth_data_spool(hth_data *data, int *fd, uint64_t *bytes)
{
    uint64_t n = 0;
    *fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd < 0) {
        return hth_fail_errno(errno, "cannot make a file below /tmp for the dataset");
    }
    hth_err err = spool_head(data, *fd, &n);
    if (err == HTH_OK) {
        err = spool_tensors(data, *fd, &n);
    }
    if (err != HTH_OK) {
        close(*fd);
        *fd = -1;
    } else if (bytes != NULL) {
        *bytes = n;
    }
    return err;
}
