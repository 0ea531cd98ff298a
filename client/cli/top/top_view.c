// SPDX-License-Identifier: Apache-2.0
// Each table keeps its order and its place; keys move the chosen one. What sorts is the sample's
// value, not what is written of it: "9.5 s" comes before "12 s".
#include "client/cli/top/top_view.h"

#include "client/cli/top/keys.h"

#include "base/utf8.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const hth_top_column columns_jobs[] = {{'n', "job", "job", false},
                                              {'m', "model", "model", false},
                                              {'s', "state", "state", false},
                                              {'e', "step", "step", true},
                                              {'o', "percent", "percent", true},
                                              {'l', "loss", "loss", true},
                                              {'t', "step_ms", "step_ms", true},
                                              {'b', "budget_bytes", "budget_bytes", true},
                                              {'p', "peak_bytes", "peak_bytes", true},
                                              {'d', "device", "device", false},
                                              {0}};
static const hth_top_column columns_models[] = {{'n', "name", "name", false},
                                                {'r', "per_second", "per_second", true},
                                                {'5', "p50_ms", "p50_ms", true},
                                                {'9', "p99_ms", "p99_ms", true},
                                                {'b', "batch", "batch", true},
                                                {'p', "private_bytes", "private_bytes", true},
                                                {'s', "shared_bytes", "shared_bytes", true},
                                                {'a', "arena_bytes", "arena_bytes", true},
                                                {'u', "queued", "queued", true},
                                                {'t', "requests", "requests", true},
                                                {'f', "failures", "failures", true},
                                                {0}};
static const hth_top_column columns_waiting[] = {
    {'n', "waiting_job", "job", false}, {'t', "tenant", "tenant", false},
    {'d', "device", "device", false},   {'i', "starts_in", "wait_seconds", false},
    {'w', "why", "why", false},         {0}};
static const hth_top_column columns_tenants[] = {
    {'n', "name", "name", false},           {'w', "weight", "weight", true},
    {'s', "share", "dominant_share", true}, {'o', "of", "dominant", false},
    {'e', "entitled", "entitlement", true}, {'r', "running", "jobs_running", true},
    {'i', "waiting", "jobs_waiting", true}, {'m', "memory_bytes", "memory_bytes", true},
    {'j', "job_bytes", "job_bytes", true},  {'t', "requests", "waiting", true},
    {'f', "refused", "refused", true},      {0}};

static const struct {
    const char *name;
    const hth_top_column *columns;
} view_tables[HTH_TOP_TABLES] = {{"jobs", columns_jobs},
                                 {"models", columns_models},
                                 {"waiting", columns_waiting},
                                 {"tenants", columns_tenants}};
#define VIEW_PER_SECOND 2 // of columns_models, from 1

const char *hth_top_name(int table)
{
    return view_tables[table].name;
}

const hth_top_column *hth_top_view_column(const hth_top_view *view, int table)
{
    int sort = view->of[table].sort;
    return sort > 0 ? &view_tables[table].columns[sort - 1] : NULL;
}

void hth_top_view_init(hth_top_view *view)
{
    *view = (hth_top_view){.table = HTH_TOP_MODELS, .page = 1};
    view->of[HTH_TOP_MODELS].sort = VIEW_PER_SECOND;
}

// ---- keys

void hth_top_show_rows(hth_top_view *view, int table, int shown)
{
    int last = view->of[table].rows - shown;
    int first = view->of[table].first < last ? view->of[table].first : last;
    view->of[table].first = first > 0 ? first : 0;
    if (table == view->table) {
        view->page = shown > 1 ? shown : 1;
    }
}

static bool view_scroll(hth_top_view *view, int key)
{
    int last = view->of[view->table].rows - view->page, before = view->of[view->table].first;
    int first = before;
    switch (key) {
    case HTH_KEY_UP:
        first--;
        break;
    case HTH_KEY_DOWN:
        first++;
        break;
    case HTH_KEY_PAGE_UP:
        first -= view->page;
        break;
    case HTH_KEY_PAGE_DOWN:
        first += view->page;
        break;
    case HTH_KEY_HOME:
        first = 0;
        break;
    case HTH_KEY_END:
        first = last;
        break;
    default:
        return false;
    }
    first = first < last ? first : last;
    view->of[view->table].first = first > 0 ? first : 0;
    return view->of[view->table].first != before;
}

