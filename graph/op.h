// SPDX-License-Identifier: Apache-2.0
// graph/op.h - the table of operators: ONNX name, arities, and the operator versions
// (since-versions) that are known.
//
// Facts from the ONNX operator schemas up to opset 28 (MIN/MAX inputs and outputs are the newest
// version's). The importer, docs/onnx.md and the tests are driven by this table.
#ifndef HTH_GRAPH_OP_H
#define HTH_GRAPH_OP_H

#define HTH_OPSET_MIN 7
#define HTH_OPSET_MAX 28

// clang-format off
// X(enum, name, min_inputs, max_inputs, min_outputs, max_outputs, since-versions...)
#define HTH_ONNX_OPS(X) \
    X(ABS, "Abs", 1, 1, 1, 1, 1, 6, 13) \
    X(ACOS, "Acos", 1, 1, 1, 1, 7, 22) \
    X(ACOSH, "Acosh", 1, 1, 1, 1, 9, 22) \
    X(ADD, "Add", 2, 2, 1, 1, 1, 6, 7, 13, 14) \
    X(AND, "And", 2, 2, 1, 1, 1, 7) \
    X(ARG_MAX, "ArgMax", 1, 1, 1, 1, 1, 11, 12, 13) \
    X(ARG_MIN, "ArgMin", 1, 1, 1, 1, 1, 11, 12, 13) \
    X(ASIN, "Asin", 1, 1, 1, 1, 7, 22) \
    X(ASINH, "Asinh", 1, 1, 1, 1, 9, 22) \
    X(ATAN, "Atan", 1, 1, 1, 1, 7, 22) \
    X(ATANH, "Atanh", 1, 1, 1, 1, 9, 22) \
    X(ATTENTION, "Attention", 3, 7, 1, 4, 23, 24, 25) \
    X(AVERAGE_POOL, "AveragePool", 1, 1, 1, 1, 1, 7, 10, 11, 19, 22) \
    X(BATCH_NORMALIZATION, "BatchNormalization", 5, 5, 1, 3, 1, 6, 7, 9, 14, 15) \
    X(BIT_SHIFT, "BitShift", 2, 2, 1, 1, 11, 28) \
    X(BITWISE_AND, "BitwiseAnd", 2, 2, 1, 1, 18) \
    X(BITWISE_NOT, "BitwiseNot", 1, 1, 1, 1, 18) \
    X(BITWISE_OR, "BitwiseOr", 2, 2, 1, 1, 18) \
    X(BITWISE_XOR, "BitwiseXor", 2, 2, 1, 1, 18) \
    X(CAST, "Cast", 1, 1, 1, 1, 1, 6, 9, 13, 19, 21, 23, 24, 25, 28) \
    X(CAST_LIKE, "CastLike", 2, 2, 1, 1, 15, 19, 21, 23, 24, 25) \
    X(CEIL, "Ceil", 1, 1, 1, 1, 1, 6, 13) \
    X(CELU, "Celu", 1, 1, 1, 1, 12, 28) \
    X(CLIP, "Clip", 1, 3, 1, 1, 1, 6, 11, 12, 13) \
    X(COMPRESS, "Compress", 2, 2, 1, 1, 9, 11, 28) \
    X(CONCAT, "Concat", 1, 32768, 1, 1, 1, 4, 11, 13) \
    X(CONSTANT, "Constant", 0, 0, 1, 1, 1, 9, 11, 12, 13, 19, 21, 23, 24, 25) \
    X(CONSTANT_OF_SHAPE, "ConstantOfShape", 1, 1, 1, 1, 9, 20, 21, 23, 24, 25) \
    X(CONV, "Conv", 2, 3, 1, 1, 1, 11, 22) \
    X(CONV_INTEGER, "ConvInteger", 2, 4, 1, 1, 10) \
    X(CONV_TRANSPOSE, "ConvTranspose", 2, 3, 1, 1, 1, 11, 22) \
    X(COS, "Cos", 1, 1, 1, 1, 7, 22) \
    X(COSH, "Cosh", 1, 1, 1, 1, 9, 22) \
    X(CUM_SUM, "CumSum", 2, 2, 1, 1, 11, 14) \
    X(DEPTH_TO_SPACE, "DepthToSpace", 1, 1, 1, 1, 1, 11, 13, 28) \
    X(DEQUANTIZE_LINEAR, "DequantizeLinear", 2, 3, 1, 1, 10, 13, 19, 21, 23, 24, 25, 28) \
    X(DET, "Det", 1, 1, 1, 1, 11, 22) \
    X(DIV, "Div", 2, 2, 1, 1, 1, 6, 7, 13, 14) \
    X(DROPOUT, "Dropout", 1, 3, 1, 2, 1, 6, 7, 10, 12, 13, 22) \
    X(DYNAMIC_QUANTIZE_LINEAR, "DynamicQuantizeLinear", 1, 1, 3, 3, 11) \
    X(EINSUM, "Einsum", 1, 32768, 1, 1, 12, 28) \
    X(ELU, "Elu", 1, 1, 1, 1, 1, 6, 22) \
    X(EQUAL, "Equal", 2, 2, 1, 1, 1, 7, 11, 13, 19) \
    X(ERF, "Erf", 1, 1, 1, 1, 9, 13) \
    X(EXP, "Exp", 1, 1, 1, 1, 1, 6, 13) \
    X(EXPAND, "Expand", 2, 2, 1, 1, 8, 13) \
    X(EYE_LIKE, "EyeLike", 1, 1, 1, 1, 9, 22) \
    X(FLATTEN, "Flatten", 1, 1, 1, 1, 1, 9, 11, 13, 21, 23, 24, 25) \
    X(FLOOR, "Floor", 1, 1, 1, 1, 1, 6, 13) \
    X(GRU, "GRU", 3, 6, 0, 2, 1, 3, 7, 14, 22) \
    X(GATHER, "Gather", 2, 2, 1, 1, 1, 11, 13) \
    X(GATHER_ELEMENTS, "GatherElements", 2, 2, 1, 1, 11, 13) \
    X(GATHER_ND, "GatherND", 2, 2, 1, 1, 11, 12, 13) \
    X(GELU, "Gelu", 1, 1, 1, 1, 20) \
    X(GEMM, "Gemm", 2, 3, 1, 1, 1, 6, 7, 9, 11, 13) \
    X(GLOBAL_AVERAGE_POOL, "GlobalAveragePool", 1, 1, 1, 1, 1, 22) \
    X(GLOBAL_LP_POOL, "GlobalLpPool", 1, 1, 1, 1, 1, 2, 22) \
    X(GLOBAL_MAX_POOL, "GlobalMaxPool", 1, 1, 1, 1, 1, 22) \
    X(GREATER, "Greater", 2, 2, 1, 1, 1, 7, 9, 13) \
    X(GREATER_OR_EQUAL, "GreaterOrEqual", 2, 2, 1, 1, 12, 16) \
    X(GRID_SAMPLE, "GridSample", 2, 2, 1, 1, 16, 20, 22) \
    X(GROUP_NORMALIZATION, "GroupNormalization", 3, 3, 1, 1, 18, 21) \
    X(HARD_SIGMOID, "HardSigmoid", 1, 1, 1, 1, 1, 6, 22) \
    X(HARD_SWISH, "HardSwish", 1, 1, 1, 1, 14, 22) \
    X(HARDMAX, "Hardmax", 1, 1, 1, 1, 1, 11, 13) \
    X(IDENTITY, "Identity", 1, 1, 1, 1, 1, 13, 14, 16, 19, 21, 23, 24, 25) \
    X(INSTANCE_NORMALIZATION, "InstanceNormalization", 3, 3, 1, 1, 1, 6, 22) \
    X(IS_INF, "IsInf", 1, 1, 1, 1, 10, 20) \
    X(IS_NA_N, "IsNaN", 1, 1, 1, 1, 9, 13, 20) \
    X(LRN, "LRN", 1, 1, 1, 1, 1, 13) \
    X(LSTM, "LSTM", 3, 8, 0, 3, 1, 7, 14, 22) \
    X(LAYER_NORMALIZATION, "LayerNormalization", 2, 3, 1, 3, 17) \
    X(LEAKY_RELU, "LeakyRelu", 1, 1, 1, 1, 1, 6, 16) \
    X(LESS, "Less", 2, 2, 1, 1, 1, 7, 9, 13) \
    X(LESS_OR_EQUAL, "LessOrEqual", 2, 2, 1, 1, 12, 16) \
    X(LOG, "Log", 1, 1, 1, 1, 1, 6, 13) \
    X(LOG_SOFTMAX, "LogSoftmax", 1, 1, 1, 1, 1, 11, 13) \
    X(LP_NORMALIZATION, "LpNormalization", 1, 1, 1, 1, 1, 22) \
    X(LP_POOL, "LpPool", 1, 1, 1, 1, 1, 2, 11, 18, 22) \
    X(MAT_MUL, "MatMul", 2, 2, 1, 1, 1, 9, 13) \
    X(MAT_MUL_INTEGER, "MatMulInteger", 2, 4, 1, 1, 10) \
    X(MAX, "Max", 1, 32768, 1, 1, 1, 6, 8, 12, 13) \
    X(MAX_POOL, "MaxPool", 1, 1, 1, 2, 1, 8, 10, 11, 12, 22) \
    X(MEAN, "Mean", 1, 32768, 1, 1, 1, 6, 8, 13) \
    X(MEAN_VARIANCE_NORMALIZATION, "MeanVarianceNormalization", 1, 1, 1, 1, 9, 13) \
    X(MIN, "Min", 1, 32768, 1, 1, 1, 6, 8, 12, 13) \
    X(MISH, "Mish", 1, 1, 1, 1, 18, 22) \
    X(MOD, "Mod", 2, 2, 1, 1, 10, 13, 28) \
    X(MUL, "Mul", 2, 2, 1, 1, 1, 6, 7, 13, 14) \
    X(NEG, "Neg", 1, 1, 1, 1, 1, 6, 13) \
    X(NON_MAX_SUPPRESSION, "NonMaxSuppression", 2, 5, 1, 1, 10, 11) \
    X(NON_ZERO, "NonZero", 1, 1, 1, 1, 9, 13) \
    X(NOT, "Not", 1, 1, 1, 1, 1) \
    X(ONE_HOT, "OneHot", 3, 3, 1, 1, 9, 11, 28) \
    X(OR, "Or", 2, 2, 1, 1, 1, 7) \
    X(PRELU, "PRelu", 2, 2, 1, 1, 1, 6, 7, 9, 16) \
    X(PAD, "Pad", 2, 4, 1, 1, 1, 2, 11, 13, 18, 19, 21, 23, 24, 25) \
    X(POW, "Pow", 2, 2, 1, 1, 1, 7, 12, 13, 15) \
    X(QLINEAR_CONV, "QLinearConv", 8, 9, 1, 1, 10) \
    X(QLINEAR_MAT_MUL, "QLinearMatMul", 8, 8, 1, 1, 10, 21) \
    X(QUANTIZE_LINEAR, "QuantizeLinear", 2, 3, 1, 1, 10, 13, 19, 21, 23, 24, 25, 28) \
    X(RMSNORMALIZATION, "RMSNormalization", 2, 2, 1, 1, 23) \
    X(RNN, "RNN", 3, 6, 0, 2, 1, 7, 14, 22) \
    X(RANGE, "Range", 3, 3, 1, 1, 11, 27) \
    X(RECIPROCAL, "Reciprocal", 1, 1, 1, 1, 1, 6, 13) \
    X(REDUCE_L1, "ReduceL1", 1, 2, 1, 1, 1, 11, 13, 18) \
    X(REDUCE_L2, "ReduceL2", 1, 2, 1, 1, 1, 11, 13, 18) \
    X(REDUCE_LOG_SUM, "ReduceLogSum", 1, 2, 1, 1, 1, 11, 13, 18, 28) \
    X(REDUCE_LOG_SUM_EXP, "ReduceLogSumExp", 1, 2, 1, 1, 1, 11, 13, 18, 28) \
    X(REDUCE_MAX, "ReduceMax", 1, 2, 1, 1, 1, 11, 12, 13, 18, 20) \
    X(REDUCE_MEAN, "ReduceMean", 1, 2, 1, 1, 1, 11, 13, 18) \
    X(REDUCE_MIN, "ReduceMin", 1, 2, 1, 1, 1, 11, 12, 13, 18, 20) \
    X(REDUCE_PROD, "ReduceProd", 1, 2, 1, 1, 1, 11, 13, 18) \
    X(REDUCE_SUM, "ReduceSum", 1, 2, 1, 1, 1, 11, 13) \
    X(REDUCE_SUM_SQUARE, "ReduceSumSquare", 1, 2, 1, 1, 1, 11, 13, 18) \
    X(RELU, "Relu", 1, 1, 1, 1, 1, 6, 13, 14) \
    X(RESHAPE, "Reshape", 2, 2, 1, 1, 1, 5, 13, 14, 19, 21, 23, 24, 25) \
    X(RESIZE, "Resize", 1, 4, 1, 1, 10, 11, 13, 18, 19) \
    X(REVERSE_SEQUENCE, "ReverseSequence", 2, 2, 1, 1, 10, 28) \
    X(ROTARY_EMBEDDING, "RotaryEmbedding", 3, 4, 1, 1, 23) \
    X(ROUND, "Round", 1, 1, 1, 1, 11, 22) \
    X(SCATTER, "Scatter", 3, 3, 1, 1, 9, 11) \
    X(SCATTER_ELEMENTS, "ScatterElements", 3, 3, 1, 1, 11, 13, 16, 18) \
    X(SCATTER_ND, "ScatterND", 3, 3, 1, 1, 11, 13, 16, 18) \
    X(SELU, "Selu", 1, 1, 1, 1, 1, 6, 22) \
    X(SHAPE, "Shape", 1, 1, 1, 1, 1, 13, 15, 19, 21, 23, 24, 25) \
    X(SHRINK, "Shrink", 1, 1, 1, 1, 9) \
    X(SIGMOID, "Sigmoid", 1, 1, 1, 1, 1, 6, 13) \
    X(SIGN, "Sign", 1, 1, 1, 1, 9, 13) \
    X(SIN, "Sin", 1, 1, 1, 1, 7, 22) \
    X(SINH, "Sinh", 1, 1, 1, 1, 9, 22) \
    X(SIZE, "Size", 1, 1, 1, 1, 1, 13, 19, 21, 23, 24, 25) \
    X(SLICE, "Slice", 3, 5, 1, 1, 1, 10, 11, 13) \
    X(SOFTMAX, "Softmax", 1, 1, 1, 1, 1, 11, 13) \
    X(SOFTPLUS, "Softplus", 1, 1, 1, 1, 1, 22) \
    X(SOFTSIGN, "Softsign", 1, 1, 1, 1, 1, 22) \
    X(SPACE_TO_DEPTH, "SpaceToDepth", 1, 1, 1, 1, 1, 13, 28) \
    X(SPLIT, "Split", 1, 2, 1, 32768, 1, 2, 11, 13, 18) \
    X(SQRT, "Sqrt", 1, 1, 1, 1, 1, 6, 13) \
    X(SQUEEZE, "Squeeze", 1, 2, 1, 1, 1, 11, 13, 21, 23, 24, 25) \
    X(SUB, "Sub", 2, 2, 1, 1, 1, 6, 7, 13, 14) \
    X(SUM, "Sum", 1, 32768, 1, 1, 1, 6, 8, 13) \
    X(SWISH, "Swish", 1, 1, 1, 1, 24) \
    X(TAN, "Tan", 1, 1, 1, 1, 7, 22) \
    X(TANH, "Tanh", 1, 1, 1, 1, 1, 6, 13) \
    X(THRESHOLDED_RELU, "ThresholdedRelu", 1, 1, 1, 1, 10, 22) \
    X(TILE, "Tile", 2, 2, 1, 1, 1, 6, 13) \
    X(TOP_K, "TopK", 2, 2, 2, 2, 1, 10, 11, 24) \
    X(TRANSPOSE, "Transpose", 1, 1, 1, 1, 1, 13, 21, 23, 24, 25) \
    X(TRILU, "Trilu", 1, 2, 1, 1, 14) \
    X(UNSQUEEZE, "Unsqueeze", 2, 2, 1, 1, 1, 11, 13, 21, 23, 24, 25) \
    X(UPSAMPLE, "Upsample", 2, 2, 1, 1, 1, 7, 9, 10) \
    X(WHERE, "Where", 3, 3, 1, 1, 9, 16) \
    X(XOR, "Xor", 2, 2, 1, 1, 1, 7)

