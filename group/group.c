// SPDX-License-Identifier: Apache-2.0
// The region of a group: who is there. What decides an address a member has computed itself from
// its own `spec`, or read once and checked: how many members there are, a round's step and shards.
//
//   header | losses of all steps | notes | what is handed in
//          | an area per member, and the sums | small vectors of each member
//          | a state, with a server one of each member
#include "group/group_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/ipc/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Of the file, which has holes: what members map of it follows from their model.
#define EXCHANGE_BYTES ((uint64_t)1 << 40)
#define EXCHANGE_PAGE  ((size_t)4096)

// ---- the lock, and who is there

static void robust_init(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attr);
    pthread_mutexattr_destroy(&attr);
}

void group_region_lock(group_region *region)
{
    if (pthread_mutex_lock(&region->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&region->lock);
    }
}

void group_wake(group_region *region)
{
    atomic_fetch_add(&region->event, 1);
    syscall(SYS_futex, &region->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

// seat_dead tells whether who sits there has died; the seat is free then.
static bool seat_dead(group_seat *seat)
{
    int got = pthread_mutex_trylock(&seat->alive);
    if (got == EOWNERDEAD) {
        pthread_mutex_consistent(&seat->alive);
    }
    if (got == 0 || got == EOWNERDEAD) {
        pthread_mutex_unlock(&seat->alive);
        return true;
    }
    return false;
}

// seat_free: who sat there takes no part any more. A round that it is part of is broken.
static void seat_free(group_region *region, int member)
{
    region->seat[member].joined = region->seat[member].holds = 0;
    if (group_at_work(region) && (region->taking >> member & 1) != 0) {
        group_write(&region->broken, region->round);
    }
}

void group_lock(hth_group *group)
{
    group_region *r = group->region;
    bool died = false;
    group_region_lock(r);
    for (int i = 0; i < group->members; i++) {
        if (r->seat[i].joined && &r->seat[i] != group->seat && seat_dead(&r->seat[i])) {
            seat_free(r, i);
            died = true;
        }
    }
    if (died) {
        group_wake(r);
    }
}

void group_region_unlock(group_region *region, bool changed)
{
    pthread_mutex_unlock(&region->lock);
    if (changed) {
        group_wake(region);
    }
}

void group_unlock(hth_group *group, bool changed)
{
    group_region_unlock(group->region, changed);
}

static void region_wait(hth_group *group, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, &group->region->event, FUTEX_WAIT, group->seen, &t, NULL, 0);
}

// ---- the region

// Whoever makes groups is one process.
static uint64_t region_order(void)
{
    static _Atomic uint64_t last;
    uint64_t before = atomic_load(&last), order;
    do {
        order = hth_now_ns();
        order = order > before ? order : before + 1;
    } while (!atomic_compare_exchange_weak(&last, &before, order));
    return order;
}

static void region_init(group_region *region, int members)
{
    region->magic = GROUP_MAGIC;
    region->order = region_order();
    region->members = (uint32_t)members;
    robust_init(&region->lock);
    for (int i = 0; i < members; i++) {
        robust_init(&region->seat[i].alive);
        region->seat[i].most = INT64_MAX;
    }
}

group_region *group_map(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p != MAP_FAILED ? p : NULL;
}

hth_err hth_group_make(int members, int *fd)
{
    *fd = memfd_create("hearth-group", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) {
        return hth_fail_errno(errno, "cannot make a group's shared memory");
    }
    group_region *region = NULL;
    if (ftruncate(*fd, (off_t)EXCHANGE_BYTES) == 0 &&
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        region = group_map(*fd, sizeof *region);
    }
    if (region == NULL) {
        hth_err err = hth_fail_errno(errno, "cannot make a group's shared memory");
        close(*fd);
        *fd = -1;
        return err;
    }
    region_init(region, members);
    munmap(region, sizeof *region);
    return HTH_OK;
}

static bool region_end(int fd, bool begun_too, hth_err err, const char *why)
{
    group_region *region = group_map(fd, sizeof *region);
    if (region == NULL) {
        return false;
    }
    group_region_lock(region);
    bool ends = begun_too || region->committed == 0 || region->closed;
    if (ends && !region->closed) {
        region->err = (int32_t)err;
        snprintf(region->why, sizeof region->why, "%s", why != NULL ? why : "");
        region->closed = 1;
    }
    group_region_unlock(region, true);
    munmap(region, sizeof *region);
    return ends;
}

void hth_group_end(int fd, hth_err err, const char *why)
{
    (void)region_end(fd, true, err, why);
}

bool hth_group_refuse(int fd, hth_err err, const char *why)
{
    return region_end(fd, false, err, why);
}

hth_err group_region_error(const group_region *region)
{
    char why[EXCHANGE_WHY];
    memcpy(why, region->why, sizeof why);
    why[sizeof why - 1] = 0;
    int32_t is = *(const volatile int32_t *)&region->err;
    hth_err err = is == HTH_EDEVLOST ? HTH_EIO : (hth_err)is;
    return err == HTH_OK ? HTH_OK : hth_fail(err, "%s", why);
}

static hth_err region_over(hth_group *group)
{
    return group_region_error(group->region);
}

// ---- a member

// Where each slot lies. One that is weighted by samples begins a bucket of its own, as does the
// first that is not: a bucket has one kind of weight.
static size_t lay_out(hth_group *group)
{
    const hth_group_spec *s = &group->spec;
    size_t at = 0;
    for (int i = 0; i < s->n_slots; i++) {
        bool turns = i > 0 && s->by_count[i] != s->by_count[i - 1];
        at = turns ? (at + EXCHANGE_BUCKET - 1) / EXCHANGE_BUCKET * EXCHANGE_BUCKET : at;
        group->at[i] = at;
        at += (s->floats[i] + 15) / 16 * 16;
    }
    group->at[s->n_slots] = at;
    group->n_buckets = (at + EXCHANGE_BUCKET - 1) / EXCHANGE_BUCKET;
    return at;
}

size_t group_pages(size_t bytes)
{
    return (bytes + EXCHANGE_PAGE - 1) / EXCHANGE_PAGE * EXCHANGE_PAGE;
}

// Maps all of the region that the member's model needs.
static hth_err member_map(hth_group *group, int fd, size_t floats)
{
    const hth_group_spec *s = &group->spec;
    size_t members = (size_t)group->members;
    size_t losses = group_pages(sizeof(group_region));
    size_t notes = losses + group_pages((size_t)s->steps * sizeof(group_loss));
    size_t ready = notes + group_pages(group_most_notes(s->steps) * sizeof(hth_group_note));
    size_t area = ready + group_pages(members * group->n_buckets * sizeof(uint32_t));
    size_t given = area + group_pages((members + 1) * floats * sizeof(float));
    size_t shares = given + group_pages(members * (size_t)s->n_shares * sizeof(uint32_t));
    size_t state = shares + group_pages(members * group->begins[s->n_shares] * sizeof(double));
    group->states = s->server ? members : 1;
    group->mapped_bytes = state + group->states * group_pages(s->state_bytes);
    HTH_TRY(hth_memfd_check(fd, group->mapped_bytes));
    group->region = group_map(fd, group->mapped_bytes);
    if (group->region == NULL) {
        return hth_fail_errno(errno, "cannot map %zu bytes of a group's shared memory",
                              group->mapped_bytes);
    }
    char *base = (char *)group->region;
    group->losses = (group_loss *)(void *)(base + losses);
    group->notes = (hth_group_note *)(void *)(base + notes);
    group->ready = (_Atomic uint32_t *)(void *)(base + ready);
    group->area = (float *)(void *)(base + area);
    group->given = (_Atomic uint32_t *)(void *)(base + given);
    group->shares = (double *)(void *)(base + shares);
    group->state = base + state;
    return HTH_OK;
}

// A copy of n elements; not NULL where there are none.
static void *copy_of(const void *from, int n, size_t size)
{
    void *copy = hth_calloc((size_t)n + 1, size);
    if (copy != NULL && n > 0) {
        memcpy(copy, from, (size_t)n * size);
    }
    return copy;
}

hth_err group_steps_check(const hth_group_spec *spec)
{
    return spec->steps >= 0 && spec->steps < INT32_MAX
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "a job of several devices makes at most %d steps, not %lld",
                          INT32_MAX - 1, (long long)spec->steps);
}

