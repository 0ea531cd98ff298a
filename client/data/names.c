// SPDX-License-Identifier: Apache-2.0
// Python's and JSON's literals are read by one reader: of strings in either quotes, with the
// escapes of both. What follows the closing bracket is blank.
#include "client/data/names.h"

#include "base/alloc.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct names_text {
    const char *at, *end;
} names_text;

typedef struct names_list {
    hth_class_names names;
    int cap, filled; // names.n counts numbers up to the largest one, filled those that have a name
} names_list;

void hth_class_names_fini(hth_class_names *names)
{
    for (int i = 0; i < names->n; i++) {
        hth_free(names->name[i]);
    }
    hth_free(names->name);
    *names = (hth_class_names){NULL, 0};
}

// names_put makes name[i] the n bytes at `name`.
static hth_err names_put(names_list *list, int64_t i, const char *name, size_t n)
{
    uint32_t code;
    if (i >= HTH_CLASS_NAMES) {
        return hth_fail(HTH_ETOOBIG, "classes have numbers from 0 to %d", HTH_CLASS_NAMES - 1);
    }
    for (size_t at = 0, k; at < n; at += k) {
        k = hth_utf8_next(name + at, n - at, &code);
        if (k == 0 || code == HTH_UTF8_NONE || code == 0) {
            return hth_fail(HTH_EINVAL, "the name of class %lld is not UTF-8", (long long)i);
        }
    }
    if (i >= list->cap) {
        int cap = (int)i + 1 > 2 * list->cap ? (int)i + 64 : 2 * list->cap;
        char **more = hth_realloc(list->names.name, (size_t)cap, sizeof *more);
        if (more == NULL) {
            return hth_no_memory("the names of classes");
        }
        list->names.name = more;
        list->cap = cap;
    }
    for (; list->names.n <= i; list->names.n++) {
        list->names.name[list->names.n] = NULL;
    }
    if (list->names.name[i] != NULL) {
        return hth_fail(HTH_EINVAL, "class %lld has two names", (long long)i);
    }
    list->names.name[i] = hth_strndup(name, n);
    list->filled += list->names.name[i] != NULL;
    return list->names.name[i] != NULL ? HTH_OK : hth_no_memory("the names of classes");
}

static bool names_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void names_skip(names_text *text)
{
    while (text->at < text->end && names_blank(*text->at)) {
        text->at++;
    }
}

// names_find is where the first `c` is, or the end.
static const char *names_find(const names_text *text, char c)
{
    const char *at = text->at;
    while (at < text->end && *at != c) {
        at++;
    }
    return at;
}

// names_next takes `c` off the front, after blanks; false: something else is there.
static bool names_next(names_text *text, char c)
{
    names_skip(text);
    bool is = text->at < text->end && *text->at == c;
    text->at += is;
    return is;
}

static hth_err names_wrong(const char *what)
{
    return hth_fail(HTH_EINVAL, "the list of classes has %s", what);
}

// ---- strings

static bool names_hex(names_text *text, int digits, uint32_t *out)
{
    static const char hex[] = "0123456789abcdef0123456789ABCDEF";
    *out = 0;
    for (int i = 0; i < digits; i++, text->at++) {
        char c = text->at < text->end ? *text->at : 0;
        const char *digit = c != 0 ? strchr(hex, c) : NULL;
        if (digit == NULL) {
            return false;
        }
        *out = *out * 16 + (uint32_t)(digit - hex) % 16;
    }
    return true;
}

// names_utf8 appends a character; what is none becomes bytes that names_put refuses.
static void names_utf8(uint32_t code, char *out, size_t *n)
{
    if (code < 0x80) {
        out[(*n)++] = (char)code;
    } else if (code < 0x800) {
        out[(*n)++] = (char)(0xc0 | code >> 6);
        out[(*n)++] = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        out[(*n)++] = (char)(0xe0 | code >> 12);
        out[(*n)++] = (char)(0x80 | (code >> 6 & 63));
        out[(*n)++] = (char)(0x80 | (code & 63));
    } else {
        out[(*n)++] = (char)(0xf0 | (code >> 18 & 7));
        out[(*n)++] = (char)(0x80 | (code >> 12 & 63));
        out[(*n)++] = (char)(0x80 | (code >> 6 & 63));
        out[(*n)++] = (char)(0x80 | (code & 63));
    }
}

