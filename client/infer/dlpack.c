// SPDX-License-Identifier: Apache-2.0
// DLPack: tensors that other libraries lend, and outputs that they borrow. hearth reads a lent
// tensor during its call, and never keeps or frees it. A borrowed output keeps its answer alive:
// the memory goes when the last output of that answer does.
#include "client/infer/dlpack.h"

#include "base/alloc.h"
#include "client/dtype.h"
#include "client/infer/infer.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    hearth_dtype dtype;
    uint8_t code, bits;
} dlpack_types[] = {
    {HEARTH_F32, HTH_DL_FLOAT, 32},   {HEARTH_U8, HTH_DL_UINT, 8},   {HEARTH_I8, HTH_DL_INT, 8},
    {HEARTH_U16, HTH_DL_UINT, 16},    {HEARTH_I16, HTH_DL_INT, 16},  {HEARTH_I32, HTH_DL_INT, 32},
    {HEARTH_I64, HTH_DL_INT, 64},     {HEARTH_BOOL, HTH_DL_BOOL, 8}, {HEARTH_F16, HTH_DL_FLOAT, 16},
    {HEARTH_F64, HTH_DL_FLOAT, 64},   {HEARTH_U32, HTH_DL_UINT, 32}, {HEARTH_U64, HTH_DL_UINT, 64},
    {HEARTH_BF16, HTH_DL_BFLOAT, 16},
};
#define DLPACK_TYPES (sizeof dlpack_types / sizeof dlpack_types[0])

// ---- what is lent to hearth

static hth_err dlpack_dtype(const hth_dl_tensor *t, hearth_dtype *out)
{
    static const char *const names[] = {"int",    "uint",    "float", "handle",
                                        "bfloat", "complex", "bool"};
    for (size_t i = 0; i < DLPACK_TYPES; i++) {
        if (t->code == dlpack_types[i].code && t->bits == dlpack_types[i].bits && t->lanes == 1) {
            *out = dlpack_types[i].dtype;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL, "hearth has no type %s (code %u) of %u bits in %u lanes",
                    t->code < sizeof names / sizeof names[0] ? names[t->code] : "unknown", t->code,
                    t->bits, t->lanes);
}

// The host reads pinned memory like its own. Managed memory it could read, too, but nobody says
// whether a kernel that writes it has ended.
static hth_err dlpack_device(const hth_dl_tensor *t)
{
    static const char *const names[] = {[HTH_DL_CUDA] = "CUDA",
                                        [HTH_DL_METAL] = "Metal",
                                        [HTH_DL_ROCM] = "ROCm",
                                        [HTH_DL_CUDA_MANAGED] = "managed CUDA",
                                        [HTH_DL_ONEAPI] = "oneAPI"};
    int type = t->device_type;
    if (type == HTH_DL_CPU || type == HTH_DL_CUDA_HOST || type == HTH_DL_ROCM_HOST) {
        return HTH_OK;
    }
    bool named = type >= 0 && type < (int)(sizeof names / sizeof names[0]) && names[type] != NULL;
    return hth_fail(HTH_EINVAL, "it is on %s device %d (DLPack's type %d): copy it to the CPU",
                    named ? names[type] : "another", t->device_id, type);
}

// dlpack_compact is for a tensor with elements; along a dimension of 1 no stride is ever taken.
static hth_err dlpack_compact(const hth_dl_tensor *t)
{
    uint64_t want = 1; // not more than its bytes
    for (int i = t->ndim - 1; i >= 0 && t->strides != NULL; i--) {
        if (t->shape[i] != 1 && (uint64_t)t->strides[i] != want) {
            return hth_fail(HTH_EINVAL,
                            "its dimension %d has stride %lld, not %llu: make it contiguous", i,
                            (long long)t->strides[i], (unsigned long long)want);
        }
        want *= (uint64_t)t->shape[i];
    }
    return HTH_OK;
}

static hth_err dlpack_look(const hth_dl_tensor *t, hearth_tensor *out)
{
    uint64_t bytes;
    HTH_TRY(dlpack_device(t));
    HTH_TRY(dlpack_dtype(t, &out->dtype));
    if (t->ndim > 0 && t->shape == NULL) {
        return hth_fail(HTH_EINVAL, "it has %d dimensions, but no shape", t->ndim);
    }
    HTH_TRY(hth_dtype_bytes_of((int)out->dtype, t->ndim, t->shape, &bytes));
    if (bytes > 0) { // without elements, neither data nor strides say anything
        HTH_TRY(dlpack_compact(t));
        if (t->data == NULL) {
            return hth_fail(HTH_EINVAL, "it has %llu bytes, but no data",
                            (unsigned long long)bytes);
        }
        out->data = (uint8_t *)t->data + t->byte_offset;
    }
    out->bytes = bytes;
    out->rank = t->ndim;
    if (t->ndim > 0) { // a scalar's may be NULL
        memcpy(out->shape, t->shape, (size_t)t->ndim * sizeof out->shape[0]);
    }
    return HTH_OK;
}

static hth_err dlpack_borrow(const hth_dl_tensor *t, const char *name, hearth_tensor *out)
{
    hearth_tensor is = {.name = name};
    hth_err err = dlpack_look(t, &is);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "tensor '%s'", name != NULL ? name : "");
    }
    *out = is;
    return HTH_OK;
}