hth_err group_arrays(hth_group *group, const hth_group_spec *spec)
{
    size_t n = (size_t)spec->n_slots + 1;
    group->spec = *spec;
    group->spec.floats = copy_of(spec->floats, spec->n_slots, sizeof *spec->floats);
    group->spec.by_count = copy_of(spec->by_count, spec->n_slots, sizeof *spec->by_count);
    group->at = hth_calloc(n, sizeof *group->at);
    group->begins = hth_calloc((size_t)spec->n_shares + 1, sizeof *group->begins);
    if (group->spec.floats == NULL || group->spec.by_count == NULL || group->at == NULL ||
        group->begins == NULL) {
        return hth_no_memory("a group's exchange");
    }
    for (int i = 0; i < spec->n_shares; i++) {
        group->begins[i + 1] = group->begins[i] + spec->shares[i];
    }
    group->spec.shares = NULL; // the caller's
    (void)lay_out(group);
    group->left = hth_calloc(group->n_buckets + 1, sizeof *group->left);
    group->summed = hth_calloc(group->n_buckets + 1, sizeof *group->summed);
    group->count = hth_calloc(group->n_buckets + 1, sizeof *group->count);
    if (group->left == NULL || group->summed == NULL || group->count == NULL) {
        return hth_no_memory("a group's exchange");
    }
    for (int i = 0; i < spec->n_slots; i++) {
        for (size_t b = group->at[i] / EXCHANGE_BUCKET;
             b * EXCHANGE_BUCKET < group->at[i] + spec->floats[i]; b++) {
            group->count[b] = spec->by_count[i];
        }
    }
    return HTH_OK;
}

