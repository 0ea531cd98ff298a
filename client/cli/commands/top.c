// SPDX-License-Identifier: Apache-2.0
// `hearth top`: looks at a server again and again. On a terminal the last sample is shown until
// there is a newer one, be the server away or busy; elsewhere what cannot be asked ends the
// command.
#include "client/cli/cmd.h"

#include "client/cli/screen.h"
#include "client/terminal.h"
#include "client/cli/top_sample.h"

#include "base/clock.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOP_JOBS 16 // that run and whose documents are asked for

static json_t *top_ask(hth_cli *cli, const char *what, json_t *arguments)
{
    char *json;
    if (hth_cmd_request_shown(cli, what, arguments, NULL, NULL, &json) != HTH_CLI_OK) {
        return NULL;
    }
    json_t *doc = json_loads(json, 0, NULL);
    hearth_free(json);
    return doc;
}

// A job may have ended since: then there is no document of it.
static json_t *top_ask_jobs(hth_cli *cli, const json_t *jobs)
{
    json_t *docs = json_object(), *row;
    size_t i;
    json_array_foreach((json_t *)jobs, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "job"));
        const char *state = json_string_value(json_object_get(row, "state"));
        if (name != NULL && state != NULL && strcmp(state, "running") == 0 &&
            json_object_size(docs) < TOP_JOBS) {
            json_t *doc = top_ask(cli, "job", json_pack("{s:s, s:i}", "job", name, "points", 1));
            if (doc != NULL) {
                json_object_set_new(docs, name, doc);
            }
        }
    }
    return docs;
}

// top_sample asks for what a sample is made of. NULL: hearth_error.
static json_t *top_sample(hth_cli *cli, const json_t *last)
{
    static const char *const what[] = {"devices", "stats", "latency", "jobs"};
    json_t *doc[4] = {NULL}, *sample = NULL;
    int n = 0;
    while (n < 4 && (doc[n] = top_ask(cli, what[n], json_object())) != NULL) {
        n++;
    }
    if (n == 4) {
        json_t *jobs = top_ask_jobs(cli, doc[3]);
        json_t *shares = top_ask(cli, "shares", json_object()); // NULL: an older server
        sample = hth_top_sample(&(hth_top_answers){doc[0], doc[1], doc[2], doc[3], jobs, shares},
                                last, hth_now_ns());
        json_decref(shares);
        json_decref(jobs);
        json_object_set_new(sample, "time_ms", json_integer((json_int_t)time(NULL) * 1000));
    }
    for (int i = 0; i < n; i++) {
        json_decref(doc[i]);
    }
    return sample;
}

static void top_show(const json_t *sample, const char *trouble)
{
    int lines, columns;
    char title[400], when[40];
    time_t now = time(NULL);
    struct tm tm;
    hth_screen_size(&lines, &columns);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
    const char *note = hth_screen_is_terminal() ? "q quits" : "";
    note = trouble != NULL ? trouble : note;
    snprintf(title, sizeof title, "hearth top  %s%s%s", when, note[0] != 0 ? "  " : "", note);
    bool terminal = hth_screen_is_terminal() && lines != INT_MAX;
    json_t *plain = json_deep_copy(sample);
    hth_terminal_plain(plain);
    char *body = hth_top_text(plain, terminal ? lines - 1 : INT_MAX, columns);
    size_t cap = strlen(title) + (body != NULL ? strlen(body) : 0) + 2;
    char *text = malloc(cap);
    if (body != NULL && text != NULL) {
        snprintf(text, cap, "%s\n%s", title, body);
        if (hth_screen_is_terminal()) {
            hth_top_cut(text, lines, columns);
            hth_screen_show(text);
        } else {
            printf("%s\n", text);
        }
    }
    free(text);
    free(body);
    json_decref(plain);
}

static void top_print(const json_t *sample)
{
    char *text = json_dumps(sample, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text != NULL) {
        printf("%s\n", text);
    }
    free(text);
}

// One sample, shown; `sample` is the last one. The exit code. *read: somebody reads what is
// written.
static int top_once(hth_cli *cli, json_t **sample, bool *read)
{
    char trouble[300] = "";
    bool terminal = hth_screen_is_terminal();
    json_t *next = top_sample(cli, *sample);
    if (next != NULL) {
        json_decref(*sample);
        *sample = next;
    } else if (*sample == NULL || !terminal) {
        return HTH_CLI_ERROR;
    } else {
        snprintf(trouble, sizeof trouble, "as it was: %s", hearth_error());
    }
    if (hth_cli_json(cli)) {
        top_print(*sample);
    } else {
        top_show(*sample, trouble[0] != 0 ? trouble : NULL);
    }
    *read = fflush(stdout) == 0;
    return HTH_CLI_OK;
}

static int top_run(hth_cli *cli, double interval, int64_t count)
{
    json_t *sample = NULL;
    int rv = HTH_CLI_OK;
    bool goes_on = true;
    uint64_t step = (uint64_t)(interval * 1e9), next = hth_now_ns();
    for (int64_t n = 1; goes_on; n++) {
        hth_screen_event event = HTH_SCREEN_RESIZED;
        rv = top_once(cli, &sample, &goes_on);
        goes_on = goes_on && rv == HTH_CLI_OK && n != count;
        next += step;
        while (goes_on && event == HTH_SCREEN_RESIZED) {
            uint64_t now = hth_now_ns();
            next = next > now ? next : now; // a late sample moves those after it
            event = hth_screen_pause(next - now);
            if (event == HTH_SCREEN_RESIZED && hth_screen_is_terminal()) {
                top_show(sample, NULL);
            }
        }
        goes_on = goes_on && event != HTH_SCREEN_QUIT;
    }
    json_decref(sample);
    return rv;
}

static int cmd_top(hth_cli *cli)
{
    const json_t *given = json_object_get(cli->options, "interval");
    double interval = given != NULL ? json_number_value(given) : 1;
    int64_t count = hth_cli_int(cli, "count", 0);
    if (!(interval >= 0.1 && interval <= 3600)) {
        return hth_cli_usage("--interval is a number of seconds from 0.1 to 3600");
    }
    if (count < 0 || (count == 0 && json_object_get(cli->options, "count") != NULL)) {
        return hth_cli_usage("--count is a number from 1");
    }
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    hth_screen_open(!hth_cli_json(cli));
    rv = top_run(cli, interval, count);
    hth_screen_close();
    return rv == HTH_CLI_ERROR ? hth_cli_error() : rv;
}

static const hth_option top_options[] = {
    {"interval", HTH_OPTION_REAL, "S", "seconds between updates (1)"},
    {"count", HTH_OPTION_INT, "N", "exit after N updates"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL}};

const hth_command hth_cmd_top = {
    "top",
    "[--interval S] [--count N]",
    "watch devices, models, jobs, and tenants with their shares\n"
    "A device's memory is a bar: P weights that one model has, S weights that models share, K "
    "cached weights that are not in use, A the models' arenas, J training jobs, o other, "
    ". free.\n"
    "A tenant's share is the largest of its shares of the device's resources; it is entitled to "
    "its "
    "weight among the tenants with jobs.\n"
    "Requests per second and samples per batch are since the previous update, percentiles over the "
    "last minute.\n"
    "q or Ctrl-C quits. Without a terminal each update is a block of text, with --json a line.",
    0,
    0,
    top_options,
    .run = cmd_top,
    .timeout_ms = 5000};
