// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/ipc_record.h"

#include <string.h>

#define RECORD_MAX_TENSORS 65536u

static size_t record_aligned(size_t bytes)
{
    return bytes + hth_ipc_record_pad(bytes);
}

// record_first is where texts begin.
static size_t record_first(size_t n_tensors)
{
    return sizeof(hth_ipc_record) + n_tensors * sizeof(hth_ipc_record_tensor);
}

// ---- writing

size_t hth_ipc_record_room(const char *const text[HTH_IPC_RECORD_TEXTS], size_t n,
                           size_t name_bytes)
{
    size_t bytes = record_first(n) + name_bytes + 1; // the last one is zero, whatever the texts
    for (int i = 0; i < HTH_IPC_RECORD_TEXTS; i++) {
        bytes += text[i] != NULL ? strlen(text[i]) + 1 : 0;
    }
    return bytes <= UINT32_MAX - HTH_IPC_RECORD_ALIGN ? record_aligned(bytes) : 0;
}

// record_put appends a text and returns its offset, 0: there is none.
static uint32_t record_put(hth_ipc_record *r, const char *text)
{
    uint32_t at = r->head_bytes;
    if (text == NULL) {
        return 0;
    }
    size_t bytes = strlen(text) + 1;
    memcpy((char *)r + at, text, bytes);
    r->head_bytes += (uint32_t)bytes;
    return at;
}

void hth_ipc_record_begin(hth_ipc_record *r, const char *const text[HTH_IPC_RECORD_TEXTS], size_t n)
{
    memset(r, 0, sizeof *r);
    r->head_bytes = (uint32_t)record_first(n);
    for (int i = 0; i < HTH_IPC_RECORD_TEXTS; i++) {
        r->text[i] = record_put(r, text[i]);
    }
}

hth_ipc_record_tensor *hth_ipc_record_add(hth_ipc_record *r, const char *name, uint32_t dtype,
                                          size_t rank, const int64_t *dim, uint64_t bytes)
{
    hth_ipc_record_tensor *t = &r->tensor[r->n_tensors++];
    memset(t, 0, sizeof *t);
    t->name = record_put(r, name);
    t->dtype = dtype;
    t->rank = (uint32_t)rank;
    t->bytes = bytes;
    if (rank > 0) { // a scalar's dimensions may be NULL
        memcpy(t->dim, dim, rank * sizeof t->dim[0]);
    }
    return t;
}

hth_err hth_ipc_record_end(hth_ipc_record *r)
{
    size_t end = record_aligned((size_t)r->head_bytes + 1);
    memset((char *)r + r->head_bytes, 0, end - r->head_bytes);
    r->head_bytes = (uint32_t)end;
    r->bytes = end;
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        hth_ipc_record_tensor *t = &r->tensor[i];
        if (t->region == HTH_IPC_RECORD_HERE) {
            if (t->bytes > UINT64_MAX - HTH_IPC_RECORD_ALIGN - r->bytes) {
                return hth_fail(HTH_ETOOBIG, "the tensors have more bytes than 64 bits can count");
            }
            t->at = r->bytes;
            r->bytes += t->bytes + hth_ipc_record_pad(t->bytes);
        }
    }
    return HTH_OK;
}

// ---- reading

static hth_err record_wrong(const char *what)
{
    return hth_fail(HTH_ECORRUPT, "a message in shared memory: %s", what);
}

// record_names checks that each text begins where texts are; the last one's zero ends them all.
static hth_err record_names(const hth_ipc_record *r)
{
    uint64_t first = record_first(r->n_tensors);
    if (((const char *)r)[r->head_bytes - 1] != 0) {
        return record_wrong("a text has no end");
    }
    for (int i = 0; i < HTH_IPC_RECORD_TEXTS; i++) {
        if (r->text[i] != 0 && (r->text[i] < first || r->text[i] >= r->head_bytes)) {
            return record_wrong("a text lies outside");
        }
    }
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        uint32_t name = r->tensor[i].name;
        if (name != 0 && (name < first || name >= r->head_bytes)) {
            return record_wrong("a name lies outside");
        }
    }
    return HTH_OK;
}

static hth_err record_tensor(const hth_ipc_record *r, const hth_ipc_record_tensor *t)
{
    if (t->rank > HTH_IPC_RECORD_RANK) {
        return record_wrong("a tensor has too many dimensions");
    }
    if (t->region != HTH_IPC_RECORD_HERE) {
        return HTH_OK;
    }
    if (t->at % HTH_IPC_RECORD_ALIGN != 0) {
        return record_wrong("a tensor is not at a multiple of 64");
    }
    return t->at >= r->head_bytes && t->at <= r->bytes && t->bytes <= r->bytes - t->at
               ? HTH_OK
               : record_wrong("a tensor lies outside");
}

hth_err hth_ipc_record_check(const hth_ipc_record *r, uint64_t bytes)
{
    if (bytes < sizeof *r + 1 || r->bytes != bytes || r->head_bytes > bytes ||
        r->n_tensors > RECORD_MAX_TENSORS || record_first(r->n_tensors) >= r->head_bytes ||
        r->n_known > r->n_tensors) {
        return record_wrong("its size is not what it says");
    }
    HTH_TRY(record_names(r));
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        HTH_TRY(record_tensor(r, &r->tensor[i]));
    }
    return r->err < HTH_N_ERR ? HTH_OK : record_wrong("there is no such error");
}
