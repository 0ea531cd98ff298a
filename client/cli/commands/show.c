// SPDX-License-Identifier: Apache-2.0
// `hearth show`: one model.
#include "client/cli/cmd.h"

static int cmd_show(hth_cli *cli)
{
    return hth_cmd_query(cli, "model", hth_cmd_about(cli));
}

const hth_command hth_cmd_show = {"show",
                                  "NAME[:VERSION]",
                                  "describe a model: inputs, outputs, size",
                                  1,
                                  1,
                                  hth_cmd_no_options,
                                  .run = cmd_show};
