// SPDX-License-Identifier: Apache-2.0
// Which graphs are proven to keep their samples apart, and what is said of the others: small graphs
// in which samples meet, each in another way, and what exporters write that looks alike.
#include "graph/independence.h"

#include "base/alloc.h"
#include "graph/test_words.h"

typedef struct dependent {
    const char *graph, *why; // why: part of the sentence
} dependent;

static const dependent mixed[] = {
    // along axis 0
    {"x:N,4; y=Softmax(x) axis=0; -> y", "node 'y' (Softmax) normalizes over axis 0"},
    {"x:N,4; y=Softmax(x) axis=0 flatten=1; -> y", "normalizes over axis 0"},
    {"x:N; y=Softmax(x); -> y", "normalizes over axis 0"},
    {"x:N,4; y=LogSoftmax(x) axis=-2; -> y", "normalizes over axis 0"},
    {"x:N,4; y=Hardmax(x) axis=0; -> y", "normalizes over axis 0"},
    {"x:N,4; y=LpNormalization(x) axis=0; -> y", "normalizes over axis 0"},
    {"x:N,4; y=ReduceSum(x #0) keepdims=1; -> y", "reduces over axis 0"},
    {"x:N,4; y=ReduceSum(x); -> y", "reduces over axis 0"},
    {"x:N,4; m=ReduceMean(x #0) keepdims=1; y=Sub(x m); -> y", "node 'm' (ReduceMean) reduces"},
    {"x:N,4; m=ReduceMax(x #-2) keepdims=1; y=Sub(x m); -> y", "reduces over axis 0"},
    {"x:N,4; m=ReduceL2(x) noop_with_empty_axes=0; y=Div(x m); -> y", "reduces over axis 0"},
    {"x:N,4; y=CumSum(x #s0); -> y", "sums along axis 0"},
    {"x:N,4; y=CumSum(x #s-2); -> y", "sums along axis 0"},
    {"x:N,4; y=ArgMax(x) axis=0 keepdims=0; -> y", "finds an extreme along axis 0"},
    {"x:N,4; y i=TopK(x #1) axis=0; -> y", "sorts along axis 0"},
    {"x:N,4; y=Gather(x #0) axis=0; -> y", "picks by index along axis 0"},
    {"x:N,4; y=Gather(x #0,0,0) axis=-2; -> y", "picks by index along axis 0"},
    {"x:N,4; i:N,1 i64; y=GatherElements(x i) axis=0; -> y", "picks by index along axis 0"},
    {"x:N,4; i:N,1 i64; y=GatherND(x i); -> y", "picks by index along axis 0"},
    {"x:N,4; i:N i64; y=Gather(x i); -> y", "picks by index along axis 0"},
    {"x:N,4; i:N i64; y=Gather(x i) axis=1; -> y", "combines each sample with all others"},
    {"x:N,4; i:N,4 i64; u:N,4; y=ScatterElements(x i u) axis=0; -> y", "writes by index"},
    {"x:N,4; i:N,1 i64; u:N,4; y=ScatterND(x i u); -> y", "writes by index along axis 0"},
    {"x:N,4; y=Slice(x #0 #1 #0); -> y", "cuts axis 0"},
    {"x:N,4; y=Slice(x #-1 #-9223372036854775808 #0 #-1); -> y", "cuts axis 0"},
    {"x:N,4; y=Slice(x #1 #9223372036854775807 #0); -> y", "cuts axis 0"},
    {"x:N,4; a b=Split(x #1,1) axis=0; y=Add(a b); -> y", "cuts axis 0"},
    {"x:N,4; y=Pad(x #0,0,1,0); -> y", "pads axis 0"},
    {"x:N,4; y=Pad(x #1,-1 _ #0); -> y", "pads axis 0"},
    {"x:N,4; y=Concat(x x) axis=0; -> y", "joins others along axis 0"},
    {"x:N,4; y=Concat(x #f1,4) axis=0; -> y", "joins others along axis 0"},
    {"x:N,4; y=Tile(x #2,1); -> y", "is not one row for each sample"},
    {"x:N,4; y=Resize(x _ #v2,1) mode='nearest'; -> y", "resizes axis 0"},
    {"x:N,1,4,4; y=Resize(x _ _ #7,1,4,4); -> y", "resizes axis 0"},
    {"x:N,1,4,4; y=Resize(x #v0,0,0,0,2,1,1,1 #v1,1,2,2); -> y", "resizes axis 0"},
    {"x:N,1,4,4; y=Resize(x _ _ #8,8) axes=2,0; -> y", "resizes axis 0"},
    {"x:N,1,4,4; y=Resize(x); -> y", "resizes axis 0"},
    {"x:N,4; y=Reshape(x _); -> y", "node 'y' (Reshape) lacks an operand"},
    {"x:N,4; y=Transpose(x x); -> y", "has a wrong number of operands"},
    {"x:N,T,4; y=ReverseSequence(x #1,2) batch_axis=1 time_axis=0; -> y", "reverses axis 0"},
    {"x:N,3,4; y=ReverseSequence(x #1,2) batch_axis=0 time_axis=1; -> y", "has lengths that are"},
    {"x:N,4; y=Compress(x #1,0) axis=0; -> y", "picks by index along axis 0"},
    {"x:N,4; y=Compress(x #1,0); -> y", "picks by index along axis 0"},
    // across samples
    {"x:N,4; t=Transpose(x) perm=1,0; y=MatMul(x t); -> y", "combines each sample with all others"},
    {"x:N,4; y=Gemm(x x) transB=1; -> y", "combines each sample with all others"},
    {"x:N,4; t=Transpose(x); g=MatMul(t x); y=MatMul(x g); -> y", "node 'g' (MatMul) sums over"},
    {"x:N; y=MatMul(x x); -> y", "sums over axis 0"},
    {"x:N,4; g=Gemm(x x) transA=1; y=MatMul(x g); -> y", "sums over axis 0"},
    {"x:N,4; y=Einsum(x x) equation='ij,kj->ik'; -> y", "combines each sample with all others"},
    {"x:N,4; y=Einsum(x) equation='ij->j'; -> y", "sums over axis 0"},
    {"x:N,4; g=Einsum(x x) equation='ij,ij'; y=Mul(x g); -> y", "sums over axis 0"},
    {"x:N,4; y=Einsum(x #f3,4) equation='ij,ij->ij'; -> y", "fixed length against samples"},
    {"x:N,2,2,2,2,2,2,2; y=Einsum(x) equation='......->...'; -> y", "equation that cannot be"},
    {"x:N,2,2,2,2,2,2,2; y=Einsum(x) equation='...a...b......'; -> y", "equation that cannot be"},
    {"x:N; v:N,4; y=Add(x v); -> y", "combines each sample with all others"},
    {"x:N; c:N,1; y=Sub(x c); -> y", "combines each sample with all others"},
    {"x:N; y=Add(x #f3); -> y", "sets a dimension of fixed length against axis 0"},
    {"x:N,4; y=Add(x #f2,1); -> y", "sets a dimension of fixed length against axis 0"},
    {"x:N,4; y=Mul(x #f1,2,1); -> y", "sets a dimension of fixed length against axis 1"},
    {"x:N,4,4; y=Softmax(x) axis=0; -> y", "normalizes over"},
    {"x:N,3,4,4; y=BatchNormalization(x #f3 #f3 #f3 #f3) training_mode=1; -> y",
     "in training mode"},
    {"x:N,3,4,4; y=MeanVarianceNormalization(x); -> y", "normalizes over axis 0"},
    {"x:N,3; t=Transpose(x); y=Det(t); -> y", "multiplies elements along axis 1"},
    {"x:N,4; y=Det(x); -> y", "multiplies elements along axis 0"},
    {"x:N,4; y=Trilu(x); -> y", "has a diagonal through axis 0"},
    {"x:N,4; y=EyeLike(x); -> y", "makes a diagonal through axis 0"},
    {"x:N,4; y=NonZero(x); -> y", "as the samples' values decide"},
    {"b:N,6,4; s:N,1,6; y=NonMaxSuppression(b s #s9); -> y", "as the samples' values decide"},
    {"x:N,4; y m=Dropout(x #v1 #b1); -> y", "at random"},
    {"x:N,2,4,4; w:N,2,3,3; y=Conv(x w); -> y", "reads as a parameter"},
    {"x:N,4; m:N i64; k=ReduceMax(m); y i=TopK(x k); -> y", "reduces over axis 0"},
    {"x:N,4; lo:N; m=ReduceMin(lo) keepdims=0; y=Clip(x m); -> y", "reduces over axis 0"},
    // moved axes
    {"x:N,4; t=Transpose(x); s=Softmax(t) axis=1; y=Transpose(s); -> y", "over axis 1"},
    {"x:N,4; t=Transpose(x); s=Softmax(t) axis=-1; y=Transpose(s); -> y", "over axis 1"},
    {"x:N,T,4; t=Transpose(x) perm=1,0,2; s=CumSum(t #s1); y=Transpose(s) perm=1,0,2; -> y",
     "sums along axis 1"},
    {"x:N,4; u=Unsqueeze(x #0); s=ReduceSum(u #1) keepdims=1; v=Squeeze(s #0); y=Add(x v); -> y",
     "node 's' (ReduceSum) reduces over axis 1"},
    {"x:N,4; f=Reshape(x #-1); y=ReduceSum(f #0) keepdims=1; -> y", "reduces over axis 0"},
    {"x:N,4; f=Reshape(x #-1); s=Softmax(f); y=Reshape(s #-1,4); -> y", "normalizes over axis 0"},
    {"x:N,4; f=Flatten(x) axis=0; s=Softmax(f); y=Reshape(s #-1,4); -> y", "over axis 1"},
    {"x:N,4; f=Reshape(x #1,-1); s=CumSum(f #s1); y=Reshape(s #-1,4); -> y", "along axis 1"},
    {"x:N,T,4; f=Reshape(x #-1,4); s=LayerNormalization(f #f4) axis=0; y=Reshape(s #-1,4); -> y",
     "normalizes over axis 0"},
    {"x:N,4; t=Transpose(x); u=Unsqueeze(t #0); y=LRN(u) size=3; -> y", "axis 2, not along"},
    {"x:N,4; u=Unsqueeze(x #0,3); y=LRN(u) size=3; -> y", "normalizes over axis 1"},
    {"x:N,3,4,4; t=Transpose(x) perm=1,0,2,3; y=InstanceNormalization(t #f3 #f3); -> y", "over"},
    {"x:N,3,4,4; t=Transpose(x) perm=1,2,0,3; p=MaxPool(t) kernel_shape=2,2; "
     "y=Transpose(p) perm=2,0,1,3; -> y",
     "pools over axis 2"},
    {"x:N,3,4,4; t=Transpose(x) perm=1,2,0,3; p=GlobalAveragePool(t); y=Mul(x p); -> y",
     "pools over axis 2"},
    {"x:N,3,4,4; t=Transpose(x) perm=1,0,2,3; y=Conv(t #f3,3,1,1); -> y", "convolves along"},
    {"x:N,3,4; y=LSTM(x #f1,8,4 #f1,8,2); -> y", "goes along axis 0"},
    {"x:N,3,4; h:N,1,2; y=GRU(x #f1,6,4 #f1,6,2 _ _ h); -> y", "goes along axis 0"},
    {"x:T,4; y=Relu(x); c=ReduceSum(x #0) keepdims=1; z=Add(y c); -> z", "reduces over axis 0"},
    // mixing reshapes
    {"x:N,4; y=Reshape(x #4,-1); -> y", "cuts through axis 0"},
    {"x:N,4; y=Reshape(x #2,-1); -> y", "cuts through axis 0"},
    {"x:N,4; r=Reshape(x #-1,8); y=Reshape(r #-1,4); -> y", "shape that depends on the number"},
    {"x:N,4; r=Reshape(x #-1,3); y=Reshape(r #-1,4); -> y", "shape that depends on the number"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); u=Unsqueeze(n #0); t=Concat(#4 u) axis=0; "
     "y=Reshape(x t); -> y",
     "cuts through axis 0"},
    {"x:N,4; t=Transpose(x); y=Reshape(t #-1,4); -> y", "cuts through axis 1"},
    {"x:N,T,8; t=Transpose(x) perm=1,0,2; s=Shape(t); n=Gather(s #1); m=Mul(n #2); "
     "c=Concat(#5 m #2,3) axis=0; r=Reshape(t c); b=Reshape(r s); y=Transpose(b) perm=1,0,2; -> y",
     "cuts through axis 1"},
    {"x:N,4; s=Shape(x); y=Reshape(#f6 s); -> y", "depends on the number of samples"},
    {"x:N,1,4; y=Squeeze(x); -> y", "takes out what has one element"},
    {"x:N,1,4; y=Squeeze(x #0); -> y", "takes out axis 0"},
    {"x:N,4; k:N i64; y=Reshape(x k); -> y", "reads as a parameter"},
    // the number of samples, without any axis mixed
    {"x:N,4; s=Shape(x); n=Gather(s #s0); f=Cast(n) to=1; y=Div(x f); -> y",
     "node 'y' (Div) computes with the number of samples"},
    {"x:N,4; n=Size(x); f=Cast(n) to=1; y=Mul(x f); -> y", "computes with the number of samples"},
    {"x:N,4 i64; s=Shape(x) end=1; y=Add(x s); -> y", "computes with the number of samples"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); g=Greater(n #s3); z=Neg(x); y=Where(g x z); -> y",
     "computes with the number of samples"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); m=Mod(n #s2); c=Cast(m) to=1; y=Mul(x c); -> y",
     "computes with the number of samples"},
    {"x:N,4 i64; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); u=Unsqueeze(r #1); "
     "y=Add(x u); -> y",
     "node 'y' (Add) computes with the positions of samples"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); y=Range(#s0 n #s1); -> y", "the positions of samples"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); r=Range(#s1 n #s1); y=Gather(x r); -> y",
     "depends on the number of samples"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); y=Gather(#f9,4 r); -> y",
     "computes with the positions of samples"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); u=Unsqueeze(n #0); c=ConstantOfShape(u); "
     "k=CumSum(c #s0); v=Unsqueeze(k #1); y=Add(x v); -> y",
     "sums along axis 0"},
    {"x:N,4; s=Shape(x) end=1; n=Concat(s s) axis=0; e=ConstantOfShape(n); y=MatMul(e x); -> y",
     "depends on the number of samples"},
    {"x:N,4; s=Shape(x) end=1; y=Expand(x s); -> y", "depends on the number of samples"},
    {"x:N,4; s=Shape(x) end=1; t=Concat(s #1,1) axis=0; y=Expand(x t); -> y", "number of samples"},
    {"x:N,4; s=Shape(x) end=1; t=Concat(s #1) axis=0; y=Tile(x t); -> y",
     "repeats by the number of samples along axis 0"},
    {"x:N,4; s=Shape(x) end=1; y v=TopK(x s); -> y", "depends on the number of samples"},
    {"i:N i64; s=Shape(i); d=Squeeze(s #0); y=OneHot(i d #v0,1); -> y", "the number of samples"},
    {"x:N,4; s=Shape(x) end=1; p=Concat(#0,0,0 s) axis=0; y=Pad(x p); -> y", "number of samples"},
    {"x:N,4; s=Shape(x) end=1; y=Slice(x #0 s #1); -> y", "depends on the number of samples"},
    {"x:N,4; s=Shape(x) end=1; h=Div(s #2); y=Slice(x #0 h #0); -> y", "cuts axis 0"},
    {"x:N,4; s=Shape(x) end=1; t=Concat(#-1 s) axis=0; y=Reshape(x t); -> y", "cuts through"},
    {"x:N,4; k=Shape(x) end=1; y=CumSum(x k); -> y", "sums along an axis that is computed"},
    {"x:N,4; s=Shape(x) end=1; n=NonZero(s); f=Cast(n) to=1; y=Add(x f); -> y", "number of samp"},
    {"x:N,4; s=Shape(x) end=1; m=ReduceMax(s); f=Cast(m) to=1; y=Mul(x f); -> y", "number of s"},
    {"x:N,4,4; s=Shape(x) end=1; k=Squeeze(s); y=Trilu(x k); -> y", "the number of samples"},
    // outputs
    {"x:N,4; y=Shape(x); -> y", "output 'y' is the same for all samples"},
    {"x:N,4; y=Relu(x); z=Identity(#f1,4); -> y z", "output 'z' is the same for all samples"},
    {"x:N,4; y=Relu(x); z=ReduceMean(x) keepdims=0; -> y z", "reduces over axis 0"},
    {"x:N,4; y=Transpose(x); -> y", "output 'y' holds the samples along axis 1"},
    {"x:N,4; y=Reshape(x #-1); -> y", "is not one row for each sample"},
    {"x:N,4; y=Unsqueeze(x #0); -> y", "holds the samples along axis 1"},
    // inputs
    {"x:3,4; y=Relu(x); -> y", "the first dimension of input 'x' is fixed"},
    {"x:?,4; y=Relu(x); -> y", "the first dimension of input 'x' has no name"},
    {"x:N,4; s; y=Relu(x); -> y", "the first dimension of input 's' does not exist"},
    {"x:N,4; z:M,4; y=Relu(x); w=Relu(z); -> y w", "inputs 'x' ('N') and 'z' ('M') are not the"},
    {"x:N,N; y=Relu(x); -> y", "dimension 1 of input 'x' is the number of samples"},
    {"-> ", "the model has no inputs"},
    // a tensor of equal elements, whose samples lie as those of what it meets
    {"x:N,2,4; t=Transpose(x) perm=1,0,2; f=Reshape(t #-1,4); s=Shape(f); c=ConstantOfShape(s); "
     "g=Concat(c f) axis=1; h=Reshape(x #-1,4); k=Concat(c f h) axis=1; y=Reshape(k #-1,24); -> y",
     "joins tensors whose samples lie along different axes"},
    {"x:N,2,4; t=Transpose(x) perm=1,0,2; f=Reshape(t #-1,4); s=Shape(f); c=ConstantOfShape(s); "
     "g=Einsum(f c) equation='ij,ij->ij'; y=Reshape(g #-1,8); -> y",
     "cuts through axis 0"},
    // numbers that do not fit in their type
    {"x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#1073741824) to=6; m=Mul(i k); d=Div(m k); "
     "n=Cast(d) to=7; c=Concat(n #-1) axis=0; y=Reshape(x c); -> y",
     "depends on the number of samples"},
    {"x:N,4; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); b=Cast(r) to=2; j=Cast(b) "
     "to=7; "
     "y=Gather(x j); -> y",
     "picks by index along axis 0"},
    // numbers of samples address nothing but themselves
    {"x:N,4; z:N,3; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); m=Neg(r); y=Gather(x m); -> y",
     "picks by index along axis 0"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); u=Unsqueeze(r #1); "
     "c=Concat(u u) axis=1; y=GatherND(x c); -> y",
     "picks by index along axis 0"},
    {"x:N,4; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); u=Unsqueeze(r #1); "
     "i=ArgMax(x) axis=1 keepdims=1; c=Concat(i u) axis=1; y=GatherND(x c); -> y",
     "picks by index along axis 0"},
    // positions in all samples' rows, of which the proof must be that they stay in their own
    {"x:N,T,4; i:N i64; s=Shape(x); n=Gather(s #s0); t=Gather(s #1); r=Range(#s0 n #s1); "
     "m=Mul(r t); j=Add(m i); f=Flatten(x) axis=2; y=Gather(f j); -> y",
     "node 'y' (Gather) picks by index along axis 0"},
    {"x:N,T,4; i:N,5 i64; a=ArgMax(i) axis=1 keepdims=0; s=Shape(x); n=Gather(s #s0); "
     "t=Gather(s #1); r=Range(#s0 n #s1); m=Mul(r t); j=Add(m a); f=Flatten(x) axis=2; "
     "y=Gather(f j); -> y",
     "picks by index along axis 0"},
    {"x:N,T,4; i:N,T i64; a=ArgMax(i) axis=1 keepdims=0; b=Sub(a #s1); s=Shape(x); "
     "n=Gather(s #s0); t=Gather(s #1); r=Range(#s0 n #s1); m=Mul(r t); j=Add(m b); "
     "f=Flatten(x) axis=2; y=Gather(f j); -> y",
     "picks by index along axis 0"},
    {"x:N,T,4; i:N,T i64; a=ArgMax(i) axis=1 keepdims=0; s=Shape(x); n=Gather(s #s0); "
     "t=Gather(s #1); r=Range(#s0 n #s1); m=Mul(r t); j=Add(m a); f=Flatten(x) axis=2; "
     "u=Unsqueeze(j #1); y=GatherND(f u); -> y",
     "picks by index along axis 0"},
    {"x:N,T,4; i:N,T i64; a=ArgMax(i) axis=1 keepdims=0; s=Shape(x); n=Gather(s #s0); "
     "r=Range(#s0 n #s1); m=Mul(r #s2); j=Add(m a); f=Flatten(x) axis=2; y=Gather(f j); -> y",
     "picks by index along axis 0"},
    {"x:N,4; f=Reshape(x #-1); s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); "
     "m=Mul(r #s4); u=Unsqueeze(m #1); j=Add(u #0,1,2,4); y=Gather(f j); -> y",
     "picks by index along axis 0"},
    {"x:N,4; f=Reshape(x #-1); s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); "
     "m=Mul(r #s4); u=Unsqueeze(m #1); j=Add(u #0,-1,2,3); y=Gather(f j); -> y",
     "picks by index along axis 0"},
    {"x:N,4; f=Reshape(x #-1); s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); "
     "m=Mul(r #s4); u=Unsqueeze(m #1); j=Add(u #0,1,2); k=Add(j #s2); y=Gather(f k); -> y",
     "picks by index along axis 0"},
};

