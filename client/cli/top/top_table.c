// SPDX-License-Identifier: Apache-2.0
// A table on a terminal. What is long (names, reasons) gives way first, down to a width that still
// says something; then columns go, in the table's order, but the one that sorts only last.
#include "client/cli/top/top_view.h"

#include "client/cli/table.h"
#include "client/cli/top/top_sample.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_COLUMNS 16
#define TABLE_TEXT    400
#define TABLE_GAP     2
#define TABLE_WIDE    4  // .. where there is room
#define TABLE_NAME    24 // columns of a name, at least where it has more
#define TABLE_WHY     16 // .. of a reason

typedef struct table_columns {
    int n, sort; // sort: the column's place, -1: none
    const char *key[TABLE_COLUMNS];
    int width[TABLE_COLUMNS], least[TABLE_COLUMNS];
    bool number[TABLE_COLUMNS];
} table_columns;

bool hth_top_fit(int *width, const int *least, int n, int gap, int room)
{
    int sum = gap * (n - 1);
    for (int i = 0; i < n; i++) {
        sum += width[i];
    }
    while (sum > room) {
        int widest = -1;
        for (int i = 0; i < n; i++) {
            if (width[i] > least[i] && (widest < 0 || width[i] > width[widest])) {
                widest = i;
            }
        }
        if (widest < 0) {
            return false;
        }
        width[widest]--;
        sum--;
    }
    return true;
}

static bool table_is_name(const char *key)
{
    static const char *const names[] = {"name", "job", "model", "waiting_job", "tenant", "device"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(key, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

hth_style hth_top_state_style(const char *state)
{
    static const struct {
        const char *state;
        hth_style style;
    } styles[] = {{"up", HTH_STYLE_WORKS},         {"running", HTH_STYLE_WORKS},
                  {"waiting", HTH_STYLE_WAITS},    {"queued", HTH_STYLE_WAITS},
                  {"paused", HTH_STYLE_WAITS},     {"pausing", HTH_STYLE_WAITS},
                  {"restarting", HTH_STYLE_WAITS}, {"failed", HTH_STYLE_FAILED},
                  {"lost", HTH_STYLE_FAILED},      {"down", HTH_STYLE_FAILED}};
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        if (strcmp(state, styles[i].state) == 0) {
            return styles[i].style;
        }
    }
    return HTH_STYLE_PLAIN;
}

static hth_style table_style(const char *key, const json_t *value)
{
    bool some = json_number_value(value) > 0;
    if (strcmp(key, "state") == 0 && json_is_string(value)) {
        return hth_top_state_style(json_string_value(value));
    }
    if (some && (strcmp(key, "failures") == 0 || strcmp(key, "refused") == 0)) {
        return HTH_STYLE_FAILED;
    }
    bool waits = some && (strcmp(key, "queued") == 0 || strcmp(key, "waiting") == 0);
    return waits ? HTH_STYLE_WAITS : HTH_STYLE_PLAIN;
}

// table_label is what the head says: the column that sorts is marked.
static const char *table_label(const table_columns *columns, int k, bool down, char *out,
                               size_t cap)
{
    const char *mark = down ? " v" : " ^";
    snprintf(out, cap, "%s%s", hth_table_label(columns->key[k]), columns->sort == k ? mark : "");
    return out;
}

// table_measure finds the columns and what all rows need of each.
static void table_measure(table_columns *out, const json_t *rows, const hth_top_column *sort,
                          bool down)
{
    const char *key;
    char text[TABLE_TEXT];
    size_t i;
    json_t *v, *row;
    *out = (table_columns){.sort = -1};
    json_object_foreach(json_array_get(rows, 0), key, v)
    {
        if (out->n < TABLE_COLUMNS && !json_is_object(v)) {
            out->sort = sort != NULL && strcmp(key, sort->label) == 0 ? out->n : out->sort;
            out->key[out->n++] = key;
        }
    }
    for (int k = 0; k < out->n; k++) {
        bool text_seen = false;
        out->width[k] = hth_utf8_columns(table_label(out, k, down, text, sizeof text));
        out->least[k] = out->width[k];
        json_array_foreach((json_t *)rows, i, row)
        {
            v = json_object_get(row, out->key[k]);
            hth_table_cell(out->key[k], v, text, sizeof text);
            int width = hth_utf8_columns(text);
            out->width[k] = width > out->width[k] ? width : out->width[k];
            text_seen = text_seen || json_is_string(v);
        }
        out->number[k] = !text_seen && !table_is_name(out->key[k]); // null, too: not known yet
        int least = out->width[k];
        if (strcmp(out->key[k], "why") == 0) {
            least = TABLE_WHY;
        } else if (table_is_name(out->key[k])) {
            least = TABLE_NAME;
        }
        least = least > out->least[k] ? least : out->least[k];
        out->least[k] = least < out->width[k] ? least : out->width[k];
    }
}

// table_fit drops columns until the rest fits. Without success the rest is as narrow as it gets.
static void table_fit(table_columns *out, json_t *rows, const char *const *drop,
                      const hth_top_column *sort, bool down, int room)
{
    table_measure(out, rows, sort, down);
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; drop[k] != NULL; k++) {
            if (hth_top_fit(out->width, out->least, out->n, TABLE_GAP, room)) {
                return;
            }
            bool sorts = sort != NULL && strcmp(drop[k], sort->label) == 0;
            if (sorts == (pass == 1)) {
                hth_top_rows_drop(rows, drop[k]);
                table_measure(out, rows, sort, down);
            }
        }
    }
    (void)hth_top_fit(out->width, out->least, out->n, TABLE_GAP, room);
}

