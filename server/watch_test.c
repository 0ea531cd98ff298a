// SPDX-License-Identifier: Apache-2.0
// Training jobs that are watched, over ipc, tcp and in process, with a fake engine: every event, in
// order; nobody's place is held; gaps, limits, owners, and a server that goes away.
#include "base/clock.h"
#include "base/settings.h"
#include "client/hearth.h"
#include "tests/rig/fake_engine.h"
#include "tests/rig/free_port.h"
#include "tests/rig/server_rig.h"

#include <jansson.h>

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

// The token of who calls over tcp, and its hash.
#define TOKEN  "secret"
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

#define WATCHERS 100
#define STEPS    50
#define PATIENCE 20000

typedef struct fixture {
    server_rig rig;
    char tcp[64];
} fixture;

static void fixture_open(fixture *f)
{
    const char *urls[] = {f->rig.ipc, f->tcp, "inproc://watch-test"};
    hth_server_config config = {.store = f->rig.store, .listen = urls, .n_listen = 3};
    assert_ok(hth_server_open(&config, &f->rig.server));
}

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    hth_setting_reset();
    server_rig_make(&f->rig);
    snprintf(f->tcp, sizeof f->tcp, "tcp://127.0.0.1:%d", free_port(1));
    fake_job_name[0] = 0;
    atomic_store(&fake_job_asked, 0);
    char file[128];
    snprintf(file, sizeof file, "%s/tokens", f->rig.dir);
    int fd = open(file, O_CREAT | O_WRONLY, 0600);
    const char line[] = "alice job " SECRET "\n";
    assert_int_equal(write(fd, line, sizeof line - 1), sizeof line - 1);
    close(fd);
    assert_ok(hth_setting_set("auth.tokens_file", file));
    fixture_open(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    server_rig_end(&f->rig);
    hth_setting_reset();
    hth_free(f);
    return 0;
}

static hearth *open_or_fail(const char *url, uint64_t timeout_ms)
{
    hearth *h;
    hearth_options o = {.timeout_ms = timeout_ms,
                        .token = strncmp(url, "tcp", 3) == 0 ? TOKEN : NULL};
    if (hearth_open(url, &o, &h) != HEARTH_OK) {
        fail_msg("%s: %s", url, hearth_error());
    }
    return h;
}

// begin has the server take a job from who calls at `url`; returns its number.
static uint64_t begin(const char *url, const char *name)
{
    char args[100], *json;
    hearth *h = open_or_fail(url, 0);
    snprintf(args, sizeof args, "{\"model\":\"m\",\"save-as\":\"%s\",\"detach\":true}", name);
    if (hearth_query(h, "train", args, NULL, NULL, &json) != HEARTH_OK) {
        fail_msg("%s", hearth_error());
    }
    json_t *doc = json_loads(json, 0, NULL);
    uint64_t id = (uint64_t)json_integer_value(json_object_get(doc, "id"));
    json_decref(doc);
    hearth_free(json);
    hearth_close(h);
    assert_true(id > 0);
    return id;
}

// ask is one request; *next goes on from it. Returns the answer, the caller's.
static json_t *ask(hearth *h, uint64_t id, uint64_t wait_ms, uint64_t *next)
{
    char args[100], *json;
    int n = snprintf(args, sizeof args, "{\"id\":%" PRIu64, id);
    if (*next > 0) {
        n += snprintf(args + n, sizeof args - (size_t)n,
                      ",\"after\":%" PRIu64 ",\"wait_ms\":%" PRIu64, *next, wait_ms);
    }
    snprintf(args + n, sizeof args - (size_t)n, "}");
    if (hearth_query(h, "watch", args, NULL, NULL, &json) != HEARTH_OK) {
        fail_msg("%s: %s", args, hearth_error());
    }
    json_t *doc = json_loads(json, 0, NULL);
    hearth_free(json);
    *next = (uint64_t)json_integer_value(json_object_get(doc, "next"));
    return doc;
}

// ---- every event, in order

typedef struct watched {
    const char *url;
    uint64_t id;
    pthread_t thread;
    atomic_int started;
    int steps, states, missed;
    double last;
    hearth_job_state end;
    hearth_status status;
    char error[200];
} watched;

static int watched_event(void *ctx, const hearth_job_info *at)
{
    watched *w = ctx;
    json_t *e = json_loads(at->event, 0, NULL);
    double step = json_number_value(json_object_get(e, "step"));
    atomic_store(&w->started, 1);
    w->steps += step == w->last + 1;
    w->last = step > 0 ? step : w->last;
    w->states += json_object_get(e, "state") != NULL;
    w->missed += json_object_get(e, "missed") != NULL;
    json_decref(e);
    return 0;
}

