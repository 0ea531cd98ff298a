// SPDX-License-Identifier: Apache-2.0
// While a piece is made the connection is as during any other work: nothing is read, and nobody
// ends it for being slow. While one goes, it is an answer like others, with the same patience.
#include "server/http/http_stream.h"

#include "base/clock.h"
#include "server/net/account.h"

#include <stdio.h>

void hth_http_stream_begin(hth_http_stream *stream, hth_http_req *req, int status, const char *type,
                           uint64_t length)
{
    hth_http_conn *conn = req->conn;
    char head[HTH_HTTP_REPLY_HEAD];
    stream->conn = conn;
    stream->chunked = length == HTH_HTTP_CHUNKED && req->head.minor > 0;
    stream->last = false;
    req->head.keep = req->head.keep && (length != HTH_HTTP_CHUNKED || stream->chunked);
    conn->stream = stream;
    conn->h->n_answered++;
    size_t n = hth_http_reply_head(conn->h, req, status, type, length, head);
    conn->broken = evbuffer_add(conn->out, head, n) != 0;
}

// stream_over has the connection go on after an answer that is complete, or will never be.
static void stream_over(hth_http_stream *stream)
{
    hth_http_conn *conn = stream->conn;
    conn->req.head.keep = conn->req.head.keep && stream->last && !conn->broken;
    conn->stream = NULL;
    stream->free(stream);
    hth_http_conn_answered(conn);
}

void hth_http_stream_sent(hth_http_stream *stream)
{
    hth_http_conn *conn = stream->conn;
    if (stream->last || conn->broken) {
        stream_over(stream);
        return;
    }
    hth_account_give(conn->sending);
    conn->sending = conn->answer_ns = 0;
    conn->active_ns = hth_now_ns();
    conn->h->n_sending--;
    conn->at = HTH_HTTP_AT_WORK;
    stream->more(stream);
}

// stream_frame makes a piece one chunk, and the last one the end.
static bool stream_frame(const hth_http_stream *stream, struct evbuffer *piece, bool last)
{
    char size[24];
    size_t bytes = evbuffer_get_length(piece);
    if (!stream->chunked) {
        return true;
    }
    if (bytes > 0) { // an empty one would be the end
        int n = snprintf(size, sizeof size, "%zx\r\n", bytes);
        if (evbuffer_prepend(piece, size, (size_t)n) != 0 || evbuffer_add(piece, "\r\n", 2) != 0) {
            return false;
        }
    }
    return !last || evbuffer_add(piece, "0\r\n\r\n", 5) == 0;
}

void hth_http_stream_write(hth_http_stream *stream, struct evbuffer *piece, bool last)
{
    hth_http_conn *conn = stream->conn;
    stream->last = last;
    if (conn->broken || !stream_frame(stream, piece, last)) {
        hth_http_stream_break(stream);
        return;
    }
    if (evbuffer_get_length(piece) > HTH_HTTP_SCRATCH) {
        hth_http_io_bulk();
    }
    hth_http_io_answers(conn, evbuffer_get_length(piece));
    conn->h->n_sending++;
    conn->at = HTH_HTTP_AT_ANSWER;
    conn->broken = evbuffer_add_buffer(conn->out, piece) != 0 || !hth_http_io_write(conn);
    if (conn->broken) {
        evbuffer_drain(conn->out, evbuffer_get_length(conn->out));
    }
    if (evbuffer_get_length(conn->out) == 0) {
        hth_http_stream_sent(stream);
    }
}

void hth_http_stream_break(hth_http_stream *stream)
{
    hth_http_conn *conn = stream->conn;
    evbuffer_drain(conn->out, evbuffer_get_length(conn->out));
    stream->last = false;
    conn->h->n_sending++;
    conn->at = HTH_HTTP_AT_ANSWER;
    stream_over(stream);
}
