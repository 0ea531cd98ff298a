// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_hint.h - what is given as an ONNX model and is none: what it is, and what makes a
// model of it. Private to graph/onnx*.c.
#ifndef HTH_GRAPH_ONNX_ONNX_HINT_H
#define HTH_GRAPH_ONNX_ONNX_HINT_H

#include "graph/onnx/onnx_wire.h"

// hth_onnx_hint knows other kinds of files by their content (never more than their first and last
// 64 KiB): "a PyTorch file; torch.onnx.export(..)". NULL: it knows none of it. Any thread.
const char *hth_onnx_hint(hth_span file);
// hth_onnx_hint_operator is the same for an operator that is not supported: who makes such a one.
// `domain` and `op` are the node's. NULL: nothing is known.
const char *hth_onnx_hint_operator(const char *domain, const char *op);

#endif
