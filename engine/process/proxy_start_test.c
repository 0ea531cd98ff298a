// SPDX-License-Identifier: Apache-2.0
// Children that do not start, die as they do, do not answer, or answer nonsense, and in which order
// they are asked. This program is its own engine's process, one that behaves as FAKE_CHILD in its
// environment says; what it is asked to load it tells as an event.
#include "base/test.h"
#include "base/clock.h"
#include "base/settings.h"
#include "engine/process/child.h"
#include "engine/process/child_link.h"
#include "tests/rig/children.h"
#include "tests/rig/engine_call.h"

#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LIMIT_NS   300000000000u // of everything that is waited for
#define FAKE_CHILD "HEARTH_FAKE_CHILD"
#define OUTPUT     "y"

// ---- the child

static void fake_send(hth_child_link *link, hth_child_kind kind, const char *text, size_t bytes)
{
    hth_child_head head = {.kind = (uint32_t)kind};
    (void)hth_child_link_send(link, &head, text, bytes, HTH_FOREVER);
}

// fake_answer answers a call with an error, or an empty object.
static void fake_answer(hth_child_link *link, const hth_child_head *call, hth_err err)
{
    const char *text[HTH_IPC_RECORD_TEXTS] = {NULL};
    text[err == HTH_OK ? HTH_IPC_RECORD_JSON : HTH_IPC_RECORD_DETAIL] = "{}";
    size_t bytes = hth_ipc_record_room(text, 0, 0);
    hth_ipc_record *a = malloc(bytes);
    hth_child_head head = {.kind = HTH_CHILD_DONE, .entry = call->entry};
    hth_ipc_record_begin(a, text, 0);
    a->err = (uint32_t)err;
    (void)hth_ipc_record_end(a);
    (void)hth_child_link_send(link, &head, a, a->bytes, HTH_FOREVER);
    free(a);
}

// fake_output answers an inference with one output of so many numbers, named or not: in the slab,
// or so far from the place that the client has for it, in number of memory and in bytes.
static void fake_output(hth_child_link *link, const hth_child_head *call, const hth_ipc_record *q,
                        const char *what)
{
    const char *const text[HTH_IPC_RECORD_TEXTS] = {NULL};
    unsigned named = 0, region = 0;
    int64_t n = 0, at = 0;
    int given = sscanf(what, "output %u %" SCNd64 " %u %" SCNd64, &named, &n, &region, &at);
    if (given < 2) {
        return;
    }
    size_t bytes = hth_ipc_record_room(text, 1, sizeof OUTPUT);
    hth_ipc_record *a = malloc(bytes);
    hth_child_head head = {.kind = HTH_CHILD_DONE, .entry = call->entry};
    hth_ipc_record_begin(a, text, 1);
    hth_ipc_record_tensor *w =
        hth_ipc_record_add(a, named ? OUTPUT : NULL, HTH_DT_F32, 1, &n, (uint64_t)n * 4);
    w->region = HTH_IPC_RECORD_SLAB;
    if (given == 4 && q->n_known > 0) {
        const hth_ipc_record_tensor *k = &q->tensor[q->n_tensors - 1];
        w->region = k->region + region;
        w->at = k->at + (uint64_t)at;
    }
    (void)hth_ipc_record_end(a);
    (void)hth_child_link_send(link, &head, a, a->bytes, HTH_FOREVER);
    free(a);
}

// fake_call: "load N" answers requests to load with error N, "silent" with nothing. It tells of
// each whether it pins, and of those to unload.
static void fake_call(hth_child_link *link, const hth_child_head *head, const char *what)
{
    static const char load[] = "digits\0load", pin[] = "digits\0pin", unload[] = "digits\0unload";
    const hth_ipc_record *q = hth_slab_at(link->in, head->far_at, head->far_bytes);
    if (hth_ipc_record_text(q, HTH_IPC_RECORD_MODEL) != NULL) {
        fake_output(link, head, q, what);
        return;
    }
    hth_command_id command = hth_command_find(hth_ipc_record_text(q, HTH_IPC_RECORD_QUERY));
    if (command == HTH_COMMAND_UNLOAD) {
        fake_send(link, HTH_CHILD_EVENT, unload, sizeof unload);
    }
    if (command != HTH_COMMAND_LOAD) {
        fake_answer(link, head, HTH_OK);
        return;
    }
    const char *arguments = hth_ipc_record_text(q, HTH_IPC_RECORD_ARGUMENTS);
    if (strstr(arguments, "\"pin\":true") != NULL) {
        fake_send(link, HTH_CHILD_EVENT, pin, sizeof pin);
    } else {
        fake_send(link, HTH_CHILD_EVENT, load, sizeof load);
    }
    if (strcmp(what, "silent") != 0) {
        fake_answer(link, head, (hth_err)atoi(what + strlen("load ")));
    }
}

