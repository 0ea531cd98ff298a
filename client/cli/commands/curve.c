// SPDX-License-Identifier: Apache-2.0
// `hearth curve`: the memory/time curve of a training step, as a table, CSV or a picture.
#include "client/cli/cmd.h"

#include "client/cli/offline.h"
#include "client/cli/progress.h"
#include "client/cli/svg.h"
#include "client/cli/table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static double curve_number(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

// Bytes are whole numbers, and exact.
static void curve_csv_number(FILE *file, const json_t *v)
{
    if (json_is_integer(v)) {
        fprintf(file, "%lld", (long long)json_integer_value(v));
    } else {
        fprintf(file, "%.9g", json_number_value(v));
    }
}

static void curve_csv(FILE *file, const json_t *points)
{
    static const char *const keys[] = {"share",      "accumulate", "budget_bytes", "device_bytes",
                                       "host_bytes", "time_ms",    "slowdown",     "lower_bound_ms",
                                       "link_in_ms", "link_out_ms"};
    const size_t n = sizeof keys / sizeof *keys;
    size_t i;
    json_t *p;
    for (size_t k = 0; k < n; k++) {
        fprintf(file, "%s%s", keys[k], k + 1 < n ? "," : "\n");
    }
    json_array_foreach(points, i, p)
    {
        for (size_t k = 0; k < n; k++) {
            curve_csv_number(file, json_object_get(p, keys[k]));
            fputs(k + 1 < n ? "," : "\n", file);
        }
    }
}

// The picture: memory to the right, step time upwards.
typedef struct curve_axes {
    hth_axis x, y;
} curve_axes;

static void curve_line(FILE *file, const json_t *points, const curve_axes *axes, bool bound)
{
    size_t i;
    json_t *p;
    double fastest = curve_number(json_array_get(points, json_array_size(points) - 1), "time_ms");
    hth_svg_line(file, bound);
    json_array_foreach((json_t *)points, i, p)
    {
        double y = curve_number(p, "slowdown");
        if (bound) { // that is 1 too where nothing takes any time
            y = fastest > 0 ? curve_number(p, "lower_bound_ms") / fastest : 1;
        }
        hth_svg_point(file, hth_axis_share(&axes->x, curve_number(p, "budget_bytes")),
                      hth_axis_share(&axes->y, y));
    }
    hth_svg_line_end(file);
}

static void curve_frame(FILE *file, const json_t *doc, double least, double most, double slow)
{
    char title[200], description[300], from[32], to[32];
    const char *name = json_string_value(json_object_get(doc, "name"));
    const char *of = name != NULL ? name : "";
    snprintf(title, sizeof title, "Step time by memory%s%.100s", of[0] != 0 ? ": " : "", of);
    snprintf(description, sizeof description,
             "With %s of device memory a training step is predicted to take %.2f times as long as "
             "with %s, which is the fastest; a second line is a lower bound for all plans.",
             hth_table_bytes(least, from, sizeof from), slow, hth_table_bytes(most, to, sizeof to));
    hth_svg_open(file, title, description);
}

static void curve_svg(FILE *file, const json_t *doc)
{
    static const char *const names[] = {"planned", "lower bound"};
    const json_t *points = json_object_get(doc, "points");
    size_t i, n = json_array_size(points);
    json_t *p;
    double bytes = curve_number(json_array_get(points, n - 1), "budget_bytes");
    double slow = curve_number(json_array_get(points, 0), "slowdown");
    curve_axes axes;
    hth_axis_make(&axes.x, HTH_AXIS_BYTES, 0, bytes);
    hth_axis_make(&axes.y, HTH_AXIS_REAL, 1, slow > 1.05 ? slow : 1.05);
    curve_frame(file, doc, curve_number(json_array_get(points, 0), "budget_bytes"), bytes, slow);
    hth_svg_axes(file, &axes.x, "device memory", &axes.y, "step time / fastest (predicted)");
    curve_line(file, points, &axes, true);
    curve_line(file, points, &axes, false);
    json_array_foreach((json_t *)points, i, p)
    {
        hth_svg_dot(file, 0, hth_axis_share(&axes.x, curve_number(p, "budget_bytes")),
                    hth_axis_share(&axes.y, curve_number(p, "slowdown")));
    }
    hth_svg_legend(file, names, 2);
    hth_svg_close(file);
}

// curve_save writes the picture, with the name of what it is of (NULL: it has none).
static int curve_save(const char *path, const char *name, json_t *points)
{
    json_t *doc = json_pack("{s:O}", "points", points);
    if (name != NULL) {
        json_object_set_new(doc, "name", json_string_nocheck(name)); // a path may be any bytes
    }
    int rv = hth_cmd_write(path, doc, curve_svg);
    json_decref(doc);
    return rv;
}

static int cmd_curve(hth_cli *cli)
{
    char *json;
    const char *csv = hth_cli_text(cli, "csv"), *svg = hth_cli_text(cli, "svg");
    bool offline = hth_offline_is(cli);
    if (!offline && cli->n_args == 0) {
        return hth_offline_missing(cli);
    }
    int rv = offline
                 ? hth_offline_answer(cli, hth_cmd_arguments(cli), &json)
                 : hth_cmd_request(cli, "curve", hth_cmd_arguments(cli), hth_progress_show, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    json_t *points = json_loads(json, 0, NULL);
    if (json_array_size(points) > 0 && csv != NULL) {
        rv = hth_cmd_write(csv, points, curve_csv);
    }
    if (json_array_size(points) > 0 && svg != NULL && rv == HTH_CLI_OK) {
        rv = curve_save(svg, cli->n_args > 0 ? cli->args[0] : NULL, points);
    }
    rv = rv == HTH_CLI_OK ? hth_cli_print(cli, json) : rv;
    json_decref(points);
    hearth_free(json);
    return rv;
}

static const hth_option curve_options[] = {
    {"batch", HTH_OPTION_INT, "N", "samples in a batch"},
    {"train", HTH_OPTION_FLAG, NULL, "plan a training step (the default, and the only choice)"},
    {"precision", HTH_OPTION_TEXT, "P",
     "precision: fp32, tf32 or bf16, the last two on CUDA (the model's)"},
    OPTIONS_STEP,
    OPTION_ON,
    {"accumulate", HTH_OPTION_TEXT, "M",
     "split the batch into M equal parts with one update (gradient accumulation); auto: the "
     "fastest"},
    OPTION_PROBLEM,
    {"profile", HTH_OPTION_PATH, "FILE", "use the device of this cost profile (see hearth plan)"},
    {"csv", HTH_OPTION_PATH, "FILE", "write the points as CSV"},
    {"svg", HTH_OPTION_PATH, "FILE", "write the curve as SVG"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_curve = {"curve",
                                   "NAME[:VERSION]|FILE.onnx|--problem FILE [--batch N] [--csv "
                                   "FILE] [--svg FILE]",
                                   "show the predicted step time for every memory budget\n"
                                   "Predicted by the planner; more memory never takes longer. The "
                                   "dashed line is a lower bound for all plans. With --problem "
                                   "FILE, or FILE.onnx and\n"
                                   "--profile, no server, store or device is needed, and budgets "
                                   "may exceed any memory.",
                                   0,
                                   1,
                                   curve_options,
                                   .run = cmd_curve,
                                   .own_budget = true};
