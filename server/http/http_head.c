// SPDX-License-Identifier: Apache-2.0
// One pass over the lines of a head. Lines end in CR LF, or all of them in LF alone: where both
// kinds are mixed, a reader that takes CR LF only finds other headers.
#include "server/http/http_head.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEAD_TARGET "the request's target has a blank or a control character in it"
#define HEAD_HEADER "a header's name or value is not well-formed"

// What counts while the lines are read.
typedef struct head_reader {
    hth_http_head *out;
    bool bare; // lines end in LF alone
    bool close, keep_alive;
    bool lengths, codings;
    size_t host_headers;
    unsigned once; // which of once_fields were there
} head_reader;

// ---- characters

// is_token_char tells whether a name may have it (RFC 9110, 5.6.2).
static bool is_token_char(char c)
{
    return isalnum((unsigned char)c) || (c != 0 && strchr("-_!#$%&'*+.^`|~", c) != NULL);
}

static size_t token_bytes(const char *p, const char *end)
{
    const char *from = p;
    while (p < end && is_token_char(*p)) {
        p++;
    }
    return (size_t)(p - from);
}

static bool is_word(const char *p, size_t n, const char *word)
{
    return n > 0 && (p[0] | 32) == (word[0] | 32) && strncasecmp(p, word, n) == 0 && word[n] == 0;
}

// text_wrong says what is wrong with the characters of a line, `control` where it is one that ends
// other readers' lines neither; NULL: nothing. A tab is a blank.
static const char *text_wrong(const char *p, const char *end, const char *control)
{
    while (p < end && ((unsigned char)*p >= ' ' || *p == '\t') && *p != 0x7f) {
        p++;
    }
    if (p == end) {
        return NULL;
    }
    if (*p == 0) {
        return "a zero byte stands in the head";
    }
    return *p == '\r' ? "a carriage return that ends no line stands in the head" : control;
}

// ---- hosts

// host_chars counts the leading bytes that a registered name or an IPv4 address may have (RFC 3986,
// 3.2.2).
static size_t host_chars(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && (isalnum((unsigned char)p[i]) ||
                     (p[i] != 0 && strchr("-._~%!$&'()*+,;=", p[i]) != NULL))) {
        i++;
    }
    return i;
}

// host_literal counts the bytes of an address in brackets; 0: it is not one.
static size_t host_literal(const char *p, size_t n)
{
    size_t i = 1;
    while (i < n && (isxdigit((unsigned char)p[i]) || p[i] == ':' || p[i] == '.')) {
        i++;
    }
    return i > 2 && i < n && p[i] == ']' ? i + 1 : 0;
}

// host_sound tells whether `n` bytes are a host, with or without a port. An empty one is sound.
static bool host_sound(const char *host, size_t n)
{
    bool literal = n > 0 && host[0] == '[';
    size_t i = literal ? host_literal(host, n) : host_chars(host, n);
    if (n > HTH_HTTP_HOST_BYTES || (literal && i == 0)) {
        return false;
    }
    if (i < n && host[i] == ':') {
        i++;
        while (i < n && isdigit((unsigned char)host[i])) {
            i++;
        }
    }
    return i == n;
}

// ---- the request line

static hth_http_verb verb_of(const char *p, size_t n)
{
    static const struct {
        const char *word;
        hth_http_verb verb;
    } verbs[] = {
        {"GET", HTH_VERB_GET},     {"POST", HTH_VERB_POST},     {"HEAD", HTH_VERB_HEAD},
        {"PUT", HTH_VERB_PUT},     {"DELETE", HTH_VERB_DELETE}, {"OPTIONS", HTH_VERB_KNOWN},
        {"PATCH", HTH_VERB_KNOWN}, {"TRACE", HTH_VERB_TRACE},   {"CONNECT", HTH_VERB_CONNECT}};
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strlen(verbs[i].word) == n && memcmp(p, verbs[i].word, n) == 0) {
            return verbs[i].verb;
        }
    }
    return HTH_VERB_UNKNOWN;
}

// scheme_bytes counts the bytes of a scheme and the "://" after it; 0: a target begins otherwise.
static size_t scheme_bytes(const char *target)
{
    size_t n = 0;
    while (isalnum((unsigned char)target[n]) ||
           (n > 0 && strchr("+-.", target[n]) != NULL && target[n] != 0)) {
        n++;
    }
    return n > 0 && strncmp(target + n, "://", 3) == 0 ? n + 3 : 0;
}

