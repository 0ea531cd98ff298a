// SPDX-License-Identifier: Apache-2.0
#include "client/cli/help.h"

#include <stdio.h>
#include <string.h>

static void help_options(const char *title, const hth_option *option)
{
    printf("%s", option->name != NULL ? title : "");
    for (; option->name != NULL; option++) {
        char left[64];
        int n = snprintf(left, sizeof left, "--%s", option->name);
        if (option->value != NULL) {
            snprintf(left + n, sizeof left - (size_t)n, " %s", option->value);
        }
        printf("  %-24s %s\n", left, option->help);
    }
}

static void help_examples(const char *lines)
{
    printf("%s", lines != NULL ? "\nExamples:\n" : "");
    for (const char *at = lines; at != NULL && *at != 0; at += strcspn(at, "\n") + 1) {
        printf("  %.*s\n", (int)strcspn(at, "\n"), at);
    }
}

int hth_help_print(const hth_cli *cli, const hth_command *command)
{
    if (command != NULL) {
        printf("usage: hearth %s%s%s\n\n%s\n", command->name, command->usage[0] != 0 ? " " : "",
               command->usage, command->help);
        help_options("\nOptions:\n", command->options);
        help_examples(command->examples);
    } else {
        printf("usage: hearth [--server URL | --store DIR] [--json] COMMAND\n\nCommands:\n");
        for (int i = 0; cli->commands[i] != NULL; i++) {
            const char *help = cli->commands[i]->help;
            printf("  %-9s %.*s\n", cli->commands[i]->name, (int)strcspn(help, "\n"), help);
        }
        printf("\n"
               "Without --server and --store: $HEARTH_SERVER, else the server on this machine.\n"
               "$HEARTH_TOKEN: the token, unless --token-file is given.\n"
               "$HEARTH_ISA (avx512, avx2, sse2) limits the vectors that kernels use.\n"
               "$CUDA_HOME: folders searched first for CUDA libraries.\n"
               "`hearth help COMMAND` shows details.\n");
    }
    help_options("\nEverywhere:\n", hth_cli_global);
    return HTH_CLI_OK;
}
