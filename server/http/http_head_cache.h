// SPDX-License-Identifier: Apache-2.0
// server/http/http_head_cache.h - the JSON heads of inferences that came before. A client tends to
// send the same head with each tensor; parsing it is most of what a small request costs.
#ifndef HTH_SERVER_HTTP_HTTP_HEAD_CACHE_H
#define HTH_SERVER_HTTP_HTTP_HEAD_CACHE_H

#include "server/http/tensors/http_json.h"

#define HTH_HEAD_CACHE_HEADS 16
#define HTH_HEAD_CACHE_BYTES 1024 // of the longest that is kept

typedef struct hth_head_cache_head {
    char *text; // NULL: none
    size_t n;
    json_t *doc; // what it says; never changed
} hth_head_cache_head;

// All zero at first. One thread at a time.
typedef struct hth_head_cache {
    hth_head_cache_head head[HTH_HEAD_CACHE_HEADS];
    unsigned next; // whose place the next one takes
} hth_head_cache;

// hth_head_cache_request is hth_json_request for a text that may have come before: the caller gets
// one more reference to the same document, and must not change it. Kept are short texts of objects
// without tensors' data, and without an "id", which would make each another one. What is kept was
// within http.json_depth when it came first.
hth_err hth_head_cache_request(hth_head_cache *s, const char *text, size_t n, hth_json_span *data,
                               int max, uint64_t *counted, json_t **out);
void hth_head_cache_fini(hth_head_cache *s);

#endif
