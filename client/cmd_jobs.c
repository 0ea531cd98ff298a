// SPDX-License-Identifier: Apache-2.0
// `hearth jobs`, `job` and `cancel`: training jobs by the model that they make.
#include "client/cmd.h"

#include "client/progress.h"

#include <stdio.h>
#include <stdlib.h>

// The picture, in SVG user units.
#define LOSS_WIDTH  640.0
#define LOSS_HEIGHT 400.0
#define LOSS_MARGIN 60.0

static double loss_at(const json_t *history, size_t i)
{
    return json_number_value(json_array_get(json_array_get(history, i), 0));
}

static double loss_y(double share)
{
    return LOSS_HEIGHT - LOSS_MARGIN - share * (LOSS_HEIGHT - 2 * LOSS_MARGIN);
}

// Loss upwards from 0, or from the least where that is less; steps to the right.
static void loss_svg(FILE *f, const json_t *history)
{
    size_t n = json_array_size(history);
    double least = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        double v = loss_at(history, i);
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    most = most > least ? most : least + 1;
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %g %g' font-family='sans-serif' "
            "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n",
            LOSS_WIDTH, LOSS_HEIGHT);
    for (int k = 0; k <= 4; k++) {
        double y = loss_y(k / 4.0);
        fprintf(f,
                "<path d='M%g %gH%g' stroke='#ddd'/><text x='%g' y='%g' "
                "text-anchor='end'>%.4g</text>\n",
                LOSS_MARGIN, y, LOSS_WIDTH - LOSS_MARGIN, LOSS_MARGIN - 8, y + 4,
                least + (most - least) * k / 4);
    }
    fprintf(f,
            "<text x='%g' y='%g' text-anchor='middle'>steps 1 to %zu: loss</text>\n"
            "<polyline fill='none' stroke='#c2410c' stroke-width='1.5' points='",
            LOSS_WIDTH / 2, LOSS_HEIGHT - 20, n);
    for (size_t i = 0; i < n; i++) {
        double right = n > 1 ? (double)i / (double)(n - 1) : 0;
        fprintf(f, "%.1f,%.1f ", LOSS_MARGIN + right * (LOSS_WIDTH - 2 * LOSS_MARGIN),
                loss_y((loss_at(history, i) - least) / (most - least)));
    }
    fprintf(f, "'/>\n</svg>\n");
}

static int job_ask(hth_cli *c, const char *what, char **json)
{
    return hth_cmd_ask(c, what, json_pack("{s:s}", "job", c->args[0]), hth_progress_show, json);
}

static int cmd_jobs(hth_cli *c)
{
    return hth_cmd_query(c, "jobs", json_object());
}

static int cmd_job(hth_cli *c)
{
    char *json;
    const char *svg = hth_cli_text(c, "svg");
    int rv = job_ask(c, "job", &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    json_t *doc = json_loads(json, 0, NULL);
    if (svg != NULL) {
        rv = hth_cmd_write(svg, json_object_get(doc, "history"), loss_svg);
    }
    if (!hth_cli_json(c)) {
        json_object_del(doc, "history"); // for programs, and the picture
    }
    char *text = json_dumps(doc, JSON_COMPACT);
    if (rv == HTH_CLI_OK) {
        rv = text != NULL ? hth_cli_print(c, text) : HTH_CLI_ERROR;
    }
    free(text);
    json_decref(doc);
    hearth_free(json);
    return rv;
}

static int cmd_cancel(hth_cli *c)
{
    char *json;
    int rv = job_ask(c, "cancel", &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(c, json);
        hearth_free(json);
    }
    return rv;
}

static const hth_option job_options[] = {
    {"svg", HTH_OPTION_PATH, "FILE", "draw the losses"},
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
                                 "JOB [--svg FILE]",
                                 "show how far a training job is, or how it ended\n"
                                 "JOB is the model that it makes, or the id of one that has ended. "
                                 "With --json its losses, too: every step's, of an\n"
                                 "ended job with more than 10,000 steps every n-th (\"every\").",
                                 1,
                                 1,
                                 job_options,
                                 cmd_job};
const hth_command hth_cmd_cancel = {"cancel",  "ID", "end a training job and remove its checkpoint",
                                    1,         1,    hth_cmd_no_options,
                                    cmd_cancel};
