// SPDX-License-Identifier: Apache-2.0
#include "client/data/stream.h"

#include "base/alloc.h"

#include <string.h>

#define STREAM_IN ((size_t)64 << 10)

void hth_stream_init(hth_stream *stream, const hth_file *file, const char *shown,
                     hth_stream_kind kind, uint64_t from, uint64_t packed)
{
    *stream = (hth_stream){.file = file,
                           .shown = shown,
                           .kind = kind,
                           .from = from,
                           .packed = packed,
                           .bytes = kind == HTH_STREAM_STORED ? packed : UINT64_MAX};
}

void hth_stream_fini(hth_stream *stream)
{
    if (stream->begun) {
        inflateEnd(&stream->z);
    }
    hth_free(stream->in);
    stream->begun = false;
    stream->in = NULL;
}

static hth_err stream_damaged(const hth_stream *stream)
{
    return hth_fail(HTH_ECORRUPT, "'%s' is damaged: its compressed data cannot be read",
                    stream->shown);
}

// stream_begin goes to the front.
static hth_err stream_begin(hth_stream *stream)
{
    if (stream->in == NULL && (stream->in = hth_alloc(STREAM_IN)) == NULL) {
        return hth_no_memory("reading '%s'", stream->shown);
    }
    if (stream->begun) {
        inflateEnd(&stream->z);
    }
    memset(&stream->z, 0, sizeof stream->z);
    stream->begun =
        inflateInit2(&stream->z, stream->kind == HTH_STREAM_GZIP ? 15 + 16 : -15) == Z_OK;
    stream->ended = false;
    stream->fed = stream->at = 0;
    return stream->begun ? HTH_OK : hth_no_memory("reading '%s'", stream->shown);
}

static hth_err stream_feed(hth_stream *stream)
{
    uint64_t left = stream->packed - stream->fed;
    size_t n = left < STREAM_IN ? (size_t)left : STREAM_IN;
    if (n == 0) {
        return hth_fail(HTH_ECORRUPT, "'%s' ends in the middle of its compressed data",
                        stream->shown);
    }
    HTH_TRY(hth_file_read(stream->file, stream->shown, stream->from + stream->fed, stream->in, n));
    stream->fed += n;
    stream->z.next_in = stream->in;
    stream->z.avail_in = (uInt)n;
    return HTH_OK;
}

// stream_inflate gives the next n bytes, or (*got) fewer where the data end.
static hth_err stream_inflate(hth_stream *stream, uint8_t *out, size_t n, size_t *got)
{
    *got = 0;
    while (*got < n && !stream->ended) {
        if (stream->z.avail_in == 0) {
            HTH_TRY(stream_feed(stream));
        }
        size_t want = n - *got < (1u << 30) ? n - *got : 1u << 30;
        stream->z.next_out = out + *got;
        stream->z.avail_out = (uInt)want;
        int rc = inflate(&stream->z, Z_NO_FLUSH);
        *got += want - stream->z.avail_out;
        stream->at += want - stream->z.avail_out;
        if (rc == Z_STREAM_END) {
            stream->ended = true;
        } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
            return stream_damaged(stream);
        }
    }
    return HTH_OK;
}

static hth_err stream_seek(hth_stream *stream, uint64_t at)
{
    uint8_t skipped[4096];
    size_t got = 1;
    if (!stream->begun || at < stream->at) {
        HTH_TRY(stream_begin(stream));
    }
    while (stream->at < at && got > 0) {
        size_t n = at - stream->at < sizeof skipped ? (size_t)(at - stream->at) : sizeof skipped;
        HTH_TRY(stream_inflate(stream, skipped, n, &got));
    }
    return HTH_OK;
}

// stream_sum follows the checksum of what is read in order; the end of a gzip stream is where zlib
// compares its own.
static hth_err stream_sum(hth_stream *stream, uint64_t at, const void *data, size_t n)
{
    uint8_t more;
    size_t got;
    if (stream->has_crc && (at == stream->head || at == stream->summed)) {
        stream->sum =
            (uint32_t)crc32_z(at == stream->head ? stream->head_sum : stream->sum, data, n);
        stream->summed = at + n;
        if (stream->summed == stream->bytes && stream->sum != stream->crc) {
            return hth_fail(HTH_ECORRUPT, "'%s' is damaged: its checksum differs", stream->shown);
        }
    }
    if (stream->kind != HTH_STREAM_STORED && at + n == stream->bytes && !stream->ended) {
        HTH_TRY(stream_inflate(stream, &more, 1, &got));
        if (got > 0) {
            return hth_fail(HTH_ECORRUPT, "'%s' holds more than the %llu bytes it claims",
                            stream->shown, (unsigned long long)stream->bytes);
        }
    }
    return HTH_OK;
}

hth_err hth_stream_read(hth_stream *stream, uint64_t at, void *out, size_t n)
{
    size_t got = n;
    if (stream->kind == HTH_STREAM_STORED) {
        if (at > stream->packed || n > stream->packed - at) {
            return hth_fail(HTH_ECORRUPT, "'%s' ends too early", stream->shown);
        }
        HTH_TRY(hth_file_read(stream->file, stream->shown, stream->from + at, out, n));
        return stream_sum(stream, at, out, n);
    }
    HTH_TRY(stream_seek(stream, at));
    HTH_TRY(stream_inflate(stream, out, n, &got));
    if (got < n) {
        return hth_fail(HTH_ECORRUPT, "'%s' ends too early", stream->shown);
    }
    return stream_sum(stream, at, out, n);
}

hth_err hth_stream_some(hth_stream *stream, void *out, size_t n, size_t *got)
{
    if (stream->kind == HTH_STREAM_STORED) {
        *got = n < stream->packed ? n : (size_t)stream->packed;
        return hth_file_read(stream->file, stream->shown, stream->from, out, *got);
    }
    HTH_TRY(stream_begin(stream));
    return stream_inflate(stream, out, n, got);
}

void hth_stream_head(hth_stream *stream, const void *data, size_t n)
{
    stream->head_sum = stream->sum = (uint32_t)crc32_z(0, data, n);
    stream->head = stream->summed = n;
}
