// SPDX-License-Identifier: Apache-2.0
// The listeners and the loop's thread: opened, asked to stop, closed.
#include "server/http/http_call.h"

#include "base/thread_cache.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/spin.h"
#include "base/thread.h"
#include "server/net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define HTTP_BACKLOG 128

// ---- lifetime

hth_err hth_http_check(const char *address)
{
    char host[HTH_ADDRESS_HOST];
    int port;
    return hth_address_split(address, host, &port);
}

// http_bind makes a socket that listens at an address, which is numeric.
static hth_err http_bind(const char *address, const char *host, int port, int *out)
{
    const struct addrinfo hint = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE,
                                  .ai_socktype = SOCK_STREAM};
    const char *scheme = strstr(address, "://") != NULL ? "" : "http://";
    struct addrinfo *found = NULL;
    char digits[8];
    int one = 1;
    snprintf(digits, sizeof digits, "%d", port);
    if (getaddrinfo(host, digits, &hint, &found) != 0) {
        return hth_fail(HTH_EINVAL, "cannot listen on %s%s", scheme, address);
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    // Accepted sockets inherit TCP_NODELAY: a reply's last, short segment must not wait for an
    // answer.
    bool listens = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0 &&
                   setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                   setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0 &&
                   bind(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                   listen(fd, HTTP_BACKLOG) == 0;
    int e = errno;
    freeaddrinfo(found);
    if (!listens) {
        if (fd >= 0) {
            close(fd);
        }
        return hth_fail_errno(e, "cannot listen on %s%s", scheme, address);
    }
    *out = fd;
    return HTH_OK;
}

static hth_err http_serve(hth_http *http, hth_http_listener *listener, const char *address)
{
    const unsigned how = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    char host[HTH_ADDRESS_HOST];
    int port = 0, fd = -1;
    HTH_TRY(hth_address_split(address, host, &port));
    HTH_TRY(hth_address_resolve(host));
    HTH_TRY(http_bind(address, host, port, &fd));
    listener->h = http;
    listener->tls = strncmp(address, "https://", 8) == 0;
    listener->accepting = evconnlistener_new(http->base, hth_http_accepted, listener, how, 0, fd);
    if (listener->accepting == NULL) {
        close(fd);
        return hth_fail(HTH_ENOMEM, "cannot make an HTTP server");
    }
    HTH_TRY(hth_accept_guard_open(http->base, listener->accepting, address, &listener->guard));
    hth_log(INFO, SERVER, "listening", "url=%s%s", strstr(address, "://") != NULL ? "" : "http://",
            address);
    return HTH_OK;
}

void hth_http_listener_close(hth_http_listener *listener)
{
    hth_accept_guard_close(listener->guard);
    listener->guard = NULL;
    if (listener->accepting != NULL) {
        evconnlistener_free(listener->accepting);
        listener->accepting = NULL;
    }
}

// http_poll takes what the engine has answered to the loop's requests, on the loop's thread where
// the engine is another process; `on`: it looks again before the loop sleeps.
static bool http_poll(hth_http *http, bool on)
{
    atomic_store(&http->polling, on); // before the look: what is completed after it wakes the loop
    bool came = hth_engine_poll(http->engine, on);
    return hth_http_complete(http) || came;
}

// http_main has the loop look for spin_ns before it sleeps: for requests, and for answers, which
// then come to it without another thread's being woken on their way.
static void http_main(void *arg)
{
    hth_http *h = arg;
    uint64_t until_ns = 0;
    hth_thread_cache_begin();
    while (!h->ended) {
        uint64_t events = h->events, now_ns = hth_real_ns();
        bool on = now_ns < until_ns && now_ns >= hth_spin_suspended_until(),
             came = http_poll(h, on);
        if (!h->ended) {
            event_base_loop(h->base,
                            EVLOOP_ONCE | (on || came ? EVLOOP_NONBLOCK : EVLOOP_NO_EXIT_ON_EMPTY));
        }
        if (came || h->events != events) {
            until_ns = hth_real_after(h->spin_ns);
        } else if (on) {
            sched_yield();
        }
    }
    (void)http_poll(h, false);
    hth_thread_cache_end();
}

// http_loop makes a loop that gathers what is to be watched until it waits: that changes several
// times while a request is served, which would be a system call each.
static struct event_base *http_loop(void)
{
    struct event_config *c = event_config_new();
    struct event_base *base = NULL;
    if (c != NULL && event_config_set_flag(c, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST) == 0) {
        base = event_base_new_with_config(c);
    }
    if (c != NULL) {
        event_config_free(c);
    }
    return base;
}

static hth_err http_start(hth_http *http, const hth_http_config *config)
{
    struct timeval tick = {.tv_usec = HTH_HTTP_TICK_US};
    http->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    char file[HTH_SETTING_TEXT];
    HTH_TRY(hth_shm_open(config->client_shm, config->engine, &http->shm));
    HTH_TRY(hth_tracer_open(hth_setting_text(HTH_SET_TRACE_FILE, file), &http->tracer));
    HTH_TRY(hth_http_dashboard_page_open(http));
    http->base = http_loop();
    if (http->base != NULL) {
        http->wake =
            event_new(http->base, http->wake_fd, EV_READ | EV_PERSIST, hth_http_woken, http);
        http->tick = event_new(http->base, -1, EV_PERSIST, hth_http_ticked, http);
    }
    if (http->wake_fd < 0 || http->wake == NULL || http->tick == NULL ||
        event_add(http->wake, NULL) != 0 || event_add(http->tick, &tick) != 0) {
        return hth_fail(HTH_ENOMEM, "cannot make an HTTP server");
    }
    HTH_TRY(http_serve(http, &http->api, config->address));
    if (config->metrics != NULL) {
        http->metrics.metrics = true;
        HTH_TRY(http_serve(http, &http->metrics, config->metrics));
    }
    hth_machine_read(&http->machine); // the first answer is about the time from here on
    HTH_TRY(hth_thread_start("hth-http", http_main, http, &http->thread));
    http->running = true;
    return HTH_OK;
}

hth_err hth_http_open(const hth_http_config *config, hth_http **out)
{
    *out = NULL;
    hth_http *h = hth_calloc(1, sizeof *h);
    if (h == NULL) {
        return hth_no_memory("an HTTP server");
    }
    pthread_mutex_init(&h->unloaded_lock, NULL);
    h->engine = config->engine;
    h->dispatch = config->dispatch;
    h->callers = config->conns;
    h->allowances = config->allowances;
    h->store = config->store;
    h->jobs = config->jobs;
    h->auth = config->auth;
    h->tls = config->tls;
    h->header_bytes = (uint64_t)hth_setting_int(HTH_SET_HTTP_HEADER_BYTES);
    h->spin_ns = (uint64_t)hth_setting_int(HTH_SET_QUEUE_SPIN_US) * 1000u;
    hth_setting_text(HTH_SET_HTTP_PREFIX, h->prefix);
    h->message_bytes = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    hth_err err = http_start(h, config);
    hth_accept_measure();
    if (err != HTH_OK) {
        hth_http_close(h);
        return err;
    }
    *out = h;
    return HTH_OK;
}

static int listener_port(const hth_http_listener *listener)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (listener->accepting == NULL ||
        getsockname(evconnlistener_get_fd(listener->accepting), (struct sockaddr *)&a, &n) != 0) {
        return 0;
    }
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

int hth_http_port(const hth_http *http)
{
    return listener_port(&http->api);
}

int hth_http_metrics_port(const hth_http *http)
{
    return listener_port(&http->metrics);
}

void hth_http_refuse(hth_http *http)
{
    atomic_store(&http->stopping, true);
    hth_http_wake(http);
}

bool hth_http_busy(hth_http *http)
{
    return atomic_load(&http->n_pending) > 0;
}

int hth_http_cancel(hth_http *http)
{
    atomic_store(&http->cancel, true);
    hth_http_wake(http);
    return atomic_load(&http->n_pending);
}

void hth_http_count(const hth_http *http, uint64_t *answered, uint64_t *refused)
{
    *answered = http->n_answered;
    *refused = http->n_refused;
}

static void http_disconnect(hth_http *http)
{
    hth_http_listener_close(&http->api);
    hth_http_listener_close(&http->metrics);
    while (http->conns != NULL) {
        hth_http_conn_free(http->conns);
    }
}

void hth_http_stop(hth_http *http)
{
    if (http->running) {
        atomic_store(&http->ending, true);
        hth_http_refuse(http);
        hth_thread_join(http->thread);
        http->running = false;
        http_disconnect(http);
    }
}

void hth_http_close(hth_http *http)
{
    if (http == NULL) {
        return;
    }
    hth_http_stop(http);
    hth_http_work_close(
        http->work); // a thread may still be inside the call that woke the loop last
    if (http->wake != NULL) {
        event_free(http->wake);
    }
    if (http->tick != NULL) {
        event_free(http->tick);
    }
    http_disconnect(http);
    hth_http_dashboard_page_close(http);
    hth_http_views_close(http);
    hth_http_lists_close(http);
    hth_json_cache_fini(&http->seen);
    hth_shm_close(http->shm);
    if (http->base != NULL) {
        event_base_free(http->base);
    }
    hth_tracer_close(http->tracer); // what the base ends last may be traced
    if (http->wake_fd >= 0) {
        close(http->wake_fd);
    }
    hth_http_unloaded *u, *next;
    HASH_ITER (hh, http->unloaded, u, next) {
        HASH_DEL(http->unloaded, u);
        hth_free(u);
    }
    pthread_mutex_destroy(&http->unloaded_lock);
    hth_free(http);
}
