// SPDX-License-Identifier: Apache-2.0
// The commands that are one question to the engine: what was given on the command line is the
// question's arguments.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "client/embed.h"
#include "client/documents.h"
#include "client/cli/progress.h"

#include <stdlib.h>
#include <string.h>

int hth_cmd_ask_shown(hth_cli *c, const char *what, json_t *arguments, hearth_progress progress,
                      void *ctx, char **json)
{
    char *text = json_dumps(arguments, JSON_COMPACT);
    json_decref(arguments);
    if (text == NULL) {
        return hth_cli_usage("the arguments are no valid text");
    }
    hearth_status s = hearth_query(c->h, what, text, progress, ctx, json);
    free(text);
    return s == HEARTH_OK ? HTH_CLI_OK : HTH_CLI_ERROR;
}

int hth_cmd_ask(hth_cli *c, const char *what, json_t *arguments, hearth_progress progress,
                char **json)
{
    hth_progress_bar bar;
    int rv = hth_cli_connect(c);
    if (rv != HTH_CLI_OK) {
        json_decref(arguments);
        return rv;
    }
    hth_progress_init(&bar);
    rv = hth_cmd_ask_shown(c, what, arguments, progress, &bar, json);
    hth_progress_fini(&bar);
    return rv == HTH_CLI_ERROR ? hth_cli_error() : rv;
}

json_t *hth_cmd_arguments(const hth_cli *c)
{
    json_t *q = json_object();
    if (c->n_args > 0) {
        json_object_set_new(q, "model", json_string(c->args[0]));
    }
    for (const hth_option *o = c->command->options; o->name != NULL; o++) {
        json_t *v = json_object_get(c->options, o->name);
        if (v != NULL) {
            json_object_set(q, o->name, v);
        }
    }
    return q;
}

int hth_cmd_query(hth_cli *c, const char *what, json_t *arguments)
{
    char *json;
    int rv = hth_cmd_ask(c, what, arguments, hth_progress_show, &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(c, json);
        hearth_free(json);
    }
    return rv;
}

static int cmd_ask(hth_cli *c)
{
    return hth_cmd_query(c, c->command->name, hth_cmd_arguments(c));
}

// A problem is data: no server, store or device is asked.
static int plan_problem(hth_cli *c)
{
    char *json = NULL, *changed = NULL, *text;
    json_t *arguments = hth_cmd_arguments(c);
    if (c->n_args > 0 || hth_cli_text(c, "profile") != NULL || hth_cli_text(c, "on") != NULL ||
        hth_cli_text(c, "write-profile") != NULL) {
        json_decref(arguments);
        return hth_cli_usage("--problem FILE says all that is planned: no model, no device");
    }
    if (json_object_get(arguments, "train") != NULL && hth_cli_text(c, "policy") == NULL) {
        json_object_set_new(arguments, "policy", json_string("hearth"));
    }
    text = json_dumps(arguments, JSON_COMPACT);
    json_decref(arguments);
    if (text == NULL) {
        return hth_cli_usage("the arguments are no valid text");
    }
    hth_documents d;
    hth_err err = hth_documents_read("plan", text, &d, &changed);
    err = err == HTH_OK ? hth_embed_plan(changed != NULL ? changed : text, &json) : err;
    err = err == HTH_OK ? hth_documents_write(&d, json, &json) : err;
    int rv = err == HTH_OK ? hth_cli_print(c, json) : hth_cli_error();
    hth_documents_fini(&d);
    hth_free(changed);
    hth_free(json);
    free(text);
    return rv;
}

static int cmd_plan(hth_cli *c)
{
    if (hth_cli_text(c, "problem") != NULL) {
        return plan_problem(c);
    }
    if (c->n_args == 0) {
        return hth_cli_usage("plan what? a model, or --problem FILE\nusage: hearth plan %s",
                             c->command->usage);
    }
    return cmd_ask(c);
}

#define OPTION_BATCH                                                                               \
    {                                                                                              \
        "batch", HTH_OPTION_INT, "N", "samples in a batch"                                         \
    }
