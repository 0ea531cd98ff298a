// SPDX-License-Identifier: Apache-2.0
// Peers of the socket protocol that are many, that end half of a connection, or pass descriptors
// which are hard to close; and the end of a server while they are all there.
#include "tests/rig/rpc_rig.h"

#include "base/ipc/memfd.h"
#include "modelstore/file.h"
#include "server/net/accept_guard.h"
#include "server/net/account.h"
#include "tests/rig/pass_fd.h"

#include <poll.h>
#include <sys/wait.h>

#define NOBODY 65534
#define MANY   24

static void wait_connections(int want)
{
    for (int i = 0; i < PATIENCE && hth_accept_count() != want; i++) {
        fake_nap();
    }
    assert_int_equal(hth_accept_count(), want);
}

// Half-closed: a client that sends no more hears nothing any more, in whatever state it is, and
// what it asked for is canceled.
static void test_half_closed(void **state)
{
    fixture *f = *state;
    start(f, true, "tcp");
    for (int local = 0; local < 2; local++) {
        uint8_t *m;
        int canceled = atomic_load(&fake_canceled), held = atomic_load(&fake_held);
        peer p[5];
        for (int i = 0; i < 5; i++) {
            p[i] = dial(f, local, 1, 0);
        }
        for (int i = 1; i < 5; i++) {
            greet(p[i]);
        }
        size_t n = message(p[3], TOKEN, NULL, "x", 1000, &m);
        say(p[2], m, 5);
        say(p[3], m, n - 1);
        request(p[4], TOKEN, NULL, "hold", 4);
        wait_for(&fake_held, held + 1);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(shutdown(p[i].fd, SHUT_WR), 0);
            ended(p[i]);
        }
        wait_for(&fake_held, held);
        wait_for(&fake_canceled, canceled + 1);
        hth_free(m);
    }
    wait_connections(0);
}

// Many requests at once without a valid token are each refused, one after the other.
static void test_pipelined(void **state)
{
    fixture *f = *state;
    start(f, true, "tcp");
    peer p = greeted(f, false, 1);
    uint8_t *m, *all;
    size_t n = message(p, "wrong", "devices", NULL, 0, &m);
    all = hth_alloc(200 * n);
    for (size_t i = 0; i < 200; i++) {
        memcpy(all + i * n, m, n);
    }
    say(p, all, 200 * n);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(answer(p), HTH_EDENIED);
    }
    assert_ok(ask(p, TOKEN));
    say(p, all, 200 * n);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(answer(p), HTH_EDENIED);
    }
    hth_free(m);
    hth_free(all);
    close(p.fd);
}

// Answers of several peers at once, each more than its socket takes: the engine's thread touches
// connections while the loop goes through those that it has touched before (`make check-tsan` sees
// whether their list is guarded).
static void test_touched(void **state)
{
    enum { PEERS = 6, ASKED = 40, FLOATS = 60000 };
    fixture *f = *state;
    peer p[PEERS];
    start(f, true, "tcp");
    for (int i = 0; i < PEERS; i++) {
        p[i] = greeted(f, false, 1 + i);
        assert_ok(ask(p[i], TOKEN));
    }
    for (int k = 0; k < ASKED; k++) {
        for (int i = 0; i < PEERS; i++) {
            request(p[i], TOKEN, NULL, "x", FLOATS);
        }
        for (int i = 0; k > 0 && i < PEERS; i++) { // one of each is always under way
            assert_ok(answer(p[i]));
        }
    }
    for (int i = 0; i < PEERS; i++) {
        assert_ok(answer(p[i]));
        assert_ok(ask(p[i], TOKEN));
        close(p[i].fd);
    }
}

// ---- who is many

