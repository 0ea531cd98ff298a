// SPDX-License-Identifier: Apache-2.0
// Columns are the first row's keys; a column of numbers is aligned to the right. Two passes:
// widths, then lines.
#include "client/cli/table.h"

#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#define TABLE_COLUMNS 16
#define TABLE_CELL    96

const char *hth_table_bytes(double bytes, char *out, size_t cap)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++) {
        bytes /= 1024;
    }
    snprintf(out, cap, u == 0 ? "%.0f %s" : "%.1f %s", bytes, unit[u]);
    return out;
}

static int table_ends(const char *key, const char *with)
{
    size_t n = strlen(key), m = strlen(with);
    return n >= m && strcmp(key + n - m, with) == 0;
}

// Times since 1970 in nanoseconds, and what people read them as.
static const struct {
    const char *key, *label;
} table_dates[] = {{"created_ns", "created"},
                   {"ended_ns", "ended"},
                   {"submitted", "submitted"},
                   {"started", "started"},
                   {"ended", "ended"},
                   {"scrubbed_ns", "scrubbed"},
                   {"index_read_ns", "index_read"},
                   {"oldest_read_ns", "oldest_read"}};

// table_date is the label of a date's key; NULL: it is none.
static const char *table_date(const char *key)
{
    for (size_t i = 0; i < sizeof table_dates / sizeof *table_dates; i++) {
        if (strcmp(key, table_dates[i].key) == 0) {
            return table_dates[i].label;
        }
    }
    return NULL;
}

const char *hth_table_label(const char *key)
{
    const char *label = table_date(key);
    return label != NULL ? label : key;
}

// table_text writes as many whole characters of `text` as there is room for, of which a terminal
// obeys none.
static void table_text(const char *text, char *out, size_t cap)
{
    size_t n = strlen(text), at = 0, bytes;
    uint32_t code;
    while (at < n && at + (bytes = hth_utf8_next(text + at, n - at, &code)) < cap && bytes > 0) {
        at += bytes;
    }
    memcpy(out, text, at);
    out[at] = 0;
    hth_utf8_plain(out);
}

static bool table_is_bytes(const char *key)
{
    return table_ends(key, "_bytes") || strcmp(key, "bytes") == 0 || strcmp(key, "moved") == 0;
}

// table_time writes a date; "-": never, or no date that a calendar has.
static void table_time(double ns, char *out, size_t cap)
{
    struct tm tm;
    if (!(ns > 0 && ns < 1e20)) {
        snprintf(out, cap, "-");
        return;
    }
    time_t t = (time_t)(ns / 1e9);
    strftime(out, cap, "%Y-%m-%d %H:%M:%S", localtime_r(&t, &tm));
}

static void table_list(const json_t *json, char *out, size_t cap);

void hth_table_cell(const char *key, const json_t *json, char *out, size_t cap)
{
    double x = json_number_value(json);
    if (json_is_string(json)) {
        table_text(json_string_value(json), out, cap);
    } else if (json_is_boolean(json)) {
        snprintf(out, cap, "%s", json_is_true(json) ? "yes" : "no");
    } else if (json_is_number(json) && table_is_bytes(key)) {
        hth_table_bytes(x, out, cap);
    } else if (json_is_number(json) && table_date(key) != NULL) {
        table_time(x, out, cap);
    } else if (json_is_integer(json)) {
        snprintf(out, cap, "%lld", (long long)json_integer_value(json));
    } else if (json_is_real(json)) {
        snprintf(out, cap, table_ends(key, "_us") || table_ends(key, "_ms") ? "%.3f" : "%.6g", x);
    } else if (json_is_array(json)) {
        table_list(json, out, cap);
    } else {
        snprintf(out, cap, "-");
    }
}

static void table_list(const json_t *json, char *out, size_t cap)
{
    size_t i, used = (size_t)snprintf(out, cap, "[");
    const json_t *e;
    json_array_foreach(json, i, e)
    {
        char cell[TABLE_CELL];
        hth_table_cell("", e, cell, sizeof cell);
        if (used + strlen(cell) + 4 < cap) {
            used += (size_t)snprintf(out + used, cap - used, i > 0 ? ",%s" : "%s", cell);
        }
    }
    snprintf(out + used, cap - used, "]");
}

static bool table_is_table(const json_t *json)
{
    return json_is_array(json) && json_array_size(json) > 0 &&
           json_is_object(json_array_get(json, 0));
}

// table_key writes a key's label; how many columns it takes.
static int table_key(const char *key, char *out, size_t cap)
{
    table_text(hth_table_label(key), out, cap);
    return hth_utf8_columns(out);
}

static void table_rows(FILE *file, const json_t *rows)
{
    const char *keys[TABLE_COLUMNS], *key;
    int width[TABLE_COLUMNS] = {0}, n = 0;
    char cell[TABLE_CELL];
    size_t i;
    const json_t *row;
    json_t *v;
    json_object_foreach(json_array_get(rows, 0), key, v)
    {
        if (n < TABLE_COLUMNS && !json_is_object(v) && !table_is_table(v)) {
            width[n] = table_key(key, cell, sizeof cell);
            keys[n++] = key;
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; pass == 1 && k < n; k++) {
            table_key(keys[k], cell, sizeof cell);
            fprintf(file, "%-*s%s", hth_utf8_pad(cell, width[k]), cell, k + 1 < n ? "  " : "\n");
        }
        json_array_foreach(rows, i, row)
        {
            for (int k = 0; k < n; k++) {
                v = json_object_get(row, keys[k]);
                hth_table_cell(keys[k], v, cell, sizeof cell);
                int w = hth_utf8_columns(cell), pad = hth_utf8_pad(cell, width[k]);
                if (pass == 0) {
                    width[k] = w > width[k] ? w : width[k];
                } else {
                    bool last = k + 1 == n;
                    if (!json_is_number(v)) {
                        pad = last ? 0 : -pad;
                    }
                    fprintf(file, "%*s%s", pad, cell, last ? "\n" : "  ");
                }
            }
        }
    }
}

void hth_table_print(FILE *file, const json_t *doc)
{
    const char *key;
    json_t *v;
    int width = 0;
    char cell[512], label[TABLE_CELL];
    if (table_is_table(doc)) {
        table_rows(file, doc);
        return;
    }
    if (!json_is_object(doc)) {
        hth_table_cell("", doc, cell, sizeof cell);
        fprintf(file, "%s\n", cell);
        return;
    }
    json_object_foreach((json_t *)doc, key, v)
    {
        int n = table_key(key, label, sizeof label);
        width = n > width ? n : width;
    }
    for (int sections = 0; sections < 2;
         sections++) { // lines first, then what has lines of its own
        json_object_foreach((json_t *)doc, key, v)
        {
            bool section = json_is_object(v) || table_is_table(v);
            table_key(key, label, sizeof label);
            if (section && sections == 1) {
                fprintf(file, "%s%s:\n", json_object_size(doc) > 1 ? "\n" : "", label);
                hth_table_print(file, v);
            } else if (!section && sections == 0) {
                hth_table_cell(key, v, cell, sizeof cell);
                fprintf(file, "%-*s  %s\n", hth_utf8_pad(label, width), label, cell);
            }
        }
    }
}
