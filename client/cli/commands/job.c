// SPDX-License-Identifier: Apache-2.0
// `hearth job`: one training job, its losses as a picture, its steps as they happen.
#include "client/cli/cmd.h"

#include "client/cli/follow.h"
#include "client/cli/jobs.h"
#include "client/cli/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOSS_SETS (HTH_SVG_SERIES - 1) // of held-out data, at most
#define LOSS_SAID 24                   // bytes of a loss in words

typedef struct loss_axes {
    hth_axis step, loss;
} loss_axes;

static double loss_at(const json_t *history, size_t i)
{
    return json_number_value(json_array_get(json_array_get(history, i), 0));
}

static double loss_key(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

// From 0, or from the least where that is less.
static void loss_make_axes(const json_t *job, loss_axes *out)
{
    json_t *history = json_object_get(job, "history"), *held = json_object_get(job, "held_out");
    json_t *v;
    size_t i;
    double least = 0, most = 0;
    json_array_foreach(history, i, v)
    {
        least = fmin(least, loss_at(history, i));
        most = fmax(most, loss_at(history, i));
    }
    json_array_foreach(held, i, v)
    {
        least = fmin(least, loss_key(v, "loss"));
        most = fmax(most, loss_key(v, "loss"));
    }
    hth_axis_make(&out->step, HTH_AXIS_WHOLE, 0, loss_key(job, "step"));
    hth_axis_make(&out->loss, HTH_AXIS_REAL, least, most);
}

static void loss_point(FILE *file, const loss_axes *axes, double step, double loss)
{
    hth_svg_point(file, hth_axis_share(&axes->step, step), hth_axis_share(&axes->loss, loss));
}

static void loss_line(FILE *file, const loss_axes *axes, const json_t *job)
{
    const json_t *history = json_object_get(job, "history");
    double every = loss_key(job, "every"), steps = loss_key(job, "step");
    every = every > 1 ? every : 1;
    size_t n = json_array_size(history);
    hth_svg_line(file, 0);
    for (size_t i = 0; i < n; i++) {
        double step = i + 1 < n ? 1 + (double)i * every : steps;
        if (json_is_number(json_array_get(json_array_get(history, i), 0))) { // null: not finite
            loss_point(file, axes, step, loss_at(history, i));
        }
    }
    hth_svg_line_end(file);
}

// The names of the sets that were evaluated, after that of the losses of the steps.
static int loss_sets(const json_t *held, const char *name[1 + LOSS_SETS])
{
    int n = 1;
    size_t i;
    json_t *v;
    name[0] = "training";
    json_array_foreach((json_t *)held, i, v)
    {
        const char *set = json_string_value(json_object_get(v, "set"));
        bool known = set == NULL || n == 1 + LOSS_SETS;
        for (int k = 1; k < n && !known; k++) {
            known = strcmp(name[k], set) == 0;
        }
        if (!known) {
            name[n++] = set;
        }
    }
    return n;
}

// An evaluation of the set that can be drawn; the loss is left out where it is not finite.
static bool loss_is_of(const json_t *evaluation, const char *name)
{
    const char *set = json_string_value(json_object_get(evaluation, "set"));
    return set != NULL && strcmp(set, name) == 0 &&
           json_is_number(json_object_get(evaluation, "loss"));
}

// The evaluations of a set of held-out data: as dots, too, for there may be one only.
static void loss_held_out(FILE *file, const loss_axes *axes, const json_t *held, const char *name,
                          int series)
{
    size_t i;
    json_t *v;
    hth_svg_line(file, series);
    json_array_foreach((json_t *)held, i, v)
    {
        if (loss_is_of(v, name)) {
            loss_point(file, axes, loss_key(v, "step"), loss_key(v, "loss"));
        }
    }
    hth_svg_line_end(file);
    json_array_foreach((json_t *)held, i, v)
    {
        if (loss_is_of(v, name)) {
            hth_svg_dot(file, series, hth_axis_share(&axes->step, loss_key(v, "step")),
                        hth_axis_share(&axes->loss, loss_key(v, "loss")));
        }
    }
}

static void loss_said(const json_t *history, size_t i, char out[LOSS_SAID])
{
    if (json_is_number(json_array_get(json_array_get(history, i), 0))) {
        snprintf(out, LOSS_SAID, "%.4g", loss_at(history, i));
    } else {
        snprintf(out, LOSS_SAID, "not finite");
    }
}

// What the picture shows, for those who do not see it.
static void loss_describe(const json_t *job, int sets, char *out, size_t cap)
{
    const json_t *history = json_object_get(job, "history");
    size_t n = json_array_size(history);
    char first[LOSS_SAID], last[LOSS_SAID];
    if (n == 0) {
        snprintf(out, cap, "The training loss is not known. Sets of held-out data: %d.", sets);
        return;
    }
    loss_said(history, 0, first);
    loss_said(history, n - 1, last);
    snprintf(out, cap,
             "The training loss is %s at the first and %s at the last of %.0f steps. Sets of "
             "held-out data: %d.",
             first, last, loss_key(job, "step"), sets);
}

// Losses upwards, steps to the right.
static void loss_svg(FILE *file, const json_t *job)
{
    char title[200], description[300];
    const char *name[1 + LOSS_SETS], *of = json_string_value(json_object_get(job, "job"));
    const json_t *held = json_object_get(job, "held_out");
    int n = loss_sets(held, name);
    loss_axes axes;
    loss_make_axes(job, &axes);
    snprintf(title, sizeof title, "Losses of %.100s", of != NULL ? of : "a job");
    loss_describe(job, n - 1, description, sizeof description);
    hth_svg_open(file, title, description);
    hth_svg_axes(file, &axes.step, "step", &axes.loss, "loss");
    loss_line(file, &axes, job);
    for (int k = 1; k < n; k++) {
        loss_held_out(file, &axes, held, name[k], k);
    }
    hth_svg_legend(file, name, n);
    hth_svg_close(file);
}

// Prints a job's document; the losses only for programs, and the picture.
static int job_print(const hth_cli *cli, json_t *doc)
{
    const char *svg = hth_cli_text(cli, "svg");
    int rv = svg != NULL ? hth_cmd_write(svg, doc, loss_svg) : HTH_CLI_OK;
    if (!hth_cli_json(cli)) {
        json_object_del(doc, "history");
        json_object_del(doc, "every");
        hth_jobs_plain(doc);
        hth_cmd_held_out(doc);
    }
    char *text = json_dumps(doc, JSON_COMPACT);
    if (rv == HTH_CLI_OK) {
        rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
    }
    free(text);
    return rv;
}

static int job_get(hth_cli *cli, json_t **doc)
{
    char *json;
    int rv = hth_jobs_ask(cli, "job", &json);
    if (rv == HTH_CLI_OK) {
        *doc = json_loads(json, 0, NULL);
        hearth_free(json);
    }
    return rv;
}

typedef struct job_shown {
    const hth_cli *c;
    hth_follow f;
} job_shown;

static int job_show(void *ctx, const hearth_job_info *at)
{
    job_shown *s = ctx;
    if (at->event[0] != 0) {
        if (hth_cli_json(s->c)) {
            printf("%s\n", at->event);
            fflush(stdout);
        }
        hth_follow_event(&s->f, at->event, at->step, at->steps);
    }
    return 0;
}

// job_follow shows what happens to the job until it ends, and then gets its document anew.
static int job_follow(hth_cli *cli, hth_train_log *log, json_t **doc)
{
    job_shown s = {.c = cli};
    hearth_job job = {(uint64_t)json_integer_value(json_object_get(*doc, "id"))};
    if (job.id == 0) { // of an older hearth, and not resumed since: nothing happens to it
        return HTH_CLI_OK;
    }
    hth_follow_init(&s.f, !hth_cli_json(cli));
    s.f.log = log;
    bool ended = hearth_job_watch(cli->h, job, job_show, &s, NULL) == HEARTH_OK;
    hth_follow_fini(&s.f);
    if (!ended) {
        return hth_cli_error();
    }
    json_decref(*doc);
    *doc = NULL;
    return job_get(cli, doc);
}

static int cmd_job(hth_cli *cli)
{
    json_t *doc = NULL;
    hth_train_log *log = NULL;
    int rv = job_get(cli, &doc);
    rv = rv == HTH_CLI_OK ? hth_cmd_log_open(cli, &log) : rv;
    if (rv == HTH_CLI_OK && json_is_true(json_object_get(cli->options, "follow"))) {
        json_object_del(cli->options, "budget"); // is changed once
        rv = job_follow(cli, log, &doc);
    }
    // Where following failed, the document is from before it.
    char *whole = log != NULL && rv == HTH_CLI_OK ? json_dumps(doc, JSON_COMPACT) : NULL;
    int logged = hth_cmd_log_end(log, whole);
    free(whole);
    rv = rv == HTH_CLI_OK ? logged : rv;
    rv = rv == HTH_CLI_OK ? job_print(cli, doc) : rv;
    json_decref(doc);
    return rv;
}

static const hth_option job_options[] = {
    {"follow", HTH_OPTION_FLAG, NULL,
     "follow its steps until it ends; with --json one event per line, {\"missed\": true} for gaps"},
    {"svg", HTH_OPTION_PATH, "FILE", "write the losses, training and held-out, as SVG"},
    OPTIONS_LOG,
    OPTION_NEW_BUDGET,
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_job = {"job",
                                 "JOB [--follow] [--svg FILE] [--budget BYTES]",
                                 "show a training job's progress or result\n"
                                 "JOB is the model that it produces, or the job's number. "
                                 "--json adds the losses of all steps; for an\n"
                                 "ended job of more than 10,000 steps, of every n-th (\"every\").",
                                 1,
                                 1,
                                 job_options,
                                 .run = cmd_job,
                                 .own_budget = true};
