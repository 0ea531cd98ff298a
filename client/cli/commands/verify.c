// SPDX-License-Identifier: Apache-2.0
// `hearth verify`: whether what is stored is what was. Its exit status is for scripts.
#include "client/cli/cmd.h"

#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/terminal.h"

#include <inttypes.h>
#include <string.h>

static uint64_t verify_count(const json_t *doc, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(doc, key));
}

static const char *verify_text(const json_t *row, const char *key)
{
    const char *s = json_string_value(json_object_get(row, key));
    return s != NULL ? s : "";
}

static void verify_print(const json_t *doc)
{
    char bytes[32];
    size_t i, listed = json_array_size(json_object_get(doc, "damaged"));
    const json_t *row;
    json_array_foreach(json_object_get(doc, "damaged"), i, row)
    {
        const char *tensor = verify_text(row, "tensor"), *why = verify_text(row, "why"),
                   *file = verify_text(row, "file");
        if (verify_text(row, "model")[0] != 0) {
            printf("%s:%" PRIu64 "%s%s: ", verify_text(row, "model"), verify_count(row, "version"),
                   tensor[0] != 0 ? "  " : "", tensor);
        }
        printf(strstr(why, file) == NULL ? "%s (%s)\n" : "%s\n", why, file);
    }
    if (verify_count(doc, "damages") > listed) {
        printf("and %" PRIu64 " more\n", verify_count(doc, "damages") - listed);
    }
    printf("read %" PRIu64 " versions, %" PRIu64 " tensors, %s: ", verify_count(doc, "versions"),
           verify_count(doc, "tensors"),
           hth_table_bytes((double)verify_count(doc, "bytes"), bytes, sizeof bytes));
    if (verify_count(doc, "damages") == 0) {
        printf("nothing is damaged\n");
    } else {
        printf("%" PRIu64 " damaged; importing the same file repairs it\n",
               verify_count(doc, "damages"));
    }
}

static int cmd_verify(hth_cli *cli)
{
    char *json;
    int rv = hth_cmd_request(cli, "verify", hth_cmd_arguments(cli), hth_progress_show, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    json_t *doc = hth_terminal_load(json);
    bool damaged = verify_count(doc, "damages") > 0;
    if (hth_cli_json(cli)) {
        rv = hth_cli_print(cli, json);
    } else {
        verify_print(doc);
    }
    hearth_free(json);
    json_decref(doc);
    return rv == HTH_CLI_OK && damaged ? HTH_CLI_ERROR : rv;
}

const hth_command hth_cmd_verify = {
    "verify",
    "[NAME[:VERSION]]",
    "verify stored models and report damage\n"
    "All models, one, or one version; without a name also the store's index. Exit status 1 if "
    "anything is damaged.\n"
    "A damaged model is not served. Importing the same file repairs it.",
    0,
    1,
    hth_cmd_no_options,
    .run = cmd_verify,
    .timeout_ms = INT32_MAX};
