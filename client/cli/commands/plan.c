// SPDX-License-Identifier: Apache-2.0
// `hearth plan`: the memory plan of a model or of a planning problem.
#include "client/cli/cmd.h"

#include "client/cli/offline.h"

static int plan_data(hth_cli *cli)
{
    char *json;
    json_t *arguments = hth_cmd_arguments(cli);
    if (hth_cli_text(cli, "problem") != NULL && json_object_get(arguments, "train") != NULL &&
        hth_cli_text(cli, "policy") == NULL) {
        json_object_set_new(arguments, "policy", json_string("hearth"));
    }
    int rv = hth_offline_answer(cli, arguments, &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(cli, json);
        hearth_free(json);
    }
    return rv;
}

static int cmd_plan(hth_cli *cli)
{
    if (hth_offline_is(cli)) {
        return plan_data(cli);
    }
    return cli->n_args == 0 ? hth_offline_missing(cli) : hth_cmd_query_itself(cli);
}

static const hth_option plan_options[] = {
    OPTION_BATCH,
    OPTION_ON,
    OPTION_BUDGET,
    OPTION_PRECISION,
    {"train", HTH_OPTION_FLAG, NULL, "plan a training step (softmax-xent, SGD with momentum)"},
    OPTIONS_STEP,
    OPTION_PROBLEM,
    {"profile", HTH_OPTION_PATH, "FILE", "with --train: plan for the device of this profile"},
    {"write-profile", HTH_OPTION_PATH, "FILE", "with --train: write a cost profile of this device"},
    {"out", HTH_OPTION_PATH, "plan.json", "write the plan"},
    {"trace", HTH_OPTION_PATH, "trace.json",
     "write the predicted timeline for chrome://tracing or ui.perfetto.dev"},
    OPTION_END,
};

const hth_command hth_cmd_plan = {
    "plan",
    "NAME[:VERSION]|FILE.onnx|--problem FILE [--train] [--policy P] [--budget B|N%] [--out "
    "plan.json]",
    "plan the memory of a model and show what the plan costs\n"
    "With --problem FILE a planning problem (format hearth-plan-1) is planned instead; N% is then "
    "of\n"
    "the problem's own budget. A policy other than inference plans it as a training step.\n"
    "A profile holds the cost of every node of a step on one device, and of its link: written "
    "there by\n"
    "--write-profile, it allows planning for that device on any machine with --profile. The model "
    "may\n"
    "then be an ONNX file, and no server, store or device is needed. A budget may exceed the "
    "memory "
    "of\n"
    "either machine.",
    0,
    1,
    plan_options,
    .run = cmd_plan};