// Where all connections are taken, a new one takes the place of the oldest that has shown no token.
static void test_evicted_unproven(void **state)
{
    fixture *f = *state;
    peer p[MANY];
    assert_ok(hth_setting_set("limits.connections", "24"));
    assert_ok(hth_setting_set("limits.connections_per_address", "24"));
    start(f, true, "tcp");
    for (int i = 0; i < MANY; i++) {
        p[i] = greeted(f, false, 1);
        if (i < 2) {
            assert_ok(ask(p[i], TOKEN));
        }
        atomic_fetch_add(&f->ns, 1000);
    }
    peer fresh = greeted(f, false, 2);
    assert_ok(ask(fresh, TOKEN));
    ended(p[2]);
    for (int i = 0; i < MANY; i++) {
        if (i != 2) {
            assert_ok(ask(p[i], TOKEN));
            close(p[i].fd);
        }
    }
    close(fresh.fd);
}

// .. and without tokens, of the one that has been without a request for longest. Who waits for an
// answer stays; where all do, nobody new gets in.
static void test_evicted_idle(void **state)
{
    fixture *f = *state;
    peer p[MANY];
    assert_ok(hth_setting_set("limits.connections", "24"));
    assert_ok(hth_setting_set("limits.connections_per_address", "24"));
    start(f, false, "tcp");
    for (int i = 0; i < MANY; i++) {
        p[i] = greeted(f, false, 1);
        atomic_fetch_add(&f->ns, 1000);
    }
    int taken = atomic_load(&fake_taken);
    request(p[0], "", NULL, "hold", 4);
    wait_for(&fake_held, 1);
    peer fresh = greeted(f, false, 2); // in the place of 1, which says nothing
    ended(p[1]);
    request(fresh, "", NULL, "hold", 4);
    for (int i = 2; i < MANY; i++) {
        request(p[i], "", NULL, "hold", 4);
    }
    wait_for(&fake_taken, taken + MANY);
    peer late = dial(f, false, 2, 0);
    ended(late);
    atomic_store(&fake_released, 1);
    assert_ok(answer(fresh));
    close(fresh.fd);
    for (int i = 0; i < MANY; i++) {
        if (i != 1) {
            assert_ok(answer(p[i]));
            close(p[i].fd);
        }
    }
}

// Requests of one address: those beyond its share wait, and others' do not wait for them.
static void test_share(void **state)
{
    fixture *f = *state;
    assert_ok(hth_setting_set("limits.requests", "8"));
    assert_ok(hth_setting_set("limits.requests_per_peer", "4"));
    start(f, false, "tcp");
    int taken = atomic_load(&fake_taken);
    peer greedy = greeted(f, false, 1), other = greeted(f, false, 2);
    for (int i = 0; i < 20; i++) {
        request(greedy, "", NULL, "hold", 4);
    }
    wait_for(&fake_taken, taken + 4);
    request(other, "", "models", NULL, 0); // which the engine is not needed for
    assert_ok(answer(other));
    assert_int_equal(atomic_load(&fake_taken), taken + 4);
    atomic_store(&fake_released, 1);
    for (int i = 0; i < 20; i++) {
        assert_ok(answer(greedy));
    }
    close(greedy.fd);
    close(other.fd);
}

// All places taken by others: root's questions find one of 16 more, and those beyond wait, too.
static void test_administrators(void **state)
{
    fixture *f = *state;
    if (getuid() != 0) {
        skip();
    }
    assert_ok(hth_setting_set("limits.requests", "2"));
    start(f, false, "tcp");
    peer greedy = greeted(f, false, 1), root = greeted(f, true, 0), again = greeted(f, true, 0);
    int taken = atomic_load(&fake_taken);
    request(greedy, "", NULL, "hold", 4);
    request(greedy, "", NULL, "hold", 4);
    wait_for(&fake_taken, taken + 2);
    request(greedy, "", "models", NULL, 0);
    request(root, "", "models", NULL, 0);
    assert_ok(answer(root));
    for (int i = 0; i < 20; i++) { // these wait for the engine, which is held
        request(root, "", "devices", NULL, 0);
    }
    request(again, "", "cancel-nothing", NULL, 0);
    assert_int_equal(recv(greedy.fd, &(char){0}, 1, MSG_DONTWAIT), -1); // still nothing
    atomic_store(&fake_released, 1);
    for (int i = 0; i < 20; i++) {
        assert_ok(answer(root));
    }
    assert_true(answer(again) != HTH_OK);
    for (int i = 0; i < 3; i++) {
        assert_ok(answer(greedy));
    }
    close(greedy.fd);
    close(root.fd);
    close(again.fd);
}

