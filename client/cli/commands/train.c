// SPDX-License-Identifier: Apache-2.0
// `hearth train`: a job's options are its specification.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "client/cli/numbers.h"
#include "client/cli/train_run.h"
#include "client/passed_files.h"

#include <stdlib.h>
#include <string.h>

// Datasets that are files get their paths; names of stored ones stay.
static bool train_files(json_t *json)
{
    static const char *const keys[] = {"data", "eval"};
    for (int i = 0; i < 2; i++) {
        const char *text = json_string_value(json_object_get(json, keys[i]));
        char *path;
        if (text == NULL) {
            continue;
        }
        if (hth_passed_data(text, &path) != HTH_OK) {
            return false;
        }
        json_object_set_new(json, keys[i], json_string(path));
        hth_free(path);
    }
    return true;
}

// Weights are numbers to the server, whatever they were written in; logs are this command's, and
// threads those of its own engine.
static int train_numbers(const hth_cli *cli, json_t *json)
{
    static const char *const lists[] = {"class-weights", "pos-weight"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const char *text = hth_cli_text(cli, lists[i]);
        json_t *numbers;
        if (text == NULL) {
            continue;
        }
        if (hth_cli_numbers(text, &numbers) != HTH_OK) {
            return hth_cli_usage("--%s: %s", lists[i], hth_err_detail());
        }
        json_object_set_new(json, lists[i], numbers);
    }
    json_object_del(json, "log-csv");
    json_object_del(json, "log-tensorboard");
    json_object_del(json, "threads");
    return HTH_CLI_OK;
}

// train_arguments makes of the options what the server is asked for; *q is the caller's.
static int train_arguments(const hth_cli *cli, json_t **out)
{
    json_t *q = *out = hth_cmd_arguments(cli);
    int rv = train_files(q) ? train_numbers(cli, q) : hth_cli_error();
    if (json_object_get(q, "resume") != NULL && json_object_get(q, "data") == NULL) {
        json_object_set(q, "job", json_object_get(q, "model"));
        json_object_del(q, "model");
    }
    json_object_set_new(q, "detach", json_true()); // the job is the server's from the start
    return rv;
}

static int cmd_train(hth_cli *cli)
{
    return hth_train_run(cli, train_arguments, NULL);
}

