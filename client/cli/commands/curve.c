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
static double curve_x(const json_t *json, double most)
{
    return hth_svg_x(curve_number(json, "budget_bytes") / most);
}

static double curve_y(double slowdown, double most)
{
    return hth_svg_y((slowdown - 1) / (most - 1));
}

static void curve_line(FILE *file, const json_t *points, double bytes, double slow, bool bound,
                       const char *style)
{
    size_t i;
    json_t *p;
    double fastest = curve_number(json_array_get(points, json_array_size(points) - 1), "time_ms");
    fprintf(file, "<polyline fill='none' %s points='", style);
    json_array_foreach(points, i, p)
    {
        double y = curve_number(p, "slowdown");
        if (bound) { // that is 1 too where nothing takes any time
            y = fastest > 0 ? curve_number(p, "lower_bound_ms") / fastest : 1;
        }
        fprintf(file, "%.1f,%.1f ", curve_x(p, bytes), curve_y(y < 1 ? 1 : y, slow));
    }
    fprintf(file, "'/>\n");
}

static void curve_svg(FILE *file, const json_t *points)
{
    char text[40];
    size_t i, n = json_array_size(points);
    json_t *p;
    double bytes = curve_number(json_array_get(points, n - 1), "budget_bytes");
    double slow = curve_number(json_array_get(points, 0), "slowdown");
    slow = slow > 1.05 ? slow : 1.05;
    hth_svg_open(file);
    for (int k = 0; k <= 4; k++) {
        snprintf(text, sizeof text, "%.2f", 1 + (slow - 1) * k / 4);
        hth_svg_rule(file, k / 4.0, text);
        hth_svg_text(file, hth_svg_x(k / 4.0), HTH_SVG_HEIGHT - HTH_SVG_MARGIN + 20, "",
                     hth_table_bytes(bytes * k / 4, text, sizeof text));
    }
    hth_svg_text(file, HTH_SVG_WIDTH / 2, HTH_SVG_HEIGHT - 12, "", "device memory");
    hth_svg_text(file, 16, HTH_SVG_HEIGHT / 2, "transform='rotate(-90 16 200)'",
                 "step time / fastest (predicted)");
    curve_line(file, points, bytes, slow, true, "stroke='#999' stroke-dasharray='4 3'");
    curve_line(file, points, bytes, slow, false, "stroke='#c2410c' stroke-width='2'");
    json_array_foreach(points, i, p)
    {
        fprintf(file, "<circle cx='%.1f' cy='%.1f' r='3' fill='#c2410c'/>\n", curve_x(p, bytes),
                curve_y(curve_number(p, "slowdown"), slow));
    }
    hth_svg_close(file);
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
        rv = hth_cmd_write(svg, points, curve_svg);
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
