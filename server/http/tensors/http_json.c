// SPDX-License-Identifier: Apache-2.0
// Requests' JSON. A tensor's elements would cost a tree of values of some 40 bytes each; therefore
// one pass over the text finds the values of inputs[i].data, the rest is parsed by jansson with a 0
// in their place, and the elements are read straight into the tensor (http_elements.c). The pass
// also bounds the depth, and how many values are left to jansson.
//
// The pass needs no grammar: what it takes out is read strictly, and what it leaves must parse.
#include "server/http/tensors/http_json.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "server/net/account.h"

#include <string.h>

// The most values that jansson is given, which the loop frees; what each takes; and from where on
// that is counted.
#define JSON_MOST_VALUES (64 << 10)
#define JSON_VALUE_BYTES 100
#define JSON_COUNTED     (64 << 10)
// The most text besides tensors' data: jansson takes a second for some 30 MiB.
#define JSON_MOST_TEXT (16 << 20)
// Blanks that are worth leaving out.
#define JSON_BLANKS 256

// ---- the pass

typedef struct pass {
    const char *text;
    size_t n;
    hth_json_span *data; // NULL: nothing is taken out
    bool flat;           // the document's own members are taken out, not its inputs' data
    int max, input;      // the element of "inputs" that is being looked at
    char open[HTH_JSON_MAX_DEPTH];
    int depth, deepest;
    int values;              // about so many are left
    bool key;                // a string here is a key
    bool in_inputs, at_data; // inside the array; after the key "data" of one of its objects
    bool inputs_next;        // after the key "inputs" of the document
    size_t copied;           // text up to here is in `rest`
    hth_text rest;
} pass;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static hth_err pass_deep(const pass *s)
{
    return hth_fail(HTH_EINVAL, "JSON nesting depth exceeds maximum allowed limit (%d)",
                    s->deepest);
}

// string_end returns the index after the string that begins at `i`.
static size_t string_end(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++) {
        i += text[i] == '\\';
    }
    return i < n ? i + 1 : n;
}

