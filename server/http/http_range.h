// SPDX-License-Identifier: Apache-2.0
// server/http/http_range.h - parts of content, as the headers Range and Content-Range name them
// (RFC 9110, 14). Pure.
#ifndef HTH_SERVER_HTTP_HTTP_RANGE_H
#define HTH_SERVER_HTTP_HTTP_RANGE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_http_range {
    uint64_t from, end; // bytes [from, end)
    uint64_t total;     // of the whole
} hth_http_range;

// hth_http_content_range reads "bytes 0-99/1000", what a body is a part of. false: it is another
// text, the part lies outside of the whole, or the whole's size is not said.
bool hth_http_content_range(const char *text, hth_http_range *out);

typedef enum hth_http_ranged {
    HTH_HTTP_WHOLE,   // no range, or one that is none of ours: all of it is sent
    HTH_HTTP_PART,    // that of *out
    HTH_HTTP_OUTSIDE, // nothing of it is there: 416
} hth_http_ranged;

// hth_http_range_read reads "bytes=0-99", "bytes=100-" or "bytes=-5" (NULL: there is none) for
// content of `total` bytes. Several ranges at once are not served: the whole is, as any server may.
hth_http_ranged hth_http_range_read(const char *text, uint64_t total, hth_http_range *out);

#endif
