// SPDX-License-Identifier: Apache-2.0
// `hearth job`: one training job, its losses as a picture, its steps as they happen.
#include "client/cli/cmd.h"

#include "client/cli/follow.h"
#include "client/cli/jobs.h"
#include "client/cli/svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOSS_SETS 2 // of held-out data, at most

typedef struct loss_range {
    double least, most, steps;
} loss_range;

static double loss_at(const json_t *history, size_t i)
{
    return json_number_value(json_array_get(json_array_get(history, i), 0));
}

static double loss_key(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

static void range_add(loss_range *range, double v)
{
    range->least = v < range->least ? v : range->least;
    range->most = v > range->most ? v : range->most;
}

// From 0, or from the least where that is less.
static loss_range loss_find_range(const json_t *job)
{
    const json_t *history = json_object_get(job, "history"),
                 *held = json_object_get(job, "held_out");
    loss_range r = {0, 0, loss_key(job, "step")};
    json_t *v;
    size_t i;
    for (i = 0; i < json_array_size(history); i++) {
        range_add(&r, loss_at(history, i));
    }
    json_array_foreach(held, i, v)
    {
        range_add(&r, loss_key(v, "loss"));
    }
    r.most = r.most > r.least ? r.most : r.least + 1;
    return r;
}

static void loss_point(FILE *file, const loss_range *range, double step, double loss)
{
    fprintf(file, "%.1f,%.1f ", hth_svg_x(range->steps > 1 ? (step - 1) / (range->steps - 1) : 0),
            hth_svg_y((loss - range->least) / (range->most - range->least)));
}

static void loss_line(FILE *file, const loss_range *range, const json_t *job)
{
    const json_t *history = json_object_get(job, "history");
    double every = loss_key(job, "every");
    every = every > 1 ? every : 1;
    size_t n = json_array_size(history);
    fprintf(file, "<polyline fill='none' stroke='#c2410c' stroke-width='1.5' points='");
    for (size_t i = 0; i < n; i++) {
        double step = i + 1 < n ? 1 + (double)i * every : range->steps;
        loss_point(file, range, step, loss_at(history, i));
    }
    fprintf(file, "'/>\n");
}

// The names of the sets that were evaluated.
static int loss_sets(const json_t *held, const char *name[LOSS_SETS])
{
    int n = 0;
    size_t i;
    json_t *v;
    json_array_foreach(held, i, v)
    {
        const char *set = json_string_value(json_object_get(v, "set"));
        bool known = set == NULL || n == LOSS_SETS;
        for (int k = 0; k < n && !known; k++) {
            known = strcmp(name[k], set) == 0;
        }
        if (!known) {
            name[n++] = set;
        }
    }
    return n;
}

// The evaluations of each set of held-out data, with its name.
static void loss_held_out(FILE *file, const loss_range *range, const json_t *held)
{
    static const char *const color[LOSS_SETS] = {"#1d4ed8", "#15803d"};
    const char *name[LOSS_SETS];
    size_t i;
    json_t *v;
    for (int k = 0, n = loss_sets(held, name); k < n; k++) {
        char style[40];
        fprintf(file, "<polyline fill='none' stroke='%s' stroke-width='2' points='", color[k]);
        json_array_foreach(held, i, v)
        {
            const char *set = json_string_value(json_object_get(v, "set"));
            if (set != NULL && strcmp(set, name[k]) == 0) {
                loss_point(file, range, loss_key(v, "step"), loss_key(v, "loss"));
            }
        }
        snprintf(style, sizeof style, "fill='%s'", color[k]);
        fprintf(file, "'/>\n");
        hth_svg_text(file, HTH_SVG_WIDTH - 2 * HTH_SVG_MARGIN, HTH_SVG_MARGIN - 10 - 16 * k, style,
                     name[k]);
    }
}

// Losses upwards, steps to the right.
static void loss_svg(FILE *file, const json_t *job)
{
    char text[60];
    const loss_range r = loss_find_range(job);
    hth_svg_open(file);
    for (int k = 0; k <= 4; k++) {
        snprintf(text, sizeof text, "%.4g", r.least + (r.most - r.least) * k / 4);
        hth_svg_rule(file, k / 4.0, text);
    }
    snprintf(text, sizeof text, "steps 1 to %.0f: loss", r.steps);
    hth_svg_text(file, HTH_SVG_WIDTH / 2, HTH_SVG_HEIGHT - 20, "fill='#c2410c'", text);
    loss_line(file, &r, job);
    loss_held_out(file, &r, json_object_get(job, "held_out"));
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