// value_end returns the index after the value that begins at `i`.
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
            if (++depth + s->depth > s->deepest) {
                return pass_deep(s);
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

// pass_take takes out the value that begins after `i`, which is at the colon.
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
    if (s->flat) {
        hth_text_put(&s->rest, "[");
        hth_text_int(&s->rest, s->input++);
        hth_text_put(&s->rest, "]");
    } else {
        hth_text_put(&s->rest, "0");
    }
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
    if (s->depth == s->deepest) {
        return pass_deep(s);
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

// pass_flat_value says that after the colon at `i` a member begins that may be a tensor.
static bool pass_flat_value(const pass *s, size_t i)
{
    do {
        i++;
    } while (i < s->n && is_space(s->text[i]));
    return s->flat && s->depth == 1 && i < s->n && strchr("[-0123456789tf", s->text[i]) != NULL &&
           s->text[i] != 0;
}

// pass_count counts values by what stands before them.
static hth_err pass_count(pass *s)
{
    return ++s->values <= JSON_MOST_VALUES
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG, "the JSON has more than %d values outside its tensors' data",
                          JSON_MOST_VALUES);
}

// pass_blanks returns the index after the blanks that begin at `i`. Many are left out, but for the
// first: jansson takes ten times as long for each.
static size_t pass_blanks(pass *s, size_t i)
{
    size_t from = i + 1;
    while (i < s->n && is_space(s->text[i])) {
        i++;
    }
    if (i - from >= JSON_BLANKS) {
        hth_text_add(&s->rest, s->text + s->copied, from - s->copied);
        s->copied = i;
    }
    return i;
}

static hth_err pass_run(pass *s)
{
    for (size_t i = 0; i < s->n;) {
        char c = s->text[i];
        if (is_space(c)) {
            i = pass_blanks(s, i);
            continue;
        }
        if (c == '"') {
            size_t to = string_end(s->text, s->n, i);
            pass_string(s, i, to);
            i = to;
            continue;
        }
        if (c == '{' || c == '[') {
            HTH_TRY(pass_count(s));
            HTH_TRY(pass_open(s, c));
        } else if (c == '}' || c == ']') {
            s->depth -= s->depth > 0;
            s->in_inputs = s->in_inputs && s->depth >= 2;
        } else if (c == ',') {
            HTH_TRY(pass_count(s));
            s->key = s->depth > 0 && s->open[s->depth - 1] == '{';
            s->input += s->depth == 2 && s->in_inputs;
        } else if (c == ':' &&
                   ((s->at_data && s->data != NULL && !s->flat) || pass_flat_value(s, i))) {
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
                          hth_err_json(e.text), e.position);
}

// pass_hold counts the memory that the values take, before they are parsed; and refuses what takes
// jansson too long.
static hth_err pass_hold(const pass *s, uint64_t *counted)
{
    uint64_t bytes = (uint64_t)s->values * JSON_VALUE_BYTES;
    size_t text = s->rest.n + s->n - s->copied;
    if (s->data != NULL && text > JSON_MOST_TEXT) {
        return hth_fail(HTH_ETOOBIG,
                        "the JSON has %zu bytes outside its tensors' data; at most %d are read",
                        text, JSON_MOST_TEXT);
    }
    if (counted != NULL && bytes > JSON_COUNTED) {
        if (!hth_account_take(bytes)) {
            return hth_fail(HTH_EBUSY, "the server holds too much for its clients: try again");
        }
        *counted += bytes;
    }
    return HTH_OK;
}

static hth_err json_request(const char *text, size_t n, bool flat, hth_json_span *data, int max,
                            uint64_t *counted, json_t **out)
{
    *out = NULL;
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { // a byte order mark
        text += 3;
        n -= 3;
    }
    pass s = {.text = text,
              .n = n,
              .data = data,
              .flat = flat,
              .max = max,
              .deepest = (int)hth_setting_int(HTH_SET_HTTP_JSON_DEPTH)};
    hth_err err;
    HTH_GOTO(pass_run(&s), done);
    HTH_GOTO(pass_hold(&s, counted), done);
    if (s.copied == 0) {
        err = json_load(text, n, out);
        goto done;
    }
    hth_text_add(&s.rest, text + s.copied, n - s.copied);
    err = s.rest.failed ? hth_no_memory("a request") : json_load(s.rest.p, s.rest.n, out);
done:
    hth_text_fini(&s.rest);
    return err;
}

hth_err hth_json_request(const char *text, size_t bytes, hth_json_span *data, int max,
                         uint64_t *counted, json_t **out)
{
    return json_request(text, bytes, false, data, max, counted, out);
}

hth_err hth_json_flat(const char *text, size_t bytes, hth_json_span *data, int max,
                      uint64_t *counted, json_t **out)
{
    return json_request(text, bytes, true, data, max, counted, out);
}

hth_err hth_json_parse(const char *text, size_t bytes, json_t **out)
{
    return hth_json_request(text, bytes, NULL, 0, NULL, out);
}

// ---- heads that came before

// seen_recurs tells whether a head is of a kind that comes again as it is.
static bool seen_recurs(const json_t *doc, const hth_json_span *data, int max)
{
    const json_t *id = json_object_get(doc, "id");
    if (!json_is_object(doc) || (id != NULL && json_string_length(id) > 0)) {
        return false;
    }
    for (int i = 0; i < max; i++) {
        if (data[i].p != NULL) { // stands in the text
            return false;
        }
    }
    return true;
}

static void seen_keep(hth_json_cache *cache, const char *text, size_t n, json_t *doc)
{
    hth_json_cached *h = &cache->head[cache->next++ % HTH_JSON_CACHE_HEADS];
    char *copy = hth_memdup(text, n);
    if (copy == NULL) {
        return; // it is parsed again
    }
    hth_free(h->text);
    json_decref(h->doc);
    *h = (hth_json_cached){copy, n, json_incref(doc)};
}

hth_err hth_json_cache_request(hth_json_cache *cache, const char *text, size_t bytes,
                               hth_json_span *data, int max, uint64_t *counted, json_t **out)
{
    for (const hth_json_cached *h = cache->head; h < cache->head + HTH_JSON_CACHE_HEADS; h++) {
        if (h->n == bytes && h->text != NULL && memcmp(h->text, text, bytes) == 0) {
            *out = json_incref(h->doc);
            return HTH_OK;
        }
    }
    HTH_TRY(hth_json_request(text, bytes, data, max, counted, out));
    if (bytes <= HTH_JSON_CACHE_BYTES && seen_recurs(*out, data, max)) {
        seen_keep(cache, text, bytes, *out);
    }
    return HTH_OK;
}

void hth_json_cache_fini(hth_json_cache *cache)
{
    for (hth_json_cached *h = cache->head; h < cache->head + HTH_JSON_CACHE_HEADS; h++) {
        hth_free(h->text);
        json_decref(h->doc);
    }
    memset(cache, 0, sizeof *cache);
}

// ---- members of an object

hth_err hth_json_field(const json_t *obj, const char *key, json_type type, const char *what,
                       json_t **out)
{
    *out = json_object_get(obj, key);
    return *out == NULL || json_typeof(*out) == type
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "Unable to parse '%s': it is not %s", key, what);
}

hth_err hth_json_field_needed(const json_t *obj, const char *key, json_type type, const char *what,
                              json_t **out)
{
    HTH_TRY(hth_json_field(obj, key, type, what, out));
    return *out != NULL ? HTH_OK : hth_fail(HTH_EINVAL, "Unable to parse '%s': it is missing", key);
}

hth_err hth_json_field_count(const json_t *obj, const char *key, uint64_t *out, bool *given)
{
    json_t *v;
    HTH_TRY(hth_json_field(obj, key, JSON_INTEGER, "a whole number", &v));
    *given = v != NULL;
    *out = v != NULL ? (uint64_t)json_integer_value(v) : 0;
    return v == NULL || json_integer_value(v) >= 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "Unable to parse '%s': it is negative", key);
}

hth_err hth_json_field_bool(const json_t *obj, const char *key, bool *out)
{
    json_t *v = json_object_get(obj, key);
    if (v != NULL && !json_is_boolean(v)) {
        return hth_fail(HTH_EINVAL, "Unable to parse '%s': it is neither true nor false", key);
    }
    *out = json_is_true(v);
    return HTH_OK;
}
