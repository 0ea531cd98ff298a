// SPDX-License-Identifier: Apache-2.0
// Calls whose connection was lost: one that comes when it still counts as up, because nng's one
// thread that tells of lost pipes is kept busy for a while; and those after nng has given the
// server up. Connections of our own to a server that has no room yet, and to one that asks for
// another handshake. The server is a socket that does the handshake.
#include "client/exchange.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/test.h"
#include "client/socket.h"
#include "tests/rig/certify.h"

#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HEADER     8 // of SP: a zero byte, "SP", the version, the protocol, two zero bytes
#define TIMEOUT_MS 60000
#define BUSY_MS    1500

typedef struct fixture {
    char dir[64], path[96], url[112];
    int listener, peer;
    sem_t told, go_on;
    atomic_int pipe; // the first one of another connection: its loss keeps nng's thread busy
} fixture;

static int setup(void **state)
{
    fixture *f = test_calloc(1, sizeof *f);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(f->dir, "/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/sock", f->dir);
    snprintf(f->url, sizeof f->url, "ipc://%s", f->path);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", f->path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(f->listener, 1), 0);
    sem_init(&f->told, 0, 0);
    sem_init(&f->go_on, 0, 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    assert_int_equal(test_remove(f->dir), 0);
    sem_destroy(&f->told);
    sem_destroy(&f->go_on);
    test_free(f);
    return 0;
}

static void *serve(void *arg)
{
    static const unsigned char rep[HEADER] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    fixture *f = arg;
    unsigned char theirs[HEADER];
    f->peer = accept(f->listener, NULL, NULL);
    bool met = f->peer >= 0 && send(f->peer, rep, HEADER, MSG_NOSIGNAL) == HEADER &&
               recv(f->peer, theirs, HEADER, MSG_WAITALL) == HEADER;
    return met ? f : NULL;
}

// serve_one hangs up when a request comes, over whichever connection.
static void *serve_one(void *arg)
{
    fixture *f = arg;
    bool asked = false;
    do {
        char c;
        asked = serve(f) != NULL && recv(f->peer, &c, 1, MSG_WAITALL) == 1;
        close(f->peer);
    } while (!asked && f->peer >= 0);
    return asked ? f : NULL;
}

static void remember(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    fixture *f = arg;
    int none = 0;
    atomic_compare_exchange_strong(&f->pipe, &none, nng_pipe_id(p));
}

static void keep_busy(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    fixture *f = arg;
    if ((int)nng_pipe_id(p) != atomic_load(&f->pipe)) {
        return; // the next one
    }
    sem_post(&f->told);
    while (sem_wait(&f->go_on) != 0) {
    }
}

static void *release(void *arg)
{
    fixture *f = arg;
    const struct timespec t = {BUSY_MS / 1000, BUSY_MS % 1000 * 1000000};
    nanosleep(&t, NULL);
    sem_post(&f->go_on);
    return NULL;
}

static void test_lost_unnoticed(void **state)
{
    fixture *f = *state;
    nng_socket a, b;
    hearth *h;
    hearth_options o = {.timeout_ms = TIMEOUT_MS};
    pthread_t server, releaser;
    void *met;
    char *json = NULL;
    // a connection
    assert_int_equal(pthread_create(&server, NULL, serve, f), 0);
    assert_int_equal(hearth_open(f->url, &o, &h), HEARTH_OK);
    pthread_join(server, &met);
    assert_non_null(met);
    // another one's loss is being told of
    assert_int_equal(nng_rep0_open(&a), 0);
    assert_int_equal(nng_req0_open(&b), 0);
    assert_int_equal(nng_pipe_notify(b, NNG_PIPE_EV_ADD_POST, remember, f), 0);
    assert_int_equal(nng_pipe_notify(b, NNG_PIPE_EV_REM_POST, keep_busy, f), 0);
    assert_int_equal(nng_listen(a, "inproc://exchange-test", NULL, 0), 0);
    assert_int_equal(nng_dial(b, "inproc://exchange-test", NULL, 0), 0);
    nng_pipe p = {.id = (uint32_t)atomic_load(&f->pipe)};
    assert_int_equal(nng_pipe_close(p), 0);
    while (sem_wait(&f->told) != 0) {
    }
    // .. while this one is lost
    close(f->listener);
    close(f->peer);
    unlink(f->path);
    assert_int_equal(pthread_create(&releaser, NULL, release, f), 0);
    time_t begun = time(NULL);
    do { // until nng has seen it, calls fail at once
        assert_int_equal(hearth_query(h, "models", NULL, NULL, NULL, &json), HEARTH_EIO);
    } while (strstr(hearth_error(), "no server answers") == NULL &&
             time(NULL) - begun < TIMEOUT_MS / 1000);
    assert_non_null(strstr(hearth_error(), "no server answers"));
    pthread_join(releaser, NULL);
    hearth_close(h);
    nng_close(b);
    nng_close(a);
}

// sendmsg stands in for the C library's, which nng calls: the first one after `end_closed` is set
// meets a socket whose other end is closed.
static atomic_int end_closed;
static sem_t met_closed;

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    if (atomic_exchange(&end_closed, 0) != 0) {
        sem_post(&met_closed);
        errno = EPIPE;
        return -1;
    }
    return syscall(SYS_sendmsg, fd, m, flags);
}

