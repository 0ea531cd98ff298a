// SPDX-License-Identifier: Apache-2.0
// A request's head, before its body: who may not send one is told so before it costs memory.
//
// evhttp asks nobody until the body is there. Therefore a head is kept from it until it is whole,
// and looked at: path, verb, rights and size of a request whose body is large, comes in chunks, or
// waits for "100 Continue". All others are looked at when evhttp has them, which is the same check;
// for those this file costs a search for the head's end. What is refused is answered at once; what
// still comes of it is read and dropped, because a connection that is closed over unread bytes
// takes its last answer with it.
#include "server/http/http_call.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/net/account.h"
#include "runtime/redact.h"

#include <event2/bufferevent.h>
#include <event2/keyvalq_struct.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/socket.h>

// A body up to this size may come before its head is looked at.
#define HEAD_BODY_BYTES (64 << 10)
// Empty lines that may come before a request line: old clients send one behind a body.
#define HEAD_EMPTY_LINES 4

typedef struct head {
    char *text;
    size_t bytes;        // up to the body
    uint64_t length;     // the largest that is said
    uint64_t json;       // of the body, in front of tensors: Inference-Header-Content-Length
    bool sized, differs; // it is said; .. not the same each time
    bool coded, expects;
    bool chunked;      // for evhttp, which takes the first coding that is said
    const char *wrong; // a sentence about bytes that others read differently; NULL: there are none
} head;

// ---- reading

static bool line_is(const char *line, const char *name)
{
    size_t n = strlen(name);
    return strncasecmp(line, name, n) == 0 && line[n] == ':';
}

// value_is compares a line's value, up to blanks around it.
static bool value_is(const char *value, const char *word)
{
    size_t n = strlen(word);
    value += strspn(value, " \t");
    return strncasecmp(value, word, n) == 0 && strchr("\r\n", value[n + strspn(value + n, " \t")]);
}

// head_number stays within the line: what strtoull takes for a blank may be its end.
static uint64_t head_number(const char *text)
{
    text += strspn(text, " \t");
    return *text != '\r' && *text != '\n' ? strtoull(text, NULL, 10) : 0;
}

static void head_length(head *d, const char *digits)
{
    uint64_t n = head_number(digits);
    d->differs = d->differs || (d->sized && n != d->length);
    d->length = n > d->length ? n : d->length;
    d->sized = true;
}

// head_line takes what counts out of a line, which ends in '\n'.
static void head_line(head *d, const char *line)
{
    switch (line[0] | 32) {
    case 'c':
        if (line_is(line, "Content-Length")) {
            head_length(d, line + 15);
        }
        break;
    case 't':
        if (line_is(line, "Transfer-Encoding") && !d->coded) {
            d->chunked = value_is(line + 18, "chunked");
            d->coded = true;
        }
        break;
    case 'i':
        if (line_is(line, "Inference-Header-Content-Length")) {
            d->json = head_number(line + 32);
        }
        break;
    case 'e':
        d->expects = d->expects || line_is(line, "Expect");
        break;
    }
}

// head_bytes looks at the bytes of a line, `n` up to its '\n'. A line that begins with a
// blank goes on with the one before it for some readers, and is one of its own for others.
static void head_bytes(head *d, const char *line, size_t n)
{
    const char *cr = memchr(line, '\r', n);
    if (n > 0 && (line[0] == ' ' || line[0] == '\t')) {
        d->wrong = HTH_HTTP_FOLD;
    } else if (cr != NULL && cr + 1 != line + n) {
        d->wrong = HTH_HTTP_CR;
    }
}

// head_read looks for the head's end in the first `n` bytes of `text`. false: it is not there yet.
// A request line that is none is whole: evhttp says what is wrong with it.
static bool head_read(char *text, size_t n, head *d)
{
    *d = (head){.text = text};
    for (const char *line = text, *end = text + n, *next; line < end; line = next) {
        const char *feed = memchr(line, '\n', (size_t)(end - line));
        if (feed == NULL) {
            return false;
        }
        next = feed + 1;
        size_t length = (size_t)(feed - line);
        head_bytes(d, line, length);
        if (line == text && (length < 14 || memchr(line, ' ', length) == NULL)) {
            return true;
        }
        if (length == 0 || (length == 1 && line[0] == '\r')) {
            d->bytes = (size_t)(next - text);
            d->wrong = memchr(text, 0, d->bytes) != NULL ? HTH_HTTP_ZERO : d->wrong;
            return true;
        }
        head_line(d, line);
    }
    return false;
}

