// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>

static void test_strings(void **state)
{
    for (int e = 0; e < HTH_N_ERR; e++) {
        assert_non_null(hth_strerror((hth_err)e));
        for (int o = 0; o < e; o++) {
            assert_string_not_equal(hth_strerror((hth_err)e), hth_strerror((hth_err)o));
        }
    }
    assert_string_equal(hth_strerror((hth_err)999), "unknown error");
    assert_string_equal(hth_strerror(HTH_N_ERR), "unknown error");
    assert_string_equal(hth_strerror((hth_err)-1), "unknown error");
}

// What jansson says of its own flags helps nobody.
static void test_json(void **state)
{
    char flagged[] = "NUL byte in object key not supported without JSON_ALLOW_NUL", plain[] = "bad";
    assert_string_equal(hth_err_json(flagged), "NUL byte in object key not supported");
    assert_string_equal(hth_err_json(plain), "bad");
}

static void test_detail(void **state)
{
    assert_int_equal(hth_fail(HTH_ENOENT, "no model '%s'", "vgg"), HTH_ENOENT);
    assert_string_equal(hth_err_detail(), "no model 'vgg'");
    assert_int_equal(hth_err_prefix(HTH_ENOENT, "import %d", 7), HTH_ENOENT);
    assert_string_equal(hth_err_detail(), "import 7: no model 'vgg'");
    hth_fail(HTH_EINVAL, "node '%s'", "n\033[2J\r\n\x7f\xc2\x9b \xc3\xa9"); // a terminal obeys
    assert_string_equal(hth_err_detail(), "node 'n?[2J????? \xc3\xa9'");
    hth_err_prefix(HTH_EINVAL, "model '%s'", "\a");
    assert_string_equal(hth_err_detail(), "model '?': node 'n?[2J????? \xc3\xa9'");
    assert_err(hth_fail_errno(ENOENT, "'%s'", "\033c"), HTH_ENOENT, "'?c': No such file");
    assert_int_equal(hth_err_prefix(HTH_OK, "'%s'", "x"), HTH_OK);
    assert_string_equal(hth_err_detail(), "'?c': No such file or directory");
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    hth_fail(HTH_EIO, "%s", big);
    assert_int_equal(strlen(hth_err_detail()), 1023);
    hth_err_prefix(HTH_EIO, "%s", big);
    assert_int_equal(strlen(hth_err_detail()), 1023);
}

static void test_no_memory(void **state)
{
    assert_int_equal(hth_no_memory("node '%s'", "n\n"), HTH_ENOMEM);
    assert_string_equal(hth_err_detail(), "out of memory for node 'n?'");
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    hth_no_memory("%s", big);
    assert_int_equal(strlen(hth_err_detail()), 1023);
}

static void test_restore(void **state)
{
    hth_fail(HTH_EIO, "what comes in between");
    assert_int_equal(hth_err_restore(HTH_OK, "nothing was stored"), HTH_OK);
    assert_string_equal(hth_err_detail(), "what comes in between");
    assert_err(hth_err_restore(HTH_EBUSY, "100% stored"), HTH_EBUSY, "100% stored");
}

static void test_errno(void **state)
{
    assert_err(hth_fail_errno(ENOSPC, "writing %s", "f"), HTH_EIO,
               "writing f: No space left on device");
    assert_err(hth_fail_errno(EROFS, "x"), HTH_EDENIED, "Read-only");
    assert_int_equal(hth_fail_errno(ENOMEM, "x"), HTH_ENOMEM);
    assert_int_equal(hth_fail_errno(ENOENT, "x"), HTH_ENOENT);
}

static void other_thread(void *ctx)
{
    assert_string_equal(hth_err_detail(), "");
    hth_fail(HTH_EIO, "theirs");
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof name);
    strcpy(ctx, name);
}

static void test_threads(void **state)
{
    char name[16] = "";
    pthread_t t;
    hth_fail(HTH_EIO, "mine");
    FAULT_LOOP(hth_thread_start("hth-a-name-that-is-too-long", other_thread, name, &t));
    hth_thread_join(t);
    assert_string_equal(name, "hth-a-name-that"); // 15 bytes: the kernel's limit
    hth_fail(HTH_EIO, "mine");
    assert_string_equal(hth_err_detail(), "mine");
}

static uint64_t fixed_clock(void *ctx)
{
    return *(uint64_t *)ctx;
}

static void test_clock(void **state)
{
    uint64_t a = hth_now_ns(), fixed = 42;
    assert_true(hth_now_ns() >= a && a > 0);
    hth_clock_inject(fixed_clock, &fixed);
    assert_int_equal(hth_now_ns(), 42);
    hth_clock_inject(NULL, NULL);
    assert_true(hth_now_ns() >= a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings), cmocka_unit_test(test_detail),
        cmocka_unit_test(test_errno),   cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_restore), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_json),    cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
