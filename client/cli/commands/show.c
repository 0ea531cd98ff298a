// SPDX-License-Identifier: Apache-2.0
// `hearth show`: one model.
#include "client/cli/cmd.h"

#include "base/utf8.h"
#include "client/terminal.h"

#include <string.h>

#define SHOW_COLUMNS 100 // of a value of the metadata, for people: lists of classes are long

// show_short cuts long values, and takes the metadata out where there are none. Of a value that is
// no text, which hearthd does not send, nothing is cut.
static void show_short(json_t *doc)
{
    json_t *metadata = json_object_get(doc, "metadata"), *v;
    const char *key;
    void *next;
    json_object_foreach_safe(metadata, next, key, v)
    {
        const char *text = json_string_value(v);
        size_t n = text != NULL ? hth_utf8_fit(text, SHOW_COLUMNS) : 0;
        if (text != NULL && text[n] != 0) {
            json_object_set_new(metadata, key, json_sprintf("%.*s ..", (int)n, text));
        }
    }
    if (json_object_size(metadata) == 0) {
        json_object_del(doc, "metadata");
    }
}

static int cmd_show(hth_cli *cli)
{
    json_t *q = hth_cmd_about(cli);
    char *json;
    json_object_set_new(q, "metadata", json_true());
    if (hth_cli_json(cli)) {
        return hth_cmd_query(cli, "model", q);
    }
    int rv = hth_cmd_request(cli, "model", q, NULL, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    json_t *doc = hth_terminal_load(json);
    hearth_free(json);
    show_short(doc);
    return hth_cmd_print(cli, doc);
}

const hth_command hth_cmd_show = {"show",
                                  "NAME[:VERSION]",
                                  "describe a model: inputs, outputs, size, metadata of its file",
                                  1,
                                  1,
                                  hth_cmd_no_options,
                                  .run = cmd_show};
