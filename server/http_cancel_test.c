// SPDX-License-Identifier: Apache-2.0
// HTTP requests that are not answered at once, with an engine that holds them: a client that hangs
// up, and a server that stops meanwhile.
#include "tests/fake_engine.h"
#include "tests/http_client.h"
#include "tests/server_rig.h"

static int setup(void **state)
{
    server_rig *f = calloc(1, sizeof *f);
    server_rig_make(f);
    atomic_store(&fake_released, 0);
    atomic_store(&fake_canceled, 0);
    hth_server_config config = {.store = f->store, .http = "127.0.0.1:0"};
    assert_int_equal(hth_server_open(&config, &f->server), HTH_OK);
    f->port = hth_server_http_port(f->server);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    atomic_store(&fake_released, 1);
    server_rig_end(*state);
    free(*state);
    return 0;
}

// send_infer sends one request for `model` with `parameters`, and returns the connection.
static int send_infer(const server_rig *f, const char *model, const char *parameters)
{
    char json[300], q[500];
    int fd = dial(f->port);
    snprintf(json, sizeof json,
             "{\"parameters\":{%s},\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":"
             "\"FP32\",\"data\":[7]}]}",
             parameters);
    int n = snprintf(q, sizeof q,
                     "POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\nContent-Length: "
                     "%zu\r\n\r\n%s",
                     model, strlen(json), json);
    push(fd, q, (size_t)n);
    return fd;
}

static int ask_held(const server_rig *f)
{
    return send_infer(f, "hold", "");
}

static void wait_for(atomic_int *v, int want)
{
    for (int i = 0; i < 120000 && atomic_load(v) != want; i++) {
        fake_nap();
    }
    assert_int_equal(atomic_load(v), want);
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
    int first = ask_held(*state);
    wait_for(&fake_held, 1);
    int second = ask_held(*state);
    close(first);
    wait_for(&fake_canceled, 1);
    wait_for(&fake_held, 1);
    atomic_store(&fake_released, 1);
    expect_status(second, 200, "\"data\":[7.0]");
}

// Priority and timeout reach the engine; what is neither does not.
static void test_queueing(void **state)
{
    expect_status(send_infer(*state, "m", "\"priority\":3,\"timeout\":250000"), 200,
                  "\"data\":[7.0]");
    assert_int_equal(atomic_load(&fake_last_priority), 3);
    assert_true(atomic_load(&fake_last_timeout_us) == 250000);
    expect_status(
        send_infer(*state, "m", "\"sequence_id\":9,\"sequence_start\":true,\"sequence_end\":true"),
        200, "\"data\":[7.0]");
    assert_int_equal(atomic_load(&fake_last_priority), 0);
    expect_status(send_infer(*state, "m", "\"priority\":4294967296"), 400, "'priority'");
    expect_status(send_infer(*state, "m", "\"priority\":-1"), 400, "'priority'");
    expect_status(send_infer(*state, "m", "\"timeout\":\"1\""), 400, "'timeout'");
    expect_status(send_infer(*state, "m", "\"sequence_start\":1"), 400, "'sequence_start'");
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
    int fd = ask_held(f);
    wait_for(&fake_held, 1);
    assert_int_equal(pthread_create(&t, NULL, fake_release_soon, NULL), 0);
    hth_server_stop(f->server);
    pthread_join(t, NULL);
    expect_status(fd, 200, "\"data\":[7.0]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hang_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queueing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_load_undone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_busy, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
