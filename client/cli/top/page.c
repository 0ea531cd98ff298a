// SPDX-License-Identifier: Apache-2.0
// Which terminals have colors is known by their names, as dircolors knows it: terminfo would need a
// library, and says of many terminals what xterm says.
#include "client/cli/top/page.h"

#include "base/utf8.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PAGE_PIECE 400

static const char *page_sgr(const hth_page *page, hth_style style)
{
    static const char *const sgr[] = {"", "1", "7", "32", "33", "1;31"};
    bool shown = page->styles && (page->colors || style < HTH_STYLE_WORKS);
    return shown ? sgr[style] : "";
}

static bool page_full(const hth_page *page)
{
    return page->lines > 0 && page->ended >= page->lines;
}

void hth_page_put(hth_page *page, hth_style style, const char *text)
{
    char *plain = page_full(page) ? NULL : strdup(text);
    if (plain == NULL) {
        return;
    }
    hth_utf8_plain(plain);
    plain[hth_utf8_fit(plain, page->columns - page->at)] = 0;
    page->at += hth_utf8_columns(plain);
    const char *sgr = page_sgr(page, style);
    if (sgr[0] != 0 && plain[0] != 0) {
        fprintf(page->file, "\033[%sm%s\033[0m", sgr, plain);
    } else {
        fputs(plain, page->file);
    }
    free(plain);
}

void hth_page_format(hth_page *page, hth_style style, const char *fmt, ...)
{
    char text[PAGE_PIECE];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    hth_page_put(page, style, text);
}

void hth_page_fill(hth_page *page, int column)
{
    column = column < page->columns ? column : page->columns;
    for (; page->at < column && !page_full(page); page->at++) {
        fputc(' ', page->file);
    }
}

void hth_page_end(hth_page *page)
{
    if (!page_full(page)) {
        fputc('\n', page->file);
        page->ended++;
    }
    page->at = 0;
}

void hth_page_shorten(const char *text, int columns, bool middle, bool utf8, char *out, size_t cap)
{
    const char *dots = utf8 ? "\xe2\x80\xa6" : "..";
    int room = columns - hth_utf8_columns(dots);
    if (hth_utf8_columns(text) <= columns) {
        snprintf(out, cap, "%s", text);
    } else if (room < 2) {
        snprintf(out, cap, "%.*s", (int)hth_utf8_fit(text, columns > 0 ? columns : 0), text);
    } else {
        int last = middle ? room / 2 : 0;
        snprintf(out, cap, "%.*s%s%s", (int)hth_utf8_fit(text, room - last), text, dots,
                 text + hth_utf8_last(text, last));
    }
}

bool hth_page_moves(const char *term)
{
    return term != NULL && term[0] != 0 && strcmp(term, "dumb") != 0 &&
           strcmp(term, "unknown") != 0;
}

bool hth_page_colors(const char *term, const char *no_color)
{
    static const char *const names[] = {
        "Eterm",    "*-256color", "*-color", "*-direct", "alacritty*", "ansi",    "console",
        "cygwin",   "dtterm",     "foot*",   "ghostty",  "gnome*",     "hurd",    "iterm*",
        "kitty",    "konsole*",   "kterm",   "linux*",   "mlterm*",    "ms-*",    "putty*",
        "rxvt*",    "screen*",    "st",      "st-*",     "tmux*",      "vscode*", "vte*",
        "wezterm*", "xterm*",     "*-kitty"};
    if (!hth_page_moves(term) || (no_color != NULL && no_color[0] != 0)) {
        return false;
    }
    if (fnmatch("*-m", term, 0) == 0 || fnmatch("*-mono", term, 0) == 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (fnmatch(names[i], term, 0) == 0) {
            return true;
        }
    }
    return false;
}

bool hth_page_utf8(const char *locale)
{
    const char *set = locale != NULL ? strchr(locale, '.') : NULL;
    return set != NULL && (strncasecmp(set, ".utf-8", 6) == 0 || strncasecmp(set, ".utf8", 5) == 0);
}
