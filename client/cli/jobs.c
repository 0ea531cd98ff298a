// SPDX-License-Identifier: Apache-2.0
#include "client/cli/jobs.h"

#include "client/cli/cmd.h"
#include "client/cli/progress.h"
#include "client/terminal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOBS_NAME 64 // bytes of a name that are compared

// ---- the table

// jobs_age writes how long ago something was: "12 s", "5 min", "3 h", "9 d".
static void jobs_age(double s, char *out, size_t cap)
{
    static const struct {
        double s;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    size_t u = 0;
    s = s > 0 ? s : 0;
    while (u + 1 < sizeof units / sizeof *units && s < 2 * units[u].s) {
        u++;
    }
    snprintf(out, cap, "%.0f %s", (double)(int64_t)(s / units[u].s), units[u].unit);
}

static void jobs_set_age(json_t *out, const json_t *row, const char *label, uint64_t now_ns)
{
    char text[40];
    snprintf(text, sizeof text, "%s_ns", label);
    const json_t *ns = json_object_get(row, text);
    double at = json_number_value(json_is_number(ns) ? ns : json_object_get(row, label));
    if (at > 0 && at < 1e20) {
        jobs_age(((double)now_ns - at) / 1e9, text, sizeof text);
        json_object_set_new(out, label, json_string(text));
    }
}

// jobs_set_progress: "46/270" and how much of it that is.
static void jobs_set_progress(json_t *out, const json_t *row)
{
    char text[80];
    double step = json_number_value(json_object_get(row, "step"));
    double steps = json_number_value(json_object_get(row, "steps"));
    if (steps > 0 && step >= 0 && step <= steps && steps < 1e15) {
        snprintf(text, sizeof text, "%.0f/%.0f %3.0f %%", step, steps,
                 (double)(int)(100 * step / steps));
        json_object_set_new(out, "progress", json_string(text));
    }
}

// jobs_set_wait adds to why a job waits for about how long.
static void jobs_set_wait(json_t *out, const json_t *row)
{
    char text[700], age[40];
    const char *why = json_string_value(json_object_get(row, "why"));
    const json_t *seconds = json_object_get(row, "wait_seconds");
    if (why != NULL && json_is_number(seconds)) {
        jobs_age(json_number_value(seconds), age, sizeof age);
        snprintf(text, sizeof text, "%.600s (about %s)", why, age);
        json_object_set_new(out, "why", json_string(text));
    }
}

static json_t *jobs_row(const json_t *row, uint64_t now_ns)
{
    json_t *out = json_object();
    static const char *const same[][2] = {
        {"id", "id"}, {"name", "job"}, {"state", "state"}, {"owner", "tenant"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *v = json_object_get(row, same[i][1]);
        json_object_set(out, same[i][0], v != NULL ? v : json_null());
    }
    jobs_set_age(out, row, "submitted", now_ns);
    jobs_set_age(out, row, "started", now_ns);
    jobs_set_age(out, row, "ended", now_ns);
    jobs_set_progress(out, row);
    json_object_set(out, "loss", json_object_get(row, "loss"));
    json_object_set(out, "why", json_object_get(row, "why"));
    jobs_set_wait(out, row);
    return out;
}

json_t *hth_jobs_table(const json_t *rows, uint64_t now_ns)
{
    static const char *const columns[] = {"id",      "name",  "state",    "owner", "submitted",
                                          "started", "ended", "progress", "loss",  "why"};
    json_t *table = json_array(), *ordered = json_array(), *row;
    bool used[sizeof columns / sizeof *columns] = {true, true, true};
    size_t i, k, n = sizeof columns / sizeof *columns;
    json_array_foreach((json_t *)rows, i, row)
    {
        json_array_append_new(table, jobs_row(row, now_ns));
        for (k = 0; k < n; k++) {
            const json_t *v = json_object_get(json_array_get(table, i), columns[k]);
            used[k] = used[k] || (v != NULL && !json_is_null(v));
        }
    }
    json_array_foreach(table, i, row)
    {
        json_t *out = json_object();
        for (k = 0; k < n; k++) {
            json_t *v = json_object_get(row, columns[k]);
            if (used[k]) {
                json_object_set(out, columns[k], v != NULL ? v : json_null());
            }
        }
        json_array_append_new(ordered, out);
    }
    json_decref(table);
    return ordered;
}

int hth_jobs_print(const hth_cli *cli, const char *json)
{
    struct timespec now;
    json_t *rows = hth_cli_json(cli) ? NULL : json_loads(json, 0, NULL);
    if (!json_is_array(rows)) {
        json_decref(rows);
        return hth_cli_print(cli, json);
    }
    if (json_array_size(rows) == 0) {
        json_decref(rows);
        printf("no training jobs; `hearth train` starts one\n");
        return HTH_CLI_OK;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    json_t *table =
        hth_jobs_table(rows, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    char *text = json_dumps(table, JSON_COMPACT);
    int rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
    free(text);
    json_decref(table);
    json_decref(rows);
    return rv;
}

// ---- names

// jobs_distance counts the letters that are to be changed, added or left out.
static size_t jobs_distance(const char *a, const char *b)
{
    size_t row[JOBS_NAME + 1], n = strnlen(b, JOBS_NAME);
    for (size_t k = 0; k <= n; k++) {
        row[k] = k;
    }
    for (size_t i = 0; i < JOBS_NAME && a[i] != 0; i++) {
        size_t before = row[0];
        row[0] = i + 1;
        for (size_t k = 0; k < n; k++) {
            size_t change = before + (tolower((unsigned char)a[i]) != tolower((unsigned char)b[k]));
            size_t other = (row[k] < row[k + 1] ? row[k] : row[k + 1]) + 1;
            before = row[k + 1];
            row[k + 1] = change < other ? change : other;
        }
    }
    return row[n];
}

const char *hth_jobs_nearest(const json_t *rows, const char *name)
{
    const char *best = NULL;
    size_t i, least = strlen(name) / 3 + 1; // of three letters one may be wrong
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        const char *job = json_string_value(json_object_get(row, "job"));
        size_t d = job != NULL ? jobs_distance(name, job) : SIZE_MAX;
        if (d > 0 && (d < least || (d == least && best == NULL))) {
            best = job;
            least = d;
        }
    }
    return best;
}

void hth_jobs_suggest(hth_cli *cli, const char *name)
{
    char *json;
    if (cli->h == NULL || hearth_query(cli->h, "jobs", "{}", NULL, NULL, &json) != HEARTH_OK) {
        return;
    }
    json_t *rows = json_loads(json, 0, NULL), *row;
    const char *nearest = hth_jobs_nearest(rows, name);
    bool exists = name[strspn(name, "0123456789")] == 0; // a number is not misspelt
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *job = json_string_value(json_object_get(row, "job"));
        exists = exists || (job != NULL && strcmp(job, name) == 0);
    }
    if (!exists && nearest != NULL) {
        fprintf(stderr, "hearth: did you mean '%s'?\n", nearest);
    }
    json_decref(rows);
    hearth_free(json);
}

int hth_jobs_ask(hth_cli *cli, const char *what, char **json)
{
    json_t *q = json_pack("{s:s}", "job", cli->args[0]);
    if (hth_cli_text(cli, "budget") != NULL) {
        json_object_set_new(q, "budget", json_string(hth_cli_text(cli, "budget")));
    }
    int rv = hth_cmd_request(cli, what, q, hth_progress_show, json);
    if (rv != HTH_CLI_OK) {
        hth_jobs_suggest(cli, cli->args[0]);
    }
    return rv;
}

void hth_jobs_plain(json_t *row)
{
    if (json_object_get(row, "ended") != NULL) {
        json_object_del(row, "ended_ns");
    }
}

int hth_jobs_change(hth_cli *cli)
{
    char *json;
    int rv = hth_jobs_ask(cli, cli->command->name, &json);
    json_t *row = rv == HTH_CLI_OK && !hth_cli_json(cli) ? json_loads(json, 0, NULL) : NULL;
    if (row != NULL) {
        hth_jobs_plain(row);
        rv = hth_cmd_print(cli, row);
    } else if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(cli, json);
    }
    if (json != NULL) {
        hearth_free(json);
    }
    return rv;
}