// ---- descriptors of others

static void give(int to, const void *bytes, size_t n, int fd)
{
    char control[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec v = {(void *)bytes, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control};
    const int fds[2] = {fd, 0};
    m.msg_controllen = sizeof control;
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(h), fds, sizeof fds);
    if (sendmsg(to, &m, MSG_NOSIGNAL) != (ssize_t)n) {
        _exit(103);
    }
}

// linger_give passes, over `to`, a TCP socket whose close waits for a peer that does not read:
// *other, which the caller keeps. A process of its own does so, whose end does not wait.
static bool linger_give(int to, const void *bytes, size_t n, int *other)
{
    static const char zeros[1 << 16];
    const struct linger l = {1, 1000};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int buffer = SMALL_BUF, status, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (bind(listener, (struct sockaddr *)&a, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&a, &size) != 0) {
        return false;
    }
    pid_t child = fork();
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, size) != 0 ||
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l) != 0) {
            _exit(102);
        }
        while (send(fd, zeros, sizeof zeros, MSG_DONTWAIT) > 0) {
        }
        give(to, bytes, n, fd);
        _exit(0);
    }
    *other = accept(listener, NULL, NULL);
    close(listener);
    return *other >= 0 && waitpid(child, &status, 0) == child && status == 0;
}

// lingerer sends such sockets, as nobody, to two connections that are not read at the moment, since
// they have as many requests as they may, and ends the second. A byte of `in` lets it go on.
static int lingerer(const char *url)
{
    fixture f = {.port = 0};
    peer p[2];
    char c;
    snprintf(f.rig.ipc, sizeof f.rig.ipc, "%s", url);
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0) {
        return 101;
    }
    for (int i = 0; i < 2; i++) {
        p[i] = greeted(&f, true, 0);
        request(p[i], "", NULL, "hold", 4);
        request(p[i], "", NULL, "hold", 4);
    }
    if (read(0, &c, 1) != 1) {
        return 104;
    }
    for (int i = 0; i < 2; i++) {
        int other;
        if (!linger_give(p[i].fd, "\1", 1, &other)) {
            return 105;
        }
    }
    close(p[1].fd);
    return write(1, "x", 1) == 1 && read(0, &c, 1) == 0 ? 0 : 106;
}

// as_nobody starts this program again as `what`; *in ends it when it is closed.
static pid_t as_nobody(const fixture *f, const char *what, int *in, int *out)
{
    int to[2], from[2];
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl("/proc/self/exe", "rpc_test", what, f->rig.ipc, (char *)NULL);
        _exit(100);
    }
    close(to[0]);
    close(from[1]);
    *in = to[1];
    *out = from[0];
    return child;
}

static void end_nobody(pid_t child, int in, int out)
{
    int status;
    close(in);
    close(out);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 0);
}

// close() of a descriptor may take as long as the user likes who passed it: he waits, nobody else.
static void test_lingering(void **state)
{
    fixture *f = *state;
    int in, out;
    char c;
    if (getuid() != 0) {
        skip();
    }
    assert_ok(hth_setting_set("limits.requests_per_connection", "2"));
    start(f, false, "tcp");
    int taken = atomic_load(&fake_taken);
    pid_t child = as_nobody(f, "lingerer", &in, &out);
    wait_for(&fake_taken, taken + 4);
    assert_int_equal(write(in, "x", 1), 1);
    assert_int_equal(read(out, &c, 1), 1);
    atomic_store(&fake_released, 1);
    for (int i = 0; i < 20; i++) {
        peer p = greeted(f, true, 0);
        assert_ok(ask(p, ""));
        close(p.fd);
    }
    end_nobody(child, in, out);
    wait_connections(0);
}

// passer passes as many descriptors as it can, as nobody, and says how many were taken.
static int passer(const char *url)
{
    pass_fd p[4];
    int n = 0;
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0) {
        return 101;
    }
    for (int i = 0; i < 4; i++) {
        pass_begin(&p[i], url);
        for (int k = 0; k < 64; k++) {
            n += pass_one(&p[i], 0) != 0;
        }
    }
    char text = (char)(n == 128 ? 'y' : 'n');
    return write(1, &text, 1) == 1 && read(0, &text, 1) == 0 ? 0 : 107;
}

