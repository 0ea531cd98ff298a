// SPDX-License-Identifier: Apache-2.0
// server/http/http_head.h - the head of an HTTP/1.x request (RFC 9112): where it ends, and what it
// says. The only reader of heads: what is not well-formed, or what a proxy in front could read
// differently, is refused here and never interpreted. Pure: no connection, no memory of its own.
// The connection bounds its length (http.header_bytes, http_conn.c).
#ifndef HTH_SERVER_HTTP_HTTP_HEAD_H
#define HTH_SERVER_HTTP_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_HTTP_HOST_BYTES 255 // the longest name that DNS has

#define HTH_HTTP_MALFORMED "the request is not well-formed HTTP/1.1"
#define HTH_HTTP_DIFFER                                                                            \
    "the Content-Length headers are no numbers or differ, or there is a Transfer-Encoding as well"

typedef enum hth_http_verb {
    HTH_VERB_GET,
    HTH_VERB_HEAD,
    HTH_VERB_POST,
    HTH_VERB_PUT,
    HTH_VERB_DELETE,
    HTH_VERB_TRACE,
    HTH_VERB_CONNECT,
    HTH_VERB_KNOWN,   // another one of HTTP's: nothing is served for it
    HTH_VERB_UNKNOWN, // none of HTTP's
} hth_http_verb;

typedef enum hth_http_expect {
    HTH_EXPECT_NOTHING,
    HTH_EXPECT_CONTINUE,
    HTH_EXPECT_OTHER,
} hth_http_expect;

// What a head says. Texts lie in the head, end in a zero byte, and are NULL where it has none.
typedef struct hth_http_head {
    hth_http_verb verb;
    int minor;           // HTTP/1.0 or HTTP/1.1; a later one of HTTP/1 counts as 1
    size_t target_bytes; // of the request line's target
    const char *path;    // of it, without a host and without what begins with '?' or '#'
    const char *query;   // what stands after the '?', without what begins with '#'; NULL: none
    // what the server was called by, with its port: the target's host, which counts alone where
    // there is one, or the Host header's; not ended; NULL: neither
    const char *host;
    size_t host_bytes;
    bool absolute; // the host is the target's
    const char *authorization, *origin, *content_encoding, *accept_encoding;
    const char *json_bytes;                         // Inference-Header-Content-Length
    const char *range, *content_range, *last_event; // Range, Content-Range, Last-Event-ID
    bool forwarded;                                 // a proxy says that it passes the request on
    bool keep;                                      // the connection may be used again
    bool sized, chunked; // a body follows: of `length` bytes; .. in chunks
    bool coded;          // Transfer-Encoding is another one
    uint64_t length;     // UINT64_MAX: also what is more
    hth_http_expect expect;
} hth_http_head;

// hth_http_head_end looks for the end of a head in its first `bytes`, and returns how long it
// is, with the empty line that ends it; 0: it is not there yet. *seen, 0 at first, keeps what was
// searched already.
size_t hth_http_head_end(const char *text, size_t bytes, size_t *seen);

// hth_http_head_read reads a whole head of `bytes` with room for one more after them; the text
// is changed and must outlive *out. Returns NULL, or a sentence about what is wrong (400): then
// *out has what came before it, and nobody may read on, for nobody knows where the request ends.
const char *hth_http_head_read(char *text, size_t bytes, hth_http_head *out);

#endif