// ---- judging

static enum evhttp_cmd_type verb_of(const char *word)
{
    return strcmp(word, "POST") == 0    ? EVHTTP_REQ_POST
           : strcmp(word, "GET") == 0   ? EVHTTP_REQ_GET
           : strcmp(word, "HEAD") == 0  ? EVHTTP_REQ_HEAD
           : strcmp(word, "TRACE") == 0 ? EVHTTP_REQ_TRACE
                                        : EVHTTP_REQ_PUT; // any that nothing is served for
}

// head_fields parses the lines of `text`, which is changed, into `out`.
static void head_fields(char *text, struct evkeyvalq *out)
{
    char *save = NULL;
    for (char *line = strtok_r(text, "\r\n", &save); line != NULL;
         line = strtok_r(NULL, "\r\n", &save)) {
        char *colon = strchr(line, ':');
        if (colon != NULL) {
            *colon = 0;
            evhttp_add_header(out, line, colon + 1 + strspn(colon + 1, " \t"));
        }
    }
}

static bool refusal(hth_http_refusal *no, int status, const char *sentence)
{
    *no = (hth_http_refusal){.status = status};
    snprintf(no->sentence, sizeof no->sentence, "%s", sentence);
    return false;
}

// judge_size looks at what the body would cost. false: refused. Nothing that is got reads a body:
// a small one does no harm.
static bool judge_size(const hth_http *h, const head *d, enum evhttp_cmd_type verb,
                       hth_http_refusal *no)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_BUFFERED_BYTES);
    uint64_t held = hth_account_bytes();
    if (verb == EVHTTP_REQ_GET && (d->coded || d->length > HEAD_BODY_BYTES)) {
        return refusal(no, 413, "a GET has no body of this size, and none in chunks");
    }
    if (d->length <= h->message_bytes && // else evhttp refuses it
        (held > most || d->length > most - held)) {
        return refusal(no, 503, "the server holds too much for its clients: try again");
    }
    return true;
}

// judge_path looks at what is asked for. false: refused.
static bool judge_path(const hth_http_conn *c, const char *target, enum evhttp_cmd_type verb,
                       hth_need *need, hth_http_refusal *no)
{
    if (c->door == &c->h->metrics) {
        *need = HTH_NEED_ANY;
        return true;
    }
    struct evhttp_uri *uri = evhttp_uri_parse_with_flags(target, EVHTTP_URI_NONCONFORMANT);
    const char *allow = NULL;
    int status = 404;
    if (uri != NULL) {
        status = hth_http_route_find(c->h, evhttp_uri_get_path(uri), verb, need);
        allow = status == 405 ? hth_http_route_allow(c->h, evhttp_uri_get_path(uri)) : NULL;
        evhttp_uri_free(uri);
    }
    if (status != 200) {
        refusal(no, status, hth_http_phrase(status));
        no->allow = allow;
    }
    return status == 200;
}

