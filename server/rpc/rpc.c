// SPDX-License-Identifier: Apache-2.0
// The loop: listeners, the thread, what other threads ask of it, and its end.
#include "server/rpc/rpc_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// How often it is looked for what takes too long.
#define RPC_TICK_US (200 * 1000)
// Connections that wait to be accepted.
#define RPC_BACKLOG 4096
// .. and that are accepted in one go.
#define RPC_ACCEPTS 64

// ---- other threads

static _Thread_local const hth_rpc *rpc_mine; // whose loop the calling thread is

bool hth_rpc_on_loop(const hth_rpc *rpc)
{
    return rpc_mine == rpc;
}

void hth_rpc_wake(hth_rpc *rpc)
{
    uint64_t one = 1;
    pthread_mutex_lock(&rpc->lock);
    bool woken = rpc->woken;
    rpc->woken = true;
    pthread_mutex_unlock(&rpc->lock);
    if (!woken) {
        ssize_t n = write(rpc->wake_fd, &one, sizeof one);
        (void)n; // fails only when the count is at its end, and then the loop is awake
    }
}

void hth_rpc_touch(hth_rpc_conn *conn)
{
    hth_rpc *r = conn->r;
    pthread_mutex_lock(&r->lock);
    bool fresh = !conn->touched;
    if (fresh) {
        conn->touched = true;
        hth_rpc_conn_hold(conn);
        conn->next_touched = r->touched;
        r->touched = conn;
    }
    pthread_mutex_unlock(&r->lock);
    if (fresh) {
        hth_rpc_wake(r);
    }
}

// rpc_freed is called when a place for requests is free.
static void rpc_freed(void *ctx)
{
    hth_rpc *r = ctx;
    if (atomic_load(&r->n_waiters) > 0) {
        hth_rpc_wake(r);
    }
}

// ---- on the loop

static bool rpc_sending(const hth_rpc *rpc)
{
    const hth_rpc_conn *c = rpc->conns;
    while (c != NULL && atomic_load(&c->out_bytes) == 0) {
        c = c->next;
    }
    return c != NULL;
}

static void rpc_disconnect(hth_rpc *rpc)
{
    while (rpc->conns != NULL) {
        hth_rpc_conn_close(rpc->conns);
    }
}

// rpc_stopping ends the loop once nothing goes out any more, or too long.
static void rpc_stopping(hth_rpc *rpc)
{
    if (rpc->stop_ns == 0) {
        return;
    }
    for (int i = 0; i < rpc->n_listeners; i++) {
        evconnlistener_disable(rpc->listener[i].listener);
    }
    if (!rpc_sending(rpc) || hth_now_ns() >= rpc->stop_ns) {
        rpc_disconnect(rpc);
        rpc->ended = true;
        event_base_loopbreak(rpc->base);
    }
}

static void rpc_woken(evutil_socket_t fd, short what, void *arg)
{
    hth_rpc *r = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
    pthread_mutex_lock(&r->lock);
    r->woken = false;
    hth_rpc_conn *c = r->touched;
    r->touched = NULL;
    r->stop_ns = r->stop_asked_ns;
    pthread_mutex_unlock(&r->lock);
    while (c != NULL) { // who is touched before its turn has come keeps its place in this list
        pthread_mutex_lock(&r->lock);
        hth_rpc_conn *next = c->next_touched;
        c->touched = false;
        pthread_mutex_unlock(&r->lock);
        hth_rpc_conn_schedule(c);
        hth_rpc_conn_settle(c);
        hth_rpc_conn_rele(c);
        c = next;
    }
    hth_rpc_waiters_run(r);
    rpc_stopping(r);
}

static void rpc_ticked(evutil_socket_t fd, short what, void *arg)
{
    hth_rpc *r = arg;
    uint64_t now_ns = hth_now_ns();
    for (hth_rpc_conn *c = r->conns, *next; c != NULL; c = next) {
        next = c->next;
        hth_rpc_conn_look(c, now_ns);
    }
    hth_rpc_conn_shut_out(r, false);
    hth_rpc_waiters_run(r);
    rpc_stopping(r);
}

