// SPDX-License-Identifier: Apache-2.0
// The listeners and the loop's thread: opened, asked to stop, closed.
#include "server/http/http_call.h"

#include "base/keep.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/spin.h"
#include "base/thread.h"
#include "server/net/address.h"

#include <event2/http_struct.h>
#include <event2/listener.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

// ---- requests

// http_version: the version of an answer is the server's, not one that the client made up.
static void http_version(struct evhttp_request *req)
{
    req->minor = req->major == 1 && req->minor > 1 ? 1 : req->minor;
}

static void http_requested(struct evhttp_request *req, void *arg)
{
    hth_http *h = ((const hth_http_door *)arg)->h;
    http_version(req);
    if (atomic_load(&h->stopping)) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Connection", "close");
        h->n_refused++;
        hth_http_fail(h, req, HTTP_SERVUNAVAIL, "Server exiting");
    } else if (hth_http_validate(h, req)) {
        hth_http_route(h, req);
    }
}

// ---- lifetime

hth_err hth_http_check(const char *address)
{
    char host[HTH_ADDRESS_HOST];
    int port;
    return hth_address_split(address, host, &port);
}

static void metrics_requested(struct evhttp_request *req, void *arg)
{
    hth_http *h = ((const hth_http_door *)arg)->h;
    http_version(req);
    if (hth_http_validate(h, req) && hth_http_auth(h, req, HTH_NEED_ANY)) {
        hth_http_metrics(h, req);
    }
}

