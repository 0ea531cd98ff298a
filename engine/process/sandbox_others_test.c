// SPDX-License-Identifier: Apache-2.0
// What the filter's allowed calls could do to another process, by their arguments: signals, also
// those that a descriptor sends to its owner, priorities, and keystrokes for a terminal. Landlock
// is not in force, so that the filter alone answers; each case runs in a process of its own.
#include "engine/process/sandbox.h"

#include "base/test.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILED 200          // the sandbox could not be entered
#define HIGH   (1ULL << 32) // a bit of an int's register that the kernel does not look at

typedef int (*attempt)(void); // 0, or errno

static int fd; // a socket, whose owner can be told

static int run_confined(attempt a)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        hth_sandbox s = {.files = false};
        alarm(20);
        if (hth_sandbox_files(NULL, 0, false, &s) != HTH_OK || hth_sandbox_calls(&s) != HTH_OK) {
            _exit(FAILED);
        }
        _exit(a());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), FAILED);
    return WEXITSTATUS(status);
}

static int result(long rc)
{
    return rc == -1 ? errno : 0;
}

static int signal_parent(void)
{
    return result(syscall(SYS_tgkill, getppid(), getppid(), 0));
}
static int own_for_parent(void)
{
    return result(fcntl(fd, F_SETOWN, getppid()));
}
static int own_for_parent_high(void)
{
    return result(syscall(SYS_fcntl, fd, HIGH | F_SETOWN, getppid()));
}
static int own_for_parent_extended(void)
{
    struct f_owner_ex owner = {.type = F_OWNER_PID, .pid = getppid()};
    return result(fcntl(fd, F_SETOWN_EX, &owner));
}
static int own_by_ioctl(void)
{
    int pid = getppid();
    return result(ioctl(fd, FIOSETOWN, &pid));
}
static int own_by_ioctl_high(void)
{
    int pid = getppid();
    return result(syscall(SYS_ioctl, fd, HIGH | FIOSETOWN, &pid));
}
static int own_by_group(void)
{
    int pid = getppid();
    return result(ioctl(fd, SIOCSPGRP, &pid));
}
static int choose_signal(void)
{
    return result(fcntl(fd, F_SETSIG, SIGKILL));
}
static int signal_when_ready(void) // a terminal's owner would be its foreground processes
{
    return result(fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK));
}
static int signal_when_ready_by_ioctl(void)
{
    int on = 1;
    return result(ioctl(fd, FIOASYNC, &on));
}
static int type_key(void)
{
    return result(ioctl(fd, TIOCSTI, "x"));
}
static int type_key_high(void)
{
    return result(syscall(SYS_ioctl, fd, HIGH | TIOCSTI, "x"));
}
static int paste(void)
{
    return result(ioctl(fd, TIOCLINUX, "\3"));
}
static int slow_parent(void)
{
    int now = getpriority(PRIO_PROCESS, (id_t)getppid());
    return result(setpriority(PRIO_PROCESS, (id_t)getppid(), now));
}
static int slow_group(void)
{
    return result(setpriority(PRIO_PGRP, 0, getpriority(PRIO_PGRP, 0)));
}
static int slow_files_of_parent(void)
{
    return result(syscall(SYS_ioprio_set, 1, getppid(), 0));
}
static int slow_files_of_group(void)
{
    return result(syscall(SYS_ioprio_set, 2, 0, 0));
}

