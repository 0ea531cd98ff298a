// SPDX-License-Identifier: Apache-2.0
// `hearth logs`: what a training job's log says.
#include "client/cli/cmd.h"

#include "client/cli/jobs.h"
#include "client/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOGS_LINES   1000 // asked for at once
#define LOGS_WAIT_MS 500  // .. from one look to the next, while the job goes on

// logs_line prints "2026-11-26 11:21:35  info   step 3 of 46: ..", or the line as it came.
static void logs_line(const hth_cli *cli, const json_t *line)
{
    char when[40] = "-";
    struct tm tm;
    double ns = json_number_value(json_object_get(line, "time"));
    time_t t = ns > 0 && ns < 1e20 ? (time_t)(ns / 1e9) : 0;
    if (hth_cli_json(cli)) {
        char *text = json_dumps(line, JSON_COMPACT);
        printf("%s\n", text != NULL ? text : "null");
        free(text);
        return;
    }
    const char *level = json_string_value(json_object_get(line, "level"));
    const char *text = json_string_value(json_object_get(line, "text"));
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&t, &tm));
    level = level != NULL ? level : "";
    printf("%s  %-5s  %s\n", when, level, text != NULL ? text : "");
}

// logs_page prints the lines after number *after, which becomes the last one's; *n: how many.
static int logs_page(hth_cli *cli, hearth_job job, json_int_t *after, size_t *n)
{
    size_t i;
    char *json;
    json_t *line;
    json_t *q =
        json_pack("{s:I, s:I, s:i}", "id", (json_int_t)job.id, "after", *after, "max", LOGS_LINES);
    if (hth_cmd_request_shown(cli, "logs", q, NULL, NULL, &json) != HTH_CLI_OK) {
        return hth_cli_error();
    }
    json_t *doc = hth_cli_json(cli) ? json_loads(json, 0, NULL) : hth_terminal_load(json);
    const json_t *lines = json_object_get(doc, "lines"), *next = json_object_get(doc, "next");
    hearth_free(json);
    *n = json_array_size(lines);
    *after = json_is_integer(next) ? json_integer_value(next) : *after;
    json_array_foreach((json_t *)lines, i, line)
    {
        logs_line(cli, line);
    }
    json_decref(doc);
    return fflush(stdout) == 0 ? HTH_CLI_OK : HTH_CLI_ERROR;
}

static int cmd_logs(hth_cli *cli)
{
    hearth_job job;
    json_int_t after = 0;
    size_t n = 0;
    bool ended = !json_is_true(json_object_get(cli->options, "follow"));
    int rv = hth_cli_connect(cli);
    if (rv == HTH_CLI_OK && hearth_job_find(cli->h, cli->args[0], &job) != HEARTH_OK) {
        rv = hth_cli_error();
        hth_jobs_suggest(cli, cli->args[0]);
    }
    bool goes_on = rv == HTH_CLI_OK;
    while (goes_on) {
        rv = logs_page(cli, job, &after, &n);
        goes_on = rv == HTH_CLI_OK && (n > 0 || !ended);
        if (goes_on && n == 0) { // whatever its end adds is asked for after it
            hearth_status s = hearth_job_wait(cli->h, job, LOGS_WAIT_MS, NULL);
            ended = s == HEARTH_OK;
            rv = s == HEARTH_OK || s == HEARTH_ETIMEDOUT ? rv : hth_cli_error();
            goes_on = rv == HTH_CLI_OK;
        }
    }
    return rv;
}

static const hth_option logs_options[] = {
    {"follow", HTH_OPTION_FLAG, NULL, "print what comes, until the job has ended"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_logs = {
    "logs",
    "JOB [--follow]",
    "print a training job's log\n"
    "JOB is the model that it produces, or the job's number. --json prints each line as an object\n"
    "{\"n\", \"time\", \"level\", \"text\"}, the time in ns since 1970.",
    1,
    1,
    logs_options,
    .run = cmd_logs};