// A server that stops closes the client's next connection before the greeting came. nng then dials
// no more; the client does.
static void test_given_up(void **state)
{
    fixture *f = *state;
    hearth *h;
    pthread_t server;
    void *met;
    char *json = NULL;
    const hearth_options o = {.timeout_ms = TIMEOUT_MS};
    assert_int_equal(pthread_create(&server, NULL, serve, f), 0);
    assert_int_equal(hearth_open(f->url, &o, &h), HEARTH_OK);
    pthread_join(server, &met);
    assert_non_null(met);
    sem_init(&met_closed, 0, 0);
    atomic_store(&end_closed, 1);
    close(f->peer);
    while (sem_wait(&met_closed) != 0) {
    }
    assert_int_equal(atomic_load(&end_closed), 0);
    close(accept(f->listener, NULL, NULL)); // what nng had connected
    assert_int_equal(pthread_create(&server, NULL, serve_one, f), 0);
    time_t begun = time(NULL);
    do { // a slow machine takes longer to connect than a call waits for that
        assert_int_equal(hearth_query(h, "models", NULL, NULL, NULL, &json), HEARTH_EIO);
    } while (strstr(hearth_error(), "no server answers") != NULL &&
             time(NULL) - begun < TIMEOUT_MS / 1000);
    shutdown(f->listener, SHUT_RDWR); // nobody comes who has not come yet
    pthread_join(server, &met);
    assert_non_null(met);
    assert_non_null(strstr(hearth_error(), "was lost before the answer came"));
    hearth_close(h);
    sem_destroy(&met_closed);
    close(f->listener);
    unlink(f->path);
}

// A question's own words take the place of arguments that name a document, which is read before.
static void test_words_and_arguments(void **state)
{
    fixture *f = *state;
    hearth *h;
    pthread_t server;
    void *met;
    char *json = NULL, arguments[160];
    int64_t live = 0;
    const hearth_options o = {.timeout_ms = 1};
    assert_int_equal(pthread_create(&server, NULL, serve, f), 0);
    assert_int_equal(hearth_open(f->url, &o, &h), HEARTH_OK);
    pthread_join(server, &met);
    assert_non_null(met);
    close(f->listener);
    close(f->peer);
    unlink(f->path);
    FILE *document = fopen(f->path, "w");
    assert_non_null(document);
    fputs("{}", document);
    fclose(document);
    snprintf(arguments, sizeof arguments, "{\"problem\": \"%s\"}", f->path);
    for (int i = 0; i < 3; i++) { // what the first one leaves is for the others
        assert_int_not_equal(hearth_query(h, "model m", arguments, NULL, NULL, &json), HEARTH_OK);
        assert_true(i == 0 || hth_alloc_live() == live);
        live = hth_alloc_live();
    }
    hearth_close(h);
}

// ---- connections of our own

static uint64_t patience(void)
{
    return hth_now_ns() + TIMEOUT_MS * UINT64_C(1000000);
}

typedef struct comer {
    const fixture *f;
    atomic_int thread;
    atomic_bool ended;
    hth_err err;
} comer;

