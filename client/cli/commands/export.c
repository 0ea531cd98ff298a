// SPDX-License-Identifier: Apache-2.0
// `hearth export`: a version becomes a file.
#include "client/cli/cmd.h"

#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/export_format.h"

static int cmd_export(hth_cli *cli)
{
    hth_export_format format;
    hth_progress_bar bar;
    hearth_export_report r;
    char bytes[32];
    if (hth_export_format_of(cli->args[1], &format) != HTH_OK) { // before anything is opened
        return hth_cli_error();
    }
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    hth_progress_init(&bar);
    hearth_status s =
        hearth_export_with(cli->h, cli->args[0], cli->args[1], hth_progress_show, &bar, &r);
    hth_progress_fini(&bar);
    if (s != HEARTH_OK) {
        return hth_cli_error();
    }
    if (hth_cli_json(cli)) {
        return hth_cmd_print(cli, json_pack("{s:I, s:I}", "bytes", (json_int_t)r.bytes, "moved",
                                            (json_int_t)r.moved));
    }
    printf("exported %s: %s, %s\n", cli->args[0], cli->args[1],
           hth_table_bytes((double)r.bytes, bytes, sizeof bytes));
    return HTH_CLI_OK;
}

const hth_command hth_cmd_export = {"export",
                                    "NAME[:VERSION] FILE.onnx|FILE.safetensors",
                                    "write a version to a file\n"
                                    "FILE.onnx: the model, as it is served, for any ONNX runtime. "
                                    "FILE.safetensors: its tensors.",
                                    2,
                                    2,
                                    hth_cmd_no_options,
                                    .run = cmd_export};
