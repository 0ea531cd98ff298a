// SPDX-License-Identifier: Apache-2.0
// client/cli/follow.h - a training job on the terminal while it runs: one line that is rewritten,
// or plain lines where stderr is no terminal.
#ifndef HTH_CLIENT_CLI_FOLLOW_H
#define HTH_CLIENT_CLI_FOLLOW_H

#include "client/cli/progress.h"
#include "client/cli/train_log.h"
#include "client/hearth.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_follow {
    hth_progress_bar bar;
    hth_train_log *log;  // gets all that is said, too; the caller's, may be NULL
    bool lines;          // plain lines where stderr is no terminal
    uint64_t started_ns; // when the first step was seen, and which
    uint64_t first;
    uint64_t reported_ns,
        reported; // of the last plain line: when, and how many hundredths were done
} hth_follow;

// lines: for people, so not when the command answers in JSON.
void hth_follow_init(hth_follow *follow, bool lines);
void hth_follow_fini(hth_follow *follow); // clears the line

// hth_follow_event shows what was said about a job (JSON).
void hth_follow_event(hth_follow *follow, const char *what, uint64_t done, uint64_t total);
// hth_follow_show is a hearth_progress, until the job is taken; ctx is a hth_follow.
int hth_follow_show(void *ctx, const char *what, uint64_t done, uint64_t total);

#endif
