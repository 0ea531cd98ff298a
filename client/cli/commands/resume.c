// SPDX-License-Identifier: Apache-2.0
// `hearth resume`.
#include "client/cli/cmd.h"

#include "client/cli/jobs.h"

static const hth_option resume_options[] = {
    OPTION_NEW_BUDGET,
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_resume = {
    "resume",
    "JOB [--budget BYTES]",
    "resume a paused or stopped training job; losses are those of an uninterrupted run\n"
    "The command returns immediately; `hearth train --resume JOB` waits for the job to end.",
    1,
    1,
    resume_options,
    .run = hth_jobs_change,
    .own_budget = true};
