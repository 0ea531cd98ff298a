// SPDX-License-Identifier: Apache-2.0
// `hearth ls`: the versions in the store, and what the engine has of them.
#include "client/cli/cmd.h"

#include "client/cli/table.h"

#include <string.h>

// Checkpoints of training jobs are versions of models that nobody made.
static void ls_models(json_t *list)
{
    for (size_t i = json_array_size(list); i > 0; i--) {
        json_t *row = json_array_get(list, i - 1);
        if (json_is_true(json_object_get(row, "checkpoint"))) {
            json_array_remove(list, i - 1);
        } else {
            json_object_del(row, "checkpoint");
        }
    }
}

// ls_model_state is the state of a row of the engine's models, in a word; "": nothing.
static const char *ls_model_state(const json_t *json)
{
    const char *state = json_string_value(json_object_get(json, "state"));
    if (state == NULL) {
        return "";
    }
    if (strcmp(state, "UNAVAILABLE") == 0) {
        return "refused";
    }
    if (strcmp(state, "LOADING") == 0) {
        return "loading";
    }
    if (json_is_true(json_object_get(json, "pinned"))) {
        return "pinned";
    }
    return json_is_true(json_object_get(json, "loaded")) ? "loaded" : "";
}

// What the engine has of a version that is not damaged in the store: "pinned", "loaded", "loading",
// "refused", or nothing.
static const char *ls_state(const json_t *loaded, const json_t *row)
{
    const json_t *m;
    size_t i;
    json_array_foreach(json_object_get(loaded, "models"), i, m)
    {
        if (json_equal(json_object_get(m, "name"), json_object_get(row, "name")) &&
            json_equal(json_object_get(m, "version"), json_object_get(row, "version"))) {
            return ls_model_state(m);
        }
    }
    return "";
}

static int ls_states(const hth_cli *cli, json_t *list)
{
    char *json;
    json_t *row;
    size_t i;
    if (hearth_query(cli->h, "loaded", NULL, NULL, NULL, &json) != HEARTH_OK) {
        return hth_cli_error();
    }
    json_t *loaded = json_loads(json, 0, NULL);
    hearth_free(json);
    json_array_foreach(list, i, row)
    {
        bool damaged = json_is_true(json_object_get(row, "damaged"));
        json_object_del(row, "damaged");
        json_object_set_new(row, "state", json_string(damaged ? "damaged" : ls_state(loaded, row)));
    }
    json_decref(loaded);
    return HTH_CLI_OK;
}

// ls_owners has a table tell whose models are, where some are anybody's.
static void ls_owners(json_t *list)
{
    json_t *row;
    size_t i;
    bool any = false;
    json_array_foreach(list, i, row)
    {
        const json_t *owner = json_object_get(row, "owner");
        any = any || json_is_null(owner) || json_string_length(owner) > 0;
    }
    json_array_foreach(list, i, row)
    {
        if (!any) {
            json_object_del(row, "owner");
        } else if (json_is_null(json_object_get(row, "owner"))) {
            json_object_set_new(row, "owner", json_string("(another)"));
        }
    }
}

static void ls_aliases(const json_t *aliases)
{
    if (json_array_size(aliases) > 0) {
        printf("\n");
        hth_table_print(stdout, aliases);
    }
}

static int cmd_ls(hth_cli *cli)
{
    char *json;
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    if (hearth_query(cli->h, "models", NULL, NULL, NULL, &json) != HEARTH_OK) {
        return hth_cli_error();
    }
    json_t *doc = json_loads(json, 0, NULL), *list = json_object_get(doc, "models");
    hearth_free(json);
    if (!json_is_true(json_object_get(cli->options, "all"))) {
        ls_models(list);
    }
    if ((rv = ls_states(cli, list)) != HTH_CLI_OK) {
        json_decref(doc);
        return rv;
    }
    if (hth_cli_json(cli)) {
        rv = hth_cmd_print(cli, json_incref(doc));
    } else if (json_array_size(list) == 0) {
        printf("no models; `hearth import NAME FILE.onnx` adds one\n");
    } else {
        ls_owners(list);
        hth_table_print(stdout, list);
        ls_aliases(json_object_get(doc, "aliases"));
    }
    json_decref(doc);
    return rv;
}

static const hth_option ls_options[] = {
    {"all", HTH_OPTION_FLAG, NULL, "include checkpoints of training jobs"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_ls = {
    "ls",       "[--all]",    "list the models and their versions, and which are loaded", 0, 0,
    ls_options, .run = cmd_ls};
