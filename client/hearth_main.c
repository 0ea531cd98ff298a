// SPDX-License-Identifier: Apache-2.0
// The `hearth` command: the list of commands, and the environment.
#include "client/cmd.h"

#include "base/isa.h"
#include "base/settings.h"
#include "base/thread.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static int cmd_help(hth_cli *c)
{
    return HTH_CLI_OK; // answered before any command runs
}

static const hth_command hth_cmd_help = {
    "help",  "[COMMAND]", "say what hearth, or one of its commands, does", 0, 1, hth_cmd_no_options,
    cmd_help};

static const hth_command *const main_commands[] = {
    &hth_cmd_import, &hth_cmd_ls,      &hth_cmd_show,
    &hth_cmd_rm,     &hth_cmd_gc,      &hth_cmd_export,
    &hth_cmd_infer,  &hth_cmd_train,   &hth_cmd_jobs,
    &hth_cmd_job,    &hth_cmd_pause,   &hth_cmd_resume,
    &hth_cmd_cancel, &hth_cmd_plan,    &hth_cmd_curve,
    &hth_cmd_bench,  &hth_cmd_convsel, &hth_cmd_devices,
    &hth_cmd_stats,  &hth_cmd_help,    NULL};

int main(int argc, char **argv)
{
    hth_cli c = {.commands = main_commands,
                 .environment = getenv("HEARTH_SERVER"),
                 .runtime_dir = getenv("XDG_RUNTIME_DIR")};
    if (hth_isa_limit(getenv("HEARTH_ISA")) != HTH_OK) {
        fprintf(stderr, "hearth: %s\n", hth_err_detail());
        return HTH_CLI_USAGE;
    }
    if (getenv("CUDA_HOME") != NULL &&
        hth_setting_set("cuda.libs", getenv("CUDA_HOME")) != HTH_OK) {
        fprintf(stderr, "hearth: $CUDA_HOME: %s\n", hth_err_detail());
        return HTH_CLI_USAGE;
    }
    signal(SIGPIPE, SIG_IGN);
    hth_thread_stacks(HTH_THREAD_STACK);
    return hth_cli_run(&c, argc, argv);
}