static void rpc_shake(evutil_socket_t fd, short what, void *arg)
{
    hth_rpc_shake_run(arg);
}

// rpc_accepted rests after some: libevent accepts as long as anybody comes.
static void rpc_accepted(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n,
                         void *arg)
{
    static const struct timeval soon = {0};
    hth_rpc_listener *mine = arg;
    if (mine->n_round++ == 0) {
        event_add(mine->again, &soon); // after what else is ready
    }
    hth_rpc_conn_accept(mine, fd, a);
    if (mine->n_round == RPC_ACCEPTS) {
        evconnlistener_disable(l);
    }
}

static void rpc_accept_again(evutil_socket_t fd, short what, void *arg)
{
    hth_rpc_listener *l = arg;
    bool rested = l->n_round >= RPC_ACCEPTS && l->r->stop_ns == 0;
    l->n_round = 0;
    if (rested) {
        evconnlistener_enable(l->listener);
    }
}

static void rpc_main(void *arg)
{
    hth_rpc *r = arg;
    rpc_mine = r;
    while (!r->ended) {
        event_base_loop(r->base, EVLOOP_NO_EXIT_ON_EMPTY);
    }
}

// ---- listening

static hth_err rpc_bind(const char *url, const struct sockaddr *a, socklen_t n, int *fd)
{
    int one = 1;
    *fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) {
        return hth_fail_errno(errno, "cannot make a socket for %s", url);
    }
    if (a->sa_family != AF_UNIX) {
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    }
    if (bind(*fd, a, n) != 0 || listen(*fd, RPC_BACKLOG) != 0) {
        hth_err err = hth_fail_errno(errno, "cannot listen on %s", url);
        close(*fd);
        *fd = -1;
        return err;
    }
    return HTH_OK;
}

static hth_err rpc_bind_path(const char *url, const char *path, int *fd)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path || path[0] == 0) {
        return hth_fail(HTH_EINVAL, "the socket's path is too long, or none: %s", url);
    }
    strcpy(a.sun_path, path);
    return rpc_bind(url, (const struct sockaddr *)&a, sizeof a, fd);
}

// rpc_bind_host binds to HOST:PORT; the host "*" or none is all of this machine's addresses.
static hth_err rpc_bind_host(const char *url, const char *address, int *fd)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    struct addrinfo *found = NULL;
    const struct addrinfo hint = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                  .ai_socktype = SOCK_STREAM};
    size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    bool bracketed = n > 1 && address[0] == '[' && address[n - 1] == ']';
    const char *from = bracketed ? address + 1 : address;
    n -= bracketed ? 2 : 0;
    if (colon == NULL || n >= sizeof host) {
        return hth_fail(HTH_EINVAL, "'%s' is not tcp://HOST:PORT", url);
    }
    memcpy(host, from, n);
    host[n] = 0;
    bool any = n == 0 || strcmp(host, "*") == 0;
    int rv = hth_resolve(any ? NULL : host, colon + 1, &hint, &found);
    if (rv != 0) {
        return hth_fail(HTH_EINVAL, "cannot listen on %s: %s", url, gai_strerror(rv));
    }
    hth_err err = rpc_bind(url, found->ai_addr, found->ai_addrlen, fd);
    freeaddrinfo(found);
    return err;
}

hth_err hth_rpc_listen(hth_rpc *rpc, const char *url)
{
    const unsigned how = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    bool local = strncmp(url, "ipc://", 6) == 0, tls = strncmp(url, "tls+tcp://", 10) == 0;
    int fd = -1;
    if (rpc->n_listeners == HTH_RPC_LISTENERS) {
        return hth_fail(HTH_EINVAL, "more than %d urls to listen on", HTH_RPC_LISTENERS);
    }
    if (!local && !tls && strncmp(url, "tcp://", 6) != 0) {
        return hth_fail(HTH_EINVAL, "cannot listen on %s: it is not ipc://, tcp:// or tls+tcp://",
                        url);
    }
    HTH_TRY(local ? rpc_bind_path(url, url + 6, &fd)
                  : rpc_bind_host(url, strstr(url, "://") + 3, &fd));
    hth_rpc_listener *l = &rpc->listener[rpc->n_listeners];
    *l = (hth_rpc_listener){.r = rpc, .local = local, .tls = tls};
    l->again = evtimer_new(rpc->base, rpc_accept_again, l);
    l->listener =
        l->again != NULL ? evconnlistener_new(rpc->base, rpc_accepted, l, how, 0, fd) : NULL;
    if (l->listener == NULL) {
        if (l->again != NULL) {
            event_free(l->again);
        }
        close(fd);
        return hth_no_memory("a listener");
    }
    rpc->n_listeners++;
    HTH_TRY(hth_accept_guard_open(rpc->base, l->listener, url, &l->guard));
    hth_accept_guard_let_wait(l->guard); // nng's clients give up who refuses them
    return HTH_OK;
}

