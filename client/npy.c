// SPDX-License-Identifier: Apache-2.0
// The header is a Python dictionary with three keys, which numpy writes in any order and with any
// blanks. It is read key by key from a bounded copy; nothing else that Python would accept is.
#include "client/npy.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/dtype.h"
#include "client/atomic_file.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NPY_MAX_HEADER 65536u

static const char npy_magic[6] = "\x93NUMPY";

typedef struct npy_header {
    char descr[16];
    bool fortran, has_descr, has_fortran, has_shape;
    int rank;
    int64_t shape[HEARTH_MAX_RANK];
} npy_header;

static const char *npy_blank(const char *p)
{
    return p + strspn(p, " \t\n");
}

// npy_quoted copies the text between two equal quotes; NULL when there is none or it does not fit.
static const char *npy_quoted(const char *p, char *out, size_t cap)
{
    char quote = *p;
    if (quote != '\'' && quote != '"') {
        return NULL;
    }
    const char *end = strchr(++p, quote);
    if (end == NULL || (size_t)(end - p) >= cap) {
        return NULL;
    }
    memcpy(out, p, (size_t)(end - p));
    out[end - p] = 0;
    return end + 1;
}

static const char *npy_shape(const char *p, npy_header *header)
{
    if (*p++ != '(') {
        return NULL;
    }
    for (p = npy_blank(p); *p != ')'; p = npy_blank(p)) {
        char *end;
        errno = 0;
        long long d = strtoll(p, &end, 10);
        if (end == p || errno != 0 || d < 0 || header->rank == HEARTH_MAX_RANK) {
            return NULL;
        }
        header->shape[header->rank++] = d;
        p = npy_blank(end);
        if (*p == ',') {
            p++;
        } else if (*p != ')') {
            return NULL;
        }
    }
    return p + 1;
}

static const char *npy_value(const char *key, const char *p, npy_header *header)
{
    if (strcmp(key, "descr") == 0 && !header->has_descr) {
        header->has_descr = true;
        return npy_quoted(p, header->descr, sizeof header->descr);
    }
    if (strcmp(key, "fortran_order") == 0 && !header->has_fortran) {
        header->has_fortran = true;
        header->fortran = *p == 'T';
        if (strncmp(p, "True", 4) == 0) {
            return p + 4;
        }
        return strncmp(p, "False", 5) == 0 ? p + 5 : NULL;
    }
    if (strcmp(key, "shape") == 0 && !header->has_shape) {
        header->has_shape = true;
        return npy_shape(p, header);
    }
    return NULL;
}

static bool npy_dictionary(const char *p, npy_header *header)
{
    char key[16];
    p = npy_blank(p);
    if (*p++ != '{') {
        return false;
    }
    for (p = npy_blank(p); *p != '}'; p = npy_blank(p)) {
        p = npy_quoted(p, key, sizeof key);
        if (p == NULL || *(p = npy_blank(p)) != ':') {
            return false;
        }
        p = npy_value(key, npy_blank(p + 1), header);
        if (p == NULL) {
            return false;
        }
        p = npy_blank(p);
        if (*p == ',') {
            p++;
        }
    }
    return header->has_descr && header->has_fortran && header->has_shape;
}

static hth_err npy_locate(const uint8_t *f, size_t bytes, size_t *at, size_t *length)
{
    if (bytes < 12 || memcmp(f, npy_magic, sizeof npy_magic) != 0 || f[6] < 1 || f[6] > 3) {
        return hth_fail(HTH_ECORRUPT, "not a .npy file; numpy.save writes one");
    }
    *at = f[6] == 1 ? 10 : 12;
    *length = f[6] == 1
                  ? (size_t)f[8] | (size_t)f[9] << 8
                  : (size_t)f[8] | (size_t)f[9] << 8 | (size_t)f[10] << 16 | (size_t)f[11] << 24;
    if (*length > NPY_MAX_HEADER || *length > bytes - *at) {
        return hth_fail(HTH_ECORRUPT, "a .npy header of %zu bytes in a file of %zu", *length,
                        bytes);
    }
    return HTH_OK;
}

hth_err hth_npy_describe(const void *file, size_t bytes, hearth_tensor *out, bool *fortran,
                         size_t *start)
{
    npy_header h = {.rank = 0};
    size_t at = 0, length = 0;
    uint64_t want;
    memset(out, 0, sizeof *out);
    HTH_TRY(npy_locate(file, bytes, &at, &length));
    char *text = hth_strndup((const char *)file + at, length);
    if (text == NULL) {
        return hth_no_memory("a .npy header");
    }
    bool good = npy_dictionary(text, &h);
    hth_free(text);
    if (!good) {
        return hth_fail(HTH_ECORRUPT,
                        "the .npy header does not parse, or has more than %d dimensions",
                        HEARTH_MAX_RANK);
    }
    const hth_dtype_names *d = hth_dtype_of_npy(h.descr);
    if (d == NULL) {
        return hth_fail(HTH_ENOTSUP,
                        "numpy's type '%s' is not supported; little-endian numbers and bool are",
                        h.descr);
    }
    HTH_TRY(hth_dtype_bytes_of((int)d->dtype, h.rank, h.shape, &want));
    *out = (hearth_tensor){.dtype = d->dtype, .rank = h.rank, .bytes = want};
    memcpy(out->shape, h.shape, sizeof out->shape);
    *fortran = h.fortran && h.rank > 1;
    *start = at + length;
    return HTH_OK;
}