// Operators of our own, made by passes. X(enum, name, min_inputs, max_inputs, min_outputs,
// max_outputs)
//   Reorder:       layout change of input 0 (layouts stand on the values)
//   ScaleShift:    y = x * scale[c] + shift[c] along axis 1
//   FusedAttention: softmax(scale * Q K^T + mask) V. inputs Q [.., T, D], K [.., S, D],
//                  V [.., S, E], mask? (broadcastable to [.., T, S]); attributes scale (float),
//                  heads etc. as pass_attention.c documents
// Operators of a training step, made by autodiff (docs/design/autodiff.md describes each one).
// `shape` is an attribute: the result's dimensions, where the inputs do not say them.
#define HTH_TRAIN_OPS(X) \
    X(CONV_GRAD_DATA, "ConvGradData", 2, 2, 1, 1) \
    X(CONV_GRAD_FILTER, "ConvGradFilter", 2, 2, 1, 2) \
    X(MAX_POOL_TRAIN, "MaxPoolTrain", 1, 1, 2, 2) \
    X(MAX_POOL_GRAD, "MaxPoolGrad", 2, 2, 1, 1) \
    X(AVERAGE_POOL_GRAD, "AveragePoolGrad", 1, 1, 1, 1) \
    X(BATCH_NORM_TRAIN, "BatchNormTrain", 5, 5, 3, 5) \
    X(BATCH_NORM_GRAD, "BatchNormGrad", 5, 6, 1, 3) \
    X(CONV_NORM_TRAIN, "ConvNormTrain", 7, 7, 3, 5) \
    X(CONV_NORM_GRAD, "ConvNormGrad", 7, 8, 1, 3) \
    X(LAYER_NORM_GRAD, "LayerNormGrad", 5, 5, 1, 3) \
    X(GROUP_NORM_GRAD, "GroupNormGrad", 3, 3, 1, 3) \
    X(LRN_GRAD, "LrnGrad", 2, 2, 1, 1) \
    X(RELU_GRAD, "ReluGrad", 2, 3, 1, 1) \
    X(ELEMENT_GRAD, "ElementGrad", 2, 2, 1, 1) \
    X(SOFTMAX_GRAD, "SoftmaxGrad", 2, 2, 1, 1) \
    X(LOG_SOFTMAX_GRAD, "LogSoftmaxGrad", 2, 2, 1, 1) \
    X(SOFTMAX_XENT, "SoftmaxXent", 2, 4, 1, 1) \
    X(SOFTMAX_XENT_GRAD, "SoftmaxXentGrad", 2, 4, 1, 1) \
    X(MSE, "Mse", 2, 2, 1, 1) \
    X(MSE_GRAD, "MseGrad", 2, 2, 1, 1) \
    X(BCE, "BceWithLogits", 2, 3, 1, 1) \
    X(BCE_GRAD, "BceWithLogitsGrad", 2, 3, 1, 1) \
    X(DROPOUT_TRAIN, "DropoutTrain", 2, 2, 1, 1) \
    X(RESIZE_GRAD, "ResizeGrad", 1, 4, 1, 1) \
    X(GATHER_GRAD, "GatherGrad", 2, 2, 1, 1) \
    X(SLICE_GRAD, "SliceGrad", 1, 1, 1, 1) \
    X(GRID_SAMPLE_GRAD, "GridSampleGrad", 3, 3, 1, 2) \
    X(DET_GRAD, "DetGrad", 2, 2, 1, 1) \
    X(RNN_GRAD, "RnnGrad", 3, 9, 1, 6) \
    X(CLIP_SCALE, "ClipScale", 2, 32768, 1, 1) \
    X(SGD_STEP, "SgdStep", 2, 6, 1, 3) \
    X(ADAM_STEP, "AdamStep", 5, 7, 3, 4)
