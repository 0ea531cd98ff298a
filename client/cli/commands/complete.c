// SPDX-License-Identifier: Apache-2.0
// `hearth __complete models|jobs|devices`: the names that a shell offers for a word, one a line.
// The shells' completions call it; it is in no list of commands.
#include "client/cli/cmd.h"
#include "client/terminal.h"

#include <stdio.h>
#include <string.h>

// What is asked, where the list is in the answer (NULL: it is the answer), and what the names are
// called in it.
static const struct {
    const char *what, *list, *key;
} complete_kinds[] = {
    {"models", "models", "name"}, {"jobs", NULL, "job"}, {"devices", "devices", "name"}};
#define COMPLETE_KINDS ((int)(sizeof complete_kinds / sizeof complete_kinds[0]))

// complete_id prints the number by which a job is known, too.
static void complete_id(const json_t *row)
{
    json_int_t id = json_integer_value(json_object_get(row, "id"));
    if (id > 0) {
        printf("%lld\n", (long long)id);
    }
}

// complete_print prints each name once.
static void complete_print(const json_t *list, const char *key)
{
    bool jobs = strcmp(key, "job") == 0;
    json_t *seen = json_object(), *row;
    size_t i;
    json_array_foreach((json_t *)list, i, row)
    {
        const char *name = json_string_value(json_object_get(row, key));
        bool hidden = json_is_true(json_object_get(row, "checkpoint"));
        if (name != NULL && !hidden && json_object_get(seen, name) == NULL) {
            printf("%s\n", name);
            json_object_set_new(seen, name, json_true());
        }
        if (jobs && name != NULL) {
            complete_id(row);
        }
    }
    json_decref(seen);
}

static int cmd_complete(hth_cli *cli)
{
    int k = 0;
    char *json;
    while (k < COMPLETE_KINDS && strcmp(complete_kinds[k].what, cli->args[0]) != 0) {
        k++;
    }
    if (k == COMPLETE_KINDS) {
        return hth_cli_usage("models, jobs or devices, not '%s'", cli->args[0]);
    }
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    if (hth_cmd_request_shown(cli, cli->args[0], json_object(), NULL, NULL, &json) != HTH_CLI_OK) {
        return hth_cli_error();
    }
    json_t *doc = hth_terminal_load(json);
    hearth_free(json);
    complete_print(complete_kinds[k].list != NULL ? json_object_get(doc, complete_kinds[k].list)
                                                  : doc,
                   complete_kinds[k].key);
    json_decref(doc);
    return HTH_CLI_OK;
}

const hth_command hth_cmd_complete = {
    "__complete",       "models|jobs|devices", "names for a shell", 1, 1,
    hth_cmd_no_options, .run = cmd_complete,   .timeout_ms = 1000};
