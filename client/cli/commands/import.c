// SPDX-License-Identifier: Apache-2.0
// `hearth import`: a model becomes a version in the store.
#include "client/cli/cmd.h"

#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

// import_serves asks what the server found out about the version that answers now; NULL: another
// one does, or nobody knows.
static json_t *import_serves(const hth_cli *cli, int version)
{
    char *json, *text;
    json_t *args = hth_cmd_about(cli), *doc = NULL;
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
    int64_t most = hth_cli_int(cli, "max-batch", -1);
    if (json_object_get(cli->options, "max-batch") != NULL && (most < 0 || most > INT32_MAX)) {
        return hth_cli_usage("--max-batch is a number from 0 to %d", INT32_MAX);
    }
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
    hearth_status s = hearth_import_with(cli->h, cli->args[0], cli->args[1], (int)most, &options,
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
    return hth_cmd_print(cli, doc);
}

static const hth_option import_options[] = {
    {"max-batch", HTH_OPTION_INT, "N", "max batch size; 0: no batching"},
    {"no-wait", HTH_OPTION_FLAG, NULL,
     "return when the version is stored, before it serves requests"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

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
