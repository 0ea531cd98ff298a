// SPDX-License-Identifier: Apache-2.0
#include "modelstore/paths.h"

#include "modelstore/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PATHS_FOLDER "paths"
#define PATHS_FRESH  "paths.new" // while it is filled

typedef struct paths_list {
    hth_store *s;
    const char *folder;
    const hth_named_path *list;
    int n;
} paths_list;

// path_file is the file below `folder` that stands for `path`.
static hth_path path_file(const char *folder, hth_named_path path)
{
    char use = (char)('a' + path.use), hex[HTH_ID_HEX];
    hth_path out;
    hth_chunk chunk[] = {{&use, 1}, {path.path, strlen(path.path)}};
    hth_id id = hth_id_of(chunk, 2);
    snprintf(out.text, sizeof out.text, "%s/%s", folder, hth_id_hex(&id, hex));
    return out;
}

static bool path_is_there(hth_store *store, const char *path)
{
    struct stat st;
    return fstatat(store->dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static hth_err path_put(hth_store *store, const char *folder, hth_named_path path)
{
    hth_path file = path_file(folder, path);
    if (path_is_there(store, file.text)) {
        return HTH_OK;
    }
    hth_err err = hth_store_file_write(store->dir, file.text, "", 0, NULL, NULL);
    if (err != HTH_OK && path_is_there(store, file.text)) {
        return HTH_OK; // another thread was first
    }
    HTH_TRY(err);
    return hth_store_file_sync(store->dir, folder);
}

static hth_err paths_drop_other(void *ctx, const char *name)
{
    const paths_list *l = ctx;
    hth_path path;
    snprintf(path.text, sizeof path.text, "%s/%.80s", l->folder, name);
    for (int i = 0; i < l->n; i++) {
        if (strcmp(path_file(l->folder, l->list[i]).text, path.text) == 0) {
            return HTH_OK;
        }
    }
    return hth_store_file_unlink(l->s->dir, path.text);
}

hth_err hth_paths_begin(hth_store *store, const hth_named_path *list, int n)
{
    bool there = path_is_there(store, PATHS_FOLDER);
    paths_list l = {store, there ? PATHS_FOLDER : PATHS_FRESH, list, n};
    if (there) {
        return hth_store_file_scan(store->dir, l.folder, paths_drop_other, &l);
    }
    HTH_TRY(hth_store_file_mkdir(store->dir, PATHS_FRESH));
    HTH_TRY(hth_store_file_scan(store->dir, l.folder, paths_drop_other, &l)); // of one that died
    for (int i = 0; i < n; i++) {
        HTH_TRY(path_put(store, PATHS_FRESH, list[i]));
    }
    HTH_TRY(hth_store_file_rename(store->dir, PATHS_FRESH, PATHS_FOLDER));
    return hth_store_file_sync(store->dir, ".");
}

hth_err hth_paths_keep(hth_store *store, hth_named_path path)
{
    return path_is_there(store, PATHS_FOLDER) ? path_put(store, PATHS_FOLDER, path) : HTH_OK;
}

bool hth_paths_kept(hth_store *store, hth_named_path path)
{
    return path_is_there(store, path_file(PATHS_FOLDER, path).text);
}