// view_next chooses the next table that has rows.
static bool view_next(hth_top_view *view)
{
    for (int i = 1; i < HTH_TOP_TABLES; i++) {
        int table = (view->table + i) % HTH_TOP_TABLES;
        if (view->of[table].rows > 0) {
            view->table = table;
            return true;
        }
    }
    return false;
}

// A column's key once more turns its order round.
static bool view_sort(hth_top_view *view, int key)
{
    const hth_top_column *columns = view_tables[view->table].columns;
    for (int i = 0; columns[i].key != 0; i++) {
        if (columns[i].key == key) {
            bool same = view->of[view->table].sort == i + 1;
            view->of[view->table].reverse = same && !view->of[view->table].reverse;
            view->of[view->table].sort = i + 1;
            view->of[view->table].first = 0;
            return true;
        }
    }
    return false;
}

bool hth_top_view_key(hth_top_view *view, int key)
{
    if (key == '?' || view->help) {
        view->help = !view->help;
        return true;
    }
    if (key == '\t') {
        return view_next(view);
    }
    if (key == 'R') {
        view->of[view->table].reverse = !view->of[view->table].reverse;
        return view->of[view->table].sort > 0;
    }
    return view_scroll(view, key) || view_sort(view, key);
}

// ---- order

typedef struct view_row {
    json_t *row;
    const json_t *by;
    size_t at;      // in the list
    bool down, low; // low: after the others, whatever the order
} view_row;

// Is there anything of the model on the device? One that streams its weights has an arena only.
static bool view_loaded(const json_t *model)
{
    static const char *const keys[] = {"private_bytes", "shared_bytes", "arena_bytes",
                                       "per_second"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (json_number_value(json_object_get(model, keys[i])) > 0) {
            return true;
        }
    }
    return false;
}

// Texts come after numbers, whatever a server mixes.
static int view_order(const json_t *x, const json_t *y)
{
    bool text = json_is_string(x);
    if (text != json_is_string(y)) {
        return text ? 1 : -1;
    }
    if (text) {
        return strcmp(json_string_value(x), json_string_value(y));
    }
    double p = json_number_value(x), q = json_number_value(y);
    return (p > q) - (p < q);
}

static int view_compare(const void *a, const void *b)
{
    const view_row *x = a, *y = b;
    bool none = x->by == NULL || json_is_null(x->by), other = y->by == NULL || json_is_null(y->by);
    if (x->low != y->low) {
        return x->low ? 1 : -1;
    }
    if (none != other) {
        return none ? 1 : -1;
    }
    int order = none ? 0 : view_order(x->by, y->by);
    if (order != 0) {
        return x->down ? -order : order;
    }
    return x->at < y->at ? -1 : 1;
}

// view_sorted is a list in the view's order; it has the caller's rows.
static json_t *view_sorted(const json_t *list, const hth_top_view *view, int table)
{
    const hth_top_column *column = hth_top_view_column(view, table);
    size_t n = json_array_size(list);
    json_t *out = json_array();
    view_row *rows = calloc(n + 1, sizeof *rows);
    for (size_t i = 0; rows != NULL && i < n; i++) {
        json_t *v = json_array_get(list, i);
        rows[i] = (view_row){v, json_object_get(v, column->of), i,
                             column->down != view->of[table].reverse,
                             table == HTH_TOP_MODELS && !view_loaded(v)};
    }
    if (rows != NULL) {
        qsort(rows, n, sizeof *rows, view_compare);
    }
    for (size_t i = 0; rows != NULL && i < n; i++) {
        json_array_append(out, rows[i].row);
    }
    free(rows);
    return out;
}

json_t *hth_top_sorted(const json_t *sample, const hth_top_view *view)
{
    json_t *out = json_copy((json_t *)sample);
    for (int k = 0; k < HTH_TOP_TABLES; k++) {
        if (hth_top_view_column(view, k) != NULL) {
            const char *name = view_tables[k].name;
            json_object_set_new(out, name, view_sorted(json_object_get(sample, name), view, k));
        }
    }
    return out;
}

