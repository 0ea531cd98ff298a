// SPDX-License-Identifier: Apache-2.0
// Signals set flags. Around a pause they are blocked but in ppoll, so that none is lost between a
// look at the flags and the wait; one that another thread got wakes the main thread by SIGWINCH.
// What handlers do besides that, write, tcsetattr and pthread_kill, POSIX allows them. The flags
// are atomic because a handler may run on any thread.
//
// Not ncurses: it would add a library for a screen that is written as a whole, and its handlers
// neither give the terminal back at once nor know of our filter.
#include "client/cli/top/screen.h"

#include "client/cli/top/keys.h"

#include "base/clock.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define SCREEN_COLUMNS 80
// After so long nothing belongs to what was typed: an escape sequence comes as a whole, Esc alone.
#define SCREEN_SEQUENCE_NS 50000000u
// The alternate screen and no cursor, and the way back.
#define SCREEN_ENTER "\033[?1049h\033[?25l\033[H\033[2J"
#define SCREEN_LEAVE "\033[?2026l\033[0m\033[?25h\033[?1049l"
// What is between these is shown at once, by terminals that know them.
#define SCREEN_BEGIN "\033[?2026h\033[H"
#define SCREEN_END   "\033[?2026l"

static const int screen_ends[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                  SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU};
static const int screen_crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct {
    bool terminal;
    struct termios before;
    pthread_t main;
    atomic_bool taken, quit, resized;
    char typed[64]; // and not yet taken
    size_t n_typed;
    uint64_t typed_ns; // when the last of it came
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
        tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
        screen_put(SCREEN_LEAVE, sizeof SCREEN_LEAVE - 1);
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

// The instruction that crashed, or abort, does so again, with the default action.
static void screen_on_crash(int number)
{
    screen_leave();
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

// screen_crash has crashes give the terminal back, where nobody else looks at them (a sanitizer).
static void screen_crash(bool open)
{
    for (size_t i = 0; i < sizeof screen_crashes / sizeof screen_crashes[0]; i++) {
        struct sigaction now;
        if (sigaction(screen_crashes[i], NULL, &now) != 0) {
            continue;
        }
        if (open && now.sa_handler == SIG_DFL) {
            screen_set(screen_crashes[i], screen_on_crash, (int)SA_RESETHAND);
        } else if (!open && now.sa_handler == screen_on_crash) {
            screen_set(screen_crashes[i], SIG_DFL, 0);
        }
    }
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
        screen_crash(true);
        screen_take();
    }
}

void hth_screen_close(void)
{
    screen_leave(); // first: who is killed or crashes between these leaves the terminal as it was
    for (size_t i = 0; i < sizeof screen_ends / sizeof screen_ends[0]; i++) {
        screen_set(screen_ends[i], SIG_DFL, 0);
    }
    screen_crash(false);
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

// screen_frame is the text with what clears the rest of each line in front of it, and in front of
// the last the rest of the screen: after a line as wide as the terminal the cursor is still in its
// last column, which would be cleared. The caller frees it; NULL: no memory.
static char *screen_frame(const char *text, size_t *bytes)
{
    char *frame = NULL;
    FILE *f = open_memstream(&frame, bytes);
    if (f == NULL) {
        return NULL;
    }
    fputs(SCREEN_BEGIN, f);
    for (const char *line = text; *line != 0;) {
        size_t n = strcspn(line, "\n");
        bool last = line[n] == 0 || line[n + 1] == 0;
        fprintf(f, "%s%.*s", last ? "\033[J" : "\033[K", (int)n, line);
        fputs(last ? "" : "\r\n", f);
        line += n + (line[n] == '\n');
    }
    fputs(SCREEN_END, f);
    if (fclose(f) != 0) {
        free(frame);
        return NULL;
    }
    return frame;
}

void hth_screen_show(const char *text)
{
    size_t bytes;
    char *frame = screen.taken ? screen_frame(text, &bytes) : NULL;
    for (size_t at = 0; frame != NULL && at < bytes && screen.taken;) {
        ssize_t w = write(STDOUT_FILENO, frame + at, bytes - at);
        at = w > 0 ? at + (size_t)w : bytes;
    }
    free(frame);
}

// screen_read reads what was typed. false: the terminal is gone.
static bool screen_read(void)
{
    size_t had = screen.n_typed < sizeof screen.typed ? screen.n_typed : 0;
    ssize_t n = read(STDIN_FILENO, screen.typed + had, sizeof screen.typed - had);
    screen.n_typed = n > 0 ? had + (size_t)n : had;
    screen.typed_ns = hth_now_ns();
    return n >= 0;
}

// screen_key takes the first key of what was typed. false: there is none.
static bool screen_key(int *key)
{
    size_t n = hth_key_next(screen.typed, screen.n_typed, key);
    screen.n_typed -= n;
    memmove(screen.typed, screen.typed + n, screen.n_typed);
    return n > 0;
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

// screen_alone takes what goes on too late to be a sequence as one key: Esc, most likely. false:
// there is nothing, or its time is not over.
static bool screen_alone(int *key)
{
    if (screen.n_typed == 0 || hth_now_ns() < screen.typed_ns + SCREEN_SEQUENCE_NS) {
        return false;
    }
    screen.n_typed = 0;
    *key = HTH_KEY_OTHER;
    return true;
}

// screen_wait waits for a key, a signal, or the time; `open`: the signals that come meanwhile.
static hth_screen_event screen_wait(uint64_t until, const sigset_t *open, int *key)
{
    while (!screen_key(key)) {
        uint64_t alone = screen.n_typed > 0 ? screen.typed_ns + SCREEN_SEQUENCE_NS : until;
        uint64_t end = alone < until ? alone : until, now = hth_now_ns();
        uint64_t ns = now < end ? end - now : 0;
        struct pollfd in = {STDIN_FILENO, POLLIN, 0};
        struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        int n = ppoll(&in, screen.terminal ? 1 : 0, &left, open);
        if (n > 0 && ((in.revents & (POLLHUP | POLLERR)) != 0 || !screen_read())) {
            return HTH_SCREEN_QUIT;
        }
        if (screen.quit || screen.resized) {
            return HTH_SCREEN_TIME;
        }
        if (n == 0 && screen_alone(key)) { // not what waits to be read since
            return HTH_SCREEN_KEY;
        }
        if (n == 0 && hth_now_ns() >= until) {
            return HTH_SCREEN_TIME;
        }
    }
    return HTH_SCREEN_KEY;
}

hth_screen_event hth_screen_pause(uint64_t ns, int *key)
{
    sigset_t before;
    *key = 0;
    screen_mask(SIG_BLOCK, &before);
    hth_screen_event event = HTH_SCREEN_TIME;
    if (!screen.quit && !screen.resized) {
        event = screen_wait(hth_now_ns() + ns, &before, key);
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
