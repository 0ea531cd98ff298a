// SPDX-License-Identifier: Apache-2.0
// Views of an engine that answers, and of one that something holds: what was known is told with its
// age, soon, and nothing is left behind.
#include "base/clock.h"
#include "base/settings.h"
#include "tests/rig/fake_http_rig.h"

#include <jansson.h>

#include <sys/stat.h>
#include <unistd.h>

#define FRESH_NS 200000000u // of http_dashboard.c

static json_t *view(const server_rig *rig, const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "/v2/hearth/%s", name);
    reply r = get(rig->port, path);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    assert_int_equal(r.status, 200);
    assert_non_null(doc);
    reply_free(&r);
    return doc;
}

static const char *word(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

static void expect_devices(json_t *doc, const char *state)
{
    json_t *want = json_loads(FAKE_DEVICES, 0, NULL);
    assert_string_equal(word(doc, "state"), state);
    assert_true(json_equal(json_object_get(doc, "data"), want));
    json_decref(want);
}

static void wait_ready(const server_rig *rig)
{
    json_t *doc = view(rig, "devices");
    while (strcmp(word(doc, "state"), "ready") != 0) {
        json_decref(doc);
        fake_nap();
        doc = view(rig, "devices");
    }
    expect_devices(doc, "ready");
    json_decref(doc);
}

static void test_ready(void **state)
{
    json_t *doc = view(*state, "devices");
    expect_devices(doc, "ready");
    json_decref(doc);
    reply r = get(((server_rig *)*state)->port, "/v2/hearth/latency"); // the fake knows no other
    assert_int_equal(r.status, 501);
    assert_non_null(strstr(r.body, "there is no query 'latency'"));
    reply_free(&r);
}

// Before there is any answer there is nothing to tell, but that is told.
static void test_nothing_known(void **state)
{
    int fd = fake_http_hold(*state);
    for (int i = 0; i < 3; i++) {
        json_t *doc = view(*state, "devices");
        assert_string_equal(word(doc, "state"), "busy");
        assert_true(json_is_null(json_object_get(doc, "data")));
        assert_true(json_is_null(json_object_get(doc, "age_ms")));
        json_decref(doc);
    }
    fake_http_release(fd);
    wait_ready(*state);
}

static void test_known(void **state)
{
    wait_ready(*state);
    uint64_t known_ns = hth_now_ns();
    int fd = fake_http_hold(*state);
    while (hth_now_ns() - known_ns < 2 * FRESH_NS) {
        fake_nap();
    }
    json_int_t before = 0;
    for (int i = 0; i < 4; i++) { // the first waits for the engine, the others need not
        json_t *doc = view(*state, "devices");
        json_int_t age = json_integer_value(json_object_get(doc, "age_ms"));
        expect_devices(doc, "busy");
        assert_true(age >= before && age >= (json_int_t)(FRESH_NS / 1000000u));
        before = age;
        json_decref(doc);
    }
    fake_http_release(fd);
    wait_ready(*state);
}

// Who asked hangs up: before the view is told, and after it.
static void test_hang_up(void **state)
{
    static const char q[] = "GET /v2/hearth/devices HTTP/1.1\r\nHost: x\r\n\r\n";
    const server_rig *f = *state;
    int fd = fake_http_hold(f);
    for (int i = 0; i < 8; i++) {
        int client = dial(f->port);
        push(client, q, sizeof q - 1);
        if (i % 2 == 0) {
            reply r = pull(client, true);
            assert_int_equal(r.status, 200);
            reply_free(&r);
        }
        close(client);
    }
    fake_http_release(fd);
    wait_ready(f);
}

// More jobs than answers are kept of.
static void test_many(void **state)
{
    const server_rig *f = *state;
    for (int i = 0; i < 100; i++) {
        char path[60];
        snprintf(path, sizeof path, "/v2/hearth/jobs/job%d", i);
        reply r = get(f->port, path);
        assert_int_equal(r.status, 404);
        reply_free(&r);
    }
    wait_ready(f);
}

// ---- tokens that change

#define SECRET_HASH                                                                                \
    "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" // of "secret"
#define SWAP_ASKS 4000

static char tokens[60];
static atomic_bool swaps; // swap_main goes on

static void token_is_of(const char *name)
{
    char fresh[80];
    snprintf(fresh, sizeof fresh, "%s.new", tokens);
    FILE *f = fopen(fresh, "w");
    assert_non_null(f);
    fprintf(f, "%s job " SECRET_HASH "\n", name);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(fresh, 0600), 0);
    assert_int_equal(rename(fresh, tokens), 0);
}

