// SPDX-License-Identifier: Apache-2.0
// The filter is in the streams, and not where they are written to, so that no printf can be
// forgotten. A character may be cut by the end of a buffer: its first bytes wait for the rest. What
// the terminal shall obey goes around the streams (here, and screen.c).
//
// A newline in a stream may be the command's own, so they pass; those in a document's strings,
// which could pretend to be lines of the command, are taken out when it is decoded.
#include "client/terminal.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TERMINAL_PIECE  512 // bytes that are filtered at once
#define TERMINAL_ESCAPE 6   // bytes of "\u009b"

typedef struct terminal_stream {
    int fd;
    bool json;
    int lost;    // errno of the first write that failed
    char cut[4]; // a character's first bytes
    size_t n_cut;
} terminal_stream;

static terminal_stream terminal_out = {.fd = STDOUT_FILENO}, terminal_err = {.fd = STDERR_FILENO};

static bool terminal_put(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, text, n);
        if (w < 0 && errno == EINTR) {
            continue;
        }
        if (w <= 0) {
            return false;
        }
        text += w;
        n -= (size_t)w;
    }
    return true;
}

// terminal_filter writes to `out` what becomes of the n bytes at `in`, and keeps those of a
// character that is not whole. Returns how many bytes it wrote.
static size_t terminal_filter(terminal_stream *stream, const char *in, size_t n, char *out)
{
    size_t used = 0;
    for (size_t at = 0, bytes; at < n; at += bytes) {
        uint32_t code;
        bytes = hth_utf8_next(in + at, n - at, &code);
        if (bytes == 0) {
            stream->n_cut = n - at;
            memcpy(stream->cut, in + at, stream->n_cut);
            break;
        }
        bool own = code == '\n' || (stream->json && code == '\t');
        if (own || !hth_utf8_obeyed(code)) {
            memcpy(out + used, in + at, bytes);
            used += bytes;
        } else if (stream->json && code != HTH_UTF8_NONE) {
            used += (size_t)snprintf(out + used, TERMINAL_ESCAPE + 1, "\\u%04x", (unsigned)code);
        } else {
            memset(out + used, '?', bytes);
            used += bytes;
        }
    }
    return used;
}

static ssize_t terminal_write(void *cookie, const char *text, size_t n)
{
    terminal_stream *s = cookie;
    char in[TERMINAL_PIECE + sizeof s->cut], out[sizeof in * TERMINAL_ESCAPE + 1];
    for (size_t at = 0, take; at < n; at += take) {
        size_t before = s->n_cut;
        take = n - at < TERMINAL_PIECE ? n - at : TERMINAL_PIECE;
        memcpy(in, s->cut, before);
        memcpy(in + before, text + at, take);
        s->n_cut = 0;
        if (!terminal_put(s->fd, out, terminal_filter(s, in, before + take, out))) {
            s->lost = s->lost != 0 ? s->lost : errno;
            return 0; // stdio's sign of an error; errno is write's
        }
    }
    return (ssize_t)n;
}

static bool terminal_guard(FILE **stream, terminal_stream *s, int mode)
{
    static const cookie_io_functions_t functions = {.write = terminal_write};
    FILE *f = fopencookie(s, "w", functions);
    if (f == NULL || setvbuf(f, NULL, mode, BUFSIZ) != 0) {
        return false;
    }
    *stream = f;
    return true;
}

bool hth_terminal_guard(void)
{
    return terminal_guard(&stdout, &terminal_out, isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF) &&
           terminal_guard(&stderr, &terminal_err, _IONBF);
}

int hth_terminal_lost(void)
{
    return terminal_out.lost;
}

void hth_terminal_json(void)
{
    terminal_out.json = true;
}

void hth_terminal_clear(void)
{
    static const char clear[] = "\r\033[K";
    (void)terminal_put(STDERR_FILENO, clear, sizeof clear - 1);
}

void hth_terminal_plain(json_t *json)
{
    const char *key;
    json_t *e;
    size_t i;
    if (json_is_string(json)) {
        char *text = strdup(json_string_value(json));
        if (text != NULL) {
            hth_utf8_plain(text);
        }
        json_string_set(json, text != NULL ? text : "?");
        free(text);
    } else if (json_is_array(json)) {
        json_array_foreach(json, i, e)
        {
            hth_terminal_plain(e);
        }
    } else {
        json_object_foreach(json, key, e)
        {
            hth_terminal_plain(e);
        }
    }
}

json_t *hth_terminal_load(const char *json)
{
    json_t *doc = json_loads(json, JSON_DECODE_ANY, NULL);
    hth_terminal_plain(doc);
    return doc;
}
