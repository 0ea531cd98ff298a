// SPDX-License-Identifier: Apache-2.0
// `hearth alias`: second names of models.
#include "client/cli/cmd.h"

#include "client/cli/table.h"
#include "client/terminal.h"

#include <stdlib.h>
#include <string.h>

static int alias_list(hth_cli *cli)
{
    char *json;
    int rv = hth_cmd_request(cli, "models", json_object(), NULL, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    json_t *doc = json_loads(json, 0, NULL), *list = json_object_get(doc, "aliases");
    hearth_free(json);
    if (hth_cli_json(cli)) {
        json_t *only = json_pack("{s:O?}", "aliases", list);
        char *text = only != NULL ? json_dumps(only, JSON_COMPACT) : NULL;
        rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
        free(text);
        json_decref(only);
    } else if (json_array_size(list) == 0) {
        printf("no aliases; `hearth alias ALIAS NAME[:VERSION]` creates one\n");
    } else {
        hth_table_print(stdout, list);
    }
    json_decref(doc);
    return rv;
}

// alias_say tells what became of an alias.
static int alias_say(const hth_cli *cli, const char *json)
{
    if (hth_cli_json(cli)) {
        return hth_cli_print(cli, json);
    }
    json_t *doc = json_loads(json, 0, NULL);
    hth_terminal_plain(doc);
    const char *alias = json_string_value(json_object_get(doc, "alias"));
    const char *model = json_string_value(json_object_get(doc, "model"));
    const char *before = json_string_value(json_object_get(doc, "before"));
    const char *was = before != NULL ? ", before: " : "";
    if (model != NULL) {
        printf("%s -> %s%s%s\n", alias, model, was, before != NULL ? before : "");
    } else {
        printf("removed %s%s%s\n", alias, was, before != NULL ? before : "");
    }
    json_decref(doc);
    return HTH_CLI_OK;
}

static int cmd_alias(hth_cli *cli)
{
    bool remove = json_is_true(json_object_get(cli->options, "rm"));
    bool no_wait = json_is_true(json_object_get(cli->options, "no-wait"));
    char *json;
    if (cli->n_args == 0 && !remove && !no_wait) {
        return alias_list(cli);
    }
    if (cli->n_args != (remove ? 1 : 2)) {
        return hth_cli_usage("usage: hearth alias [ALIAS NAME[:VERSION] | --rm ALIAS]");
    }
    json_t *args = remove ? json_pack("{s:s, s:b}", "alias", cli->args[0], "remove", 1)
                          : json_pack("{s:s, s:s, s:b}", "alias", cli->args[0], "model",
                                      cli->args[1], "no-wait", no_wait);
    int rv = hth_cmd_request(cli, "alias", args, NULL, &json);
    if (rv == HTH_CLI_OK) {
        rv = alias_say(cli, json);
        hearth_free(json);
    } else if (!remove && strcmp(cli->args[0], "rm") == 0) { // as of datasets
        fprintf(stderr, "hearth: `hearth alias --rm %s` removes an alias\n", cli->args[1]);
    }
    return rv;
}

static const hth_option alias_options[] = {
    {"rm", HTH_OPTION_FLAG, NULL, "remove the alias"},
    {"no-wait", HTH_OPTION_FLAG, NULL, "move the alias before its new target is loaded"},
    OPTION_END,
};
const hth_command hth_cmd_alias = {
    "alias",
    "[ALIAS NAME[:VERSION] | --rm ALIAS]",
    "list aliases, or create, move or remove one\n"
    "An alias is a second name for a model or for one version of it. Requests for the alias go to "
    "its current target. Moving it is atomic, and so is moving it back. The new target is loaded "
    "first.",
    0,
    2,
    alias_options,
    .run = cmd_alias};
