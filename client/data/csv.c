// SPDX-License-Identifier: Apache-2.0
// A table of numbers with a header: one column is y, the others are x, float32 [N, columns].
//
// The separator is what the header has: comma, semicolon or tab. A cell may stand in double quotes;
// neither a separator nor a line's end may stand in them. Numbers are those of C, whatever the
// locale, rounded to double and then to float, as numpy and pandas do. Labels that are all whole
// numbers make y int64 [N], others float32 [N, 1].
#include "client/data/data_impl.h"

#include "base/alloc.h"
#include "base/file.h"

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CSV_LINE    ((size_t)16 << 20) // most bytes of a line
#define CSV_COLUMNS 100000
#define CSV_CELL    64                 // most bytes of a number
#define CSV_WHOLE   9007199254740992.0 // 2^53: whole numbers up to it are exact
#define CSV_FLOAT   0x1.ffffffp127     // from here on a float32 is infinite

typedef struct csv_table {
    hth_file file;
    const char *path;
    uint64_t at;        // of the file, read so far
    char *buffer;       // of CSV_LINE + 1 bytes
    size_t have, taken; // bytes in it, and of these given as lines
    long long line;     // the last one given, from 1
    char separator;
    char *header; // a line of its own
    char **column;
    int n_columns, label;
    float *x;
    double *y;
    size_t rows, cap;
    bool whole; // all labels are
    void *labels;
    locale_t c_locale;
} csv_table;

// csv_line gives the next line, without its end, as a string; NULL: there is none.
static hth_err csv_line(csv_table *table, char **out)
{
    char *from = table->buffer + table->taken, *end;
    *out = NULL;
    while ((end = memchr(from, '\n', table->have - table->taken)) == NULL &&
           table->at < table->file.bytes) {
        memmove(table->buffer, from, table->have - table->taken);
        table->have -= table->taken;
        table->taken = 0;
        from = table->buffer;
        uint64_t left = table->file.bytes - table->at;
        size_t n = CSV_LINE - table->have < left ? CSV_LINE - table->have : (size_t)left;
        n = n < (1u << 20) ? n : 1u << 20;
        if (n == 0) {
            return hth_fail(HTH_ETOOBIG, "line %lld has more than %zu bytes", table->line + 1,
                            CSV_LINE);
        }
        HTH_TRY(
            hth_file_read(&table->file, table->path, table->at, table->buffer + table->have, n));
        table->at += n;
        table->have += n;
    }
    if (end == NULL && table->have == table->taken) {
        return HTH_OK;
    }
    end = end != NULL ? end : table->buffer + table->have;
    size_t n = (size_t)(end - from);
    table->taken += n < table->have - table->taken ? n + 1 : n;
    table->line++;
    if (memchr(from, 0, n) != NULL) {
        return hth_fail(HTH_EINVAL, "line %lld holds a zero byte: this is no text", table->line);
    }
    *end = 0;
    if (n > 0 && end[-1] == '\r') {
        end[-1] = 0;
    }
    *out = from;
    return HTH_OK;
}

static bool csv_blank(const char *line)
{
    return line[strspn(line, " \t")] == 0;
}

// csv_cell cuts the next cell off *line, without blanks and quotes around it; *line is NULL after
// the last one.
static char *csv_cell(const csv_table *table, char **line)
{
    char *cell = *line, *end = strchr(cell, table->separator);
    *line = end != NULL ? end + 1 : NULL;
    end = end != NULL ? end : cell + strlen(cell);
    while (end > cell && (end[-1] == ' ' || (end[-1] == '\t' && table->separator != '\t'))) {
        end--;
    }
    cell += strspn(cell, table->separator == '\t' ? " " : " \t");
    if (end >= cell + 2 && *cell == '"' && end[-1] == '"') {
        cell++;
        end--;
    }
    *(end > cell ? end : cell) = 0;
    return cell;
}

static int csv_count(const char *line, char separator)
{
    int n = 1;
    for (; (line = strchr(line, separator)) != NULL && n <= CSV_COLUMNS; line++) {
        n++;
    }
    return n;
}

