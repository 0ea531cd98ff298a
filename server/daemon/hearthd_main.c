// SPDX-License-Identifier: Apache-2.0
// hearthd: reads its command line and configuration, opens a server, and waits in libevent's loop
// for signals. SIGTERM and SIGINT stop it gracefully (what was accepted is answered); a second one
// ends it at once. SIGHUP reads the configuration again and changes what can change while it runs.
// One that comes while the server is being opened is done when that is over: libevent takes signals
// only for a loop that is there, so a handler of our own notes them, and an eventfd wakes the loop.
#include "engine/process/child.h"
#include "server/daemon/daemon_log.h"
#include "server/daemon/daemon_options.h"
#include "server/daemon/notify.h"
#include "server/server.h"

#include "base/clock.h"
#include "base/isa.h"
#include "base/thread_cache.h"
#include "base/thread.h"
#include "client/hearth.h"

#include <event2/event.h>
#include <jansson.h>

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <malloc.h>
#include <pwd.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Descriptors, where the hard limit allows them: connections and tensors' files.
#define DAEMON_FILES 65536
// Seconds between two looks for memory to give back.
#define DAEMON_TRIM_S 5

typedef struct hearthd {
    hth_daemon_options options;
    const char *manager; // $NOTIFY_SOCKET
    struct event_base *base;
    hth_server *server;
} hearthd;

// What signals have come, and the eventfd that says so.
static struct {
    int fd;
    atomic_bool stop, reload;
} signals = {.fd = -1};

static int daemon_fail(int code, const char *sentence)
{
    fprintf(stderr, "hearthd: %s\n", sentence);
    return code;
}

// ---- the socket library

// sendmsg stands before libc's for nng: where a client that connects leaves before it is greeted,
// EPIPE becomes NNG_ECLOSED, which nng 1.5 takes for the end of its own listener, and accepts
// nobody any more (ipc, tcp; later versions tell them apart). A reset is forgotten by all of them.
__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    ssize_t n = syscall(SYS_sendmsg, fd, m, flags);
    if (n < 0 && errno == EPIPE) {
        errno = ECONNRESET;
    }
    return n;
}

// ---- signals

static void reload_say(void *ctx, const char *sentence)
{
    hth_log(ERROR, SERVER, "reload-refused", "%s", sentence);
}

static void renamed_say(void *ctx, const char *sentence)
{
    hth_log(WARN, SERVER, "setting-renamed", "%s", sentence);
}

static const hth_config_report renamed_report = {renamed_say, NULL};

static void daemon_reload(hearthd *d)
{
    const hth_config_report report = {reload_say, NULL};
    char state[80];
    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, hth_now_ns() / 1000);
    hth_notify(d->manager, state);
    if (hth_server_reload(d->server) != HTH_OK) {
        reload_say(NULL, hth_err_detail());
    }
    if (d->options.config.path == NULL) {
        hth_log(WARN, SERVER, "reload-refused", "there is no configuration file: --config FILE");
    } else if (hth_config_read(&d->options.config, &report) == HTH_OK) {
        int changed = hth_config_reload(&d->options.config, &report);
        hth_daemon_log_open();
        hth_log(INFO, SERVER, "reloaded", "changed=%d", changed);
        hth_config_renamed(&d->options.config, &renamed_report);
    }
    hth_notify(d->manager, "READY=1");
}

// signal_came runs on whatever thread the kernel chose. The second SIGTERM or SIGINT has its
// default action: it ends the process.
static void signal_came(int number)
{
    int saved = errno;
    uint64_t one = 1;
    atomic_store(number == SIGHUP ? &signals.reload : &signals.stop, true);
    if (number != SIGHUP) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
    }
    ssize_t n = write(signals.fd, &one, sizeof one);
    (void)n; // fails only when the count is at its end, and then the loop is awake
    errno = saved;
}

