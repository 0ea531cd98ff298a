// SPDX-License-Identifier: Apache-2.0
// client/cli/top/top_view.h - how a terminal shows a sample: which table is chosen, the column by
// which each is sorted, the rows that are in view, and what keys change of that.
#ifndef HTH_CLIENT_CLI_TOP_VIEW_H
#define HTH_CLIENT_CLI_TOP_VIEW_H

#include "client/cli/top/page.h"

#include <jansson.h>

#include <stdbool.h>

// The tables, in the order in which they are written.
enum { HTH_TOP_JOBS, HTH_TOP_MODELS, HTH_TOP_WAITING, HTH_TOP_TENANTS, HTH_TOP_TABLES };

// A column that sorts.
typedef struct hth_top_column {
    int key;           // that chooses it; 0 ends a list
    const char *label; // in the table
    const char *of;    // in the sample's rows
    bool down;         // the largest comes first, unless reversed
} hth_top_column;

typedef struct hth_top_view {
    bool styles, colors, utf8; // hth_page
    bool help;                 // the keys are shown, not the sample
    int table;                 // the chosen one
    struct {
        int sort;     // the column's number from 1; 0: the sample's own order
        bool reverse; // .. the other way round
        int first;    // row in view
        int rows;     // there are
    } of[HTH_TOP_TABLES];
    int page; // rows of the chosen table in view
} hth_top_view;

// hth_top_view_init chooses the models, by requests per second.
void hth_top_view_init(hth_top_view *view);
// hth_top_view_key does what a key (keys.h) stands for. false: nothing, nothing has changed.
bool hth_top_view_key(hth_top_view *view, int key);
// hth_top_view_column is the column by which a table is sorted, NULL: by none.
const hth_top_column *hth_top_view_column(const hth_top_view *view, int table);

const char *hth_top_name(int table); // its key in a sample
// hth_top_show_rows notes that so many rows of a table are in view, and moves `first` as far back
// as that allows.
void hth_top_show_rows(hth_top_view *view, int table, int shown);
// hth_top_state_style is that of a device's or a job's state.
hth_style hth_top_state_style(const char *state);

// hth_top_sorted is a sample whose lists are sorted as the view says: models that have memory of
// the device come first, rows without a value last, equal ones as they were. The caller owns it,
// its rows are the sample's. NULL: no memory.
json_t *hth_top_sorted(const json_t *sample, const hth_top_view *view);

// hth_top_footer writes a line of keys: those that always do something, then the columns that sort,
// as far as there is room. hth_top_help writes all of them, in `lines` lines at most.
void hth_top_footer(hth_page *page, const hth_top_view *view);
void hth_top_help(hth_page *page, const hth_top_view *view, int lines);

// hth_top_fit narrows n columns of width[i], those with least[i] < width[i] no further than that,
// the widest first, until they and `gap` columns between them take `room`. false: they take more.
bool hth_top_fit(int *width, const int *least, int n, int gap, int room);

// hth_top_table writes the rows of a table (hth_top_rows) in `lines` lines, of which the first is
// empty and the second the head; what does not fit is said in the last. Columns are as wide as all
// of the rows need, be they in view or not; those of `drop` go first where there is no room.
// `rows` is changed.
void hth_top_table(hth_page *page, hth_top_view *view, int table, json_t *rows,
                   const char *const *drop, int lines);

// hth_top_page makes a whole screen of a sample in `lines` lines of `columns` columns: `title`,
// `trouble` (may be NULL), devices, the tables, and keys in the last line. Of the view, how many
// rows there are and are in view is noted. The caller frees it with free(). NULL: no memory.
char *hth_top_page(const json_t *sample, hth_top_view *view, const char *title, const char *trouble,
                   int lines, int columns);

#endif
