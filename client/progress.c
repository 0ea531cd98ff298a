// SPDX-License-Identifier: Apache-2.0
// Nothing is written when stderr is not a terminal, nor in the first second: most commands are done
// by then.
#include "client/progress.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define PROGRESS_WAIT_NS 1000000000u
#define PROGRESS_WIDTH   30

void hth_progress_init(hth_progress_bar *b)
{
    *b = (hth_progress_bar){.started_ns = hth_now_ns(), .terminal = isatty(STDERR_FILENO) == 1};
}

int hth_progress_show(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    hth_progress_bar *b = ctx;
    uint64_t passed = hth_now_ns() - b->started_ns;
    if (!b->terminal || passed < PROGRESS_WAIT_NS || total == 0) {
        return 0;
    }
    double part = done >= total ? 1 : (double)done / (double)total;
    char bar[PROGRESS_WIDTH + 1];
    for (int i = 0; i < PROGRESS_WIDTH; i++) {
        bar[i] = i < (int)(part * PROGRESS_WIDTH) ? '#' : '.';
    }
    bar[PROGRESS_WIDTH] = 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f %%  %" PRIu64 " s", what, bar, part * 100,
            passed / 1000000000u);
    fflush(stderr);
    b->shown = true;
    return 0;
}

void hth_progress_fini(hth_progress_bar *b)
{
    if (b->shown) {
        fprintf(stderr, "\r\033[K");
        b->shown = false;
    }
}
