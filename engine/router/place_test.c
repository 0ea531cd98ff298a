// SPDX-License-Identifier: Apache-2.0
// The rules of placing, on states written down by hand, and a simulated hour of requests.
#include "engine/router/place.h"

#include "base/test.h"

#include <string.h>

#define GIB ((uint64_t)1 << 30)

static hth_place gpu(uint64_t room)
{
    return (hth_place){.up = true, .budget_bytes = 80 * GIB, .room_bytes = room};
}

static hth_place host(uint64_t room)
{
    return (hth_place){.up = true, .host = true, .budget_bytes = 80 * GIB, .room_bytes = room};
}

static void models(void **state)
{
    hth_place d[3] = {host(70 * GIB), gpu(10 * GIB), gpu(20 * GIB)};
    for (int i = 0; i < 3; i++) {
        d[i].lacks_bytes = 4 * GIB;
    }
    assert_int_equal(hth_place_model(d, 3), 2); // no host, and of equals the most room
    d[1].lacks_bytes = GIB;                     // shares weights with what is there
    assert_int_equal(hth_place_model(d, 3), 1);
    d[1].room_bytes = GIB / 2; // but they do not fit any more
    assert_int_equal(hth_place_model(d, 3), 2);
    d[2].refused = true; // lacks an operator: who has room comes before who must make some
    assert_int_equal(hth_place_model(d, 3), 0);
    d[0].up = false;
    assert_int_equal(hth_place_model(d, 3), 1);
    d[1].lacks_bytes = 81 * GIB; // never
    assert_int_equal(hth_place_model(d, 3), -1);
    assert_int_equal(hth_place_model(d, 0), -1);
    d[0] = d[1] = gpu(GIB);
    assert_int_equal(hth_place_model(d, 2), 0); // the first of equals
}

static void requests(void **state)
{
    hth_place d[3] = {gpu(GIB), gpu(GIB), gpu(GIB)};
    assert_int_equal(hth_place_request(d, 3), -1);
    d[1].has = d[2].has = true;
    d[1].requests = 3;
    assert_int_equal(hth_place_request(d, 3), 2);
    d[2].requests = 3;
    assert_int_equal(hth_place_request(d, 3), 1);
    d[1].service_ns = 4e6;
    d[2].service_ns = 1e6;
    assert_int_equal(hth_place_request(d, 3), 2);
    d[2].requests = 15; // (15 + 1) * 1 = (3 + 1) * 4
    assert_int_equal(hth_place_request(d, 3), 1);
    d[1].up = false;
    assert_int_equal(hth_place_request(d, 3), 2);
    d[0].has = true; // not measured: as the others, and idle
    assert_int_equal(hth_place_request(d, 3), 0);
}

static void copies(void **state)
{
    hth_place d[4] = {gpu(GIB), gpu(GIB), host(70 * GIB), gpu(2 * GIB)};
    for (int i = 0; i < 4; i++) {
        d[i].lacks_bytes = GIB;
    }
    assert_int_equal(hth_place_another(d, 4, 8), -1); // it is nowhere: that is another question
    d[0].has = true;
    d[0].lacks_bytes = 0;
    d[0].mine = d[0].requests = 7;
    assert_int_equal(hth_place_another(d, 4, 8), -1); // the queue is short
    d[0].mine = d[0].requests = 8;
    assert_int_equal(hth_place_another(d, 4, 8), 3);
    d[3].requests = 5; // more than half as busy
    assert_int_equal(hth_place_another(d, 4, 8), 1);
    d[1].room_bytes = GIB - 1; // no room, and the host does not help out
    assert_int_equal(hth_place_another(d, 4, 8), -1);
    d[3].requests = 4;
    d[1].coming = true; // one at a time
    assert_int_equal(hth_place_another(d, 4, 8), -1);
    d[1].coming = false;
    d[3].has = true;
    assert_int_equal(hth_place_another(d, 4, 8), -1); // one of them has no queue
}

static void jobs(void **state)
{
    hth_place d[3] = {host(70 * GIB), gpu(10 * GIB), gpu(20 * GIB)};
    assert_int_equal(hth_place_job(d, 3), 2);
    d[2].jobs = 1;
    assert_int_equal(hth_place_job(d, 3), 1);
    d[1].refused = d[2].refused = true;
    assert_int_equal(hth_place_job(d, 3), 0);
    d[0].up = false;
    assert_int_equal(hth_place_job(d, 3), -1);
}

// Two devices, of which the second is twice as fast, and a model that arrives twice as often as the
// first can answer: copies are made once, queues stay short, and the work is shared as 1 : 2.
static void simulated(void **state)
{
    hth_place d[2] = {gpu(GIB), gpu(GIB)};
    const double takes[2] = {2.0, 1.0};
    double ends[2] = {0, 0}; // of what is at work
    int answered[2] = {0, 0}, copied = 0, longest = 0;
    d[0].lacks_bytes = d[1].lacks_bytes = GIB / 2;
    int first = hth_place_model(d, 2);
    d[first].has = true;
    d[first].lacks_bytes = 0;
    for (double now = 0; now < 3600; now += 0.8) {
        for (int i = 0; i < 2; i++) {
            for (; d[i].requests > 0 && ends[i] <= now; ends[i] += takes[i]) {
                d[i].requests = --d[i].mine;
                d[i].service_ns = takes[i] * 1e9;
                answered[i]++;
            }
            longest = d[i].requests > longest ? d[i].requests : longest;
        }
        int to = hth_place_request(d, 2);
        assert_true(to >= 0);
        ends[to] = d[to].requests == 0 ? now + takes[to] : ends[to];
        d[to].requests = ++d[to].mine;
        int more = hth_place_another(d, 2, 4);
        if (more >= 0) {
            d[more].has = true;
            d[more].lacks_bytes = 0;
            copied++;
        }
    }
    assert_int_equal(copied, 1);
    assert_true(longest <= 8);
    assert_true(answered[1] > answered[0] && answered[0] > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models), cmocka_unit_test(requests),  cmocka_unit_test(copies),
        cmocka_unit_test(jobs),   cmocka_unit_test(simulated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
