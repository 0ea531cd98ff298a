// SPDX-License-Identifier: Apache-2.0
// HTTP requests that are not answered at once, with an engine that holds them: a client that hangs
// up, also while something waits to be sent, and a server that stops meanwhile.
#include "server/net/account.h"
#include "tests/rig/fake_http_rig.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>

// What becomes of `100 Continue`: all of it is sent; a part is, and the rest waits; or it fails.
static enum { GO_ON_WHOLE, GO_ON_WAITS, GO_ON_FAILS } _Atomic go_on;
static atomic_int go_on_waits, go_on_failed;

// writev is what libevent writes its buffers with. A socket cannot be filled just short of `100
// Continue`: what fills it is an answer, and until that has left no other request is read.
__attribute__((visibility("default"))) ssize_t writev(int fd, const struct iovec *v, int n)
{
    static const char line[] = "HTTP/1.1 100 ";
    bool begins = n == 1 && v[0].iov_len > 5 && memcmp(v[0].iov_base, line, 5) == 0;
    if (atomic_load(&go_on) == GO_ON_WHOLE) {
        return syscall(SYS_writev, fd, v, n);
    }
    if (atomic_load(&go_on) == GO_ON_FAILS) {
        atomic_store(&go_on, GO_ON_WHOLE);
        atomic_store(&go_on_failed, 1);
        errno = ECONNRESET;
        return -1;
    }
    if (begins) {
        return write(fd, line, 5);
    }
    atomic_store(&go_on_waits, 1);
    errno = EAGAIN;
    return -1;
}

static void expect_status(int fd, int status, const char *words)
{
    reply r = pull(fd, true);
    assert_int_equal(r.status, status);
    assert_non_null(strstr(r.body, words));
    reply_free(&r);
    close(fd);
}

static void test_hang_up(void **state)
{
    int first = fake_http_hold(*state);
    int second = fake_http_seven(*state, "hold", "");
    close(first);
    fake_wait(&fake_canceled, 1);
    fake_wait(&fake_held, 1);
    atomic_store(&fake_released, 1);
    expect_status(second, 200, "\"data\":[7.0]");
}

// A client that resets its connection while the rest of `100 Continue` waits to be sent: its call,
// which is at work, keeps the connection until it has answered.
static void test_reset(void **state)
{
    static const char json[] =
        "{\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[7]}]}";
    static const struct linger now = {.l_onoff = 1};
    char head[200];
    int fd = dial(((server_rig *)*state)->port);
    atomic_store(&go_on, GO_ON_WAITS);
    int n = snprintf(head, sizeof head,
                     "POST /v2/models/stuck/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     sizeof json - 1);
    push(fd, head, (size_t)n);
    fake_wait(&go_on_waits, 1);
    push(fd, json, sizeof json - 1);
    fake_wait(&fake_held, 1);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    close(fd);
    atomic_store(&go_on, GO_ON_FAILS);
    fake_wait(&go_on_failed, 1);
    atomic_store(&fake_released, 1);
    expect_status(fake_http_seven(*state, "m", ""), 200, "\"data\":[7.0]");
    for (int i = 0; i < FAKE_PATIENCE && hth_account_bytes() > 0; i++) {
        fake_nap();
    }
    assert_int_equal(hth_account_bytes(), 0);
}

// Priority and timeout reach the engine; what is neither does not.
static void test_queueing(void **state)
{
    expect_status(fake_http_seven(*state, "m", "\"priority\":3,\"timeout\":250000"), 200,
                  "\"data\":[7.0]");
    assert_int_equal(atomic_load(&fake_last_priority), 3);
    assert_true(atomic_load(&fake_last_timeout_us) == 250000);
    expect_status(
        fake_http_seven(*state, "m",
                        "\"sequence_id\":9,\"sequence_start\":true,\"sequence_end\":true"),
        200, "\"data\":[7.0]");
    assert_int_equal(atomic_load(&fake_last_priority), 0);
    expect_status(fake_http_seven(*state, "m", "\"priority\":4294967296"), 400, "'priority'");
    expect_status(fake_http_seven(*state, "m", "\"priority\":-1"), 400, "'priority'");
    expect_status(fake_http_seven(*state, "m", "\"timeout\":\"1\""), 400, "'timeout'");
    expect_status(fake_http_seven(*state, "m", "\"sequence_start\":1"), 400, "'sequence_start'");
}

// A model that the engine does not load is not kept.
static void test_load_undone(void **state)
{
    const server_rig *f = *state;
    char *file = file_base64("ident.onnx"), json[4096];
    snprintf(json, sizeof json, "{\"parameters\":{\"config\":\"{}\",\"file:1/model.onnx\":\"%s\"}}",
             file);
    reply r = post(f->port, "/v2/repository/models/fresh/load", json, NULL, 0);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "failed to load 'fresh'"));
    assert_non_null(strstr(r.body, "there is no query 'load'"));
    reply_free(&r);
    r = get(f->port, "/v2/models/fresh/trace/setting"); // asks the store
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "'fresh' is not found"));
    reply_free(&r);
    free(file);
}

// What was accepted is answered before the server has stopped.
static void test_stop_busy(void **state)
{
    server_rig *f = *state;
    pthread_t t;
    int fd = fake_http_hold(f);
    assert_int_equal(pthread_create(&t, NULL, fake_release_soon, NULL), 0);
    hth_server_stop(f->server);
    pthread_join(t, NULL);
    expect_status(fd, 200, "\"data\":[7.0]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hang_up, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_reset, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_queueing, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_load_undone, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_stop_busy, fake_http_setup, fake_http_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
