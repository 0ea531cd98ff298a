// SPDX-License-Identifier: Apache-2.0
// A tensor's elements from JSON text, flat or nested exactly as its shape, straight into its
// memory. Numbers are read as the type says: an integer that its type cannot hold is an error, and
// a real is rounded once.
#include "server/http/tensors/http_json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Elements after which it is looked whether the reading is canceled.
#define READER_LOOKS 65536
// The most bytes of a token that an error quotes.
#define READER_QUOTES 24

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

typedef struct reader {
    const char *p, *end; // after it is text, or the value ends with ']': no number ends there
    hth_dtype dtype;
    const hth_shape *shape;
    char *out;
    size_t size;
    bool nested;
    const atomic_int *canceled; // NULL: never
    unsigned turns;             // since that was looked at
} reader;

static void skip_spaces(reader *r)
{
    while (r->p < r->end && is_space(*r->p)) {
        r->p++;
    }
}

static char peek(reader *r)
{
    skip_spaces(r);
    return r->p < r->end ? *r->p : 0;
}

static bool is_digit(const char *p)
{
    return *p >= '0' && *p <= '9';
}

// number_end returns where the JSON number at `p` ends, or NULL when it is none. *whole: it has
// neither fraction nor exponent.
static const char *number_end(const char *p, bool *whole)
{
    p += *p == '-';
    if (!is_digit(p) || (*p == '0' && is_digit(p + 1))) {
        return NULL;
    }
    while (is_digit(p)) {
        p++;
    }
    *whole = *p != '.' && *p != 'e' && *p != 'E';
    if (*p == '.') {
        if (!is_digit(++p)) {
            return NULL;
        }
        while (is_digit(p)) {
            p++;
        }
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '+' || *p == '-';
        if (!is_digit(p)) {
            return NULL;
        }
        while (is_digit(p)) {
            p++;
        }
    }
    return p;
}

// number_real reads the number in [p, end). Up to 15 digits and a power of ten up to 22 are exact
// in a double, so one multiplication or division rounds correctly; the rest is strtod's.
static double number_real(const char *p, const char *end)
{
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *from = p;
    uint64_t m = 0;
    int digits = 0, places = 0;
    bool negative = *p == '-', point = false;
    for (p += negative; p < end && (is_digit(p) || *p == '.'); p++) {
        if (*p == '.') {
            point = true;
        } else {
            m = m * 10 + (uint64_t)(*p - '0');
            digits++;
            places += point;
        }
        if (digits > 15) {
            return strtod(from, NULL);
        }
    }
    if (p < end) {
        return strtod(from, NULL);
    }
    double v = (double)m / power[places];
    return negative ? -v : v;
}

// token_end returns where the token at r->p ends, which is a byte long at least, where there is
// one.
static const char *token_end(const reader *r)
{
    static const char ends[] = " \t\r\n,:\"[]{}";
    const char *p = r->p;
    bool text = p < r->end && *p == '"', alone = p < r->end && strchr(ends, *p) != NULL;
    p += p < r->end;
    while (p < r->end && (text ? *p != '"' : !alone && strchr(ends, *p) == NULL)) {
        p += text && *p == '\\' && p + 1 < r->end ? 2 : 1;
    }
    return p + (text && p < r->end);
}

// token_refuse quotes the token at r->p, or the beginning of a long one: it is not `what`.
static hth_err token_refuse(const reader *r, const char *what)
{
    const char *end = token_end(r);
    bool all = end - r->p <= READER_QUOTES;
    end = all ? end : r->p + READER_QUOTES;
    for (int i = 0; !all && i < 3 && ((unsigned char)*end & 0xC0) == 0x80; i++) {
        end--; // it was in the middle of a character
    }
    return hth_fail(HTH_EINVAL, "'%.*s%s' is not %s", (int)(end - r->p), r->p, all ? "" : "..",
                    what);
}

static hth_err put_real(reader *r)
{
    bool whole;
    const char *end = number_end(r->p, &whole);
    if (end == NULL) {
        return token_refuse(r, "a number");
    }
    double v = number_real(r->p, end);
    if (isinf(v)) {
        return hth_fail(HTH_EINVAL, "a number exceeds what FP64 can hold");
    }
    if (r->dtype == HTH_DT_F32) {
        float f = (float)v;
        memcpy(r->out, &f, sizeof f);
    } else {
        memcpy(r->out, &v, sizeof v);
    }
    r->p = end;
    return HTH_OK;
}

// integer_range stores the least (as its magnitude) and the largest value of an integer type.
static void integer_range(hth_dtype dt, size_t size, uint64_t *below, uint64_t *most)
{
    bool is_signed = dt == HTH_DT_I8 || dt == HTH_DT_I16 || dt == HTH_DT_I32 || dt == HTH_DT_I64;
    *most = (size == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * size) - 1) >> is_signed;
    *below = is_signed ? *most + 1 : 0;
}

