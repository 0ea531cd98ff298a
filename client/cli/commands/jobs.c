// SPDX-License-Identifier: Apache-2.0
// `hearth jobs`: a table of training jobs.
#include "client/cli/cmd.h"

#include "client/cli/jobs.h"
#include "client/cli/progress.h"

static int cmd_jobs(hth_cli *cli)
{
    char *json;
    bool mine = json_is_true(json_object_get(cli->options, "mine"));
    bool all = json_is_true(json_object_get(cli->options, "all"));
    if (mine && all) {
        return hth_cli_usage("--mine or --all, not both");
    }
    json_t *q = json_object();
    if (mine || all) {
        json_object_set_new(q, mine ? "mine" : "all", json_true());
    }
    int rv = hth_cmd_request(cli, "jobs", q, hth_progress_show, &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_jobs_print(cli, json);
        hearth_free(json);
    }
    return rv;
}

static const hth_option jobs_options[] = {
    {"mine", HTH_OPTION_FLAG, NULL, "only jobs of the caller's own"},
    {"all", HTH_OPTION_FLAG, NULL, "all jobs; of others' only that they are there"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_jobs = {
    "jobs",
    "[--mine|--all]",
    "list training jobs: running, queued, paused, and the last 100 that ended\n"
    "Ended jobs are finished, failed or canceled, newest first. A job is named after the model "
    "that it\n"
    "produces, and has a number. Times say how long ago; --json has them in ns since 1970.",
    0,
    0,
    jobs_options,
    .run = cmd_jobs};
