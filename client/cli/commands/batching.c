// SPDX-License-Identifier: Apache-2.0
// `hearth batching`: how a model's requests wait and are joined.
#include "client/cli/cmd.h"

#include <stdlib.h>

// Options, and the names of the same in the question.
static const struct {
    const char *option, *key;
} batching_numbers[] = {{"max", "max"},
                        {"delay-us", "delay_us"},
                        {"timeout-us", "timeout_us"},
                        {"queue", "queue"},
                        {"priority", "priority"}};
#define BATCHING_NUMBERS (sizeof batching_numbers / sizeof batching_numbers[0])

// batching_sizes reads "4,8"; NULL: it is none.
static json_t *batching_sizes(const char *text)
{
    json_t *list = json_array();
    char *end;
    for (const char *p = text;; p = end + 1) {
        long n = strtol(p, &end, 10);
        if (end == p || n < 1 || (*end != 0 && *end != ',')) {
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, json_integer(n));
        if (*end == 0) {
            return list;
        }
    }
}

static int cmd_batching(hth_cli *cli)
{
    json_t *q = json_pack("{s:s}", "model", cli->args[0]);
    bool reset = json_is_true(json_object_get(cli->options, "reset"));
    const char *preferred = hth_cli_text(cli, "preferred");
    for (size_t i = 0; i < BATCHING_NUMBERS; i++) {
        json_t *v = json_object_get(cli->options, batching_numbers[i].option);
        if (v != NULL || reset) {
            json_object_set_new(q, batching_numbers[i].key,
                                v != NULL ? json_incref(v) : json_null());
        }
    }
    if (preferred != NULL || reset) {
        json_t *list = preferred != NULL ? batching_sizes(preferred) : json_null();
        if (list == NULL) {
            json_decref(q);
            return hth_cli_usage("--preferred is a list of batch sizes such as 4,8");
        }
        json_object_set_new(q, "preferred", list);
    }
    return hth_cmd_query(cli, "batching", q);
}

static const hth_option batching_options[] = {
    {"max", HTH_OPTION_INT, "N", "max samples of a batch; 1: no batching"},
    {"delay-us", HTH_OPTION_INT, "N", "max time that a request waits for its batch to fill"},
    {"preferred", HTH_OPTION_TEXT, "N,N", "batch sizes that start without delay"},
    {"timeout-us", HTH_OPTION_INT, "N", "default queue timeout; 0: none"},
    {"queue", HTH_OPTION_INT, "N", "max queued requests; 0: the server's limit"},
    {"priority", HTH_OPTION_INT, "N", "default priority; 1 is served first"},
    {"reset", HTH_OPTION_FLAG, NULL, "reset all that is not given to the server's settings"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_batching = {
    "batching",
    "NAME [--max N] [--delay-us N] [--preferred N,N] [--timeout-us N] [--queue N] [--priority N] "
    "[--reset]",
    "show or set how a model's requests are queued and batched\n"
    "Changes are stored with the model and apply to all its versions, also to requests already "
    "queued.",
    1,
    1,
    batching_options,
    .run = cmd_batching};