static int tokens_setup(void **state)
{
    snprintf(tokens, sizeof tokens, "/tmp/hearth-tokens-%d", (int)getpid());
    token_is_of("ann");
    assert_ok(hth_setting_set("auth.tokens_file", tokens));
    return fake_http_setup(state);
}

static int tokens_teardown(void **state)
{
    assert_ok(hth_setting_set("auth.tokens_file", ""));
    return fake_http_teardown(state) | unlink(tokens);
}

// expect_roles asks with `head`, lines of it.
static void expect_roles(const server_rig *rig, const char *head, const char *want)
{
    char q[300];
    int n = snprintf(q, sizeof q, "GET /v2/hearth/roles HTTP/1.1\r\n%s\r\n", head);
    int client = dial(rig->port);
    push(client, q, (size_t)n);
    reply r = pull(client, true);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.bytes, strlen(want));
    assert_memory_equal(r.body, want, r.bytes);
    reply_free(&r);
    close(client);
}

static void test_roles(void **state)
{
    expect_roles(*state, "Host: localhost\r\n", "{\"roles\":[\"infer\",\"model\",\"admin\"]}");
    expect_roles(*state, "Host: localhost\r\nX-Forwarded-For: 10.0.0.1\r\n",
                 "{\"roles\":[\"infer\"]}");
}

static void test_roles_of_a_token(void **state)
{
    expect_roles(*state, "Host: x\r\nAuthorization: Bearer secret\r\n", "{\"roles\":[\"job\"]}");
    reply r = get(((server_rig *)*state)->port, "/v2/hearth/roles");
    assert_int_equal(r.status, 401);
    reply_free(&r);
}

static void *swap_main(void *arg)
{
    for (int i = 0; atomic_load(&swaps); i++) {
        token_is_of(i % 2 == 0 ? "bob" : "ann");
        assert_ok(hth_server_reload(arg));
    }
    return NULL;
}

// The token of who asks becomes another tenant's meanwhile.
static void test_tokens_swap(void **state)
{
    static const char q[] =
        "GET /v2/hearth/jobs/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n";
    const server_rig *f = *state;
    pthread_t t;
    atomic_store(&swaps, true);
    assert_int_equal(pthread_create(&t, NULL, swap_main, f->server), 0);
    int client = dial(f->port);
    for (int i = 0; i < SWAP_ASKS; i++) {
        push(client, q, sizeof q - 1);
        reply r = pull(client, true);
        assert_int_equal(r.status, 404);
        assert_non_null(strstr(r.body, "there is no job 'x'"));
        reply_free(&r);
    }
    close(client);
    atomic_store(&swaps, false);
    pthread_join(t, NULL);
}

// The server stops while questions that were told already are still at the engine.
static void test_stop(void **state)
{
    server_rig *f = *state;
    pthread_t t;
    int fd = fake_http_hold(f);
    json_decref(view(f, "devices"));
    assert_int_equal(pthread_create(&t, NULL, fake_release_soon, NULL), 0);
    hth_server_stop(f->server);
    pthread_join(t, NULL);
    fake_http_release(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ready, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_known, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_known, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_hang_up, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_many, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_roles, fake_http_setup, fake_http_teardown),
        cmocka_unit_test_setup_teardown(test_roles_of_a_token, tokens_setup, tokens_teardown),
        cmocka_unit_test_setup_teardown(test_tokens_swap, tokens_setup, tokens_teardown),
        cmocka_unit_test_setup_teardown(test_stop, fake_http_setup, fake_http_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
