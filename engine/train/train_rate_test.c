// SPDX-License-Identifier: Apache-2.0
// Learning rates against torch.optim.lr_scheduler (tests/tools/make_rates.py), and words that are
// no schedule.
#include "base/test.h"
#include "engine/train/train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static hth_err read_spec(const char *schedule, double lr, int warmup, json_t **args,
                         hth_train_spec *spec)
{
    *args = json_pack("{s:s, s:s, s:s, s:s, s:f, s:i}", "model", "m", "data", "d", "loss", "mse",
                      "schedule", schedule, "lr", lr, "warmup", warmup);
    return hth_train_spec_read(*args, false, spec);
}

static void rates_are_pytorchs(void **state)
{
    char name[40];
    double lr, want;
    int warmup, epochs, per, lines = 0;
    FILE *f = fopen("tests/data/train/rates.txt", "r");
    assert_non_null(f);
    while (fscanf(f, "%39s %d %lf %d %d", name, &warmup, &lr, &epochs, &per) == 5) {
        hth_train_spec s;
        json_t *args;
        assert_int_equal(read_spec(name, lr, warmup, &args, &s), HTH_OK);
        for (int i = 0; i < epochs * per; i++) {
            assert_int_equal(fscanf(f, "%lf", &want), 1);
            double got = hth_train_rate(&s, i, (int64_t)epochs * per, per);
            if (!(fabs(got - want) <= 1e-9 * lr)) {
                fail_msg("%s, warm-up %d, step %d of %d: %.12g, PyTorch has %.12g", name, warmup, i,
                         epochs * per, got, want);
            }
        }
        json_decref(args);
        lines++;
    }
    fclose(f);
    assert_int_equal(lines, 24);
}

static void other_words_are_refused(void **state)
{
    static const char *const bad[] = {
        "onecycle",   "step:0:0.5",      "step:2",       "step:2:-1",     "step:2:0.5:1",
        "step:2:nan", "exponential:inf", "exponential:", "exponential:0", "cosine "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hth_train_spec s;
        json_t *args;
        assert_int_equal(read_spec(bad[i], 1, 0, &args, &s), HTH_EINVAL);
        assert_non_null(strstr(hth_err_detail(), "is not one of constant, step:EPOCHS:GAMMA, "
                                                 "exponential:GAMMA, cosine, linear, one-cycle"));
        json_decref(args);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rates_are_pytorchs),
                                       cmocka_unit_test(other_words_are_refused)};
    return cmocka_run_group_tests_name("train_rate", tests, NULL, NULL);
}