static bool csv_number(const csv_table *table, const char *cell, double *out)
{
    char *end;
    *out = strtod_l(cell, &end, table->c_locale);
    return end != cell && *end == 0 && isfinite(*out) && strpbrk(cell, "xX") == NULL;
}

// ---- the header

// csv_columns lists names for a sentence.
static const char *csv_columns(const csv_table *table, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < table->n_columns && at + 48 < cap; i++) {
        at += (size_t)snprintf(out + at, cap - at, "%s%.40s", i > 0 ? ", " : "", table->column[i]);
    }
    return out;
}

static hth_err csv_label(csv_table *table, const char *label)
{
    static const char *const usual[] = {"y", "label", "target"};
    char all[400];
    table->label = -1;
    for (int k = 0; k < 3 && table->label < 0; k++) {
        for (int i = 0; i < table->n_columns; i++) {
            if (strcmp(table->column[i], label != NULL ? label : usual[k]) != 0) {
                continue;
            }
            if (table->label >= 0) {
                return hth_fail(HTH_EINVAL, "two columns are named '%.64s'", table->column[i]);
            }
            table->label = i;
        }
    }
    if (table->label < 0 && label != NULL) {
        return hth_fail(HTH_EINVAL, "no column is named '%.64s'; there are %s", label,
                        csv_columns(table, all, sizeof all));
    }
    return table->label >= 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "no column is named y, label or target; --label names one of %s",
                          csv_columns(table, all, sizeof all));
}