// One user's passed descriptors leave places for others'.
static void test_passed(void **state)
{
    fixture *f = *state;
    int in, out;
    char c;
    pass_fd mine;
    if (getuid() != 0) {
        skip();
    }
    start(f, false, "tcp");
    pid_t child = as_nobody(f, "passer", &in, &out);
    assert_int_equal(read(out, &c, 1), 1);
    assert_int_equal(c, 'y');
    pass_begin(&mine, f->rig.ipc);
    assert_true(pass_one(&mine, 0) != 0);
    pass_end(&mine);
    end_nobody(child, in, out);
    wait_connections(0);
}

// ---- copies

// infer_shared asks for an inference of n integers in a shared region.
static hth_err infer_shared(peer p, const char *model, uint32_t region, size_t n)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Infer infer = HEARTH__INFER__INIT;
    Hearth__Tensor t = HEARTH__TENSOR__INIT, *list[] = {&t};
    int64_t shape[] = {(int64_t)n};
    uint8_t *m;
    infer.model = (char *)model;
    infer.inputs = list;
    infer.n_inputs = 1;
    t.name = "x";
    t.dtype = HTH_DT_I64;
    t.shape = shape;
    t.n_shape = 1;
    t.bytes = n * sizeof(int64_t);
    t.region = region;
    q.call = 8;
    q.body_case = HEARTH__REQUEST__BODY_INFER;
    q.infer = &infer;
    size_t bytes = framed(p, &q, NULL, 0, &m);
    say(p, m, bytes);
    hth_free(m);
    return answer(p);
}

// What lies in shared memory and must be copied is bounded as a message is, and has its place in
// the account of all requests.
static void test_copies(void **state)
{
    fixture *f = *state;
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Map map = HEARTH__MAP__INIT;
    pass_fd pass;
    uint32_t region;
    uint8_t *m;
    void *memory;
    int memfd;
    assert_ok(hth_setting_set("limits.message_bytes", "256KiB"));
    start(f, false, "tcp");
    assert_ok(hth_memfd_make("test", MEBIBYTE, &memfd, &memory));
    pass_begin(&pass, f->rig.ipc);
    peer p = greeted(f, true, 0);
    map.handle = pass_one(&pass, memfd);
    map.bytes = MEBIBYTE;
    q.body_case = HEARTH__REQUEST__BODY_MAP;
    q.map = &map;
    size_t bytes = framed(p, &q, NULL, 0, &m);
    say(p, m, bytes);
    hth_free(m);
    assert_ok(answer_region(p, &region));
    for (int i = 0; i < PATIENCE && hth_account_bytes() != 0; i++) {
        fake_nap(); // until the region's answer is given back
    }
    assert_int_equal(hth_account_bytes(), 0);
    assert_int_equal(infer_shared(p, "missing", region, (256 << 10) / 8 + 1), HTH_ETOOBIG);
    assert_int_equal(infer_shared(p, "missing", region, 10000), HTH_ENOENT); // copied, and asked
    hth_account_add((uint64_t)64 << 30);                                     // of others
    assert_int_equal(infer_shared(p, "missing", region, 10000), HTH_EBUSY);
    hth_account_give((uint64_t)64 << 30);
    assert_ok(infer_shared(p, "x", region, 10000));
    for (int i = 0; i < PATIENCE && hth_account_bytes() != 0; i++) {
        fake_nap(); // until the answer is given back
    }
    assert_int_equal(hth_account_bytes(), 0);
    close(p.fd);
    pass_end(&pass);
    hth_memfd_drop(memfd, memory, MEBIBYTE);
}

// settle_counts waits until all that is counted is given back.
static void settle_counts(void)
{
    for (int i = 0; i < PATIENCE && hth_account_bytes() != 0; i++) {
        fake_nap();
    }
    assert_int_equal(hth_account_bytes(), 0);
}

