// SPDX-License-Identifier: Apache-2.0
#include "client/cli/train_run.h"

#include "client/cli/cmd.h"
#include "client/cli/follow.h"
#include "client/cli/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// train_taken prints which job the server has taken, for who does not follow it.
static int train_taken(const hth_cli *cli, const json_t *taken)
{
    const char *name = json_string_value(json_object_get(taken, "job"));
    json_int_t id = json_integer_value(json_object_get(taken, "id"));
    if (!hth_cli_json(cli)) {
        printf("%lld\n", (long long)id);
        return fflush(stdout) == 0 ? HTH_CLI_OK : HTH_CLI_ERROR;
    }
    json_t *doc = json_pack("{s:I, s:s?, s:O?}", "job", id, "name", name, "state",
                            json_object_get(taken, "state"));
    char *text = json_dumps(doc, JSON_COMPACT);
    int rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
    json_decref(doc);
    free(text);
    return rv;
}

// train_no_file says, where a job was refused, that what looks like a file's name is none here: it
// was taken for the name of a stored dataset.
static void train_no_file(const json_t *q)
{
    static const char *const keys[] = {"data", "eval", "start"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = json_string_value(json_object_get(q, keys[i]));
        if (text != NULL && strchr(text, '.') != NULL && strchr(text, '/') == NULL &&
            access(text, F_OK) != 0) {
            fprintf(stderr, "hearth: there is no file '%s' in this folder\n", text);
        }
    }
}

// train_submit has the server take the job; *taken is its answer.
static int train_submit(hth_cli *cli, json_t *q, json_t **taken)
{
    hth_follow follow;
    char *json;
    hth_follow_init(&follow, !hth_cli_json(cli));
    int rv = hth_cmd_request_shown(cli, "train", json_incref(q), hth_follow_show, &follow, &json);
    hth_follow_fini(&follow);
    if (rv != HTH_CLI_OK) {
        rv = rv == HTH_CLI_ERROR ? hth_cli_error() : rv;
        train_no_file(q);
        return rv;
    }
    *taken = json_loads(json, 0, NULL);
    hearth_free(json);
    return HTH_CLI_OK;
}

// train_leaves refuses what is of no use to who does not follow the job.
static int train_leaves(const hth_cli *cli)
{
    if (hth_cmd_log_asked(cli)) {
        return hth_cli_usage("--detach follows no job; `hearth job JOB --follow` has --log-csv and "
                             "--log-tensorboard, too");
    }
    return hth_cli_text(cli, "store") != NULL
               ? hth_cli_usage("--detach leaves the job to a server, and --store has none")
               : HTH_CLI_OK;
}

// ---- ranks

// train_ranks begins the group that --group names, and has the job be its rank. --on: each rank's.
static int train_ranks(const hth_cli *cli, json_t *q, hth_ranks **ranks)
{
    const char *group = hth_cli_text(cli, "group");
    json_object_del(q, "group");
    if (group == NULL) {
        return HTH_CLI_OK;
    }
    if (json_is_true(json_object_get(cli->options, "detach"))) {
        return hth_cli_usage("--group sums for the job for as long as it works: not with --detach");
    }
    if (hth_ranks_open(group, ranks) != HTH_OK) {
        return hth_cli_error();
    }
    json_object_set_new(q, "exchange", json_loads(hth_ranks_argument(*ranks), 0, NULL));
    return HTH_CLI_OK;
}

// train_follows is what a rank does whose job is that of rank 0: no more than to sum.
static bool train_follows(const hth_ranks *ranks)
{
    return ranks != NULL && hth_ranks_rank(ranks) > 0;
}

int hth_train_run(hth_cli *cli, int (*arguments)(const hth_cli *cli, json_t **out),
                  hth_train_print print)
{
    bool leaves = json_is_true(json_object_get(cli->options, "detach"));
    hth_detach detach;
    hth_train_log *log = NULL;
    hth_ranks *ranks = NULL;
    json_t *q = NULL, *taken = NULL;
    int rv = leaves ? train_leaves(cli) : HTH_CLI_OK;
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    (void)hth_detach_begin(&detach); // else Ctrl-C ends the command without a word
    rv = arguments(cli, &q);
    rv = rv == HTH_CLI_OK ? train_ranks(cli, q, &ranks) : rv;
    rv = rv == HTH_CLI_OK ? hth_cli_connect(cli) : rv;
    rv = rv == HTH_CLI_OK && !train_follows(ranks) ? hth_cmd_log_open(cli, &log) : rv;
    rv = rv == HTH_CLI_OK ? train_submit(cli, q, &taken) : rv;
    if (rv == HTH_CLI_OK && ranks != NULL) {
        hth_detach_rank(&detach);
        hth_ranks_go(ranks);
    }
    if (rv == HTH_CLI_OK && leaves) {
        rv = train_taken(cli, taken);
    } else if (rv == HTH_CLI_OK && train_follows(ranks)) {
        rv = HTH_CLI_OK; // it ends with the job
    } else if (rv == HTH_CLI_OK) {
        rv = hth_train_watch(cli, &detach, log, taken, print);
    } else {
        (void)hth_cmd_log_end(log, NULL);
    }
    json_decref(q);
    json_decref(taken);
    hth_detach_end(&detach); // the job has ended, or is left: a signal ends this process now
    hth_ranks_end(ranks, rv == HTH_CLI_OK);
    return rv;
}