// signals_open is called before anybody can know that the server is there: what comes from then on
// is kept until the loop runs.
static bool signals_open(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction action = {.sa_handler = signal_came, .sa_flags = SA_RESTART};
    signals.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool open = signals.fd >= 0;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 3 && open; i++) {
        open = sigaction(numbers[i], &action, NULL) == 0;
    }
    return open;
}

static void daemon_signaled(evutil_socket_t fd, short what, void *arg)
{
    hearthd *d = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
    if (atomic_load(&signals.stop)) {
        event_base_loopbreak(d->base);
    } else if (atomic_exchange(&signals.reload, false)) {
        daemon_reload(d);
    }
}

// A thread's heap keeps what a large request took, up to 64 MiB of it: glibc keeps more the more a
// program frees at once. What is free goes back to the system, and costs a request its page faults
// again, now and then. (mallopt's limits cost every request of some MiB a sixth of its rate.)
static void daemon_trim(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
    malloc_trim(0);
}

static void daemon_ready(const hearthd *d)
{
    if (geteuid() == 0) {
        hth_log(WARN, SERVER, "root",
                "hearthd runs as root: use --user NAME to run it under an account of its own");
    }
    printf("hearthd " HEARTH_VERSION " ready:");
    for (int i = 0; i < d->options.n_listen; i++) {
        printf(" %s", d->options.listen[i]);
    }
    if (d->options.http[0] != 0) {
        // the port that was taken: 0 lets the system choose one
        const char *http = d->options.http, *port = strrchr(http, ':');
        int host = (int)(port - http);
        printf(" %s%.*s:%d", strstr(http, "://") != NULL ? "" : "http://", host, http,
               hth_server_http_port(d->server));
    }
    printf("\n");
    fflush(stdout);
    hth_notify(d->manager, "READY=1");
}

static int daemon_loop(hearthd *d)
{
    static const struct timeval pause = {.tv_sec = DAEMON_TRIM_S};
    struct event *event = NULL, *trim = NULL;
    d->base = event_base_new();
    if (d->base != NULL) {
        event = event_new(d->base, signals.fd, EV_READ | EV_PERSIST, daemon_signaled, d);
        trim = event_new(d->base, -1, EV_PERSIST, daemon_trim, NULL);
    }
    bool ready = event != NULL && event_add(event, NULL) == 0 && trim != NULL &&
                 event_add(trim, &pause) == 0;
    if (ready) {
        daemon_ready(d);
        event_base_dispatch(d->base);
        hth_notify(d->manager, "STOPPING=1");
    }
    if (event != NULL) {
        event_free(event);
    }
    if (trim != NULL) {
        event_free(trim);
    }
    if (d->base != NULL) {
        event_base_free(d->base);
    }
    return ready ? 0 : daemon_fail(1, "cannot wait for signals");
}

// ---- running

// What comes after the answers has this long, whatever hangs: threads, libraries, devices.
#define DAEMON_END_NS (10 * (uint64_t)1000000000u)

static void deadline_main(void *ctx)
{
    const uint64_t *ns = ctx;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(*ns / 1000000000u)}, NULL);
    fprintf(stderr, "hearthd: shutting down took too long and was aborted\n");
    _exit(1);
}

// daemon_deadline has the process end some seconds after drain.seconds at the latest.
static void daemon_deadline(uint64_t limit_ns)
{
    static uint64_t ns;
    pthread_t thread;
    ns = limit_ns + DAEMON_END_NS;
    if (hth_thread_start("hth-deadline", deadline_main, &ns, &thread) == HTH_OK) {
        pthread_detach(thread);
    }
}

