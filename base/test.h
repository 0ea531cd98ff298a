// SPDX-License-Identifier: Apache-2.0
// base/test.h - what every cmocka test file includes, in the order that cmocka wants.
#ifndef HTH_BASE_TEST_H
#define HTH_BASE_TEST_H

#include "base/alloc.h"
#include "base/err.h"
#include "base/sanitized.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// assert_ok fails the test with the error's sentence when `x` is not HTH_OK.
#define assert_ok(x)                                                                               \
    do {                                                                                           \
        hth_err assert_err_ = (x);                                                                 \
        if (assert_err_ != HTH_OK) {                                                               \
            fail_msg("%s: %s: %s", #x, hth_strerror(assert_err_), hth_err_detail());               \
        }                                                                                          \
    } while (0)

// Long rounds over random cases take every TEST_STRIDE-th: sanitizers look for what a case does to
// memory, at a tenth of the speed. Prime to 2, 4, 5, 7 and 8, by which seeds choose kinds of cases.
#ifdef HTH_DEBUG
#define TEST_STRIDE 11
#else
#define TEST_STRIDE 1
#endif

// test_remove removes a folder that the test made; 0: it is gone.
static inline int test_remove(const char *dir)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

// test_open_fds returns how many descriptors the process has: for two looks that must agree.
static inline int test_open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

// assert_err fails the test unless `x` is the error `want` with a sentence that contains `words`.
#define assert_err(x, want, words)                                                                 \
    do {                                                                                           \
        hth_err assert_err_ = (x);                                                                 \
        if (assert_err_ != (want) || strstr(hth_err_detail(), (words)) == NULL) {                  \
            fail_msg("%s: got %s: %s", #x, hth_strerror(assert_err_), hth_err_detail());           \
        }                                                                                          \
    } while (0)

// FAULT_LOOP runs `call` with the first, second, .. allocation failing until it succeeds; each
// failure must be HTH_ENOMEM and leave no block behind.
#define FAULT_LOOP(call)                                                                           \
    do {                                                                                           \
        for (uint64_t nth_ = 1;; nth_++) {                                                         \
            int64_t live_ = hth_alloc_live();                                                      \
            hth_fault_alloc(nth_);                                                                 \
            hth_err fault_err_ = (call);                                                           \
            hth_fault_alloc(0);                                                                    \
            if (fault_err_ == HTH_OK) {                                                            \
                break;                                                                             \
            }                                                                                      \
            assert_int_equal(fault_err_, HTH_ENOMEM);                                              \
            assert_int_equal(hth_alloc_live(), live_);                                             \
            assert_true(nth_ < 100000);                                                            \
        }                                                                                          \
    } while (0)

#endif