static hth_err http_listen(hth_http_door *door, const char *address)
{
    char host[HTH_ADDRESS_HOST];
    int port = 0, one = 1;
    HTH_TRY(hth_address_split(address, host, &port));
    HTH_TRY(hth_address_resolve(host)); // libevent does not say that there is none
    const char *scheme = strstr(address, "://") != NULL ? "" : "http://";
    door->bound = evhttp_bind_socket_with_handle(door->http, host, (ev_uint16_t)port);
    if (door->bound == NULL) {
        return hth_fail_errno(errno, "cannot listen on %s%s", scheme, address);
    }
    // Accepted sockets inherit it: a reply's last, short segment must not wait for an answer.
    setsockopt(evhttp_bound_socket_get_fd(door->bound), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    HTH_TRY(hth_accept_guard_open(door->h->base, evhttp_bound_socket_get_listener(door->bound),
                                  address, &door->guard));
    hth_log(INFO, SERVER, "listening", "url=%s%s", scheme, address);
    return HTH_OK;
}

void hth_http_door_close(hth_http_door *door)
{
    hth_accept_guard_close(door->guard);
    door->guard = NULL;
    if (door->bound != NULL) {
        evhttp_del_accept_socket(door->http, door->bound);
        door->bound = NULL;
    }
}

static hth_err http_serve(hth_http *h, hth_http_door *door, const char *address,
                          void (*requested)(struct evhttp_request *req, void *door))
{
    struct evhttp *http = door->http = evhttp_new(h->base);
    if (http == NULL) {
        return hth_fail(HTH_ENOMEM, "cannot make an HTTP server");
    }
    door->h = h;
    door->tls = strncmp(address, "https://", 8) == 0;
    evhttp_set_max_headers_size(http, (ev_ssize_t)h->header_bytes);
    evhttp_set_max_body_size(http, (ev_ssize_t)h->message_bytes);
    evhttp_set_timeout(http, (int)hth_setting_int(HTH_SET_HTTP_IDLE_SECONDS));
    evhttp_set_default_content_type(http, NULL);
    // Every verb comes to the router, which answers 405 in JSON.
    evhttp_set_allowed_methods(http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
                                         EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS |
                                         EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
    evhttp_set_bevcb(http, hth_http_bufferevent, door);
    evhttp_set_gencb(http, requested, door);
    return http_listen(door, address);
}

// http_look takes what the engine has answered to the loop's requests, on the loop's thread where
// the engine is another process; `on`: it looks again before the loop sleeps.
static bool http_look(hth_http *h, bool on)
{
    atomic_store(&h->looking, on); // before the look: what is completed behind it wakes the loop
    bool came = hth_engine_look(h->engine, on);
    return hth_http_complete(h) || came;
}

// http_main has the loop look for spin_ns before it sleeps: for requests, and for answers, which
// then come to it without another thread's being woken on their way.
static void http_main(void *arg)
{
    hth_http *h = arg;
    uint64_t until_ns = 0;
    hth_keep_begin();
    while (!h->ended) {
        uint64_t events = h->events, now_ns = hth_real_ns();
        bool on = now_ns < until_ns && now_ns >= hth_spin_rests(), came = http_look(h, on);
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
    (void)http_look(h, false);
    hth_keep_end();
}

// http_loop makes a loop that gathers what is to be watched until it waits: evhttp changes its mind
// about a connection several times for each request, which would be a system call each.
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

static hth_err http_start(hth_http *h, const hth_http_config *config)
{
    struct timeval tick = {.tv_usec = HTH_HTTP_TICK_US};
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    char file[HTH_SETTING_TEXT];
    HTH_TRY(hth_shm_open(config->client_shm, config->engine, &h->shm));
    HTH_TRY(hth_tracer_open(hth_setting_text(HTH_SET_TRACE_FILE, file), &h->tracer));
    HTH_TRY(hth_http_dashboard_page_open(h));
    h->base = http_loop();
    if (h->base != NULL) {
        h->wake = event_new(h->base, h->wake_fd, EV_READ | EV_PERSIST, hth_http_woken, h);
        h->tick = event_new(h->base, -1, EV_PERSIST, hth_http_ticked, h);
        h->admit = event_new(h->base, -1, 0, hth_http_admit, h);
    }
    if (h->wake_fd < 0 || h->wake == NULL || h->tick == NULL || h->admit == NULL ||
        event_add(h->wake, NULL) != 0 || event_add(h->tick, &tick) != 0) {
        return hth_fail(HTH_ENOMEM, "cannot make an HTTP server");
    }
    HTH_TRY(http_serve(h, &h->api, config->address, http_requested));
    if (config->metrics != NULL) {
        HTH_TRY(http_serve(h, &h->metrics, config->metrics, metrics_requested));
    }
    hth_machine_read(&h->machine); // the first answer is about the time from here on
    HTH_TRY(hth_thread_start("hth-http", http_main, h, &h->thread));
    h->running = true;
    return HTH_OK;
}

hth_err hth_http_open(const hth_http_config *config, hth_http **out)
{
    *out = NULL;
    hth_http *h = hth_calloc(1, sizeof *h);
    if (h == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an HTTP server");
    }
    pthread_mutex_init(&h->unloaded_lock, NULL);
    h->engine = config->engine;
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

static int bound_port(struct evhttp_bound_socket *bound)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (bound == NULL ||
        getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&a, &n) != 0) {
        return 0;
    }
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

int hth_http_port(const hth_http *h)
{
    return bound_port(h->api.bound);
}

int hth_http_metrics_port(const hth_http *h)
{
    return bound_port(h->metrics.bound);
}

void hth_http_refuse(hth_http *h)
{
    atomic_store(&h->stopping, true);
    hth_http_wake(h);
}

bool hth_http_busy(hth_http *h)
{
    return atomic_load(&h->n_pending) > 0;
}

int hth_http_cancel(hth_http *h)
{
    atomic_store(&h->cancel, true);
    hth_http_wake(h);
    return atomic_load(&h->n_pending);
}

void hth_http_count(const hth_http *h, uint64_t *answered, uint64_t *refused)
{
    *answered = h->n_answered;
    *refused = h->n_refused;
}

static void http_disconnect(hth_http *h)
{
    hth_http_door *doors[] = {&h->api, &h->metrics};
    hth_http_admit(-1, 0, h); // what was accepted last, so that it is freed as the others are
    for (int i = 0; i < 2; i++) {
        hth_http_door_close(doors[i]);
        if (doors[i]->http != NULL) {
            evhttp_free(doors[i]->http);
        }
        *doors[i] = (hth_http_door){.h = h};
    }
}

void hth_http_stop(hth_http *h)
{
    if (h->running) {
        atomic_store(&h->ending, true);
        hth_http_refuse(h);
        hth_thread_join(h->thread);
        h->running = false;
        http_disconnect(h);
    }
}

void hth_http_close(hth_http *h)
{
    if (h == NULL) {
        return;
    }
    hth_http_stop(h);
    hth_http_work_close(h->work); // a thread may still be inside the call that woke the loop last
    if (h->wake != NULL) {
        event_free(h->wake);
    }
    if (h->tick != NULL) {
        event_free(h->tick);
    }
    http_disconnect(h);
    if (h->admit != NULL) {
        event_free(h->admit);
    }
    hth_http_dashboard_page_close(h);
    hth_http_views_close(h);
    hth_http_lists_close(h);
    hth_head_cache_fini(&h->seen);
    hth_shm_close(h->shm);
    if (h->base != NULL) {
        event_base_free(h->base);
    }
    hth_tracer_close(h->tracer); // what the base ends last may be traced
    if (h->wake_fd >= 0) {
        close(h->wake_fd);
    }
    hth_http_unloaded *u, *next;
    HASH_ITER (hh, h->unloaded, u, next) {
        HASH_DEL(h->unloaded, u);
        hth_free(u);
    }
    pthread_mutex_destroy(&h->unloaded_lock);
    hth_free(h);
}
