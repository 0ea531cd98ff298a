// SPDX-License-Identifier: Apache-2.0
// A sample for people. On a terminal everything has its share of the lines: devices a third, then
// the jobs, of which there are few, the models, and what is left for tenants. A table that is too
// wide loses its columns in a fixed order, the names last of all.
#include "base/utf8.h"
#include "client/cli/table.h"
#include "client/cli/top_sample.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TOP_ROWS 3  // of a table that others leave it, at least
#define TOP_NAME 24 // columns of a name where columns are short
#define TOP_WHY  16 // .. of a reason, at least
#define TOP_LINE 400

static json_int_t text_int(const json_t *json, const char *key)
{
    return json_integer_value(json_object_get(json, key));
}

static const char *text_str(const json_t *json, const char *key)
{
    const char *s = json_string_value(json_object_get(json, key));
    return s != NULL ? s : "";
}

static json_int_t text_part(const json_t *json, int k)
{
    char key[40];
    snprintf(key, sizeof key, "%s_bytes", hth_top_parts[k].name);
    return text_int(json, key);
}

// ---- devices

// What is there has a column at least; what is lost by rounding is free.
static void text_bar(FILE *file, const json_t *json, int width)
{
    double all = (double)text_int(json, "budget_bytes");
    int left = width;
    fputc('[', file);
    for (int k = 0; k + 1 < HTH_TOP_PARTS && all > 0; k++) {
        json_int_t bytes = text_part(json, k);
        int n = (int)((double)bytes / all * width + 0.5);
        n = bytes > 0 && n == 0 ? 1 : n;
        n = n < left ? n : left;
        for (int i = 0; i < n; i++) {
            fputc(hth_top_parts[k].letter, file);
        }
        left -= n > 0 ? n : 0;
    }
    for (; left > 0; left--) {
        fputc('.', file);
    }
    fputs("]\n", file);
}

// text_legend says what the letters are. Where columns are short, parts that are empty are left
// out, then what is in no other part.
static void text_legend(FILE *file, const json_t *json, int columns, bool fit)
{
    char line[TOP_LINE], bytes[32];
    for (int all = 2; all >= 0; all--) {
        size_t n = 0;
        line[0] = 0;
        for (int k = 0; k < HTH_TOP_PARTS && n < sizeof line; k++) {
            json_int_t v = text_part(json, k);
            bool rest = hth_top_parts[k].ledger == NULL;
            if (all == 2 || (v != 0 && (all == 1 || !rest))) {
                n += (size_t)snprintf(line + n, sizeof line - n, "%s%c %s %s", n > 0 ? "  " : "",
                                      hth_top_parts[k].letter, hth_top_parts[k].name,
                                      hth_table_bytes((double)v, bytes, sizeof bytes));
            }
        }
        if (!fit || (int)n <= columns) {
            break;
        }
    }
    fprintf(file, "%s\n", line);
}

// text_device writes three lines, or one.
static void text_device(FILE *file, const json_t *json, int columns, bool fit, bool brief)
{
    char bytes[32] = "";
    bool known = json_is_integer(json_object_get(json, "budget_bytes"));
    const char *name = text_str(json, "name"), *what = text_str(json, "description");
    const char *state = text_str(json, "state");
    if (known) {
        hth_table_bytes((double)text_int(json, "budget_bytes"), bytes, sizeof bytes);
    }
    if (brief) {
        int head = hth_utf8_columns(name) + hth_utf8_columns(state) + (int)strlen(bytes) + 5;
        fprintf(file, "%s  %s  %s ", name, state, bytes);
        if (known) {
            text_bar(file, json, columns - head > 12 ? columns - head - 2 : 10);
        } else {
            fputc('\n', file);
        }
        return;
    }
    int rest = columns - hth_utf8_columns(name) - hth_utf8_columns(state) - (int)strlen(bytes) - 6;
    size_t room = fit && rest > 0 ? hth_utf8_fit(what, rest) : strlen(what);
    fprintf(file, "%s  %.*s  %s%s%s\n", name, (int)room, what, state, known ? "  " : "", bytes);
    if (known) {
        text_bar(file, json, columns > 12 ? columns - 2 : 10);
        text_legend(file, json, columns, fit);
    }
}

