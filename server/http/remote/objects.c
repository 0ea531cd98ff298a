// SPDX-License-Identifier: Apache-2.0
#include "server/http/remote/objects.h"

#include "base/alloc.h"
#include "server/http/tensors/http_json.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hth_objects_id(const char *text, hth_id *out)
{
    if (strlen(text) != HTH_ID_HEX - 1) {
        return false;
    }
    for (size_t i = 0; i < sizeof out->byte; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out->byte[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static hth_dtype dtype_named(const char *name)
{
    for (int dt = HTH_DT_F32; dt <= HTH_DT_BF16; dt++) {
        bool is =
            hth_dtype_bytes((hth_dtype)dt) > 0 && strcmp(hth_dtype_name((hth_dtype)dt), name) == 0;
        if (is) {
            return (hth_dtype)dt;
        }
    }
    return HTH_DT_NONE;
}

// object_bytes computes how many bytes an object's datatype and shape make.
static hth_err object_bytes(const char *datatype, hth_content_object *object)
{
    size_t bytes;
    object->dtype = dtype_named(datatype);
    if (object->dtype == HTH_DT_NONE) {
        return hth_fail(HTH_EINVAL, "'%.32s' is no datatype of a tensor; FP32 is one, and INT64",
                        datatype);
    }
    HTH_TRY(hth_tensor_bytes(object->dtype, &object->shape, HTH_LAYOUT_PLAIN, &bytes));
    object->bytes = bytes;
    return HTH_OK;
}

static hth_err shape_too_long(void)
{
    return hth_fail(HTH_EINVAL, "a shape has %d dimensions at most", HTH_MAX_RANK);
}

hth_err hth_objects_shaped(const char *datatype, const char *shape, hth_content_object *out)
{
    const char *p = shape;
    out->shape.rank = 0;
    while (*p != 0) {
        size_t n = strspn(p, "0123456789");
        bool last = p[n] == 0;
        if (n == 0 || n > 18 || (!last && (p[n] != ',' || p[n + 1] == 0))) {
            return hth_fail(HTH_EINVAL, "'%.80s' is no shape, as '64,3' is", shape);
        }
        if (out->shape.rank == HTH_MAX_RANK) {
            return shape_too_long();
        }
        out->shape.dim[out->shape.rank++] = strtoll(p, NULL, 10);
        p += n + !last;
    }
    return object_bytes(datatype, out);
}

// ---- JSON

static hth_err json_shape(const json_t *list, hth_shape *out)
{
    size_t i;
    json_t *d;
    if (json_array_size(list) > HTH_MAX_RANK) {
        return shape_too_long();
    }
    out->rank = (int)json_array_size(list);
    json_array_foreach(list, i, d)
    {
        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            return hth_fail(HTH_EINVAL, "'shape' has numbers from 0");
        }
        out->dim[i] = json_integer_value(d);
    }
    return HTH_OK;
}

static hth_err json_object_read(const json_t *entry, bool named, hth_content_object *out)
{
    json_t *id, *datatype, *shape, *name = NULL;
    if (!json_is_object(entry)) {
        return hth_fail(HTH_EINVAL, "an element is not an object");
    }
    HTH_TRY(hth_json_field_needed(entry, "id", JSON_STRING, "a string", &id));
    HTH_TRY(hth_json_field_needed(entry, "datatype", JSON_STRING, "a string", &datatype));
    HTH_TRY(hth_json_field_needed(entry, "shape", JSON_ARRAY, "an array", &shape));
    if (named) {
        HTH_TRY(hth_json_field_needed(entry, "name", JSON_STRING, "a string", &name));
    }
    if (!hth_objects_id(json_string_value(id), &out->id)) {
        return hth_fail(HTH_EINVAL, "'%.80s' is no id: 64 digits from 0 to f",
                        json_string_value(id));
    }
    out->name = named ? json_string_value(name) : "";
    HTH_TRY(json_shape(shape, &out->shape));
    HTH_TRY(object_bytes(json_string_value(datatype), out));
    out->here = named && out->bytes == 0;
    return HTH_OK;
}

hth_err hth_objects_read(json_t *doc, bool named, hth_objects *out)
{
    json_t *list = NULL, *entry;
    size_t i;
    *out = (hth_objects){NULL, 0, NULL};
    if (!json_is_object(doc)) {
        return hth_fail(HTH_EINVAL, "the request is not a JSON object");
    }
    HTH_TRY(hth_json_field_needed(doc, "tensors", JSON_ARRAY, "an array", &list));
    if (json_array_size(list) > INT_MAX) {
        return hth_fail(HTH_ETOOBIG, "too many tensors");
    }
    out->list = hth_calloc(json_array_size(list) + 1, sizeof *out->list);
    if (out->list == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for %zu tensors", json_array_size(list));
    }
    out->doc = json_incref(doc);
    hth_err err = HTH_OK;
    json_array_foreach(list, i, entry)
    {
        err = json_object_read(entry, named, &out->list[i]);
        if (err != HTH_OK) {
            err = hth_err_prefix(err, "tensors[%zu]", i);
            break;
        }
    }
    out->n = (int)json_array_size(list);
    if (err != HTH_OK) {
        hth_objects_fini(out);
    }
    return err;
}

void hth_objects_fini(hth_objects *objects)
{
    hth_free(objects->list);
    json_decref(objects->doc);
    *objects = (hth_objects){NULL, 0, NULL};
}

hth_err hth_objects_write(const hth_objects *objects, struct evbuffer *out, uint64_t *bytes)
{
    HTH_TRY(hth_content_list_bytes(objects->list, objects->n, bytes));
    if (*bytes == 0) {
        return HTH_OK;
    }
    uint8_t *text = hth_alloc(*bytes);
    bool added = text != NULL;
    if (added) {
        hth_content_list_write(objects->list, objects->n, text);
        added = evbuffer_add(out, text, *bytes) == 0;
    }
    hth_free(text);
    return added ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for %d tensors", objects->n);
}
