// SPDX-License-Identifier: Apache-2.0
// Reading a problem and writing its answer; what is said of bad input is in tests/shares_test.py.
#include "fair/fair_file.h"

#include "base/test.h"

static const char text[] =
    "{\"capacity\": {\"cpu\": 1.5, \"memory\": 18}, \"tenants\": ["
    "{\"name\": \"A\", \"weight\": 2.5, \"tasks\": null, \"demand\": {\"memory\": 4}},"
    "{\"name\": \"B\", \"tasks\": 7, \"demand\": [{\"cpu\": 0.25}, {\"cpu\": 0.05}]}]}";

// Decimals become whole numbers, and are decimals again in the answer.
static void test_scale(void **state)
{
    hth_fair_problem p;
    hth_fair_shares s;
    assert_ok(hth_fair_problem_read(text, sizeof text - 1, &p));
    assert_true(p.scale[0] == 100 && p.capacity.of[0] == 150 && p.tenants[1].demand[1].of[0] == 5);
    assert_true(p.scale[1] == 1 && p.capacity.of[1] == 18);
    assert_true(p.tenants[0].weight == 2.5 && p.tenants[1].weight == 1);
    assert_true(p.tenants[0].tasks == HTH_FAIR_UNLIMITED && p.tenants[1].tasks == 7);
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
    json_t *doc = hth_fair_shares_json(&p, &s);
    char *answer = json_dumps(doc, JSON_COMPACT);
    assert_string_equal(answer,
                        "{\"tenants\":[{\"name\":\"A\",\"tasks\":4,\"used\":{\"cpu\":0,\"memory\":"
                        "16},\"dominant_share\":0.88888888888888884},{\"name\":\"B\",\"tasks\":6,"
                        "\"used\":{\"cpu\":1.5,\"memory\":0},\"dominant_share\":1.0}],\"left\":{"
                        "\"cpu\":0,\"memory\":2}}");
    free(answer);
    json_decref(doc);
    hth_fair_shares_fini(&s);
    hth_fair_problem_fini(&p);
}

// With too many decimals numbers stay as they are.
static void test_many_decimals(void **state)
{
    static const char many[] = "{\"capacity\": {\"cpu\": 0.12345678901}, \"tenants\": [{\"name\": "
                               "\"A\", \"demand\": {\"cpu\": 0.1}}]}";
    hth_fair_problem p;
    assert_ok(hth_fair_problem_read(many, sizeof many - 1, &p));
    assert_true(p.scale[0] == 1 && p.capacity.of[0] == 0.12345678901);
    hth_fair_problem_fini(&p);
}

static hth_err read_once(void)
{
    hth_fair_problem p;
    hth_err err = hth_fair_problem_read(text, sizeof text - 1, &p);
    assert_true(err == HTH_OK || p.tenants == NULL);
    hth_fair_problem_fini(&p);
    return err;
}

static void test_memory(void **state)
{
    FAULT_LOOP(read_once());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scale),
                                       cmocka_unit_test(test_many_decimals),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