static hth_err put_integer(reader *r)
{
    bool whole = false, negative = *r->p == '-', fits = true;
    const char *end = number_end(r->p, &whole);
    uint64_t v = 0, below, most;
    integer_range(r->dtype, r->size, &below, &most);
    for (const char *p = r->p + negative; end != NULL && whole && p < end; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        fits = fits && v <= (UINT64_MAX - digit) / 10;
        v = v * 10 + digit;
    }
    if (end == NULL || !whole || !fits || v > (negative ? below : most)) {
        const char *name = hth_dtype_name(r->dtype);
        char what[24];
        snprintf(what, sizeof what, "%s %s", name[0] == 'U' ? "a" : "an", name);
        return token_refuse(r, what);
    }
    v = negative ? 0 - v : v;
    memcpy(r->out, &v, r->size); // little-endian
    r->p = end;
    return HTH_OK;
}

static hth_err put_bool(reader *r)
{
    size_t left = (size_t)(r->end - r->p);
    bool yes = left >= 4 && memcmp(r->p, "true", 4) == 0;
    if (!yes && !(left >= 5 && memcmp(r->p, "false", 5) == 0)) {
        return hth_fail(HTH_EINVAL, "a BOOL must be true or false");
    }
    r->p += yes ? 4 : 5;
    *r->out = yes;
    return HTH_OK;
}

static hth_err put_element(reader *r)
{
    skip_spaces(r);
    if (r->dtype == HTH_DT_BOOL) {
        HTH_TRY(put_bool(r));
    } else if (r->dtype == HTH_DT_F32 || r->dtype == HTH_DT_F64) {
        HTH_TRY(put_real(r));
    } else {
        HTH_TRY(put_integer(r));
    }
    r->out += r->size;
    return HTH_OK;
}

// read_array reads `want` elements, or arrays of level + 1.
static hth_err read_array(reader *r, int level)
{
    bool leaves = !r->nested || level == r->shape->rank - 1;
    int64_t want = r->nested ? r->shape->dim[level] : hth_shape_elements(r->shape), n = 0;
    if (peek(r) != '[') {
        return hth_fail(HTH_EINVAL, "the arrays are not nested as the shape is");
    }
    r->p++;
    for (bool more = peek(r) != ']'; more; n++) {
        if (n == want) {
            return hth_fail(HTH_EINVAL, "more than %lld elements where the shape has %lld",
                            (long long)want, (long long)want);
        }
        if (r->turns++ % READER_LOOKS == 0 && r->canceled != NULL && atomic_load(r->canceled)) {
            return hth_fail(HTH_ECANCELED, "the request was canceled");
        }
        HTH_TRY(leaves ? put_element(r) : read_array(r, level + 1));
        char c = peek(r);
        if (c != ',' && c != ']') {
            return hth_fail(HTH_EINVAL, "',' or ']' expected");
        }
        more = c == ',';
        r->p += more;
    }
    r->p++;
    return n == want ? HTH_OK
                     : hth_fail(HTH_EINVAL, "%lld elements where the shape has %lld", (long long)n,
                                (long long)want);
}

bool hth_json_fits(const hth_json_span *span, int64_t elements)
{
    return elements >= 0 && (uint64_t)elements <= span->n / 2 + 1; // a digit and a comma each
}

int64_t hth_json_count(const hth_json_span *span)
{
    int64_t commas = 0;
    size_t values = 0;
    bool array = span->n > 0 && span->p[0] == '[';
    for (size_t i = array ? 1 : 0; i < span->n; i++) {
        commas += span->p[i] == ',';
        values += !is_space(span->p[i]) && span->p[i] != ']';
    }
    return values > 0 ? commas + 1 : 0;
}

hth_err hth_json_read(const hth_json_span *span, const hth_tensor *tensor,
                      const atomic_int *canceled)
{
    reader r = {.p = span->p,
                .end = span->p + span->n,
                .dtype = tensor->dtype,
                .shape = &tensor->shape,
                .out = tensor->data,
                .size = hth_dtype_bytes(tensor->dtype),
                .canceled = canceled};
    if (span->n > 0 && span->p[0] != '[' && hth_shape_elements(&tensor->shape) == 1) {
        HTH_TRY(put_element(&r));
        skip_spaces(&r);
        return r.p == r.end ? HTH_OK : hth_fail(HTH_EINVAL, "unexpected text after the value");
    }
    if (span->n < 2 || span->p[0] != '[' || span->p[span->n - 1] != ']') {
        return hth_fail(HTH_EINVAL, "it is not an array");
    }
    r.p++;
    r.nested = peek(&r) == '[' && tensor->shape.rank > 0;
    r.p = span->p;
    HTH_TRY(read_array(&r, 0));
    skip_spaces(&r);
    return r.p == r.end ? HTH_OK : hth_fail(HTH_EINVAL, "unexpected text after the array");
}
