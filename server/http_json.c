// SPDX-License-Identifier: Apache-2.0
// Requests' JSON. A tensor's elements would cost a tree of values of some 40 bytes each; therefore
// one pass over the text finds the values of inputs[i].data, the rest is parsed by jansson with a 0
// in their place, and the elements are read straight into the tensor. The pass also bounds the
// depth.
//
// The pass needs no grammar: what it takes out is read strictly, and what it leaves must parse.
#include "server/http_json.h"

#include "base/alloc.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

// ---- the pass

typedef struct pass {
    const char *text;
    size_t n;
    hth_json_span *data; // NULL: nothing is taken out
    int max, input;      // the element of "inputs" that is being looked at
    char open[HTH_JSON_MAX_DEPTH];
    int depth;
    bool key;                // a string here is a key
    bool in_inputs, at_data; // inside the array; behind the key "data" of one of its objects
    bool inputs_next;        // behind the key "inputs" of the document
    size_t copied;           // text up to here is in `rest`
    hth_text rest;
} pass;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static hth_err pass_deep(void)
{
    return hth_fail(HTH_EINVAL, "JSON nesting depth exceeds maximum allowed limit (%d)",
                    HTH_JSON_MAX_DEPTH);
}

// string_end returns the index behind the string that begins at `i`.
static size_t string_end(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++) {
        i += text[i] == '\\';
    }
    return i < n ? i + 1 : n;
}

// value_end returns the index behind the value that begins at `i`.
static hth_err value_end(const pass *s, size_t i, size_t *out)
{
    int depth = 0;
    while (i < s->n) {
        char c = s->text[i];
        if (c == '"') {
            i = string_end(s->text, s->n, i);
            continue;
        }
        if (c == '[' || c == '{') {
            if (++depth + s->depth > HTH_JSON_MAX_DEPTH) {
                return pass_deep();
            }
        } else if (depth > 0 && (c == ']' || c == '}')) {
            if (--depth == 0) {
                i++;
                break;
            }
        } else if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
            break;
        }
        i++;
    }
    *out = i;
    return HTH_OK;
}

// pass_take takes out the value that begins behind `i`, which is at the colon.
static hth_err pass_take(pass *s, size_t *i)
{
    size_t from = *i + 1, to = 0;
    while (from < s->n && is_space(s->text[from])) {
        from++;
    }
    if (s->input >= s->max) {
        return hth_fail(HTH_ETOOBIG, "more than %d inputs", s->max);
    }
    HTH_TRY(value_end(s, from, &to));
    s->data[s->input] = (hth_json_span){s->text + from, to - from};
    hth_text_add(&s->rest, s->text + s->copied, from - s->copied);
    hth_text_put(&s->rest, "0");
    s->copied = to;
    *i = to;
    return HTH_OK;
}

static bool pass_is(const pass *s, size_t from, size_t to, const char *word)
{
    return to - from == strlen(word) + 2 && memcmp(s->text + from + 1, word, strlen(word)) == 0;
}

static hth_err pass_open(pass *s, char c)
{
    if (s->depth == HTH_JSON_MAX_DEPTH) {
        return pass_deep();
    }
    s->open[s->depth++] = c;
    s->key = c == '{';
    if (s->depth == 2) {
        s->in_inputs = c == '[' && s->inputs_next;
        s->input = s->in_inputs ? 0 : s->input;
    }
    s->inputs_next = s->at_data = false;
    return HTH_OK;
}

static void pass_string(pass *s, size_t from, size_t to)
{
    s->inputs_next = s->key && s->depth == 1 && pass_is(s, from, to, "inputs");
    s->at_data = s->key && s->depth == 3 && s->in_inputs && pass_is(s, from, to, "data");
    s->key = false;
}

static hth_err pass_run(pass *s)
{
    for (size_t i = 0; i < s->n;) {
        char c = s->text[i];
        if (c == '"') {
            size_t to = string_end(s->text, s->n, i);
            pass_string(s, i, to);
            i = to;
            continue;
        }
        if (c == '{' || c == '[') {
            HTH_TRY(pass_open(s, c));
        } else if (c == '}' || c == ']') {
            s->depth -= s->depth > 0;
            s->in_inputs = s->in_inputs && s->depth >= 2;
        } else if (c == ',') {
            s->key = s->depth > 0 && s->open[s->depth - 1] == '{';
            s->input += s->depth == 2 && s->in_inputs;
        } else if (c == ':' && s->at_data && s->data != NULL) {
            s->at_data = false;
            HTH_TRY(pass_take(s, &i));
            continue;
        }
        i++;
    }
    return HTH_OK;
}