#define OPTION_BUDGET                                                                              \
    {                                                                                              \
        "budget", HTH_OPTION_TEXT, "BYTES",                                                        \
            "memory that may be used: 512MiB, or 60% of what is needed"                            \
    }
#define OPTION_PRECISION                                                                           \
    {                                                                                              \
        "precision", HTH_OPTION_TEXT, "P",                                                         \
            "fp32, tf32 or bf16, the last two on CUDA (the model's)"                               \
    }
#define OPTION_END                                                                                 \
    {                                                                                              \
        NULL, HTH_OPTION_FLAG, NULL, NULL                                                          \
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
    {"write-profile", HTH_OPTION_PATH, "FILE", "with --train: write what all nodes cost here"},
    {"out", HTH_OPTION_PATH, "plan.json", "write the plan"},
    {"trace", HTH_OPTION_PATH, "trace.json",
     "write the predicted timeline for chrome://tracing or ui.perfetto.dev"},
    OPTION_END,
};
static const hth_option bench_options[] = {
    OPTION_BATCH,
    OPTION_ON,
    OPTION_BUDGET,
    OPTION_PRECISION,
    {"train", HTH_OPTION_FLAG, NULL,
     "measure training steps (softmax-xent, SGD with momentum), the plan corrected by "
     "the first ones"},
    OPTIONS_STEP,
    {"accumulate", HTH_OPTION_TEXT, "M",
     "with --train: take the batch in M equal parts, one update for all; auto: in what is fastest"},
    {"spill", HTH_OPTION_PATH, "DIR", "with --train: what leaves goes to a file in DIR"},
    {"trace", HTH_OPTION_PATH, "trace.json", "with --train: write one step's timeline"},
    {"threads", HTH_OPTION_INT, "T", "compute threads"},
    {"seconds", HTH_OPTION_REAL, "S", "how long to measure"},
    {"steps", HTH_OPTION_INT, "N",
     "with --train: measure N steps (1 to 5) behind one to warm up, with the plan as it is"},
    OPTION_END,
};
static const hth_option convsel_options[] = {
    OPTION_BATCH,
    OPTION_ON,
    OPTION_PRECISION,
    {"train", HTH_OPTION_FLAG, NULL, "of a training step, all three directions"},
    {"again", HTH_OPTION_FLAG, NULL,
     "drop what is remembered of this model's nodes, and measure them anew"},
    OPTION_END,
};

const hth_command hth_cmd_plan = {
    "plan",
    "NAME[:VERSION]|--problem FILE [--train] [--policy P] [--budget B|N%] [--out plan.json]",
    "plan the memory of a model, and say what the plan costs\n"
    "With --problem FILE the same is done for a planning problem (format hearth-plan-1); N% is of\n"
    "the problem's own budget then. A policy other than inference plans it as a training step.\n"
    "A profile holds what every node of a step costs on one device, and its link: written there "
    "by\n"
    "--write-profile, it lets plans for that device be made and judged anywhere by --profile.",
    0,
    1,
    plan_options,
    cmd_plan};
const hth_command hth_cmd_bench = {
    "bench",
    "NAME[:VERSION] --batch N [--budget B] [--threads T] [--seconds S]",
    "measure a model in steady state, on synthetic inputs",
    1,
    1,
    bench_options,
    cmd_ask};
const hth_command hth_cmd_convsel = {
    "convsel",
    "NAME[:VERSION] --batch N [--train] [--again]",
    "list what each convolution could use: algorithm, workspace, time\n"
    "Times are measured once and remembered. `disturbed` marks those that were taken while others\n"
    "had the processors: a server takes them again by itself when the machine is quiet, --again\n"
    "does at once. The times of a training step change by --again only, for they decide which\n"
    "algorithms, and so which bits, a job has.",
    1,
    1,
    convsel_options,
    cmd_ask};
const hth_command hth_cmd_devices = {
    "devices", "", "list the devices and their memory", 0, 0, hth_cmd_no_options, cmd_ask};
const hth_command hth_cmd_stats = {
    "stats", "", "say who uses how much memory, and how often models are used",
    0,       0,  hth_cmd_no_options,
    cmd_ask};
