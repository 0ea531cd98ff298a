// SPDX-License-Identifier: Apache-2.0
// The table of commands, and the page that is printed from it:
// `build/runtime/command_test --print >docs/commands.md`.
#include "runtime/command.h"

#include "tests/rig/printed_page.h"

#include <string.h>

static void test_rows(void **state)
{
    for (int i = HTH_COMMAND_NONE + 1; i < HTH_COMMANDS; i++) {
        const hth_command_row *row = hth_command_get((hth_command_id)i);
        bool internal = (row->traits & HTH_COMMAND_INTERNAL) != 0;
        assert_true(row->name != NULL && row->name[0] != 0);
        assert_int_equal(hth_command_find(row->name), internal ? HTH_COMMAND_NONE : i);
        assert_true(row->need > HTH_NEED_NOTHING && row->need <= HTH_NEED_ADMIN);
        assert_true((row->required & ~row->takes) == 0);
        for (int j = i + 1; j < HTH_COMMANDS; j++) {
            assert_string_not_equal(row->name, hth_command_name((hth_command_id)j));
        }
    }
}

static void test_names(void **state)
{
    static const char *const unknown[] = {"", "nonsense", "Train", "train ", "drain", "model:1"};
    hth_command_id found;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_err(hth_command_named(unknown[i], &found), HTH_ENOENT, "there is no command '");
        assert_int_equal(found, HTH_COMMAND_NONE);
    }
    assert_err(hth_command_named("plann", &found), HTH_ENOENT, "'plann'; did you mean 'plan'?");
    assert_err(hth_command_named("drian", &found), HTH_ENOENT,
               "command 'drian'; did you mean 'train'?");
    assert_ok(hth_command_named("train", &found));
    assert_int_equal(found, HTH_COMMAND_TRAIN);
    assert_int_equal(hth_command_find(NULL), HTH_COMMAND_NONE);
    assert_null(hth_command_name(HTH_COMMAND_NONE));
    assert_int_equal(hth_command_get(HTH_COMMAND_NONE)->need, HTH_NEED_ADMIN);
}

static void test_arguments(void **state)
{
    for (int i = 0; i < HTH_ARGUMENTS; i++) {
        bool taken = false;
        for (int c = HTH_COMMAND_NONE + 1; c < HTH_COMMANDS; c++) {
            taken = taken || (hth_command_get((hth_command_id)c)->takes >> i & 1) != 0;
        }
        assert_true(taken); // a row of the table of arguments that nobody reads is stale
        for (int j = i + 1; j < HTH_ARGUMENTS; j++) {
            assert_string_not_equal(hth_argument_name((hth_argument)i),
                                    hth_argument_name((hth_argument)j));
        }
    }
}

// ---- the page

// A training step's many are one word, whose meaning is below the table.
static void print_arguments(FILE *file, const hth_command_row *row)
{
    bool step = (row->takes & HTH_TAKES_STEP) == HTH_TAKES_STEP;
    hth_argument_set takes = step ? (row->takes & ~HTH_TAKES_STEP) | row->required : row->takes;
    int n = 0;
    for (int pass = 0; pass < 2; pass++) { // the required ones first
        for (int i = 0; i < HTH_ARGUMENTS; i++) {
            bool required = (row->required >> i & 1) != 0;
            if ((takes >> i & 1) != 0 && required == (pass == 0)) {
                const char *bold = required ? "**" : "";
                fprintf(file, "%s%s`%s`%s", n > 0 ? ", " : "", bold,
                        hth_argument_name((hth_argument)i), bold);
                n++;
            }
        }
    }
    if (step) {
        fprintf(file, "%sa step's", n > 0 ? ", " : "");
    }
}

static void print_types(FILE *file)
{
    static const char *const types[] = {
        [HTH_ARGUMENT_TEXT] = "string",
        [HTH_ARGUMENT_NUMBER] = "number",
        [HTH_ARGUMENT_SWITCH] = "true or false",
        [HTH_ARGUMENT_TEXTS] = "list of strings",
        [HTH_ARGUMENT_TEXT | HTH_ARGUMENT_NUMBER] = "string or number",
        [HTH_ARGUMENT_TEXT | HTH_ARGUMENT_SWITCH] = "string, or true or false"};
    for (size_t t = 1; t < sizeof types / sizeof *types; t++) {
        int n = 0;
        for (int i = 0; i < HTH_ARGUMENTS && types[t] != NULL; i++) {
            if (hth_argument_types((hth_argument)i) == t) {
                fprintf(file, n++ > 0 ? ", " : "| %s | ", types[t]);
                fprintf(file, "`%s`", hth_argument_name((hth_argument)i));
            }
        }
        fprintf(file, "%s", n > 0 ? " |\n" : "");
    }
}

static void print_page(FILE *file)
{
    static const char *const roles[] = {[HTH_NEED_ANY] = "any",
                                        [HTH_NEED_MODEL] = "model",
                                        [HTH_NEED_JOB] = "job",
                                        [HTH_NEED_ADMIN] = "admin"};
    fprintf(
        file,
        "<!-- Printed by `build/runtime/command_test --print` from runtime/command.h; not "
        "edited by hand. -->\n"
        "# Commands\n\n"
        "What `hearth_query` ([hearth.h](../client/hearth.h)) asks of a server, the role that it "
        "needs\n([security](security.md)), and the arguments; bold: required. `job` with a "
        "`budget` needs the role\n`job`. An argument that a command does not take is "
        "ignored, by `train` refused.\n\n"
        "| command | role | arguments |\n|---|---|---|\n");
    for (int i = HTH_COMMAND_NONE + 1; i < HTH_COMMANDS; i++) {
        const hth_command_row *row = hth_command_get((hth_command_id)i);
        if ((row->traits & HTH_COMMAND_INTERNAL) == 0) {
            fprintf(file, "| %s | %s | ", row->name, roles[row->need]);
            print_arguments(file, row);
            fprintf(file, " |\n");
        }
    }
    fprintf(file, "\nOf a step:\n\n| arguments |\n|---|\n| ");
    print_arguments(file, &(hth_command_row){.takes = HTH_TAKES_STEP & ~HTH_TAKES(MODEL)});
    fprintf(file,
            ", `model` |\n\nTypes; all others are documents, files, or numbers whose range is "
            "checked as well:\n\n| type | arguments |\n|---|---|\n");
    print_types(file);
}

static void test_page(void **state)
{
    printed_page_check("docs/commands.md", print_page);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_page),
    };
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        print_page(stdout);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