void group_arrays_free(hth_group *group)
{
    hth_free((void *)group->spec.floats);
    hth_free((void *)group->spec.by_count);
    hth_free(group->at);
    hth_free(group->begins);
    hth_free(group->left);
    hth_free(group->summed);
    hth_free(group->count);
}

// Compares what the member brings with what is there, or brings it. The lock is held.
static hth_err member_agrees(hth_group *group)
{
    const hth_group_spec *s = &group->spec;
    group_region *r = group->region;
    uint64_t floats = group->at[s->n_slots], doubles = group->begins[s->n_shares];
    if (r->batch == 0) { // written last
        r->fingerprint = s->fingerprint;
        r->state_bytes = s->state_bytes;
        r->steps = s->steps;
        r->floats = floats;
        r->server = s->server;
        r->doubles = doubles;
        group_write((uint64_t *)&r->batch, (uint64_t)s->batch);
    }
    bool same = r->fingerprint == s->fingerprint && r->state_bytes == s->state_bytes &&
                r->batch == s->batch && r->steps == s->steps && r->floats == floats &&
                r->doubles == doubles && (r->server != 0) == s->server;
    return same ? HTH_OK
                : hth_fail(HTH_EINVAL,
                           "member %d of a group has another model, data or options than the "
                           "others: batches of %lld and %lld samples, %llu and %llu gradients",
                           s->member, (long long)s->batch, (long long)r->batch,
                           (unsigned long long)floats, (unsigned long long)r->floats);
}