static hth_err csv_header(csv_table *table, const char *label)
{
    char *line;
    double v;
    do {
        HTH_TRY(csv_line(table, &line));
    } while (line != NULL && csv_blank(line));
    if (line == NULL) {
        return hth_fail(HTH_EINVAL, "it has no lines");
    }
    line += strncmp(line, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; // UTF-8's mark
    const char *separator = strpbrk(line, ",;\t");
    table->separator = separator != NULL ? *separator : ',';
    table->n_columns = csv_count(line, table->separator);
    if (table->n_columns < 2 || table->n_columns > CSV_COLUMNS) {
        return hth_fail(HTH_EINVAL, "line %lld has %s; a header names x's columns and y's",
                        table->line, table->n_columns < 2 ? "one column" : "too many columns");
    }
    table->header = hth_strdup(line);
    table->column = hth_calloc((size_t)table->n_columns, sizeof *table->column);
    if (table->header == NULL || table->column == NULL) {
        return hth_no_memory("a dataset");
    }
    char *rest = table->header;
    bool numbers = true;
    for (int i = 0; i < table->n_columns; i++) {
        table->column[i] = csv_cell(table, &rest);
        numbers = numbers && csv_number(table, table->column[i], &v);
    }
    return numbers ? hth_fail(HTH_EINVAL,
                              "line %lld is a row of numbers; a header with the columns' names is "
                              "missing",
                              table->line)
                   : csv_label(table, label);
}

// ---- rows

static hth_err csv_more(csv_table *table)
{
    if (table->rows < table->cap) {
        return HTH_OK;
    }
    size_t cap = table->cap > 0 ? 2 * table->cap : 256;
    float *x = hth_realloc(table->x, cap * (size_t)(table->n_columns - 1), sizeof *x);
    table->x = x != NULL ? x : table->x;
    double *y = x != NULL ? hth_realloc(table->y, cap, sizeof *y) : NULL;
    table->y = y != NULL ? y : table->y;
    table->cap = y != NULL ? cap : table->cap;
    return y != NULL ? HTH_OK : hth_no_memory("a dataset");
}

static hth_err csv_value(const csv_table *table, int column, const char *cell, double *out)
{
    const char *name = table->column[column];
    if (*cell == 0) {
        return hth_fail(HTH_EINVAL, "line %lld, column '%.64s': the cell is empty", table->line,
                        name);
    }
    if (strlen(cell) > CSV_CELL || !csv_number(table, cell, out)) {
        return hth_fail(HTH_EINVAL, "line %lld, column '%.64s': '%.40s' is not a finite number",
                        table->line, name, cell);
    }
    if (fabs(*out) >= CSV_FLOAT) {
        return hth_fail(HTH_EINVAL, "line %lld, column '%.64s': %.40s is too large for float32",
                        table->line, name, cell);
    }
    return HTH_OK;
}

static hth_err csv_row(csv_table *table, char *line)
{
    int n = csv_count(line, table->separator), k = 0;
    double v;
    if (n != table->n_columns) {
        return hth_fail(HTH_EINVAL, "line %lld has %d cells, but the header has %d", table->line, n,
                        table->n_columns);
    }
    HTH_TRY(csv_more(table));
    float *x = table->x + table->rows * (size_t)(table->n_columns - 1);
    for (int i = 0; i < n; i++) {
        HTH_TRY(csv_value(table, i, csv_cell(table, &line), &v));
        if (i != table->label) {
            x[k++] = (float)v;
            continue;
        }
        table->y[table->rows] = v;
        table->whole = table->whole && v == rint(v) && fabs(v) <= CSV_WHOLE;
    }
    table->rows++;
    return HTH_OK;
}

// csv_labels gives y its type.
static hth_err csv_labels(hth_data *data, csv_table *table)
{
    const int64_t shape[] = {(int64_t)table->rows, 1};
    table->labels = hth_calloc(table->rows + 1, sizeof(int64_t));
    if (table->labels == NULL) {
        return hth_no_memory("a dataset");
    }
    for (size_t i = 0; i < table->rows; i++) {
        if (table->whole) {
            ((int64_t *)table->labels)[i] = (int64_t)table->y[i];
        } else {
            ((float *)table->labels)[i] = (float)table->y[i];
        }
    }
    return table->whole ? hth_data_add(data, "y", HEARTH_I64, 1, shape)
                        : hth_data_add(data, "y", HEARTH_F32, 2, shape);
}

static hth_err csv_open(hth_data *data, const hth_data_options *options)
{
    char *line;
    csv_table *t = data->of = hth_calloc(1, sizeof *t);
    if (t == NULL) {
        return hth_no_memory("a dataset");
    }
    *t = (csv_table){.file = {.fd = -1}, .path = data->path, .whole = true};
    t->buffer = hth_alloc(CSV_LINE + 1);
    t->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (t->buffer == NULL || t->c_locale == (locale_t)0) {
        return hth_no_memory("a dataset");
    }
    HTH_TRY(hth_file_open(data->path, data->path, &t->file));
    HTH_TRY(csv_header(t, options->label));
    HTH_TRY(csv_line(t, &line));
    while (line != NULL) {
        HTH_TRY(csv_blank(line) ? HTH_OK : csv_row(t, line));
        HTH_TRY(csv_line(t, &line));
    }
    HTH_TRY(hth_file_unchanged(&t->file, data->path));
    if (t->rows == 0) {
        return hth_fail(HTH_EINVAL, "it has a header, but no rows");
    }
    hth_free(t->buffer);
    t->buffer = NULL;
    const int64_t shape[] = {(int64_t)t->rows, t->n_columns - 1};
    HTH_TRY(hth_data_add(data, "x", HEARTH_F32, 2, shape));
    return csv_labels(data, t);
}

static hth_err csv_read(hth_data *data, int i, uint64_t at, void *out, size_t n)
{
    const csv_table *t = data->of;
    memcpy(out, (const char *)(i == 0 ? (const void *)t->x : t->labels) + at, n);
    return HTH_OK;
}

static void csv_close(hth_data *data)
{
    csv_table *t = data->of;
    if (t == NULL) {
        return;
    }
    if (t->c_locale != (locale_t)0) {
        freelocale(t->c_locale);
    }
    hth_file_close(&t->file);
    hth_free(t->labels);
    hth_free(t->y);
    hth_free(t->x);
    hth_free(t->column);
    hth_free(t->header);
    hth_free(t->buffer);
    hth_free(t);
}

const hth_data_reader hth_data_csv = {"csv", csv_open, csv_read, csv_close};
