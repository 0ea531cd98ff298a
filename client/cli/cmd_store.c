// SPDX-License-Identifier: Apache-2.0
// The commands about what the store holds.
#include "client/cli/cmd.h"

#include "base/utf8.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/export_format.h"
#include "client/terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RM_LISTED 8 // versions that are named before they are removed
#define RM_TEXT   2048

const hth_option hth_cmd_no_options[] = {{NULL, HTH_OPTION_FLAG, NULL, NULL}};

// cmd_print prints a document made here and frees it.
static int cmd_print(const hth_cli *cli, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    int rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
    free(text);
    json_decref(doc);
    return rv;
}

static void import_print(const hth_cli *cli, const hearth_import_report *report)
{
    const hearth_import_result *r = &report->result;
    char fresh[32], shared[32], repaired[32];
    printf("%s:%d%s\ntensors  new %" PRIu64 ", shared %" PRIu64 "\nbytes    new %s, shared %s\n",
           cli->args[0], r->version, r->unchanged ? "  (unchanged: no new version)" : "",
           r->tensors_new, r->tensors_shared,
           hth_table_bytes((double)r->bytes_new, fresh, sizeof fresh),
           hth_table_bytes((double)r->bytes_shared, shared, sizeof shared));
    if (report->tensors_repaired > 0) {
        printf("repaired %" PRIu64 " tensors that were damaged in the store, %s\n",
               report->tensors_repaired,
               hth_table_bytes((double)report->bytes_repaired, repaired, sizeof repaired));
    }
    if (report->record_repaired) {
        printf("repaired the graph, which was damaged in the store\n");
    }
}

// store_about is the question about a model that does not have it loaded.
static json_t *store_about(const hth_cli *cli)
{
    return json_pack("{s:s, s:b}", "model", cli->args[0], "keep", 0);
}

// import_serves asks what the server found out about the version that answers now; NULL: another
// one does, or nobody knows.
static json_t *import_serves(const hth_cli *cli, int version)
{
    char *json, *text;
    json_t *args = store_about(cli), *doc = NULL;
    text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
    if (text != NULL && hearth_query(cli->h, "model", text, NULL, NULL, &json) == HEARTH_OK) {
        doc = json_loads(json, 0, NULL);
        hearth_free(json);
    }
    if (json_integer_value(json_object_get(doc, "version")) != version) {
        json_decref(doc);
        doc = NULL;
    }
    free(text);
    json_decref(args);
    return doc;
}

// import_joins says, where a model's requests could have shared runs but may not, why: in the
// document, or to the user, who perhaps named a largest batch.
static void import_joins(const hth_cli *cli, int version, json_t *doc)
{
    json_t *m = import_serves(cli, version);
    json_t *independent = json_object_get(m, "independent");
    json_t *why = json_object_get(m, "dependent_because");
    int64_t most = hth_cli_int(cli, "max-batch", -1);
    if (doc == NULL) {
        hth_terminal_plain(m);
    }
    if (doc != NULL && independent != NULL) {
        json_object_set(doc, "independent", independent);
    }
    if (doc != NULL && why != NULL) {
        json_object_set(doc, "dependent_because", why);
    } else if (why != NULL && most > 0) {
        fprintf(stderr, "hearth: --max-batch %lld only limits requests; they are not batched: %s\n",
                (long long)most, json_string_value(why));
    } else if (why != NULL && most < 0) {
        printf("requests are not batched: %s\n", json_string_value(why));
    }
    json_decref(m);
}

// import_swapped tells whether the file stands where the name should.
static bool import_swapped(const hth_cli *cli)
{
    struct stat file;
    return stat(cli->args[0], &file) == 0 && S_ISREG(file.st_mode) &&
           access(cli->args[1], F_OK) != 0;
}

