// SPDX-License-Identifier: Apache-2.0
// `hearth plan`: the memory plan of a model or of a planning problem.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "client/documents.h"
#include "client/embed.h"

#include <stdlib.h>
#include <string.h>

// plan_offline says whether all that is planned comes in files.
static bool plan_offline(const hth_cli *cli)
{
    const char *model = cli->n_args > 0 ? cli->args[0] : "";
    size_t n = strlen(model);
    return hth_cli_text(cli, "problem") != NULL ||
           (hth_cli_text(cli, "profile") != NULL && n > 5 && strcmp(model + n - 5, ".onnx") == 0);
}

// What is data needs no server, store or device.
static int plan_data(hth_cli *cli)
{
    char *json = NULL, *changed = NULL, *text;
    bool problem = hth_cli_text(cli, "problem") != NULL;
    bool model = cli->n_args > 0 || hth_cli_text(cli, "profile") != NULL;
    if (problem &&
        (model || hth_cli_text(cli, "on") != NULL || hth_cli_text(cli, "write-profile") != NULL)) {
        return hth_cli_usage("--problem FILE replaces model and device: give neither");
    }
    if (hth_cli_text(cli, "on") != NULL) {
        return hth_cli_usage("--profile FILE is the device of a model file: give no --on");
    }
    json_t *arguments = hth_cmd_arguments(cli);
    if (problem && json_object_get(arguments, "train") != NULL &&
        hth_cli_text(cli, "policy") == NULL) {
        json_object_set_new(arguments, "policy", json_string("hearth"));
    }
    text = json_dumps(arguments, JSON_COMPACT);
    json_decref(arguments);
    if (text == NULL) {
        return hth_cli_usage("the arguments are not valid UTF-8");
    }
    hth_documents d;
    hth_err err;
    int rv;
    HTH_GOTO(hth_documents_read("plan", text, &d, &changed), done);
    HTH_GOTO(hth_embed_plan(changed != NULL ? changed : text, &json), done);
    err = hth_documents_write(&d, json, &json);
done:
    rv = err == HTH_OK ? hth_cli_print(cli, json) : hth_cli_error();
    hth_documents_fini(&d);
    hth_free(changed);
    hth_free(json);
    free(text);
    return rv;
}

static int cmd_plan(hth_cli *cli)
{
    if (plan_offline(cli)) {
        return plan_data(cli);
    }
    if (cli->n_args == 0) {
        return hth_cli_usage("a model or --problem FILE is missing\n"
                             "usage: hearth plan %s",
                             cli->command->usage);
    }
    return hth_cmd_query_itself(cli);
}

static const hth_option plan_options[] = {
    OPTION_BATCH,
    OPTION_ON,
    OPTION_BUDGET,
    OPTION_PRECISION,
    {"train", HTH_OPTION_FLAG, NULL, "plan a training step (softmax-xent, SGD with momentum)"},
    OPTIONS_STEP,
    {"problem", HTH_OPTION_PATH, "FILE", "a planning problem instead of a model"},
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