static const char *const apart[] = {
    "x:N; y=Relu(x); -> y",
    "x:N,4; -> x",
    "x:N,4; y=Softmax(x); -> y",
    "x:N,4; y=Softmax(x) axis=1 flatten=1; -> y",
    "x:N,4; y=Softmax(x) axis=2 flatten=1; -> y",
    "x:N,4; a=Mul(x #f4); y=Add(a #f1,4); -> y",
    "x:N,1; z:N,5; y=Add(x z); -> y",
    "x:N; y=Mul(x #f1); -> y",
    "x:N,4; y=ReduceSum(x #1) keepdims=0; -> y",
    "x:N,4; y=ReduceSum(x) noop_with_empty_axes=1; -> y",
    "x:N,T,4; y=ReduceMean(x #1,2) keepdims=0; -> y",
    "x:N,4; y i=TopK(x #2); -> y i",
    "x:N,4; y=Slice(x #0 #9223372036854775807 #0); -> y",
    "x:N,4; y=Slice(x #0 #2147483647 #0); -> y",
    "x:N,4; s=Shape(x) end=1; y=Slice(x #0 s #0); -> y",
    "x:N,4; y=Slice(x #3 #-5 #1 #-1); -> y",
    "x:N,4; y=Split(x) axis=0 num_outputs=1; -> y",
    "x:N,4; a b=Split(x #1,3) axis=1; y=Concat(b a) axis=-1; -> y",
    "x:N,4; y=Pad(x #0,1,0,2); -> y",
    "x:N,4; y=Concat(x) axis=0; -> y",
    "x:N,4; t=Transpose(x); s=Softmax(t) axis=0; y=Transpose(s); -> y",
    "x:N,4; t=Transpose(x); y=Transpose(t); -> y",
    // folded and unfolded again
    "x:N,4; f=Reshape(x #-1); r=Relu(f); y=Reshape(r #-1,4); -> y",
    "x:N,4; f=Flatten(x) axis=0; r=Relu(f); y=Reshape(r #-1,4); -> y",
    "x:N,T,4; f=Reshape(x #-1,4); m=MatMul(f #f4,3); s=Shape(x) end=2; c=Concat(s #3) axis=0; "
    "y=Reshape(m c); -> y",
    "x:N,T,4; t=Transpose(x) perm=1,0,2; f=Reshape(t #-1,4); m=Gemm(f #f4,3 #f3); "
    "s=Shape(t) end=2; c=Concat(s #3) axis=0; r=Reshape(m c); y=Transpose(r) perm=1,0,2; -> y",
    "x:N,T,8; s=Shape(x); n=Gather(s #s0); t=Gather(s #s1); h=Mul(n #s2); nu=Unsqueeze(h #0); "
    "tu=Unsqueeze(t #0); c=Concat(tu nu #4) axis=0; v=Transpose(x) perm=1,0,2; r=Reshape(v c); "
    "q=Transpose(r) perm=1,0,2; k=Transpose(r) perm=1,2,0; a=MatMul(q k); p=Softmax(a); "
    "o=MatMul(p q); w=Transpose(o) perm=1,0,2; nn=Unsqueeze(n #0); d=Concat(tu nn #8) axis=0; "
    "z=Reshape(w d); y=Transpose(z) perm=1,0,2; -> y",
    "x:N,6; r=Reshape(x #0,2,3); t=Transpose(r) perm=0,2,1; y=Reshape(t #0,-1); -> y",
    "x:N,6; r=Reshape(x #-1,2,3); t=Transpose(r) perm=1,0,2; y=ReduceSum(t #0) keepdims=0; -> y",
    "x:N,4,4; w=Reshape(x #-1,2,2,2,2); t=Transpose(w) perm=0,1,3,2,4; v=Reshape(t #-1,4); "
    "s=Softmax(v); y=Reshape(s #-1,16); -> y",
    // a length that was open when the model was made, and is fixed in the middle of it
    "x:N,T,8; t=Transpose(x) perm=1,0,2; s=Shape(t); n=Gather(s #1); m=Mul(n #2); "
    "c=Concat(#5 m #4) axis=0; r=Reshape(t c); a=Relu(r); b=Reshape(a s); "
    "y=Transpose(b) perm=1,0,2; -> y",
    "x:N,1,4; y=Squeeze(x #1); -> y",
    "x:N,4; a=Unsqueeze(x #0); b=Squeeze(a #0); y=Unsqueeze(b #-1,1); -> y",
    // shape arithmetic that comes to the number of samples
    "x:N,4; s=Shape(x); n=Gather(s #0); c=Concat(n #-1) axis=0; y=Reshape(x c); -> y",
    "x:N,4; s=Shape(x); i=Cast(s) to=6; j=Cast(i) to=7; n=Slice(j #0 #1); c=Concat(n #4) axis=0; "
    "y=Reshape(x c); -> y",
    "x:N,4; s=Shape(x); n=Gather(s #s0); d=Mul(n #s4); e=Div(d #s4); u=Unsqueeze(e #0); "
    "c=Concat(u #4) axis=0; y=Reshape(x c); -> y",
    "x:N,3,4; s=Shape(x); p=ReduceProd(s) keepdims=1; q=Div(p #4); c=Concat(q #4) axis=0; "
    "r=Reshape(x c); y=Reshape(r s); -> y",
    "x:N,4; s=Shape(x) end=1; c=Concat(s #-1) axis=0; m=Equal(c #-1,-1); o=ConstantOfShape(#2); "
    "w=Where(m #1,1 c); k=Expand(#f1,4 w); y=Add(x k); -> y",
    "x:N,4; s=Shape(x) end=1; c=Concat(s #4) axis=0; k=ConstantOfShape(c); y=Add(x k); -> y",
    "x:N,4; s=Shape(x) end=1; c=Concat(s #1) axis=0; k=Tile(#f1,4 c); y=Concat(x k) axis=1; -> y",
    "x:N,4; s=Shape(x) end=1; c=Concat(s #1,4) axis=0; k=Expand(#f1,1,4 c); u=Unsqueeze(x #1); "
    "y=Concat(k u) axis=1; -> y",
    "x:N,T; s=Shape(x); t=Gather(s #s1); r=Range(#s0 t #s1); f=Cast(r) to=1; y=Add(x f); -> y",
    "i:N,T i64; s=Shape(i) start=1; p=Slice(#f1,9 #0 s #1); e=Gather(#f7,9 i); q=Gather(#f9,9 i); "
    "y=Add(e q); -> y",
    "i:N,T i64; s=Shape(i) start=1; p=Slice(#f1,9,4 #0 s #1); e=Gather(#f7,4 i); a=Add(e p); "
    "t=Shape(i); c=Concat(t #2,2) axis=0; y=Reshape(a c); -> y",
    "x:N,4; s=Shape(x) end=1; d=Sub(s s); f=Cast(d) to=1; y=Add(x f); -> y",
    "x:N,4; a=CastLike(x x); y=Add(a x); -> y",
    "x:N,T,8; s=Shape(x) end=2; i=Cast(s) to=6; p=ReduceProd(i) keepdims=1; q=Cast(p) to=7; "
    "c=Concat(q #8) axis=0; r=Reshape(x c); a=Relu(r); t=Shape(x); y=Reshape(a t); -> y",
    "x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#12) to=6; m=Mul(i k); d=Div(m k); "
    "n=Cast(d) to=7; c=Concat(n #-1) axis=0; y=Reshape(x c); -> y",
    "x:N,2,4; f=Reshape(x #-1,4); s=Shape(f); c=ConstantOfShape(s); i=Cast(c) to=7; "
    "g=GatherElements(f i) axis=1; y=Reshape(g #-1,8); -> y",
    // samples that address themselves
    "x:N,T,4; i:N i64; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); a=Unsqueeze(r #1); "
    "b=Unsqueeze(i #1); c=Concat(a b) axis=1; y=GatherND(x c); -> y",
    "x:N,4; u:N; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); a=Reshape(r #-1,1); "
    "i=ArgMax(x) axis=1 keepdims=1; c=Concat(a i) axis=-1; y=ScatterND(x c u); -> y",
    "x:N,4; s=Shape(x); n=Gather(s #s0); r=Range(#s0 n #s1); y=Gather(x r); -> y",
    "x:N,T,4; i:N,2,1 i64; y=GatherND(x i) batch_dims=1; -> y",
    "x:N,T,4; i:N,T i64; a=ArgMax(i) axis=1 keepdims=0; s=Shape(x); n=Gather(s #s0); "
    "t=Gather(s #1); r=Range(#s0 n #s1); m=Mul(r t); j=Add(a m); f=Flatten(x) axis=2; "
    "y=Gather(f j); -> y",
    "x:N,T,4; i:N i64; b=Sub(i #s1); s=Shape(x); n=Gather(s #s0); t=Gather(s #1); c=Mod(b t); "
    "r=Range(#s0 n #s1); m=Mul(r t); j=Add(m c); f=Flatten(x) axis=2; y=Gather(f j); -> y",
    "x:N,4; f=Reshape(x #-1); s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); "
    "m=Mul(r #s4); u=Unsqueeze(m #1); j=Add(u #0,1,2); k=Add(#s1 j); y=Gather(f k); -> y",
    // shape arithmetic of more dimensions
    "x:N,4,4; p=Concat(#0,0 #1,1) axis=0; z=ConstantOfShape(#2); c=Concat(p z) axis=0; "
    "r=Reshape(c #-1,2); v=Slice(r #-1 #-9223372036854775807 #0 #-1); t=Transpose(v) perm=1,0; "
    "q=Reshape(t #-1); y=Pad(x q); -> y",
    "x:N,4; i:N,2 i64; y=GatherElements(x i) axis=1; -> y",
    "x:N,4; i:N,2 i64; u:N,2; y=ScatterElements(x i u) axis=-1; -> y",
    // layers
    "x:N,3,8,8; c=Conv(x #f4,3,3,3 #f4) strides=2,2; b=BatchNormalization(c #f4 #f4 #f4 #f4); "
    "r=Relu(b); p=MaxPool(r) kernel_shape=3,3; f=Flatten(p); g=Gemm(f #f4,2); y=Softmax(g); -> y",
    "x:N,3,8,8; c=Conv(x #f4,3,3,3) pads=1,1,1,1 strides=2,2; r=Reshape(c #-1,64); "
    "y=MatMul(r #f64,2); -> y",
    "x:N,3,H,W; c=Conv(x #f4,3,3,3); s=Shape(c); r=Reshape(c #0,4,-1); q=Softmax(r); "
    "w=Reshape(q s); y=GlobalAveragePool(w); -> y",
    "x:N,4,4,4; a=GroupNormalization(x #f4 #f4) num_groups=2; b=InstanceNormalization(a #f4 #f4); "
    "c=LRN(b) size=3; d=MeanVarianceNormalization(c) axes=2,3; y=LayerNormalization(d #f4); -> y",
    "x:N,4,2,2; y=DepthToSpace(x) blocksize=2; z=SpaceToDepth(y) blocksize=2; -> y z",
    "x:N,1,4,4; y=Resize(x _ #v1,1,2,2) mode='linear'; -> y",
    "x:N,1,4,4; s=Shape(x) end=2; c=Concat(s #7,7) axis=0; y=Resize(x _ _ c); -> y",
    "x:N,1,4,4; y=Resize(x _ _ #7,7) axes=2,3; -> y",
    "x:N,3,4; t=Transpose(x) perm=1,0,2; s=Shape(x) end=1; c=Concat(#1 s #2) axis=0; "
    "h=ConstantOfShape(c); o hn=GRU(t #f1,6,4 #f1,6,2 _ _ h); q=Squeeze(o #1); "
    "y=Transpose(q) perm=1,0,2; -> y",
    "x:N,3,4; l:N i64; t=Transpose(x) perm=1,0,2; _ h=LSTM(t #f1,8,4 #f1,8,2 _ l); "
    "y=Squeeze(h #0); -> y",
    "x:N,3,5,5; g:N,2,2,2; y=GridSample(x g); -> y",
    "q:N,3,8; k:N,5,8; v:N,5,8; m:N,1,3,5; y=Attention(q k v m) q_num_heads=2 kv_num_heads=2; -> y",
    "x:N,3,4; y=Einsum(x #f4,2) equation='bij,jk->bik'; z=Einsum(x x) equation='...ij,...kj'; "
    "-> y z",
    "x:N,3,4; t=Transpose(x) perm=1,0,2; e=Einsum(t t) equation='ibd,jbd->bij'; y=Relu(e); -> y",
    "x:N,T,4; l:N i64; y=ReverseSequence(x l) batch_axis=0 time_axis=1; -> y",
    "i:N,3 i64; y=OneHot(i #s4 #v0,1); -> y",
    "x:N,4; y m=Dropout(x #v1 #b0); -> y m",
    "x:N,4; c:N,1 bool; y=Where(c x #f4); -> y",
    // what nobody reads does not matter
    "x:N,4; d=Softmax(x) axis=0; y=Relu(x); -> y",
};

