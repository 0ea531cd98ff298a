// SPDX-License-Identifier: Apache-2.0
#include "runtime/command.h"

#include "base/spelling.h"

#include <assert.h>
#include <string.h>

static const hth_command_row command_rows[HTH_COMMANDS] = {
    [HTH_COMMAND_NONE] = {.need = HTH_NEED_ADMIN},
#define COMMAND_ROW(ID, name, need, traits, asked, merge, takes, required)                         \
    [HTH_COMMAND_##ID] = {#name, need, traits, takes, required},
    HTH_COMMAND_TABLE(COMMAND_ROW)};

#define COMMAND_CHECK(ID, name, need, traits, asked, merge, takes, required)                       \
    _Static_assert(((required) & ~(takes)) == 0, #name " requires an argument that it ignores");
HTH_COMMAND_TABLE(COMMAND_CHECK)

static const struct {
    const char *name;
    unsigned types;
} argument_rows[HTH_ARGUMENTS] = {
#define ARGUMENT_ROW(ID, name, types) [HTH_ARGUMENT_##ID] = {name, types},
    HTH_ARGUMENT_TABLE(ARGUMENT_ROW)};

hth_command_id hth_command_find(const char *name)
{
    for (int i = HTH_COMMAND_NONE + 1; name != NULL && i < HTH_COMMANDS; i++) {
        if (strcmp(command_rows[i].name, name) == 0) {
            bool internal = (command_rows[i].traits & HTH_COMMAND_INTERNAL) != 0;
            return internal ? HTH_COMMAND_NONE : (hth_command_id)i;
        }
    }
    return HTH_COMMAND_NONE;
}

hth_err hth_command_named(const char *name, hth_command_id *out)
{
    const char *meant = NULL;
    int distance = 3;
    *out = hth_command_find(name);
    if (*out != HTH_COMMAND_NONE) {
        return HTH_OK;
    }
    for (int i = HTH_COMMAND_NONE + 1; i < HTH_COMMANDS; i++) {
        if ((command_rows[i].traits & HTH_COMMAND_INTERNAL) == 0) {
            hth_spelling_closer(name, command_rows[i].name, &distance, &meant);
        }
    }
    return meant != NULL ? hth_fail(HTH_ENOENT, "there is no command '%.32s'; did you mean '%s'?",
                                    name, meant)
                         : hth_fail(HTH_ENOENT, "there is no command '%.32s'", name);
}

const hth_command_row *hth_command_get(hth_command_id command)
{
    assert(command < HTH_COMMANDS);
    return &command_rows[command];
}

const char *hth_command_name(hth_command_id command)
{
    return hth_command_get(command)->name;
}

bool hth_command_is(hth_command_id command, unsigned trait)
{
    return (hth_command_get(command)->traits & trait) != 0;
}

const char *hth_argument_name(hth_argument argument)
{
    return argument_rows[argument].name;
}

unsigned hth_argument_types(hth_argument argument)
{
    return argument_rows[argument].types;
}
