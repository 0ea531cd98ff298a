// SPDX-License-Identifier: Apache-2.0
// Tensors in shared memory that an HTTP client registered.
#include "tests/rig/http_rig.h"

#include "base/ipc/shm_guard.h"
#include "base/settings.h"
#include "server/net/accept_guard.h"
#include "server/net/account.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static void shm_ask(int port, const char *path, const char *json)
{
    reply r = post(port, path, json, NULL, 0);
    expect_200(&r);
    reply_free(&r);
}

// A large tensor goes in and out where the client has it; an object that shrank costs its owner the
// result and the server nothing.
static void test_shared(void **state)
{
    enum { N = 100000 };
    char key[40], region[80];
    snprintf(key, sizeof key, "/%slarge", shared_prefix());
    snprintf(region, sizeof region, "{\"key\":\"%s\",\"byte_size\":800000}", key);
    int fd = shm_open(key, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, 8 * N), 0);
    float *x = mmap(NULL, 8 * N, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < N; i++) {
        x[i] = (float)i / 3;
    }
    shm_ask(port_of(state), "/v2/systemsharedmemory/region/large/register", region);
    static const char q[] =
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[100000],\"datatype\":\"FP32\",\"parameters\":"
        "{"
        "\"shared_memory_region\":\"large\",\"shared_memory_byte_size\":400000}}],\"outputs\":[{"
        "\"name\":\"OUTPUT0\",\"parameters\":{\"shared_memory_region\":\"large\","
        "\"shared_memory_byte_size\":400000,\"shared_memory_offset\":400000}}]}";
    reply r = post(port_of(state), "/v2/models/ident/infer", q, NULL, 0);
    expect_200(&r);
    assert_non_null(
        strstr(r.body, "{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[100000]}"));
    assert_memory_equal(x, x + N, 4 * N);
    reply_free(&r);
    assert_int_equal(ftruncate(fd, 4096), 0);
    r = post(port_of(state), "/v2/models/ident/infer", q, NULL, 0);
    expect_200(&r);
    reply_free(&r);
    shm_ask(port_of(state), "/v2/systemsharedmemory/region/large/unregister", "");
    munmap(x, 8 * N);
    close(fd);
}

// shm_say is shm_ask on a connection that stays; returns how many descriptors count after it.
static int shm_say(int fd, const char *path, const char *json)
{
    char q[300];
    int n = snprintf(q, sizeof q, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                     path, strlen(json), json);
    push(fd, q, (size_t)n);
    reply r = pull(fd, true);
    expect_200(&r);
    reply_free(&r);
    return hth_accept_count();
}

// A region counts as the descriptor that the engine keeps of it.
static void test_descriptors(void **state)
{
    char key[40], region[80];
    snprintf(key, sizeof key, "/%scounts", shared_prefix());
    snprintf(region, sizeof region, "{\"key\":\"%s\",\"byte_size\":4096}", key);
    int object = shm_open(key, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(object, 4096), 0);
    for (int i = 0; i < 60000 && hth_accept_count() > 0; i++) { // other tests' connections
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    int fd = dial(port_of(state));
    assert_int_equal(shm_say(fd, "/v2/systemsharedmemory/region/counts/unregister", ""), 1);
    assert_int_equal(shm_say(fd, "/v2/systemsharedmemory/region/counts/register", region), 2);
    assert_int_equal(shm_say(fd, "/v2/systemsharedmemory/region/counts/unregister", ""), 1);
    close(fd);
    close(object);
}

// What has to be copied out of shared memory is counted before it is, whatever the model's name.
static void test_copied(void **state)
{
    enum { BYTES = 2 << 20 };
    char key[40], region[80];
    snprintf(key, sizeof key, "/%scopied", shared_prefix());
    snprintf(region, sizeof region, "{\"key\":\"%s\",\"byte_size\":%d}", key, BYTES);
    int fd = shm_open(key, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    shm_ask(port_of(state), "/v2/systemsharedmemory/region/copied/register", region);
    static const char q[] = // at an offset that no tensor may have in place
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[500000],\"datatype\":\"FP32\",\"parameters\":"
        "{\"shared_memory_region\":\"copied\",\"shared_memory_byte_size\":2000000,"
        "\"shared_memory_offset\":4}}]}";
    uint64_t before = hth_account_bytes();
    char most[40];
    snprintf(most, sizeof most, "%" PRIu64, before + (1 << 20));
    assert_int_equal(hth_setting_set("http.buffered_bytes", most), HTH_OK);
    reply r = post(port_of(state), "/v2/models/none/infer", q, NULL, 0);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body, "the server holds too much for its clients"));
    reply_free(&r);
    assert_int_equal(hth_setting_set("http.buffered_bytes", "4GiB"), HTH_OK);
    r = post(port_of(state), "/v2/models/none/infer", q, NULL, 0);
    assert_int_equal(r.status, 404);
    assert_non_null(strstr(r.body, "unknown model: 'none'"));
    reply_free(&r);
    shm_ask(port_of(state), "/v2/systemsharedmemory/region/copied/unregister", "");
    close(fd);
}

