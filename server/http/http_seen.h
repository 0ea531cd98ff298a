// SPDX-License-Identifier: Apache-2.0
// server/http/http_seen.h - the JSON heads of inferences that came before. A client tends to send the
// same head with each tensor; parsing it is most of what a small request costs.
#ifndef HTH_SERVER_HTTP_HTTP_SEEN_H
#define HTH_SERVER_HTTP_HTTP_SEEN_H

#include "server/http/tensors/http_json.h"

#define HTH_SEEN_HEADS 16
#define HTH_SEEN_BYTES 1024 // of the longest that is kept

typedef struct hth_seen_head {
    char *text; // NULL: none
    size_t n;
    json_t *doc; // what it says; never changed
} hth_seen_head;

// All zero at first. One thread at a time.
typedef struct hth_seen {
    hth_seen_head head[HTH_SEEN_HEADS];
    unsigned next; // whose place the next one takes
} hth_seen;

// hth_seen_request is hth_json_request for a text that may have come before: the caller gets one
// more reference to the same document, and must not change it. Kept are short texts of objects
// without tensors' data, and without an "id", which would make each another one. What is kept was
// within http.json_depth when it came first.
hth_err hth_seen_request(hth_seen *s, const char *text, size_t n, hth_json_span *data, int max,
                         uint64_t *counted, json_t **out);
void hth_seen_fini(hth_seen *s);

#endif
