// SPDX-License-Identifier: Apache-2.0
// A sample for people. On a terminal everything has its share of the lines: devices a third, then
// the table that was chosen, then the others, of which three rows are kept free if there are as
// many.
#include "client/cli/top/page.h"
#include "client/cli/table.h"
#include "client/cli/top/top_sample.h"
#include "client/cli/top/top_view.h"

#include "base/utf8.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TOP_ROWS   3 // of a table that others leave it, at least
#define TOP_LINE   400
#define TOP_FOOTER 6 // lines of a terminal from which on the last has the keys

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
static void text_bar(hth_page *page, const json_t *json, int width)
{
    double all = (double)text_int(json, "budget_bytes");
    char bar[TOP_LINE];
    width = width < TOP_LINE - 3 ? width : TOP_LINE - 3;
    int at = 0;
    bar[at++] = '[';
    for (int k = 0; k + 1 < HTH_TOP_PARTS && all > 0; k++) {
        double part = (double)text_part(json, k) / all;
        int n = part < 1 ? (int)(part * width + 0.5) : width;
        n = part > 0 && n == 0 ? 1 : n;
        for (int i = 0; i < n && at <= width; i++) {
            bar[at++] = hth_top_parts[k].letter;
        }
    }
    while (at <= width) {
        bar[at++] = '.';
    }
    bar[at++] = ']';
    bar[at] = 0;
    hth_page_put(page, HTH_STYLE_PLAIN, bar);
    hth_page_end(page);
}

// text_legend says what the letters are. Where columns are short, parts that are empty are left
// out, then what is in no other part.
static void text_legend(hth_page *page, const json_t *json, int columns)
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
        if ((int)n <= columns) {
            break;
        }
    }
    hth_page_put(page, HTH_STYLE_PLAIN, line);
    hth_page_end(page);
}

// text_device writes three lines, or one.
static void text_device(hth_page *page, const json_t *json, int columns, bool brief)
{
    char bytes[32] = "", out[TOP_LINE];
    bool known = json_is_integer(json_object_get(json, "budget_bytes"));
    const char *name = text_str(json, "name"), *what = text_str(json, "description");
    const char *state = text_str(json, "state");
    if (known) {
        hth_table_bytes((double)text_int(json, "budget_bytes"), bytes, sizeof bytes);
    }
    hth_page_put(page, HTH_STYLE_HEAD, name);
    hth_page_put(page, HTH_STYLE_PLAIN, "  ");
    if (!brief) { // the description gives way to what is after it
        int rest = page->columns - page->at - hth_utf8_columns(state) - (int)strlen(bytes) - 4;
        hth_page_shorten(what, rest > 0 ? rest : 0, false, page->utf8, out, sizeof out);
        hth_page_format(page, HTH_STYLE_PLAIN, "%s  ", out);
    }
    hth_page_put(page, hth_top_state_style(state), state);
    hth_page_format(page, HTH_STYLE_PLAIN, known ? "  %s" : "%s", bytes);
    if (brief && known) {
        int left = columns - page->at - 3;
        hth_page_put(page, HTH_STYLE_PLAIN, " ");
        text_bar(page, json, left > 10 ? left : 10);
        return;
    }
    hth_page_end(page);
    if (known) {
        text_bar(page, json, columns > 12 ? columns - 2 : 10);
        text_legend(page, json, page->columns);
    }
}

// text_devices writes all, in a third of the lines.
static void text_devices(hth_page *page, const json_t *list, int lines, int columns)
{
    int n = (int)json_array_size(list), third = lines / 3;
    bool brief = 3 * n > third;
    int shown = n;
    if (brief && n > third) {
        shown = third > 1 ? third - 1 : 1;
    }
    for (int i = 0; i < shown; i++) {
        text_device(page, json_array_get(list, (size_t)i), columns, brief);
    }
    if (shown < n) {
        hth_page_format(page, HTH_STYLE_PLAIN, "and %d more", n - shown);
        hth_page_end(page);
    }
}

// ---- tables

// The columns that go first, in their order.
static const char *const drop_jobs[] = {"device",       "peak_bytes", "steps",   "model",
                                        "budget_bytes", "step_ms",    "percent", NULL};
static const char *const drop_models[] = {"requests",    "shared_bytes", "private_bytes",
                                          "arena_bytes", "batch",        "p50_ms",
                                          "failures",    "queued",       NULL};
static const char *const drop_waiting[] = {"device", "tenant", "why", NULL};
static const char *const drop_tenants[] = {
    "refused", "job_bytes", "jobs", "requests", "entitled", "memory_bytes", "of", "running", NULL};
static const char *const *const text_drop[HTH_TOP_TABLES] = {drop_jobs, drop_models, drop_waiting,
                                                             drop_tenants};

