// SPDX-License-Identifier: Apache-2.0
// HTTPS with peers that send what has nothing for us: it takes no more of a turn than any other.
#include "server/http/http_call.h"

#include "tests/rig/certify.h"
#include "tests/rig/fake_http_rig.h"

#include <openssl/err.h>

#include <fcntl.h>

#define UPDATES 3000 // new keys in a row

static int tls_setup(void **state)
{
    char cert[128], key[128];
    server_rig *f = calloc(1, sizeof *f);
    server_rig_make(f);
    snprintf(cert, sizeof cert, "%s/cert", f->dir);
    snprintf(key, sizeof key, "%s/key", f->dir);
    certify(cert, key);
    assert_ok(hth_setting_set("tls.cert", cert));
    assert_ok(hth_setting_set("tls.key", key));
    *state = f;
    return 0;
}

static int tls_teardown(void **state)
{
    server_rig_end(*state);
    hth_setting_reset();
    free(*state);
    return 0;
}

// ---- a client, whose records go when it is told so

typedef struct secure {
    int fd;
    SSL_CTX *context;
    SSL *ssl;
} secure;

static secure secure_begin(int fd)
{
    secure s = {.fd = fd, .context = SSL_CTX_new(TLS_client_method())};
    s.ssl = SSL_new(s.context);
    SSL_set_bio(s.ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(s.ssl);
    return s;
}

static void secure_push(secure *s)
{
    char *records;
    long n = BIO_get_mem_data(SSL_get_wbio(s->ssl), &records);
    push(s->fd, records, (size_t)n);
    assert_int_equal(BIO_reset(SSL_get_wbio(s->ssl)), 1);
}

static void secure_pull(secure *s)
{
    char records[4096];
    ssize_t n = recv(s->fd, records, sizeof records, 0);
    assert_true(n > 0);
    assert_int_equal(BIO_write(SSL_get_rbio(s->ssl), records, (int)n), n);
}

// secure_updates says `text` after many new keys, all at once.
static void secure_updates(secure *s, const char *text)
{
    for (int i = 0; i < UPDATES; i++) {
        assert_int_equal(SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(s->ssl), 1);
    }
    assert_int_equal(SSL_write(s->ssl, text, (int)strlen(text)), strlen(text));
    secure_push(s);
}

static void secure_end(secure *s)
{
    SSL_free(s->ssl);
    SSL_CTX_free(s->context);
    close(s->fd);
    ERR_clear_error();
}

// ---- tests

// The loop goes on with others after some records, and then with these again.
static void test_turns(void **state)
{
    static hth_http http;
    hth_http_conn conn = {.h = &http};
    char got[8];
    int fd[2], turns = 0, shaken = 0;
    ssize_t n = HTH_HTTP_AGAIN;
    (void)state;
    assert_ok(hth_tls_open(&http.tls));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    conn.fd = fd[0];
    fcntl(conn.fd, F_SETFL, O_NONBLOCK);
    assert_true(hth_http_io_secure(&conn));
    secure s = secure_begin(fd[1]);
    while (shaken != 1) {
        shaken = SSL_do_handshake(s.ssl);
        secure_push(&s);
        assert_int_equal(hth_http_io_read(&conn, got, sizeof got), HTH_HTTP_AGAIN);
        secure_pull(&s);
    }
    secure_updates(&s, "hello");
    for (; n == HTH_HTTP_AGAIN; turns++) {
        conn.reads = HTH_TLS_READS;
        n = hth_http_io_read(&conn, got, sizeof got);
    }
    assert_int_equal(n, 5);
    assert_memory_equal(got, "hello", 5);
    assert_true(turns > UPDATES / HTH_TLS_READS);
    SSL_free(conn.ssl);
    close(conn.fd);
    secure_end(&s);
    hth_tls_close(http.tls);
}

// A request after them is answered: no turn is forgotten.
static void test_served(void **state)
{
    static const char want[] = "HTTP/1.1 200 ";
    server_rig *f = *state;
    char got[sizeof want - 1];
    hth_server_config config = {.store = f->store, .http = "https://127.0.0.1:0"};
    assert_ok(hth_server_open(&config, &f->server));
    secure s = secure_begin(dial(hth_server_http_port(f->server)));
    while (SSL_do_handshake(s.ssl) != 1) {
        secure_push(&s);
        secure_pull(&s);
    }
    for (int i = 0; i < 3; i++) {
        size_t n = 0;
        secure_updates(&s, "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n");
        while (n < sizeof got) {
            int more = SSL_read(s.ssl, got + n, (int)(sizeof got - n));
            n += more > 0 ? (size_t)more : 0;
            if (more <= 0) {
                assert_int_equal(SSL_get_error(s.ssl, more), SSL_ERROR_WANT_READ);
                secure_pull(&s);
            }
        }
        assert_memory_equal(got, want, sizeof got);
        while (SSL_pending(s.ssl) > 0) {
            char rest[256];
            assert_true(SSL_read(s.ssl, rest, sizeof rest) > 0);
        }
    }
    secure_end(&s);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, tls_setup, tls_teardown)
    const struct CMUnitTest tests[] = {T(test_turns), T(test_served)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
