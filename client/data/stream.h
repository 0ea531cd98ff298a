// SPDX-License-Identifier: Apache-2.0
// client/data/stream.h - a range of a file, as it is or deflated, read by offset.
#ifndef HTH_CLIENT_DATA_STREAM_H
#define HTH_CLIENT_DATA_STREAM_H

#include "base/err.h"
#include "base/file.h"

#include <stdbool.h>
#include <stdint.h>
#include <zlib.h>

#define HTH_STREAM_RATIO 1032 // of deflate: no byte of input stands for more than so many

typedef enum hth_stream_kind {
    HTH_STREAM_STORED,
    HTH_STREAM_DEFLATE, // bare, as in a zip archive
    HTH_STREAM_GZIP,    // with its header and checksum
} hth_stream_kind;

// What is deflated is inflated as it is read on; a read before that begins again at the front.
// Filled by hth_stream_init; other fields are the stream's own.
typedef struct hth_stream {
    const hth_file *file; // borrowed, as `shown` is
    const char *shown;    // for messages
    hth_stream_kind kind;
    uint64_t from, packed; // the range of the file
    uint64_t bytes;        // what it holds; UINT64_MAX: not known
    uint32_t crc;          // of these bytes, CRC-32
    bool has_crc;          // it is checked where all after the head are read in order
    z_stream z;
    bool begun, ended;
    uint8_t *in;
    uint64_t fed, at;       // bytes of the range taken, bytes given
    uint32_t sum, head_sum; // CRC-32 of [0, summed), [0, head)
    uint64_t summed, head;
} hth_stream;

// hth_stream_init begins a stream over bytes [from, from + packed) of the file. No allocation.
void hth_stream_init(hth_stream *stream, const hth_file *file, const char *shown,
                     hth_stream_kind kind, uint64_t from, uint64_t packed);
void hth_stream_fini(hth_stream *stream); // also of one that is zeroed

// hth_stream_read reads exactly n bytes at `at`. HTH_ECORRUPT: there are fewer, or damaged ones;
// HTH_EIO: the file changed.
hth_err hth_stream_read(hth_stream *stream, uint64_t at, void *out, size_t n);
// hth_stream_some reads n bytes from the beginning, or as many as there are: *got.
hth_err hth_stream_some(hth_stream *stream, void *out, size_t n, size_t *got);
// hth_stream_head says what the first n bytes are, which hth_stream_some has read.
void hth_stream_head(hth_stream *stream, const void *data, size_t n);

#endif
