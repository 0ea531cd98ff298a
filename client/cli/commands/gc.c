// SPDX-License-Identifier: Apache-2.0
// `hearth gc`.
#include "client/cli/cmd.h"

#include "client/cli/table.h"

#include <inttypes.h>

static int cmd_gc(hth_cli *cli)
{
    uint64_t files, bytes;
    char text[32];
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    if (hearth_gc(cli->h, &files, &bytes) != HEARTH_OK) {
        return hth_cli_error();
    }
    if (hth_cli_json(cli)) {
        return hth_cmd_print(
            cli, json_pack("{s:I, s:I}", "files", (json_int_t)files, "bytes", (json_int_t)bytes));
    }
    printf("removed %" PRIu64 " files, %s\n", files,
           hth_table_bytes((double)bytes, text, sizeof text));
    return HTH_CLI_OK;
}

const hth_command hth_cmd_gc = {
    "gc",         "", "free tensors of the store that no model uses", 0, 0, hth_cmd_no_options,
    .run = cmd_gc};
