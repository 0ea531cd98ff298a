// SPDX-License-Identifier: Apache-2.0
// server/http/http_stream.h - an answer that is made while it goes: a piece is asked for when the
// one before it has left, so that a reader's pace bounds what is held for it. Loop's thread only.
//
//     WORK --(write)--> ANSWER --(it has left)--> WORK --> more    and, after the last piece, free
#ifndef HTH_SERVER_HTTP_HTTP_STREAM_H
#define HTH_SERVER_HTTP_HTTP_STREAM_H

#include "server/http/http_call.h"

// Who answers so has one of these first in what it keeps for its answer.
struct hth_http_stream {
    hth_http_conn *conn; // of which this is the answer
    bool chunked, last;
    void (*more)(hth_http_stream *stream); // writes, breaks off, or has a call do so later
    void (*free)(hth_http_stream *stream); // it is over, or its client has gone; called once
};

// hth_http_stream_begin answers with a head; `length` may be HTH_HTTP_CHUNKED. What follows is the
// stream's to write: the caller writes the first piece.
void hth_http_stream_begin(hth_http_stream *stream, hth_http_req *req, int status, const char *type,
                           uint64_t length);
// hth_http_stream_write sends a piece, which is emptied. It may call `more` or `free` before it
// returns.
void hth_http_stream_write(hth_http_stream *stream, struct evbuffer *piece, bool last);
// hth_http_stream_break ends an answer that cannot be completed: its client sees the connection end
// too early.
void hth_http_stream_break(hth_http_stream *stream);

#endif
