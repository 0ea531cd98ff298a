// SPDX-License-Identifier: Apache-2.0
// Makes tokens. No server is asked: who may write the file decides who gets in.
#include "client/cli/cmd.h"

#include "client/cli/correct.h"
#include "client/token.h"

#include <string.h>

static int cmd_token(hth_cli *cli)
{
    char token[HTH_TOKEN_TEXT];
    const char *roles = hth_cli_text(cli, "roles"), *file = hth_cli_text(cli, "file");
    if (strcmp(cli->args[0], "new") != 0 || cli->n_args < 2) {
        return hth_correct_action(cli, (const char *const[]){"new", NULL});
    }
    if (roles == NULL || file == NULL) {
        return hth_cli_usage("token new needs --roles and --file");
    }
    if (hth_token_new(file, cli->args[1], roles, token) != HTH_OK) {
        return hth_cli_error();
    }
    printf("%s\n", token);
    fprintf(stderr, "hearth: this token is shown only once; hearthd accepts it after a SIGHUP\n");
    return HTH_CLI_OK;
}

static const hth_option token_options[] = {
    {"roles", HTH_OPTION_TEXT, "ROLE,..", "its roles: infer, model, job; admin: all"},
    {"file", HTH_OPTION_PATH, "FILE", "the server's auth.tokens_file; created if absent"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL}};

const hth_command hth_cmd_token = {"token",
                                   "new NAME --roles ROLE,.. --file FILE",
                                   "create a token for a server on the network\n"
                                   "The token is printed once; the file stores its SHA-256. Remove "
                                   "the line to revoke it. hearthd rereads the file on SIGHUP.",
                                   1,
                                   2,
                                   token_options,
                                   .run = cmd_token};
