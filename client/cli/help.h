// SPDX-License-Identifier: Apache-2.0
// client/cli/help.h - what `hearth help` and --help print, made from the rows of commands and of
// options.
#ifndef HTH_CLIENT_CLI_HELP_H
#define HTH_CLIENT_CLI_HELP_H

#include "client/cli/cli.h"

// hth_help_print prints the help of a command, or of all; NULL: of all. HTH_CLI_OK.
int hth_help_print(const hth_cli *cli, const hth_command *command);

#endif
