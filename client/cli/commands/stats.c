// SPDX-License-Identifier: Apache-2.0
// `hearth stats`: the query of that name.
#include "client/cli/cmd.h"

const hth_command hth_cmd_stats = {"stats",
                                   "",
                                   "show memory by owner, and how often models are used",
                                   0,
                                   0,
                                   hth_cmd_no_options,
                                   .run = hth_cmd_query_itself};
