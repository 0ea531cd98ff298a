// SPDX-License-Identifier: Apache-2.0
// Content codings: gzip and deflate (zlib's format), in requests and, where Accept-Encoding asks
// for it, in answers. What comes out of a request is bounded while it is inflated.
#include "server/http_call.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#define ZIP_PIECE (64 << 10)
// zlib's largest window; 32 more: gzip or zlib, whichever the data say; 16 more: gzip.
#define ZIP_EITHER (15 | 32)
#define ZIP_GZIP   (15 | 16)
#define ZIP_ZLIB   15
// Answers are compressed on the loop: the fastest level.
#define ZIP_LEVEL 1

// zip_run moves all of `in` through `turn` (inflate or deflate) to `out`. *end: the stream's end
// was reached.
static hth_err zip_run(z_stream *z, int (*turn)(z_stream *z, int flush), struct evbuffer *in,
                       struct evbuffer *out, uint64_t limit, bool *end)
{
    *end = false;
    while (!*end) {
        struct evbuffer_iovec from = {NULL, 0}, to;
        bool more = evbuffer_peek(in, -1, NULL, &from, 1) > 0;
        if (evbuffer_reserve_space(out, ZIP_PIECE, &to, 1) != 1) {
            return hth_fail(HTH_ENOMEM, "out of memory for a body");
        }
        z->next_in = from.iov_base;
        z->avail_in = (uInt)(from.iov_len < ZIP_PIECE ? from.iov_len : ZIP_PIECE);
        z->next_out = to.iov_base;
        z->avail_out = ZIP_PIECE;
        size_t offered = z->avail_in;
        int rc = turn(z, more ? Z_NO_FLUSH : Z_FINISH);
        to.iov_len = ZIP_PIECE - z->avail_out;
        evbuffer_commit_space(out, &to, 1);
        evbuffer_drain(in, offered - z->avail_in);
        *end = rc == Z_STREAM_END;
        if (evbuffer_get_length(out) > limit) {
            return hth_fail(HTH_ETOOBIG,
                            "the decompressed request exceeds the maximum allowed input size of "
                            "%llu bytes",
                            (unsigned long long)limit);
        }
        if (!*end &&
            ((rc != Z_OK && rc != Z_BUF_ERROR) || (!more && to.iov_len == 0))) { // broken, or cut
            return hth_fail(HTH_EINVAL, "the body is not what its Content-Encoding says");
        }
    }
    return HTH_OK;
}

static hth_err zip_inflate(struct evbuffer *in, uint64_t limit)
{
    z_stream z = {.next_in = NULL};
    struct evbuffer *out = evbuffer_new();
    bool end;
    if (out == NULL || inflateInit2(&z, ZIP_EITHER) != Z_OK) {
        if (out != NULL) {
            evbuffer_free(out);
        }
        return hth_fail(HTH_ENOMEM, "out of memory for a body");
    }
    hth_err err = zip_run(&z, inflate, in, out, limit, &end);
    inflateEnd(&z);
    if (err == HTH_OK && evbuffer_get_length(in) > 0) {
        err = hth_fail(HTH_EINVAL, "something follows the compressed body");
    }
    if (err == HTH_OK) {
        evbuffer_add_buffer(in, out);
    }
    evbuffer_free(out);
    return err;
}

bool hth_http_inflate(hth_http *h, struct evhttp_request *req)
{
    const char *coding = hth_http_header(req, "Content-Encoding");
    if (coding == NULL || coding[0] == 0 || strcasecmp(coding, "identity") == 0) {
        return true;
    }
    if (strcasecmp(coding, "gzip") != 0 && strcasecmp(coding, "deflate") != 0) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Accept-Encoding",
                          "gzip, deflate");
        hth_http_fail(h, req, HTTP_NOTIMPLEMENTED, "Unsupported Content-Encoding: '%.40s'", coding);
        return false;
    }
    struct evbuffer *body = evhttp_request_get_input_buffer(req);
    size_t packed = evbuffer_get_length(body);
    hth_err err = zip_inflate(body, h->message_bytes);
    hth_http_conn *conn = hth_http_conn_of(h, req);
    if (err == HTH_OK && conn != NULL && evbuffer_get_length(body) > packed) {
        hth_http_conn_grew(conn, evbuffer_get_length(body) - packed);
        if (hth_http_conn_full(h)) {
            hth_http_fail(h, req, HTTP_SERVUNAVAIL,
                          "the server holds too much for its clients: try again");
            return false;
        }
    }
    if (err != HTH_OK) {
        hth_http_fail_err(h, req, err);
    }
    return err == HTH_OK;
}

// ---- answers

// accepted returns the weight that Accept-Encoding gives `coding`; 0: not accepted.
static double accepted(const char *header, const char *coding)
{
    size_t n = strlen(coding);
    for (const char *p = header; *p != 0; p += strcspn(p, ",")) {
        p += strspn(p, ", \t");
        if (strncasecmp(p, coding, n) != 0 || strchr(",; \t", p[n]) == NULL) { // 0 is in it
            continue;
        }
        const char *q = p + n, *end = p + strcspn(p, ",");
        q += strspn(q, " \t;");
        return q + 2 < end && strncasecmp(q, "q=", 2) == 0 ? strtod(q + 2, NULL) : 1;
    }
    return 0;
}

void hth_http_deflate(struct evhttp_request *req, struct evbuffer *body)
{
    const char *header = hth_http_header(req, "Accept-Encoding");
    double gzip = header != NULL ? accepted(header, "gzip") : 0;
    double zlib = header != NULL ? accepted(header, "deflate") : 0;
    z_stream z = {.next_in = NULL};
    bool end;
    struct evbuffer *out = gzip > 0 || zlib > 0 ? evbuffer_new() : NULL;
    if (out == NULL) {
        return; // as it is: nobody must accept a coding
    }
    if (deflateInit2(&z, ZIP_LEVEL, Z_DEFLATED, gzip >= zlib ? ZIP_GZIP : ZIP_ZLIB, 8,
                     Z_DEFAULT_STRATEGY) == Z_OK) {
        if (zip_run(&z, deflate, body, out, UINT64_MAX, &end) == HTH_OK) {
            evbuffer_add_buffer(body, out);
            evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Encoding",
                              gzip >= zlib ? "gzip" : "deflate");
        }
        deflateEnd(&z);
    }
    evbuffer_free(out);
}
