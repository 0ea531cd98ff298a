// SPDX-License-Identifier: Apache-2.0
// Documents about all models: however many ask, the engine is asked for those who wait together; an
// answer is never older than its request; and the loop answers others while one is written.
#include "base/clock.h"
#include "runtime/catalog.h"
#include "tests/rig/fake_http_rig.h"

#include <jansson.h>

#include <poll.h>

#define ASKERS 6

static int setup(void **state)
{
    atomic_store(&fake_models, 3);
    return fake_http_setup(state);
}

// send_get asks, and does not wait for the answer.
static int send_get(int port, const char *verb, const char *path)
{
    char q[160];
    int fd = dial(port);
    int n =
        snprintf(q, sizeof q, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", verb, path);
    push(fd, q, (size_t)n);
    return fd;
}

// expect_alive has something answered on the loop, after all that was sent before.
static void expect_alive(int port)
{
    reply r = get(port, "/v2/health/live");
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

static void expect_stats(int fd, int asked)
{
    char words[60];
    reply r = pull(fd, true);
    assert_int_equal(r.status, 200);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(doc, "model_stats")), 3);
    snprintf(words, sizeof words, "\"success\":{\"count\":%d,\"ns\":1000}", asked);
    if (strstr(r.body, words) == NULL) {
        fail_msg("not %s: %.300s", words, r.body);
    }
    json_decref(doc);
    reply_free(&r);
    close(fd);
}

// Who asks while the engine is asked already waits for the next answer, all together; one of them
// hangs up, and one was the first.
static void test_together(void **state)
{
    const server_rig *f = *state;
    int held = fake_http_hold(f), fd[ASKERS];
    for (int i = 0; i < ASKERS; i++) {
        fd[i] = send_get(f->port, "GET", "/v2/models/stats");
        expect_alive(f->port); // it was read
    }
    close(fd[2]);
    fake_http_release(held);
    for (int i = 0; i < ASKERS; i++) {
        if (i != 2) {
            expect_stats(fd[i], i == 0 ? 1 : 2);
        }
    }
    assert_int_equal(atomic_load(&fake_lists), 2);
    expect_stats(send_get(f->port, "GET", "/v2/models/stats"), 3); // never an old one
}

// The first who asks hanging up ends nothing for those who wait with him.
static void test_first_gone(void **state)
{
    const server_rig *f = *state;
    int held = fake_http_hold(f), first = send_get(f->port, "GET", "/v2/models/stats");
    expect_alive(f->port);
    int other = send_get(f->port, "GET", "/v2/models/stats");
    expect_alive(f->port);
    close(first);
    fake_http_release(held);
    expect_stats(other, 2);
}

// Each kind of document is one of its own, and comes whole.
static void test_kinds(void **state)
{
    const server_rig *f = *state;
    static const struct {
        const char *verb, *path, *type, *words;
        int asked;
    } c[] = {
        {"POST", "/v2/repository/index", "application/json\r", "[]", 1},
        {"GET", "/v2/models/stats", "application/json\r",
         "{\"model_stats\":[{\"name\":\"m0\",\"version\":\"1\",\"last_inference\":5,"
         "\"inference_count\":9,\"execution_count\":7,\"inference_stats\":{\"success\":{\"count\":"
         "2,",
         2},
        {"GET", "/v2/hearth/models", "application/json\r",
         "{\"state\":\"ready\",\"age_ms\":0,\"data\":[]}", 2},
        {"GET", "/metrics", "text/plain; charset=utf-8\r",
         "\nnv_inference_exec_count{model=\"m2\",version=\"1\"} 7\n", 3},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        int fd = send_get(c[i].path[1] == 'm' ? f->metrics_port : f->port, c[i].verb, c[i].path);
        reply r = pull(fd, true);
        assert_int_equal(r.status, 200);
        assert_memory_equal(header(&r, "Content-Type"), c[i].type, strlen(c[i].type));
        if (strstr(r.body, c[i].words) == NULL) {
            fail_msg("%s: not %s: %.300s", c[i].path, c[i].words, r.body);
        }
        assert_int_equal(atomic_load(&fake_lists), c[i].asked);
        reply_free(&r);
        close(fd);
    }
}

// While a document of many models is written, others are answered: never do they wait for half of
// the time that it takes.
static void test_others_go_on(void **state)
{
    static const char live[] = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    const server_rig *f = *state;
    atomic_store(&fake_models, 40000 / TEST_STRIDE);
    int probe = dial(f->port), fd = send_get(f->port, "GET", "/v2/models/stats");
    struct pollfd come = {.fd = fd, .events = POLLIN};
    uint64_t began = hth_now_ns(), last = began, gap = 0;
    while (poll(&come, 1, 0) == 0) {
        push(probe, live, sizeof live - 1);
        reply r = pull(probe, true);
        reply_free(&r);
        uint64_t now = hth_now_ns();
        gap = now - last > gap ? now - last : gap;
        last = now;
    }
    uint64_t took = hth_now_ns() - began;
    if (gap > took / 2) {
        fail_msg("others waited %llu us of %llu", (unsigned long long)(gap / 1000),
                 (unsigned long long)(took / 1000));
    }
    reply r = pull(fd, true);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    close(probe);
}

// ---- unloading

static int ident_setup(void **state)
{
    hth_store *store;
    hth_put_result r;
    int rc = setup(state);
    const server_rig *f = *state;
    assert_ok(hth_store_open(f->store, true, false, &store));
    assert_ok(
        hth_catalog_import(store, "ident", "tests/data/http/ident.onnx", 0, NULL, NULL, NULL, &r));
    hth_store_close(store);
    return rc;
}

static void expect_served(const server_rig *rig)
{
    int fd = fake_http_seven(rig, "ident", "");
    reply r = pull(fd, true);
    expect_200(&r);
    reply_free(&r);
    close(fd);
}

// The engine refuses to unload, or who asked hangs up before it does: the model is served on. While
// one of several questions is at the engine it is not.
static void test_not_unloaded(void **state)
{
    static const char path[] = "/v2/repository/models/ident/unload";
    const server_rig *f = *state;
    expect_served(f);
    int fd = send_get(f->port, "POST", path);
    reply r = pull(fd, true);
    assert_int_equal(r.status, 501); // of the fake, which knows no such query
    reply_free(&r);
    close(fd);
    expect_served(f);

    int held = fake_http_hold(f);
    fd = send_get(f->port, "POST", path);
    int gone = send_get(f->port, "POST", path);
    expect_alive(f->port);
    int asks = fake_http_seven(f, "ident", "");
    r = pull(asks, true);
    assert_int_equal(r.status, 404);
    assert_non_null(strstr(r.body, "it was unloaded"));
    reply_free(&r);
    close(asks);
    close(gone);
    fake_http_release(held);
    r = pull(fd, true);
    assert_int_equal(r.status, 501);
    reply_free(&r);
    close(fd);
    expect_alive(f->port);
    expect_served(f);
}

// A server that stops answers who waits.
static void test_stop(void **state)
{
    server_rig *f = *state;
    int held = fake_http_hold(f), fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = send_get(f->port, "GET", "/v2/models/stats");
        expect_alive(f->port);
    }
    atomic_store(&fake_released, 1);
    hth_server_stop(f->server);
    reply r = pull(held, true);
    reply_free(&r);
    close(held);
    for (int i = 0; i < 3; i++) {
        expect_stats(fd[i], i == 0 ? 1 : 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_together, setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_first_gone, setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_kinds, setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_others_go_on, setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_not_unloaded, ident_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_stop, setup, fake_http_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
