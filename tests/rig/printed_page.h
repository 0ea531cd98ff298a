// SPDX-License-Identifier: Apache-2.0
// tests/rig/printed_page.h - a page of the documentation that is printed from a table: what is
// committed is what would be printed now.
#ifndef HTH_TESTS_RIG_PRINTED_PAGE_H
#define HTH_TESTS_RIG_PRINTED_PAGE_H

#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>

static inline void printed_page_check(const char *path, void (*print)(FILE *file))
{
    char *now = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&now, &n);
    print(f);
    fclose(f);
    f = fopen(path, "rb");
    assert_non_null(f);
    char *committed = calloc(1, n + 2);
    assert_int_equal(fread(committed, 1, n + 1, f), n);
    fclose(f);
    assert_string_equal(committed, now);
    free(now);
    free(committed);
}

#endif
