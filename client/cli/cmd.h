// SPDX-License-Identifier: Apache-2.0
// client/cli/cmd.h - the commands' rows, each defined in the file of commands/ that has its name,
// and what they share.
#ifndef HTH_CLIENT_CLI_CMD_H
#define HTH_CLIENT_CLI_CMD_H

#include "client/cli/cli.h"
#include "client/cli/train_log.h"

#include <stdio.h>

extern const hth_option hth_cmd_no_options[];
extern const hth_command *const hth_commands[]; // all, NULL-terminated: commands.c
// The row of each command is in commands/NAME.c. `complete` is not in hth_commands: shells call it.
extern const hth_command hth_cmd_alias, hth_cmd_batching, hth_cmd_bench, hth_cmd_cancel,
    hth_cmd_complete, hth_cmd_convsel, hth_cmd_curve, hth_cmd_data, hth_cmd_devices, hth_cmd_export,
    hth_cmd_gc, hth_cmd_import, hth_cmd_infer, hth_cmd_job, hth_cmd_jobs, hth_cmd_kmeans,
    hth_cmd_load, hth_cmd_logs, hth_cmd_ls, hth_cmd_pause, hth_cmd_plan, hth_cmd_precision,
    hth_cmd_push, hth_cmd_quota, hth_cmd_resume, hth_cmd_rm, hth_cmd_shares, hth_cmd_show,
    hth_cmd_stats, hth_cmd_token, hth_cmd_top, hth_cmd_train, hth_cmd_unload, hth_cmd_verify,
    hth_cmd_wait;

// clang-format off
#define OPTION_ON                                                                                  \
    {"on", HTH_OPTION_TEXT, "DEVICE", "device to use if the server has several (cuda:1)"}
#define OPTION_BATCH     {"batch", HTH_OPTION_INT, "N", "samples in a batch"}
#define OPTION_BUDGET                                                                              \
    {"budget", HTH_OPTION_TEXT, "BYTES", "memory budget: 512MiB, or 60% of what is needed"}
#define OPTION_NEW_BUDGET                                                                          \
    {"budget", HTH_OPTION_TEXT, "BYTES",                                                           \
     "continue with another memory budget: 512MiB, or 60% of what the step needs"}
#define OPTION_PRECISION                                                                           \
    {"precision", HTH_OPTION_TEXT, "P",                                                            \
     "precision: fp32, tf32 or bf16, the last two on CUDA (the model's)"}
#define OPTION_CLASS_AXIS                                                                          \
    {"class-axis", HTH_OPTION_INT, "1|-1",                                                         \
     "axis of the classes: 1, or -1, the last one (as the labels' shape says)"}
#define OPTIONS_LOG                                                                                \
    {"log-csv", HTH_OPTION_PATH, "FILE", "write losses, rates and metrics as CSV"},                \
    {"log-tensorboard", HTH_OPTION_PATH, "DIR", "write them to a TensorBoard event file in DIR"}
// When and how long a job runs.
#define OPTIONS_JOB                                                                                \
    {"detach", HTH_OPTION_FLAG, NULL, "print the job's number as soon as the server has taken it"},\
    {"after", HTH_OPTION_TEXT, "JOB,..",                                                           \
     "begin when these jobs have finished; canceled if one fails or is canceled"},                 \
    {"time-limit", HTH_OPTION_REAL, "S",                                                           \
     "stop after S seconds of running, with a checkpoint to resume from"},                         \
    {"priority", HTH_OPTION_INT, "N",                                                              \
     "among your own jobs: first at work, and a minute of waiting for each level, "                \
     "-100 to 100"},                                                                               \
    {"retries", HTH_OPTION_INT, "N",                                                               \
     "continue from the last checkpoint, up to N times, after the engine, a disk or memory "       \
     "failed"},                                                                                    \
    {"threads", HTH_OPTION_INT, "T", "compute threads"}