// infer_routed asks for an inference of n floats through `hops` of others, each of whom put a word
// in front of the frame, which moves its tensors.
static hth_err infer_routed(peer p, size_t hops, size_t n)
{
    uint8_t *m, *routed, answered[512];
    Hearth__Reply *r;
    const uint8_t *section;
    uint64_t section_bytes;
    settle_counts();
    size_t head = p.local ? 9 : 8, route = 4 * hops,
           bytes = message(p, TOKEN, NULL, "missing", n, &m);
    uint64_t body = bytes - head + route, rest = 0;
    routed = hth_calloc(1, bytes + route);
    memcpy(routed, m, head);
    for (size_t i = 0; i < 8; i++) {
        routed[head - 8 + i] = (uint8_t)(body >> (8 * (7 - i)));
    }
    memcpy(routed + head + route, m + head, bytes - head);
    say(p, routed, bytes + route);
    hth_free(routed);
    hth_free(m);
    hear(p, answered, head);
    for (size_t i = 0; i < 8; i++) {
        rest = rest << 8 | answered[head - 8 + i];
    }
    assert_true(rest <= sizeof answered && rest > route + 4);
    hear(p, answered, rest);
    assert_ok(hth_wire_read_reply(answered + route + 4, rest - route - 4, &hth_wire_default_limits,
                                  &r, &section, &section_bytes));
    assert_int_equal(r->body_case, HEARTH__REPLY__BODY_ERROR);
    hth_err err = (hth_err)r->error->code;
    hth_wire_free_reply(r);
    return err;
}

// Tensors that came where they cannot be read are copied; their peer pays for that, too.
static void test_moved(void **state)
{
    fixture *f = *state;
    assert_ok(hth_setting_set("limits.bytes_per_peer", "1536KiB"));
    start(f, false, "tcp");
    for (int local = 0; local < 2; local++) {
        peer p = greeted(f, local, 1);
        assert_int_equal(infer_routed(p, 0, MEBIBYTE / sizeof(float)), HTH_ENOENT);
        assert_int_equal(infer_routed(p, 1, MEBIBYTE / sizeof(float)), HTH_EBUSY);
        assert_int_equal(infer_routed(p, 1, MEBIBYTE / 2 / sizeof(float)), HTH_ENOENT);
        assert_int_equal(infer_routed(p, 2, MEBIBYTE / sizeof(float)), HTH_ENOENT); // as it was
        close(p.fd);
    }
    settle_counts();
}

// A message for which there is no room is refused, not its connection, also where its length came
// alone, or with a part of the first word: what is let in of every message says whom to answer.
static void test_busy(void **state)
{
    fixture *f = *state;
    start(f, false, "tcp");
    for (int i = 0; i < 4; i++) {
        uint8_t *m;
        bool local = i % 2 == 1;
        peer p = greeted(f, local, 1);
        size_t n = message(p, "", NULL, "x", 100000, &m), head = local ? 9 : 8;
        head += i < 2 ? 0 : 2;
        hth_account_add((uint64_t)64 << 30); // of others
        say(p, m, head);
        settled(f, local);
        say(p, m + head, n - head);
        assert_int_equal(answer(p), HTH_EBUSY);
        hth_account_give((uint64_t)64 << 30);
        assert_ok(ask(p, ""));
        hth_free(m);
        close(p.fd);
    }
}

// ---- the store

// asked sends a request about the store: to remove a model, or (NULL) gc.
static void asked(peer p, const char *model)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Remove remove = HEARTH__REMOVE__INIT;
    Hearth__Gc gc = HEARTH__GC__INIT;
    uint8_t *m;
    q.call = 7;
    q.token = "";
    q.body_case = model != NULL ? HEARTH__REQUEST__BODY_REMOVE : HEARTH__REQUEST__BODY_GC;
    if (model != NULL) {
        remove.model = (char *)model;
        q.remove = &remove;
    } else {
        q.gc = &gc;
    }
    size_t bytes = framed(p, &q, NULL, 0, &m);
    say(p, m, bytes);
    hth_free(m);
}

