// SPDX-License-Identifier: Apache-2.0
// `hearth devices`: the query of that name.
#include "client/cli/cmd.h"

const hth_command hth_cmd_devices = {"devices",
                                     "",
                                     "list the devices and their memory",
                                     0,
                                     0,
                                     hth_cmd_no_options,
                                     .run = hth_cmd_query_itself,
                                     .makes_store = true};