// text_least is in how few lines a table of n rows says something: an empty one, its head, a row,
// and how many rows there are more.
static int text_least(int n)
{
    return n > 1 ? 4 : 3;
}

// text_share divides `left` lines: each table gets its first rows, the chosen one before the
// others, and then what it needs.
static void text_share(const hth_top_view *view, int left, int share[HTH_TOP_TABLES])
{
    for (int pass = 0; pass < 2; pass++) {
        for (int i = -1; i < HTH_TOP_TABLES; i++) {
            int k = i < 0 ? view->table : i;
            int n = view->of[k].rows;
            if (n == 0 || (i >= 0 && k == view->table)) {
                continue;
            }
            int had = pass == 0 ? 0 : share[k];
            int want = 2 + (pass == 0 && n > TOP_ROWS ? TOP_ROWS : n);
            int more = want - had < left ? want - had : left;
            share[k] = had + more >= text_least(n) ? had + more : 0;
            left -= share[k] - had;
        }
    }
}

// text_tables writes the tables into the lines that are left.
static void text_tables(hth_page *page, const json_t *sample, hth_top_view *view, int left)
{
    json_t *rows[HTH_TOP_TABLES];
    int share[HTH_TOP_TABLES] = {0};
    for (int k = 0; k < HTH_TOP_TABLES; k++) {
        rows[k] = hth_top_rows(sample, hth_top_name(k));
        view->of[k].rows = (int)json_array_size(rows[k]);
    }
    for (int k = 0; view->of[view->table].rows == 0 && k < HTH_TOP_TABLES; k++) {
        view->table = view->of[k].rows > 0 ? k : view->table;
    }
    bool none = view->of[HTH_TOP_MODELS].rows == 0;
    text_share(view, none ? left - 2 : left, share);
    for (int k = 0; k < HTH_TOP_TABLES; k++) {
        hth_top_table(page, view, k, rows[k], text_drop[k], share[k]);
        if (k == HTH_TOP_MODELS && none && left >= 2) {
            hth_page_end(page);
            hth_page_put(page, HTH_STYLE_PLAIN, "no model is loaded");
            hth_page_end(page);
        }
        json_decref(rows[k]);
    }
}

// ---- the whole

// text_closed closes a page's stream. NULL: no memory.
static char *text_closed(hth_page *page, char **text)
{
    if (fclose(page->file) != 0) {
        free(*text);
        *text = NULL;
    }
    return *text;
}

char *hth_top_text(const json_t *sample, int columns)
{
    char *text = NULL;
    size_t bytes;
    hth_page page = {.file = open_memstream(&text, &bytes), .columns = INT_MAX};
    if (page.file == NULL) {
        return NULL;
    }
    text_devices(&page, json_object_get(sample, "devices"), INT_MAX, columns);
    for (int k = 0; k < HTH_TOP_TABLES; k++) {
        json_t *rows = hth_top_rows(sample, hth_top_name(k));
        if (json_array_size(rows) > 0) {
            hth_page_end(&page);
            hth_table_print(page.file, rows);
        } else if (k == HTH_TOP_MODELS) {
            fputs("\nno model is loaded\n", page.file);
        }
        json_decref(rows);
    }
    return text_closed(&page, &text);
}

char *hth_top_page(const json_t *sample, hth_top_view *view, const char *title, const char *trouble,
                   int lines, int columns)
{
    char *text = NULL;
    size_t bytes;
    hth_page page = {.file = open_memstream(&text, &bytes),
                     .columns = columns,
                     .lines = lines,
                     .styles = view->styles,
                     .colors = view->colors,
                     .utf8 = view->utf8};
    if (page.file == NULL) {
        return NULL;
    }
    bool footer = lines >= TOP_FOOTER;
    int last = footer ? lines - 1 : lines;
    hth_page_put(&page, HTH_STYLE_PLAIN, title);
    if (trouble != NULL) {
        hth_page_put(&page, HTH_STYLE_PLAIN, "  ");
        hth_page_put(&page, HTH_STYLE_FAILED, trouble);
    }
    hth_page_end(&page);
    if (view->help) {
        hth_top_help(&page, view, last - page.ended);
    } else {
        json_t *sorted = hth_top_sorted(sample, view);
        text_devices(&page, json_object_get(sorted, "devices"), last - page.ended, columns);
        text_tables(&page, sorted, view, last - page.ended);
        json_decref(sorted);
    }
    while (footer && page.ended < last) {
        hth_page_end(&page);
    }
    if (footer) {
        hth_top_footer(&page, view);
        hth_page_end(&page);
    }
    return text_closed(&page, &text);
}
