// SPDX-License-Identifier: Apache-2.0
// `hearth convsel`: the algorithms that each convolution of a model can use.
#include "client/cli/cmd.h"

#include "client/cli/progress.h"
#include "client/cli/svg.h"

#include <stdio.h>
#include <string.h>

#define HEAT_LEFT 110.0
#define HEAT_TOP  76.0 // below the title, the columns' title and their names

static int heat_class(const json_t *classes, const json_t *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(classes, i, row)
    {
        if (json_equal(json_object_get(row, "class"), name)) {
            return (int)i;
        }
    }
    return -1;
}

// A square of the map: white at 0 and below, orange at 1, its number black on either.
static void heat_square(FILE *file, int column, int line, double side, double oef)
{
    char text[16];
    double shade = oef < 0 ? 0 : oef;
    shade = shade > 1 ? 1 : shade;
    double x = HEAT_LEFT + column * side * 1.6, y = HEAT_TOP + line * side;
    fprintf(file,
            "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='rgb(%.0f,%.0f,%.0f)' "
            "stroke='#ddd'/>\n",
            x, y, side * 1.6, side, 255 - 20 * shade, 255 - 145 * shade, 255 - 230 * shade);
    snprintf(text, sizeof text, "%.2f", oef);
    hth_svg_text(file, x + side * 0.8, y + side / 2 + 4, "class='on'", text);
}

static void pairs_svg(FILE *file, const json_t *doc)
{
    const json_t *classes = json_object_get(doc, "classes"), *pairs = json_object_get(doc, "pairs");
    size_t i, n = json_array_size(classes);
    json_t *row;
    double side = (HTH_SVG_HEIGHT - HEAT_TOP - 20) / (double)n;
    side = side > 48 ? 48 : side;
    hth_svg_open(file, "OEF: what two operators gain at the same time",
                 "A map of pairs of operator classes. The number in each square is the overlap "
                 "efficiency, (Ti + Tj - Pij) / min(Ti, Tj), without a unit: 0, nothing is gained; "
                 "1, the shorter one costs nothing. The more orange, the larger.");
    hth_svg_text(file, HEAT_LEFT + 0.8 * side * (double)n, HEAT_TOP - 28, "",
                 "operator class, and the one at the same time (OEF, without a unit)");
    json_array_foreach(classes, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "class"));
        hth_svg_text(file, HEAT_LEFT / 2, HEAT_TOP + ((double)i + 0.5) * side + 4, "", name);
        hth_svg_text(file, HEAT_LEFT + ((double)i + 0.5) * side * 1.6, HEAT_TOP - 8, "", name);
    }
    json_array_foreach(pairs, i, row)
    {
        int a = heat_class(classes, json_object_get(row, "first"));
        int b = heat_class(classes, json_object_get(row, "second"));
        double oef = json_number_value(json_object_get(row, "oef"));
        heat_square(file, a, b, side, oef);
        if (a != b) {
            heat_square(file, b, a, side, oef);
        }
    }
    hth_svg_close(file);
}

static int cmd_convsel(hth_cli *cli)
{
    char *json;
    const char *svg = hth_cli_text(cli, "svg");
    if (svg != NULL && !json_is_true(json_object_get(cli->options, "pairs"))) {
        return hth_cli_usage("--svg draws pairs: add --pairs");
    }
    json_t *arguments = hth_cmd_arguments(cli);
    json_object_del(arguments, "svg");
    int rv = hth_cmd_request(cli, "convsel", arguments, hth_progress_show, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    if (svg != NULL) {
        json_t *doc = json_loads(json, 0, NULL);
        rv = hth_cmd_write(svg, doc, pairs_svg);
        json_decref(doc);
    }
    rv = rv == HTH_CLI_OK ? hth_cli_print(cli, json) : rv;
    hearth_free(json);
    return rv;
}

static const hth_option convsel_options[] = {
    OPTION_BATCH,
    OPTION_ON,
    OPTION_PRECISION,
    {"train", HTH_OPTION_FLAG, NULL, "of a training step: forward and both gradients"},
    {"again", HTH_OPTION_FLAG, NULL,
     "discard the stored timings of this model's nodes and measure again"},
    {"pairs", HTH_OPTION_FLAG, NULL,
     "measure instead what overlaps: pairs of operator classes, and a copy or reduction"},
    {"svg", HTH_OPTION_PATH, "FILE", "with --pairs: write a heat map"},
    OPTION_END,
};

const hth_command hth_cmd_convsel = {
    "convsel",
    "NAME[:VERSION] --batch N [--train] [--again] [--pairs]",
    "list the candidates of each convolution: algorithm, workspace, time\n"
    "Times are measured once and stored. `disturbed` marks times measured while other programs\n"
    "used the processors: a server measures them again when the machine is idle, --again\n"
    "immediately. Times of a training step change only with --again, because they decide which\n"
    "algorithms, and therefore which bits, a job has.\n"
    "--pairs: OEF is (Ti + Tj - Pij) / min(Ti, Tj), T on two threads, P at the same time on one\n"
    "thread each. 0: nothing is gained; 1: the shorter one costs nothing.",
    1,
    1,
    convsel_options,
    .run = cmd_convsel};
