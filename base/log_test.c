// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/log.h"

#include <stdio.h>

static char got[2048];
static int n_got, n_evaluated;

static void sink(void *ctx, const hth_log_record *record)
{
    n_got++;
    snprintf(got, sizeof got, "%s %s %s %s%s", hth_log_level_name(record->level),
             hth_subsystem_name(record->subsystem), record->event, record->text, (const char *)ctx);
}

static int evaluated(void)
{
    return ++n_evaluated;
}

static void test_silent(void **state)
{
    hth_log(ERROR, BASE, "nobody", "n=%d", evaluated());
    assert_int_equal(n_evaluated, 0);
}

static void test_sink(void **state)
{
    hth_log_sink(sink, "!");
    hth_log(WARN, STORE, "slow", "ms=%d", 7);
    assert_string_equal(got, "warn store slow ms=7!");
    hth_log(DEBUG, STORE, "detail", "n=%d", evaluated());
    assert_int_equal(n_evaluated, 0);
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    hth_log(INFO, SERVER, "big", "%s", big);
    assert_true(strlen(got) < 1100);
    hth_log(INFO, SERVER, "names", "model=%s", "a\033[2J\n\xc2\x9b\xff\xc3\xbc");
    assert_string_equal(got, "info server names model=a?[2J????\xc3\xbc!"); // nobody obeys
    int before = n_got;
    hth_log_sink(NULL, NULL);
    hth_log(ERROR, STORE, "gone", "n=%d", 1);
    assert_int_equal(n_got, before);
}

static void test_filter(void **state)
{
    hth_log_sink(sink, "");
    assert_ok(hth_log_filter("warn,store=debug"));
    n_got = 0;
    hth_log(INFO, SERVER, "e", "%s", "");
    assert_int_equal(n_got, 0);
    hth_log(DEBUG, STORE, "e", "%s", "");
    hth_log(WARN, SERVER, "e", "%s", "");
    assert_int_equal(n_got, 2);
    assert_err(hth_log_filter("error,shop=info"), HTH_EINVAL, "'shop=info'");
    assert_err(hth_log_filter("error,shop=info"), HTH_EINVAL, "the subsystems are base, graph, ");
    assert_err(hth_log_filter("loud"), HTH_EINVAL, "'loud'");
    assert_err(hth_log_filter("loud"), HTH_EINVAL, "the levels are none, error, warn, info, ");
    assert_err(hth_log_filter(""), HTH_EINVAL, "''");
    hth_log(WARN, SERVER, "e", "%s", ""); // a refused filter changed nothing
    assert_int_equal(n_got, 3);
    assert_ok(hth_log_filter("none"));
    hth_log(ERROR, SERVER, "e", "%s", "");
    assert_int_equal(n_got, 3);
    hth_log_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_silent), cmocka_unit_test(test_sink),
                                       cmocka_unit_test(test_filter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
