// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/alloc.h"
#include "base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[] = "/tmp/hearth-config-XXXXXX";
static char said[4096]; // all that was reported, a line each

static void say(void *ctx, const char *sentence)
{
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", sentence);
}

static const hth_config_report report = {say, NULL};

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    said[0] = 0;
}

static void assert_said(const char *part)
{
    if (strstr(said, part) == NULL) {
        fail_msg("'%s' is not in: %s", part, said);
    }
}

static void test_precedence(void **state)
{
    hth_config c = {.path = path};
    char text[HTH_SETTING_TEXT], origin[300], want[80];
    write_file("# a comment\n\nstore = /srv/models # and a comment\nlimits.rank=5\n"
               "listen = ipc:///a#b\n  listen = tcp://127.0.0.1:1  \nqueue.length = 9");
    assert_ok(hth_config_flag(&c, "limits.rank", "6"));
    assert_ok(hth_config_read(&c, &report));
    assert_ok(hth_config_flag(&c, "log.level", "info"));
    assert_ok(hth_config_flag(&c, "log.level", "debug")); // the last flag counts
    assert_err(hth_config_flag(&c, "log.level", "loud"), HTH_EINVAL, "log.level");
    assert_ok(hth_config_apply(&c));
    assert_string_equal(said, "");
    assert_string_equal(hth_setting_text(HTH_SET_STORE, text), "/srv/models");
    assert_string_equal(hth_setting_text(HTH_SET_LISTEN, text), "ipc:///a#b tcp://127.0.0.1:1");
    assert_string_equal(hth_setting_text(HTH_SET_LOG_LEVEL, text), "debug");
    assert_int_equal(hth_setting_int(HTH_SET_LIMIT_RANK), 6);
    assert_int_equal(hth_setting_int(HTH_SET_QUEUE_LENGTH), 9);
    assert_int_equal(hth_setting_int(HTH_SET_QUEUE_SPIN_US), 100);
    snprintf(want, sizeof want, "%s:5", path);
    assert_string_equal(hth_config_origin(&c, HTH_SET_LISTEN, origin, sizeof origin), want);
    assert_string_equal(hth_config_origin(&c, HTH_SET_LIMIT_RANK, origin, sizeof origin),
                        "--limits-rank");
    assert_string_equal(hth_config_origin(&c, HTH_SET_QUEUE_SPIN_US, origin, sizeof origin),
                        "default");
    hth_config_fini(&c);
    hth_setting_reset();
    assert_int_equal(hth_alloc_live(), 0);
}

static void test_bad_lines(void **state)
{
    hth_config c = {.path = path};
    write_file("store = /a\nstor = /b\nlimits.rank = 99\nlimits.message_bytes = 3 apples\n"
               "what is this\n= 5\nlog.format = xml\nstore = /c\nlog.level = loud\n");
    assert_err(hth_config_read(&c, &report), HTH_ENOENT, ":2: no setting 'stor'; did you mean");
    assert_said(":2: no setting 'stor'; did you mean store?\n");
    assert_said(":3: limits.rank: '99' is not between 1 and 8\n");
    assert_said(":4: limits.message_bytes: '3 apples': the unit is not one of");
    assert_said(":5: 'what is this' is not NAME = VALUE\n");
    assert_said(":6: '= 5' is not NAME = VALUE\n");
    assert_said(":7: log.format: 'xml' is not one of: logfmt json\n");
    assert_said(":8: store is set in line 1 already\n");
    assert_said(":9: log.level: log filter 'loud'");
    assert_null(hth_config_text(&c, HTH_SET_STORE));
    c.path = "/nonexistent/hearthd.conf";
    assert_err(hth_config_read(&c, &report), HTH_ENOENT, "cannot read /nonexistent/hearthd.conf");
    char *lengthy = malloc(6000);
    assert_non_null(lengthy);
    memset(lengthy, 'x', 5999);
    lengthy[5999] = 0;
    write_file(lengthy);
    free(lengthy);
    c.path = path;
    assert_err(hth_config_read(&c, &report), HTH_EINVAL, ":1: the line is longer");
    hth_config_fini(&c);
    assert_int_equal(hth_alloc_live(), 0);
}

