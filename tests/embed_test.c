// SPDX-License-Identifier: Apache-2.0
// The example of the README, docs/embed.c, built against hearth.h and libhearth.so alone.
#include "base/test.h"

#include <unistd.h>

static void run(const char *store, const char *model, int code, const char *says)
{
    const char *build = getenv("HEARTH_BUILD");
    char command[1024], output[1024];
    snprintf(command, sizeof command, "%s/docs/embed '%s' '%s' 2>&1",
             build != NULL ? build : "build", store, model);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    output[fread(output, 1, sizeof output - 1, p)] = 0;
    int status = pclose(p);
    assert_non_null(strstr(output, says));
    assert_int_equal(status >> 8, code);
}

static void test_example(void **state)
{
    (void)state;
    char store[] = "/tmp/hearth-embed-XXXXXX";
    assert_non_null(mkdtemp(store));
    run(store, "tests/data/digits/digits.onnx", 0, "this is a 2\n");
    run(store, "tests/data/digits/absent.onnx", 1, "absent.onnx");
    run("/dev/null/store", "tests/data/digits/digits.onnx", 1, "/dev/null/store");
    assert_int_equal(test_remove(store), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_example)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
