// SPDX-License-Identifier: Apache-2.0
// Running statistics trained as the initializers that they are, however the model reads them, and
// models refused in which something else reads them, too.
#include "graph/test_words.h"
#include "tests/rig/train_run.h"

#include "base/test.h"

#define STEPS   3
#define NUMBERS 3 // of each initializer

// Constants of floats are initializers.
static hth_graph *model(const char *text)
{
    hth_graph *g = words_graph(text);
    int n = 0;
    for (int v = 0; v < g->n_values; v++) {
        const hth_const *c = g->values[v].constant;
        g->values[v].initializer = c != NULL && c->dtype == HTH_DT_F32 ? ++n : 0;
    }
    return g;
}

static hth_err build(const hth_graph *model, hth_train_graph *out)
{
    const hth_train_options o = {.loss = HTH_LOSS_MSE};
    const hth_tensor x = {.dtype = HTH_DT_F32, .shape = {2, {4, NUMBERS}}};
    return hth_train_build(model, &x, &o, hth_ref_eval, NULL, out);
}

// What training made of the model: its losses, and what each initializer is afterwards.
typedef struct trained {
    double loss[STEPS];
    float content[8][NUMBERS];
    int n_statistics;
} trained;

static void check_foreseen(const hth_graph *model, const hth_train_graph *t)
{
    const hth_train_options o = {.loss = HTH_LOSS_MSE};
    bool changed[8];
    int n = 0;
    assert_ok(hth_train_changes(model, &o, changed, 8));
    for (int i = 0; i < 8; i++) {
        n += changed[i];
    }
    assert_int_equal(n, t->n_slots);
    for (int s = 0; s < t->n_slots; s++) {
        assert_true(changed[t->slots[s].initializer]);
    }
}

// It is evaluated with all that the step has changed.
static void check_forward(const hth_graph *model, const hth_train_graph *t)
{
    hth_graph *g;
    assert_ok(hth_train_forward(model, t, &g));
    assert_int_equal(g->n_inputs, 1 + t->n_slots);
    for (int v = 0; v < g->n_values; v++) {
        assert_null(g->values[v].constant);
    }
    hth_graph_free(g);
}

static trained train(const char *text)
{
    trained made = {.n_statistics = 0};
    hth_train_graph t;
    hth_graph *g = model(text);
    assert_ok(build(g, &t));
    check_foreseen(g, &t);
    check_forward(g, &t);
    train_run run = run_open(&t);
    float *x = run_input(&run, 0)->data, *hyper = run_input(&run, t.hyper)->data;
    hyper[HTH_HYPER_LR] = 0.1F;
    hyper[HTH_HYPER_GRAD_SCALE] = 1;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 4 * NUMBERS; k++) {
            x[k] = (float)((k * 7 + i * 5) % 11) - 4;
        }
        made.loss[i] = run_step(&run);
        run_commit(&run);
    }
    for (int s = 0; s < t.n_slots; s++) {
        made.n_statistics += t.slots[s].kind == HTH_SLOT_STAT;
        memcpy(made.content[t.slots[s].initializer], run_input(&run, t.slots[s].input)->data,
               sizeof made.content[0]);
    }
    run_close(&run);
    hth_train_graph_fini(&t);
    hth_graph_free(g);
    return made;
}

// An exporter gives a statistic another name by an Identity.
static void test_identity(void **state)
{
    trained plain = train("x:4,3; y=BatchNormalization(x #f3 #f3 #f3 #f3); -> y");
    assert_int_equal(plain.n_statistics, 2);
    trained named =
        train("x:4,3; s=Identity(#f3); b=Identity(#f3); m=Identity(#f3); o=Identity(#f3); "
              "v=Identity(o); y=BatchNormalization(x s b m v); -> y");
    assert_memory_equal(&named, &plain, sizeof plain);
}

// A layer that stands in a model twice has its statistics once, and goes on with them.
static void test_twice(void **state)
{
    trained once = train("x:4,3; s=Identity(#f3); b=Identity(#f3); m=Identity(#f3); "
                         "v=Identity(#f3); y=BatchNormalization(x s b m v); -> y");
    trained twice = train("x:4,3; s=Identity(#f3); b=Identity(#f3); m=Identity(#f3); "
                          "v=Identity(#f3); a=BatchNormalization(x s b m v); "
                          "y=BatchNormalization(a s b m v); -> y");
    assert_int_equal(twice.n_statistics, 2);
    assert_true(memcmp(twice.content, once.content, sizeof once.content) != 0);
}

// Input `to` of node `node` becomes what input `from` of node `of` is.
static void refused(const char *text, int node, int to, int of, int from, const char *says)
{
    hth_train_graph t;
    hth_graph *g = model(text);
    g->nodes[node].inputs[to] = g->nodes[of].inputs[from];
    assert_err(build(g, &t), HTH_ENOTSUP, says);
    hth_graph_free(g);
}

static void test_merged(void **state)
{
    static const char one[] = "x:4,3; y=BatchNormalization(x #f3 #f3 #f3 #f3); -> y",
                      two[] = "x:4,3; a=BatchNormalization(x #f3 #f3 #f3 #f3); "
                              "y=BatchNormalization(a #f3 #f3 #f3 #f3); -> y",
                      sum[] = "x:4,3; a=BatchNormalization(x #f3 #f3 #f3 #f3); "
                              "y=Add(a #f3); -> y",
                      named[] = "x:4,3; s=Identity(#f3); y=BatchNormalization(x s #f3 #f3 #f3); "
                                "-> y";
    refused(one, 0, 4, 0, 1, "node 'y' (BatchNormalization) reads it, too");    // ones
    refused(one, 0, 3, 0, 2, "node 'y' (BatchNormalization): its statistic '"); // zeros
    refused(one, 0, 4, 0, 3, "cannot be updated");
    refused(two, 1, 3, 0, 3, "node 'y' (BatchNormalization) reads it, too");
    refused(two, 1, 1, 0, 4, "node 'a' (BatchNormalization): its statistic '");
    refused(sum, 1, 1, 0, 3, "node 'y' (Add) reads it, too");
    refused(named, 1, 4, 0, 0, "node 'y' (BatchNormalization) reads it, too");
}

static void test_no_memory(void **state)
{
    hth_graph *g = model("x:4,3; m=Identity(#f3); y=BatchNormalization(x #f3 #f3 m #f3); -> y");
    const hth_train_options o = {.loss = HTH_LOSS_MSE};
    hth_train_graph t;
    bool changed[8];
    FAULT_LOOP(build(g, &t));
    hth_train_graph_fini(&t);
    FAULT_LOOP(hth_train_changes(g, &o, changed, 8));
    hth_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_merged),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
