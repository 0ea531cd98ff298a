// SPDX-License-Identifier: Apache-2.0
// client/cli/correct.h - what a command or an option that does not exist may have meant: a misspelt
// one, or the word of another program for the same thing. `rm` is never proposed: what a guess
// removes is gone.
#ifndef HTH_CLIENT_CLI_CORRECT_H
#define HTH_CLIENT_CLI_CORRECT_H

#include "client/cli/cli.h"

// Both print one sentence and return HTH_CLI_USAGE. `name` of an option is without its dashes, and
// may go on with "=VALUE".
int hth_correct_command(const hth_cli *cli, const char *name);
int hth_correct_option(const hth_cli *cli, const char *name);
// hth_correct_action is the same for the first argument of a command whose arguments begin with one
// of `actions` (NULL-terminated): unknown, or known with the wrong number of others.
int hth_correct_action(const hth_cli *cli, const char *const *actions);
// hth_correct_model_file is for a command that failed: it says how a file becomes a model where one
// was given as a model's name.
void hth_correct_model_file(const hth_cli *cli);
// hth_correct_dash is the same for an option with a single dash, `text`.
int hth_correct_dash(const hth_cli *cli, const char *text);

#endif
