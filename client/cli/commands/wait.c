// SPDX-License-Identifier: Apache-2.0
// `hearth wait`: until training jobs have ended.
#include "client/cli/cmd.h"

#include "base/clock.h"
#include "client/cli/jobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// wait_print says how a job has ended. Returns whether it has finished.
static bool wait_print(const hth_cli *cli, const hearth_job_info *at)
{
    const char *state = hearth_job_state_name(at->state);
    bool finished = at->state == HEARTH_JOB_FINISHED;
    if (hth_cli_json(cli)) {
        json_t *doc = json_pack("{s:I, s:s, s:s, s:i, s:s}", "job", (json_int_t)at->id, "name",
                                at->name, "state", state, "version", at->version, "why", at->why);
        char *text = json_dumps(doc, JSON_COMPACT);
        printf("%s\n", text != NULL ? text : "null");
        free(text);
        json_decref(doc);
    } else if (finished) {
        printf("job %" PRIu64 " '%s' is finished: version %d\n", at->id, at->name, at->version);
    } else {
        printf("job %" PRIu64 " '%s' is %s%s%s\n", at->id, at->name, state,
               at->why[0] != 0 ? ": " : "", at->why);
    }
    fflush(stdout);
    return finished;
}

// wait_one waits for a job until `end_ns` (0: as long as it takes).
static int wait_one(hth_cli *cli, hearth_job job, uint64_t end_ns)
{
    hearth_job_info *at;
    uint64_t now = hth_now_ns();
    uint64_t left_ms = end_ns > now ? (end_ns - now + 999999) / 1000000 : 1;
    if (hearth_job_wait(cli->h, job, end_ns > 0 ? left_ms : 0, &at) != HEARTH_OK) {
        return hth_cli_error();
    }
    bool finished = wait_print(cli, at);
    hearth_free(at);
    return finished ? HTH_CLI_OK : HTH_CLI_ERROR;
}

static int cmd_wait(hth_cli *cli)
{
    hearth_job job[HTH_CLI_ARGS];
    double seconds = json_number_value(json_object_get(cli->options, "timeout"));
    bool limited = json_object_get(cli->options, "timeout") != NULL;
    if (limited && !(seconds > 0 && seconds < 1e9)) {
        return hth_cli_usage("--timeout is a number of seconds, above 0");
    }
    uint64_t end_ns = limited ? hth_now_ns() + hth_ns_of(seconds * 1e9) : 0;
    int rv = hth_cli_connect(cli);
    for (int i = 0; i < cli->n_args && rv == HTH_CLI_OK; i++) { // before any is waited for
        if (hearth_job_find(cli->h, cli->args[i], &job[i]) != HEARTH_OK) {
            rv = hth_cli_error();
            hth_jobs_suggest(cli, cli->args[i]);
        }
    }
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    for (int i = 0; i < cli->n_args; i++) {
        int one = wait_one(cli, job[i], end_ns);
        rv = one != HTH_CLI_OK ? one : rv;
    }
    return rv;
}

static const hth_option wait_options[] = {
    {"timeout", HTH_OPTION_REAL, "S", "seconds to wait for all of them; the jobs go on"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_wait = {
    "wait",
    "JOB... [--timeout S]",
    "wait for training jobs to end\n"
    "Prints a line for each; the exit code is 0 if all have finished, 1 if one has failed, was "
    "canceled or\n"
    "stopped, or has not ended in time.",
    1,
    HTH_CLI_ARGS,
    wait_options,
    .run = cmd_wait};