// wait_counted has no more counted than `want` bytes: an answer counts until it has left.
static void wait_counted(uint64_t want)
{
    for (int i = 0; i < 60000 && hth_account_bytes() > want; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_true(hth_account_bytes() <= want);
}

// expect_counted asks with `q`, whose request is short and whose outputs are not, while there is
// room for 1 MiB, and then while there is for all.
static void expect_counted(int port, const char *q, int status)
{
    char most[40];
    uint64_t before = hth_account_bytes();
    snprintf(most, sizeof most, "%" PRIu64, before + (1 << 20));
    assert_int_equal(hth_setting_set("http.buffered_bytes", most), HTH_OK);
    reply r = post(port, "/v2/models/ident/infer", q, NULL, 0);
    assert_int_equal(r.status, status);
    if (status != 200) {
        assert_non_null(strstr(r.body, "the server holds too much for its clients"));
    }
    reply_free(&r);
    wait_counted(before);
    assert_int_equal(hth_setting_set("http.buffered_bytes", "4GiB"), HTH_OK);
    r = post(port, "/v2/models/ident/infer", q, NULL, 0);
    expect_200(&r);
    reply_free(&r);
    wait_counted(before);
}

// Outputs are counted before there is memory for them, and not where they go to the client's.
static void test_outputs(void **state)
{
    enum { BYTES = 4 << 20 };
    char key[40], region[80], q[600];
    snprintf(key, sizeof key, "/%soutputs", shared_prefix());
    snprintf(region, sizeof region, "{\"key\":\"%s\",\"byte_size\":%d}", key, BYTES);
    int fd = shm_open(key, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    shm_ask(port_of(state), "/v2/systemsharedmemory/region/outputs/register", region);
    static const char *const wanted[][2] = {
        {"\"binary_data\":true", "503"},
        {"\"shared_memory_region\":\"outputs\",\"shared_memory_byte_size\":2097152,"
         "\"shared_memory_offset\":2097152",
         "200"}};
    for (int i = 0; i < 2; i++) {
        snprintf(q, sizeof q,
                 "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[524288],\"datatype\":\"FP32\","
                 "\"parameters\":{\"shared_memory_region\":\"outputs\","
                 "\"shared_memory_byte_size\":2097152}}],"
                 "\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{%s}}]}",
                 wanted[i][0]);
        expect_counted(port_of(state), q, atoi(wanted[i][1]));
    }
    shm_ask(port_of(state), "/v2/systemsharedmemory/region/outputs/unregister", "");
    close(fd);
}

// An object that shrank, of which every other page is touched: more of them than a process may have
// mappings.
static void test_every_other_page(void **state)
{
    const size_t page = 4096, pages = 140000;
    pid_t child = fork();
    if (child == 0) {
        int fd = memfd_create("shrinks", 0);
        char *p = ftruncate(fd, (off_t)(page * pages)) == 0
                      ? mmap(NULL, page * pages, PROT_READ, MAP_SHARED, fd, 0)
                      : MAP_FAILED;
        int row = hth_shm_guard(p, page * pages);
        volatile char sum = 0;
        if (p == MAP_FAILED || row < 0 || ftruncate(fd, 0) != 0) {
            _exit(2);
        }
        for (size_t i = 1; i < pages; i += 2) {
            sum = (char)(sum + p[i * page]);
        }
        _exit(sum != 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),           cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_copied),           cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_every_other_page),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