hth_err hth_npy_parse(const void *file, size_t bytes, hearth_tensor *out, bool *fortran)
{
    hearth_tensor t;
    size_t start = 0;
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_npy_describe(file, bytes, &t, fortran, &start));
    if (t.bytes > bytes - start) {
        return hth_fail(HTH_ECORRUPT, "the array has %llu bytes, but the file holds only %zu",
                        (unsigned long long)t.bytes, bytes - start);
    }
    *out = t;
    out->data = (uint8_t *)file + start;
    return HTH_OK;
}

void hth_npy_transpose(const hearth_tensor *tensor, uint8_t *out)
{
    size_t size = hth_dtype_names_of((int)tensor->dtype)->bytes, n = tensor->bytes / size, from = 0;
    size_t stride[HEARTH_MAX_RANK], index[HEARTH_MAX_RANK] = {0};
    for (int i = 0; i < tensor->rank; i++) {
        stride[i] = i == 0 ? 1 : stride[i - 1] * (size_t)tensor->shape[i - 1];
    }
    for (size_t to = 0; to < n; to++) {
        memcpy(out + to * size, (const uint8_t *)tensor->data + from * size, size);
        for (int i = tensor->rank - 1; i >= 0; i--) {
            from += stride[i];
            if (++index[i] < (size_t)tensor->shape[i]) {
                break;
            }
            from -= stride[i] * index[i];
            index[i] = 0;
        }
    }
}

bool hth_npy_is(const void *data, size_t bytes)
{
    return bytes >= sizeof npy_magic && memcmp(data, npy_magic, sizeof npy_magic) == 0;
}

hth_err hth_npy_begins(const void *data, size_t bytes, size_t *end)
{
    hearth_tensor t;
    bool fortran;
    size_t start = 0;
    HTH_TRY(hth_npy_describe(data, bytes, &t, &fortran, &start));
    *end = t.bytes < SIZE_MAX - start ? start + t.bytes : SIZE_MAX;
    return HTH_OK;
}

hth_err hth_npy_of(const char *shown, const void *file, size_t bytes, hearth_tensor *out)
{
    bool fortran;
    hth_err err = hth_npy_parse(file, bytes, out, &fortran);
    uint8_t *data = err == HTH_OK ? hth_alloc_aligned(out->bytes, 64) : NULL;
    if (err != HTH_OK) {
        err = hth_err_prefix(err, "%s", shown);
    } else if (data == NULL) {
        err = hth_no_memory("the array in %s", shown);
    } else if (fortran) {
        hth_npy_transpose(out, data);
    } else {
        memcpy(data, out->data, out->bytes);
    }
    out->data = data;
    return err;
}

hth_err hth_npy_read(const char *path, hearth_tensor *out)
{
    void *file;
    size_t bytes;
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_file_load_own(path, HTH_NPY_FILE, hth_npy_begins, &file, &bytes));
    hth_err err = hth_npy_of(path, file, bytes, out);
    hth_free(file);
    return err;
}

hth_err hth_npy_write(const char *path, const hearth_tensor *tensor)
{
    uint8_t head[512];
    uint64_t bytes;
    HTH_TRY(hth_dtype_bytes_of((int)tensor->dtype, tensor->rank, tensor->shape, &bytes));
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    char *p = (char *)head + 10, *end = (char *)head + sizeof head;
    p += snprintf(p, (size_t)(end - p), "{'descr': '%s', 'fortran_order': False, 'shape': (",
                  hth_dtype_names_of((int)tensor->dtype)->npy);
    for (int i = 0; i < tensor->rank; i++) {
        p += snprintf(p, (size_t)(end - p), i > 0 ? ", %lld" : "%lld", (long long)tensor->shape[i]);
    }
    if (tensor->rank == 1) { // Python's tuple of one
        *p++ = ',';
    }
    p += snprintf(p, (size_t)(end - p), "), }");
    size_t length = ((size_t)(p - (char *)head) + 64) / 64 * 64; // room for the line's end
    memset(p, ' ', length - (size_t)(p - (char *)head));
    head[length - 1] = '\n';
    head[8] = (uint8_t)(length - 10);
    head[9] = (uint8_t)((length - 10) >> 8);
    hth_atomic_file_piece piece[2] = {{head, length}, {tensor->data, bytes}};
    return hth_atomic_file_write(path, piece, 2);
}
