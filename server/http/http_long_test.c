// SPDX-License-Identifier: Apache-2.0
// Requests whose JSON is long, and long answers: others are answered while they are read and
// written, their memory is counted, and neither a client that hangs up nor a server that stops
// meanwhile leaves anything.
#include "base/alloc.h"
#include "base/settings.h"
#include "server/net/account.h"
#include "tests/rig/fake_http_rig.h"

#include <poll.h>
#include <zlib.h>

#define ELEMENTS  100000
#define LONG_TEXT (2 * ELEMENTS)
#define PATIENCE  60000 // ms, of what the old code never did

static atomic_int answer_held, answer_released;

static int teardown(void **state)
{
    atomic_store(&answer_released, 1);
    hth_fault_call(0, NULL, NULL);
    fake_http_teardown(state);
    assert_int_equal(hth_setting_set("http.buffered_bytes", "4GiB"), HTH_OK);
    return 0;
}

// long_json is a request with ELEMENTS sevens.
static char *long_json(void)
{
    char *text = malloc(LONG_TEXT + 200);
    char *at = text + sprintf(text,
                              "{\"inputs\":[{\"name\":\"x\",\"shape\":[%d],\"datatype\":\"FP32\","
                              "\"data\":[7",
                              ELEMENTS);
    for (int i = 1; i < ELEMENTS; i++) {
        at = stpcpy(at, ",7");
    }
    strcpy(at, "]}]}");
    return text;
}

static int send_long(const server_rig *rig)
{
    char *json = long_json();
    int fd = fake_http_send(rig, "m", "", json, strlen(json));
    free(json);
    return fd;
}

// send_packed is the same, compressed: `wbits` is zlib's, 31 for gzip.
static int send_packed(const server_rig *rig, int wbits, const char *more)
{
    char *json = long_json();
    unsigned char packed[LONG_TEXT / 8];
    z_stream z = {.next_in = (unsigned char *)json, .avail_in = (unsigned)strlen(json)};
    z.next_out = packed;
    z.avail_out = sizeof packed;
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, wbits, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    int fd = fake_http_send(rig, "m", more, packed, sizeof packed - z.avail_out);
    deflateEnd(&z);
    free(json);
    return fd;
}

static void expect_come(int fd)
{
    struct pollfd come = {.fd = fd, .events = POLLIN};
    if (poll(&come, 1, PATIENCE) != 1) {
        fail_msg("it is not answered while another request is read");
    }
}

// expect_others has health checks and a small request answered.
static void expect_others(const server_rig *rig)
{
    static const char small[] =
        "{\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[5]}]}";
    static const char ready[] = "GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = dial(rig->port);
    push(fd, ready, sizeof ready - 1);
    expect_come(fd);
    reply r = pull(fd, true);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    fd = fake_http_send(rig, "m", "", small, sizeof small - 1);
    expect_come(fd);
    r = pull(fd, true);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"data\":[5.0]"));
    reply_free(&r);
    close(fd);
}

// wait_nothing has all memory that was counted given back.
static void wait_nothing(void)
{
    for (int i = 0; i < PATIENCE && hth_account_bytes() > 0; i++) {
        fake_nap();
    }
    assert_int_equal(hth_account_bytes(), 0);
}

static void expect_sevens(int fd)
{
    int n = 0;
    reply r = pull(fd, true);
    assert_int_equal(r.status, 200);
    for (size_t i = 0; i + 2 < r.bytes; i++) {
        n += memcmp(r.body + i, "7.0", 3) == 0;
    }
    assert_int_equal(n, ELEMENTS);
    reply_free(&r);
    close(fd);
}

// held_first has the reading of a long body wait for memory.
static void held_first(void)
{
    atomic_store(&fake_hold_bytes, sizeof(float) * ELEMENTS);
}

static void test_plain(void **state)
{
    const server_rig *f = *state;
    held_first();
    int fd = send_long(f);
    fake_wait(&fake_held, 1);
    expect_others(f);
    assert_true(hth_account_bytes() > LONG_TEXT + sizeof(float) * ELEMENTS);
    atomic_store(&fake_released, 1);
    expect_sevens(fd);
    wait_nothing();
}

static void test_packed(void **state)
{
    const server_rig *f = *state;
    held_first();
    int fd[2] = {send_packed(f, 31, "Content-Encoding: gzip\r\n"),
                 send_packed(f, 15, "Content-Encoding: deflate\r\n")};
    fake_wait(&fake_held, 2); // each on a thread
    expect_others(f);
    atomic_store(&fake_released, 1);
    expect_sevens(fd[0]);
    expect_sevens(fd[1]);
    wait_nothing();
}

// A client that hangs up while its request is read, and those who wait for their turn.
static void test_hang_up(void **state)
{
    enum { N = 5 };
    const server_rig *f = *state;
    int fd[N];
    held_first();
    for (int i = 0; i < N; i++) {
        fd[i] = send_long(f);
        fake_wait(&fake_held, i < 2 ? i + 1 : 2);
        expect_others(f);
    }
    for (int i = 0; i < N - 1; i++) {
        close(fd[i]);
    }
    expect_others(f);
    atomic_store(&fake_released, 1);
    expect_sevens(fd[N - 1]);
    wait_nothing();
}

static void *stop_main(void *arg)
{
    hth_server_stop(arg);
    return NULL;
}

// What was sent before is answered when the server stops.
static void test_stop(void **state)
{
    server_rig *f = *state;
    pthread_t t, release;
    held_first();
    int fd = send_long(f);
    fake_wait(&fake_held, 1);
    assert_int_equal(pthread_create(&t, NULL, stop_main, f->server), 0);
    assert_int_equal(pthread_create(&release, NULL, fake_release_soon, NULL), 0);
    expect_sevens(fd);
    pthread_join(t, NULL);
    pthread_join(release, NULL);
}