static hth_err json_load(const char *text, size_t n, json_t **out)
{
    json_error_t e;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    return *out != NULL
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "Failed to parse the request JSON buffer: %s (at byte %d)",
                          e.text, e.position);
}

hth_err hth_json_request(const char *text, size_t n, hth_json_span *data, int max, json_t **out)
{
    *out = NULL;
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { // a byte order mark
        text += 3;
        n -= 3;
    }
    pass s = {.text = text, .n = n, .data = data, .max = max};
    hth_err err = pass_run(&s);
    if (err == HTH_OK && s.copied > 0) {
        hth_text_add(&s.rest, text + s.copied, n - s.copied);
        err = s.rest.failed ? hth_fail(HTH_ENOMEM, "out of memory for a request")
                            : json_load(s.rest.p, s.rest.n, out);
    } else if (err == HTH_OK) {
        err = json_load(text, n, out);
    }
    hth_text_fini(&s.rest);
    return err;
}

hth_err hth_json_parse(const char *text, size_t n, json_t **out)
{
    return hth_json_request(text, n, NULL, 0, out);
}

// ---- elements

typedef struct reader {
    const char *p, *end; // the value ends with ']', so a number never does
    hth_dtype dtype;
    const hth_shape *shape;
    char *out;
    size_t size;
    bool nested;
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

static hth_err put_real(reader *r)
{
    bool whole;
    const char *end = number_end(r->p, &whole);
    if (end == NULL) {
        return hth_fail(HTH_EINVAL, "'%.*s' is not a number",
                        (int)(r->end - r->p > 16 ? 16 : r->end - r->p), r->p);
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
        int n = (int)(r->end - r->p > 24 ? 24 : r->end - r->p);
        return hth_fail(HTH_EINVAL, "'%.*s' is not an %s",
                        (int)strcspn(r->p, ",]") < n ? (int)strcspn(r->p, ",]") : n, r->p,
                        hth_dtype_name(r->dtype));
    }
    v = negative ? 0 - v : v;
    memcpy(r->out, &v, r->size); // little-endian
    r->p = end;
    return HTH_OK;
}

static hth_err put_bool(reader *r)
{
    size_t left = (size_t)(r->end - r->p);
    bool yes = left > 4 && memcmp(r->p, "true", 4) == 0;
    if (!yes && !(left > 5 && memcmp(r->p, "false", 5) == 0)) {
        return hth_fail(HTH_EINVAL, "a BOOL is true or false");
    }
    r->p += yes ? 4 : 5;
    *r->out = yes;
    return HTH_OK;
}

static hth_err put_element(reader *r)
{
    skip_spaces(r);
    HTH_TRY(r->dtype == HTH_DT_BOOL                            ? put_bool(r)
            : r->dtype == HTH_DT_F32 || r->dtype == HTH_DT_F64 ? put_real(r)
                                                               : put_integer(r));
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

bool hth_json_fits(const hth_json_span *s, int64_t elements)
{
    return elements >= 0 && (uint64_t)elements <= s->n / 2 + 1; // a digit and a comma each
}

hth_err hth_json_read(const hth_json_span *s, const hth_tensor *t)
{
    reader r = {s->p, s->p + s->n, t->dtype, &t->shape, t->data, hth_dtype_bytes(t->dtype), false};
    if (s->n < 2 || s->p[0] != '[' || s->p[s->n - 1] != ']') {
        return hth_fail(HTH_EINVAL, "it is not an array");
    }
    r.p++;
    r.nested = peek(&r) == '[' && t->shape.rank > 0;
    r.p = s->p;
    HTH_TRY(read_array(&r, 0));
    skip_spaces(&r);
    return r.p == r.end ? HTH_OK : hth_fail(HTH_EINVAL, "something follows the array");
}
