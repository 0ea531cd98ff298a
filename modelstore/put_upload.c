// SPDX-License-Identifier: Apache-2.0
// What a put takes of uploads: an item that has an id in place of bytes is in the index, or was
// uploaded. A large one's file is renamed into its place like one that the put has written; nothing
// is copied or hashed again. A small one's bytes go into the index.
#include "modelstore/put_impl.h"
#include "modelstore/upload_impl.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool hth_put_is_given(const hth_put_item *it)
{
    return it->t->id != NULL && it->t->data == NULL && it->t->read == NULL;
}

// given_hold reads a small item into memory: its file was compared with its id.
static hth_err given_hold(const hth_put_job *job, hth_put_item *it, const hth_path *path)
{
    int fd;
    size_t done = 0;
    it->held = hth_alloc(it->t->bytes + 1);
    it->stays = it->held != NULL;
    if (it->held == NULL) {
        return hth_no_memory("tensor '%s'", it->t->name);
    }
    HTH_TRY(hth_store_file_part_open(job->s->dir, path->text, false, &fd));
    for (ssize_t n = 1; n > 0 && done<it->t->bytes; done += n> 0 ? (size_t)n : 0) {
        n = pread(fd, (char *)it->held + done, it->t->bytes - done, (off_t)done);
    }
    close(fd);
    return done == it->t->bytes
               ? HTH_OK
               : hth_fail(HTH_EIO, "tensor '%s': '%s' cannot be read", it->t->name, path->text);
}

static hth_manifest_tensor given_object(const hth_put_item *it)
{
    const hth_put_tensor *t = it->t;
    return (hth_manifest_tensor){
        .id = it->id, .dtype = t->dtype, .shape = t->shape, .bytes = t->bytes};
}

static hth_err given_take(const hth_put_job *job, hth_put_item *it, hth_upload *upload)
{
    const hth_put_tensor *t = it->t;
    const hth_manifest_tensor object = given_object(it);
    hth_path path = hth_upload_path(&upload->key);
    pthread_mutex_lock(&upload->lock);
    hth_err err = hth_upload_look(job->s, upload, &object);
    uint64_t there = upload->there;
    bool whole = upload->whole && !atomic_load(&upload->gone);
    bool small = t->bytes <= job->inline_max;
    if (err == HTH_OK && whole) {
        hth_upload_touch(job->s, upload);
        err = small ? given_hold(job, it, &path) : HTH_OK; // as long as it is the one that is whole
    }
    pthread_mutex_unlock(&upload->lock);
    HTH_TRY(err);
    if (!whole) {
        return hth_fail(HTH_ENOENT, "tensor '%s': %llu of its %zu bytes were uploaded", t->name,
                        (unsigned long long)there, t->bytes);
    }
    if (!small) {
        it->temp = path;
        it->uploaded = true;
    }
    return HTH_OK;
}

hth_err hth_put_given(hth_put_job *job, hth_put_item *it)
{
    const hth_put_tensor *t = it->t;
    const hth_manifest_tensor object = given_object(it);
    bool listed, sound;
    hth_upload *u = NULL;
    char hex[HTH_ID_HEX];
    HTH_TRY(hth_upload_sound(job->s, &object, &listed, &sound));
    it->fresh = !listed;
    it->damaged = listed && !sound;
    if (sound) {
        return HTH_OK;
    }
    HTH_TRY(t->owner != NULL ? hth_upload_find(job->s, t->owner, &it->id, &u) : HTH_OK);
    if (u == NULL) {
        return hth_fail(HTH_ENOENT,
                        "tensor '%s' is neither in the store nor was it uploaded; its id is %s",
                        t->name, hth_id_hex(&it->id, hex));
    }
    hth_err err = given_take(job, it, u);
    hth_upload_rele(job->s, u);
    return err;
}

hth_err hth_put_given_sync(const hth_put_job *job, hth_put_item *it)
{
    struct stat st;
    if (fstatat(job->s->dir, it->temp.text, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        it->synced = hth_object_seen_of(&st);
    }
    return hth_store_file_sync(job->s->dir, it->temp.text);
}

hth_err hth_put_given_place(const hth_put_job *job, const hth_put_item *it, const hth_path *to)
{
    const hth_manifest_tensor object = given_object(it);
    hth_upload *u;
    bool placed = false;
    HTH_TRY(hth_upload_find(job->s, it->t->owner, &it->id, &u));
    if (u != NULL) {
        pthread_mutex_lock(&u->lock);
        hth_err err = hth_upload_look(job->s, u, &object);
        if (err == HTH_OK && u->whole && !atomic_load(&u->gone)) {
            if (!hth_object_same(&u->seen, &it->synced)) { // it was uploaded anew meanwhile
                err = hth_store_file_sync(job->s->dir, it->temp.text);
            }
            if (err == HTH_OK) {
                err = hth_store_file_replace(job->s->dir, it->temp.text, to->text);
            }
            placed = err == HTH_OK;
        }
        pthread_mutex_unlock(&u->lock);
        hth_upload_rele(job->s, u);
        HTH_TRY(err);
    }
    return placed
               ? HTH_OK
               : hth_fail(HTH_EBUSY, "tensor '%s': its upload was removed meanwhile", it->t->name);
}

void hth_put_given_end(hth_put_job *job)
{
    hth_upload *u;
    for (int i = 0; i < job->n; i++) {
        const hth_put_item *it = &job->items[i];
        if (hth_put_is_given(it) && it->t->owner != NULL &&
            hth_upload_find(job->s, it->t->owner, &it->id, &u) == HTH_OK && u != NULL) {
            pthread_mutex_lock(&u->lock);
            hth_upload_drop(job->s, u);
            pthread_mutex_unlock(&u->lock);
            hth_upload_rele(job->s, u);
        }
    }
}
