// SPDX-License-Identifier: Apache-2.0
// What the queue of a member's device does for its group.
#include "base/test.h"

#include "engine/train/queue/train_entry_impl.h"
#include "group/group.h"

#include <stdlib.h>
#include <unistd.h>

// A group that has ended is joined by nobody: no attempt of its lead is of use.
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

// Whether a job is paused its lead says: a member that comes again, after its process has died,
// knows nothing of it.
static void test_paused(void **state)
{
    hth_request request = {.member = 1, .n_files = 1}, other = {.member = 2, .n_files = 1};
    hth_train_queue queue = {.first = NULL};
    hth_train_entry lead = {.r = &request, .paused = true};
    hth_train_entry member = {.r = &other, .member = true};
    assert_ok(hth_group_make(2, &request.files[0]));
    other.files[0] = request.files[0];
    assert_ok(hth_train_gang_open(&lead));
    assert_ok(hth_train_gang_open(&member));
    hth_train_gang_pause(&lead);
    assert_true(hth_train_gang_gated(&queue, &member));
    hth_train_gang_pause(&member);
    assert_true(hth_train_gang_gated(&queue, &member));
    lead.paused = false;
    hth_train_gang_pause(&lead);
    assert_false(hth_train_gang_gated(&queue, &member));
    hth_train_gang_close(&member);
    hth_train_gang_close(&lead);
    close(request.files[0]);
}

// A job that ends before anybody has noted it still says why.
static void test_why_it_ends(void **state)
{
    char dir[] = "/tmp/hearth-gang-XXXXXX";
    assert_non_null(mkdtemp(dir));
    hth_models ms = {.store = NULL};
    assert_ok(hth_store_open(dir, true, false, &ms.store));
    hth_request request = {.arguments = "{}"};
    hth_train_queue queue = {.ms = &ms};
    hth_train_entry entry = {.r = &request, .given = request.arguments, .of = "uid:0", .job = "j"};
    hth_fail(HTH_EINVAL, "device cpu:1: refused");
    hth_train_entry_number(&queue, &entry);
    assert_string_equal(hth_err_detail(), "device cpu:1: refused");
    assert_true(entry.id > 0 && entry.log != NULL);
    hth_job_log_close(entry.log);
    free(entry.arguments);
    hth_store_close(ms.store);
    assert_int_equal(test_remove(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_over), cmocka_unit_test(test_paused),
                                       cmocka_unit_test(test_why_it_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
