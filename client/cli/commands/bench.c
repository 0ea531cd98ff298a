// SPDX-License-Identifier: Apache-2.0
// `hearth bench`: how fast a model is in steady state.
#include "client/cli/cmd.h"

#include "client/cli/progress.h"

static const hth_option bench_options[] = {
    OPTION_BATCH,
    OPTION_ON,
    OPTION_BUDGET,
    OPTION_PRECISION,
    {"train", HTH_OPTION_FLAG, NULL,
     "measure training steps (softmax-xent, SGD with momentum); the first ones correct the plan"},
    OPTIONS_STEP,
    {"accumulate", HTH_OPTION_TEXT, "M",
     "with --train: split the batch into M equal parts with one update (gradient accumulation); "
     "auto: the fastest"},
    {"spill", HTH_OPTION_PATH, "DIR", "with --train: offload to a file in DIR"},
    {"trace", HTH_OPTION_PATH, "trace.json", "with --train: write one step's timeline"},
    {"threads", HTH_OPTION_INT, "T", "compute threads"},
    {"seconds", HTH_OPTION_REAL, "S", "how long to measure"},
    {"steps", HTH_OPTION_INT, "N",
     "with --train: measure N steps (1 to 5; of several policies up to 1000) after one warm-up "
     "step, with the plan as it is"},
    OPTION_END,
};

// bench_shorten leaves of each policy's row what people compare, and tells below the table why one
// has no plan.
static void bench_shorten(json_t *doc)
{
    static const char *const keys[] = {"policy",     "ratio",          "spread",     "p50_ms",
                                       "planned_ms", "lower_bound_ms", "peak_bytes", "host_bytes"};
    json_t *rows = json_array(), *why = json_object(), *row;
    size_t i;
    json_array_foreach(json_object_get(doc, "policies"), i, row)
    {
        json_t *some = json_object(), *error = json_object_get(row, "error");
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_object_set(some, keys[k], json_object_get(row, keys[k]));
        }
        json_array_append_new(rows, some);
        if (error != NULL) {
            json_object_set(why, json_string_value(json_object_get(row, "policy")), error);
        }
    }
    json_object_set_new(doc, "policies", rows);
    if (json_object_size(why) > 0) {
        json_object_set(doc, "no_plan", why);
    }
    json_decref(why);
}

static int cmd_bench(hth_cli *cli)
{
    char *json;
    int rv = hth_cmd_request(cli, "bench", hth_cmd_arguments(cli), hth_progress_show, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    json_t *doc = json_loads(json, 0, NULL);
    if (!hth_cli_json(cli) && json_object_get(doc, "policies") != NULL) {
        bench_shorten(doc);
    }
    hearth_free(json);
    return hth_cmd_print(cli, doc);
}

const hth_command hth_cmd_bench = {
    "bench",
    "NAME[:VERSION] --batch N [--budget B] [--threads T] [--seconds S]",
    "measure a model in steady state, on synthetic inputs\n"
    "With --train and --policy P,P,.. the policies' steps take turns, with one that has all "
    "memory:\n"
    "ratio is to its time, and half of the steps are within a factor of 1 +- spread of that, "
    "whatever else the machine does.",
    1,
    1,
    bench_options,
    .run = cmd_bench};
