// SPDX-License-Identifier: Apache-2.0
// An instance has one task at a time, which is handed over and back under one lock; `busy` is
// atomic, so that who has other things to do looks at it without. Its thread looks for the next for
// a moment before it sleeps: the steps of a job follow each other closely.
#include "engine/serve/instance.h"

#include "base/alloc.h"
#include "base/spin.h"
#include "base/thread.h"
#include "device/cpu/team.h"

#include <stdatomic.h>
#include <stdio.h>

#define SPACE_SPIN_NS 50000u

struct hth_instance {
    hth_instance_config config;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_bool busy, stopping;
    hth_team *team; // of several threads; under the lock, as `ready` and `low`
    bool ready, low;
    hth_err (*work)(void *arg);
    void *arg;
    hth_err err; // of the last work, and its sentence
    char detail[512];
};

static bool space_idle(void *ctx)
{
    const hth_instance *s = ctx;
    return !s->busy && !s->stopping;
}

// space_next waits for work; false: there will be none.
static bool space_next(hth_instance *instance)
{
    hth_spin(space_idle, instance, hth_real_after(SPACE_SPIN_NS));
    pthread_mutex_lock(&instance->lock);
    while (space_idle(instance)) {
        pthread_cond_wait(&instance->changed, &instance->lock);
    }
    bool busy = instance->busy; // what was started is done, also when it is to stop
    pthread_mutex_unlock(&instance->lock);
    return busy;
}

static void space_main(void *ctx)
{
    hth_instance *s = ctx;
    hth_team_set(s->config.threads);
    pthread_mutex_lock(&s->lock);
    s->team = hth_team_open();
    s->ready = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    while (space_next(s)) {
        s->err = s->work(s->arg);
        if (s->err != HTH_OK) {
            snprintf(s->detail, sizeof s->detail, "%s", hth_err_detail());
        }
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        s->config.done(s->config.ctx);
    }
}

hth_err hth_instance_open(const hth_instance_config *config, hth_instance **out)
{
    *out = NULL;
    hth_instance *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("a model instance");
    }
    s->config = *config;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    hth_err err = hth_thread_start(config->name, space_main, s, &s->thread);
    if (err != HTH_OK) {
        pthread_cond_destroy(&s->changed);
        pthread_mutex_destroy(&s->lock);
        hth_free(s);
        return err;
    }
    *out = s;
    return HTH_OK;
}

void hth_instance_close(hth_instance *instance)
{
    if (instance == NULL) {
        return;
    }
    pthread_mutex_lock(&instance->lock);
    instance->stopping = true;
    pthread_cond_broadcast(&instance->changed);
    pthread_mutex_unlock(&instance->lock);
    hth_thread_join(instance->thread);
    pthread_cond_destroy(&instance->changed);
    pthread_mutex_destroy(&instance->lock);
    hth_free(instance);
}

void hth_instance_start(hth_instance *instance, hth_err (*work)(void *arg), void *arg)
{
    pthread_mutex_lock(&instance->lock);
    instance->work = work;
    instance->arg = arg;
    instance->busy = true;
    pthread_cond_broadcast(&instance->changed);
    pthread_mutex_unlock(&instance->lock);
}

void hth_instance_lower(hth_instance *instance)
{
    pthread_mutex_lock(&instance->lock);
    while (!instance->ready) {
        pthread_cond_wait(&instance->changed, &instance->lock);
    }
    if (instance->team != NULL && !instance->low) {
        hth_team_low(instance->team);
    }
    if (!instance->low) {
        (void)pthread_setschedparam(instance->thread, SCHED_IDLE, &(struct sched_param){0});
    }
    instance->low = true;
    pthread_mutex_unlock(&instance->lock);
}

bool hth_instance_busy(const hth_instance *instance)
{
    return instance->busy;
}

hth_err hth_instance_wait(hth_instance *instance)
{
    pthread_mutex_lock(&instance->lock);
    while (instance->busy) {
        pthread_cond_wait(&instance->changed, &instance->lock);
    }
    pthread_mutex_unlock(&instance->lock);
    return hth_err_restore(instance->err, instance->detail);
}