// fake_memory makes room for the next client's memory, and does without this one.
static void fake_memory(hth_child_link *link, const hth_child_head *head)
{
    int fd;
    if (hth_child_link_passed(link, head, &fd, 1) == HTH_OK) {
        close(fd);
    }
}

static int fake_child(const char *what)
{
    static const char event[] = "digits\0dies";
    hth_child_link link = {.socket = HTH_CHILD_FD_SOCKET};
    struct stat st;
    hth_child_head head;
    const char *body;
    size_t bytes;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fstat(HTH_CHILD_FD_CONTROL, &st) != 0) {
        return 1;
    }
    link.control =
        mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, HTH_CHILD_FD_CONTROL, 0);
    if (link.control == MAP_FAILED ||
        hth_slab_open(HTH_CHILD_FD_IN, link.control->in_bytes, false, &link.in) != HTH_OK ||
        hth_child_link_open(&link, false) != HTH_OK) {
        return 1;
    }
    while (strcmp(what, "mute") == 0) { // alive, and nothing else
        atomic_fetch_add(&link.control->heartbeats, 1);
        usleep(1000);
    }
    if (strcmp(what, "dies") == 0) {
        fake_send(&link, HTH_CHILD_EVENT, event, sizeof event);
    }
    fake_send(&link, HTH_CHILD_STARTED, NULL, 0);
    while (strcmp(what, "dies") != 0 &&
           hth_child_link_receive(&link, HTH_FOREVER, &head, &body, &bytes) == HTH_OK &&
           head.kind != HTH_CHILD_STOP) {
        if (head.kind == HTH_CHILD_CALL) {
            fake_call(&link, &head, what);
        } else if (head.kind == HTH_CHILD_REGION) {
            fake_memory(&link, &head);
        }
    }
    while (strcmp(what, "stays") == 0) { // however it is told to stop
        atomic_fetch_add(&link.control->heartbeats, 1);
        usleep(1000);
    }
    hth_ring_stop(link.to);
    return 0;
}

// ---- the parent

static atomic_int loads, deaths;
static char wanted[16]; // what was asked for since it was emptied: Load, Pin, Unload

static void wait_until(bool (*reached)(const void *ctx), const void *ctx)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    while (!reached(ctx)) {
        assert_true(hth_real_ns() < until);
        usleep(1000);
    }
}

static bool is_dead(const void *pid)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t) * (const pid_t *)pid, &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
           info.si_pid != 0;
}

// on_event counts. A child that dies has said that it is up and is gone before that is read.
static void on_event(void *ctx, const char *job, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx, (void)job, (void)done, (void)total;
    if (strcmp(what, "dies") != 0) { // before the request is answered
        wanted[strlen(wanted)] = (char)toupper(what[0]);
    }
    if (strcmp(what, "unload") == 0) {
        return;
    }
    if (strcmp(what, "load") == 0 || strcmp(what, "pin") == 0) {
        atomic_fetch_add(&loads, 1);
        return;
    }
    pid_t pid = child_of(getpid());
    wait_until(is_dead, &pid);
    usleep(60000); // the supervisor's tick is due
    atomic_fetch_add(&deaths, 1);
}

static hth_err open_fake(fixture *f, const char *what)
{
    strcpy(f->dir, "/tmp/hearth-start-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_ok(hth_store_open(f->dir, true, false, &f->store));
    assert_int_equal(setenv(FAKE_CHILD, what, 1), 0);
    atomic_store(&loads, 0);
    atomic_store(&deaths, 0);
    memset(wanted, 0, sizeof wanted);
    hth_engine_config config = {.device = "cpu", .child_store = f->dir, .event = on_event};
    return hth_engine_open(&config, NULL, &f->engine);
}

static bool is_ready(const void *engine)
{
    return hth_engine_ready((hth_engine *)engine);
}

static bool is_starting(const void *engine)
{
    return !is_ready(engine) && child_of(getpid()) != 0;
}

// wait_replaced waits until `pid` is no child any more: its engine is ready until that is noticed.
static void wait_replaced(pid_t pid)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    while (child_of(getpid()) == pid) {
        assert_true(hth_real_ns() < until);
        usleep(1000);
    }
}

