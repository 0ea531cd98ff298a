// SPDX-License-Identifier: Apache-2.0
// `hearth bench`: how fast a model is in steady state.
#include "client/cli/cmd.h"

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
     "with --train: measure N steps (1 to 5) after one warm-up step, with the plan as it is"},
    OPTION_END,
};

const hth_command hth_cmd_bench = {
    "bench",
    "NAME[:VERSION] --batch N [--budget B] [--threads T] [--seconds S]",
    "measure a model in steady state, on synthetic inputs",
    1,
    1,
    bench_options,
    .run = hth_cmd_query_itself};
