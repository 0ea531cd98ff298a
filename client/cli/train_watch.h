// SPDX-License-Identifier: Apache-2.0
// client/cli/train_watch.h - `hearth train` once its job is taken: followed to its end, then
// printed with all its losses.
#ifndef HTH_CLIENT_CLI_TRAIN_WATCH_H
#define HTH_CLIENT_CLI_TRAIN_WATCH_H

#include "client/cli/cli.h"
#include "client/cli/detach.h"
#include "client/cli/train_log.h"

// hth_train_print prints a finished job's document; NULL: with its losses, as of training.
typedef int (*hth_train_print)(const hth_cli *cli, const json_t *doc);

// hth_train_watch follows the job that `taken` (the answer to "train") is about. Returns the exit
// code: 128 and the signal's number if the job was left. `log` gets its steps, and is ended; it may
// be NULL.
int hth_train_watch(hth_cli *cli, hth_detach *detach, hth_train_log *log, const json_t *taken,
                    hth_train_print print);

#endif
