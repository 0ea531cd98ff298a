// SPDX-License-Identifier: Apache-2.0
// Nothing is written when stderr is not a terminal, nor in the first second: most commands are done
// by then.
#include "client/cli/progress.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "client/terminal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PROGRESS_WAIT_NS 1000000000u
#define PROGRESS_WIDTH   30
#define PROGRESS_LEAST   6   // a shorter bar says nothing: the room is the text's
#define PROGRESS_COLUMNS 80  // of a terminal that does not say
#define PROGRESS_LINE    512 // bytes

static int progress_columns(void)
{
    struct winsize w;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= PROGRESS_COLUMNS / 2;
    return known ? w.ws_col : PROGRESS_COLUMNS;
}

void hth_progress_init(hth_progress_bar *bar)
{
    *bar = (hth_progress_bar){.started_ns = hth_now_ns(), .terminal = isatty(STDERR_FILENO) == 1};
}

// progress_fits is how many bytes of `what` have room in so many columns: whole pieces, which two
// blanks part, unless the first is too long by itself.
static int progress_fits(const char *what, int room)
{
    int fits = 0, most = (int)hth_utf8_fit(what, room);
    for (int end = 0; end <= most; end++) {
        bool part = what[end] == 0 || (what[end] == ' ' && what[end + 1] == ' ');
        fits = part ? end : fits;
    }
    return fits > 0 ? fits : most;
}

const char *hth_progress_line(const char *what, uint64_t done, uint64_t total, uint64_t seconds,
                              int columns, char *out, size_t cap)
{
    char tail[64], bar[PROGRESS_WIDTH + 1], text[PROGRESS_LINE];
    double part = done >= total ? 1 : (double)done / (double)total;
    int tail_n = snprintf(tail, sizeof tail, "%3.0f %%  %" PRIu64 " s", part * 100, seconds);
    int room = columns - 1 - tail_n - 1; // the last column stays free: a full line wraps
    room = room > 0 ? room : 0;
    snprintf(text, sizeof text, "%s", what);
    hth_utf8_plain(text);
    text[progress_fits(text, room)] = 0;
    int width = room - hth_utf8_columns(text) - 3;
    width = width < PROGRESS_WIDTH ? width : PROGRESS_WIDTH;
    width = width < PROGRESS_LEAST ? 0 : width;
    for (int i = 0; i < width; i++) {
        bar[i] = i < (int)(part * width) ? '#' : '.';
    }
    bar[width] = 0;
    if (width > 0) {
        snprintf(out, cap, "%s [%s] %s", text, bar, tail);
    } else {
        snprintf(out, cap, "%s %s", text, tail);
    }
    return out;
}

int hth_progress_show(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    hth_progress_bar *b = ctx;
    char line[PROGRESS_LINE];
    uint64_t passed = hth_now_ns() - b->started_ns;
    if (!b->terminal || passed < PROGRESS_WAIT_NS || total == 0) {
        return 0;
    }
    hth_progress_line(what, done, total, passed / 1000000000u, progress_columns(), line,
                      sizeof line);
    hth_terminal_clear();
    fprintf(stderr, "%s", line);
    b->shown = true;
    return 0;
}

void hth_progress_fini(hth_progress_bar *bar)
{
    if (bar->shown) {
        hth_terminal_clear();
        bar->shown = false;
    }
}