// read_target takes a target apart, which ends in a zero byte.
static const char *read_target(hth_http_head *out, char *target)
{
    const unsigned char *p = (unsigned char *)target;
    while (*p > ' ' && *p != 0x7f) {
        p++;
    }
    if (*p != 0) {
        return HEAD_TARGET;
    }
    size_t scheme = scheme_bytes(target);
    char *path = target + scheme;
    if (scheme > 0) {
        out->absolute = true;
        out->host = path;
        out->host_bytes = strcspn(path, "/?#");
        path += out->host_bytes;
        if (out->host_bytes == 0 || !host_sound(out->host, out->host_bytes)) {
            return "the request's target names no host";
        }
    }
    size_t n = strcspn(path, "?#");
    if (path[n] == '?') {
        path[n + 1 + strcspn(path + n + 1, "#")] = 0;
        out->query = path + n + 1;
    }
    path[n] = 0;
    out->path = scheme > 0 && n == 0 ? "/" : path;
    return NULL;
}

// read_request reads the first line: VERB TARGET HTTP/1.x.
static const char *read_request(hth_http_head *out, char *line, char *end)
{
    const char *wrong = text_wrong(line, end, HEAD_TARGET);
    size_t verb = token_bytes(line, end);
    char *target = line + verb, *last = memrchr(target, ' ', (size_t)(end - target));
    if (wrong != NULL) {
        return wrong;
    }
    if (verb == 0 || *target != ' ' || last == target || last == target + 1 || end - last != 9 ||
        memcmp(last, " HTTP/1.", 8) != 0 || !isdigit((unsigned char)last[8])) {
        return HTH_HTTP_MALFORMED;
    }
    out->verb = verb_of(line, verb);
    out->minor = last[8] > '0';
    out->target_bytes = (size_t)(last - target - 1);
    *last = 0;
    return read_target(out, target + 1);
}

// ---- headers

static const char *read_length(head_reader *reader, const char *value, size_t n)
{
    hth_http_head *out = reader->out;
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || digits != n || reader->lengths) {
        return HTH_HTTP_DIFFER;
    }
    reader->lengths = out->sized = true;
    for (size_t i = 0; i < n; i++) {
        uint64_t digit = (uint64_t)(value[i] - '0');
        out->length =
            out->length > (UINT64_MAX - digit) / 10 ? UINT64_MAX : out->length * 10 + digit;
    }
    return NULL;
}

static const char *read_coding(head_reader *reader, const char *value, size_t n)
{
    if (reader->codings) {
        return "the request has more than one Transfer-Encoding header";
    }
    const char *last = memrchr(value, ',', n);
    if (last != NULL && strcasecmp(last + 1 + strspn(last + 1, " \t"), "chunked") != 0) {
        return HTH_HTTP_MALFORMED; // its body has no end
    }
    reader->codings = true;
    reader->out->chunked = is_word(value, n, "chunked");
    reader->out->coded = !reader->out->chunked;
    return NULL;
}

static const char *read_host(head_reader *reader, const char *value, size_t n)
{
    if (!host_sound(value, n)) {
        return "the Host header is not a host's name or address, with or without a port, of at "
               "most 255 bytes";
    }
    if (reader->host_headers++ > 0) {
        return "the request has more than one Host header";
    }
    if (!reader->out->absolute) {
        reader->out->host = value;
        reader->out->host_bytes = n;
    }
    return NULL;
}

static const char *read_connection(head_reader *reader, const char *value, size_t n)
{
    for (const char *p = value, *end = value + n; p < end; p += strcspn(p, ",")) {
        p += strspn(p, ", \t");
        size_t word = token_bytes(p, end);
        reader->close = reader->close || is_word(p, word, "close");
        reader->keep_alive = reader->keep_alive || is_word(p, word, "keep-alive");
    }
    return NULL;
}

static const char *read_expect(head_reader *reader, const char *value, size_t n)
{
    reader->out->expect =
        is_word(value, n, "100-continue") ? HTH_EXPECT_CONTINUE : HTH_EXPECT_OTHER;
    return NULL;
}

static const char *read_forwarded(head_reader *reader, const char *value, size_t n)
{
    reader->out->forwarded = true;
    return NULL;
}

// Headers that are kept as they are. What a request may, or how it is read, hangs on most of them:
// they come once, for a proxy in front may have looked at the other one.
static const struct {
    const char *name;
    size_t at;
    const char *twice; // NULL: the first counts
} once_fields[] = {
    {"Authorization", offsetof(hth_http_head, authorization),
     "the request has more than one Authorization header"},
    {"Origin", offsetof(hth_http_head, origin), "the request has more than one Origin header"},
    {"Content-Encoding", offsetof(hth_http_head, content_encoding),
     "the request has more than one Content-Encoding header"},
    {"Inference-Header-Content-Length", offsetof(hth_http_head, json_bytes),
     "the request has more than one Inference-Header-Content-Length header"},
    {"Content-Range", offsetof(hth_http_head, content_range),
     "the request has more than one Content-Range header"},
    {"Accept-Encoding", offsetof(hth_http_head, accept_encoding), NULL},
    {"Range", offsetof(hth_http_head, range), NULL},
    {"Last-Event-ID", offsetof(hth_http_head, last_event), NULL},
};

