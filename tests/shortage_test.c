// SPDX-License-Identifier: Apache-2.0
// What an engine says of memory when a budget is refused, over budgets and test models: nothing is
// said to be needed that is not, and for what is said to be enough, it is.
#include "planner/plan_least_test.h"
#include "tests/rig/train_job.h"

#define BUDGETS 8 // per way of asking

typedef struct refused {
    uint64_t budget;
    char *text;
} refused;

// Answers to questions about one model.
typedef struct asked {
    fixture *f;
    uint64_t fewest; // bytes for which one of them found a plan
    int n;
    refused list[64];
} asked;

// Asks with "budget" added to the arguments (a format with %llu); true: there was a plan.
static bool ask_budget(asked *a, const char *query, const char *arguments, uint64_t budget)
{
    char text[500];
    call c = {.r = {.command = hth_command_find(query), .arguments = text}};
    snprintf(text, sizeof text, arguments, (unsigned long long)budget);
    hth_err err = call_run(a->f->engine, &c);
    hth_free(c.r.json);
    if (err == HTH_OK) {
        a->fewest = budget < a->fewest ? budget : a->fewest;
        return true;
    }
    if (err != HTH_ETOOBIG || a->n == 64) {
        fail_msg("%s: %s", text, hth_err_detail());
    }
    a->list[a->n++] = (refused){budget, hth_strdup(hth_err_detail())};
    return false;
}

// Budgets down to the least for which a plan is found, and some that are hopeless.
static void ask_budgets(asked *a, const char *query, const char *arguments, uint64_t enough)
{
    uint64_t low = 0, high = enough;
    ask_budget(a, query, arguments, 1);
    ask_budget(a, query, arguments, enough / 64);
    for (int k = 0; k < BUDGETS; k++) {
        uint64_t middle = low + (high - low) / 2;
        *(ask_budget(a, query, arguments, middle) ? &high : &low) = middle;
    }
}

// Checks every sentence; *proven, *not_found: how many.
static void check_sentences(asked *a, int *proven, int *not_found)
{
    for (int i = 0; i < a->n; i++) {
        uint64_t found;
        bool yes = pl_check(a->list[i].text, a->list[i].budget, a->fewest, &found);
        *proven += yes;
        *not_found += !yes;
        hth_free(a->list[i].text);
    }
}

static void inference(void **state)
{
    static const char *const files[] = {"digits/digits", "passes/residual", "passes/mlp",
                                        "passes/attention"};
    int proven = 0, not_found = 0;
    fixture f;
    fixture_open(&f, "cpu:mem=64MiB,threads=2");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[100], name[20], least[100], q[200];
        asked a = {.f = &f, .fewest = (uint64_t)64 << 20};
        snprintf(path, sizeof path, "tests/data/%s.onnx", files[i]);
        snprintf(name, sizeof name, "m%zu", i);
        put(f.store, name, path);
        snprintf(least, sizeof least, "{\"model\":\"%s\",\"batch\":2}", name);
        json_t *plan = told(&f, "plan", least);
        uint64_t enough = (uint64_t)json_integer_value(json_object_get(plan, "resident_bytes")) +
                          (uint64_t)json_integer_value(json_object_get(plan, "arena_bytes")) + 1;
        json_decref(plan);
        snprintf(q, sizeof q, "{\"model\":\"%s\",\"batch\":2,\"budget\":\"%%llu\"}", name);
        ask_budgets(&a, "plan", q, enough);
        // For what the last refusal above the hopeless ones says that a plan was found is enough.
        uint64_t found = pl_found(a.list[a.n - 1].text);
        assert_true(found > 0 && ask_budget(&a, "plan", q, found));
        check_sentences(&a, &proven, &not_found);
    }
    fixture_close(&f);
    print_message("# %d proven, %d not found\n", proven, not_found);
    assert_true(proven > 0 && not_found > 0);
}

static void training_steps(void **state)
{
    static const training *const models[] = {&unet, &encoder};
    int proven = 0, not_found = 0;
    fixture f;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const training *t = models[i];
        char data[200], q[500], more[200];
        double loss[STEPS];
        asked a = {.f = &f, .fewest = (uint64_t)256 << 20};
        prepare(&f, t, data);
        snprintf(
            q, sizeof q,
            "{\"model\":\"%s\",\"train\":true,\"batch\":%d,\"plan-ms\":5,\"budget\":\"%%llu\"}",
            t->model, BATCH);
        ask_budgets(&a, "plan", q, (uint64_t)2 << 20);
        // A job, also in parts: what is said to be needed is not more than a part needs.
        for (int k = 0; k < 2; k++) {
            snprintf(more, sizeof more, "{\"plan-ms\":5,%s\"budget\":\"%%llu\"}",
                     k == 0 ? "" : "\"accumulate\":\"auto\",");
            snprintf(q, sizeof q, more, 4096ull);
            json_t *doc = arguments_of(t, data, q, loss);
            json_object_set_new(doc, "budget", json_string("%llu"));
            char *text = json_dumps(doc, JSON_COMPACT);
            assert_false(ask_budget(&a, "train", text, 4096));
            free(text);
            json_decref(doc);
        }
        snprintf(q, sizeof q,
                 "{\"model\":\"%s\",\"batch\":%d,\"plan-ms\":5,\"accumulate\":\"auto\"}", t->model,
                 BATCH);
        json_t *curve = told(&f, "curve", q);
        json_int_t least =
            json_integer_value(json_object_get(json_array_get(curve, 0), "device_bytes"));
        uint64_t found;
        assert_true(least > 0);
        pl_check(a.list[a.n - 1].text, 4096, (uint64_t)least, &found);
        json_decref(curve);
        check_sentences(&a, &proven, &not_found);
    }
    fixture_close(&f);
    print_message("# %d proven, %d not found\n", proven, not_found);
    assert_true(proven > 0 && not_found > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(inference),
                                       cmocka_unit_test(training_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
