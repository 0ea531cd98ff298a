// SPDX-License-Identifier: Apache-2.0
#include "client/content/hash.h"

#include "base/test.h"
#include "graph/graph.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define N       5
#define WAIT_MS 60000

// Objects of bytes of their own number; reading the largest one waits until it may.
typedef struct source {
    hth_content_object objects[N];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool may;
    int fails; // the object that cannot be read; -1: none
} source;

static hth_err source_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    source *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (i == 1 && !s->may) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    memset(dst, i, n);
    return i == s->fails ? hth_fail(HTH_EIO, "object %d cannot be read", i) : HTH_OK;
}

static void source_init(source *s)
{
    static const int64_t bytes[N] = {3000, 5 << 20, 20, 70000, 3000};
    *s = (source){.fails = -1};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    for (int i = 0; i < N; i++) {
        s->objects[i] = (hth_content_object){
            .name = "x", .dtype = HTH_DT_U8, .shape = {1, {bytes[i]}}, .bytes = (uint64_t)bytes[i]};
    }
}

static void source_let(source *s)
{
    pthread_mutex_lock(&s->lock);
    s->may = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void check_ids(const source *s)
{
    static uint8_t data[5 << 20];
    for (int i = 0; i < N; i++) {
        const hth_content_object *o = &s->objects[i];
        memset(data, i, o->bytes);
        hth_id id = hth_content_id(o->dtype, &o->shape, data, o->bytes);
        assert_true(hth_id_equal(&id, &o->id));
    }
}

// All but the largest are known, in the order of their sizes, while that one is still read.
static void test_smallest_first(void **state)
{
    static const int order[N] = {2, 0, 4, 3, 1};
    source s;
    hth_content_ids *ids;
    int known = 0;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        skip(); // one thread reads all, one after the other
    }
    source_init(&s);
    assert_ok(hth_content_ids_begin(s.objects, N, source_read, &s, &ids));
    for (int k = 0; k < N; k++) {
        assert_int_equal(hth_content_ids_at(ids, k), order[k]);
    }
    while (known < N - 1) {
        assert_ok(hth_content_ids_wait(ids, known, WAIT_MS, &known));
    }
    assert_int_equal(known, N - 1);
    source_let(&s);
    assert_ok(hth_content_ids_wait(ids, known, WAIT_MS, &known));
    assert_int_equal(known, N);
    hth_content_ids_end(ids);
    check_ids(&s);
}

static void test_failure(void **state)
{
    for (int i = 0; i < N; i++) {
        source s;
        hth_content_ids *ids;
        int known = 0;
        source_init(&s);
        s.fails = i;
        s.may = true;
        assert_ok(hth_content_ids_begin(s.objects, N, source_read, &s, &ids));
        hth_err err = HTH_OK;
        while (err == HTH_OK) {
            assert_true(known < N);
            err = hth_content_ids_wait(ids, known, WAIT_MS, &known);
        }
        assert_err(err, HTH_EIO, "cannot be read");
        hth_content_ids_end(ids);
    }
}

static hth_err find_all(source *s)
{
    hth_content_ids *ids;
    int known = 0;
    hth_err err = hth_content_ids_begin(s->objects, N, source_read, s, &ids);
    while (err == HTH_OK && known < N) {
        err = hth_content_ids_wait(ids, known, WAIT_MS, &known);
    }
    hth_content_ids_end(ids);
    return err;
}

static void test_no_memory(void **state)
{
    source s;
    source_init(&s);
    s.may = true;
    FAULT_LOOP(find_all(&s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smallest_first),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