static void test_others(void **state)
{
    static const struct {
        const char *what;
        attempt a;
    } table[] = {{"a signal", signal_parent},
                 {"F_SETOWN", own_for_parent},
                 {"F_SETOWN with a high bit", own_for_parent_high},
                 {"F_SETOWN_EX", own_for_parent_extended},
                 {"FIOSETOWN", own_by_ioctl},
                 {"FIOSETOWN with a high bit", own_by_ioctl_high},
                 {"SIOCSPGRP", own_by_group},
                 {"F_SETSIG", choose_signal},
                 {"O_ASYNC", signal_when_ready},
                 {"FIOASYNC", signal_when_ready_by_ioctl},
                 {"TIOCSTI", type_key},
                 {"TIOCSTI with a high bit", type_key_high},
                 {"TIOCLINUX", paste},
                 {"a priority", slow_parent},
                 {"a group's priority", slow_group},
                 {"a priority for files", slow_files_of_parent},
                 {"a group's priority for files", slow_files_of_group}};
    int wrong = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int got = run_confined(table[i].a);
        if (got != EPERM) {
            print_message("# %s: errno %d instead of EPERM\n", table[i].what, got);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

// ---- what goes on

static volatile sig_atomic_t caught;

static void catch (int number)
{
    caught += number == SIGUSR1;
}

static void *raise_here(void *arg)
{
    return raise(SIGUSR1) == 0 ? arg : NULL;
}

static int signal_itself(void)
{
    pthread_t t;
    void *rc = NULL;
    signal(SIGUSR1, catch);
    if (raise(SIGUSR1) != 0 || pthread_kill(pthread_self(), SIGUSR1) != 0 || caught != 2) {
        return 1;
    }
    if (pthread_create(&t, NULL, raise_here, &rc) != 0 || pthread_join(t, &rc) != 0 || rc == NULL ||
        caught != 3) {
        return 2;
    }
    return 0;
}

static void aborted(int number)
{
    _exit(number == SIGABRT ? 0 : 1);
}

static int abort_itself(void)
{
    signal(SIGABRT, aborted);
    abort();
}

static int use_descriptor(void)
{
    int n = -1, on = 1, copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0 || fcntl(copy, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_GETFL) < 0) {
        return 1;
    }
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 || (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0) {
        return 2;
    }
    if (ioctl(fd, FIONREAD, &n) != 0 || n != 0 || ioctl(fd, FIONBIO, &on) != 0) {
        return 3;
    }
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    if (fcntl(open("/dev/null", O_RDWR), F_OFD_SETLK, &lock) != 0 || fcntl(fd, F_GETOWN) != 0) {
        return 4;
    }
    return 0;
}

static void *slow_thread(void *arg)
{
    struct sched_param param = {0};
    cpu_set_t cpus;
    hth_thread_nice(1);
    if (getpriority(PRIO_PROCESS, (id_t)gettid()) != *(int *)arg + 1) {
        return "hth_thread_nice";
    }
    if (syscall(SYS_ioprio_set, 1, 0, 3 << 13) != 0) {
        return "ioprio_set";
    }
    if (pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0 ||
        pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0) {
        return "affinity";
    }
    return pthread_setschedparam(pthread_self(), SCHED_IDLE, &param) == 0 ? NULL : "SCHED_IDLE";
}

static int slow_itself(void)
{
    pthread_t t;
    void *what;
    int before = getpriority(PRIO_PROCESS, 0);
    if (before >= 19) {
        return 0; // it cannot be slower
    }
    if (pthread_create(&t, NULL, slow_thread, &before) != 0 || pthread_join(t, &what) != 0) {
        return 1;
    }
    if (what != NULL) {
        fprintf(stderr, "%s fails\n", (const char *)what);
        return 2;
    }
    return getpriority(PRIO_PROCESS, 0) == before ? 0 : 3; // the thread's own, not the process's
}

static void test_itself(void **state)
{
    assert_int_equal(run_confined(signal_itself), 0);
    assert_int_equal(run_confined(abort_itself), 0);
    assert_int_equal(run_confined(use_descriptor), 0);
    assert_int_equal(run_confined(slow_itself), 0);
}

static int open_sockets(void **state)
{
    static int ends[2];
    int rc = socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    fd = ends[0];
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_others),
                                       cmocka_unit_test(test_itself)};
    return cmocka_run_group_tests(tests, open_sockets, NULL);
}