// ---- lifetime

hth_err hth_rpc_open(const hth_rpc_config *config, hth_rpc **out)
{
    const struct timeval tick = {.tv_usec = RPC_TICK_US};
    hth_rpc *r = hth_calloc(1, sizeof *r);
    *out = NULL;
    if (r == NULL) {
        return hth_no_memory("a front end");
    }
    r->config = *config;
    r->tokens = config->auth != NULL && hth_auth_has_tokens(config->auth);
    r->last_waiter = &r->waiters;
    memset(r->leaving, -1, sizeof r->leaving);
    pthread_mutex_init(&r->lock, NULL);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->base = event_base_new();
    if (r->base != NULL && r->wake_fd >= 0) {
        r->wake = event_new(r->base, r->wake_fd, EV_READ | EV_PERSIST, rpc_woken, r);
        r->tick = event_new(r->base, -1, EV_PERSIST, rpc_ticked, r);
        r->shake = evtimer_new(r->base, rpc_shake, r);
    }
    if (r->wake == NULL || r->tick == NULL || r->shake == NULL || event_add(r->wake, NULL) != 0 ||
        event_add(r->tick, &tick) != 0) {
        hth_rpc_close(r);
        return hth_no_memory("a front end");
    }
    *out = r;
    return HTH_OK;
}

hth_err hth_rpc_start(hth_rpc *rpc)
{
    if (rpc->config.dispatch != NULL) {
        hth_dispatch_watch(rpc->config.dispatch, rpc_freed, rpc);
    }
    HTH_TRY(hth_thread_start(rpc->config.name, rpc_main, rpc, &rpc->thread));
    rpc->running = true;
    return HTH_OK;
}

void hth_rpc_stop(hth_rpc *rpc, uint64_t linger_ns)
{
    if (rpc->running) {
        pthread_mutex_lock(&rpc->lock);
        rpc->stop_asked_ns = hth_now_ns() + linger_ns;
        pthread_mutex_unlock(&rpc->lock);
        hth_rpc_wake(rpc);
        hth_thread_join(rpc->thread);
        rpc->running = false;
    }
}

void hth_rpc_close(hth_rpc *rpc)
{
    if (rpc == NULL) {
        return;
    }
    hth_rpc_stop(rpc, 0);
    if (rpc->config.dispatch != NULL) {
        hth_dispatch_unwatch(rpc->config.dispatch, rpc);
    }
    for (int i = 0; i < rpc->n_listeners; i++) {
        hth_accept_guard_close(rpc->listener[i].guard);
        evconnlistener_free(rpc->listener[i].listener);
        event_free(rpc->listener[i].again);
    }
    hth_rpc_conn_shut_out(rpc, true);
    while (rpc->touched != NULL) {
        hth_rpc_conn *c = rpc->touched;
        rpc->touched = c->next_touched;
        hth_rpc_conn_rele(c);
    }
    if (rpc->wake != NULL) {
        event_free(rpc->wake);
    }
    if (rpc->tick != NULL) {
        event_free(rpc->tick);
    }
    if (rpc->shake != NULL) {
        event_free(rpc->shake);
    }
    if (rpc->base != NULL) {
        event_base_free(rpc->base);
    }
    if (rpc->wake_fd >= 0) {
        close(rpc->wake_fd);
    }
    pthread_mutex_destroy(&rpc->lock);
    hth_free(rpc);
}
