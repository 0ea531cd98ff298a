// SPDX-License-Identifier: Apache-2.0
// base/utf8.h - UTF-8 that others wrote: its characters, what of them a terminal would obey, and
// how many columns they take there.
#ifndef HTH_BASE_UTF8_H
#define HTH_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_UTF8_NONE UINT32_MAX // not a character

// hth_utf8_next decodes the first character of the n > 0 bytes at `text` and returns how many bytes
// it has, from 1 to 4. A byte that begins no character (overlong forms and surrogates are none) is
// HTH_UTF8_NONE by itself. 0: the bytes begin a character and end before it does.
size_t hth_utf8_next(const char *text, size_t n, uint32_t *code);
// hth_utf8_obeyed says whether a terminal could obey `code` or move what follows it, instead of
// showing it: control characters, separators of lines, changes of direction, HTH_UTF8_NONE.
bool hth_utf8_obeyed(uint32_t code);

// hth_utf8_hidden says whether `code` cannot be seen in a name, or makes it look like another one:
// what is obeyed, marks of direction, joiners and spaces without width, tags.
bool hth_utf8_hidden(uint32_t code);

// hth_utf8_plain makes `text` one line that is fit for a terminal or a log: each byte of what would
// be obeyed becomes '?'. In place; the length stays.
void hth_utf8_plain(char *text);

// hth_utf8_columns is how many columns of a terminal `text` takes: two for wide characters such as
// those of Chinese, none for accents that combine, one for what is unknown.
int hth_utf8_columns(const char *text);
// hth_utf8_fit is how many bytes of `text`, whole characters, take at most so many columns.
size_t hth_utf8_fit(const char *text, int columns);
// hth_utf8_last is how many bytes are before the last characters of `text`, of at most so many
// columns.
size_t hth_utf8_last(const char *text, int columns);
// hth_utf8_pad is the width that printf's %*s needs, which counts bytes, for `text` to take
// `columns` columns.
int hth_utf8_pad(const char *text, int columns);

#endif
