// SPDX-License-Identifier: Apache-2.0
// tests/rig/ref_cases.h - reads tests/data/ref_cases.bin: single nodes with inputs and the outputs
// that ONNX expects.
//
// The format, little-endian, without padding (written by tests/tools/make_ref_cases.py):
//   file      = "HTHREF1\0", i64 number of cases, case ..
//   case      = text name, text operator, i32 inputs, i32 outputs, i32 attributes, tensor ..,
//   tensor .., attribute .. text      = u16 length, bytes tensor    = i32 dtype (ONNX's number; 0:
//   absent, nothing follows), i32 rank, i64 dimension .., u64 bytes, bytes attribute = text name,
//   i32 type (hth_attr_type), then i64 | f32 | text | i32 n, i64 .. | i32 n, f32 .. | tensor
// A header, so that each test program that wants the cases is one file. One case is in memory at a
// time.
#ifndef HTH_TESTS_RIG_REF_CASES_H
#define HTH_TESTS_RIG_REF_CASES_H

#include "base/alloc.h"
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

#define REF_CASE_TENSORS 24

typedef struct ref_case {
    char name[128];
    hth_node node; // inputs[i] and outputs[i] are i, or -1 where absent
    hth_tensor in[REF_CASE_TENSORS], want[REF_CASE_TENSORS];
    int index[REF_CASE_TENSORS], out_index[REF_CASE_TENSORS];
    hth_attr attrs[REF_CASE_TENSORS];
} ref_case;

typedef struct ref_cases {
    unsigned char *data;
    size_t bytes, at;
    int64_t left;
    bool bad; // the file ended early or is not such a file
} ref_cases;

static inline void ref_cases_get(ref_cases *cases, void *out, size_t bytes)
{
    memset(out, 0, bytes);
    cases->bad = cases->bad || bytes > cases->bytes - cases->at;
    if (!cases->bad && bytes > 0) {
        memcpy(out, cases->data + cases->at, bytes);
        cases->at += bytes;
    }
}

static inline int32_t ref_cases_i32(ref_cases *cases)
{
    int32_t v;
    ref_cases_get(cases, &v, sizeof v);
    return v;
}

static inline char *ref_cases_text(ref_cases *cases)
{
    uint16_t n;
    ref_cases_get(cases, &n, sizeof n);
    char *s = hth_calloc(1, (size_t)n + 1);
    cases->bad = cases->bad || s == NULL;
    if (!cases->bad) {
        ref_cases_get(cases, s, n);
    }
    return s;
}

static inline void *ref_cases_block(ref_cases *cases, size_t bytes)
{
    cases->bad = cases->bad || bytes > cases->bytes - cases->at;
    size_t most = bytes > 0 ? bytes : 64;
    void *p = cases->bad ? NULL : hth_alloc_aligned(most, 64);
    cases->bad = cases->bad || p == NULL;
    if (p != NULL) {
        ref_cases_get(cases, p, bytes);
    }
    return p;
}

static inline bool ref_cases_tensor(ref_cases *cases, hth_tensor *tensor)
{
    uint64_t bytes;
    *tensor = (hth_tensor){.dtype = (hth_dtype)ref_cases_i32(cases)};
    if (tensor->dtype == HTH_DT_NONE) {
        return false;
    }
    tensor->shape.rank = ref_cases_i32(cases);
    cases->bad = cases->bad || tensor->shape.rank < 0 || tensor->shape.rank > HTH_MAX_RANK;
    for (int d = 0; !cases->bad && d < tensor->shape.rank; d++) {
        ref_cases_get(cases, &tensor->shape.dim[d], sizeof tensor->shape.dim[d]);
    }
    ref_cases_get(cases, &bytes, sizeof bytes);
    tensor->bytes = (size_t)bytes;
    tensor->data = ref_cases_block(cases, tensor->bytes);
    return true;
}

