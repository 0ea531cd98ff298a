// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/log.h"
#include "base/settings.h"
#include "base/stats.h"

#define GIB ((uint64_t)1 << 30)

static void test_table(void **state)
{
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const hth_setting_info *t = hth_setting_get_info((hth_setting)i);
        char text[64];
        assert_true(t->min <= t->dflt && t->dflt <= t->max && strlen(t->help) > 5);
        assert_ok(hth_setting_get(t->name, text, sizeof text));
        assert_ok(hth_setting_set(t->name, text)); // prints as it reads
        assert_true(hth_setting_real((hth_setting)i) == t->dflt);
        char dflt[64];
        assert_string_equal(hth_setting_default((hth_setting)i, dflt, sizeof dflt), text);
        assert_int_equal(hth_setting_find(t->name), i);
        for (int o = 0; o < i; o++) {
            assert_string_not_equal(t->name, hth_setting_get_info((hth_setting)o)->name);
        }
    }
}

static void test_set(void **state)
{
    char text[64];
    assert_ok(hth_setting_set("limits.message_bytes", "96MiB"));
    assert_int_equal(hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES), 96 << 20);
    assert_ok(hth_setting_get("limits.message_bytes", text, sizeof text));
    assert_string_equal(text, "96MiB");
    assert_ok(hth_setting_set("convsel.tolerance", "0.25"));
    assert_true(hth_setting_real(HTH_SET_CONVSEL_TOLERANCE) == 0.25);
    assert_err(hth_setting_set("limits.rank", "9"), HTH_EINVAL,
               "limits.rank: '9' is not between 1 and 8");
    assert_err(hth_setting_set("limits.rank", "2.5"), HTH_EINVAL, "not a whole number");
    assert_err(hth_setting_set("limits.rank", "-1"), HTH_EINVAL, "not a whole number");
    assert_err(hth_setting_set("limits.message_bytes", "60%"), HTH_EINVAL, "a percentage");
    assert_err(hth_setting_set("limits.message_bytes", "1KiB"), HTH_EINVAL,
               "between 64KiB and 1TiB");
    assert_err(hth_setting_set("convsel.tolerance", "nan"), HTH_EINVAL, "not a number");
    assert_err(hth_setting_set("no.such", "1"), HTH_ENOENT, "no setting 'no.such'");
    assert_err(hth_setting_get("no.such", text, sizeof text), HTH_ENOENT, "no.such");
    assert_int_equal(hth_setting_int(HTH_SET_LIMIT_RANK), 8);
    hth_setting_reset();
    assert_int_equal(hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES), GIB);
}

static void keep_record(void *ctx, const hth_log_record *record)
{
    snprintf(ctx, 300, "%s %s", record->event, record->text);
}

// An old name means its setting, is never another setting's name, and setting by it logs a warning.
static void test_renamed(void **state)
{
    char logged[300] = "";
    for (int i = 0; i < HTH_N_RENAMED_SETTINGS; i++) {
        const hth_setting_rename *r = hth_setting_get_rename(i);
        const char *name = hth_setting_get_info(r->setting)->name;
        assert_string_not_equal(r->was, name);
        assert_int_equal(hth_setting_find(r->was), r->setting);
        assert_string_equal(hth_setting_old_name(r->was), r->was);
        assert_null(hth_setting_old_name(name));
        for (int k = 0; k < HTH_N_SETTINGS; k++) {
            assert_string_not_equal(hth_setting_get_info((hth_setting)k)->name, r->was);
        }
    }
    hth_log_sink(keep_record, logged);
    assert_ok(hth_setting_check("compute.spaces", "2"));
    assert_ok(hth_setting_set("compute.instances", "3"));
    assert_string_equal(logged, "");
    assert_ok(hth_setting_set("compute.spaces", "2"));
    assert_string_equal(logged, "setting-renamed 'compute.spaces' is now 'compute.instances'; the "
                                "old name will be removed in the next version");
    assert_int_equal(hth_setting_int(HTH_SET_COMPUTE_INSTANCES), 2);
    hth_log_sink(NULL, NULL);
    hth_setting_reset();
}

