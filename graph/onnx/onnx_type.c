// SPDX-License-Identifier: Apache-2.0
// Types that the file states: of inputs they are the model's interface, of everything else hints.
#include "graph/onnx/onnx_load.h"

#include "base/alloc.h"

static hth_err type_symbol(onnx_load *ld, const char *name, int64_t *dim)
{
    hth_graph *g = ld->g;
    int number;
    if (!hth_names_find(&ld->symbols, name, &number)) {
        number = g->n_symbols;
        char **grown = hth_realloc(g->symbols, (size_t)number + 1, sizeof *grown);
        if (grown == NULL) {
            return hth_no_memory("a graph");
        }
        g->symbols = grown;
        grown[number] = hth_strdup(name);
        if (grown[number] == NULL) {
            return hth_no_memory("a graph");
        }
        g->n_symbols++;
        HTH_TRY(hth_names_put(&ld->symbols, name, number));
    }
    *dim = HTH_DIM_SYMBOL(number);
    return HTH_OK;
}

static hth_err type_shape(onnx_load *ld, const Hth__Onnx__TensorShapeProto *proto, hth_shape *out)
{
    *out = HTH_SHAPE_UNKNOWN;
    if (proto == NULL) {
        return HTH_OK;
    }
    if (proto->n_dim > (size_t)ld->limits.max_rank || proto->n_dim > HTH_MAX_RANK) {
        return hth_fail(HTH_ENOTSUP, "%zu dimensions are not supported (at most %d are)",
                        proto->n_dim, ld->limits.max_rank);
    }
    for (size_t i = 0; i < proto->n_dim; i++) {
        const Hth__Onnx__DimensionProto *d = proto->dim[i];
        out->dim[i] = HTH_DIM_UNKNOWN;
        if (d->has_dim_value && d->dim_value >= 0) {
            out->dim[i] = d->dim_value;
        } else if (d->dim_param != NULL && d->dim_param[0] != '\0') {
            HTH_TRY(type_symbol(ld, d->dim_param, &out->dim[i]));
        }
    }
    out->rank = (int)proto->n_dim;
    return HTH_OK;
}

hth_err onnx_type(onnx_load *ld, const onnx_value_info *info, hth_dtype *dt, hth_shape *shape)
{
    const Hth__Onnx__TypeProto *t = info->type;
    if (t == NULL || t->tensor_type == NULL) {
        bool other =
            t != NULL && (t->has_sequence_type || t->has_map_type || t->has_sparse_tensor_type ||
                          t->has_optional_type || t->has_opaque_type);
        return other ? hth_fail(HTH_ENOTSUP,
                                "sequences, maps, optionals and sparse tensors are not supported")
                     : hth_fail(HTH_EINVAL, "it has no type");
    }
    if (!hth_onnx_dtype_known(t->tensor_type->elem_type)) {
        return hth_fail(HTH_ENOTSUP, "element type %s (%d) is not supported",
                        hth_onnx_dtype_text(t->tensor_type->elem_type), t->tensor_type->elem_type);
    }
    *dt = (hth_dtype)t->tensor_type->elem_type;
    return type_shape(ld, t->tensor_type->shape, shape);
}

hth_err onnx_hint(onnx_load *ld, onnx_scope *scope, const onnx_value_info *info)
{
    int v;
    hth_dtype dt;
    hth_shape shape;
    if (info->name == NULL || !hth_names_find(&scope->names, info->name, &v) || v < 0) {
        return HTH_OK;
    }
    hth_value *value = &ld->g->values[v];
    if (value->constant != NULL || value->is_input) {
        return HTH_OK;
    }
    hth_err err = onnx_type(ld, info, &dt, &shape);
    if (err == HTH_OK) {
        value->dtype = dt;
        value->shape = shape;
    }
    return err == HTH_ENOMEM ? err : HTH_OK;
}
