// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/slab.h"
#include "base/test.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES ((uint64_t)1 << 30)

typedef struct pair {
    int fd;
    hth_slab *own, *other;
} pair;

static void pair_open(pair *p)
{
    uint64_t made;
    assert_ok(hth_slab_make("hearth-test", BYTES, &p->fd, &made));
    assert_int_equal(made, BYTES);
    assert_ok(hth_slab_open(p->fd, made, true, &p->own));
    assert_ok(hth_slab_open(p->fd, made, false, &p->other));
}

static void pair_close(pair *p)
{
    hth_slab_close(p->own);
    hth_slab_close(p->other);
    close(p->fd);
}

// assert_whole: nothing is given out, and what is free is one piece.
static void assert_whole(const pair *p)
{
    void *most = hth_slab_alloc(p->own, BYTES - HTH_SLAB_ALIGN);
    assert_non_null(most);
    hth_slab_free(p->own, most);
}

static uint64_t resident(const pair *p)
{
    struct stat st;
    assert_int_equal(fstat(p->fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void test_seen_by_both(void **state)
{
    pair p;
    pair_open(&p);
    char *a = hth_slab_alloc(p.own, 1000), *b = hth_slab_alloc(p.own, 1);
    assert_int_equal((uintptr_t)a % HTH_SLAB_ALIGN, 0);
    assert_true(b >= a + 1000);
    memset(a, 7, 1000);
    const char *seen = hth_slab_at(p.other, hth_slab_offset(p.own, a), 1000);
    assert_memory_equal(seen, a, 1000);
    assert_ptr_equal(hth_slab_at(p.other, BYTES - 10, 11), NULL);
    assert_ptr_equal(hth_slab_at(p.other, UINT64_MAX, 2), NULL);
    assert_true(hth_slab_holds(p.own, a, 1000) && !hth_slab_holds(p.own, &p, 1));
    assert_int_not_equal(ftruncate(p.fd, 4096), 0); // sealed
    hth_slab_free(p.own, a);
    hth_slab_free(p.own, b);
    assert_whole(&p);
    pair_close(&p);
}

static void test_reader(void **state)
{
    pair p;
    int fd;
    pair_open(&p);
    assert_ok(hth_slab_reader(p.fd, &fd));
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    hth_slab_close(p.other);
    assert_ok(hth_slab_open(fd, BYTES, false, &p.other));
    char *a = hth_slab_alloc(p.own, 10);
    memset(a, 7, 10);
    assert_memory_equal(hth_slab_at(p.other, hth_slab_offset(p.own, a), 10), a, 10);
    pair_close(&p);
    close(fd);
}

static void test_full_and_again(void **state)
{
    pair p;
    pair_open(&p);
    assert_null(hth_slab_alloc(p.own, BYTES));
    assert_null(hth_slab_alloc(p.own, SIZE_MAX));
    for (int i = 0; i < 3; i++) {
        void *most = hth_slab_alloc(p.own, BYTES - HTH_SLAB_ALIGN);
        assert_non_null(most);
        assert_null(hth_slab_alloc(p.own, 1));
        hth_slab_free(p.own, most);
    }
    pair_close(&p);
}

// What is freed goes back to the system, but for what is kept for the next request.
static void test_memory_goes_back(void **state)
{
    pair p;
    pair_open(&p);
    size_t bytes = (size_t)64 << 20;
    char *a = hth_slab_alloc(p.own, bytes), *b = hth_slab_alloc(p.own, bytes);
    char *end = hth_slab_alloc(p.own, 8);
    memset(a, 1, bytes);
    memset(b, 1, bytes);
    assert_true(resident(&p) >= 2 * bytes);
    hth_slab_free(p.own, b); // in the middle
    assert_true(resident(&p) < bytes + (1u << 20));
    hth_slab_free(p.own, end);
    hth_slab_free(p.own, a);
    assert_true(resident(&p) <= HTH_SLAB_KEEP + (64u << 10)); // pages with heads stay
    pair_close(&p);
}

typedef struct held {
    uint8_t *at;
    size_t bytes;
    uint8_t fill;
} held;

static void held_check(const held *h)
{
    for (size_t i = 0; i < h->bytes; i++) {
        assert_int_equal(h->at[i], h->fill);
    }
}

// Thousands of random blocks keep what was written into them, and leave one free whole behind.
static void test_random(void **state)
{
    static held list[200];
    pair p;
    uint32_t seed = 12345;
    pair_open(&p);
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        held *h = &list[(seed >> 8) % 200];
        if (h->at != NULL) {
            held_check(h);
            hth_slab_free(p.own, h->at);
        }
        h->bytes = (seed >> 16) % (i % 64 == 0 ? 60000 : 700);
        h->fill = (uint8_t)i;
        h->at = hth_slab_alloc(p.own, h->bytes);
        assert_non_null(h->at);
        memset(h->at, h->fill, h->bytes);
    }
    for (int i = 0; i < 200; i++) {
        if (list[i].at != NULL) {
            held_check(&list[i]);
            hth_slab_free(p.own, list[i].at);
        }
    }
    assert_whole(&p);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen_by_both),   cmocka_unit_test(test_reader),
        cmocka_unit_test(test_full_and_again), cmocka_unit_test(test_memory_goes_back),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