// head_judge tells whether the request may go on; false: refused.
static bool head_judge(hth_http_conn *c, const head *d, char *text, hth_http_refusal *no)
{
    struct evkeyvalq fields;
    hth_need need = HTH_NEED_ANY;
    char *rest = text + strcspn(text, "\n");
    rest += *rest == '\n';
    if (rest != text) {
        rest[-1] = 0;
    }
    // the target is what evhttp takes for it: all between the first space and the last, or nothing
    char *target = strchr(text, ' '), *last = strrchr(text, ' ');
    if (target == last) {
        return true; // evhttp refuses it
    }
    *target++ = *last = 0;
    bool needed = strcmp(last + 1, "HTTP/1.0") != 0 && strcmp(last + 1, "HTTP/1.0\r") != 0;
    enum evhttp_cmd_type verb = verb_of(text);
    if (verb == EVHTTP_REQ_HEAD || verb == EVHTTP_REQ_TRACE) {
        return true; // evhttp reads no body behind these
    }
    if (d->differs || (d->sized && d->coded)) {
        return refusal(no, 400, HTH_HTTP_DIFFER);
    }
    TAILQ_INIT(&fields);
    head_fields(rest, &fields);
    const char *wrong = hth_http_host_wrong(&fields, target, needed);
    wrong = wrong != NULL ? wrong : hth_http_twice(&fields);
    bool may = wrong != NULL ? refusal(no, 400, wrong)
                             : judge_path(c, target, verb, &need, no) &&
                                   hth_http_judge(c->h, c, target, &fields, need, no) &&
                                   judge_size(c->h, d, verb, no);
    evhttp_clear_headers(&fields);
    return may;
}

// ---- refusing

static void refuse_send(hth_http_conn *c, const hth_http_refusal *no, const char *json)
{
    char text[1600], fields[80] = "";
    if (no->allow != NULL) {
        snprintf(fields, sizeof fields, "Allow: %s\r\n", no->allow);
    } else if (no->challenge) {
        strcpy(fields, "WWW-Authenticate: " HTH_HTTP_CHALLENGE "\r\n");
    }
    size_t n = hth_http_error_text(c->h, no->status, fields, json, text, sizeof text);
    if (n == 0) {
        return;
    }
    if (c->tls) {
        hth_http_tls_tell(c->b, text, n);
    } else {
        ssize_t sent = send(c->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent; // who does not read does not get it
    }
    shutdown(c->fd, SHUT_WR);
}

static void head_refuse(hth_http_conn *c, const hth_http_refusal *no)
{
    char sentence[sizeof no->sentence];
    hth_redact(no->sentence, sentence, sizeof sentence);
    json_t *doc = json_pack("{s:s}", "error", sentence);
    char *json = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    hth_log(INFO, SERVER, "http-refused", "status=%d %s", no->status, no->sentence);
    c->told = true;
    c->refused_ns = hth_now_ns();
    refuse_send(c, no, json != NULL ? json : "{}");
    free(json);
    json_decref(doc);
    hth_http_head_drop(c);
}

void hth_http_head_end(hth_http_conn *c)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    int fd = c->fd;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    shutdown(fd, SHUT_RDWR);
}

void hth_http_head_drop(hth_http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->b);
    size_t n = evbuffer_get_length(in);
    c->moving = true;
    evbuffer_drain(in, n);
    c->moving = false;
    hth_account_give(c->bytes);
    c->bytes = 0;
    c->dropped += n;
    if (c->dropped > c->h->message_bytes) {
        hth_http_head_end(c);
    }
}

// ---- coming

// head_give gives evhttp what was kept from it.
static void head_give(hth_http_conn *c, struct evbuffer *in)
{
    c->headed = true;
    if (c->held != NULL) {
        c->moving = true;
        evbuffer_prepend_buffer(in, c->held);
        c->moving = false;
    }
}

// head_hold keeps all that there is from evhttp; false: there is no memory for that.
static bool head_hold(hth_http_conn *c, struct evbuffer *in)
{
    if (c->held == NULL && (c->held = evbuffer_new()) == NULL) {
        return false;
    }
    c->moving = true;
    evbuffer_add_buffer(c->held, in);
    c->moving = false;
    return true;
}

// head_skip drops empty lines in front of a request line (RFC 9112, 2.2), a few: who sends more of
// them means something else. A connection on which nothing else came waits for a request again.
static void head_skip(hth_http_conn *c, struct evbuffer *b)
{
    char two[2];
    for (int i = 0; i < HEAD_EMPTY_LINES; i++) {
        ev_ssize_t n = evbuffer_copyout(b, two, sizeof two);
        size_t line = n > 0 && two[0] == '\n' ? 1 : n == 2 && memcmp(two, "\r\n", 2) == 0 ? 2 : 0;
        if (line == 0) {
            return;
        }
        c->moving = true;
        evbuffer_drain(b, line);
        c->moving = false;
        c->bytes -= line;
        hth_account_give(line);
    }
}

