// SPDX-License-Identifier: Apache-2.0
#include "client/data/stream.h"

#include "base/alloc.h"

#include <string.h>

#define STREAM_IN ((size_t)64 << 10)

void hth_stream_init(hth_stream *s, const hth_file *file, const char *shown, hth_stream_kind kind,
                     uint64_t from, uint64_t packed)
{
    *s = (hth_stream){.file = file,
                      .shown = shown,
                      .kind = kind,
                      .from = from,
                      .packed = packed,
                      .bytes = kind == HTH_STREAM_STORED ? packed : UINT64_MAX};
}

void hth_stream_fini(hth_stream *s)
{
    if (s->begun) {
        inflateEnd(&s->z);
    }
    hth_free(s->in);
    s->begun = false;
    s->in = NULL;
}

static hth_err stream_damaged(const hth_stream *s)
{
    return hth_fail(HTH_ECORRUPT, "'%s' is damaged: its compressed data cannot be read", s->shown);
}

// stream_begin goes to the front.
static hth_err stream_begin(hth_stream *s)
{
    if (s->in == NULL && (s->in = hth_alloc(STREAM_IN)) == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory to read '%s'", s->shown);
    }
    if (s->begun) {
        inflateEnd(&s->z);
    }
    memset(&s->z, 0, sizeof s->z);
    s->begun = inflateInit2(&s->z, s->kind == HTH_STREAM_GZIP ? 15 + 16 : -15) == Z_OK;
    s->ended = false;
    s->fed = s->at = 0;
    return s->begun ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory to read '%s'", s->shown);
}

static hth_err stream_feed(hth_stream *s)
{
    uint64_t left = s->packed - s->fed;
    size_t n = left < STREAM_IN ? (size_t)left : STREAM_IN;
    if (n == 0) {
        return hth_fail(HTH_ECORRUPT, "'%s' ends in the middle of its compressed data", s->shown);
    }
    HTH_TRY(hth_file_read(s->file, s->shown, s->from + s->fed, s->in, n));
    s->fed += n;
    s->z.next_in = s->in;
    s->z.avail_in = (uInt)n;
    return HTH_OK;
}

// stream_inflate gives the next n bytes, or (*got) fewer where the data end.
static hth_err stream_inflate(hth_stream *s, uint8_t *out, size_t n, size_t *got)
{
    *got = 0;
    while (*got < n && !s->ended) {
        if (s->z.avail_in == 0) {
            HTH_TRY(stream_feed(s));
        }
        size_t want = n - *got < (1u << 30) ? n - *got : 1u << 30;
        s->z.next_out = out + *got;
        s->z.avail_out = (uInt)want;
        int rc = inflate(&s->z, Z_NO_FLUSH);
        *got += want - s->z.avail_out;
        s->at += want - s->z.avail_out;
        if (rc == Z_STREAM_END) {
            s->ended = true;
        } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
            return stream_damaged(s);
        }
    }
    return HTH_OK;
}

static hth_err stream_seek(hth_stream *s, uint64_t at)
{
    uint8_t skipped[4096];
    size_t got = 1;
    if (!s->begun || at < s->at) {
        HTH_TRY(stream_begin(s));
    }
    while (s->at < at && got > 0) {
        size_t n = at - s->at < sizeof skipped ? (size_t)(at - s->at) : sizeof skipped;
        HTH_TRY(stream_inflate(s, skipped, n, &got));
    }
    return HTH_OK;
}

// stream_sum follows the checksum of what is read in order; the end of a gzip stream is where zlib
// compares its own.
static hth_err stream_sum(hth_stream *s, uint64_t at, const void *data, size_t n)
{
    uint8_t more;
    size_t got;
    if (s->has_crc && (at == s->head || at == s->summed)) {
        s->sum = (uint32_t)crc32_z(at == s->head ? s->head_sum : s->sum, data, n);
        s->summed = at + n;
        if (s->summed == s->bytes && s->sum != s->crc) {
            return hth_fail(HTH_ECORRUPT, "'%s' is damaged: its checksum differs", s->shown);
        }
    }
    if (s->kind != HTH_STREAM_STORED && at + n == s->bytes && !s->ended) {
        HTH_TRY(stream_inflate(s, &more, 1, &got));
        if (got > 0) {
            return hth_fail(HTH_ECORRUPT, "'%s' holds more than the %llu bytes it claims", s->shown,
                            (unsigned long long)s->bytes);
        }
    }
    return HTH_OK;
}

hth_err hth_stream_read(hth_stream *s, uint64_t at, void *out, size_t n)
{
    size_t got = n;
    if (s->kind == HTH_STREAM_STORED) {
        if (at > s->packed || n > s->packed - at) {
            return hth_fail(HTH_ECORRUPT, "'%s' ends too early", s->shown);
        }
        HTH_TRY(hth_file_read(s->file, s->shown, s->from + at, out, n));
        return stream_sum(s, at, out, n);
    }
    HTH_TRY(stream_seek(s, at));
    HTH_TRY(stream_inflate(s, out, n, &got));
    if (got < n) {
        return hth_fail(HTH_ECORRUPT, "'%s' ends too early", s->shown);
    }
    return stream_sum(s, at, out, n);
}

hth_err hth_stream_some(hth_stream *s, void *out, size_t n, size_t *got)
{
    if (s->kind == HTH_STREAM_STORED) {
        *got = n < s->packed ? n : (size_t)s->packed;
        return hth_file_read(s->file, s->shown, s->from, out, *got);
    }
    HTH_TRY(stream_begin(s));
    return stream_inflate(s, out, n, got);
}

void hth_stream_head(hth_stream *s, const void *data, size_t n)
{
    s->head_sum = s->sum = (uint32_t)crc32_z(0, data, n);
    s->head = s->summed = n;
}
