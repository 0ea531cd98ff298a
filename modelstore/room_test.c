// SPDX-License-Identifier: Apache-2.0
// Room that is asked for before it is needed.
#include "modelstore/store_test.h"

static void test_room(void **state)
{
    hth_store *s = test_open(state);
    uint64_t room;
    int fd = -1;
    assert_ok(hth_store_room(s, &room));
    assert_true(room > 0);
    assert_err(hth_store_reserve(s, (uint64_t)1 << 61, &fd), HTH_EIO,
               "2097152.0 TiB are needed, the store's file system has ");
    assert_int_equal(fd, -1);
    assert_ok(hth_store_reserve(s, 1 << 20, &fd));
    assert_int_equal(test_count_files(state, "tmp"), 0); // it has no name
    hth_store_unreserve(fd);
    hth_store_unreserve(-1);
    hth_store_close(s);
}

static void test_read_only(void **state)
{
    hth_store *s = test_open(state);
    const char *dir = *state;
    uint64_t room;
    int fd = -1;
    hth_store_close(s);
    assert_ok(hth_store_open(dir, false, true, &s));
    assert_err(hth_store_room(s, &room), HTH_EDENIED, "read-only");
    assert_err(hth_store_reserve(s, 1, &fd), HTH_EDENIED, "read-only");
    hth_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_room, test_setup, test_teardown),
        cmocka_unit_test_setup_teardown(test_read_only, test_setup, test_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
