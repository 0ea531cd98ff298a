// SPDX-License-Identifier: Apache-2.0
// Signals set flags. Around a pause they are blocked but in ppoll, so that none is lost between a
// look at the flags and the wait; one that another thread got wakes the main thread by SIGWINCH.
// What handlers do besides that, write, tcsetattr and pthread_kill, POSIX allows them. The flags
// are atomic because a handler may run on any thread.
#include "client/cli/screen.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define SCREEN_COLUMNS 80
// The alternate screen and no cursor, and the way back.
#define SCREEN_ENTER "\033[?1049h\033[?25l\033[H\033[2J"
#define SCREEN_LEAVE "\033[?25h\033[?1049l"

static const int screen_ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
static struct {
    bool terminal;
    struct termios before;
    pthread_t main;
    atomic_bool taken, quit, resized;
} screen;

static void screen_put(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t w = write(STDOUT_FILENO, text, n);
        if (w <= 0) {
            return; // the terminal is gone
        }
        text += w;
        n -= (size_t)w;
    }
}

static void screen_leave(void)
{
    if (atomic_exchange(&screen.taken, false)) {
        screen_put(SCREEN_LEAVE, sizeof SCREEN_LEAVE - 1);
        tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
    }
}

static void screen_take(void)
{
    struct termios raw = screen.before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE; // a stopped process would leave the terminal so
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    screen.taken = true;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    screen_put(SCREEN_ENTER, sizeof SCREEN_ENTER - 1);
    if (screen.quit) { // a handler may have left it while it was being taken
        screen.taken = true;
        screen_leave();
    }
}

static void screen_wake(void)
{
    if (!pthread_equal(pthread_self(), screen.main)) {
        pthread_kill(screen.main, SIGWINCH);
    }
}

static void screen_on_end(int number)
{
    screen.quit = true;
    screen_leave();
    screen_wake();
}

static void screen_on_size(int number)
{
    screen.resized = true;
    screen_wake();
}

static void screen_set(int number, void (*handler)(int), int flags)
{
    struct sigaction act = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&act.sa_mask);
    sigaction(number, &act, NULL);
}

void hth_screen_open(bool terminal)
{
    screen.main = pthread_self();
    for (size_t i = 0; i < sizeof screen_ends / sizeof screen_ends[0]; i++) {
        screen_set(screen_ends[i], screen_on_end, SA_RESTART | (int)SA_RESETHAND);
    }
    screen_set(SIGWINCH, screen_on_size, SA_RESTART);
    screen_set(SIGCONT, screen_on_size, SA_RESTART);
    screen.terminal = terminal && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 &&
                      tcgetattr(STDIN_FILENO, &screen.before) == 0;
    if (screen.terminal && !screen.quit) {
        screen_take();
    }
}

void hth_screen_close(void)
{
    for (size_t i = 0; i < sizeof screen_ends / sizeof screen_ends[0]; i++) {
        screen_set(screen_ends[i], SIG_DFL, 0);
    }
    screen_leave();
}

bool hth_screen_is_terminal(void)
{
    return screen.terminal;
}

void hth_screen_size(int *lines, int *columns)
{
    struct winsize w;
    bool known = screen.terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0;
    *columns = known ? w.ws_col : SCREEN_COLUMNS;
    *lines = known && w.ws_row > 0 ? w.ws_row : INT_MAX;
}

// Lines are overwritten and what is after them is cleared: nothing flickers. After a line as wide
// as the terminal the cursor is still in its last column, which would be cleared.
void hth_screen_show(const char *text)
{
    if (!screen.taken) {
        return;
    }
    int lines, columns;
    hth_screen_size(&lines, &columns);
    screen_put("\033[H", 3);
    for (const char *line = text; *line != 0 && screen.taken;) {
        size_t n = strcspn(line, "\n");
        screen_put(line, n);
        if (hth_utf8_fit(line, columns - 1) >= n) {
            screen_put("\033[K", 3);
        }
        line += n;
        if (*line == '\n' && *++line != 0) {
            screen_put("\r\n", 2);
        }
    }
    if (screen.taken) {
        screen_put("\033[J", 3);
    }
}

// screen_keys reads what was typed. true: the end is wanted.
static bool screen_keys(void)
{
    char key[64];
    ssize_t n = read(STDIN_FILENO, key, sizeof key);
    return n < 0 || memchr(key, 'q', (size_t)n) != NULL || memchr(key, 'Q', (size_t)n) != NULL;
}

// screen_mask blocks the signals that are waited for, or has them as they were.
static void screen_mask(int how, sigset_t *before)
{
    sigset_t all;
    sigemptyset(&all);
    for (size_t i = 0; i < sizeof screen_ends / sizeof screen_ends[0]; i++) {
        sigaddset(&all, screen_ends[i]);
    }
    sigaddset(&all, SIGWINCH);
    sigaddset(&all, SIGCONT);
    if (how == SIG_BLOCK) {
        sigprocmask(how, &all, before);
    } else {
        sigprocmask(how, before, NULL);
    }
}

hth_screen_event hth_screen_pause(uint64_t ns)
{
    uint64_t until = hth_now_ns() + ns, now;
    hth_screen_event event = HTH_SCREEN_TIME;
    sigset_t before;
    screen_mask(SIG_BLOCK, &before);
    while (!screen.quit && !screen.resized && event == HTH_SCREEN_TIME &&
           (now = hth_now_ns()) < until) {
        struct pollfd in = {STDIN_FILENO, POLLIN, 0};
        struct timespec left = {(time_t)((until - now) / 1000000000u),
                                (long)((until - now) % 1000000000u)};
        int n = ppoll(&in, screen.terminal ? 1 : 0, &left, &before);
        if (n > 0 && ((in.revents & (POLLHUP | POLLERR)) != 0 || screen_keys())) {
            event = HTH_SCREEN_QUIT;
        }
    }
    if (screen.quit) {
        event = HTH_SCREEN_QUIT;
    } else if (screen.resized && event == HTH_SCREEN_TIME) {
        screen.resized = false;
        event = HTH_SCREEN_RESIZED;
        if (screen.terminal) {
            screen_take(); // the shell may have changed it while the process was stopped
        }
    }
    screen_mask(SIG_SETMASK, &before);
    return event;
}
