// SPDX-License-Identifier: Apache-2.0
// `hearth train`: a job's options are its specification.
#include "client/cli/cmd.h"

#include "client/cli/follow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_JOB 208 // bytes of a job's name

void hth_cmd_held_out(json_t *doc)
{
    json_t *list = json_object_get(doc, "held_out");
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    json_t *step = json_incref(json_object_get(last, "step"));
    while (json_array_size(list) > 0 &&
           !json_equal(json_object_get(json_array_get(list, 0), "step"), step)) {
        json_array_remove(list, 0);
    }
    json_decref(step);
    if (json_array_size(list) == 0) {
        json_object_del(doc, "held_out");
    }
}

// The losses as one line each (--json), or the first and the last one; then the summary without
// them.
static int train_print(hth_cli *c, const char *text)
{
    size_t i;
    json_t *v, *doc = json_loads(text, 0, NULL), *history = json_object_get(doc, "history");
    size_t n = json_array_size(history);
    json_array_foreach(history, i, v)
    {
        double loss = json_number_value(json_array_get(v, 0));
        if (hth_cli_json(c)) {
            printf("{\"step\":%zu,\"loss\":%.9g,\"ms\":%.3f}\n", i + 1, loss,
                   json_number_value(json_array_get(v, 1)));
        } else if (i == 0 || i == n - 1) {
            json_object_set_new(doc, i == 0 ? "first_loss" : "last_loss", json_real(loss));
        }
    }
    json_object_del(doc, "history");
    if (!hth_cli_json(c)) {
        hth_cmd_held_out(doc);
    }
    char *summary = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    int rv = summary != NULL ? hth_cli_print(c, summary) : HTH_CLI_ERROR;
    free(summary);
    return rv;
}

// The job is called as the model that it makes.
static void train_job(const json_t *q, char out[TRAIN_JOB])
{
    const char *name = json_string_value(json_object_get(q, "job"));
    name = name != NULL ? name : json_string_value(json_object_get(q, "save-as"));
    name = name != NULL ? name : json_string_value(json_object_get(q, "model"));
    snprintf(out, TRAIN_JOB, "%.*s", (int)strcspn(name, ":"), name);
}

static int cmd_train(hth_cli *c)
{
    char *json, job[TRAIN_JOB];
    hth_follow follow;
    json_t *q = hth_cmd_arguments(c);
    int rv = hth_cli_connect(c);
    if (rv != HTH_CLI_OK) {
        json_decref(q);
        return rv;
    }
    if (json_object_get(q, "resume") != NULL && json_object_get(q, "data") == NULL) {
        json_object_set(q, "job", json_object_get(q, "model"));
        json_object_del(q, "model");
    }
    train_job(q, job);
    hth_follow_init(&follow, !hth_cli_json(c));
    hth_follow_start(&follow, c->h, job);
    rv = hth_cmd_ask_shown(c, "train", q, hth_follow_show, &follow, &json);
    hth_follow_fini(&follow);
    if (rv == HTH_CLI_OK) {
        rv = train_print(c, json);
        hearth_free(json);
        return rv;
    }
    return rv == HTH_CLI_ERROR ? hth_cli_error() : rv;
}

