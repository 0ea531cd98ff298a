// SPDX-License-Identifier: Apache-2.0
// `hearth cancel`.
#include "client/cli/cmd.h"

#include "client/cli/jobs.h"

const hth_command hth_cmd_cancel = {"cancel",
                                    "JOB",
                                    "cancel a training job; `hearth resume` can continue it",
                                    1,
                                    1,
                                    hth_cmd_no_options,
                                    .run = hth_jobs_change};
