// SPDX-License-Identifier: Apache-2.0
// `hearth top`: looks at a server again and again. On a terminal the last sample is shown until
// there is a newer one, be the server away or busy; elsewhere what cannot be asked ends the
// command.
#include "client/cli/cmd.h"

#include "client/cli/top/page.h"
#include "client/cli/top/screen.h"
#include "client/cli/top/top_sample.h"
#include "client/cli/top/top_view.h"

#include "base/clock.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOP_JOBS  16 // that run and whose documents are asked for
#define TOP_LINES 24 // of a terminal that does not say how many it has

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

typedef struct top_state {
    hth_cli *cli;
    json_t *sample;    // the last one
    char trouble[300]; // why there is no newer one, or ""
    hth_top_view view;
} top_state;

static void top_show(top_state *top)
{
    int lines, columns;
    char title[60], when[40];
    time_t now = time(NULL);
    struct tm tm;
    hth_screen_size(&lines, &columns);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
    snprintf(title, sizeof title, "hearth top  %s", when);
    if (hth_screen_is_terminal()) {
        lines = lines != INT_MAX ? lines : TOP_LINES;
        const char *trouble = top->trouble[0] != 0 ? top->trouble : NULL;
        char *text = hth_top_page(top->sample, &top->view, title, trouble, lines, columns);
        if (text != NULL) {
            hth_screen_show(text);
        }
        free(text);
        return;
    }
    char *text = hth_top_text(top->sample, columns);
    if (text != NULL) {
        printf("%s\n%s\n", title, text);
    }
    free(text);
}

static void top_print(const json_t *sample)
{
    char *text = json_dumps(sample, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text != NULL) {
        printf("%s\n", text);
    }
    free(text);
}

// One sample, shown. The exit code. *read: somebody reads what is written.
static int top_once(top_state *top, bool *read)
{
    json_t *next = top_sample(top->cli, top->sample);
    top->trouble[0] = 0;
    if (next != NULL) {
        json_decref(top->sample);
        top->sample = next;
    } else if (top->sample == NULL || !hth_screen_is_terminal()) {
        return HTH_CLI_ERROR;
    } else {
        snprintf(top->trouble, sizeof top->trouble, "as it was: %s", hearth_error());
    }
    if (hth_cli_json(top->cli)) {
        top_print(top->sample);
    } else {
        top_show(top);
    }
    *read = fflush(stdout) == 0;
    return HTH_CLI_OK;
}

// top_wait waits until `until`, and does meanwhile what is typed. false: the end is wanted.
static bool top_wait(top_state *top, uint64_t until)
{
    for (;;) {
        int key;
        uint64_t now = hth_now_ns();
        hth_screen_event event = hth_screen_pause(until > now ? until - now : 0, &key);
        bool show = event == HTH_SCREEN_RESIZED;
        if (event == HTH_SCREEN_QUIT || key == 'q' || key == 'Q') {
            return false;
        }
        if (event == HTH_SCREEN_TIME) {
            return true;
        }
        if (event == HTH_SCREEN_KEY) {
            show = hth_top_view_key(&top->view, key);
        }
        if (show && hth_screen_is_terminal()) {
            top_show(top);
        }
    }
}

// count 0: until the end is wanted.
static int top_run(top_state *top, double interval, int64_t count)
{
    int rv = HTH_CLI_OK;
    bool goes_on = true;
    uint64_t step = (uint64_t)(interval * 1e9), next = hth_now_ns();
    for (int64_t n = 1; goes_on; n++) {
        rv = top_once(top, &goes_on);
        uint64_t now = hth_now_ns();
        next = next + step > now ? next + step : now; // a late sample moves those after it
        goes_on = goes_on && rv == HTH_CLI_OK && n != count && top_wait(top, next);
    }
    json_decref(top->sample);
    return rv;
}

static int cmd_top(hth_cli *cli)
{
    const json_t *given = json_object_get(cli->options, "interval");
    double interval = given != NULL ? json_number_value(given) : 1;
    int64_t count = hth_cli_int(cli, "count", 0);
    bool counted = json_object_get(cli->options, "count") != NULL;
    if (!(interval >= 0.1 && interval <= 3600)) {
        return hth_cli_usage("--interval is a number of seconds from 0.1 to 3600");
    }
    if (count < 0 || (count == 0 && counted)) {
        return hth_cli_usage("--count is a number from 1");
    }
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    top_state top = {.cli = cli};
    hth_top_view_init(&top.view);
    hth_screen_open(!hth_cli_json(cli) && hth_page_moves(cli->term));
    top.view.styles = hth_screen_is_terminal();
    top.view.colors = hth_page_colors(cli->term, cli->no_color);
    top.view.utf8 = hth_page_utf8(cli->locale);
    if (!hth_screen_is_terminal() && given == NULL && !counted) {
        count = 1;
    }
    rv = top_run(&top, interval, count);
    hth_screen_close();
    return rv == HTH_CLI_ERROR ? hth_cli_error() : rv;
}

static const hth_option top_options[] = {
    {"interval", HTH_OPTION_REAL, "S", "seconds between updates (1)"},
    {"count", HTH_OPTION_INT, "N", "exit after N updates (without a terminal 1)"},
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
    "last minute, from 30 requests on.\n"
    "q or Ctrl-C quits, ? shows the keys that sort and scroll; NO_COLOR turns colors off. Without "
    "a terminal it prints once, with --interval or --count again and again: text, or with --json "
    "a line.",
    0,
    0,
    top_options,
    .run = cmd_top,
    .timeout_ms = 5000};
