// SPDX-License-Identifier: Apache-2.0
// client/cli/offline.h - what is planned from files alone, without a server, store or device.
#ifndef HTH_CLIENT_CLI_OFFLINE_H
#define HTH_CLIENT_CLI_OFFLINE_H

#include "client/cli/cli.h"

// hth_offline_is says whether all that a command plans comes in files: --problem, or FILE.onnx and
// --profile.
bool hth_offline_is(const hth_cli *cli);
// hth_offline_answer answers the command (taking `arguments`); *json is freed by hearth_free. It
// returns an exit code, and errors are printed.
int hth_offline_answer(const hth_cli *cli, json_t *arguments, char **json);
// hth_offline_missing complains that there is neither a problem nor a model's name.
int hth_offline_missing(const hth_cli *cli);

#endif
