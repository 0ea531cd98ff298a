// SPDX-License-Identifier: Apache-2.0
// client/cli/top/page.h - lines for a terminal, made of pieces of text with a style: none is wider
// than the page, and nothing in them is obeyed but the styles.
#ifndef HTH_CLIENT_CLI_TOP_PAGE_H
#define HTH_CLIENT_CLI_TOP_PAGE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

// A color has one meaning, which the text has as well.
typedef enum hth_style {
    HTH_STYLE_PLAIN,
    HTH_STYLE_HEAD,   // bold
    HTH_STYLE_CHOSEN, // reverse: a key; in the chosen table, the column that sorts
    HTH_STYLE_WORKS,  // green
    HTH_STYLE_WAITS,  // yellow
    HTH_STYLE_FAILED, // red
} hth_style;

typedef struct hth_page {
    FILE *file;
    int columns; // of a line, at most; INT_MAX: any number
    int lines;   // at most: what comes after them is left out; 0: any number
    bool styles; // false: text only
    bool colors; // .. and the styles that are colors
    bool utf8;   // an ellipsis is one character beyond ASCII
    int at;      // columns that the line has so far
    int ended;   // lines
} hth_page;

// hth_page_put adds a piece to the line, as far as there is room; hth_page_format one that printf
// makes (400 bytes at most); hth_page_fill spaces up to a column; hth_page_end ends the line. What
// a terminal would obey in a text becomes '?'.
void hth_page_put(hth_page *page, hth_style style, const char *text);
void hth_page_format(hth_page *page, hth_style style, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void hth_page_fill(hth_page *page, int column);
void hth_page_end(hth_page *page);

// hth_page_shorten writes `text` to out, in at most so many columns. What does not fit is left out
// at its end, or in its middle, where an ellipsis (".." without `utf8`) takes its place.
void hth_page_shorten(const char *text, int columns, bool middle, bool utf8, char *out, size_t cap);

// What a terminal can do, by the environment's TERM, NO_COLOR, and locale (LC_ALL, LC_CTYPE or
// LANG); each may be NULL. hth_page_moves: its cursor moves. hth_page_colors: it has colors, and
// they are wanted (no-color.org).
bool hth_page_moves(const char *term);
bool hth_page_colors(const char *term, const char *no_color);
bool hth_page_utf8(const char *locale);

#endif
