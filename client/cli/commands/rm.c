// SPDX-License-Identifier: Apache-2.0
// `hearth rm`: on a terminal it asks first, and removes only what it has asked about.
#include "client/cli/cmd.h"

#include "base/utf8.h"
#include "client/cli/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RM_LISTED 8 // versions that are named before they are removed
#define RM_TEXT   2048

// cmd_done says what was done, or fails.
static int cmd_done(const hth_cli *cli, hearth_status s, const char *what, const char *detail)
{
    if (s != HEARTH_OK) {
        return hth_cli_error();
    }
    if (hth_cli_json(cli)) {
        return hth_cmd_print(cli, json_pack("{s:s, s:s}", what, cli->args[0], "detail", detail));
    }
    printf("%s %s%s%s\n", what, cli->args[0], detail[0] != 0 ? ": " : "", detail);
    return HTH_CLI_OK;
}

// rm_name is the length of NAME of NAME[:VERSION]; *version 0: all of them.
static size_t rm_name(const char *text, int64_t *version)
{
    size_t n = strcspn(text, ":");
    *version = text[n] == ':' ? strtoll(text + n + 1, NULL, 10) : 0;
    return n;
}

// rm_rows asks for the rows of `ls` that would go.
static int rm_rows(const hth_cli *cli, json_t **out)
{
    char *json;
    size_t i, n;
    int64_t version;
    if (hearth_query(cli->h, "models", NULL, NULL, NULL, &json) != HEARTH_OK) {
        return hth_cli_error();
    }
    json_t *row, *doc = json_loads(json, 0, NULL), *rows = json_array();
    hearth_free(json);
    n = rm_name(cli->args[0], &version);
    json_array_foreach(json_object_get(doc, "models"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (name != NULL && strlen(name) == n && strncmp(name, cli->args[0], n) == 0 &&
            (version == 0 || json_integer_value(json_object_get(row, "version")) == version)) {
            json_array_append(rows, row);
        }
    }
    json_decref(doc);
    *out = rows;
    return HTH_CLI_OK;
}

// rm_what says what would go: "digits:1, digits:2 (2 versions, 243.4 KiB that no other has)".
static void rm_what(const json_t *rows, char *out, size_t cap)
{
    size_t at = 0, i, n = json_array_size(rows);
    json_int_t own = 0;
    json_t *row;
    char bytes[32];
    out[0] = 0;
    json_array_foreach((json_t *)rows, i, row)
    {
        own += json_integer_value(json_object_get(row, "own_bytes"));
        if (i < RM_LISTED && at < cap) {
            at += (size_t)snprintf(out + at, cap - at, "%s%s:%" PRId64, i > 0 ? ", " : "",
                                   json_string_value(json_object_get(row, "name")),
                                   (int64_t)json_integer_value(json_object_get(row, "version")));
        }
    }
    if (at < cap) {
        const char *more = n > RM_LISTED ? ", .." : "";
        snprintf(out + at, cap - at, "%s (%zu version%s, %s not shared)", more, n,
                 n == 1 ? "" : "s", hth_table_bytes((double)own, bytes, sizeof bytes));
    }
    hth_utf8_plain(out);
}

// rm_asks tells whether somebody is there to answer.
static bool rm_asks(const hth_cli *cli)
{
    return !json_is_true(json_object_get(cli->options, "yes")) && isatty(STDIN_FILENO) == 1 &&
           isatty(STDERR_FILENO) == 1;
}

static bool rm_confirmed(const char *what)
{
    char answer[16];
    fprintf(stderr, "remove %s? [y/N] ", what);
    fflush(stderr);
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}

// rm_unchanged looks again, after an answer that may have taken its time.
static int rm_unchanged(const hth_cli *cli, const json_t *rows)
{
    json_t *now = NULL;
    int rv = rm_rows(cli, &now);
    if (rv == HTH_CLI_OK && !json_equal(now, rows)) {
        fprintf(stderr,
                "hearth: the versions of '%s' have changed meanwhile; nothing was removed\n",
                cli->args[0]);
        rv = HTH_CLI_ERROR;
    }
    json_decref(now);
    return rv;
}

static int cmd_rm(hth_cli *cli)
{
    char what[RM_TEXT];
    json_t *rows = NULL;
    int rv = hth_cli_connect(cli);
    rv = rv == HTH_CLI_OK ? rm_rows(cli, &rows) : rv;
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    rm_what(rows, what, sizeof what);
    if (json_array_size(rows) > 0 && rm_asks(cli)) {
        if (!rm_confirmed(what)) {
            fprintf(stderr, "hearth: nothing was removed\n");
            rv = HTH_CLI_ERROR;
        } else {
            rv = rm_unchanged(cli, rows);
        }
    }
    json_decref(rows);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    char detail[RM_TEXT + 80];
    snprintf(detail, sizeof detail, "%s; `hearth gc` frees the tensors that no other model uses",
             what);
    return cmd_done(cli, hearth_remove(cli->h, cli->args[0]), "removed", detail);
}

static const hth_option rm_options[] = {
    {"yes", HTH_OPTION_FLAG, NULL, "do not ask for confirmation"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_rm = {"rm",
                                "NAME[:VERSION] [--yes]",
                                "remove a version, or all versions, of a model\n"
                                "On a terminal it lists the versions and their sizes and asks "
                                "first; otherwise it does not ask.",
                                1,
                                1,
                                rm_options,
                                .run = cmd_rm,
                                .destroys = true};
