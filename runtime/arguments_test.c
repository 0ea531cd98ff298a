// SPDX-License-Identifier: Apache-2.0
#include "runtime/arguments.h"

#include "base/test.h"

#include <string.h>

static hth_err check(const char *query, const char *text)
{
    json_t *args;
    hth_command_id command = hth_command_find(query);
    hth_err err = hth_arguments_read(command, text, &args);
    if (err == HTH_OK) {
        err = hth_arguments_check(command, args);
    }
    json_decref(args);
    return err;
}

static void test_not_an_object(void **state)
{
    static const char *const bad[] = {"[]", "1", "null", "\"job\"", "{\"job\":", "{]", "x", " "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_err(check("job", bad[i]), HTH_EINVAL,
                   "the arguments of 'job' are not a JSON object");
    }
    assert_ok(check("jobs", ""));
    assert_ok(check("jobs", "{}"));
}

static void test_types(void **state)
{
    static const char *const bad[][2] = {
        {"{\"job\":42}", "'job' must be a string, not a number"},
        {"{\"job\":[\"a\"]}", "'job' must be a string, not a list"},
        {"{\"model\":{}}", "'model' must be a string, not an object"},
        {"{\"budget\":1048576}", "'budget' must be a string, not a number"},
        {"{\"on\":true}", "'on' must be a string, not true or false"},
        {"{\"batch\":\"8\"}", "'batch' must be a number, not a string"},
        {"{\"points\":[]}", "'points' must be a number, not a list"},
        {"{\"accumulate\":[1]}", "'accumulate' must be a string or a number, not a list"},
        {"{\"no-shuffle\":1}", "'no-shuffle' must be true or false, not a number"},
        {"{\"pin\":\"yes\"}", "'pin' must be true or false, not a string"},
        {"{\"freeze\":\"conv*\"}", "'freeze' must be a list of strings, not a string"},
        {"{\"freeze\":[\"a\",1]}", "'freeze' must be a list of strings, not a list of others"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *command = strstr(bad[i][0], "points") != NULL ? "job" : "train";
        command = strstr(bad[i][0], "pin") != NULL ? "load" : command;
        assert_err(check(command, bad[i][0]), HTH_EINVAL, bad[i][1]);
    }
    static const char *const good[] = {
        "{\"model\":\"m\",\"batch\":8,\"seed\":1.0,\"freeze\":[],\"accumulate\":\"auto\"}",
        "{\"model\":null,\"pin\":null,\"freeze\":null,\"accumulate\":2,\"keep\":false}",
        "{\"freeze\":[\"a\",\"b\"],\"data\":{\"file\":\"a\"},\"whatever\":7}",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(check("train", good[i]));
    }
}

// What another command takes is ignored, whatever it is.
static void test_not_taken(void **state)
{
    assert_ok(check("stats", "{\"points\":\"x\",\"seconds\":[]}"));
    assert_err(check("stats", "{\"model\":7}"), HTH_EINVAL, "'model' must be a string");
}

// A misspelt argument is named, and what it may have been.
static void test_unknown(void **state)
{
    static const char *const bad[][2] = {
        {"{\"epoch\":3}", "'train' has no argument 'epoch'; did you mean 'epochs'?"},
        {"{\"lr\":1,\"save_as\":\"a\"}", "no argument 'save_as'; did you mean 'save-as'?"},
        {"{\"Batch\":8}", "'train' has no argument 'Batch'; did you mean 'batch'?"},
        {"{\"lerning-rate\":0.1}", "no argument 'lerning-rate'; `hearth help train` lists"},
        {"{\"points\":3}", "'train' has no argument 'points'"}, // another command's
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *args = json_loads(bad[i][0], 0, NULL);
        assert_err(hth_arguments_known(HTH_COMMAND_TRAIN, args), HTH_EINVAL, bad[i][1]);
        json_decref(args);
    }
    json_t *args = json_loads("{\"lr\":1,\"k\":3,\"exchange\":{},\"spell\":null}", 0, NULL);
    assert_ok(hth_arguments_known(HTH_COMMAND_TRAIN, args));
    json_decref(args);
}

static void test_which_model(void **state)
{
    static const char *const about[] = {"load", "unload", "model", "batching", "precision"};
    for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
        assert_err(check(about[i], "{}"), HTH_EINVAL, "the argument 'model' is missing");
        assert_ok(check(about[i], "{\"model\":\"m\"}"));
    }
    assert_ok(check("plan", "{}")); // of a problem
    assert_ok(check("curve", "{}"));
}

static void test_which_job(void **state)
{
    static const char *const about[] = {"job", "pause", "resume", "cancel"};
    for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
        assert_err(check(about[i], "{}"), HTH_EINVAL, "the argument 'job' is missing");
        assert_err(check(about[i], "{\"job\":null}"), HTH_EINVAL, "the argument 'job' is missing");
        assert_err(check(about[i], "{\"job\":\"\"}"), HTH_EINVAL, "the argument 'job' is missing");
        assert_ok(check(about[i], "{\"job\":\"42\"}"));
    }
    assert_ok(check("train", "{\"model\":\"m\"}"));
}

static void test_a_rank(void **state)
{
    static const char *const bad[] = {
        "7",
        "{}",
        "{\"rank\":0,\"ranks\":2}",
        "{\"rank\":2,\"ranks\":2,\"descriptor\":0}",
        "{\"rank\":-1,\"ranks\":2,\"descriptor\":0}",
        "{\"rank\":0,\"ranks\":0,\"descriptor\":0}",
        "{\"rank\":0,\"ranks\":2,\"descriptor\":-1}",
        "{\"rank\":0,\"ranks\":2,\"descriptor\":0,\"fd\":3}",
        "{\"rank\":0.5,\"ranks\":2,\"fd\":3}",
        "{\"rank\":0,\"ranks\":99999999999,\"fd\":3}",
    };
    hth_rank rank;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *args = json_pack("{s:o}", HTH_RANK_KEY, json_loads(bad[i], JSON_DECODE_ANY, NULL));
        assert_err(hth_rank_read(args, &rank), HTH_EINVAL, "'exchange' must be {");
        json_decref(args);
    }
    json_t *args = json_loads("{\"exchange\":{\"rank\":1,\"ranks\":3,\"descriptor\":2}}", 0, NULL);
    assert_ok(hth_rank_read(args, &rank));
    assert_int_equal(rank.rank, 1);
    assert_int_equal(rank.ranks, 3);
    assert_int_equal(rank.descriptor, 2);
    assert_int_equal(rank.fd, -1);
    json_object_set_new(args, HTH_RANK_KEY, json_null());
    assert_ok(hth_rank_read(args, &rank));
    assert_int_equal(rank.ranks, 0);
    json_decref(args);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_an_object), cmocka_unit_test(test_types),
        cmocka_unit_test(test_not_taken),     cmocka_unit_test(test_which_model),
        cmocka_unit_test(test_which_job),     cmocka_unit_test(test_a_rank),
        cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
