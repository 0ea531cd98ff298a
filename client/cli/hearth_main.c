// SPDX-License-Identifier: Apache-2.0
// The `hearth` command: the environment, and the streams.
#include "client/cli/cmd.h"
#include "client/terminal.h"

#include "base/isa.h"
#include "base/settings.h"
#include "base/thread.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

// The first that is set decides, as in setlocale.
static const char *main_locale(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != 0) {
            return value;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    hth_cli c = {.commands = hth_commands,
                 .hidden = &hth_cmd_complete,
                 .environment = getenv("HEARTH_SERVER"),
                 .token = getenv("HEARTH_TOKEN"),
                 .runtime_dir = getenv("XDG_RUNTIME_DIR"),
                 .term = getenv("TERM"),
                 .no_color = getenv("NO_COLOR"),
                 .locale = main_locale()};
    if (!hth_terminal_guard()) {
        perror("hearth");
        return HTH_CLI_ERROR;
    }
    if (hth_isa_limit(getenv("HEARTH_ISA")) != HTH_OK) {
        fprintf(stderr, "hearth: %s\n", hth_err_detail());
        return HTH_CLI_USAGE;
    }
    if (hth_setting_given("cuda.libs", getenv("CUDA_HOME")) != HTH_OK ||
        hth_setting_given("kernels.onednn", getenv("HEARTH_ONEDNN")) != HTH_OK) {
        fprintf(stderr, "hearth: %s\n", hth_err_detail());
        return HTH_CLI_USAGE;
    }
    signal(SIGPIPE, SIG_IGN);
    hth_thread_stacks(HTH_THREAD_STACK);
    return hth_cli_run(&c, argc, argv);
}
