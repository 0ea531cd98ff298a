// SPDX-License-Identifier: Apache-2.0
// HTTP requests that are not answered at once, with an engine that holds them: a client that hangs
// up, and a server that stops meanwhile.
#include "server/server.h"

#include "tests/fake_engine.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fixture {
    char dir[64], store[96];
    hth_server *server;
    int port;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    strcpy(f->dir, "/tmp/hearth-hang-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->store, sizeof f->store, "%s/store", f->dir);
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
    fixture *f = *state;
    char command[128];
    atomic_store(&fake_released, 1);
    hth_server_close(f->server);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    int rc = system(command);
    free(f);
    return rc;
}

// ask_held sends a request that the engine holds, and returns the connection.
static int ask_held(const fixture *f)
{
    static const char json[] =
        "{\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[7]}]}";
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)f->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char q[300];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int n = snprintf(q, sizeof q,
                     "POST /v2/models/hold/infer HTTP/1.1\r\nHost: x\r\nContent-Length: "
                     "%zu\r\n\r\n%s",
                     sizeof json - 1, json);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, q, (size_t)n, 0), n);
    return fd;
}

static void wait_for(atomic_int *v, int want)
{
    for (int i = 0; i < 10000 && atomic_load(v) != want; i++) {
        fake_nap();
    }
    assert_int_equal(atomic_load(v), want);
}

static void expect_status(int fd, const char *status, const char *words)
{
    char reply[2048] = "";
    size_t n = 0;
    for (ssize_t got; n < sizeof reply - 1 && strstr(reply, words) == NULL; n += (size_t)got) {
        got = recv(fd, reply + n, sizeof reply - 1 - n, 0);
        assert_true(got > 0);
    }
    assert_memory_equal(reply + 9, status, 3);
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
    expect_status(second, "200", "\"data\":[7.0]");
}

static void *release_soon(void *arg)
{
    for (int i = 0; i < 100; i++) {
        fake_nap();
    }
    atomic_store(&fake_released, 1);
    return NULL;
}

// What was accepted is answered before the server has stopped.
static void test_stop_busy(void **state)
{
    fixture *f = *state;
    pthread_t t;
    int fd = ask_held(f);
    wait_for(&fake_held, 1);
    assert_int_equal(pthread_create(&t, NULL, release_soon, NULL), 0);
    hth_server_stop(f->server);
    pthread_join(t, NULL);
    expect_status(fd, "200", "\"data\":[7.0]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hang_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_busy, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