hearth_status hearth_tensor_from_dlpack(const struct DLManagedTensorVersioned *lent,
                                        const char *name, hearth_tensor *out)
{
    *out = (hearth_tensor){.name = NULL};
    if (lent == NULL) {
        return (hearth_status)hth_fail(HTH_EINVAL, "no tensor is lent");
    }
    if (lent->major != HTH_DL_MAJOR) { // what follows its flags may be something else
        return (hearth_status)hth_fail(
            HTH_ENOTSUP, "tensor '%s' is of DLPack %u.%u, and only %d.x is known",
            name != NULL ? name : "", lent->major, lent->minor, HTH_DL_MAJOR);
    }
    return (hearth_status)dlpack_borrow(&lent->dl_tensor, name, out);
}

hearth_status hearth_tensor_from_dlpack_unversioned(const struct DLManagedTensor *lent,
                                                    const char *name, hearth_tensor *out)
{
    *out = (hearth_tensor){.name = NULL};
    if (lent == NULL) {
        return (hearth_status)hth_fail(HTH_EINVAL, "no tensor is lent");
    }
    return (hearth_status)dlpack_borrow(&lent->dl_tensor, name, out);
}

// ---- what hearth lends

typedef struct dlpack_loan {
    union {
        struct DLManagedTensorVersioned versioned;
        struct DLManagedTensor unversioned;
    } as; // what its user has: first, for the deleters
    int64_t shape[HEARTH_MAX_RANK], strides[HEARTH_MAX_RANK];
    const hearth_tensor *outputs; // the answer, held
} dlpack_loan;

static void dlpack_return(dlpack_loan *loan)
{
    hth_outputs_rele(loan->outputs);
    hth_free(loan);
}

static void dlpack_return_versioned(struct DLManagedTensorVersioned *self)
{
    dlpack_return(self->manager_ctx);
}

static void dlpack_return_unversioned(struct DLManagedTensor *self)
{
    dlpack_return(self->manager_ctx);
}

static hth_dl_tensor dlpack_describe(const hearth_tensor *t, dlpack_loan *loan)
{
    hth_dl_tensor out = {.data = t->bytes > 0 ? t->data : NULL,
                         .device_type = HTH_DL_CPU,
                         .ndim = t->rank,
                         .lanes = 1,
                         .shape = loan->shape,
                         .strides = loan->strides};
    for (size_t i = 0; i < DLPACK_TYPES; i++) {
        if (dlpack_types[i].dtype == t->dtype) {
            out.code = dlpack_types[i].code;
            out.bits = dlpack_types[i].bits;
        }
    }
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        loan->shape[i] = t->shape[i];
        loan->strides[i] = stride;
        stride *= t->bytes > 0 ? t->shape[i] : 1; // without elements the others may be any number
    }
    return out;
}

// dlpack_lend makes a loan that holds the answer; what its user sees is still to be filled in.
static hth_err dlpack_lend(const hearth_tensor *outputs, int output, dlpack_loan **out)
{
    int n = outputs != NULL ? hth_outputs_count(outputs) : 0;
    if (output < 0 || output >= n) {
        return hth_fail(HTH_EINVAL, "there is no output %d: the answer has %d", output, n);
    }
    dlpack_loan *loan = hth_calloc(1, sizeof *loan);
    if (loan == NULL) {
        return hth_no_memory("output '%s' as DLPack's", outputs[output].name);
    }
    loan->outputs = outputs;
    hth_outputs_hold(outputs);
    *out = loan;
    return HTH_OK;
}

hearth_status hearth_outputs_dlpack(const hearth_tensor *outputs, int output,
                                    struct DLManagedTensorVersioned **lent)
{
    dlpack_loan *loan;
    *lent = NULL;
    hth_err err = dlpack_lend(outputs, output, &loan);
    if (err != HTH_OK) {
        return (hearth_status)err;
    }
    loan->as.versioned =
        (struct DLManagedTensorVersioned){.major = HTH_DL_MAJOR,
                                          .minor = HTH_DL_MINOR,
                                          .manager_ctx = loan,
                                          .deleter = dlpack_return_versioned,
                                          .dl_tensor = dlpack_describe(&outputs[output], loan)};
    *lent = &loan->as.versioned;
    return HEARTH_OK;
}

hearth_status hearth_outputs_dlpack_unversioned(const hearth_tensor *outputs, int output,
                                                struct DLManagedTensor **lent)
{
    dlpack_loan *loan;
    *lent = NULL;
    hth_err err = dlpack_lend(outputs, output, &loan);
    if (err != HTH_OK) {
        return (hearth_status)err;
    }
    loan->as.unversioned =
        (struct DLManagedTensor){.dl_tensor = dlpack_describe(&outputs[output], loan),
                                 .manager_ctx = loan,
                                 .deleter = dlpack_return_unversioned};
    *lent = &loan->as.unversioned;
    return HEARTH_OK;
}
