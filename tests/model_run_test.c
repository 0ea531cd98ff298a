// SPDX-License-Identifier: Apache-2.0
// What model_run_fuzz begins with: each committed model is imported, loaded and run with values at
// the ends of their types, as it is and changed at random, the same way every time. Models that
// once did harm lie among them, so that no sanitizer and no fuzzer is needed to run them again.
#include "tests/fuzz/model_run_fuzz.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SEEDS   "tests/data/fuzz/model_run_fuzz.tar"
#define BLOCK   512 // bytes; of an archive
#define MOST    ((size_t)64 << 10)
#define CHANGES 4 // of each model

size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most)
{
    return bytes; // only models are changed here
}

// Reads the next file of an archive (ustar) into `to`; its size, 0 after the last one.
static size_t next_seed(FILE *archive, uint8_t to[MOST])
{
    char head[BLOCK];
    if (fread(head, 1, BLOCK, archive) != BLOCK || head[0] == '\0') {
        return 0;
    }
    size_t bytes = strtoul(head + 124, NULL, 8);
    assert_true(bytes > 0 && bytes <= MOST);
    assert_int_equal(fread(to, 1, bytes, archive), bytes);
    assert_int_equal(fseek(archive, (long)(-bytes % BLOCK), SEEK_CUR), 0);
    return bytes;
}

static void test_seeds(void **state)
{
    FILE *archive = fopen(SEEDS, "rb");
    uint8_t *seed = hth_alloc(MOST), *changed = hth_alloc(MOST);
    unsigned n = 0, models = 0;
    assert_true(archive != NULL && seed != NULL && changed != NULL);
    LLVMFuzzerInitialize(NULL, NULL);
    for (size_t bytes; (bytes = next_seed(archive, seed)) > 0; n++) {
        for (unsigned k = 0; k <= CHANGES; k++) {
            memcpy(changed, seed, bytes);
            size_t now = k == 0 ? bytes : mut_onnx(changed, bytes, MOST, n * CHANGES + k);
            // Each is read from memory of its own size, so that a sanitizer sees its end.
            uint8_t *exact = now > 0 ? hth_memdup(changed, now) : NULL;
            models += now > 0 && LLVMFuzzerTestOneInput(exact, now) == 0;
            hth_free(exact);
        }
    }
    fclose(archive);
    hth_free(seed);
    hth_free(changed);
    hth_residency_close(site.residency);
    hth_pool_close(site.pool);
    hth_device_close(site.device);
    print_message("%u seeds, %u models, %d steps of training\n", n, models, trained);
    assert_true(n > 300 && models > 300 * CHANGES && trained > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_seeds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
