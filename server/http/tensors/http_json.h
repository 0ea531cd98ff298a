// SPDX-License-Identifier: Apache-2.0
// server/http/tensors/http_json.h - requests' JSON: documents and members, checked; tensor data as
// text, in and out, without a tree of values; and text that grows.
#ifndef HTH_SERVER_HTTP_TENSORS_HTTP_JSON_H
#define HTH_SERVER_HTTP_TENSORS_HTTP_JSON_H

#include "graph/tensor.h"

#include <jansson.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Growing text. Out of memory is remembered and told at the end, and so is more than `most` bytes.
typedef struct hth_text {
    char *p;
    size_t n, cap;
    size_t most;                // 0: as much as there is memory for
    bool failed, over;          // over: failed because of `most`
    const atomic_int *canceled; // where not NULL, and set: tensors fail
} hth_text;

void hth_text_add(hth_text *text, const char *chars, size_t bytes);
void hth_text_put(hth_text *text, const char *chars);
void hth_text_int(hth_text *text, int64_t value);
void hth_text_quoted(hth_text *text, const char *chars); // a JSON string
void hth_text_shape(hth_text *text, const hth_shape *shape);
void hth_text_fini(hth_text *text);

// What http.json_depth may be at most.
#define HTH_JSON_MAX_DEPTH 100

// Where the value of an input's "data" stands in a request; p NULL: there is none.
typedef struct hth_json_span {
    const char *p;
    size_t n;
} hth_json_span;

// hth_json_request parses a request's JSON. The values of inputs[i].data are not parsed: data[i]
// says where they stand in `text` (0 is in the document instead). Memory of a large document is
// counted (account.h), and added to *counted, which the caller gives back, on error too; NULL: it
// is not counted. HTH_EINVAL: not JSON, or nested deeper than http.json_depth; HTH_ETOOBIG: more
// than `max` inputs, or too much besides their data; HTH_EBUSY: too much is counted already.
hth_err hth_json_request(const char *text, size_t bytes, hth_json_span *data, int max,
                         uint64_t *counted, json_t **out);
// hth_json_flat parses an object whose members may be tensors: a member that is an array, a number
// or a truth value is not parsed; [i] is in the document instead, and data[i] says where it stands.
hth_err hth_json_flat(const char *text, size_t bytes, hth_json_span *data, int max,
                      uint64_t *counted, json_t **out);
// hth_json_parse parses any other JSON document with the same limits.
hth_err hth_json_parse(const char *text, size_t bytes, json_t **out);

// ---- heads that came before: a client tends to send the same head with each tensor, and parsing
// it is most of what a small request costs

#define HTH_JSON_CACHE_HEADS 16
#define HTH_JSON_CACHE_BYTES 1024 // of the longest that is kept

typedef struct hth_json_cached {
    char *text; // NULL: none
    size_t n;
    json_t *doc; // what it says; never changed
} hth_json_cached;

// All zero at first. One thread at a time.
typedef struct hth_json_cache {
    hth_json_cached head[HTH_JSON_CACHE_HEADS];
    unsigned next; // whose place the next one takes
} hth_json_cache;

// hth_json_cache_request is hth_json_request for a text that may have come before: the caller gets
// one more reference to the same document, and must not change it. Kept are short texts of objects
// without tensors' data, and without an "id", which would make each another one. What is kept was
// within http.json_depth when it came first.
hth_err hth_json_cache_request(hth_json_cache *cache, const char *text, size_t bytes,
                               hth_json_span *data, int max, uint64_t *counted, json_t **out);
void hth_json_cache_fini(hth_json_cache *cache);

// ---- members of an object: the sentence of an error names the key

// hth_json_field stores obj[key], borrowed, or NULL when there is none. HTH_EINVAL: it is not
// `what`.
hth_err hth_json_field(const json_t *obj, const char *key, json_type type, const char *what,
                       json_t **out);
hth_err hth_json_field_needed(const json_t *obj, const char *key, json_type type, const char *what,
                              json_t **out); // HTH_EINVAL also when there is none
// hth_json_field_count stores a whole number that is not negative; *given tells whether it is
// there.
hth_err hth_json_field_count(const json_t *obj, const char *key, uint64_t *out, bool *given);
hth_err hth_json_field_bool(const json_t *obj, const char *key,
                            bool *out); // false when there is none

// ---- tensor data

// hth_json_fits says whether `n` bytes of text can hold that many elements: asked before memory is
// taken for them.
bool hth_json_fits(const hth_json_span *span, int64_t elements);
// hth_json_count says how many values a flat array has, a bare value counting as one.
int64_t hth_json_count(const hth_json_span *span);
// hth_json_read reads numbers or booleans, flat or nested exactly as `tensor`'s shape, into
// tensor->data; a single element may stand without brackets. HTH_EINVAL: the sentence tells what is
// wrong with them; HTH_ECANCELED: *canceled was set (NULL: nobody does).
hth_err hth_json_read(const hth_json_span *span, const hth_tensor *tensor,
                      const atomic_int *canceled);
// hth_json_write appends the elements as a flat array; NaN and infinities are written bare.
void hth_json_write(hth_text *out, const hth_tensor *tensor);
// hth_json_write_flat is the same, but writes a tensor of one element without brackets.
void hth_json_write_flat(hth_text *out, const hth_tensor *tensor);

#endif
