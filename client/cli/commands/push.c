// SPDX-License-Identifier: Apache-2.0
// hearth push: a version from one server to another.
#include "client/cli/cmd.h"

#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/token.h"

#include <inttypes.h>
#include <stdlib.h>

static int push_print(const hth_cli *cli, const hearth_import_report *report)
{
    json_t *doc = json_pack("{s:s, s:i, s:b, s:I, s:I, s:I}", "model", cli->args[0], "version",
                            report->result.version, "unchanged", report->result.unchanged,
                            "tensors_new", (json_int_t)report->result.tensors_new, "tensors_shared",
                            (json_int_t)report->result.tensors_shared, "moved",
                            (json_int_t)report->bytes_moved);
    char *text = json_dumps(doc, JSON_COMPACT);
    int rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
    free(text);
    json_decref(doc);
    return rv;
}

// push_open connects to the server that gets the model.
static int push_open(const hth_cli *cli, hearth **to)
{
    char token[HTH_TOKEN_TEXT];
    hearth_options o = {.ca_file = hth_cli_text(cli, "to-ca")};
    const char *file = hth_cli_text(cli, "to-token-file"), *url = hth_cli_text(cli, "to");
    if (url == NULL) {
        return hth_cli_usage("--to URL says which server gets the model");
    }
    if (file != NULL) { // the other token is for the other server only
        if (hth_token_load(file, token) != HTH_OK) {
            return hth_cli_error();
        }
        o.token = token;
    }
    return hearth_open(url, &o, to) == HEARTH_OK ? HTH_CLI_OK : hth_cli_error();
}

static int cmd_push(hth_cli *cli)
{
    hth_progress_bar bar;
    hearth_import_report r;
    hearth *to = NULL;
    char moved[32];
    int rv = push_open(cli, &to);
    rv = rv == HTH_CLI_OK ? hth_cli_connect(cli) : rv;
    if (rv == HTH_CLI_OK) {
        hth_progress_init(&bar);
        hearth_status s = hearth_push(cli->h, cli->args[0], to,
                                      json_is_true(json_object_get(cli->options, "no-wait")),
                                      hth_progress_show, &bar, &r);
        hth_progress_fini(&bar);
        rv = s == HEARTH_OK ? HTH_CLI_OK : hth_cli_error();
    }
    hearth_close(to);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    if (hth_cli_json(cli)) {
        return push_print(cli, &r);
    }
    printf("pushed %s: version %d there%s; tensors new %" PRIu64 ", shared %" PRIu64 "; %s moved\n",
           cli->args[0], r.result.version, r.result.unchanged ? " (unchanged)" : "",
           r.result.tensors_new, r.result.tensors_shared,
           hth_table_bytes((double)r.bytes_moved, moved, sizeof moved));
    return HTH_CLI_OK;
}

static const hth_option push_options[] = {
    {"to", HTH_OPTION_TEXT, "URL",
     "the server that gets it: tcp://HOST:PORT, tls+tcp://.., ipc://.."},
    {"to-token-file", HTH_OPTION_PATH, "FILE", "file with the token for that server"},
    {"to-ca", HTH_OPTION_PATH, "FILE", "PEM file of certificate authorities for that server"},
    {"no-wait", HTH_OPTION_FLAG, NULL,
     "return when the version is stored there, before it serves requests"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};
const hth_command hth_cmd_push = {
    "push",
    "NAME[:VERSION] --to URL [--to-token-file FILE] [--to-ca FILE] [--no-wait]",
    "copy a version to another server\n"
    "It becomes a new version of the same name there. Only tensors that the other server lacks are "
    "sent, through this machine.",
    1,
    1,
    push_options,
    .run = cmd_push};