// next kills the child; those after it do `what`.
static void next(fixture *f, const char *what)
{
    pid_t pid = child_of(getpid());
    assert_int_not_equal(pid, 0);
    assert_int_equal(setenv(FAKE_CHILD, what, 1), 0);
    kill(pid, SIGKILL);
    wait_replaced(pid);
}

// ask has a request answered, after all that were sent before.
static void ask(fixture *f)
{
    call c = {.r = {.command = HTH_COMMAND_DEVICES, .arguments = "{}"}};
    assert_ok(call_run(f->engine, &c));
    hth_free(c.r.json);
}

// ask_living has a request answered when children that die may still come first.
static void ask_living(fixture *f)
{
    hth_err err = HTH_EDEVLOST;
    uint64_t until = hth_real_after(LIMIT_NS);
    while (err != HTH_OK) {
        call c = {.r = {.command = HTH_COMMAND_DEVICES, .arguments = "{}"}};
        assert_true(hth_real_ns() < until);
        (void)hth_engine_poll(f->engine, false);
        wait_until(is_ready, f->engine);
        call_init(&c);
        err = hth_engine_submit(f->engine, &c.r);
        if (err == HTH_OK) {
            err = call_wait(&c);
        }
        assert_true(err == HTH_OK || err == HTH_EDEVLOST);
        hth_free(c.r.json);
    }
}

static bool are_loads(const void *n)
{
    return atomic_load(&loads) >= *(const int *)n;
}

// That a child is up may be read only after its death: nobody receives from it any more.
static void test_dies_as_it_starts(void **state)
{
    (void)state;
    fixture f;
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "0"));
    assert_ok(open_fake(&f, "dies"));
    uint64_t until = hth_real_after(LIMIT_NS);
    while (atomic_load(&deaths) < 10) {
        (void)hth_engine_poll(f.engine, true);
        assert_true(hth_real_ns() < until);
    }
    assert_int_equal(setenv(FAKE_CHILD, "load 0", 1), 0);
    ask_living(&f); // the child of now may have been started before
    fixture_close(&f);
    hth_setting_reset();
}

// hang_after sets how long a child may not answer, in hundredths of a second: few for one that is
// to be replaced, many for one that is to come up however busy the machine is.
static void hang_after(const char *beats)
{
    assert_ok(hth_setting_set("engine.missed_heartbeats", beats));
}

// One that lives and never says that it is up is replaced, and counts as a crash.
static void test_never_starts(void **state)
{
    (void)state;
    fixture f;
    call c = {.r = {.command = HTH_COMMAND_DEVICES, .arguments = "{}"}};
    call load = {.r = {.command = HTH_COMMAND_LOAD, .arguments = "{\"model\":\"digits\"}"}};
    assert_ok(hth_setting_set("engine.heartbeat_ms", "10"));
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "1"));
    hang_after("2");
    assert_err(open_fake(&f, "mute"), HTH_EDEVLOST, "ended before it was ready (signal 9)");
    hth_store_close(f.store);
    assert_int_equal(test_remove(f.dir), 0);
    hang_after("1000");
    assert_ok(open_fake(&f, "load 0"));
    assert_ok(call_run(f.engine, &load));
    hth_free(load.r.json);
    hang_after("2");
    next(&f, "mute");
    call_init(&c);
    assert_ok(hth_engine_submit(f.engine, &c.r)); // without a timeout
    assert_err(call_wait(&c), HTH_EDEVLOST, "died too often (signal 9)");
    call again = {.r = {.command = HTH_COMMAND_DEVICES, .arguments = "{}"}};
    call_init(&again);
    assert_err(hth_engine_submit(f.engine, &again.r), HTH_EDEVLOST, "times in a row");
    hang_after("1000");
    assert_int_equal(setenv(FAKE_CHILD, "load 0", 1), 0);
    wait_until(is_ready, f.engine);
    ask(&f);
    assert_int_equal(atomic_load(&loads), 2); // that of the last child that was up, again
    fixture_close(&f);
    hth_setting_reset();
}

// A child that ignores STOP is killed, so that the server can end.
static void test_never_ends(void **state)
{
    (void)state;
    fixture f;
    assert_ok(hth_setting_set("engine.heartbeat_ms", "10"));
    hang_after("1000");
    assert_ok(open_fake(&f, "stays"));
    wait_until(is_ready, f.engine);
    ask(&f);
    hang_after("2");
    fixture_close(&f);
    hth_setting_reset();
}