static const hth_option train_options[] = {
    OPTION_ON,
    {"data", HTH_OPTION_PATH, "FILE.safetensors", "samples: the model's inputs (or x), and y"},
    {"loss", HTH_OPTION_TEXT, "L", "softmax-xent (labels in y) or mse"},
    {"optimizer", HTH_OPTION_TEXT, "O", "sgd, momentum, adam or adamw"},
    {"lr", HTH_OPTION_REAL, "R", "learning rate (0.001)"},
    {"momentum", HTH_OPTION_REAL, "M", "of --optimizer momentum (0.9)"},
    {"nesterov", HTH_OPTION_FLAG, NULL, "of --optimizer momentum"},
    {"beta1", HTH_OPTION_REAL, "B", "of adam and adamw (0.9)"},
    {"beta2", HTH_OPTION_REAL, "B", "of adam and adamw (0.999)"},
    {"eps", HTH_OPTION_REAL, "E", "of adam and adamw (1e-8)"},
    {"weight-decay", HTH_OPTION_REAL, "W", "weight decay (0; adamw: 0.01)"},
    {"schedule", HTH_OPTION_TEXT, "S", "constant, step:EPOCHS:GAMMA, cosine or linear (to 0)"},
    {"warmup", HTH_OPTION_INT, "N", "steps in which the learning rate grows from 0"},
    {"freeze", HTH_OPTION_LIST, "PATTERN", "parameters that stay as they are: 'layer1.*'"},
    {"clip", HTH_OPTION_REAL, "N", "clip gradients to this norm"},
    {"batch", HTH_OPTION_INT, "N", "samples in a batch (32)"},
    {"accumulate", HTH_OPTION_TEXT, "M",
     "take each batch in M equal parts, one update for all; auto: in 1, 2, 4, 8 or 16, what is "
     "fastest under the budget"},
    {"epochs", HTH_OPTION_INT, "E", "times through the data (1)"},
    {"hold-out", HTH_OPTION_REAL, "SHARE",
     "samples that are not trained on; loss and accuracy over them behind every epoch"},
    {"eval", HTH_OPTION_PATH, "FILE", "samples that are evaluated behind every epoch"},
    {"seed", HTH_OPTION_INT, "S", "of the order of samples, what is held out, and dropout (0)"},
    {"no-shuffle", HTH_OPTION_FLAG, NULL, "take the samples in the file's order"},
    {"precision", HTH_OPTION_TEXT, "P",
     "fp32, tf32 or bf16 for convolutions and products, the last two on CUDA (the model's)"},
    {"budget", HTH_OPTION_TEXT, "BYTES", "device memory: 512MiB, or 60% of what the step takes"},
    {"spill", HTH_OPTION_PATH, "DIR",
     "what leaves the device goes to a file in DIR, not to memory"},
    {"policy", HTH_OPTION_TEXT, "P", "who plans the memory: hearth, keep, vdnn, chen, .."},
    {"plan-ms", HTH_OPTION_REAL, "MS", "time for planning (1000)"},
    {"replan", HTH_OPTION_SWITCH, "[on|off]",
     "look for better plans while the job runs, with the same algorithms (on)"},
    {"profile", HTH_OPTION_PATH, "FILE", "costs to plan with (hearth plan --write-profile)"},
    {"save-as", HTH_OPTION_TEXT, "NAME", "the model that gets the result as a new version"},
    {"checkpoint-every", HTH_OPTION_INT, "N",
     "keep the job's state in the store every N steps and every epoch"},
    {"resume", HTH_OPTION_FLAG, NULL, "go on from the last checkpoint of this job"},
    {"threads", HTH_OPTION_INT, "T", "compute threads"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_train = {
    "train",
    "NAME[:VERSION] --data FILE.safetensors --loss softmax-xent|mse --lr R --batch N --epochs E\n"
    "       hearth train --resume JOB",
    "train a model; the result is a new version of it\n"
    "With --json each step is one line {\"step\", \"loss\", \"ms\"} in the end, then comes a "
    "summary;\n"
    "`hearth job JOB --follow --json` tells steps as they come.\n"
    "With --hold-out and --eval each epoch ends with loss and (softmax-xent) accuracy over data "
    "that\n"
    "are not trained on, by the model as it would be served: \"held_out\" of the summary.\n"
    "With --checkpoint-every a job that ends before its time stays in `hearth jobs`. The same\n"
    "command with --resume, or just --resume JOB, goes on as if it had never stopped, or says that "
    "there\n"
    "is no checkpoint; hearthd does\n"
    "so by itself when it was interrupted. A job whose engine's process dies goes on, or begins\n"
    "anew where it has no checkpoint, and this command follows it. A job is called as the model\n"
    "that it makes.",
    1,
    1,
    train_options,
    cmd_train};
