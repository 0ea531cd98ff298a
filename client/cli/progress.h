// SPDX-License-Identifier: Apache-2.0
// client/cli/progress.h - a bar on the terminal for whatever takes longer than a second.
#ifndef HTH_CLIENT_CLI_PROGRESS_H
#define HTH_CLIENT_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_progress_bar {
    uint64_t started_ns;
    bool terminal; // is stderr one
    bool shown;
} hth_progress_bar;

void hth_progress_init(hth_progress_bar *bar);
// hth_progress_show is a hearth_progress; ctx is the bar.
int hth_progress_show(void *ctx, const char *what, uint64_t done, uint64_t total);
void hth_progress_fini(hth_progress_bar *bar); // clears the line

// hth_progress_line makes the line, of less than `columns` columns: as many pieces of `what` (two
// blanks part them, what a terminal would obey is '?') as have room, a bar where it has, percent
// and seconds. Returns `out`.
const char *hth_progress_line(const char *what, uint64_t done, uint64_t total, uint64_t seconds,
                              int columns, char *out, size_t cap);

#endif
