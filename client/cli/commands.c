// SPDX-License-Identifier: Apache-2.0
// All commands: for the program, and for the manual page and completions that are made from them.
#include "client/cli/cmd.h"

static const hth_command hth_cmd_help = {"help",
                                         "[COMMAND]",
                                         "show help for hearth or one of its commands",
                                         0,
                                         1,
                                         hth_cmd_no_options,
                                         .helps = true};

const hth_command *const hth_commands[] = {
    &hth_cmd_import, &hth_cmd_ls,       &hth_cmd_show,      &hth_cmd_rm,
    &hth_cmd_gc,     &hth_cmd_verify,   &hth_cmd_export,    &hth_cmd_alias,
    &hth_cmd_push,   &hth_cmd_load,     &hth_cmd_unload,    &hth_cmd_infer,
    &hth_cmd_data,   &hth_cmd_train,    &hth_cmd_kmeans,    &hth_cmd_jobs,
    &hth_cmd_job,    &hth_cmd_logs,     &hth_cmd_wait,      &hth_cmd_pause,
    &hth_cmd_resume, &hth_cmd_cancel,   &hth_cmd_plan,      &hth_cmd_curve,
    &hth_cmd_bench,  &hth_cmd_convsel,  &hth_cmd_devices,   &hth_cmd_stats,
    &hth_cmd_top,    &hth_cmd_batching, &hth_cmd_precision, &hth_cmd_quota,
    &hth_cmd_shares, &hth_cmd_token,    &hth_cmd_help,      NULL};
