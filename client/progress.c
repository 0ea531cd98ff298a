// SPDX-License-Identifier: Apache-2.0
// Nothing is written when stderr is not a terminal, nor in the first second: most commands are done
// by then.
#include "client/progress.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PROGRESS_WAIT_NS 1000000000u
#define PROGRESS_WIDTH   30
#define PROGRESS_LEAST   6  // a shorter bar says nothing: the room is the text's
#define PROGRESS_COLUMNS 80 // of a terminal that does not say

static int progress_columns(void)
{
    struct winsize w;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= PROGRESS_COLUMNS / 2;
    return known ? w.ws_col : PROGRESS_COLUMNS;
}

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
    int room = progress_columns() - 16, width = room - (int)strlen(what);
    width = width > PROGRESS_WIDTH ? PROGRESS_WIDTH : width < PROGRESS_LEAST ? 0 : width;
    double part = done >= total ? 1 : (double)done / (double)total;
    char bar[PROGRESS_WIDTH + 1];
    for (int i = 0; i < width; i++) {
        bar[i] = i < (int)(part * width) ? '#' : '.';
    }
    bar[width] = 0;
    fprintf(stderr, "\r\033[K%.*s %s%s%s%3.0f %%  %" PRIu64 " s", room - width, what,
            width > 0 ? "[" : "", bar, width > 0 ? "] " : "", part * 100, passed / 1000000000u);
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
