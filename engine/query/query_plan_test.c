// SPDX-License-Identifier: Apache-2.0
// Planning problems that come with a question: what is said of their plans and curves.
#include "engine/query/query.h"

#include "base/clock.h"
#include "base/test.h"
#include "runtime/command.h"

#include <pthread.h>
#include <stdatomic.h>

// A chain of two nodes, x -> y -> z; %s: what is said of an alternative of each.
#define CHAIN                                                                                      \
    "{\"problem\":{\"budget\":100000,\"tensors\":["                                                \
    "{\"id\":0,\"name\":\"x\",\"bytes\":64,\"class\":\"input\",\"producer\":-1},"                  \
    "{\"id\":1,\"name\":\"y\",\"bytes\":6400,\"class\":\"activation\",\"producer\":0},"            \
    "{\"id\":2,\"name\":\"z\",\"bytes\":64,\"class\":\"output\",\"producer\":1}],\"nodes\":["      \
    "{\"id\":0,\"name\":\"first\",\"inputs\":[0],\"outputs\":[1],\"alternatives\":[{%s}]},"        \
    "{\"id\":1,\"name\":\"second\",\"inputs\":[1],\"outputs\":[2],\"alternatives\":[{%s}]}]}%s}"

static json_t *chain(const char *choice, const char *more)
{
    char text[2000];
    snprintf(text, sizeof text, CHAIN, choice, choice, more);
    json_t *args = json_loads(text, 0, NULL);
    assert_non_null(args);
    return args;
}

// Each time is a number, and their sum is none.
static void times_have_a_sum(void **state)
{
    static const char *const more[] = {"", ",\"trace\":true", ",\"policy\":\"hearth\""};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        json_t *args = chain("\"name\":\"slow\",\"time_us\":1e308", more[i]), *out = NULL;
        assert_err(hth_query_data(HTH_COMMAND_PLAN, args, &out), HTH_EINVAL,
                   "node 0 'first': alternative 'slow' takes 1e+308 us");
        json_decref(out);
        json_decref(args);
    }
}

// A curve of nodes that take no time has all its points, none of them slower than another.
static void curve_without_times(void **state)
{
    json_t *args = chain("\"name\":\"a\"", ",\"plan-ms\":5"), *out = NULL, *row;
    size_t i;
    assert_ok(hth_query_data(HTH_COMMAND_CURVE, args, &out));
    assert_true(json_array_size(out) > 0);
    json_array_foreach(out, i, row)
    {
        assert_true(json_number_value(json_object_get(row, "slowdown")) == 1);
    }
    json_decref(out);
    json_decref(args);
}

static int fails_after; // as many of jansson's allocations one fails; below 0: none does

static void *failing_malloc(size_t bytes)
{
    return fails_after-- == 0 ? NULL : malloc(bytes);
}

static void answers_whole_or_not(hth_command_id command, const char *more, const char *key)
{
    bool failed = true;
    fails_after = -1;
    json_set_alloc_funcs(failing_malloc, free);
    json_t *args = chain("\"name\":\"a\",\"time_us\":5", more), *whole = NULL;
    assert_ok(hth_query_data(command, args, &whole));
    for (int n = 0; failed; n++) {
        json_t *out = NULL;
        fails_after = n;
        hth_err err = hth_query_data(command, args, &out);
        failed = fails_after < 0;
        fails_after = -1;
        assert_int_equal(err, err == HTH_OK ? HTH_OK : HTH_ENOMEM);
        if (err == HTH_OK) {
            assert_int_equal(json_array_size(out), json_array_size(whole));
            assert_int_equal(json_object_size(out), json_object_size(whole));
            assert_true(key == NULL || json_object_get(out, key) != NULL);
        }
        json_decref(out);
    }
    json_decref(whole);
    json_decref(args);
    json_set_alloc_funcs(malloc, free);
}

static void out_of_memory(void **state)
{
    answers_whole_or_not(HTH_COMMAND_PLAN, ",\"trace\":true", "files");
    answers_whole_or_not(HTH_COMMAND_PLAN, ",\"out\":true,\"trace\":true", "files");
    answers_whole_or_not(HTH_COMMAND_CURVE, ",\"plan-ms\":5", NULL);
}

static pthread_t engine;
static atomic_bool elsewhere; // another thread than the engine's looked at the clock

static uint64_t looked_at(void *ctx)
{
    elsewhere = elsewhere || !pthread_equal(pthread_self(), engine);
    return 1;
}

// How long a problem takes is for who sent it to say: the engine's thread only waits, whatever the
// policy.
static void engine_only_waits(void **state)
{
    static const char *const more[] = {"", ",\"policy\":\"hearth\""};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        json_t *args = chain("\"name\":\"a\",\"time_us\":5", more[i]);
        char *text = json_dumps(args, 0);
        hth_work_queue queue = {.ctx = NULL};
        hth_site site = {.queue = &queue};
        hth_models ms = {.site = &site};
        hth_request request = {.command = HTH_COMMAND_PLAN, .arguments = text};
        engine = pthread_self();
        elsewhere = false;
        hth_clock_inject(looked_at, NULL);
        hth_err err = hth_query_answer(&ms, &request);
        hth_clock_inject(NULL, NULL);
        assert_ok(err);
        assert_true(elsewhere);
        assert_non_null(strstr(request.json, "\"predicted_us\":10"));
        hth_free(request.json);
        free(text);
        json_decref(args);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_have_a_sum),
        cmocka_unit_test(curve_without_times),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(engine_only_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
