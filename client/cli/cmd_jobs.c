// SPDX-License-Identifier: Apache-2.0
// `hearth jobs`, `job`, `pause`, `resume` and `cancel`: training jobs by the model that they make.
#include "client/cli/cmd.h"

#include "client/cli/follow.h"
#include "client/cli/svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOB_ASK_MS     250  // where nothing is published, from one look at the job to the next
#define JOB_SILENCE_MS 1000 // without events, after which the job is asked about
#define LOSS_SETS      2    // of held-out data, at most

typedef struct loss_range {
    double least, most, steps;
} loss_range;

static double loss_at(const json_t *history, size_t i)
{
    return json_number_value(json_array_get(json_array_get(history, i), 0));
}

static double loss_key(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void range_add(loss_range *r, double v)
{
    r->least = v < r->least ? v : r->least;
    r->most = v > r->most ? v : r->most;
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

static void loss_point(FILE *f, const loss_range *r, double step, double loss)
{
    fprintf(f, "%.1f,%.1f ", hth_svg_x(r->steps > 1 ? (step - 1) / (r->steps - 1) : 0),
            hth_svg_y((loss - r->least) / (r->most - r->least)));
}

static void loss_line(FILE *f, const loss_range *r, const json_t *job)
{
    const json_t *history = json_object_get(job, "history");
    double every = loss_key(job, "every");
    size_t n = json_array_size(history);
    fprintf(f, "<polyline fill='none' stroke='#c2410c' stroke-width='1.5' points='");
    for (size_t i = 0; i < n; i++) {
        loss_point(f, r, i + 1 < n ? 1 + (double)i * (every > 1 ? every : 1) : r->steps,
                   loss_at(history, i));
    }
    fprintf(f, "'/>\n");
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
static void loss_held_out(FILE *f, const loss_range *r, const json_t *held)
{
    static const char *const color[LOSS_SETS] = {"#1d4ed8", "#15803d"};
    const char *name[LOSS_SETS];
    size_t i;
    json_t *v;
    for (int k = 0, n = loss_sets(held, name); k < n; k++) {
        char style[40];
        fprintf(f, "<polyline fill='none' stroke='%s' stroke-width='2' points='", color[k]);
        json_array_foreach(held, i, v)
        {
            const char *set = json_string_value(json_object_get(v, "set"));
            if (set != NULL && strcmp(set, name[k]) == 0) {
                loss_point(f, r, loss_key(v, "step"), loss_key(v, "loss"));
            }
        }
        snprintf(style, sizeof style, "fill='%s'", color[k]);
        fprintf(f, "'/>\n");
        hth_svg_text(f, HTH_SVG_WIDTH - 2 * HTH_SVG_MARGIN, HTH_SVG_MARGIN - 10 - 16 * k, style,
                     name[k]);
    }
}

// Losses upwards, steps to the right.
static void loss_svg(FILE *f, const json_t *job)
{
    char text[60];
    const loss_range r = loss_find_range(job);
    hth_svg_open(f);
    for (int k = 0; k <= 4; k++) {
        snprintf(text, sizeof text, "%.4g", r.least + (r.most - r.least) * k / 4);
        hth_svg_rule(f, k / 4.0, text);
    }
    snprintf(text, sizeof text, "steps 1 to %.0f: loss", r.steps);
    hth_svg_text(f, HTH_SVG_WIDTH / 2, HTH_SVG_HEIGHT - 20, "fill='#c2410c'", text);
    loss_line(f, &r, job);
    loss_held_out(f, &r, json_object_get(job, "held_out"));
    hth_svg_close(f);
}

// Asks `what` of the job that is named, with the budget that is given; points > 0: for so many of
// its losses.
static int job_ask(hth_cli *c, const char *what, int points, char **json)
{
    json_t *q = json_pack("{s:s}", "job", c->args[0]);
    if (points > 0) {
        json_object_set_new(q, "points", json_integer(points));
    }
    if (hth_cli_text(c, "budget") != NULL) {
        json_object_set_new(q, "budget", json_string(hth_cli_text(c, "budget")));
    }
    return hth_cmd_ask(c, what, q, hth_progress_show, json);
}

static int cmd_jobs(hth_cli *c)
{
    return hth_cmd_query(c, "jobs", json_object());
}

// Prints a job's document; the losses only for programs, and the picture.
static int job_print(const hth_cli *c, json_t *doc)
{
    const char *svg = hth_cli_text(c, "svg");
    int rv = svg != NULL ? hth_cmd_write(svg, doc, loss_svg) : HTH_CLI_OK;
    if (!hth_cli_json(c)) {
        json_object_del(doc, "history");
        json_object_del(doc, "every");
        hth_cmd_held_out(doc);
    }
    char *text = json_dumps(doc, JSON_COMPACT);
    if (rv == HTH_CLI_OK) {
        rv = text != NULL ? hth_cli_print(c, text) : HTH_CLI_ERROR;
    }
    free(text);
    return rv;
}

static bool job_goes_on(const char *state)
{
    static const char *const ends[] = {"finished", "failed", "canceled", "stopped"};
    bool ended = state == NULL;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        ended = ended || strcmp(state, ends[i]) == 0;
    }
    return !ended;
}

static int job_get(hth_cli *c, int points, json_t **doc)
{
    char *json;
    int rv = job_ask(c, "job", points, &json);
    if (rv == HTH_CLI_OK) {
        *doc = json_loads(json, 0, NULL);
        hearth_free(json);
    }
    return rv;
}

// Shows events until there is one about an end, or none for a while.
static void job_follow_some(const hth_cli *c, hth_events *events, hth_follow *f)
{
    hth_event e;
    bool goes_on = true;
    while (goes_on && hth_events_next(events, JOB_SILENCE_MS, &e) == HTH_OK) {
        if (hth_cli_json(c)) {
            printf("%s\n", e.what);
            fflush(stdout);
        }
        hth_follow_event(f, e.what, e.done, e.total);
        json_t *o = json_loads(e.what, 0, NULL);
        const char *state = json_string_value(json_object_get(o, "state"));
        goes_on = state == NULL || job_goes_on(state);
        json_decref(o);
    }
}

// job_event makes of a job's document what would have been published since `last`: its present
// step, or another state. NULL: nothing.
static json_t *job_event(const json_t *doc, const json_t *last)
{
    static const struct {
        const char *from, *to;
    } keys[] = {{"step", "step"},
                {"loss", "loss"},
                {"step_ms", "ms"},
                {"stall_ms", "stall_ms"},
                {"peak_bytes", "peak_bytes"},
                {"budget_bytes", "budget_bytes"},
                {"held_out_loss", "held_out_loss"},
                {"accuracy", "accuracy"}};
    const json_t *state = json_object_get(doc, "state");
    if (!json_equal(state, json_object_get(last, "state"))) {
        return json_pack("{s:O}", "state", state);
    }
    if (json_equal(json_object_get(doc, "step"), json_object_get(last, "step"))) {
        return NULL;
    }
    json_t *e = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = json_object_get(doc, keys[i].from);
        if (json_is_number(v)) {
            json_object_set(e, keys[i].to, v);
        }
    }
    return e;
}

// job_follow_asked asks for the job's document instead: a server publishes nothing over the network
// where clients need tokens.
static int job_follow_asked(hth_cli *c, hth_follow *f, json_t **doc)
{
    json_t *last = *doc;
    nanosleep(&(struct timespec){.tv_nsec = JOB_ASK_MS * 1000000L}, NULL);
    *doc = NULL;
    int rv = job_get(c, 1, doc);
    json_t *e = rv == HTH_CLI_OK ? job_event(*doc, last) : NULL;
    char *text = e != NULL ? json_dumps(e, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (text != NULL && hth_cli_json(c)) {
        printf("%s\n", text);
        fflush(stdout);
    }
    if (text != NULL) {
        hth_follow_event(f, text, (uint64_t)json_integer_value(json_object_get(*doc, "step")),
                         (uint64_t)json_integer_value(json_object_get(*doc, "steps")));
    }
    free(text);
    json_decref(e);
    json_decref(last);
    return rv;
}

static int job_follow(hth_cli *c, json_t **doc)
{
    hth_events *events;
    hth_follow f;
    const char *name = json_string_value(json_object_get(*doc, "job"));
    int rv = HTH_CLI_OK;
    bool published = hth_events_open(c->h, name != NULL ? name : "", &events) == HTH_OK;
    hth_follow_init(&f, !hth_cli_json(c));
    while (rv == HTH_CLI_OK && job_goes_on(json_string_value(json_object_get(*doc, "state")))) {
        if (!published) {
            rv = job_follow_asked(c, &f, doc);
            continue;
        }
        job_follow_some(c, events, &f);
        json_decref(*doc);
        *doc = NULL;
        rv = job_get(c, 0, doc);
    }
    if (rv == HTH_CLI_OK && !published) { // with all of its losses
        json_decref(*doc);
        *doc = NULL;
        rv = job_get(c, 0, doc);
    }
    hth_follow_fini(&f);
    hth_events_close(events);
    return rv;
}

static int cmd_job(hth_cli *c)
{
    json_t *doc = NULL;
    int rv = job_get(c, 0, &doc);
    if (rv == HTH_CLI_OK && json_is_true(json_object_get(c->options, "follow"))) {
        json_object_del(c->options, "budget"); // is changed once
        rv = job_follow(c, &doc);
    }
    rv = rv == HTH_CLI_OK ? job_print(c, doc) : rv;
    json_decref(doc);
    return rv;
}

// pause, resume, cancel: the job's row as it is then.
static int cmd_change(hth_cli *c)
{
    char *json;
    int rv = job_ask(c, c->command->name, 0, &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(c, json);
        hearth_free(json);
    }
    return rv;
}

#define OPTION_BUDGET                                                                              \
    {                                                                                              \
        "budget", HTH_OPTION_TEXT, "BYTES",                                                        \
            "go on under another budget: 512MiB, or 60% of what the step takes"                    \
    }

static const hth_option job_options[] = {
    {"follow", HTH_OPTION_FLAG, NULL,
     "show its steps until it ends; with --json a line of events each"},
    {"svg", HTH_OPTION_PATH, "FILE", "draw the losses, those over held-out data, too"},
    OPTION_BUDGET,
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

static const hth_option resume_options[] = {
    OPTION_BUDGET,
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_jobs = {
    "jobs",
    "",
    "list training jobs: at work, waiting, stopped with a checkpoint, and the last 100 that "
    "ended\nEnded ones are finished, failed or canceled; the last comes first. A job is called as "
    "the model that it\n"
    "makes, one that has ended also by its id.",
    0,
    0,
    hth_cmd_no_options,
    cmd_jobs};
const hth_command hth_cmd_job = {"job",
                                 "JOB [--follow] [--svg FILE] [--budget BYTES]",
                                 "show how far a training job is, or how it ended\n"
                                 "JOB is the model that it makes, or the id of one that has ended. "
                                 "With --json its losses, too: every step's, of an\n"
                                 "ended job with more than 10,000 steps every n-th (\"every\").",
                                 1,
                                 1,
                                 job_options,
                                 cmd_job};
const hth_command hth_cmd_pause = {
    "pause",
    "JOB",
    "stop a training job behind the step at work, with a checkpoint, until `hearth resume`\n"
    "Its memory is free for others. It stays paused when hearthd is started again; `hearth train` "
    "waits for it.",
    1,
    1,
    hth_cmd_no_options,
    cmd_change};
const hth_command hth_cmd_resume = {
    "resume",
    "JOB [--budget BYTES]",
    "go on with a paused or stopped training job, with the losses of one that never stopped\n"
    "The command returns at once; `hearth train --resume JOB` waits for the job's end.",
    1,
    1,
    resume_options,
    cmd_change};
const hth_command hth_cmd_cancel = {
    "cancel",           "JOB",     "end a training job and remove its checkpoint", 1, 1,
    hth_cmd_no_options, cmd_change};