// A server's state is that which it comes with: nobody else has the optimizer's. What another one
// gave counts no more, or a member would take it and have this one take it back. Nor does what one
// is still writing: it has a place of its own for that.
static void server_sits(group_region *region)
{
    for (int i = 0; i < group_members(region); i++) {
        region->seat[i].holds = 0;
    }
    region->given = 0;
}

// Takes the seat; the lock is held.
static hth_err member_sit(hth_group *group)
{
    group_region *r = group->region;
    int member = group->spec.member;
    group_seat *seat = &r->seat[member];
    HTH_TRY(member_agrees(group));
    int got = pthread_mutex_trylock(&seat->alive);
    if (got == EOWNERDEAD) {
        pthread_mutex_consistent(&seat->alive);
    } else if (got != 0) {
        return hth_fail(HTH_EBUSY, "member %d of a group is there already", member);
    }
    seat_free(r, member);
    if (r->server && member == HTH_GROUP_LEAD) {
        server_sits(r);
    }
    seat->at = group->spec.at;
    seat->arrived = seat->summed = 0;
    seat->sample_us = seat->fixed_us = 0;
    seat->most = INT64_MAX; // what it lacked memory for may fit by now
    seat->joined = 1;
    seat->away = seat->gone = 0;
    for (int i = 0; i < group->members; i++) { // it may be enough that this one has come
        r->seat[i].awaited = 0;
    }
    group->seat = seat;
    return HTH_OK;
}

static hth_err member_join(hth_group *group, int fd, const hth_group_spec *spec)
{
    HTH_TRY(hth_memfd_check(fd, sizeof(group_region)));
    group_region *head = group_map(fd, sizeof *head);
    if (head == NULL) {
        return hth_fail_errno(errno, "cannot map a group's shared memory");
    }
    group->members = group_members(head);
    bool good = group_has(head, spec->member) && spec->member < group->members;
    munmap(head, sizeof *head);
    if (!good) {
        return hth_fail(HTH_EINVAL, "there is no member %d in this group of %d", spec->member,
                        group->members);
    }
    HTH_TRY(group_steps_check(spec));
    HTH_TRY(group_arrays(group, spec));
    HTH_TRY(member_map(group, fd, group->at[spec->n_slots]));
    group_lock(group);
    hth_err err = member_sit(group);
    group_unlock(group, err == HTH_OK);
    return err;
}

static void region_leave(hth_group *group)
{
    if (group == NULL) {
        return;
    }
    if (group->seat != NULL) {
        group_lock(group);
        seat_free(group->region, group->spec.member);
        pthread_mutex_unlock(&group->seat->alive);
        group_unlock(group, true);
    }
    if (group->region != NULL) {
        munmap(group->region, group->mapped_bytes);
    }
    group_arrays_free(group);
    hth_free(group);
}

const group_ops group_region_ops = {
    .leave = region_leave,
    .begin = region_begin,
    .state = region_state,
    .gave = region_gave,
    .took = region_took,
    .parks = region_parks,
    .over = region_over,
    .seats = region_seats,
    .start = region_start,
    .most = region_most,
    .awaits = region_awaits,
    .note = region_note,
    .notes = region_notes,
    .plan_for = region_plan_for,
    .planned_for = region_planned_for,
    .alone = region_alone,
    .weigh = region_weigh,
    .place = region_place,
    .ready = region_ready,
    .advance = region_advance,
    .share = region_share,
    .shared = region_shared,
    .passed = region_passed,
    .look = region_look,
    .summed = region_summed,
    .loss = region_loss,
    .break_round = region_break,
    .wait = region_wait,
};

hth_err hth_group_join(int fd, const hth_group_spec *spec, hth_group **out)
{
    *out = NULL;
    hth_group *group = hth_calloc(1, sizeof *group);
    if (group == NULL) {
        return hth_no_memory("a group's exchange");
    }
    group->ops = &group_region_ops;
    hth_err err = member_join(group, fd, spec);
    if (err != HTH_OK) {
        region_leave(group);
        return err;
    }
    *out = group;
    return HTH_OK;
}