static void test_dependent(void **state)
{
    int bad = 0;
    for (size_t i = 0; i < sizeof mixed / sizeof mixed[0]; i++) {
        hth_independence got;
        hth_graph *g = words_graph(mixed[i].graph);
        assert_int_equal(hth_independence_prove(g, &got), HTH_OK);
        if (got.proven || strstr(got.why, mixed[i].why) == NULL) {
            printf("# %s\n#  is not \"%s\":\n#  %s\n", mixed[i].graph, mixed[i].why, got.why);
            bad++;
        }
        hth_graph_free(g);
    }
    assert_int_equal(bad, 0);
}

static void test_independent(void **state)
{
    int bad = 0;
    for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++) {
        hth_independence got;
        hth_graph *g = words_graph(apart[i]);
        assert_int_equal(hth_independence_prove(g, &got), HTH_OK);
        if (!got.proven || got.why[0] != 0 || got.node != -1) {
            printf("# %s\n#  %s\n", apart[i], got.why);
            bad++;
        }
        hth_graph_free(g);
    }
    assert_int_equal(bad, 0);
}

// Every allocation fails once: the answer is HTH_ENOMEM or the right one, and nothing is left.
static void test_memory(void **state)
{
    const char *text = apart[25];
    hth_graph *g = words_graph(text);
    int64_t live = hth_alloc_live();
    hth_err err = HTH_ENOMEM;
    for (uint64_t n = 1; err != HTH_OK; n++) {
        hth_independence got = {.proven = true};
        hth_fault_alloc(n);
        err = hth_independence_prove(g, &got);
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        assert_true(err == HTH_OK ? got.proven : !got.proven);
        assert_int_equal(hth_alloc_live(), live);
        assert_true(n < 10000);
    }
    hth_graph_free(g);
}

