// SPDX-License-Identifier: Apache-2.0
// `hearth pause`.
#include "client/cli/cmd.h"

#include "client/cli/jobs.h"

const hth_command hth_cmd_pause = {
    "pause",
    "JOB",
    "pause a training job after the current step, with a checkpoint, until `hearth resume`\n"
    "Its memory is released. It stays paused when hearthd restarts; `hearth train` waits for it.",
    1,
    1,
    hth_cmd_no_options,
    .run = hth_jobs_change};
