// SPDX-License-Identifier: Apache-2.0
// Health checks as the services that watch a server send them, many times a second and over many
// connections: answered when they are read, before evhttp sees them. What is not exactly that goes
// the way of every request, on which the answer is the same.
#include "server/http/http_call.h"

#include "base/stats.h"
#include "server/net/account.h"

#include <string.h>
#include <strings.h>
#include <sys/socket.h>

// quick_host tells whether a line names the server, and nothing is wrong with that name.
static bool quick_host(const char *line, size_t n)
{
    if (n < 5 || strncasecmp(line, "Host:", 5) != 0) {
        return false;
    }
    for (line += 5, n -= 5; n > 0 && *line == ' '; line++, n--) {
    }
    while (n > 0 && line[n - 1] == ' ') {
        n--;
    }
    return hth_http_host_sound(line, n);
}

// quick_line tells whether a header, of `n` bytes up to its end, says nothing that matters here,
// and has nothing that a proxy in front could take for another header's beginning (http_sound.c).
static bool quick_line(const char *line, size_t n)
{
    if (memchr(line, '\r', n) != NULL || memchr(line, 0, n) != NULL) {
        return false;
    }
    static const char *const plain[] = {"User-Agent:", "Accept:", "Accept-Encoding:"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        size_t name = strlen(plain[i]);
        if (n >= name && strncasecmp(line, plain[i], name) == 0) {
            return true;
        }
    }
    return false;
}

// quick_lines tells whether the `n` bytes at `line` are such headers, one of them the host's, the
// empty line behind them, and nothing else.
static bool quick_lines(const char *line, size_t n)
{
    int hosts = 0;
    for (const char *end = line + n, *feed; line < end; line = feed + 1) {
        feed = memchr(line, '\n', (size_t)(end - line));
        if (feed == NULL || feed == line || feed[-1] != '\r') {
            return false;
        }
        if (feed == line + 1) {
            return feed + 1 == end && hosts == 1;
        }
        size_t length = (size_t)(feed - 1 - line);
        bool host = quick_host(line, length);
        hosts += host;
        if (!host && !quick_line(line, length)) {
            return false;
        }
    }
    return false;
}

// quick_word takes `word` off the front of what is left. false: it does not stand there.
static bool quick_word(const char **text, size_t *n, const char *word)
{
    size_t bytes = strlen(word);
    if (*n < bytes || memcmp(*text, word, bytes) != 0) {
        return false;
    }
    *text += bytes;
    *n -= bytes;
    return true;
}

// quick_asked returns the answer's body; NULL: this is no such check, or one that does not pass.
static const char *quick_asked(hth_http *h, const char *text, size_t n)
{
    if (!quick_word(&text, &n, "GET ") || !quick_word(&text, &n, h->prefix) ||
        !quick_word(&text, &n, "/v2/health/")) {
        return NULL;
    }
    bool ready = quick_word(&text, &n, "ready");
    bool asked = (ready || quick_word(&text, &n, "live")) &&
                 quick_word(&text, &n, " HTTP/1.1\r\n") && quick_lines(text, n) &&
                 (!ready || hth_http_unready(h) == NULL);
    return !asked ? NULL : ready ? HTH_HTTP_READY : HTH_HTTP_LIVE;
}

// quick_may tells whether the connection is between two requests, and nothing is to be refused.
static bool quick_may(const hth_http_conn *c, size_t n)
{
    const hth_http *h = c->h;
    return c->door == &h->api && c->bytes == 0 && c->refused_ns == 0 && !c->told &&
           n <= h->header_bytes && n <= (size_t)hth_setting_int(HTH_SET_HTTP_URL_BYTES) &&
           !hth_account_full() && !atomic_load(&h->stopping);
}

bool hth_http_health(hth_http_conn *c, const char *text, size_t n)
{
    const char *json = quick_may(c, n) ? quick_asked(c->h, text, n) : NULL;
    if (json == NULL) {
        return false;
    }
    char answer[HTH_HTTP_HEALTH_BYTES];
    size_t bytes = hth_http_health_text(c->h, json, answer);
    ssize_t sent = send(c->fd, answer, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        return false; // evhttp waits for room, or finds what is wrong
    }
    if ((size_t)sent < bytes) {
        shutdown(c->fd, SHUT_RDWR); // who sends and does not read
    }
    c->h->events++;
    c->h->n_answered++;
    hth_stat_add(HTH_STAT_HTTP_BYTES_IN, n);
    hth_stat_add(HTH_STAT_HTTP_BYTES_OUT, (uint64_t)sent);
    return true;
}
