// SPDX-License-Identifier: Apache-2.0
// What happens to a job, as server-sent events: each is an answer of the command "watch", which is
// asked again when it has left, from the number on that it ended with. The stream ends with the
// job. A reader that went away comes back with the number that it has (Last-Event-ID).
#include "server/http/remote/exchange.h"

#include "server/http/http_stream.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FOLLOW_TYPE    "text/event-stream; charset=utf-8"
#define FOLLOW_WAIT_MS 15000 // without an event, until a comment says that the server is there

typedef struct follow {
    hth_http_stream stream;
    hth_http *http;
    hth_http_req *req;
    hth_http_args args;
    uint64_t id, next; // the job's number, 0: not known yet; the event that was sent last
} follow;

typedef struct follow_call {
    hth_exchange base;
    follow *of; // NULL: it has begun, and is the connection's stream
} follow_call;

static void follow_ask(hth_exchange *exchange);

static void follow_free(hth_http_stream *stream)
{
    hth_free(stream);
}

static void follow_end(hth_exchange *exchange)
{
    hth_free(((follow_call *)exchange)->of);
}

static follow *follow_of(hth_exchange *exchange)
{
    const follow_call *call = (follow_call *)exchange;
    return call->of != NULL ? call->of : (follow *)exchange->call.req->conn->stream;
}

static bool state_is_end(const json_t *state)
{
    static const char *const end[] = {"finished", "failed", "canceled"};
    const char *word = json_string_value(state);
    bool is = false;
    for (size_t i = 0; i < sizeof end / sizeof end[0] && word != NULL; i++) {
        is = is || strcmp(word, end[i]) == 0;
    }
    return is;
}

// follow_read notes where an answer ends. True: nothing follows it.
static bool follow_read(follow *of, const json_t *doc)
{
    const json_t *row = json_object_get(doc, "job"), *event;
    json_int_t id = json_integer_value(json_object_get(row, "id"));
    bool over = state_is_end(json_object_get(row, "state"));
    size_t i;
    of->id = id > 0 ? (uint64_t)id : of->id;
    of->next = (uint64_t)json_integer_value(json_object_get(doc, "next"));
    json_array_foreach(json_object_get(doc, "events"), i, event)
    {
        over = over || state_is_end(json_object_get(json_object_get(event, "what"), "state"));
    }
    return over || (row != NULL && of->id == 0); // a job of an older hearth has no number
}

// follow_event makes an answer an event, or a comment where nothing happened.
static bool follow_event(const follow *of, const hth_exchange *exchange, const json_t *doc,
                         struct evbuffer *out)
{
    bool nothing = json_array_size(json_object_get(doc, "events")) == 0 &&
                   json_object_get(doc, "job") == NULL &&
                   !json_is_true(json_object_get(doc, "missed"));
    if (nothing) {
        return evbuffer_add(out, ":\n\n", 3) == 0;
    }
    return evbuffer_add_printf(out, "id: %" PRIu64 "\ndata: ", of->next) > 0 &&
           evbuffer_add(out, exchange->data, exchange->bytes) == 0 &&
           evbuffer_add(out, "\n\n", 2) == 0;
}

static void follow_more(hth_http_stream *stream)
{
    follow *of = (follow *)stream;
    follow_call *call = hth_exchange_again(of->http, of->req, &of->args, sizeof *call);
    if (call == NULL) {
        hth_http_stream_break(stream);
    } else {
        follow_ask(&call->base);
    }
}

// follow_failed: an answer that has begun ends, and its reader comes back, or does not.
static void follow_failed(hth_exchange *exchange, hth_err err, const char *sentence)
{
    if (((follow_call *)exchange)->of != NULL) {
        hth_exchange_fail(exchange, err, sentence);
    } else {
        hth_http_stream_break(exchange->call.req->conn->stream);
    }
}

static void follow_answered(hth_exchange *exchange)
{
    follow_call *call = (follow_call *)exchange;
    follow *of = follow_of(exchange);
    json_t *doc = json_loadb((const char *)exchange->data, exchange->bytes, 0, NULL);
    struct evbuffer *event = evbuffer_new();
    bool over = follow_read(of, doc);
    if (doc == NULL || event == NULL || !follow_event(of, exchange, doc, event)) {
        follow_failed(exchange, HTH_ENOMEM, "out of memory for an answer");
    } else if (of->req->head.verb == HTH_VERB_HEAD) {
        hth_http_send(of->http, of->req, 200, FOLLOW_TYPE, NULL);
    } else {
        if (call->of != NULL) {
            call->of = NULL;
            hth_http_add(of->req, "Cache-Control", "no-store");
            hth_http_stream_begin(&of->stream, of->req, 200, FOLLOW_TYPE, HTH_HTTP_CHUNKED);
        }
        hth_http_stream_write(&of->stream, event, over);
    }
    if (event != NULL) {
        evbuffer_free(event);
    }
    json_decref(doc);
}

static void follow_ask(hth_exchange *exchange)
{
    const follow *of = follow_of(exchange);
    json_t *args = json_pack("{s:i}", "wait_ms", FOLLOW_WAIT_MS);
    if (of->id != 0) {
        json_object_set_new(args, "id", json_integer((json_int_t)of->id));
    } else {
        json_object_set_new(args, "job", json_string(of->args.name));
    }
    if (of->next != 0) {
        json_object_set_new(args, "after", json_integer((json_int_t)of->next));
    }
    exchange->answered = follow_answered;
    exchange->failed = follow_failed;
    hth_exchange_query(exchange, HTH_COMMAND_WATCH, args);
}

// follow_after reads the event that the reader has: the header counts where it comes back.
static bool follow_after(hth_http *http, hth_http_req *req, uint64_t *after)
{
    const char *text = req->head.last_event;
    bool given;
    if (text == NULL) {
        return hth_exchange_count(http, req, "after", INT64_MAX, after, &given);
    }
    size_t n = strspn(text, "0123456789");
    *after = n > 0 && n < 19 && text[n] == 0 ? strtoull(text, NULL, 10) : 0;
    return true; // another one is no event's: it is told where the job stands
}

void hth_http_job_events(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    uint64_t after;
    if (!follow_after(http, req, &after)) {
        return;
    }
    follow_call *call = hth_exchange_new(http, req, args, sizeof *call, follow_answered);
    follow *of = call != NULL ? hth_calloc(1, sizeof *of) : NULL;
    if (call == NULL) {
        return;
    }
    call->base.end = follow_end;
    if (of == NULL) {
        hth_exchange_refuse(&call->base, hth_fail(HTH_ENOMEM, "out of memory for a request"));
        return;
    }
    of->stream.more = follow_more;
    of->stream.free = follow_free;
    of->http = http;
    of->req = req;
    of->args = *args;
    of->next = after;
    call->of = of;
    follow_ask(&call->base);
}
