// SPDX-License-Identifier: Apache-2.0
// tests/rig/record_damage.h - the record of a version that no longer is what was stored.
#ifndef HTH_TESTS_RIG_RECORD_DAMAGE_H
#define HTH_TESTS_RIG_RECORD_DAMAGE_H

#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// record_damage changes a byte wherever the store's index has these words.
static inline void record_damage(const char *dir, const char *words)
{
    char path[200];
    snprintf(path, sizeof path, "%s/index/data.mdb", dir);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t size = (size_t)ftell(file), found = 0;
    char *all = malloc(size);
    rewind(file);
    assert_int_equal(fread(all, 1, size, file), size);
    for (char *p = all; (p = memmem(p, size - (size_t)(p - all), words, strlen(words))) != NULL;) {
        assert_int_equal(fseek(file, p - all, SEEK_SET), 0);
        fputc('#', file);
        p++;
        found++;
    }
    assert_true(found > 0);
    assert_int_equal(fclose(file), 0);
    free(all);
}

#endif
