// SPDX-License-Identifier: Apache-2.0
#include "fair/fair_heap.h"

#include "base/test.h"

typedef struct thing {
    int key, place;
} thing;

static bool thing_before(const void *a, const void *b)
{
    const thing *x = a, *y = b;
    return x->key != y->key ? x->key < y->key : x < y;
}

static int thing_order(const void *a, const void *b)
{
    const thing *const *x = a, *const *y = b;
    return thing_before(*x, *y) ? -1 : thing_before(*y, *x);
}

static hth_fair_heap heap_of(void)
{
    return (hth_fair_heap){.before = thing_before, .place = offsetof(thing, place)};
}

// What is in the heap comes in order, by a walk as by taking out the first.
static void heap_check(const hth_fair_heap *heap)
{
    thing *sorted[1000], *item;
    hth_fair_walk walk;
    int n = 0;
    memcpy(sorted, heap->item, sizeof *sorted * (size_t)heap->n);
    qsort(sorted, (size_t)heap->n, sizeof(thing *), thing_order);
    hth_fair_walk_begin(&walk, heap);
    while ((item = hth_fair_walk_next(&walk)) != NULL) {
        assert_ptr_equal(item, sorted[n++]);
    }
    assert_int_equal(n, heap->n < HTH_FAIR_WALK ? heap->n : HTH_FAIR_WALK);
    assert_ptr_equal(hth_fair_heap_first(heap), heap->n > 0 ? sorted[0] : NULL);
    for (int i = 0; i < heap->n; i++) {
        assert_int_equal(((thing *)heap->item[i])->place, i + 1);
    }
}

static void test_order(void **state)
{
    thing things[1000] = {{0, 0}};
    hth_fair_heap h = heap_of();
    srand(5);
    for (int step = 0; step < 20000; step++) {
        thing *t = &things[rand() % 1000];
        int most = step < 10000 ? 1000 : 20; // many, then few
        if (t->place == 0 && h.n < most) {
            t->key = rand() % 300;
            assert_ok(hth_fair_heap_push(&h, t));
        } else if (t->place > 0 && h.n <= most && rand() % 2 == 0) {
            t->key = rand() % 300;
            hth_fair_heap_moved(&h, t);
        } else {
            hth_fair_heap_remove(&h, t); // also one that is not in it
            assert_int_equal(t->place, 0);
        }
        if (step % (17 * TEST_STRIDE) == 0) {
            heap_check(&h);
        }
    }
    hth_fair_heap_fini(&h);
}

static hth_err heap_of_three(void)
{
    thing things[3] = {{3, 0}, {1, 0}, {2, 0}};
    hth_fair_heap h = heap_of();
    hth_err err = HTH_OK;
    for (int i = 0; i < 3 && err == HTH_OK; i++) {
        err = hth_fair_heap_push(&h, &things[i]);
    }
    hth_fair_heap_fini(&h);
    return err;
}

static void test_memory(void **state)
{
    FAULT_LOOP(heap_of_three());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