static void *watched_main(void *arg)
{
    watched *w = arg;
    hearth_job_info *at = NULL;
    hearth *h = open_or_fail(w->url, 0);
    w->status = hearth_job_watch(h, (hearth_job){w->id}, watched_event, w, &at);
    snprintf(w->error, sizeof w->error, "%s", w->status != HEARTH_OK ? hearth_error() : "");
    w->end = at != NULL ? at->state : HEARTH_JOB_OTHER;
    hearth_free(at);
    hearth_close(h);
    return NULL;
}

static void wait_started(watched *w)
{
    for (int i = 0; i < PATIENCE && !atomic_load(&w->started); i++) {
        fake_nap();
    }
    assert_int_equal(atomic_load(&w->started), 1);
}

static void test_followed(void **state)
{
    fixture *f = *state;
    const char *urls[] = {f->rig.ipc, f->tcp, "inproc://watch-test"};
    for (int k = 0; k < 3; k++) {
        watched w = {.url = urls[k], .id = begin(urls[k], "net")};
        assert_int_equal(pthread_create(&w.thread, NULL, watched_main, &w), 0);
        wait_started(&w);
        for (int i = 1; i <= STEPS; i++) {
            char text[60];
            snprintf(text, sizeof text, "{\"step\":%d,\"loss\":0.25,\"ms\":1.5}", i);
            fake_job_event(text, (uint64_t)i);
        }
        fake_job_end("finished");
        pthread_join(w.thread, NULL);
        assert_string_equal(w.error, "");
        assert_int_equal(w.steps, STEPS);
        assert_int_equal(w.states, 1);
        assert_int_equal(w.missed, 0);
        assert_int_equal(w.end, HEARTH_JOB_FINISHED);
    }
}

// ---- nobody's place is held

static void *parked_main(void *arg)
{
    watched *w = arg;
    uint64_t next = 0;
    hearth *h = open_or_fail(w->url, 0);
    json_decref(ask(h, w->id, 0, &next));
    atomic_store(&w->started, 1);
    json_t *doc = ask(h, w->id, 60000, &next);
    w->steps = (int)json_array_size(json_object_get(doc, "events"));
    json_decref(doc);
    hearth_close(h);
    return NULL;
}

static void test_no_places(void **state)
{
    static watched w[WATCHERS];
    fixture *f = *state;
    char *json;
    memset(w, 0, sizeof w);
    uint64_t id = begin(f->tcp, "net");
    assert_ok(hth_setting_set("limits.requests", "1"));
    assert_ok(hth_setting_set("limits.requests_per_peer", "1"));
    for (int i = 0; i < WATCHERS; i++) {
        w[i].url = i % 2 == 0 ? f->rig.ipc : f->tcp;
        w[i].id = id;
        assert_int_equal(pthread_create(&w[i].thread, NULL, parked_main, &w[i]), 0);
    }
    for (int i = 0; i < WATCHERS; i++) {
        wait_started(&w[i]);
    }
    int asked = atomic_load(&fake_job_asked);
    const char *urls[] = {f->rig.ipc, f->tcp};
    for (int i = 0; i < 40; i++) { // as a peer that has a single place
        hearth *h = open_or_fail(urls[i % 2], 10000);
        assert_int_equal(hearth_query(h, "devices", "", NULL, NULL, &json), HEARTH_OK);
        assert_string_equal(json, FAKE_DEVICES);
        hearth_free(json);
        hearth_close(h);
    }
    fake_job_event("{\"step\":1}", 1);
    for (int i = 0; i < WATCHERS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].steps, 1);
    }
    assert_int_equal(atomic_load(&fake_job_asked), asked); // the engine is not asked by who waits
    fake_job_end("finished");
}

// ---- who may watch

static void expect(hearth *h, const char *args, hearth_status want, const char *words)
{
    char *json = NULL;
    hearth_status s = hearth_query(h, "watch", args, NULL, NULL, &json);
    hearth_free(json);
    assert_int_equal(s, want);
    if (strstr(hearth_error(), words) == NULL) {
        fail_msg("%s: %s", args, hearth_error());
    }
}

