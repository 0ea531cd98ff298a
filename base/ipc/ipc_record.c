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
static uint32_t record_put(hth_ipc_record *record, const char *text)
{
    uint32_t at = record->head_bytes;
    if (text == NULL) {
        return 0;
    }
    size_t bytes = strlen(text) + 1;
    memcpy((char *)record + at, text, bytes);
    record->head_bytes += (uint32_t)bytes;
    return at;
}

void hth_ipc_record_begin(hth_ipc_record *record, const char *const text[HTH_IPC_RECORD_TEXTS],
                          size_t n)
{
    memset(record, 0, sizeof *record);
    record->head_bytes = (uint32_t)record_first(n);
    for (int i = 0; i < HTH_IPC_RECORD_TEXTS; i++) {
        record->text[i] = record_put(record, text[i]);
    }
}

hth_ipc_record_tensor *hth_ipc_record_add(hth_ipc_record *record, const char *name, uint32_t dtype,
                                          size_t rank, const int64_t *dim, uint64_t bytes)
{
    hth_ipc_record_tensor *t = &record->tensor[record->n_tensors++];
    memset(t, 0, sizeof *t);
    t->name = record_put(record, name);
    t->dtype = dtype;
    t->rank = (uint32_t)rank;
    t->bytes = bytes;
    if (rank > 0) { // a scalar's dimensions may be NULL
        memcpy(t->dim, dim, rank * sizeof t->dim[0]);
    }
    return t;
}

hth_err hth_ipc_record_end(hth_ipc_record *record)
{
    size_t end = record_aligned((size_t)record->head_bytes + 1);
    memset((char *)record + record->head_bytes, 0, end - record->head_bytes);
    record->head_bytes = (uint32_t)end;
    record->bytes = end;
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        hth_ipc_record_tensor *t = &record->tensor[i];
        if (t->region == HTH_IPC_RECORD_HERE) {
            if (t->bytes > UINT64_MAX - HTH_IPC_RECORD_ALIGN - record->bytes) {
                return hth_fail(HTH_ETOOBIG, "the tensors have more bytes than 64 bits can count");
            }
            t->at = record->bytes;
            record->bytes += t->bytes + hth_ipc_record_pad(t->bytes);
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
static hth_err record_names(const hth_ipc_record *record)
{
    uint64_t first = record_first(record->n_tensors);
    if (((const char *)record)[record->head_bytes - 1] != 0) {
        return record_wrong("a text has no end");
    }
    for (int i = 0; i < HTH_IPC_RECORD_TEXTS; i++) {
        if (record->text[i] != 0 &&
            (record->text[i] < first || record->text[i] >= record->head_bytes)) {
            return record_wrong("a text lies outside");
        }
    }
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        uint32_t name = record->tensor[i].name;
        if (name != 0 && (name < first || name >= record->head_bytes)) {
            return record_wrong("a name lies outside");
        }
    }
    return HTH_OK;
}

static hth_err record_tensor(const hth_ipc_record *record, const hth_ipc_record_tensor *tensor)
{
    if (tensor->rank > HTH_IPC_RECORD_RANK) {
        return record_wrong("a tensor has too many dimensions");
    }
    if (tensor->region != HTH_IPC_RECORD_HERE) {
        return HTH_OK;
    }
    if (tensor->at % HTH_IPC_RECORD_ALIGN != 0) {
        return record_wrong("a tensor is not at a multiple of 64");
    }
    return tensor->at >= record->head_bytes && tensor->at <= record->bytes &&
                   tensor->bytes <= record->bytes - tensor->at
               ? HTH_OK
               : record_wrong("a tensor lies outside");
}

hth_err hth_ipc_record_check(const hth_ipc_record *record, uint64_t bytes)
{
    if (bytes < sizeof *record + 1 || record->bytes != bytes || record->head_bytes > bytes ||
        record->n_tensors > RECORD_MAX_TENSORS ||
        record_first(record->n_tensors) >= record->head_bytes ||
        record->n_known > record->n_tensors) {
        return record_wrong("its size is not what it says");
    }
    HTH_TRY(record_names(record));
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        HTH_TRY(record_tensor(record, &record->tensor[i]));
    }
    return record->err < HTH_N_ERR ? HTH_OK : record_wrong("there is no such error");
}