static void test_texts(void **state)
{
    char text[HTH_SETTING_TEXT], lengthy[HTH_SETTING_TEXT + 1];
    memset(lengthy, 'x', HTH_SETTING_TEXT);
    lengthy[HTH_SETTING_TEXT] = 0;
    assert_string_equal(hth_setting_text(HTH_SET_DEVICE, text), "cpu");
    assert_ok(hth_setting_set("device", "cpu:mem=1GiB"));
    assert_string_equal(hth_setting_text(HTH_SET_DEVICE, text), "cpu:mem=1GiB");
    assert_ok(hth_setting_check("device", "other"));
    assert_err(hth_setting_set("device", lengthy), HTH_EINVAL, "device: longer than 2047 bytes");
    assert_err(hth_setting_set("device", "a\nb"), HTH_EINVAL, "control character");
    assert_ok(hth_setting_set("log.format", "json"));
    assert_err(hth_setting_set("log.format", "jso"), HTH_EINVAL,
               "'jso' is not one of: logfmt json");
    assert_err(hth_setting_set("log.format", ""), HTH_EINVAL, "is not one of");
    assert_err(hth_setting_set("log.format", "logfmt json"), HTH_EINVAL, "is not one of");
    assert_ok(hth_setting_set("log.level", "warn,store=debug"));
    assert_err(hth_setting_set("log.level", "loud"), HTH_EINVAL, "log.level: log filter 'loud'");
    assert_err(hth_setting_check("limits.rank", "9"), HTH_EINVAL, "not between 1 and 8");
    assert_string_equal(hth_setting_text(HTH_SET_DEVICE, text), "cpu:mem=1GiB");
    assert_err(hth_setting_set("log.levle", "info"), HTH_ENOENT, "did you mean log.level?");
    assert_true(hth_setting_is(HTH_SET_DEVICE, "cpu:mem=1GiB"));
    assert_true(hth_setting_is(HTH_SET_LIMIT_MESSAGE_BYTES, "1024MiB"));
    assert_false(hth_setting_is(HTH_SET_LIMIT_MESSAGE_BYTES, "1025MiB"));
    assert_false(hth_setting_is(HTH_SET_LIMIT_MESSAGE_BYTES, "many"));
    hth_setting_reset();
    assert_string_equal(hth_setting_text(HTH_SET_DEVICE, text), "cpu");
    assert_string_equal(hth_setting_text(HTH_SET_LOG_FORMAT, text), "logfmt");
}

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t want;
    } good[] = {{"0", 0},
                {"123", 123},
                {"7B", 7},
                {"2GiB", 2 * GIB},
                {"512MiB", GIB / 2},
                {"512mb", GIB / 2},
                {"1.5G", 3 * GIB / 2},
                {"1k", 1024},
                {"1TiB", 1024 * GIB},
                {"60%", 600},
                {"100%", 1000},
                {"0.1%", 1}};
    static const char *const bad[] = {"",     "x",     "-1",    "+1",   "GiB",
                                      "1XiB", "1GiBs", "1 GiB", "101%", "1e999",
                                      "0x10", "inf",   "1GG",   "1i",   "9999999TiB"};
    uint64_t v;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(hth_parse_size(good[i].text, 1000, &v));
        assert_int_equal(v, good[i].want);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(hth_parse_size(bad[i], 1000, &v), HTH_EINVAL);
        assert_true(strlen(hth_err_detail()) > 0);
    }
    assert_err(hth_parse_size("5%", 0, &v), HTH_EINVAL,
               "a percentage is not possible here; give bytes");
}

static void test_stats(void **state)
{
    for (int i = 0; i < HTH_N_STATS; i++) {
        const hth_stat_info *t = hth_stat_get_info((hth_stat)i);
        assert_true(strlen(t->name) > 0 && strlen(t->unit) > 0 && strlen(t->help) > 5);
        assert_int_equal(hth_stat_get((hth_stat)i), 0);
    }
    hth_stat_add(HTH_STAT_REQUESTS_REFUSED, 5);
    hth_stat_add(HTH_STAT_REQUESTS_REFUSED, 6);
    assert_int_equal(hth_stat_get(HTH_STAT_REQUESTS_REFUSED), 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table), cmocka_unit_test(test_set),   cmocka_unit_test(test_texts),
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_stats), cmocka_unit_test(test_renamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
