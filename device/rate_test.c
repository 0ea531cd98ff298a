// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "device/rate.h"

static void rates_are_read(void **state)
{
    static const struct {
        const char *text;
        double want;
    } good[] = {
        {"1.5GB/s", 1.5e9},    {"1500MB/s", 1.5e9},      {"800kB/s", 8e5},
        {"12000000B/s", 12e6}, {"2GiB/s", 2147483648.0}, {"0.5MiB/s", 524288},
        {"1KiB/s", 1024},      {"1000000GB/s", 1e15},    {".25GB/s", 2.5e8},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        double v;
        assert_ok(hth_rate_read("link", good[i].text, &v));
        assert_true(v == good[i].want);
    }
}

static void nonsense_is_refused(void **state)
{
    static const char *const bad[] = {
        "",          "fast",     "GB/s",    "-1GB/s",    "+1GB/s",   "1.5",
        "1.5GB",     "1.5Gb/s",  "1.5gb/s", "1.5 GB/s",  "1.5GB/s ", "1e3MB/s",
        "0x10MB/s",  "infMB/s",  "nanGB/s", "1.2.3GB/s", ".GB/s",    "1TB/s",
        "1.5GB/sec", "1.5GB/s/", "50%",     "1.5KB/s",
    };
    double v = 7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char word[64];
        snprintf(word, sizeof word, "device option h2d=%s: expected a rate such as 1.5GB/s",
                 bad[i]);
        assert_err(hth_rate_read("h2d", bad[i], &v), HTH_EINVAL, word);
    }
    static const char *const beyond[] = {"0GB/s", "0.0B/s", "999B/s", "1000001GB/s",
                                         "99999999999999999999999999GB/s"};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        assert_err(hth_rate_read("link", beyond[i], &v), HTH_EINVAL,
                   "expected at least 1kB/s and at most 1000000GB/s");
    }
    assert_true(v == 7);
}

static void rates_are_written(void **state)
{
    char text[24];
    assert_string_equal(hth_rate_write(1.5e9, text, sizeof text), "1.5 GB/s");
    assert_string_equal(hth_rate_write(120e6, text, sizeof text), "120 MB/s");
    assert_string_equal(hth_rate_write(1000, text, sizeof text), "1 kB/s");
    assert_string_equal(hth_rate_write(25e9, text, sizeof text), "25 GB/s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_read),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(rates_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
