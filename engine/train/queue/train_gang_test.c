// SPDX-License-Identifier: Apache-2.0
// A group that has ended is joined by nobody: no attempt of its lead is of use.
#include "base/test.h"

#include "engine/train/queue/train_entry_impl.h"
#include "group/group.h"

#include <unistd.h>

static void test_over(void **state)
{
    hth_request request = {.member = 1, .n_files = 1};
    hth_train_queue queue = {.first = NULL};
    hth_train_entry entry = {.r = &request, .attempt = 1, .retries = 3, .member = true};
    assert_ok(hth_group_make(2, &request.files[0]));
    assert_ok(hth_train_gang_open(&entry));
    assert_false(hth_train_gang_over(&entry));
    assert_true(hth_train_wait_again(&queue, &entry, hth_fail(HTH_EIO, "read error")));
    assert_int_equal(entry.attempt, 2);
    hth_group_end(request.files[0], HTH_EIO, "device cpu:1: read error");
    assert_true(hth_train_gang_over(&entry));
    assert_false(hth_train_wait_again(&queue, &entry, hth_fail(HTH_EIO, "read error")));
    assert_int_equal(entry.attempt, 2);
    hth_train_gang_close(&entry);
    close(request.files[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
