// SPDX-License-Identifier: Apache-2.0
// What model_run_fuzz begins with: each committed model is imported, loaded and run with values at
// the ends of their types, as it is and changed at random, the same way every time. Models that
// once did harm lie among them, so that no sanitizer and no fuzzer is needed to run them again.
#include "tests/fuzz/model_run_fuzz.c"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define FOLDER  "tests/data/fuzz/model_run_fuzz"
#define MOST    ((size_t)64 << 10)
#define CHANGES 4 // of each model

size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most)
{
    return bytes; // only models are changed here
}

static size_t read_seed(const char *name, uint8_t *to)
{
    char path[512];
    snprintf(path, sizeof path, FOLDER "/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t bytes = fread(to, 1, MOST, f);
    fclose(f);
    return bytes;
}

static void test_seeds(void **state)
{
    struct dirent **list;
    uint8_t *seed = hth_alloc(MOST), *changed = hth_alloc(MOST);
    int n = scandir(FOLDER, &list, NULL, alphasort), models = 0;
    assert_true(n > 300 && seed != NULL && changed != NULL);
    LLVMFuzzerInitialize(NULL, NULL);
    for (int i = 0; i < n; i++) {
        size_t bytes = list[i]->d_name[0] == '.' ? 0 : read_seed(list[i]->d_name, seed);
        free(list[i]);
        for (unsigned k = 0; k <= CHANGES && bytes > 0; k++) {
            memcpy(changed, seed, bytes);
            size_t now = k == 0 ? bytes : mut_onnx(changed, bytes, MOST, (unsigned)i * CHANGES + k);
            // Each is read from memory of its own size, so that a sanitizer sees its end.
            uint8_t *exact = now > 0 ? hth_memdup(changed, now) : NULL;
            models += now > 0 && LLVMFuzzerTestOneInput(exact, now) == 0;
            hth_free(exact);
        }
    }
    free(list);
    hth_free(seed);
    hth_free(changed);
    hth_residency_close(site.residency);
    hth_pool_close(site.pool);
    hth_device_close(site.device);
    print_message("%d models, %d steps of training\n", models, trained);
    assert_true(models > 300 * CHANGES && trained > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_seeds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
