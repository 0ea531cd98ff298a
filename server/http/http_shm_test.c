// SPDX-License-Identifier: Apache-2.0
// Tensors in shared memory that an HTTP client registered.
#include "tests/rig/http_rig.h"

#include <fcntl.h>
#include <sys/mman.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
