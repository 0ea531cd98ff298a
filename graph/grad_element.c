// SPDX-License-Identifier: Apache-2.0
// graph/grad_element.c - gradients of element-wise operators.
#include "graph/train.h"

bool hth_grad_reads_result(hth_op op)
{
    return op == HTH_OP_SIGMOID || op == HTH_OP_TANH || op == HTH_OP_EXP || op == HTH_OP_SQRT ||
           op == HTH_OP_RECIPROCAL;
}

bool hth_grad_is_element(hth_op op)
{
    switch (op) {
    case HTH_OP_ABS:
    case HTH_OP_ACOS:
    case HTH_OP_ACOSH:
    case HTH_OP_ASIN:
    case HTH_OP_ASINH:
    case HTH_OP_ATAN:
    case HTH_OP_ATANH:
    case HTH_OP_CELU:
    case HTH_OP_COS:
    case HTH_OP_COSH:
    case HTH_OP_ELU:
    case HTH_OP_ERF:
    case HTH_OP_GELU:
    case HTH_OP_HARD_SIGMOID:
    case HTH_OP_HARD_SWISH:
    case HTH_OP_LEAKY_RELU:
    case HTH_OP_LOG:
    case HTH_OP_MISH:
    case HTH_OP_SELU:
    case HTH_OP_SHRINK:
    case HTH_OP_SIN:
    case HTH_OP_SINH:
    case HTH_OP_SOFTPLUS:
    case HTH_OP_SOFTSIGN:
    case HTH_OP_SWISH:
    case HTH_OP_TAN:
    case HTH_OP_THRESHOLDED_RELU:
        return true;
    default:
        return hth_grad_reads_result(op);
    }
}