static inline void ref_cases_attr(ref_cases *cases, hth_attr *attr)
{
    hth_tensor t;
    attr->name = ref_cases_text(cases);
    attr->type = (hth_attr_type)ref_cases_i32(cases);
    bool list = attr->type == HTH_ATTR_INTS || attr->type == HTH_ATTR_FLOATS;
    attr->n = list ? ref_cases_i32(cases) : 0;
    switch (attr->type) {
    case HTH_ATTR_INT:
        ref_cases_get(cases, &attr->u.i, sizeof attr->u.i);
        break;
    case HTH_ATTR_FLOAT:
        ref_cases_get(cases, &attr->u.f, sizeof attr->u.f);
        break;
    case HTH_ATTR_STRING:
        attr->u.s = ref_cases_text(cases);
        break;
    case HTH_ATTR_INTS:
        attr->u.ints = ref_cases_block(cases, (size_t)attr->n * sizeof *attr->u.ints);
        break;
    case HTH_ATTR_FLOATS:
        attr->u.floats = ref_cases_block(cases, (size_t)attr->n * sizeof *attr->u.floats);
        break;
    default:
        cases->bad = cases->bad || !ref_cases_tensor(cases, &t) ||
                     hth_const_new(t.dtype, &t.shape, t.data, &attr->u.tensor) != HTH_OK;
        hth_free(t.data);
    }
}

// ref_cases_open reads the file; false (and nothing held) when it is not there or not such a file.
static inline bool ref_cases_open(ref_cases *cases, const char *path)
{
    char magic[8];
    long size = 0;
    *cases = (ref_cases){.data = NULL};
    FILE *file = fopen(path, "rb");
    if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0) {
        rewind(file);
        cases->data = hth_alloc((size_t)size);
        cases->bytes = cases->data ? fread(cases->data, 1, (size_t)size, file) : 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    ref_cases_get(cases, magic, sizeof magic);
    ref_cases_get(cases, &cases->left, sizeof cases->left);
    if (cases->bad || memcmp(magic, "HTHREF1", 8) != 0) {
        hth_free(cases->data);
        return false;
    }
    return true;
}

static inline void ref_cases_close(ref_cases *cases)
{
    hth_free(cases->data);
}

// ref_case_clear frees what ref_cases_next stored.
static inline void ref_case_clear(ref_case *c)
{
    for (int i = 0; i < REF_CASE_TENSORS; i++) {
        hth_free(c->in[i].data);
        hth_free(c->want[i].data);
        hth_free(c->attrs[i].name);
        if (c->attrs[i].type == HTH_ATTR_TENSOR) {
            hth_const_rele(c->attrs[i].u.tensor);
        } else if (c->attrs[i].type != HTH_ATTR_INT && c->attrs[i].type != HTH_ATTR_FLOAT) {
            hth_free(c->attrs[i].u.s); // or ints, floats
        }
    }
    hth_free(c->node.name);
}

// ref_cases_next stores the next case, to be cleared by the caller in any case; false at the end,
// or with cases->bad.
static inline bool ref_cases_next(ref_cases *cases, ref_case *c)
{
    memset(c, 0, sizeof *c);
    if (cases->bad || cases->left-- <= 0) {
        return false;
    }
    hth_node *n = &c->node;
    n->name = ref_cases_text(cases);
    char *op = ref_cases_text(cases);
    if (n->name != NULL && op != NULL) {
        snprintf(c->name, sizeof c->name, "%s", n->name);
        n->op = hth_op_find(op);
    }
    hth_free(op);
    n->n_inputs = ref_cases_i32(cases);
    n->n_outputs = ref_cases_i32(cases);
    n->n_attrs = ref_cases_i32(cases);
    n->inputs = c->index;
    n->outputs = c->out_index;
    n->attrs = c->attrs;
    cases->bad = cases->bad || n->n_inputs > REF_CASE_TENSORS || n->n_outputs > REF_CASE_TENSORS ||
                 n->n_attrs > REF_CASE_TENSORS;
    for (int i = 0; !cases->bad && i < n->n_inputs; i++) {
        c->index[i] = ref_cases_tensor(cases, &c->in[i]) ? i : -1;
    }
    for (int i = 0; !cases->bad && i < n->n_outputs; i++) {
        c->out_index[i] = ref_cases_tensor(cases, &c->want[i]) ? i : -1;
    }
    for (int i = 0; !cases->bad && i < n->n_attrs; i++) {
        ref_cases_attr(cases, &c->attrs[i]);
    }
    return !cases->bad;
}

#endif