static void test_bad(void **state)
{
    fixture *f = *state;
    begin(f->rig.ipc, "net");
    hearth *h = open_or_fail(f->rig.ipc, 0), *other = open_or_fail(f->tcp, 0);
    expect(h, "{}", HEARTH_EINVAL, "job");
    expect(h, "{\"job\":\"nothing\"}", HEARTH_ENOENT, "there is no job 'nothing'");
    expect(h, "{\"id\":99}", HEARTH_ENOENT, "there is no job");
    expect(h, "{\"id\":-1}", HEARTH_EINVAL, "'id'");
    expect(h, "{\"id\":1,\"wait_ms\":\"1\"}", HEARTH_EINVAL, "'wait_ms'");
    expect(h, "{\"id\":1,\"wait_ms\":-1}", HEARTH_EINVAL, "'wait_ms' must be a number from 0");
    expect(h, "{\"id\":1,\"after\":1e300}", HEARTH_EINVAL, "'after' must be a number from 0");
    // another tenant's is as one that is not there
    expect(other, "{\"job\":\"net\"}", HEARTH_ENOENT,
           "there is no job 'net'; `hearth jobs` lists what there is");
    expect(other, "{\"id\":1}", HEARTH_ENOENT, "there is no job 1;");
    expect(other, "{\"id\":1,\"after\":1}", HEARTH_ENOENT, "there is no job 1;");
    hearth_close(other);
    hearth_close(h);
    fake_job_end("canceled");
}

// ---- where watches are refused, and where events are missed

static void test_busy(void **state)
{
    fixture *f = *state;
    watched w = {.url = f->rig.ipc, .id = begin(f->rig.ipc, "net")};
    uint64_t next = 0;
    assert_ok(hth_setting_set("limits.watches", "1"));
    hearth *h = open_or_fail(f->rig.ipc, 0);
    json_decref(ask(h, w.id, 0, &next));
    watched parked = {.url = f->rig.ipc, .id = w.id};
    assert_int_equal(pthread_create(&parked.thread, NULL, parked_main, &parked), 0);
    wait_started(&parked);
    assert_int_equal(pthread_create(&w.thread, NULL, watched_main, &w), 0);
    wait_started(&w);
    fake_job_end("failed"); // whoever of them has the only place
    pthread_join(w.thread, NULL);
    pthread_join(parked.thread, NULL);
    assert_string_equal(w.error, "");
    assert_int_equal(w.end, HEARTH_JOB_FAILED);
    hearth_close(h);
}

static void test_slow(void **state)
{
    fixture *f = *state;
    uint64_t id = begin(f->rig.ipc, "net"), next = 0;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    json_decref(ask(h, id, 0, &next));
    for (int i = 0; i < 1000; i++) {
        fake_job_event("{\"step\":5}", 5);
    }
    json_t *doc = ask(h, id, 60000, &next);
    assert_true(json_is_true(json_object_get(doc, "missed")));
    assert_true(json_array_size(json_object_get(doc, "events")) > 0);
    json_decref(doc);
    hearth_close(h);
    fake_job_end("finished");
}

// ---- a server that goes away

// watch_and_close has a job watched, and closes the server while it is at work.
static void watch_and_close(fixture *f, watched *w)
{
    hth_request *r;
    *w = (watched){.url = f->rig.ipc, .id = begin(f->rig.ipc, "net")};
    assert_int_equal(pthread_create(&w->thread, NULL, watched_main, w), 0);
    wait_started(w);
    while ((r = atomic_exchange(&fake_job, NULL)) == NULL) {
        fake_nap();
    }
    r->err = HTH_OK;
    r->done(r); // the job is with the next engine
    hth_server_close(f->rig.server);
    f->rig.server = NULL;
}

static void test_restarted(void **state)
{
    fixture *f = *state;
    watched w;
    watch_and_close(f, &w);
    fixture_open(f);
    atomic_store(&fake_job_state, "finished");
    pthread_join(w.thread, NULL);
    assert_string_equal(w.error, "");
    assert_int_equal(w.end, HEARTH_JOB_FINISHED);
}

static _Atomic uint64_t leaps_ns;

// The clock of a test in which every look at it takes twenty seconds.
static uint64_t leaping(void *ctx)
{
    return atomic_fetch_add(&leaps_ns, 20000000000u);
}

static void test_gone(void **state)
{
    watched w;
    watch_and_close(*state, &w);
    atomic_store(&leaps_ns, hth_now_ns());
    hth_clock_inject(leaping, NULL);
    pthread_join(w.thread, NULL);
    hth_clock_inject(NULL, NULL);
    assert_int_equal(w.status, HEARTH_EIO);
    assert_non_null(strstr(w.error, "no server answers at"));
    assert_non_null(strstr(w.error, "job 1 goes on when its server does"));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_followed), T(test_no_places), T(test_bad),  T(test_busy),
        T(test_slow),     T(test_restarted), T(test_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