// text_devices writes all, in a third of the lines; how many lines those are.
static int text_devices(FILE *file, const json_t *list, int lines, int columns)
{
    int n = (int)json_array_size(list), third = lines / 3;
    bool fit = lines != INT_MAX, brief = fit && 3 * n > third;
    int shown = n;
    if (brief && n > third) {
        shown = third > 1 ? third - 1 : 1;
    }
    for (int i = 0; i < shown; i++) {
        text_device(file, json_array_get(list, (size_t)i), columns, fit, brief);
    }
    if (shown < n) {
        fprintf(file, "and %d more\n", n - shown);
    }
    return brief ? shown + (shown < n) : 3 * n;
}

// ---- tables

typedef struct text_table {
    const char *key;
    const char *const *drop; // the columns that go first, in their order
    const char *none;        // said in the place of an empty table
} text_table;

static const char *const drop_jobs[] = {"device",       "peak_bytes", "steps",   "model",
                                        "budget_bytes", "step_ms",    "percent", NULL};
static const char *const drop_models[] = {"requests",    "shared_bytes", "private_bytes",
                                          "arena_bytes", "batch",        "p50_ms",
                                          "failures",    "queued",       NULL};
static const char *const drop_waiting[] = {"device", "tenant", "why", NULL};
static const char *const drop_tenants[] = {
    "refused", "job_bytes", "jobs", "requests", "entitled", "memory_bytes", "of", "running", NULL};

static const text_table text_tables[] = {{"jobs", drop_jobs, NULL},
                                         {"models", drop_models, "no model is loaded"},
                                         {"waiting", drop_waiting, NULL},
                                         {"tenants", drop_tenants, NULL}};
#define TEXT_TABLES 4

// text_shorten takes the middle out of long names: they differ at either end.
static void text_shorten(json_t *rows, const char *key)
{
    size_t i;
    json_t *v;
    json_array_foreach(rows, i, v)
    {
        const char *s = json_string_value(json_object_get(v, key));
        if (s != NULL && hth_utf8_columns(s) > TOP_NAME) {
            int half = TOP_NAME / 2 - 1;
            json_object_set_new(v, key,
                                json_sprintf("%.*s..%s", (int)hth_utf8_fit(s, half), s,
                                             s + hth_utf8_last(s, half)));
        }
    }
}

// text_cut_why shortens the sentences in the last column of rows that are `width` columns wide.
// false: they are short enough, or would say nothing.
static bool text_cut_why(json_t *rows, int width, int columns)
{
    size_t i;
    json_t *v;
    int most = 0;
    json_array_foreach(rows, i, v)
    {
        int n = hth_utf8_columns(text_str(v, "why"));
        most = n > most ? n : most;
    }
    int room = columns - (width - most);
    json_array_foreach(rows, i, v)
    {
        const char *why = text_str(v, "why");
        if (room >= TOP_WHY && hth_utf8_columns(why) > room) {
            int n = (int)hth_utf8_fit(why, room - 2);
            json_object_set_new(v, "why", json_sprintf("%.*s..", n, why));
        }
    }
    return room >= TOP_WHY && most > room;
}

// text_print makes the table's text; *width is its widest line. The caller frees it.
static char *text_print(const json_t *rows, int *width)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    *width = 0;
    if (f == NULL) {
        return NULL;
    }
    hth_table_print(f, rows);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    for (char *p = text; *p != 0;) {
        char *end = p + strcspn(p, "\n"), after = *end;
        *end = 0;
        int n = hth_utf8_columns(p);
        *width = n > *width ? n : *width;
        *end = after;
        p = end + (after == '\n');
    }
    return text;
}