static const hth_option train_options[] = {
    {"on", HTH_OPTION_TEXT, "DEVICE,..|all",
     "device to train on (cuda:1); of several each takes a shard of every batch"},
    {"reduce", HTH_OPTION_TEXT, "[all|ps]",
     "of several devices all make each update, or the first one, which the others copy (all)"},
    {"shards", HTH_OPTION_PATH, "FILE",
     "repeat the shards of an earlier job on these devices (\"shards\" of its summary)"},
    {"sync-bn", HTH_OPTION_FLAG, NULL,
     "on several CPU devices, batch norm with the statistics of the whole batch"},
    {"group", HTH_OPTION_TEXT, "mpi",
     "this is one of several ranks that `mpirun -n N` or `srun -n N` started, each with a server "
     "of its own or a device (--on)"},
    {"data", HTH_OPTION_DATA, "FILE|NAME",
     "samples: the model's inputs (or x), and y; .safetensors, .npz, .csv, IDX, a folder of "
     "images"},
    {"label", HTH_OPTION_TEXT, "COLUMN", "of a CSV: the column that is y (y, label or target)"},
    {"size", HTH_OPTION_TEXT, "HxW", "of images: resample them to this height and width"},
    OPTIONS_SCALE,
    {"flip", HTH_OPTION_FLAG, NULL, "flip images left to right at random, in training only"},
    {"crop", HTH_OPTION_INT, "PAD",
     "crop images at random, in training only, after padding them by PAD zeros"},
    {"loss", HTH_OPTION_TEXT, "L", "softmax-xent (labels in y), bce (of logits) or mse"},
    OPTION_CLASS_AXIS,
    {"class-weights", HTH_OPTION_TEXT, "W,W,..|FILE", "weights of classes (softmax-xent)"},
    {"label-smoothing", HTH_OPTION_REAL, "E",
     "share of each label that all classes get (softmax-xent; 0)"},
    {"pos-weight", HTH_OPTION_TEXT, "W|W,..|FILE",
     "weight of positive targets, of all classes or each (bce)"},
    {"optimizer", HTH_OPTION_TEXT, "O", "sgd, momentum, adam or adamw"},
    {"lr", HTH_OPTION_REAL, "R", "learning rate (0.001)"},
    {"momentum", HTH_OPTION_REAL, "M", "momentum factor of --optimizer momentum (0.9)"},
    {"nesterov", HTH_OPTION_FLAG, NULL, "Nesterov momentum, for --optimizer momentum"},
    {"beta1", HTH_OPTION_REAL, "B", "decay rate of the first moment of adam and adamw (0.9)"},
    {"beta2", HTH_OPTION_REAL, "B", "decay rate of the second moment of adam and adamw (0.999)"},
    {"eps", HTH_OPTION_REAL, "E", "epsilon of adam and adamw (1e-8)"},
    {"weight-decay", HTH_OPTION_REAL, "W", "weight decay (0; adamw: 0.01)"},
    {"schedule", HTH_OPTION_TEXT, "S",
     "constant, step:EPOCHS:GAMMA, exponential:GAMMA, cosine or linear (to 0), one-cycle"},
    {"warmup", HTH_OPTION_INT, "N", "warm-up steps, in which the learning rate grows from 0"},
    {"freeze", HTH_OPTION_LIST, "PATTERN", "parameters to freeze: 'layer1.*'"},
    {"clip", HTH_OPTION_REAL, "N", "clip gradients to this norm"},
    {"batch", HTH_OPTION_INT, "N", "samples in a batch (32)"},
    {"accumulate", HTH_OPTION_TEXT, "M",
     "split each batch into M equal parts with one update (gradient accumulation); auto: the "
     "fastest of 1, 2, 4, 8 and 16 within the budget"},
    {"epochs", HTH_OPTION_INT, "E", "passes over the data (1)"},
    {"hold-out", HTH_OPTION_REAL, "SHARE",
     "held-out samples; loss and accuracy over them are computed after every epoch"},
    {"eval", HTH_OPTION_DATA, "FILE|NAME", "samples to evaluate after every epoch"},
    {"keep", HTH_OPTION_TEXT, "[last|best|best:accuracy]",
     "whose parameters the result has: the last, or those with the best held-out loss (accuracy)"},
    {"patience", HTH_OPTION_INT, "N", "end after N epochs without a better evaluation"},
    {"seed", HTH_OPTION_INT, "S",
     "random seed of the samples' order, held-out samples and dropout (0)"},
    {"no-shuffle", HTH_OPTION_FLAG, NULL, "use the samples in the file's order"},
    {"precision", HTH_OPTION_TEXT, "P",
     "precision of convolutions and matrix products: fp32, tf32 or bf16, the last two on CUDA (the "
     "model's)"},
    {"budget", HTH_OPTION_TEXT, "BYTES",
     "device memory budget: 512MiB, or 60% of what the step needs"},
    {"spill", HTH_OPTION_PATH, "DIR", "offload to a file in DIR instead of host memory"},
    {"policy", HTH_OPTION_TEXT, "P", "memory planner: hearth, keep, vdnn, chen, .."},
    {"plan-ms", HTH_OPTION_REAL, "MS",
     "time limit for planning (1000; 4 times that near the floor)"},
    {"replan", HTH_OPTION_SWITCH, "[on|off]",
     "search for better plans while the job runs, with the same algorithms (on)"},
    {"profile", HTH_OPTION_PATH, "FILE", "cost profile to plan with (hearth plan --write-profile)"},
    {"save-as", HTH_OPTION_TEXT, "NAME",
     "model that receives the result as a new version (NAME-jobN, after the job's number N)"},
    {"checkpoint-every", HTH_OPTION_INT, "N", "write a checkpoint every N steps and every epoch"},
    {"resume", HTH_OPTION_FLAG, NULL, "continue from the last checkpoint of this job"},
    OPTIONS_LOG,
    OPTIONS_JOB,
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_train = {
    "train",
    "NAME[:VERSION] --data FILE|NAME --loss softmax-xent|bce|mse --lr R --batch N --epochs E\n"
    "       hearth train --resume JOB",
    "train a model; the result is a model of its own, or with --save-as a version of another\n"
    "The job belongs to the server: this command submits and follows it. Ctrl-C, a hang-up or a "
    "lost\n"
    "connection leave it there; Ctrl-C twice cancels it. With --store it stops, with a "
    "checkpoint.\n"
    "With --json each step is one line {\"step\", \"loss\", \"ms\"} in the end, then comes a "
    "summary;\n"
    "of more than 10,000 steps every n-th is printed. `hearth job JOB --follow --json` prints "
    "steps "
    "as\n"
    "they happen.\n"
    "With --hold-out and --eval each epoch ends with loss, accuracy, top-5 and perplexity over\n"
    "held-out data, computed by the model as it would be served: \"held_out\" in the summary.\n"
    "--keep and --patience compare epochs by them, --hold-out's where there are both.\n"
    "With --checkpoint-every an interrupted job stays in `hearth jobs`. The same command with\n"
    "--resume, or just --resume JOB, continues as if it had never stopped, or fails if there is "
    "no\n"
    "checkpoint; hearthd resumes interrupted jobs when it starts. If the engine process dies, the "
    "job\n"
    "continues from its checkpoint, or starts over if it has none, and this command follows it.\n"
    "A job is named after the model that it produces.",
    1,
    1,
    train_options,
    .run = cmd_train,
    .own_budget = true,
    .timeout_ms = INT32_MAX};
