// SPDX-License-Identifier: Apache-2.0
// `hearth unload`.
#include "client/cli/cmd.h"

static int cmd_unload(hth_cli *cli)
{
    return hth_cmd_query(cli, "unload", json_pack("{s:s}", "model", cli->args[0]));
}

const hth_command hth_cmd_unload = {
    "unload",
    "NAME[:VERSION]",
    "unload a model from the device\n"
    "Returns when its memory is free. The next request loads it again.",
    1,
    1,
    hth_cmd_no_options,
    .run = cmd_unload};