// Memory that text takes as a tensor is counted before it is taken.
static void test_full(void **state)
{
    const server_rig *f = *state;
    static const char head[] =
        "{\"inputs\":[{\"name\":\"x\",\"shape\":[150000],\"datatype\":\"FP64\",\"data\":[7";
    char *json = malloc(400000), *at = stpcpy(json, head);
    for (int i = 1; i < 150000; i++) {
        at = stpcpy(at, ",7");
    }
    strcpy(at, "]}]}");
    assert_int_equal(hth_setting_set("http.buffered_bytes", "1MiB"), HTH_OK);
    reply r = pull(fake_http_send(f, "m", "", json, strlen(json)), true);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body, "the server holds too much for its clients"));
    reply_free(&r);
    free(json);
}

// What stands in no tensor has limits of its own.
static void test_besides(void **state)
{
    enum { BYTES = (16 << 20) + 1000 };
    const server_rig *f = *state;
    char *json = malloc(BYTES + 100), *at = stpcpy(json, "{\"parameters\":{\"a\":\"");
    memset(at, 'a', BYTES);
    strcpy(at + BYTES, "\"},\"inputs\":[]}");
    reply r = pull(fake_http_send(f, "m", "", json, strlen(json)), true);
    assert_int_equal(r.status, 413);
    assert_non_null(strstr(r.body, "outside its tensors' data; at most 16777216 are read"));
    reply_free(&r);
    memset(at, ' ', BYTES); // blanks in a string are no blanks
    r = pull(fake_http_send(f, "m", "", json, strlen(json)), true);
    assert_int_equal(r.status, 413);
    reply_free(&r);
    memset(json + 1, ' ', BYTES); // others cost next to nothing
    strcpy(json + BYTES, "\"inputs\":[]}");
    r = pull(fake_http_send(f, "m", "", json, strlen(json)), true);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "the request has no inputs"));
    reply_free(&r);
    free(json);
}

// A request's own limit holds for what its body is, not only for what was sent of it.
static void test_own_limit(void **state)
{
    enum { BYTES = (16 << 20) + 1000 };
    static const char *const paths[] = {"POST /v2/hearth/models/x", "PUT /v2/hearth/aliases/x",
                                        "POST /v2/hearth/tensors/have"};
    const server_rig *f = *state;
    unsigned char *json = malloc(BYTES), *packed = malloc(BYTES / 8);
    memset(json, 'a', BYTES);
    memcpy(json, "{\"graph\":\"", 10);
    memcpy(json + BYTES - 2, "\"}", 2);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        z_stream z = {.next_in = json, .avail_in = BYTES};
        z.next_out = packed;
        z.avail_out = BYTES / 8;
        assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        deflateEnd(&z);
        for (int zipped = 0; zipped < 2; zipped++) {
            size_t n = zipped ? BYTES / 8 - z.avail_out : BYTES;
            char head[200];
            int fd = dial(f->port);
            push(fd, head,
                 (size_t)snprintf(head, sizeof head,
                                  "%s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n",
                                  paths[i], zipped ? "Content-Encoding: gzip\r\n" : "", n));
            push(fd, zipped ? packed : json, n);
            reply r = pull(fd, true);
            assert_int_equal(r.status, 413);
            assert_non_null(strstr(r.body, "16777216"));
            reply_free(&r);
            close(fd);
        }
    }
    free(json);
    free(packed);
    wait_nothing();
}

static void answer_hold(void *ctx)
{
    atomic_store(&answer_held, 1);
    while (!atomic_load(&answer_released)) {
        fake_nap();
    }
}

// Others are answered while a long answer is written, which waits for memory of its text: there are
// two allocations before that, and a dozen while it grows.
static void test_answer(void **state)
{
    static const char *const more[] = {"", "Accept-Encoding: gzip\r\n"};
    const server_rig *f = *state;
    char *json = long_json();
    for (int i = 0; i < 2; i++) {
        atomic_store(&fake_released, 0);
        atomic_store(&answer_held, 0);
        atomic_store(&answer_released, 0);
        int fd = fake_http_send(f, "hold", more[i], json, strlen(json));
        fake_wait(&fake_held, 1);
        hth_fault_call(6, answer_hold, NULL);
        atomic_store(&fake_released, 1);
        fake_wait(&answer_held, 1);
        expect_others(f);
        assert_true(hth_account_bytes() > 16 * ELEMENTS);
        atomic_store(&answer_released, 1);
        if (i == 0) {
            expect_sevens(fd);
        } else {
            reply r = pull(fd, true);
            assert_memory_equal(header(&r, "Content-Encoding"), "gzip\r", 5);
            assert_true(r.bytes < ELEMENTS);
            reply_free(&r);
            close(fd);
        }
        wait_nothing();
    }
    free(json);
}

// A client that hangs up while its answer is written.
static void test_answer_gone(void **state)
{
    const server_rig *f = *state;
    char *json = long_json();
    atomic_store(&answer_held, 0);
    atomic_store(&answer_released, 0);
    int fd = fake_http_send(f, "hold", "", json, strlen(json));
    free(json);
    fake_wait(&fake_held, 1);
    hth_fault_call(6, answer_hold, NULL);
    atomic_store(&fake_released, 1);
    fake_wait(&answer_held, 1);
    close(fd);
    expect_others(f);
    atomic_store(&answer_released, 1);
    wait_nothing();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plain, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_packed, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_hang_up, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_answer, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_answer_gone, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_full, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_besides, fake_http_setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_limit, fake_http_setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
