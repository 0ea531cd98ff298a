// SPDX-License-Identifier: Apache-2.0
// client/cmd.h - the commands' rows; each is defined beside what it does.
#ifndef HTH_CLIENT_CMD_H
#define HTH_CLIENT_CMD_H

#include "client/cli.h"

extern const hth_option hth_cmd_no_options[];
extern const hth_command hth_cmd_import, hth_cmd_ls, hth_cmd_show, hth_cmd_rm, hth_cmd_gc,
    hth_cmd_export;                     // cmd_store.c
extern const hth_command hth_cmd_infer; // cmd_infer.c
extern const hth_command hth_cmd_plan, hth_cmd_bench, hth_cmd_convsel, hth_cmd_devices,
    hth_cmd_stats;                      // cmd_query.c
extern const hth_command hth_cmd_train; // cmd_train.c

// hth_cmd_query asks for a document with a progress bar and prints it.
int hth_cmd_query(hth_cli *c, const char *what, json_t *arguments);

#endif
