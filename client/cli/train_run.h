// SPDX-License-Identifier: Apache-2.0
// client/cli/train_run.h - a command that submits a job: `hearth train`, `hearth kmeans`.
#ifndef HTH_CLIENT_CLI_TRAIN_RUN_H
#define HTH_CLIENT_CLI_TRAIN_RUN_H

#include "client/cli/train_watch.h"

// hth_train_run submits the job that `arguments` makes of the options (its exit code ends the
// command; *out is freed here), and with --detach prints its number, else follows it to its end and
// prints it by `print`.
int hth_train_run(hth_cli *cli, int (*arguments)(const hth_cli *cli, json_t **out),
                  hth_train_print print);

#endif