#define HTH_OWN_OPS(X) \
    X(REORDER, "Reorder", 1, 1, 1, 1) \
    X(SCALE_SHIFT, "ScaleShift", 3, 3, 1, 1) \
    X(FUSED_ATTENTION, "FusedAttention", 3, 4, 1, 1) \
    HTH_TRAIN_OPS(X)
// clang-format on

typedef enum hth_op {
    HTH_OP_NONE = 0,
#define HTH_OP_ENUM(e, ...) HTH_OP_##e,
    HTH_ONNX_OPS(HTH_OP_ENUM) HTH_OWN_OPS(HTH_OP_ENUM)
#undef HTH_OP_ENUM
        HTH_N_OPS
} hth_op;

typedef struct hth_op_info {
    const char *name;
    int min_inputs, max_inputs, min_outputs, max_outputs;
    int n_since;      // 0 for our own operators
    const int *since; // ascending
} hth_op_info;

// hth_op_info_of returns the table's row; never NULL for op < HTH_N_OPS.
const hth_op_info *hth_op_info_of(hth_op op);
// hth_op_find returns the operator with that ONNX name, HTH_OP_NONE when unknown.
hth_op hth_op_find(const char *name);
static inline const char *hth_op_name(hth_op op)
{
    return hth_op_info_of(op)->name;
}

#endif
