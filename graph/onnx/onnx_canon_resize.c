// SPDX-License-Identifier: Apache-2.0
// Upsample and the old forms of Resize.
#include "graph/onnx/onnx_canon.h"

#include <string.h>

// canon_resize_nearest chooses the rounding of the old nearest mode: up when shrinking, down when
// growing.
static hth_err canon_resize_nearest(const canon *c, const char **out)
{
    hth_const *scales = onnx_canon_constant(c, 2);
    const void *data;
    bool shrinks = false, grows = false;
    *out = "floor";
    if (scales == NULL || scales->dtype != HTH_DT_F32) {
        return HTH_OK;
    }
    HTH_TRY(hth_const_map(scales, &data));
    for (size_t i = 0; i < scales->bytes / sizeof(float); i++) {
        float scale; // a model's bytes lie where its file has them, aligned or not
        memcpy(&scale, (const char *)data + i * sizeof scale, sizeof scale);
        shrinks |= scale < 1;
        grows |= scale > 1;
    }
    hth_const_unmap(scales);
    *out = shrinks ? "ceil" : "floor";
    return shrinks && grows
               ? hth_fail(HTH_ENOTSUP,
                          "shrinking and growing in one node is not supported before opset 11")
               : HTH_OK;
}

// Upsample 7 and 9, Resize 10: input X, scales; no choice of coordinates.
hth_err onnx_canon_resize_old(const canon *c)
{
    hth_node *n = onnx_canon_node(c);
    const hth_attr *a = hth_node_attr(n, "scales");
    const char *nearest;
    if (a != NULL && a->type == HTH_ATTR_FLOATS) {
        HTH_TRY(onnx_canon_const_input(c, "scales", HTH_DT_F32, 1, a->n, a->u.floats, 2));
        hth_node_drop_attr(n, "scales");
    } else if (n->n_inputs == 2) {
        HTH_TRY(onnx_canon_set_input(c, 2, n->inputs[1]));
        n->inputs[1] = -1;
    }
    HTH_TRY(canon_resize_nearest(c, &nearest));
    n->op = HTH_OP_RESIZE;
    if (strcmp(hth_node_str(n, "mode", "nearest"), "bilinear") == 0) {
        HTH_TRY(hth_node_set_str(n, "mode", "linear"));
    }
    HTH_TRY(hth_node_set_str(n, "coordinate_transformation_mode", "asymmetric"));
    return hth_node_set_str(n, "nearest_mode", nearest);
}

// tf_half_pixel_for_nn (opset 11): floor((x + 0.5) / scale) is half_pixel rounded half up.
hth_err onnx_canon_resize_tf(const canon *c)
{
    hth_node *n = onnx_canon_node(c);
    const char *mode = hth_node_str(n, "coordinate_transformation_mode", "half_pixel");
    if (strcmp(mode, "tf_half_pixel_for_nn") != 0) {
        return HTH_OK;
    }
    if (strcmp(hth_node_str(n, "mode", "nearest"), "nearest") != 0 ||
        strcmp(hth_node_str(n, "nearest_mode", "round_prefer_floor"), "floor") != 0) {
        return hth_fail(HTH_ENOTSUP,
                        "tf_half_pixel_for_nn is only supported with nearest_mode 'floor'");
    }
    HTH_TRY(hth_node_set_str(n, "coordinate_transformation_mode", "half_pixel"));
    return hth_node_set_str(n, "nearest_mode", "round_prefer_ceil");
}

// Empty roi, scales and sizes mean absent ones.
hth_err onnx_canon_resize_empty(const canon *c)
{
    for (int i = 1; i < onnx_canon_node(c)->n_inputs; i++) {
        const hth_const *k = onnx_canon_constant(c, i);
        if (k != NULL && k->bytes == 0) {
            onnx_canon_node(c)->inputs[i] = -1;
        }
    }
    return HTH_OK;
}