// head_text is the first piece of what has come where the head is in it, else all of it as one.
static char *head_text(struct evbuffer *b, head *d, bool *whole)
{
    struct evbuffer_iovec v = {NULL, 0};
    evbuffer_peek(b, -1, NULL, &v, 1);
    *whole = v.iov_len > 0 && head_read(v.iov_base, v.iov_len, d);
    size_t n = evbuffer_get_length(b);
    if (!*whole && n > v.iov_len) {
        char *text = (char *)evbuffer_pullup(b, (ev_ssize_t)n);
        *whole = text != NULL && head_read(text, n, d);
        return text;
    }
    return v.iov_base;
}

void hth_http_head_chunks(hth_http_conn *c, size_t n)
{
    struct evbuffer *in = bufferevent_get_input(c->b);
    struct evbuffer_iovec v;
    struct evbuffer_ptr at;
    const char *wrong = NULL;
    size_t length = evbuffer_get_length(in);
    while (n > 0 && wrong == NULL && c->chunks.at != HTH_CHUNKS_NONE &&
           evbuffer_ptr_set(in, &at, length - n, EVBUFFER_PTR_SET) == 0 &&
           evbuffer_peek(in, (ev_ssize_t)n, &at, &v, 1) > 0) {
        size_t some = v.iov_len < n ? v.iov_len : n;
        wrong = hth_chunks_take(&c->chunks, v.iov_base, some);
        n -= some;
    }
    if (wrong != NULL) {
        hth_http_refusal no;
        refusal(&no, 400, wrong);
        head_refuse(c, &no);
    }
}

static void head_look(hth_http_conn *c, const head *d)
{
    hth_http_refusal no;
    c->chunks.at = HTH_CHUNKS_NONE;
    if (d->bytes == 0 || (!d->coded && !d->expects && d->length <= HEAD_BODY_BYTES) ||
        atomic_load(&c->h->stopping)) {
        return;
    }
    char *text = hth_alloc(d->bytes + 1);
    if (text == NULL) {
        return; // it is looked at behind its body
    }
    memcpy(text, d->text, d->bytes);
    text[d->bytes] = 0;
    if (!head_judge(c, d, text, &no)) {
        head_refuse(c, &no);
    } else if (d->chunked && strcmp(text, "POST") == 0) {
        c->chunks = (hth_chunks){HTH_CHUNKS_FIRST, 0};
        hth_http_head_chunks(c, evbuffer_get_length(bufferevent_get_input(c->b)) - d->bytes);
    } else if (!c->tls && !d->coded && d->length > HEAD_BODY_BYTES &&
               d->length <= c->h->message_bytes && strcmp(text, "POST") == 0) {
        c->text_due = d->bytes;
        c->due = d->length;
        c->head_due = d->json;
    }
    hth_free(text);
}

void hth_http_head_came(hth_http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->b);
    head d = {.bytes = 0};
    bool whole = false, held = c->held != NULL && evbuffer_get_length(c->held) > 0;
    if (c->headed || evbuffer_get_length(in) == 0) {
        return;
    }
    if (held) {
        held = head_hold(c, in);
    }
    struct evbuffer *all = held ? c->held : in;
    head_skip(c, all);
    if (evbuffer_get_length(all) == 0) {
        c->since_ns = 0;
        return;
    }
    char *text = head_text(all, &d, &whole);
    if (!whole && text != NULL && evbuffer_get_length(all) <= c->h->header_bytes &&
        (held || head_hold(c, in))) {
        return;
    }
    bool over = (whole ? d.bytes : evbuffer_get_length(all)) > c->h->header_bytes;
    head_give(c, in);
    if (over) {
        // evhttp counts without the ends of lines, and would read on
        hth_http_refusal no;
        refusal(&no, 431, HTH_HTTP_LONG);
        head_refuse(c, &no);
    } else if (d.wrong != NULL) {
        hth_http_refusal no;
        refusal(&no, 400, d.wrong);
        head_refuse(c, &no);
    } else if (whole) {
        head_look(c, &d);
    }
}
