// SPDX-License-Identifier: Apache-2.0
// `hearth data`: datasets of the store.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "client/cli/correct.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/passed_files.h"
#include "client/terminal.h"

#include <string.h>

static int data_put(hth_cli *cli)
{
    char *json, *path;
    json_t *q = hth_cmd_arguments(cli);
    if (hth_passed_path(cli->args[2], &path) != HTH_OK) {
        json_decref(q);
        return hth_cli_error();
    }
    json_object_del(q, "model");
    json_object_set_new(q, "name", json_string(cli->args[1]));
    json_object_set_new(q, "data", json_string(path));
    hth_free(path);
    int rv = hth_cmd_request(cli, "dataset_put", q, hth_progress_show, &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(cli, json);
        hearth_free(json);
    }
    return rv;
}

// data_rows is the list as tables want it: the tensors in one text.
static json_t *data_rows(const json_t *doc)
{
    size_t i, k;
    json_t *row, *t, *list = json_deep_copy(json_object_get(doc, "datasets"));
    json_array_foreach(list, i, row)
    {
        char text[200] = "";
        json_array_foreach(json_object_get(row, "tensors"), k, t)
        {
            char *shape = json_dumps(json_object_get(t, "shape"), JSON_COMPACT);
            size_t at = strlen(text);
            const char *comma = at > 0 ? ", " : "";
            snprintf(text + at, sizeof text - at, "%s%s %s %s", comma,
                     json_string_value(json_object_get(t, "name")),
                     json_string_value(json_object_get(t, "dtype")), shape != NULL ? shape : "");
            free(shape);
        }
        json_object_set_new(row, "tensors", json_string(text));
        json_object_del(row, "classes");
        json_object_del(row, "created_ns");
    }
    return list;
}

static int data_ls(hth_cli *cli)
{
    char *json;
    int rv = hth_cmd_request(cli, "datasets", json_object(), NULL, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    json_t *doc = hth_terminal_load(json), *rows = data_rows(doc);
    char *text = hth_cli_json(cli) ? NULL : json_dumps(rows, JSON_COMPACT);
    rv = hth_cli_print(cli, text != NULL ? text : json);
    free(text);
    hearth_free(json);
    json_decref(rows);
    json_decref(doc);
    return rv;
}

static int data_rm(hth_cli *cli)
{
    json_t *q = json_pack("{s:s}", "name", cli->args[1]);
    const char *tenant = hth_cli_text(cli, "tenant");
    if (tenant != NULL) {
        json_object_set_new(q, "tenant", json_string(tenant));
    }
    return hth_cmd_query(cli, "dataset_rm", q);
}

static int cmd_data(hth_cli *cli)
{
    static const struct {
        const char *word;
        int n;
        int (*run)(hth_cli *cli);
    } does[] = {{"put", 3, data_put}, {"ls", 1, data_ls}, {"rm", 2, data_rm}};
    for (size_t i = 0; i < sizeof does / sizeof *does; i++) {
        if (strcmp(cli->args[0], does[i].word) == 0 && cli->n_args == does[i].n) {
            return does[i].run(cli);
        }
    }
    return hth_correct_action(cli, (const char *const[]){"put", "ls", "rm", NULL});
}

static const hth_option data_options[] = {
    {"label", HTH_OPTION_TEXT, "COLUMN",
     "put, of a CSV: the column that is y (y, label or target)"},
    {"size", HTH_OPTION_TEXT, "HxW", "put, of images: resample them to this height and width"},
    {"tenant", HTH_OPTION_TEXT, "TENANT", "rm, for an admin: whose dataset it is"},
    OPTION_END};

const hth_command hth_cmd_data = {
    "data",
    "put NAME FILE|FOLDER\n"
    "       hearth data ls\n"
    "       hearth data rm NAME",
    "store datasets, list or remove them\n"
    "`hearth train --data NAME` trains on a stored dataset. It is kept by content: what the store "
    "has\n"
    "already moves no bytes. It belongs to who stored it; others neither see nor use it.",
    1,
    3,
    data_options,
    .run = cmd_data,
    .makes_store = true,
    .timeout_ms = INT32_MAX};
