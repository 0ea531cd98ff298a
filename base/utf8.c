// SPDX-License-Identifier: Apache-2.0
// Widths are the C library's, in its locale C.UTF-8, whatever the process's own is: wcwidth follows
// the calling thread's locale, which is changed around it and put back.
#include "base/utf8.h"

#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <wchar.h>

size_t hth_utf8_next(const char *text, size_t n, uint32_t *code)
{
    // by the first byte: how many follow, its own bits, and the least that they may encode
    static const struct {
        uint8_t mask, is, more;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0, 0},
                 {0xe0, 0xc0, 1, 0x80},
                 {0xf0, 0xe0, 2, 0x800},
                 {0xf8, 0xf0, 3, 0x10000}};
    const uint8_t *p = (const uint8_t *)text;
    *code = HTH_UTF8_NONE;
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
        if ((p[0] & forms[k].mask) != forms[k].is) {
            continue;
        }
        uint32_t c = p[0] & (uint8_t)~forms[k].mask;
        for (size_t i = 1; i <= forms[k].more; i++) {
            if (i == n) {
                return 0;
            }
            if ((p[i] & 0xc0) != 0x80) {
                return 1;
            }
            c = c << 6 | (p[i] & 0x3f);
        }
        if (c < forms[k].least || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
            return 1;
        }
        *code = c;
        return 1u + forms[k].more;
    }
    return 1;
}

bool hth_utf8_obeyed(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || code == HTH_UTF8_NONE;
}

bool hth_utf8_hidden(uint32_t code)
{
    static const uint32_t hidden[][2] = {
        {0xad, 0xad},     {0x34f, 0x34f},     {0x61c, 0x61c},     {0x115f, 0x1160},
        {0x17b4, 0x17b5}, {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2060, 0x206f},
        {0x3164, 0x3164}, {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
        {0xfff0, 0xfffb}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        if (code >= hidden[i][0] && code <= hidden[i][1]) {
            return true;
        }
    }
    return hth_utf8_obeyed(code);
}

void hth_utf8_plain(char *text)
{
    size_t n = strlen(text);
    for (size_t at = 0, bytes; at < n; at += bytes) {
        uint32_t code;
        bytes = hth_utf8_next(text + at, n - at, &code);
        bytes = bytes > 0 ? bytes : n - at; // cut
        if (hth_utf8_obeyed(code)) {
            memset(text + at, '?', bytes);
        }
    }
}

// ---- columns

static locale_t utf8_locale; // 0: there is none

static void utf8_open(void)
{
    utf8_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

// utf8_each goes through the characters of `text` for as long as they take at most `columns`
// columns; *taken: how many that are. Returns how many bytes they have.
static size_t utf8_each(const char *text, int columns, int *taken)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t n = strlen(text), at = 0, bytes;
    pthread_once(&once, utf8_open);
    locale_t before = utf8_locale != (locale_t)0 ? uselocale(utf8_locale) : (locale_t)0;
    for (*taken = 0; at < n; at += bytes) {
        uint32_t code;
        bytes = hth_utf8_next(text + at, n - at, &code);
        bytes = bytes > 0 ? bytes : n - at;
        int width = 1;
        if (code == HTH_UTF8_NONE) {
            width = (int)bytes;
        } else if (code >= 0x80) {
            width = wcwidth((wchar_t)code);
        }
        width = width >= 0 ? width : 1;
        if (width > columns - *taken) {
            break;
        }
        *taken += width;
    }
    if (before != (locale_t)0) {
        uselocale(before);
    }
    return at;
}

int hth_utf8_columns(const char *text)
{
    int taken;
    utf8_each(text, INT32_MAX, &taken);
    return taken;
}

size_t hth_utf8_fit(const char *text, int columns)
{
    int taken;
    return utf8_each(text, columns, &taken);
}

size_t hth_utf8_last(const char *text, int columns)
{
    size_t n = strlen(text), at = 0;
    while (at < n && hth_utf8_columns(text + at) > columns) {
        uint32_t code;
        size_t bytes = hth_utf8_next(text + at, n - at, &code);
        at += bytes > 0 ? bytes : n - at;
    }
    return at;
}

int hth_utf8_pad(const char *text, int columns)
{
    return columns + (int)strlen(text) - hth_utf8_columns(text);
}
