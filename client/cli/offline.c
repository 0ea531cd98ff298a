// SPDX-License-Identifier: Apache-2.0
// What is planned from files alone: a problem, or a model's file for the device of a profile.
#include "client/cli/offline.h"

#include "base/alloc.h"
#include "client/cli/cmd.h"
#include "client/documents.h"
#include "client/embed.h"

#include <stdlib.h>
#include <string.h>

bool hth_offline_is(const hth_cli *cli)
{
    const char *model = cli->n_args > 0 ? cli->args[0] : "";
    size_t n = strlen(model);
    return hth_cli_text(cli, "problem") != NULL ||
           (hth_cli_text(cli, "profile") != NULL && n > 5 && strcmp(model + n - 5, ".onnx") == 0);
}

int hth_offline_missing(const hth_cli *cli)
{
    return hth_cli_usage("a model or --problem FILE is missing\n"
                         "usage: hearth %s %s",
                         cli->command->name, cli->command->usage);
}

// offline_usage complains about options that contradict each other.
static int offline_usage(const hth_cli *cli)
{
    bool problem = hth_cli_text(cli, "problem") != NULL;
    bool model = cli->n_args > 0 || hth_cli_text(cli, "profile") != NULL;
    bool on = hth_cli_text(cli, "on") != NULL;
    if (problem && (model || on || hth_cli_text(cli, "write-profile") != NULL)) {
        return hth_cli_usage("--problem FILE replaces model and device: give neither");
    }
    return on ? hth_cli_usage("--profile FILE is the device of a model file: give no --on")
              : HTH_CLI_OK;
}

static hth_err offline_query(const hth_cli *cli, const char *text, char **json)
{
    hth_documents d;
    char *changed = NULL;
    hth_err err = hth_documents_read(cli->command->name, text, &d, &changed);
    if (err == HTH_OK) {
        err =
            hth_embed_data(cli->command == &hth_cmd_curve, changed != NULL ? changed : text, json);
    }
    if (err == HTH_OK) {
        err = hth_documents_write(&d, *json, json);
    }
    hth_documents_fini(&d);
    hth_free(changed);
    return err;
}

int hth_offline_answer(const hth_cli *cli, json_t *arguments, char **json)
{
    char *text = json_dumps(arguments, JSON_COMPACT);
    json_decref(arguments);
    int rv = offline_usage(cli);
    *json = NULL;
    if (rv == HTH_CLI_OK && text == NULL) {
        rv = hth_cli_usage("the arguments are not valid UTF-8");
    }
    if (rv == HTH_CLI_OK && offline_query(cli, text, json) != HTH_OK) {
        hth_free(*json);
        rv = hth_cli_error();
    }
    free(text);
    return rv;
}
