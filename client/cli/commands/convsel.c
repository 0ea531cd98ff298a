// SPDX-License-Identifier: Apache-2.0
// `hearth convsel`: the algorithms that each convolution of a model can use.
#include "client/cli/cmd.h"

static const hth_option convsel_options[] = {
    OPTION_BATCH,
    OPTION_ON,
    OPTION_PRECISION,
    {"train", HTH_OPTION_FLAG, NULL, "of a training step: forward and both gradients"},
    {"again", HTH_OPTION_FLAG, NULL,
     "discard the stored timings of this model's nodes and measure again"},
    OPTION_END,
};

const hth_command hth_cmd_convsel = {
    "convsel",
    "NAME[:VERSION] --batch N [--train] [--again]",
    "list the candidates of each convolution: algorithm, workspace, time\n"
    "Times are measured once and stored. `disturbed` marks times measured while other programs\n"
    "used the processors: a server measures them again when the machine is idle, --again\n"
    "immediately. Times of a training step change only with --again, because they decide which\n"
    "algorithms, and therefore which bits, a job has.",
    1,
    1,
    convsel_options,
    .run = hth_cmd_query_itself};
