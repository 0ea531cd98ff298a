// SPDX-License-Identifier: Apache-2.0
// `hearth top` on a terminal (a pseudo-terminal that this test holds), over an engine of its own:
// nothing is wider than the terminal, a new size is taken, and the terminal is given back as it was
// by q, by each signal that ends the process, and by a crash.
#include "base/test.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define PATIENCE_MS 300000
#define FRAME_END   "\033[?2026l"

static char dir[] = "/tmp/hearth-top-XXXXXX", program[300];
static char seen[1 << 20]; // of the terminal
static size_t n_seen;

typedef struct terminal {
    int master, slave;
    struct termios before;
    pid_t pid;
} terminal;

static void terminal_open(terminal *t, unsigned short lines, unsigned short columns)
{
    struct winsize w = {.ws_row = lines, .ws_col = columns};
    char store[100];
    snprintf(store, sizeof store, "%s/s", dir);
    assert_int_equal(openpty(&t->master, &t->slave, NULL, NULL, &w), 0);
    assert_int_equal(tcgetattr(t->slave, &t->before), 0);
    n_seen = 0;
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        setsid();
        ioctl(t->slave, TIOCSCTTY, 0);
        for (int fd = 0; fd < 3; fd++) {
            dup2(t->slave, fd);
        }
        close(t->master);
        setenv("TERM", "xterm", 1);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); // it may be made to crash
        execl(program, "hearth", "--store", store, "--device", "cpu:mem=64MiB,threads=1", "top",
              "--interval", "0.2", (char *)NULL);
        _exit(127);
    }
}

// Reads what was written until there is `text` behind `from`, and gives where.
static size_t wait_for(const terminal *t, size_t from, const char *text)
{
    for (;;) {
        seen[n_seen] = 0;
        const char *at = from <= n_seen ? strstr(seen + from, text) : NULL;
        if (at != NULL) {
            return (size_t)(at - seen);
        }
        struct pollfd p = {t->master, POLLIN, 0};
        assert_true(n_seen + 1 < sizeof seen);
        if (poll(&p, 1, PATIENCE_MS) != 1) {
            fail_msg("'%s' does not come: %s", text, seen + from);
        }
        ssize_t n = read(t->master, seen + n_seen, sizeof seen - 1 - n_seen);
        assert_true(n > 0);
        n_seen += (size_t)n;
    }
}

// The longest line of a whole screen, without its escape sequences, which end with a letter.
static int widest(size_t from)
{
    int most = 0, now = 0;
    const char *end = strstr(seen + from, FRAME_END);
    assert_non_null(end);
    for (const char *p = seen + from; p < end; p++) {
        if (*p == 27) {
            p += strcspn(p, "HJKmhl");
        } else if (*p == '\n' || *p == '\r') {
            now = 0;
        } else {
            now++;
            most = now > most ? now : most;
        }
    }
    return most;
}

// It ended, by signal `crash` if that is not 0, and the terminal is as it was.
static void terminal_close(terminal *t, int crash)
{
    struct termios now;
    int status;
    wait_for(t, 0, "\033[?25h\033[?1049l");
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    assert_int_equal(WIFSIGNALED(status), crash != 0);
    assert_true(crash != 0 ? WTERMSIG(status) == crash : WEXITSTATUS(status) == 0);
    assert_int_equal(tcgetattr(t->slave, &now), 0);
    assert_int_equal(now.c_lflag, t->before.c_lflag);
    assert_memory_equal(now.c_cc, t->before.c_cc, sizeof now.c_cc);
    close(t->master);
    close(t->slave);
}

static void type(const terminal *t, char key)
{
    assert_int_equal(write(t->master, &key, 1), 1);
}

static void test_resize_and_quit(void **state)
{
    terminal t;
    struct winsize wide = {.ws_row = 30, .ws_col = 120};
    terminal_open(&t, 2, 30);
    size_t at = wait_for(&t, 0, "\033[H\033[Khearth top");
    wait_for(&t, at, FRAME_END);
    assert_int_equal(widest(at), 30);      // the bar
    assert_null(strstr(seen, "no model")); // is below the second line
    assert_int_equal(ioctl(t.master, TIOCSWINSZ, &wide), 0);
    at = wait_for(&t, n_seen, "no model is loaded");
    at = wait_for(&t, at, "\033[H\033[Khearth top");
    wait_for(&t, at, FRAME_END);
    assert_int_equal(widest(at), 120);
    assert_null(strstr(seen, "]\033[")); // would erase the last column: the cursor still is in it
    type(&t, 'x');
    type(&t, 'q');
    terminal_close(&t, 0);
}

static void test_signals(void **state)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2};
    terminal t;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        terminal_open(&t, 24, 80);
        wait_for(&t, 0, FRAME_END);
        if (i == 0) {
            type(&t, 3); // Ctrl-C
        } else {
            kill(t.pid, ends[i]);
        }
        terminal_close(&t, 0);
    }
}

static void test_crash(void **state)
{
    static const int crashes[] = {SIGABRT, SIGSEGV};
    terminal t;
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) {
        if (crashes[i] == SIGSEGV && HTH_SANITIZED) {
            continue; // the sanitizer looks at it
        }
        terminal_open(&t, 24, 80);
        wait_for(&t, 0, FRAME_END);
        kill(t.pid, crashes[i]);
        wait_for(&t, 0, "\033[?25h\033[?1049l");
        kill(t.pid, crashes[i]); // sent, not made, by an instruction that would do it again
        terminal_close(&t, crashes[i]);
    }
}

static int setup(void **state)
{
    char command[500];
    const char *b = getenv("HEARTH_BUILD");
    snprintf(program, sizeof program, "%s/hearth", b != NULL ? b : "build");
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    snprintf(command, sizeof command,
             "%s --store %s/s import m tests/data/digits/digits.onnx >/dev/null", program, dir);
    return system(command);
}

static int teardown(void **state)
{
    return test_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resize_and_quit),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_crash),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
