// SPDX-License-Identifier: Apache-2.0
// runtime/content/alias.h - hearth's command "alias": second names of models (modelstore/store.h).
#ifndef HTH_RUNTIME_CONTENT_ALIAS_H
#define HTH_RUNTIME_CONTENT_ALIAS_H

#include "modelstore/store.h"

#include <jansson.h>

// What the command is asked for.
typedef struct hth_alias_change {
    hth_store_alias alias; // .name "": to be removed
    bool ready;            // load the target before the alias is moved
} hth_alias_change;

// hth_alias_read reads its arguments: {"alias","model"} makes an alias, or moves it (at once, with
// "no-wait"), {"alias","remove":true} removes it.
hth_err hth_alias_read(const char *arguments, hth_alias_change *out);
// hth_alias_moves returns whether an existing alias would get another target.
bool hth_alias_moves(hth_store *store, const hth_alias_change *change);
// hth_alias_answer does so; *json, freed by hth_free, is {"alias","model","before"}: the new and
// the previous target, null if there is none.
hth_err hth_alias_answer(hth_store *store, const hth_alias_change *change, char **json);
// hth_alias_rows stores [{"alias","model"}], which the caller owns.
hth_err hth_alias_rows(hth_store *store, json_t **out);

#endif
