// SPDX-License-Identifier: Apache-2.0
// Queries to the engine: a command's options and arguments become the query's. Two commands are
// nothing but a query: `hearth devices` and `hearth stats`.
#include "client/cli/cmd.h"

#include "client/embed.h"
#include "client/cli/progress.h"

#include <stdlib.h>
#include <string.h>

int hth_cmd_request_shown(hth_cli *cli, const char *what, json_t *arguments,
                          hearth_progress progress, void *ctx, char **json)
{
    char *text = json_dumps(arguments, JSON_COMPACT);
    json_decref(arguments);
    if (text == NULL) {
        return hth_cli_usage("the arguments are not valid UTF-8");
    }
    hearth_status s = hearth_query(cli->h, what, text, progress, ctx, json);
    free(text);
    return s == HEARTH_OK ? HTH_CLI_OK : HTH_CLI_ERROR;
}

int hth_cmd_request(hth_cli *cli, const char *what, json_t *arguments, hearth_progress progress,
                    char **json)
{
    hth_progress_bar bar;
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        json_decref(arguments);
        return rv;
    }
    hth_progress_init(&bar);
    rv = hth_cmd_request_shown(cli, what, arguments, progress, &bar, json);
    hth_progress_fini(&bar);
    return rv == HTH_CLI_ERROR ? hth_cli_error() : rv;
}

json_t *hth_cmd_arguments(const hth_cli *cli)
{
    json_t *q = json_object();
    if (cli->n_args > 0) {
        json_object_set_new(q, "model", json_string(cli->args[0]));
    }
    for (const hth_option *o = cli->command->options; o->name != NULL; o++) {
        json_t *v = json_object_get(cli->options, o->name);
        if (v != NULL) {
            json_object_set(q, o->name, v);
        }
    }
    return q;
}

int hth_cmd_query(hth_cli *cli, const char *what, json_t *arguments)
{
    char *json;
    int rv = hth_cmd_request(cli, what, arguments, hth_progress_show, &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(cli, json);
        hearth_free(json);
    }
    return rv;
}

int hth_cmd_query_itself(hth_cli *cli)
{
    return hth_cmd_query(cli, cli->command->name, hth_cmd_arguments(cli));
}

const hth_command hth_cmd_devices = {"devices",
                                     "",
                                     "list the devices and their memory",
                                     0,
                                     0,
                                     hth_cmd_no_options,
                                     .run = hth_cmd_query_itself,
                                     .makes_store = true};
const hth_command hth_cmd_stats = {"stats",
                                   "",
                                   "show memory by owner, and how often models are used",
                                   0,
                                   0,
                                   hth_cmd_no_options,
                                   .run = hth_cmd_query_itself};
