// SPDX-License-Identifier: Apache-2.0
// `hearth precision`: in what a model's convolutions and products compute.
#include "client/cli/cmd.h"

static int cmd_precision(hth_cli *cli)
{
    json_t *q = json_pack("{s:s}", "model", cli->args[0]);
    bool reset = json_is_true(json_object_get(cli->options, "reset"));
    if (cli->n_args > 1 && reset) {
        json_decref(q);
        return hth_cli_usage("a precision, or --reset");
    }
    if (cli->n_args > 1 || reset) {
        json_object_set_new(q, "precision", json_string(reset ? "" : cli->args[1]));
    }
    return hth_cmd_query(cli, "precision", q);
}

static const hth_option precision_options[] = {
    {"reset", HTH_OPTION_FLAG, NULL, "use the server's setting `precision`"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_precision = {
    "precision",
    "NAME [fp32|tf32|bf16] [--reset]",
    "show or set the precision in which a model computes\n"
    "It applies to convolutions and matrix products of all versions and is stored with the model: "
    "fp32 on\n"
    "every device, tf32 and bf16 on CUDA. The next request reloads the model.\n"
    "On processors with AMX, fp32 convolutions may be computed as three products of bf16 numbers\n"
    "each: 16 bits of every factor, sums in fp32. The error is measured for each layer and "
    "bounded\n"
    "by the setting `convsel.tolerance`, as Winograd's is: 1e-6 leaves both out where they exceed "
    "it.",
    1,
    2,
    precision_options,
    .run = cmd_precision};
