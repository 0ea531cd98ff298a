// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "server/daemon/daemon_log.h"

#include <jansson.h>

static const struct timespec at = {1795271402, 7000000}; // 2026-11-21T14:30:02.007Z

static const char *line(const char *text, bool json)
{
    static char out[4096];
    hth_log_record r = {HTH_LEVEL_WARN, HTH_SUBSYS_STORE, "put-done", text, 0};
    return hth_daemon_log_line(&r, &at, json, out, sizeof out);
}

#define PREFIX "time=2026-11-21T14:30:02.007Z level=warn subsystem=store event=put-done"

static void test_logfmt(void **state)
{
    assert_string_equal(line("model=vgg version=3", false), PREFIX " model=vgg version=3");
    assert_string_equal(line("", false), PREFIX);
    assert_string_equal(line("job \"a\": bad\nend", false),
                        PREFIX " message=\"job \\\"a\\\": bad end\"");
    assert_string_equal(line("why=no memory", false), PREFIX " message=\"why=no memory\"");
    assert_string_equal(line("url=a=b", false), PREFIX " message=\"url=a=b\"");
}

static void test_json(void **state)
{
    json_t *o = json_loads(line("model=vgg version=3 rate=1.5", true), 0, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "time")), "2026-11-21T14:30:02.007Z");
    assert_string_equal(json_string_value(json_object_get(o, "level")), "warn");
    assert_string_equal(json_string_value(json_object_get(o, "event")), "put-done");
    assert_string_equal(json_string_value(json_object_get(o, "model")), "vgg");
    assert_int_equal(json_integer_value(json_object_get(o, "version")), 3);
    assert_string_equal(json_string_value(json_object_get(o, "rate")), "1.5");
    json_decref(o);
    o = json_loads(line("a \"quoted\" sentence\n", true), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(o, "message")),
                        "a \"quoted\" sentence\n");
    json_decref(o);
}

static void test_long(void **state)
{
    char text[1024], small[80];
    memset(text, '"', sizeof text - 1);
    text[sizeof text - 1] = 0;
    json_t *o = json_loads(line(text, true), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(o, "message")), text);
    json_decref(o);
    hth_log_record r = {HTH_LEVEL_WARN, HTH_SUBSYS_STORE, "put-done", text, 0};
    hth_daemon_log_line(&r, &at, false, small, sizeof small);
    assert_int_equal(strlen(small), sizeof small - 1);
    hth_daemon_log_line(&r, &at, true, small, sizeof small); // does not fit: nothing, not a part
    assert_string_equal(small, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logfmt),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