static const struct {
    const char *name;
    const char *(*read)(head_reader *reader, const char *value, size_t n);
} read_fields[] = {
    {"Host", read_host},
    {"Content-Length", read_length},
    {"Transfer-Encoding", read_coding},
    {"Connection", read_connection},
    {"Expect", read_expect},
    {"Forwarded", read_forwarded},
    {"X-Real-IP", read_forwarded},
};

// read_value keeps what a header says, a text that ends in a zero byte, if that counts here.
static const char *read_value(head_reader *reader, const char *name, size_t name_bytes, char *value,
                              size_t n)
{
    for (size_t i = 0; i < sizeof read_fields / sizeof read_fields[0]; i++) {
        if (is_word(name, name_bytes, read_fields[i].name)) {
            return read_fields[i].read(reader, value, n);
        }
    }
    for (size_t i = 0; i < sizeof once_fields / sizeof once_fields[0]; i++) {
        const char **at = (const char **)((char *)reader->out + once_fields[i].at);
        if (is_word(name, name_bytes, once_fields[i].name)) {
            const char *wrong = *at != NULL ? once_fields[i].twice : NULL;
            *at = *at != NULL ? *at : value;
            return wrong;
        }
    }
    if (name_bytes >= 12 && strncasecmp(name, "X-Forwarded-", 12) == 0) {
        return read_forwarded(reader, value, n);
    }
    return NULL;
}

// read_header reads a line "name: value", up to `end`, which becomes a zero byte.
static const char *read_header(head_reader *reader, char *line, char *end)
{
    if (*line == ' ' || *line == '\t') { // goes on with the line before it for some readers
        return "a line of the head begins with a blank";
    }
    const char *wrong = text_wrong(line, end, HEAD_HEADER);
    size_t name = token_bytes(line, end);
    if (wrong != NULL) {
        return wrong;
    }
    if (name == 0 || line[name] != ':') {
        return memchr(line, ':', (size_t)(end - line)) != NULL ? HEAD_HEADER : HTH_HTTP_MALFORMED;
    }
    char *value = line + name + 1;
    value += strspn(value, " \t");
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    *end = 0;
    return read_value(reader, line, name, value, (size_t)(end - value));
}

// ---- the whole

size_t hth_http_head_end(const char *text, size_t bytes, size_t *seen)
{
    const char *end = text + bytes, *line = text + *seen, *feed;
    while ((feed = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        if (feed == line || (feed == line + 1 && *line == '\r')) {
            return (size_t)(feed + 1 - text);
        }
        line = feed + 1;
        *seen = (size_t)(line - text);
    }
    return 0;
}

// head_together says what is wrong with lines together, each of which is well-formed.
static const char *head_together(head_reader *reader)
{
    hth_http_head *out = reader->out;
    bool body = reader->codings || out->length > 0;
    if (reader->lengths && reader->codings) {
        return HTH_HTTP_DIFFER;
    }
    if (reader->host_headers == 0 && out->minor > 0) {
        return "the request has no Host header, which HTTP/1.1 needs";
    }
    if (body && (out->verb == HTH_VERB_HEAD || out->verb == HTH_VERB_TRACE)) {
        return "HEAD and TRACE have no body";
    }
    // a proxy's connection, a tunnel, what HTTP/1.0 does not know: none of them goes on
    bool last = reader->close || out->absolute || out->verb == HTH_VERB_CONNECT ||
                out->verb == HTH_VERB_UNKNOWN || (out->minor == 0 && reader->codings);
    out->keep = !last && (out->minor > 0 || reader->keep_alive);
    out->expect = out->minor > 0 ? out->expect : HTH_EXPECT_NOTHING;
    return NULL;
}

const char *hth_http_head_read(char *text, size_t bytes, hth_http_head *out)
{
    head_reader r = {.out = out};
    const char *wrong = NULL;
    *out = (hth_http_head){.verb = HTH_VERB_UNKNOWN, .minor = 1, .path = ""};
    text[bytes] = 0;
    for (char *line = text, *end = text + bytes, *next; line < end && wrong == NULL; line = next) {
        char *feed = memchr(line, '\n', (size_t)(end - line));
        if (feed == NULL) {
            return HTH_HTTP_MALFORMED;
        }
        next = feed + 1;
        bool bare = feed == line || feed[-1] != '\r';
        char *stop = bare ? feed : feed - 1;
        r.bare = line == text ? bare : r.bare;
        if (bare != r.bare) {
            return "lines of the head end in CR LF, and others in LF alone";
        }
        if (line == text) {
            wrong = read_request(out, line, stop);
        } else if (line != stop) {
            wrong = read_header(&r, line, stop);
        }
    }
    return wrong != NULL ? wrong : head_together(&r);
}