// names_unicode reads the digits of a character that is written as its number; of a pair of
// surrogates, as JSON has them, both.
static bool names_unicode(names_text *text, int digits, char *out, size_t *n)
{
    uint32_t code, low;
    if (!names_hex(text, digits, &code)) {
        return false;
    }
    if (code >= 0xd800 && code < 0xdc00 && text->end - text->at >= 6 && text->at[0] == '\\' &&
        text->at[1] == 'u') {
        text->at += 2;
        if (!names_hex(text, 4, &low) || low < 0xdc00 || low > 0xdfff) {
            return false;
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    names_utf8(code, out, n);
    return code < 0x110000;
}

// names_escape reads what follows a backslash. What it writes is no longer than what it reads.
static bool names_escape(names_text *text, char *out, size_t *n)
{
    static const char from[] = "nrtbf\\/'\"", to[] = "\n\r\t\b\f\\/'\"";
    char c = *text->at++;
    const char *plain = c != 0 ? strchr(from, c) : NULL;
    if (plain != NULL) {
        out[(*n)++] = to[plain - from];
        return true;
    }
    if (c == 'x') {
        return names_unicode(text, 2, out, n);
    }
    return c == 'u' ? names_unicode(text, 4, out, n) : c == 'U' && names_unicode(text, 8, out, n);
}

// names_string reads a quoted string into `out`, which has room for the rest of the text.
static hth_err names_string(names_text *text, char *out, size_t *n)
{
    names_skip(text);
    char quote = text->at < text->end ? *text->at : 0;
    *n = 0;
    if (quote != '\'' && quote != '"') {
        return names_wrong("something other than strings");
    }
    for (text->at++; text->at < text->end && *text->at != quote;) {
        char c = *text->at++;
        if (c != '\\') {
            out[(*n)++] = c;
        } else if (text->at == text->end || !names_escape(text, out, n)) {
            return names_wrong("an escape that neither JSON nor Python knows");
        }
    }
    if (text->at == text->end) {
        return names_wrong("a string without an end");
    }
    text->at++;
    return HTH_OK;
}

// ---- lists and dictionaries

// names_number reads a key: a number, or a string that is one.
static hth_err names_number(names_text *text, int64_t *out)
{
    names_skip(text);
    char quote = text->at < text->end ? *text->at : 0;
    bool quoted = quote == '\'' || quote == '"';
    text->at += quoted;
    const char *begin = text->at;
    for (*out = 0; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        *out = *out < HTH_CLASS_NAMES ? *out * 10 + (*text->at - '0') : HTH_CLASS_NAMES;
    }
    bool ends = text->at > begin && (!quoted || (text->at < text->end && *text->at == quote));
    text->at += ends && quoted;
    return ends ? HTH_OK : names_wrong("a key that is no number");
}

static hth_err names_literal(names_text *text, bool keys, char *room, names_list *list)
{
    char close = keys ? '}' : ']';
    for (text->at++; !names_next(text, close);) {
        int64_t i = list->names.n;
        size_t n;
        if (keys) {
            HTH_TRY(names_number(text, &i));
        }
        if (keys && !names_next(text, ':')) {
            return names_wrong("a key without a name");
        }
        HTH_TRY(names_string(text, room, &n));
        HTH_TRY(names_put(list, i, room, n));
        names_skip(text);
        if (!names_next(text, ',') && (text->at == text->end || *text->at != close)) {
            return names_wrong("no comma where one is needed");
        }
    }
    names_skip(text);
    return text->at == text->end ? HTH_OK : names_wrong("something after its end");
}

// ---- lines

static hth_err names_lines(names_text *text, names_list *list)
{
    while (text->end > text->at && names_blank(text->end[-1])) {
        text->end--;
    }
    char by = names_find(text, '\n') != text->end ? '\n' : ','; // a line's own end is none
    while (text->at < text->end) {
        const char *stop = names_find(text, by), *last = stop;
        while (text->at < last && names_blank(*text->at)) {
            text->at++;
        }
        while (last > text->at && names_blank(last[-1])) {
            last--;
        }
        if (last == text->at) {
            return hth_fail(HTH_EINVAL, "class %d of the list has no name", list->names.n);
        }
        HTH_TRY(names_put(list, list->names.n, text->at, (size_t)(last - text->at)));
        text->at = stop < text->end ? stop + 1 : text->end;
    }
    return HTH_OK;
}

static hth_err names_read(names_text *text, names_list *list)
{
    names_skip(text);
    char first = text->at < text->end ? *text->at : 0;
    if (first != '{' && first != '[') {
        return names_lines(text, list);
    }
    char *room = hth_alloc((size_t)(text->end - text->at) + 1);
    if (room == NULL) {
        return hth_no_memory("the names of classes");
    }
    hth_err err = names_literal(text, first == '{', room, list);
    hth_free(room);
    return err;
}

hth_err hth_class_names_parse(const char *text, size_t bytes, hth_class_names *out)
{
    names_text t = {text, text + bytes};
    names_list list = {.cap = 0};
    *out = (hth_class_names){NULL, 0};
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { // a mark of UTF-8
        t.at += 3;
    }
    hth_err err = names_read(&t, &list);
    if (err == HTH_OK && list.names.n == 0) {
        err = hth_fail(HTH_EINVAL, "the list of classes is empty");
    } else if (err == HTH_OK && list.filled < list.names.n) {
        err = hth_fail(HTH_EINVAL, "of the classes 0 to %d, only %d have names", list.names.n - 1,
                       list.filled);
    }
    if (err != HTH_OK) {
        hth_class_names_fini(&list.names);
        return err;
    }
    *out = list.names;
    return HTH_OK;
}