// daemon_become gives root's identity up for the account of the setting `user`, for good, before
// anything is opened: store, sockets and key must be that account's. What root may do beyond it for
// the engine's threads, raise their priority, is kept as a limit.
static hth_err daemon_become(void)
{
    char name[HTH_SETTING_TEXT];
    const struct rlimit nice = {40, 40}; // 20 - nice value: -20
    if (hth_setting_text(HTH_SET_USER, name)[0] == 0) {
        return HTH_OK;
    }
    const struct passwd *p = getpwnam(name);
    if (p == NULL) {
        return hth_fail(HTH_EINVAL, "user: there is no account '%.80s'", name);
    }
    if (geteuid() == p->pw_uid) {
        return HTH_OK;
    }
    if (geteuid() != 0) {
        return hth_fail(HTH_EDENIED, "user: only root can become '%.80s'", name);
    }
    (void)setrlimit(RLIMIT_NICE, &nice);
    if (initgroups(name, p->pw_gid) != 0 || setgid(p->pw_gid) != 0 || setuid(p->pw_uid) != 0) {
        return hth_fail_errno(errno, "user: cannot become '%.80s'", name);
    }
    return HTH_OK;
}

static int daemon_run(hearthd *d)
{
    const char *http = d->options.http[0] != 0 ? d->options.http : NULL;
    const char *metrics = d->options.metrics[0] != 0 ? d->options.metrics : NULL;
    const hth_server_config config = {.store = d->options.store,
                                      .device = d->options.device,
                                      .listen = d->options.listen,
                                      .n_listen = d->options.n_listen,
                                      .http = http,
                                      .metrics = metrics,
                                      .client_shm = d->options.client_shm,
                                      .resume = true,
                                      .child = d->options.child};
    hth_daemon_log_open();
    hth_config_renamed(&d->options.config, &renamed_report);
    if (daemon_become() != HTH_OK) {
        return daemon_fail(1, hth_err_detail());
    }
    if (!signals_open()) {
        return daemon_fail(1, "cannot wait for signals");
    }
    if (hth_server_open(&config, &d->server) != HTH_OK) {
        return daemon_fail(1, hth_err_detail());
    }
    int rv = daemon_loop(d);
    uint64_t limit_ns = (uint64_t)hth_setting_int(HTH_SET_DRAIN_SECONDS) * 1000000000u;
    daemon_deadline(limit_ns);
    if (hth_server_drain(d->server, limit_ns) != HTH_OK) {
        fprintf(stderr, "hearthd: drain.seconds exceeded: %s\n", hth_err_detail());
        _exit(1); // a thread still works for them: there is no other end
    }
    hth_server_close(d->server);
    return rv;
}

// daemon_files lets the process have as many connections as its hard limit allows.
static void daemon_files(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max < DAEMON_FILES ? l.rlim_max : DAEMON_FILES;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

static void daemon_libevent(int severity, const char *sentence)
{
    hth_log(WARN, SERVER, "libevent", "%s", sentence);
}

static void daemon_orphaned(void)
{
    _exit(3);
}

int main(int argc, char **argv)
{
    static hearthd d; // its texts are large
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); // were it ignored, nobody could see how the engine's process ended
    hth_thread_stacks(HTH_THREAD_STACK);
    if (hth_child_requested(argc, argv)) {
        hth_daemon_log_process("engine");
        return hth_child_run(&(hth_child_config){hth_daemon_log_open, daemon_orphaned});
    }
    daemon_files();
    event_set_mem_functions(hth_thread_cache_malloc, hth_thread_cache_realloc,
                            hth_thread_cache_free);
    json_set_alloc_funcs(hth_thread_cache_malloc, hth_thread_cache_free);
    event_set_log_callback(daemon_libevent); // else it writes to stderr by itself
    d.manager = getenv("NOTIFY_SOCKET");
    if (hth_isa_limit(getenv("HEARTH_ISA")) != HTH_OK) {
        return daemon_fail(2, hth_err_detail());
    }
    if (hth_setting_given("cuda.libs", getenv("CUDA_HOME")) != HTH_OK ||
        hth_setting_given("kernels.onednn", getenv("HEARTH_ONEDNN")) != HTH_OK) {
        return daemon_fail(2, hth_err_detail());
    }
    int rv = hth_daemon_options_read(&d.options, argc, argv, getenv("XDG_RUNTIME_DIR"));
    rv = rv >= 0 ? rv : daemon_run(&d);
    hth_daemon_options_fini(&d.options);
    return rv;
}
