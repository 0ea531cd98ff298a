// SPDX-License-Identifier: Apache-2.0
// server/http/http_chunks.h - a body in chunks (RFC 9112, 7.1): what of it is data, and whether it
// is well-formed. What extensions of chunks say, and headers after the last, has no effect.
#ifndef HTH_SERVER_HTTP_HTTP_CHUNKS_H
#define HTH_SERVER_HTTP_HTTP_CHUNKS_H

#include <stddef.h>
#include <stdint.h>

typedef enum hth_chunks_at {
    HTH_CHUNKS_NONE, // there is no such body, or it is over
    HTH_CHUNKS_FIRST,
    HTH_CHUNKS_SIZE,
    HTH_CHUNKS_BLANK,
    HTH_CHUNKS_EXTENSION,
    HTH_CHUNKS_SIZE_END,
    HTH_CHUNKS_DATA,
    HTH_CHUNKS_DATA_CR,
    HTH_CHUNKS_DATA_END,
    HTH_CHUNKS_TRAILER,
    HTH_CHUNKS_NAME,
    HTH_CHUNKS_VALUE,
    HTH_CHUNKS_TRAILER_END,
    HTH_CHUNKS_END,
} hth_chunks_at;

// Where in a body what comes next is; begins as {HTH_CHUNKS_FIRST}.
typedef struct hth_chunks {
    hth_chunks_at at;
    uint64_t left; // of the present chunk; one that is larger than can be said is the largest
} hth_chunks;

// hth_chunks_take looks at the `bytes` that come next, and changes extensions in them; what
// is after the body's end it leaves alone. NULL, or what is wrong, a sentence.
const char *hth_chunks_take(hth_chunks *chunks, char *text, size_t bytes);

#endif