static int cmd_import(hth_cli *cli)
{
    hth_progress_bar bar;
    hearth_import_report report;
    const hearth_import_result *r = &report.result;
    hearth_import_options options = {json_is_true(json_object_get(cli->options, "no-wait"))};
    if (import_swapped(cli)) {
        return hth_cli_usage("'%s' is a file and '%s' is not: the name comes first\n"
                             "usage: hearth import NAME FILE.onnx",
                             cli->args[0], cli->args[1]);
    }
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    hth_progress_init(&bar);
    hearth_status s = hearth_import_with(cli->h, cli->args[0], cli->args[1],
                                         (int)hth_cli_int(cli, "max-batch", -1), &options,
                                         hth_progress_show, &bar, &report);
    hth_progress_fini(&bar);
    if (s != HEARTH_OK) {
        return hth_cli_error();
    }
    if (!hth_cli_json(cli)) {
        import_print(cli, &report);
        if (!options.no_wait) {
            import_joins(cli, r->version, NULL);
        }
        return HTH_CLI_OK;
    }
    json_t *doc = json_pack(
        "{s:s, s:i, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I}", "model", cli->args[0], "version",
        r->version, "unchanged", r->unchanged, "tensors_new", (json_int_t)r->tensors_new,
        "tensors_shared", (json_int_t)r->tensors_shared, "bytes_new", (json_int_t)r->bytes_new,
        "bytes_shared", (json_int_t)r->bytes_shared, "tensors_repaired",
        (json_int_t)report.tensors_repaired, "bytes_repaired", (json_int_t)report.bytes_repaired,
        "graph_repaired", report.record_repaired, "moved", (json_int_t)report.bytes_moved);
    if (!options.no_wait) {
        import_joins(cli, r->version, doc);
    }
    return cmd_print(cli, doc);
}

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
        rv = cmd_print(cli, json_incref(doc));
    } else if (json_array_size(list) == 0) {
        printf("no models; `hearth import NAME FILE.onnx` adds one\n");
    } else {
        hth_table_print(stdout, list);
        ls_aliases(json_object_get(doc, "aliases"));
    }
    json_decref(doc);
    return rv;
}

static int cmd_show(hth_cli *cli)
{
    return hth_cmd_query(cli, "model", store_about(cli));
}

// cmd_done says what was done, or fails.
static int cmd_done(const hth_cli *cli, hearth_status s, const char *what, const char *detail)
{
    if (s != HEARTH_OK) {
        return hth_cli_error();
    }
    if (hth_cli_json(cli)) {
        return cmd_print(cli, json_pack("{s:s, s:s}", what, cli->args[0], "detail", detail));
    }
    printf("%s %s%s%s\n", what, cli->args[0], detail[0] != 0 ? ": " : "", detail);
    return HTH_CLI_OK;
}

// ---- rm

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
        snprintf(out + at, cap - at, "%s (%zu version%s, %s not shared)",
                 n > RM_LISTED ? ", .." : "", n, n == 1 ? "" : "s",
                 hth_table_bytes((double)own, bytes, sizeof bytes));
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

static int cmd_export(hth_cli *cli)
{
    hth_export_format format;
    hth_progress_bar bar;
    hearth_export_report r;
    char bytes[32];
    if (hth_export_format_of(cli->args[1], &format) != HTH_OK) { // before anything is opened
        return hth_cli_error();
    }
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    hth_progress_init(&bar);
    hearth_status s =
        hearth_export_with(cli->h, cli->args[0], cli->args[1], hth_progress_show, &bar, &r);
    hth_progress_fini(&bar);
    if (s != HEARTH_OK) {
        return hth_cli_error();
    }
    if (hth_cli_json(cli)) {
        return cmd_print(cli, json_pack("{s:I, s:I}", "bytes", (json_int_t)r.bytes, "moved",
                                        (json_int_t)r.moved));
    }
    printf("exported %s: %s, %s\n", cli->args[0], cli->args[1],
           hth_table_bytes((double)r.bytes, bytes, sizeof bytes));
    return HTH_CLI_OK;
}