static void *come(void *arg)
{
    comer *c = arg;
    hth_socket *s = NULL;
    atomic_store(&c->thread, (int)syscall(SYS_gettid));
    c->err = hth_socket_open(c->f->url, NULL, patience(), &s);
    hth_socket_close(s);
    atomic_store(&c->ended, true);
    return NULL;
}

// Does the thread wait for something?
static bool waits(int thread)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(path, "r");
    const char *name =
        file != NULL && fgets(text, sizeof text, file) != NULL ? strrchr(text, ')') : NULL;
    if (file != NULL) {
        fclose(file);
    }
    return name != NULL && name[1] == ' ' && name[2] == 'S';
}

// Who comes to a full queue waits for room in it.
static void test_full_queue(void **state)
{
    fixture *f = *state;
    comer c = {.f = f};
    hth_socket *s;
    pthread_t thread;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int queue[64], n = 0, rv;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", f->path);
    do {
        queue[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        rv = connect(queue[n], (struct sockaddr *)&a, sizeof a);
    } while (rv == 0 && ++n < 64);
    assert_true(n > 0 && rv != 0 && errno == EAGAIN);
    close(queue[n]);
    assert_int_equal(hth_socket_open(f->url, NULL, hth_now_ns(), &s), HTH_ETIMEDOUT);
    assert_non_null(strstr(hth_err_detail(), "queue"));
    assert_int_equal(pthread_create(&thread, NULL, come, &c), 0);
    while (!atomic_load(&c.ended) &&
           (atomic_load(&c.thread) == 0 || !waits(atomic_load(&c.thread)))) {
        sched_yield();
    }
    for (int i = 0; i < n; i++) {
        close(accept(f->listener, NULL, NULL));
        close(queue[i]);
    }
    pthread_join(thread, NULL);
    assert_ok(c.err);
    close(f->listener);
    unlink(f->path);
}

typedef struct asker {
    int listener, got, reason; // got: what SSL_read returned after all, and why
    SSL_CTX *context;
} asker;

// A server of TLS 1.2 that asks for another handshake, and then reads.
static void *ask_again(void *arg)
{
    asker *a = arg;
    char c;
    int fd = accept(a->listener, NULL, NULL);
    SSL *ssl = SSL_new(a->context);
    bool asked = SSL_set_fd(ssl, fd) == 1 && SSL_accept(ssl) == 1 && SSL_renegotiate(ssl) == 1 &&
                 SSL_do_handshake(ssl) == 1 && SSL_write(ssl, "x", 1) == 1;
    ERR_clear_error();
    a->got = SSL_read(ssl, &c, 1);
    a->reason = ERR_GET_REASON(ERR_peek_last_error());
    ERR_clear_error();
    SSL_free(ssl);
    close(fd);
    return asked ? a : NULL;
}

static void test_no_other_handshake(void **state)
{
    fixture *f = *state;
    char cert[96], key[96], url[64], c = 0;
    asker a = {.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
               .context = SSL_CTX_new(TLS_server_method())};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    hth_socket *s;
    pthread_t server;
    void *asked;
    snprintf(cert, sizeof cert, "%s/cert", f->dir);
    snprintf(key, sizeof key, "%s/key", f->dir);
    certify(cert, key);
    assert_int_equal(SSL_CTX_set_max_proto_version(a.context, TLS1_2_VERSION), 1);
    assert_int_equal(SSL_CTX_use_certificate_file(a.context, cert, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(a.context, key, SSL_FILETYPE_PEM), 1);
    assert_int_equal(bind(a.listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(a.listener, 1), 0);
    assert_int_equal(getsockname(a.listener, (struct sockaddr *)&at, &size), 0);
    snprintf(url, sizeof url, "tls+tcp://localhost:%d", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&server, NULL, ask_again, &a), 0);
    assert_ok(hth_socket_open(url, cert, patience(), &s));
    assert_ok(hth_socket_read(s, &c, 1, patience()));
    assert_int_equal(c, 'x');
    assert_ok(hth_socket_write(s, "y", 1, patience()));
    pthread_join(server, &asked);
    assert_non_null(asked);
    assert_true(a.got <= 0);
    assert_int_equal(a.reason, SSL_R_NO_RENEGOTIATION);
    hth_socket_close(s);
    SSL_CTX_free(a.context);
    close(a.listener);
    close(f->listener);
    unlink(f->path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lost_unnoticed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_words_and_arguments, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_queue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_other_handshake, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