// A node without a rule, and operands of post operations, as passes write them.
static void test_own_operators(void **state)
{
    hth_independence got;
    hth_graph *g = words_graph("x:N,4; z:N,4; y=Relu(x); w=Add(y z); -> y");
    hth_node *n = &g->nodes[0];
    assert_int_equal(hth_node_add_input(n, g->inputs[1]), HTH_OK);
    n->post[0] = (hth_post_op){.op = HTH_OP_ADD, .input = 1};
    n->n_post = 1;
    assert_int_equal(hth_independence_prove(g, &got), HTH_OK);
    assert_true(got.proven);
    g->values[g->inputs[1]].shape = (hth_shape){1, {g->values[g->inputs[0]].shape.dim[0]}};
    assert_int_equal(hth_independence_prove(g, &got), HTH_OK);
    assert_non_null(strstr(got.why, "combines each sample with all others"));
    n->n_post = 0;
    n->op = HTH_OP_REORDER;
    assert_int_equal(hth_independence_prove(g, &got), HTH_OK);
    assert_non_null(
        strstr(got.why, "is an operator that the analysis of samples does not support"));
    hth_graph_free(g);
}

// A proof says nothing about runs of no samples, empty inputs, or more elements than int32 has.
static void test_covers(void **state)
{
    const hth_tensor some[] = {{.shape = {2, {3, 4}}}, {.shape = {3, {3, 2, 1 << 20}}}};
    const hth_tensor empty[] = {{.shape = {2, {3, 4}}}, {.shape = {2, {3, 0}}}};
    const hth_tensor thin[] = {{.shape = {2, {3, 4}}}};
    const hth_tensor wide[] = {{.shape = {4, {1, INT64_MAX, 1, 8}}}};
    assert_true(hth_independence_covers(some, 2, 1));
    assert_true(hth_independence_covers(some, 2, 1023));
    assert_false(hth_independence_covers(some, 2, 1024));
    assert_true(hth_independence_covers(thin, 1, 131071));
    assert_false(hth_independence_covers(thin, 1, 131072)); // shape arithmetic may compare with it
    assert_false(hth_independence_covers(some, 2, 0));
    assert_false(hth_independence_covers(empty, 2, 3));
    assert_false(hth_independence_covers(wide, 1, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dependent), cmocka_unit_test(test_independent),
        cmocka_unit_test(test_memory),    cmocka_unit_test(test_own_operators),
        cmocka_unit_test(test_covers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