static int cmd_load(hth_cli *cli)
{
    bool pin = json_is_true(json_object_get(cli->options, "pin"));
    bool unpin = json_is_true(json_object_get(cli->options, "unpin"));
    return pin && unpin ? hth_cli_usage("--pin or --unpin, not both")
                        : hth_cmd_query(cli, "load", hth_cmd_arguments(cli));
}

static int cmd_unload(hth_cli *cli)
{
    return hth_cmd_query(cli, "unload", json_pack("{s:s}", "model", cli->args[0]));
}

static int cmd_gc(hth_cli *cli)
{
    uint64_t files, bytes;
    char text[32];
    int rv = hth_cli_connect(cli);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    if (hearth_gc(cli->h, &files, &bytes) != HEARTH_OK) {
        return hth_cli_error();
    }
    if (hth_cli_json(cli)) {
        return cmd_print(
            cli, json_pack("{s:I, s:I}", "files", (json_int_t)files, "bytes", (json_int_t)bytes));
    }
    printf("removed %" PRIu64 " files, %s\n", files,
           hth_table_bytes((double)bytes, text, sizeof text));
    return HTH_CLI_OK;
}

static const hth_option ls_options[] = {
    {"all", HTH_OPTION_FLAG, NULL, "include checkpoints of training jobs"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};
static const hth_option import_options[] = {
    {"max-batch", HTH_OPTION_INT, "N", "max batch size; 0: no batching"},
    {"no-wait", HTH_OPTION_FLAG, NULL,
     "return when the version is stored, before it serves requests"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

static const hth_option load_options[] = {
    OPTION_ON,
    {"pin", HTH_OPTION_FLAG, NULL, "pin its weights: they are never evicted"},
    {"unpin", HTH_OPTION_FLAG, NULL, "unpin its weights"},
    {"no-wait", HTH_OPTION_FLAG, NULL,
     "fail instead of waiting for memory that jobs or pinned models hold"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_load = {"load",
                                  "NAME[:VERSION] [--pin|--unpin] [--no-wait]",
                                  "load a model onto the device\n"
                                  "Returns when its weights are resident; if there is a newer "
                                  "version, when that one serves requests.\n"
                                  "Requests load models automatically; the least recently used are "
                                  "evicted when others need the memory.",
                                  1,
                                  1,
                                  load_options,
                                  .run = cmd_load};
const hth_command hth_cmd_unload = {
    "unload",
    "NAME[:VERSION]",
    "unload a model from the device\n"
    "Returns when its memory is free. The next request loads it again.",
    1,
    1,
    hth_cmd_no_options,
    .run = cmd_unload};
const hth_command hth_cmd_import = {
    "import",
    "NAME FILE.onnx [--max-batch N] [--no-wait]",
    "add a model to the store as a new version\n"
    "Tensors that the store already has, of any model, are shared. The file is checked first:\n"
    "an imported version can be run. Returns when the new version serves requests.",
    2,
    2,
    import_options,
    .run = cmd_import,
    .makes_store = true};
const hth_command hth_cmd_ls = {
    "ls",       "[--all]",    "list the models and their versions, and which are loaded", 0, 0,
    ls_options, .run = cmd_ls};
const hth_command hth_cmd_show = {"show",
                                  "NAME[:VERSION]",
                                  "describe a model: inputs, outputs, size",
                                  1,
                                  1,
                                  hth_cmd_no_options,
                                  .run = cmd_show};
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
const hth_command hth_cmd_gc = {
    "gc",         "", "free tensors of the store that no model uses", 0, 0, hth_cmd_no_options,
    .run = cmd_gc};
const hth_command hth_cmd_export = {"export",
                                    "NAME[:VERSION] FILE.onnx|FILE.safetensors",
                                    "write a version to a file\n"
                                    "FILE.onnx: the model, as it is served, for any ONNX runtime. "
                                    "FILE.safetensors: its tensors.",
                                    2,
                                    2,
                                    hth_cmd_no_options,
                                    .run = cmd_export};