#define OPTION_PROBLEM                                                                             \
    {"problem", HTH_OPTION_PATH, "FILE", "a planning problem instead of a model"}
#define OPTION_END       {NULL, HTH_OPTION_FLAG, NULL, NULL}
// How bytes become a model's floats.
#define OPTIONS_SCALE                                                                              \
    {"scale", HTH_OPTION_TEXT, "S", "uint8 inputs become (x * S - mean) / std: 1/255, 1, .."},     \
    {"mean", HTH_OPTION_TEXT, "M,..", "mean of all channels, or one of each (0)"},                 \
    {"std", HTH_OPTION_TEXT, "D,..", "standard deviation of all channels, or one of each (1)"},    \
    {"normalize", HTH_OPTION_TEXT, "mean=M,..,std=D,..",                                           \
     "float32 images become (x - mean) / std, uint8 ones as with --mean and --std"}
// The options of what plans a training step.
#define OPTIONS_STEP                                                                               \
    OPTIONS_SCALE,                                                                                 \
    {"loss", HTH_OPTION_TEXT, "L", "loss of the training step: softmax-xent, bce or mse"},         \
    OPTION_CLASS_AXIS,                                                                             \
    {"optimizer", HTH_OPTION_TEXT, "O",                                                            \
     "optimizer of the training step: sgd, momentum, adam or adamw"},                              \
    {"policy", HTH_OPTION_TEXT, "P",                                                               \
     "memory planner of the training step: hearth, keep, vdnn, chen, .."},                         \
    {"plan-ms", HTH_OPTION_REAL, "MS",                                                             \
     "time limit for planning a training step (100; 4 times that near the floor)"},                \
    {"seed", HTH_OPTION_INT, "S", "random seed of the search (0)"}
// clang-format on

// hth_cmd_arguments makes a question's arguments: the command's own options under their names, and
// the model. The caller owns them.
json_t *hth_cmd_arguments(const hth_cli *cli);
// hth_cmd_request asks (taking `arguments`) and gives the answer, to be freed by hearth_free; NULL
// without a server. `progress` gets a hth_progress_bar.
int hth_cmd_request(hth_cli *cli, const char *what, json_t *arguments, hearth_progress progress,
                    char **json);
// hth_cmd_request_shown is the same when there is a connection, with a progress that has a context
// of its own; HTH_CLI_ERROR: hth_cli_error has not been said.
int hth_cmd_request_shown(hth_cli *cli, const char *what, json_t *arguments,
                          hearth_progress progress, void *ctx, char **json);
// hth_cmd_query asks for a document with a progress bar and prints it.
int hth_cmd_query(hth_cli *cli, const char *what, json_t *arguments);
// hth_cmd_query_itself does so for the query that is called as the command is.
int hth_cmd_query_itself(hth_cli *cli);
// hth_cmd_about makes the arguments of a question about the model that the command names, which is
// not loaded for it.
json_t *hth_cmd_about(const hth_cli *cli);
// hth_cmd_print prints a document as hth_cli_print does, and frees it.
int hth_cmd_print(const hth_cli *cli, json_t *doc);
// hth_cmd_held_out shortens a job's evaluations to the last epoch's, for people.
void hth_cmd_held_out(json_t *doc);
// hth_cmd_log_asked: --log-csv or --log-tensorboard was given. hth_cmd_log_open opens what they
// name (*out NULL: nothing), hth_cmd_log_end ends it with a job's document (may be NULL). Exit
// codes; errors are printed.
bool hth_cmd_log_asked(const hth_cli *cli);
int hth_cmd_log_open(const hth_cli *cli, hth_train_log **out);
int hth_cmd_log_end(hth_train_log *log, const char *json);
// hth_cmd_write has a file written from a document. An exit code; on an error, which is printed, a
// regular file is as it was.
int hth_cmd_write(const char *path, const json_t *doc, void (*write)(FILE *, const json_t *));

#endif
