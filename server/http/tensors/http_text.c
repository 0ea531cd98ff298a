// SPDX-License-Identifier: Apache-2.0
// Text that grows, and tensor elements written as JSON into it. FP64 is written with 17 digits,
// FP32 with 9, FP16 with 5 and BF16 with 4, which give the same bits when read back.
#include "server/http/tensors/http_json.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TEXT_FIRST 512
// The longest element: a sign, 17 digits, a point, "e-308", a comma.
#define TEXT_ELEMENT 32

static bool text_reserve(hth_text *text, size_t n)
{
    if (!text->failed && text->most > 0 && n > text->most - text->n) {
        text->failed = text->over = true;
    }
    if (text->failed || text->cap - text->n >= n) {
        return !text->failed;
    }
    size_t cap = text->cap > 0 ? text->cap : TEXT_FIRST;
    while (cap - text->n < n) {
        cap *= 2;
    }
    char *p = hth_realloc(text->p, cap, 1);
    text->failed = p == NULL;
    if (p != NULL) {
        text->p = p;
        text->cap = cap;
    }
    return p != NULL;
}

void hth_text_add(hth_text *text, const char *chars, size_t bytes)
{
    if (text_reserve(text, bytes)) {
        memcpy(text->p + text->n, chars, bytes);
        text->n += bytes;
    }
}

void hth_text_put(hth_text *text, const char *chars)
{
    hth_text_add(text, chars, strlen(chars));
}

static void text_unsigned(hth_text *text, uint64_t v)
{
    char buf[20]; // the largest has 20 digits
    char *end = buf + sizeof buf, *p = end;
    do {
        *--p = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    hth_text_add(text, p, (size_t)(end - p));
}

void hth_text_int(hth_text *text, int64_t value)
{
    if (value < 0) {
        hth_text_put(text, "-");
    }
    text_unsigned(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void hth_text_quoted(hth_text *text, const char *chars)
{
    hth_text_put(text, "\"");
    for (const char *from = chars;; chars++) {
        unsigned char c = (unsigned char)*chars;
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        hth_text_add(text, from, (size_t)(chars - from));
        if (c == 0) {
            break;
        }
        char escape[8];
        snprintf(escape, sizeof escape, c < 0x20 ? "\\u%04x" : "\\%c", c);
        hth_text_put(text, escape);
        from = chars + 1;
    }
    hth_text_put(text, "\"");
}

void hth_text_shape(hth_text *text, const hth_shape *shape)
{
    hth_text_put(text, "[");
    for (int i = 0; i < shape->rank; i++) {
        hth_text_put(text, i > 0 ? "," : "");
        hth_text_int(text, shape->dim[i]);
    }
    hth_text_put(text, "]");
}

void hth_text_fini(hth_text *text)
{
    hth_free(text->p);
    *text = (hth_text){.p = NULL};
}

static void text_real(hth_text *text, double v, int precision)
{
    char buf[TEXT_ELEMENT];
    if (isnan(v)) {
        hth_text_put(text, "NaN");
    } else if (isinf(v)) {
        hth_text_put(text, v < 0 ? "-Infinity" : "Infinity");
    } else if (fabs(v) < 1e9 && v == (double)(int64_t)v && !signbit(v)) {
        text_unsigned(text, (uint64_t)v);
        hth_text_put(text, ".0");
    } else {
        int n = snprintf(buf, sizeof buf, "%.*g", precision, v);
        if (strcspn(buf, ".e") == (size_t)n) {
            strcpy(buf + n, ".0");
        }
        hth_text_put(text, buf);
    }
}

static void text_element(hth_text *out, hth_dtype dt, const void *at)
{
    switch (dt) {
    case HTH_DT_F32:
        text_real(out, *(const float *)at, 9);
        break;
    case HTH_DT_F64:
        text_real(out, *(const double *)at, 17);
        break;
    case HTH_DT_F16:
        text_real(out, hth_f16_to_f32(*(const uint16_t *)at), 5);
        break;
    case HTH_DT_BF16:
        text_real(out, hth_bf16_to_f32(*(const uint16_t *)at), 4);
        break;
    case HTH_DT_BOOL:
        hth_text_put(out, *(const uint8_t *)at ? "true" : "false");
        break;
    case HTH_DT_I8:
        hth_text_int(out, *(const int8_t *)at);
        break;
    case HTH_DT_U8:
        hth_text_int(out, *(const uint8_t *)at);
        break;
    case HTH_DT_I16:
        hth_text_int(out, *(const int16_t *)at);
        break;
    case HTH_DT_U16:
        hth_text_int(out, *(const uint16_t *)at);
        break;
    case HTH_DT_I32:
        hth_text_int(out, *(const int32_t *)at);
        break;
    case HTH_DT_U32:
        hth_text_int(out, *(const uint32_t *)at);
        break;
    case HTH_DT_I64:
        hth_text_int(out, *(const int64_t *)at);
        break;
    case HTH_DT_U64:
        text_unsigned(out, *(const uint64_t *)at);
        break;
    case HTH_DT_NONE:
    case HTH_DT_STRING:
        break; // no tensor that is served has them
    }
}

void hth_json_write(hth_text *out, const hth_tensor *tensor)
{
    size_t size = hth_dtype_bytes(tensor->dtype);
    hth_text_put(out, "[");
    for (size_t at = 0; at < tensor->bytes && !out->failed; at += size) {
        out->failed = out->canceled != NULL && atomic_load(out->canceled);
        if (at > 0) {
            hth_text_put(out, ",");
        }
        text_element(out, tensor->dtype, (const char *)tensor->data + at);
    }
    hth_text_put(out, "]");
}

void hth_json_write_flat(hth_text *out, const hth_tensor *tensor)
{
    if (tensor->bytes == hth_dtype_bytes(tensor->dtype)) {
        text_element(out, tensor->dtype, tensor->data);
    } else {
        hth_json_write(out, tensor);
    }
}