static int table_gap(const table_columns *columns, int room)
{
    int used = TABLE_GAP * (columns->n - 1);
    for (int k = 0; k < columns->n; k++) {
        used += columns->width[k];
    }
    int more = columns->n > 1 && room > used ? (room - used) / (columns->n - 1) : 0;
    return TABLE_GAP + more < TABLE_WIDE ? TABLE_GAP + more : TABLE_WIDE;
}

// table_put writes a text in its column, which begins at `at`.
static void table_put(hth_page *page, const table_columns *columns, int k, int at, hth_style style,
                      const char *text)
{
    char out[TABLE_TEXT];
    bool middle = strcmp(columns->key[k], "why") != 0;
    hth_page_shorten(text, columns->width[k], middle, page->utf8, out, sizeof out);
    int pad = columns->number[k] ? columns->width[k] - hth_utf8_columns(out) : 0;
    hth_page_fill(page, at + pad);
    hth_page_put(page, style, out);
}

static void table_head(hth_page *page, const table_columns *columns, int gap, bool chosen,
                       bool down)
{
    char text[TABLE_TEXT];
    int mark = columns->sort >= 0 ? columns->sort : 0;
    for (int k = 0, at = 0; k < columns->n; at += columns->width[k++] + gap) {
        hth_style style = chosen && k == mark ? HTH_STYLE_CHOSEN : HTH_STYLE_HEAD;
        table_put(page, columns, k, at, style, table_label(columns, k, down, text, sizeof text));
    }
    hth_page_end(page);
}

static void table_row(hth_page *page, const table_columns *columns, int gap, const json_t *row)
{
    char text[TABLE_TEXT];
    for (int k = 0, at = 0; k < columns->n; at += columns->width[k++] + gap) {
        const json_t *v = json_object_get(row, columns->key[k]);
        hth_table_cell(columns->key[k], v, text, sizeof text);
        table_put(page, columns, k, at, table_style(columns->key[k], v), text);
    }
    hth_page_end(page);
}

void hth_top_table(hth_page *page, hth_top_view *view, int table, json_t *rows,
                   const char *const *drop, int lines)
{
    table_columns columns;
    int n = (int)json_array_size(rows), shown = n <= lines - 2 ? n : lines - 3;
    view->of[table].rows = n;
    hth_top_show_rows(view, table, shown > 0 ? shown : 0);
    if (shown <= 0) {
        return;
    }
    const hth_top_column *sort = hth_top_view_column(view, table);
    bool down = sort != NULL && sort->down != view->of[table].reverse;
    table_fit(&columns, rows, drop, sort, down, page->columns);
    int gap = table_gap(&columns, page->columns), first = view->of[table].first;
    hth_page_end(page);
    table_head(page, &columns, gap, table == view->table, down);
    for (int i = first; i < first + shown; i++) {
        table_row(page, &columns, gap, json_array_get(rows, (size_t)i));
    }
    if (first > 0) {
        hth_page_format(page, HTH_STYLE_PLAIN, "rows %d to %d of %d", first + 1, first + shown, n);
        hth_page_end(page);
    } else if (shown < n) {
        hth_page_format(page, HTH_STYLE_PLAIN, "and %d more", n - shown);
        hth_page_end(page);
    }
}
