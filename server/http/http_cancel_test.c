// SPDX-License-Identifier: Apache-2.0
// HTTP requests that are not answered at once, with an engine that holds them: a client that hangs
// up, and a server that stops meanwhile.
#include "tests/rig/fake_http_rig.h"

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
        cmocka_unit_test_setup_teardown(test_queueing, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_load_undone, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_stop_busy, fake_http_setup, fake_http_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
