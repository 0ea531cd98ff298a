// SPDX-License-Identifier: Apache-2.0
// `hearth load`.
#include "client/cli/cmd.h"

static int cmd_load(hth_cli *cli)
{
    bool pin = json_is_true(json_object_get(cli->options, "pin"));
    bool unpin = json_is_true(json_object_get(cli->options, "unpin"));
    return pin && unpin ? hth_cli_usage("--pin or --unpin, not both")
                        : hth_cmd_query(cli, "load", hth_cmd_arguments(cli));
}

static const hth_option load_options[] = {
    OPTION_ON,
    {"pin", HTH_OPTION_FLAG, NULL, "pin its weights: they are never evicted"},
    {"unpin", HTH_OPTION_FLAG, NULL, "unpin its weights"},
    {"no-wait", HTH_OPTION_FLAG, NULL,
     "fail instead of waiting for memory that jobs or pinned models hold"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_load = {"load",
                                  "NAME[:VERSION] [--pin|--unpin] [--no-wait]",
                                  "load a model onto the device\n"
                                  "Returns when its weights are resident; if there is a newer "
                                  "version, when that one serves requests.\n"
                                  "Requests load models automatically; the least recently used are "
                                  "evicted when others need the memory.",
                                  1,
                                  1,
                                  load_options,
                                  .run = cmd_load};