static void test_reload(void **state)
{
    hth_config c = {.path = path};
    char text[HTH_SETTING_TEXT];
    write_file("store = /a\nlog.level = info\nlimits.nodes = 10\nlimits.message_bytes = 1GiB\n");
    assert_ok(hth_config_read(&c, &report));
    assert_ok(hth_config_flag(&c, "drain.seconds", "7"));
    assert_ok(hth_config_apply(&c));
    write_file(
        "store = /b\nlog.level = debug\nlimits.message_bytes = 1024MiB\ndrain.seconds = 9\n");
    assert_ok(hth_config_read(&c, &report));
    assert_int_equal(hth_config_reload(&c, &report), 2); // the level, and nodes to the default
    assert_string_equal(hth_setting_text(HTH_SET_LOG_LEVEL, text), "debug");
    assert_int_equal(hth_setting_int(HTH_SET_LIMIT_NODES), 200000);
    assert_int_equal(hth_setting_int(HTH_SET_DRAIN_SECONDS), 7);
    assert_string_equal(hth_setting_text(HTH_SET_STORE, text), "/a");
    assert_said(":1: store stays '/a': '/b' needs a restart\n");
    assert_null(strstr(said, "message_bytes"));
    write_file("log.level = loud\nlimits.nodes = 5\n"); // a mistake: all stays
    assert_err(hth_config_read(&c, &report), HTH_EINVAL, ":1: log.level");
    assert_int_equal(hth_config_reload(&c, &report), 0);
    assert_string_equal(hth_setting_text(HTH_SET_LOG_LEVEL, text), "debug");
    hth_config_fini(&c);
    hth_setting_reset();
    assert_int_equal(hth_alloc_live(), 0);
}

// A renamed setting is accepted by its old name from file and flags, and the report names both.
static void test_renamed(void **state)
{
    hth_config c = {.path = path};
    char origin[300];
    write_file("batch.max = 4\ncompute.spaces = 2\n");
    assert_ok(hth_config_read(&c, &report));
    assert_ok(hth_config_flag(&c, "engine.heartbeats", "20"));
    assert_ok(hth_config_flag(&c, "engine.heartbeats", "30"));
    assert_ok(hth_config_apply(&c));
    assert_int_equal(hth_setting_int(HTH_SET_COMPUTE_INSTANCES), 2);
    assert_int_equal(hth_setting_int(HTH_SET_ENGINE_MISSED_HEARTBEATS), 30);
    assert_string_equal(said, "");
    hth_config_renamed(&c, &report);
    assert_said(":2: 'compute.spaces' is now 'compute.instances'; the old name will be removed");
    assert_said("--engine-heartbeats: 'engine.heartbeats' is now 'engine.missed_heartbeats'; the");
    assert_null(strstr(said, "batch"));
    assert_string_equal(
        hth_config_origin(&c, HTH_SET_ENGINE_MISSED_HEARTBEATS, origin, sizeof origin),
        "--engine-heartbeats");
    // both names: one of them would be ignored silently
    assert_err(hth_config_flag(&c, "engine.missed_heartbeats", "20"), HTH_EINVAL,
               "'engine.heartbeats' is the old name of 'engine.missed_heartbeats': give only one");
    write_file("compute.spaces = 2\ncompute.instances = 2\n");
    assert_err(hth_config_read(&c, &report), HTH_EINVAL,
               ":2: 'compute.spaces' is the old name of 'compute.instances': give only one of "
               "them (line 1 has the other)");
    write_file("compute.instances = 2\n\ncompute.spaces = 2\n");
    assert_err(hth_config_read(&c, &report), HTH_EINVAL, ":3: 'compute.spaces' is the old name");
    assert_said("(line 1 has the other)");
    // a flag overrides the file under either name
    assert_ok(hth_config_flag(&c, "compute.instances", "3"));
    assert_ok(hth_config_apply(&c));
    assert_int_equal(hth_setting_int(HTH_SET_COMPUTE_INSTANCES), 3);
    write_file("compute.spaces = 99\n");
    assert_err(hth_config_read(&c, &report), HTH_EINVAL,
               ":1: compute.spaces: '99' is not between 1 and 4");
    hth_config_fini(&c);
    hth_setting_reset();
    assert_int_equal(hth_alloc_live(), 0);
}

static hth_err read_all(void)
{
    hth_config c = {.path = path};
    hth_err err = hth_config_flag(&c, "device", "cpu");
    if (err == HTH_OK) {
        err = hth_config_read(&c, NULL);
    }
    hth_config_fini(&c);
    return err;
}

static void test_faults(void **state)
{
    write_file("store = /a\nlisten = ipc:///x\nlisten = ipc:///y\n");
    FAULT_LOOP(read_all());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precedence), cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_reload),     cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_faults),
    };
    int fd = mkstemp(path);
    close(fd);
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rv;
}
