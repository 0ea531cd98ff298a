// SPDX-License-Identifier: Apache-2.0
// `hearth quota`: how much of its processors' time a CPU device uses.
#include "client/cli/cmd.h"

static int cmd_quota(hth_cli *cli)
{
    return hth_cmd_query(cli, "device_quota",
                         json_pack("{s:s, s:s}", "on", cli->args[0], "quota", cli->args[1]));
}

const hth_command hth_cmd_quota = {"quota",
                                   "DEVICE PERCENT",
                                   "set how much of its processors' time a CPU device uses\n"
                                   "`hearth quota cpu:1 50%`; 100% ends it. It holds until the "
                                   "device's engine starts again, which\n"
                                   "takes the quota of --device.",
                                   2,
                                   2,
                                   hth_cmd_no_options,
                                   .run = cmd_quota};