// A child that the system cannot start counts as a crash.
static void test_cannot_start(void **state)
{
    (void)state;
    fixture f;
    struct rlimit all, none;
    call c = {.r = {.command = HTH_COMMAND_DEVICES, .arguments = "{}"}};
    assert_ok(open_fake(&f, "load 0"));
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "1"));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    pid_t pid = child_of(getpid());
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    kill(pid, SIGKILL);
    uint64_t until = hth_real_after(LIMIT_NS);
    while (hth_engine_ready(f.engine)) {
        assert_true(hth_real_ns() < until);
        usleep(1000);
    }
    call_init(&c);
    assert_ok(hth_engine_submit(f.engine, &c.r));
    assert_err(call_wait(&c), HTH_EDEVLOST, "the engine process does not start: ");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    wait_until(is_ready, f.engine);
    ask(&f);
    fixture_close(&f);
    hth_setting_reset();
}

// A model for which a child had no room is asked for again of the next one, and one that cannot be
// loaded is not; a request that waits for a child is not asked twice.
static void test_models_again(void **state)
{
    (void)state;
    fixture f;
    char no_room[20], invalid[20];
    call c = {.r = {.command = HTH_COMMAND_LOAD, .arguments = "{\"model\":\"digits\"}"}};
    snprintf(no_room, sizeof no_room, "load %d", (int)HTH_ENODEVMEM);
    snprintf(invalid, sizeof invalid, "load %d", (int)HTH_EINVAL);
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "0"));
    assert_ok(open_fake(&f, "load 0"));
    assert_ok(call_run(f.engine, &c));
    hth_free(c.r.json);
    assert_int_equal(atomic_load(&loads), 1);
    const char *const then[] = {no_room, no_room, "silent", "load 0", invalid};
    for (int i = 0; i < 5; i++) {
        next(&f, then[i]);
        wait_until(are_loads, &(int){2 + i});
        ask(&f);
        assert_int_equal(atomic_load(&loads), 2 + i);
    }
    next(&f, "load 0");
    wait_until(is_ready, f.engine);
    ask(&f);
    assert_int_equal(atomic_load(&loads), 6);
    fixture_close(&f);
    hth_setting_reset();
}

// meanwhile asks for `arguments` while no child is up, and has the next one answer: what it is
// asked for is told in this order, and what the one after it loads again is `then`.
static void meanwhile(hth_command_id command, const char *arguments, const char *order,
                      const char *then)
{
    fixture f;
    call load = {
        .r = {.command = HTH_COMMAND_LOAD, .arguments = "{\"model\":\"digits\",\"pin\":true}"}};
    call c = {.r = {.command = command, .arguments = arguments}};
    assert_ok(open_fake(&f, "load 0"));
    assert_ok(call_run(f.engine, &load));
    hth_free(load.r.json);
    next(&f, "mute");
    wait_until(is_starting, f.engine);
    call_start(f.engine, &c);
    memset(wanted, 0, sizeof wanted);
    next(&f, "load 0");
    assert_ok(call_wait(&c));
    hth_free(c.r.json);
    ask(&f);
    ask(&f);
    assert_string_equal(wanted, order);
    memset(wanted, 0, sizeof wanted);
    next(&f, "load 0");
    ask(&f);
    ask(&f); // the first one may have come before it was up
    assert_string_equal(wanted, then);
    fixture_close(&f);
}

// What is unloaded or unpinned while no child is up stays so: the next one has loaded before what
// the last one had.
static void test_unloaded_meanwhile(void **state)
{
    (void)state;
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "0"));
    meanwhile(HTH_COMMAND_UNLOAD, "{\"model\":\"digits\"}", "PU", "");
    meanwhile(HTH_COMMAND_LOAD, "{\"model\":\"digits\",\"unpin\":true}", "PL", "L");
    hth_setting_reset();
}

// ---- answers

#define SHARE_BYTES ((size_t)64 << 10)
#define NUMBERS     64 // that a client has room for, from AT on
#define AT          4096

typedef struct answered {
    call c; // first
    int placed;
    float y[2 * NUMBERS];
} answered;

static hth_err answered_place(hth_request *request, hth_request_tensor *out, int n)
{
    answered *a = request->ctx;
    a->placed += n;
    out[0].t.data = a->y;
    return HTH_OK;
}

// infer asks a child that answers as `what` says for an inference whose output has its place in the
// first of two clients' memory. What hearthd does not believe ends the child.
static hth_err infer(const char *what, answered *a)
{
    fixture f;
    client_memory memory[2];
    assert_ok(open_fake(&f, what));
    for (int i = 0; i < 2; i++) {
        client_memory_open(f.engine, SHARE_BYTES, &memory[i]);
        memset(memory[i].base, 1 + i, SHARE_BYTES);
    }
    hth_request_tensor known = {
        .name = OUTPUT, .t = {.data = memory[0].base + AT, .bytes = NUMBERS * sizeof(float)}};
    *a = (answered){
        .c = {.r = {.model = "digits", .place = answered_place, .known = &known, .n_known = 1}}};
    pid_t pid = child_of(getpid());
    hth_err err = call_run(f.engine, &a->c);
    if (err == HTH_ECORRUPT) {
        wait_replaced(pid);
    }
    ask(&f);
    for (int i = 0; i < 2; i++) {
        client_memory_close(f.engine, &memory[i]);
    }
    fixture_close(&f);
    return hth_err_restore(err, a->c.r.detail);
}