// imports holds a store's lock as another program's import does.
static int imports(const fixture *f)
{
    int dir = open(f->rig.store, O_RDONLY | O_DIRECTORY), lock;
    assert_ok(hth_store_file_lock(dir, "lock", false, &lock));
    close(dir);
    return lock;
}

// hears tells whether an answer comes, while each look at it takes `passes_ns` of the clock.
static bool hears(fixture *f, peer p, uint64_t passes_ns)
{
    struct pollfd to = {.fd = p.fd, .events = POLLIN};
    int n = 0;
    for (int i = 0; i < PATIENCE && n == 0; i++) {
        atomic_fetch_add(&f->ns, passes_ns);
        n = poll(&to, 1, 1);
    }
    return n == 1;
}

// While another program imports, gc waits: until its client goes, or for half a minute. Others wait
// no longer.
static void test_gc_waits(void **state)
{
    fixture *f = *state;
    start(f, false, "tcp");
    int lock = imports(f);
    peer gone = greeted(f, true, 0), next = greeted(f, true, 0), stays = greeted(f, true, 0);
    asked(gone, NULL);
    asked(next, "nothing");
    settled(f, true);
    close(gone.fd);
    bool went_on = hears(f, next, 0), gave_up = false;
    if (went_on) {
        assert_int_equal(answer(next), HTH_ENOENT);
        asked(stays, NULL);
        gave_up = hears(f, stays, 100000000);
    }
    close(lock);
    assert_true(went_on && gave_up);
    assert_int_equal(answer(stays), HTH_EBUSY);
    asked(stays, NULL);
    assert_ok(answer(stays));
    close(next.fd);
    close(stays.fd);
}

// ---- the end

// stop_while stops the server; meanwhile `first_ns` and then `then_ns` pass.
static hth_err stop_while(fixture *f, uint64_t first_ns, uint64_t then_ns)
{
    f->stops = pthread_self();
    f->passes_ns[0] = first_ns;
    f->passes_ns[1] = then_ns;
    f->stopping = true;
    return hth_server_stop(f->rig.server);
}

// What runs after five sixths of drain.seconds is canceled, and everybody is disconnected: by the
// server's clock, however long that takes.
static void test_stop(void **state)
{
    fixture *f = *state;
    assert_ok(hth_setting_set("drain.seconds", "1"));
    start(f, true, "tcp");
    peer held = greeted(f, false, 1), silent = dial(f, false, 1, 0), half = greeted(f, true, 1);
    say(half, "\1\0\0", 3);
    request(held, TOKEN, NULL, "hold", 4);
    wait_for(&fake_held, 1);
    uint64_t start_ns = atomic_load(&f->ns);
    assert_ok(stop_while(f, 900000000u, 0));
    assert_int_equal(atomic_load(&f->ns) - start_ns, 900000000u);
    assert_int_equal(answer(held), HTH_ECANCELED);
    ended(held);
    ended(silent);
    ended(half);
}

// .. and where something runs on all the same, the end comes, too.
static void test_stop_stuck(void **state)
{
    fixture *f = *state;
    assert_ok(hth_setting_set("drain.seconds", "1"));
    start(f, true, "tcp");
    peer stuck = greeted(f, false, 1);
    request(stuck, TOKEN, NULL, "stuck", 4);
    wait_for(&fake_held, 1);
    assert_err(stop_while(f, 900000000u, 200000000u), HTH_ETIMEDOUT, "drain.seconds exceeded");
    ended(stuck);
    static hth_server *volatile left; // still reachable
    left = f->rig.server;
    hth_server_close(left); // which stays as it is
    atomic_store(&fake_released, 1);
    wait_for(&fake_held, 0);
    f->rig.server = NULL;
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        return strcmp(argv[1], "passer") == 0 ? passer(argv[2]) : lingerer(argv[2]);
    }
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_pipelined), T(test_touched),        T(test_copies),           T(test_moved),
        T(test_busy),      T(test_half_closed),    T(test_evicted_unproven), T(test_evicted_idle),
        T(test_share),     T(test_administrators), T(test_lingering),        T(test_passed),
        T(test_gc_waits),  T(test_stop),           T(test_stop_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