// text_fitted makes the table's text of at most so many columns, if it can.
static char *text_fitted(const text_table *table, json_t *rows, int columns)
{
    int width;
    char *text = text_print(rows, &width);
    for (int k = -1; text != NULL && width > columns && (k < 0 || table->drop[k] != NULL); k++) {
        if (k >= 0) {
            hth_top_rows_drop(rows, table->drop[k]);
            text_shorten(rows, "name");
            text_shorten(rows, "job");
            text_shorten(rows, "waiting_job");
            text_shorten(rows, "model");
            free(text);
            text = text_print(rows, &width);
        }
        if (text != NULL && width > columns && text_cut_why(rows, width, columns)) {
            free(text);
            text = text_print(rows, &width);
        }
    }
    return text;
}

// text_table_write writes the table in `lines` lines, the empty one in front and the head included.
static void text_table_write(FILE *file, const text_table *table, json_t *rows, int lines,
                             int columns)
{
    int width, n = (int)json_array_size(rows), room = lines - 2;
    bool fit = lines != INT_MAX;
    int shown = n <= room ? n : room - 1;
    for (int i = n; i > (shown > 0 ? shown : 0); i--) {
        json_array_remove(rows, (size_t)i - 1);
    }
    if (shown <= 0) {
        return;
    }
    char *text = fit ? text_fitted(table, rows, columns) : text_print(rows, &width);
    fprintf(file, "\n%s", text != NULL ? text : "");
    if (shown < n) {
        fprintf(file, "and %d more\n", n - shown);
    }
    free(text);
}

// text_share is how many lines of `left` the k-th table has. It leaves some to those after it, once
// it has some itself.
static int text_share(json_t *const rows[TEXT_TABLES], int k, int left)
{
    int others = 0, n = (int)json_array_size(rows[k]);
    for (int i = k + 1; i < TEXT_TABLES; i++) {
        int m = (int)json_array_size(rows[i]);
        m = m < TOP_ROWS ? m : TOP_ROWS;
        others += m > 0 ? 2 + m : 0;
    }
    int least = 2 + (n < TOP_ROWS ? n : TOP_ROWS), most = left - others;
    most = most > least ? most : least;
    most = most < left ? most : left;
    return n + 2 <= most ? n + 2 : most;
}

char *hth_top_text(const json_t *sample, int lines, int columns)
{
    char *text = NULL;
    size_t bytes;
    json_t *rows[TEXT_TABLES];
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) {
        return NULL;
    }
    for (int k = 0; k < TEXT_TABLES; k++) {
        rows[k] = hth_top_rows(sample, text_tables[k].key);
    }
    int left = lines, taken = text_devices(f, json_object_get(sample, "devices"), lines, columns);
    left -= lines == INT_MAX ? 0 : taken;
    for (int k = 0; k < TEXT_TABLES; k++) {
        if (json_array_size(rows[k]) > 0) {
            int share = lines == INT_MAX ? INT_MAX : text_share(rows, k, left);
            text_table_write(f, &text_tables[k], rows[k], share, columns);
            left -= lines != INT_MAX && share > 2 ? share : 0;
        } else if (text_tables[k].none != NULL) {
            fprintf(f, "\n%s\n", text_tables[k].none);
            left -= lines == INT_MAX ? 0 : 2;
        }
        json_decref(rows[k]);
        rows[k] = NULL;
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

void hth_top_cut(char *text, int lines, int columns)
{
    char *to = text;
    for (char *line = text; *line != 0 && lines > 0; lines--) {
        char *end = line + strcspn(line, "\n"), after = *end;
        *end = 0;
        hth_utf8_plain(line);
        size_t n = hth_utf8_fit(line, columns);
        memmove(to, line, n);
        to += n;
        if (after == '\n') {
            *to++ = '\n';
        }
        line = end + (after == '\n');
    }
    *to = 0;
}