// An output without a name is invalid: front ends place outputs by their names.
static void test_output_without_name(void **state)
{
    (void)state;
    answered a;
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "0"));
    assert_ok(infer("output 1 64", &a));
    assert_int_equal(a.placed, 1);
    assert_err(infer("output 0 64", &a), HTH_ECORRUPT, "invalid output");
    assert_int_equal(a.placed, 0);
    hth_setting_reset();
}

// Of clients' memory an output may lie where its own client has a place for it, and nowhere else.
static void test_output_elsewhere(void **state)
{
    (void)state;
    static const char *const bad[] = {"output 1 64 1 0", "output 1 64 0 64", "output 1 64 0 -4096",
                                      "output 1 65 0 0"};
    const char ones[NUMBERS * sizeof(float)] = {[0 ... NUMBERS * sizeof(float) - 1] = 1};
    answered a;
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "0"));
    assert_ok(infer("output 1 64 0 0", &a));
    assert_int_equal(a.placed, 1);
    assert_memory_equal(a.y, ones, sizeof ones);
    assert_ok(infer("output 1 8 0 0", &a)); // less than there is room for
    assert_memory_equal(a.y, ones, 8 * sizeof a.y[0]);
    for (int i = 0; i < 4; i++) {
        assert_err(infer(bad[i], &a), HTH_ECORRUPT, "invalid output");
        assert_int_equal(a.placed, 0);
    }
    hth_setting_reset();
}

// ---- order

static atomic_int finished;

typedef struct ordered {
    answered a; // first
    client_memory memory;
    hth_request_tensor in;
    int place; // so many were answered before it
} ordered;

static void ordered_done(hth_request *request)
{
    ordered *o = request->ctx;
    o->place = atomic_fetch_add(&finished, 1);
    call_done(request);
}

// More clients' memory than the socket takes descriptors: requests wait for room. One that comes
// later, and needs none, is asked later.
static void test_none_overtakes(void **state)
{
    (void)state;
    enum { N = 400 };
    static ordered o[N + 1];
    static char own[64];
    fixture f;
    siginfo_t info;
    assert_ok(hth_setting_set("engine.missed_heartbeats", "1000"));
    assert_ok(open_fake(&f, "output 1 1"));
    for (int i = 0; i < N; i++) {
        client_memory_open(f.engine, SHARE_BYTES, &o[i].memory);
    }
    pid_t pid = child_of(getpid());
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
    for (int i = 0; i <= N; i++) {
        ordered *k = &o[i];
        k->in = (hth_request_tensor){.t = {.dtype = HTH_DT_U8,
                                           .shape = {1, {sizeof own}},
                                           .data = i < N ? k->memory.base : own,
                                           .bytes = sizeof own}};
        k->a.c.r = (hth_request){.model = "digits",
                                 .inputs = &k->in,
                                 .n_inputs = 1,
                                 .place = answered_place,
                                 .done = ordered_done};
        call_start(f.engine, &k->a.c);
    }
    assert_int_equal(kill(pid, SIGCONT), 0);
    for (int i = 0; i <= N; i++) {
        assert_ok(call_wait(&o[i].a.c));
    }
    for (int i = 0; i <= N; i++) {
        assert_int_equal(o[i].place, i);
    }
    for (int i = 0; i < N; i++) {
        client_memory_close(f.engine, &o[i].memory);
    }
    fixture_close(&f);
    hth_setting_reset();
}

int main(int argc, char **argv)
{
    if (hth_child_requested(argc, argv)) {
        _exit(fake_child(getenv(FAKE_CHILD))); // what it has mapped goes with it
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dies_as_it_starts),   cmocka_unit_test(test_never_starts),
        cmocka_unit_test(test_never_ends),          cmocka_unit_test(test_cannot_start),
        cmocka_unit_test(test_models_again),        cmocka_unit_test(test_unloaded_meanwhile),
        cmocka_unit_test(test_output_without_name), cmocka_unit_test(test_output_elsewhere),
        cmocka_unit_test(test_none_overtakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
