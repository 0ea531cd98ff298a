// SPDX-License-Identifier: Apache-2.0
#include "client/cli/detach.h"

#include "base/thread.h"
#include "client/terminal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define DETACH_AGAIN_MS 3000 // in which a second Ctrl-C cancels the job

// detach_wait waits for a signal, for `ms` at most (-1: as long as it takes). 0: there was none, or
// the thread is to end.
static int detach_wait(const hth_detach *detach, int ms)
{
    struct pollfd on[2] = {{.fd = detach->signals, .events = POLLIN},
                           {.fd = detach->end, .events = POLLIN}};
    struct signalfd_siginfo info;
    int n;
    do {
        n = poll(on, ms < 0 ? 2 : 1, ms);
    } while (n < 0 && errno == EINTR);
    bool came = n > 0 && (on[0].revents & POLLIN) != 0;
    return came && read(detach->signals, &info, sizeof info) == sizeof info ? (int)info.ssi_signo
                                                                            : 0;
}

// detach_die lets a signal do what it does without this.
static void detach_die(const hth_detach *detach, int number)
{
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &detach->set, NULL);
    raise(number);
}

// detach_clear clears the line in which the job's progress stands.
static void detach_clear(void)
{
    if (isatty(STDERR_FILENO) == 1) {
        hth_terminal_clear();
    }
}

static void detach_cancel(const hth_detach *detach)
{
    detach_clear();
    if (hearth_job_cancel(detach->h, detach->job) == HEARTH_OK) {
        fprintf(stderr, "hearth: job '%s' is canceled\n", detach->name);
    } else {
        fprintf(stderr, "hearth: job '%s' is not canceled: %s\n", detach->name, hearth_error());
    }
}

static void detach_leave(hth_detach *detach, int number)
{
    bool asks = number == SIGINT;
    detach_clear();
    if (detach->embedded) {
        fprintf(stderr, "hearth: job '%s' stops after the step at work%s\n", detach->name,
                asks ? "; Ctrl-C again ends it at once, without a checkpoint" : "");
        atomic_store(&detach->left, number);
        number = detach_wait(detach, -1); // until it has stopped
        if (number != 0) {
            detach_die(detach, number);
        }
        return;
    }
    if (detach->rank) {
        fprintf(stderr,
                "hearth: job '%s' ends with its ranks, and keeps a checkpoint if it has made a "
                "step; the same command with --resume goes on\n",
                detach->name);
        detach_die(detach, number);
    }
    fprintf(stderr,
            "hearth: job %llu goes on; `hearth job %s --follow` follows it, `hearth cancel %s`%s "
            "cancels it\n",
            (unsigned long long)detach->job.id, detach->name, detach->name,
            asks ? " or Ctrl-C again" : "");
    if (!asks) {
        detach_die(detach, number);
    }
    atomic_store(&detach->left, number);
    if (detach_wait(detach, DETACH_AGAIN_MS) == SIGINT) {
        detach_cancel(detach);
    }
}

static void detach_main(void *ctx)
{
    hth_detach *d = ctx;
    int number = detach_wait(d, -1);
    if (number != 0 && !atomic_load(&d->armed)) {
        detach_die(d, number);
    } else if (number != 0) {
        detach_leave(d, number);
    }
}

hth_err hth_detach_begin(hth_detach *detach)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now;
    memset(detach, 0, sizeof *detach);
    sigemptyset(&detach->set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
            sigaddset(&detach->set, numbers[i]); // nohup's are ignored, and stay so
        }
    }
    pthread_sigmask(SIG_BLOCK, &detach->set, NULL);
    detach->signals = signalfd(-1, &detach->set, SFD_CLOEXEC);
    detach->end = eventfd(0, EFD_CLOEXEC);
    hth_err err = detach->signals >= 0 && detach->end >= 0
                      ? hth_thread_start("hth-signals", detach_main, detach, &detach->thread)
                      : hth_fail_errno(errno, "cannot wait for signals");
    detach->running = err == HTH_OK;
    if (err != HTH_OK) {
        hth_detach_end(detach);
    }
    return err;
}

void hth_detach_job(hth_detach *detach, hearth *h, hearth_job job, const char *name, bool embedded)
{
    detach->h = h;
    detach->job = job;
    detach->embedded = embedded;
    snprintf(detach->name, sizeof detach->name, "%s", name);
    atomic_store(&detach->armed, true);
}

void hth_detach_rank(hth_detach *detach)
{
    detach->rank = true;
}

int hth_detach_left(const hth_detach *detach)
{
    return atomic_load(&detach->left);
}

void hth_detach_end(hth_detach *detach)
{
    uint64_t one = 1;
    if (detach->running) {
        ssize_t n = write(detach->end, &one, sizeof one);
        (void)n;
        hth_thread_join(detach->thread);
        detach->running = false;
    }
    if (detach->signals >= 0) {
        close(detach->signals);
    }
    if (detach->end >= 0) {
        close(detach->end);
    }
    detach->signals = detach->end = -1;
    pthread_sigmask(SIG_UNBLOCK, &detach->set, NULL);
}