// ---- what the keys are

typedef struct view_item {
    char key[8];
    const char *what;
} view_item;

// view_item_columns is what an item takes, with the gap after it.
static int view_item_columns(const view_item *item)
{
    return hth_utf8_columns(item->key) + 1 + hth_utf8_columns(item->what) + 2;
}

static void view_put(hth_page *page, const view_item *item)
{
    hth_page_put(page, HTH_STYLE_CHOSEN, item->key);
    hth_page_format(page, HTH_STYLE_PLAIN, " %s  ", item->what);
}

static view_item view_column_item(const hth_top_column *column)
{
    view_item item = {"", column->label};
    snprintf(item.key, sizeof item.key, "%c", column->key);
    return item;
}

void hth_top_footer(hth_page *page, const hth_top_view *view)
{
    static const view_item always[] = {
        {"q", "quit"}, {"?", "keys"}, {"Tab", "table"}, {"R", "reverse"}};
    const int room = page->columns;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        if (page->at + view_item_columns(&always[i]) - 2 <= room) {
            view_put(page, &always[i]);
        }
    }
    if (view->help) {
        return;
    }
    const hth_top_column *columns = view_tables[view->table].columns;
    view_item first = view_column_item(&columns[0]);
    if (page->at + 6 + view_item_columns(&first) - 2 > room) {
        return;
    }
    hth_page_put(page, HTH_STYLE_HEAD, "sort: ");
    for (int i = 0; columns[i].key != 0; i++) {
        view_item item = view_column_item(&columns[i]);
        if (page->at + view_item_columns(&item) - 2 > room) {
            return; // the others are among the keys that '?' shows
        }
        view_put(page, &item);
    }
}

void hth_top_help(hth_page *page, const hth_top_view *view, int lines)
{
    static const view_item keys[] = {{"q", "quit"},
                                     {"?", "these keys; any key leads back"},
                                     {"Tab", "the next table: its rows scroll, its columns sort"},
                                     {"Up", ""},
                                     {"Down", "a row"},
                                     {"PgUp", ""},
                                     {"PgDn", "as many rows as are in view"},
                                     {"Home", ""},
                                     {"End", "the first, the last rows"},
                                     {"R", "turns the order round"}};
    const int end = page->ended + lines;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && page->ended < end; i++) {
        hth_page_fill(page, page->at == 0 ? 2 : page->at + 1);
        hth_page_put(page, HTH_STYLE_CHOSEN, keys[i].key);
        if (keys[i].what[0] != 0) {
            hth_page_fill(page, 14);
            hth_page_put(page, HTH_STYLE_PLAIN, keys[i].what);
            hth_page_end(page);
        }
    }
    if (page->ended + 3 > end) {
        return;
    }
    hth_page_end(page);
    hth_page_format(page, HTH_STYLE_HEAD, "Columns that sort %s (again: the other way round)",
                    view_tables[view->table].name);
    hth_page_end(page);
    const hth_top_column *columns = view_tables[view->table].columns;
    for (int i = 0; columns[i].key != 0; i++) {
        view_item item = view_column_item(&columns[i]);
        if (page->at > 0 && page->at + view_item_columns(&item) - 2 > page->columns) {
            hth_page_end(page);
        }
        if (page->ended + 1 >= end) {
            break;
        }
        hth_page_fill(page, page->at == 0 ? 2 : page->at);
        view_put(page, &item);
    }
    if (page->at > 0) {
        hth_page_end(page);
    }
    if (page->ended + 2 <= end) {
        hth_page_end(page);
        hth_page_put(page, HTH_STYLE_WORKS, "at work");
        hth_page_put(page, HTH_STYLE_PLAIN, "  ");
        hth_page_put(page, HTH_STYLE_WAITS, "waits");
        hth_page_put(page, HTH_STYLE_PLAIN, "  ");
        hth_page_put(page, HTH_STYLE_FAILED, "failed");
        hth_page_end(page);
    }
}
